"""How far should a few measured steps move a stack's numbers? As far as their agreement speaks for it, no further.

The logarithm of measured over predicted time is the sum of the parts' log factors, each times what the step depends on
it, and of the row's own error. Either the shipped stack is right, which is likely, or its parts differ by normal log
factors ("spike and slab" for the stack as a whole, Mitchell & Beauchamp 1988). Errors of rows have Student's t with 4
degrees of freedom, so that an odd run is its own error; how wide they scatter here is learnt too. Each pair of
hypotheses is solved by mean-field variational Bayes (a normal prior under Student's noise as a mixture of normals;
Bishop, Pattern Recognition and Machine Learning, 2006, chapter 10) and weighed by its evidence bound.

Two more questions are weighed in the same way. Rows of like configurations may share most of their error: it is then a
correction of that configuration and of those like it, of no others. And a slow row of a stack whose runs have a
slow mode may have been in it: it then says nothing. Left out: which parts there are (`parts.py`), and what is not
linear in a logarithm, which the calibrated prediction has in full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# chosen with benchmarks/calibration.py on the rows that it judges: no published source may become worse by more than
# 0.3 points
MOVED: Final = 0.03  # probability that a group differs from the shipped stack
SCATTER: Final = 0.3  # width of the logarithm of a group's scatter around the stack's
_SCATTERS: Final = np.exp(np.linspace(-1.2, 1.2, 5))  # scatter of a group's rows over what its stack says
_ROUNDS: Final = 8
_DEGREES: Final = 4.0
_SHAPE: Final = _DEGREES / 2 + 0.5  # of the gamma posterior of a row's precision
_DIGAMMA: Final = 0.7031566406452432  # at _SHAPE
LIKELY_ALIKE: Final = 0.5  # probability that errors of one configuration are alike
# of a row's variance, what its configuration keeps: a Gaussian process over the axes gives 0.87 to 0.92 by maximum
# likelihood on the development rows, whichever publisher is left out
ALIKE: Final = 0.9
SLOW: Final = (math.log(1.5), math.log(4.0))  # a row in its slow mode: uniform between these [log]
MOST_SLOW: Final = 5  # rows that may be in it, the slowest; the others are taken to be out of it
HOLDS_80: Final = 1.533  # widths of Student's t with 4 degrees of freedom that hold 80 %


@dataclass(frozen=True)
class Shrunk:
    """`mean` (p,): expected log factors of the parts; `width` (p,): of each around it. `moved`: probability that any
    differs from 0. `band`: 80 % of further steps are expected within it of their prediction [log]. `own` (n,): what
    each row's configuration takes beyond that [log]. `slow` (n,): probability that the row was in a slow mode."""

    mean: Array
    width: Array
    moved: float
    band: float
    own: Array
    slow: Array


@dataclass(frozen=True)
class _Solved:
    """One set of hypotheses: bound of the log evidence, mean and covariance of the log factors, shifts of their own of
    all rows, those set aside included."""

    evidence: float
    mean: Array
    covariance: Array
    own: Array


@dataclass(frozen=True)
class Rows:
    """What measured rows say. `residuals` (n,): log(measured / predicted). `sensitivities` (n, p): change of log time
    with each log factor [1]. `width` (n,): of each row's error [log]. `alike` (n, n): how alike their
    configurations are. `slow` (n,): share of such runs in a slow mode."""

    residuals: Array
    sensitivities: Array
    width: Array
    alike: Array
    slow: Array


def shrink(rows: Rows, prior: Array, differs: float = MOVED) -> Shrunk:
    """Posterior of the log factors; `prior` (p, p): their covariance where they moved, which has a probability of
    `differs` before anything is measured."""
    found: list[tuple[float, float, float, NDArray[np.bool_], _Solved]] = []
    for aside, chance in _set_aside(rows):
        for moved, alike, scatter, belief in _hypotheses(differs):
            solved = _solve(rows, ~aside, scatter, moved * prior, alike * ALIKE)
            found.append((chance + belief + solved.evidence, scatter, moved, aside, solved))
    top = max(belief for belief, *_ in found)
    weights = np.exp([belief - top for belief, *_ in found])
    weights /= weights.sum()
    means = np.array([solved.mean for *_, solved in found])
    mean = weights @ means
    covariance = sum(
        w * (s.covariance + np.outer(s.mean - mean, s.mean - mean))
        for w, (*_, s) in zip(weights, found, strict=True)
    )
    usual = rows.sensitivities.mean(axis=0)
    scatter = float(weights @ np.array([scatter for _, scatter, *_ in found]))
    spread = math.sqrt(float(usual @ covariance @ usual) + (scatter * float(np.median(rows.width))) ** 2)
    return Shrunk(
        mean=mean,
        width=np.sqrt(np.diagonal(covariance)),
        moved=float(weights @ np.array([differs for *_, differs, _, _ in found])),
        band=HOLDS_80 * spread,
        own=weights @ np.array([solved.own for *_, solved in found]),
        slow=weights @ np.array([aside for *_, aside, _ in found]),
    )


def _hypotheses(differs: float) -> list[tuple[float, float, float, float]]:
    """Whether the parts moved, whether rows of a configuration are alike, the scatter, and the log of the prior."""
    likely = np.exp(-0.5 * (np.log(_SCATTERS) / SCATTER) ** 2)
    return [
        (moved, alike, float(scatter), math.log(chance * weight * share))
        for moved, chance in ((0.0, 1 - differs), (1.0, differs))
        if chance > 0
        for alike, share in ((0.0, 1 - LIKELY_ALIKE), (1.0, LIKELY_ALIKE))
        for scatter, weight in zip(_SCATTERS, likely / likely.sum(), strict=True)
    ]


def _set_aside(rows: Rows) -> list[tuple[NDArray[np.bool_], float]]:
    """Which rows may have been in a slow mode, every combination, and the log of its probability (and of what they then
    measured)."""
    low, high = SLOW
    able = (rows.slow > 0) & (rows.residuals > low)
    suspects = np.flatnonzero(able)[np.argsort(-rows.residuals[able], kind="stable")][:MOST_SLOW]
    found = []
    for chosen in product((False, True), repeat=len(suspects)):
        aside = np.zeros(len(rows.residuals), dtype=np.bool_)
        aside[suspects] = chosen
        slow = np.where(aside, rows.slow / (high - low), 1 - rows.slow)
        found.append((aside, float(np.log(slow).sum())))
    return found


def _solve(rows: Rows, counted: NDArray[np.bool_], scatter: float, prior: Array, alike: float) -> _Solved:
    """Mean-field posterior under one prior and one scatter, of the rows that are counted; `alike`: share of their
    variance that rows of one configuration have in common. The bound leaves out what all hypotheses share."""
    width = scatter * rows.width
    shared = alike * rows.alike[:, counted] * np.outer(width, width[counted])
    residuals, sensitivities = rows.residuals[counted], rows.sensitivities[counted]
    row = width[counted] * math.sqrt(1 - alike)
    told = sensitivities @ prior @ sensitivities.T + shared[counted]  # prior covariance of the rows' shifts
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
        own=shared @ weights,
    )
