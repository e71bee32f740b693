"""Which share of the wall clock is steps that count, given how often the job stops and how it checkpoints?

Pure arithmetic for floats and columns. Stops come at a constant rate and independently (exponential times).
Left out: slow nodes, which belong to the step time, evaluation, queueing for a place in the cluster, and
infant mortality of new hardware.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from planner.campaign.duration import Quantity

DEVICES_PER_COUNTED_NODE = 8  # rates of failure are published per node of 8


def time_between_stops(
    devices: Quantity, hardware_rate: float, job_rate: float, preemption_rate: float = 0.0
) -> Quantity:
    """Mean time between stops of a job, M [s].

    1 / (devices / 8 x (hardware_rate + preemption_rate) + job_rate): any device stops all. Rates [1/s]:
    `hardware_rate` and `preemption_rate` for every 8 devices, `job_rate` for the job. Meta (arXiv 2410.21680)
    uses the first term alone, which at 1,024 GPUs gives 28.8 h where 7.9 h were measured.
    """
    rate = devices / DEVICES_PER_COUNTED_NODE * (hardware_rate + preemption_rate) + job_rate
    with np.errstate(divide="ignore"):
        return 1 / np.maximum(rate, 1e-30)


def daly_interval(stall: Quantity, between_stops: Quantity) -> Quantity:
    """Training time between checkpoints that loses least, to higher order [s].

    sqrt(2 stall M) (1 + sqrt(x)/3 + x/9) - stall with x = stall / 2M, and M for stall >= 2M. Daly 2006,
    equation 37, doi 10.1016/j.future.2004.11.016. Within 0.1 % of the loss at the true optimum.
    """
    x = stall / (2 * between_stops)
    series = np.sqrt(2 * stall * between_stops) * (1 + np.sqrt(x) / 3 + x / 9) - stall
    best: Any = np.where(stall < 2 * between_stops, series, between_stops)
    return best[()]


@dataclass(frozen=True)
class Goodput(Generic[Quantity]):
    """Shares of the wall clock [1]; the four add up to 1. `productive` is the goodput."""

    productive: Quantity
    checkpoint_stalls: Quantity
    repeated_work: Quantity
    restarts: Quantity


def goodput_shares(
    interval: Quantity, stall: Quantity, between_stops: Quantity, restart: Quantity, unsaved: Quantity
) -> Goodput[Quantity]:
    """Where the wall clock goes [1].

    A segment of x = interval + stall takes M e^(R/M) (e^(x/M) - 1) on average, R = restart + unsaved. Daly
    2006, equation 20 (doi 10.1016/j.future.2004.11.016); exact for stops at a constant rate, also during
    restarts. `unsaved` [s]: training between the copy of an asynchronous checkpoint and its arrival in
    storage, lost and done again at every stop, to first order. `interval`, `stall`, `restart` [s].
    """
    x = (interval + stall) / between_stops
    survived = np.exp(-(restart + unsaved) / between_stops)
    efficiency = survived * np.where(x > 0, x / np.maximum(np.expm1(np.minimum(x, 700.0)), 1e-300), 1.0)
    up = np.exp(-restart / between_stops)
    useful = interval / (interval + stall)
    return Goodput(
        productive=(efficiency * useful)[()],
        checkpoint_stalls=(efficiency * (1 - useful))[()],
        repeated_work=(up - efficiency)[()],
        restarts=(1 - up)[()],
    )


def spare_nodes(nodes: int, failure_rate: float, repair_time: float) -> int:
    """The fewest spares of which all are used less than a hundredth of the time [nodes].

    Poisson with mean nodes x rate x repair_time (M/G/infinity queue); rates [1/s per node], times [s]. Exact
    where failures are independent.
    """
    mean = nodes * failure_rate * repair_time
    if mean > 1000:  # normal approximation, 2.33 standard deviations for 1 %
        return int(np.ceil(mean + 2.326 * np.sqrt(mean)))
    term = total = float(np.exp(-mean))
    spares = 0
    while total < 0.99 and spares < 10_000:
        spares += 1
        term *= mean / spares
        total += term
    return spares
