"""Are the published runs that the product names few, readable, and each from a place that NOTICE names?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.calibrate.published.runs import RunReader
from planner.catalog.load_published import PublishedRun, kind_of, published_runs
from planner.cost.params import model_parameters
from planner.spec.precision import bits_of

ROOT = Path(__file__).parents[2]
LARGEST = 60_000  # bytes: it ships with the package


def test_it_is_small() -> None:
    assert (ROOT / "planner" / "catalog" / "published_runs.json").stat().st_size < LARGEST


def test_places_are_named() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    places = {run.link for run in published_runs()}
    repositories = {
        re.match(r"https://(?:github\.com|huggingface\.co/spaces)/([^/]+/[^/]+)", p) for p in places
    }
    assert None not in repositories
    assert {found[1] for found in repositories if found and found[1] not in notice} == set()


@pytest.mark.parametrize("run", published_runs()[::12], ids=lambda run: f"{run.model.name}-{run.devices}")
def test_rows_are_what_is_said_of_them(run: PublishedRun) -> None:
    read = RunReader({run.model.name: run.model.description}).read(run.cells)
    model, counted = read.problem.model, model_parameters(read.problem.model)
    assert (model.num_layers, model.hidden, kind_of(model)) == (
        run.model.layers,
        run.model.hidden,
        run.model.kind,
    )
    assert (counted.total, counted.active) == (run.model.total, run.model.active)
    assert (read.problem.cluster.accelerator.name, read.problem.cluster.num_devices) == (
        run.device,
        run.devices,
    )


def test_one_of_each() -> None:
    keys = []
    for run in published_runs():
        precision = RunReader({run.model.name: run.model.description}).read(run.cells).problem.job.precision
        keys.append((run.model.name, run.device, run.devices, bits_of(precision)))
    assert len(set(keys)) == len(keys) > 100
