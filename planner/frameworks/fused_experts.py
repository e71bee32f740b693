"""Experts whose grouped products apply the activation and quantise what they write: what asks for them, and where?

Transformer Engine's operation fuser, in MXFP8 on Blackwell. Sources: Megatron-Core 0.18.2 and main of 2026-08,
core/transformer/moe/experts.py _is_fused_impl_supported; Megatron-Bridge 067f987, performance/utils/overrides.py.
Left out: what fusing saves (`cost/device/rates.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from planner.catalog.stack_options import FUSED_EXPERTS, PAGED_STASH
from planner.errors import UnsupportedError
from planner.frameworks.framework import Launch, StackSetting
from planner.spec.precision import Precision
from planner.spec.rule import Rule

# rows of both projections of a gated expert lie in turns of so many; the kernels read no other order
INTERLEAVE: Final = 32
VARIABLE: Final = "NVTE_CUTEDSL_FUSED_GROUPED_MLP"
WITHOUT: Final = ("0.16.1",)
# before main, of which no release of Megatron-Bridge is, a buffer of one size needs the fuser
_GROUPED_TENSOR: Final = "main-2026-08"
CAPACITY: Final = "moe_expert_rank_capacity_factor"
PADDED_TO: Final = "moe_expert_capacity_factor"
PADS: Final = "moe_pad_expert_input_to_capacity"
STASH: Final = "moe_paged_stash"
STASHED: Final = "moe_paged_stash_buffer_size_factor_cuda"
STASHED_ON_HOST: Final = "moe_paged_stash_buffer_size_factor_cpu"
DEFAULT_STASH: Final = 1.1  # Megatron-LM d98e8a6 core/transformer/transformer_config.py


def fuses_experts(launch: Launch) -> bool:
    """Does the prediction rely on fused experts?"""
    stack, narrow = launch.stack_of("megatron"), launch.job.precision is Precision.FP8_MX
    return stack is not None and stack.kernels.fused_experts and narrow and launch.model.fusable_experts


def check_release(launch: Launch, version: str) -> None:
    """Raise `UnsupportedError` for a release of Megatron-LM that fuses no experts."""
    if fuses_experts(launch) and version in WITHOUT:
        must = (
            f"Megatron-LM must fuse experts with their GEMMs, as +{FUSED_EXPERTS} says; it does from 0.18 on"
        )
        raise UnsupportedError(must, version, "choose --framework-version 0.18.2")


def capacity_fields(launch: Launch) -> dict[str, Any]:
    """Fields of TransformerConfig for experts that HybridEP sends rows in buffers of one size, as the plan counts them;
    what the pages on the device do not hold goes to the host. Empty for others."""
    stack = launch.stack_of("megatron")
    if stack is None or stack.kernels.expert_buffers is None:
        return {}
    received, kept = stack.kernels.expert_buffers
    fields: dict[str, Any] = {CAPACITY: received}
    if kept != received:
        fields |= {STASH: True, STASHED: kept, STASHED_ON_HOST: 1.0}
    return fields if fuses_experts(launch) else {**fields, "moe_use_grouped_tensor": True}


def capacity_options(launch: Launch, version: str) -> list[tuple[str, ...]]:
    """`capacity_fields` as arguments. Raises `UnsupportedError` for a release without what they need."""
    if version != _GROUPED_TENSOR:
        require_fuser(launch, f"Megatron-LM {version}", f"choose --framework-version {_GROUPED_TENSOR}")
    return as_options(capacity_fields(launch))


def require_fuser(launch: Launch, title: str, instead: str) -> None:
    """Raise `UnsupportedError` for buffers of one size without fused experts, where those need them."""
    if capacity_fields(launch) and not fuses_experts(launch):
        must = f"{title} must fuse experts (+{FUSED_EXPERTS}, fp8_mx) to receive them in one size"
        hint = f"{instead}, or leave +{PAGED_STASH} out of the stack"
        raise UnsupportedError(must, f"+{PAGED_STASH}", hint)


def as_options(fields: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Fields as arguments of Megatron-LM."""
    named = {"--" + name.replace("_", "-"): value for name, value in fields.items()}
    return [(name,) if value is True else (name, f"{value:g}") for name, value in named.items()]


def padding_fields(launch: Launch) -> dict[str, Any]:
    """Fields of TransformerConfig for experts that are padded each to one capacity, as the plan counts them."""
    stack = launch.stack_of("megatron")
    factor = stack.kernels.expert_padding if stack is not None else 0.0
    return {PADDED_TO: factor, PADS: True} if factor else {}


def padding_said(factor: float, pads: bool) -> tuple[StackSetting, ...]:
    """What files say of experts padded to one capacity; a factor of 0 or less is none (transformer_config.py)."""
    if not (pads and factor > 0):
        return ()
    return (StackSetting(PADDED_TO, "kernels", "expert_padding", factor),)


def capacity_said(number: Callable[[str], float], stashes: bool) -> tuple[StackSetting, ...]:
    """What files say of buffers of one size; `number`: the value of a field, 0 where it is not set.

    A negative factor of the stash counts from the most rows seen, which planner does not know: as if of balanced ones.
    """
    capacity = number(CAPACITY)
    if not capacity:
        return ()
    stash = (abs(number(STASHED)) or DEFAULT_STASH) if stashes else capacity
    names = f"{CAPACITY} and {STASHED}" if stashes else CAPACITY
    return (StackSetting(names, "kernels", "expert_buffers", (capacity, stash)),)


FUSED_EXPERT_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "fused-experts-etp", ("etp",), lambda c, p: np.asarray((c["etp"] == 1) | (not p.stack.kernels.fused_experts)),
        f"experts that are fused with their GEMMs (+{FUSED_EXPERTS}) are whole on every rank",
        "set etp=1", "Megatron-Core moe/experts.py _is_fused_impl_supported", told=("etp",),
    ),
)  # fmt: skip
