"""What does a training software keep in memory? States, their buffers, and what lies outside the model.

Left out: activations, which its kernels decide (`stack_time.Kernels`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from planner.spec.job import OPTIMIZERS, Optimizer
from planner.spec.precision import Precision
from planner.spec.stack.kinds import StateEngine, StaysGathered
from planner.spec.stack.section import Bytes, Section


class States(Section):
    """Bytes a parameter costs, by part; the optimizer's moments come from the job [bytes/parameter].

    `low_precision_shard`: with parameters sharded, is a low-precision shard kept beside the fp32 one?
    FSDP2 casts on the fly and keeps none.
    """

    engine: StateEngine = StateEngine.CONTIGUOUS
    gradient: float = Field(4.0, ge=0, le=8, description="the gradient between backward pass and update")
    unit_gradient: float = Field(
        2.0, ge=0, le=4, description="TORCH: the gradient of the layer at work, before it is reduced"
    )
    one_unit: bool = Field(
        False, description="TORCH: the whole model is gathered at once (only the root is wrapped)"
    )
    stays_gathered: StaysGathered = Field(
        StaysGathered.NOTHING,
        strict=False,
        description="TORCH: of stage 3, what is not resharded after forward",
    )
    pipeline_accumulates_whole: bool = Field(
        False,
        description="TORCH: under a pipeline, gathered weights and gradients of the width that is reduced stay whole "
        "until the step's last backward pass, after which they are reduced once (torch.distributed.pipelining)",
    )
    microbatches_accumulate_whole: bool = Field(
        False,
        description="TORCH: sharded gradients of a step's micro-batches stay whole, in the width that is reduced, and "
        "are reduced behind the last one; weights are freed as ever (no_sync)",
    )
    fused_weight_gradient: bool = Field(
        True, description="weight gradients are accumulated by the GEMM itself, with no copy of their own"
    )
    gradient_accumulator: float = Field(
        0.0,
        ge=0,
        le=4,
        description="a second gradient: nanotron's in fp32; those in bf16 beside fp32 ones, which DeepSpeed's "
        "BF16_Optimizer zeroes but does not free",
    )
    master: float = Field(4.0, ge=0, le=4)
    pure_bf16: bool = Field(
        False,
        description="moments have the width of bf16 parameters, which have no fp32 masters (torchtitan's full bf16 "
        "training, DeepSpeed's bf16_master_weights_and_grads)",
    )
    shards_matrices: bool = Field(
        False,
        description="Muon's momentum is sharded as Adam's moments are, and a rank gathers the matrix that it "
        "orthogonalises (Moonlight's distributed Muon, arXiv 2502.16982, section 2.3); else Megatron-Core's layer-wise "
        "optimizer deals whole matrices",
    )
    low_precision_shard: bool = True
    dp_buffer: float = Field(0.0, ge=0, le=4, description="reduction buffer per parameter when dp > 1")
    late_gradient: float = Field(
        0.0,
        ge=0,
        le=4,
        description="CONTIGUOUS: gradients of a micro-batch that grow through its backward pass and are freed after it",
    )
    gather_copy: float = Field(
        0.0, ge=0, le=4, description="copy of the parameters while updated shards are gathered (zero 1 and 2)"
    )
    fp8_param_gather: tuple[Precision, ...] | None = Field(
        None,
        description="recipes whose linear weights are kept and gathered in 8 bits (Megatron --fp8-param-gather), the "
        "others keep 8-bit copies beside 16-bit weights; absent: not known, 16 bits alone are counted",
    )
    float8_all_gather: bool = Field(
        False,
        description="TORCH: linear weights of a dense fp8 model are cast before they are gathered (torchao's "
        "enable_fsdp_float8_all_gather)",
    )
    fp4_param_gather: bool = Field(
        False,
        description="nvfp4 keeps and gathers linear weights in 4 bits (Megatron --fp4-param-gather), instead of 4-bit "
        "copies beside 16-bit weights; counted where `fp8_param_gather` is stated",
    )
    prefetch_layers: int = Field(2, ge=1, le=8, description="gathered layers alive at once under ZeRO-3")
    fp16_gradients: bool = Field(
        False,
        description="fp16 jobs keep and reduce gradients in 16 bits; the update copies a rank's share to fp32",
    )
    optimizer_transient: float = Field(
        0.0, ge=0, le=8, description="per locally updated parameter during the step"
    )
    step_extra: float = Field(
        0.0,
        ge=0,
        le=96,
        description="device memory moved by an update beside the optimizer's own: norm, clipping, casts [bytes per "
        "locally updated parameter]",
    )
    host_bytes: float = Field(
        0.0,
        ge=0,
        le=16,
        description="copied over the host's link for an update there: the gradient out, the weight back [bytes per "
        "locally updated parameter]; 0: each as wide as the device has it (Megatron-LM d98e8a6 core/optimizer/"
        "cpu_offloading/hybrid_optimizer.py)",
    )
    host_extra: float = Field(
        0.0,
        ge=0,
        le=32,
        description="host memory moved by such an update beside the optimizer's own [bytes per parameter]",
    )
    step_tensors: float = Field(
        0.0,
        ge=0,
        le=8,
        description="tensors alive in an update of one parameter after the other, the last one of the parameter before "
        "(AdamW with foreach=False: 3; 0: no such temporaries)",
    )
    communication_elements: float = Field(
        0.0,
        ge=0,
        description="MEGATRON_FSDP: --suggested-communication-unit-size [elements]; 0: two layers, 1e9 at least",
    )
    double_buffer: bool = Field(False, description="MEGATRON_FSDP: --fsdp-double-buffer")
    bucket_elements: float = Field(0.0, ge=0, description="DEEPSPEED: reduce_bucket_size [elements]")
    prefetch_elements: float = Field(
        0.0, ge=0, description="DEEPSPEED: stage3_prefetch_bucket_size [elements]"
    )
    live_parameters: float = Field(
        0.0, ge=0, description="DEEPSPEED: stage3_max_live_parameters [parameters]"
    )
    reuse_distance: float = Field(0.0, ge=0, description="DEEPSPEED: stage3_max_reuse_distance [parameters]")
    persistent_elements: float = Field(
        1e5,
        ge=0,
        description="DEEPSPEED: stage3_param_persistence_threshold; smaller parameters stay gathered [elements]",
    )

    def accumulates_whole(self, pp: NDArray[np.int32], zero: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Where sharded gradients wait whole for the last micro-batch: rows of these degrees and ZeRO stages (n,)."""
        return (pp > 1) & (zero >= 2) & self.pipeline_accumulates_whole

    def reduces_last(self, zero: NDArray[np.int32], microbatches: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Where sharded gradients wait whole for the last of several micro-batches, and weights do not (n,)."""
        return (microbatches > 1) & (zero >= 2) & self.microbatches_accumulate_whole

    def moment_bytes(self, optimizer: Optimizer) -> float:
        """An optimizer's states beside the master weight: torch makes them in the width of parameters, unless the
        optimizer fixes its own [bytes/parameter]."""
        own = optimizer in (Optimizer.ADAMW_BF16, Optimizer.ADAMW_8BIT)
        return OPTIMIZERS[optimizer].moment_bytes / (2.0 if self.pure_bf16 and not own else 1.0)

    def shard_width(self, weight_bytes: float) -> float:
        """Bytes of a parameter as it lies in shards, between steps: of the fp32 one where no other is kept; 16-bit ones
        are made of it when they are gathered."""
        return weight_bytes if self.low_precision_shard or not self.master else self.master

    def step_bytes(self, optimizer: Optimizer) -> float:
        """Memory traffic of an update; in pure bf16 gradients are read, weights and moments read and written, in 2
        bytes each [bytes/parameter]."""
        narrow = 2.0 + 2.0 * (2.0 + self.moment_bytes(optimizer))
        return narrow if self.pure_bf16 else OPTIMIZERS[optimizer].step_bytes

    def casts_for_gathers(self, precision: Precision) -> bool:
        """Are shards of linear weights cast to 8 bits before they are gathered? With a scale a tensor."""
        return self.float8_all_gather and self.engine is StateEngine.TORCH and precision is Precision.FP8_CS

    def keeps_narrow(self, precision: Precision, optimizer: Optimizer) -> bool:
        """Are linear weights kept in the format of the products, where masters are sharded apart from them?

        In 4 bits they need masters outside the optimizer: one that holds them itself, as it does to keep moments in 16
        bits, has no 4-bit parameters (Megatron-LM d98e8a6, core/optimizer/distrib_optimizer.py
        _build_model_and_main_param_groups, optimizer_config.py use_precision_aware_optimizer_no_fp8_or_ds_fp8). Of
        Muon, whose masters are apart from either (core/optimizer/layer_wise_optimizer.py), no run of it is known.
        """
        if optimizer is Optimizer.MUON:
            return False
        if precision is Precision.NVFP4:
            return self.fp4_param_gather and optimizer is not Optimizer.ADAMW_BF16
        return precision in (self.fp8_param_gather or ())


class Overhead(Section):
    """Memory outside the model: what the device's tools show beside the allocator [bytes], [1]."""

    context: Bytes = Field(0.75 * 2**30, ge=0)
    workspace: Bytes = Field(0.25 * 2**30, ge=0)
    fragmentation: float = Field(
        0.03, ge=0, le=0.5, description="share of dynamic memory the allocator wastes"
    )
    logs_reserved: bool = Field(False, description="the stack logs reserved, not allocated, memory")
    logs_fragmentation: bool = Field(
        True,
        description="reserved memory shows `fragmentation`; false where idle blocks are counted one by one, so that it "
        "tells only what cannot be used once they are returned",
    )
    logs_first_stage: bool = Field(False, description="the stack logs the memory of the first pipeline stage")
    error: float = Field(
        0.06, ge=0, le=0.5, description="measured memory error: half the width of 'borderline'"
    )
