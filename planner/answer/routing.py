"""What does the busiest expert-parallel rank cost an answer, over balanced experts and over experts placed evenly?

Left out: how uneven routing is (`ask/routing.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from planner.ask.request import cost_model
from planner.cost.chunks import PipelineSimulator
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.solve.splits.split import cost_of_split
from planner.spec.config import ConfigTable
from planner.spec.findings import Finding, finding
from planner.spec.planfile import Choice
from planner.spec.rule import Problem


class BusiestRank:
    """Says of configurations of one problem what their busiest expert-parallel rank costs them. `assumed`: what the
    problem rests on, its experts' loads among it where they were stated."""

    def __init__(self, problem: Problem, assumed: Iterable[Finding]) -> None:
        self.problem = problem
        self.loads = next((one for one in assumed if one.code == "expert_loads"), None)
        self._at: dict[float, tuple[CostModel, PipelineSimulator]] = {}

    def noted(self, choice: Choice) -> Choice:
        """The choice with its step and peak with balanced experts, and with experts placed evenly by stated loads; as
        it is where its experts are balanced."""
        ep = choice.config.ep
        factor = float(self.problem.job.imbalance(np.array([float(ep)]))[0])
        if factor <= 1.0 or self.problem.stack.kernels.expert_padding:
            return choice
        time, peak = self.figures(choice, 1.0)
        facts = {"imbalance": factor, "ep": ep, "balanced_time": time, "balanced_peak": peak}
        if self.loads is not None:
            placed = _placed(self.loads, ep)
            time, peak = self.figures(choice, placed)
            facts |= {"placed": placed, "placed_time": time, "placed_peak": peak}
        return choice.model_copy(update={"why": (*choice.why, finding("busiest_rank", **facts))})

    def figures(self, choice: Choice, imbalance: float) -> tuple[float, float]:
        """Seconds of a step and bytes of the peak of a choice, its layers dealt as they are, with the busiest rank at
        so many times the mean."""
        if imbalance not in self._at:
            job = replace(self.problem.job, expert_imbalance=imbalance)
            model = cost_model(replace(self.problem, job=job))
            self._at[imbalance] = model, simulator_of(model)
        model, simulator = self._at[imbalance]
        config = choice.config.parallel()
        if choice.split is None:
            cost = evaluate_exactly(model, ConfigTable.of([config]), simulator)
        else:
            cost = cost_of_split(model, config, choice.split.layers_per_chunk, simulator)
        return float(cost.step_time[0]), float(cost.device_memory[0])


def _placed(loads: Finding, ep: int) -> float:
    """Tokens of the busiest rank over the mean with experts placed evenly [1]."""
    degrees, factors = loads.values["degrees"], loads.values["placed"]
    assert isinstance(degrees, list)
    assert isinstance(factors, list)
    return float(factors[degrees.index(ep)])
