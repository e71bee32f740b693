"""How good are planner's predictions on a table of measured runs? `planner validate RUNS.csv`.

Predictions are made first, from what the rows ask alone; then they are compared. Left out: how rows are read
(`run_table.py`, `run_questions.py`), and fitting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from planner.calibrate.binding_rules import impossible
from planner.calibrate.coverage import band_shown, coverage
from planner.calibrate.flops_rate import step_of_rate
from planner.calibrate.measured import Measurement
from planner.calibrate.predict import Prediction, Run, predict_runs, refusal
from planner.calibrate.run_questions import QuestionReader
from planner.calibrate.run_table import Outcome, TableRow, read_run_table
from planner.calibrate.statistics import Answer, summarise
from planner.catalog.load_overlay import load_overlay
from planner.errors import PlannerError
from planner.spec.rule import Problem
from planner.units import GIB

# what the rows of a sweep share: everything but how the work is divided
_SWEEP: Final = (
    "source",
    "model",
    "cluster",
    "gpus",
    "seq_len",
    "global_batch",
    "precision",
    "optimizer",
    "stack",
)
NO_SOURCE: Final = "no source"
Row = TypeVar("Row")
BandOf = Callable[[Problem, Mapping[str, float]], float]
"""The band of a step, from what was asked and its time by term."""
Refused = tuple[str, str]  # status and reason of a row that cannot be asked


@dataclass(frozen=True)
class Validation:
    """`rows`: one object per row of the file, in its order. `summary`: see `statistics.summarise`."""

    rows: list[dict[str, Any]]
    summary: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """What OUT.json holds."""
        rows = [{key: value for key, value in row.items() if key != "config"} for row in self.rows]
        return {"rows": rows, "summary": self.summary}


def validate_table(table: Path, calibration: str | None = None) -> Validation:
    """Predict every row of a table and compare; a row that cannot be answered says why.

    A row has the status "ok", "unsupported" or "failed". One that breaks a rule of its framework, which `reason` tells,
    is "ok" and not `legal`: answered, without figures, with "does not fit".

    `calibration`: a file of `planner calibrate`, for the rows of its stack and device. Raises `FileInputError` for a
    table or a calibration that cannot be read.
    """
    answers = table_answers(table, calibration)
    summary = summarise(answers) | {"coverage": coverage(answers)}
    return Validation([answer.output for answer in answers], summary)


def table_answers(table: Path, calibration: str | None = None) -> list[Answer]:
    """Every row of a table with its prediction and its measurement. Raises `FileInputError`."""
    if calibration is not None:
        load_overlay(calibration)  # refused here, not row by row
    rows = read_run_table(table)
    asked = ask_rows(rows, QuestionReader(table.parent, calibration).read)
    runs = [run if isinstance(run, Run) else None for run in asked]
    answers = []
    for index, (row, one, prediction) in enumerate(
        zip(rows, asked, predict_runs(runs, impossible), strict=True)
    ):
        if not isinstance(one, Run) or prediction is None:
            assert isinstance(one, tuple), "a run has a prediction"
            answers.append(_answer(row, None, with_interval(output_of(index, *one), None)))
            continue
        band = None if prediction.failed else band_or_none(one.problem, prediction.time)
        output = with_interval(answered(index, one, prediction), band)
        answers.append(_answer(row, one, output, prediction.time))
    return answers


def ask_rows(rows: Sequence[Row], read: Callable[[Row], Run]) -> list[Run | Refused]:
    """The run of every row, or why there is none. Never raises."""
    asked: list[Run | Refused] = []
    for row in rows:
        try:
            asked.append(read(row))
        except PlannerError as error:
            asked.append(("unsupported", refusal(error)))
        except Exception as error:
            asked.append(("failed", refusal(error)))
    return asked


def _answer(
    row: TableRow, run: Run | None, output: dict[str, Any], time: Mapping[str, float] | None = None
) -> Answer:
    """One row with its measurement: of a row that states TFLOP/s alone, the step that they mean."""
    measured, unread = _measured(row), ""
    if run is not None and measured.step_time is None and "tflops_per_gpu" in row.values:
        try:
            rate = row.values["tflops_per_gpu"] * 1e12
            seconds, said = step_of_rate(rate, row.values["flops_kind"], run)
            measured = Measurement(seconds, measured.peak_memory, measured.oom, measured.failed)
            output = output | {"assumed": [*output["assumed"], said]}
        except Exception as error:
            unread = refusal(error)
    return Answer(
        row.cells, output, measured,
        source=row.cells.get("source", NO_SOURCE),
        sweep=tuple(row.cells.get(name, "") for name in _SWEEP),
        devices=row.values["gpus"],
        moe=run is not None and run.problem.model.is_moe,
        hybrid=run is not None and bool(run.problem.model.state_spaces),
        time=time or {},
        unread_flops=unread,
    )  # fmt: skip


def _measured(row: TableRow) -> Measurement:
    """The step time as stated, else global batch x sequence length / (tokens/s per device x devices)."""
    said = row.values
    step, rate, peak = (said.get(name) for name in ("step_time_s", "tokens_per_s_per_gpu", "peak_mem_gib"))
    if step is None and rate is not None:
        step = said["global_batch"] * said["seq_len"] / (rate * said["gpus"])
    oom, failed = (said.get("outcome") == outcome for outcome in (Outcome.OOM, Outcome.FAILED))
    return Measurement(step, None if peak is None or oom else peak * GIB, oom, failed)


def band_or_none(problem: Problem, time: Mapping[str, float], band_of: BandOf = band_shown) -> float | None:
    """The band of an answered row; none where it cannot be told, which costs no row its answer and no file its rows."""
    try:
        return band_of(problem, time)
    except Exception:
        return None


def with_interval(output: dict[str, Any], band: float | None) -> dict[str, Any]:
    """The row of OUT.json with its band and the ends of the 80 % interval of its step time."""
    step = output["step_time_s"]
    ends = (step / (1 + band), step * (1 + band)) if step and band else (None, None)
    return output | {"band": band, "step_time_low_s": ends[0], "step_time_high_s": ends[1]}


def answered(index: int, run: Run, prediction: Prediction) -> dict[str, Any]:
    """The row of OUT.json of a run with its prediction."""
    if prediction.failed:
        status = "unsupported" if prediction.unsupported else "failed"
        return output_of(index, status, prediction.failed, run, prediction)
    return output_of(index, "ok", prediction.illegal, run, prediction)


def output_of(
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
