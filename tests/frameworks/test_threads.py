"""Legality as users met it: each case is a public thread about a configuration that a framework refused or mangled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import UnsupportedError
from planner.frameworks import framework
from planner.frameworks.layout import parse_layout
from planner.frameworks.megatron.parse import parse
from planner.space.framework_rules import all_rules_for
from planner.space.legality import explain_config
from planner.spec.config import RECOMPUTE_MODULES, ParallelConfig
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec
from planner.spec.rule import Problem
from tests.frameworks.launches import launch, problem


def with_layers(model: ModelSpec, count: int) -> ModelSpec:
    return replace(model, layers=model.layers[:1] * count)


def broken(config: ParallelConfig, given: Problem) -> set[str]:
    return {
        violation.rule for violation in explain_config(config, given, all_rules_for(given.stack.framework))
    }


def test_80_layers_pp16_vp2_were_64() -> None:
    """Megatron-LM#468: 80 layers on 16 x 2 chunks trained 64; 2.5 a chunk must become a layout, or be refused."""
    words = "--num-layers 80 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16"
    (refused,) = parse({"a": f"{words} --num-layers-per-virtual-pipeline-stage 2"}).violations
    assert "divisible" in refused.reason
    given = problem("llama-3.1-70b", "megatron-2026", gpus=128)
    config = ParallelConfig(tp=8, pp=16, dp=1, vpp=2, micro_batch=1, num_microbatches=256, sp=1, schedule=1)
    text = framework("megatron").render(launch("", config, given), "0.18.2")["launch.sh"]
    layout = next(line.split(" ", 3)[-1] for line in text.splitlines() if "-layout" in line).strip("'")
    stages = parse_layout(layout)
    assert len(stages) == 32
    assert "".join(stages).count("t") == 80


