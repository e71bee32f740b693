"""How good are planner's predictions on a file of published runs, in the free text of its curators?

Predictions are made first, from the input columns alone; then they are compared. Left out: reading rows (`runs.py`),
and tables of typed columns, which `planner validate` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.published.bands import band_of_row
from benchmarks.published.measured import group_of, is_judged, measurement_of, number_of, sweep_of
from benchmarks.published.predict import predict_runs
from benchmarks.published.runs import Run, RunReader, read_models, read_rows
from benchmarks.published.summary import summarise_published
from planner.calibrate.coverage import coverage
from planner.calibrate.flops_rate import step_of_rate
from planner.calibrate.measured import Measurement
from planner.calibrate.predict import refusal
from planner.calibrate.statistics import Answer
from planner.calibrate.validate import (
    Validation,
    answered,
    ask_rows,
    band_or_none,
    output_of,
    with_interval,
)


def validate_files(runs: Path, models: Path) -> Validation:
    """Predict every row of `runs` and compare. Raises `FileInputError` for files that cannot be read."""
    return validate_rows(read_rows(runs), read_models(models))


def validate_rows(rows: Sequence[dict[str, str]], models: Mapping[str, Any]) -> Validation:
    """Predict every row and compare; a row that cannot be answered says why."""
    answers = validation_answers(rows, models)
    summary = summarise_published(answers) | {"coverage": coverage(answers)}
    return Validation([answer.output for answer in answers], summary)


def validation_answers(rows: Sequence[dict[str, str]], models: Mapping[str, Any]) -> list[Answer]:
    """Every row with its prediction and its measurement."""
    runs, outputs = _predict(rows, models)
    return [_answer(row, run, output) for row, run, output in zip(rows, runs, outputs, strict=True)]


def _answer(row: dict[str, str], run: Run | None, output: dict[str, Any]) -> Answer:
    """One row with its measurement: of a row that states TFLOP/s alone, the step that they mean."""
    measured: Measurement = measurement_of(row)
    unread = ""
    if run is not None and states_flops_alone(row):
        try:
            rate = (number_of(row, "tflops_per_gpu") or 0.0) * 1e12
            seconds, said = step_of_rate(rate, (row.get("flops_kind") or "").strip().lower(), run)
            measured = replace(measured, step_time=seconds)
            output = output | {"assumed": [*output["assumed"], said]}
        except Exception as error:
            unread = refusal(error)
    model = run.problem.model if run else None
    moe, hybrid = (model.is_moe, bool(model.state_spaces)) if model else (False, False)
    return answer_of(row, output, measured, moe=moe, hybrid=hybrid, unread_flops=unread)


def answer_of(
    row: Mapping[str, str], output: dict[str, Any], measured: Measurement, moe: bool = False,
    hybrid: bool = False, unread_flops: str = "",
) -> Answer:  # fmt: skip
    """A row with what was predicted and measured, in its group and its sweep."""
    group = group_of(row)
    return Answer(
        row, output, measured, group, sweep_of(row), number_of(row, "gpus") or 1.0, moe, hybrid, is_judged(group),
        unread_flops,
    )  # fmt: skip


def states_flops_alone(row: Mapping[str, str]) -> bool:
    """Whether a row's only figure of time is its TFLOP/s."""
    others = ("step_time_s", "tokens_per_s_per_gpu")
    return not any((row.get(name) or "").strip() for name in others) and bool(
        number_of(row, "tflops_per_gpu")
    )


def predict_rows(rows: Sequence[Mapping[str, str]], models: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One object of OUT.json per row."""
    return _predict(rows, models)[1]


def _predict(
    rows: Sequence[Mapping[str, str]], models: Mapping[str, Any]
) -> tuple[list[Run | None], list[dict[str, Any]]]:
    asked = ask_rows(rows, RunReader(models).read)
    runs = [run if isinstance(run, Run) else None for run in asked]
    outputs = []
    for index, (one, prediction) in enumerate(zip(asked, predict_runs(runs), strict=True)):
        if not isinstance(one, Run) or prediction is None:
            assert isinstance(one, tuple), "a run has a prediction"
            outputs.append(with_interval(output_of(index, *one), None))
            continue
        of_source = partial(band_of_row, source=rows[index].get("source") or "")
        band = band_or_none(one.problem, prediction.time, of_source)
        outputs.append(with_interval(answered(index, one, prediction), None if prediction.failed else band))
    return runs, outputs
