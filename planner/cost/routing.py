"""How many tokens does the busiest expert-parallel rank get, over the mean, from the loads of its experts?

Experts are placed by index, equally many to a rank (Megatron-LM core/transformer/moe/moe_layer.py,
local_expert_indices; torchtitan distributed/expert_parallel.py, Shard(0) of their dimension). Left out: loads that
change from step to step, and experts that are moved or held more than once (`solve/balance.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Spread of the experts' loads over their mean in a step that trains with an auxiliary loss, by experts of a layer:
# 8, of 16 layers that log the tokens of each (shawntan/scattermoe issue 10: the busiest has 1.084 times the mean);
# 64, MaxVio 0.72 and 0.52 at a coefficient of 1e-3 (Wang et al. 2024, arXiv 2408.15664, table 2). Between them by the
# power that joins them, beyond as at 128: there it has 1.16 at ep 8 and 1.73 at ep 64, where devices were measured to
# wait 18.6 % of their time at ep 2 to 8, 1.23 (Qi et al. 2026, arXiv 2604.19654), and ranks to have 1.30 to 4.01 times
# the mean at ep 64 and 40, training and prefill (Wei et al. 2026, arXiv 2606.04101).
FEW, FEW_BUSIEST, MANY, MANY_BUSIEST, MOST = 8, 1.084, 64, 1.62, 128
_BLOM: Final = 0.375  # of the expected largest of normal numbers (Blom 1958)


def zipf_loads(experts: int, exponent: float, choices: float) -> Array:
    """Shares of all assignments that go to each expert, the first has most: 1 / (i + 1)^exponent over their sum [1].

    `choices`: different experts of a token, `experts` of them at most, so that none has more than 1 / choices of all:
    the first ones have that, where the law gives them more, and the others share the rest by the law.
    """
    places, full = np.arange(1, experts + 1, dtype=np.float64), 0
    law = places**-exponent  # over the first expert's that is not full
    while choices - full > law.sum():
        full += 1
        law = (places[full:] / places[full]) ** -exponent
    return np.concatenate([np.full(full, 1.0 / choices), law / law.sum() * (1.0 - full / choices)])


def placed_by_index(loads: Sequence[float] | Array, ranks: int) -> float:
    """Load of the busiest of `ranks`, which divide the experts, over the mean: each holds a run of experts [1]."""
    by_rank = np.asarray(loads, dtype=np.float64).reshape(ranks, -1).sum(axis=1)
    return float(by_rank.max() / by_rank.mean())


def trained_balance(experts: int, ranks: int) -> float:
    """Expected load of the busiest of `ranks` over the mean, where training balances by an auxiliary loss [1].

    1 + spread sqrt(ranks / experts) z, z the expected largest of `ranks` standard normals: loads of experts that are
    drawn alike and apart, experts / ranks of which add up on a rank. Validity: 8 to 128 experts; loads of experts that
    follow one another are taken to have nothing to do with each other.
    """
    if ranks == 1:
        return 1.0
    spread = _spread(min(experts, MOST))
    return 1.0 + spread * float(np.sqrt(ranks / experts)) * _largest(ranks)


def _spread(experts: int) -> float:
    """Standard deviation of the experts' loads over their mean [1]."""
    few, many = (FEW_BUSIEST - 1) / _largest(FEW), (MANY_BUSIEST - 1) / _largest(MANY)
    power = np.log(many / few) / np.log(MANY / FEW)
    return float(many * (experts / MANY) ** power)


def _largest(count: int) -> float:
    """Expected largest of `count` standard normal numbers [1]."""
    return NormalDist().inv_cdf((count - _BLOM) / (count + 1 - 2 * _BLOM))
