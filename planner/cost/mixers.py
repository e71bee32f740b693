"""What does the mixer of a layer cost that has no attention? Each kind's own equations, chosen here.

Left out: its projections, which are products like others (`cost/flops.py`).
"""

from __future__ import annotations

from planner.cost import delta_rule, state_space
from planner.cost.state_space import Cut, Quantity
from planner.spec.model import DeltaNet, StateSpace


def mixer_time(
    s: StateSpace, c: Cut, act: float, interleaved: Quantity, seq: Quantity, bandwidth: float, peak: float,
    fused: bool,
) -> tuple[Quantity, Quantity]:  # fmt: skip
    """Forward and backward seconds between the projections [s]. `fused`: are chains of operations one kernel?"""
    if isinstance(s, DeltaNet):
        return delta_rule.rule_time(s, c, act, interleaved, seq, bandwidth, peak, fused)
    return state_space.scan_time(s, c, act, interleaved, bandwidth, peak)


def kept_parts(s: StateSpace, c: Cut, act: float, saved: float, fused: bool) -> dict[str, Quantity]:
    """What is kept between the projections, and of the last one's input, `saved` bytes a value of it [bytes]."""
    if isinstance(s, DeltaNet):
        return delta_rule.kept_parts(s, c, act, saved, fused)
    return state_space.kept_parts(c, act, saved)


def working_bytes(s: StateSpace, c: Cut, act: float) -> Quantity:
    """Alive at the widest point of the backward pass, beside what is kept [bytes]."""
    if isinstance(s, DeltaNet):
        return delta_rule.working_bytes(s, c, act)
    return state_space.working_bytes(s, c, act)


def launches(s: StateSpace) -> float:
    """Forward launches of a layer, its projections among them [1]."""
    return delta_rule.launches(s) if isinstance(s, DeltaNet) else state_space.LAUNCHES
