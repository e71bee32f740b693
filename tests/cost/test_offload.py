"""Copies to the host: by hand, and through the product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.ask.request import Request
from planner.cost.offload import (
    HOST_UPDATE,
    PINNED_SHARE,
    copy_rate,
    host_range,
    host_seconds,
    host_update_rate,
)
from planner.report.words import texts
from planner.spec.config import OFFLOAD_ACTIVATIONS, ConfigTable, ParallelConfig
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.planfile import Verdict
from planner.spec.verdict import MemoryVerdict
from tests.problems import costs, dense_model, problem

PINS = {"tp": (1,), "pp": (1,), "micro_batch": (1,), "zero": (3,)}
LARGE = Request(
    "llama-3.1-8b",
    "1x8 h100 400G-ib",
    seq_len=4096,
    global_batch="32",
    stack="deepspeed-2025",
    set=PINS,
)


def seconds(
    offload: int, kept: float = 0.0, copied: float = 4.0, sums: float = 0.0, written: float = 0.0
) -> float:
    one = np.ones(1)
    found, each = host_seconds(
        np.array([offload], dtype=np.int32), 1e9 * one, 2e9 * one, kept * one, 0.3 * one, 4 * one,
        28.0, 8.0, (PINNED_SHARE * 50e9, HOST_UPDATE), 0.5, copied, sums, written,
    )  # fmt: skip
    assert offload & 1 or written or found == 4 * each  # an update is no micro-batch's
    return float(found[0])


def test_seconds_by_hand() -> None:
    rate = PINNED_SHARE * 50e9
    assert seconds(0, 1e12) == 0
    # 4 bytes a parameter over PCIe, then 8 ranks updating 1e9 each at the host's rate
    assert seconds(1) == pytest.approx(4e9 / rate + 8 * 28e9 / HOST_UPDATE)
    # fp32 gradients out and fp32 weights back
    assert seconds(1, copied=8.0) - seconds(1) == pytest.approx(4e9 / rate)
    # a shard of 2 GB in twice per micro-batch, all of which half of 0.3 s hides; not at a tenth of the time
    assert seconds(2) == 0
    # 1e9 parameters that the device has updated, 2 bytes each; with its optimizer on the host that writes them itself
    assert seconds(2, written=2.0) == pytest.approx(2e9 / rate)
    assert seconds(3, written=2.0) == seconds(3)
    # of 3 of 4 micro-batches 2 GB of gradients go out, and 8 ranks' move three times as much in the host's memory
    assert seconds(2, sums=3 * 2e9) == pytest.approx(3 * (2e9 / rate + 8 * 6e9 / HOST_UPDATE))
    # 17 GB of activations: out under 0.1 s of forward, back under 0.2 s of backward
    assert seconds(4, 17e9) == pytest.approx(4 * (2 * 17e9 / rate - 0.3))
    assert seconds(4, 1e9) == 0


def test_a_host_of_fsdp_sums_gradients_in_fp32() -> None:
    """8.03e9 parameters over 8 devices: fp32 shards in twice a micro-batch, fp32 gradients out, three times added."""
    asked = Request(
        "llama-3.1-8b", "1x8 h100 400G-ib", seq_len=4096, global_batch="32", stack="torchtitan-2026",
        set={**PINS, "offload": (3,)},
    )  # fmt: skip
    device = load_cluster("1x8 h100 400G-ib").accelerator
    share, node = 8.03e9 / 8, host_update_rate(device)
    once = make_estimate(replace(asked, global_batch="8")).choices[0].time["host_transfer"]
    found = make_estimate(asked).choices[0].time["host_transfer"]
    each = 4 * share / copy_rate(device) + 8 * 12 * share / node
    assert 30 * 8 * share / node < once < 30 * 8 * share / node + 8 * share / copy_rate(device)
    update = 30 * 8 * share / node
    assert found - update == pytest.approx(4 * (once - update) + 3 * each, rel=0.01)


def test_frozen_weights_on_the_host_come_in_for_every_pass() -> None:
    """Of 70.6e9 parameters in bf16 over 8 devices each takes in 18 GB twice, whatever few parameters adapters have."""
    machine = "1x8 rtx4090 100G-ib"
    asked = Request(
        "llama-3.1-70b", machine, seq_len=128, global_batch="8", stack="deepspeed-2025", lora_rank=8,
        set={**PINS, "offload": (3,)},
    )  # fmt: skip
    choice = make_estimate(asked).choices[0]
    copies = 2 * 2 * 70.6e9 / 8 / copy_rate(load_cluster(machine).accelerator)
    hidden = sum(
        choice.time[name]
        for name in ("gemm", "attention", "memory_bound", "host_bound", "embedding_and_loss")
    )
    assert 0.3 * copies < copies - hidden < choice.time["host_transfer"] < copies


def test_a_host_of_megatron_takes_gradients_as_they_are_kept() -> None:
    """fp32 out and bf16 back, or both in bf16."""
    asked = Request(
        "llama-3.1-8b", "1x8 h100 400G-ib", seq_len=4096, global_batch="32", stack="megatron-2026",
        set={"tp": (1,), "pp": (1,), "micro_batch": (1,), "zero": (1,), "offload": (1,)},
    )  # fmt: skip
    wide, narrow = (
        make_estimate(replace(asked, stack=stack)).choices[0].time["host_transfer"]
        for stack in ("megatron-2026", "megatron-2026+grad-reduce-in-bf16")
    )
    rate = copy_rate(load_cluster("1x8 h100 400G-ib").accelerator)
    assert wide - narrow == pytest.approx(2 * 8.03e9 / 8 / rate, rel=0.01)


def test_collectives_run_beside_copies() -> None:
    """Both hide under the passes of a micro-batch, over links of their own: together they take as long as the longest
    of the three, so that passes which take half as long are no slower in all."""
    subject = problem(dense_model(), "2x8 h100 100G-ib", stack="deepspeed-2025", seq_len=1024)
    slow = replace(subject.cluster.accelerator, pcie_bandwidth=2e9)
    subject = replace(subject, cluster=replace(subject.cluster, accelerator=slow))
    table = ConfigTable.of([ParallelConfig(dp=16, zero=3, num_microbatches=4, offload=OFFLOAD_ACTIVATIONS)])
    steps = []
    for peak in (1.0, 2.0, 4.0):
        faster = replace(slow, peak=tuple((dtype, peak * rate) for dtype, rate in slow.peak))
        model = costs(replace(subject, cluster=replace(subject.cluster, accelerator=faster)))
        detail = model.evaluate(table, keep_terms=True).detail
        assert detail is not None
        time = {name: float(value[0]) for name, value in detail.time.items()}
        assert time["host_transfer"] > 0
        assert time["dp_comm"] > 0
        steps.append(sum(time.values()))
    assert steps[1] <= steps[0] * (1 + 1e-12)
    assert steps[2] <= steps[1] * (1 + 1e-12)


@pytest.mark.parametrize(
    ("offload", "least", "most"),
    [
        # 38 x 18.2 / 9.3 = 74.3 GB/s, from 410 down to 28 x 3.09 / 2.38 = 36.4
        (1, 74.264 / 409.6, 74.264 / 36.353),
        (5, 74.264 / 409.6, 74.264 / 36.353),
        # 26.0 of 31 GB/s, from 31 down to 18.6
        (4, 26 / 31, 26 / 18.6),
    ],
)
def test_range_of_what_is_assumed(offload: int, least: float, most: float) -> None:
    assert host_range(offload, 2.0) == pytest.approx((2 * least, 2 * most), rel=1e-4)
    assert host_range(offload, 0.0) == (0.0, 0.0)


def test_the_band_is_wider_where_hosts_hold_states() -> None:
    here, there = (
        make_estimate(replace(LARGE, set={**PINS, "offload": (bits,)})).choices[0] for bits in (0, 1)
    )
    band = here.step_time_high / here.step_time
    assert here.step_time_low == pytest.approx(here.step_time / band)
    assert there.time["host_transfer"] > 0
    assert there.step_time_high / there.step_time > band
    assert there.step_time / there.step_time_low > band
    assert any("planner assumptions" in sentence for sentence in texts(there.why))
    assert not any("planner assumptions" in sentence for sentence in texts(here.why))


def test_offload_is_selected_as_any_axis() -> None:
    here, there = make_estimate(LARGE), make_estimate(replace(LARGE, set={**PINS, "offload": (3,)}))
    assert there.choices[0].memory.peak < here.choices[0].memory.peak
    assert there.choices[0].step_time > here.choices[0].step_time
    assert there.choices[0].time["host_transfer"] > here.choices[0].time["host_transfer"] == 0
    assert "offload:optimizer+params" in there.choices[0].config.text


def test_what_does_not_fit_otherwise_fits_on_the_host() -> None:
    small = replace(LARGE, cluster="1x8 rtx4090 100G-ib", seq_len=2048)
    here = make_plan(replace(small, set={**PINS, "offload": (0,)}))
    assert not here.choices or here.choices[0].memory.verdict is not MemoryVerdict.FITS
    either = make_plan(replace(small, set={**PINS, "offload": (0, 1, 3)}))
    assert either.verdict is Verdict.FOUND
    assert "optimizer" in either.choices[0].config.offload


def test_a_stack_refuses_what_it_cannot_move() -> None:
    refused = make_estimate(replace(LARGE, stack="nanotron-2024", set={"offload": (1,)}))
    assert refused.verdict is Verdict.ILLEGAL
    assert "offload-supported" in {broken.rule for broken in refused.violations}
    without = make_estimate(replace(LARGE, set={**PINS, "zero": (2,), "offload": (3,)}))
    assert without.verdict is Verdict.ILLEGAL


@pytest.mark.parametrize("cluster", ["1x1 gb10", "1x4 mi300a"])
def test_nothing_leaves_a_device_for_a_memory_that_is_its_own(cluster: str) -> None:
    shared = replace(LARGE, cluster=cluster, seq_len=2048)
    for kinds in (1, 3, 4):
        refused = make_estimate(replace(shared, set={**PINS, "offload": (kinds,)}))
        assert "offload-apart" in {broken.rule for broken in refused.violations}
    plan = make_plan(replace(shared, set={}))
    assert not any(choice.config.offload for choice in plan.choices)
    assert not any("offload" in text for text in texts(plan.smallest_change))


def test_the_search_obeys_what_offload_needs() -> None:
    found = make_plan(replace(LARGE, cluster="1x8 rtx4090 100G-ib", seq_len=2048, set={"offload": (1, 3)}))
    assert found.choices
    assert all(choice.config.zero == 3 for choice in found.choices if len(choice.config.offload) == 2)


def test_copies_of_superchips_go_over_their_own_link() -> None:
    # NVIDIA/Megatron-LM#6491: about 170 to 184 GB/s each way with all four GPUs of a node at work
    assert 168e9 < copy_rate(load_cluster("gb200-nvl72", 8).accelerator) < 184e9
    assert copy_rate(load_cluster("dgx-h100", 8).accelerator) == pytest.approx(63e9 * 26 / 31)


def test_the_same_copies_are_faster_over_the_link_of_a_superchip() -> None:
    own = load_cluster("gb200-nvl72", 8)
    pcie = replace(own, accelerator=replace(own.accelerator, host_bandwidth=None))
    config = ParallelConfig(dp=8, num_microbatches=4, zero=1, offload=OFFLOAD_ACTIVATIONS)
    spec = dense_model(8, hidden=4096)
    given = problem(spec, "1x8 h100", seq_len=8192, global_batch=32)
    seconds = []
    for cluster in (own, pcie):
        detail = (
            costs(replace(given, cluster=cluster)).evaluate(ConfigTable.of([config]), keep_terms=True).detail
        )
        assert detail is not None
        seconds.append(float(detail.time["host_transfer"][0]))
    assert 0 <= seconds[0] < seconds[1]


def test_an_update_on_the_host_follows_the_bandwidth_of_its_memory() -> None:
    rates = [
        host_update_rate(load_cluster(f"1x8 {name}", 8).accelerator) for name in ("v100", "a100", "h100")
    ]
    # 12 channels of 21.3 GB/s, 16 of 25.6, 16 of 38.4
    assert np.array(rates) / HOST_UPDATE == pytest.approx([256 / 409.6, 1.0, 1.5], rel=1e-3)
