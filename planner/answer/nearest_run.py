"""Which published run is nearest to what is asked, what did it measure, and what does planner predict for it?

Nearest is of the same model on the same device, else of one of its kind and size there: the numbers of the same width
first, then the number of devices and the length of sequences that are least apart. Left out: runs on other devices, and
adapters, of which none is published here.
"""

from __future__ import annotations

from math import log2
from typing import Final

from planner.catalog.load_published import PublishedModel, PublishedRun, kind_of, published_runs
from planner.cost.params import model_parameters
from planner.spec.model import ModelSpec
from planner.spec.planfile import NearestRun
from planner.spec.planned_config import PlannedConfig
from planner.spec.precision import bits_of
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
    if not ranked:
        return None
    rank, run = min(ranked, key=lambda pair: pair[0])
    return _told(run, same_model=rank[0] == _SAME)


def _rank(run: PublishedRun, problem: Problem) -> tuple[int, bool, float] | None:
    """How far a run is from a question, the least first; None where it says nothing of it."""
    devices = problem.cluster.num_devices
    if (
        run.accelerator != problem.cluster.accelerator.name
        or not 1 / FARTHEST <= run.devices / devices <= FARTHEST
    ):
        return None
    kin = _relation(run.model, problem.model)
    if kin is None:
        return None
    job = problem.job
    apart = abs(log2(run.devices / devices)) + abs(log2(run.seq_len / job.seq_len))
    return kin, bits_of(run.precision) != bits_of(job.precision), apart


def _relation(published: PublishedModel, model: ModelSpec) -> int | None:
    """Is it the same model, or one of its kind and size?"""
    counted = model_parameters(model)
    pairs = ((published.total, counted.total), (published.active, counted.active))
    apart = max(max(a, b) / min(a, b) for a, b in pairs)
    if apart <= ALIKE and (published.layers, published.hidden) == (model.num_layers, model.hidden):
        return _SAME
    return _KIN if apart <= ONE_SIZE and published.kind == kind_of(model) else None


def _told(run: PublishedRun, same_model: bool) -> NearestRun:
    """A run with what planner predicts for it."""
    per_device = run.seq_len * run.global_batch / run.devices
    return NearestRun(
        model=run.model.name,
        same_model=same_model,
        accelerator=run.accelerator,
        devices=run.devices,
        seq_len=run.seq_len,
        global_batch=run.global_batch,
        precision=str(run.precision),
        software=run.software,
        config=PlannedConfig.of(run.config, run.own_kind),
        step_time=run.step_time,
        tokens_per_second_per_device=per_device / run.step_time,
        predicted_step_time=run.predicted_step_time,
        predicted_tokens_per_second_per_device=per_device / run.predicted_step_time,
        link=run.link,
    )
