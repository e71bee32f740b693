"""What does the busiest expert-parallel rank cost an answer, over balanced experts and over experts placed evenly?

Left out: how uneven routing is (`ask/routing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from planner.cost.model import CostModel
from planner.spec.config import ConfigTable
from planner.spec.findings import Finding, finding
from planner.spec.planfile import Choice

Figures = tuple[float, float]  # seconds of a step and bytes of the peak


def busiest_rank(
    model: CostModel, choice: Choice, assumed: Iterable[Finding], model_of: Callable[[float], CostModel]
) -> tuple[Finding, ...]:
    """What a choice's step and peak would be with balanced experts, and with experts placed evenly by stated loads;
    none where its experts are balanced. `model_of`: of the problem with its busiest rank at so many times the mean."""
    config, problem = choice.config.parallel(), model.problem
    table = ConfigTable.of([config])
    factor = float(problem.job.imbalance(table["ep"].astype(float))[0])
    if factor <= 1.0 or problem.stack.kernels.expert_padding:
        return ()

    def figures(costs: CostModel) -> Figures:
        cost = costs.evaluate(table)
        return float(cost.step_time[0]), float(cost.device_memory[0])

    own = figures(model)

    def beside(imbalance: float) -> Figures:
        """As `own`, of a choice whose layers may be dealt otherwise."""
        time, peak = figures(model_of(imbalance))
        return choice.step_time * time / own[0], choice.memory.peak + peak - own[1]

    time, peak = beside(1.0)
    facts = {"imbalance": factor, "ep": config.ep, "balanced_time": time, "balanced_peak": peak}
    placed = next((_placed(one, config.ep) for one in assumed if one.code == "expert_loads"), None)
    if placed is not None:
        time, peak = beside(placed)
        facts |= {"placed": placed, "placed_time": time, "placed_peak": peak}
    return (finding("busiest_rank", **facts),)


def _placed(loads: Finding, ep: int) -> float:
    """Tokens of the busiest rank over the mean with experts placed evenly [1]."""
    degrees, factors = loads.values["degrees"], loads.values["placed"]
    assert isinstance(degrees, list)
    assert isinstance(factors, list)
    return float(factors[degrees.index(ep)])
