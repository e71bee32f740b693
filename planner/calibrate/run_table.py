"""Which runs does a table hold? Reads a CSV file of runs, every cell by the type of its column.

A row asks what `planner estimate` is asked, a column for each option and each axis, and states what was measured. What
cannot be read refuses the file, with every such cell named; nothing is guessed and no text is searched for words. Left
out: which question a row is (`run_questions.py`), and what its answer is.
"""

from __future__ import annotations

import csv
import datetime
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from planner.ask.option import Group, Option, options_of
from planner.ask.question import Question
from planner.ask.readers import whole
from planner.calibrate.flops_rate import KINDS
from planner.dialect import Dialect, only
from planner.dialect import option as marked
from planner.errors import FileInputError, InputError, PlannerError, UnknownNameError, nearest_names
from planner.space.axes import RESTRICTABLE
from planner.space.restriction import parse_restriction
from planner.spec.job import FROZEN_BYTES, AdapterTargets, Optimizer
from planner.spec.load_file import read_text
from planner.spec.precision import Precision

DOCUMENTED: Final = "docs/own_runs.md"
FAULTS_NAMED: Final = 20
_MOST: Final = 10**9  # of a count
_RANGE: Final = (1e-9, 1e15)  # of a measured figure, in its unit
_SHOWN: Final = 60  # letters of a cell
# columns that were read as free text before, by what states the same now
_FORMER: Final = {
    "cluster": ("gpu", "gpus_per_node", "nvlink_domain", "internode"), "stack": ("framework", "extras"),
    "zero and hsdp": ("dp_sharding",), "sp": ("sequence_parallel",),
}  # fmt: skip


class Outcome(StrEnum):
    """How a run ended."""

    RAN = "ran"
    OOM = "oom"
    FAILED = "failed"  # otherwise, or nobody says of what


@dataclass(frozen=True)
class TableRow:
    """A row of which every cell is as its column asks."""

    cells: Mapping[str, str]  # as written, empty ones left out
    values: Mapping[str, Any]  # the same as values

    @property
    def axes(self) -> list[str]:
        """The axes that it states, as `--set` takes them."""
        return [f"{axis}={self.cells[axis]}" for axis in AXES if axis in self.cells]


def _text(text: str) -> str:
    return text


def _figure(text: str) -> float:
    try:
        value = float(text) if re.fullmatch(r"[0-9.eE+-]+", text) else math.nan
    except ValueError:
        value = math.nan
    if not _RANGE[0] < value < _RANGE[1]:
        raise InputError("must be a number above 0", hint="write it like 1234.5, without a unit")
    return value


def _date(text: str) -> str:
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        pass
    raise InputError("must be a date", hint="write it like 2026-11-22")


def _bits(text: str) -> int:
    if text not in map(str, FROZEN_BYTES):
        raise InputError("must be one of " + ", ".join(map(str, sorted(FROZEN_BYTES))))
    return int(text)


def _one_of(kind: str, names: Iterable[str]) -> Callable[[str], str]:
    known = tuple(map(str, names))

    def read(text: str) -> str:
        if text.lower() not in known:
            raise UnknownNameError(kind, text, known)
        return text.lower()

    return read


