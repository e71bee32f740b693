"""How many tokens does a loss take at a batch, and from which batch on do larger ones cost more than they save?

The law of steps against tokens, how its critical batch grows, and what a schedule of batches takes; pure arithmetic for
floats and columns. Left out: learning rates, which every fit tunes anew at each batch; adapters and fine-tuning, of
which no fit is; and which published fits there are (`catalog/campaign.yaml`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.campaign.duration import Quantity, run_steps
from planner.errors import InputError
from planner.spec.batch_fit import BatchFit, FitInput, FitOf

# Times the tokens and the parameters of its own runs to which a fit is followed: Bergsma's power laws hold for larger
# runs that they were not fitted on, some of 1,000 times the compute (arXiv 2505.13738, figure 1), which is about 30
# times the tokens.
FARTHEST: Final = 10.0
# Kaplan 2020 (arXiv 2001.08361), table 2: the loss of a model of N parameters after D tokens
_N_SCALE, _N_POWER = 6.4e13, 0.076
_D_SCALE, _D_POWER = 1.8e13, 0.103


def relative_tokens(batch: Quantity, critical: Quantity) -> Quantity:
    """Tokens to a loss over those at the smallest batch, E / E_min [1].

    1 + B / B_crit: (S / S_min - 1)(E / E_min - 1) = 1 with E = B S and B_crit = E_min / S_min, so that a batch of
    B_crit takes twice the tokens and twice the steps. McCandlish 2018 (arXiv 1812.06162); of language models Kaplan
    2020 (arXiv 2001.08361, equations 5.1 and 5.2), Bergsma 2025 (arXiv 2505.13738). Batches [tokens].
    """
    return 1 + batch / critical


def token_factor(batch: Quantity, critical: Quantity) -> Quantity:
    """Tokens that a run takes at a batch to the loss of those that somebody states for it, over these [1].

    max(1, (1 + B / B_crit) / 2): published runs state tokens at their own batch, which they hold below the critical
    one; for a batch beyond it they are those of the critical one, and more are needed. A convention. Batches [tokens].
    """
    return relative_tokens(batch, critical) / relative_tokens(np.minimum(batch, critical), critical)


def loss_reached(parameters: Quantity, tokens: Quantity) -> Quantity:
    """Loss of a language model after one pass over so many tokens [nats/token].

    ((6.4e13 / N)^(0.076 / 0.103) + 1.8e13 / D)^0.103, N without embeddings. Kaplan 2020 (arXiv 2001.08361, equation
    1.5, table 2), WebText2, N from 768 to 1.5e9, D from 22e6 to 23e9.
    """
    return ((_N_SCALE / parameters) ** (_N_POWER / _D_POWER) + _D_SCALE / tokens) ** _D_POWER


def batch_of_fit(fit: BatchFit, parameters: float, tokens: float) -> float:
    """The batch that a fit gives for a model of `parameters` (without embeddings) after `tokens` [tokens].

    coefficient x input^exponent, or between and beyond points straight lines in logarithms of tokens and batch; over
    the share of tokens that its authors call critical, so that all are batches of twice the tokens (`BatchFit`).
    Validity: from its own runs to `FARTHEST` times their tokens and parameters.
    """
    if fit.points:
        known, batches = np.log(np.array(fit.points)).T
        at = int(np.clip(np.searchsorted(known, np.log(tokens)) - 1, 0, len(known) - 2))
        slope = (batches[at + 1] - batches[at]) / (known[at + 1] - known[at])
        beyond = np.log(tokens) - known[-1] if fit.levels_off else -np.inf
        log_batch = batches[-1] if beyond > 0 else batches[at] + slope * (np.log(tokens) - known[at])
        return float(np.exp(log_batch)) / fit.overhead
    given = {
        FitInput.TOKENS: tokens,
        FitInput.LOSS: loss_reached(parameters, tokens),
        FitInput.COMPUTE: 6 * parameters * tokens,
    }[fit.input]
    return float(fit.coefficient * given**fit.exponent / fit.overhead)


@dataclass(frozen=True)
class CriticalBatch:
    """The critical batch of a run, least and most over the fits that speak of it [tokens]. `fits`, `extrapolated`:
    their names, those whose own runs saw fewer tokens or parameters apart; `unverified`: those with figures from
    memory; `given`: by the user."""

    low: float
    high: float
    fits: tuple[str, ...] = ()
    extrapolated: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    given: bool = False

    @property
    def middle(self) -> float:
        """What is counted with: the geometric mean of both ends [tokens]."""
        return float(np.sqrt(self.low * self.high))


def critical_batch(
    fits: Sequence[BatchFit], parameters: float, tokens: float, of: FitOf = FitOf.CRITICAL
) -> CriticalBatch | None:
    """What published fits give for a run, None where none speaks of it. `of`: the critical batch, or the best one.

    The range goes on from where it was as fits enter and leave: with the tokens it never falls, nor grows faster than
    they do, so that a longer run takes no fewer tokens at any batch; where no fit speaks any more it stays. What a
    batch is `AT_LEAST` only raises it.
    `parameters`: of the layers, met by one token. Runs of fewer tokens than parameters are taken for fine-tuning, of
    which no fit is. Raises `InputError` for what is not above 0.
    """
    if not (parameters > 0 and tokens > 0):
        raise InputError("parameters and tokens must be above 0", f"{parameters}, {tokens}")
    near = [fit for fit in fits if parameters <= FARTHEST * fit.parameters]
    edges = {max(edge, parameters) for fit in near for edge in (fit.tokens[0], FARTHEST * fit.tokens[1])}
    ends: NDArray[np.float64] | None = None
    names: set[str] = set()
    for start, stop in pairwise([*sorted(edge for edge in edges if edge <= tokens), tokens]):
        heard = [fit for fit in near if fit.tokens[0] <= start and stop <= FARTHEST * fit.tokens[1]]
        batches = {fit.name: batch_of_fit(fit, parameters, stop) for fit in heard if fit.of is of}
        if not batches:
            continue
        least = min(batches.values())
        bounds = [fit for fit in heard if fit.of is FitOf.AT_LEAST and of is FitOf.CRITICAL]
        above = {fit.name: value for fit in bounds if (value := batch_of_fit(fit, parameters, stop)) > least}
        new = np.maximum([least, max(batches.values())], max(above.values(), default=0.0))
        kept = new if ends is None else np.clip(new, ends, ends * stop / start)
        names = {*batches, *above} if bool(np.all(kept == new)) else {*names, *batches, *above}
        ends = kept
    if ends is None:
        return None
    said = [fit for fit in near if fit.name in names]
    beyond = tuple(fit.name for fit in said if tokens > fit.tokens[1] or parameters > fit.parameters)
    own = tuple(fit.name for fit in said if fit.name not in beyond)
    unverified = tuple(fit.name for fit in said if fit.unverified)
    return CriticalBatch(float(ends[0]), float(ends[1]), own, beyond, unverified)


@dataclass(frozen=True)
class Stage:
    """Part of a run under one batch: tokens as stated [tokens], tokens of a step, and its time [s]."""

    tokens: float
    batch: float
    step_time: float


@dataclass(frozen=True)
class Staged:
    """What a run under a schedule of batches takes: `tokens`, optimizer `steps` [1], and `seconds` without stops."""

    tokens: float
    steps: float
    seconds: float


def staged_run(stages: Sequence[Stage], critical: float | None) -> Staged:
    """A run under a schedule, the tokens of each stage those that its batch takes to the same loss.

    tokens x `token_factor` each, in whole steps. `critical` None: no batch costs tokens.
    """
    tokens = steps = seconds = 0.0
    for stage in stages:
        factor = 1.0 if critical is None else float(token_factor(stage.batch, critical))
        own_steps = run_steps(stage.tokens * factor, stage.batch)
        tokens, steps = tokens + stage.tokens * factor, steps + own_steps
        seconds += own_steps * stage.step_time
    return Staged(tokens, steps, seconds)
