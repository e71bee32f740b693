"""How does this training software run a configuration? A handful of physically meaningful, bounded numbers.

A stack is a framework at a release with its kernels. The same configuration runs up to 2x apart on
different stacks, so every prediction names one. Its numbers come from a YAML file with sources; those
marked `fitted` were found by `benchmarks/fit_stacks.py` on public runs, never per model or per row.
Left out: anything that belongs to the hardware (kernel tables, link rates) or to the configuration.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from planner.errors import UnitError
from planner.spec.config import SCHEDULE_LABELS, CudaGraphs
from planner.spec.job import OPTIMIZERS, Optimizer
from planner.spec.own_run import OwnRun
from planner.spec.precision import Dtype, Precision
from planner.spec.stack_kinds import (
    AttentionKernel,
    ContextExchange,
    CrossEntropy,
    Dispatcher,
    Float8Scales,
    PipelineSplit,
    StateEngine,
)
from planner.units import parse_quantity


def _quantity(kind: str) -> BeforeValidator:
    """A validator that reads "0.5 ms" or "0.75 GiB"; a bare number is refused."""

    def read(value: object) -> float:
        try:
            return parse_quantity(value if isinstance(value, str) else str(value), kind)
        except UnitError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(read)


# A band where the stack was not fitted, on other devices or kinds of models, over the one where it was.
UNLIKE_BAND = 1.5
# The band of a cluster whose owner published nothing over that of a publisher's groups left out: median over the fitted
# stacks of the ratio of the 80 % quantiles of their errors, with the publisher hidden and with the group
# (benchmarks/cross_validate.py --hide).
ELSEWHERE_BAND = 1.4
BAND_DEVICES = 64.0
Seconds = Annotated[float, _quantity("time")]
Bytes = Annotated[float, _quantity("capacity")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Kernels(_Section):
    """Which kernels a layer is made of; decides saved activations and memory-bound time."""

    attention: AttentionKernel = AttentionKernel.FLASH
    fused_mla_on_blackwell: bool = Field(
        True,
        description="has fused attention for multi-head latent attention on Blackwell; else its softmax alone is fused",
    )
    fused_norm: bool = True
    fused_activation: bool = True
    single_operations: bool = Field(
        False,
        description="norms, rotary embedding, activation, sums and loss run operation by operation, as Hugging Face "
        "transformers' modelling code does without torch.compile (cost/eager.py)",
    )
    cross_entropy: CrossEntropy = CrossEntropy.VOCAB_PARALLEL
    dropout: bool = False
    saves_gathered_input: bool = Field(
        False, description="keeps the all-gathered input of a sequence-parallel linear instead of its shard"
    )
    eager_norm_bytes: float = Field(
        4.0, ge=0, le=16, description="kept by an unfused RMS norm beside its inputs, per hidden value"
    )
    keeps_narrow_inputs: bool = Field(
        True,
        description="keeps 8-bit and 4-bit copies of linear inputs instead of the wide ones (Transformer Engine)",
    )
    stream_extra: float = Field(0.0, ge=0, le=16, description="further bytes a layer keeps per hidden value")
    checkpoint_extra: float = Field(
        0.0, ge=0, le=16, description="bytes per hidden value that a recomputed layer keeps beside its input"
    )
    score_bytes: float = Field(
        0.0, ge=0, le=16, description="kept per attention score without flash attention; 0: counted op by op"
    )
    activation_input_bytes: float = Field(
        0.0,
        ge=0,
        le=4,
        description="kept per value of the MLP's activation input (Megatron --activation-func-fp8-input-store: 1); "
        "0: in the width of activations",
    )
    attention_output_bytes: float = Field(
        0.0,
        ge=0,
        le=4,
        description="kept per value of attention's output, by attention and the projection together; 0: in the width "
        "of activations, and a narrow copy for a narrow projection",
    )
    boundary_bytes: float = Field(
        0.0,
        ge=0,
        le=16,
        description="kept per hidden value of each micro-batch a pipeline stage has in flight",
    )
    received_bytes: float = Field(
        0.0,
        ge=0,
        le=4,
        description="per hidden value that a chunk receives, forward or backward, of every micro-batch of a step: "
        "buffers made once (torch.distributed.pipelining)",
    )
    keeps_outputs: bool = Field(
        False,
        description="where there are such buffers: outputs of all micro-batches stay until the next step",
    )
    pins_fused_qkv: bool = Field(
        False,
        description="MHA's rotated queries keep the fused q, k, v tensor alive beside a copy of keys and values",
    )
    gather_buffer_bytes: float = Field(
        0.0,
        ge=0,
        le=16,
        description="bytes per hidden value of the gathered stream in buffers made once (tp > 1)",
    )
    deferred_bytes: float = Field(
        0.0,
        ge=0,
        le=16,
        description="per layer and hidden value of the gathered stream: outputs of row-parallel products whose blocks "
        "the allocator cannot reuse while passes are launched ahead of the device (tp > 1); counted as reserved",
    )
    split_keeps_graph: bool = Field(
        False,
        description="a backward split in two frees nothing before the weight gradient (autograd), instead of all "
        "but the inputs of linear layers",
    )
    probs_in_activation: bool = Field(
        False,
        description="routing probabilities weigh the expert's activation, so that its output is not kept",
    )
    float8_scales: Float8Scales | None = Field(
        None,
        description="fp8_cs is torchao's float8, with these scales; absent: Transformer Engine's current scaling",
    )
    eager_dequantise: bool = Field(
        False,
        description="frozen 4-bit weights are dequantised by single operations of PyTorch (torchao, not compiled)",
    )
    loss_bytes: float = Field(4.0, ge=2, le=4, description="bytes per logit in an unfused loss")
    loss_peak: float = Field(
        3.0,
        ge=1,
        le=3,
        description="copies of the logits in `loss_bytes` alive at the peak of an unfused loss",
    )
    loss_chunks: int = Field(8, ge=1, description="parts of the logits that a chunked loss works on in turn")
    whole_logit_bytes: float = Field(
        0.0,
        ge=0,
        le=16,
        description="bytes per logit of the whole vocabulary that every tp rank holds at the loss",
    )


class Compute(_Section):
    """Time over what the kernel tables say, per kind of work [1]."""

    gemm: dict[Dtype, float] = Field(default_factory=dict, description="factor by format; missing: 1")
    grouped_gemm: float = Field(
        1.0, ge=0.3, le=6.0, description="time of the experts' products beside that of others of their format"
    )
    attention: float = Field(1.0, ge=0.3, le=6.0)
    memory_bound: float = Field(1.0, ge=0.3, le=12.0)
    accelerator: dict[str, Annotated[float, Field(ge=0.5, le=2.0)]] = Field(
        default_factory=dict,
        description="factor on GEMM and attention time by accelerator: its sustained clocks, how far the software's "
        "kernels were tuned for it; missing: 1",
    )

    def gemm_factor(self, dtype: Dtype) -> float:
        """Factor on GEMM time of a format; bf16's where the format has none."""
        return self.gemm.get(dtype, self.gemm.get(Dtype.BF16, 1.0))


