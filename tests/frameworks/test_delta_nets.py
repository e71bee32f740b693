"""Hybrids of attention and gated delta nets: how Megatron-LM is told of them, read back, and who cannot run them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.params import layer_parameters
from planner.errors import InputError, UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import Launch
from planner.frameworks.megatron.hybrid import RELEASES
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.config import ParallelConfig, Schedule
from planner.spec.layer import Layer
from planner.spec.load_model import load_model
from planner.spec.mixers import DeltaNet
from tests.frameworks.launches import launch, problem
from tests.frameworks.megatron_checkout import MAIN, beginning, of_main, written
from tests.frameworks.test_own_parsers import needs, run
from tests.problems import delta_model
from tests.problems import problem as small_problem

NEXT, DENSE, SPARSE = "qwen3-next-80b-a3b", "qwen3.5-27b", "qwen3.5-35b-a3b"
PIPELINE = ParallelConfig(
    tp=2, pp=4, dp=16, vpp=4, ep=8, micro_batch=1, num_microbatches=16, sp=1, zero=1, schedule=Schedule.INTERLEAVED
)  # fmt: skip
FLAT = ParallelConfig(tp=4, dp=32, micro_batch=1, num_microbatches=8, sp=1, zero=1)
COUNT = 5


def launches() -> list[Launch]:
    given = problem(NEXT, "megatron-2026")
    uneven = launch(NEXT, replace(PIPELINE, vpp=1, schedule=Schedule.ONE_F_ONE_B), given, (13, 12, 12, 11))
    predicting = load_model(NEXT, with_mtp=True)
    return [
        launch(NEXT, PIPELINE, given),
        uneven,
        replace(uneven, model=predicting),
        launch(DENSE, replace(FLAT, cp=2, dp=16), problem(DENSE, "megatron-2026")),
        launch(
            SPARSE,
            replace(FLAT, tp=1, dp=128, ep=8, num_microbatches=2, sp=0),
            problem(SPARSE, "megatron-2026"),
        ),
    ]


def script(*more: str) -> dict[str, str]:
    words = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 2048 --num-attention-heads 16 "
        "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 "
        "--vocab-size 1000 --disable-bias-linear --normalization RMSNorm --swiglu --position-embedding-type rope"
    )
    return {"run.sh": " ".join((words, *more))}


@pytest.mark.parametrize("case", range(COUNT))
def test_megatron_reads_back_what_was_planned(case: int) -> None:
    told = launches()[case]
    files = framework("megatron").render(told, RELEASES[-1])
    read = framework("megatron").parse({"launch.sh": files["launch.sh"]})
    assert "pretrain_gpt.py" in files["launch.sh"]
    assert "--hybrid-layer-pattern" not in files["launch.sh"]
    assert read.model is not None
    assert read.model.layers == told.model.layers
    assert read.model.mtp_layers == told.model.mtp_layers
    assert (read.model.hidden, read.model.vocab) == (told.model.hidden, told.model.vocab)
    for axis in ("tp", "cp", "pp", "vpp", "ep", "sp", "micro_batch"):
        assert read.axes[axis] == getattr(told.config, axis), axis
    assert read.version == RELEASES[-1]
    assert not read.unknown


def test_options_of_nets_gates_and_centred_norms() -> None:
    text = framework("megatron").render(launches()[0], RELEASES[-1])["launch.sh"]
    for words in (
        "--experimental-attention-variant gdn", "--linear-attention-freq '([1,1,1,0])*12'",
        "--linear-num-value-heads 32", "--linear-value-head-dim 128", "--linear-num-key-heads 16",
        "--linear-key-head-dim 128", "--linear-conv-kernel-dim 4", "--attention-output-gate", "--apply-layernorm-1p",
        "--rotary-percent 0.25", "--qk-layernorm", "--moe-shared-expert-gate",
    ):  # fmt: skip
        assert words in text, words
    assert "--moe-router-pre-softmax" not in text  # probabilities of the chosen are normed
    assert "flash-linear-attention" in framework("megatron").render(launches()[0], RELEASES[-1])["README.md"]


def test_other_releases_and_other_nets_are_refused() -> None:
    told = launches()[3]
    for version in framework("megatron").versions[:-1]:
        with pytest.raises(UnsupportedError, match="framework-version main-2026-08"):
            framework("megatron").render(told, version)
    net = told.model.layers[0].state_space
    assert net is not None
    for changed in (replace(net, conv_bias=True), replace(net, chunk=128), replace(net, bias=True)):
        first = replace(told.model.layers[0], state_space=changed)
        with pytest.raises(UnsupportedError, match="delta nets"):
            framework("megatron").render(
                replace(told, model=replace(told.model, layers=(first,) * 64)), RELEASES[-1]
            )
    two = (replace(told.model.layers[0], state_space=replace(net, conv=3)), *told.model.layers[1:])
    with pytest.raises(UnsupportedError, match="differ between layers"):
        framework("megatron").render(replace(told, model=replace(told.model, layers=two)), RELEASES[-1])


@pytest.mark.parametrize(
    ("words", "pattern"),
    [("4", "NNNANNNA"), ("2", "NANANANA"), ("'([1]*3+[0])*2'", "NNNANNNA"), ("'([0]+[1]*7)'", "ANNNNNNN")],
)
def test_frequencies_and_patterns_are_read(words: str, pattern: str) -> None:
    given = script("--experimental-attention-variant gated_delta_net --linear-attention-freq", words)
    model = framework("megatron").parse(given).model
    assert model is not None
    assert "".join("A" if layer.attention else "N" for layer in model.layers) == pattern
    assert {(n.heads, n.head_dim, n.groups, n.state, n.conv) for n in model.delta_nets} == {
        (32, 128, 16, 128, 4)
    }
    assert not model.attentions[0].output_gate


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--experimental-attention-variant gdn2 --linear-attention-freq 4", "must be gdn"),
        ("--experimental-attention-variant dsa", "must come with latent attention"),
        ("--experimental-attention-variant gdn", "must come with --linear-attention-freq"),
        ("--linear-attention-freq 4", "must come with --experimental-attention-variant"),
        ("--experimental-attention-variant gdn --linear-attention-freq '([1]*3)'", "each of 8 layers"),
        ("--experimental-attention-variant gdn --linear-attention-freq 0", "from 1 to"),
        (
            "--experimental-attention-variant gdn --linear-attention-freq 4 --linear-num-value-heads 24",
            "groups must divide",
        ),
    ],
)
def test_scripts_that_cannot_be_read_are_refused(words: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        framework("megatron").parse(script(words))


@pytest.mark.parametrize(
    ("stack", "rule"),
    [("torchtitan-2026", "state-space-layers"), ("nanotron-2024", "state-space-layers"),
     ("deepspeed-2025", "state-space-whole"), ("fsdp1-2023", "state-space-whole")],
)  # fmt: skip
def test_who_runs_delta_nets_not_at_all_or_undivided(stack: str, rule: str) -> None:
    subject = replace(small_problem(delta_model()), stack=load_stack(stack))
    found = explain_config(ParallelConfig(tp=2, dp=8, zero=3), subject, rules_for(subject.stack))
    assert rule in {broken.rule for broken in found}
    alone = explain_config(ParallelConfig(dp=16, zero=3), subject, rules_for(subject.stack))
    assert (rule in {broken.rule for broken in alone}) == (rule == "state-space-layers")


@pytest.mark.parametrize(("name", "stack"), [("deepspeed", "deepspeed-2025"), ("accelerate", "fsdp1-2023")])
@pytest.mark.parametrize("model", [NEXT, DENSE, SPARSE])
def test_transformers_trains_the_models_own_configuration(name: str, stack: str, model: str) -> None:
    flat = ParallelConfig(dp=128, micro_batch=1, num_microbatches=2, zero=3)
    told = launch(model, flat, problem(model, stack))
    files = framework(name).render(told, framework(name).default_version)
    assert json.loads(files["config.json"])["model_type"] == told.model.family
    assert "flash-linear-attention" in files["README.md"]
    assert "mamba-ssm" not in files["README.md"]


def test_bridge_has_recipes_and_turns_their_predictions_off() -> None:
    bridge = framework("megatron-bridge")
    files = bridge.render(launches()[1], bridge.default_version)
    text = "\n".join(files.values())
    assert "qwen3_next_80b_a3b_pretrain_32gpu_h100_bf16_config" in text
    assert "model.mtp_num_layers=null" in text
    assert "model.mtp_num_layers=1" in "\n".join(
        bridge.render(launches()[2], bridge.default_version).values()
    )
    with pytest.raises(UnsupportedError, match="must be one that planner writes for Megatron-Bridge"):
        bridge.render(launches()[3], bridge.default_version)


@needs("torch", "triton", "six", "einops")
@pytest.mark.slow
@pytest.mark.checkout
@of_main
def test_megatrons_own_parser_takes_them(tmp_path: Path) -> None:
    """Degrees, which layers are delta nets, their sizes, the gate and the norms in its own configuration."""
    listed = []
    for number, told in enumerate(launches()):
        words, environment = written(tmp_path / str(number), told, MAIN)
        net = told.model.delta_nets[0]
        kinds = [int(layer.state_space is not None) for layer in told.model.layers]
        sizes = [net.heads, net.head_dim, net.groups, net.state, net.conv]
        listed.append([words, environment, told.config.__dict__, kinds, sizes, told.model.mtp_layers])
    (tmp_path / "cases.json").write_text(json.dumps(listed))
    source = (
        beginning()
        + """
