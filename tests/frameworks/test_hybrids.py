"""Hybrids of attention and state spaces: how Megatron-LM is told of them, read back, and who cannot run them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.errors import InputError, UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import Launch
from planner.frameworks.megatron.hybrid import PROGRAM, RELEASES
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.config import ParallelConfig, Schedule
from planner.spec.layer import Layer
from planner.spec.load_model import load_model
from planner.spec.mixers import StateSpace
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from tests.frameworks.launches import launch, problem
from tests.frameworks.megatron_checkout import MAIN, beginning, of_main, written
from tests.frameworks.test_own_parsers import needs, run
from tests.problems import hybrid_model
from tests.problems import problem as small_problem

NANO, DENSE, ALONE = "nemotron-3-nano-30b-a3b", "nemotron-h-56b", "codestral-mamba-7b"
SUPER = "nemotron-3-super-120b-a12b"
PIPELINE = ParallelConfig(
    tp=4,
    pp=4,
    dp=8,
    vpp=2,
    ep=8,
    micro_batch=1,
    num_microbatches=32,
    sp=1,
    zero=1,
    schedule=Schedule.INTERLEAVED,
)
FLAT = ParallelConfig(tp=8, dp=16, micro_batch=1, num_microbatches=16, sp=1, zero=1)


def launches() -> list[Launch]:
    given = problem(NANO, "megatron-2026")
    return [
        launch(NANO, PIPELINE, given),
        launch(NANO, replace(PIPELINE, vpp=1, schedule=Schedule.ONE_F_ONE_B), given, (15, 13, 13, 11)),
        launch(DENSE, FLAT, problem(DENSE, "megatron-2026")),
        launch(DENSE, replace(FLAT, tp=2, cp=4, dp=16), problem(DENSE, "megatron-2026")),
        launch(ALONE, FLAT, problem(ALONE, "megatron-2026")),
        launch(SUPER, PIPELINE, _predicting(problem(SUPER, "megatron-2026"))),
    ]


def _predicting(given: Problem) -> Problem:
    """The same with two multi-token-prediction modules, of attention and experts each."""
    return replace(given, model=replace(load_model(given.model.name, with_mtp=True), mtp_layers=2))


def _with_chunk(layer: Layer, chunk: int) -> Layer:
    state = layer.state_space
    return layer if state is None else replace(layer, state_space=replace(state, chunk=chunk))


@pytest.mark.parametrize("case", range(6))
def test_megatron_reads_back_what_was_planned(case: int) -> None:
    told = launches()[case]
    files = framework("megatron").render(told, RELEASES[-1])
    read = framework("megatron").parse({"launch.sh": files["launch.sh"]})
    assert PROGRAM in files["launch.sh"]
    assert "pretrain_gpt" not in files["launch.sh"]
    assert read.model is not None
    chunk = {state.chunk for state in told.model.state_spaces}.pop()  # no argument states it
    assert tuple(_with_chunk(layer, chunk) for layer in read.model.layers) == told.model.layers
    assert (read.model.hidden, read.model.vocab) == (told.model.hidden, told.model.vocab)
    assert (read.model.mtp_layers, read.model.mtp_block) == (told.model.mtp_layers, told.model.mtp_block)
    for axis in ("tp", "cp", "pp", "vpp", "ep", "sp", "micro_batch"):
        assert read.axes[axis] == getattr(told.config, axis), axis
    assert read.layers == (() if told.config.pp == 1 else told.chunks)
    assert read.version == RELEASES[-1]
    assert not read.unknown


def test_the_pattern_has_a_part_for_every_chunk() -> None:
    told = launches()[1]
    script = framework("megatron").render(told, RELEASES[-1])["launch.sh"]
    pattern = re.search(r"--hybrid-layer-pattern\s+'([-M*E|]+)'", script)
    assert pattern is not None
    parts = pattern[1].split("|")
    assert list(map(len, parts)) == [15, 13, 13, 11]
    assert "".join(parts) == "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    assert "--num-layers" not in script
    assert "--moe-layer-freq" not in script
    assert "--position-embedding-type none" in script


def test_other_releases_and_layers_of_two_parts_are_refused() -> None:
    for version in framework("megatron").versions[:-1]:
        with pytest.raises(UnsupportedError, match="framework-version main-2026-08"):
            framework("megatron").render(launches()[0], version)
    given = problem("granite-4.0-h-small", "megatron-2026")
    with pytest.raises(UnsupportedError, match="multipliers"):
        framework("megatron").render(
            launch("granite-4.0-h-small", replace(FLAT, tp=1, dp=128), given), RELEASES[-1]
        )
    two = launches()[2]
    joined = replace(two.model.layers[0], mlp=two.model.layers[1].mlp, norms=2)
    model = replace(two.model, layers=(joined,) * 4)
    with pytest.raises(UnsupportedError, match="two parts"):
        framework("megatron").render(replace(two, model=model), RELEASES[-1])


def test_a_convolution_that_the_mixer_does_not_have_is_refused() -> None:
    told = launches()[4]
    state = told.model.state_spaces[0]
    assert isinstance(state, StateSpace)
    layer = replace(told.model.layers[0], state_space=replace(state, conv=3))
    with pytest.raises(UnsupportedError, match="4 taps"):
        framework("megatron").render(
            replace(told, model=replace(told.model, layers=(layer,) * 4)), RELEASES[-1]
        )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--hybrid-layer-pattern MG*-", "gated delta nets"),
        ("--hybrid-layer-pattern M*M*/*M/MM", "the same layers in every MTP module"),
        ("--hybrid-layer-pattern M*M*/-", "that come before them"),
        ("--hybrid-layer-pattern M*M*/G", "gated delta nets"),
        ("--hybrid-layer-pattern M-X-", "M, \\*, -, E"),
        ("--hybrid-layer-pattern '*-*-'", "Mamba layer"),
        ("--hybrid-layer-pattern MEM-", "--num-experts"),
        ("--hybrid-attention-ratio 0.1 --num-layers 8", "hybrids with --hybrid-layer-pattern"),
    ],
)
def test_patterns_that_cannot_be_read_are_refused(words: str, complaint: str) -> None:
    text = (
        "torchrun pretrain_hybrid.py --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --micro-batch-size 1 "
        f"--max-position-embeddings 1024 --global-batch-size 8 --vocab-size 1000 {words}"
    )
    with pytest.raises(InputError, match=complaint):
        framework("megatron").parse({"run.sh": text})


def test_parts_of_a_pattern_that_the_pipeline_does_not_divide_are_illegal() -> None:
    text = (
        "torchrun pretrain_hybrid.py --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --micro-batch-size 1 "
        "--max-position-embeddings 1024 --global-batch-size 8 --vocab-size 1000 "
        "--hybrid-layer-pattern 'M-|M-|M-' --pipeline-model-parallel-size 2"
    )
    (broken,) = framework("megatron").parse({"run.sh": text}).violations
    assert broken.rule == "layers-dealt"
    assert broken.reason.endswith("3 parts, pp 2")


def test_prediction_modules_of_earlier_scripts_are_read() -> None:
    text = (
        "torchrun pretrain_mamba.py --hybrid-override-pattern ME*- --mtp-hybrid-override-pattern *E --mtp-num-layers 2 "
        "--hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --num-experts 4 "
        "--micro-batch-size 1 --global-batch-size 8 --vocab-size 1000 --mtp-use-repeated-layer --moe-latent-size 64"
    )
    read = framework("megatron").parse({"run.sh": text})
    assert read.model is not None
    assert read.model.mtp_layers == 2
    assert [layer.moe is not None for layer in read.model.mtp_block] == [False, True]
    assert read.model.mtp_block[1].moe.latent == 64  # type: ignore[union-attr]
    assert any("MTP modules share" in note for note in read.notes)


def test_the_older_name_and_program_are_read_too() -> None:
    text = (
        "torchrun --nproc_per_node 8 pretrain_mamba.py --hybrid-override-pattern M-M*-M- --hidden-size 512 "
        "--num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 "
        "--global-batch-size 8 --vocab-size 1000 --disable-bias-linear --normalization RMSNorm --num-layers 99"
    )
    model = framework("megatron").parse({"run.sh": text}).model
    assert model is not None
    assert model.num_layers == 7
    assert model.state_spaces == (StateSpace(16, 64, 128, 8, chunk=128),)  # 2 x 512 / 64 heads


@pytest.mark.parametrize(
    ("stack", "rule"),
    [("torchtitan-2026", "state-space-layers"), ("nanotron-2024", "state-space-layers"),
     ("maxtext-2024", "state-space-layers"),
     ("deepspeed-2025", "state-space-whole"), ("fsdp1-2023", "state-space-whole")],
)  # fmt: skip
def test_who_runs_hybrids_not_at_all_or_undivided(stack: str, rule: str) -> None:
    hybrid = replace(small_problem(hybrid_model("M-" * 4)), stack=load_stack(stack))
    found = explain_config(ParallelConfig(tp=2, dp=8, zero=3), hybrid, rules_for(hybrid.stack))
    assert rule in {broken.rule for broken in found}
    alone = explain_config(ParallelConfig(dp=16, zero=3), hybrid, rules_for(hybrid.stack))
    assert (rule in {broken.rule for broken in alone}) == (rule == "state-space-layers")


@pytest.mark.parametrize(("name", "stack"), [("deepspeed", "deepspeed-2025"), ("accelerate", "fsdp1-2023")])
def test_transformers_trains_the_models_own_configuration(name: str, stack: str) -> None:
    """Granite 4, whose multipliers no argument states, and Nemotron-H: config.json as shipped, kernels asked for."""
    for model in ("granite-4.0-h-small", "nemotron-h-8b"):
        flat = ParallelConfig(dp=128, micro_batch=1, num_microbatches=2, zero=3)
        told = launch(model, flat, problem(model, stack))
        files = framework(name).render(told, framework(name).default_version)
        assert json.loads(files["config.json"])["model_type"] == told.model.family
        assert "mamba-ssm" in files["README.md"]
        assert ("rotary base" in files["README.md"]) == (model == "granite-4.0-h-small")


BRIDGE = framework("megatron-bridge")
STRAIGHT = replace(PIPELINE, vpp=1, schedule=Schedule.ONE_F_ONE_B)


def bridged(told: Launch) -> str:
    return BRIDGE.render(told, BRIDGE.default_version)["launch.sh"]


def test_bridge_refuses_with_a_sentence() -> None:
    with pytest.raises(UnsupportedError, match="must be one that planner writes for Megatron-Bridge"):
        bridged(launches()[4])
    with pytest.raises(UnsupportedError, match="one chunk of layers a pipeline rank"):
        bridged(launches()[0])  # its provider refuses virtual stages


def test_bridge_has_a_part_of_the_pattern_for_every_rank() -> None:
    told = launches()[1]
    script = bridged(told)
    assert "--recipe nemotron_3_nano_pretrain_8gpu_h100_bf16_config" in script
    assert "MEMEM*EMEMEM*EM|EMEM*EMEMEM*E|MEMEM*EMEMEME|M*EMEMEMEME" in script
    assert "model.mamba_chunk_size=128" in script
    assert "model.pipeline_model_parallel_layout=null" in script
    read = BRIDGE.parse({"launch.sh": script})
    assert (read.layers, read.violations) == ((15, 13, 13, 11), ())
    assert (read.axes["pp"], read.axes["vpp"]) == (4, 1)
    assert read.model == told.model
    other = BRIDGE.parse({"launch.sh": script.replace("_parallel_size=4", "_parallel_size=2")})
    assert [broken.rule for broken in other.violations] == ["layers-dealt"]
    with pytest.raises(InputError, match="must have the layers of nemotron-3-nano"):
        BRIDGE.parse({"launch.sh": script.replace("MEMEM*E", "MEMEMEE", 1)})


@pytest.mark.parametrize("modules", [0, 1, 2])
def test_prediction_modules_of_bridges_hybrids(modules: int) -> None:
    """Super's recipe runs two of the same weights; a plan counts each with its own, or none."""
    given = problem(SUPER, "megatron-2026")
    model = replace(load_model(SUPER, with_mtp=modules > 0), mtp_layers=modules)
    script = bridged(launch(SUPER, STRAIGHT, replace(given, model=model)))
    assert f"model.mtp_num_layers={modules or 'null'}" in script
    assert "model.mtp_use_repeated_layer=false" in script
    read = BRIDGE.parse({"launch.sh": script}).model
    assert read is not None
    assert (read.mtp_layers, read.mtp_block) == (modules, model.mtp_block)


