"""`planner trace`: times and memory of the trace are the plan's, and what cannot be traced is refused."""

from __future__ import annotations

import json
import stat
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from planner.ask.planned import planned_problem
from planner.cli import app
from planner.cli.trace import parse_ranks
from planner.cost.table import STAGE_TERMS
from planner.errors import InputError
from planner.spec.load_plan import load_plan
from planner.spec.rule import Problem

runner = CliRunner()
JOBS = {
    "1f1b": ["llama-3.1-8b", "dgx-h100", "--gpus", "32", "--set", "pp=4", "--set", "vpp=1"],
    "full": ["llama-3.1-8b", "dgx-h100", "--gpus", "16", "--set", "pp=2", "--set", "recompute=full"],
    "interleaved": ["llama-3.1-8b", "dgx-h100", "--gpus", "32", "--set", "pp=4", "--set", "vpp=4"],
    "no pipeline": ["llama-3.1-8b", "dgx-h100", "--gpus", "8", "--set", "tp=4"],
    "torchtitan": ["llama-3.1-8b", "dgx-h100", "--gpus", "16", "--stack", "torchtitan-2026", "--set", "pp=2"],
    "experts": ["qwen3-30b-a3b", "dgx-h100", "--gpus", "32", "--set", "pp=2", "--set", "ep=8"],
}
WORK = ("forward", "recompute", "backward", "weight gradient")
Planner = Callable[[str], Path]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    folder, made = tmp_path_factory.mktemp("plans"), dict[str, Path]()

    def plan(name: str) -> Path:
        if name not in made:
            made[name] = folder / f"{name.replace(' ', '-')}.json"
            words = [*JOBS[name], "--seq-len", "4096", "--global-batch", "64", "-o", str(made[name])]
            done = runner.invoke(app, ["estimate", *words])
            assert made[name].exists(), done.output
        return made[name]

    return plan


def traced(path: Path, *options: str) -> dict[str, Any]:
    done = runner.invoke(app, ["trace", str(path), "-o", "-", *options])
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize("name", JOBS)
def test_time_is_the_plans(planned: Planner, name: str) -> None:
    choice = load_plan(planned(name)).choices[0]
    document = traced(planned(name))
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    end = max(event["ts"] + event["dur"] for event in slices) / 1e6
    assert end == pytest.approx(choice.step_time, rel=1e-6)
    passes = [event for event in slices if event["cat"] in WORK]
    pipeline = sum(choice.time[name] for name in (*STAGE_TERMS, "pipeline_bubble", "pp_comm"))
    assert max(e["ts"] + e["dur"] for e in passes) / 1e6 == pytest.approx(pipeline, rel=1e-6)
    busy: dict[int, float] = defaultdict(float)
    again: dict[int, float] = defaultdict(float)
    for event in passes:
        busy[event["tid"]] += event["dur"] / 1e6
        again[event["tid"]] += event["dur"] / 1e6 if event["cat"] == "recompute" else 0.0
    slowest = max(busy, key=lambda tid: busy[tid])
    assert busy[slowest] == pytest.approx(sum(choice.time[name] for name in STAGE_TERMS), rel=1e-6)
    assert again[slowest] == pytest.approx(choice.time["recompute"], rel=1e-3, abs=1e-6)
    first = min(event["tid"] for event in slices if event["cat"] == "optimizer")
    for part, term in (("optimizer", "optimizer"), ("stragglers", "stragglers")):
        mine = [event["dur"] / 1e6 for event in slices if event["cat"] == part and event["tid"] == first]
        assert sum(mine) == pytest.approx(choice.time[term], abs=2e-9)


def test_a_step_that_own_runs_shorten_is_said_to_end_sooner(planned: Planner, tmp_path: Path) -> None:
    plain = load_plan(planned("1f1b"))
    axes = {"pp": 4, "num_microbatches": plain.choices[0].config.num_microbatches}
    config = plain.choices[0].config.parallel()
    axes |= {axis: getattr(config, axis) for axis in ("tp", "sp", "zero", "micro_batch")}
    run = {"model": "llama-3.1-8b", "layers": 32, "hidden": 4096, "seq_len": 4096, "precision": "bf16",
           "axes": axes, "factor": 0.8}  # fmt: skip
    ours, path = tmp_path / "ours.yaml", tmp_path / "plan.json"
    facts = {"name": "ours", "date": "2026-11-22", "level": "L3", "made_from": ["a run"], "runs": [run]}
    ours.write_text(json.dumps(facts | {"stack": plain.subject.stack.name}))
    words = [
        *JOBS["1f1b"],
        "--seq-len",
        "4096",
        "--global-batch",
        "64",
        "--calibration",
        str(ours),
        "-o",
        str(path),
    ]
    assert runner.invoke(app, ["estimate", *words]).exit_code == 0
    choice = load_plan(path).choices[0]
    assert choice.step_time == pytest.approx(0.8 * plain.choices[0].step_time)
    said = traced(path, "--calibration", str(ours))["otherData"]
    assert said["step_s"] == pytest.approx(choice.step_time)
    assert f"ends {-choice.time['own_runs']:.6g} s before the last" in said["note"]
    assert "note" not in traced(planned("1f1b"))["otherData"]


