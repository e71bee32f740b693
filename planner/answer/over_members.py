"""Which stack, with which of its options, is best? A search for each, merged.

Every member of the search (`space/members.py`) is searched under the stack's own splits; those within `NEAR` of the
best are planned with little effort, and the best of these in full; once more without options that gain it nothing.
Layouts of the others are bounded, not searched for an answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from planner.answer.headline import with_gap
from planner.answer.posed import Posed, Screened, pose
from planner.answer.stopping import Stopwatch
from planner.answer.turned_on import opened, standing, step_time_of, time_of, turned_on_facts
from planner.ask.request import Request, check_request, cost_model, each_stack
from planner.catalog.load_stacks import load_stack
from planner.catalog.stack_options import SEPARATOR
from planner.errors import FileInputError, PlannerError, UnknownNameError
from planner.solve.layouts import OUTSIDE_EFFORT
from planner.solve.outside import Outside
from planner.solve.pareto import NEAR_MOST_ROOM
from planner.solve.splits.dealt import Dealt
from planner.solve.unasked import Answer, Gain, degrees_of, findings_of, numeric_gains, wide_scores
from planner.space.held_fixed import held, with_gains
from planner.space.members import SEARCHED, active_stack, members, turned_on, with_turned_on
from planner.spec.config import ConfigTable
from planner.spec.findings import finding
from planner.spec.planfile import (
    CLOSED_GAP,
    Certificate,
    Choice,
    Ending,
    Objective,
    Plan,
    RemovedBy,
    Search,
    Verdict,
)
from planner.spec.rule import Problem
from planner.spec.tried import Held, StackStanding
from planner.spec.verdict import MemoryVerdict

PlanOf = Callable[[Request, Posed], Plan]
NEAR: Final = 0.02  # of the step time: what solved splits may make of it


def plan_over_members(request: Request, plan_of: PlanOf) -> Plan:
    """The best plan of every stack that a question names, with any of its options; `plan_of`: one of these alone."""
    check_request(request)
    asked = each_stack(request)
    with Stopwatch(request.time_limit) as watch:
        one = len(asked) == 1
        plan = _of_stack(request, plan_of, watch) if one else _of_stacks(request, asked, plan_of, watch)
        update: dict[str, object] = {"seconds": watch.seconds()}
        if plan.search.certificate is not None:
            update["certificate"] = plan.search.certificate.model_copy(update=update)
        return with_gap(plan.model_copy(update={"search": plan.search.model_copy(update=update)}))


def _of_stacks(request: Request, asked: Sequence[Request], plan_of: PlanOf, watch: Stopwatch) -> Plan:
    """The best plan of several stacks, each `asked` about alone."""
    plans: list[Plan] = []
    standings: list[StackStanding] = []
    errors: list[PlannerError] = []
    for one in asked:
        assert one.stack is not None, "named"
        try:
            plans.append(_of_stack(one, plan_of, watch))
        except (FileInputError, UnknownNameError):
            raise
        except PlannerError as error:
            errors.append(error)
            standings.append(standing(one.stack, None, (finding("refused", must=error.must),)))
            continue
        best = plans[-1].choices[0] if plans[-1].found else None
        standings.append(standing(one.stack, best, () if best else plans[-1].headline))
    if not plans:
        raise errors[0]
    plans.sort(key=lambda plan: _rank(plan, request))
    standings.sort(key=lambda one: math.inf if one.step_time is None else one.step_time)
    merged = _merged(plans[0], plans[1:], request)
    update: dict[str, object] = {"stacks": tuple(standings)}
    if merged.search.certificate is not None:
        kept = tuple(one for plan in plans for one in _held_of(plan, plan is not plans[0]))
        update["certificate"] = merged.search.certificate.model_copy(update={"held": kept})
    return merged.model_copy(update={"search": merged.search.model_copy(update=update)})


def _held_of(plan: Plan, names_it: bool) -> tuple[Held, ...]:
    """What one of several stacks holds fixed, naming it."""
    certificate, stack = plan.search.certificate, plan.subject.stack.name.partition(SEPARATOR)[0]
    kept = () if certificate is None else certificate.held
    return tuple(one.model_copy(update={"stack": stack * names_it}) for one in kept)


@dataclass(frozen=True)
class _Planned:
    """A member of a search and what was planned for it."""

    posed: Posed
    plan: Plan
    passing: bool = False

    @property
    def problem(self) -> Problem:
        """What it searches."""
        return self.posed.problem


def _of_stack(request: Request, plan_of: PlanOf, watch: Stopwatch) -> Plan:
    """The best plan of one stack with any of its options."""
    base = pose(request)
    named = base.problem.stack.name
    tried = members(base.problem, request.restrict, request.without)
    options = [(*request.options, *turned_on(member.stack.name, named)) for member in tried]
    by_time = Objective(request.objective) is Objective.STEP_TIME
    posed, screened, planned = [base], list[Screened](), list[_Planned]()
    if len(tried) > 1 or options[0] != request.options:
        posed = [
            base
            if some == request.options
            else replace(pose(replace(request, options=some)), known=base.known)
            for some in options
        ]
    unseen = False
    if len(posed) > 1 and by_time:
        screened, near = _screened(posed, request.thorough, watch)
        unseen = len(screened) < len(posed)
        posed = near or [posed[0]]
    for one in posed if len(posed) > 1 else ():
        asked = replace(_in_time(one.request, watch), thorough=False, front=False, seek_batch=False)
        planned.append(_Planned(one, plan_of(asked, one), passing=True))
        if watch.stopped() or _ending(planned[-1].plan) is Ending.INTERRUPTED:
            break
    first = min(planned, key=lambda one: _rank(one.plan, request), default=None)
    if first is None or request.thorough or request.front:
        chosen = first.posed if first and first.plan.choices else posed[0]
        best = _Planned(chosen, plan_of(_in_time(chosen.request, watch), chosen))
    else:
        best = first
    others = [one for one in planned if one.posed is not best.posed]
    kept = _gaining(best, base.problem) if by_time and best.plan.found and not watch.stopped() else None
    if kept is not None:
        fewer = replace(pose(replace(request, options=(*request.options, *kept))), known=base.known)
        pair = best, _Planned(fewer, plan_of(_in_time(fewer.request, watch), fewer))
        best, other = sorted(pair, key=lambda one: _rank(one.plan, request))
        others.append(other)
    plan = _told(request, base.problem, best, others, screened, watch)
    certificate = plan.search.certificate
    if not unseen or certificate is None:
        return plan
    # no time was left for some members, so nothing is known that none of theirs beats
    nothing = certificate.model_copy(update={"bound": None, "gap": None, "outside_bound": None})
    return plan.model_copy(update={"search": plan.search.model_copy(update={"certificate": nothing})})


def _screened(posed: Sequence[Posed], thorough: bool, watch: Stopwatch) -> tuple[list[Screened], list[Posed]]:
    """The fastest of every member, of one of many answers only as far as it is near the best, and those that are near
    it; none where nothing fits."""
    screened, best = list[Screened](), None
    for one in posed if thorough else reversed(posed):  # with most turned on the fastest comes first
        screened.append(one.fastest(watch.stopped, None if thorough else best, NEAR))
        # what surely fits comes before what is faster
        best = min((s for s in screened if len(s.best)), key=lambda s: (s.allowed, s.step_time), default=None)
        if best is not None and best.allowed <= best.posed.allowed:  # nothing slower is ever the best again
            _forget(screened, best)
        if watch.stopped():
            break
    if best is None:
        return screened, []
    _forget(screened, best)
    near = {id(one.posed) for one in screened if one.step_time <= best.step_time * (1 + NEAR)}
    return screened, [one for one in posed if id(one) in near]


def _forget(screened: Sequence[Screened], best: Screened) -> None:
    """Forget the costs of members far from the best: their layouts are bounded, their leaves not costed again."""
    for one in screened:
        if one.step_time > best.step_time * (1 + NEAR):
            one.posed.source.forget_costs()


def _gaining(best: _Planned, base: Problem) -> tuple[str, ...] | None:
    """The options of a plan but for those of every member that gain its best configuration nothing; None where there is
    no such one."""
    choice = best.plan.choices[0]
    named = turned_on(active_stack(best.problem, base.stack, choice.config.parallel()), base.stack.name)
    kept = named
    for name in named:
        others = tuple(other for other in kept if other != name)
        time = step_time_of(with_turned_on(base, others), choice) if SEARCHED[name].always else None
        if time is not None and time <= choice.step_time * (1 + CLOSED_GAP):
            kept = others
    return None if kept == named else kept


def _told(
    request: Request, base: Problem, best: _Planned, others: Sequence[_Planned], screened: Sequence[Screened],
    watch: Stopwatch,
) -> Plan:  # fmt: skip
    """The plan with what the others found in it, and with what was turned on, held and not taken."""
    plans = [_active(one, base) for one in (best, *others)]
    names = {one.problem.stack.name: plan for one, plan in zip((best, *others), plans, strict=True)}
    plan, looked_at = (
        _merged(plans[0], plans[1:], request),
        [best, *(one for one in others if not one.passing)],
    )
    plan = _with_screened(plan, (best, *others), looked_at, screened, watch)
    if plan.found and Objective(request.objective) is Objective.STEP_TIME:
        times = dict[str, float]()
        if request.thorough:  # else none is known of those that are not near the best
            times = {one.posed.problem.stack.name: one.step_time for one in screened if len(one.best)}
            times |= {name: one.choices[0].step_time for name, one in names.items() if one.found}
        plan = _with_turned_on(plan, base, times, screened)
    tried = dict.fromkeys([*(one.posed.problem.stack.name for one in screened), *names])
    search = plan.search.model_copy(update={"members": tuple(tried), "without": request.without})
    plan = plan.model_copy(update={"search": search})
    gains: tuple[Gain, ...] = ()
    if plan.choices and request.thorough and Objective(request.objective) is Objective.STEP_TIME:
        plan, gains = _with_numerics(plan, base, request)
    certificate = plan.search.certificate
    if certificate is None:
        return plan
    fixed = () if request.precision is None else ("precision",)
    shares = {g.change.names[0]: g.share for g in gains if len(g.change.names) == 1 and g.share is not None}
    kept = with_gains(held(base, request.restrict, request.without, fixed), shares)
    certificate = certificate.model_copy(update={"held": kept})
    return plan.model_copy(update={"search": plan.search.model_copy(update={"certificate": certificate})})


def _with_screened(
    plan: Plan, planned: Sequence[_Planned], looked_at: Sequence[_Planned], screened: Sequence[Screened],
    watch: Stopwatch,
) -> Plan:  # fmt: skip
    """The plan with the counts of members that were not `planned`, and what layouts could bring of those at whose
    layouts nobody `looked_at`."""
    searched = [one for one in screened if not any(one.posed is other.posed for other in planned)]
    unknown = [one for one in screened if not any(one.posed is other.posed for other in looked_at)]
    certificate = plan.search.certificate
    if not unknown or certificate is None:
        return plan
    spaces = [(one.posed.space.total, one.found) for one in searched]
    counts = ("legal", "undealt", "undealt_by_memory", "too_large", "costed")
    added: dict[str, int] = {name: sum(getattr(found, name) for _, found in spaces) for name in counts}
    added["candidates"] = sum(total for total, _ in spaces)
    removed = {one.rule: one.candidates for one in plan.search.removed}
    for one in searched:
        for rule in one.posed.space.removed:
            removed[rule.rule] = removed.get(rule.rule, 0) + rule.candidates
    ordered = sorted(removed.items(), key=lambda item: -item[1])
    candidates, costed = certificate.candidates + added["candidates"], certificate.costed + added["costed"]
    by_memory = certificate.by_memory + sum(
        f.by_memory + f.too_large + f.undealt_by_memory for _, f in spaces
    )
    by_bound = certificate.by_bound + sum(found.behind + found.undealt for _, found in spaces)
    fit = costed - plan.search.too_large - added["too_large"]
    proven: dict[str, float | None] = {
        "candidates": candidates, "by_memory": by_memory, "by_bound": by_bound, "costed": costed,
        "by_rule": candidates - by_memory - by_bound - fit,
    }  # fmt: skip
    update = {name: getattr(plan.search, name) + more for name, more in added.items()}
    if plan.choices and certificate.best is not None and certificate.bound is not None:
        bound = certificate.outside_bound
        outside = Outside(certificate.outside, math.inf if bound is None else bound)
        left, peak = OUTSIDE_EFFORT * unknown[0].posed.request.effort, plan.choices[0].memory.peak
        for one in unknown:
            other, spent = one.posed.outside(certificate.best, peak, left, watch.stopped)
            outside, left = outside.beside(other), left - spent
        proven |= {"outside": outside.configurations}
        if math.isfinite(outside.bound):
            proven["outside_bound"] = outside.bound
        bound = min(certificate.bound, outside.bound, *(one.found.unseen for one in unknown))
        proven |= {"bound": bound, "gap": (certificate.best - bound) / certificate.best}
    taken = tuple(RemovedBy(rule=rule, candidates=n) for rule, n in ordered)
    whole = {**update, "removed": taken, "certificate": certificate.model_copy(update=proven)}
    search = plan.search.model_copy(update=whole)
    return plan.model_copy(update={"search": search})


def _active(one: _Planned, base: Problem) -> Plan:
    """A member's plan, each choice under the options that change something of it."""
    choices = tuple(
        choice.model_copy(update={"stack": active_stack(one.problem, base.stack, choice.config.parallel())})
        for choice in one.plan.choices
    )
    return one.plan.model_copy(update={"choices": choices})


