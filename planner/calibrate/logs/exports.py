"""What does a whole file say of steps that a tool wrote: JSON of a Trainer, lines of JSON, CSV of a tracker?

A file is known by its first characters or its header, never by its name. A figure counts by the name of its column or
key; where none is a time or a rate, times are the differences of the clock. Left out: text that a run printed
(`formats.py`).
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from planner.calibrate.logs.formats import LoggedStep, figure, step_line
from planner.calibrate.logs.memory_messages import MemoryLine, memory_line
from planner.errors import FileInputError

MOST_DOCUMENT: Final = 64_000_000  # characters of a JSON document
MOST_ROWS: Final = 200_000
EXPORTS: Final = (
    "trainer_state.json", "train_results.json", "lines of JSON", "CSV of wandb, TensorBoard and MLflow",
)  # fmt: skip
_FIRST_LINES: Final = 5  # that must all be objects for lines of JSON
_WHERE: Final = (
    r"(?:(?:train|perf|timing|timing_s|throughput|device|metrics|performance|time_metrics|speed)[/_.])*"
)
_STEP: Final = re.compile(
    r"(?:(?:train|trainer|training)[/_.])?(?:global_?step|current_?steps?|steps?|iteration|iter)|_step",
    re.IGNORECASE,
)
_CLOCKS: Final = ("wall time", "_runtime", "_timestamp")  # of TensorBoard and wandb [s]
# what a Trainer writes at each logging, and at the end, where it adds the rate [s]
_RUNTIMES: Final = ("train_runtime", "train/train_runtime")
# figures by the field of `LoggedStep`, or a group of `formats.py`, as frameworks and users name them; what verl calls
# perf/time_per_step and perf/throughput holds rollouts
_COLUMNS: Final = tuple(
    (name, re.compile(_WHERE + f"(?:{'|'.join(patterns)})", re.IGNORECASE))
    for name, patterns in (
        (
            "seconds",
            (
                r"end_to_end\(s\)", r"step[_ -]?time(?:[_ ]?\(?s(?:ec(?:ond)?s?)?\)?)?", "(?:iteration|iter)[_-]time",
                "time/step", r"time\(s\)", "(?<!perf/)time_per_step", "update_actor", "policy_training", "duration",
                "train_step_timing in s", "current step time", "sec(?:ond)?s_per_(?:step|iter(?:ation)?)",
                r"speed\(s/it\)",
            ),
        ),
        (
            "ms",
            (r"(?:step|iter|iteration)[_ -]?time[_ ]?\(?ms\)?", "time_per_iteration_ms", "ms_per_(?:step|iter)"),
        ),
        (
            "per_second",
            ("(?:interval_)?steps_per_sec(?:ond)?", "batches_per_sec", "bps", r"speed\(iter/s\)", "it/s"),
        ),
        (
            "tokens_per_device",
            (
                "tok(?:en)?s?_per_sec(?:ond)?_per_(?:gpu|device)", "tps_per_gpu", "(?<=device/)tps", "tok/s/gpu",
                "(?<=device/)tokens_per_sec", "tokens/train_per_sec_per_gpu", r"throughput\(tps\)",
                r"tgs(?: \(tokens/gpu/second\))?", "interval_tokens_per_second_per_device",
                r"current throughput \(token per gpu per sec\)",
            ),
        ),
        ("tokens", ("tokens_per_sec(?:ond)?", "tok/s(?:ec)?", "tps")),
        ("samples", ("(?:samples|examples)_per_sec(?:ond)?",)),
        ("percent", (r"mfu ?\(%\)",)),
        ("flops", ("tflops(?:_per_(?:gpu|device))?", "model_tflops_per_gpu")),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Export:
    """Steps in order, as logged, and memory."""

    steps: tuple[LoggedStep, ...]
    memory: tuple[MemoryLine, ...]


def export_in(lines: Iterator[str], name: str) -> tuple[Export | None, Iterator[str]]:
    """The export that the lines of a file are, or None and all of them. Raises `FileInputError` where it holds several
    runs."""
    head: list[str] = []
    for line in lines:
        head.append(line)
        if len(head) >= 200 or sum(1 for one in head if one.strip()) >= _FIRST_LINES:
            break
    shown = [one for one in head if one.strip()]
    first = shown[0].lstrip("\ufeff \t") if shown else ""
    if first.startswith("{"):
        if all(_object(one) is not None for one in shown) and not _is_document(_object(shown[0])):
            return _read_lines(itertools.chain(head, lines))
        kept: list[str] = [*head]
        size = sum(map(len, head))
        for line in lines:
            kept.append(line)
            size += len(line)
            if size > MOST_DOCUMENT:
                break
        document = _object("".join(kept)) if size <= MOST_DOCUMENT else None
        found = _of_document(document) if document is not None else None
        return found, itertools.chain(kept, lines)
    if (columns := _header(first)) is not None:
        rows = _rows_of(itertools.chain(head, lines), _delimiter(first))
        return _of_table(name, columns, rows), iter(())
    return None, itertools.chain(head, lines)


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _is_document(found: Mapping[str, Any] | None) -> bool:
    return found is not None and (
        "log_history" in found or ("train_runtime" in found and "step" not in found)
    )


def _of_document(document: Mapping[str, Any]) -> Export | None:
    """trainer_state.json, or train_results.json and all_results.json, of transformers' Trainer and who builds on it."""
    history = document.get("log_history")
    if isinstance(history, list):
        return _of_rows([row for row in history if isinstance(row, dict)], "transformers")
    return _of_rows([document], "transformers") if _is_document(document) else None


