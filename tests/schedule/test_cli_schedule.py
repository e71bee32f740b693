"""The verb `planner schedule`: its keys, its names, its refusals, on the command line itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app

RUNNER = CliRunner()


def ask(*words: str) -> tuple[int, str, str]:
    result = RUNNER.invoke(app, ["schedule", *words])
    return result.exit_code, result.stdout, result.stderr


def facts(*words: str) -> dict[str, object]:
    code, out, err = ask(*words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_documented_call_has_the_documented_keys() -> None:
    words = "--schedule 1f1b --pp 4 --vpp 1 --microbatches 8 --f 1 --b 1 --w 1 --comm 0"
    answer = facts(*words.split())
    assert answer["makespan"] == 33.0
    assert answer["bubble"] == 9.0
    assert answer["peak_in_flight"] == [4, 3, 2, 1]
    assert answer["peak_in_flight_until_input_gradient"] == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "m", "makespan"),
    [
        ("gpipe", 4, 1, 8, 33.0),
        ("megatron-1f1b", 4, 1, 8, 33.0),
        ("interleaved1f1b", 4, 2, 8, 57.0),
        ("megatron-interleaved", 4, 2, 8, 57.0),
        ("loopedbfs", 4, 2, 8, 57.0),
        ("ZB_H1", 4, 1, 8, 27.0),
        ("zb-h2", 8, 1, 16, 55.0),
        ("zbv", 8, 2, 16, 103.0),
        ("interleavedzerobubble", 4, 2, 8, 51.0),
        ("dualpipe", 4, 1, 8, 26.0),
        ("ds-dualpipe", 8, 1, 16, 54.0),
        ("dualpipev", 4, 2, 8, 54.0),
        ("ds-dualpipev", 2, 2, 4, 26.0),
        ("v-half", 4, 2, 8, 53.0),
        ("v-min", 4, 2, 8, 59.0),
        ("zb-auto", 4, 1, 8, 27.0),
        ("sail-zbv", 5, 2, 5, 34.0),  # adapts; the fixed order takes 38
    ],
)
def test_every_name_answers(name: str, pp: int, vpp: int, m: int, makespan: float) -> None:
    answer = facts("--schedule", name, "--pp", str(pp), "--vpp", str(vpp), "--microbatches", str(m))
    assert answer["makespan"] == pytest.approx(makespan)


def test_times_per_stage_and_of_an_overlapped_pair() -> None:
    uneven = facts("--schedule", "1f1b", "--pp", "2", "--microbatches", "4", "--f", "1,2", "--w", "0")
    assert uneven["makespan"] == pytest.approx(1 + 4 * 3 + 1)
    pair = facts("--schedule", "dualpipe", "--pp", "8", "--microbatches", "16", "--fb", "2.2")
    assert pair["makespan"] == pytest.approx(46.0)
    assert facts("--schedule", "1f1b", "--pp", "2", "--microbatches", "4", "--fb", "2")["notes"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--schedule 1f1c --pp 4 --microbatches 8", "did you mean: 1f1b"),
        ("--schedule megatron-interleaved --pp 4 --vpp 2 --microbatches 10", "leave 2 for 4 ranks"),
        ("--schedule interleaved --pp 4 --vpp 2 --microbatches 8 --group-size 3", "at least the number"),
        ("--schedule zbv --pp 4 --vpp 1 --microbatches 8", "two stages per rank"),
        ("--schedule dualpipe --pp 3 --microbatches 8", "even number"),
        ("--schedule dualpipe --pp 4 --microbatches 6", "two micro-batches per rank"),
        ("--schedule dualpipev --pp 4 --microbatches 7", "two micro-batches per rank"),
        ("--schedule 1f1b --pp 4 --vpp 2 --microbatches 8", "one stage per rank"),
        ("--schedule 1f1b --pp 0 --microbatches 8", "--pp must be a whole number"),
        ("--schedule 1f1b --pp 4 --microbatches -1", "--microbatches must be a whole number"),
        ("--schedule 1f1b --pp 4 --microbatches 8 --f 0", "above 0"),
        ("--schedule 1f1b --pp 4 --microbatches 8 --f nan", "finite"),
        ("--schedule 1f1b --pp 4 --microbatches 8 --f 1e308", "from 1e-12 to 1e+12"),
        ("--schedule 1f1b --pp 4 --microbatches 8 --w -1", "not negative"),
        ("--schedule 1f1b --pp 4 --microbatches 8 --f x", "--f must be a number"),
        ("--schedule 1f1b --pp 4 --microbatches 8 --f 1,2", "one per stage (4)"),
        ("--schedule zb-auto --pp 4 --microbatches 8 --memory-limit 0", "1 chunk or more"),
        ("--schedule zb-h1 --pp 4 --microbatches 8 --memory-limit 4", "searched for"),
        ("--schedule 1f1b --pp 1024 --microbatches 100000", "at most"),
        ("--schedule 1f1b --pp 4 --microbatches 8 --svg /nowhere/x.svg", "folder that can be written to"),
    ],
)
def test_what_cannot_run_is_refused_with_exit_code_2(words: str, said: str) -> None:
    code, out, err = ask(*words.split())
    assert code == 2
    assert said in err
    assert not out
    assert "Traceback" not in err


def test_drawing_and_svg(tmp_path: Path) -> None:
    target = tmp_path / "zb.svg"
    code, out, _ = ask(*f"--schedule zb-h1 --pp 4 --microbatches 8 --svg {target}".split())
    assert code == 0
    assert out.startswith("rank 0 F0")
    assert "bubble 3" in out
    assert target.read_text().startswith("<svg")
