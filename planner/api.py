"""How does a program ask? `planner.plan`, `planner.estimate`, `planner.dry_run`, `planner.compare`, `planner.size`.

    import planner
    best = planner.plan("llama-3.1-70b", "dgx-h100", gpus=512, tokens="15T")
    best.choices[0].step_time                # seconds; every field says its unit
    best.to_dataframe()                      # a row for each configuration (needs pandas)

Their keywords are the options of `planner.ask.question`. Answers are those of the command line: "nothing fits" is a
result with reasons, and what cannot be understood raises a `planner.PlannerError`, in words of keywords. Left out:
drawing and writing of answers (`planner.report`, `planner.spec.load_plan`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from planner.answer.compare import Comparison, comparison_of
from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.answer.size import Sizing, size_of
from planner.ask.option import given_kinds, options_of, values_of
from planner.ask.question import (
    ComparisonQuestion,
    DryrunQuestion,
    EstimateQuestion,
    Request,
    SearchQuestion,
    SizeQuestion,
)
from planner.dialect import as_keyword, in_words, only
from planner.dryrun.allocator.settings import read_alloc_conf
from planner.dryrun.extra import require_extra, runner_for
from planner.errors import InputError, PlannerError, nearest_names
from planner.report.words import worded
from planner.spec.planfile import Plan

if TYPE_CHECKING:
    from planner.dryrun.question import DryRun

Given = ParamSpec("Given")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def _asked_as(
    kind: Callable[Given, Asked],
) -> Callable[[Callable[[Asked], Answer]], Callable[Given, Answer]]:
    """Turn a function of a question into one of its options by keyword, whose answers and errors speak of keywords."""
    assert isinstance(kind, type), "a dataclass"
    options = options_of(kind)
    parameters = [
        one.replace(annotation=given, default=Parameter.empty if options[one.name].required else one.default)
        for one, given in zip(signature(kind).parameters.values(), given_kinds(kind), strict=True)
    ]
    python = only(options, as_keyword)

    def taken(answer: Callable[[Asked], Answer]) -> Callable[Given, Answer]:
        @functools.wraps(answer)
        def ask(*args: Given.args, **given: Given.kwargs) -> Answer:
            for name in given:
                if name not in options:
                    near = ", ".join(nearest_names(name, options))
                    raise InputError("a keyword must be known", name, f"nearest: {near}")
            told.bind(*args, **given)  # raises TypeError as a call does
            try:
                return worded(answer(kind(*args, **given)), python)
            except PlannerError as error:
                error.say_in(python)
                raise

        said = "\n".join(f"    {name}: {one.help}" for name, one in options.items())
        told = Signature(parameters, return_annotation=signature(answer).return_annotation)
        ask.__doc__ = in_words(f"{answer.__doc__}\n\n{said}\n", python)
        ask.__signature__ = told  # type: ignore[attr-defined]
        return ask

    return taken


@_asked_as(SearchQuestion)
def plan(asked: SearchQuestion) -> Plan:
    """The fastest configurations that are legal and fit, best first, or why there are none. Raises `PlannerError`."""
    from planner.answer.objective import plan_with_size
    from planner.spec.planfile import CHOOSES_SIZE

    request = Request(**values_of(asked, options_of(SearchQuestion)))
    answer = plan_with_size if asked.objective in CHOOSES_SIZE else make_plan
    run = runner_for(asked.dryrun, asked.alloc_conf)
    if run is None:
        return answer(request)
    from planner.dryrun.confirm import confirmed

    return confirmed(answer(request), run)


@_asked_as(EstimateQuestion)
def estimate(asked: EstimateQuestion) -> Plan:
    """What the one configuration that `set` names costs, or which rules it breaks. Raises `PlannerError`."""
    run = runner_for(asked.dryrun, asked.alloc_conf)
    if run is None:
        return make_estimate(asked)
    from planner.dryrun.confirm import beside

    return beside(make_estimate(asked), run)


@_asked_as(DryrunQuestion)
def dry_run(asked: DryrunQuestion) -> DryRun:
    """What the one configuration that `set` names does to its devices, by its software's own step on tensors without
    data: peaks, times, what is held. Raises `PlannerError`."""
    from planner.dryrun.question import make_dryrun

    settings = read_alloc_conf(asked.alloc_conf)
    require_extra()
    return make_dryrun(asked, settings, asked.largest, asked.longest)


@_asked_as(ComparisonQuestion)
def compare(asked: ComparisonQuestion) -> Comparison:
    """The best plan of each cluster, in the order of the objective. Raises `PlannerError`."""
    return comparison_of(asked)


@_asked_as(SizeQuestion)
def size(asked: SizeQuestion) -> Sizing:
    """The fewest GPUs that end within `days`, the fastest for `budget` dollars, or with `min` the fewest that fit.
    Raises `PlannerError`."""
    return size_of(asked)
