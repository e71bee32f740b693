"""Does a gap stay as large as it is, and is advice held against the user's own numbers?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.published_data import small_input
from planner.ask.request import Request
from planner.calibrate.diagnosis.causes import UNLISTED
from planner.calibrate.diagnosis.diagnose import Diagnosis, diagnose
from planner.calibrate.diagnosis.explain_memory import explain
from planner.calibrate.diagnosis.hypotheses import Evidence
from planner.calibrate.logs.lines import read_lines, read_log
from planner.calibrate.own_runs import configured, observe, step_time
from planner.calibrate.predict import predicted_cost
from planner.errors import InputError
from planner.report.diagnosis import diagnosis_facts
from planner.spec.overlay import LinkSection, Overlay
from planner.units import GIB
from tests.calibrate import logs

BASE = Request(model="llama-3.1-8b", cluster="dgx-h100", gpus=8, seq_len=8192, global_batch="64")


def slower(base: Request, times: float) -> Diagnosis:
    seen = observe(base, "1 s:tp=1,zero=3")[0]
    return diagnose(
        [Evidence(replace(seen, seconds=times * predicted_cost(seen.problem, seen.config).seconds))]
    )


@pytest.mark.parametrize("stack", ["torchtitan-2026", "deepspeed-2025"])
@pytest.mark.parametrize("times", [40.0, 150.0])
def test_what_no_cause_reaches_is_said_to_be_in_no_list(stack: str, times: float) -> None:
    found = slower(replace(BASE, stack=stack), times)
    first = found.findings[0].cause
    assert first is not None
    assert first.name == UNLISTED
    assert found.findings[0].severity == pytest.approx(times, rel=0.3)
    assert diagnosis_facts(found)["causes"][0]["title"].startswith("none of the causes")


@pytest.mark.parametrize("times", [1.3, 2.0, 4.0, 12.0])
def test_a_cause_that_is_named_first_explains_half_of_the_gap(times: float) -> None:
    found = slower(BASE, times)
    named = next(one for one in found.findings if one.cause is None or found.explains(one))
    assert named.cause is None or named.seconds >= 0.5 * (found.measured - found.predicted)


def test_what_lies_idle_is_no_cure_for_a_larger_request() -> None:
    facts = read_log(small_input("oom_larger_than_reclaimable.log"))
    problem, config, _ = configured(BASE, "x.log:tp=1", facts)
    story = explain(facts, problem, config)
    assert "fragmentation" not in {one.code for one in story.reasons}
    assert story.first_aid is None
    beyond = facts.ooms[0].tried + (facts.ooms[0].allocated or 0.0) - (story.predicted - story.outside)
    assert all(move.saved > beyond - (story.capacity - story.predicted) for move in story.moves)


def test_the_table_is_of_the_rank_that_failed() -> None:
    facts = read_log(small_input("oom_last_pipeline_rank.log"))
    base = replace(BASE, model="llama-3-70b", gpus=32)
    problem, config, _ = configured(base, "x.log:tp=4,pp=4", facts)
    story = explain(facts, problem, config)
    assert story.rank == 3
    assert "logits" in story.terms
    assert sum(story.terms.values()) + story.outside == pytest.approx(story.predicted, rel=0.01)


def test_first_steps_alone_are_no_measurement() -> None:
    facts = read_log(small_input("first_step_then_oom.log"))
    problem, config, _ = configured(BASE, "x.log:tp=1", facts)
    with pytest.raises(InputError, match="behind the first"):
        step_time(facts, problem, config)


def test_of_a_batch_that_grows_the_job_s_steps_count() -> None:
    facts = read_log(small_input("batch_rampup.log"))
    for batch in sorted({int(step.batch or 0) for step in facts.steps}):
        base = replace(BASE, global_batch=str(batch))
        problem, config, _ = configured(base, "x.log:tp=1", facts)
        found = step_time(facts, problem, config)
        own = sorted(step.seconds or 0.0 for step in facts.steps if step.batch == batch)
        assert found.seconds == pytest.approx(own[len(own) // 2], rel=0.03)
        assert "batches_left_out" in {one.code for one in found.findings}


def test_a_change_of_speed_is_told_and_an_attempt_before_it_left_out() -> None:
    lines = [logs.MEGATRON_2026.format(step=step, ms=4310 if step < 60 else 9100) for step in range(1, 101)]
    facts = read_lines(lines, "x.log")
    base = replace(BASE, global_batch="512")
    problem, config, _ = configured(base, "x.log:tp=1", facts)
    found = step_time(facts, problem, config)
    (change,) = [one for one in found.findings if one.code == "speed_changed"]
    assert (found.seconds, change.values["step"]) == (pytest.approx(9.1), 60)
    again = [logs.MEGATRON_2026.format(step=step, ms=2000) for step in range(41, 90)]
    resumed = read_lines([*lines, *again], "x.log")
    assert {step.seconds for step in resumed.steps} == {2.0}
    assert [one.code for one in resumed.findings] == ["run_resumed"]


def test_waiting_for_data_is_told_by_megatron_s_own_timer(tmp_path: Path) -> None:
    lines = [logs.MEGATRON_2026.format(step=step, ms=20_000) for step in range(1, 31)]
    timer = "    batch-generator ................................: (3.12, 12001.55)"
    facts = read_lines(
        [one for line in lines for one in (line, "(min, max) time across ranks (ms):", timer)], "x"
    )
    assert facts.timers["batch-generator"][0] == pytest.approx(12.0, rel=0.01)


def test_advice_is_of_the_device_that_ran_out() -> None:
    """A message of a smaller device, as of a partition: no change fits the one that was named alone."""
    whole = logs.OOM_2025
    small = whole.replace("79.10 GiB", "23.50 GiB").replace("79.1 GiB", "23.50 GiB")
    assert small != whole
    problem, config, _ = configured(BASE, "x.log:tp=2", read_lines([small], "x.log"))
    story = explain(read_lines([small], "x.log"), problem, config)
    assert "another_device" in {one.code for one in story.reasons}
    assert all(story.predicted - move.saved <= 23.5 * GIB for move in story.moves)


def test_links_alone_leave_the_error_of_a_step() -> None:
    links = Overlay(name="x", date="2026-11-28", level="L2", made_from=("a table",), links=LinkSection())
    problem = configured(BASE, "1 s:tp=1,zero=3", None)[0]
    tested = replace(problem, stack=links.of_stack(problem.stack))
    assert not tested.stack.calibrated
    assert tested.stack.calibration is not None
    probed = links.model_copy(update={"multiply": {"compute.attention": 1.1}}).of_stack(problem.stack)
    assert probed.calibrated
