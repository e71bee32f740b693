"""What does the mixer of a layer cost that has no attention? Each kind's own equations, chosen here.

Left out: its projections, which are products like others (`cost/flops.py`).
"""

from __future__ import annotations

from planner.cost.mixers import delta_rule, lightning, short_convolution, state_space
from planner.cost.mixers.state_space import Cut, Quantity
from planner.spec.mixers import DeltaNet, LightningAttention, ShortConvolution, StateSpace


def mixer_time(
    s: StateSpace, c: Cut, act: float, interleaved: Quantity, seq: Quantity, bandwidth: float, peak: float,
    fused: bool,
) -> tuple[Quantity, Quantity]:  # fmt: skip
    """Forward and backward seconds between the projections [s]. `fused`: are chains of operations one kernel?"""
    if isinstance(s, DeltaNet):
        return delta_rule.rule_time(s, c, act, interleaved, seq, bandwidth, peak, fused)
    if isinstance(s, LightningAttention):
        return lightning.block_time(s, c, act, interleaved, seq, bandwidth, peak, fused)
    if isinstance(s, ShortConvolution):
        return short_convolution.convolution_time(c, act, interleaved, bandwidth, fused)
    return state_space.scan_time(s, c, act, interleaved, bandwidth, peak)


def kept_parts(s: StateSpace, c: Cut, act: float, saved: float, fused: bool) -> dict[str, Quantity]:
    """What is kept between the projections, and of the last one's input, `saved` bytes a value of it [bytes]."""
    if isinstance(s, DeltaNet):
        return delta_rule.kept_parts(s, c, act, saved, fused)
    if isinstance(s, LightningAttention):
        return lightning.kept_parts(s, c, act, saved, fused)
    if isinstance(s, ShortConvolution):
        return short_convolution.kept_parts(c, act, saved)
    return state_space.kept_parts(s, c, act, saved)


def working_bytes(s: StateSpace, c: Cut, act: float) -> Quantity:
    """Alive at the widest point of the backward pass, beside what is kept [bytes]."""
    if isinstance(s, DeltaNet):
        return delta_rule.working_bytes(s, c, act)
    if isinstance(s, LightningAttention):
        return lightning.working_bytes(s, c, act)
    if isinstance(s, ShortConvolution):
        return short_convolution.working_bytes(c, act)
    return state_space.working_bytes(s, c, act)


def launches(s: StateSpace, seq: float, single: bool) -> float:
    """Forward launches of a layer over sequences of `seq` tokens, its projections among them; `single`: operation by
    operation [1]."""
    if isinstance(s, LightningAttention):
        return lightning.launches(s, seq, single)
    if isinstance(s, ShortConvolution):
        return short_convolution.LAUNCHES[single]
    return delta_rule.launches(s, single) if isinstance(s, DeltaNet) else state_space.launches(s, single)
