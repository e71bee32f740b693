"""Which layout makes which configuration the fastest?

Of the finalists and of whatever else may be faster under some layout: simple splits of the fastest of every shape, then
bounds of those alike together, then one after another by the least bound, as far as an effort goes. What is left open
is said. Left out: the layouts of one configuration (`splits/`), and which configurations may be faster (`open.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import PipelineSimulator
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly
from planner.solve.open import Counts, Open, like, open_counts
from planner.solve.outside import Outside
from planner.solve.refine import ranked
from planner.solve.search import SearchResult
from planner.solve.splits.cases import LONGEST
from planner.solve.splits.dealt import Chunks, Dealt
from planner.solve.splits.families import Families
from planner.solve.splits.pipe import Pipe
from planner.solve.splits.relaxed import Known
from planner.solve.splits.split import TOLERANCE, SplitResult, SplitSearch, fewest_inner, solve_split
from planner.spec.config import ConfigTable, ParallelConfig, Schedule

DIFFERING_EFFORT = 0.3  # of what no launcher can be told
# of what splits get, that one of them gets before others have their turn
SLICES: Final = (0.1, 0.3)
TRIED: Final = 0.03  # of effort: one split for some configurations
TRIED_SHAPES, TRIED_ALIKE = 8, 16  # for how many shapes, and configurations of each, that is done at a time
FIRST_LEFT: Final = 0.7  # of it, that is left for others
EACH_LEFT: Final = 0.45  # the same, once one of every shape has had its share
FAMILIES: Final = 0.6  # of it, that those alike get together at most
FIRST, FIRST_SLICE = 4, 0.02  # the fastest of them, of which each has such a share of it first
BEGINNING = 0.004  # of effort: simple splits and bounds of one that was not a finalist
OUTSIDE_EFFORT = 1.0  # the same, of those under all of a stack's options that nobody searches whole
ROUNDS, WIDE = 4, 0.01  # times that all of it is spent at most, where the gap stays so wide
EFFORT = 2.0  # seconds of a processor, about, for the splits of all configurations
# where the answer is one of many: steps 0.1 % longer at most than with `EFFORT`, at 11 sizes of llama-3.1-70b and
# deepseek-v3 on dgx-h100; with 0.03 up to 2.2 %
PASSING_EFFORT, PASSING_FINALISTS = 0.1, 4


@dataclass(frozen=True)
class SplitsSolved:
    """`best`: the finalists, fastest first, each under the split of `splits` (those of them that were solved) and with
    as many recomputed layers as that needs, else under the stack's own; `time`: of a step of each [s]. Those that
    differ in CUDA graphs alone and tie stay in the order given. `bound`: what no split of those looked at beats [s].
    `looked_at`: configurations of which every layout is either tried or behind a bound. `outside`: those of which not.
    `complete`: all are either, of those that may be faster under a layout.
    `per_stage`: the fastest with numbers of recomputed layers that differ between ranks, which no launcher can be told;
    None where the best recomputes none."""

    best: ConfigTable
    time: NDArray[np.float64]
    splits: dict[ParallelConfig, SplitResult]
    bound: float
    looked_at: int
    outside: Outside
    per_stage: SplitResult | None = None
    complete: bool = True


class _Contest:
    """The configurations whose splits may matter, and the best step time of any of them so far."""

    def __init__(
        self, model: CostModel, simulator: PipelineSimulator, limit: float, explicit: bool,
        known: dict[Pipe, Known] | None = None,
    ) -> None:  # fmt: skip
        self.model, self.simulator, self.limit, self.explicit = model, simulator, limit, explicit
        self.best, self.entries, self.known = np.inf, list[_Entry](), {} if known is None else known
        self.tried = set[tuple[tuple[int, ...], Chunks]]()

    def add(self, config: ParallelConfig, own: float, counts: Counts) -> None:
        """A configuration that takes `own` under the stack's split, infinity where that is not known, and of whose
        layers each rank may recompute one of some numbers, with bounds of other layouts."""
        bound = min([own, *counts.values()]) if np.isfinite(own) or counts else np.inf
        self.entries.append(_Entry(config, counts, own, config, own, bound, config.pp == 1))
        self.best = min(self.best, own)

    def add_open(self, further: Open, known: Collection[ParallelConfig] = ()) -> None:
        """Configurations of which a layout of their own may be fast, but for some that are `known`."""
        for i in range(len(further.table)):
            if like(config := further.table.row(i)) not in known:
                self.add(config, np.inf, further.counts[i])

    def is_open(self, entry: _Entry) -> bool:
        """May a split of it be faster than the best?"""
        return not entry.done and entry.bound < self.best * (1 - TOLERANCE)

    @property
    def gap(self) -> float:
        """How much faster than the best a split may be that nobody knows [1]."""
        bounds = [entry.bound for entry in self.entries if entry.bound < self.best]
        return 1.0 - min(bounds, default=self.best) / self.best if np.isfinite(self.best) else 0.0

    def begin(self, entry: _Entry) -> None:
        """Cost the stack's own split and bound the others, if that is not done."""
        if entry.search is not None:
            return
        # fewer recomputed layers than the stack's own split needs are for a split that can be told
        config = entry.config
        counts = entry.counts if self.explicit else {config.recompute_layers: 0.0}
        entry.search = SplitSearch(
            self.model,
            config,
            self.limit,
            tuple(counts),
            cutoff=self.best,
            simulator=self.simulator,
            known=self.known,
            least=counts,
        )
        self._note(entry)

    def try_known_splits(self) -> float:
        """Cost configurations under the fastest split of one that is alike, those of some shapes of the least bounds;
        the effort spent."""
        if not self.explicit:
            return 0.0
        spent, shapes = 0.0, dict[tuple[int, ...], list[_Entry]]()
        for entry in sorted(self.entries, key=lambda entry: entry.bound):
            if self.is_open(entry):
                shapes.setdefault(_shape(entry.config), []).append(entry)
        known = dict[tuple[int, ...], Chunks | None]()
        for pipe, one in self.known.items():
            known[pipe.p, pipe.v, pipe.m, int(pipe.schedule)] = one.split
        new = [(shape, split) for shape in shapes if (split := known.get(shape)) is not None]
        for shape, split in [one for one in new if one not in self.tried][:TRIED_SHAPES]:
            self.tried.add((shape, split))
            alike = shapes[shape][:TRIED_ALIKE]
            table, dealt = ConfigTable.of([entry.config for entry in alike]), Dealt(split, (0,))
            other = dealt.of_model(self.model)
            cost = evaluate_exactly(other, table, self.simulator.dealt(other.layers))
            spent += TRIED
            faster = np.flatnonzero((cost.device_memory <= self.limit) & (cost.step_time < self.best))
            if len(faster):
                entry = alike[int(faster[cost.step_time[faster].argmin()])]
                self.begin(entry)
                assert entry.search is not None, "just begun"
                entry.search.consider(Dealt(split, (entry.config.recompute_layers,)), self.best)
                self._note(entry)
        return spent

    def see_families(self, effort: float, closely: bool, stopped: Callable[[], bool]) -> float:
        """Raise bounds of those alike together, closely by layers that are whole; the effort spent."""
        open_ = [entry for entry in self.entries if self.is_open(entry)]
        if not open_ or not self.explicit or not np.isfinite(self.best):
            return 0.0
        table = ConfigTable.of([entry.config for entry in open_])
        choices = [tuple(entry.counts) for entry in open_]
        families = Families(
            self.model,
            table,
            self.limit,
            choices,
            lambda config: fewest_inner(self.model, config),
            self.known,
        )
        bounds = np.array([entry.bound for entry in open_])
        raised = families.raise_bounds(bounds, self.best * (1 - TOLERANCE / 2), effort, closely, stopped)
        for entry, bound in zip(open_, raised.tolist(), strict=True):
            entry.bound = max(entry.bound, bound)
        return families.effort

    def advance(self, entry: _Entry, effort: float, first: bool) -> float:
        """Go on with a begun one; the effort spent. `first`: the fastest of the list, whose best split is shown."""
        assert entry.search is not None, "it has begun"
        before = entry.search.result.effort
        entry.search.advance(np.inf if first else self.best, effort)
        self._note(entry)
        return entry.search.result.effort - before

    def _note(self, entry: _Entry) -> None:
        assert entry.search is not None, "it has begun"
        result = entry.search.result
        entry.bound, entry.done = max(entry.bound, result.bound), entry.search.done
        if self.explicit and result.step_time < entry.time:
            entry.taken, entry.time = result.config, result.step_time
            self.best = min(self.best, entry.time)


