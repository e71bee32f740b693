"""How many devices of this cluster should the job take?

The fewest that fit at all, the fewest that end in time, or the fastest within a budget, and the curve of time
and money over sizes that doubles from the smallest, with the knee after which another doubling stops paying.
Sizes are whole nodes. A global batch that was asked for is held; where it is planner's own choice, every size has the
one within a quarter of it that suits its devices, as in a plan. Between two doublings the search halves the interval,
preferring sizes that share factors with the batch and the layers, and then looks at the answer's neighbours:
cost is not exactly monotone in the size, so sizes not tried may be better; `tried` says which were. Sizes at which a
run with a goal of its own would take absurdly long are not looked at (`_longest`). Uneven splits
of the layers are solved in full for the answer and for sizes that miss the goal by little; the times of others may
be up to `growth.PASSING_GAIN` longer than they need be. Where nobody named a batch and the critical batch of the run is
known, a size has twice as large a one, and so on, while the run ends sooner for it to the same loss; tokens are counted
as of any batch (`campaign/batch.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from planner.answer.growth import PAYING_SPEEDUP, Doubling, Point, doubling
from planner.answer.outcome import BINDS, COMPUTE, hold_batch
from planner.answer.planners import Planners
from planner.ask.option import options_of, values_of
from planner.ask.question import Options, SizeQuestion
from planner.ask.request import Request, cost_model, each_stack, resolve, room_of
from planner.campaign.batch import relative_tokens, token_factor
from planner.campaign.duration import SECONDS_PER_DAY
from planner.campaign.run import batch_limit
from planner.catalog.load_campaign import load_assumptions
from planner.cost.flops import model_flops
from planner.cost.params import model_parameters
from planner.dialect import option
from planner.errors import InputError, PlannerError
from planner.space.axes import Axes
from planner.space.batch import USUAL_PIPELINE, global_batch_of, odd_part, shards_of
from planner.spec.config import OFFLOAD_OPTIMIZER
from planner.spec.findings import Finding, finding
from planner.spec.machine.build_cluster import NodeTypeError
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.rows import data_frame, plan_rows
from planner.spec.rule import Problem

LARGEST_SIZE = 131_072  # devices tried of a node type, of which there are as many as asked for
MOST_HALVINGS = 8
NEIGHBOURS = 2
HARDLY_FASTER, STILL_FASTER = 1.25, 1.02  # the curve ends; the search for a deadline ends
RESOLUTION = 32  # halving ends at an interval of this share of the size, or one node
MOST_OFF_BATCH = 0.25  # of the batch that is planner's choice
LARGER_BATCH_PAYS = 1.02  # times as soon ends a run of twice the batch, if that is taken
LONGEST_DAYS = 16.0  # times the days asked for, that a size worth a look takes at its devices' peak
OF_TOKENS = (COMPUTE, "memory")  # what a step goes to that as many tokens take under any batch
MANY_SIZES = 2 * 720_720  # devices, a multiple of every usual number per node


class Goal(StrEnum):
    """What is asked."""

    MIN = "min"
    DAYS = "days"
    BUDGET = "budget"


@dataclass(frozen=True)
class Sizing:
    """It. `fewest`: smallest size tried that fits. `least_gpus`, `longest`: sizes of fewer devices are left out,
    where a run takes more days even at the devices' peak; 0 where none was. `knee`: the size from which a doubling does
    not pay. `batch`: of the sizes; `chooses_batch`: is it not the user's?"""

    goal: Goal
    target: float | None
    answer: Point | None
    fewest: Point | None
    cheapest: Point | None
    fastest: Point | None
    curve: tuple[Point, ...]
    doublings: tuple[Doubling, ...]
    knee: Point | None
    end: tuple[Finding, ...]
    tried: tuple[Point, ...]
    batch: Finding
    chooses_batch: bool
    least_gpus: int = 0
    longest: float = math.inf

    @property
    def found(self) -> bool:
        """Is there a size that does what was asked?"""
        return self.answer is not None

    def __repr__(self) -> str:
        answer = f"{self.answer.gpus:,} GPUs" if self.answer is not None else "none"
        return f"<Sizing for {self.goal}: {answer} of {len(self.tried)} sizes tried>"

    def to_dataframe(self) -> Any:
        """A row for each size tried as a pandas data frame, smallest first."""
        return data_frame(plan_rows(point.plan)[0] for point in self.tried)


