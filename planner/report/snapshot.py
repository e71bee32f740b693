"""What does a run of one's own have otherwise than its dry run? Plain data, and a section for the terminal.

Left out: how a snapshot is read and compared (`planner/dryrun/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol

from rich.console import Group, RenderableType

from planner.dryrun.beside_snapshot import Beside
from planner.dryrun.outcome import RankMemory
from planner.dryrun.recording import Holds
from planner.report.text import listing, prose, section
from planner.units import GIB, format_capacity

MOST: Final = 8  # sizes of either side that are shown
_NO_HISTORY: Final = "the snapshot has no history: these are the levels when it was taken"
HEADS: Final = ("only in", "where", "a block", "blocks", "GiB")


class Size(Protocol):
    """Blocks of one size that one of the two has, found or read back."""

    @property
    def size(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def where(self) -> str: ...
    @property
    def holds(self) -> Holds | None: ...


def snapshot_facts(beside: Beside) -> dict[str, Any]:
    """The run beside the dry run as plain data: amounts in bytes."""
    facts = asdict(beside.run)
    del facts["alive"]  # as many as there are sizes
    return facts | {
        "rank": beside.rank,
        "allocated_off": beside.allocated_off,
        "reserved_off": beside.reserved_off,
        "only_run": [asdict(one) for one in beside.only_run[:MOST]],
        "only_dryrun": [asdict(one) for one in beside.only_dryrun[:MOST]],
    }


def snapshot_section(beside: Beside, ran: RankMemory) -> RenderableType:
    """Peaks side by side, and the largest blocks that one of the two does not have."""
    run = beside.run
    peaks = [
        ("allocated", run.allocated_peak, ran.allocated_peak, beside.allocated_off),
        ("reserved", run.reserved_peak, ran.reserved_peak, beside.reserved_off),
    ]
    rows = [(name, _gib(own), _gib(dry), f"{off:+.1%}") for name, own, dry, off in peaks]
    table = listing(("peak [GiB]", "run", "dry run", ""), rows)
    sizes = unmatched_rows(beside.only_run, beside.only_dryrun)
    more: list[RenderableType] = [prose(""), listing(HEADS, sizes, left=2)] if sizes else []
    told = [prose(line, "dim") for line in remarks(run.events, run.allocated_at_start, run.out_of_memory)]
    return section(f"Beside the run of the snapshot, device {run.device}", Group(table, *more, *told))


def remarks(events: int, allocated_at_start: int, out_of_memory: int | None) -> list[str]:
    """What to know of a history to read its peaks."""
    said = []
    if not events:
        said.append(_NO_HISTORY)
    elif allocated_at_start:
        size = format_capacity(allocated_at_start)
        said.append(
            f"its history of {events:,} events begins with {size} allocated: peaks are those since then"
        )
    if out_of_memory is not None:
        said.append(f"the run was refused {format_capacity(out_of_memory)}")
    return said


def unmatched_rows(only_run: Iterable[Size], only_dryrun: Iterable[Size]) -> list[Sequence[str]]:
    """The sizes of blocks that make most of the difference, of the run first."""
    return [
        (side, _place(one), format_capacity(one.size), f"{one.number:,}", _gib(one.size * one.number))
        for side, blocks in (("run", only_run), ("dry run", only_dryrun))
        for one in list(blocks)[:MOST]
    ]


def _place(one: Size) -> str:
    holds = "" if one.holds is None else one.holds.replace("_", " ")
    return ", ".join(part for part in (holds, one.where) if part) or "-"


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"
