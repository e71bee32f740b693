"""Which well-known model types does planner refuse, and why? Unknown ones are refused too, without a reason.

Left out: types that nobody trains at scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from planner.spec.hf.load_tables import load_tables


@cache
def refused() -> Mapping[str, str]:
    """The reason of every refused model_type; `instead`: what planner models of that kind."""
    held = load_tables("refused")
    reasons: dict[str, str] = {}
    for row in held["refused"]:
        why = "; ".join((row["why"], held["instead"][row["instead"]])) if "instead" in row else row["why"]
        reasons |= dict.fromkeys(row["types"], why)
    return reasons
