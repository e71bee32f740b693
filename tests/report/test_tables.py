"""Tables in narrow terminals: no word is broken, no figure lost."""

from __future__ import annotations

import pytest
from rich.console import Console

from planner.report.tables import shared_width
from planner.report.text import bullets, labelled, listing, plan_document, render
from planner.spec.planfile import Plan


def words_at(width: int, document: object) -> set[str]:
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    return set(render(document, console).split())  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [34, 40, 52, 60, 72])
def test_a_plan_keeps_its_words(width: int, example_plan: Plan) -> None:
    document = plan_document(example_plan)
    narrow, wide = words_at(width, document), words_at(400, document)
    instead_of_columns = (
        f"configuration {' '.join(choice.config.text for choice in example_plan.choices)}".split()
    )
    told = {word.strip(",") for word in wide} | set(instead_of_columns)
    assert {word.strip(",") for word in narrow if set(word) - set("─█▏▎▍▌▋▊▉")} <= told


def test_rows_become_lines_where_words_alone_are_too_wide() -> None:
    table = listing(("configuration", "tokens", "memory"), [("tp8-pp16-dp128", "1,000,000", "fits")])
    console = Console(width=30, markup=False, emoji=False, highlight=False)
    assert render(table, console).split("\n")[0] == "configuration tp8-pp16-dp128,"
    assert words_at(30, labelled([("throughput", "10,619", "incomprehensibilities of")])) == {
        "throughput", "10,619", "incomprehensibilities", "of",
    }  # fmt: skip
    assert "aligned" in render(bullets(["wrapped lines stay aligned"]), console)


@pytest.mark.parametrize(
    ("sizes", "free", "widths"),
    [
        ([(4, 4), (5, 30)], 20, [4, 16]),
        ([(4, 40), (5, 30)], 20, [10, 10]),
        ([(4, 6), (5, 30)], 40, [6, 30]),
        ([(9, 9), (12, 30)], 20, None),
    ],
)
def test_shared_width(sizes: list[tuple[int, int]], free: int, widths: list[int] | None) -> None:
    assert shared_width(sizes, free) == widths
