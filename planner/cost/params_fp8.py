"""What does a weight in 8 or 4 bits cost a rank, and what does its all-gather send, by recipe?

Megatron-LM's --fp8-param-gather and --fp4-param-gather keep linear weights in the format of the products; without them
they stay in 16 bits beside the 8- or 4-bit copies that Transformer Engine makes once a step. Embeddings, head, norms
and router are never in so few. FSDP2 with torchao keeps them wide and casts its shards for every gather. Left out:
amax histories (4 KiB a weight), the casts' time, torchao's copy of a weight along its columns in the backward pass, and
what a cast to 4 bits holds while it runs: the largest value and the scale of every 16 x 16 block in fp32, 1/32 of a
byte a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.spec.config import OFFLOAD_OPTIMIZER
from planner.spec.machine.accelerator import Accelerator
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from planner.spec.stack.kinds import Float8Scales

Array = NDArray[np.float64]

WIDE: Final = 2.0  # bytes of a weight in 16 bits
# Scales beside each of two copies: e8m0 per 32 values; fp32 per 128 x 128.
MX_SCALE: Final = 1 / 32
BLOCK_SCALE: Final = 4 / 128**2
NVFP4: Final = 1 / 2 + 1 / 16  # two values in a byte, and e4m3 per 16 of them
# The gather sends values alone: ranks agree on scales before, by an all-reduce of fp32 maxima of 16 x 16 blocks, whose
# bytes travel twice where a gather's travel once.
NVFP4_SENT: Final = 1 / 2 + 2 * 4 / 16**2


@dataclass(frozen=True)
class NarrowWeights:
    """Of one linear weight of a recipe.

    `copies`: bytes of what products read, both orientations and scales. `main`: of these, the copy that is the
    parameter where it is kept so narrow. `gathered`: bytes that the all-gather after the update then sends.
    `gathers`: whether the stack keeps parameters so. `on_host`: may the optimizer's states be offloaded with it?
    `two_shards`: both orientations are sharded where parameters are. `cast`: made of wide shards for every gather, so
    that none is kept.
    """

    copies: float
    main: float
    gathered: float
    gathers: bool
    on_host: bool
    two_shards: bool = False
    cast: bool = False

    def primary(self, zero: Array, offload: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Where parameters are kept in 8 or 4 bits: the distributed optimizer holds their fp32 masters, as
        training/arguments.py asserts, and delayed scaling where that optimizer is on the host."""
        held = (zero >= 1) & ((offload & OFFLOAD_OPTIMIZER == 0) | self.on_host)
        return np.asarray(held & self.gathers)

    def kept(self, zero: Array, offload: NDArray[np.int32]) -> tuple[Array, Array]:
        """Bytes of the parameter itself, and of the copies beside it, (n,) each [bytes/parameter]."""
        primary = self.primary(zero, offload)
        return np.where(primary, self.main, WIDE), np.where(primary, self.copies - self.main, self.copies)


def gathered_width(
    weights: NarrowWeights, zero: Array, offload: NDArray[np.int32], wide: Array
) -> Array:  # fmt: skip
    """Bytes of a weight in a layer that is gathered for its backward pass (n, C) [bytes/parameter].

    `wide` (n, C): parameters of layers kept in 16 bits. A stage that holds any counts them all so: an upper bound,
    which its other layers stay below.
    """
    each = weights.main if weights.two_shards else weights.copies
    return np.where(weights.primary(zero, offload)[:, None] & (wide == 0), each, WIDE)


def reads_transposed(accelerator: Accelerator) -> bool:
    """Do 8-bit products need a transposed copy of a weight for the input's gradient?

    Not where they read either layout: compute capability 10, 11 and 13 on, datacenter Blackwell among them
    (Transformer Engine, pytorch/utils.py is_non_tn_fp8_gemm_supported).
    """
    return not (10 <= accelerator.compute_major < 12 or accelerator.compute_major >= 13)


