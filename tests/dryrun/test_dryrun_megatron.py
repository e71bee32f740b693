"""Do Megatron-Core's layers ask for what they ask a GPU for? What runs needs PyTorch and megatron-core."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from benchmarks.dry_runs_megatron import Judged, errors, judged, rows_with_peaks, section
from benchmarks.published.runs import RunReader, read_models, read_rows
from benchmarks.published_data import published
from planner.answer.estimate import make_estimate
from planner.ask.question import Request
from planner.catalog.load_stacks import load_stack
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.megatron.recipe import MegatronRecipe, launched_recipe
from planner.dryrun.outcome import RankMemory, memory_of
from planner.dryrun.question import make_dryrun
from planner.dryrun.recording import Holds, Recording
from planner.errors import UnsupportedError
from planner.frameworks.details import read_details
from planner.frameworks.framework import Launch
from planner.frameworks.layout import chunk_layers
from planner.spec.config import ParallelConfig, Recompute, Schedule
from planner.spec.job import Job, Optimizer
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from tests.dryrun.steps import held
from tests.problems import dense_model, moe_model

HOPPER, LIMIT, SEQ = (9, 0), 2**50, 512
HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 256, 8, 2, 512, 1024


def small(layers: int = 2) -> ModelSpec:
    return dense_model(layers, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB)


def recipe(model: ModelSpec, stack: str = "megatron-2026", **axes: Any) -> MegatronRecipe:
    job = {name: axes.pop(name) for name in ("precision", "optimizer") if name in axes}
    config = ParallelConfig(**({"micro_batch": 1, "num_microbatches": 8, "zero": 1} | axes))
    devices = config.tp * config.cp * config.pp * config.dp
    chunks = chunk_layers(model.num_layers, config.pp, config.vpp)
    launch = Launch(
        model, read_details(model), config, Job(SEQ, config.dp * 8, **job), devices, 8, "h100-sxm-80g", chunks,
        stack=load_stack(stack),
    )  # fmt: skip
    return launched_recipe(launch)


def stages(what: MegatronRecipe) -> tuple[int, ...]:
    return tuple(one.rank for _, one in what.roles())


def test_ranks_that_hold_the_same_are_run_once() -> None:
    assert stages(recipe(small(16), pp=8)) == (0, 1, 7)
    assert stages(recipe(small(2), pp=2)) == (0, 1)
    assert stages(recipe(small(2))) == (0,)
    assert stages(replace(recipe(small(16), pp=4), chunks=(4, 5, 4, 3))) == (0, 1, 2, 3)
    assert stages(recipe(moe_model(8, 1), pp=4, dp=4, ep=4)) == (0, 1, 3)
    devices = [device for device, _ in recipe(small(2), pp=2, tp=2, dp=2).roles()]
    assert devices == [0, 4]


def test_as_many_micro_batches_are_run_as_are_in_flight_and_one_more() -> None:
    plain = recipe(small(8), pp=4)
    assert [replace(plain, rank=rank).run_microbatches for rank in range(4)] == [5, 4, 3, 2]
    assert replace(plain, num_microbatches=3).run_microbatches == 3
    looped = recipe(small(8), pp=2, vpp=2, schedule=Schedule.INTERLEAVED)
    assert [replace(looped, rank=rank).run_microbatches for rank in range(2)] == [4, 4]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"cp": 2}, "context parallelism"),
        ({"precision": Precision.FP8_CS}, "fp8_cs"),
        ({"optimizer": Optimizer.ADAMW_BF16}, "adamw-bf16"),
        ({"offload": 1}, "optimizer"),
        ({"stack": "megatron-2022"}, "megatron-2022"),
        ({"stack": "megatron-2026+hidden-dropout=0.1"}, "dropout"),
    ],
)
def test_what_is_not_run_is_refused_by_name(other: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        recipe(small(), **other)


def test_published_configurations_are_told_once_and_failures_left_out() -> None:
    row = {
        "source": "a", "model": "m", "gpu": "g", "gpus": "8", "seq_len": "1", "micro_batch": "1", "tp": "1", "cp": "1",
        "pp": "1", "vpp": "1", "ep": "1", "recompute": "", "precision": "bf16", "peak_mem_gib": "10", "notes": "",
        "framework": "Megatron-LM",
    }  # fmt: skip
    others = ({"notes": "OOM at step 1"}, {"framework": "torchtitan"}, {"peak_mem_gib": ""})
    assert rows_with_peaks([row, row, *(row | other for other in others)]) == [row]


def test_a_section_tells_errors_and_what_was_not_run() -> None:
    ran = Judged("a", "small", 10.0, 12.0, 9.0, 10.1, 12.0, 1.0)
    unrun = Judged("b", "large", 20.0, None, 21.0, reason="state spaces")
    text = section([ran, unrun])
    assert text.startswith("1 of 2 configurations can be run dry.")
    assert "| a | small | 10.10 / 10.00 (+1.00%) | 12.00 / 12.00 (+0.00%) | 9.00 (-10.00%) |" in text
    assert "| b | large | not run: state spaces / 20.00 |  | 21.00 (+5.00%) |" in text


@pytest.fixture
def _needs_megatron_core() -> None:
    pytest.importorskip("torch")
    if find_spec("megatron") is None or find_spec("megatron.core") is None:
        pytest.skip("needs megatron-core")


runs = pytest.mark.usefixtures("_needs_megatron_core")


def recorded(what: MegatronRecipe) -> dict[int, Recording]:
    from planner.dryrun.megatron.step import record_step

    return {one.rank: record_step(one, HOPPER) for _, one in what.roles()}


def memories(what: MegatronRecipe) -> dict[int, RankMemory]:
    return {rank: memory_of(one, AllocatorSettings(), LIMIT, rank) for rank, one in recorded(what).items()}


def parameters(layers: int, tp: int) -> int:
    """Of the rank of a whole model: every tensor but norms is split."""
    width = HIDDEN // HEADS
    split = layers * (HIDDEN * (2 * HEADS + 2 * KV_HEADS) * width + 3 * HIDDEN * FFN) + 2 * VOCAB * HIDDEN
    return split // tp + (2 * layers + 1) * HIDDEN


@pytest.mark.slow
@runs
def test_states_are_those_of_the_distributed_optimizer() -> None:
    """16-bit weights, gradients in fp32, and of each of 4 ranks a quarter of fp32 weights and two moments."""
    found = memories(recipe(small(), tp=2, sp=1, dp=4))[0]
    count = parameters(2, 2)
    assert held(found, Holds.WEIGHTS) == pytest.approx(2 * count, rel=0.01)
    assert held(found, Holds.GRADIENTS) == pytest.approx(4 * count, rel=0.01)
    assert held(found, Holds.OPTIMIZER_STATES) == pytest.approx(12 * count / 4, rel=0.02)


@pytest.mark.slow
@runs
def test_a_layer_keeps_what_its_kernels_save() -> None:
    """Under sequence parallelism over 2: four tensors of half the sequence as wide as the model; queries, keys, values,
    the output of attention; what goes into and comes out of SwiGLU; numbers of rows."""
    found = [held(memories(recipe(small(layers), tp=2, sp=1))[0], Holds.ACTIVATIONS) for layers in (3, 4)]
    tp, width = 2, HIDDEN // HEADS
    wide = 4 * SEQ * HIDDEN // tp
    attention = SEQ * (2 * HEADS + 2 * KV_HEADS) * width // tp
    mlp = SEQ * 3 * FFN // tp
    rows = 4 * SEQ * HEADS // tp + 2 * 4 * SEQ // tp
    assert found[1] - found[0] == 2 * (wide + attention + mlp) + rows


@pytest.mark.slow
@runs
@pytest.mark.parametrize("axes", [{}, {"vpp": 2, "schedule": Schedule.INTERLEAVED}])
def test_more_micro_batches_change_no_peak(axes: dict[str, Any]) -> None:
    """But for the losses that are reported, of which each takes three blocks."""
    short = recipe(small(4), pp=2, **axes)

    class Longer(MegatronRecipe):
        @property
        def run_microbatches(self) -> int:
            return 8

    longer = Longer(**vars(short))
    for one, other in zip(memories(short).values(), memories(longer).values(), strict=True):
        assert one.allocated_peak == pytest.approx(other.allocated_peak, abs=8 * 3 * 512)
        assert one.reserved_peak == pytest.approx(other.reserved_peak, rel=0.02)


@pytest.mark.slow
@runs
def test_earlier_ranks_have_more_in_flight() -> None:
    found = memories(recipe(small(8), pp=4))
    kept = {rank: held(memory, Holds.ACTIVATIONS) for rank, memory in found.items()}
    assert sorted(found) == [0, 1, 3]
    assert kept[1] > 1.5 * kept[3]


@pytest.mark.slow
@runs
def test_recomputed_layers_keep_their_inputs_alone() -> None:
    full = {"recompute": Recompute.FULL, "recompute_layers": 4}
    plain, again = memories(recipe(small(4)))[0], memories(recipe(small(4), **full))[0]
    assert held(again, Holds.ACTIVATIONS) < held(plain, Holds.ACTIVATIONS) / 4
    assert again.operations > plain.operations


@pytest.mark.slow
@runs
def test_experts_get_even_shares_of_the_tokens() -> None:
    """16 experts on 4 ranks of which each token takes 4: as many rows as there are tokens x 4 come to a rank."""
    ran = recorded(recipe(moe_model(2, 1), dp=4, ep=4))[0].operations
    rows = [one.taken[0][0][0] for one in ran if one.name == "te_grouped_gemm" and one.given]
    assert set(rows) == {SEQ * 4}


@pytest.mark.slow
@runs
def test_latent_attention_runs_under_tensor_parallelism() -> None:
    whole = load_model("deepseek-v3")
    model = replace(whole, layers=whole.layers[2:4], mtp_layers=0)
    ran = recorded(recipe(model, tp=2, sp=1, dp=4, ep=4))[0].operations
    assert any(one.name.startswith("aten._scaled_dot_product_flash_attention") for one in ran)


@pytest.mark.slow
@runs
def test_an_argument_that_nothing_knows_is_refused_by_name() -> None:
    plain = recipe(small())
    with pytest.raises(UnsupportedError, match="--no-such-argument"):
        recorded(replace(plain, arguments={**plain.arguments, "--no-such-argument": ()}))


@pytest.mark.slow
@runs
def test_all_is_as_before_afterwards() -> None:
    import sys

    import torch

    before = torch.cuda.current_device, torch.distributed.all_gather_object, torch.compile, sys.excepthook
    recorded(recipe(small()))
    assert before == (
        torch.cuda.current_device, torch.distributed.all_gather_object, torch.compile, sys.excepthook,
    )  # fmt: skip
    assert not torch.distributed.is_initialized()
    assert not isinstance(torch.ones(2, device="cpu"), torch._subclasses.fake_tensor.FakeTensor)


@pytest.mark.slow
@runs
def test_a_question_about_megatron_is_answered_by_rank() -> None:
    asked = Request(
        "llama-3.2-1b", "1x8 h100", 8, seq_len=1024, global_batch="32", stack="megatron",
        set={"tp": (2,), "pp": (2,), "micro_batch": (1,)},
    )  # fmt: skip
    outside = make_estimate(asked).choices[0].memory.terms["outside_allocator"]
    found = make_dryrun(asked, AllocatorSettings())
    assert [one.rank for one in found.ranks] == [0, 4]
    assert found.software["megatron-core"]
    assert found.estimated_peak == pytest.approx(found.worst.allocated_peak + outside, rel=0.05)


@pytest.mark.slow
@runs
def test_published_peaks_are_met() -> None:
    """A dense model on 2 and a mixture on 1 pipeline rank, with Transformer Engine."""
    reader = RunReader(read_models(published("measured/models.json")))
    runs_with_peaks = rows_with_peaks(read_rows(published("measured/runs.csv")))
    rows = [row for row in runs_with_peaks if row["source"] == "simumax_b200"]
    found = [judged(rows[index], reader.read(rows[index])) for index in (0, 4)]
    assert abs(errors(found, "allocated", "measured_allocated")).max() < 0.001
    assert abs(errors(found, "reserved", "measured_reserved")).max() < 0.03