@dataclass(eq=False)
class _Entry:
    """A configuration, numbers of layers that its ranks may recompute, its step time under the stack's own split, the
    fastest of any layout so far and its time, and what none of its layouts beats [s]."""

    config: ParallelConfig
    counts: Counts
    own: float
    taken: ParallelConfig
    time: float
    bound: float
    done: bool
    search: SplitSearch | None = None
    turns: int = 0


def solve_splits(
    model: CostModel, simulator: PipelineSimulator, found: SearchResult, limit: float, explicit: bool,
    stopped: Callable[[], bool] = lambda: False,
    choices: Callable[[ParallelConfig], Sequence[int]] = lambda config: (config.recompute_layers,),
    effort: float = EFFORT, others: Callable[[float], Open] | None = None,
    known: dict[Pipe, Known] | None = None,
) -> SplitsSolved:  # fmt: skip
    """Solve the splits of finalists (fastest first) as far as they could overtake the best, and of others.

    `explicit`: the framework can be told a split; else one is only compared with its own, never taken. `choices`:
    numbers of layers that the ranks of a configuration may recompute. `effort`: of solvers for all of them, as
    `EFFORT`; with less, what no launcher can be told is not solved. `others`: further configurations that may take less
    than a step time under a layout of their own. `known`: of pipelines, which may be of others as well.
    """
    rows = [found.best.row(i) for i in range(len(found.best))]
    own = evaluate_exactly(model, found.best, simulator).step_time.tolist()
    contest = _Contest(model, simulator, limit, explicit, known)
    counts: list[Counts] = [dict.fromkeys(choices(row), 0.0) if row.pp > 1 else {} for row in rows]
    if explicit and rows:
        piped = [i for i, row in enumerate(rows) if row.pp > 1]
        numbers = [tuple(counts[i]) for i in piped]
        few = open_counts(
            model, found.best.take(np.array(piped, dtype=np.intp)), numbers, limit, min(*own, LONGEST)
        )
        for i, some in zip(piped, few, strict=True):
            counts[i] = some
    for row, time, some in zip(rows, own, counts, strict=True):
        contest.add(row, time, some)
    finalists, shares = list(contest.entries), _Shares(contest, effort, contest.entries[:1], stopped)
    if not explicit:  # what no launcher can be told is only compared with what the fastest does
        shares.to_each(finalists[:1], FIRST_LEFT, effort)
        return _solved(contest, finalists, effort, stopped)
    for entry in finalists:
        if contest.is_open(entry) and not stopped():
            contest.begin(entry)
    # the fastest first, some effort for each: what they find saves others the work
    fastest = _of_each_shape(sorted(finalists, key=lambda entry: entry.time))
    left = shares.to_each(fastest[:FIRST], FIRST_LEFT, effort)
    # told apart even where no time is left, so that what is not looked at is counted
    if others is not None:
        contest.add_open(others(contest.best), {like(row) for row in rows})
    # what others find saves more: those of the least bounds
    behind = sorted(contest.entries[len(finalists) :], key=lambda entry: entry.bound)
    left = shares.to_each(_of_each_shape(behind)[:FIRST], FIRST_LEFT, left)
    left -= contest.try_known_splits()
    for turn in range(ROUNDS):
        before = contest.best
        left = shares.to_alike(left) if left > 0 else left
        shares.by_turns(left)
        # a second time where the gap is wide, and on while that finds something
        faster = contest.best < before * (1 - TOLERANCE)
        if others is None or contest.gap <= WIDE or stopped() or (turn and not faster):
            break
        left = effort
    return replace(_solved(contest, finalists, effort, stopped), complete=others is not None)


