"""How many steps, days and device-hours does a whole run take?

Pure arithmetic on a step time, for one configuration or a column of them. Left out: failures, restarts,
checkpoint stalls (`goodput.py`) and evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

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


@dataclass(frozen=True)
class Duration(Generic[Quantity]):
    """A whole run without interruptions: optimizer steps, days, device-hours."""

    steps: float
    days: Quantity
    gpu_hours: Quantity


def run_duration(
    step_time: Quantity, tokens: float, tokens_per_step: float, devices: int
) -> Duration[Quantity]:
    """The whole run of `tokens` at `step_time` on `devices`. `step_time` [s] is a float or a column."""
    steps = run_steps(tokens, tokens_per_step)
    seconds = step_time * steps
    return Duration(steps, seconds / SECONDS_PER_DAY, device_hours(seconds, devices))
