"""Where does a climb over configurations and layouts end that begins at one of them?

Each round costs all neighbours of the best: other degrees together with another micro-batch, vpp or recomputation, each
under a few layouts; then layers moved between any two chunks, and between two pairs of them. Left out: proofs; a climb
ends where no neighbour is faster.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.exhaustive import ROUNDING, Hunt, Layout, Oracle, Part
from benchmarks.judged import CHUNKS, is_held
from benchmarks.legal_space import any_layout, divisors
from planner.cost.model import CostModel
from planner.frameworks import explicit_splits
from planner.space.axes import modules_tried, stack_modules
from planner.space.framework_rules import all_rules_for
from planner.space.legality import legal_rows
from planner.spec.config import (
    CUDA_GRAPH_MODULES,
    SCHEDULE_LABELS,
    ConfigTable,
    Mask,
    ParallelConfig,
    Recompute,
    Schedule,
)
from planner.spec.planfile import EMPTY_CHUNKS
from planner.spec.rule import Problem

ROUNDS: Final = 40
MOST_LAYOUTS: Final = 2_000  # of one round
DEGREES: Final = ("tp", "cp", "pp", "ep", "etp")
PRIMES: Final = (2, 3, 5, 7)
DRAWS: Final = 2_000  # random configurations, of which a start is one


class Climber:
    """Climbs within a restriction, `held` axes at their values, in `allowed` bytes a device."""

    def __init__(
        self, model: CostModel, restrict: Mapping[str, tuple[int, ...]], held: Mapping[str, tuple[int, ...]],
        allowed: float,
    ) -> None:  # fmt: skip
        self.model, self.problem, self.restrict, self.held = model, model.problem, restrict, held
        self.rules = all_rules_for(self.problem.stack.framework)
        self.explicit = explicit_splits(self.problem.stack.framework)
        self.oracle = Oracle(model, allowed, lambda config, layout, seconds: "")

    def climb(self, config: ParallelConfig, layout: Layout) -> Hunt:
        """The best that rounds of neighbours lead to."""
        here = self.oracle.best(self._parts([config], layout), Hunt(np.inf))
        for _ in range(ROUNDS):
            if here.config is None:
                return here
            known = replace(here, least=here.step * (1 - ROUNDING), config=None, refused=[])
            found = self.oracle.best(
                self._parts(neighbours(here.config, self.problem, self.restrict), here.layout), known
            )
            if found.config is None and here.layout:
                found = self.oracle.best([self._moved(here.config, here.layout)], known)
            if found.config is None:
                return replace(here, costed=found.costed)
            here = found
        return here

    def legal(self, table: ConfigTable, problem: Problem) -> Mask:
        """Which configurations break no rule and are within the restriction."""
        legal = np.ones(len(table), dtype=np.bool_)
        for rule in self.rules:
            legal &= rule.legal(table.columns, problem)
        for axis, values in self.restrict.items():
            legal &= np.isin(table[axis], values) | ((axis == "cp_kind") & (table["cp"] == 1))
        for axis, values in self.held.items():
            if axis == CHUNKS:  # which layouts are of (`_parts`)
                continue
            legal &= is_held(table, axis, values, problem.model.num_layers)
        return legal

    def _parts(self, configs: Sequence[ParallelConfig], layout: Layout) -> list[Part]:
        """Configurations as the stack deals them, and of each pp and vpp under a few layouts."""
        table = ConfigTable.of(list(dict.fromkeys(configs)))
        parts = [Part(table.take(self.legal(table, self.problem)))]
        layers = self.problem.model.num_layers
        for pp, vpp in sorted(set(zip(table["pp"].tolist(), table["vpp"].tolist(), strict=True))):
            if self.explicit and 1 < pp * vpp <= layers + EMPTY_CHUNKS and pp > 1:
                some = table.take((table["pp"] == pp) & (table["vpp"] == vpp))
                some = some.take(self.legal(some, any_layout(self.problem, pp * vpp)))
                layouts = usual_layouts(layers, pp * vpp)
                if len(layout) == pp * vpp:
                    layouts = np.unique(np.vstack([layouts, np.array(layout, np.int32)]), axis=0)
                if len(some) and (
                    CHUNKS not in self.held
                    or legal_rows(self.problem, self.rules, ("pp", "vpp"), [(pp, vpp)])
                ):
                    parts.append(Part.under(self.model, some, layouts))
        return parts

    def _moved(self, config: ParallelConfig, layout: Layout) -> Part:
        return Part.under(self.model, ConfigTable.of([config]), moved(layout))


def neighbours(
    config: ParallelConfig, problem: Problem, restrict: Mapping[str, tuple[int, ...]]
) -> list[ParallelConfig]:
    """Configurations that differ in one other choice, or in where a prime factor of a degree is together with the
    micro-batch, the chunks of a rank, and what is sharded or recomputed."""
    batch, layers = problem.job.global_batch, problem.model.num_layers
    found = _others(config, problem)
    limits = problem.stack.limits
    zeros = sorted({config.zero, *limits.zero})
    kinds = {Schedule(SCHEDULE_LABELS.index(name)) for name in limits.schedules}
    for degrees in (config, *_degrees(config, problem.model.is_moe)):
        if any(
            getattr(degrees, axis) not in restrict.get(axis, (getattr(degrees, axis),)) for axis in DEGREES
        ):
            continue
        most = -(-layers // degrees.pp)
        few = [
            replace(degrees, recompute_layers=min(degrees.recompute_layers, most)),
            *_few(degrees, most, zeros),
        ]
        sizes = [s for s in divisors(max(batch // degrees.dp, 1)) if s <= 4 * config.micro_batch]
        chunks = [
            way for way in _chunks(degrees, layers, kinds) if way["vpp"] in restrict.get("vpp", (way["vpp"],))
        ]
        for one, size, way in product(few, sizes, chunks):
            found.append(
                replace(one, micro_batch=size, num_microbatches=max(batch // (one.dp * size), 1), **way)
            )
    return found


def _few(config: ParallelConfig, most: int, zeros: Sequence[int]) -> list[ParallelConfig]:
    """What goes with other degrees: sharding, and nothing or everything recomputed."""
    plain = {"recompute": 0, "recompute_layers": 0, "recompute_modules": 0}
    whole = {**plain, "recompute": int(Recompute.FULL), "recompute_layers": most}
    ways = [{"zero": zero, **kind} for zero in zeros for kind in ({}, plain, whole)]
    return [replace(config, **way) for way in ways]


def _degrees(config: ParallelConfig, experts: bool) -> list[ParallelConfig]:
    """A prime factor moved from one degree to another, or taken into or out of an expert's degree."""
    found = []
    for prime in PRIMES:
        for a, b in permutations(("tp", "cp", "pp", "dp"), 2):
            if getattr(config, b) % prime == 0:
                found.append(
                    replace(config, **{a: getattr(config, a) * prime, b: getattr(config, b) // prime})
                )
        for axis in ("ep", "etp") if experts else ():
            value = getattr(config, axis)
            found.append(replace(config, **{axis: value * prime}))
            if value % prime == 0:
                found.append(replace(config, **{axis: value // prime}))
    found = [replace(one, sp=int(one.tp > 1), zero=one.zero if one.dp * one.cp > 1 else 0) for one in found]
    return [*found, *(replace(one, etp=one.tp) for one in found if experts)]


def _chunks(config: ParallelConfig, layers: int, kinds: Collection[Schedule]) -> list[dict[str, int]]:
    """Other numbers of chunks, with the schedules that run them."""
    if config.pp == 1:
        return [{"vpp": 1, "schedule": int(Schedule.ONE_F_ONE_B)}]
    counts = {config.vpp, config.vpp - 1, config.vpp + 1, 2 * config.vpp, config.vpp // 2, 1, 2}
    return [
        {"vpp": vpp, "schedule": int(kind)}
        for vpp in sorted(counts)
        if 1 <= vpp <= (layers + EMPTY_CHUNKS) // config.pp
        for kind in sorted(kinds)
        if kind.runs_chunks(vpp)
    ]


def _others(config: ParallelConfig, problem: Problem) -> list[ParallelConfig]:
    """One choice changed that is no degree: what is sharded, recomputed, exchanged, offloaded or captured."""
    ranks, most = config.dp * config.cp, -(-problem.model.num_layers // config.pp)
    ways: list[dict[str, int]] = [{"zero": zero} for zero in range(4)]
    ways += [{"hsdp": group} for group in (0, *divisors(ranks)[:-1])]
    ways += [{"cp_kind": kind} for kind in range(3) if config.cp > 1]
    ways += [{"sp": 1 - config.sp}, {"recompute": 0, "recompute_layers": 0, "recompute_modules": 0}]
    masks = {*modules_tried(problem), stack_modules(problem)} - {0}
    ways += [
        {"recompute": int(Recompute.SELECTIVE), "recompute_layers": 0, "recompute_modules": m} for m in masks
    ]
    count = config.recompute_layers
    counts = {1, config.vpp, count - 1, count + 1, count - config.vpp, count + config.vpp, most // 2, most}
    ways += [
        {"recompute": int(Recompute.FULL), "recompute_layers": n, "recompute_modules": 0}
        for n in counts
        if 1 <= n <= most
    ]
    ways += [{"offload": bits} for bits in range(8)]
    graphs = product(range(4), range(2 ** len(CUDA_GRAPH_MODULES)))
    ways += [{"cuda_graph_impl": impl, "cuda_graph_modules": mask} for impl, mask in graphs]
    return [replace(config, **way) for way in ways]


def usual_layouts(layers: int, chunks: int) -> NDArray[np.int32]:
    """Even layouts, some with ends that hold fewer layers or none, and the rest of a division at either end or amid."""
    found = set()
    for first, last in product((1.0, 0.5, 0.0), repeat=2):
        weight = np.ones(chunks)
        weight[0], weight[-1] = first, last
        share = layers * weight / max(weight.sum(), 1e-9)
        base = np.floor(share).astype(int)
        inner = [i for i in range(chunks) if weight[i] == 1.0] or [0]
        for order in (inner, inner[::-1], sorted(inner, key=lambda i: abs(i - chunks / 2))):
            dealt = base.copy()
            for i in range(layers - int(base.sum())):
                dealt[order[i % len(order)]] += 1
            found.add(tuple(dealt.tolist()))
    return np.array(sorted(found), dtype=np.int32)


def moved(layout: Layout) -> NDArray[np.int32]:
    """Layouts with a layer moved between two chunks, two, or between two pairs of them; of many chunks, fewer."""
    here = np.array(layout, dtype=np.int32)
    steps = []
    for a, b in permutations(range(len(layout)), 2):
        step = np.zeros_like(here)
        step[a], step[b] = -1, 1
        steps.append(step)
    single = np.array(steps)
    near = np.array([step for step in steps if np.diff(np.flatnonzero(step))[0] == 1 or step[0] or step[-1]])
    pairs = single if len(single) ** 2 <= 4 * MOST_LAYOUTS else near
    double = (pairs[:, None] + pairs[None]).reshape(-1, len(here))
    if len(double) > 4 * MOST_LAYOUTS:
        double = 2 * single
    found = np.unique(here + np.vstack([single, double]), axis=0)
    found = found[(found >= 0).all(axis=1)]
    return found[:: -(-len(found) // MOST_LAYOUTS)] if len(found) > 2 * MOST_LAYOUTS else found


def random_start(climber: Climber, rng: random.Random) -> tuple[ParallelConfig, Layout] | None:
    """A random legal configuration as the stack deals it; None where none of many is legal."""
    problem = climber.problem
    devices, batch, layers = problem.cluster.num_devices, problem.job.global_batch, problem.model.num_layers
    drawn = []
    for _ in range(DRAWS):
        tp = rng.choice([d for d in divisors(devices) if d <= 16])
        pp = rng.choice([d for d in divisors(devices // tp) if d <= layers])
        cp = rng.choice([1, 1, 1, 2]) if devices // tp // pp % 2 == 0 else 1
        dp = devices // (tp * pp * cp)
        size = rng.choice([s for s in divisors(max(batch // dp, 1)) if s <= 4])
        vpp = rng.choice(range(1, max(layers // pp, 1) + 1)) if pp > 1 and rng.random() < 0.5 else 1
        kinds = [kind for kind in Schedule if kind.runs_chunks(vpp)] if pp > 1 else [Schedule.ONE_F_ONE_B]
        drawn.append(
            ParallelConfig(
                tp=tp, pp=pp, cp=cp, dp=dp, vpp=vpp, ep=rng.choice((1, 2, 4, 8, 16)), etp=rng.choice((1, tp)),
                micro_batch=size, num_microbatches=max(batch // (dp * size), 1), sp=int(tp > 1),
                zero=rng.choice((0, 1, 2, 3)), schedule=int(rng.choice(kinds)), recompute=int(Recompute.FULL),
                recompute_layers=-(-layers // pp),
            )
        )  # fmt: skip
    table = ConfigTable.of(drawn)
    table = table.take(climber.legal(table, problem))
    table = table.take(climber.model.evaluate(table).device_memory <= climber.oracle.allowed)
    return (table.row(rng.randrange(len(table))), ()) if len(table) else None
