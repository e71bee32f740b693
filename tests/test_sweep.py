"""Does a sweep give the same table whoever works on it, however often it is interrupted?"""

from __future__ import annotations

import csv
import io
import json
import re
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from planner.answer.growth import PASSING_GAIN
from planner.ask.load_sweep import load_sweep
from planner.ask.request import Request
from planner.cli import app, sweep, sweep_workers
from planner.cli.sweep import csv_text, write_table
from planner.errors import FileInputError, InputError
from planner.spec.planfile import CLOSED_GAP
from planner.spec.rows import COLUMNS

SWEEP = """
model: llama-3.2-1b
cluster: ["1x8 h100", rtx4090]
gpus: [8, 16]
seq_len: [2048, 4096]
global_batch: 64
tokens: 10B
set: {pp: 1}
top: 2
"""


def given(tmp_path: Path, text: str = SWEEP) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def test_every_combination_is_asked_once(tmp_path: Path) -> None:
    points = load_sweep(given(tmp_path)).points()
    assert len(points) == 8
    assert points[0] == {"model": "llama-3.2-1b", "cluster": "1x8 h100", "gpus": 8, "seq_len": 2048,
                         "global_batch": "64", "tokens": 1e10}  # fmt: skip
    assert points[1]["seq_len"] == 4096
    assert len({json.dumps(point) for point in points}) == 8