class Host(_Section):
    """Time the host needs to launch a layer's kernels; the layer takes the longer of host and device [s]."""

    layer_floor: Seconds = Field(0.0005, ge=0, le=0.05, description="forward + backward of a layer at tp 1")
    layer_floor_tp: Seconds = Field(0.0005, ge=0, le=0.05, description="the same at tp > 1")
    moe_layer_floor: Seconds = Field(0.0, ge=0, le=0.1, description="added where the layer routes to experts")
    expert_launch: Seconds = Field(
        0.0,
        ge=0,
        le=1e-3,
        description="one launch of the grouped products, where each expert has its own, or of a loop over experts",
    )
    grace: float = Field(
        1.0, ge=1, le=4, description="time of a launch by a Grace processor over that by an x86 one"
    )
    layer_floor_tp_nodes: Seconds = Field(
        0.0, ge=0, le=0.05, description="added per doubling of tp beyond a node"
    )
    pipeline_tp_floor: Seconds = Field(
        0.0, ge=0, le=0.05, description="added x (tp-1)^0.92 when a pipeline with tp > 1 crosses nodes"
    )
    softness: float = Field(6.6, ge=1, le=50, description="exponent of the soft maximum of host and device")
    step_overhead: Seconds = Field(
        0.02, ge=0, le=10, description="logging, data loader, gradient clipping per step"
    )


