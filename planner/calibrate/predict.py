"""What does planner predict for a list of runs? Runs that share a problem are evaluated as one table.

Left out: where runs come from, and how good the predictions are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.calibrate.binding_rules import broken_rule
from planner.catalog.cluster_rates import rates_of
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly
from planner.errors import PlannerError
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.rule import Problem
from planner.spec.stack.kinds import Dispatcher
from planner.spec.verdict import MemoryRoom, MemoryVerdict


@dataclass(frozen=True)
class Run:
    """A run as a question."""

    problem: Problem
    config: ParallelConfig
    stack: str  # its name
    assumed: tuple[str, ...] = ()  # what it left open and was filled in
    chunks: tuple[int, ...] = ()  # layers of every (virtual) stage; empty: as the stack assigns them

    @property
    def calibration_level(self) -> str:
        """A calibration's own; else L1 where the stack was fitted on public runs, L0 otherwise."""
        if self.problem.stack.calibration is not None:
            return self.problem.stack.calibration.level
        return "L1" if self.problem.stack.fitted else "L0"

    def model(self) -> CostModel:
        """The cost model of its problem, layers assigned as it has them."""
        plain = CostModel(self.problem, *rates_of(self.problem.cluster))
        return plain.with_split(self.chunks) if self.chunks else plain


RuleOf = Callable[
    [ParallelConfig, Problem], str
]  # the rule that a configuration breaks; empty where it breaks none


@dataclass(frozen=True)
class Prediction:
    """Step time [s], peak of the stack's counter and of the device [bytes]; `illegal`: the rule a run breaks.

    `failed`: why nothing could be computed. `assumed`: what the run left open and the prediction filled in. `time`:
    term -> seconds.
    """

    step_time: float | None = None
    peak_memory: float | None = None
    device_memory: float | None = None
    verdict: MemoryVerdict | None = None
    illegal: str = ""
    failed: str = ""
    unsupported: bool = False
    assumed: tuple[str, ...] = ()
    time: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Told:
    """A predicted step [s], peak of the stack's counter, what the device holds in all [bytes], term -> seconds."""

    seconds: float
    memory: float
    device: float
    time: Mapping[str, float] = field(default_factory=dict)


def predicted_cost(problem: Problem, config: ParallelConfig) -> Told:
    """Step and memory that planner predicts for one run."""
    cost = evaluate_exactly(CostModel(problem, *rates_of(problem.cluster)), ConfigTable.of([config]))
    assert cost.detail is not None, "costed with its terms"
    time = {name: float(values[0]) for name, values in cost.detail.time.items()}
    return Told(float(cost.step_time[0]), float(cost.peak_memory[0]), float(cost.device_memory[0]), time)


def _beyond_stack(run: Run) -> tuple[str, ...]:
    """What is said of a run whose experts are dealt over more ranks than its stack deals any."""
    if run.config.ep == 1 or run.problem.stack.communication.dispatcher is not Dispatcher.NONE:
        return ()
    name = run.problem.stack.name
    return (
        f"{name} deals no experts over ep={run.config.ep}: exchanged by NCCL's all-to-all, as Megatron-Core does",
    )


def refusal(error: Exception) -> str:
    """Why a row is not answered, in one line."""
    text = str(error) if isinstance(error, PlannerError) else f"{type(error).__name__}: {error}"
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def predict_runs(runs: Sequence[Run | None], rule_of: RuleOf = broken_rule) -> list[Prediction | None]:
    """A prediction for every run, None for None; of one that breaks a rule, that rule.

    Never raises: what fails says why in its own prediction.
    """
    groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for index, run in enumerate(runs):
        if run is not None:
            groups.setdefault((id(run.problem), run.chunks), []).append(index)
    results: list[Prediction | None] = [None] * len(runs)
    for members in groups.values():
        chosen = [run for i in members if (run := runs[i]) is not None]
        for index, prediction in zip(members, _predict_group(chosen, rule_of), strict=True):
            results[index] = prediction
    return results


def _predict_group(runs: list[Run], rule_of: RuleOf) -> list[Prediction]:
    """Predictions of runs with one problem and split; if the table fails, each row on its own."""
    try:
        return _predict_table(runs, rule_of)
    except PlannerError as error:
        return [Prediction(failed=refusal(error), unsupported=True)] * len(runs)
    except Exception as error:
        if len(runs) == 1:
            return [Prediction(failed=refusal(error))]
        return [part for run in runs for part in _predict_group([run], rule_of)]


def _predict_table(runs: list[Run], rule_of: RuleOf) -> list[Prediction]:
    model = runs[0].model()
    illegal = [rule_of(run.config, model.problem) for run in runs]
    legal = [run.config for run, rule in zip(runs, illegal, strict=True) if not rule]
    found = iter(evaluated(model, legal) if legal else [])
    bad = MemoryVerdict.DOES_NOT_FIT
    return [
        Prediction(verdict=bad, illegal=rule) if rule else replace(next(found), assumed=_beyond_stack(run))
        for run, rule in zip(runs, illegal, strict=True)
    ]


def evaluated(model: CostModel, configs: Sequence[ParallelConfig]) -> list[Prediction]:
    """What the configurations of one problem take."""
    cost = evaluate_exactly(model, ConfigTable.of(list(configs)))
    room = MemoryRoom.of(model.problem, headroom=0.0)  # what ran was not asked to leave any
    assert cost.detail is not None, "costed with its terms"
    results = []
    for row in range(len(configs)):
        step, peak, device = cost.step_time[row], cost.peak_memory[row], cost.device_memory[row]
        if not (np.isfinite(step) and np.isfinite(peak) and step > 0):
            results.append(Prediction(failed=f"no finite prediction: {step} s, {peak} bytes"))
            continue
        verdict = room.verdict(float(device))
        time = {name: float(values[row]) for name, values in cost.detail.time.items()}
        results.append(Prediction(float(step), float(peak), float(device), verdict, time=time))
    return results
