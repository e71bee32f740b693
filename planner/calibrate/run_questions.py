"""Which question does a row of a table ask? The one that `planner estimate` would be asked with the same words.

Rows that name one model, cluster, job and stack share one `Problem`. Left out: how cells are read (`run_table.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from planner.answer.estimate import asked_config
from planner.ask.request import Request, check_request, resolve
from planner.calibrate.predict import Run
from planner.calibrate.run_table import TableRow
from planner.catalog.load_overlay import calibrated, load_overlay
from planner.errors import InputError
from planner.space.restriction import parse_restriction
from planner.spec.rule import Problem

_FILES: Final = (".yaml", ".yml", ".json")
_OF_CONFIG: Final = ("restrict", "layout")  # of a question, what says no more than how the work is divided


@dataclass
class QuestionReader:
    """Rows to runs. `folder`: where the table lies, to which files are relative; `calibration`: a file of `planner
    calibrate`, for the rows of its stack and device."""

    folder: Path
    calibration: str | None = None
    _problems: dict[tuple[Any, ...], tuple[Problem, tuple[str, ...]]] = field(default_factory=dict)

    def read(self, row: TableRow) -> Run:
        """The question of one row. Raises `PlannerError` where it cannot be asked."""
        request = self.request(row)
        check_request(request, estimate=True)
        problem, assumed = self._problem(request)
        config, chunks, defaults = asked_config(request, problem)
        return Run(problem, config, problem.stack.name, (*assumed, *defaults), chunks)

    def request(self, row: TableRow) -> Request:
        """The question in the words of `planner estimate`. Raises `InputError`."""
        said = row.values
        request = Request(
            self._path(said["model"]),
            self._path(said["cluster"]),
            said["gpus"],
            said["seq_len"],
            str(said["global_batch"]),
            said.get("precision"),
            stack=self._path(said["stack"]) if "stack" in said else None,
            restrict=parse_restriction(row.axes),
            layout=row.cells.get("layout", ""),
            with_mtp=said.get("mtp", False),
            lora_rank=said.get("lora_rank"),
            mean_len=said.get("mean_len"),
            packed=said.get("packed", False),
            expert_loads=self._path(said["expert_loads"]) if "expert_loads" in said else None,
            bf16_layers=said.get("bf16_layers"),
        )
        usual = ("optimizer", "frozen_bits", "lora_targets")  # which a question has of itself
        return replace(request, **{name: said[name] for name in usual if name in said})

    def _path(self, text: str) -> str:
        """A file beside the table by its path; other names as they are."""
        beside = self.folder / text
        return str(beside) if text.endswith(_FILES) or ("/" in text and beside.exists()) else text

    def _problem(self, request: Request) -> tuple[Problem, tuple[str, ...]]:
        """The problem of a question and what was assumed, the same object for the same words."""
        ring = request.restrict.get("cp_kind")  # which a question may not be able to ask for
        key = (ring, *(getattr(request, f.name) for f in fields(Request) if f.name not in _OF_CONFIG))
        if key not in self._problems:
            problem, assumed = resolve(request)
            if self.calibration is not None and _holds(self.calibration, problem):
                named = replace(request, stack=request.stack or problem.stack.name)
                problem, assumed = resolve(replace(named, calibration=self.calibration))
            self._problems[key] = problem, assumed
        return self._problems[key]


def _holds(calibration: str, problem: Problem) -> bool:
    """Is a calibration for the stack and the devices of a problem?"""
    overlay = load_overlay(calibration)
    try:
        overlay.of_cluster(problem.cluster)
        calibrated(problem.stack, overlay)
    except InputError:
        return False
    return True
