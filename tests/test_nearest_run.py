"""Is the published run beside an answer the nearest one, and are its figures those of its own configuration?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.answer.estimate import make_estimate
from planner.answer.nearest_run import nearest_run
from planner.ask.request import Request, resolve
from planner.report.nearest import figures, settings_sentence
from planner.space.restriction import parse_restriction
from planner.spec.planfile import NearestRun

ASKED = Request("llama-3.1-8b", "1x8 h100", seq_len=8192, global_batch="64", set=parse_restriction(["tp=2"]))


def nearest(request: Request) -> NearestRun | None:
    return nearest_run(resolve(request)[0])


def test_the_same_model_on_as_many_devices() -> None:
    run = nearest(ASKED)
    assert run is not None
    assert run.same_model
    assert (run.accelerator, run.devices, run.seq_len) == ("h100-sxm-80g", 8, 8192)
    assert run.precision == "bf16"
    assert run.link.startswith("https://github.com/")
    tokens = run.seq_len * run.global_batch / run.devices
    assert run.tokens_per_second_per_device == pytest.approx(tokens / run.step_time)
    assert run.predicted_step_time == pytest.approx(run.step_time, rel=0.15)
    assert make_estimate(ASKED).nearest_run == run


def test_numbers_of_the_same_width_come_first() -> None:
    run = nearest(replace(ASKED, precision="fp8_cs"))
    assert run is not None
    assert run.precision.startswith("fp8")


def test_a_model_of_its_kind_and_size_is_said_to_be_another() -> None:
    run = nearest(replace(ASKED, model="qwen2.5-7b"))
    assert run is not None
    assert not run.same_model
    assert "(another model of this kind and size)" in settings_sentence(run)


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster": "256x8 h100 400G-ib"},  # more than four times as many as any
        {"cluster": "1x8 l40s"},
        {"model": "mixtral-8x7b"},
        {"lora_rank": 16},
    ],
    ids=str,
)
def test_none_is_named_where_none_is_near(changes: dict[str, object]) -> None:
    assert nearest(replace(ASKED, **changes)) is None  # type: ignore[arg-type]


def test_the_report_compares_with_what_was_asked() -> None:
    plan = make_estimate(ASKED)
    assert plan.nearest_run is not None
    measured, predicted, own = figures(plan, plan.nearest_run, "GPU")
    assert measured.value.endswith(" tokens/s/GPU")
    assert "than measured" in predicted.note
    assert own.note == "of another batch"
