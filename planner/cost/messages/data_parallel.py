"""How often does data parallelism send a stage's gradients and weights in a step, and what of it stays in sight?

Rows are candidates. Left out: which messages these are (`data.py`), and copies in the device's memory beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.pipeline.step import FORWARD_SHARE

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Flags = NDArray[np.bool_]

# Seconds that compute loses to a second of data-parallel communication hidden under it: 0.19 on average on A100, H100,
# MI210 and MI250, 0.4 at most (Lee 2025, arXiv 2507.03114, abstract).
OVERLAP_SLOWDOWN: Final = 0.2


@dataclass(frozen=True)
class DataParallel:
    """What decides how long data parallelism is in sight, one value per row (n,)."""

    scatter: Array  # all of a stage's gradients reduced once [s]
    gather: Array  # all of its weights gathered once [s]
    again: Array  # gathers for the backward pass over those for the forward pass, ZeRO 3 [1]
    zero: Array
    microbatches: Array
    latency: Array  # of all buckets of gradients [s]
    hidden: tuple[Array, Array]  # share of compute that hides what is due once a step, and in every layer [1]
    in_each: Flags  # every micro-batch communicates
    behind: Flags  # updated weights are gathered after the step, see `States.gathers_after_step`
    waits_whole: (
        Flags  # gradients and weights wait whole for the last micro-batch, see `States.accumulates_whole`
    )
    reduces_last: Flags  # gradients alone do, see `States.reduces_last`
    aside: Flags  # gradients are reduced beside compute
    copies: Array  # between the layers' kernels, which hide messages as these do, of a micro-batch [s]
    turns: tuple[
        Array, Array
    ]  # of an interleaved stage: chunks, and micro-batches that each takes before the next [1]
    # (2, n, J) of gathers and of what hides each, where they run a module ahead (`cost.engines.zero3_gathers`)
    shares: Array | None = None

    def take(self, rows: Index) -> DataParallel:
        """Those of some rows."""
        taken: dict[str, Any] = {
            field.name: getattr(self, field.name)[rows]
            for field in fields(self)
            if field.name not in ("hidden", "turns", "shares")
        }
        hidden, turns = ((first[rows], second[rows]) for first, second in (self.hidden, self.turns))
        shares = None if self.shares is None else self.shares[:, rows]
        return replace(self, **taken, hidden=hidden, turns=turns, shares=shares)


@dataclass(frozen=True)
class Rounds:
    """How often in a step a stage's gradients are reduced, and its weights gathered for forward and for backward passes
    (n,) [1]."""

    reductions: Array
    gathers: Array
    regathers: Array


def rounds(x: DataParallel) -> Rounds:
    """What `exposed_data_parallel` counts; see there. Weights that take no time are not gathered."""
    each, m = x.in_each & ~x.waits_whole, x.microbatches
    gathers = np.where(each & ~x.behind, m, 1.0)
    return Rounds(
        reductions=np.where(each & ~x.reduces_last, m, 1.0),
        gathers=gathers * ((x.zero >= 1) & (x.gather > 0)),
        regathers=m * ((x.zero >= 3) & (x.gather > 0)),
    )


def exposed_data_parallel(x: DataParallel, stage_time: Array, layers: Array) -> Array:
    """Seconds of gradient and parameter collectives that compute does not hide (n,) [s]; `stage_time`: of a micro-batch
    of the slowest stage [s], `layers`: of the deepest [1].

    ZeRO 0 and 1: once a step, gradients hidden by the last micro-batch's backward (2/3 of `stage_time`) and parameters
    by the first forward (1/3), each as far as `hidden` says; the last of `layers` pieces never is. An interleaved stage
    takes `turns` (v, p): v chunks, each for p micro-batches before the next, so that a chunk's gradients have the last
    p backward passes of those behind it and its parameters the first p forward passes of those ahead, beside its own.
    ZeRO 2 likewise where the stack accumulates first. Else ZeRO 2 and 3: in every micro-batch, layer by layer: gather
    under forward, gather (ZeRO 3) and scatter under backward, as far as `hidden` says, the first layer's gather never.
    Where updated weights are gathered after the step (`behind`), nothing hides that, and ZeRO 2 gathers once. Where
    gradients wait whole for the last micro-batch (`waits_whole`), they are scattered once, under nothing; weights are
    gathered under the first forward and, as ZeRO 3 frees them after a forward but not after a backward, under every
    backward: m + 1 times in 1F1B and GPipe, the least in others. Where gradients alone wait (`reduces_last`), they are
    scattered under the last micro-batch's backward pass, layer by layer. What is hidden slows down what hides it: a
    second of it costs `OVERLAP_SLOWDOWN` seconds. Reductions that do not run beside compute (`aside`) are hidden by
    nothing. Messages hide under `copies` as under the stage. Plus the `latency` of buckets.
    """
    stage_time = stage_time + x.copies
    between, gather, zero, microbatches = np.where(x.aside, 0.0, x.scatter), x.gather, x.zero, x.microbatches
    scatter = x.scatter - between
    # x seconds under a: e = max(x - a, x / layers) in sight, s (x - e) lost; together max(x - (1 - s) a, least x)
    slower = OVERLAP_SLOWDOWN
    gained, (overlap, in_layers) = 1 - slower, x.hidden
    forward, backward = gained * FORWARD_SHARE * stage_time, gained * (1 - FORWARD_SHARE) * stage_time
    least = gained / layers + slower
    behind = np.where(x.behind, gather, 0.0)
    gather = gather - behind
    once = _once(scatter, overlap * backward, slower, least, *x.turns)
    once = once + np.where(zero >= 1, _once(gather, overlap * forward, slower, least, *x.turns), 0.0)
    again, exposed = gather * (zero >= 3) * x.again, once + behind
    if x.in_each.any():
        ahead = _in_sight(gather, 0.0 * gather, in_layers * forward, slower, x.shares)
        each = np.maximum(ahead, least * gather)
        ahead = _in_sight(again, scatter, in_layers * backward, slower, x.shares)
        backs = np.maximum(ahead, least * scatter + slower * again)
        ahead = _in_sight(again, 0.0 * scatter, in_layers * backward, slower, x.shares)
        others = np.where(
            x.reduces_last, np.maximum(ahead, slower * again), backs
        )  # but the last micro-batch
        exposed = np.where(x.in_each, microbatches * (each + others) + backs - others + behind, exposed)
    if np.any(x.waits_whole):
        regathered = microbatches * np.maximum(again - in_layers * backward, least * again)
        waited = np.maximum(gather - in_layers * forward, least * gather) + regathered + scatter
        exposed = np.where(x.waits_whole, waited, exposed)
    exposed = exposed + between * np.where(x.in_each & ~x.reduces_last, microbatches, 1.0)
    return np.asarray(exposed + x.latency)


def _once(
    seconds: Array, hiding: Array, slower: float, least: Array, v: Array | float, p: Array | float
) -> Array:
    """Seconds of a collective beyond what hides its v parts: 1/v of `hiding` the last one, p/v each of the others."""
    last = np.where(v > 1, ((1 - slower) * seconds - hiding) / v + slower * seconds, 0.0)
    return np.maximum(np.maximum(seconds - hiding * (((v - 1) * p + 1) / v), last), least * seconds)


def _in_sight(gather: Array, scatter: Array, hiding: Array, slower: float, shares: Array | None) -> Array:
    """Seconds of gathers and scatters beyond what hides them; piece by piece, scatters under anything, where `shares`
    (2, n, J) tells which share of the gathers which share of `hiding` hides."""
    if shares is None:
        return gather + scatter - hiding
    gathers, under = shares
    pieces = gathers * gather[:, None] + under * (scatter - hiding)[:, None]
    least = slower * (gathers * gather[:, None] + under * scatter[:, None])
    return np.asarray(np.maximum(pieces, least).sum(axis=1))