def size_of(
    asked: SizeQuestion, say: Callable[[str], object] = lambda text: None, processes: int = 1
) -> Sizing:
    """The answer to a question about a size, which has one goal. Raises `InputError`."""
    goals: dict[Goal, float | None] = {Goal.DAYS: asked.days, Goal.BUDGET: asked.budget}
    given = [goal for goal, target in goals.items() if target is not None] + [Goal.MIN] * asked.min
    if len(given) != 1:
        must = f"exactly one of {option('days')}, {option('budget')} and {option('min')} must be given"
        raise InputError(must, " and ".join(given) or "none", f"add {option('days', 30)}, say")
    request = Request(asked.model, asked.cluster, asked.max_gpus, **values_of(asked, options_of(Options)))
    if asked.spare_nodes is not None:
        request = replace(request, assume=(*request.assume, f"spare_nodes={asked.spare_nodes}"))
    return size_cluster(request, given[0], goals.get(given[0]), say, processes)


def size_cluster(
    request: Request,
    goal: Goal,
    target: float | None = None,
    say: Callable[[str], object] = lambda text: None,
    processes: int = 1,
) -> Sizing:
    """The size for a goal: fewest that fit (min), end within `target` days, or are fastest for `target` dollars.

    `request.gpus`: the most devices to look at. `processes`: as of `compare_clusters`. Raises `InputError` for a goal
    without what it needs.
    """
    _check_goal(request, goal, target)
    with Planners(processes) as planners:
        sizer = _Sizer(request, planners, say, _longest(request, goal, target))
        sizer.find_fewest()
        end: tuple[Finding, ...] = ()
        if sizer.fewest is not None and request.tokens is not None:
            end = sizer.climb(goal, target)
            sizer.narrow(goal, target)
        sizer.settle_answer(goal, target)
        return sizer.sizing(goal, target, end)


def _check_goal(request: Request, goal: Goal, target: float | None) -> None:
    if goal is Goal.MIN:
        return
    if request.tokens is None:
        raise InputError(
            f"{option(goal)} needs the length of the run", hint=f"add {option('tokens', '15.6T')}"
        )
    if target is None or not 0 < target < math.inf:
        raise InputError(f"{option(goal)} must be above 0", str(target))


