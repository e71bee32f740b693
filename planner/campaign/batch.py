"""How many tokens does a loss take at a batch, and from which batch on do larger ones cost more than they save?

The law of steps against tokens, how its critical batch grows, and what a schedule of batches takes; pure arithmetic for
floats and columns. Left out: learning rates, which every fit tunes anew at each batch; adapters and fine-tuning, of
which no fit is; and which published fits there are (`catalog/campaign.yaml`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from planner.campaign.duration import Quantity, run_steps
from planner.errors import InputError
from planner.spec.batch_fit import BatchFit, FitInput, FitOf

# times the tokens and the parameters of its own runs to which a fit is followed (`speaks_of`)
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


def relative_steps(batch: Quantity, critical: Quantity) -> Quantity:
    """Optimizer steps to a loss over those at the largest batch, S / S_min [1]. 1 + B_crit / B: the same law."""
    return 1 + critical / batch


def token_factor(batch: Quantity, critical: Quantity, reference: Quantity) -> Quantity:
    """Tokens that a batch takes to the loss that another takes one token to [1].

    (1 + B / B_crit) / (1 + B_ref / B_crit), `relative_tokens` of both. Batches [tokens].
    """
    return relative_tokens(batch, critical) / relative_tokens(reference, critical)


def stated_for(batch: Quantity, critical: Quantity) -> Quantity:
    """The batch that the tokens which somebody states for a run are taken to be for [tokens].

    min(B, B_crit): published runs state tokens at their own batch, which they hold below the critical one; for a batch
    beyond it they are those of the critical one, and more are needed. A convention.
    """
    return np.minimum(batch, critical)


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
    Validity: where `speaks_of` says so.
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


def speaks_of(fit: BatchFit, parameters: float, tokens: float) -> bool:
    """Was a fit made on runs like this one, or on ones at most a tenth as large?

    Bergsma's power laws hold for larger runs that they were not fitted on, some of 1,000 times the compute (arXiv
    2505.13738, figure 1), which is about 30 times the tokens.
    """
    least, most = fit.tokens
    return least <= tokens <= FARTHEST * most and parameters <= FARTHEST * fit.parameters


@dataclass(frozen=True)
class CriticalBatch:
    """The critical batch of a run, least and most over the fits that speak of it [tokens]. `fits`, `extrapolated`:
    their names, those whose own runs saw fewer tokens or parameters apart; `given`: by the user."""

    low: float
    high: float
    fits: tuple[str, ...] = ()
    extrapolated: tuple[str, ...] = ()
    given: bool = False

    @property
    def middle(self) -> float:
        """What is counted with: the geometric mean of both ends [tokens]."""
        return float(np.sqrt(self.low * self.high))


def critical_batch(
    fits: Sequence[BatchFit], parameters: float, tokens: float, of: FitOf = FitOf.CRITICAL
) -> CriticalBatch | None:
    """What published fits give for a run, None where none speaks of it. `of`: the critical batch, or the best one.

    `parameters`: of the layers, met by one token. Runs of fewer tokens than parameters are taken for fine-tuning, of
    which no fit is. Raises `InputError` for what is not above 0.
    """
    if not (parameters > 0 and tokens > 0):
        raise InputError("parameters and tokens must be above 0", f"{parameters}, {tokens}")
    heard = [
        fit for fit in fits if fit.of is of and tokens >= parameters and speaks_of(fit, parameters, tokens)
    ]
    if not heard:
        return None
    batches = [batch_of_fit(fit, parameters, tokens) for fit in heard]
    beyond = [fit.name for fit in heard if tokens > fit.tokens[1] or parameters > fit.parameters]
    own = tuple(fit.name for fit in heard if fit.name not in beyond)
    return CriticalBatch(min(batches), max(batches), own, tuple(beyond))


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


def staged_run(stages: Sequence[Stage], critical: float | None, reference: float | None) -> Staged:
    """A run under a schedule, the tokens of each stage those that its batch takes to the same loss.

    tokens x `token_factor` each, in whole steps; `reference` [tokens]: the batch that the tokens are stated for, None:
    that of the stage itself, or the critical one where that is less. `critical` None: no batch costs tokens.
    """
    tokens = steps = seconds = 0.0
    for stage in stages:
        factor = 1.0
        if critical is not None:
            stated: Any = stated_for(stage.batch if reference is None else reference, critical)
            factor = token_factor(stage.batch, critical, float(stated))
        own_steps = run_steps(stage.tokens * factor, stage.batch)
        tokens, steps = tokens + stage.tokens * factor, steps + own_steps
        seconds += own_steps * stage.step_time
    return Staged(tokens, steps, seconds)
