"""Is CP-SAT whole without pandas, and does nobody else in the process see that it is left out?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from planner.solve.cp_sat import cp_model, loaded_without


def ends_well(script: str) -> None:
    """Run a script in a process of its own."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_model_is_solved_and_pandas_is_not_loaded() -> None:
    ends_well(
        "import sys\nfrom planner.solve.cp_sat import cp_model\n"
        "model = cp_model.CpModel()\nx = model.new_int_var(0, 9, 'x')\nmodel.maximize(2 * x)\n"
        "solver = cp_model.CpSolver()\nassert solver.solve(model) == cp_model.OPTIMAL\nassert solver.value(x) == 9\n"
        "assert not {'pandas', 'pyarrow'} & set(sys.modules)\n"
    )


def test_others_have_the_true_pandas_and_their_own_module() -> None:
    ends_well(
        "import sys\nfrom planner.solve.cp_sat import cp_model\n"
        "assert 'ortools.sat.python.cp_model' not in sys.modules\n"
        "from ortools.sat.python import cp_model as usual\nimport pandas\n"
        "assert pandas.Series([1, 2]).sum() == 3\nassert usual.pd is pandas\n"
        "assert usual.CpModel is not cp_model.CpModel\n"
    )


def test_methods_on_series_work_as_they_do_elsewhere() -> None:
    model = cp_model.CpModel()
    taken = model.new_int_var_series("taken", pd.Index(["a", "b"]), 0, 5)
    model.add(taken["a"] + 2 * taken["b"] <= 7)
    model.maximize(taken["a"] + 3 * taken["b"])
    solver = cp_model.CpSolver()
    assert solver.solve(model) == cp_model.OPTIMAL
    assert solver.values(taken).to_dict() == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    "needs", ["import colorsys\nVALUE = colorsys.ONE_THIRD + 0", "import colorsys\nVALUE = colorsys.x.y"]
)
def test_a_module_that_needs_more_than_types_is_as_others_have_it(
    needs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text(needs)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "needs_more", raising=False)
    if ".x" in needs:
        with pytest.raises(AttributeError, match="colorsys"):
            loaded_without("needs_more", "colorsys")
    else:
        assert loaded_without("needs_more", "colorsys") is sys.modules["needs_more"]
        assert pytest.approx(1 / 3) == sys.modules["needs_more"].VALUE


def test_a_module_that_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(ModuleNotFoundError, match="not_there"):
        loaded_without("not_there", "colorsys")
