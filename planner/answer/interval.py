"""Within how much of its prediction do four of five steps lie? The errors of a step's parts, as those of a sum.

Left out: what a stack's own band has earned (`spec/stack/`), and what widens it on a question (`reasons.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from planner.cost.layer_cost import COMMUNICATION as OF_LAYERS
from planner.spec.stack import WIDEST_BAND

# terms of a step that are communication
COMMUNICATION: Final = (*OF_LAYERS, "pp_comm", "dp_comm")

# Widths that hold 80 % of the logs of such seconds, by what differs from one machine to another: hosts (a processor's
# speed, what else runs there), fabrics, and both where states live on hosts. Round numbers, chosen so that intervals
# of others' steps hold 80 % of these, publishers weighing the same, and about as many of each kind of step
# (`python -m benchmarks.rounds`; benchmarks/RESULTS.md, "Judged again", has halves of publishers left out).
UNCERTAIN: Final[tuple[tuple[float, tuple[str, ...]], ...]] = (
    (1.0, ("host_bound",)),
    (1.0, COMMUNICATION),
    (2.0, ("host_transfer",)),
)


def step_band(band: float, time: Mapping[str, float]) -> float:
    """The band of a step whose parts take `time` (term -> seconds): 80 % lie within step / (1 + it) to step x (1 + it).

    `band`: of a step that is kernels alone [1]. A part's error moves the step by the part's share; the errors of
    kernels, hosts, fabrics and copies have nothing to do with each other, so that their squares add, in logs.
    """
    moved = (width * sum(_share(time, name) for name in names) for width, names in UNCERTAIN)
    return min(math.expm1(math.hypot(math.log1p(band), *moved)), WIDEST_BAND)


def uncertain_shares(time: Mapping[str, float]) -> dict[str, float]:
    """Shares of a step of its uncertain parts, those above 2 %, the largest first [1]."""
    found = {name: _share(time, name) for _, names in UNCERTAIN for name in names}
    return {name: share for name, share in sorted(found.items(), key=lambda one: -one[1]) if share > 0.02}


def _share(time: Mapping[str, float], name: str) -> float:
    whole = sum(time.values())
    return time.get(name, 0.0) / whole if whole else 0.0
