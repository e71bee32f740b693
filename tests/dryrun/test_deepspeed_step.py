"""What does DeepSpeed's own engine ask of a device and its host? Needs PyTorch, transformers and DeepSpeed."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from benchmarks.published_data import beside, published
from planner.catalog.cluster_rates import rates_of
from planner.catalog.load_host import load_host_rates
from planner.cost.captured.kernels import Device
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.deepspeed.recipe import DeepspeedRecipe, deepspeed_recipe
from planner.dryrun.outcome import RankMemory, memory_of
from planner.dryrun.timing.messages import Wires
from planner.dryrun.timing.step import time_of
from planner.errors import UnsupportedError
from planner.spec.machine.load_cluster import load_cluster
from tests.dryrun.steps import HOPPER, LIMIT, PARAMETERS, PLAIN
from tests.dryrun.test_dryrun_question import asked, posed

pytestmark = pytest.mark.slow
NEEDS = ("torch", "transformers", "deepspeed")
SMALL_BUCKETS: dict[str, Any] = {
    "overlap_comm": True,
    "contiguous_gradients": True,
    "reduce_bucket_size": 1000,
}
HOST = {"device": "cpu", "pin_memory": True}


def recipe(stage: int, ranks: int = 1, **zero: Any) -> DeepspeedRecipe:
    settings = {
        "train_micro_batch_size_per_gpu": PLAIN.micro_batch,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, **SMALL_BUCKETS, **zero},
    }
    return DeepspeedRecipe(**{**vars(PLAIN), "shards": ranks, "settings": settings})


def memory(asked_for: DeepspeedRecipe) -> RankMemory:
    from planner.dryrun.deepspeed.step import record_step

    return memory_of(record_step(asked_for, HOPPER), AllocatorSettings(), LIMIT)


def test_sharded_states_take_a_rank_its_share() -> None:
    """Masters and two moments in fp32, of ZeRO 1 on. The blocks that hold them may be up to 1 MiB larger."""
    asked_for = [
        sum(one.size * one.number for one in memory(recipe(1, ranks=ranks)).blocks) for ranks in (1, 8)
    ]
    assert asked_for[0] - asked_for[1] == pytest.approx(12 * PARAMETERS * 7 / 8, rel=1e-4)


def test_states_on_the_host_take_its_memory() -> None:
    here, there = memory(recipe(2)), memory(recipe(2, offload_optimizer=HOST))
    assert here.allocated_peak - there.allocated_peak >= 8 * PARAMETERS
    # two moments as they are; masters and gradients in fp32 are pinned, in powers of two
    pinned = 1 << (4 * PARAMETERS - 1).bit_length()
    assert there.host_peak >= 8 * PARAMETERS + 2 * pinned


def test_messages_are_written_down_with_what_waits_for_them() -> None:
    """ZeRO-3 gathers ahead in a queue of its own, and waits for what a layer needs."""
    from planner.dryrun.deepspeed.step import record_step

    found = record_step(recipe(3, ranks=4), HOPPER)
    cluster = load_cluster("dgx-h100", 4)
    kernels, links = rates_of(cluster)
    wires, device = Wires(cluster, links), Device(cluster.accelerator, kernels)
    kinds = {one.message.kind for one in found.operations if one.message and one.first > found.second_step}
    assert {"all_gather", "reduce_scatter"} <= kinds
    assert all(wires.knows(one.message) for one in found.operations if one.message)
    awaited = {one.end for one in found.waits}
    apart = [i for i, one in enumerate(found.operations) if one.message and one.message.apart]
    assert set(apart) <= awaited
    told = time_of(found, device, load_host_rates(), 1, wires)
    assert told.step >= max(told.busy, told.forward + told.backward)
    assert told.messages > 0


def test_one_process_can_run_one_dry_run_after_the_other() -> None:
    assert memory(recipe(3, ranks=4)) == memory(recipe(3, ranks=4))


def test_measured_steps_are_met() -> None:
    from benchmarks.dry_runs_deepspeed import judged

    with published("device/deepspeed_offload_one_gpu.csv").open(newline="", encoding="utf-8") as lines:
        found = [judged(row, beside("device/configs")) for row in csv.DictReader(lines)]
    for one in found:
        assert one.allocated[0] == pytest.approx(one.allocated[1], rel=0.001)
        assert one.reserved[0] == pytest.approx(one.reserved[1], rel=0.03)


def test_what_is_not_run_is_refused_by_name() -> None:
    question = asked(stack="deepspeed-2025+use-liger-kernel", set={"micro_batch": (2,), "zero": (2,)})
    with pytest.raises(UnsupportedError, match="use-liger-kernel"):
        deepspeed_recipe(posed(question))
