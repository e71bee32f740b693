"""How should this model be trained on this cluster? The main path, in about a screen; read this first.

    given     resolve(request)                 model, cluster, job, stack      -> Problem
    legal     Space(problem)                   every configuration, by cuts    -> Space
    cost      CostModel(problem, rates)        step time and memory of each
    best      search(model, space, limit)      the fastest that fit            -> SearchResult
              refine(model, found, look)       in the order of simulated pipelines
              solve_splits(model, found)       layers of every stage           -> SplitsSolved
              pareto_front(model, space)       step time against memory        -> ParetoFront
    answer    Plan                             what the report shows and the plan file holds

Left out: what the whole run takes (`campaign/`), and launch files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.answer.answerer import Answerer
from planner.answer.launchable import with_launch_note
from planner.answer.nearest_run import nearest_run
from planner.answer.over_members import plan_over_members
from planner.answer.posed import Posed
from planner.answer.spare_nodes import FEW_CUTS, with_spare_nodes
from planner.answer.stopping import Stopwatch
from planner.answer.turned_on import plainest
from planner.ask.option import as_written
from planner.ask.request import Request, cost_model, kept_back, resolve, room_of
from planner.campaign.run import tokens_of_batch
from planner.catalog.load_campaign import load_assumptions
from planner.cost.model import CostModel
from planner.errors import PlannerError
from planner.frameworks import explicit_splits
from planner.solve.kept import Front
from planner.solve.layouts import EFFORT, PASSING_EFFORT, PASSING_FINALISTS, SplitsSolved, solve_splits
from planner.solve.open import open_configurations
from planner.solve.pareto import REACH, ParetoFront, pareto_front
from planner.solve.refine import (
    FINALISTS,
    LISTED,
    PASSING_SIMULATED,
    SIMULATED,
    listed_once,
    refine,
    worth_listing,
)
from planner.solve.relax import (
    better_batch,
    better_batch_advice,
    doubled_batch,
    fitting_changes,
    large_run_batch,
    legal_changes,
    with_batch,
)
from planner.solve.search import SearchResult, search
from planner.space.axes import recompute_choices
from planner.space.batch import in_tokens
from planner.space.enumerate import Space
from planner.space.framework_rules import rules_for
from planner.spec.findings import Finding, finding
from planner.spec.machine.build_cluster import NodeTypeError
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.planfile import Ending, Objective, Plan
from planner.spec.rule import Problem
from planner.spec.verdict import MemoryVerdict, worth_the_risk

MOST_DOUBLINGS = 5  # of the devices, where nothing fits
LONGEST = 1e6  # [s] of a step, where nothing fits under the stack's own splits and so none is known


def make_plan(request: Request) -> Plan:
    """The fastest configurations that are legal and fit, on any stack that is named with any of its options that change
    speed alone, or why there are none. Raises `PlannerError`."""
    found = plan_over_members(request, _plan_of_member)
    return found.model_copy(update={"asked": as_written(request)})


def _plan_of_member(request: Request, posed: Posed) -> Plan:
    """The same on one stack as it is named; what may not fit, if asked for, only where it gains what is worth the
    risk."""
    with Stopwatch(request.time_limit) as watch:
        found = _searched(request, watch, posed)
        by_time = Objective(request.objective) is Objective.STEP_TIME
        if not (request.borderline and by_time and _may_not_fit(found)) or watch.stopped():
            return found
        surely = _searched(replace(request, borderline=False), watch, posed)
        if not surely.found or _may_not_fit(surely):
            return found
        bold, sure = found.choices[0], surely.choices[0]
        if worth_the_risk(bold.step_time, sure.step_time):
            return found
        gain = sure.step_time / bold.step_time - 1
        said = finding("too_little_for_the_risk", configuration=bold.config.text, gain=gain)
        return surely.model_copy(update={"notes": (*surely.notes, said)})


def _may_not_fit(plan: Plan) -> bool:
    """Is the best configuration's memory borderline?"""
    return plan.found and plan.choices[0].memory.verdict is MemoryVerdict.BORDERLINE


