"""Are peaks, what is held at them, and verdicts those of a recording made by hand?"""

from __future__ import annotations

import pytest

from planner.cost.captured.operation import Operation, Phase
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.outcome import Alive, memory_of
from planner.dryrun.recording import Holds, Recording
from planner.spec.verdict import MemoryVerdict

MIB = 2**20
PLAIN = AllocatorSettings()


class Written:
    """A recording, an operation at a time."""

    def __init__(self) -> None:
        self.recording = Recording()

    def run(self, name: str, module: str, phase: Phase, *sizes: int) -> list[int]:
        recording = self.recording
        number = len(recording.operations)
        recording.operations.append(Operation(name, module, phase, len(recording.trace), (), ()))
        recording.made_by += [number] * len(sizes)
        return [recording.trace.allocate(size) for size in sizes]

    def free(self, *blocks: int) -> None:
        for block in blocks:
            self.recording.trace.free(block)

    def ended(self) -> Recording:
        self.recording.end = len(self.recording.trace)
        return self.recording


def two_steps() -> Recording:
    """Weights of 100 MiB; 40 MiB in each of two layers; gradients of 100; moments of 200 from the first step on."""
    written = Written()
    weights = written.run("empty", "", Phase.BUILD, 100 * MIB)
    written.recording.kinds[weights[0]] = Holds.WEIGHTS
    moments: list[int] = []
    for step in range(2):
        if step:
            written.recording.second_step = len(written.recording.trace)
            written.recording.trace.reset_peaks()
        kept = [written.run("aten.mm.default", f"layers.{n}.mlp", Phase.FORWARD, 40 * MIB)[0] for n in (0, 1)]
        gradients = written.run("aten.mm.default", "layers.0.mlp", Phase.BACKWARD, 100 * MIB)
        written.recording.kinds[gradients[0]] = Holds.GRADIENTS
        written.free(*kept)
        moments = moments or written.run("aten.zeros_like.default", "", Phase.OPTIMIZER, 200 * MIB)
        written.recording.kinds[moments[0]] = Holds.OPTIMIZER_STATES
        written.run("aten._fused_adamw_.default", "", Phase.OPTIMIZER)
        written.free(*gradients)
    return written.ended()


def test_peak_is_that_of_a_step_that_finds_moments() -> None:
    memory = memory_of(two_steps(), PLAIN, 1000 * MIB)
    assert memory.allocated_peak == (100 + 80 + 100 + 200) * MIB
    assert memory.first_step_allocated_peak == (100 + 100 + 200) * MIB
    assert (memory.phase, memory.module) == (Phase.BACKWARD, "layers.0.mlp")
    assert memory.operations == 4


def test_what_is_held_is_told_by_kind_and_module_and_adds_up() -> None:
    memory = memory_of(two_steps(), PLAIN, 1000 * MIB)
    assert memory.alive == (
        Alive(Holds.OPTIMIZER_STATES, "", 200 * MIB, 1),
        Alive(Holds.GRADIENTS, "layers.*.mlp", 100 * MIB, 1),
        Alive(Holds.WEIGHTS, "", 100 * MIB, 1),
        Alive(Holds.ACTIVATIONS, "layers.*.mlp", 80 * MIB, 2),
    )
    assert sum(one.size for one in memory.alive) == memory.allocated_peak


def test_timeline_ends_with_the_step_and_has_its_peak() -> None:
    memory = memory_of(two_steps(), PLAIN, 1000 * MIB)
    assert max(one.allocated for one in memory.timeline) == memory.allocated_peak
    assert max(one.reserved for one in memory.timeline) == memory.reserved_peak
    assert memory.timeline[0].phase is Phase.FORWARD
    assert memory.timeline[-1].allocated == 300 * MIB


def test_verdicts_change_where_the_device_ends() -> None:
    recording = two_steps()
    need = memory_of(recording, PLAIN, 1000 * MIB).reserved_peak
    verdicts = [memory_of(recording, PLAIN, round(need * share)).verdict for share in (1.006, 1.0, 0.98)]
    assert verdicts == [MemoryVerdict.FITS, MemoryVerdict.BORDERLINE, MemoryVerdict.DOES_NOT_FIT]


def test_an_allocation_that_fails_is_told_as_pytorch_tells_it() -> None:
    failed = memory_of(two_steps(), PLAIN, 390 * MIB).out_of_memory
    assert failed is not None
    assert (failed.tried, failed.allocated) == (200 * MIB, 200 * MIB)


def test_a_setting_that_would_help_is_named() -> None:
    """Four segments of 60 MiB hold 40 each: there is no place for 70 more, unless their free pages can be moved."""
    written = Written()
    blocks = written.run("aten.mm.default", "", Phase.FORWARD, *[60 * MIB] * 4)
    written.free(*blocks)
    written.run("aten.mm.default", "", Phase.FORWARD, *[40 * MIB] * 4)
    written.run("aten.mm.default", "", Phase.FORWARD, 70 * MIB)
    memory = memory_of(written.ended(), PLAIN, 300 * MIB)
    assert memory.verdict is MemoryVerdict.DOES_NOT_FIT
    assert memory.helped_by == ("expandable_segments:True",)


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 2 * MIB, 300 * MIB])
def test_whatever_is_left_for_the_allocator_there_is_a_verdict(limit: int, expandable: bool) -> None:
    memory = memory_of(two_steps(), AllocatorSettings(expandable), limit)
    assert (memory.verdict, memory.limit) == (MemoryVerdict.DOES_NOT_FIT, limit)


def test_a_fraction_is_of_all_that_the_device_has() -> None:
    """The step needs 480 MiB: half of 1000 is enough where 900 are left, half of 900 would not be."""
    recording, half = two_steps(), AllocatorSettings(memory_fraction=0.5)
    memory = memory_of(recording, half, 900 * MIB, device=1000 * MIB)
    assert (memory.verdict, memory.limit) == (MemoryVerdict.FITS, 500 * MIB)
    assert memory_of(recording, half, 900 * MIB).verdict is MemoryVerdict.DOES_NOT_FIT
    close = memory_of(recording, half, 900 * MIB, device=961 * MIB)
    assert close.verdict is MemoryVerdict.BORDERLINE, "as near as the device would be to running out"
    assert memory_of(recording, half, 400 * MIB, device=1000 * MIB).limit == 400 * MIB
