"""Does what a block is said to hold follow from arithmetic, in every software? Needs PyTorch and the software.

What is called weights, states, gradients or gathered does not grow with the sequence, what is called activations grows
as it does, and once the optimizer runs none are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from planner.cost.captured.operation import Phase
from planner.cost.params import model_parameters
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.asked import AnyRecipe
from planner.dryrun.outcome import RankMemory, memory_of
from planner.dryrun.recording import Holds, Recording
from planner.dryrun.transformers.recipe import Adapters, Checkpointing, Sharding, Weights
from tests.dryrun.steps import HOPPER, LIMIT, PARAMETERS, PLAIN, held

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
NEEDS = ("torch",)
RANKS, BF16, FP32 = 8, 2, 4
SHARDED = replace(PLAIN, sharding=Sharding.WEIGHTS, shards=RANKS)
EMBEDDING = 1000 * 256
TAIL = BF16 * (EMBEDDING + 256)  # the head, and the norm that is gathered with it
KEPT = (Holds.WEIGHTS, Holds.GATHERED, Holds.CAST, Holds.GRADIENTS, Holds.OPTIMIZER_STATES)
SMALL = 8192  # bytes: numbers that a step counts and clips by


def kinds(found: RankMemory) -> dict[Holds, int]:
    """What tensors of each kind ask for at the peak [bytes]."""
    return {kind: held(found, kind) for kind in Holds}


def in_optimizer(found: RankMemory) -> dict[Holds, int]:
    """The most of each kind while the optimizer runs [bytes]."""
    most: Counter[Holds] = Counter()
    for moment in found.timeline:
        if moment.phase is Phase.OPTIMIZER:
            most |= Counter(moment.held)
    return most


def check(
    record: Callable[[Any, tuple[int, int]], Recording],
    recipe: AnyRecipe,
    length: int,
    expected: dict[Holds, float],
    cached: int = 0,
) -> None:
    """`cached`: of activations, what is kept from step to step [bytes]."""
    recordings = [record(recipe.sized(recipe.micro_batch, size), HOPPER) for size in (length, 2 * length)]
    short, long = (memory_of(one, AllocatorSettings(), LIMIT) for one in recordings)
    once, twice = kinds(short), kinds(long)
    for kind in KEPT:
        assert once[kind] == pytest.approx(expected.get(kind, 0), rel=0.02, abs=SMALL), kind
        assert twice[kind] == pytest.approx(once[kind], rel=0.02, abs=SMALL), kind
    assert twice[Holds.ACTIVATIONS] == pytest.approx(2 * once[Holds.ACTIVATIONS], rel=0.02, abs=SMALL)
    left = in_optimizer(short)
    assert left[Holds.ACTIVATIONS] <= cached + SMALL
    for one in recordings:
        assert 0 < one.first_step < one.second_step < one.end


CASTS = BF16 * (PARAMETERS - EMBEDDING - 5 * 256)  # of linear layers
STATES = {Holds.WEIGHTS: BF16 * PARAMETERS, Holds.OPTIMIZER_STATES: 2 * BF16 * PARAMETERS}
SHARES = {kind: size / RANKS for kind, size in STATES.items()}
OF_TRANSFORMERS = {
    "one": (PLAIN, STATES),
    "ddp": (replace(PLAIN, replicas=RANKS), STATES | {Holds.GRADIENTS: BF16 * PARAMETERS}),
    "one, autocast": (
        replace(PLAIN, weights=Weights.AMP_BF16),
        {kind: 2 * size for kind, size in STATES.items()} | {Holds.CAST: CASTS},
    ),
    "zero-3": (SHARDED, SHARES | {Holds.GATHERED: TAIL}),
    "zero-2": (
        replace(SHARDED, sharding=Sharding.GRADIENTS), SHARES | {Holds.GATHERED: BF16 * PARAMETERS}
    ),
    "no-sync": (
        replace(SHARDED, num_microbatches=4, accumulates_whole=True),
        SHARES | {Holds.GATHERED: TAIL, Holds.GRADIENTS: BF16 * PARAMETERS},
    ),
    "autocast": (
        replace(SHARDED, weights=Weights.AMP_BF16),
        {kind: 2 * size for kind, size in SHARES.items()} | {Holds.GATHERED: TAIL},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_kinds_of_transformers(name: str) -> None:
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package)
    from planner.dryrun.transformers.step import record_step

    recipe, expected = OF_TRANSFORMERS[name]
    check(record_step, recipe, recipe.seq_len, expected)


def test_what_fsdp_asks_for_in_queues_of_its_own_is_weights_or_gradients() -> None:
    """Buffers of gathers are as large as the layer, and outlive the layer before it."""
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package)
    from planner.dryrun.transformers.step import record_step

    found = record_step(replace(SHARDED, checkpointing=Checkpointing.NON_REENTRANT), HOPPER)
    trace = found.trace
    made = zip(trace.what.tolist(), trace.blocks.tolist(), trace.streams.tolist(), strict=True)
    apart = [(size, block) for size, block, stream in made if size > SMALL and stream]
    assert {found.kinds.get(block) for _, block in apart} == {Holds.GATHERED, Holds.GRADIENTS}
    gathered = {size for size, block in apart if found.kinds[block] is Holds.GATHERED}
    assert {TAIL, BF16 * EMBEDDING} <= gathered


def test_adapters_alone_have_gradients_and_states_where_frozen_weights_are_gathered() -> None:
    """PEFT's adapters are in fp32; what is frozen is sharded and gathered as any."""
    for package in ("transformers", "accelerate", "peft"):
        pytest.importorskip(package)
    from planner.dryrun.transformers.step import record_step

    linear = [(256, 256), (128, 256), (128, 256), (256, 256), (640, 256), (640, 256), (256, 640)]
    adapters = 2 * sum(8 * (rows + columns) for rows, columns in linear)
    recipe = replace(SHARDED, adapters=Adapters(8))
    shards = (BF16 * PARAMETERS + FP32 * adapters) / RANKS
    moments = 2 * FP32 * adapters / RANKS
    expected = {Holds.WEIGHTS: shards, Holds.OPTIMIZER_STATES: moments, Holds.GATHERED: TAIL - 2 * 256}
    check(record_step, recipe, recipe.seq_len, expected)
    found = memory_of(record_step(recipe, HOPPER), AllocatorSettings(), LIMIT)
    rounded = 512 * 4 * 2 * len(linear)  # by the allocator, of each block
    assert in_optimizer(found)[Holds.GRADIENTS] <= FP32 * adapters / RANKS + rounded


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_kinds_of_deepspeed(stage: int) -> None:
    """fp32 masters and two moments; at the loss ZeRO-3 has all weights gathered, which are few, and the last step's
    gradients."""
    for package in ("transformers", "deepspeed"):
        pytest.importorskip(package)
    from planner.dryrun.deepspeed.step import record_step
    from tests.dryrun.test_deepspeed_step import recipe

    share = 1 if stage == 0 else RANKS
    expected = {
        Holds.WEIGHTS: BF16 * PARAMETERS / (RANKS if stage == 3 else 1),
        Holds.OPTIMIZER_STATES: 3 * FP32 * PARAMETERS / share,
    }
    if stage == 3:
        expected |= {Holds.GATHERED: BF16 * PARAMETERS, Holds.GRADIENTS: BF16 * PARAMETERS / RANKS}
    check(record_step, recipe(stage, RANKS), PLAIN.seq_len, expected)


