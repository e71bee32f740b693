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
from planner.spec.job import Optimizer
from planner.spec.machine.cluster import Cluster
from planner.spec.precision import Precision
from planner.spec.rule import Problem, Rule
from planner.spec.verdict import MemoryRoom

NEAREST_BATCHES = 12
MOST_SIZES = 16  # between the last doubling that fails and the first that fits
MOST_HALVINGS = 6
BLOCKING = "--assume checkpoint_writing=blocking"
SHORTEST_SEQUENCE = 128  # tokens
MUCH_MORE = 8  # times as large a common divisor of batch and devices
WORTH_SAYING = 0.05  # of throughput
MUCH_FASTER = 1.5  # times as many tokens a second
FEW_TOKENS = 512  # of a step, per device
# Llama 3 405B: 16M tokens a step on 16,384 devices (arXiv 2407.21783, table 4)
LARGE_RUN_TOKENS = 1024
LARGEST_REPAIR = 200_000  # legal configurations near the named one that are costed at most


def legal_changes(problem: Problem, rules: Sequence[Rule], restrict: Restriction) -> list[str]:
    """Single changes of the request under which something is legal, as sentences; empty if none was found.

    Where a rule asks nothing of a configuration, no other change can help: what it says is all.
    """
    whole = explain_config(ParallelConfig(), problem, [rule for rule in rules if not rule.needs])
    if whole:
        return [f"{broken.reason}: {broken.hint}" for broken in whole]
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
            *most, last = (value_text(axis, int(value)) for value in sorted(near)) if near else ("",)
            choice = f"{', '.join(most)} or {last}" if most else last
            asked = value_text(axis, pinned[0])
            found.append(f"{axis}={choice} instead of {asked}" if near else f"leave {axis} free")
    batches = legal_batches(problem, rules, restrict)
    if batches:
        found.append("a global batch of " + " or ".join(str(b) for b in batches) + " sequences")
    return found


def fitting_changes(
    problem: Problem, restrict: Restriction, room: MemoryRoom, model_of: Callable[[Problem], CostModel],
    larger: Sequence[int], on_devices: Callable[[int], Problem | None],
) -> list[str]:  # fmt: skip
    """Single changes of the request under which something fits, each found by a search, as sentences.

    Tried: every pinned axis set free, checkpoints that training waits for, more devices, pipelines and what the stack
    can keep on the host (where no search takes them unasked), shorter sequences, 16-bit gradients and an optimizer with
    smaller states; of each the first that fits. `larger`: numbers of devices, rising; `on_devices`: the problem on so
    many, with another batch where nobody named one, None where the cluster has no such part.
    """
    found, job = [], problem.job

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
            found.append(f"leave {axis} free ({config})")

    @cache
    def on(devices: int) -> str:
        changed = on_devices(devices)
        config = fastest(changed, restrict) if changed is not None else ""
        if changed is None or not config or changed.job.global_batch == job.global_batch:
            return config
        return f"{config}, {changed.job.global_batch:,} sequences a step"

    if problem.cluster.host_memory is not None and job.checkpoint_staged:
        config = fastest(replace(problem, job=replace(job, checkpoint_staged=False)), restrict)
        if config:
            found.append(f"no copy of a checkpoint on hosts, {BLOCKING} ({config})")
    found += _more_devices(problem.cluster, larger, on)
    if "pp" not in restrict and not problem.stack.limits.pipelines_tried:
        config = fastest(problem, {**restrict, "pp": divisors(problem.cluster.num_devices)[1:]})
        if config:
            found.append(f"a pipeline, by a program of your own: --set pp=... ({config})")
    if "offload" not in restrict:
        for kind in filter(None, problem.stack.limits.offload):
            config = fastest(problem, {**restrict, "offload": (kind,)})
            if config:
                found.append(f"--set offload={value_text('offload', kind)} ({config})")
                break
    for halvings in range(1, MOST_HALVINGS + 1):
        length = job.seq_len >> halvings
        if length < SHORTEST_SEQUENCE:
            break
        best = best_of(replace(problem, job=job.with_length(length)), restrict)
        if best is not None:  # which may have room for more
            longest = longest_sequence(problem, best, room.sure, model_of)
            known = length <= longest < job.seq_len
            lengths = job.with_length(longest if known else length).lengths()
            bound = ", the longest that it holds, which need not be the longest of all" * known
            found.append(f"sequences of {lengths} ({best.describe()}{bound})")
            break
    narrow = _with_gradients_16(problem)
    if narrow is not None and (config := fastest(narrow, restrict)):
        found.append(f"gradients in bf16, --stack {narrow.stack.name} ({config})")
    for optimizer in (Optimizer.ADAMW_BF16, Optimizer.ADAMW_8BIT):
        states = problem.stack.states
        if states.moment_bytes(optimizer) < states.moment_bytes(job.optimizer):
            config = fastest(replace(problem, job=replace(job, optimizer=optimizer)), restrict)
            if config:
                found.append(f"the optimizer {optimizer} ({config})")
                break
    bare = replace(room, limit=room.capacity)
    if bare.sure > room.sure:
        config = fastest(problem, restrict, bare.sure)
        if config:
            found.append(f"no headroom ({config})")
    return found


