"""How long does a step take: which exposed terms, summed?

`step_time` is by definition the sum of its named terms. Rows are candidates. Left out: input pipeline and
evaluation; checkpoints and failures belong to the whole run.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.spec.config import ConfigTable
from planner.spec.rule import Problem
from planner.spec.stack.time import Communication

Array = NDArray[np.float64]

FORWARD_SHARE: Final = 1 / 3
# Share of nanotron's published multi-node runs in its slow mode, by the most devices (residual study 3.1).
SLOW_MODE_SHARES: Final = ((128, 0.18), (256, 0.42), (math.inf, 0.88))


def exposed_data_parallel(
    scatter: Array, gather: Array, stage_time: Array, microbatches: Array, zero: Array, layers: Array,
    buckets: Array, ranks: Array, comm: Communication, waits_whole: Array | float = 0.0,
    again: Array | float = 1.0, shares: Array | None = None, turns: tuple[Array | float, Array | float] = (1.0, 1.0),
    aside: NDArray[np.bool_] | bool = True, reduces_last: NDArray[np.bool_] | bool = False,
) -> Array:  # fmt: skip
    """Seconds of gradient and parameter collectives that compute does not hide.

    ZeRO 0 and 1: once a step, gradients hidden by the last micro-batch's backward (2/3 of `stage_time`) and
    parameters by the first forward (1/3), each as far as `dp_overlap` says (`sharded_dp_overlap` for ZeRO 1, where
    it is stated); the last of `layers` pieces never is. An interleaved stage takes `turns` (v, p): v chunks, each for
    p micro-batches before the next, so that a chunk's gradients have the last p backward passes of those behind it and
    its parameters the first p forward passes of those ahead, beside its own. ZeRO 2 likewise where the stack
    accumulates first. Else ZeRO 2 and 3: in every micro-batch, layer by layer: gather under forward, gather (ZeRO 3)
    and scatter under backward, as far as `fsdp_overlap` says, the first layer's gather never. Where updated weights are
    gathered after the step (`gathers_after_step`), nothing hides that, and ZeRO 2 gathers once. Where gradients wait
    whole for the last micro-batch (`waits_whole`), they are scattered once, under nothing; weights are gathered under
    the first forward and, as ZeRO 3 frees them after a forward but not after a backward, under every backward: m + 1
    times in 1F1B and GPipe, the least in others. Where gradients alone wait (`reduces_last`), they are scattered under
    the last micro-batch's backward pass, layer by layer. What is hidden slows down what hides it: a second of it costs
    `overlap_slowdown` seconds. Reductions that do not run beside compute (`aside`) are hidden by nothing. Plus
    `bucket_latency` per bucket and rank.
    `scatter`, `gather`: seconds for all of a stage's gradients, parameters. ZeRO 3: `again`, gathers for the backward
    pass over those for the forward pass; `shares` (2, n, J), of gathers and of what hides each, where they run a module
    ahead (`cost.engines.zero3_gathers`).
    """
    between = np.where(aside, 0.0, scatter)
    scatter = scatter - between
    # x seconds under a: e = max(x - a, x / layers) in sight, s (x - e) lost; together max(x - (1 - s) a, least x)
    slower = comm.overlap_slowdown
    gained = 1 - slower
    forward, backward = gained * FORWARD_SHARE * stage_time, gained * (1 - FORWARD_SHARE) * stage_time
    least = gained / layers + slower
    sharded = comm.dp_overlap if comm.sharded_dp_overlap is None else comm.sharded_dp_overlap
    overlap = np.where(zero >= 1, sharded, comm.dp_overlap)
    behind = np.where((zero < 3) & (zero >= 1), gather, 0.0) * comm.gathers_after_step
    gather = gather - behind
    once = _once(scatter, overlap * backward, slower, least, *turns)
    once = once + np.where(zero >= 1, _once(gather, overlap * forward, slower, least, *turns), 0.0)
    again, exposed = gather * (zero >= 3) * again, once + behind
    in_each = zero >= (2 if comm.reduce_per_microbatch else 3)
    if in_each.any():
        ahead = _in_sight(gather, 0.0 * gather, comm.fsdp_overlap * forward, slower, shares)
        each = np.maximum(ahead, least * gather)
        ahead = _in_sight(again, scatter, comm.fsdp_overlap * backward, slower, shares)
        backs = np.maximum(ahead, least * scatter + slower * again)
        ahead = _in_sight(again, 0.0 * scatter, comm.fsdp_overlap * backward, slower, shares)
        others = np.where(reduces_last, np.maximum(ahead, slower * again), backs)  # but the last micro-batch
        exposed = np.where(in_each, microbatches * (each + others) + backs - others + behind, exposed)
    if np.any(waits_whole):
        regathered = microbatches * np.maximum(again - comm.fsdp_overlap * backward, least * again)
        waited = np.maximum(gather - comm.fsdp_overlap * forward, least * gather) + regathered + scatter
        exposed = np.where(waits_whole, waited, exposed)
    exposed = exposed + between * np.where(in_each & ~np.asarray(reduces_last), microbatches, 1.0)
    return np.where(ranks > 1, exposed + comm.bucket_latency * buckets * (ranks - 1), 0.0)


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


def slow_mode_time(microbatches: Array, stages: Array, slow_message: float) -> Array:
    """Seconds that a step loses in a stack's slow mode: every message of a stage takes `slow_message` [s].

    (m + (p - 1)/2) x min(2 (p - 1), 4) x slow_message: a stage between two others sends and receives twice a
    micro-batch. Source: nanotron's runs, +0.54 s a slot at p = 2 and +1.05 s at p >= 4 whatever the model, tensor
    parallelism or micro-batch (sd 0.10 s, 257 runs): all that filled the device, and a share that grows with the
    network. Without a pipeline it is not known.
    """
    messages = np.minimum(2.0 * (stages - 1.0), 4.0)
    return slow_message * messages * (microbatches + (stages - 1.0) / 2.0)


def slow_mode_share(devices: int) -> float:
    """Share of runs on so many devices that a stack's slow mode caught, where it has one."""
    return next(share for most, share in SLOW_MODE_SHARES if devices <= most)