def _axis(axis: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        values = () if "=" in text else parse_restriction([f"{axis}={text}"])[axis]
        if len(values) != 1:
            raise InputError(f"must be one value, as {marked('set')} takes it")
        return values[0]

    return read


def _sequences(text: str) -> int:
    return whole().read(text, "global_batch")


def _stated(option: Option[Any, Any]) -> Callable[[str], Any]:
    """The reader of an option's column: that of the option, whose names must be known where they are few."""
    if option.name in _KINDS:
        return _one_of(option.name, _KINDS[option.name])
    return lambda text: option.reader.read(text, option.name)


_KINDS: Final[Mapping[str, Iterable[str]]] = {
    "precision": Precision, "optimizer": Optimizer, "lora_targets": AdapterTargets,
    "frozen_bits": [str(bits) for bits in sorted(FROZEN_BYTES)],
}  # fmt: skip
# what is of a search; what is of a run that is to come has a group of its own
_NO_COLUMNS: Final = ("set", "without", "headroom", "min_free", "calibration")
OPTIONS: Final = {
    name: one
    for name, one in options_of(Question).items()
    if name not in _NO_COLUMNS and one.group is not Group.RUN
}
AXES: Final = RESTRICTABLE
_MEASURED: Final[Mapping[str, Callable[[str], Any]]] = {
    "step_time_s": _figure, "tokens_per_s_per_gpu": _figure, "tflops_per_gpu": _figure,
    "flops_kind": _one_of("flops_kind", KINDS), "peak_mem_gib": _figure,
    "outcome": _one_of("outcome", Outcome),
}  # fmt: skip
COLUMNS: Final[Mapping[str, Callable[[str], Any]]] = {
    "source": _text, "publisher": _text, "source_ref": _text, "first_seen": _date,
    **{name: _stated(one) for name, one in OPTIONS.items()}, "global_batch": _sequences,
    **{axis: _axis(axis) for axis in AXES}, "layout": _text, **_MEASURED, "notes": _text,
}  # fmt: skip
_IN_TABLE: Final = only(COLUMNS, lambda name, value: f"{name} {value}".strip())
NEEDED: Final = ("model", "cluster", "gpus", "seq_len", "global_batch")


def read_run_table(path: Path) -> list[TableRow]:
    """The rows of a table of runs, in its order. Raises `FileInputError` with every cell that cannot be read."""
    header, *lines = _lines(path) or [[]]
    _check_header(header, path)
    rows: list[TableRow] = []
    faults: list[str] = []
    for number, line in enumerate(lines, start=1):
        row, found = _row(header, line)
        rows.append(row)
        faults += [f"row {number}, {fault}" for fault in found]
    if faults:
        more = len(faults) - FAULTS_NAMED
        shown = [*faults[:FAULTS_NAMED], *([f"... and {more} more"] if more > 0 else [])]
        must = (
            f"every cell must be as its column asks; {len(faults)} {'is' if len(faults) == 1 else 'are'} not"
        )
        hint = f"row 1 is the first below the header; {DOCUMENTED} describes the columns"
        raise FileInputError(str(path), must, "\n    ".join(["", *shown]), hint)
    return rows


_LARGEST_TABLE: Final = 200_000_000  # bytes


def _lines(path: Path) -> list[list[str]]:
    """The lines of a CSV file, empty ones left out. Raises `FileInputError`."""
    text = read_text(path, _LARGEST_TABLE, large="validate it in parts")
    try:
        return [line for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line]
    except csv.Error as error:
        hint = "save it as CSV: commas between cells, text with commas in double quotes"
        raise FileInputError(str(path), "must be a valid CSV file", str(error), hint) from None


def _check_header(header: Sequence[str], path: Path) -> None:
    """Refuse a header with a column that is unknown, named twice, or missing. Raises `FileInputError`."""
    unknown = [name for name in header if name not in COLUMNS]
    former = [name for names in _FORMER.values() for name in names if name in header]
    if len(former) > 1:
        now = "; ".join(f"{new} states what {', '.join(names)} did" for new, names in _FORMER.items())
        must = "must have a column for each option of planner estimate: words are no longer read"
        hint = (
            f"{now}; model names a file beside the table, no key of MODELS.json; outcome is oom or failed where notes "
            f"began with OOM or FAILED. {DOCUMENTED} describes the columns"
        )
        raise FileInputError(str(path), must, f"the columns {', '.join(former)}", hint)
    faults = [
        f"unknown column {name!r}: did you mean {', '.join(nearest_names(name, COLUMNS, 3))}?"
        for name in unknown
    ]
    faults += [f"{name} is named {count} times" for name, count in Counter(header).items() if count > 1]
    faults += [f"no column {name}" for name in NEEDED if name not in header]
    if faults:
        must = "the first line must name the columns of a table of runs"
        raise FileInputError(
            str(path), must, "\n    ".join(["", *faults]), f"{DOCUMENTED} describes the columns"
        )


def _row(header: Sequence[str], line: Sequence[str]) -> tuple[TableRow, list[str]]:
    """A row, and what of it cannot be read."""
    if len(line) != len(header):
        return TableRow({}, {}), [f"{len(line)} cells: must have the {len(header)} of the header"]
    cells = {name: text.strip() for name, text in zip(header, line, strict=True) if text.strip()}
    values: dict[str, Any] = {}
    faults = [f"{name}: must be stated" for name in NEEDED if name not in cells]
    for name, text in cells.items():
        try:
            values[name] = COLUMNS[name](text)
        except PlannerError as error:
            error.say_in(_of_cell(name))
            faults.append(
                f"{name} {_short(text)}: {error.must.strip()}" + (f"; {error.hint}" if error.hint else "")
            )
    if "tflops_per_gpu" in cells and "flops_kind" not in cells:
        faults.append("flops_kind: must say what tflops_per_gpu counts; one of " + ", ".join(KINDS))
    return TableRow(cells, values), faults


def _of_cell(column: str) -> Dialect:
    """Words of a table for a column's own cells, whose name is said already."""
    return lambda name, value: _IN_TABLE(name, value) if value or name != column else ""


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
