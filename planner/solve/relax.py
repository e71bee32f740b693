"""What is the smallest change that helps where nothing is legal or nothing fits, or the named configuration does not?

Only single changes are tried: one pinned axis set free, or another global batch; where nothing fits, more devices,
offloading, shorter sequences, smaller states, no headroom; for a configuration that does not fit, at most two axes.
Left out: changes of the model and of what of it is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import gcd

import numpy as np

from planner.catalog.load_stacks import is_shipped
from planner.catalog.stack_options import GRADIENTS_16, options_for, with_options
from planner.cost.host_memory import on_host
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly
from planner.solve.moves import longest_sequence
from planner.solve.search import search
from planner.space.axes import Restriction, divisors
from planner.space.batch import global_batch_of
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import rules_for
from planner.space.legality import changed_axes, explain_config, without_recomputation
from planner.space.recomputations import Recomputations
from planner.spec.config import ConfigTable, ParallelConfig, value_text
from planner.spec.findings import Change, Effect, Finding, finding
from planner.spec.job import Optimizer
from planner.spec.machine.cluster import Cluster
from planner.spec.precision import Precision
from planner.spec.rule import Problem, Rule
from planner.spec.verdict import MemoryRoom, MemoryVerdict

NEAREST_BATCHES = 12
MOST_SIZES = 16  # between the last doubling that fails and the first that fits
MOST_HALVINGS = 6
BLOCKING = Change(option="assume", value="checkpoint_writing=blocking")
SHORTEST_SEQUENCE = 128  # tokens
MUCH_MORE = 8  # times as large a common divisor of batch and devices
WORTH_SAYING = 0.05  # of throughput
MUCH_FASTER = 1.5  # times as many tokens a second
FEW_TOKENS = 512  # of a step, per device
# Llama 3 405B: 16M tokens a step on 16,384 devices (arXiv 2407.21783, table 4)
LARGE_RUN_TOKENS = 1024
LARGEST_REPAIR = 200_000  # legal configurations near the named one that are costed at most


def legal_changes(problem: Problem, rules: Sequence[Rule], restrict: Restriction) -> list[Finding]:
    """Single changes of the request under which something is legal; empty if none was found.

    Where a rule asks nothing of a configuration, no other change can help: what it says is all.
    """
    whole = explain_config(ParallelConfig(), problem, [rule for rule in rules if not rule.needs])
    if whole:
        return [finding("rule_of_the_job", reason=broken.reason, hint=broken.hint) for broken in whole]
    found = []
    for axis, pinned in restrict.items():
        others = {name: values for name, values in restrict.items() if name != axis}
        if axis == "recompute":
            others.pop("recompute_layers", None)
        space = enumerate_configs(problem, rules, others)
        if len(space):
            recomputed = Recomputations.joined(space.choices).columns
            values = np.unique(recomputed.get(axis, space.stems[axis]))
            values = values[:0] if axis == "recompute_layers" else values
            near = sorted(
                values.tolist(), key=lambda value: (abs(np.log2((value + 1) / (pinned[0] + 1))), value)
            )[:3]
            texts = tuple(value_text(axis, int(value)) for value in sorted(near))
            change = Change(option="set", value=f"{axis}={','.join(texts)}")
            asked = value_text(axis, pinned[0])
            found.append(
                finding("axis_values", change, axis=axis, values=texts, asked=asked) if near else _free(axis)
            )
    batches = legal_batches(problem, rules, restrict)
    if batches:
        change = Change(option="global_batch", value=tuple(batches))
        found.append(finding("legal_batches", change, batches=tuple(batches)))
    return found


def _free(axis: str, config: str | None = None, effect: Effect | None = None) -> Finding:
    """An axis that nobody restricts."""
    return finding("axis_free", Change(option="set"), effect, axis=axis, configuration=config)


def fitting_changes(
    problem: Problem, restrict: Restriction, room: MemoryRoom, model_of: Callable[[Problem], CostModel],
    larger: Sequence[int], on_devices: Callable[[int], Problem | None], now: MemoryVerdict,
) -> list[Finding]:  # fmt: skip
    """Single changes of the request under which something surely fits, each found by a search.

    Tried: every pinned axis set free, checkpoints that training waits for, more devices, pipelines and what the stack
    can keep on the host (where no search takes them unasked), shorter sequences, 16-bit gradients and an optimizer with
    smaller states; of each the first that fits. `larger`: numbers of devices, rising; `on_devices`: the problem on so
    many, with another batch where nobody named one, None where the cluster has no such part. `now`: how the best fits
    without any.
    """
    found, job = [], problem.job
    fits = Effect(quantity="verdict", before=now, after=MemoryVerdict.FITS)

    def best_of(changed: Problem, pins: Restriction, most: float = room.sure) -> ParallelConfig | None:
        space = enumerate_configs(changed, rules_for(changed.stack), pins)
        best = search(model_of(changed), space, most, 1, name_smallest=False).best
        return best.row(0) if len(best) else None

    def fastest(changed: Problem, pins: Restriction, most: float = room.sure) -> str:
        best = best_of(changed, pins, most)
        return best.describe() if best is not None else ""

    for axis in restrict:
        config = fastest(problem, {name: values for name, values in restrict.items() if name != axis})
        if config:
            found.append(_free(axis, config, fits))

    @cache
    def on(devices: int) -> tuple[str, int | None]:
        """What fits on so many devices, and its batch where that is another."""
        changed = on_devices(devices)
        config = fastest(changed, restrict) if changed is not None else ""
        batch = None if changed is None else changed.job.global_batch
        return config, None if batch == job.global_batch else batch

    if problem.cluster.host_memory is not None and job.checkpoint_staged:
        config = fastest(replace(problem, job=replace(job, checkpoint_staged=False)), restrict)
        if config:
            found.append(finding("checkpoint_not_copied", BLOCKING, fits, configuration=config))
    more = _more_devices(problem.cluster, larger, lambda devices: bool(on(devices)[0]))
    if more is not None:
        (fewest, step), (config, batch) = more, on(more[0])
        change = Change(option="gpus", value=fewest)
        values = {"devices": fewest, "step": step, "configuration": config, "batch": batch}
        found.append(finding("more_devices", change, fits, **values))
    if "pp" not in restrict and problem.stack.engine.pipelines_programmed:
        config = fastest(problem, {**restrict, "pp": divisors(problem.cluster.num_devices)[1:]})
        if config:
            change = Change(option="set", value="pp=...")
            found.append(finding("own_pipeline", change, fits, configuration=config))
    if "offload" not in restrict:
        for kind in filter(None, problem.offloads):
            config = fastest(problem, {**restrict, "offload": (kind,)})
            if config:
                change = Change(option="set", value=f"offload={value_text('offload', kind)}")
                found.append(finding("offload", change, fits, configuration=config))
                break
    for halvings in range(1, MOST_HALVINGS + 1):
        length = job.seq_len >> halvings
        if length < SHORTEST_SEQUENCE:
            break
        best = best_of(replace(problem, job=job.with_length(length)), restrict)
        if best is not None:  # which may have room for more
            longest = longest_sequence(problem, best, room.sure, model_of)
            known = length <= longest < job.seq_len
            shorter = job.with_length(longest if known else length)
            found.append(
                finding(
                    "shorter_sequences", Change(option="seq_len", value=shorter.seq_len), fits,
                    configuration=best.describe(), longest=shorter.seq_len, mean=shorter.mean_length,
                    packed=job.packed, holds_no_more=known,
                )
            )  # fmt: skip
            break
    narrow = _with_gradients_16(problem)
    if narrow is not None and (config := fastest(narrow, restrict)):
        change = Change(option="stack", value=narrow.stack.name)
        found.append(finding("gradients_16", change, fits, configuration=config))
    for optimizer in (Optimizer.ADAMW_BF16, Optimizer.ADAMW_8BIT):
        states = problem.stack.engine
        if states.moment_bytes(optimizer) < states.moment_bytes(job.optimizer):
            config = fastest(replace(problem, job=replace(job, optimizer=optimizer)), restrict)
            if config:
                change = Change(option="optimizer", value=str(optimizer))
                found.append(finding("optimizer", change, fits, configuration=config))
                break
    bare = replace(room, limit=room.capacity)
    if bare.sure > room.sure:
        config = fastest(problem, restrict, bare.sure)
        if config:
            change = Change(option="headroom", value=0, also=Change(option="min_free"))
            found.append(finding("no_headroom", change, fits, configuration=config))
    return found


def _more_devices(
    cluster: Cluster, larger: Sequence[int], on: Callable[[int], bool]
) -> tuple[int, int | None] | None:
    """The fewest devices at which something fits, and in which steps they were counted, where others lie between; None
    if none of those tried does.

    The first of `larger` that fits, then every number of whole nodes below it, from the least that is not known to
    fail; where there are more than `MOST_SIZES`, that least and multiples of several nodes. `on`: does anything fit?
    """
    fails, unit = cluster.num_devices, cluster.devices_per_node
    for fits in larger:
        if on(fits):
            break
        fails = fits
    else:
        return None
    fails = fails // unit * unit
    step = unit * -(-(fits - fails) // (unit * MOST_SIZES))
    multiples = range(fails // step * step + step, fits, step)
    fewest = next((n for n in sorted({fails + unit, *multiples} - {fits}) if on(n)), fits)
    return fewest, step if step > unit and fewest > fails + unit else None


def _with_gradients_16(problem: Problem) -> Problem | None:
    """The same with gradients kept and reduced in 16 bits, where the stack has them wider and knows the option."""
    known = GRADIENTS_16 in (option.name for option in options_for(problem.stack))
    wide = problem.stack.engine.gradient > 2.0 and problem.job.precision is not Precision.FP32
    if not (known and wide and is_shipped(problem.stack.name)):
        return None
    return replace(problem, stack=with_options(problem.stack, [GRADIENTS_16]))


def legal_batches(problem: Problem, rules: Sequence[Rule], restrict: Restriction) -> list[int]:
    """The nearest smaller and larger global batch under which something is legal."""
    batch = problem.job.global_batch
    steps = [d for d in divisors(problem.cluster.num_devices) if d <= 4 * batch]
    multiples = {k * d for d in steps for k in (batch // d, batch // d + 1) if k}
    nearest: list[int] = []
    for side in (
        sorted((b for b in multiples if b < batch), reverse=True),
        sorted(b for b in multiples if b > batch),
    ):
        for candidate in side[:NEAREST_BATCHES]:
            job = replace(problem.job, global_batch=candidate)
            if len(enumerate_configs(replace(problem, job=job), rules, restrict)):
                nearest.append(candidate)
                break
    return nearest


def nearest_fitting(
    config: ParallelConfig, problem: Problem, rules: Sequence[Rule], model: CostModel, limit: float
) -> ParallelConfig | None:
    """The configuration that fits in `limit` bytes and is fastest among those that change the fewest axes, at most two.

    dp and the number of micro-batches follow from the other axes and do not count as changes.
    """
    space = enumerate_configs(problem, rules)
    changed, _ = changed_axes(space.stems, without_recomputation(config))
    close = np.argsort(changed, kind="stable")[: int((changed <= 2).sum())]
    close = np.sort(close[np.cumsum(space.counts[close]) <= LARGEST_REPAIR])
    if not len(close):
        return None
    near = space.part(close).table()
    changed, _ = changed_axes(near, config)
    near = near.take(changed <= 2)
    changed = changed[changed <= 2]
    cost = model.evaluate(near)
    fits = np.flatnonzero((cost.device_memory <= limit) & on_host(model, near))
    if not len(fits):
        return None
    order = np.lexsort((cost.step_time[fits], changed[fits]))
    return near.row(int(fits[order[0]]))


def with_batch(problem: Problem, batch: int) -> Problem:
    """The same problem with another global batch [sequences]."""
    return replace(problem, job=replace(problem.job, global_batch=batch))


def better_batch(problem: Problem) -> int | None:
    """A batch within an eighth of the one asked for that far more data-parallel degrees divide, if there is one."""
    batch, devices = problem.job.global_batch, problem.cluster.num_devices
    degrees = [d for d in divisors(devices) if d <= batch]
    near = [b for b in (round(batch / d) * d for d in degrees) if b and abs(b - batch) <= batch / 8]
    best = max(near, key=lambda b: (gcd(b, devices), -abs(b - batch)), default=batch)
    return best if gcd(best, devices) >= MUCH_MORE * gcd(batch, devices) else None


def doubled_batch(problem: Problem, best: ConfigTable) -> int | None:
    """Twice the batch where so few sequences push the fastest configuration's tensor parallelism across scale-up
    domains."""
    beyond = int(best["tp"][0]) > problem.cluster.scale_up_domain
    return 2 * problem.job.global_batch if beyond else None


def large_run_batch(problem: Problem) -> int | None:
    """A batch with as many tokens a device as a large run had, where there are few."""
    seq_len, devices = problem.job.seq_len, problem.cluster.num_devices
    if problem.job.global_batch * seq_len >= FEW_TOKENS * devices:
        return None
    return global_batch_of(f"{LARGE_RUN_TOKENS * devices}tok", seq_len, devices)[0]


@dataclass(frozen=True)
class BetterBatch:
    """Another global batch [sequences], how many times as many tokens a second it trains, and what to say of it."""

    batch: int
    speedup: float
    said: Finding

    @property
    def note(self) -> tuple[Finding, ...]:
        """What the head of an answer says of a batch that nobody asked for; nothing where it is not much slower."""
        if self.speedup < MUCH_FASTER:
            return ()
        change = Change(option="global_batch", value=self.batch)
        return (finding("batch_assumed", change, batch=self.batch, speedup=self.speedup),)


def better_batch_advice(
    model: CostModel,
    best: ConfigTable,
    other: CostModel,
    limit: float,
    restrict: Restriction,
    tokens: float = 1.0,
) -> BetterBatch | None:
    """What the batch of `other` would bring against `best`, if it is worth saying. `tokens`: times as many that it
    takes to the same loss [1]."""
    space = enumerate_configs(other.problem, rules_for(other.problem.stack), restrict)
    found = search(other, space, limit, 1, name_smallest=False)
    if not len(found.best):
        return None
    now = float(evaluate_exactly(model, best).step_time.min())
    then = float(evaluate_exactly(other, found.best).step_time[0])
    batches = model.problem.job.global_batch, other.problem.job.global_batch
    gain = (batches[1] / then) / (batches[0] / now) - 1
    if (1 + gain) / tokens - 1 < WORTH_SAYING:
        return None
    why: dict[str, float] = {}
    if batches[1] == doubled_batch(model.problem, best):
        why = {"tp": int(best["tp"][0]), "domain": model.problem.cluster.scale_up_domain}
    elif batches[1] == large_run_batch(model.problem):
        job, devices = model.problem.job, model.problem.cluster.num_devices
        few, many = (batch * job.useful_length / devices for batch in batches)
        why = {"tokens_per_device": many, "asked_tokens_per_device": few}
    if tokens - 1 > WORTH_SAYING:
        why["more_tokens"] = tokens - 1
    said = finding(
        "better_batch", Change(option="global_batch", value=batches[1]),
        Effect(quantity="tokens_per_second_per_device", share=gain), configuration=found.best.row(0).describe(),
        step_time=then, batch=batches[1], asked=batches[0], **why,
    )  # fmt: skip
    return BetterBatch(batches[1], (gain + 1) / tokens, said)
