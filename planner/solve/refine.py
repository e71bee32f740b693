"""Which of the best configurations is the best when their pipelines are simulated?

The search ranks by closed forms, exact for 1F1B and near for interleaved pipelines; the finalists are costed again
with their pipelines simulated pass by pass. Left out: configurations behind the finalists, which an error of the
closed form larger than their distance could hide.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.chunks import PipelineSimulator
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly
from planner.solve.search import SearchResult

FINALISTS = 16


def refine(model: CostModel, simulator: PipelineSimulator, found: SearchResult, top: int) -> SearchResult:
    """`found` with its best rows in the order of their simulated step times, the first `top` of them."""
    if not len(found.best):
        return found
    cost = evaluate_exactly(model, found.best, simulator)
    order = np.lexsort((np.arange(len(found.best)), cost.device_memory, cost.step_time))
    return replace(found, best=found.best.take(order[:top]), solved=len(found.best))