def _read_lines(lines: Iterable[str]) -> tuple[Export | None, Iterator[str]]:
    """Lines of JSON: metrics, or the lines of a log that a container's runtime wrapped."""
    first, rows = itertools.tee(row for line in lines if (row := _object(line)) is not None)
    wrapped = next(
        (name for name in ("log", "message", "msg") if isinstance(next(first, {}).get(name), str)), None
    )
    if wrapped is not None:
        return None, (str(row.get(wrapped, "")) for row in rows)
    return _of_rows(rows, "json"), iter(())


def _of_rows(rows: Iterable[Mapping[str, Any]], framework: str) -> Export:
    steps, memory, averages = list[LoggedStep](), list[MemoryLine](), list[LoggedStep]()
    for row in itertools.islice(rows, MOST_ROWS):
        text = json.dumps(row)
        if (line := memory_line(text)) is not None:
            memory.append(line)
        number = _number(row)
        if (average := _average(row, number, framework)) is not None:
            averages.append(average)
        elif (step := step_line(text) or _step_of(row, framework)) is not None:
            steps.append(replace(step, step=number) if step.step is None else step)
    return _export(steps, averages, memory)


def _export(
    steps: Sequence[LoggedStep], averages: Sequence[LoggedStep] = (), memory: Sequence[MemoryLine] = ()
) -> Export:
    """Steps that state times or rates where any does; else those of a clock; else what the whole run averages to."""
    timed = [step for step in steps if step.seconds or step.tokens_per_device or step.tokens or step.samples]
    clocked = [step for step in steps if step.clock is not None and step.step is not None]
    return Export(tuple(timed or (clocked if len(clocked) > 1 else averages)), tuple(memory))


def _average(row: Mapping[str, Any], number: int | None, framework: str) -> LoggedStep | None:
    """The step of a whole run, which a Trainer writes at its end; None in other rows. Its rate has three decimals, so
    that its steps count where they agree with it."""
    rate, runtime = _figure(row.get("train_steps_per_second")), _figure(row.get("train_runtime"))
    if rate is None or runtime is None:
        return None
    exact = number is not None and abs(number / runtime - rate) <= 0.0006
    return LoggedStep(framework, seconds=runtime / number if exact and number else 1 / rate)


def _step_of(row: Mapping[str, Any], framework: str) -> LoggedStep | None:
    """What a row says by the names of its figures; None where nothing."""
    runtime = next((found for name in _RUNTIMES if (found := _figure(row.get(name))) is not None), None)
    if runtime is not None:  # rates beside it are averages since the start
        return LoggedStep(framework, clock=runtime)
    said: dict[str, float] = {}
    for name, pattern in _COLUMNS:
        for key, value in row.items():
            if name not in said and pattern.fullmatch(key) and (number := _figure(value)) is not None:
                said[name] = number
    lower = {key.lower(): value for key, value in row.items()}
    clock = next((found for name in _CLOCKS if (found := _figure(lower.get(name))) is not None), None)
    if not said and clock is None:
        return None
    seconds = said.get("seconds") or (said["ms"] / 1e3 if "ms" in said else None)
    if seconds is None and "per_second" in said:
        seconds = 1 / said["per_second"]
    return LoggedStep(
        framework, None, seconds, said.get("tokens_per_device"), said.get("tokens"), said.get("samples"),
        flops=said.get("flops"), mfu=said["percent"] / 100 if "percent" in said else None,
        clock=None if seconds or said.keys() & {"tokens_per_device", "tokens", "samples"} else clock,
    )  # fmt: skip


