"""What does planner predict for a list of runs? Runs that share a problem are evaluated as one table.

Left out: where runs come from, and how good the predictions are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.calibrate.binding_rules import broken_rule
from planner.calibrate.published.runs import Run, refusal
from planner.catalog.cluster_rates import rates_of
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly
from planner.errors import PlannerError
from planner.spec.config import OFFLOAD_ACTIVATIONS, ConfigTable, ParallelConfig
from planner.spec.rule import Problem
from planner.spec.verdict import MemoryRoom, MemoryVerdict


@dataclass(frozen=True)
class Prediction:
    """Step time [s], peak of the stack's counter and of the device [bytes]; `illegal`: the rule a run breaks.

    `failed`: why nothing could be computed. `assumed`: what the run left open and the prediction filled in.
    """

    step_time: float | None = None
    peak_memory: float | None = None
    device_memory: float | None = None
    verdict: MemoryVerdict | None = None
    illegal: str = ""
    failed: str = ""
    unsupported: bool = False
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Told:
    """A predicted step [s], peak of the stack's counter and what the device holds in all [bytes]."""

    seconds: float
    memory: float
    device: float


def predicted_cost(problem: Problem, config: ParallelConfig) -> Told:
    """Step and memory that planner predicts for one run."""
    cost = evaluate_exactly(CostModel(problem, *rates_of(problem.cluster)), ConfigTable.of([config]))
    return Told(float(cost.step_time[0]), float(cost.peak_memory[0]), float(cost.device_memory[0]))


def _beyond_stack(run: Run) -> tuple[str, ...]:
    """What is said of a run whose experts are dealt over more ranks than its stack deals any."""
    if run.config.ep <= run.problem.stack.limits.max_ep:
        return ()
    name = run.problem.stack.name
    return (
        f"{name} deals no experts over ep={run.config.ep}: exchanged by NCCL's all-to-all, as Megatron-Core does",
    )


def predict_runs(runs: Sequence[Run | None]) -> list[Prediction | None]:
    """A prediction for every run, None for None. Never raises: what fails says why in its own prediction."""
    groups: dict[int, list[int]] = {}
    for index, run in enumerate(runs):
        if run is not None:
            groups.setdefault(id(run.problem), []).append(index)
    results: list[Prediction | None] = [None] * len(runs)
    for members in groups.values():
        chosen = [run for i in members if (run := runs[i]) is not None]
        for index, prediction in zip(members, _predict_group(chosen), strict=True):
            results[index] = prediction
    return results


def _predict_group(runs: list[Run]) -> list[Prediction]:
    """Predictions of runs with one problem; if the table fails, each row on its own."""
    try:
        return _predict_table(runs)
    except PlannerError as error:
        return [Prediction(failed=refusal(error), unsupported=True)] * len(runs)
    except Exception as error:
        if len(runs) == 1:
            return [Prediction(failed=refusal(error))]
        return [part for run in runs for part in _predict_group([run])]


def _predict_table(runs: list[Run]) -> list[Prediction]:
    problem = runs[0].problem
    illegal = [broken_rule(run.config, problem) for run in runs]
    legal = [run.config for run, rule in zip(runs, illegal, strict=True) if not rule]
    found = iter(_evaluate(problem, legal) if legal else [])
    bad = MemoryVerdict.DOES_NOT_FIT
    first = [Prediction(verdict=bad, illegal=rule) if rule else next(found) for rule in illegal]
    completed = [_completed(run, part) for run, part in zip(runs, first, strict=True)]
    beyond = [() if part.illegal else _beyond_stack(run) for run, part in zip(runs, completed, strict=True)]
    return [
        replace(part, assumed=(*part.assumed, *said)) if said else part
        for part, said in zip(completed, beyond, strict=True)
    ]


def _completed(run: Run, prediction: Prediction) -> Prediction:
    """The prediction, its verdict softened where what the run leaves open could make it fit."""
    if prediction.verdict is not MemoryVerdict.DOES_NOT_FIT or prediction.illegal:
        return prediction
    if run.layers_offloaded:
        return _with_offloaded_layers(run, prediction)
    if run.offloads:
        return replace(prediction, verdict=MemoryVerdict.BORDERLINE)
    if run.fallback is None:
        return prediction
    frugal = _evaluate(run.problem, [run.fallback])[0]
    if frugal.verdict is MemoryVerdict.DOES_NOT_FIT:
        return prediction
    said = "recomputation not stated: without any it would not fit, with all of it it would, so borderline"
    return replace(prediction, verdict=MemoryVerdict.BORDERLINE, assumed=(said,))


def _with_offloaded_layers(run: Run, prediction: Prediction) -> Prediction:
    """The prediction with activations of so many layers on the host: between none and all but two layers of a stage.

    The step time is that without, as copies run beside compute.
    """
    all_but_two = replace(run.config, offload=run.config.offload | OFFLOAD_ACTIVATIONS)
    least = _evaluate(run.problem, [all_but_two])[0]
    share = min(run.layers_offloaded / max(-(-run.problem.model.num_layers // run.config.pp) - 2, 1), 1.0)
    sizes = []
    for whole, rest in (
        (prediction.peak_memory, least.peak_memory), (prediction.device_memory, least.device_memory),
    ):  # fmt: skip
        if whole is None or rest is None:
            return prediction
        sizes.append(whole + share * (rest - whole))
    verdict = MemoryRoom.of(run.problem, headroom=0.0).verdict(sizes[1])
    said = f"activations of {run.layers_offloaded} layers in CPU memory, their copies hidden"
    return replace(
        prediction, peak_memory=sizes[0], device_memory=sizes[1], verdict=verdict,
        assumed=(*prediction.assumed, said),
    )  # fmt: skip


def _evaluate(problem: Problem, configs: list[ParallelConfig]) -> list[Prediction]:
    cost = evaluate_exactly(CostModel(problem, *rates_of(problem.cluster)), ConfigTable.of(configs))
    room = MemoryRoom.of(problem, headroom=0.0)  # what ran was not asked to leave any
    rows = zip(cost.step_time, cost.peak_memory, cost.device_memory, strict=True)
    results = []
    for step, peak, device in rows:
        if not (np.isfinite(step) and np.isfinite(peak) and step > 0):
            results.append(Prediction(failed=f"no finite prediction: {step} s, {peak} bytes"))
            continue
        verdict = room.verdict(float(device))
        results.append(Prediction(float(step), float(peak), float(device), verdict))
    return results
