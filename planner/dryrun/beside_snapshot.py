"""How does a run of one's own differ from its dry run? Peaks, and the blocks that one holds and the other does not.

Blocks are told apart by size alone: what a run holds at its allocated peak against what the dry run holds at its own,
by what was asked for, rounded up to 512 bytes. Left out: what a block of a size that no step asks for may be of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from planner.dryrun.allocator.rounding import UNIT
from planner.dryrun.outcome import RankMemory
from planner.dryrun.recording import Holds
from planner.dryrun.snapshot import OwnRun

_Place = tuple[Holds | None, str]


@dataclass(frozen=True)
class Unmatched:
    """Blocks of one size [bytes] that only one of the two has, or has more of: `number` more.

    `where`: file, line and function of a run, module of a dry run, and of a dry run what it `holds`; of several the one
    with most blocks of that size.
    """

    size: int
    number: int
    where: str
    holds: Holds | None

    @property
    def total(self) -> int:
        """Of all of them [bytes]."""
        return self.size * self.number


@dataclass(frozen=True)
class Beside:
    """A run and the dry run of one rank."""

    run: OwnRun
    rank: int
    allocated_off: float
    """The dry run's peak over the run's, less 1 [1]."""
    reserved_off: float
    only_run: tuple[Unmatched, ...]
    """The most memory first."""
    only_dryrun: tuple[Unmatched, ...]


def laid_beside(run: OwnRun, ran: RankMemory) -> Beside:
    """What differs between a run and the dry run of a rank."""
    own = _by_size((one.size, one.number, (None, one.where)) for one in run.alive)
    dry = _by_size((one.size, one.number, (one.holds, one.module)) for one in ran.blocks)
    return Beside(
        run=run,
        rank=ran.rank,
        allocated_off=ran.allocated_peak / max(run.allocated_peak, 1) - 1,
        reserved_off=ran.reserved_peak / max(run.reserved_peak, 1) - 1,
        only_run=_more_of(own, dry),
        only_dryrun=_more_of(dry, own),
    )


def _by_size(blocks: Iterable[tuple[int, int, _Place]]) -> dict[int, Counter[_Place]]:
    found: dict[int, Counter[_Place]] = {}
    for size, number, place in blocks:
        found.setdefault(-(-size // UNIT) * UNIT, Counter())[place] += number
    return found


def _more_of(these: dict[int, Counter[_Place]], those: dict[int, Counter[_Place]]) -> tuple[Unmatched, ...]:
    more = {size: places.total() - those.get(size, Counter()).total() for size, places in these.items()}
    found = []
    for size, number in more.items():
        if size and number > 0:
            holds, where = these[size].most_common(1)[0][0]
            found.append(Unmatched(size, number, where, holds))
    return tuple(sorted(found, key=lambda one: (-one.total, one.size)))
