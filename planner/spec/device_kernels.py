"""Which kernels does a stack have for this model on this device?

Left out: what a user's flags choose among those.
"""

from __future__ import annotations

from planner.spec.accelerator import Accelerator, Architecture
from planner.spec.model import AttentionKind, ModelSpec
from planner.spec.stack import AttentionKernel, Stack


def with_device_kernels(stack: Stack, model: ModelSpec, chip: Accelerator) -> Stack:
    """The stack with unfused attention where it has no fused one for latent attention on Blackwell."""
    latent = any(layer.attention.kind is AttentionKind.MLA for layer in model.layer_kinds)
    missing = not stack.kernels.fused_mla_on_blackwell and chip.architecture is Architecture.BLACKWELL
    if not (latent and missing and stack.kernels.attention is AttentionKernel.FLASH):
        return stack
    kernels = stack.kernels.model_copy(update={"attention": AttentionKernel.FUSED_SOFTMAX})
    return stack.model_copy(update={"kernels": kernels})