def _with_turned_on(
    plan: Plan, base: Problem, times: Mapping[str, float], screened: Sequence[Screened]
) -> Plan:
    best, named = plan.choices[0], base.stack.name
    more = turned_on(best.stack, named)
    always = [name for name in more if SEARCHED[name].always]
    alone: dict[str, float | None] = {}
    for name in always:
        kept = [other for other in more if other != name]
        alone[name] = step_time_of(with_turned_on(base, kept), best)
    as_named = None
    for one in screened if more else ():
        if set(turned_on(one.posed.problem.stack.name, named)) <= set(always) and len(one.best):
            as_named = time_of(base, one.best, one.posed.room.most)
            break
    if not screened and more:
        as_named = step_time_of(base, best)
    facts = {"turned_on": turned_on_facts(best, named, times, alone), "as_named": as_named}
    return plan.model_copy(update={"search": plan.search.model_copy(update=facts)})


def _with_numerics(plan: Plan, base: Problem, request: Request) -> tuple[Plan, tuple[Gain, ...]]:
    """The plan, naming what other numerics would bring to its configurations, and these gains."""
    best, named = plan.choices[0], base.stack.name
    problem = with_turned_on(base, turned_on(best.stack, named))
    alike = [choice for choice in plan.choices if choice.stack == best.stack]
    configs = [choice.config.parallel() for choice in alike]
    dealt = {
        config: Dealt(choice.split.layers_per_chunk, (config.recompute_layers,))
        for config, choice in zip(configs, alike, strict=True)
        if choice.split is not None
    }
    every = ConfigTable.of([choice.config.parallel() for choice in plan.choices])
    near = degrees_of(every, request.restrict)
    answer = Answer(problem, ConfigTable.of(configs), best.memory.limit, cost_model, dealt, near)
    gains = numeric_gains(answer)
    found = (*findings_of(gains, answer, named), *wide_scores(answer, named, gains))
    return plan.model_copy(update={"smallest_change": (*found, *plan.smallest_change)}), gains


