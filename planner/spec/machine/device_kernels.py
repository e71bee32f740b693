"""Which kernels does a stack have for this model on this device?

Left out: what a user's flags choose among those.
"""

from __future__ import annotations

from typing import Final

from planner.errors import UnsupportedError
from planner.spec.findings import Finding, finding
from planner.spec.machine.accelerator import Accelerator, Architecture
from planner.spec.machine.compiled_devices import as_compiled, said_of_compiled
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.stack import Stack
from planner.spec.stack.kinds import AttentionKernel
from planner.spec.stack.layer_code import Library
from planner.spec.stack.losses import Compiled, Fused, InPlace
from planner.spec.stack.time import FLASH_WIDTH

WRITTEN_FOR_GPUS: Final = (Architecture.GAUDI, Architecture.CPU)
TRANSFORMER_ENGINE: Final = ("megatron",)
# cuDNN before 9.11 has no backward pass of 192 and 128 wide heads on Blackwell (TransformerEngine, fused_attn.cpp)
_CUDNN_WITH_LATENT: Final = "2025-07"
_HAS_MXFP8: Final = 10
_NO_MXFP8: Final = 12  # major compute capability, as of RTX PRO 6000 and RTX 5090
# what Transformer Engine lacks there for a recipe
_WORKSTATION_LACKS: Final = {
    Precision.FP8_MX: "not all of whose layouts of products it multiplies",
    Precision.NVFP4: "where the stochastic rounding of its recipe does not run",
}
# programs of transformers take one kernel for all layers
_ONE_KERNEL: Final = ("deepspeed", "fsdp", "transformers")


def with_device_kernels(stack: Stack, model: ModelSpec, chip: Accelerator, precision: Precision) -> Stack:
    """The stack with unfused attention where it has no flash kernel, and the gradients it has in that precision; as
    `spec.machine.compiled_devices` has it where its steps are compiled to one program.

    Raises `UnsupportedError`.
    """
    stack = stack.for_precision(precision)
    if chip.architecture.is_compiled_for:
        return with_wide_heads(as_compiled(stack, chip), model)
    if _missing_flash(stack, model, chip, precision):
        return _with_attention(stack, AttentionKernel.FUSED_SOFTMAX)
    return with_wide_heads(stack, model)


def with_wide_heads(stack: Stack, model: ModelSpec) -> Stack:
    """The stack with a kernel that takes the model's widest heads, where it has one kernel for all layers."""
    if _too_wide(stack, model) and stack.framework in _ONE_KERNEL:
        return _with_attention(stack, AttentionKernel.MEMORY_EFFICIENT)
    return stack


def _with_attention(stack: Stack, kernel: AttentionKernel) -> Stack:
    kernels = stack.kernels.model_copy(update={"attention": kernel})
    return stack.model_copy(update={"kernels": kernels})


def require_recipe(stack: Stack, chip: Accelerator, precision: Precision) -> None:
    """Raise `UnsupportedError` for a recipe that the device does not multiply in, or not with the stack's library.

    Transformer Engine multiplies with MXFP8's scales from compute capability 10.0 on and refuses 12.0 on, not all of
    whose layouts of products it has (d0067d0 transformer_engine/pytorch/quantization.py _compute_mxfp8_support); the
    recipe of NVFP4, which rounds stochastically, ends there in an error (8e24e1a docs/support_matrix.rst).
    """
    lacks = _WORKSTATION_LACKS.get(precision) if stack.framework in TRANSFORMER_ENGINE else None
    if lacks and chip.compute_major >= _NO_MXFP8:
        must = f"Transformer Engine must multiply with scales of {precision} on {chip.name}"
        given = f"compute capability {chip.compute_capability}, {lacks}"
        raise UnsupportedError(
            must, given, "choose another precision, as fp8_cs or bf16, or an accelerator such as b200"
        )
    chip.require(precision)


def emulates_blocks(stack: Stack, chip: Accelerator, precision: Precision) -> bool:
    """Are products with scales by block those of MXFP8? In Transformer Engine on compute capability 10.0 and later, by
    its docs/features/low_precision_training/fp8_blockwise_scaling, which prefer MXFP8 there."""
    engine = stack.framework in TRANSFORMER_ENGINE
    return engine and precision is Precision.FP8_BLOCKWISE and chip.compute_major >= _HAS_MXFP8


def missing_kernels(
    stack: Stack, model: ModelSpec, chip: Accelerator, precision: Precision
) -> tuple[Finding, ...]:
    """What the stack does without on this device, for the list of what is assumed. `stack`: as its file has it."""
    said = [*said_of_compiled(stack, chip)] if chip.architecture.is_compiled_for else []
    if why := _missing_flash(stack, model, chip, precision):
        said.append(finding("no_flash_attention", why=why))
    elif widest := _too_wide(stack, model):
        one_kernel = stack.framework in _ONE_KERNEL
        said.append(finding("wide_heads", most=FLASH_WIDTH, width=widest, one_kernel=one_kernel))
    if emulates_blocks(stack, chip, precision):
        emulated = {"precision": str(precision), "accelerator": chip.name}
        said.append(finding("emulated_blocks", **emulated, prefers_mx=chip.compute_major < _NO_MXFP8))
    if chip.architecture in WRITTEN_FOR_GPUS:
        said.append(finding("written_for_gpus", stack=stack.name, accelerator=chip.name))
    if isinstance(stack.kernels.loss, Fused | InPlace | Compiled):
        said.append(finding("fused_loss"))
    deepep = model.is_moe and stack.communication.dispatcher.is_deepep
    if deepep and not chip.architecture.is_nvidia:
        said.append(finding("deepep_of_primus", accelerator=chip.name))
    return tuple(said)


def _missing_flash(stack: Stack, model: ModelSpec, chip: Accelerator, precision: Precision) -> str:
    """What the stack's flash attention lacks here; empty where it does, or where the stack has none.

    Below compute capability 8.0 Transformer Engine turns off FlashAttention and cuDNN's fused attention
    (transformer_engine/pytorch/attention/dot_product_attention/utils.py get_attention_backend). PyTorch's
    memory-efficient kernel, which keeps no scores, runs there too but was never timed: taken as unfused. It drops both
    in fp32 too (@d0067d0, lines 599 to 645), where its softmax is PyTorch's: six passes over the scores, 24 bytes, of
    which a fused one's four are counted; a softmax longer than its kernel takes is counted as 48 bytes.
    """
    if not stack.kernels.attention.is_flash:
        return ""
    if chip.architecture in (Architecture.VOLTA, Architecture.TURING):
        return "capability"
    if precision is Precision.FP32 and stack.framework in TRANSFORMER_ENGINE:
        return "fp32"
    engine = stack.framework in TRANSFORMER_ENGINE and isinstance(stack.kernels.code, Library)
    older = engine and stack.released < _CUDNN_WITH_LATENT
    if model.has_latent_attention and chip.architecture is Architecture.BLACKWELL and older:
        return "latent"
    return ""


def _too_wide(stack: Stack, model: ModelSpec) -> int:
    """The widest head, where the stack's flash attention does not take it; else 0."""
    widest = max((max(a.head_dim, a.v_head_dim) for a in model.attentions if not a.sparse), default=0)
    return widest if stack.kernels.attention.is_flash and widest > FLASH_WIDTH else 0
