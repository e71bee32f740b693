"""The critical batch in answers: stated, counted, given and unknown, by the command line and from a plan file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.answer.estimate import make_estimate
from planner.ask.question import Question
from planner.spec.planfile import Run
from planner.spec.rows import plan_rows

SET = {"tp": 1, "pp": 1, "dp": 16}
ASKED: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": "dgx-h100", "gpus": 16, "set": SET}


def run(**more: Any) -> Run:
    found = make_estimate(Question(**{**ASKED, "tokens": "200B", "global_batch": "4Mtok", **more}))
    assert found.choices[0].run is not None
    return found.choices[0].run


def test_time_and_money_are_those_of_the_same_loss() -> None:
    usual, beyond = run(critical_batch="4194304tok"), run(critical_batch="4194304tok", global_batch="16Mtok")
    assert usual.tokens == 2e11
    assert beyond.tokens == pytest.approx(2e11 * (1 + 4) / 2)
    asked = Question(**ASKED, tokens="200B", global_batch="16Mtok", critical_batch="4194304tok")
    (row,) = plan_rows(make_estimate(asked))
    assert (row["tokens"], row["tokens_trained"]) == (2e11, beyond.tokens), (
        "as stated, and as its days have it"
    )
    assert usual.effective_days is not None
    assert beyond.effective_days is not None
    # nearly as many tokens a second; a step of more micro-batches is at most a few percent faster a sequence
    assert beyond.effective_days / usual.effective_days == pytest.approx(2.5, rel=0.05)
    assert (beyond.cost or 0.0) / (usual.cost or 1.0) == pytest.approx(2.5, rel=0.05)


def test_nothing_is_counted_without_the_length_of_the_run_and_it_is_said() -> None:
    plain = make_estimate(Question(**ASKED, global_batch="64Mtok"))
    limited = make_estimate(
        Question(**ASKED, global_batch="64Mtok", critical_batch="1Mtok", batch_schedule="4Mtok:1B")
    )
    assert plain.choices[0].run is None
    assert limited.choices == plain.choices
    said = [one for one in limited.assumptions if one.code == "settings_unused"]
    assert [len(one.values["settings"]) for one in said] == [2]  # type: ignore[arg-type]


def test_a_ramp_of_batches_is_as_its_own_estimates() -> None:
    stages = {"1Mtok": 5e10, "2Mtok": 1e11}
    ramped = run(batch_schedule=[f"{batch}:{end:g}" for batch, end in stages.items()])
    steps = days = start = 0.0
    for batch, end in (*stages.items(), ("4Mtok", 2e11)):
        alone = run(global_batch=batch)
        share = (end - start) / 2e11
        steps, days, start = steps + share * alone.steps, days + share * alone.days, end
    assert ramped.steps == pytest.approx(steps, rel=1e-3)
    assert ramped.days == pytest.approx(days, rel=0.01)
    assert ramped.days > run().days  # small batches fill the devices less


def test_adapters_and_fine_tuning_take_the_tokens_that_are_stated() -> None:
    for more in ({"lora_rank": 16}, {"tokens": "500M"}):
        facts = run(**more, global_batch="64Mtok")
        assert facts.tokens == facts.tokens_least == facts.tokens_most
        assert facts.batch is not None
        assert facts.batch.code == "critical_batch_unknown"


def test_the_verbs_state_it(planner: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    base = ("llama-3.2-1b", "dgx-h100", "--gpus", "16", "--set", "tp=1", "--set", "pp=1", "--tokens", "200B")
    code, out, _ = planner(
        "estimate", *base, "--global-batch", "16Mtok", "-o", str(path := tmp_path / "plan.json")
    )
    assert code == 0
    assert "critical batch" in " ".join(out.split())
    assert "times the tokens for the same loss" in " ".join(out.split())
    held = json.loads(path.read_text())["choices"][0]["run"]
    assert held["tokens"] > 2e11
    code, out, _ = planner("estimate", str(path), "--critical-batch", "64Mtok", "--json")
    again = json.loads(out)["choices"][0]["run"]
    assert code == 0
    assert again["tokens"] == 2e11
    assert again["batch"]["values"]["given"] is True
    code, out, _ = planner("compare", "llama-3.2-1b", "--clusters", "dgx-h100", "--gpus", "16", *base[4:])
    assert code == 0
    assert "critical batch" in " ".join(out.split())
    code, out, _ = planner("assumptions")
    assert code == 0
    assert "MiniMax-01" in out


@pytest.mark.parametrize(
    "wrong",
    [
        ("--critical-batch", "words"),
        ("--critical-batch", "0"),
        ("--critical-batch", "nan"),
        ("--critical-batch", "1k"),
        ("--critical-batch", "512"),
        ("--critical-batch", "-8Mtok"),
        ("--critical-batch", "8Q"),
        ("--batch-schedule", "4Mtok"),
        ("--batch-schedule", "0:100B"),
        ("--batch-schedule", "words:100B"),
        ("--batch-schedule", "4Mtok:10B"),
        ("--batch-schedule", "2Mtok:10B,1Mtok:20B"),
        ("--batch-schedule", "8Mtok:20B,4Mtok:10B"),
        ("--batch-schedule", "4Mtok:300B"),
    ],
)
def test_malformed_input_exits_2(
    planner: Callable[..., tuple[int, str, str]], wrong: tuple[str, str]
) -> None:
    base = ("llama-3.2-1b", "dgx-h100", "--gpus", "16", "--set", "tp=1", "--set", "pp=1", "--tokens", "200B")
    code, _, err = planner("estimate", *base, *wrong)
    assert code == 2
    assert "Traceback" not in err
    assert wrong[0] in err
    assert "((" not in err, "no tuple of Python"
    assert "--global-batch must" not in err, "nor what somebody else named"
    assert "15.6T" not in err, "nor a hint for another option"


def test_python_takes_both() -> None:
    batches = {"global_batch": "16Mtok", "critical_batch": 8e6, "batch_schedule": "4Mtok:10B"}
    found = planner.estimate(**ASKED, tokens=2e11, **batches)
    assert found.choices[0].run is not None
    assert found.choices[0].run.tokens == pytest.approx(1e10 + 1.9e11 * (1 + 16.8e6 / 8e6) / 2, rel=1e-3)