def _figure(value: object) -> float | None:
    """A figure of a cell or key, above 0; None for others."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = str(value).strip()
    return figure(text) if re.fullmatch(r"\d{1,20}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?", text) else None


def _number(row: Mapping[str, Any]) -> int | None:
    """The step that a row is of: the trainer's own number first, that of a tracker's rows last."""
    names = [name for name in row if _STEP.fullmatch(name)]
    for name in sorted(names, key=lambda name: ("global_step" not in name, name == "_step")):
        text = str(row[name]).strip()
        if re.fullmatch(r"\d{1,12}(?:\.0+)?", text):
            return int(float(text))
    return None


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)


def _header(line: str) -> list[str] | None:
    """The columns of a tracker's table, without the names of runs; None where the line is none."""
    if not 1 <= line.count(_delimiter(line)) <= 2000 or "|" in line or "{" in line:
        return None
    cells = [cell.strip() for cell in next(csv.reader([line], delimiter=_delimiter(line)), [])]
    names = [cell.rpartition(" - ")[2] for cell in cells]
    stepped = any(_STEP.fullmatch(name) for name in names)
    told = any(pattern.fullmatch(name) for name in names for _, pattern in _COLUMNS)
    clocked = any(name.lower() in (*_CLOCKS, "timestamp") for name in names)
    return cells if stepped and (told or clocked) else None


def _of_table(name: str, cells: Sequence[str], rows: Iterator[list[str]]) -> Export:
    """A chart or the history of wandb, a scalar of TensorBoard, a chart of MLflow. Raises `FileInputError`."""
    lower = [cell.lower() for cell in cells]
    if {"key", "value", "step", "timestamp"} <= set(lower):
        return _of_long_table(name, lower, rows)
    framework = "tensorboard" if lower == ["wall time", "step", "value"] else "wandb"
    named = [cell.rpartition(" - ")[2] for cell in cells]
    told = [
        cell for cell, of in zip(cells, named, strict=True) if any(one.fullmatch(of) for _, one in _COLUMNS)
    ]
    _check_one_run(name, {cell.rpartition(" - ")[0] for cell in told})
    return _export([step for row in rows if (step := _of_cells(named, row, framework)) is not None])


def _rows_of(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """Rows below the header, as far as they can be read as a table."""
    rows = csv.reader((line for line in lines if line.strip()), delimiter=delimiter)
    try:
        yield from itertools.islice(rows, 1, MOST_ROWS)
    except csv.Error:
        return


def _of_cells(names: Sequence[str], row: Sequence[str], framework: str) -> LoggedStep | None:
    cells = {name: cell for name, cell in zip(names, row, strict=False) if cell.strip()}
    step, number = _step_of(cells, framework), _number(cells)
    return replace(step, step=number) if step is not None and number is not None else None


def _of_long_table(name: str, names: Sequence[str], rows: Iterator[list[str]]) -> Export:
    """MLflow: a row for each metric of a step (mlflow server/js convertMetricsToCsv), its timestamps in ms."""
    steps: dict[str, dict[str, str]] = {}
    runs: set[str] = set()
    for cells in rows:
        row = dict(zip(names, cells, strict=False))
        if (
            row.keys() >= {"key", "value", "step", "timestamp"}
            and (stamp := _figure(row["timestamp"])) is not None
        ):
            runs.add(row.get("run_id", ""))
            first = {"step": row["step"], "wall time": str(stamp / 1e3)}
            steps.setdefault(row["step"], first)[row["key"]] = row["value"]
    _check_one_run(name, runs)
    found = (_of_cells(list(row), list(row.values()), "mlflow") for row in steps.values())
    return _export([step for step in found if step is not None])


def _check_one_run(name: str, runs: Iterable[str]) -> None:
    if len(several := sorted(runs)) > 1:
        given = f"{len(several)}: {', '.join(several[:3])}"
        raise FileInputError(name, "an export must hold one run", given, "export one of them")
