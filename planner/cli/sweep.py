"""What does `planner sweep` do? Answers every combination of a sweep file, keeps what is done, writes one table.

Answers go into a journal beside the output as they come; a sweep that was interrupted reads it and goes on. The table
is in the order of the file, whoever worked on it in whichever order. Left out: workers (`sweep_workers`,
`dask_workers`).
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from planner import __version__
from planner.errors import FileInputError, InputError, install_hint

if TYPE_CHECKING:
    from planner.ask.request import Request
    from planner.cli.sweep_workers import Workers
    from planner.spec.rows import Row

EPILOG = "\b\nExample:\n  planner sweep sweep.yaml -o results.csv"
FORMATS: Final = (".csv", ".parquet")
QUIET: Final = 30  # seconds between two lines of progress, at least
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t")

SweepArgument = Annotated[
    Path, typer.Argument(metavar="SWEEP.yaml", help="Lists of values: model, cluster, gpus, seq_len ...")
]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Table: .csv or .parquet.")
]
WorkersOption = Annotated[int | None, typer.Option(help="Processes of this machine (default: one a core).")]
DaskOption = Annotated[
    str | None,
    typer.Option("--dask", metavar="ADDRESS", help="Scheduler of a Dask cluster to work on it instead."),
]
RestartOption = Annotated[bool, typer.Option("--restart", help="Forget what an interrupted sweep has done.")]


def sweep(
    file: SweepArgument,
    output: OutputOption,
    workers: WorkersOption = None,
    dask: DaskOption = None,
    restart: RestartOption = False,
) -> int:
    """Plan a grid of jobs into one table. Every combination of models, clusters, sizes, sequences and batches."""
    from planner.ask.load_sweep import load_sweep
    from planner.cli.output import check_output

    if output.suffix not in FORMATS:
        raise InputError("the table must be .csv or .parquet", str(output), "write -o results.csv")
    if workers is not None and not 1 <= workers <= 1024:
        raise InputError("--workers must be from 1 to 1024", str(workers))
    if workers is not None and dask is not None:
        raise InputError("work must be done by --workers or --dask", "both", "leave one of them out")
    if output.suffix == ".parquet":
        _parquet()
    check_output(output, file)
    requests = load_sweep(file).requests()
    check_output(output, *requests)
    journal = Journal(output, _digest(requests), restart)
    left = {i: request for i, request in enumerate(requests) if i not in journal.done}
    if journal.done:
        _say(f"{len(journal.done):,} of {len(requests):,} points were done before")
    try:
        with journal:
            _work(left, chosen_workers(workers, dask, len(left)), journal, len(requests))
    except BaseException:
        if journal.done:
            _say(
                f"{len(journal.done):,} of {len(requests):,} points are done and kept; run the same again to go on"
            )
        else:
            journal.remove()
        raise
    rows = [row for i in range(len(requests)) for row in journal.done[i]]
    write_table(rows, output)
    journal.remove()
    found = sum(row["verdict"] == "found" for row in rows)
    counts = (
        f"{len(rows):,} row{'s' * (len(rows) != 1)} of {len(requests):,} point{'s' * (len(requests) != 1)}"
    )
    _say(f"{counts} written to {output}, {found:,} found")
    without = [
        points[0] for i in range(len(requests)) if (points := journal.done[i])[0]["verdict"] != "found"
    ]
    if without:
        refused = sum(row["verdict"] == "refused" for row in without)
        _say(f"{len(without):,} of {len(requests):,} points without a plan, {refused:,} of them refused")
        first = next((row for row in without if row["verdict"] == "refused"), without[0])
        _say(f"the first says: {first['reason']}")
    return 0 if found else 1


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def chosen_workers(processes: int | None, dask: str | None, points: int) -> Workers:
    """Who does the work."""
    from planner.cli import dask_workers, sweep_workers

    if dask is not None:
        return dask_workers.dask(dask, _say)
    count = min(processes or os.cpu_count() or 1, max(points, 1))
    return sweep_workers.here if count == 1 else sweep_workers.pool(count)


def _work(left: Mapping[int, Request], workers: Workers, journal: Journal, total: int) -> None:
    for number, rows in _shown(workers(left) if left else iter(()), total, len(journal.done)):
        journal.add(number, rows)


def _shown(
    answers: Iterator[tuple[int, list[Row]]], total: int, done: int
) -> Iterator[tuple[int, list[Row]]]:
    """The answers, with a progress bar on a terminal and lines elsewhere."""
    if not sys.stderr.isatty():
        yield from _told(answers, total, done)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from planner.report.text import terminal

    columns = ("sweeping", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        for answer in answers:
            bar.advance(task)
            yield answer


def _told(answers: Iterator[tuple[int, list[Row]]], total: int, done: int) -> Iterator[tuple[int, list[Row]]]:
    """The answers, with a line now and then: at the start, later at most one in 30 s and a hundred in all."""
    if not done:  # else it was said how many are
        _say(f"0 of {total:,} points done")
    told, when = done, time.monotonic()
    for answer in answers:
        yield answer
        done += 1
        if time.monotonic() >= when + QUIET and 100 * (done - told) >= total:
            _say(f"{done:,} of {total:,} points done")
            told, when = done, time.monotonic()


def _digest(requests: Sequence[Request]) -> str:
    """What a journal must have been written for to be gone on with."""
    from hashlib import sha256  # loads OpenSSL

    asked = "\n".join(repr(request) for request in requests)
    return sha256(f"{__version__}\n{asked}".encode()).hexdigest()


class Journal:
    """Answers of a sweep that has not ended, a line each, beside its output."""

    def __init__(self, output: Path, digest: str, restart: bool) -> None:
        self.path = output.with_name(f".{output.name}.progress")
        self.head = json.dumps({"sweep": digest}) + "\n"
        self.done: dict[int, list[Row]] = {}
        self._length = 0
        if restart:
            self.remove()
        elif self.path.exists():
            self._read()

    def _read(self) -> None:
        with self._at_fault():
            content = self.path.read_bytes()
        if content and not content.startswith(self.head.encode()):
            must = "the journal beside the output must be of this sweep and this planner"
            raise FileInputError(
                str(self.path), must, "of another", "add --restart to forget it, or choose another -o"
            )
        for line in content.splitlines(keepends=True):
            if self._length:  # behind the head
                entry = _entry(line)
                if entry is None:
                    break  # the end of a sweep that was stopped while it wrote
                self.done[entry[0]] = entry[1]
            self._length += len(line)

    @contextmanager
    def _at_fault(self) -> Iterator[None]:
        """Whatever cannot be read or written in there, it is this file and not the answer."""
        try:
            yield
        except OSError as error:
            must = "the journal beside the output must be readable and writable"
            hint = "make room for it or make it writable, and run the same again"
            raise FileInputError(str(self.path), must, error.strerror or str(error), hint) from None

    def __enter__(self) -> Journal:
        with self._at_fault():
            self._file = self.path.open("r+b" if self._length else "wb", buffering=0)
            self._file.truncate(self._length)
            self._file.seek(self._length)
            if not self._length:
                self._file.write(self.head.encode())
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def add(self, number: int, rows: list[Row]) -> None:
        """Keep an answer."""
        line = (json.dumps({"point": number, "rows": rows}) + "\n").encode()
        with self._at_fault():
            while line:  # the last bytes of a disk take a part of it, the next ones none
                line = line[self._file.write(line) :]
        self.done[number] = rows

    def remove(self) -> None:
        """Forget all."""
        with self._at_fault():
            self.path.unlink(missing_ok=True)


def _entry(line: bytes) -> tuple[int, list[Row]] | None:
    """The point and the rows of a line; None for one that is not whole."""
    from planner.spec.rows import COLUMNS

    try:
        entry = json.loads(line)
        number, rows = entry["point"], entry["rows"]
    except (ValueError, TypeError, KeyError):
        return None
    if not (line.endswith(b"\n") and type(number) is int and isinstance(rows, list)):
        return None
    whole = all(isinstance(row, dict) and row.keys() == COLUMNS.keys() for row in rows)
    return (number, rows) if rows and whole else None


def write_table(rows: Sequence[Row], path: Path) -> None:
    """The rows as CSV or Parquet, by the file's ending: the old file or the new one, whole."""
    from planner.spec.save import save_bytes

    save_bytes(parquet_bytes(rows) if path.suffix == ".parquet" else csv_text(rows).encode(), path)


def csv_text(rows: Sequence[Row]) -> str:
    """The rows as CSV: numbers with all their digits, nothing where there is none.

    Text that a spreadsheet would take for a formula has an apostrophe before it, which makes it text there (OWASP,
    CSV injection).
    """
    from planner.spec.rows import COLUMNS

    text = io.StringIO()
    writer = csv.DictWriter(text, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _inert(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _inert(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        hint = f"{install_hint('sweep')}, or write a .csv"
        raise InputError("a .parquet needs pyarrow", hint=hint) from None
    return pyarrow, pyarrow.parquet


def parquet_bytes(rows: Sequence[Row]) -> bytes:
    """The rows as a Parquet file, a type to each column whatever the rows hold."""
    from planner.spec.rows import COLUMNS

    arrow, parquet = _parquet()
    kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
    schema = arrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    sink = io.BytesIO()
    parquet.write_table(arrow.table(columns, schema=schema), sink)
    return sink.getvalue()
