"""Why this configuration and not another? What stopped the faster ones, what a change brings, why not a named one.

All are costed by the equations of the search. Left out: splits other than the stack's own, and changes of the model
or of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import PipelineSimulator
from planner.cost.host_memory import on_host
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly
from planner.solve.refine import FINALISTS, refine
from planner.solve.search import SearchResult, search
from planner.space.axes import Restriction, divisors, stack_modules
from planner.space.enumerate import Enumeration, enumerate_configs
from planner.space.legality import are_legal, explain_config
from planner.space.pipeline_rules import SCHEDULE_RULES, STAGE_RULES
from planner.spec.config import (
    ConfigTable,
    ParallelConfig,
    Recompute,
    Schedule,
    default_schedule,
    graphs_text,
    offload_text,
    selective_text,
)
from planner.spec.findings import Finding, Value, finding
from planner.spec.job import Job
from planner.spec.rule import Problem, Rule, Violation

# Rules without which a configuration does another job, cannot be dealt to stages, or has a schedule without an order
# of passes: its time would say nothing.
NOT_COSTED: Final = frozenset({
    "world-size", "batch-dp", "batch", "expert-grid", "layers-pp", "vpp-pp", "stages-filled", "interleaving-remainder",
    "schedule-chunks", "schedule-microbatches",
})  # fmt: skip
CHUNK_RULES: Final = (
    "vpp-supported",
    "layers-pp",
    "nearly-equal-chunks",
    "stages-filled",
    "interleaving-remainder",
)
MEMORY_WALLS: Final = 3  # of the whole space, and of the neighbours, that would be faster but do not fit
RULE_WALLS: Final = 5
WORTH_SAYING: Final = 0.001  # share of the step
Changes = Iterator[tuple[Finding, ParallelConfig]]


@dataclass(frozen=True)
class Alternative:
    """A configuration beside the planned one. `step_time` [s], `memory` [bytes] and `terms` [s] are absent where a
    broken rule leaves nothing to cost; `tokens`: of a step. `broken`: the rules it breaks."""

    change: Finding
    config: ParallelConfig
    step_time: float | None
    memory: float | None
    terms: dict[str, float]
    tokens: float
    fits: bool
    broken: tuple[Violation, ...] = ()

    @property
    def rate(self) -> float | None:
        """Tokens per second of all devices [1/s]."""
        return None if self.step_time is None else self.tokens / self.step_time


@dataclass(frozen=True)
class Weigher:
    """Costs configurations of one problem as the plan does."""

    model: CostModel
    simulator: PipelineSimulator
    rules: tuple[Rule, ...]
    limit: float

    @property
    def problem(self) -> Problem:
        """What is given."""
        return self.model.problem

    def weigh(self, named: Sequence[tuple[Finding, ParallelConfig]]) -> list[Alternative]:
        """Cost named configurations, pipelines simulated; those that break a rule of the job are only explained."""
        if not named:
            return []
        broken = [explain_config(config, self.problem, self.rules) for _, config in named]
        costed = np.flatnonzero(self._has_time(ConfigTable.of([config for _, config in named]))).tolist()
        tokens = self.problem.job.tokens_per_step
        found = [
            Alternative(change, config, None, None, {}, tokens, False, rules)
            for (change, config), rules in zip(named, broken, strict=True)
        ]
        if not costed:
            return found
        table = ConfigTable.of([named[row][1] for row in costed])
        cost = evaluate_exactly(self.model, table, self.simulator)
        assert cost.detail is not None, "costed with keep_terms"
        hosted = on_host(self.model, table)
        for i, row in enumerate(costed):
            memory = float(cost.device_memory[i])
            found[row] = replace(
                found[row],
                step_time=float(cost.step_time[i]),
                memory=memory,
                terms={name: float(values[i]) for name, values in cost.detail.time.items()},
                fits=memory <= self.limit and bool(hosted[i]),
            )
        return found

    def _has_time(self, table: ConfigTable) -> NDArray[np.bool_]:
        """Do the rows keep the rules without which there is nothing to cost? Also those that another one implies."""
        needed = [rule.legal(table.columns, self.problem) for rule in self.rules if rule.id in NOT_COSTED]
        return np.all(needed, axis=0)

    def too_large(self, configs: Sequence[ParallelConfig], limit: float) -> list[ParallelConfig]:
        """Legal ones whose step takes less than `limit` seconds, those that are too large by least first."""
        table = ConfigTable.of(configs)
        rows = np.flatnonzero(are_legal(table, self.problem, self.rules))
        cost = self.model.evaluate(table.take(rows))
        order = np.argsort(cost.device_memory, kind="stable")
        large = (cost.device_memory > self.limit) & (cost.step_time < limit)
        return [configs[rows[i]] for i in order if large[i]]

    def ruled_out(self, configs: Sequence[ParallelConfig], limit: float) -> list[ParallelConfig]:
        """Of each set of broken rules the fastest, where its step takes less than `limit` seconds by closed forms."""
        table = ConfigTable.of(configs)
        broken = {rule.id: ~rule.legal(table.columns, self.problem) for rule in self.rules}
        rows = np.flatnonzero(self._has_time(table) & np.any(list(broken.values()), axis=0))
        if not len(rows):
            return []
        time = self.model.evaluate(table.take(rows)).step_time
        found: dict[tuple[str, ...], ParallelConfig] = {}
        for i in np.argsort(time, kind="stable"):
            if time[i] < limit:
                key = tuple(name for name, mask in broken.items() if mask[rows[i]])
                found.setdefault(key, configs[rows[i]])
        return list(found.values())


def changes(config: ParallelConfig, problem: Problem) -> Changes:
    """Single changes of a configuration: a factor moved between two degrees, or one other axis."""
    factors = [f for f in (2, 3, 5, 7) if problem.cluster.num_devices % f == 0]
    degrees = ("tp", "cp", "pp", "dp")
    for wide in degrees:
        for narrow in degrees:
            factor = next((f for f in factors if getattr(config, narrow) % f == 0), None)
            if wide == narrow or factor is None:
                continue
            moved = {wide: getattr(config, wide) * factor, narrow: getattr(config, narrow) // factor}
            changed = completed(replace(config, **moved), problem, config)
            if changed.vpp != config.vpp:
                moved["vpp"] = changed.vpp
            yield finding("axes", **moved, **_layers(config, changed)), changed
    yield from _other_changes(config, problem)


def _layers(config: ParallelConfig, changed: ParallelConfig) -> dict[str, int]:
    """The layers that are recomputed, where that changed."""
    count = changed.recompute_layers
    return {"recompute_layers": count} if count != config.recompute_layers else {}


def _other_changes(config: ParallelConfig, problem: Problem) -> Changes:
    share = max(problem.job.global_batch // config.dp, 1)
    for size in _neighbours(config.micro_batch, divisors(share)):
        yield finding("axes", micro_batch=size), completed(replace(config, micro_batch=size), problem, config)
    if config.pp > 1:
        for vpp in _neighbours(config.vpp, dealt_chunks(problem, config.pp, config.num_microbatches)):
            changed = completed(replace(config, vpp=vpp), problem, config)
            yield finding("axes", vpp=vpp, **_layers(config, changed)), changed
    if problem.model.is_moe:
        experts = [layer.moe.experts for layer in problem.model.blocks if layer.moe]
        for ep in _neighbours(config.ep, divisors(int(np.gcd.reduce(experts)))):
            yield finding("axes", ep=ep), replace(config, ep=ep)
        for etp in _neighbours(config.etp, divisors(config.tp)):
            yield finding("axes", etp=etp), replace(config, etp=etp)
    for zero in (z for z in range(4) if abs(z - config.zero) == 1):
        changed = replace(config, zero=zero)
        yield finding("axes", zero=zero), replace(changed, hsdp=_shard_group(changed, problem))
    if config.tp > 1:
        yield finding("sequence_parallelism", on=not config.sp), replace(config, sp=1 - config.sp)
    yield from _recomputations(config, problem)


def _recomputations(config: ParallelConfig, problem: Problem) -> Changes:
    deep = -(-problem.model.num_layers // config.pp)
    plain = replace(config, recompute=0, recompute_layers=0, recompute_modules=0)
    if config.recompute != Recompute.NONE:
        yield finding("axes", recompute="none"), plain
    if config.recompute != Recompute.SELECTIVE and (modules := stack_modules(problem)):
        chosen = replace(plain, recompute=int(Recompute.SELECTIVE), recompute_modules=modules)
        yield finding("axes", recompute="selective"), chosen
    counts = {deep}
    if problem.stack.limits.partial_full_recompute:
        counts |= {
            c for c in (config.recompute_layers - config.vpp, config.recompute_layers + config.vpp) if c > 0
        }
    for count in sorted(c for c in counts if c != config.recompute_layers and c <= deep):
        full = replace(plain, recompute=int(Recompute.FULL), recompute_layers=count)
        # all: stages need not hold the same number
        yield finding("recompute_layers", layers=count, all=count == deep), full


def _neighbours(value: int, allowed: Sequence[int]) -> list[int]:
    """The next smaller and the next larger of some values."""
    below, above = [v for v in allowed if v < value], [v for v in allowed if v > value]
    return [*below[-1:], *above[:1]]


def dealt_chunks(problem: Problem, pp: int, num_microbatches: int) -> tuple[int, ...]:
    """The numbers of chunks a rank into which the layers can be dealt, and whose rounds the micro-batches fill."""
    most = problem.model.num_layers // pp + 2
    vpp = np.arange(1, most + 1, dtype=np.int32)
    columns = {
        "pp": np.full(most, pp, dtype=np.int32),
        "vpp": vpp,
        "schedule": np.where(vpp > 1, np.int32(Schedule.INTERLEAVED), np.int32(Schedule.ONE_F_ONE_B)),
        "num_microbatches": np.full(most, num_microbatches, dtype=np.int32),
    }
    rules = [rule for rule in (*STAGE_RULES, *SCHEDULE_RULES) if rule.id in CHUNK_RULES]
    return tuple(vpp[np.all([rule.legal(columns, problem) for rule in rules], axis=0)].tolist())


def _nearest_chunks(config: ParallelConfig, problem: Problem, count: int) -> int:
    """The chunks a rank nearest to the configuration's, as a factor, that its pipeline can have; 1 where none can."""
    choices = dealt_chunks(problem, config.pp, count)
    return min(choices, key=lambda vpp: (abs(np.log(vpp / config.vpp)), vpp), default=1)