@dataclass(frozen=True)
class _Shares:
    """How an effort is shared among the configurations of a contest; `first`: the one whose best split is shown."""

    contest: _Contest
    effort: float
    first: Sequence[_Entry]
    stopped: Callable[[], bool]

    def to_each(self, entries: Iterable[_Entry], least: float, left: float) -> float:
        """What is left when each had some, as long as more than a share `least` of it was left."""
        for entry in entries:
            if self.contest.is_open(entry) and left > least * self.effort and not self.stopped():
                self.contest.begin(entry)
                left -= BEGINNING + self.contest.advance(
                    entry, FIRST_SLICE * self.effort, entry in self.first
                )
        return left

    def to_alike(self, left: float) -> float:
        """What is left when those alike were bounded together, and one of every shape was tried."""
        contest = self.contest
        left -= contest.see_families(FAMILIES * left, False, self.stopped)
        left -= contest.try_known_splits()
        open_ = (entry for entry in contest.entries if contest.is_open(entry))
        of_shapes = _first_of_shapes(sorted(open_, key=lambda entry: entry.bound))
        left = self.to_each(of_shapes, EACH_LEFT, left)
        left -= contest.try_known_splits()
        return left - contest.see_families(FAMILIES * left, True, self.stopped) if left > 0 else left

    def by_turns(self, left: float) -> float:
        """What is left when the least bounds had all of it, each in its turn."""
        contest = self.contest
        while left > 0 and not self.stopped():
            open_ = [entry for entry in contest.entries if contest.is_open(entry)]
            if not open_:
                break
            following = min(open_, key=lambda entry: (entry.turns, entry.bound))
            if following.search is None:
                contest.begin(following)
                left -= BEGINNING
                continue
            share = SLICES[min(following.turns, len(SLICES) - 1)]
            following.turns += 1
            left -= contest.advance(following, min(left, share * self.effort), following in self.first)
        return left


