"""How does a program ask? `planner.plan`, `planner.estimate`, `planner.compare`, `planner.size`.

    import planner
    best = planner.plan("llama-3.1-70b", "dgx-h100", gpus=512, tokens="15T")
    best.choices[0].step_time                # seconds; every field says its unit
    best.to_dataframe()                      # a row for each configuration (needs pandas)

Answers are those of the command line: "nothing fits" is a result with reasons, and what cannot be understood raises a
`planner.PlannerError`, in words of keywords. Left out: drawing and writing of answers (`planner.report`,
`planner.spec.load_plan`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, signature
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any, Final, TypedDict, Unpack, get_type_hints

from planner.answer.compare import Comparison, compare_clusters
from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.answer.size import Goal, Sizing, size_cluster
from planner.ask.request import Request
from planner.errors import InputError, PlannerError, nearest_names
from planner.space.restriction import parse_restriction, split_layout
from planner.space.without import names_left_out
from planner.spec.planfile import Plan
from planner.units import parse_count
from planner.wording import as_keyword, reword

Values = int | str | Sequence[int | str]
Name = str | PathLike[str]  # of the catalog, or a path
_KINDS: Final[dict[type, tuple[type, str]]] = {
    int: (Integral, "a whole number"), float: (Real, "a number"), bool: (bool, "True or False"), str: (str, "text"),
}  # fmt: skip


class Question(TypedDict, total=False):
    """What all four take by keyword; what is left out is chosen and named in the answer's `assumptions`.

    `global_batch`: sequences, or "16Mtok". `tokens`: of the whole run, such as 15e12 or "15T"; adds days, money and
    energy. `set`: axis -> values allowed, such as {"tp": 8, "pp": [4, 8]}; of an estimate also "layout", such as
    [8, 9, 9, 6]. `stack`: several with commas between are compared, "any" all that are current. `without`: what a
    search leaves out, such as "deepep" or ["cuda-graphs", "offload"]. `assume`: as `planner assumptions` lists them,
    such as {"pue": "1.2", "price": "2.50 $/h"}.
    `headroom`: share of the memory kept back, 0.05 or "5%". `calibration`: a file of `planner calibrate`.
    `bf16_layers`: "1,1", layers at either end that an 8- or 4-bit recipe keeps in bf16.
    """

    seq_len: int
    global_batch: int | str
    precision: str
    optimizer: str
    stack: str
    without: str | Sequence[str]
    tokens: float | str
    set: Mapping[str, Values]
    headroom: float | str
    assume: Mapping[str, str | float]
    mtp: bool
    lora_rank: int
    frozen_bits: int
    lora_targets: str
    mean_len: float
    packed: bool
    calibration: str
    expert_loads: str
    expert_replicas: int
    bf16_layers: str


@contextmanager
def _in_keywords(**names: str) -> Iterator[None]:
    """Errors speak of keywords, not of options of the command line. `names`: of those that are called otherwise."""
    known = {
        *Question.__optional_keys__,
        "gpus",
        "max_gpus",
        "top",
        "objective",
        "time_limit",
        "effort",
        "days",
        "budget",
        "clusters",
    }

    def say(name: str, value: str) -> str | None:
        return as_keyword(names.get(name, name), value) if name in known else None

    try:
        yield
    except PlannerError as error:
        reword(error, say)
        raise


_EXAMPLES: Final = {"set": '{"tp": 8}', "assume": '{"pue": 1.2}'}


@_in_keywords()
def plan(
    model: Name, cluster: Name, *, gpus: int | None = None, top: int = 10, objective: str = "step_time",
    time_limit: float | None = None, effort: float = 1.0, **question: Unpack[Question],
) -> Plan:  # fmt: skip
    """The fastest configurations that are legal and fit, best first, or why there are none; `effort`: times as much
    work on layouts of pipelines as by default, which closes gaps of the proof. Raises `PlannerError`."""
    more = {"top": top, "objective": objective, "time_limit": time_limit, "effort": effort}
    asked = _request(model, cluster, gpus, question, **more)
    from planner.answer.objective import plan_with_size
    from planner.spec.planfile import CHOOSES_SIZE

    if objective in {str(kind) for kind in CHOOSES_SIZE}:
        return plan_with_size(asked)
    return make_plan(asked)


@_in_keywords()
def estimate(model: Name, cluster: Name, *, gpus: int | None = None, **question: Unpack[Question]) -> Plan:
    """What the one configuration that `set` names costs, or which rules it breaks. Raises `PlannerError`."""
    return make_estimate(_request(model, cluster, gpus, question))


@_in_keywords()
def compare(
    model: Name, clusters: Sequence[Name], *, gpus: int | Sequence[int] = (), objective: str = "step_time",
    **question: Unpack[Question],
) -> Comparison:  # fmt: skip
    """The best plan of each cluster, in the order of the objective: step_time, days, cost or energy."""
    if isinstance(clusters, str) or not isinstance(clusters, Iterable):
        raise InputError("clusters must be a list of names", repr(clusters), "write ['dgx-h100']")
    counts = (gpus,) if isinstance(gpus, int) else tuple(gpus)
    return compare_clusters(
        _request(model, "", None, question), [_name("cluster", c) for c in clusters], counts, objective
    )


@_in_keywords(gpus="max_gpus")
def size(
    model: Name, cluster: Name, *, days: float | None = None, budget: float | None = None, min: bool = False,
    max_gpus: int | None = None, **question: Unpack[Question],
) -> Sizing:  # fmt: skip
    """The fewest GPUs that end within `days`, the fastest for `budget` dollars, or with `min` the fewest that fit."""
    if sum((days is not None, budget is not None, min)) != 1:
        given = [
            name
            for name, said in (("days", days is not None), ("budget", budget is not None), ("min", min))
            if said
        ]
        raise InputError(
            "exactly one of days, budget and min must be given",
            " and ".join(given) or "none",
            "add days=30, say, or min=True",
        )
    for name, value in (("days", days), ("budget", budget)):
        _check_number(name, value)
    goal = Goal.DAYS if days is not None else Goal.BUDGET if budget is not None else Goal.MIN
    return size_cluster(
        _request(model, cluster, max_gpus, question), goal, days if days is not None else budget
    )


def _told_whole(*functions: Callable[..., object]) -> None:
    """Let signatures and help list the keywords that all take, and what they mean."""
    kinds = get_type_hints(Question)
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in kinds.items()
    ]
    for function in functions:
        own = [
            one for one in signature(function).parameters.values() if one.kind is not Parameter.VAR_KEYWORD
        ]
        told = signature(function).replace(parameters=[*own, *shared])
        function.__signature__ = told  # type: ignore[attr-defined]
        function.__doc__ = f"{function.__doc__}\n\n    {Question.__doc__}"


_told_whole(plan, estimate, compare, size)


def _request(
    model: Name, cluster: Name, gpus: int | None, question: Question, **more: Any
) -> Request:  # fmt: skip
    known = get_type_hints(Question)
    for key, value in question.items():
        if key not in known:
            raise InputError(
                "a keyword must be known", key, "nearest: " + ", ".join(nearest_names(key, known))
            )
        kind, words = _KINDS.get(known[key], (object, ""))
        if not isinstance(value, kind) or (isinstance(value, bool) and known[key] is not bool and words):
            raise InputError(f"{key} must be {words}", repr(value))
    given: dict[str, Any] = {**question, **more}
    if "headroom" in given:
        given["headroom"] = _headroom(given["headroom"])
    for key in ("set", "assume"):
        if not isinstance(given.get(key, {}), Mapping):
            raise InputError(f"{key} must be a mapping", repr(given[key]), f"write {key}={_EXAMPLES[key]}")
    if not isinstance(given.get("top", 1), Integral):
        raise InputError("top must be a whole number", repr(given["top"]))
    for key in ("time_limit", "effort"):
        _check_number(key, given.get(key))
    stated = (f"{axis}={_values(values)}" for axis, values in given.pop("set", {}).items())
    layout, settings = split_layout(stated)
    assume = tuple(f"{key}={value}" for key, value in given.pop("assume", {}).items())
    if "global_batch" in given:
        given["global_batch"] = str(given["global_batch"])
    if "without" in given:
        given["without"] = _names_left_out(given["without"])
    if "tokens" in given:
        given["tokens"] = _tokens(given["tokens"])
    if "mtp" in given:
        given["with_mtp"] = given.pop("mtp")
    return Request(
        model=_name("model", model), cluster=_name("cluster", cluster), gpus=gpus,
        restrict=parse_restriction(settings), layout=layout, assume=assume, **given,
    )  # fmt: skip


def _names_left_out(given: object) -> tuple[str, ...]:
    """Names as text or as a list of it. Raises `InputError`."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InputError("without must be a name or a list of names", repr(given), "write without=['deepep']")
    return names_left_out(names)