from megatron.core.models.gpt.experimental_attention_variant_module_specs import get_linear_attention_pattern
from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args
for words, environment, config, kinds, sizes, predicting in json.load(open(sys.argv[1])):
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(environment, WORLD_SIZE="128", RANK="0")
    sys.argv = ["pretrain_gpt.py", *words]
    args = parse_args()
    validate_args(args)
    assert args.data_parallel_size == config["dp"]
    assert (args.virtual_pipeline_model_parallel_size or 1) == config["vpp"]
    args.apply_rope_fusion = args.moe_permute_fusion = False  # kernels of Transformer Engine, which needs a GPU
    made = core_transformer_config_from_args(args)
    assert get_linear_attention_pattern(made) == kinds
    assert made.experimental_attention_variant == "gdn"
    assert [made.linear_num_value_heads, made.linear_value_head_dim, made.linear_num_key_heads,
            made.linear_key_head_dim, made.linear_conv_kernel_dim] == sizes
    assert made.attention_output_gate and made.layernorm_zero_centered_gamma and args.rotary_percent == 0.25
    assert (made.mtp_num_layers or 0) == predicting
print("read")
"""
    )
    assert run(source, str(tmp_path / "cases.json")).split()[-1] == "read"


@needs("torch", "triton", "six", "einops")
@pytest.mark.slow
@pytest.mark.checkout
@of_main
@pytest.mark.parametrize("tp", [1, 4])
def test_megatrons_own_net_has_as_many_parameters_on_a_rank(tp: int) -> None:
    """Built on the meta device, its kernels aside, under a process group that sends nothing."""
    source = """
