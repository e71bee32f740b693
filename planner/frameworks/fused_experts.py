"""Experts whose grouped products apply the activation and quantise what they write: what asks for them, and where?

Transformer Engine's operation fuser, in MXFP8 on Blackwell. Sources: Megatron-Core 0.18.2 and main of 2026-08,
core/transformer/moe/experts.py _is_fused_impl_supported; Megatron-Bridge 067f987, performance/utils/overrides.py.
Left out: what fusing saves (`cost/device/rates.py`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.catalog.stack_options import FUSED_EXPERTS
from planner.errors import UnsupportedError
from planner.frameworks.framework import Launch
from planner.spec.precision import Precision
from planner.spec.rule import Rule

# rows of both projections of a gated expert lie in turns of so many; the kernels read no other order
INTERLEAVE: Final = 32
VARIABLE: Final = "NVTE_CUTEDSL_FUSED_GROUPED_MLP"
WITHOUT: Final = ("0.16.1",)


def fuses_experts(launch: Launch) -> bool:
    """Does the prediction rely on fused experts?"""
    stack, narrow = launch.stack_of("megatron"), launch.job.precision is Precision.FP8_MX
    return stack is not None and stack.kernels.fused_experts and narrow and launch.model.fusable_experts


def check_release(launch: Launch, version: str) -> None:
    """Raise `UnsupportedError` for a release of Megatron-LM that fuses no experts."""
    if fuses_experts(launch) and version in WITHOUT:
        must = f"Megatron-LM must fuse experts with their products, as +{FUSED_EXPERTS} says; it does from 0.18 on"
        raise UnsupportedError(must, version, "choose --framework-version 0.18.2")


FUSED_EXPERT_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "fused-experts-etp", ("etp",), lambda c, p: np.asarray((c["etp"] == 1) | (not p.stack.kernels.fused_experts)),
        f"experts that are fused with their products (+{FUSED_EXPERTS}) are whole on every rank; etp={{etp}}",
        "set etp=1", "Megatron-Core moe/experts.py _is_fused_impl_supported",
    ),
)  # fmt: skip