def _more_devices(cluster: Cluster, larger: Sequence[int], fastest: Callable[[int], str]) -> list[str]:
    """The fewest devices at which something fits, as a sentence; empty if none of those tried does.

    The first of `larger` that fits, then every number of whole nodes below it, from the least that is not known to
    fail; where there are more than `MOST_SIZES`, that least and multiples of several nodes. `fastest`: what fits, in
    words.
    """
    fails, unit = cluster.num_devices, cluster.devices_per_node
    for fits in larger:
        if fastest(fits):
            break
        fails = fits
    else:
        return []
    fails = fails // unit * unit
    step = unit * -(-(fits - fails) // (unit * MOST_SIZES))
    multiples = range(fails // step * step + step, fits, step)
    fewest = next((n for n in sorted({fails + unit, *multiples} - {fits}) if fastest(n)), fits)
    apart = f", counted in steps of {step:,}" if step > unit and fewest > fails + unit else ""
    return [f"{fewest:,} devices ({fastest(fewest)}){apart}"]


def _with_gradients_16(problem: Problem) -> Problem | None:
    """The same with gradients kept and reduced in 16 bits, where the stack has them wider and knows the option."""
    known = GRADIENTS_16 in (option.name for option in options_for(problem.stack))
    wide = problem.stack.states.gradient > 2.0 and problem.job.precision is not Precision.FP32
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
    said: str

    @property
    def note(self) -> str:
        """What the head of an answer says of a batch that nobody asked for; empty where it is not much slower."""
        if self.speedup < MUCH_FASTER:
            return ""
        return f"batch assumed, not asked for: {self.batch:,} sequences train {self.speedup:.1f} times as many tokens/s"


def better_batch_advice(
    model: CostModel, best: ConfigTable, other: CostModel, limit: float, restrict: Restriction
) -> BetterBatch | None:
    """What the batch of `other` would bring against `best`, if it is worth saying."""
    space = enumerate_configs(other.problem, rules_for(other.problem.stack), restrict)
    found = search(other, space, limit, 1, name_smallest=False)
    if not len(found.best):
        return None
    now = float(evaluate_exactly(model, best).step_time.min())
    then = float(evaluate_exactly(other, found.best).step_time[0])
    batches = model.problem.job.global_batch, other.problem.job.global_batch
    gain = (batches[1] / then) / (batches[0] / now) - 1
    if gain < WORTH_SAYING:
        return None
    what = f"a global batch of {batches[1]} sequences"
    if batches[1] == doubled_batch(model.problem, best):
        tp, domain = int(best["tp"][0]), model.problem.cluster.scale_up_domain
        what += f" (of {batches[0]}, tp {tp} has to cross scale-up domains of {domain} devices)"
    elif batches[1] == large_run_batch(model.problem):
        job, devices = model.problem.job, model.problem.cluster.num_devices
        few, many = (batch * job.useful_length / devices for batch in batches)
        what += f", {many:,.0f} tokens a device ({batches[0]} have {few:,.0f})"
    else:
        what += f", which more data-parallel degrees divide than {batches[0]}"
    more = f"{gain:.0%} more" if gain < 1 else f"{gain + 1:.1f} times as many"
    said = f"{what}: {more} tokens a second, {found.best.row(0).describe()} in {then:.3g} s a step"
    return BetterBatch(batches[1], gain + 1, said)
