"""What do the verbs `compare`, `size` and `assumptions` answer? Their bodies; options are in `cli`.

Reads the words of the command line, asks, and hands back an answer to print. Left out: printing and exit codes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.units import parse_count, parse_quantity

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.ask.request import Request


@dataclass(frozen=True)
class Answer:
    """What to print: `document` for a terminal, `facts` for --json; `found` decides the exit code."""

    found: bool
    facts: dict[str, Any]
    document: RenderableType


def compare(
    request: Request, clusters: Sequence[str], gpus: str | None, objective: str, say: Callable[[str], object]
) -> Answer:
    """The best plan of each cluster side by side."""
    from planner.answer.compare import compare_clusters
    from planner.report.comparison import comparison_document, comparison_facts

    names = [name.strip() for text in clusters for name in text.split(",")]
    if not all(names):
        raise InputError("--clusters must be names with commas between", ",".join(clusters))
    processes = _cores() if len(names) > 2 else 1
    found = compare_clusters(request, names, parse_counts(gpus), objective, say, processes)
    return Answer(found.found, comparison_facts(found), comparison_document(found))


def size(
    request: Request,
    days: str | None,
    budget: str | None,
    least: bool,
    spare_nodes: str | None,
    say: Callable[[str], object],
) -> Answer:
    """How many devices to take, for one of three goals."""
    from planner.answer.size import Goal, size_cluster
    from planner.report.sizing import sizing_document, sizing_facts

    given = [goal for goal, said in ((Goal.DAYS, days), (Goal.BUDGET, budget), (Goal.MIN, least)) if said]
    if len(given) != 1:
        said = ", ".join(f"--{goal}" for goal in given) or "none"
        raise InputError(
            "exactly one of --days, --budget and --min must be given", said, "add --days 30, say"
        )
    target = parse_days(days) if days else parse_budget(budget) if budget else None
    if spare_nodes is not None:
        request = replace(request, assume=(*request.assume, f"spare_nodes={spare_nodes}"))
    found = size_cluster(request, given[0], target, say, min(_cores(), 2))
    return Answer(found.found, sizing_facts(found), sizing_document(found))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def assumptions(settings: Sequence[str]) -> Answer:
    """Every assumption about a whole run, with its meaning and source."""
    from planner.catalog.load_campaign import load_assumptions
    from planner.report.assumptions import assumptions_document, assumptions_facts

    held = load_assumptions(settings)
    return Answer(True, assumptions_facts(held), assumptions_document(held))


def parse_counts(text: str | None) -> tuple[int, ...]:
    """ "1024" or "1024,512" as numbers. Raises `InputError`."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= 10**7 for part in parts):
        raise InputError("--gpus must be whole numbers above 0, with commas between", text, "write 1024,512")
    return tuple(int(part) for part in parts)


def parse_days(text: str) -> float:
    """ "30" or "30d" or "12 h" as days. Raises `InputError`."""
    try:
        number = float(text)
    except ValueError:
        number = parse_quantity(text, "time") / 86400
    if not 0 < number < 1e6:
        raise InputError("--days must be above 0 and below a million", text, "write it like 30 or '12 h'")
    return number


def parse_budget(text: str) -> float:
    """ "2.5M", "$2.5M" or "2500000 $" as dollars. Raises `InputError`."""
    bare = text.strip().removeprefix("$").removesuffix("$").removesuffix("USD").strip()
    return parse_count(bare, "--budget", example="5M")
