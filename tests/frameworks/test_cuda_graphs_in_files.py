"""CUDA graphs in launch files: what is written, read back and refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.ask.question import Question
from planner.cli.check import check_files
from planner.errors import InputError, PlannerError, UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import Launch
from planner.space.framework_rules import all_rules_for, rules_for
from planner.space.legality import explain_config, nearest_legal
from planner.space.restriction import parse_restriction
from planner.spec.config import (
    CudaGraphs,
    ParallelConfig,
    Recompute,
    captured_modules,
    module_mask,
    value_text,
)
from planner.spec.rule import Problem
from tests.frameworks.launches import launch, problem

NONE, LOCAL, TE, WHOLE = CudaGraphs
ROUTED = ("attn", "moe_router", "moe_preprocess")
CONFIG = ParallelConfig(tp=2, pp=2, dp=32, num_microbatches=8, sp=1, zero=1)
ARGUMENTS = "pretrain_gpt.py --num-layers 32 --tensor-model-parallel-size 1 --micro-batch-size 1 --bf16 "
CHECKS = " --no-check-for-nan-in-loss-and-grad"


def graphed(graphs: CudaGraphs, *modules: str, **axes: int) -> ParallelConfig:
    return replace(CONFIG, cuda_graph_impl=int(graphs), cuda_graph_modules=module_mask(modules), **axes)


def planned(config: ParallelConfig, model: str = "llama-3.1-8b", stack: str = "megatron-2026") -> Launch:
    return launch(model, config, problem(model, stack))


def read(name: str, text: str) -> tuple[CudaGraphs, tuple[str, ...]]:
    axes = framework(name).parse({"launch.sh": text}).axes
    return CudaGraphs(axes.get("cuda_graph_impl", 0)), captured_modules(axes.get("cuda_graph_modules", 0))


@pytest.mark.parametrize("version", framework("megatron").versions)
@pytest.mark.parametrize(
    ("graphs", "modules", "model"),
    [
        (NONE, (), "llama-3.1-8b"), (LOCAL, (), "llama-3.1-8b"), (TE, (), "llama-3.1-8b"), (WHOLE, (), "llama-3.1-8b"),
        (TE, ("attn", "mlp"), "llama-3.1-8b"), (TE, ROUTED, "qwen3-30b-a3b"),
    ],
)  # fmt: skip
def test_every_release_of_megatron(
    version: str, graphs: CudaGraphs, modules: tuple[str, ...], model: str
) -> None:
    case = planned(graphed(graphs, *modules, ep=8 if modules == ROUTED else 1), model)
    found = framework("megatron").render(case, version)["launch.sh"]
    assert read("megatron", found) == (graphs, modules)
    assert ("NCCL_GRAPH_REGISTER=0" in found) is (graphs is not NONE)
    assert ("--no-check-for-nan-in-loss-and-grad" in found) is (graphs is WHOLE)
    if version == "0.16.1":
        assert "--cuda-graph-modules" not in found
        assert ("--cuda-graph-scope full_iteration" in found) is (graphs is WHOLE)
    else:
        assert "--cuda-graph-scope" not in found


def test_releases_that_lack_a_capture() -> None:
    megatron = framework("megatron")
    assert "--cuda-graph-modules" in megatron.render(planned(graphed(LOCAL, "attn")), "0.18.2")["launch.sh"]
    for config in (graphed(LOCAL, "attn"), graphed(LOCAL, ep=2), graphed(WHOLE, ep=2)):
        with pytest.raises(UnsupportedError):
            megatron.render(planned(config), "0.16.1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--enable-cuda-graph", (LOCAL, ())),
        ("--external-cuda-graph --cuda-graph-scope attn", (TE, ("attn",))),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules full", (TE, ())),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration" + CHECKS, (WHOLE, ())),
        ("--cuda-graph-impl full_iteration" + CHECKS, (WHOLE, ())),
        ("--cuda-graph-modules full_iteration" + CHECKS, (WHOLE, ())),
        (
            "--cuda-graph-impl local --cuda-graph-modules moe_router",
            (LOCAL, ("moe_router", "moe_preprocess")),
        ),
        ("--cuda-graph-impl none --cuda-graph-scope attn", (NONE, ())),
    ],
)
def test_names_of_old_and_new(text: str, expected: tuple[CudaGraphs, tuple[str, ...]]) -> None:
    assert read("megatron", ARGUMENTS + text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--enable-cuda-graph --cuda-graph-impl local", "exclude each other"),
        ("--cuda-graph-impl local --cuda-graph-modules attn --cuda-graph-scope mlp", "exclude each other"),
        ("--cuda-graph-impl full_iteration", "--no-check-for-nan-in-loss-and-grad"),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules xlstm", "xlstm"),
        ("--cuda-graph-impl dreamt", "dreamt"),
    ],
)
def test_what_megatron_refuses_at_its_start(text: str, words: str) -> None:
    with pytest.raises(PlannerError, match=words) as refused:
        read("megatron", ARGUMENTS + text)
    assert isinstance(refused.value, InputError) or words in ("xlstm", "dreamt")


def test_bridge() -> None:
    bridge = framework("megatron-bridge")
    plain = bridge.render(planned(CONFIG), "0.7.0")["launch.sh"]
    assert "model.transformer.cuda_graph_impl=none" in plain
    assert "cuda_graph_modules" not in plain
    case = planned(graphed(TE, *ROUTED, ep=8), "qwen3-30b-a3b")
    routed = bridge.render(case, "0.7.0")["launch.sh"]
    assert "model.cuda_graph_modules=[attn,moe_router,moe_preprocess]" in routed
    assert "model.cuda_graph_scope=null" in routed
    assert "rng.te_rng_tracker=true" in routed
    assert read("megatron-bridge", routed) == (TE, ROUTED)
    whole = bridge.render(planned(graphed(WHOLE)), "0.7.0")["launch.sh"]
    assert "rerun_state_machine.check_for_nan_in_loss=false" in whole
    assert read("megatron-bridge", whole) == (WHOLE, ())
    layers = bridge.render(planned(graphed(TE)), "0.7.0")["launch.sh"]
    assert read("megatron-bridge", layers) == (TE, ())
    with pytest.raises(UnsupportedError):
        bridge.render(planned(graphed(LOCAL)), "0.7.0")


def test_torchtitan_captures_unless_told_not_to() -> None:
    titan = framework("torchtitan")
    alone = replace(CONFIG, pp=1, dp=64, zero=3)
    for graphs in (NONE, WHOLE):
        case = planned(replace(alone, cuda_graph_impl=int(graphs)), stack="torchtitan-2026")
        files = titan.render(case, "0.3.0")
        text = files["launch.sh"]
        assert ("--training.disable_cuda_graphs" in text) is (graphs is NONE)
        assert read("torchtitan", text) == (graphs, ())
        assert "CUDA graphs that the plan counts on" not in files["README.md"]
        older = titan.render(case, "0.2.2")["README.md"]
        assert ("CUDA graphs that the plan counts on" in older) is (graphs is WHOLE)
    silent = text.replace("--training.no_disable_cuda_graphs", "")
    assert silent != text
    assert read("torchtitan", silent) == (WHOLE, ())
    assert read("torchtitan", silent.replace("pipeline_parallel_degree 1", "pipeline_parallel_degree 2")) == (
        NONE,
        (),
    )


@pytest.mark.parametrize("name", ["deepspeed", "nanotron", "accelerate"])
def test_frameworks_without_graphs_say_so(name: str) -> None:
    found = framework(name)
    config = replace(
        CONFIG, tp=1, sp=0, pp=1, dp=64, zero=0 if name == "nanotron" else 3, cuda_graph_impl=int(WHOLE)
    )
    for version in found.versions:
        assert f"{found.title} captures none" in found.render(planned(config), version)["README.md"]


SELECTIVE = {"recompute": int(Recompute.SELECTIVE)}
REFUSED: dict[str, tuple[str, ParallelConfig]] = {
    "cuda-graph-modules-present": ("llama-3.1-8b", graphed(TE, "moe_router")),
    "cuda-graph-dropless": ("qwen3-30b-a3b", graphed(TE)),
    "cuda-graph-recompute": (
        "llama-3.1-8b", graphed(LOCAL, recompute=int(Recompute.FULL), recompute_layers=16),
    ),
    "cuda-graph-recomputed-modules": ("qwen3-30b-a3b", graphed(TE, *ROUTED, **SELECTIVE, recompute_modules=1 << 5)),
    "cuda-graph-offload": ("llama-3.1-8b", graphed(TE, pp=1, dp=64, offload=4)),
}  # fmt: skip


@pytest.mark.parametrize("rule", REFUSED)
def test_refused_with_a_legal_neighbour(rule: str) -> None:
    model, config = REFUSED[rule]
    given, rules = problem(model, "megatron-2026"), all_rules_for("megatron")
    broken = {violation.rule: violation for violation in explain_config(config, given, rules)}
    assert set(broken) == {rule}
    assert broken[rule].hint
    near = nearest_legal(config, given, rules_for(given.stack))
    assert near is not None
    assert not explain_config(near, given, rules)


def broken(config: ParallelConfig, given: Problem) -> set[str]:
    return {violation.rule for violation in explain_config(config, given, all_rules_for("megatron"))}


def test_rules_by_stack_and_job() -> None:
    dense, routed = problem("llama-3.1-8b", "megatron-2026"), problem("qwen3-30b-a3b", "megatron-2026")
    assert broken(graphed(WHOLE, recompute=2, recompute_layers=16), dense) == set()
    assert broken(graphed(WHOLE), routed) == {"cuda-graph-dropless"}
    assert broken(graphed(TE, *ROUTED, ep=8), routed) == set()
    assert broken(graphed(TE, "moe_preprocess", ep=8), routed) == {"cuda-graph-modules-present"}
    packed = replace(dense, job=replace(dense.job, mean_length=512.0))
    assert broken(graphed(TE, "attn"), packed) == {"cuda-graph-lengths"}
    assert broken(graphed(TE, "mlp"), packed) == set()
    assert broken(graphed(TE), problem("llama-3.1-8b", "megatron-2024")) == {"cuda-graphs-supported"}


def test_settings_by_name() -> None:
    found = parse_restriction(
        ["cuda_graph_impl=none,transformer-engine", "cuda_graph_modules=attn+moe_router"]
    )
    assert found == {"cuda_graph_impl": (0, 2), "cuda_graph_modules": (9,)}
    assert value_text("cuda_graph_impl", 2) == "transformer_engine"
    assert [value_text("cuda_graph_modules", mask) for mask in (0, 9)] == ["full", "attn+moe_router"]
    for wrong in ("cuda_graph_impl=maybe", "cuda_graph_modules=attn+xlstm"):
        with pytest.raises(PlannerError, match="known"):
            parse_restriction([wrong])


@pytest.mark.parametrize(
    ("words", "must"),
    [
        ("--cuda-graph-impl full_iteration --cuda-graph-modules attn" + CHECKS, "must be empty|modules to capture"),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules full attn", "excludes other modules"),
    ],
)  # fmt: skip
def test_modules_that_exclude_each_other(words: str, must: str) -> None:
    with pytest.raises(InputError, match=must):
        read("megatron", ARGUMENTS + words)


@pytest.mark.parametrize("words", ["--cuda-graph-impl transformer_engine", "--external-cuda-graph"])
def test_expandable_segments_are_not_registered(words: str) -> None:
    text = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    with pytest.raises(InputError, match="NCCL_GRAPH_REGISTER=0"):
        read("megatron", text + ARGUMENTS + words)
    assert read("megatron", text + "export NCCL_GRAPH_REGISTER=0\n" + ARGUMENTS + words) == (TE, ())
    assert read("megatron", ARGUMENTS + words) == (TE, ())
    assert read("megatron", text + ARGUMENTS) == (NONE, ())


def test_what_a_recipe_captures() -> None:
    script = "run_recipe.py --recipe qwen3_30b_a3b_pretrain_config"
    assert read("megatron-bridge", script) == (TE, ("moe_router", "moe_preprocess"))
    assert read("megatron-bridge", script + " model.cuda_graph_modules=[attn]") == (TE, ("attn",))
    assert read("megatron-bridge", script + " model.cuda_graph_impl=none") == (NONE, ())
    assert read("megatron-bridge", "run_recipe.py --recipe llama3_8b_pretrain_config") == (NONE, ())


@pytest.mark.parametrize("compiles", ["", "--compile.enable"])
def test_torchtitans_plainest_launch_is_legal(compiles: str) -> None:
    """It captures the step whether or not anything is compiled (0.3.0 config/configs.py disable_cuda_graphs)."""
    text = f"torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b {compiles}\n"
    facts = check_files({"run.sh": text}, Question("", "dgx-h100"))
    assert (facts["legal"], facts["axes"]["cuda_graph_impl"]) == (True, WHOLE.label)
