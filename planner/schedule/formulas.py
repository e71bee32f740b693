"""How long does a pipeline take, and how many micro-batches does a rank hold, where a closed form is known?

Arguments are floats or arrays. Left out: schedules without a proven closed form.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.spec.config import Schedule

Quantity = float | NDArray[np.float64]

# of a pipeline whose order is searched for under a memory limit: beyond it one layout alone takes seconds
MOST_PASSES: Final = 150_000


def default_limit(schedule: Schedule, p: int) -> int:
    """Chunks a rank may hold where nothing is said [chunks]: V-Min about a third, V-Half half of 1F1B's 2p
    (Qi 2024, arXiv 2405.15362, table 1), zb-auto twice 1F1B's p (ZB-2p of Qi 2023, arXiv 2401.10241)."""
    if schedule is Schedule.V_MIN:
        return 2 * math.ceil((p + 2) / 3)
    return 2 * (p // 2 + 1) if schedule is Schedule.V_HALF else 2 * p


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
    arXiv 2104.04473, eq. 2). With uneven 1F1B stages of one backward to forward ratio it is exact where the
    last stage is the slowest and an upper bound elsewhere (up to 18 % of the step high where stages differ by half
    and m = p); where the ratios differ it is no bound at all. uneven.one_f_one_b_makespan is exact for any stages.
    """
    return (sum_of_stages - slowest_stage) / v


def hop_time(
    total: Quantity, largest: Quantity, wrap: Quantity, p: Quantity, v: Quantity, m: Quantity
) -> Quantity:
    """Seconds of point-to-point messages on the critical path of a step whose hops differ [s].

    `total`, `largest`: sum and maximum over the p - 1 boundaries; `wrap`: from the last stage to the first. 1F1B: in
    steady state p micro-batches pass all boundaries twice, or one boundary and back once a micro-batch:
    m max(2 total / p, largest) + 2 total (p - 2) / (p - 1). Interleaved: 2 (v total + (v - 1) wrap). Of equal hops c,
    where p divides m, 2 ((p-1) m / p + p - 2) c and 2 (p v - 1) c (laws of the simulated schedules, tests/schedule).
    Valid for p >= 2; 0 for p = 1.
    """
    rest = 2 * total * np.maximum(p - 2, 0) / np.maximum(p - 1, 1)
    one = m * np.maximum(2 * total / p, largest) + rest
    return np.where(
        np.asarray(p) > 1, np.where(np.asarray(v) > 1, 2 * (v * total + (v - 1) * wrap), one), 0.0
    )


def zb_h1_bubble(f: Quantity, b: Quantity, w: Quantity, p: Quantity) -> Quantity:
    """Makespan of ZB-H1 with equal chunks and no hops, less the m v (f + b + w) of a rank's own work [s].

    (p - 1) max(f + b - w, f, b), f, b, w of one chunk: exact for any times, v = 1 and m >= p, or v > 1 and p divides m.
    Qi 2023 (arXiv 2401.10241, table 1) has f + b - w, which holds where w <= min(f, b); a longer weight gradient
    delays the backwards behind it, and the other two paths were read off simulated schedules.
    """
    return (p - 1) * np.maximum(np.maximum(f + b - w, f), b)


def zb_h2_bubble(f: Quantity, b: Quantity, w: Quantity, p: Quantity) -> Quantity:
    """The same of ZB-H2: (p - 1) max(f, f + b - 2 w, b - f) for m >= 2p [s].

    Qi 2023 (arXiv 2401.10241, table 1) has (p - 1)(f + b - 2 w) within a rank's own span; the last rank also waits
    (p - 1) f for its first micro-batch. The paths were read off simulated schedules.
    """
    return (p - 1) * np.maximum(np.maximum(f, f + b - 2 * w), b - f)


def zb_v_bubble(f: Quantity, b: Quantity, w: Quantity, p: Quantity) -> Quantity:
    """The same of ZB-V, f, b, w of one of a rank's two chunks [s]: nothing but the fill of p - 1 where f = b = w.

    The longest of eight paths, read off simulated schedules; exact for any times and m >= 2p - 1 (a property test),
    as the order of Qi 2023 (arXiv 2401.10241, section 6) is laid out for so many.
    """
    n = p - 1
    paths = (
        (2 * p - 3) * f - (p - 2) * b,
        n * b,
        np.maximum(f, b) + (p - 2) * w,
        (2 * p - 3) * f + b - 2 * n * w,
        2 * n * (b - w),
        2 * n * f - n * b - w,
        2 * n * f - (2 * n + 1) * w,
    )
    longest = paths[0]
    for path in paths[1:]:
        longest = np.maximum(longest, path)
    return longest


def dualpipe_bubble(f: Quantity, b: Quantity, w: Quantity, pair: Quantity, depth: Quantity) -> Quantity:
    """Makespan of DualPipe over p = 2 depth ranks, less m pairs, or of DualPipeV over p = depth ranks, less 2 m [s].

    max(3 q f, 2 q f + (q - 1) b) - (q + 2) P + (q + 2) b + 3 w + (q - 1) max(b, w) + 2 (q - 1) max(0, b + w - P), q the
    depth, P a pair, f, b, w of a stage. Exact with equal stages, m >= 2p and P >= max(f, b + w) (read off simulated
    schedules, a property test). The published (p/2 - 1)(P + B - 3 W), B the full backward (arXiv 2412.19437,
    table 2), is its value for f = b = w and P = f + b + w.
    """
    q = depth
    fill = np.maximum(3 * q * f, 2 * q * f + (q - 1) * b)
    drain = (q + 2) * b + 3 * w + (q - 1) * np.maximum(b, w)
    return fill + drain - (q + 2) * pair + 2 * (q - 1) * np.maximum(0.0, b + w - pair)
