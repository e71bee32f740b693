"""What is in the JSON that `planner dryrun` prints? Read back for a page about it.

Keys that no page shows are passed over. Left out: how a dry run is made.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.cost.captured.operation import Phase
from planner.dryrun.outcome import RankMemory
from planner.dryrun.recording import Holds
from planner.spec.findings import Said
from planner.spec.verdict import MemoryVerdict

Bytes = Annotated[int, Field(ge=0)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class MomentFile(_Record):
    """Where most is allocated within a part of a step [bytes]."""

    phase: Phase
    operation: str
    module: str
    allocated: Bytes
    reserved: Bytes
    held: dict[Holds, Bytes]


class AliveFile(_Record):
    """What is held at the peak by one kind of module [bytes]."""

    holds: Holds
    module: str
    size: Bytes
    blocks: int


class OutOfMemoryFile(_Record):
    """The allocation that failed [bytes]."""

    tried: Bytes
    allocated: Bytes
    unallocated: int


class RankFile(_Record):
    """One rank [bytes]."""

    rank: int
    allocated_peak: Bytes
    reserved_peak: Bytes
    first_step_allocated_peak: Bytes
    built_allocated_peak: Bytes = 0
    phase: Phase
    operation: str
    module: str
    alive: tuple[AliveFile, ...]
    operations: int
    timeline: tuple[MomentFile, ...]
    limit: Bytes
    verdict: MemoryVerdict
    out_of_memory: OutOfMemoryFile | None
    helped_by: tuple[str, ...]


class UnmatchedFile(_Record):
    """Blocks of one size that a run or its dry run alone has [bytes]."""

    size: Bytes
    number: int
    where: str
    holds: Holds | None


class SnapshotFile(_Record):
    """A run of one's own beside a rank's dry run [bytes]."""

    device: int
    rank: int
    events: int
    allocated_peak: Bytes
    reserved_peak: Bytes
    allocated_at_start: int
    out_of_memory: Bytes | None
    allocated_off: float
    reserved_off: float
    timeline: tuple[tuple[int, int], ...]
    only_run: tuple[UnmatchedFile, ...]
    only_dryrun: tuple[UnmatchedFile, ...]


class DryRunFile(_Record):
    """The JSON of `planner dryrun`."""

    kind: Literal["dryrun"]
    planner_version: str
    model: str
    accelerator: str
    devices: int
    configuration: str
    stack: str
    software: dict[str, str]
    estimated_peak: float | None
    largest_micro_batch: int | None
    longest_sequence: int | None
    ranks: Annotated[tuple[RankFile, ...], Field(min_length=1)]
    snapshot: SnapshotFile | None = None
    assumptions: tuple[Said, ...]

    @property
    def worst(self) -> RankFile:
        """The rank that needs most."""
        return max(self.ranks, key=lambda one: one.reserved_peak)


def needed_once(rank: RankMemory | RankFile) -> list[tuple[str, int, str]]:
    """What a process needs once [bytes]: in its first step, and while it is built where that is the most."""
    first, built = rank.first_step_allocated_peak, rank.built_allocated_peak
    rows = [("first step", first, "allocated, with moments that its update makes")]
    if built > max(first, rank.allocated_peak):
        rows.insert(0, ("building", built, "allocated once, before the first step"))
    return rows
