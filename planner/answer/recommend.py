"""Which of the configurations would a careful engineer take? Of those as fast as far as a prediction can tell, the one
that leaves more memory free and lies nearer to what is run in practice.

    may be taken   at most `TOLD_APART` slower than the fastest, no further from practice, holding no more memory (or no
                   more than `USUAL_SHARE` of the device), and surely fitting where it does
    is charged     1 % of the step for every kind of parallelism, for everything that few published runs do, and for
                   every 4 % of the device held above `USUAL_SHARE`
    is taken       whose step, so charged, is shortest; the fastest where none gains `WORTH_IT`; of equals the faster

What published runs do is counted by `python -m benchmarks.published_runs`, what a prediction can tell apart by `python
-m benchmarks.told_apart`. Left out: how the configurations were found, and the words (`headline.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from planner.errors import InputError
from planner.frameworks.layout import chunk_layers
from planner.spec.config import CudaGraphs, ParallelConfig, Schedule
from planner.spec.planfile import Choice, Concern, Reason, Trade
from planner.spec.rule import Problem
from planner.spec.verdict import MemoryVerdict

# Of the step. Of 846 pairs of runs of one sweep that are predicted less than 2 % apart, each by numbers that have not
# seen its group, the one predicted faster was faster in 56 %, of pairs 2 to 4 % apart in 68 %, 6 to 8 % in 82 %
# (benchmarks/RESULTS.md, "What a prediction can tell apart")
TOLD_APART: Final = 0.02
# Of the device: 9 of 10 of the published runs that are the best of their kind and state a peak hold no more
USUAL_SHARE: Final = 0.83
# Of the step: for a kind of parallelism, and for what few published runs do (`Concern`; of 144 none, but stages of
# different depth, 6 of 53, and CUDA graphs, 21). Two of them outweigh what cannot be told apart. Chosen, not measured
CHARGE: Final = TOLD_APART / 2
# Of the device, by which the memory of most stacks errs: held above the usual share, it is charged as much
ROOM: Final = 0.04
WORTH_IT: Final = CHARGE / 4  # of the step: a smaller gain is no reason to name another than the fastest
# tokens of a sequence on a rank of context parallelism: of 27 published runs with it none has fewer
SHORTEST_PART: Final = 4096

USUAL_SCHEDULES: Final = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
Concerns = Mapping[Concern, float]


@dataclass(frozen=True)
class Weighed:
    """What of a configuration decides. `step_time`: [s]; `held`: share of the device [1]; `concerns`: how often it has
    each [1]."""

    step_time: float
    held: float
    concerns: Concerns
    fits: bool = True

    @property
    def charges(self) -> float:
        """What it is charged for not being as others run it [of the step]."""
        return CHARGE * sum(self.concerns.values())

    @property
    def charged(self) -> float:
        """Its step with all charges [s]."""
        crowded = max(self.held - USUAL_SHARE, 0.0) / ROOM
        return self.step_time * (1 + self.charges + CHARGE * crowded)


@dataclass(frozen=True)
class Setting:
    """What configurations are weighed in. `seq_len`: tokens of a sequence [1]; `domain`: devices joined by the fast
    links [1]; `graphs`: what the framework captures by itself."""

    seq_len: int
    domain: int
    graphs: int = CudaGraphs.NONE

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """That of a problem."""
        own = problem.stack.limits.own_graphs
        return cls(problem.job.seq_len, problem.cluster.scale_up_domain, own)


def concerns(config: ParallelConfig, setting: Setting, chunks: Sequence[int]) -> Concerns:
    """In what a configuration is more, or other, than others run. `chunks`: layers of every (virtual) stage."""
    degrees = (config.tp, config.cp, config.ep)
    found = {
        Concern.KINDS: sum(degree > 1 for degree in (*degrees, config.pp)),
        Concern.WIDE_TENSOR: config.tp > setting.domain,
        Concern.SHORT_CONTEXT: config.cp > 1 and setting.seq_len < SHORTEST_PART * config.cp,
        Concern.ODD_DEGREE: sum(degree & (degree - 1) > 0 for degree in degrees),
        Concern.UNEVEN_LAYERS: not is_even(chunks),
        Concern.SCHEDULE: config.pp > 1 and config.schedule not in USUAL_SCHEDULES,
        Concern.OFFLOAD: config.offload > 0,
        Concern.GRAPHS: config.cuda_graph_impl != setting.graphs,
    }
    return {concern: float(count) for concern, count in found.items() if count}


def is_even(chunks: Sequence[int]) -> bool:
    """Do all stages hold as many layers, the first and the last, with embedding and loss, no more?"""
    inner = chunks[1:-1] or chunks[:1]
    ends = (chunks[0], chunks[-1]) if len(chunks) > 1 else ()
    return len(set(inner)) <= 1 and all(end <= inner[0] for end in ends)


def best_weighed(weighed: Sequence[Weighed]) -> int:
    """Index of the one to take; the first is the fastest."""
    first = weighed[0]
    may = [
        i
        for i, each in enumerate(weighed)
        if each.step_time <= first.step_time * (1 + TOLD_APART)
        and each.held <= max(first.held, USUAL_SHARE)
        and each.charges <= first.charges
        and each.fits >= first.fits
    ]
    best = min(may, key=lambda i: (weighed[i].charged, weighed[i].step_time, i))
    worth = weighed[best].charged <= first.charged - WORTH_IT * first.step_time
    return best if worth else 0


def weigh(choice: Choice, setting: Setting) -> Weighed:
    """A configuration of a plan."""
    facts = concerns(choice.config.parallel(), setting, _chunks(choice))
    held = choice.memory.peak / (choice.memory.capacity or choice.memory.limit)
    return Weighed(choice.step_time, held, facts, choice.memory.verdict is MemoryVerdict.FITS)


def _chunks(choice: Choice) -> Sequence[int]:
    """Layers of every (virtual) stage; of every rank where these do not tell."""
    if choice.split is not None:
        return choice.split.layers_per_chunk
    config, layers = choice.config, sum(choice.layers_per_stage)
    try:
        return chunk_layers(layers, config.pp, config.vpp, choice.layers_per_stage, choice.layout)
    except InputError:  # two directions hold each layer twice
        return choice.layers_per_stage


@dataclass(frozen=True)
class Pick:
    """The list of a plan, fastest first, which of it to take, and what that costs and brings; None where it is the
    fastest."""

    choices: tuple[Choice, ...]
    index: int
    trade: Trade | None = None


def recommend(setting: Setting, listed: Sequence[Choice], others: Sequence[Choice] = ()) -> Pick:
    """Which to take of those `listed`, fastest first, and of `others` that are not; one of these then stands in the
    list, in place of the slowest unless that is the fastest as well."""
    every = (*listed, *others)
    if not every:
        return Pick((), 0)
    index = best_weighed([weigh(choice, setting) for choice in every])
    if index == 0:
        return Pick(tuple(listed), 0)
    taken, choices = every[index], tuple(listed)
    if index >= len(listed):
        kept = choices[:-1] if len(choices) > 1 else choices
        place = sum(choice.step_time <= taken.step_time for choice in kept)
        choices, index = (*kept[:place], taken, *kept[place:]), place
    return Pick(choices, index, trade(setting, choices[0], taken))


def trade(setting: Setting, fastest: Choice, taken: Choice) -> Trade:
    """What taking another than the fastest costs and brings."""
    before, after = (weigh(choice, setting) for choice in (fastest, taken))
    reasons = [
        Reason(concern=c, fastest=before.concerns.get(c, 0.0), recommended=after.concerns.get(c, 0.0))
        for c in Concern
        if before.concerns.get(c, 0.0) != after.concerns.get(c, 0.0)
    ]
    return Trade(
        slower=max(taken.step_time / fastest.step_time - 1, 0.0),
        more_free=fastest.memory.peak - taken.memory.peak,
        reasons=tuple(reasons),
    )
