"""What Megatron-LM refuses when it starts is refused before, with its reason; what is written for it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.errors import InputError
from planner.frameworks import framework
from planner.frameworks.megatron.rules import RULES
from planner.spec.config import ConfigTable, ParallelConfig
from tests.frameworks.launches import launch, problem
from tests.problems import dense_model, moe_model
from tests.problems import problem as small

EXPERTS = "--num-experts 8 --expert-model-parallel-size 8 --moe-grouped-gemm"
SHARED = f"{EXPERTS} --moe-shared-expert-intermediate-size 1024 --moe-shared-expert-overlap"
OVERLAP = f"{EXPERTS} --overlap-moe-expert-parallel-comm"


def script(words: str) -> dict[str, str]:
    return {
        "run.sh": "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 4096 "
        "--num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --swiglu "
        f"--micro-batch-size 4 --global-batch-size 64 --bf16 {words}"
    }


@pytest.mark.parametrize(
    ("words", "must", "mended"),
    [
        ("--optimizer-cpu-offload", "precision-aware", "--use-precision-aware-optimizer"),
        ("--tensor-model-parallel-size 2 --tp-comm-overlap", "sequence-parallel", "--sequence-parallel"),
        ("--tp-comm-overlap --sequence-parallel", "tensor parallelism", "--tensor-model-parallel-size 2"),
        (OVERLAP, "alltoall and flex", "--moe-token-dispatcher-type alltoall"),
        (SHARED, "alltoall and flex", "--moe-token-dispatcher-type alltoall"),
        (f"{OVERLAP} --moe-token-dispatcher-type alltoall --moe-shared-expert-overlap", "must not be used", None),
        (
            f"{SHARED} --moe-token-dispatcher-type alltoall --recompute-granularity selective --recompute-modules "
            "core_attn shared_experts", "shared_experts are recomputed", None,
        ),
        (
            "--multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 "
            "--rope-type rope", "only works with YARN", "--no-rope-fusion",
        ),
        ("--context-parallel-size 2 --cp-comm-type p2p all_gather", "one for each of 8 layers", None),
        (f"--context-parallel-size 2 --cp-comm-type {'p2p ' * 7}a2a", "one way that planner models", None),
        (
            f"{EXPERTS} --moe-token-dispatcher-type flex --moe-pad-expert-input-to-capacity", "DeepEP does not support",
            None,
        ),
    ],
)  # fmt: skip
def test_refused_as_megatron_does(words: str, must: str, mended: str | None) -> None:
    with pytest.raises(InputError, match=must):
        framework("megatron").parse(script(words))
    if mended is not None:
        assert framework("megatron").parse(script(f"{words} {mended}")).axes


@pytest.mark.parametrize(
    "option",
    ["recompute-granularity", "attention-backend", "cross-entropy-fusion-impl", "moe-token-dispatcher-type"],
)
def test_words_that_an_option_does_not_take(option: str) -> None:
    with pytest.raises(InputError, match=f"--{option} must be one of"):
        framework("megatron").parse(script(f"--{option} banana"))


def test_the_loss_of_transformer_engine_is_said_to_be_refused() -> None:
    fused = "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te"
    for words, said in ((fused, True), ("--cross-entropy-loss-fusion", False)):
        notes = framework("megatron").parse(script(words)).notes
        assert any("refuses it, for stability" in note for note in notes) is said


def test_latent_attention_without_yarn_is_written_unfused() -> None:
    found = framework("megatron")
    for name, unfused in (("deepseek-v2-lite", True), ("deepseek-v3", False)):
        config = ParallelConfig(dp=16, ep=8, zero=1, micro_batch=1, num_microbatches=4)
        given = problem(name, "megatron-2026", gpus=16)
        case = launch("", config, given, (given.model.num_layers,))
        files = found.render(case, found.default_version)
        assert files["launch.sh"].count("--no-rope-fusion") == int(
            unfused and "rope-type rope" in files["launch.sh"]
        )
        assert found.parse({"launch.sh": files["launch.sh"]}).axes["ep"] == 8


def test_copies_of_optimizer_states_divide_ranks_with_the_same_experts() -> None:
    """64 ranks in 8 copies of 8: two ranks hold the same experts where ep is 32, eight where it is 8."""
    rule = next(rule for rule in RULES if rule.id == "hsdp-experts")
    configs = [
        ParallelConfig(dp=64, ep=ep, zero=1, hsdp=hsdp) for ep, hsdp in ((32, 8), (32, 32), (8, 8), (32, 0))
    ]
    table = ConfigTable.of(configs)
    columns = {name: table[name] for name in rule.needs}
    experts = small(moe_model(), "8x8 h100 400G-ib", global_batch=64)
    assert rule.legal(columns, experts).tolist() == [False, True, True, True]
    dense = replace(experts, model=dense_model(4))
    assert np.all(rule.legal(columns, dense))


def test_instances_without_the_distributed_optimizer_share_nothing() -> None:
    parsed = framework("megatron").parse(script("--num-distributed-optimizer-instances 2"))
    assert (parsed.axes["zero"], parsed.state_copies) == (0, 1)


@pytest.mark.parametrize(
    ("override", "axis", "value"),
    [
        ("optimizer.optimizer_cpu_offload=true optimizer.optimizer_offload_fraction=1.0", "offload", 1),
        ("optimizer.optimizer_cpu_offload=true", "offload", 0),  # a fraction of 0 unless one is named
        ("model.cpu_offloading=true", "offload", 4),
    ],
)  # fmt: skip
def test_megatron_bridges_overrides_of_states_and_activations_are_read(
    override: str, axis: str, value: int
) -> None:
    found = framework("megatron-bridge")
    given = problem("llama-3.1-8b", "megatron-2026", gpus=16)
    config = ParallelConfig(dp=16, zero=1, micro_batch=1, num_microbatches=4)
    files = found.render(launch("", config, given, (32,)), found.default_version)
    assert found.parse({"launch.sh": files["launch.sh"]}).axes[axis] == 0
    copies = "ddp.num_distributed_optimizer_instances=2"
    changed = files["launch.sh"].replace("OVERRIDE_ARGS=(", f"OVERRIDE_ARGS=(\n  {override} {copies}", 1)
    read = found.parse({"launch.sh": changed})
    assert read.axes[axis] == value
    assert read.state_copies == 2
