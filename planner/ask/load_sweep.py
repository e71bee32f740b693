"""Which questions does a sweep file ask? Every combination of the values it lists.

    model: [llama-3.1-8b, llama-3.1-70b]     one value or several: model, cluster, and whatever is a column of the
    cluster: dgx-h100                        table, such as gpus, seq_len, global_batch, stack
    gpus: [64, 128, 256]
    seq_len: [4096, 8192]
    tokens: 1T                               every other option of a question is the same for all
    set: {tp: [1, 2, 4, 8]}

Keys are the options of a question (`question.py`), with `top` and `thorough`. Left out: how a combination is answered
(`cli.sweep_workers`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from planner.ask.option import options_of
from planner.ask.question import Question, Request
from planner.ask.readers import SWITCH, whole
from planner.ask.request import check_request
from planner.dialect import as_key, only
from planner.errors import FileInputError, InputError, PlannerError, as_written, sort_of
from planner.spec.load_yaml import read_yaml
from planner.spec.rows import COLUMNS

MOST_POINTS: Final = 1_000_000
MOST_TOP: Final = 100
OPTIONS: Final = options_of(Question)
GRID: Final = tuple(name for name in OPTIONS if name in COLUMNS)
OWN: Final = {
    "top": whole(1, MOST_TOP),
    "thorough": SWITCH,
}  # rows of a point; the effort of a whole plan for each
KEYS: Final = (*OPTIONS, *OWN)
IN_FILE: Final = only(KEYS, as_key)  # what a sweep file calls an option
_WRITE_ONE: Final = (
    "write it, a line for each key, such as 'model: llama-3.1-8b', 'cluster: dgx-h100', 'gpus: [8, 16]'; "
    "docs/sweep.md has an example"
)


@dataclass(frozen=True)
class Sweep:
    """What a sweep file asks. `grid`: option -> its values; `shared`: of options that are the same for all."""

    grid: Mapping[str, tuple[Any, ...]]
    shared: Mapping[str, Any]

    def points(self) -> list[dict[str, Any]]:
        """Every combination, the last of `GRID` changing fastest; keys not given are left out."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    def requests(self) -> list[Request]:
        """The questions, in their order."""
        return [Request(**point, **self.shared, front=False, seek_batch=False) for point in self.points()]


def load_sweep(path: Path) -> Sweep:
    """The sweep in a YAML file. Raises `FileInputError` naming file and key."""
    name = str(path)
    given = read_yaml(path, _WRITE_ONE)
    known = f"keys: {', '.join(KEYS)}"
    for key in given:
        if key not in KEYS:
            raise FileInputError(
                name, "the key must be a known one", as_written(given[key]), known, field=str(key)
            )
    for key, one in OPTIONS.items():
        if one.required and key not in given:
            raise FileInputError(name, "the key must be given", "", known, field=key)
    try:
        grid = {key: _values(key, given[key], name) for key in GRID if key in given}
        shared: dict[str, Any] = {"top": 1, "thorough": False}
        shared |= {key: _read(key, value) for key, value in given.items() if key not in GRID}
        first = Request(**{key: values[0] for key, values in grid.items()}, **shared)
        check_request(first)  # what every point shares is told once, and before the work
        if first.calibration is not None:
            from planner.catalog.load_overlay import load_overlay

            load_overlay(first.calibration)
    except FileInputError:
        raise
    except PlannerError as error:
        error.say_in(IN_FILE)
        raise FileInputError(name, error.must, error.given, error.hint) from None
    count = math.prod(map(len, grid.values()))
    if count > MOST_POINTS:
        raise FileInputError(
            name, f"must ask at most {MOST_POINTS:,} questions", f"{count:,}", "list fewer values"
        )
    return Sweep(grid, shared)


def _read(key: str, given: Any) -> Any:
    """The value of a key. Raises `InputError`."""
    reader: Any = OWN[key] if key in OWN else OPTIONS[key].reader
    try:
        return reader.read(given, key)
    except InputError as error:
        if given is None or isinstance(given, dict | list):  # said in words of a file
            error.given = sort_of(given)
        raise


def _values(key: str, given: Any, name: str) -> tuple[Any, ...]:
    """The values that a file lists for an option. Raises `InputError`."""
    values = tuple(_read(key, one) for one in (given if isinstance(given, list) else [given]))
    if not values:
        raise FileInputError(name, "must hold a value or more", "none", field=key)
    if len(set(values)) < len(values):
        raise FileInputError(
            name, "must not hold a value twice", ", ".join(map(str, values))[:200], field=key
        )
    return values