@pytest.mark.parametrize(("layers", "pp"), [(40, 16), (30, 4)])
def test_layers_that_pp_does_not_divide(layers: int, pp: int) -> None:
    """Megatron-LM#1303, #1304: refused as plain arguments, so the export must say how layers are dealt."""
    given = problem("llama-3.1-8b", "megatron-2026")
    given = replace(given, model=with_layers(given.model, layers))
    config = ParallelConfig(tp=1, pp=pp, dp=128 // pp, micro_batch=1, num_microbatches=2 * pp, zero=1)
    assert "layers-pp" not in broken(config, given)
    text = framework("megatron").render(launch("", config, given), "0.18.2")["launch.sh"]
    back = parse({"launch.sh": text})
    assert sum(back.layers) == layers
    assert len(back.layers) == pp


def test_key_value_heads_below_tp() -> None:
    """torchtitan#2577: 2 heads on tp=4 are copied by Megatron-LM and refused by torchtitan."""
    config = ParallelConfig(tp=4, dp=32, micro_batch=1, num_microbatches=8, sp=1, zero=3)
    for stack, refused in (("megatron-2026", False), ("torchtitan-2026", True)):
        given = problem("llama-3.1-8b", stack)
        attention = replace(given.model.layers[0].attention, kv_heads=2)
        layer = replace(given.model.layers[0], attention=attention)
        given = replace(given, model=replace(given.model, layers=(layer,) * 32))
        assert ("kv-heads-tp" in broken(config, given)) is refused, stack


def test_queries_keys_and_values_are_dealt_as_one() -> None:
    """24 heads and 2 key/value heads of 128: 3,584 outputs, which Megatron-LM's ColumnParallelLinear refuses on 12."""
    given = problem("starcoder2-3b", "megatron-2026", gpus=24)
    for tp, legal in ((4, True), (8, True), (12, False)):
        config = ParallelConfig(tp=tp, dp=24 // tp, micro_batch=1, num_microbatches=8)
        assert ("qkv-tp" not in broken(config, given)) is legal, tp


def test_61_layers_on_16_stages_take_a_layout() -> None:
    given = problem("deepseek-v3", "megatron-2026")
    config = ParallelConfig(pp=16, dp=8, ep=8, micro_batch=1, num_microbatches=32, zero=1)
    assert broken(config, given) == set()
    files = framework("megatron").render(launch("", config, given), "0.18.2")
    assert sum(parse({"launch.sh": files["launch.sh"]}).layers) == 61


def test_queries_of_full_rank_have_no_norm_in_main() -> None:
    """Megatron-Bridge#5261: from Megatron-LM 0.19 on --qk-layernorm also norms queries that nothing compresses."""
    given = problem("deepseek-v2-lite", "megatron-2026", gpus=8)
    plain = launch("", ParallelConfig(dp=8, ep=8, micro_batch=1, num_microbatches=32, zero=1), given)
    megatron = framework("megatron")
    with pytest.raises(UnsupportedError, match=r"adds a norm to the queries") as refused:
        megatron.render(plain, "main-2026-08")
    assert refused.value.hint == "choose --framework-version 0.18.2"
    script = megatron.render(plain, "0.18.2")["launch.sh"]
    assert "--qk-layernorm" in script
    read = megatron.parse({"launch.sh": script})
    assert read.version == "0.18.2"
    assert any("second norm before the queries" in note for note in read.notes)
    said = framework("megatron-bridge").render(plain, "0.7.0")["README.md"]
    assert "queries without a norm" in said
    assert "2,048 parameters more a layer" in said
    low_rank = launch("", plain.config, problem("deepseek-v3", "megatron-2026", gpus=8))
    script = megatron.render(low_rank, "main-2026-08")["launch.sh"]
    assert not any("second norm" in note for note in megatron.parse({"launch.sh": script}).notes)


@pytest.mark.parametrize(("gpus", "legal"), [(64, True), (32, False)])
def test_fewest_devices_of_a_mixture(gpus: int, legal: bool) -> None:
    """Not the product of degrees: pp x max(tp x cp, ep x etp)."""
    given = problem("deepseek-v3", "megatron-2026", gpus=gpus)
    config = ParallelConfig(
        tp=8, dp=gpus // 8, ep=64, micro_batch=1, num_microbatches=256 // (gpus // 8), sp=1, zero=1
    )
    assert ("expert-grid" in broken(config, given)) is not legal


def test_rules_of_frameworks_have_teeth() -> None:
    cases = [
        (
            "torchtitan-2026",
            "qwen2.5-0.5b",
            ParallelConfig(pp=2, dp=64, micro_batch=1, num_microbatches=4, zero=3),
            "tied-pp",
        ),
        (
            "torchtitan-2026",
            "llama-3.1-8b",
            ParallelConfig(dp=128, micro_batch=2, num_microbatches=1, zero=1),
            "no-zero-1",
        ),
        (
            "torchtitan-2026",
            "llama-3.1-8b",
            ParallelConfig(pp=8, dp=16, micro_batch=4, num_microbatches=4, zero=3),
            "microbatches-pp",
        ),
        (
            "torchtitan-2026",
            "qwen3-30b-a3b",
            ParallelConfig(tp=2, dp=64, sp=1, micro_batch=1, num_microbatches=4, zero=3),
            "experts-tp",
        ),
        (
            "nanotron-2024",
            "qwen3-30b-a3b",
            ParallelConfig(dp=128, ep=4, micro_batch=2, num_microbatches=1, zero=1),
            "nanotron-ep",
        ),
        (
            "deepspeed-2025",
            "llama-3.1-8b",
            ParallelConfig(pp=2, dp=64, micro_batch=1, num_microbatches=4, zero=2),
            "pipeline-zero",
        ),
        (
            "fsdp1-2023",
            "llama-3.1-8b",
            ParallelConfig(cp=2, dp=64, micro_batch=1, num_microbatches=4),
            "cp-fsdp",
        ),
        (
            "megatron-2026",
            "gpt-oss-20b",
            ParallelConfig(tp=2, dp=64, ep=2, etp=2, sp=1, micro_batch=1, num_microbatches=4),
            "moe-bias-etp",
        ),
        (
            "megatron-2026",
            "llama-3.1-8b",
            ParallelConfig(tp=2, cp=8, dp=8, sp=1, cp_kind=2, micro_batch=1, num_microbatches=32),
            "cp-a2a-heads",
        ),
        (
            "megatron-2026",
            "llama-3.1-8b",
            ParallelConfig(dp=128, recompute=1, recompute_modules=1 << 5, num_microbatches=2),
            "recompute-modules",
        ),
    ]
    for stack, model, config, rule in cases:
        given = problem(model, stack)
        assert rule in broken(config, given), (stack, rule)
    dealt = ParallelConfig(tp=2, etp=2, dp=64, sp=1, micro_batch=1, num_microbatches=4, zero=3)
    assert not broken(dealt, problem("qwen3-30b-a3b", "torchtitan-2026"))


@pytest.mark.parametrize(
    ("precision", "modules", "refused"),
    [
        ("fp8", ("core_attn",), False),
        ("fp8", ("core_attn", "layernorm"), True),
        ("fp8", ("moe_act",), True),
        ("fp8_cs", ("moe_act", "layernorm"), False),
        ("bf16", ("moe_act", "layernorm"), False),
    ],
)
def test_delayed_scaling_recomputes_no_inputs_of_products(
    precision: str, modules: tuple[str, ...], refused: bool
) -> None:
    """TransformerConfig raises on it: "Delayed scaling does not support moe_act and layernorm recompute for fp8"."""
    chosen = sum(1 << RECOMPUTE_MODULES.index(name) for name in modules)
    config = ParallelConfig(
        dp=128, ep=8, recompute=1, recompute_modules=chosen, micro_batch=1, num_microbatches=2, zero=1
    )
    given = problem("qwen3-30b-a3b", "megatron-2026", precision=precision)
    assert broken(config, given) == ({"recompute-delayed"} if refused else set())


def test_model_of_a_plan() -> None:
    assert load_model("llama-3.1-8b").num_layers == 32


@pytest.mark.parametrize(
    ("first", "again", "told"),
    # 12 layers on 4 ranks, of which 3 or more mean all; `first` of them on the first
    [(3, 3, False), (6, 3, True), (6, 6, False), (6, 2, False), (9, 4, True)],
)
def test_layers_that_a_block_leaves_alone_are_told(first: int, again: int, told: bool) -> None:
    text = (
        "pretrain_gpt.py --num-layers 12 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 1 --bf16 "
        f"--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers {first} "
        f"--recompute-granularity full --recompute-method block --recompute-num-layers {again}"
    )
    notes = parse({"train.sh": text}).notes
    assert any(f"recomputes {again} of the {first} layers" in note for note in notes) is told
    whole = parse({"train.sh": text.replace("method block", "method uniform")}).notes
    assert not any("--recompute-num-layers" in note for note in whole)
