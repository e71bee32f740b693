"""How many steps and device-hours does a whole run take?

Pure arithmetic on a step time. Left out: what a batch costs in tokens (`batch.py`), failures, restarts, checkpoint
stalls (`goodput.py`) and evaluation.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError

Quantity = TypeVar("Quantity", float, NDArray[np.float64])

SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 86400.0


def run_steps(tokens: float, tokens_per_step: float) -> float:
    """Optimizer steps of a run [steps].

    ceil(tokens / tokens_per_step): the last step is a whole one. Definition. Raises `InputError` unless both
    are above 0.
    """
    if not (tokens > 0 and tokens_per_step > 0):
        raise InputError("tokens and tokens per step must be above 0", f"{tokens}, {tokens_per_step}")
    return float(np.ceil(tokens / tokens_per_step))


def device_hours(seconds: Quantity, devices: int) -> Quantity:
    """Time that all devices together are held [device-hours]. seconds x devices / 3600. Definition."""
    return seconds * devices / SECONDS_PER_HOUR
