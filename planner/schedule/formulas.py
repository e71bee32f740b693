"""How long does a pipeline take, and how many micro-batches does a rank hold, where a closed form is known?

Arguments are floats or arrays. Left out: schedules without a proven closed form.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Quantity = float | NDArray[np.float64]


def in_flight(rank: Quantity, p: Quantity, v: Quantity, m: Quantity) -> Quantity:
    """Micro-batches whose activations rank `rank` holds at its peak, in whole-rank units [micro-batches].

    1F1B (v = 1): min(m, p - r) (Narayanan 2021, arXiv 2104.04473, section 2.2). Interleaved, v chunks a rank,
    groups of p: min(m v, (v-1) p + 2 (p-1-r) + 1) chunks, each 1/v of the rank's layers (Megatron-LM's
    warm-up, schedules.py). Valid where p divides m or v = 1.
    """
    one = np.minimum(m, p - rank)
    chunks = np.minimum(m * v, (v - 1) * p + 2 * (p - 1 - rank) + 1)
    return np.where(np.asarray(v) > 1, chunks / v, one)


def fill_and_drain(sum_of_stages: Quantity, slowest_stage: Quantity, v: Quantity) -> Quantity:
    """Time a pipeline idles on its slowest rank: its bubble [s].

    (sum_s T_s - max_s T_s) / v, T_s the forward and backward time of stage s for one micro-batch. With equal
    stages this is (p-1) T / v, exact for 1F1B and for interleaving where p divides m (Narayanan 2021,
    arXiv 2104.04473, eq. 2). With uneven 1F1B stages it is exact where the last stage is the slowest and an upper
    bound elsewhere: a slow early stage does further forward passes while it waits (up to 15 % of the step where
    stages differ by half, tests/schedule).
    """
    return (sum_of_stages - slowest_stage) / v


def hop_time(p: Quantity, v: Quantity, m: Quantity) -> Quantity:
    """Point-to-point hops on the critical path of a step, each `c` seconds long [hops].

    1F1B, p divides m: 2 ((p-1) m / p + p - 2); interleaved: 2 (p v - 1) (laws of the simulated schedules,
    tests/schedule). Valid for p >= 2; 0 for p = 1.
    """
    one = 2 * ((p - 1) * m / p + p - 2)
    return np.where(np.asarray(p) > 1, np.where(np.asarray(v) > 1, 2 * (p * v - 1), one), 0.0)
