"""Pipeline schedules as curators write them."""

from __future__ import annotations

import pytest

from benchmarks.published.runs import Run, RunReader
from benchmarks.published.schedules import dealt_chunks
from planner.schedule.generate import NAMES
from planner.spec.config import FOLDED_SCHEDULES, Schedule
from tests.benchmarks.rows import MODELS, ROW


def read(**changed: str) -> Run:
    return RunReader(MODELS).read({**ROW, "vpp": "", **changed})


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_command_line(name: str) -> None:
    config = read(schedule=name).config
    assert config.schedule is NAMES[name].schedule
    assert config.schedule.runs_chunks(config.vpp)


@pytest.mark.parametrize(
    ("text", "schedule", "vpp"),
    [
        ("1F1B-interleaved", Schedule.INTERLEAVED, 2),
        ("1F1B-I", Schedule.INTERLEAVED, 2),
        ("interleaved 1F1B", Schedule.INTERLEAVED, 2),
        ("interleaved (v=4)", Schedule.INTERLEAVED, 4),
        ("interleaved vpp=8", Schedule.INTERLEAVED, 8),
        ("interleaved: 4", Schedule.INTERLEAVED, 4),
        ("1f1b, 4 virtual stages", Schedule.INTERLEAVED, 4),
        ("1f1b (non-interleaved)", Schedule.ONE_F_ONE_B, 1),
        ("PipeDream-Flush", Schedule.ONE_F_ONE_B, 1),
        ("1f1b or interleaved", Schedule.ONE_F_ONE_B, 1),
        ("zero bubble", Schedule.ZB_H1, 1),
        ("ZeroBubble", Schedule.ZB_H1, 1),
        ("ZB-1p", Schedule.ZB_H1, 1),
        ("zb-h1 (ideal)", Schedule.ZB_H1, 1),
        ("InterleavedZeroBubble", Schedule.ZB_H1, 2),
        ("ZB-2p", Schedule.ZB_H2, 1),
        ("v-zb", Schedule.ZB_V, 2),
        ("ZBVZeroBubble", Schedule.ZB_V, 2),
        ("zbv-half", Schedule.V_HALF, 2),
        ("V-Min", Schedule.V_MIN, 2),
        ("ds-dualpipe(v)", Schedule.DUALPIPE_V, 2),
        ("DualPipe (DeepSeek)", Schedule.DUALPIPE, 1),
        ("all-forward-all-backward", Schedule.GPIPE, 1),
        ("looped_bfs", Schedule.GPIPE, 2),
        ("breadth-first", Schedule.GPIPE, 2),
        ("n/a", Schedule.ONE_F_ONE_B, 1),
    ],
)
def test_schedules_in_other_words(text: str, schedule: Schedule, vpp: int) -> None:
    config = read(schedule=text).config
    assert (config.schedule, config.vpp) == (schedule, vpp)


def test_what_is_more_than_a_name_is_said() -> None:
    assert "schedule 'zb-h1 (ideal)': zb-h1" in read(schedule="ZB-H1 (ideal)").assumed
    assert "schedule 'chimera': 1f1b" in read(schedule="Chimera").assumed
    assert not any(said.startswith("schedule") for said in read(schedule="ZB-H1").assumed)


@pytest.mark.parametrize(
    ("schedule", "vpp", "taken"),
    [("interleaved", "1.0", 2), ("", "0", 1), ("", "0.0", 1), ("zbv", "1", 2), ("1f1b", "2", 2)],
)
def test_virtual_stages_beside_a_schedule(schedule: str, vpp: str, taken: int) -> None:
    run = read(schedule=schedule, vpp=vpp)
    assert run.config.vpp == taken
    told = any("virtual stages 1 of an" in said or "contradicts" in said for said in run.assumed)
    assert told is (schedule in ("interleaved", "zbv"))


@pytest.mark.parametrize(
    ("layers", "pp", "chunks"),
    [
        (32, 2, 2),
        (46, 16, 3),
        (22, 8, 3),
        (30, 16, 2),
        (61, 31, 2),
        (126, 16, 2),
        (54, 4, 2),
        (24, 16, 1),
        (40, 16, 2),
    ],
)
def test_chunks_that_deal_the_layers(layers: int, pp: int, chunks: int) -> None:
    """Evenly with embedding and loss as layers where that deals them: 46 + 2 over 16 ranks are 3 each."""
    assert dealt_chunks(layers, pp) == chunks


def test_virtual_stages_of_free_text() -> None:
    for extras, vpp in (
        ("vpp=4", 4),
        ("virtual pipeline 4", 4),
        ("interleave=4", 4),
        ("loss in 8 chunks", 1),
    ):
        assert read(schedule="", extras=extras).config.vpp == vpp, extras


def test_folded_schedules_hold_two_chunks() -> None:
    for schedule in FOLDED_SCHEDULES:
        assert read(schedule=schedule.label).config.vpp == 2
