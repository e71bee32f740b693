"""Experts that receive rows in buffers of one size: what a graph of the full iteration captures, and what they hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.ask.question import Question
from planner.catalog.stack_options import DP_SERIAL, FUSED_EXPERTS, PAGED_STASH
from planner.cli.check import check_files
from planner.errors import InputError, UnsupportedError
from planner.frameworks import framework
from planner.space.framework_rules import all_rules_for
from planner.space.legality import explain_config
from planner.spec.config import ConfigTable, CudaGraphs, ParallelConfig, module_mask
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from tests.frameworks.launches import launch, problem
from tests.problems import costs

MODEL, STATIC = "qwen3-30b-a3b", f"megatron-2026+hybridep+{PAGED_STASH}"
WHOLE = ParallelConfig(
    dp=64, ep=8, micro_batch=1, num_microbatches=4, zero=1, cuda_graph_impl=int(CudaGraphs.FULL_ITERATION)
)


def on_blackwell(stack: str, precision: str = "fp8_mx") -> Problem:
    return problem(MODEL, stack, gpus=64, precision=precision, cluster="gb200-nvl72")


@pytest.mark.parametrize(
    ("stack", "ep", "broken"),
    [
        (STATIC, 8, set()),
        (STATIC, 1, {"cuda-graph-dropless"}),
        ("megatron-2026+hybridep", 8, {"cuda-graph-dropless"}),
    ],
)
def test_what_a_full_iteration_captures(stack: str, ep: int, broken: set[str]) -> None:
    config = ParallelConfig(**{**vars(WHOLE), "ep": ep})
    found = explain_config(config, on_blackwell(stack), all_rules_for("megatron"))
    assert {violation.rule for violation in found} == broken


def test_kept_rows_are_those_of_the_stash() -> None:
    """1.2 times what is kept of rows of experts, 1.5 times the working set; a rank alone receives its own rows."""
    kept = {}
    for ep in (1, 8):
        for stack in (STATIC, "megatron-2026+hybridep"):
            model = costs(on_blackwell(stack))
            table = ConfigTable.of([replace(WHOLE, ep=ep, cuda_graph_impl=0)])
            kept[ep, stack == STATIC] = float(model.evaluate(table).peak_memory[0])
    assert kept[1, True] == kept[1, False]
    assert kept[8, True] > kept[8, False]


@pytest.mark.parametrize(("etp", "capacity", "legal"), [(1, 1.5, True), (2, 1.5, False), (2, 2.5, True)])
def test_a_buffer_holds_what_every_shard_of_an_expert_receives(
    etp: int, capacity: float, legal: bool
) -> None:
    """Two ranks that share experts receive all rows of both, in a buffer of `capacity` times those of one."""
    subject = on_blackwell(STATIC, "bf16")
    kernels = subject.stack.kernels.model_copy(update={"expert_buffers": (capacity, capacity)})
    subject = replace(subject, stack=subject.stack.model_copy(update={"kernels": kernels}))
    config = ParallelConfig(tp=2, sp=1, dp=32, ep=8, etp=etp, micro_batch=1, num_microbatches=8, zero=1)
    found = {violation.rule for violation in explain_config(config, subject, all_rules_for("megatron"))}
    assert found == (set() if legal else {"expert-capacity-etp"})
    x = costs(subject).layers.shape(ConfigTable.of([config]), subject.model.layers[0])
    rows = etp * float(x.rows_for_experts(8.0, capacity)[0])
    assert rows == pytest.approx(capacity * 8 * 4096 / 2)


@pytest.mark.parametrize(
    ("name", "precision"), [("megatron", "fp8_mx"), ("megatron", "bf16"), ("megatron-bridge", "fp8_mx")]
)
def test_written_and_read_as_costed(name: str, precision: str) -> None:
    given = f"{STATIC}+{FUSED_EXPERTS}" if precision == Precision.FP8_MX else STATIC
    meant, stack = framework(name), on_blackwell(given, precision)
    files = meant.render(launch(MODEL, WHOLE, stack), meant.versions[-1])
    read = meant.parse({"launch.sh": files["launch.sh"]})
    found = {one.field: one.value for one in read.stack_settings}
    assert found == {"expert_buffers": (1.5, 1.2)}
    facts = check_files({"launch.sh": files["launch.sh"]}, Question(MODEL, "gb200-nvl72", 64))
    assert facts["legal"], facts["violations"]
    assert facts["axes"]["cuda_graph_impl"] == CudaGraphs.FULL_ITERATION.label


def test_a_size_that_no_buffer_has_is_refused() -> None:
    files = framework("megatron").render(launch(MODEL, WHOLE, on_blackwell(STATIC, "bf16")), "main-2026-08")
    named = "--moe-expert-rank-capacity-factor "
    assert f"{named}1.5" in files["launch.sh"]
    odd = files["launch.sh"].replace(f"{named}1.5", f"{named}-1.5")
    with pytest.raises(InputError, match="moe_expert_rank_capacity_factor"):
        check_files({"launch.sh": odd}, Question(MODEL, "gb200-nvl72", 64))


def test_releases() -> None:
    for name, version in (("megatron", "0.18.2"), ("megatron-bridge", "0.6.0"), ("megatron-bridge", "0.7.0")):
        with pytest.raises(UnsupportedError, match="in one size"):
            framework(name).render(launch(MODEL, WHOLE, on_blackwell(STATIC, "bf16")), version)


SCRIPT = (
    "run_recipe.py --recipe qwen3_30b_a3b_pretrain_config model.cuda_graph_impl=full_iteration "
    "model.cuda_graph_modules=[] model.moe_token_dispatcher_type=flex model.moe_flex_dispatcher_backend={backend} "
    "model.expert_model_parallel_size=8 mixed_precision=bf16_with_mxfp8_mixed {more}"
)


@pytest.mark.parametrize(
    ("backend", "more", "legal"),
    [
        ("hybridep", "model.moe_expert_rank_capacity_factor=1.5 model.moe_paged_stash=True", True),
        ("hybridep", "model.moe_expert_rank_capacity_factor=7", True),
        ("hybridep", "", False),
        ("deepep", "model.moe_expert_rank_capacity_factor=1.5", False),
    ],
)
def test_recipes_of_ones_own(backend: str, more: str, legal: bool) -> None:
    text = SCRIPT.format(backend=backend, more=more)
    facts = check_files({"run.sh": text}, Question("", "gb200-nvl72", 64))
    assert facts["legal"] is legal
    assert (any("moe_paged_stash_buffer_size_factor_cuda 1.5 and 1.1" in one for one in facts["notes"])) is (
        "stash" in more
    )


def test_gradients_that_are_reduced_alone() -> None:
    """Of a recipe's own overrides too: they were costed under the backward pass."""
    parse = framework("megatron-bridge").parse
    for value, alone in (("False", True), ("True", False)):
        text = SCRIPT.format(backend="hybridep", more=f"comm_overlap.overlap_grad_reduce={value}")
        assert (DP_SERIAL in parse({"run.sh": text}).stack_options) is alone