def _in_time(request: Request, watch: Stopwatch) -> Request:
    """The question with what is left of its time."""
    left = watch.left()
    return request if math.isinf(left) else replace(request, time_limit=max(left, 1e-3))


def _rank(plan: Plan, request: Request) -> tuple[float, float, float]:
    """Smaller is better; plans with a configuration first, and of these those with one that surely fits."""
    if not plan.found:
        return math.inf, 0.0, 0.0
    best = plan.choices[0]
    if Objective(request.objective) is Objective.HEADROOM:  # the fastest of those that leave as much room
        return 0.0, float(round(best.memory.peak / (NEAR_MOST_ROOM * best.memory.limit))), best.step_time
    return float(_is_unsure(plan, request)), _worth(best), 0.0


def _is_unsure(plan: Plan, request: Request) -> bool:
    """Does a plan's best fit only if the memory model errs on its side, where nobody asked for such?"""
    return plan.found and not request.borderline and plan.choices[0].memory.verdict is not MemoryVerdict.FITS


def _worth(choice: Choice) -> float:
    """Its step time, where whatever is turned on must gain more than what counts as a tie [s]."""
    on = choice.stack.count(SEPARATOR) + opened(choice.config.parallel(), load_stack(choice.stack))
    return choice.step_time * (1 + CLOSED_GAP * on)


