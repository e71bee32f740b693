"""Which question does a row of a table ask? The one that `planner estimate` would be asked with the same words.

Rows that name one model, cluster, job and stack share one `Problem`. Left out: how cells are read (`run_table.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from planner.answer.estimate import asked_config
from planner.ask.readers import Settings
from planner.ask.request import Question, check_request, resolve
from planner.calibrate.predict import Run
from planner.calibrate.run_table import OPTIONS, TableRow
from planner.catalog.load_overlay import calibrated, load_overlay
from planner.errors import InputError
from planner.report.words import texts
from planner.space.restriction import parse_restriction
from planner.spec.findings import Finding
from planner.spec.rule import Problem

_FILES: Final = (".yaml", ".yml", ".json")
_NAMES: Final = ("model", "cluster", "stack", "expert_loads")  # which may be files


@dataclass
class QuestionReader:
    """Rows to runs. `folder`: where the table lies, to which files are relative; `calibration`: a file of `planner
    calibrate`, for the rows of its stack and device."""

    folder: Path
    calibration: str | None = None
    _problems: dict[tuple[Any, ...], tuple[Problem, tuple[Finding, ...]]] = field(default_factory=dict)

    def read(self, row: TableRow) -> Run:
        """The question of one row. Raises `PlannerError` where it cannot be asked."""
        request = self.question(row)
        check_request(request, search=False)
        problem, assumed = self._problem(request)
        config, chunks, defaults = asked_config(request, problem)
        return Run(problem, config, problem.stack.name, texts((*assumed, *defaults)), chunks)

    def question(self, row: TableRow) -> Question:
        """The question in the words of `planner estimate`. Raises `InputError`."""
        said: dict[str, Any] = {name: row.values[name] for name in OPTIONS if name in row.values}
        files: dict[str, Any] = {name: self._path(said[name]) for name in _NAMES if name in said}
        settings = Settings(parse_restriction(row.axes), row.cells.get("layout", ""))
        return Question(**said | files, set=settings)

    def _path(self, text: str) -> str:
        """A file beside the table by its path; other names as they are."""
        beside = self.folder / text
        return str(beside) if text.endswith(_FILES) or ("/" in text and beside.exists()) else text

    def _problem(self, request: Question) -> tuple[Problem, tuple[Finding, ...]]:
        """The problem of a question and what was assumed, the same object for the same words."""
        ring = request.restrict.get("cp_kind")  # which a question may not be able to ask for
        key = (ring, *(value for name, value in sorted(vars(request).items()) if name != "set"))
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
