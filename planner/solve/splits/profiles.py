"""What do layers, the ends of a pipeline and messages of many configurations cost, as shares of what each may take?

Of configurations of one schedule, one number of ranks, chunks and micro-batches, whose splits differ in nothing else;
so that the least of all is a configuration of none, which no split of theirs beats (`Profiles.least`). Left out: how
layers are dealt (`programme.py`), and what a step takes beside its passes but for a bound (`cost.any_split`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.any_fit import ROUNDING, LeastMemory
from planner.cost.any_split import allowed_seconds
from planner.cost.chunks import hop_seconds
from planner.cost.levels import layer_level
from planner.cost.model import CostModel
from planner.cost.pipeline.step import FORWARD_SHARE
from planner.solve.splits.layers import PAIRED
from planner.spec.config import ConfigTable

Array = NDArray[np.float64]
Index = NDArray[np.intp]

SAVED = 3  # the part of a pass that is less than none
NOTHING = 1e-12


@dataclass(frozen=True)
class Profiles:
    """Of n configurations and K kinds of layers. Times are shares of what the passes and messages of a step may take
    (`allowed` (n,) [s]), memory is a share of what a device has room for beside its fixed part.

    `beside` (n,): what a step takes beside at least [s]; `factor` (n,): a whole step over both [1].
    `passes` (n, K, 4): forward pass, input gradient, weight gradient, and what an overlapped pair saves. `again`
    (n, K): recomputation of a whole layer. `ends` (n, 2, 4): passes of embedding, head and prediction modules. `hops`
    (n, C - 1): messages behind every chunk. `kept`, `kept_again` (n, K): activations of a layer and a micro-batch,
    kept whole and recomputed; `states` (n, K): of a layer; `ends_states` (n, 2): of the ends; `ends_kept` (n,): what
    prediction modules keep of a micro-batch. `recomputed` (n,): layers that chunks recompute at most.
    """

    allowed: Array
    beside: Array
    factor: Array
    passes: Array
    again: Array
    ends: Array
    hops: Array
    kept: Array
    kept_again: Array
    states: Array
    ends_states: Array
    ends_kept: Array
    recomputed: Array

    def __len__(self) -> int:
        return len(self.allowed)

    def take(self, rows: Index) -> Profiles:
        """Some of them."""
        return Profiles(*(getattr(self, field.name)[rows] for field in fields(self)))

    def repeating(self, whole: NDArray[np.bool_]) -> Profiles:
        """The same, of which the `whole` ones (n,) recompute all their layers."""
        again = np.where(whole[:, None], self.again, 0.0)
        passes = self.passes.copy()
        passes[:, :, 1] += again
        kept = np.where(whole[:, None], self.kept_again, self.kept)
        behind = np.where(whole, 0.0, self.ends_kept)
        return replace(self, passes=passes, again=self.again - again, kept=kept, ends_kept=behind)

    def least(self) -> Profiles:
        """One that takes as little as any in everything, and saves and recomputes as many layers as any may."""
        found = {field.name: getattr(self, field.name).min(axis=0, keepdims=True) for field in fields(self)}
        for name in ("passes", "ends"):
            found[name][..., SAVED] = getattr(self, name)[..., SAVED].max(axis=0)
        found["recomputed"] = self.recomputed.max(keepdims=True)
        return Profiles(**found)

    def step_time(self, share: Array) -> Array:
        """Steps whose passes and messages take so much of what is allowed, at least (n,) [s]."""
        return np.asarray(self.factor * (np.maximum(share * self.allowed, 0.0) + self.beside))


@dataclass(frozen=True)
class Recomputed:
    """How many layers chunks recompute: all of them, or up to `most`."""

    most: int
    whole: bool = False


def recomputed_of(choices: Collection[int], layers: int, ranks: int) -> list[Recomputed]:
    """What splits may recompute of `layers` on so many ranks, where each rank recomputes one of some numbers: none and
    all of them apart, where nothing lies between."""
    all_ = -(-layers // ranks)
    if any(0 < count < all_ for count in choices):
        return [Recomputed(layers if max(choices) >= all_ else max(choices))]
    found = [Recomputed(0)] if 0 in choices else []
    return [*found, Recomputed(0, whole=True)] if max(choices) >= all_ else found


def profiles(
    model: CostModel, table: ConfigTable, limit: float, target: float, recomputed: Sequence[Recomputed],
    with_hops: bool = True,
) -> Profiles:  # fmt: skip
    """Configurations that may take `target` a step [s] and `limit` of a device [bytes], whose chunks recompute so many
    layers (n,); of different pipelines only without messages."""
    allowed, beside, factor = allowed_seconds(model, table, target)
    passes, again, ends = _passes(model, table)
    hops = np.zeros((len(table), 0))
    if with_hops:
        hops = np.array([hop_seconds(model.layers, table.row(i)) for i in range(len(table))])
    share = 1.0 / np.maximum(allowed, NOTHING)
    memory = _memory(model, table, limit)
    found = Profiles(
        allowed,
        beside,
        factor,
        passes * share[:, None, None],
        again * share[:, None],
        ends * share[:, None, None],
        hops.reshape(len(table), -1) * share[:, None],
        *memory,
        np.array([float(one.most) for one in recomputed]),
    )
    return found.repeating(np.array([one.whole for one in recomputed]))


def _passes(model: CostModel, table: ConfigTable) -> tuple[Array, Array, Array]:
    """Passes of layers (n, K, 4), recomputation of whole layers (n, K), passes of the ends (n, 2, 4) [s]."""
    spec, level = model.problem.model, layer_level(model.layers, table)
    rows, paired = level.of_row, np.isin(table["schedule"], PAIRED)
    forward, backward = level.forward_time[:, rows], (level.time - level.forward_time)[:, rows]
    weight = np.minimum(level.weight_gradient, level.time - level.forward_time - level.again)[:, rows]
    weight = np.maximum(weight, 0.0)
    saved = np.where(paired, level.saved[:, rows], 0.0)
    passes = np.stack([forward, backward - weight, weight, saved]).transpose(2, 1, 0)
    edges = np.stack([level.embedding, level.head])[:, rows]
    share = FORWARD_SHARE * edges
    ends = np.stack([share, edges - 2 * share, share, 0.0 * share]).transpose(2, 1, 0)
    for kind, count in spec.mtp_kinds:
        ends[:, 1] += count * passes[:, kind]
    return passes, np.maximum(level.time_full - level.time, 0.0)[:, rows].T, ends


def _memory(model: CostModel, table: ConfigTable, limit: float) -> tuple[Array, Array, Array, Array, Array]:
    """Shares of the room beside what is fixed: of activations, states, and of those of the ends (see `Profiles`)."""
    needed = LeastMemory.of(model, table, layer_level(model.layers, table))
    share = 1.0 / np.maximum(limit * (1 + ROUNDING) - needed.fixed, 1.0)
    behind = np.array(model.problem.model.last_stage_layers, dtype=np.float64)
    ends = needed.ends.T.copy()
    ends[:, 1] += needed.states @ behind
    kept, kept_again, states, ends = (
        of * share[:, None] for of in (needed.kept.T, needed.again.T, needed.states, ends)
    )
    return kept, kept_again, states, ends, kept @ behind
