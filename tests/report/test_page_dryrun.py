"""Does the page of a dry run draw what its answer says, and does its answer come back from its file?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cli.report import result_file_page
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.beside_snapshot import laid_beside
from planner.dryrun.outcome import memory_of
from planner.dryrun.question import DryRun
from planner.dryrun.recording import Holds
from planner.dryrun.snapshot import Blocks, OwnRun
from planner.errors import FileInputError
from planner.report import dryrun_charts
from planner.report.dryrun import dryrun_document, dryrun_facts
from planner.report.dryrun_file import DryRunFile
from planner.report.html import page_html
from planner.report.page import Page
from planner.report.result_file import parse_result
from planner.report.text import render, terminal
from planner.spec.findings import finding
from tests.browser import marks, opened
from tests.dryrun.test_dryrun_outcome import MIB, two_steps

RUN = OwnRun(
    device=0, events=90, allocated_peak=500 * MIB, reserved_peak=600 * MIB, allocated_at_start=300 * MIB,
    allocated_at_end=300 * MIB, out_of_memory=None,
    alive=(Blocks(70 * MIB, "me/train.py:7 step", 2), Blocks(100 * MIB, "", 2)),
    timeline=((300 * MIB, 400 * MIB), (500 * MIB, 600 * MIB)),
)  # fmt: skip
HOSTILE = "</script><script>alert(1)</script>"


def found(limit: int = 700 * MIB, ranks: int = 1, model: str = "small") -> DryRun:
    one = memory_of(two_steps(), AllocatorSettings(), limit)
    memories = tuple(replace(one, rank=rank, reserved_peak=one.reserved_peak + rank) for rank in range(ranks))
    return DryRun(
        model, "h100", ranks, "tp1 mbs2", "transformers-2026", {"torch": "2.13.0"}, memories, 5e8, (), 4, 8192,
        (finding("default_stack", stack="transformers-2026"),),
    )  # fmt: skip


def page_of(dry: DryRun, tmp_path: Path, run: OwnRun | None = RUN) -> Page:
    path = tmp_path / "dry.json"
    beside = None if run is None else laid_beside(run, dry.worst)
    path.write_text(json.dumps(dryrun_facts(dry, beside)), encoding="utf-8")
    return result_file_page(path, None, None)


def read_back(dry: DryRun) -> DryRunFile:
    read = parse_result(json.loads(json.dumps(dryrun_facts(dry))), "dry.json")
    assert isinstance(read, DryRunFile)
    return read


def test_every_kind_of_holder_is_drawn() -> None:
    assert set(dryrun_charts._COLOURS) == set(Holds)
    assert len(set(dryrun_charts._COLOURS.values())) == len(Holds)


def test_what_is_held_adds_up_to_what_is_allocated() -> None:
    rank = read_back(found()).worst
    assert max(moment.allocated for moment in rank.timeline) == rank.allocated_peak
    for moment in rank.timeline:
        assert sum(moment.held.values()) == moment.allocated <= moment.reserved
    at_peak = [row["label"] for row in dryrun_charts.moment_rows(rank) if "label" in row]
    assert at_peak == [
        "weights at the peak: 0.10 GiB", "optimizer states at the peak: 0.20 GiB",
        "gradients at the peak: 0.10 GiB", "activations at the peak: 0.08 GiB",
    ]  # fmt: skip


def test_phases_are_named_where_there_is_room() -> None:
    rows = dryrun_charts.phase_rows(read_back(found()).worst.timeline)
    assert [row["phase"] for row in rows] == ["forward", "backward", "optimizer"]
    assert [row["start"] for row in rows[1:]] == [row["end"] for row in rows[:-1]]


def test_the_page_says_what_the_answer_says(tmp_path: Path) -> None:
    page = page_of(found(), tmp_path)
    assert (page.verdict, page.tone, page.lead) == ("fits", "good", "tp1 mbs2")
    names = [section.name for section in page.sections]
    assert names == ["answer", "timeline", "held", "snapshot", "assumed"]
    text = page_html(page)
    for said in (
        "0.47 GiB",
        "8,192 tokens",
        "me/train.py:7 step",
        "layers.*.mlp",
        "-4.0%",
        "2 sequences" * 0,
    ):
        assert said in text.replace('<span class="unit">', "").replace("</span>", ""), said


def test_a_run_without_memory_says_what_would_help(tmp_path: Path) -> None:
    page = page_of(found(limit=390 * MIB), tmp_path, None)
    assert page.tone == "bad"
    said = [line for block in page.sections[0].blocks for line in block.lines]
    assert said[0].startswith("out of memory: 200 MiB asked for, 200 MiB allocated")


def test_ranks_stand_side_by_side(tmp_path: Path) -> None:
    page = page_of(found(ranks=3), tmp_path, None)
    (ranks,) = (section for section in page.sections if section.name == "ranks")
    assert [row[0] for row in ranks.blocks[0].rows] == ["0", "1", "2"]
    assert ranks.blocks[0].marked == 2


def test_the_terminal_lays_the_run_beside() -> None:
    dry = found()
    text = render(dryrun_document(dry, laid_beside(RUN, dry.worst)), terminal())
    assert "Beside the run of the snapshot, device 0" in text
    assert "-4.0%" in text
    assert "begins with 300 MiB allocated" in text


def test_an_answer_that_is_not_one_is_refused() -> None:
    facts = json.loads(json.dumps(dryrun_facts(found())))
    for broken, field in (({"ranks": []}, "ranks"), ({"devices": "x"}, "devices")):
        with pytest.raises(FileInputError, match=field):
            parse_result(facts | broken, "dry.json")


@pytest.mark.slow
def test_the_chart_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_html(page_of(found(model=HOSTILE), tmp_path)), encoding="utf-8")
    with opened(path.as_uri()) as page:
        drawn = page.eval_on_selector_all("[data-chart]", "all => all.map(p => p.dataset.drawn)")
        assert drawn == ["yes", "yes"]
        assert marks(page, "memory-timeline") == ["limit: 0.68 GiB"]
        areas = page.eval_on_selector_all(
            '[data-chart="memory-timeline"] .mark-area path', "all => all.length"
        )
        assert areas == 4
        assert page.eval_on_selector_all("script", "all => all.length") == 3