def _searched(request: Request, watch: Stopwatch, posed: Posed) -> Plan:
    problem, assumed, space, model, room = posed.problem, posed.assumed, posed.space, posed.model, posed.room
    simulator, objective, source = posed.simulator, Objective(request.objective), posed.source
    listed_front, allowed = Front(), room.limit if request.borderline else room.sure
    finalists = max(FINALISTS if request.thorough else PASSING_FINALISTS, 2 * request.top)

    def look(most: int) -> SearchResult:
        return search(model, source, allowed, most, stopped=watch.stopped, front=listed_front)

    found, splits = look(finalists), None
    for more in (tier for tier in room.tiers if tier > allowed):
        if len(found.best) or watch.stopped():
            break
        allowed = more
        found = look(finalists)
    wanted = request.front or objective is Objective.HEADROOM
    front = ParetoFront(found.best.take(slice(0)), np.zeros(0), np.zeros(0), False)
    if wanted:
        reach, most = np.inf if objective is Objective.HEADROOM else REACH, max(room.limit, allowed)
        front = pareto_front(model, source, most, watch.stopped, listed_front, reach)
    if objective is Objective.HEADROOM:
        found = replace(found, best=front.roomiest(room.limit).take(slice(request.top)))
    else:
        listed = max(LISTED, request.top) if request.thorough else request.top
        simulated = SIMULATED if request.thorough else PASSING_SIMULATED
        most = finalists if watch.stopped() else max(simulated, finalists)
        found = refine(model, simulator, found, look, finalists, listed, most)
        explicit = explicit_splits(problem.stack.framework)
        splits = solve_splits(
            model, simulator, found, allowed, explicit, watch.stopped,
            lambda config: recompute_choices(problem, request.restrict, config),
            request.effort * (EFFORT if request.thorough else PASSING_EFFORT),
            (lambda best: open_configurations(model, source, allowed, min(best, LONGEST)))
            if request.thorough else None,
            posed.known,
        )  # fmt: skip
        splits = _plainest_first(splits, problem)
        kept = () if len(space.axes.graphs) > 1 else ("cuda_graph_impl",)
        once = listed_once(problem, (*request.restrict, *kept))
        found = replace(found, best=worth_listing(splits.best, splits.time, request.top, once), once=once)
    helps: tuple[Finding, ...] | None = None
    notes: tuple[Finding, ...] = ()
    if request.thorough:
        helps, notes = _advice(request, problem, model, space, found, allowed, watch)
    answer = Answerer(
        problem,
        model,
        simulator,
        assumed,
        kept_back(request, problem),
        request.restrict,
        load_assumptions(request.assume),
    )
    made = answer.plan(space, found, splits, helps, front, watch.ending, objective, watch.seconds, allowed)
    made = made.model_copy(update={"notes": notes})
    if not request.thorough:
        return made
    made = made.model_copy(update={"nearest_run": nearest_run(problem)})
    if len(space) <= FEW_CUTS and objective is Objective.STEP_TIME and request.seek_batch:
        made = with_spare_nodes(made, request, make_plan, watch)
    return with_launch_note(made, problem.model, problem.stack)


def _plainest_first(splits: SplitsSolved, problem: Problem) -> SplitsSolved:
    """The same; of configurations that tie with the fastest the one with the fewest things turned on comes first."""
    first = plainest(splits.best, splits.time, problem.stack) if len(splits.best) else 0
    if not first:
        return splits
    order = np.array([first, *(row for row in range(len(splits.best)) if row != first)])
    return replace(splits, best=splits.best.take(order), time=splits.time[order], per_stage=None)


def _advice(
    request: Request, problem: Problem, model: CostModel, space: Space, found: SearchResult, allowed: float,
    watch: Stopwatch,
) -> tuple[tuple[Finding, ...] | None, tuple[Finding, ...]]:  # fmt: skip
    """Changes of the request that would make something legal, make it fit, or, where time is what counts, make it
    faster, None where no time was left to seek them; and what of them the head of the answer says: that a batch which
    nobody asked for is much slower than a larger one."""
    room = room_of(request, problem)
    if not found.legal + found.undealt + found.undealt_by_memory:
        return tuple(legal_changes(problem, rules_for(problem.stack), request.restrict)), ()
    if not len(found.best):
        return (
            (_fitting(request, problem, MemoryVerdict.DOES_NOT_FIT), ())
            if watch.ending is Ending.COMPLETE
            else (None, ())
        )
    if request.objective == Objective.HEADROOM:
        return (), ()
    surely: tuple[Finding, ...] = ()
    if allowed > room.sure and not (request.borderline or watch.stopped()):
        surely = _fitting(request, problem, MemoryVerdict.BORDERLINE)
    better = (better_batch(problem) or doubled_batch(problem, found.best)) if request.seek_batch else 0
    if request.seek_batch and request.global_batch is None:
        better = large_run_batch(problem) or better
    if not better or watch.stopped():
        return surely, ()
    other = cost_model(with_batch(problem, better))
    tokens = tokens_of_batch(problem, load_assumptions(request.assume), better)
    advice = better_batch_advice(model, found.best, other, allowed, request.restrict, tokens)
    if advice is None:
        return surely, ()
    unasked = request.global_batch is None and better > problem.job.global_batch
    return (*surely, advice.said), advice.note if unasked else ()


def _fitting(request: Request, problem: Problem, now: MemoryVerdict) -> tuple[Finding, ...]:
    """Changes of the request under which something fits that `now` does not, or not surely."""
    room, larger = room_of(request, problem), _larger(request, problem.cluster.num_devices)
    resized = _resized(request, problem)
    return tuple(fitting_changes(problem, request.restrict, room, cost_model, larger, resized, now))


def _larger(request: Request, devices: int) -> list[int]:
    """Twice the devices, four times, and so on, as far as the cluster has them, and all that it has."""
    doubled = [devices << doublings for doublings in range(1, MOST_DOUBLINGS + 1)]
    try:
        most = load_cluster(request.cluster, None).num_devices
    except NodeTypeError:  # as many as anyone asks for
        return doubled
    return sorted({*(n for n in doubled if n < most), *((most,) if devices < most <= doubled[-1] else ())})


def _resized(request: Request, problem: Problem) -> Callable[[int], Problem | None]:
    """The same problem on other numbers of devices, None where these are no whole nodes; a batch that was not given in
    sequences is the one that a plan has there."""
    asked = request.global_batch
    free = asked is None or in_tokens(asked)
    batch = asked if free else str(problem.job.global_batch)
    held = replace(request, global_batch=batch, seq_len=problem.job.seq_len)

    def on_devices(gpus: int) -> Problem | None:
        try:
            return resolve(replace(held, gpus=gpus))[0]
        except PlannerError:
            return None

    return on_devices
