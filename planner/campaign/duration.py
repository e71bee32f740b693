"""How many steps, days, device-hours and dollars does a whole run take?

Pure arithmetic on a step time, for one configuration or a column of them. Left out: failures, restarts,
checkpoint stalls and evaluation, which the caller states together as `goodput_fraction` (`goodput.py`).
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


def run_seconds(step_time: Quantity, steps: float, goodput_fraction: Quantity | float = 1.0) -> Quantity:
    """Wall-clock time of a run [s].

    steps x step_time / goodput_fraction. Definition; goodput: share of the wall clock spent on steps that
    count, 1 for a run without interruptions. Raises `InputError` outside 0 < goodput_fraction <= 1.
    """
    if not np.all((np.asarray(goodput_fraction) > 0) & (np.asarray(goodput_fraction) <= 1)):
        raise InputError("goodput_fraction must be above 0 and at most 1", str(goodput_fraction))
    return step_time * steps / goodput_fraction


def device_hours(seconds: Quantity, devices: int) -> Quantity:
    """Time that all devices together are held [device-hours]. seconds x devices / 3600. Definition."""
    return seconds * devices / SECONDS_PER_HOUR


def run_cost(hours: Quantity, price_per_device_hour: float) -> Quantity:
    """Price of a run [US dollars]. device-hours x price. Definition; storage and network are left out."""
    return hours * price_per_device_hour


@dataclass(frozen=True)
class Duration(Generic[Quantity]):
    """A whole run: optimizer steps, days, device-hours, and dollars where a price is known."""

    steps: float
    days: Quantity
    gpu_hours: Quantity
    cost: Quantity | None


def run_duration(
    step_time: Quantity,
    tokens: float,
    tokens_per_step: float,
    devices: int,
    price_per_device_hour: float | None = None,
    goodput_fraction: Quantity | float = 1.0,
) -> Duration[Quantity]:
    """The whole run of `tokens` at `step_time` on `devices`. `step_time` [s] is a float or a column."""
    steps = run_steps(tokens, tokens_per_step)
    seconds = run_seconds(step_time, steps, goodput_fraction)
    hours = device_hours(seconds, devices)
    cost = None if price_per_device_hour is None else run_cost(hours, price_per_device_hour)
    return Duration(steps, seconds / SECONDS_PER_DAY, hours, cost)
