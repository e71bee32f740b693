"""How little can a looped pipeline take whose chunks differ, without simulating it?

Each length is that of one path through the passes of a schedule, so that no simulation is shorter: the way to a rank,
its work, the way from it. A form with the mean of a rank's chunks, as that of equal stages (Narayanan 2021,
arXiv 2104.04473, eq. 2), is none: a pipeline fills and drains through its first chunks, which hold fewer layers where
these do not divide evenly, up to 11 % of a step. Left out: paths that stay on several ranks, which are longer where
chunks differ in more than one round.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.spec.config import Schedule

Floats = NDArray[np.float64]
LOOPED = (Schedule.INTERLEAVED, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2)


def looped_path(
    schedule: Schedule, forward: Floats, backward: Floats, weight: Floats, way: Floats, m: Floats
) -> Floats:
    """A makespan that a schedule of `LOOPED` does not beat, (n,) [s].

    `forward`, `backward`, `weight` (n, v, p): seconds of the passes of the j-th chunk of rank r; weight gradients are
    part of the backwards but in ZB-H1 and ZB-H2. `way` (n,): of all messages from the first chunk to the last. `m`
    (n,): micro-batches, divisible by p where v > 1 and the schedule is not GPipe.
    A rank is reached by the forwards of the ranks before it, which leaves all its work, or by the first
    micro-batch's way through all chunks and back to it, by when it has run its warm-up and one forward more
    (`schedule.looped`). It is left by the backwards of the ranks before it, or, weight gradients being part of them, by
    the same way in the reverse order. On that way a micro-batch may wait on one rank for its group, in all rounds but
    the last. Exact for equal chunks and free messages of interleaved and of GPipe's pipelines, of ZB-H1's with v = 1
    where w <= b <= f + w; for equal messages of interleaved ones too.
    """
    v, p = forward.shape[1:]
    rank, start = np.arange(p), np.arange(v)[:, None] * np.ones(p)
    count = np.asarray(m, dtype=np.float64)[:, None]
    gpipe, depth = schedule is Schedule.GPIPE, {Schedule.ZB_H1: 1, Schedule.ZB_H2: 2}.get(schedule, 0)
    # of ZB-H2's one chunk all micro-batches are a group, as of GPipe's
    group = count if gpipe else np.full_like(count, p)
    warm = np.minimum(count * v, (v - 1) * group + (depth or 2) * (p - 1 - rank) + 1.0)
    if gpipe:
        warm = np.broadcast_to(count * v, warm.shape)
    each = group[:, None]
    # forwards of the warm-up in every round, of the first group and of the second: (n, v, p)
    in_round = np.clip(warm[:, None] - start * each, 0.0, each)
    if not gpipe and v > 1:
        in_round = in_round + np.clip(warm[:, None] - (v + start) * each, 0.0, each)
    elif not gpipe:
        in_round = warm[:, None]
    into, up, spent = _way(forward, in_round, way, group)
    out, down, unspent = _way(backward, in_round, way, group)
    up = up[:, None] + _beyond(backward[:, -1]) - spent
    work = count * (forward + backward + weight).sum(axis=1)
    if depth:
        left = np.minimum(depth * rank + 1.0, count) * weight[:, 0]  # after the last of the others
        leaving = np.maximum(0.0, out - left + weight[:, :1, 0])
        return np.asarray((work + np.maximum(into, up) + leaving).max(axis=1))
    down = down[:, None] + _beyond(forward[:, -1]) - unspent
    between = np.where(warm < count * v, up + down, -np.inf)  # a forward is left after the first backward
    found = (work + np.maximum(np.maximum(into, up) + out, np.maximum(into + down, between))).max(axis=1)
    if gpipe:  # one micro-batch's way, and on it the wait of all others for a chunk, forth and back
        both = [side.sum(axis=(1, 2)) + (m - 1) * side.max(axis=(1, 2)) + way for side in (forward, backward)]
        found = np.maximum(found, both[0] + both[1])
    return np.asarray(found)


def _way(side: Floats, in_round: Floats, way: Floats, group: Floats) -> tuple[Floats, Floats, Floats]:
    """Of forwards, or of backwards in the reverse order: the way to every rank in the first round (n, p), the longest
    through all chunks (n,), and what of it a rank has run itself when that comes back to it (n, p)."""
    first, last = side[:, 0], side[:, -1]
    into = np.cumsum(first, axis=1) - first
    waiting = into + group * side[:, :-1].sum(axis=1) + _beyond(last) + last
    through = np.maximum(side.sum(axis=(1, 2)) + way, waiting.max(axis=1))
    return into, through, (in_round * side).sum(axis=1)


def _beyond(side: Floats) -> Floats:
    """Sum over the ranks behind each, (n, p)."""
    return np.asarray(np.flip(np.cumsum(np.flip(side, 1), axis=1), 1) - side)