def completed(config: ParallelConfig, problem: Problem, before: ParallelConfig) -> ParallelConfig:
    """The configuration with the axes that follow from others: micro-batches, schedule, sharding, sp, layers.

    `before`: the one it was made from, whose choice of sequence parallelism is kept where it had one.
    """
    count = max(problem.job.global_batch // (config.dp * config.micro_batch), 1)
    deep = -(-problem.model.num_layers // config.pp)
    vpp = min(config.vpp, deep) if config.pp > 1 else 1
    schedule = config.schedule
    if schedule in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED):
        if vpp > 1 and vpp == before.vpp:  # not asked for: chunks follow the stages and the micro-batches
            vpp = _nearest_chunks(config, problem, count)
        schedule = int(Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B)
    sequence = before.sp if before.tp > 1 else int(1 in problem.stack.limits.sequence_parallel)
    layers = min(config.recompute_layers, deep)
    if layers and layers == before.recompute_layers:  # not asked for: whole chunks, or the whole stage
        layers = min(-(-layers // vpp) * vpp, deep)
    zeros = problem.stack.zero_with_pp if config.pp > 1 else problem.stack.limits.zero
    zero = config.zero
    if config.dp * config.cp == 1:
        zero = 0
    elif zero == 0 and 1 in zeros:
        zero = 1
    return replace(
        config,
        num_microbatches=count,
        vpp=vpp,
        schedule=schedule,
        sp=sequence if config.tp > 1 else 0,
        zero=zero,
        hsdp=_shard_group(replace(config, zero=zero), problem),
        recompute_layers=layers,
        cp_kind=config.cp_kind if config.cp > 1 else 0,
    )


def _shard_group(config: ParallelConfig, problem: Problem) -> int:
    """The ranks that share a shard, all (0) where groups of so many cannot be."""
    whole = config.hsdp and config.dp * config.cp % config.hsdp == 0 and config.hsdp % config.cp == 0
    return config.hsdp if whole and config.zero in problem.stack.limits.hybrid_sharding else 0


def walls(weigher: Weigher, planned: Alternative, space: Enumeration) -> tuple[Alternative, ...]:
    """Configurations that would be faster, and the rule or the memory that stopped each, fastest first.

    Of memory: the fastest of the whole space without a limit, and of what one or two single changes reach those
    that are too large by least. Of rules: of what such changes reach, the fastest for each set of broken rules.
    """
    assert planned.step_time is not None, "the configuration planned is legal"
    config, fast = planned.config, planned.step_time * (1 - WORTH_SAYING)
    unlimited = search(weigher.model, space, np.inf, MEMORY_WALLS).best
    near = _reached(config, weigher.problem)
    large = [unlimited.row(i) for i in range(len(unlimited))]
    large += [c for c in weigher.too_large(near, fast) if c not in large][:MEMORY_WALLS]
    ruled = weigher.ruled_out(near, fast)[:RULE_WALLS]
    found = weigher.weigh([(difference(config, c), c) for c in (*large, *ruled)])
    stopped = [
        a for a in found if a.step_time is not None and a.step_time < fast and (a.broken or not a.fits)
    ]
    return tuple(sorted(stopped, key=_time))


def _time(alternative: Alternative) -> float:
    return np.inf if alternative.step_time is None else alternative.step_time


def _reached(config: ParallelConfig, problem: Problem) -> list[ParallelConfig]:
    """What one or two single changes make of a configuration, each once."""
    seen = {config: None}
    first = [changed for _, changed in changes(config, problem)]
    for changed in first:
        seen[changed] = None
    for changed in first:
        for _, twice in changes(changed, problem):
            seen[twice] = None
    return list(seen)[1:]


_NUMBERS: Final = ("tp", "cp", "pp", "dp", "vpp", "ep", "etp", "micro_batch", "zero", "hsdp")


def difference(config: ParallelConfig, other: ParallelConfig) -> Finding:
    """What the other configuration has that this one has not."""
    values: dict[str, Value] = {
        axis: getattr(other, axis) for axis in _NUMBERS if getattr(other, axis) != getattr(config, axis)
    }
    if other.sp != config.sp and min(other.tp, config.tp) > 1:
        values["sp"] = other.sp
    recompute = [(c.recompute, c.recompute_layers, c.recompute_modules) for c in (config, other)]
    if recompute[0] != recompute[1]:
        values["recompute"] = ("none", selective_text(other.recompute_modules), "full")[other.recompute]
        if other.recompute == Recompute.FULL:
            values["recompute_layers"] = other.recompute_layers
    graphs = [(c.cuda_graph_impl, c.cuda_graph_modules) for c in (config, other)]
    if graphs[0] != graphs[1]:
        values["cuda_graphs"] = graphs_text(other) if other.cuda_graph_impl else "none"
    if other.offload != config.offload:
        values["offload"] = offload_text(other.offload)
    default = [default_schedule(c.vpp) == c.schedule for c in (config, other)]
    if other.schedule != config.schedule and not all(default):  # the default's follows from vpp
        values["schedule"] = Schedule(other.schedule).label
    return finding("axes", **values)


def what_if(
    weigher: Weigher, planned: Alternative, model_of: Callable[[Problem], CostModel]
) -> tuple[Alternative, ...]:
    """The planned configuration with one thing changed: an axis against dp, another axis, the sequences."""
    config, problem = planned.config, weigher.problem
    single = [
        (change, changed)
        for change, changed in changes(config, problem)
        if changed.dp != config.dp or not _degrees_differ(config, changed)
    ]
    found = weigher.weigh(single)
    job = problem.job
    lengths = [job.with_length(length) for length in (2 * job.seq_len, job.seq_len // 2)]
    batches = [replace(job, global_batch=size) for size in (2 * job.global_batch, job.global_batch // 2)]
    for change, other in (
        *((_lengths(other), other) for other in lengths),
        *((finding("batch", batch=other.global_batch), other) for other in batches),
    ):
        if min(other.seq_len, other.global_batch) < 1:
            continue
        model = model_of(replace(problem, job=other))
        simulator = PipelineSimulator(model.layers, model.embedding_in_layers, model.head_in_layers)
        asked = replace(weigher, model=model, simulator=simulator)
        found += asked.weigh([(change, completed(config, model.problem, config))])
    return tuple(found)


def _lengths(job: Job) -> Finding:
    return finding("lengths", longest=job.seq_len, mean=job.mean_length, packed=job.packed)


def _degrees_differ(config: ParallelConfig, other: ParallelConfig) -> bool:
    return any(getattr(config, axis) != getattr(other, axis) for axis in ("tp", "cp", "pp"))


@dataclass(frozen=True)
class WhyNot:
    """What became of a named part of a configuration. `as_planned`: the plan's configuration with only these axes
    changed. `best`: the fastest that fits among all that have them, None where there is none; `smallest`: then the
    one that needs least memory, None where nothing is legal. `removed`: rule -> candidates with these axes."""

    named: Restriction
    as_planned: Alternative
    best: Alternative | None
    smallest: Alternative | None
    removed: dict[str, int]


def why_not(weigher: Weigher, planned: Alternative, named: Restriction, rules: Sequence[Rule]) -> WhyNot:
    """Why the plan does not have these axes. `rules`: of the search. Raises `InputError` on an unknown axis."""
    problem = weigher.problem
    space = enumerate_configs(problem, rules, named)
    as_planned = weigher.weigh([(finding("rest_as_planned"), _renamed(planned.config, named, problem))])[0]

    def look(most: int) -> SearchResult:
        return search(weigher.model, space, weigher.limit, most)

    found = refine(weigher.model, weigher.simulator, look(FINALISTS), look, listed=1)
    best = smallest = None
    if len(found.best):
        best = weigher.weigh([(finding("best_with_it"), found.best.row(0))])[0]
    elif len(space):
        smallest = weigher.weigh([(finding("least_memory_with_it"), found.smallest.row(0))])[0]
    removed = {r.rule: r.candidates for r in sorted(space.removed, key=lambda r: -r.candidates)}
    return WhyNot(named, as_planned, best, smallest, removed)


def _renamed(config: ParallelConfig, named: Restriction, problem: Problem) -> ParallelConfig:
    """The configuration with the first value of every named axis; dp follows unless it is named."""
    values = {axis: given[0] for axis, given in named.items()}
    changed = replace(config, **values)
    if "dp" not in named:
        product = changed.tp * changed.cp * changed.pp
        changed = replace(changed, dp=max(problem.cluster.num_devices // product, 1))
    if values.get("recompute") == Recompute.FULL and not changed.recompute_layers:
        changed = replace(changed, recompute_layers=-(-problem.model.num_layers // changed.pp))
    if "recompute" in values and values["recompute"] != Recompute.FULL:
        changed = replace(changed, recompute_layers=0)
    if changed.recompute_layers and "recompute" not in values:
        changed = replace(changed, recompute=int(Recompute.FULL))
    usual = values.get("recompute_modules", stack_modules(problem))
    modules = usual if changed.recompute == Recompute.SELECTIVE else 0
    # chunks and layers that are named stay
    before = replace(config, **{axis: 0 for axis in ("vpp", "recompute_layers") if axis in values})
    changed = completed(replace(changed, recompute_modules=modules), problem, before)
    return replace(changed, **{axis: values[axis] for axis in ("sp", "zero", "vpp") if axis in values})