def _headroom(given: object) -> float:
    """A share as a number or as text such as "10%". Raises `InputError`."""
    number = given
    if isinstance(given, str):
        try:
            number = float(given.removesuffix("%")) / (100 if given.endswith("%") else 1)
        except ValueError:
            number = None
    if isinstance(number, bool) or not isinstance(number, Real):
        raise InputError("headroom must be a share from 0 to below 1", repr(given), "write 0.05 or '5%'")
    return float(number)


def _check_number(name: str, given: object) -> None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, Real)):
        raise InputError(f"{name} must be a number", repr(given))


def _name(what: str, given: Name) -> str:
    """A name or a path as text. Raises `InputError`."""
    if not isinstance(given, str | PathLike):
        hint = "describe a model in a YAML file, or give its config.json" if what == "model" else ""
        raise InputError(f"the {what} must be a name or a path", type(given).__name__, hint)
    return fspath(given)


def _values(values: Values) -> str:
    return (
        ",".join(map(str, values))
        if isinstance(values, Sequence) and not isinstance(values, str)
        else str(values)
    )


def _tokens(given: float | str) -> float:
    if isinstance(given, bool) or not isinstance(given, Real | str):
        raise InputError("tokens must be a number or text", repr(given)[:80], "write 15e12 or '15T'")
    number = parse_count(given, "tokens") if isinstance(given, str) else float(given)
    if not 0 < number < math.inf:
        raise InputError("tokens must be above 0", str(given), "write 15e12 or '15T'")
    return number
