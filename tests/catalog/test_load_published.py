"""Are the published runs that the product names few, each from a place that NOTICE names, and predicted as today?"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.published.runs import read_models, read_rows
from benchmarks.published_data import published
from benchmarks.published_runs import SHIPPED, best_runs, shipped_text
from planner.catalog.load_published import published_runs
from planner.spec.precision import bits_of

ROOT = Path(__file__).parents[2]
LARGEST = 40_000  # bytes: it ships with the package


def test_it_is_small() -> None:
    assert SHIPPED.stat().st_size < LARGEST


def test_places_are_named() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    places = {run.link for run in published_runs()}
    repositories = {
        re.match(r"https://(?:github\.com|huggingface\.co/spaces)/([^/]+/[^/]+)", p) for p in places
    }
    assert None not in repositories
    assert {found[1] for found in repositories if found and found[1] not in notice} == set()


def test_one_of_each() -> None:
    keys = [
        (run.model.name, run.accelerator, run.devices, bits_of(run.precision)) for run in published_runs()
    ]
    assert len(set(keys)) == len(keys) > 100


def test_degrees_make_up_the_devices() -> None:
    for run in published_runs():
        config = run.config
        assert config.tp * config.cp * config.pp * config.dp == run.devices, run.model.name


def test_what_is_shipped_is_what_planner_predicts_now() -> None:
    """Made anew: python -m benchmarks.published_runs RUNS.csv MODELS.json --write."""
    best = best_runs(
        read_rows(published("measured/runs.csv")), read_models(published("measured/models.json"))
    )
    now, shipped = json.loads(shipped_text(best)), json.loads(SHIPPED.read_text(encoding="utf-8"))
    at = now["columns"].index("predicted_step_time")
    seconds = [[cells.pop(at) for cells in held["runs"]] for held in (now, shipped)]
    assert now == shipped
    assert seconds[1] == pytest.approx(seconds[0], rel=1e-9)