class Communication(_Section):
    """Which part of each collective is not hidden, and how well it uses the links [1]."""

    tp_exposed: float = Field(1.0, ge=0, le=3, description="exposed share of tensor-parallel time in a node")
    tp_exposed_nodes: float = Field(1.6, ge=0, le=5, description="the same when tp crosses nodes")
    tp_overlapped: bool = Field(
        False,
        description="tensor-parallel collectives run in parts under the products (user buffers of Transformer Engine): "
        "`tp_exposed` is what is left of them, and launch files ask for it",
    )
    tp_gathers_float8: bool = Field(
        False,
        description="linear layers of a dense fp8 model with one scale a tensor are given 8-bit inputs and gradients "
        "before tensor parallelism gathers them (torchao's Float8ColwiseParallel)",
    )
    cp_exchange: ContextExchange = Field(
        ContextExchange.RING,
        description="how context parallelism passes keys and values on where p2p is asked for",
    )
    cp_overlap: float = Field(
        0.8, ge=0, le=1, description="share of attention time that can hide the CP ring"
    )
    dispatcher: Dispatcher = Dispatcher.ALL_TO_ALL
    ep_exposed: float = Field(1.0, ge=0, le=3, description="time of dispatch and combine over the link model")
    ep_overlap: float = Field(
        0.0, ge=0, le=1, description="share of a layer's compute that hides dispatch and combine"
    )
    pair_overlap: bool = Field(
        False,
        description="overlapped pairs of DualPipe hide dispatch and combine under the other micro-batch's compute",
    )
    pair_sm_share: float = Field(
        0.0, ge=0, lt=1, description="share of the compute units that communication takes meanwhile"
    )
    dispatch_bytes: float = Field(
        0.0, ge=0, le=4, description="bytes per value that dispatch sends; 0: those of activations"
    )
    p2p_scatters: bool = Field(
        False, description="a stage sends each tp rank's share and gathers it behind the boundary"
    )
    p2p_exposed: float = Field(
        1.0, ge=0, le=3, description="exposed share of 1F1B sends; interleaved hides them"
    )
    dp_time: float = Field(
        1.0, ge=0.3, le=10, description="gradient and parameter collectives over the link model"
    )
    dp_overlap: float = Field(
        0.8, ge=0, le=1, description="share of the last micro-batch's backward that hides DP"
    )
    sharded_dp_overlap: float | None = Field(
        None, ge=0, le=1, description="the same with ZeRO 1, where it differs"
    )
    slow_message: Seconds = Field(
        0.0, ge=0, le=5, description="a pipeline message of a stage when the device memory is full"
    )
    fsdp_overlap: float = Field(
        0.9, ge=0, le=1, description="share of a layer's compute that hides its gathers"
    )
    overlap_slowdown: float = Field(
        0.2,
        ge=0,
        le=1,
        description="seconds that compute loses to a second of data-parallel communication hidden under it; 0.19 on "
        "average on A100, H100, MI210 and MI250, 0.4 at most (Lee 2025, arXiv 2507.03114, abstract)",
    )
    reduce_per_microbatch: bool = Field(
        True, description="ZeRO-2 reduces gradients after every micro-batch, not once after accumulating them"
    )
    reduces_whole: bool = Field(
        False,
        description="ZeRO 1 and 2 all-reduce gradients, of which a rank keeps its share, instead of scattering sums",
    )
    gathers_after_step: bool = Field(
        False,
        description="ZeRO 1 and 2 gather updated weights once a step, before the next forward pass starts",
    )
    reduction_copies: float = Field(
        0.0,
        ge=0,
        le=32,
        description="device memory moved beside a reduction: gradients into a bucket, divided, put in order "
        "[bytes per gradient]",
    )
    gather_copies: float = Field(
        0.0,
        ge=0,
        le=16,
        description="device memory moved beside a gather of sharded weights: pieces put together [bytes per weight]",
    )
    bucket_bytes: Bytes = Field(0.0, ge=0, description="gradient bucket; 0: one per layer")
    bucket_latency: Seconds = Field(0.0, ge=0, le=1e-3, description="seconds per bucket and other DP rank")
    gradient_bytes: float = Field(4.0, description="bytes per gradient on the wire")
    slowdown_per_doubling: float = Field(
        0.009, ge=0, le=0.1, description="stragglers: step growth per doubling of nodes"
    )


