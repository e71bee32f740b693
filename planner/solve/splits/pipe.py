"""What do all splits of a pipeline have in common: its schedule, its chunks, and the kinds of the layers it deals?

Left out: what layers cost (`profiles.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.model import CostModel
from planner.solve.splits.profiles import Profiles
from planner.spec.config import ParallelConfig, Schedule, ranks_of_chunks

Line = tuple[int, int, int]  # a, b, c of a x + b y <= c

ALIKE: Final = 1e-9  # shares by which kinds of layers count as one


@dataclass(frozen=True)
class Pipe:
    """A schedule of `p` ranks of `v` chunks and `m` micro-batches; `kinds` (L,) of the layers that are dealt, at least
    `fewest` of them to chunks between the first and the last."""

    schedule: Schedule
    p: int
    v: int
    m: int
    kinds: tuple[int, ...]
    fewest: int

    @classmethod
    def of(cls, model: CostModel, config: ParallelConfig, fewest: int) -> Pipe:
        """That of a configuration."""
        schedule = Schedule(config.schedule)
        if schedule is Schedule.ONE_F_ONE_B and config.vpp > 1:
            schedule = Schedule.INTERLEAVED  # with virtual stages 1F1B is interleaved
        kinds = tuple(model.problem.model.layer_kind_of)
        return cls(schedule, config.pp, config.vpp, config.num_microbatches, kinds, fewest)

    @property
    def chunks(self) -> int:
        """Of all ranks."""
        return self.p * self.v

    @cached_property
    def rank_of(self) -> NDArray[np.int64]:
        """Of every chunk."""
        return np.array(ranks_of_chunks(self.p, self.v, self.schedule.placement))

    def ends_on(self, rank: int) -> list[int]:
        """Which ends lie on a rank: the first (0), the last (1)?"""
        return [end for end, chunk in ((0, 0), (1, -1)) if self.rank_of[chunk] == rank]


class Kinds:
    """Kinds of a pipeline's layers, those apart that any of some profiles tells apart.

    `of_layer` (L,): of every layer. `first`: the model's kind that stands for each. `number` (K,): layers of each;
    `before` (L + 1, K): those before every layer. `lines`: of every kind, within which lie numbers of neighbouring
    layers and of those of the kind among them.
    """

    def __init__(self, pipe: Pipe, profile: Profiles) -> None:
        every = sorted(set(pipe.kinds))
        columns = (profile.again, profile.kept, profile.kept_again, profile.states)
        costs = np.concatenate(
            [*profile.passes[:, every].transpose(2, 0, 1), *(of[:, every] for of in columns)], axis=0
        ).T
        told = [tuple(row) for row in np.round(costs / ALIKE).tolist()]
        different = list(dict.fromkeys(told))
        place = {kind: different.index(one) for kind, one in zip(every, told, strict=True)}
        self.first = [every[told.index(one)] for one in different]
        self.of_layer = np.array([place[kind] for kind in pipe.kinds])
        self.number = np.bincount(self.of_layer)
        one_hot = self.of_layer[:, None] == np.arange(len(different))
        self.before = np.concatenate([np.zeros((1, len(different)), dtype=np.int64), one_hot.cumsum(axis=0)])
        self.lines = [lines_about_runs(of) for of in self.before.T] if len(different) > 1 else []

    def of_split(self, split: NDArray[np.int64]) -> NDArray[np.int64]:
        """Layers of every kind in every chunk (C, K)."""
        ends = np.cumsum(split)
        return self.before[ends] - self.before[ends - split]


def lines_about_runs(before: NDArray[np.int64]) -> list[Line]:
    """Lines a n + b k <= c within which lie all (n, k), k of n neighbouring layers being of a kind of which there are
    `before` (L + 1,) every layer."""
    layers = len(before) - 1
    runs = [before[n:] - before[: layers + 1 - n] for n in range(layers + 1)]
    return lines_about([int(run.min()) for run in runs], [int(run.max()) for run in runs])


def lines_about(least: Sequence[int], most: Sequence[int]) -> list[Line]:
    """Lines a n + b k <= c within which lie all (n, k), k from `least` to `most` of n."""
    found = []
    for sign, values in ((1, least), (-1, [-value for value in most])):
        for (x0, y0), (x1, y1) in pairwise(_lower_hull(values)):
            found.append((y1 - y0, -sign * (x1 - x0), (y1 - y0) * x0 - y0 * (x1 - x0)))
    return found


def _lower_hull(values: Sequence[int]) -> list[tuple[int, int]]:
    """Corners of the convex hull of all (n, value), from below."""
    corners: list[tuple[int, int]] = []
    for x, y in enumerate(values):
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            corners.pop()
        corners.append((x, y))
    return corners
