"""Drawings of schedules: what a terminal shows, and that the SVG is one well-formed, small document."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest
from rich.console import Console

from planner.report.timeline import MOST_ROWS, drawn_ranks, timeline_svg, timeline_text
from planner.schedule.actions import EMPTY
from planner.schedule.generate import action_table
from planner.schedule.simulate import Timeline, simulate, stage_times
from planner.spec.config import Schedule

SVG = "{http://www.w3.org/2000/svg}"


def timed(schedule: Schedule, p: int, m: int, pair: float | None = None) -> Timeline:
    table = action_table(schedule, p, m)
    return simulate(table, stage_times(table.stages, 1.0, 1.0, 1.0, 0.0, pair))


def test_each_rank_is_a_row_with_its_passes_in_place() -> None:
    rows = timeline_text(timed(Schedule.ONE_F_ONE_B, 2, 2), 25).plain.splitlines()
    # makespan 9 over 18 columns: a forward takes two, a backward four
    assert rows[0] == "rank 0 F0F1····B0  ··B1  "
    assert rows[1] == "rank 1 ··F0B0  F1B1  ····"


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("schedule", [*list(Schedule)[:6], Schedule.DUALPIPE, Schedule.DUALPIPE_V])
def test_no_line_is_wider_than_the_terminal(schedule: Schedule, width: int) -> None:
    text = timeline_text(timed(schedule, 4, 16), width)
    assert max(len(line) for line in text.plain.splitlines()) <= width
    plain = Console(width=width, no_color=True, force_terminal=True, highlight=False)
    with plain.capture() as capture:
        plain.print(text)
    assert "\x1b[3" not in capture.get()
    assert "\x1b[4" not in capture.get()
    assert "F" in capture.get()


def test_many_ranks_and_passes_are_drawn_small() -> None:
    timeline = timed(Schedule.ONE_F_ONE_B, 64, 256)
    lines = timeline_text(timeline, 80).plain.splitlines()
    assert len(lines) == MOST_ROWS + 2
    assert f"... {64 - MOST_ROWS} ranks left out" in lines
    assert any("#" in line for line in lines)
    assert len(timeline_svg(timeline, "t")) < 2_000_000


def test_ranks_left_out_are_those_in_the_middle() -> None:
    assert drawn_ranks(3) == [0, 1, 2]
    assert drawn_ranks(10, 4) == [0, 1, 8, 9]


def test_svg_is_well_formed_escaped_and_self_contained() -> None:
    text = timeline_svg(timed(Schedule.DUALPIPE, 2, 4, 2.2), 'a <b> & "c"')
    root = ET.fromstring(text)
    assert root.get("aria-label") == 'a <b> & "c"'
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    tips = [element.text for element in root.iter(f"{SVG}title")]
    assert len(tips) == np.count_nonzero(timed(Schedule.DUALPIPE, 2, 4).table.kind != EMPTY)
    assert "prefers-color-scheme:dark" in text


def test_the_legend_names_what_is_drawn() -> None:
    whole, split = (timeline_svg(timed(s, 4, 8), "t") for s in (Schedule.ONE_F_ONE_B, Schedule.ZB_H1))
    assert ">backward<" in whole
    assert "gradient" not in whole
    assert ">weight gradient<" in split
    assert ">mixed<" not in whole + split
    assert ">mixed<" in timeline_svg(timed(Schedule.ONE_F_ONE_B, 64, 256), "t")


def test_halves_of_an_overlapped_pair_stand_side_by_side() -> None:
    timeline = timed(Schedule.DUALPIPE_V, 2, 6, 2.2)
    rows = timeline_text(timeline, 200).plain
    assert "F" in rows
    assert "b" in rows
    root = ET.fromstring(timeline_svg(timeline, "t"))
    boxes = [
        (float(r.get("x", 0)), float(r.get("width", 0)), float(r.get("y", 0)))
        for g in root.iter(f"{SVG}g")
        for r in g.iter(f"{SVG}rect")
    ]
    by_row: dict[float, list[tuple[float, float]]] = {}
    for x, width, y in boxes:
        by_row.setdefault(y, []).append((x, width))
    for row in by_row.values():
        row.sort()
        assert all(a + width <= b + 0.02 for (a, width), (b, _) in pairwise(row))
