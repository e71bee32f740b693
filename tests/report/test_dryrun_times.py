"""Does a dry run tell the times of a step, as JSON and in words?"""

from dataclasses import replace

import pytest
from rich.console import Console

from planner.cost.captured.operation import Phase
from planner.dryrun.outcome import RankMemory
from planner.dryrun.question import DryRun
from planner.dryrun.timing.step import RankTime
from planner.report.dryrun import dryrun_document, dryrun_facts
from planner.spec.verdict import MemoryVerdict

GIB = 2**30
MEMORY = RankMemory(
    rank=0, allocated_peak=GIB, reserved_peak=GIB, first_step_allocated_peak=GIB, built_allocated_peak=0,
    phase=Phase.FORWARD,
    operation="aten.mm.default", module="model", alive=(), blocks=(), operations=10, timeline=(),
    host_peak=0, limit=2 * GIB,
    verdict=MemoryVerdict.FITS, out_of_memory=None, helped_by=(),
)  # fmt: skip
TIME = RankTime(step=0.2, forward=0.06, backward=0.12, optimizer=0.02, busy=0.15)
FOUND = DryRun(
    "tiny", "h100-sxm-80g", 1, "dp1", "transformers-2026", {}, (MEMORY,), None, (), None, None, (), (TIME,)
)


def test_times_stand_beside_peaks() -> None:
    slower = replace(TIME, step=0.3, forward=0.16)
    facts = dryrun_facts(replace(FOUND, times=(TIME, slower)))
    told = {name: facts[f"{name}_time"] for name in ("step", "forward", "backward", "optimizer")}
    assert told == {"step": 0.3, "forward": 0.16, "backward": 0.12, "optimizer": 0.02}
    assert facts["times"][0] == pytest.approx(
        {
            "step": 0.2, "forward": 0.06, "backward": 0.12, "optimizer": 0.02, "busy": 0.15,
            "messages": 0.0, "exposed": 0.0,
        }
    )  # fmt: skip


def said(found: DryRun) -> str:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(dryrun_document(found))
    return captured.get()


def test_a_document_says_how_long_the_device_waits() -> None:
    assert "200 ms" in said(FOUND)
    assert "the device waits for the host 25% of it" in said(FOUND)
    sent = replace(TIME, messages=0.1, exposed=0.02)
    assert "the device waits for the host 15% and for messages 10% of it" in said(
        replace(FOUND, times=(sent,))
    )


def test_times_that_are_not_known_are_said_to_be() -> None:
    assert "not told" in said(replace(FOUND, times=()))