def _ending(plan: Plan) -> Ending:
    certificate = plan.search.certificate
    return Ending.COMPLETE if certificate is None else certificate.ending


def _merged(best: Plan, others: Sequence[Plan], request: Request) -> Plan:
    """The best plan with the configurations that others found among its own, each configuration once where there are
    enough, and the counts of all; where the best surely fits, no others'."""
    if best.found and not _is_unsure(best, request):
        others = [_unfit(plan) if _is_unsure(plan, request) else plan for plan in others]
    plans = [best, *others]
    by_time = Objective(request.objective) is Objective.STEP_TIME
    found = [choice for plan in (plans if by_time else [best]) if plan.found for choice in plan.choices]
    choices = sorted(found, key=_worth) if by_time and len(plans) > 1 else found
    seen: set[tuple[str, str]] = set()
    once, again = list[Choice](), list[Choice]()
    for choice in choices:
        like = choice.config.text, choice.layout
        (again if like in seen else once).append(choice)
        seen.add(like)
    pick = best.choices[best.recommended] if best.recommended is not None and best.choices else None
    top = [*once, *again][: request.top]
    if pick is not None and not any(choice is pick for choice in top):
        top = [*top[: max(request.top - 1, 1)], pick]
    listed = tuple(choice for choice in choices if any(choice is one for one in top))
    subject = best.subject
    if listed:
        facts = subject.stack.model_copy(update={"name": listed[0].stack})
        subject = subject.model_copy(update={"stack": facts})
    search = _counts([plan.search for plan in plans])
    update: dict[str, object] = {"choices": listed or best.choices, "search": search, "subject": subject}
    if listed and pick is not None:
        update["recommended"] = next(i for i, choice in enumerate(listed) if choice is pick)
    return best.model_copy(update=update)


