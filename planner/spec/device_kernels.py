"""Which kernels does a stack have for this model on this device?

Left out: what a user's flags choose among those.
"""

from __future__ import annotations

from typing import Final

from planner.errors import UnsupportedError
from planner.spec.accelerator import Accelerator, Architecture
from planner.spec.model import ModelSpec
from planner.spec.stack import Stack
from planner.spec.stack_kinds import AttentionKernel

# compiled by XLA over a torus, or over rings of its own: neither is in the cost model
NOT_MODELLED: Final = (Architecture.TPU, Architecture.TRAINIUM)
WRITTEN_FOR_GPUS: Final = (Architecture.GAUDI, Architecture.CPU)
_FLASH: Final = (AttentionKernel.FLASH, AttentionKernel.FLASH_2)


def with_device_kernels(stack: Stack, model: ModelSpec, chip: Accelerator) -> Stack:
    """The stack with unfused attention where it has no flash kernel. Raises `UnsupportedError`."""
    if chip.architecture in NOT_MODELLED:
        raise UnsupportedError(
            "the cluster must have GPUs, or other devices that planner's stacks run on",
            f"{stack.name} on {chip.name}",
            "choose another cluster: no stack for TPU or Trainium, and no torus of links, is modelled",
        )
    if not _missing_flash(stack, model, chip):
        return stack
    kernels = stack.kernels.model_copy(update={"attention": AttentionKernel.FUSED_SOFTMAX})
    return stack.model_copy(update={"kernels": kernels})


def missing_kernels(stack: Stack, model: ModelSpec, chip: Accelerator) -> tuple[str, ...]:
    """What the stack does without on this device, for the list of what is assumed. `stack`: as its file has it."""
    said = []
    if why := _missing_flash(stack, model, chip):
        said.append(f"attention keeps its scores, only the softmax fused: {why}")
    if chip.architecture in WRITTEN_FOR_GPUS:
        said.append(f"{stack.name} runs on {chip.name} as on a GPU, for which its release was written")
    return tuple(said)


def _missing_flash(stack: Stack, model: ModelSpec, chip: Accelerator) -> str:
    """Why the stack's flash attention does not run here; empty where it does, or where the stack has none.

    Below compute capability 8.0 Transformer Engine turns off FlashAttention and cuDNN's fused attention
    (transformer_engine/pytorch/attention/dot_product_attention/utils.py get_attention_backend). PyTorch's
    memory-efficient kernel, which keeps no scores, runs there too but was never timed: taken as unfused.
    """
    if stack.kernels.attention not in _FLASH:
        return ""
    if chip.architecture is Architecture.VOLTA:
        return "flash kernels need compute capability 8.0 (Ampere) or more"
    latent = model.has_latent_attention
    if latent and chip.architecture is Architecture.BLACKWELL and not stack.kernels.fused_mla_on_blackwell:
        return "this release has no flash kernel for latent attention on Blackwell"
    return ""