def outside_of(
    model: CostModel, simulator: PipelineSimulator, limit: float, further: Open, best: float, effort: float,
    known: dict[Pipe, Known], stopped: Callable[[], bool] = lambda: False,
) -> tuple[Outside, float]:  # fmt: skip
    """Of configurations that may take less than `best` [s] under a layout of their own, those of which that is left
    after so much effort, and the effort spent; `known`: of pipelines, which may be of others as well."""
    contest = _Contest(model, simulator, limit, True, known)
    contest.best = best
    contest.add_open(further)
    left = effort - contest.see_families(FAMILIES * effort, False, stopped)
    left -= contest.see_families(FAMILIES * left, True, stopped)
    left = _Shares(contest, effort, (), stopped).by_turns(left)
    open_ = [entry.bound for entry in contest.entries if entry.bound < best * (1 - TOLERANCE)]
    return Outside(len(open_), min(open_, default=np.inf)), effort - left


def _shape(config: ParallelConfig) -> tuple[int, ...]:
    """Ranks, chunks, micro-batches and schedule, with virtual stages the interleaved one."""
    plain = config.schedule == Schedule.ONE_F_ONE_B and config.vpp > 1
    schedule = Schedule.INTERLEAVED if plain else config.schedule
    return config.pp, config.vpp, config.num_microbatches, int(schedule)


def _first_of_shapes(entries: Iterable[_Entry]) -> list[_Entry]:
    """The first of each shape."""
    return list({_shape(entry.config): entry for entry in reversed(list(entries))}.values())[::-1]


def _of_each_shape(entries: list[_Entry]) -> list[_Entry]:
    """Those first of which none before has as many ranks, chunks and micro-batches, in their order."""
    seen, first, rest = set[tuple[int, ...]](), list[_Entry](), list[_Entry]()
    for entry in entries:
        shape = _shape(entry.config)
        (rest if shape in seen else first).append(entry)
        seen.add(shape)
    return [*first, *rest]


def _solved(
    contest: _Contest, finalists: list[_Entry], effort: float, stopped: Callable[[], bool]
) -> SplitsSolved:
    """What came of it. Further configurations join the finalists where a layout makes them as fast as these are."""
    slowest = max((entry.time for entry in finalists), default=np.inf)
    others = contest.entries[len(finalists) :]
    taken = [*finalists, *(entry for entry in others if entry.time <= slowest and entry.time < np.inf)]
    time = np.array([entry.time for entry in taken])
    best = ConfigTable.of([entry.taken for entry in taken])
    order = ranked(best, time, np.arange(len(taken)))
    per_stage = None
    if len(order) and contest.explicit and effort > PASSING_EFFORT and not stopped():
        per_stage = _differing(contest.model, taken[order[0]].taken, contest.limit, contest.best)
    splits = {
        (entry.taken if contest.explicit else entry.config): entry.search.result
        for entry in taken
        if entry.search is not None
    }
    unseen = [entry for entry in others if entry.search is None and contest.is_open(entry)]
    outside = Outside(len(unseen), min((entry.bound for entry in unseen), default=np.inf))
    seen = [entry.bound for entry in contest.entries if entry.search is not None or entry in finalists]
    bound = min([contest.best, *(max(b, 0.0) for b in seen)])
    return SplitsSolved(best.take(order), time[order], splits, bound, len(seen), outside, per_stage)


def _differing(model: CostModel, config: ParallelConfig, limit: float, best: float) -> SplitResult | None:
    """The fastest split of a configuration if every rank could recompute a number of layers of its own."""
    if not config.recompute_layers or config.pp == 1:
        return None
    counts = range(-(-model.problem.model.num_layers // config.pp) + 1)
    found = solve_split(model, config, limit, best, DIFFERING_EFFORT, counts, per_stage=True)
    return found if found.step_time < best * (1 - TOLERANCE) else None
