"""How far should a few measured steps move a stack's numbers? As far as their agreement speaks for it, no further.

A measured step time is the predicted one with its parts (compute, communication, host, step overhead) times a factor
each, times the row's own error. Each logarithm of a factor is 0 with a high probability (the shipped stack is right)
and normal otherwise ("spike and slab", Mitchell & Beauchamp 1988); errors of rows have Student's t with 4 degrees of
freedom, as wide as the stack's errors on models left out. The posterior is summed over a grid, nothing is linearised:
one odd run is its own error, several that agree are a factor. Left out: where parts come from (`estimate.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PARTS: Final = ("compute", "communication", "host", "overhead")
DEGREES: Final = 4.0
# of each part: width of the slab, largest logarithm and points of the grid on each side of 0
_SLABS: Final = ((0.15, 0.6, 18), (0.4, 1.2, 8), (0.5, 1.5, 6), (0.7, 1.8, 4))
# chosen with benchmarks/calibration.py: no published source must become worse
MOVED: Final = 0.01  # probability that a part differs from the shipped stack
ROW: Final = 0.6  # width of a row's error over the stack's 80 % band: 1.28 widths of a normal, tails apart


@dataclass(frozen=True)
class Shrunk:
    """`mean` (4,): expected log factors of `PARTS`. `moved` (4,): probability of each to differ from 0. `spread`:
    of a further step's time around its prediction [log], the row's own error included."""

    mean: Array
    moved: Array
    spread: float


def grid_of(part: int, moved: float = MOVED) -> tuple[Array, Array]:
    """Log factors of a part, 0 among them, and their prior probabilities."""
    width, reach, points = _SLABS[part]
    values = np.linspace(-reach, reach, 2 * points + 1)
    slab = np.exp(-0.5 * (values / width) ** 2)
    prior = moved * slab / slab.sum()
    prior[points] += 1 - moved
    return values, prior


def shrink(residuals: Array, shares: Array, row: Array, moved: float = MOVED) -> Shrunk:
    """Posterior of the log factors.

    `residuals` (n,): log(measured / predicted). `shares` (n, 4): parts of the predicted step [1]. `row` (n,): width
    of each row's error [log].
    """
    grids = [grid_of(part, moved) for part in range(len(PARTS))]
    shape = tuple(len(values) for values, _ in grids)
    log_belief = np.zeros(shape)
    for part, (_, prior) in enumerate(grids):
        log_belief = log_belief + _along(np.log(prior), part)
    for i in range(len(residuals)):
        total = np.full(shape, 1.0 - float(shares[i].sum()))
        for part, (values, _) in enumerate(grids):
            total = total + _along(shares[i, part] * np.exp(values), part)
        error = (residuals[i] - np.log(np.maximum(total, 1e-3))) / row[i]
        log_belief -= 0.5 * (DEGREES + 1) * np.log1p(error**2 / DEGREES)
    belief = np.exp(log_belief - log_belief.max())
    belief /= belief.sum()
    mean, still, variance = np.zeros(4), np.zeros(4), np.zeros(4)
    for part, (values, _) in enumerate(grids):
        others = tuple(axis for axis in range(len(PARTS)) if axis != part)
        marginal = belief.sum(axis=others)
        mean[part] = marginal @ values
        variance[part] = marginal @ (values - mean[part]) ** 2
        still[part] = marginal[len(values) // 2]
    usual = shares.mean(axis=0) if len(shares) else np.zeros(4)
    own = float(np.median(row)) if len(row) else 0.0
    return Shrunk(mean, 1 - still, float(np.sqrt((usual**2 * variance).sum() + own**2)))


def _along(values: Array, part: int) -> Array:
    """A vector as a column of the grid's axis `part`."""
    shape = [1] * len(PARTS)
    shape[part] = len(values)
    return values.reshape(shape)