@pytest.mark.skipif(find_spec("torchtitan") is None, reason="needs torchtitan")
def test_kinds_of_torchtitan() -> None:
    """In the loss, which is run in parts: the head is whole, two parts' gradients of it are on their way in fp32, and
    the rank has its share of their sum."""
    from planner.dryrun.torchtitan.step import record_step
    from tests.dryrun.test_torchtitan_step import cut, parameters, recipe

    model = cut("llama-3.2-1b", 4)
    head, share = model.vocab * model.hidden, parameters(model) / RANKS
    expected = {
        Holds.WEIGHTS: FP32 * share, Holds.OPTIMIZER_STATES: 2 * FP32 * share, Holds.GATHERED: BF16 * head,
        Holds.GRADIENTS: FP32 * head * (2 + 1 / RANKS),
    }  # fmt: skip
    check(record_step, recipe(model, RANKS), 256, expected)


@pytest.mark.skipif(find_spec("torchtitan") is None, reason="needs torchtitan")
def test_a_stage_accumulates_whole_gradients_in_fp32() -> None:
    """The first of two: the embedding and two layers less what the last has for its head."""
    from planner.dryrun.torchtitan.step import record_step
    from tests.dryrun.test_torchtitan_step import cut, recipe

    said = {
        "data_parallel_shard_degree": 4,
        "pipeline_parallel_degree": 2,
        "fsdp_reshard_after_forward": "never",
    }
    first = recipe(cut("llama-3.2-1b", 4), 8, 8, **said)
    at_peak = kinds(memory_of(record_step(first, HOPPER), AllocatorSettings(), LIMIT))
    share = at_peak[Holds.OPTIMIZER_STATES] / (2 * FP32)
    assert at_peak[Holds.WEIGHTS] == pytest.approx(FP32 * share, rel=0.02)
    assert at_peak[Holds.GRADIENTS] > FP32 * 4 * share
    assert at_peak[Holds.TEMPORARY] < SMALL


@pytest.mark.skipif(find_spec("megatron") is None, reason="needs megatron-core")
def test_kinds_of_megatron() -> None:
    """bf16 weights, gradients in fp32, masters and moments over the data-parallel ranks."""
    from planner.dryrun.megatron.step import record_step
    from tests.dryrun.test_dryrun_megatron import HEADS, HIDDEN, SEQ, recipe, small

    model = small(4)
    launched = recipe(model, dp=RANKS)
    count = model_parameters(model).total
    expected = {
        Holds.WEIGHTS: BF16 * count, Holds.GRADIENTS: FP32 * count, Holds.OPTIMIZER_STATES: 3 * FP32 * count / RANKS,
    }  # fmt: skip
    check(
        record_step, launched, SEQ, expected, cached=SEQ * HIDDEN // HEADS * FP32
    )  # angles of the rotary embedding