def test_the_option_needs_the_dispatcher_whose_buffer_it_is() -> None:
    assert on_blackwell(f"megatron-2026+{PAGED_STASH}+hybridep").stack.kernels.received_rows == 1.5
    for given in (f"megatron-2026+{PAGED_STASH}", f"megatron-2026+deepep+{PAGED_STASH}"):
        with pytest.raises(InputError, match=r"needs \+hybridep"):
            on_blackwell(given)


def test_a_capacity_is_a_number() -> None:
    text = SCRIPT.format(backend="hybridep", more="model.moe_expert_rank_capacity_factor=much")
    with pytest.raises(InputError, match="must be a number"):
        check_files({"run.sh": text}, Question("", "gb200-nvl72", 64))


def padded(factor: float, stack: str = "megatron-2026") -> Problem:
    given = on_blackwell(stack, "bf16")
    kernels = given.stack.kernels.model_copy(update={"expert_padding": factor})
    return replace(given, stack=given.stack.model_copy(update={"kernels": kernels}))


@pytest.mark.parametrize(
    ("stack", "graphs", "modules", "broken"),
    [
        ("megatron-2026", CudaGraphs.FULL_ITERATION, (), set()),
        ("megatron-2026", CudaGraphs.TRANSFORMER_ENGINE, (), set()),
        ("megatron-2026", CudaGraphs.TRANSFORMER_ENGINE, ("attn", "moe"), set()),
        ("megatron-2026", CudaGraphs.TRANSFORMER_ENGINE, ("moe", "moe_router"), {"cuda-graph-dropless"}),
        ("megatron-2026+deepep", CudaGraphs.NONE, (), {"dispatcher-devices", "expert-padding"}),
        ("megatron-2026+hybridep", CudaGraphs.NONE, (), {"hybridep-padding"}),
    ],
)
def test_experts_padded_to_one_capacity_are_captured(
    stack: str, graphs: CudaGraphs, modules: tuple[str, ...], broken: set[str]
) -> None:
    """Megatron-LM core/transformer/transformer_config.py: drop-padding MoE has one shape; DeepEP refuses it."""
    config = replace(WHOLE, cuda_graph_impl=int(graphs), cuda_graph_modules=module_mask(modules))
    found = explain_config(config, padded(1.25, stack), all_rules_for("megatron"))
    assert {violation.rule for violation in found} == broken


def test_padded_experts_cost_their_capacity_however_uneven_the_routing() -> None:
    def told(factor: float, imbalance: float) -> tuple[float, float]:
        given = padded(factor)
        model = costs(replace(given, job=replace(given.job, expert_imbalance=imbalance)))
        cost = model.evaluate(ConfigTable.of([replace(WHOLE, cuda_graph_impl=0)]))
        return float(cost.step_time[0]), float(cost.peak_memory[0])

    assert told(1.25, 1.0) == told(1.25, 2.0) == told(0.0, 1.25)
    assert told(0.0, 1.0) == told(1.0, 2.0)
    assert told(1.25, 1.0) > told(1.0, 1.0)


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge"])
def test_padding_is_written_and_read_as_costed(name: str) -> None:
    meant = framework(name)
    files = meant.render(launch(MODEL, WHOLE, padded(1.25)), meant.versions[-1])
    own = {"launch.sh": files["launch.sh"]}
    assert {one.field: one.value for one in meant.parse(own).stack_settings} == {"expert_padding": 1.25}
    facts = check_files(own, Question(MODEL, "gb200-nvl72", 64))
    assert facts["legal"], facts["violations"]
    assert "modelled with moe_expert_capacity_factor 1.25" in facts["notes"]
    assert "no token is counted as dropped" not in str(facts["notes"])


def test_a_capacity_without_padding_has_no_one_shape() -> None:
    files = framework("megatron").render(launch(MODEL, WHOLE, padded(1.25)), "main-2026-08")
    own = {"launch.sh": files["launch.sh"].replace("--moe-pad-expert-input-to-capacity", "")}
    facts = check_files(own, Question(MODEL, "gb200-nvl72", 64))
    assert {each["rule"] for each in facts["violations"]} == {"cuda-graph-dropless"}
    assert "no token is counted as dropped" in str(facts["notes"])
