"""Which share of the wall clock is steps that count, given how often the job stops and how it checkpoints?

Pure arithmetic for floats and columns. Stops come at a constant rate and independently (exponential times).
Left out: slow nodes, which belong to the step time, evaluation, queueing for a place in the cluster, and
infant mortality of new hardware.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from planner.campaign.duration import SECONDS_PER_DAY, Quantity

DEVICES_PER_COUNTED_NODE = 8  # rates of failure are published per node of 8
# fitted, with `software_stops`, on software stops of four sources, which they give within 21 % (`software_stops_rate`)
WATCHED_NODES = 500.0  # of a job at which another node adds half of what the first does, and less beyond
SOFTWARE_BY_AGE = 0.3
COUNTED_AGE = 30 * SECONDS_PER_DAY  # of which `software_stops` is the mean
YOUNGEST = 7 * SECONDS_PER_DAY  # what a job of RSC-1 lives at most; no stops of younger ones are published


def software_stops_rate(devices: Quantity, first_month: float, run_time: Quantity) -> Quantity:
    """Stops of a job by software and unknown causes, on average over a run [1/s].

    first_month x n / (1 + n / 500) x (run_time / 30 d)^(0.3 - 1), n = devices / 8: every node adds to them, less where
    so large a job is watched and mended at once, and what stops a job is found, so that their sum grows as time^0.3.
    `first_month` [1/s]: of 8 devices over 30 days; `run_time` [s], 7 days where it is less. Fitted on seven counts,
    each within 21 %: BLOOM-176B's restarts that were not GPUs, 8 in 30 days and 12 in 109 of 48 nodes (chronicles in
    bigscience-workshop/bigscience, tr11-176B-ml); OPT-175B's, 45 in 22 days and 90 in 56 of 124 nodes, less 8 of
    hardware a week (facebookresearch/metaseq, projects/OPT/chronicles); 22 % of Llama 3's 419 in 54 days of 2,048
    nodes (arXiv 2407.21783, section 3.3.4); those of Meta RSC-1's jobs, of a week at most, of 8 and of 1,024 GPUs,
    which stop every 47.7 days and 7.9 h, less 6.5e-3 a node-day of hardware (arXiv 2410.21680, figure 7). The runs
    give exponents of their age of 0.31 (BLOOM) and 0.28 (OPT) by themselves.
    """
    nodes, age = devices / DEVICES_PER_COUNTED_NODE, np.maximum(run_time, YOUNGEST) / COUNTED_AGE
    rate: Any = first_month * nodes / (1 + nodes / WATCHED_NODES) * age ** (SOFTWARE_BY_AGE - 1)
    return rate


def time_between_stops(
    devices: Quantity, hardware_rate: float, job_rate: float, preemption_rate: float = 0.0
) -> Quantity:
    """Mean time between stops of a job, M [s].

    1 / (devices / 8 x (hardware_rate + preemption_rate) + job_rate): any device stops all. Rates [1/s]:
    `hardware_rate` and `preemption_rate` for every 8 devices, `job_rate` for the job (`software_stops_rate`). Meta
    (arXiv 2410.21680) uses the first term alone, which at 1,024 GPUs gives 28.8 h where 7.9 h were measured.
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
