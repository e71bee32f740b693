"""How far should a few measured steps move a stack's numbers? As far as their agreement speaks for it, no further.

The logarithm of measured over predicted time is the sum of the parts' log factors, each times what the step depends on
it, and of the row's own error. Either the shipped stack is right, which is likely, or its parts differ by normal log
factors ("spike and slab" for the stack as a whole, Mitchell & Beauchamp 1988). Errors of rows have Student's t with 4
degrees of freedom, so that an odd run is its own error; how wide they scatter here is learnt too. Each pair of
hypotheses is solved by mean-field variational Bayes (a normal prior under Student's noise as a mixture of normals;
Bishop, Pattern Recognition and Machine Learning, 2006, chapter 10) and weighed by its evidence bound. Left out: which
parts there are (`parts.py`), and what is not linear in a logarithm, which the calibrated prediction has in full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# chosen with benchmarks/calibration.py on the rows that it judges: no published source may become worse by more than
# 0.3 points
MOVED: Final = 0.06  # probability that a group differs from the shipped stack
SCATTER: Final = 0.3  # width of the logarithm of a group's scatter around the stack's
_SCATTERS: Final = np.exp(np.linspace(-1.2, 1.2, 5))  # scatter of a group's rows over what its stack says
_ROUNDS: Final = 8
_DEGREES: Final = 4.0
_SHAPE: Final = _DEGREES / 2 + 0.5  # of the gamma posterior of a row's precision
_DIGAMMA: Final = 0.7031566406452432  # at _SHAPE
HOLDS_80: Final = 1.533  # widths of Student's t with 4 degrees of freedom that hold 80 %


@dataclass(frozen=True)
class Shrunk:
    """`mean` (p,): expected log factors of the parts; `width` (p,): of each around it. `moved`: probability that any
    differs from 0. `band`: 80 % of further steps are expected within it of their prediction [log]."""

    mean: Array
    width: Array
    moved: float
    band: float


@dataclass(frozen=True)
class _Solved:
    """One pair of hypotheses: bound of the log evidence, mean and covariance of the log factors."""

    evidence: float
    mean: Array
    covariance: Array


def shrink(residuals: Array, sensitivities: Array, row: Array, prior: Array) -> Shrunk:
    """Posterior of the log factors.

    `residuals` (n,): log(measured / predicted). `sensitivities` (n, p): change of log time with each log factor [1].
    `row` (n,): width of each row's error [log]. `prior` (p, p): covariance of the log factors where they moved.
    """
    found: list[tuple[float, float, float, _Solved]] = []
    likely = np.exp(-0.5 * (np.log(_SCATTERS) / SCATTER) ** 2)
    for share, factors in ((1 - MOVED, np.zeros_like(prior)), (MOVED, prior)):
        for scatter, weight in zip(_SCATTERS, likely / likely.sum(), strict=True):
            solved = _solve(residuals, sensitivities, row * scatter, factors)
            belief = math.log(share * weight) + solved.evidence
            found.append((belief, scatter, float(factors.any()), solved))
    top = max(belief for belief, *_ in found)
    weights = np.exp([belief - top for belief, *_ in found])
    weights /= weights.sum()
    means = np.array([solved.mean for *_, solved in found])
    mean = weights @ means
    covariance = sum(
        w * (s.covariance + np.outer(s.mean - mean, s.mean - mean))
        for w, (*_, s) in zip(weights, found, strict=True)
    )
    usual = sensitivities.mean(axis=0)
    scatter = float(weights @ np.array([scatter for _, scatter, *_ in found]))
    spread = math.sqrt(float(usual @ covariance @ usual) + (scatter * float(np.median(row))) ** 2)
    moved = float(weights @ np.array([differs for *_, differs, _ in found]))
    return Shrunk(mean, np.sqrt(np.diagonal(covariance)), moved, HOLDS_80 * spread)


def _solve(residuals: Array, sensitivities: Array, row: Array, prior: Array) -> _Solved:
    """Mean-field posterior under one prior and one scatter; the bound leaves out what all hypotheses share."""
    told = sensitivities @ prior @ sensitivities.T  # prior covariance of the rows' shifts
    precision = np.ones_like(residuals)
    for _ in range(_ROUNDS):
        noise = row**2 / precision
        inverse = np.linalg.inv(told + np.diag(noise))
        weights = inverse @ residuals
        shift = told @ weights
        variance = np.diagonal(told - told @ inverse @ told)
        squares = (residuals - shift) ** 2 + variance
        rate = _DEGREES / 2 + squares / (2 * row**2)
        precision = _SHAPE / rate
    log_precision = _DIGAMMA - np.log(rate)
    fit = 0.5 * (log_precision - 2 * np.log(row) - precision * squares / row**2)
    scale = (_DEGREES / 2 - 1) * log_precision - _DEGREES / 2 * precision
    entropy = -np.log(rate) + (1 - _SHAPE) * _DIGAMMA
    apart = 0.5 * (
        float(weights @ told @ weights) - float(np.trace(inverse @ told))
        - float(np.linalg.slogdet(inverse)[1]) - float(np.log(noise).sum())
    )  # fmt: skip
    gain = prior @ sensitivities.T
    return _Solved(
        evidence=float((fit + scale + entropy).sum()) - apart,
        mean=gain @ weights,
        covariance=prior - gain @ inverse @ gain.T,
    )