class States(_Section):
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
    head_stays_gathered: bool = Field(
        False, description="TORCH: norm and head are not resharded after forward"
    )
    pipeline_accumulates_whole: bool = Field(
        False,
        description="TORCH: under a pipeline, gathered weights and gradients of the width that is reduced stay whole "
        "until the step's last backward pass, after which they are reduced once (torch.distributed.pipelining)",
    )
    fused_weight_gradient: bool = Field(
        True, description="weight gradients are accumulated by the product itself, with no copy of their own"
    )
    gradient_accumulator: float = Field(
        0.0, ge=0, le=4, description="a second, fp32 gradient copy (nanotron)"
    )
    master: float = Field(4.0, ge=0, le=4)
    pure_bf16: bool = Field(
        False,
        description="moments have the width of bf16 parameters, which have no fp32 masters (torchtitan's full bf16 "
        "training, DeepSpeed's bf16_master_weights_and_grads)",
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
        4.0,
        ge=4,
        le=16,
        description="copied over the host's link for an update there: the gradient out, the weight back [bytes per "
        "locally updated parameter]",
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
        description="copies of the largest local tensor during the step (one tensor at a time)",
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

    def accumulates_whole(self, pp: NDArray[np.int32], zero: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Where sharded gradients wait whole for the last micro-batch: rows of these degrees and ZeRO stages (n,)."""
        return (pp > 1) & (zero >= 2) & self.pipeline_accumulates_whole

    def moment_bytes(self, optimizer: Optimizer) -> float:
        """An optimizer's states beside the master weight: torch makes them in the width of parameters, unless the
        optimizer fixes its own [bytes/parameter]."""
        own = optimizer in (Optimizer.ADAMW_BF16, Optimizer.ADAMW_8BIT)
        return OPTIMIZERS[optimizer].moment_bytes / (2.0 if self.pure_bf16 and not own else 1.0)

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
        _build_model_and_main_param_groups, optimizer_config.py use_precision_aware_optimizer_no_fp8_or_ds_fp8).
        """
        if precision is Precision.NVFP4:
            return self.fp4_param_gather and optimizer is not Optimizer.ADAMW_BF16
        return precision in (self.fp8_param_gather or ())


class Overhead(_Section):
    """Memory outside the model: what the device's tools show beside the allocator [bytes], [1]."""

    context: Bytes = Field(0.75 * 2**30, ge=0)
    workspace: Bytes = Field(0.25 * 2**30, ge=0)
    fragmentation: float = Field(
        0.03, ge=0, le=0.5, description="share of dynamic memory the allocator wastes"
    )
    logs_reserved: bool = Field(False, description="the stack logs reserved, not allocated, memory")
    logs_first_stage: bool = Field(False, description="the stack logs the memory of the first pipeline stage")
    error: float = Field(
        0.06, ge=0, le=0.5, description="measured memory error: half the width of 'borderline'"
    )


class Limits(_Section):
    """What the framework accepts, as far as a mask needs it."""

    zero: tuple[int, ...] = (0, 1)
    zero_with_pp: tuple[int, ...] = (0, 1)
    hybrid_sharding: tuple[int, ...] = Field(
        (), description="of these, the stages that can be sharded within groups of ranks (HSDP)"
    )
    max_pp: int = 10**6
    offload: tuple[int, ...] = Field((0,), description="bit masks of what may live on the host")
    offload_activations_with_pp: bool = True
    cuda_graphs: tuple[str, ...] = Field(
        ("none",), description="what may capture CUDA graphs, as spec.config.CudaGraphs names it"
    )
    cuda_graphs_tried: tuple[str, ...] = Field(
        ("none",), description="of these, what a search tries where nothing is asked for"
    )
    sequence_parallel: tuple[int, ...] = (0, 1)
    max_cp: int = 10**6
    max_ep: int = 10**6
    interleaving: bool = True
    schedules: tuple[str, ...] = Field(
        ("1f1b", "interleaved"), description="pipeline schedules, as spec.config.SCHEDULE_LABELS names them"
    )
    partial_full_recompute: bool = True
    selective_recompute: tuple[str, ...] = ("core_attn",)
    recompute_modules: tuple[str, ...] = Field((), description="modules that can be recomputed one by one")
    kv_heads_below_tp: bool = True
    moe_needs_sp: bool = False
    pads_vocabulary: int = Field(
        128, description="vocabulary is padded to a multiple of this x tp; 1: not padded"
    )

    @field_validator("cuda_graphs", "cuda_graphs_tried")
    @classmethod
    def _captures(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = [graphs.label for graphs in CudaGraphs]
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"CUDA graphs must be among {', '.join(known)}: {', '.join(unknown)}")
        return names

    @field_validator("schedules")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in names if name not in SCHEDULE_LABELS]
        if unknown:
            raise ValueError(f"schedules must be among {', '.join(SCHEDULE_LABELS)}: {', '.join(unknown)}")
        return names


class Stack(_Section):
    """A training software stack."""

    name: str
    description: str
    framework: str
    released: str
    source: str
    fitted: str = Field("", description="which numbers were fitted, on what; empty: start values")
    kin: str = Field("", description="the nearest stack, for what was not identified here")
    band: float = Field(
        0.3, gt=0, le=2, description="80 % of cross-validated step-time errors lie within this"
    )
    band_moe: float | None = Field(None, gt=0, le=2, description="the same of mixtures of experts")
    band_widening: float = Field(
        0.0, ge=0, le=1, description="power of devices / 64 by which `band` grows, where the errors show it"
    )
    devices: tuple[str, ...] = Field((), description="accelerators of the runs behind `fitted`")
    calibration: str = Field("", description="the user's measurements behind it; empty: as shipped")
    calibration_level: str = Field("", description="L2 or L3 where it was calibrated")
    measured: tuple[OwnRun, ...] = Field(
        (), description="the user's own configurations, where it was calibrated"
    )
    split: PipelineSplit | tuple[int, ...] = Field(
        PipelineSplit.BALANCED,
        description="how layers are dealt to stages, or the layers of every chunk in order",
    )
    composed: bool = Field(
        False,
        description="steps are sums of profiles of one device: collectives, measured apart, follow the longer of host "
        "and device, and nothing is recomputed, whatever a configuration says",
    )
    logs_half_attention: bool = Field(
        False,
        description="TFLOP/s and MFU of its log count half the square of causal attention, else the whole of it",
    )
    kernels: Kernels = Kernels()
    compute: Compute = Compute()
    host: Host = Host()
    communication: Communication = Communication()
    states: States = States()
    overhead: Overhead = Overhead()
    limits: Limits = Limits()

    def band_at(self, devices: float, moe: bool) -> float:
        """The band of a step time on so many devices [1]; never narrower for a mixture of experts."""
        band = self.band * (devices / BAND_DEVICES) ** self.band_widening
        wider = (self.band_moe or band * UNLIKE_BAND) if moe and self.calibration_level != "L3" else 0.0
        return float(min(max(band, wider), 2.0))