@pytest.mark.parametrize("name", ["1f1b", "full", "interleaved", "no pipeline", "experts"])
def test_memory_peaks_where_the_plan_does(planned: Planner, name: str) -> None:
    """The first rank of every group of equal ones: the plan names its peak for all of them."""
    memory = load_plan(planned(name)).choices[0].memory
    peak: dict[int, float] = defaultdict(float)
    for event in traced(planned(name))["traceEvents"]:
        if event["ph"] == "C":
            rank = int(event["name"].split()[1])
            peak[rank] = max(peak[rank], event["args"]["bytes"])
    assert len(peak) == memory.stages
    for group in memory.per_stage:
        assert group.phase in ("loss", "head_backward", "backward", "optimizer")
        assert peak[int(group.stages.replace(",", "-").split("-")[0])] == pytest.approx(group.peak, abs=16)


def test_memory_of_torchtitan_is_that_of_its_phases(planned: Planner) -> None:
    """Its gradients rise and fall within a backward pass, which is not drawn: at most the plan's peak."""
    memory = load_plan(planned("torchtitan")).choices[0].memory
    values = [e["args"]["bytes"] for e in traced(planned("torchtitan"))["traceEvents"] if e["ph"] == "C"]
    assert 0.5 * memory.peak < max(values) <= memory.peak + 16


def test_another_schedule(planned: Planner) -> None:
    own, dual = traced(planned("1f1b")), traced(planned("1f1b"), "--schedule", "dualpipe")
    rows = {e["args"]["name"] for e in dual["traceEvents"] if e["name"] == "thread_name"}
    assert "rank 0 overlapped backward" in rows
    work = [
        sum(
            e["args"].get("alone_us", e["dur"])
            for e in d["traceEvents"]
            if e["ph"] == "X" and e["cat"] in WORK
        )
        for d in (own, dual)
    ]
    assert work[0] == pytest.approx(work[1], rel=1e-6), "the same passes in another order"
    assert dual["otherData"]["schedule"] == "dualpipe"
    assert "no gain" in dual["otherData"]["note"]
    assert traced(planned("1f1b"), "--schedule", "zb-auto")["otherData"]["step_s"] > 0


@pytest.mark.parametrize("name", ["zb-v", "v-half", "interleaved", "dualpipev"])
def test_a_schedule_of_another_shape_is_refused(planned: Planner, name: str, tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    done = runner.invoke(app, ["trace", str(planned("1f1b")), "-o", str(target), "--schedule", name])
    assert done.exit_code == 2
    assert "vpp" in done.stderr
    assert not target.exists()


def test_ranks(planned: Planner) -> None:
    document = traced(planned("1f1b"), "--ranks", "1,3")
    assert {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"} == {
        "rank 1", "rank 3", "rank 1 sends", "rank 3 sends"
    }  # fmt: skip
    assert parse_ranks("0-2, 5", 6) == [0, 1, 2, 5]
    for text in ("6", "2-1", "x", "", "1-2-3", "-1"):
        with pytest.raises(InputError, match="--ranks"):
            parse_ranks(text, 6)


def test_written_whole_and_readable_by_others(planned: Planner, tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    target.write_text("old")
    target.chmod(0o640)
    done = runner.invoke(app, ["trace", str(planned("1f1b")), "-o", str(target)])
    assert done.exit_code == 0
    assert done.stdout == ""
    assert json.loads(target.read_text())["traceEvents"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_bad_targets_and_choices(planned: Planner, tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "none" / "t.json"):
        done = runner.invoke(app, ["trace", str(planned("1f1b")), "-o", str(target)])
        assert done.exit_code == 2, done.output
    done = runner.invoke(app, ["trace", str(planned("1f1b")), "-o", "-", "--choice", "7"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--choice" in done.stderr
    done = runner.invoke(app, ["trace", str(tmp_path / "missing.json"), "-o", "-"])
    assert done.exit_code == 2


def test_a_plan_without_configuration_has_nothing_to_trace(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    words = ["llama-3.1-8b", "dgx-h100", "--gpus", "8", "--global-batch", "8", "--set", "tp=7"]
    assert runner.invoke(app, ["estimate", *words, "-o", str(path)]).exit_code == 1
    done = runner.invoke(app, ["trace", str(path), "-o", "-"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "must hold a configuration" in done.stderr


def problem_in(path: Path) -> Problem:
    """What the best configuration of a plan file is for."""
    plan = load_plan(path)
    return planned_problem(plan, plan.choices[0])


def changed(path: Path, target: Path, **facts: Any) -> Path:
    document = json.loads(path.read_text())
    for where, value in facts.items():
        part, key = where.split("__")
        document["subject"][part][key] = value
    for choice in document["choices"]:
        choice["stack"] = document["subject"]["stack"]["name"]
    target.write_text(json.dumps(document))
    return target


def test_a_problem_that_can_no_longer_be_read(planned: Planner, tmp_path: Path) -> None:
    path = planned("1f1b")
    assert problem_in(path).cluster.num_devices == 32
    for facts, words in (
        ({"cluster__name": "my-own"}, "--cluster"),
        ({"cluster__name": "4x8 h200 400G-ib"}, "accelerators"),
        ({"cluster__name": "4x8 h100 1G-eth"}, "links"),
        ({"job__seq_len": 1024}, "step time"),
        ({"model__name": "llama-3.1-70b"}, "parameters"),
        ({"model__source": str(tmp_path / "gone.json")}, "gone.json"),
        ({"stack__name": "none"}, "stack"),
        ({"job__precision": "fp1"}, "precision"),
    ):
        other = changed(path, tmp_path / "plan.json", **facts)
        done = runner.invoke(app, ["trace", str(other), "-o", "-"])
        assert (done.exit_code, done.stdout) == (2, ""), facts
        assert words in done.stderr, facts
    other = changed(path, tmp_path / "plan.json", cluster__name="my-own")
    assert traced(other, "--cluster", "dgx-h100")["traceEvents"]
