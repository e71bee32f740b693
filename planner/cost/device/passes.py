"""How long do operations take that only move bytes: norms, residuals, rotary embedding, activation, permutation?

One value per distinct key (how a micro-batch is cut). Left out: quantising (`products.py`), the loss (`cost/edges.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from planner.cost.cut import LayerShape
from planner.cost.device.rates import DeviceRates
from planner.cost.operations.operation import Operation

Array = NDArray[np.float64]


class PassModel:
    """Device seconds of operations bound by memory, for a table of distinct keys."""

    def __init__(self, rates: DeviceRates) -> None:
        self.rates = rates

    def memory_bound(self, ops: Iterable[Operation], x: LayerShape) -> tuple[dict[str, Array], Array]:
        """Forward seconds of norms, residuals, rotary, activation and permutation, by name; backward ones of all."""
        ahead, behind = dict[str, Array](), np.zeros(len(x.tokens))
        for op in ops:
            if op.moved is not None:
                moved = op.moved(x)
                ahead[op.name] = ahead[op.name] + moved if op.name in ahead else moved
                behind = behind + (2.0 * moved if op.moved_back is None else op.moved_back(x))
        factor = self.rates.problem.stack.compute.memory_bound
        seconds = {name: factor * self.rates.moving(moved) for name, moved in ahead.items()}
        return seconds, factor * self.rates.moving(behind)