def _unfit(plan: Plan) -> Plan:
    """A plan without its choices, none of which is sure to fit: no other's best is compared with them."""
    certificate = plan.search.certificate
    if certificate is not None:
        certificate = certificate.model_copy(update={"best": None, "bound": None, "gap": None})
    search = plan.search.model_copy(update={"certificate": certificate})
    return plan.model_copy(update={"choices": (), "search": search, "verdict": Verdict.NOTHING_FITS})


def _counts(searches: Sequence[Search]) -> Search:
    """The first search with the candidates of all."""
    removed: dict[str, int] = {}
    for search in searches:
        for one in search.removed:
            removed[one.rule] = removed.get(one.rule, 0) + one.candidates
    added = {
        name: sum(getattr(s, name) for s in searches)
        for name in ("candidates", "legal", "undealt", "undealt_by_memory", "too_large", "costed")
    }
    ordered = sorted(removed.items(), key=lambda item: -item[1])
    update = {
        **added, "removed": tuple(RemovedBy(rule=rule, candidates=n) for rule, n in ordered),
        "members": tuple(dict.fromkeys(name for search in searches for name in search.members)),
        "certificate": _proven([s.certificate for s in searches if s.certificate is not None]),
    }  # fmt: skip
    return searches[0].model_copy(update=update)


def _proven(certificates: Sequence[Certificate]) -> Certificate | None:
    """What is proven of the best of several searches."""
    if not certificates:
        return None
    first = certificates[0]
    added = {
        name: sum(getattr(one, name) for one in certificates)
        for name in ("candidates", "by_rule", "by_memory", "by_bound", "costed", "solved", "splits_solved", "outside")
    }  # fmt: skip
    ending = next((one.ending for one in certificates if one.ending is not Ending.COMPLETE), Ending.COMPLETE)
    outside = [one.outside_bound for one in certificates if one.outside_bound is not None]
    update = {**added, "ending": ending, "outside_bound": min(outside, default=None)}
    bounds = [one.bound for one in certificates if one.bound is not None]
    if (
        first.bound is not None
        and first.best is not None
        and bounds
        and first.objective is Objective.STEP_TIME
    ):
        # another's best may be less than the first's, by no more than a tie
        bests = [one.best for one in certificates if one.best is not None]
        bound = min(*bests, *bounds)
        update |= {"bound": bound, "gap": (first.best - bound) / first.best}
    return first.model_copy(update=update)