def chance_of_full_memory(device: Array, capacity: float, error: float) -> Array:
    """Chance that a device fills up, its predicted memory being right to within `error` [1].

    Uniform between device x (1 - error) and (1 + error): 0 where the verdict is "fits", 1 where it is "does not fit",
    the same band as the borderline between them.
    """
    spread = 2.0 * max(error, 1e-6)
    return np.clip(0.5 + (device / capacity - 1.0) / spread, 0.0, 1.0)


def straggling(subtotal: Array, nodes: float, comm: Communication) -> Array:
    """Seconds lost to the slowest of many nodes: a fixed share of the step per doubling of nodes.

    0.9 % per doubling fitted on Megatron runs; 0 to 5 % from the smallest run to 2,048 GPUs measured in bf16.
    """
    return subtotal * comm.slowdown_per_doubling * np.log2(max(nodes, 1.0))


def measured_factor(problem: Problem, table: ConfigTable, least: bool = False) -> Array:
    """What the user's own runs say of a step, each as far as its configuration is alike: factors (n,) [1].

    f^k of the run that is most alike, k its likeness, 0 for runs of another model, job or axes. `least`: of the axes
    that `table` has, a factor that no completion of a row falls below.
    """
    found, nearest = np.zeros(len(table)), np.zeros(len(table))
    for run in problem.stack.measured:
        if run.of_job(problem.model, problem.job):
            likeness = run.likeness(table.columns)
            own = likeness * math.log(run.factor)
            found = np.minimum(found, own) if least else np.where(likeness > nearest, own, found)
            nearest = np.maximum(nearest, likeness)
    return np.exp(found)
