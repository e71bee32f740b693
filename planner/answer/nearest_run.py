"""Which published run is nearest to what is asked, what did it measure, and what does planner predict for it?

Nearest is of the same model on the same device, else of one of its kind and size there: the numbers of the same width
first, then the number of devices and the length of sequences that are least apart. Left out: runs on other devices, and
adapters, of which none is published here.
"""

from __future__ import annotations

from math import log2
from typing import Final

from planner.ask.request import cost_model
from planner.catalog.load_published import PublishedModel, PublishedRun, kind_of, published_runs
from planner.cost.params import model_parameters
from planner.cost.simulated import evaluate_exactly
from planner.errors import PlannerError
from planner.spec.config import ConfigTable
from planner.spec.model import ModelSpec
from planner.spec.planfile import NearestRun
from planner.spec.planned_config import PlannedConfig
from planner.spec.precision import Precision, bits_of
from planner.spec.rule import Problem

FARTHEST: Final = 4  # times as many devices, or as few
ALIKE: Final = 1.02  # parameters over another's: vocabularies are padded
ONE_SIZE: Final = 1.5
_SAME, _KIN = range(2)


def nearest_run(problem: Problem) -> NearestRun | None:
    """The nearest published run, beside what planner predicts for its own configuration; None where none is near."""
    if problem.job.lora_rank is not None:
        return None
    ranked = [(rank, run) for run in published_runs() if (rank := _rank(run, problem)) is not None]
    for rank, run in sorted(ranked, key=lambda pair: pair[0]):
        told = _told(run, same_model=rank[0] == _SAME)
        if told is not None:
            return told
    return None


def _rank(run: PublishedRun, problem: Problem) -> tuple[int, bool, float] | None:
    """How far a run is from a question, the least first; None where it says nothing of it."""
    devices = problem.cluster.num_devices
    if (
        run.device != problem.cluster.accelerator.name
        or not 1 / FARTHEST <= run.devices / devices <= FARTHEST
    ):
        return None
    kin = _relation(run.model, problem.model)
    if kin is None:
        return None
    job = problem.job
    apart = abs(log2(run.devices / devices)) + abs(log2(float(run.cells["seq_len"]) / job.seq_len))
    return kin, bits_of(Precision(run.cells["precision"])) != bits_of(job.precision), apart


def _relation(published: PublishedModel, model: ModelSpec) -> int | None:
    """Is it the same model, or one of its kind and size?"""
    counted = model_parameters(model)
    pairs = ((published.total, counted.total), (published.active, counted.active))
    apart = max(max(a, b) / min(a, b) for a, b in pairs)
    if apart <= ALIKE and (published.layers, published.hidden) == (model.num_layers, model.hidden):
        return _SAME
    return _KIN if apart <= ONE_SIZE and published.kind == kind_of(model) else None


def _told(published: PublishedRun, same_model: bool) -> NearestRun | None:
    """A run with what planner predicts for it; None where its row cannot be read."""
    from planner.calibrate.published.runs import RunReader  # reads rows of any source: needed here alone

    try:
        run = RunReader({published.model.name: published.model.description}).read(published.cells)
        predicted = evaluate_exactly(cost_model(run.problem), ConfigTable.of([run.config]))
    except PlannerError:
        return None
    asked, seconds = run.problem, float(predicted.step_time[0])
    per_device = asked.job.tokens_per_step / asked.cluster.num_devices
    return NearestRun(
        model=published.model.name,
        same_model=same_model,
        accelerator=published.device,
        devices=published.devices,
        seq_len=asked.job.seq_len,
        global_batch=asked.job.global_batch,
        precision=str(asked.job.precision),
        software=published.cells["framework"],
        config=PlannedConfig.of(run.config, asked.context_kinds[0]),
        step_time=published.step_time,
        tokens_per_second_per_device=per_device / published.step_time,
        predicted_step_time=seconds,
        predicted_tokens_per_second_per_device=per_device / seconds,
        link=published.link,
    )