import os, sys, typing
import typing_extensions
typing.override = typing_extensions.override
sys.path.insert(0, os.environ["MEGATRON_PATH"])
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
torch.cuda.current_device = lambda: "meta"
torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
from megatron.core import parallel_state as state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm.gated_delta_net import common, gdn
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig
common.HAVE_FLA, gdn.chunk_gated_delta_rule = True, print
class Norm(torch.nn.RMSNorm):
    def __init__(self, config, hidden_size, eps):
        super().__init__(hidden_size)
tp, heads, width, groups, key, conv, hidden = map(int, sys.argv[1].split())
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
state.initialize_model_parallel(tensor_model_parallel_size=tp, create_gloo_process_groups=False)
config = TransformerConfig(
    num_layers=4, hidden_size=hidden, num_attention_heads=16, tensor_model_parallel_size=tp,
    experimental_attention_variant="gdn", linear_attention_freq=4, linear_num_value_heads=heads,
    linear_value_head_dim=width, linear_num_key_heads=groups, linear_key_head_dim=key, linear_conv_kernel_dim=conv,
    add_bias_linear=False, use_cpu_initialization=True, perform_initialization=False,
    activation_func=torch.nn.functional.silu)
parts = common.GatedDeltaNetSubmodules(ColumnParallelLinear, Norm, RowParallelLinear)
with torch.device("meta"):
    net = gdn.GatedDeltaNet(config, parts, 1, pg_collection=ProcessGroupCollection.use_mpu_process_groups())
print(sum(p.numel() for p in net.parameters()))
"""
    net = DeltaNet(heads=24, head_dim=96, state=64, groups=8, conv=3)
    sizes = (tp, net.heads, net.head_dim, net.groups, net.state, net.conv, 1024)
    found = layer_parameters(Layer(None, None, None, 0, state_space=net), 1024)
    assert int(run(source, " ".join(map(str, sizes))).split()[-1]) == found.column_row / tp + found.replicated