class _Sizer:
    """Sizes tried so far, and the order in which others are."""

    def __init__(
        self, request: Request, planners: Planners, say: Callable[[str], object], longest: float = math.inf
    ) -> None:
        self.planners, self.say = planners, say
        self.request, self.batch_said = hold_batch(request)
        # a schedule of batches leads to one that is held
        self.chooses_batch = request.global_batch is None and not request.batch_schedule
        self.per_node, self.most_nodes = _whole_nodes(request)
        self.points: dict[int, Point] = {}
        self.times: dict[int, int] = {}  # nodes -> times the usual batch
        self._curve: list[int] = []  # nodes
        problems = _problems(replace(self.request, gpus=self.per_node))
        self.problem = problems[0]
        self.limit = (
            batch_limit(self.problem, load_assumptions(request.assume)) if self.chooses_batch else None
        )
        self.noun = self.problem.cluster.accelerator.noun
        least = min(_least_devices(problem, self.request) for problem in problems)
        self.least_nodes = -(-least // self.per_node)
        # below which the run would take longer than that [days], unless it would on all there are
        self.longest, soon = longest, _least_devices_within(self.problem, request.tokens, longest)
        first = -(-soon // self.per_node)
        self.first_nodes = max(self.least_nodes, first) if first <= self.most_nodes else self.least_nodes

    def at(self, nodes: int) -> Point:
        """The point of a number of nodes, computed once."""
        if nodes not in self.points:
            gpus = nodes * self.per_node
            self.say(f"sizing: {gpus:,} {self.noun}s, {len(self.points)} sizes so far")
            times = self._times_near(nodes)
            point = self._passing(nodes, times)
            while self._may_pay(point):
                larger = self._passing(nodes, 2 * times)
                if not larger.days * self._uncounted(point) * LARGER_BATCH_PAYS < point.days:
                    break
                point, times = larger, 2 * times
            self.points[nodes], self.times[nodes] = point, times
        return self.points[nodes]

    def _passing(self, nodes: int, times: int) -> Point:
        """A size under that many times its usual batch, with little effort."""
        plan = self.planners.plan(self._request(nodes, times=times))
        return Point(nodes, nodes * self.per_node, plan, settled=False)

    def _times_near(self, nodes: int) -> int:
        """Times the usual batch that the next smaller size has."""
        return self.times.get(max((n for n in self.times if n <= nodes), default=0), 1)

    def _may_pay(self, point: Point) -> bool:
        """Could a run of twice the batch end sooner, even if all that is no work on tokens shrank to nothing?"""
        if self.limit is None or point.best is None:
            return False
        idle = sum(
            value for name, value in point.best.time.items() if BINDS.get(name, COMPUTE) not in OF_TOKENS
        )
        tokens = self.problem.job.useful_length * point.batch
        more = relative_tokens(2 * tokens, self.limit.middle) / relative_tokens(tokens, self.limit.middle)
        return (1 - idle / point.best.step_time) * more * LARGER_BATCH_PAYS < 1

    def _uncounted(self, point: Point) -> float:
        """Tokens that twice the batch takes to the same loss over those that are counted, both over the point's [1]."""
        assert self.limit is not None, "a batch that may pay"
        tokens, critical = self.problem.job.useful_length * point.batch, self.limit.middle
        beyond = [relative_tokens(b, critical) / token_factor(b, critical) for b in (tokens, 2 * tokens)]
        return beyond[1] / beyond[0]

    def settle(self, nodes: int) -> Point:
        """The point of a number of nodes with full effort."""
        if not self.at(nodes).settled:
            gpus = nodes * self.per_node
            self.say(f"sizing: {gpus:,} {self.noun}s in full, {len(self.points)} sizes so far")
            full = Point(nodes, gpus, self.planners.plan(self._request(nodes, thorough=True)))
            passing = self.points[nodes]  # with luck it found what more effort did not
            better = full if full.days <= passing.days else replace(passing, settled=True)
            self.points[nodes] = better
        return self.points[nodes]

    def _request(self, nodes: int, thorough: bool = False, times: int | None = None) -> Request:
        times = times or self.times.get(nodes) or self._times_near(nodes)
        return replace(
            self.request,
            gpus=nodes * self.per_node,
            global_batch=str(times * self.batch(nodes)),
            top=1,
            front=False,
            thorough=thorough,
            seek_batch=False,  # it is held, or chosen here
        )

    def batch(self, nodes: int) -> int:
        """The usual global batch at a size [sequences]."""
        held, devices = self.problem.job.global_batch, nodes * self.per_node
        if not self.chooses_batch:
            return held
        shards = shards_of(self.request.restrict, devices)
        suits, _ = global_batch_of(None, self.problem.job.seq_len, devices, shards)
        return suits if abs(suits - held) <= MOST_OFF_BATCH * held else held

    def roundness(self, nodes: int) -> int:
        """How well a size can be divided: what it shares with a batch that is held and the layers; without one, how
        small a part of it neither the layers nor any power of two divides."""
        layers = self.problem.model.num_layers
        if not self.chooses_batch:
            return math.gcd(nodes, self.problem.job.global_batch * layers)
        devices = nodes * self.per_node
        return -odd_part(devices // math.gcd(devices, layers))

    def foresee(self, *sizes: int) -> None:
        """Sizes that will probably be looked at."""
        for nodes in sizes:
            if nodes <= self.most_nodes and nodes not in self.points:
                self.planners.foresee(self._request(nodes))

    @property
    def tried(self) -> list[Point]:
        """All points, smallest first."""
        return [self.points[nodes] for nodes in sorted(self.points)]

    @property
    def curve(self) -> list[Point]:
        """The points of the curve, smallest first."""
        return [self.points[nodes] for nodes in self._curve]

    @property
    def fewest(self) -> Point | None:
        """The smallest size tried at which something fits."""
        return next((point for point in self.tried if point.best), None)

    def find_fewest(self) -> None:
        """Double from the least that could hold the training state and end in an age until something fits, then halve
        back, unless that was the first."""
        if self.least_nodes > self.most_nodes:
            self.at(self.most_nodes)
            return
        fails = self.first_nodes - 1
        nodes = 1 << (self.first_nodes - 1).bit_length()
        while True:
            nodes = min(nodes, self.most_nodes)
            if self.request.tokens is not None:  # the climb will want them
                self.foresee(nodes, 2 * nodes)
            if nodes > fails and self.at(nodes).best:
                break
            fails = max(fails, nodes)
            if nodes >= self.most_nodes:
                return
            nodes *= 2
        if fails >= self.first_nodes or self.first_nodes == self.least_nodes:
            self.halve(fails, nodes, lambda point: point.best is not None)

    def climb(self, goal: Goal, target: float | None) -> tuple[Finding, ...]:
        """Double from the first power of two that fits until it stops paying and the goal is met; why it ended."""
        smallest = self.fewest
        assert smallest is not None, "asked only where something fits"
        nodes = min(1 << (smallest.nodes - 1).bit_length(), self.most_nodes)
        self._curve = [smallest.nodes] if smallest.nodes < nodes else []
        poor = 0
        while True:
            self.foresee(nodes, 2 * nodes)
            point = self.at(nodes)
            if point.best is None:
                return finding("size", devices=point.gpus, noun=self.noun), *point.reason
            gain = self.curve[-1].days / point.days if self.curve else math.inf
            even = point.nodes == 2 * self.curve[-1].nodes if self.curve else False
            self._curve.append(nodes)
            poor = poor + 1 if even and gain < PAYING_SPEEDUP else 0
            if nodes >= self.most_nodes:
                return (finding("whole_cluster", devices=point.gpus, noun=self.noun),)
            needed = goal is Goal.DAYS and target is not None and point.days > target
            hopeless = gain < STILL_FASTER
            if hopeless or (not needed and (poor >= 2 or (even and gain < HARDLY_FASTER))):
                return (finding("doublings_hardly_pay"),)
            nodes = min(2 * nodes, self.most_nodes)

    def narrow(self, goal: Goal, target: float | None) -> None:
        """Between the doublings around the goal, halve."""
        if target is None or goal is Goal.MIN:
            return
        if goal is Goal.DAYS:
            good = next((point for point in self.curve if self.meets(point, goal, target)), None)
            if good is not None:
                below = [
                    point.nodes for point in self.tried if point.nodes < good.nodes and point.days > target
                ]
                self.halve(max(below, default=0), good.nodes, lambda point: self.meets(point, goal, target))
            return
        within = [point for point in self.tried if point.cost <= target]
        if within:
            fast = min(within, key=lambda point: point.days)
            above = [p.nodes for p in self.tried if p.nodes > fast.nodes and p.cost > target]
            if above:
                self.halve(min(above), fast.nodes, lambda point: self.meets(point, goal, target))

    def meets(self, point: Point, goal: Goal, target: float) -> bool:
        """Does a size do what was asked? One that misses it by little is planned in full."""
        if _value(point, goal) > target >= _value(point, goal) * point.possible:
            point = self.settle(point.nodes)
        return _value(point, goal) <= target

    def settle_answer(self, goal: Goal, target: float | None) -> None:
        """Plan in full the answer and the sizes that could take its place."""
        while True:
            answer = self.answer(goal, target)
            if answer is None and self.fewest is None:
                self.settle(self.tried[-1].nodes)  # for the advice on what would fit
                return
            rivals = [
                point for point in self.tried if not point.settled and _rivals(point, answer, goal, target)
            ]
            if not rivals:
                return
            for point in rivals:
                self.planners.foresee(self._request(point.nodes, thorough=True))
            for point in rivals:
                self.settle(point.nodes)

    def answer(self, goal: Goal, target: float | None) -> Point | None:
        """The best of the sizes tried for the goal."""
        if target is None or goal is Goal.MIN:
            return self.fewest
        within = [point for point in self.tried if _value(point, goal) <= target]
        if goal is Goal.DAYS:
            return within[0] if within else None
        return min(within, key=lambda point: (point.days, point.nodes), default=None)

    def halve(self, bad: int, good: int, holds: Callable[[Point], bool]) -> None:
        """Halve between a size that fails and one that holds, then try the neighbours on the failing side."""
        for _ in range(MOST_HALVINGS):
            if abs(good - bad) <= max(1, good // RESOLUTION):
                break
            middle = self.middle(min(bad, good), max(bad, good))
            if self.roundness(middle) < -USUAL_PIPELINE:  # nothing between that batch and pipeline can divide
                break
            if holds(self.at(middle)):
                good = middle
            else:
                bad = middle
        near = self.neighbours(good, above=bad > good)
        self.foresee(*near)
        for nodes in near:
            self.at(nodes)

    def neighbours(self, nodes: int, above: bool) -> list[int]:
        """The roundest untried sizes within a quarter of `nodes`, on the failing side, where luck may hide."""
        reach = max(nodes // 4, NEIGHBOURS)
        side = range(nodes + 1, nodes + reach + 1) if above else range(nodes - reach, nodes)
        open_sizes = (
            n
            for n in side
            if max(self.first_nodes, 1) <= n <= self.most_nodes
            and n not in self.points
            and self.roundness(n) >= -USUAL_PIPELINE
        )
        return sorted(open_sizes, key=lambda n: (-self.roundness(n), abs(n - nodes)))[:NEIGHBOURS]

    def middle(self, low: int, high: int) -> int:
        """A size near the middle that shares most factors with the batch and the layers."""
        span = high - low
        inside = range(low + max(span // 4, 1), high - max(span // 4, 1) + 1)
        if len(inside) > 4096:
            inside = range(inside.start, inside.stop, len(inside) // 4096)
        centre = (low + high) / 2
        return max(inside, key=lambda n: (self.roundness(n), -abs(n - centre), -n))

    def batches_said(self) -> Finding:
        """Which batches the sizes have."""
        batches = sorted({point.batch for point in self.tried})
        if not self.chooses_batch:
            return self.batch_said
        if any(times > 1 for times in self.times.values()):
            grown = max(self.times.values())
            return finding("batches_grown", least=batches[0], most=batches[-1], times=grown)
        if len(batches) > 1:
            return finding("batches_of_sizes", least=batches[0], most=batches[-1])
        seq_len = self.problem.job.seq_len
        return finding("global_batch", batch=batches[0], seq_len=seq_len, basis="chosen")

    def sizing(self, goal: Goal, target: float | None, end: tuple[Finding, ...]) -> Sizing:
        """The answer among all sizes tried."""
        running = [point for point in self.tried if point.best]
        if goal is Goal.BUDGET and running and all(point.cost == math.inf for point in running):
            raise InputError(
                f"a budget needs a price of {self.request.cluster}",
                hint=f"add {option('assume', 'price=2.50 $/h')}",
            )
        doublings = tuple(doubling(a, b) for a, b in zip(self.curve, self.curve[1:], strict=False))
        poor = (d for d in doublings if not d.pays and d.end.nodes == 2 * d.start.nodes)
        knee = next((doubling.start for doubling in poor), None)
        return Sizing(
            goal=goal,
            target=target,
            answer=self.answer(goal, target),
            fewest=self.fewest,
            cheapest=min(
                (p for p in running if p.cost < math.inf), key=lambda p: (p.cost, p.nodes), default=None
            ),
            fastest=min(running, key=lambda p: (p.days, p.nodes), default=None),
            curve=tuple(self.curve),
            doublings=doublings,
            knee=knee,
            end=end,
            tried=tuple(self.tried),
            batch=self.batches_said(),
            chooses_batch=self.chooses_batch,
            least_gpus=self.first_nodes * self.per_node if self.first_nodes > self.least_nodes else 0,
            longest=self.longest,
        )


def _longest(request: Request, goal: Goal, target: float | None) -> float:
    """Days beyond which a size is of no interest: some times those asked for; for a budget as long as hardware is
    written off."""
    if goal is Goal.MIN or target is None:
        return math.inf
    written_off = load_assumptions(request.assume).depreciation_time / SECONDS_PER_DAY
    return LONGEST_DAYS * target if goal is Goal.DAYS else written_off


def _least_devices_within(problem: Problem, tokens: float | None, days: float) -> int:
    """Devices below which a run takes more days, even if all products but attention's ran at the peak, and nothing
    else took time."""
    if tokens is None or math.isinf(days):
        return 1
    work = model_flops(problem.model, 1.0, 1.0).forward_linear
    passes = 2.0 if problem.job.lora_rank is not None else 3.0  # a frozen model has no gradients of weights
    seconds = passes * work * tokens / cost_model(problem).layers.gemm_peak
    return max(math.ceil(seconds / (days * SECONDS_PER_DAY)), 1)


def _value(point: Point, goal: Goal) -> float:
    """What the target of a goal is compared with: dollars of a budget, else days."""
    return point.cost if goal is Goal.BUDGET else point.days


def _rivals(point: Point, answer: Point | None, goal: Goal, target: float | None) -> bool:
    """Is this the answer, or could it be with full effort?"""
    if point is answer:
        return True
    if target is None or goal is Goal.MIN or _value(point, goal) * point.possible > target:
        return False
    if answer is None:
        return True
    if goal is Goal.DAYS:
        return point.nodes < answer.nodes
    return point.days * point.possible < answer.days


def _whole_nodes(request: Request) -> tuple[int, int]:
    """Devices in a node, and the most nodes there are. Raises `InputError`."""
    try:
        cluster = load_cluster(request.cluster, None)
        most = cluster.num_devices if request.gpus is None else min(request.gpus, cluster.num_devices)
    except NodeTypeError:
        cluster = load_cluster(request.cluster, MANY_SIZES)
        most = request.gpus or LARGEST_SIZE
    per_node = cluster.devices_per_node
    if most < per_node:
        raise InputError(f"{option('max_gpus')} must be at least one node of {per_node}", str(most))
    return per_node, most // per_node


def _problems(request: Request) -> list[Problem]:
    """What a question stands for under each of its stacks that can answer it. Raises `PlannerError` where none can."""
    found, refused = list[Problem](), list[PlannerError]()
    for one in each_stack(request):
        try:
            found.append(resolve(one)[0])
        except PlannerError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return found


def _least_devices(problem: Problem, request: Request) -> int:
    """Devices below which not even master weights and moments fit, beside hosts where these may live there."""
    if problem.job.lora_rank is not None:  # a frozen model has none
        return 1
    of_stack, cluster = problem.stack.engine, problem.cluster
    each = of_stack.master + of_stack.moment_bytes(problem.job.optimizer)
    room = room_of(request, problem).most
    tried = Axes(problem, request.restrict, request.without).offload(1)
    if any(offload & OFFLOAD_OPTIMIZER for (offload,) in tried):
        if cluster.host_memory is None:
            return 1
        room += cluster.host_memory / cluster.devices_per_node
    return max(math.ceil(model_parameters(problem.model).total * each / room), 1)