def test_one_process_and_two_write_the_same_bytes(tmp_path: Path) -> None:
    file = given(tmp_path)
    assert run(file, "-o", tmp_path / "one.csv", "--workers", 1).exit_code == 0
    assert run(file, "-o", tmp_path / "two.csv", "--workers", 2).exit_code == 0
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    with (tmp_path / "one.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert list(rows[0]) == list(COLUMNS)
    found = [row for row in rows if row["verdict"] == "found"]
    assert [row["place"] for row in found[:2]] == ["1", "2"]
    assert float(found[0]["step_time_s"]) <= float(found[1]["step_time_s"])
    refused = [row for row in rows if row["cluster"] == "1x8 h100" and row["gpus"] == "16"]
    assert {row["verdict"] for row in refused} == {"refused"}
    assert all(row["reason"] for row in refused)


def test_points_that_are_refused_are_counted_and_the_first_says_why(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("model: [llama-3.2-1b, lama-3.2-1b]\ncluster: 1x8 h100\nseq_len: 2048\n")
    some = run(file, "-o", tmp_path / "some.csv", "--workers", 1)
    assert some.exit_code == 0
    assert "1 of 2 points without a plan, 1 of them refused" in some.stderr
    assert "the first says: unknown model 'lama-3.2-1b'" in some.stderr
    file.write_text("model: lama-3.2-1b\ncluster: 1x8 h100\nseq_len: 2048\n")
    none = run(file, "-o", tmp_path / "none.csv", "--workers", 1)
    assert none.exit_code == 1
    assert "1 of 1 points without a plan, 1 of them refused" in none.stderr


def test_lengths_are_read_as_on_the_command_line(tmp_path: Path) -> None:
    asked = load_sweep(given(tmp_path, "model: a\ncluster: b\nseq_len: [4k, 8192, 16K]\n"))
    assert asked.grid["seq_len"] == (4096, 8192, 16384)
    with pytest.raises(FileInputError, match="seq_len"):
        load_sweep(given(tmp_path, "model: a\ncluster: b\nseq_len: 8kk\n"))
    with pytest.raises(FileInputError, match="twice"):
        load_sweep(given(tmp_path, "model: a\ncluster: b\nseq_len: [4k, 4096]\n"))


def test_families_of_stacks_are_their_newest(tmp_path: Path) -> None:
    text = (
        "model: llama-3.2-1b\ncluster: 1x8 h100\nseq_len: 2048\nstack: [deepspeed, torchtitan-2026]\ntop: 1\n"
    )
    assert run(given(tmp_path, text), "-o", tmp_path / "t.csv", "--workers", 1).exit_code == 0
    with (tmp_path / "t.csv").open(newline="") as table:
        taken = [row["stack"].split("+") for row in csv.DictReader(table)]
    assert [stack for stack, *_ in taken] == ["deepspeed-2025", "torchtitan-2026"]
    assert taken[0][1:], "options that a search turns on stand with the stack"


def test_rows_are_those_of_the_plan(tmp_path: Path) -> None:
    from planner.answer.plan import make_plan

    request = Request(
        "llama-3.2-1b", "1x8 h100", 8, seq_len=2048, global_batch="64", tokens=1e10, set={"pp": (1,)}, top=2
    )
    text = (
        SWEEP.replace('["1x8 h100", rtx4090]', "1x8 h100")
        .replace("[8, 16]", "8")
        .replace("[2048, 4096]", "2048")
    )
    assert run(given(tmp_path, text), "-o", tmp_path / "t.csv", "--workers", 1).exit_code == 0
    with (tmp_path / "t.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    choices = make_plan(request).choices
    assert [float(row["step_time_s"]) for row in rows] == [choice.step_time for choice in choices]
    assert choices[0].run is not None
    assert float(rows[0]["cost_usd"]) == choices[0].run.cost


PIPED = """
model: llama-3.1-8b
cluster: dgx-h100
gpus: 16
seq_len: 16384
global_batch: 32
without: [optimizer-cuda-graph]
"""


def test_a_point_has_one_row_and_is_near_what_a_plan_finds(tmp_path: Path) -> None:
    from planner.answer.plan import make_plan

    table, times = tmp_path / "t.csv", []
    for thorough in ("false", "true"):
        file = given(tmp_path, f"{PIPED}thorough: {thorough}\n")
        assert run(file, "-o", table, "--workers", 1, "--restart").exit_code == 0
        with table.open(newline="") as lines:
            (row,) = csv.DictReader(lines)
        times.append(float(row["step_time_s"]))
    whole = make_plan(
        Request(
            "llama-3.1-8b",
            "dgx-h100",
            16,
            seq_len=16384,
            global_batch="32",
            without=("optimizer-cuda-graph",),
            top=1,
        )
    )
    assert times[1] == whole.choices[0].step_time
    assert times[1] * (1 - CLOSED_GAP) <= times[0] <= times[1] * (1 + PASSING_GAIN)


def test_an_interrupted_sweep_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, output = given(tmp_path), tmp_path / "t.csv"
    assert run(file, "-o", tmp_path / "whole.csv", "--workers", 1).exit_code == 0
    asked: list[int] = []
    whole = sweep_workers.here

    def stops(points: Mapping[int, Request]) -> Iterator[sweep_workers.Answer]:
        for number, answer in enumerate(whole(points)):
            if number == 3:
                raise KeyboardInterrupt
            yield answer

    def counts(points: Mapping[int, Request]) -> Iterator[sweep_workers.Answer]:
        for number, rows in whole(points):
            asked.append(number)
            yield number, rows

    monkeypatch.setattr(sweep_workers, "here", stops)
    stopped = run(file, "-o", output, "--workers", 1)
    assert stopped.exit_code == 130
    assert not output.exists()
    journal = tmp_path / ".t.csv.progress"
    with journal.open("ab") as half:
        half.write(b'{"point": 3, "rows": [{"mod\n\0\0')  # the process, or the machine, died while it wrote
    other = given(tmp_path, SWEEP.replace("10B", "20B"))
    assert run(other, "-o", output, "--workers", 1).exit_code == 2
    monkeypatch.setattr(sweep_workers, "here", counts)
    assert run(given(tmp_path), "-o", output, "--workers", 1).exit_code == 0
    assert asked == [3, 4, 5, 6, 7]
    assert output.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not journal.exists()


def answering(pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every point is answered at once with an empty row, at times that far apart."""
    now = 0.0
    monkeypatch.setattr(sweep, "time", SimpleNamespace(monotonic=lambda: now))

    def answers(points: Mapping[int, Request]) -> Iterator[sweep_workers.Answer]:
        nonlocal now
        for number in points:
            now += pause
            yield number, [dict.fromkeys(COLUMNS) | {"verdict": "found"}]

    monkeypatch.setattr(sweep_workers, "here", answers)


@pytest.mark.parametrize(
    ("pause", "points", "said"),
    [
        (1.0, 20, ["0 of 20"]),
        (7.0, 12, ["0 of 12", "5 of 12", "10 of 12"]),
        (60.0, 300, ["0 of 300", *(f"{done} of 300" for done in range(3, 301, 3))]),
    ],
)
def test_progress_off_a_terminal_is_a_line_now_and_then(
    pause: float, points: int, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(pause, monkeypatch)
    lengths = [1024 + 8 * i for i in range(points)]
    file = given(tmp_path, f"model: llama-3.2-1b\ncluster: 1x8 h100\nseq_len: {lengths}\n")
    told = run(file, "-o", tmp_path / "t.csv", "--workers", 1)
    assert told.stdout == ""
    *lines, end = told.stderr.splitlines()
    assert lines == [f"{line} points done" for line in said]
    assert end.startswith(f"{points} rows of {points} points written")


def test_a_full_disk_under_the_journal_is_told_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(0.0, monkeypatch)
    before, journal = resource.getrlimit(resource.RLIMIT_FSIZE), tmp_path / ".t.csv.progress"
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))  # no file may grow beyond it
    try:
        full = run(given(tmp_path), "-o", tmp_path / "t.csv", "--workers", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert full.exit_code == 2
    done = len(journal.read_bytes().splitlines()) - 2  # the head, and a torn line
    assert 0 < done < 8
    assert f"{done} of 8 points are done and kept" in full.stderr
    assert f"error: {journal}: the journal beside the output must be" in full.stderr
    assert "File too large" in full.stderr
    goes_on = run(given(tmp_path), "-o", tmp_path / "t.csv", "--workers", 1)
    assert f"{done} of 8 points were done before" in goes_on.stderr
    assert goes_on.exit_code == 0


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("model: a\ncluster: b\nnonsense: 1", "nonsense"),
        ("cluster: b", "model"),
        ("modl: a\ncluster: b", "modl"),
        ("model: []\ncluster: b", "model"),
        ("model: [a, a]\ncluster: b", "model"),
        ("model: a\ncluster: b\ngpus: [8, -1]", "gpus"),
        ("model: a\ncluster: b\ngpus: true", "gpus"),
        ("model: a\ncluster: b\nset: {tp: {}}", "set"),
        ("model: a\ncluster: b\ntop: 1000", "top"),
    ],
)
def test_a_bad_sweep_names_its_key(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(FileInputError, match=key):
        load_sweep(given(tmp_path, text))


def test_bad_options_are_refused_before_any_work(tmp_path: Path) -> None:
    file = given(tmp_path)
    assert run(file, "-o", tmp_path / "t.xlsx").exit_code == 2
    assert run(file, "-o", tmp_path / "none" / "t.csv").exit_code == 2
    assert run(file, "-o", tmp_path / "t.csv", "--workers", 0).exit_code == 2
    assert run(file, "-o", tmp_path / "t.csv", "--workers", 2, "--dask", "x:1").exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


@pytest.mark.parametrize("line", ["assume: [pue=x]", "calibration: none.yaml", "set: {layout: '4,4'}"])
def test_what_all_points_share_is_refused_before_any_work(tmp_path: Path, line: str) -> None:
    text = "\n".join(kept for kept in SWEEP.splitlines() if not kept.startswith("set"))
    refused = run(given(tmp_path, f"{text}\n{line}\n"), "-o", tmp_path / "t.csv")
    assert refused.exit_code == 2, refused.output
    assert not (tmp_path / "t.csv").exists()


def test_a_sweep_that_finds_nothing_says_why(tmp_path: Path) -> None:
    file = given(tmp_path, "model: nobodys-model\ncluster: dgx-h100\ngpus: 8")
    told = run(file, "-o", tmp_path / "t.csv", "--workers", 1)
    assert told.exit_code == 1
    assert "nobodys-model" in told.output


def test_a_sweep_that_is_not_there_is_told_how_one_looks(tmp_path: Path) -> None:
    told = run(tmp_path / "sweep.yaml", "-o", tmp_path / "t.csv").stderr
    assert "docs/sweep.md" in told
    lines = re.findall(r"'(\w+: [^']+)'", " ".join(told.split()))
    assert len(load_sweep(given(tmp_path, "\n".join(lines))).points()) == 2


def test_a_sweep_without_a_size_is_told_the_key_of_its_file(tmp_path: Path) -> None:
    file = given(tmp_path, "model: llama-3.1-8b\ncluster: dgx-h100")
    told = run(file, "-o", tmp_path / "t.csv", "--workers", 1)
    assert "add gpus: 8" in told.stderr
    assert "--gpus" not in told.stderr
    assert "1 row of 1 point written" in told.stderr


def test_a_sweep_that_did_nothing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Mapping[int, Request]) -> Iterator[tuple[int, list[dict[str, object]]]]:
        raise InputError("the workers must answer")

    monkeypatch.setattr(sweep_workers, "here", fails)
    file = given(tmp_path)
    assert run(file, "-o", tmp_path / "t.csv", "--workers", 1).exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


def test_a_spreadsheet_runs_no_text_as_a_formula() -> None:
    """An apostrophe before text that begins as a formula does; numbers, negative ones too, and other text as before."""
    texts = ["=1+1", "+more.yaml", "-x", "@SUM(A1)", "\t=1"]
    rows: list[dict[str, object]] = [dict.fromkeys(COLUMNS) | {"model": text, "mfu": -0.5} for text in texts]
    rows.append(dict.fromkeys(COLUMNS) | {"model": "a=b", "gpus": -1, "reason": ""})
    read = list(csv.DictReader(io.StringIO(csv_text(rows), newline="")))
    assert [row["model"] for row in read] == [f"'{text}" for text in texts] + ["a=b"]
    assert {row["mfu"] for row in read} == {"-0.5", ""}
    assert (read[-1]["gpus"], read[-1]["reason"]) == ("-1", "")


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [dict.fromkeys(COLUMNS) | {"model": "a", "gpus": 8, "step_time_s": 0.1}, dict.fromkeys(COLUMNS)]
    write_table(rows, tmp_path / "t.parquet")
    first = (tmp_path / "t.parquet").read_bytes()
    assert parquet.read_table(tmp_path / "t.parquet").to_pylist() == rows
    write_table(rows, tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").read_bytes() == first


@pytest.mark.parametrize(
    ("changed", "said"),
    [("set: {speed: 1}", "unknown axis of set 'speed'"), ("headroom: 200%", "headroom must be"),
     ("assume: [nothing]", "an assumption must be")],
)  # fmt: skip
def test_what_every_point_shares_is_refused_with_the_file(changed: str, said: str, tmp_path: Path) -> None:
    key = changed.split(":")[0]
    kept = [line for line in SWEEP.splitlines() if not line.startswith(f"{key}:")]
    file = given(tmp_path, "\n".join([*kept, changed]) + "\n")
    refused = run(file, "-o", tmp_path / "t.csv")
    assert refused.exit_code == 2
    assert f"{file}: {said}" in " ".join(refused.stderr.split())
