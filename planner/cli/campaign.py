"""What do the verbs `compare`, `size` and `assumptions` answer? Their bodies; options are in `cli`.

Reads the words of the command line, asks, and hands back an answer to print. Left out: printing and exit codes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.ask.question import ComparisonQuestion, SizeQuestion


@dataclass(frozen=True)
class Answer:
    """What to print: `document` for a terminal, `facts` for --json; `found` decides the exit code."""

    found: bool
    facts: dict[str, Any]
    document: RenderableType


def compare(asked: ComparisonQuestion, say: Callable[[str], object]) -> Answer:
    """The best plan of each cluster side by side."""
    from planner.answer.compare import comparison_of
    from planner.report.comparison import comparison_document, comparison_facts
    from planner.report.words import worded

    found = worded(comparison_of(asked, say, _cores()))
    return Answer(found.found, comparison_facts(found), comparison_document(found))


def size(asked: SizeQuestion, say: Callable[[str], object]) -> Answer:
    """How many devices to take, for one of three goals."""
    from planner.answer.size import size_of
    from planner.report.sizing import sizing_document, sizing_facts
    from planner.report.words import worded

    found = worded(size_of(asked, say, min(_cores(), 2)))
    return Answer(found.found, sizing_facts(found), sizing_document(found))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def assumptions(settings: Sequence[str]) -> Answer:
    """Every assumption about a whole run, with its meaning and source."""
    from planner.catalog.load_campaign import load_assumptions
    from planner.report.assumptions import assumptions_document, assumptions_facts

    held = load_assumptions(settings)
    return Answer(True, assumptions_facts(held), assumptions_document(held))
