"""Would fewer nodes, of a number that divides well, be faster? 127 nodes force dp 127; 125 do not. 9 nodes leave 8
replicas of a batch of 512 at most; 8 nodes do not, nor do 64 where 96 leave 256.

Left out: numbers of nodes that divide well, larger searches (`FEW_CUTS`), and which size a goal needs (`size.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from planner.answer.growth import PASSING_GAIN
from planner.answer.stopping import Stopwatch
from planner.ask.request import Request
from planner.errors import PlannerError
from planner.spec.findings import Change, Effect, Finding, finding
from planner.spec.planfile import Plan

FEW_CUTS = 100_000  # of the space: another search takes a few seconds at most
AWKWARD = 11  # the least prime factor of a number of nodes that hardly any model or batch shares
SMOOTH = (2, 3, 5)
REACH = 8  # an eighth of the nodes is left out at most, but where only half of them share more with the batch
MOST_TRIED = 2
WORTH_SAYING = 0.01  # of throughput, where few nodes are left out


def rounder_counts(nodes: int, per_node: int, batch: int | None = None) -> tuple[int, ...]:
    """The nearest smaller numbers of nodes that divide well, or of whose devices more can be replicas of a stated
    `batch`; none where `nodes` has no large prime factor and its devices divide the batch as well as fewer do."""
    nearest = max(nodes - -(-nodes // REACH) - 1, 0)
    below = range(nodes - 1, nearest, -1)
    awkward = _without(nodes, (*SMOOTH, 7)) >= AWKWARD
    found = [n for n in below if _without(n, SMOOTH) == 1] if awkward else []
    if batch is not None and not found:
        most = math.gcd(nodes * per_node, batch)
        better = [n for n in range(nodes - 1, nodes // 2, -1) if math.gcd(n * per_node, batch) > most]
        found = [n for n in better if n > nearest] or better[:1]
    return tuple(found)[:MOST_TRIED]


def _without(number: int, primes: tuple[int, ...]) -> int:
    for prime in primes:
        while number % prime == 0:
            number //= prime
    return number


def with_spare_nodes(
    plan: Plan, request: Request, plan_of: Callable[[Request], Plan], watch: Stopwatch
) -> Plan:
    """The plan, and among what would help the first number of nodes below its own that trains more tokens a second."""
    cluster = plan.subject.cluster
    if not plan.choices or cluster.devices % cluster.devices_per_node:
        return plan
    nodes = cluster.devices // cluster.devices_per_node
    asked = plan.subject.job.global_batch if request.global_batch is not None else None
    for fewer in rounder_counts(nodes, cluster.devices_per_node, asked):
        if watch.stopped():
            break
        other = _faster_with(fewer * cluster.devices_per_node, plan, request, plan_of, watch)
        if other is not None:
            change = (*plan.smallest_change, _comparison(other, plan, nodes - fewer))
            plan = plan.model_copy(update={"smallest_change": change})
            break
    seconds = watch.seconds()
    return plan.model_copy(update={"search": plan.search.model_copy(update={"seconds": seconds})})


def _faster_with(
    devices: int, plan: Plan, request: Request, plan_of: Callable[[Request], Plan], watch: Stopwatch
) -> Plan | None:
    """The plan of fewer devices where it trains more tokens a second; little effort first, which most lose with."""
    few = devices * REACH >= plan.subject.cluster.devices * (REACH - 1)
    needed = (1 + WORTH_SAYING * few) * _rate(plan)
    for thorough in (False, True):
        left = watch.left()
        asked = replace(
            request, gpus=devices, top=1, front=False, thorough=thorough, seek_batch=False,
            time_limit=left if math.isfinite(left) else None,
        )  # fmt: skip
        try:
            other = plan_of(asked)
        except PlannerError:  # a cluster of whole domains, a batch or degrees that do not suit
            return None
        if not other.choices or _rate(other) < (1 - PASSING_GAIN) * needed or watch.stopped():
            return None
        if _rate(other) >= needed:
            return other
    return None


def _comparison(other: Plan, plan: Plan, spare_nodes: int) -> Finding:
    """What a step takes on the other plan's devices, and on those of this one."""
    devices, asked = (each.subject.cluster.devices for each in (other, plan))
    batch, asked_batch = (each.subject.job.global_batch for each in (other, plan))
    same = batch == asked_batch
    return finding(
        "fewer_devices", Change(option="gpus", value=devices),
        Effect(quantity="tokens_per_second", share=_rate(other) / _rate(plan) - 1), devices=devices,
        step_time=other.choices[0].step_time, batch=None if same else batch, asked_devices=asked,
        asked_step_time=plan.choices[0].step_time, asked_batch=None if same else asked_batch, spare_nodes=spare_nodes,
    )  # fmt: skip


def _rate(plan: Plan) -> float:
    """Tokens of all devices a second."""
    return plan.choices[0].tokens_per_second_per_device * plan.subject.cluster.devices
