"""How are experts replicated and placed on ranks so that the busiest rank has as little to do as can be?

The problem that DeepSeek's EPLB states (github.com/deepseek-ai/EPLB) without its hierarchy: every rank holds equally
many replicas, a replica takes an equal share of its expert's load. Steps:
  1. one replica after another to the expert with the largest load per replica: no other counts have a smaller largest
     share (they are optimal for that alone, not for the packing that follows)
  2. replicas to ranks, equally many each (`_pack`)
`_pack` keeps the better of greedy packing with exchanges and CP-SAT, which starts from it. Left out: groups of experts
that stay on a node, the traffic that moving replicas takes, and loads that change from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError

Array = NDArray[np.float64]
Index = NDArray[np.intp]

SCALE = 10**6  # of the mean load of a bin: CP-SAT counts in whole numbers
CLOSE_ENOUGH = 5e-4  # of the mean: no solver is asked to gain less
MOST_VARIABLES = 40_000  # of a packing that CP-SAT is given
EFFORT = 0.3  # deterministic time of one CP-SAT packing, about as many seconds


@dataclass(frozen=True)
class Placement:
    """`replicas`: of every expert. `experts`: those of every rank, one entry per replica. `loads`: of every rank, in
    shares of all tokens. `imbalance`: largest over mean load of a rank [1]. `bound`: what no placement of these
    replicas can beat [1]."""

    replicas: tuple[int, ...]
    experts: tuple[tuple[int, ...], ...]
    loads: tuple[float, ...]
    imbalance: float
    bound: float


def balance_experts(
    loads: Sequence[float] | Array, replicas: int, ranks: int, effort: float = EFFORT
) -> Placement:
    """Replicate experts `replicas` times in all and place them on `ranks` ranks.

    `loads`: of every expert, in any unit. Raises `InputError` where the counts do not divide.
    """
    share = np.asarray(loads, dtype=np.float64)
    _check(share, replicas, ranks)
    share = share / share.sum()
    counts = _replicate(share, replicas)
    items = np.repeat(np.arange(len(share)), counts)
    at = _pack(share[items] / counts[items], ranks, effort)
    on_rank: list[list[int]] = [[] for _ in range(ranks)]
    for item, rank in zip(items.tolist(), at.tolist(), strict=True):
        on_rank[rank].append(item)
    load = [float((share[held] / counts[held]).sum()) for held in on_rank]
    return Placement(
        replicas=tuple(counts.tolist()),
        experts=tuple(tuple(sorted(held)) for held in on_rank),
        loads=tuple(load),
        imbalance=max(load) * ranks,
        bound=max(1.0 / ranks, float((share / counts).max())) * ranks,
    )


def _check(share: Array, replicas: int, ranks: int) -> None:
    if not len(share) or not np.isfinite(share).all() or (share < 0).any() or not share.sum() > 0:
        raise InputError("expert loads must be numbers, none below 0 and one above", str(share.tolist())[:80])
    if replicas < len(share):
        raise InputError("there must be a replica of every expert", f"{replicas} of {len(share)}")
    if replicas % ranks:
        raise InputError("ranks must divide the replicas", f"{replicas} replicas, {ranks} ranks")


def _replicate(share: Array, replicas: int) -> NDArray[np.int64]:
    """How many replicas each expert gets, one at least, so that the largest share of a replica is least."""
    counts = np.ones(len(share), dtype=np.int64)
    for _ in range(replicas - len(share)):
        counts[int(np.argmax(share / counts))] += 1
    return counts


def _pack(items: Array, bins: int, effort: float) -> Index:
    """The bin of every item, equally many in each, with the largest sum least."""
    if bins == 1:
        return np.zeros(len(items), dtype=np.intp)
    at = _exchange(items, _greedy(items, bins), bins)
    largest = float(np.bincount(at, weights=items, minlength=bins).max())
    least = max(float(items.sum()) / bins, float(items.max(initial=0.0)))
    worth = largest - least > CLOSE_ENOUGH * items.sum() / bins
    if not worth or len(items) * bins > MOST_VARIABLES or effort <= 0:
        return at
    found = _solve(items, bins, at, effort)
    better = np.bincount(found, weights=items, minlength=bins).max() < largest - 1e-12
    return found if better else at


def _greedy(items: Array, bins: int) -> Index:
    """Largest item first, into the bin with the least sum that is not full (Graham 1969, with full bins)."""
    room, total, at = [len(items) // bins] * bins, [0.0] * bins, np.zeros(len(items), dtype=np.intp)
    for item in np.argsort(-items, kind="stable").tolist():
        bin_ = min((b for b in range(bins) if room[b]), key=lambda b: (total[b], b))
        at[item] = bin_
        room[bin_] -= 1
        total[bin_] += float(items[item])
    return at


def _exchange(items: Array, at: Index, bins: int) -> Index:
    """Swap an item of the fullest bin with one of another, the swap that helps most, until none does."""
    at, total = at.copy(), np.bincount(at, weights=items, minlength=bins)
    for _ in range(10 * len(items)):
        full = int(total.argmax())
        inside, outside = np.flatnonzero(at == full), np.flatnonzero(at != full)
        less = items[inside][:, None] - items[outside]
        largest = np.maximum(total[full] - less, total[at[outside]] + less)
        i, j = np.unravel_index(int(largest.argmin()), largest.shape)
        if largest[i, j] >= total[full] - 1e-15:
            break
        one, other = inside[i], outside[j]
        total[full] -= less[i, j]
        total[at[other]] += less[i, j]
        at[one], at[other] = at[other], at[one]
    return at


def _solve(items: Array, bins: int, start: Index, effort: float) -> Index:
    """The packing that CP-SAT finds from `start`; equal items are one kind, of which each bin takes a number."""
    from planner.solve.cp_sat import cp_model

    mean = float(items.sum()) / bins
    values, kind = np.unique(items, return_inverse=True)
    amount = np.bincount(kind)
    weight = np.rint(values / mean * SCALE).astype(np.int64).tolist()
    model = cp_model.CpModel()
    first = np.zeros((len(values), bins), dtype=np.int64)
    np.add.at(first, (kind, start), 1)
    taken = [
        [model.new_int_var(0, int(amount[k]), f"take_{k}_{b}") for b in range(bins)]
        for k in range(len(values))
    ]
    top = model.new_int_var(SCALE, int((first.T @ np.array(weight)).max()), "top")
    for k, row in enumerate(taken):
        model.add(sum(row) == int(amount[k]))
        for b, variable in enumerate(row):
            model.add_hint(variable, int(first[k, b]))
    for b in range(bins):
        model.add(sum(row[b] for row in taken) == len(items) // bins)
        model.add(sum(w * row[b] for w, row in zip(weight, taken, strict=True)) <= top)
    model.minimize(top)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # the same answer every time
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return start
    at = np.zeros(len(items), dtype=np.intp)
    for k, row in enumerate(taken):
        where = [b for b, variable in enumerate(row) for _ in range(int(solver.value(variable)))]
        at[np.flatnonzero(kind == k)] = where
    return at
