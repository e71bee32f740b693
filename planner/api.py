"""How does a program ask? `planner.plan`, `planner.estimate`, `planner.compare`, `planner.size`.

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
from dataclasses import fields
from inspect import Parameter, Signature, signature
from typing import ParamSpec, TypeVar

from planner.answer.compare import Comparison, comparison_of
from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.answer.size import Sizing, size_of
from planner.ask.option import given_kinds, options_of
from planner.ask.question import ComparisonQuestion, Question, Request, SizeQuestion
from planner.errors import InputError, PlannerError, nearest_names
from planner.spec.planfile import Plan
from planner.wording import as_keyword, reword, reworded

Given = ParamSpec("Given")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def _asked_as(
    kind: Callable[Given, Asked],
) -> Callable[[Callable[[Asked], Answer]], Callable[Given, Answer]]:
    """Turn a function of a question into one of its options by keyword, whose errors speak of keywords."""
    assert isinstance(kind, type), "a dataclass"
    options, kinds = options_of(kind), given_kinds(kind)
    own = {field.name for field in fields(kind)} - options.keys()
    parameters = [
        one.replace(
            annotation=kinds[name], default=Parameter.empty if options[name].required else one.default
        )
        for name, one in signature(kind).parameters.items()
        if name not in own
    ]

    def say(name: str, value: str) -> str | None:
        return as_keyword(name, value) if name in options else None

    def taken(answer: Callable[[Asked], Answer]) -> Callable[Given, Answer]:
        @functools.wraps(answer)
        def ask(*args: Given.args, **given: Given.kwargs) -> Answer:
            for name in given:
                if name not in options:
                    near = ", ".join(nearest_names(name, options))
                    raise InputError("a keyword must be known", name, f"nearest: {near}")
            try:
                return answer(kind(*args, **given))
            except PlannerError as error:
                reword(error, say)
                raise

        said = "\n".join(f"    {name}: {one.help}" for name, one in options.items())
        ask.__doc__ = reworded(f"{answer.__doc__}\n\n{said}\n", say)
        ask.__signature__ = Signature(parameters, return_annotation=signature(answer).return_annotation)  # type: ignore[attr-defined]
        return ask

    return taken


@_asked_as(Request)
def plan(asked: Request) -> Plan:
    """The fastest configurations that are legal and fit, best first, or why there are none. Raises `PlannerError`."""
    from planner.answer.objective import plan_with_size
    from planner.spec.planfile import CHOOSES_SIZE

    if asked.objective in {str(kind) for kind in CHOOSES_SIZE}:
        return plan_with_size(asked)
    return make_plan(asked)


@_asked_as(Question)
def estimate(asked: Question) -> Plan:
    """What the one configuration that `set` names costs, or which rules it breaks. Raises `PlannerError`."""
    return make_estimate(asked)


@_asked_as(ComparisonQuestion)
def compare(asked: ComparisonQuestion) -> Comparison:
    """The best plan of each cluster, in the order of the objective. Raises `PlannerError`."""
    return comparison_of(asked)


@_asked_as(SizeQuestion)
def size(asked: SizeQuestion) -> Sizing:
    """The fewest GPUs that end within `days`, the fastest for `budget` dollars, or with `min` the fewest that fit.
    Raises `PlannerError`."""
    return size_of(asked)
