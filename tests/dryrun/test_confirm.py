"""Is a plan confirmed by dry runs, and an estimate told when one disagrees? Dry runs are stand-ins here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec

import pytest

import planner
from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.ask.question import Question, Request
from planner.cli.check import check_files
from planner.cli.export import render_plan
from planner.dryrun import extra, question
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.confirm import allocated_of, beside, confirmed, question_of, run_choice
from planner.dryrun.extra import NEEDED, Run, require_extra, runner_for
from planner.dryrun.outcome import memory_of
from planner.dryrun.question import DryRun, make_dryrun
from planner.dryrun.timing.step import RankTime
from planner.errors import InputError, UnsupportedError
from planner.report.words import texts, worded
from planner.spec.load_plan import parse_plan, plan_json, save_plan
from planner.spec.planfile import Plan, Verdict
from planner.spec.verdict import MemoryVerdict
from tests.dryrun.test_dryrun_outcome import two_steps

GIB = 2**30
ALONE = {"seq_len": 4096, "global_batch": "16", "stack": "transformers-2026+amp", "without": "all"}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(Request("llama-3.2-1b", "1x1 h100", **ALONE))


def ran(verdict: MemoryVerdict, allocated: float = 60.0) -> DryRun:
    memory = memory_of(two_steps(), AllocatorSettings(), 78 * GIB)
    size = int(allocated * GIB)
    memory = replace(memory, verdict=verdict, allocated_peak=size, reserved_peak=size + 2 * GIB)
    return DryRun("m", "h100", 1, "tp1", "transformers-2026", {}, (memory,), None, (), None, None, ())


def dry(asked: Question) -> DryRun:
    return make_dryrun(asked, AllocatorSettings())


def running(verdicts: Mapping[int, MemoryVerdict], asked: list[Question] | None = None) -> Run:
    """A dry run whose verdict follows from the micro-batch; others are refused."""

    def run(question: Question) -> DryRun:
        if asked is not None:
            asked.append(question)
        size = question.restrict["micro_batch"][0]
        if size not in verdicts:
            raise UnsupportedError("a dry run runs this and that", f"a micro-batch of {size}")
        return ran(verdicts[size])

    return run


def sizes(plan: Plan) -> list[int]:
    return [choice.config.micro_batch for choice in plan.choices]


def test_what_is_recommended_is_confirmed(plan: Plan) -> None:
    found = worded(confirmed(plan, running(dict.fromkeys(sizes(plan), MemoryVerdict.FITS))))
    assert str(found).splitlines()[-1] == (
        "confirmed by a dry run: 60 GiB allocated, 62 GiB reserved of 78 GiB that the allocator can have"
    )
    assert found.recommended == plan.recommended
    said = found.choices[0].dryrun
    assert said is not None
    assert said.values == {"allocated": 60 * GIB, "reserved": 62 * GIB, "limit": 78 * GIB}
    assert all(choice.dryrun is None for choice in found.choices[1:])
    again = parse_plan(plan_json(found), "plan.json")
    assert again == found


def test_the_first_that_is_confirmed_is_recommended(plan: Plan) -> None:
    most, next_one, third = sizes(plan)[:3]
    verdicts = {
        most: MemoryVerdict.DOES_NOT_FIT,
        next_one: MemoryVerdict.BORDERLINE,
        third: MemoryVerdict.FITS,
    }
    found = worded(confirmed(plan, running(verdicts)))
    assert found.recommended == 2
    assert found.trade is not None
    assert found.trade.slower == pytest.approx(plan.choices[2].step_time / plan.choices[0].step_time - 1)
    head = str(found)
    assert "#1 is not confirmed by a dry run, which says does not fit: 60 GiB allocated" in head
    assert "#3 is confirmed by a dry run" in head
    assert (
        f"recommended: #3 {plan.choices[2].config.text}, the first listed that a dry run confirms, " in head
    )
    codes = [choice.dryrun.code for choice in found.choices if choice.dryrun is not None]
    assert codes == ["dryrun_refutes", "dryrun_refutes", "dryrun_confirms"]


def test_a_recommended_one_that_is_refuted_gives_way(plan: Plan) -> None:
    """The fastest is run as well; where it is confirmed it is taken, and the trade is none."""
    second = plan.model_copy(update={"recommended": 1, "headline": plan.headline})
    first, taken = sizes(plan)[:2]
    found = confirmed(second, running({first: MemoryVerdict.FITS, taken: MemoryVerdict.DOES_NOT_FIT}))
    assert (found.recommended, found.trade) == (0, None)
    assert [one.code for one in found.headline[-2:]] == ["dryrun_confirms", "dryrun_refutes"]
    both = confirmed(second, running(dict.fromkeys((first, taken), MemoryVerdict.FITS)))
    assert both.recommended == 1
    assert [one.values["place"] for one in both.headline[-2:]] == [1, 2]


def test_where_none_is_confirmed_that_is_told(plan: Plan) -> None:
    found = confirmed(plan, running(dict.fromkeys(sizes(plan), MemoryVerdict.BORDERLINE)))
    assert found.recommended == plan.recommended
    assert texts(found.headline)[-1] == f"none of the {len(plan.choices)} listed is confirmed by a dry run"


def test_what_is_not_run_is_named_and_no_other_is_tried(plan: Plan) -> None:
    asked: list[Question] = []
    found = confirmed(plan, running({}, asked))
    assert len(asked) == 1
    assert found.recommended == plan.recommended
    said = texts(found.headline)[-1]
    assert said.startswith(
        "not confirmed by a dry run: a dry run runs this and that; given a micro-batch of "
    )


def test_the_question_names_the_choice_and_no_more(plan: Plan) -> None:
    for choice in plan.choices:
        asked = question_of(plan, choice)
        again = make_estimate(asked)
        assert again.choices[0].config.parallel() == choice.config.parallel()
        assert again.choices[0].step_time == pytest.approx(choice.step_time, rel=1e-6)
        assert asked.without == ()


def test_nothing_that_fits_is_held_against_a_dry_run() -> None:
    plan = make_plan(Request("llama-3.1-8b", "1x1 h100", **ALONE))
    assert plan.verdict is Verdict.NOTHING_FITS
    assert plan.nearest is not None
    found = confirmed(plan, lambda asked: ran(MemoryVerdict.FITS))
    assert found.headline[-1].code == "dryrun_disagrees"
    assert texts(found.headline)[-1].startswith(f"a dry run of {plan.nearest.config.text} disagrees: fits")


def estimate() -> Plan:
    return make_estimate(
        Request(
            "llama-3.2-1b", "1x1 h100", seq_len=4096, global_batch="2", stack="transformers-2026",
            set={"micro_batch": 2},
        )
    )  # fmt: skip


def of(verdict: MemoryVerdict, times: float) -> Callable[[Question], DryRun]:
    """A dry run that allocates `times` as much as is estimated."""
    allocated = allocated_of(estimate().choices[0].memory)
    return lambda asked: ran(verdict, allocated * times / GIB)


def test_an_estimate_agrees_within_its_error() -> None:
    found, error = estimate(), estimate().choices[0].memory.error or 0.0
    agreed = beside(found, of(MemoryVerdict.FITS, 1 + 0.9 * error))
    assert agreed.headline[-1].code == "dryrun_agrees"
    assert agreed.choices[0].dryrun == agreed.headline[-1]
    assert agreed.verdict == found.verdict
    for other in (of(MemoryVerdict.FITS, 1 + 1.2 * error), of(MemoryVerdict.BORDERLINE, 1.0)):
        said = texts(beside(found, other).headline)[-1]
        assert said.startswith("a dry run disagrees: ")
        assert f"{error:.0%} is the error of the memory model" in said
    assert (
        "borderline (estimated: fits)" in texts(beside(found, of(MemoryVerdict.BORDERLINE, 1.0)).headline)[-1]
    )


def test_times_agree_within_the_interval() -> None:
    found = estimate()
    choice = found.choices[0]

    def timed(seconds: float) -> Run:
        time = RankTime(step=seconds, forward=seconds, backward=0.0, optimizer=0.0, busy=seconds)
        return lambda asked: replace(of(MemoryVerdict.FITS, 1.0)(asked), times=(time,))

    for seconds, code in (
        (choice.step_time_low, "dryrun_agrees"),
        (choice.step_time_high, "dryrun_agrees"),
        (0.99 * choice.step_time_low, "dryrun_disagrees"),
        (1.01 * choice.step_time_high, "dryrun_disagrees"),
    ):
        said = beside(found, timed(seconds)).headline[-1]
        assert (said.code, said.values["step_time"]) == (code, seconds)
        assert "a step (estimated: " in texts([said])[0]


def test_what_is_allocated_is_what_the_log_shows_where_it_counts_that() -> None:
    memory = estimate().choices[0].memory
    assert allocated_of(memory) == pytest.approx(memory.logged)


def test_an_illegal_estimate_is_not_run() -> None:
    found = make_estimate(Request("llama-3.2-1b", "1x1 h100", set={"tp": 3}))
    assert beside(found, running({})) == found


def test_files_written_say_what_a_dry_run_says(plan: Plan, tmp_path: object) -> None:
    path = f"{tmp_path}/plan.json"
    save_plan(worded(confirmed(plan, lambda asked: ran(MemoryVerdict.FITS))), path)
    files = render_plan(path, "accelerate", 0, None)  # type: ignore[arg-type]
    assert "- confirmed by a dry run: 60 GiB allocated" in files["README.md"]


def test_launch_files_are_checked_beside_a_dry_run(plan: Plan, tmp_path: object) -> None:
    path = f"{tmp_path}/plan.json"
    save_plan(worded(plan), path)
    files = {
        name: text
        for name, text in render_plan(path, "accelerate", 0, None).items()
        if name.endswith((".sh", ".yaml"))
    }  # type: ignore[arg-type]
    asked = Question("llama-3.2-1b", "1x1 h100")
    answer = check_files(files, asked, run=dry)
    assert answer["dryrun"]["code"] == "dryrun_refused"  # of a stack that no dry run drives
    assert "fsdp1-2023" in answer["dryrun"]["text"]
    assert "dryrun" not in check_files(files, asked)
    json.dumps(answer)


@pytest.mark.parametrize("asked", [planner.plan, planner.estimate])
def test_settings_of_the_allocator_belong_to_a_dry_run(asked: Callable[..., Plan]) -> None:
    with pytest.raises(InputError, match=r"alloc.conf.* belongs to .*dryrun"):
        asked("llama-3.2-1b", "1x1 h100", alloc_conf="expandable_segments:True")
    with pytest.raises(InputError, match="expandible"):
        asked("llama-3.2-1b", "1x1 h100", alloc_conf="expandible_segments:True", dryrun=True)


def test_settings_of_the_allocator_reach_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def make(asked: Question, settings: AllocatorSettings) -> DryRun:
        given.append(settings)
        return ran(MemoryVerdict.FITS)

    monkeypatch.setattr(extra, "require_extra", lambda: None)
    monkeypatch.setattr(question, "make_dryrun", make)
    run = runner_for(dryrun=True, alloc_conf="expandable_segments:True")
    assert run is not None
    run(Question("llama-3.2-1b", "1x1 h100"))
    assert [one.expandable_segments for one in given] == [True]
    assert runner_for(dryrun=False, alloc_conf="") is None


@pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason="the extra is not installed")
def test_several_devices_are_refused_by_name_and_planned_all_the_same() -> None:
    found = planner.plan("llama-3.2-1b", "1x8 h100", dryrun=True, top=1, **ALONE)
    assert found.found
    assert found.choices[found.recommended or 0].dryrun is not None


def test_a_real_dry_run_confirms(plan: Plan) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    said = run_choice(plan, plan.choices[0], dry)
    assert said.code == "dryrun_confirms"
    assert 40 * GIB < float(str(said.values["allocated"])) < 60 * GIB


@pytest.mark.parametrize("asked", [planner.plan, planner.estimate])
def test_a_missing_extra_is_told_before_any_work(
    asked: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr("planner.api.make_plan", None)
    monkeypatch.setattr("planner.api.make_estimate", None)
    with pytest.raises(InputError, match=r"no transformers here[\s\S]*llm-training-planner\[dryrun\]"):
        asked("llama-3.2-1b", "1x1 h100", dryrun=True)
    with pytest.raises(InputError):
        require_extra()