def test_recipes_of_hybrids_are_read() -> None:
    for name in ("nemotron_3_super_pretrain_config", "nemotron_3_super_pretrain_16gpu_h100_bf16_config"):
        read = BRIDGE.parse({"run.sh": f"torchrun run_recipe.py --recipe {name}"})
        assert read.model is not None
        assert (read.model.name, read.model.mtp_layers) == (SUPER, 2)
        assert any("MTP modules share their weights" in note for note in read.notes)
    assert read.axes["tp"] == 8
    dense = BRIDGE.parse({"run.sh": "torchrun run_recipe.py --recipe nemotronh_47b_pretrain_config"})
    assert (dense.precision, dense.bf16_layers, dense.param_gather) == (Precision.FP8_CS, (2, 2), True)
    assert dense.model is not None
    assert dense.model.vocab == 32000  # of its synthetic tokenizer


@needs("torch", "triton", "six", "einops")
@pytest.mark.slow
@pytest.mark.checkout
@of_main
def test_megatrons_own_parser_takes_them(tmp_path: Path) -> None:
    """Degrees, layers of every kind and stages as planned; the mixer's sizes in its own configuration."""
    listed = []
    for number, told in enumerate(launches()):
        words, environment = written(tmp_path / str(number), told, MAIN, PROGRAM)
        state = told.model.state_spaces[0]
        kinds = np.bincount(told.model.layer_kind_of).tolist()
        latent = [layer.moe.latent for layer in told.model.layer_kinds if layer.moe]
        listed.append([words, environment, told.config.__dict__, told.model.num_layers, list(told.chunks),
                       [state.heads, state.head_dim, state.groups, state.state], sorted(kinds),
                       [told.model.mtp_layers, max(latent, default=0)]])  # fmt: skip
    (tmp_path / "cases.json").write_text(json.dumps(listed))
    script = (
        beginning()
        + """
from megatron.core.models.hybrid.hybrid_layer_allocation import get_hybrid_layer_counts, parse_hybrid_pattern
from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args
for words, environment, config, layers, chunks, state, kinds, (modules, latent) in json.load(open(sys.argv[1])):
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(environment, WORLD_SIZE="128", RANK="0")
    sys.argv = ["pretrain_hybrid.py", *words]
    args = parse_args()
    validate_args(args)
    assert args.data_parallel_size == config["dp"]
    assert (args.virtual_pipeline_model_parallel_size or 1) == config["vpp"]
    main = parse_hybrid_pattern(args.hybrid_layer_pattern).main_pattern
    assert [len(part) for part in main.split("|")] == chunks
    assert sorted(n for n in get_hybrid_layer_counts(main).values() if n) == kinds
    assert ((args.mtp_num_layers or 0), (args.moe_latent_size or 0)) == (modules, latent)
    args.apply_rope_fusion = args.moe_permute_fusion = False  # kernels of Transformer Engine, which needs a GPU
    made = core_transformer_config_from_args(args)
    assert made.num_layers == layers
    assert [made.mamba_num_heads, made.mamba_head_dim, made.mamba_num_groups, made.mamba_state_dim] == state
print("read")
"""
    )
    assert run(script, str(tmp_path / "cases.json")).split()[-1] == "read"