def gathers_float8(problem: Problem) -> bool:
    """Does FSDP2 cast linear weights before it gathers them? With one scale a tensor, and every linear weight but the
    head one of torchao's: experts, most of a mixture of them, are none and stay wide (torchao float8/fsdp_utils.py
    WeightWithDynamicFloat8CastTensor.fsdp_pre_all_gather; torchtitan 0.2.2 components/quantization/float8.py)."""
    rows = problem.stack.kernels.float8_scales is Float8Scales.ROW
    trained = problem.job.lora_rank is None and not problem.model.is_moe and not rows
    return trained and problem.stack.engine.casts_for_gathers(problem.job.precision)


def narrow_weights(problem: Problem) -> NarrowWeights | None:
    """The recipe's 8- or 4-bit weights; None where it has none, the stack does not say, or weights are frozen.

    Delayed and per-tensor scaling: 1 byte, and 1 transposed where products need it; gathered as 1 byte. Blocks of
    128 x 128: both orientations, gathered as 1. MXFP8: both orientations with their scales, since a transposed copy
    has other blocks; its parameters are gathered in bf16 through the gradient buffer
    (--reuse-grad-buf-for-mxfp8-param-ag) and cast after it, but under Megatron-FSDP, whose passes gather the
    orientation that they read. NVFP4: both orientations, each with its scales; kept so, rows are the parameter, lie in
    the gathered buffer and are transposed after it, and masters must lie outside the optimizer: a precision-aware one
    (16-bit moments) has none of 4-bit parameters, and Megatron-FSDP's buffers hold a byte a value. Sources: Transformer
    Engine pytorch/tensor/utils.py replace_raw_data, post_all_gather_processing, _cast_master_weights_to_nvfp4_2d,
    pytorch/tensor/nvfp4_tensor.py inner_tensor_specs and pytorch/module/base.py quantize_weight (a cached workspace per
    weight); Megatron-LM core/distributed/param_and_grad_buffer.py, core/optimizer/distrib_optimizer.py
    _build_model_and_main_param_groups.
    """
    job = problem.job
    if gathers_float8(problem):
        return NarrowWeights(1.0, 1.0, 1.0, True, False, cast=True)
    if not problem.stack.engine.states_narrow() or job.lora_rank is not None:
        return None
    gathers = problem.stack.engine.keeps_narrow(job.precision, job.optimizer)
    delayed = job.precision is Precision.FP8
    if job.precision in (Precision.FP8, Precision.FP8_CS):
        copies = 2.0 if reads_transposed(problem.cluster.accelerator) else 1.0
        return NarrowWeights(copies, 1.0, 1.0, gathers, delayed)
    if job.precision is Precision.FP8_BLOCKWISE:
        return NarrowWeights(2 * (1 + BLOCK_SCALE), 1 + BLOCK_SCALE, 1.0, gathers, False)
    if job.precision is Precision.FP8_MX:
        sent = 1 + MX_SCALE if problem.stack.engine.gathers_as_read else WIDE
        return NarrowWeights(2 * (1 + MX_SCALE), 1 + MX_SCALE, sent, gathers, False, two_shards=True)
    if job.precision is Precision.NVFP4:
        return NarrowWeights(2 * NVFP4, NVFP4, NVFP4_SENT, gathers, False)
    return None


def beyond_wide(
    weights: NarrowWeights, offload: NDArray[np.int32], zero: Array, parts: Sequence[tuple[Array, Array]]
) -> tuple[Array, Array]:
    """What parameters take beyond 16 bits each (below 0 for those in fewer), and their copies, (n, C) each [bytes].

    `parts`: linear weights of a rank (n, C) and the ranks that share them at ZeRO 3 (n,). What is sharded is sharded
    in 8 bits too, MXFP8 in both orientations; other transposed copies are then made of gathered layers and dropped
    (Megatron-FSDP's keep_fp8_transpose_cache is off), and a workspace of 16-bit weights is never sharded.
    """
    primary, main, copies = weights.primary(zero, offload), *weights.kept(zero, offload)
    sharded = zero >= 3
    dropped = primary & sharded & (not weights.two_shards)
    beyond, beside = np.zeros_like(parts[0][0]), np.zeros_like(parts[0][0])
    for size, ranks in parts:
        share = np.where(sharded, 1.0 / ranks, 1.0)
        beyond = beyond + (share * (main - WIDE))[:, None] * size
        beside = beside + (np.where(primary, share, 1.0) * np.where(dropped, 0.0, copies))[:, None] * size
    return beyond, beside
