"""What does the engine that holds weights, gradients and optimizer states do? A section of its own for each kind.

A section has the settings of its kind alone; what follows from the kind itself stands in its class. Left out: what
either does to memory and time (`cost/engines/`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from planner.spec.job import OPTIMIZERS, Optimizer
from planner.spec.precision import Precision
from planner.spec.stack.kinds import FlatParameters, StaysGathered, TorchPipelining, UpdateKernel
from planner.spec.stack.section import Seconds, Section, of_a_kind

Rows = NDArray[np.int32]
HALF: Final = 2.0  # bytes of a value in 16 bits
FP32: Final = 4.0
IN_LAYERS: Final = (
    0.9  # of Megatron's layers, what hides gathers of weights and copies to the host: a start value
)


class EngineKind(StrEnum):
    """Who holds parameters and gradients, and when.

    CONTIGUOUS: weights and a gradient buffer live from start to end (Megatron-LM). MEGATRON_2022: so they do in its
    releases of 2021 and 2022, and in Megatron-DeepSpeed, where gradients of fp16 jobs stay in 16 bits. PROFILED: of
    these profiles of layers, summed (vTrain). ALL_REDUCED: so they do, gradients are summed whole and updated
    weights handed on (AA-Scaling, InternEvo). NANOTRON: so they do, and gradients of a micro-batch beside them,
    which are added behind its backward pass. XLA: one compiled program that shards fp32 weights alone, casts the
    shards and gathers a layer at a time (MaxText). FLAT_SHARDS: so they are counted, of FSDP1 over fp32 shards.
    FULLY_SHARD: gradients are born in the backward pass and freed after the update; sharded parameters are gathered
    unit by unit (PyTorch's FSDP, of which stage 2 keeps them gathered from forward to backward,
    `reshard_after_forward=False`; its DDP at stage 0, its ZeroRedundancyOptimizer at stage 1). DEEPSPEED: buckets
    of a fixed number of elements, parameters gathered up to `live_parameters`. MEGATRON_FSDP: gradient shards live
    from start to end; layers are gathered and reduced in queues of a fixed number of elements.
    """

    CONTIGUOUS = "contiguous"
    MEGATRON_2022 = "megatron_2022"
    PROFILED = "profiled"
    ALL_REDUCED = "all_reduced"
    NANOTRON = "nanotron"
    XLA = "xla"
    FLAT_SHARDS = "flat_shards"
    FULLY_SHARD = "fully_shard"
    DEEPSPEED = "deepspeed"
    MEGATRON_FSDP = "megatron_fsdp"


class States(Section):
    """What every kind holds of a parameter; the optimizer's moments come from the job [bytes/parameter].

    Of a kind itself:
    `weights_sharded_from`: the first ZeRO stage at which parameters lie in shards between steps.
    `low_precision_shard`: whether a low-precision shard is kept beside the fp32 one, or made of it for every gather.
    `lasting_gradients`: whether gradients are there from start to end, whatever runs.
    `fused_weight_gradient`: whether the product itself accumulates a weight's gradient, with no copy of its own.
    `deals_matrices`: whether Megatron-Core's layer-wise optimizer runs with it.
    `casts_wide_shards`: whether 8-bit weights are made of fp32 shards for every gather.
    `gathers_as_read`: whether passes gather the orientation of 8-bit weights that they read.
    `sums_whole_embedding`: whether tp ranks that divide the embedding each make its whole gradient (DTensor).
    `gathers_inputs_again`: whether column-parallel inputs are kept as shards and gathered again for their weights'
    gradients.
    `divides_experts_over_tp`: whether shards of an expert are tensor parallelism's, so that no dispatch sends to them.
    `plain_autograd`: whether PyTorch's autograd alone runs backward passes, operation by operation; split in two, one
    frees nothing before the weight gradient, instead of all but the inputs of linear layers.
    `reduced_in_each_from`: the first ZeRO stage that reduces gradients after every micro-batch.
    `unit_messages`: whether sharded weights are gathered, and their gradients scattered, in a message for every layer,
    the embedding and the head.
    `turns_by_chunk`: whether an interleaved schedule reduces a chunk's gradients behind its last micro-batch, and
    gathers its weights ahead of its first, under the other chunks.
    `bucket_bytes`: of gradients that are reduced with a latency of their own [bytes].
    `straggles`: whether steps grow with the number of nodes, as the slowest of them.
    `composed`: whether steps are sums of profiles of one device: collectives, measured apart, follow the longer of host
    and device, and nothing is recomputed, whatever a configuration says.
    `pads_vocabulary`: the vocabulary is padded to a multiple of this x tp [1]; 0: it is not.
    `pipelines_programmed`: whether a pipeline needs a program of one's own.
    `pads_products`: whether its compiler pads operands of products (openxla/xla@fde6a3f
    xla/service/gpu/cublas_padding_requirements.h).
    `groups_by_torch`: whether products of experts are torch._grouped_mm's.
    `units_apart`: whether layers are gathered and reduced as units, in streams of their own.
    `hosts_activations_with_pp`: whether activations may live in CPU memory in a pipeline.
    """

    weights_sharded_from: ClassVar[int] = 3
    reduced_in_each_from: ClassVar[int] = 2
    unit_messages: ClassVar[bool] = False
    turns_by_chunk: ClassVar[bool] = False
    bucket_bytes: ClassVar[float] = 0.0
    straggles: ClassVar[bool] = True
    composed: ClassVar[bool] = False
    pads_vocabulary: ClassVar[int] = 0
    pipelines_programmed: ClassVar[bool] = False
    hosts_activations_with_pp: ClassVar[bool] = True
    pads_products: ClassVar[bool] = False
    groups_by_torch: ClassVar[bool] = False
    units_apart: ClassVar[bool] = False
    low_precision_shard: ClassVar[bool] = True
    lasting_gradients: ClassVar[bool] = True
    deals_matrices: ClassVar[bool] = False
    casts_wide_shards: ClassVar[bool] = False
    gathers_as_read: ClassVar[bool] = False
    sums_whole_embedding: ClassVar[bool] = False
    gathers_inputs_again: ClassVar[bool] = True
    divides_experts_over_tp: ClassVar[bool] = False
    plain_autograd: ClassVar[bool] = False

    gradient: float = Field(4.0, ge=0, le=8, description="the gradient between backward pass and update")
    master: float = Field(
        4.0, ge=0, le=4, description="the fp32 weight that an update changes; 0: there is none"
    )
    optimizer_transient: float = Field(
        0.0, ge=0, le=8, description="per locally updated parameter during the step"
    )
    shards_matrices: bool = Field(
        False,
        description="Muon's momentum is sharded as Adam's moments are, and a rank gathers the matrix that it "
        "orthogonalises (Moonlight's distributed Muon, arXiv 2502.16982, section 2.3); else Megatron-Core's layer-wise "
        "optimizer deals whole matrices",
    )

    @property
    def pure_bf16(self) -> bool:
        """Have moments the width of bf16 parameters, which have no fp32 masters (torchtitan's full bf16 training,
        DeepSpeed's bf16_master_weights_and_grads)?"""
        return self.master == 0.0

    @property
    def most_sharded_with_pp(self) -> int:
        """The last ZeRO stage that runs with a pipeline."""
        return 3

    @property
    def sent_gradient(self) -> float:
        """A gradient in messages [bytes/parameter]."""
        return self.gradient

    @property
    def reduction_copies(self) -> float:
        """Device memory moved beside a reduction to shards: into a bucket, divided, in order [bytes per gradient]."""
        return 0.0

    @property
    def gather_copies(self) -> float:
        """The same beside a gather of sharded weights, whose pieces are put together [bytes per weight]."""
        return 0.0

    @property
    def scatters_shares(self) -> bool:
        """Do the tp ranks of a stage each send a share of the hidden states, which the next stage's gather?"""
        return False

    @property
    def owners_broadcast(self) -> bool:
        """Are gradients reduced to the owner of a whole tensor, which broadcasts what it updated, a message each?"""
        return False

    @property
    def shards_by_rows(self) -> bool:
        """Are tensors sharded one by one, whole rows of each to a rank (`cost/padded_shards.py`)?"""
        return False

    @property
    def copies_hide(self) -> bool:
        """Do these copies run between the kernels of the layers, so that messages hide under them too?"""
        return False

    @property
    def divides_within_experts(self) -> bool:
        """Are experts of which a rank has fewer than share them cut each within itself?"""
        return False

    @property
    def latency_of_bucket(self) -> float:
        """Of a reduction of `bucket_bytes`, for every other replica [s]."""
        return 0.0

    @property
    def launch_softness(self) -> float:
        """Exponent of the soft maximum of host and device [1]: fitted on nanotron's runs, to 5.5 to 5.9 % of median
        error against a hard maximum."""
        return 6.6

    @property
    def floors_across_nodes(self) -> tuple[float, float]:
        """Host time of a layer that tp across nodes adds, over that with tp in a node: per doubling of tp beyond one,
        and x (tp-1)^0.92 where a pipeline crosses nodes [1]."""
        return 0.0, 0.0

    def reduces_whole(self, zero: NDArray[np.float64] | Rows) -> NDArray[np.bool_]:
        """Where gradients are all-reduced, not scattered (n,)."""
        return np.asarray(zero == 0)

    def gathers_after_step(self, zero: NDArray[np.float64] | Rows) -> NDArray[np.bool_]:
        """Where updated weights are gathered once a step, under nothing, before the next forward pass starts (n,)."""
        return np.zeros(np.shape(zero), dtype=np.bool_)

    def hidden_once(self, overlap: float, zero: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of a share `overlap` of the compute beside them, what hides collectives that are due once a step (n,) [1]."""
        return np.full(np.shape(zero), overlap)

    def hidden_in_layers(self, overlap: float) -> float:
        """The same of what is due in every layer: gathers of ZeRO 3, copies to the host [1]."""
        return overlap

    @property
    def keeps_gathered(self) -> StaysGathered:
        """Of stage 3, what is not resharded after forward."""
        return StaysGathered.NOTHING

    @property
    def message_when_full(self) -> float:
        """Seconds that a pipeline's message of a stage takes when the device memory is full, where that is long [s]."""
        return 0.0

    @property
    def reduced_elements(self) -> float:
        """Of a bucket that is reduced by itself [elements]; 0: there are no such buckets."""
        return 0.0

    @property
    def tensors_in_turn(self) -> float:
        """Tensors alive in an update of one parameter after the other; 0: there are no such temporaries [1]."""
        return 0.0

    @property
    def buffers_twice(self) -> bool:
        """Are two units gathered and two reduced at most, in buffers that stay?"""
        return False

    @property
    def captures_update(self) -> bool:
        """Is the update replayed as a CUDA graph, which leaves the host no launch a tensor?"""
        return False

    @property
    def reduces_once(self) -> bool:
        """Are gradients of several micro-batches reduced behind the last one, and weights freed as ever?"""
        return False

    def beside_compute(self, pp: Rows, zero: Rows) -> NDArray[np.bool_]:
        """Where gradients are reduced beside compute, as far as overlaps say: rows of these degrees and stages (n,)."""
        return np.ones(np.shape(zero), dtype=np.bool_)

    @property
    def grades_frozen(self) -> bool:
        """Have frozen weights gradients, as those of adapters beside them in one tensor are as large?"""
        return False

    @property
    def shards_unasked(self) -> bool:
        """Are the optimizer's states sharded over replicas at stage 0 too, which is stage 1 then?"""
        return False

    def weights_sharded(self, zero: NDArray[np.float64] | Rows) -> NDArray[np.bool_]:
        """Where parameters lie in shards between steps (n,)."""
        return np.asarray(zero >= self.weights_sharded_from)

    def accumulates_whole(self, pp: Rows, zero: Rows) -> NDArray[np.bool_]:
        """Where sharded gradients wait whole for the last micro-batch: rows of these degrees and ZeRO stages (n,)."""
        return np.zeros(np.shape(zero), dtype=np.bool_)

    def reduces_last(self, zero: Rows, microbatches: Rows) -> NDArray[np.bool_]:
        """Where sharded gradients wait whole for the last of several micro-batches, and weights do not (n,)."""
        return (microbatches > 1) & (zero >= 2) & self.reduces_once

    def for_precision(self, precision: Precision) -> Self:
        """The section with the gradients that it has in a precision."""
        return self

    def moment_bytes(self, optimizer: Optimizer) -> float:
        """An optimizer's states beside the master weight: torch makes them in the width of parameters, unless the
        optimizer fixes its own [bytes/parameter]."""
        own = optimizer in (Optimizer.ADAMW_BF16, Optimizer.ADAMW_8BIT)
        return OPTIMIZERS[optimizer].moment_bytes / (2.0 if self.pure_bf16 and not own else 1.0)

    def master_bytes(self, weight_bytes: float) -> float:
        """The fp32 weight beside one of so many bytes: none where that is it [bytes/parameter]."""
        return self.master if weight_bytes < FP32 else 0.0

    def born_in_update(self, optimizer: Optimizer) -> float:
        """Share of the optimizer's states that the first update makes [1]."""
        return 0.0

    def shard_width(self, weight_bytes: float) -> float:
        """Bytes of a parameter as it lies in shards, between steps: of the fp32 one where no other is kept; 16-bit ones
        are made of it when they are gathered."""
        return weight_bytes if self.low_precision_shard or not self.master else self.master

    def step_bytes(self, optimizer: Optimizer) -> float:
        """Memory traffic of an update; in pure bf16 gradients are read, weights and moments read and written, in 2
        bytes each [bytes/parameter]."""
        narrow = HALF + 2.0 * (HALF + self.moment_bytes(optimizer))
        return narrow if self.pure_bf16 else OPTIMIZERS[optimizer].step_bytes

    def casts_for_gathers(self, precision: Precision) -> bool:
        """Are shards of linear weights cast to 8 bits before they are gathered?"""
        return False

    def states_narrow(self) -> bool:
        """Is it known whether linear weights are kept in the format of 8- and 4-bit products?"""
        return False

    def keeps_narrow(self, precision: Precision, optimizer: Optimizer) -> bool:
        """Are linear weights kept in the format of the products, where masters are sharded apart from them?"""
        return False

    def keeping_narrow(self, precision: Precision, asked: bool) -> Self:
        """The section with linear weights kept, or cast for gathers, in the format of this recipe's products or not."""
        return self


class _KeepsNarrow(States):
    """Megatron-Core's: linear weights may be kept in the format of the products."""

    fp8_param_gather: tuple[Precision, ...] | None = Field(
        None,
        description="recipes whose linear weights are kept and gathered in 8 bits (Megatron --fp8-param-gather), the "
        "others keep 8-bit copies beside 16-bit weights; absent: not known, 16 bits alone are counted",
    )

    def states_narrow(self) -> bool:
        return self.fp8_param_gather is not None

    def keeps_narrow(self, precision: Precision, optimizer: Optimizer) -> bool:
        """Of Muon, whose masters are apart from either (Megatron-LM core/optimizer/layer_wise_optimizer.py), no run of
        it is known."""
        return optimizer is not Optimizer.MUON and precision in (self.fp8_param_gather or ())

    def keeping_narrow(self, precision: Precision, asked: bool) -> Self:
        return self.model_copy(update={"fp8_param_gather": (precision,) if asked else ()})


class _Buffered(_KeepsNarrow):
    """Weights and a gradient buffer from start to end, of Megatron's making."""

    deals_matrices: ClassVar[bool] = True
    pads_vocabulary: ClassVar[int] = 128  # --make-vocab-size-divisible-by

    def hidden_in_layers(self, overlap: float) -> float:
        """Copies to the host, whether or not gradients are reduced under compute."""
        return IN_LAYERS


class Contiguous(_Buffered):
    """Megatron-LM from 2023 on, whose distributed optimizer shards states (ZeRO 1)."""

    reduced_in_each_from: ClassVar[int] = 3
    # grad_sync_func, param_sync_func (core_v0.12.0 pipeline_parallel/schedules.py)
    turns_by_chunk: ClassVar[bool] = True
    hosts_activations_with_pp: ClassVar[bool] = False

    kind: Literal[EngineKind.CONTIGUOUS] = EngineKind.CONTIGUOUS
    fused_weight_gradient: bool = Field(
        True, description="weight gradients are accumulated by the GEMM itself, with no copy of their own"
    )
    fp4_param_gather: bool = Field(
        False,
        description="nvfp4 keeps and gathers linear weights in 4 bits (Megatron --fp4-param-gather), instead of 4-bit "
        "copies beside 16-bit weights; counted where `fp8_param_gather` is stated",
    )
    update: UpdateKernel = Field(UpdateKernel.PLAIN, strict=False, description="how its kernel is run")
    overlaps_gathers: bool = Field(
        True, description="weights are gathered under the next forward pass (--overlap-param-gather)"
    )

    def stores_remainders(self, precision: Precision, optimizer: Optimizer) -> bool:
        """Does the optimizer that keeps moments in 16 bits hold of a master only what its 16-bit weight lacks? Not of
        weights kept in 8 bits, nor where the recipe has Megatron keep masters itself (Megatron-LM core_v0.16.1
        optimizer/optimizer_config.py store_param_remainders, use_precision_aware_optimizer_no_fp8_or_ds_fp8;
        Transformer Engine 2.1 and later)."""
        kinds = (Precision.BF16, Precision.FP8)  # those without scaled blocks, and delayed scaling
        return (
            optimizer is Optimizer.ADAMW_BF16
            and self.master > 0
            and precision in kinds
            and not self.keeps_narrow(precision, optimizer)
        )

    @property
    def captures_update(self) -> bool:
        return self.update is UpdateKernel.CAPTURED

    def gathers_after_step(self, zero: NDArray[np.float64] | Rows) -> NDArray[np.bool_]:
        return np.asarray((zero >= 1) & (not self.overlaps_gathers))

    def keeps_narrow(self, precision: Precision, optimizer: Optimizer) -> bool:
        """In 4 bits they need masters outside the optimizer: one that holds them itself, as it does to keep moments in
        16 bits, has no 4-bit parameters (Megatron-LM d98e8a6, core/optimizer/distrib_optimizer.py
        _build_model_and_main_param_groups, optimizer_config.py use_precision_aware_optimizer_no_fp8_or_ds_fp8)."""
        if precision is Precision.NVFP4:
            return self.fp4_param_gather and optimizer not in (Optimizer.ADAMW_BF16, Optimizer.MUON)
        return super().keeps_narrow(precision, optimizer)

    def keeping_narrow(self, precision: Precision, asked: bool) -> Self:
        return super().keeping_narrow(precision, asked).model_copy(update={"fp4_param_gather": asked})


class _Megatron2022(_Buffered):
    """Megatron-LM of 2021 and 2022, and what was made of it.

    DDP reduces gradients of fp16 jobs as they are, in 16 bits (Megatron-LM 8aa4619 megatron/model/distributed.py; v2.5
    megatron/arguments.py: --accumulate-allreduce-grads-in-fp32 is for bf16 alone where it is not given;
    microsoft/DeepSpeed runtime/engine.py communication_data_type).
    """

    reduced_in_each_from: ClassVar[int] = 3
    fused_weight_gradient: ClassVar[bool] = True

    def for_precision(self, precision: Precision) -> Self:
        """In fp16 the update copies a rank's share of 16-bit gradients to fp32."""
        if precision is not Precision.FP16:
            return self
        return self.model_copy(update={"gradient": HALF, "optimizer_transient": 4.0})


class Megatron2022(_Megatron2022):
    """Megatron-LM of 2021 and 2022, and Megatron-DeepSpeed's pipeline with ZeRO 0 and 1."""

    kind: Literal[EngineKind.MEGATRON_2022] = EngineKind.MEGATRON_2022
    gradient_accumulator: float = Field(
        0.0,
        ge=0,
        le=4,
        description="a second gradient: those in bf16 beside fp32 ones, which DeepSpeed's BF16_Optimizer zeroes but "
        "does not free",
    )
    p2p_scatters: bool = Field(
        True,
        description="a stage sends each tp rank's share and gathers it behind the boundary "
        "(--scatter-gather-tensors-in-pipeline, the default of the time)",
    )

    @property
    def shards_unasked(self) -> bool:
        """By DeepSpeed's BF16_Optimizer, which an engine of bf16 takes at stage 0 (runtime/engine.py
        _do_optimizer_sanity_check) and of which each replica holds and updates a part (runtime/bf16_optimizer.py
        _setup_for_real_optimizer; its README of BLOOM's training asks for stage 0 therefore)."""
        return self.gradient_accumulator > 0

    @property
    def scatters_shares(self) -> bool:
        return self.p2p_scatters

    def for_precision(self, precision: Precision) -> Self:
        found = super().for_precision(precision)
        return self if found is self else found.model_copy(update={"gradient_accumulator": 0.0})


class Profiled(_Megatron2022):
    """Profiles of layers of Megatron-DeepSpeed on one device, summed (vTrain)."""

    composed: ClassVar[bool] = True
    pads_vocabulary: ClassVar[int] = (
        0  # heads are as slow as 50257 // tp columns make them (src/model/gpt_model.py)
    )

    kind: Literal[EngineKind.PROFILED] = EngineKind.PROFILED
    softness: float = Field(6.6, ge=1, le=50, description="exponent of the soft maximum of host and device")

    @property
    def launch_softness(self) -> float:
        return self.softness

    @property
    def scatters_shares(self) -> bool:
        """As Megatron-DeepSpeed does."""
        return True


class AllReduced(_Buffered):
    """Gradients are all-reduced whole behind the last micro-batch, and what ranks updated is handed on.

    AA-Scaling (Aleph-Alpha/scaling@737f855, 2024, src/scaling/core/optimizer) casts them to fp32 (allreduce.py), and a
    rank updates its share (step_sequel). InternEvo (1738bee of December 2023, as fa7337b of July,
    internlm/solver/optimizer/hybrid_zero_optim.py) sends them as they are, flattened and copied back
    (_reduce_grads_by_rank); after the update every rank broadcasts the tensors that it owns in its group of ZeRO
    (broadcast_params; overlap_sync_param is off in the configurations).
    """

    fused_weight_gradient: ClassVar[bool] = True

    kind: Literal[EngineKind.ALL_REDUCED] = EngineKind.ALL_REDUCED
    owners: bool = Field(
        False,
        description="whole tensors belong to ranks and gradients are sent as they are, as InternEvo does",
    )

    @property
    def owners_broadcast(self) -> bool:
        return self.owners

    @property
    def sent_gradient(self) -> float:
        return self.gradient if self.owners else FP32

    @property
    def reduction_copies(self) -> float:
        """Flattened and copied back (2 + 2 bytes each); as AA-Scaling flattened (2 + 2), divided (2 + 2), cast (2 + 4),
        cast back (4 + 2) and copied back (2 + 2)."""
        return 8.0 if self.owners else 24.0

    def reduces_whole(self, zero: NDArray[np.float64] | Rows) -> NDArray[np.bool_]:
        return np.asarray(zero < 3)

    def gathers_after_step(self, zero: NDArray[np.float64] | Rows) -> NDArray[np.bool_]:
        return np.asarray((zero >= 1) & (zero < 3))


class Nanotron(States):
    """Gradients accumulate in fp32 and are reduced in DDP's buckets (huggingface/nanotron, branch nouamane/bench2)."""

    fused_weight_gradient: ClassVar[bool] = True
    bucket_bytes: ClassVar[float] = 25e6  # DDP's bucket size
    straggles: ClassVar[bool] = False  # none beyond its own floors across nodes
    pads_vocabulary: ClassVar[int] = 1

    kind: Literal[EngineKind.NANOTRON] = EngineKind.NANOTRON
    bucket_latency: Seconds = Field(0.0, ge=0, le=1e-3, description="seconds per bucket and other DP rank")
    nodes_floor: float = Field(
        0.0, ge=0, le=5, description="of `host.layer_floor_tp`, added per doubling of tp beyond a node [1]"
    )
    pipeline_floor: float = Field(
        0.0,
        ge=0,
        le=5,
        description="of `host.layer_floor_tp`, added x (tp-1)^0.92 where a pipeline with tp > 1 crosses nodes [1]",
    )
    deferred_bytes: float = Field(
        2.0,
        ge=0,
        le=16,
        description="per hidden value of the gathered stream that a collective reads: its block the allocator cannot "
        "reuse while layers are launched ahead of the device (tp > 1); counted as reserved. 0: none is held back",
    )
    launches_forward: float = Field(
        47.0, ge=20, le=80, description="entries of a stream's queue that a layer's forward pass takes"
    )
    launches_backward: float = Field(69.0, ge=30, le=120, description="the same of its backward pass")

    @property
    def message_when_full(self) -> float:
        """In 257 of its published runs (residual study 3.1) slots took 0.54 s longer at pp 2, of two messages, and 1.05
        s at pp 4 and more, of four (`slow_mode_time` in cost/pipeline/step.py)."""
        return 0.26

    @property
    def sent_gradient(self) -> float:
        """Of the fp32 sum."""
        return FP32

    @property
    def latency_of_bucket(self) -> float:
        return self.bucket_latency

    @property
    def floors_across_nodes(self) -> tuple[float, float]:
        return self.nodes_floor, self.pipeline_floor

    def hidden_once(self, overlap: float, zero: NDArray[np.float64]) -> NDArray[np.float64]:
        """ZeRO 1 reduces and gathers between passes."""
        return np.where(zero >= 1, 0.0, overlap)


class Xla(States):
    """One compiled program (MaxText, Pax)."""

    low_precision_shard: ClassVar[bool] = False
    lasting_gradients: ClassVar[bool] = False
    fused_weight_gradient: ClassVar[bool] = True
    pads_products: ClassVar[bool] = True

    kind: Literal[EngineKind.XLA] = EngineKind.XLA

    @property
    def sent_gradient(self) -> float:
        return FP32


def flat_copies(sent: float) -> float:
    """Memory that FSDP1 moves beside a reduction of gradients of `sent` bytes in messages [bytes per gradient].

    Autograd puts the views' gradients together, 2 + 2 bytes (torch/distributed/fsdp/_flat_param.py
    _use_unsharded_views); each is cast where it is sent in fp32, 2 + 4 (_runtime_utils.py _post_backward_hook), and
    divided in place (_reduce_grad): 8 in 16 bits, 18 in fp32.
    """
    return 2.0 * HALF + (HALF + sent) * (sent > HALF) + 2.0 * sent


class FlatShards(States):
    """FSDP1 over fp32 shards, its memory as if whole gradients lasted (MosaicML's llm-foundry was fitted so)."""

    low_precision_shard: ClassVar[bool] = False
    fused_weight_gradient: ClassVar[bool] = True
    unit_messages: ClassVar[bool] = True

    kind: Literal[EngineKind.FLAT_SHARDS] = EngineKind.FLAT_SHARDS
    reduce_bytes: float = Field(4.0, ge=2, le=4, description="a gradient in messages")

    @property
    def sent_gradient(self) -> float:
        return self.reduce_bytes

    @property
    def reduction_copies(self) -> float:
        return flat_copies(self.reduce_bytes)


class FullyShard(States):
    """PyTorch's own: FSDP1 and FSDP2, sharded over all replicas or within groups, and DDP at stage 0.

    Every layer is a unit, as are embedding, norm and head together. A model that is one unit, whose root alone is
    wrapped, is not modelled: it holds all of its gathered weights and whole gradients in the backward pass.
    """

    weights_sharded_from: ClassVar[int] = 2
    low_precision_shard: ClassVar[bool] = False
    lasting_gradients: ClassVar[bool] = False
    casts_wide_shards: ClassVar[bool] = True
    sums_whole_embedding: ClassVar[bool] = True
    gathers_inputs_again: ClassVar[bool] = False
    divides_experts_over_tp: ClassVar[bool] = True
    plain_autograd: ClassVar[bool] = True
    fused_weight_gradient: ClassVar[bool] = False

    unit_messages: ClassVar[bool] = True
    groups_by_torch: ClassVar[bool] = True

    kind: Literal[EngineKind.FULLY_SHARD] = EngineKind.FULLY_SHARD
    reduce_bytes: float = Field(4.0, ge=2, le=4, description="a gradient in messages (reduce_dtype)")
    flat_parameters: FlatParameters = Field(
        FlatParameters.NONE, strict=False, description="FSDP1's units of flat parameters, not FSDP2's"
    )
    stays_gathered: StaysGathered = Field(
        StaysGathered.NOTHING, strict=False, description="of stage 3, what is not resharded after forward"
    )
    pipelining: TorchPipelining | None = Field(
        None,
        strict=False,
        description="whose stages run pipelines: gathered weights and gradients of the width that is reduced stay "
        "whole until the step's last backward pass, after which they are reduced once",
    )
    microbatches_accumulate_whole: bool = Field(
        False,
        description="sharded gradients of a step's micro-batches stay whole, in the width that is reduced, and "
        "are reduced behind the last one; weights are freed as ever (no_sync)",
    )
    float8_all_gather: bool = Field(
        False,
        description="linear weights of a dense fp8 model are cast before they are gathered (torchao's "
        "enable_fsdp_float8_all_gather)",
    )
    step_tensors: float = Field(
        0.0,
        ge=0,
        le=8,
        description="tensors alive in an update of one parameter after the other, the last one of the parameter before "
        "(AdamW with foreach=False: 3; 0: no such temporaries)",
    )

    @property
    def is_flat(self) -> bool:
        """Are a unit's tensors one?"""
        return self.flat_parameters is not FlatParameters.NONE

    @property
    def shards_by_rows(self) -> bool:
        """FSDP2's, which are DTensors."""
        return not self.is_flat

    @property
    def divides_within_experts(self) -> bool:
        """torchtitan 0.3.0's distributed/fsdp.py, whose pipelines are torch 2.13's: shard_placement_fn."""
        return self.pipelining is TorchPipelining.TORCH_2_13

    @property
    def grades_frozen(self) -> bool:
        return self.flat_parameters is FlatParameters.ALL

    @property
    def most_sharded_with_pp(self) -> int:
        return 0 if self.pipelining is None else 3

    @property
    def keeps_gathered(self) -> StaysGathered:
        return self.stays_gathered

    @property
    def tensors_in_turn(self) -> float:
        return self.step_tensors

    @property
    def sent_gradient(self) -> float:
        return self.reduce_bytes

    @property
    def reduction_copies(self) -> float:
        """torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce_scatter_copy_in: 2 bytes read, 4
        written, which NCCL divides; or 2 read, written and divided."""
        return flat_copies(self.reduce_bytes) if self.is_flat else 6.0

    @property
    def gather_copies(self) -> float:
        """The same file, foreach_all_gather_copy_out: 2 bytes read and written."""
        return 0.0 if self.is_flat else 4.0

    @property
    def copies_hide(self) -> bool:
        """The same file: both run on the stream of the layers, gathers and reductions on others."""
        return not self.is_flat

    def reduces_whole(self, zero: NDArray[np.float64] | Rows) -> NDArray[np.bool_]:
        """DDP's, of ZeroRedundancyOptimizer too (torch/distributed/optim/zero_redundancy_optimizer.py)."""
        return np.asarray(zero < 2)

    def gathers_after_step(self, zero: NDArray[np.float64] | Rows) -> NDArray[np.bool_]:
        """ZeroRedundancyOptimizer broadcasts whole tensors after the step."""
        return np.asarray(zero == 1)

    @property
    def reduces_once(self) -> bool:
        return self.microbatches_accumulate_whole

    def accumulates_whole(self, pp: Rows, zero: Rows) -> NDArray[np.bool_]:
        """torch 2.6 and 2.13 distributed/pipelining/stage.py backward_maybe_with_nosync."""
        return (pp > 1) & (zero >= 2) & (self.pipelining is not None)

    def born_in_update(self, optimizer: Optimizer) -> float:
        """torch.optim makes the moments in the first step."""
        moments = self.moment_bytes(optimizer)
        return moments / (moments + self.master)

    def casts_for_gathers(self, precision: Precision) -> bool:
        """With a scale a tensor."""
        return self.float8_all_gather and precision is Precision.FP8_CS

    def keeping_narrow(self, precision: Precision, asked: bool) -> Self:
        return self.model_copy(update={"float8_all_gather": asked})


class DeepSpeed(States):
    """DeepSpeed's ZeRO; sizes as its configuration has them by default (runtime/zero/config.py)."""

    gathers_inputs_again: ClassVar[bool] = False
    fused_weight_gradient: ClassVar[bool] = True
    # runtime/pipe/module.py PipelineModule takes layers, which no model of transformers is
    pipelines_programmed: ClassVar[bool] = True

    kind: Literal[EngineKind.DEEPSPEED] = EngineKind.DEEPSPEED
    bucket_elements: float = Field(5e8, ge=0, description="reduce_bucket_size [elements]")
    prefetch_elements: float = Field(5e7, ge=0, description="stage3_prefetch_bucket_size [elements]")
    live_parameters: float = Field(1e9, ge=0, description="stage3_max_live_parameters [parameters]")
    reuse_distance: float = Field(1e9, ge=0, description="stage3_max_reuse_distance [parameters]")
    persistent_elements: float = Field(
        1e5,
        ge=0,
        description="stage3_param_persistence_threshold; smaller parameters stay gathered [elements]",
    )
    overlap_comm: bool = Field(True, description="reductions run beside compute, not between its kernels")
    ddp: bool = Field(
        False, description="stage 0 is left to PyTorch's DDP, which reduces under the backward pass"
    )

    @property
    def most_sharded_with_pp(self) -> int:
        """runtime/pipe/engine.py PipelineEngine.__init__."""
        return 1

    @property
    def reduction_copies(self) -> float:
        """A gradient read and written three times in 2 bytes: into the bucket, divided, flattened (stage_1_and_2.py
        reduce_independent_p_g_buckets_and_remove_grads, average_tensor, allreduce_bucket; ZeRO 3: stage3.py
        __add_grad_to_ipg_bucket, comm/coalesced_collectives.py reduce_scatter_coalesced)."""
        return 12.0

    @property
    def gather_copies(self) -> float:
        """partition_parameters.py AllGatherCoalescedHandle.wait puts the ranks' pieces together."""
        return 4.0

    def reduces_whole(self, zero: NDArray[np.float64] | Rows) -> NDArray[np.bool_]:
        """0.14.2 and 0.19.8 runtime/zero/stage_1_and_2.py: average_tensor with use_multi_rank_bucket_allreduce, the
        default."""
        return np.asarray(zero < 3)

    def gathers_after_step(self, zero: NDArray[np.float64] | Rows) -> NDArray[np.bool_]:
        """step(), all_gather_dp_groups."""
        return np.asarray((zero >= 1) & (zero < 3))

    def hidden_once(self, overlap: float, zero: NDArray[np.float64]) -> NDArray[np.float64]:
        """runtime/engine.py allreduce_gradients: stage 0 all-reduces after the backward pass."""
        return np.where((zero >= 1) | self.ddp, overlap, 0.0)

    @property
    def reduced_elements(self) -> float:
        return self.bucket_elements

    def beside_compute(self, pp: Rows, zero: Rows) -> NDArray[np.bool_]:
        """Not under a pipeline, whose gradients are reduced behind the last micro-batch (0.6.5 of 2022 to 0.19.8,
        runtime/engine.py _configure_zero_optimizer takes overlap_comm back from a PipelineModule;
        runtime/pipe/engine.py _exec_reduce_grads, runtime/pipe/schedule.py TrainSchedule)."""
        return (self.overlap_comm | (zero < 1)) & (pp == 1)


class MegatronFsdp(_KeepsNarrow):
    """Megatron-FSDP: layers are gathered and reduced in queues (Megatron-LM core/distributed/fsdp, version 1).

    Its buffers give every parameter as many bytes as values (param_and_grad_buffer.py), so that none is in 4 bits.
    """

    lasting_gradients: ClassVar[bool] = False
    gathers_as_read: ClassVar[bool] = True
    fused_weight_gradient: ClassVar[bool] = False
    turns_by_chunk: ClassVar[bool] = True
    pads_vocabulary: ClassVar[int] = 128
    hosts_activations_with_pp: ClassVar[bool] = False
    units_apart: ClassVar[bool] = True

    kind: Literal[EngineKind.MEGATRON_FSDP] = EngineKind.MEGATRON_FSDP
    double_buffer: bool = Field(False, description="--fsdp-double-buffer")

    @property
    def buffers_twice(self) -> bool:
        return self.double_buffer

    def hidden_in_layers(self, overlap: float) -> float:
        return IN_LAYERS if overlap else 0.0


AnyEngine = (
    Contiguous
    | Megatron2022
    | Profiled
    | AllReduced
    | Nanotron
    | Xla
    | FlatShards
    | FullyShard
    | DeepSpeed
    | MegatronFsdp
)
Engine = Annotated[AnyEngine, Field(discriminator="kind"), of_a_kind(EngineKind)]
ENGINES: tuple[type[AnyEngine], ...] = get_args(AnyEngine)
