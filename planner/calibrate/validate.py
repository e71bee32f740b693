"""How good are planner's predictions on a file of published runs? `planner validate RUNS.csv MODELS.json`.

Predictions are made first, from the input columns alone; then they are compared. Left out: fitting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.calibrate.coverage import band_of_row, coverage
from planner.calibrate.predict import Prediction, predict_runs
from planner.calibrate.published.flops_rate import states_flops_alone, with_flops_rate
from planner.calibrate.published.measured import measurement_of
from planner.calibrate.published.runs import Run, RunReader, read_models, read_rows, refusal
from planner.calibrate.statistics import Answer, summarise
from planner.errors import PlannerError
from planner.spec.overlay import Overlay
from planner.spec.rule import Problem
from planner.units import GIB


@dataclass(frozen=True)
class Validation:
    """`rows`: one object per row of the file, in its order. `summary`: see `statistics.summarise`."""

    rows: list[dict[str, Any]]
    summary: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """What OUT.json holds."""
        rows = [{key: value for key, value in row.items() if key != "config"} for row in self.rows]
        return {"rows": rows, "summary": self.summary}


def validate_files(runs: Path, models: Path, overlay: Overlay | None = None) -> Validation:
    """Predict every row of `runs` and compare. Raises `FileInputError` for files that cannot be read."""
    return validate_rows(read_rows(runs), read_models(models), overlay)


def validate_rows(
    rows: Sequence[dict[str, str]], models: Mapping[str, Any], overlay: Overlay | None = None
) -> Validation:
    """Predict every row and compare; a row that cannot be answered says why.

    A row has the status "ok", "unsupported" or "failed". One that breaks a rule of its framework, which `reason` tells,
    is "ok" and not `legal`: answered, without figures, with "does not fit".

    `overlay`: a calibration, for the rows of its stack and device.
    """
    answers = validation_answers(rows, models, overlay)
    summary = summarise(answers) | {"coverage": coverage(answers)}
    return Validation([answer.output for answer in answers], summary)


def validation_answers(
    rows: Sequence[dict[str, str]], models: Mapping[str, Any], overlay: Overlay | None = None
) -> list[Answer]:
    """Every row with its prediction and its measurement."""
    runs, outputs = _predict(rows, models, overlay)
    return [_answer(row, run, output) for row, run, output in zip(rows, runs, outputs, strict=True)]


def _answer(row: dict[str, str], run: Run | None, output: dict[str, Any]) -> Answer:
    """One row with its measurement: of a row that states TFLOP/s alone, the step that they mean."""
    measured, unread = measurement_of(row), ""
    if run is not None and states_flops_alone(row):
        try:
            measured, said = with_flops_rate(measured, row, run)
            output = output | {"assumed": [*output["assumed"], said]}
        except Exception as error:
            unread = refusal(error)
    return Answer(row, output, measured, *_kind_of(run), unread_flops=unread)


def _kind_of(run: Run | None) -> tuple[bool, bool]:
    """Is it of a mixture of experts, and of a model with state spaces?"""
    model = run.problem.model if run else None
    return (model.is_moe, bool(model.state_spaces)) if model else (False, False)


def predict_rows(rows: Sequence[Mapping[str, str]], models: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One object of OUT.json per row."""
    return _predict(rows, models)[1]


def _predict(
    rows: Sequence[Mapping[str, str]], models: Mapping[str, Any], overlay: Overlay | None = None
) -> tuple[list[Run | None], list[dict[str, Any]]]:
    reader = RunReader(models)
    runs: list[Run | None] = []
    refused: dict[int, tuple[str, str]] = {}
    for index, row in enumerate(rows):
        run = None
        try:
            run = reader.read(row)
        except PlannerError as error:
            refused[index] = "unsupported", refusal(error)
        except Exception as error:
            refused[index] = "failed", refusal(error)
        runs.append(run)
    runs = _calibrated(runs, overlay) if overlay is not None else runs
    predictions = predict_runs(runs)
    outputs = []
    for index, (run, prediction) in enumerate(zip(runs, predictions, strict=True)):
        if run is None or prediction is None:
            status, reason = refused[index]
            outputs.append(_output(index, status, reason))
        else:
            band = None if prediction.failed else _band(run.problem, rows[index].get("source") or "")
            outputs.append(_answered(index, run, prediction) | {"band": band})
    return runs, outputs


def _band(problem: Problem, source: str) -> float | None:
    """The band of an answered row; none where it cannot be told, which costs no row its answer and no file its rows."""
    try:
        return band_of_row(problem, source)
    except Exception:
        return None


def _calibrated(runs: Sequence[Run | None], overlay: Overlay) -> list[Run | None]:
    """Runs on the calibrated stack and links, where the calibration holds for them."""
    problems: dict[int, Problem] = {}
    found: list[Run | None] = []
    for run in runs:
        of = run.problem if run is not None else None
        if of is None or run is None or overlay.stack not in ("", of.stack.name):
            found.append(run)
            continue
        if overlay.accelerator not in ("", of.cluster.accelerator.name):
            found.append(run)
            continue
        if id(of) not in problems:
            problems[id(of)] = replace(
                of, stack=overlay.of_stack(of.stack), cluster=overlay.of_cluster(of.cluster)
            )
        found.append(replace(run, problem=problems[id(of)]))
    return found


def _answered(index: int, run: Run, prediction: Prediction) -> dict[str, Any]:
    if prediction.failed:
        status = "unsupported" if prediction.unsupported else "failed"
        return _output(index, status, prediction.failed, run, prediction)
    return _output(index, "ok", prediction.illegal, run, prediction)


def _output(
    index: int, status: str, reason: str, run: Run | None = None, prediction: Prediction | None = None
) -> dict[str, Any]:
    """One row of OUT.json; null where there is no figure."""
    step = prediction.step_time if prediction else None
    tokens = run.problem.job.tokens_per_step if run else 0.0
    devices = run.problem.cluster.num_devices if run else 1
    peak = prediction.peak_memory if prediction else None
    return {
        "row": index,
        "status": status,
        "reason": reason,
        "legal": not prediction.illegal if prediction else None,
        "step_time_s": step,
        "tokens_per_s_per_gpu": tokens / step / devices if step else None,
        "peak_mem_gib": peak / GIB if peak is not None else None,
        "verdict": str(prediction.verdict) if prediction and prediction.verdict else None,
        "stack": run.stack if run else None,
        "calibration_level": run.calibration_level if run else None,
        "band": None,
        "assumed": [*(run.assumed if run else ()), *(prediction.assumed if prediction else ())],
        "config": run.config.describe() if run else "",
    }
