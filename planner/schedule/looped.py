"""In which order do GPipe, 1F1B, interleaved 1F1B and their zero-bubble kin run? Chunk c of rank r is stage c p + r.

One rule makes them all: a rank starts with `warmup` forwards, then alternates forward and backward, then
drains; the weight gradient, where it is split off, follows its input gradient `lag` backwards later.
Orders: Huang 2019 (arXiv 1811.06965), Narayanan 2021 (arXiv 2104.04473), Qi 2023 (arXiv 2401.10241); checked
against the action lists of torch 2.13 and Megatron-LM (tests/schedule). Left out: schedules that fold the model
into a V, and those that adapt to the times.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.schedule.actions import EMPTY, ActionTable, Integers, Pass

Positions = NDArray[np.int64]


def group_order(v: int, m: int, group: int) -> tuple[Integers, Integers]:
    """Chunk and micro-batch of a rank's k-th forward, shape (m v,).

    Micro-batches go in groups of `group` (the last may be smaller): all of a group pass through a chunk before
    the rank turns to the next chunk. Backwards go in the same order with the chunks reversed.
    """
    microbatch = np.arange(m, dtype=np.int32)
    key = np.lexsort(
        (np.tile(microbatch, v), np.repeat(np.arange(v), m), np.tile(microbatch // group, v))
    )  # group, then chunk, then micro-batch
    return (key // m).astype(np.int32), (key % m).astype(np.int32)


def looped_table(
    name: str,
    p: int,
    chunk: Integers,
    microbatch: Integers,
    warmup: Positions,
    lag: Positions | None = None,
    newest_first: bool = False,
) -> ActionTable:
    """The table of a looped schedule, from the order of its forwards and the `warmup` of each rank (p,).

    With `lag` (p,) the backward is split and weight gradient i runs after input gradient i + lag. `newest_first`
    takes the micro-batches of a chunk's backwards in falling order.
    """
    n = chunk.size
    v, m = int(chunk.max()) + 1, int(microbatch.max()) + 1
    k, rank = np.arange(n)[None, :], np.arange(p, dtype=np.int32)[:, None]
    warm = warmup[:, None]
    late = lag[:, None] if lag is not None else np.full((p, 1), n)
    shape = (p, n * (3 if lag is not None else 2))
    kind = np.full(shape, EMPTY, dtype=np.int8)
    stage, mb = np.full(shape, EMPTY, dtype=np.int32), np.full(shape, EMPTY, dtype=np.int32)

    def put(position: Positions, what: Pass, chunks: Integers, microbatches: Integers) -> None:
        kind[rank, position] = what
        stage[rank, position] = chunks * p + rank
        mb[rank, position] = microbatches

    back = (m - 1 - microbatch if newest_first else microbatch).astype(np.int32)
    after = np.maximum(k - warm, 0)  # backwards before forward k
    put(k + after + np.clip(after - late, 0, n), Pass.FORWARD, chunk, microbatch)
    backward = Pass.INPUT_GRADIENT if lag is not None else Pass.BACKWARD
    put(k + np.minimum(n, warm + k + 1) + np.clip(k - late, 0, n), backward, v - 1 - chunk, back)
    if lag is not None:
        turn = k + late
        put(
            k + np.minimum(n, warm + turn + 1) + np.minimum(n, turn + 1),
            Pass.WEIGHT_GRADIENT,
            v - 1 - chunk,
            back,
        )
    return ActionTable(name, p * v, m, kind, stage, mb, np.zeros(shape, dtype=np.bool_))


def one_f_one_b(p: int, m: int) -> ActionTable:
    """1F1B: rank r starts with min(m, p - 1 - r) forwards (Narayanan 2021, section 2.2)."""
    return looped_table("1f1b", p, *group_order(1, m, m), np.minimum(m, p - 1 - np.arange(p)))


def gpipe(p: int, v: int, m: int) -> ActionTable:
    """All forwards, then all backwards; with v > 1 chunk by chunk, backwards newest first (breadth first)."""
    chunk, microbatch = group_order(v, m, m)
    name = "gpipe" if v == 1 else "loopedbfs"
    return looped_table(name, p, chunk, microbatch, np.full(p, m * v), newest_first=v > 1)


def interleaved(p: int, v: int, m: int, group: int, extra_warmup: int = 0) -> ActionTable:
    """Interleaved 1F1B: rank r starts with min(m v, 2 (p - 1 - r) + (v - 1) group) forwards.

    Megatron-LM, core/pipeline_parallel/schedules.py; `extra_warmup` is 1 where it overlaps expert communication.
    """
    warmup = np.minimum(m * v, 2 * (p - 1 - np.arange(p)) + (v - 1) * group + extra_warmup)
    return looped_table("interleaved", p, *group_order(v, m, group), warmup)


def zero_bubble(name: str, p: int, v: int, m: int, group: int, depth: int) -> ActionTable:
    """ZB-H1 (depth 1, v = 1), its interleaved form (depth 1) and ZB-H2 (depth 2, v = 1).

    Rank r starts with depth (p - 1 - r) + (v - 1) group forwards and keeps depth r weight gradients waiting
    (Qi 2023, arXiv 2401.10241, figures 2 and 3).
    """
    rank = np.arange(p)
    warmup = np.minimum(m * v, depth * (p - 1 - rank) + (v - 1) * group)
    return looped_table(name, p, *group_order(v, m, group), warmup, lag=depth * rank)
