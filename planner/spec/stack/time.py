"""What decides how long a training software takes? Its kernels, their rates, its host, and what it exchanges how.

Left out: what it keeps in memory (`spec/stack/engines.py`, `spec/stack/memory.py`).
"""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field

from planner.spec.attention import Attention
from planner.spec.machine.architecture import Architecture
from planner.spec.precision import Dtype
from planner.spec.stack.kinds import (
    AttentionKernel,
    ContextExchange,
    CrossEntropy,
    Dispatcher,
    Float8Scales,
    FusedLinear,
    NarrowKept,
    PackedContext,
    SparseKernel,
)
from planner.spec.stack.layer_code import LayerCode, Library
from planner.spec.stack.losses import LOSSES, OneLoss, VocabParallel
from planner.spec.stack.section import Bytes, Seconds, Section

# FlashAttention's widest head (Dao-AILab/flash-attention, README: head dimensions up to 256).
FLASH_WIDTH: Final = 256


class Kernels(Section):
    """Which kernels a layer is made of; decides saved activations and memory-bound time."""

    attention: AttentionKernel = AttentionKernel.FLASH
    sparse_attention: SparseKernel | None = Field(
        None, description="kernels of attention behind an indexer; absent: the software has none"
    )
    code: LayerCode = Library()
    fused_experts: bool = Field(
        False,
        description="in fp8_mx on Blackwell grouped GEMMs apply the experts' gated activation and quantise what "
        "they write (Transformer Engine's CuTe DSL grouped MLP)",
    )
    expert_buffers: tuple[float, float] | None = Field(
        None,
        description="rows over those that balanced routing sends a rank's experts, received into a buffer of one size "
        "(moe_expert_rank_capacity_factor) and kept for the backward pass (moe_paged_stash, its factor on the device; "
        "else as many); absent: as many as come",
    )
    expert_padding: float = Field(
        0.0,
        ge=0,
        le=1024,
        description="rows of every expert over those that balanced routing sends it: more are dropped, fewer padded "
        "(moe_expert_capacity_factor with moe_pad_expert_input_to_capacity); 0: as many as come",
    )
    rotates_texts: bool = Field(
        False, description="packed documents are rotated one by one, by separate unfused ops"
    )
    loss: OneLoss = VocabParallel()
    dropout: bool = False
    narrow_kept: NarrowKept = NarrowKept.NOTHING
    fused_linear: FusedLinear = Field(
        FusedLinear.ALL,
        description="which linear layers of one input are one, where they are counted one by one",
    )
    probs_in_activation: bool = Field(
        False,
        description="routing probabilities weigh the expert's activation, so that its output is not kept",
    )
    float8_scales: Float8Scales | None = Field(
        None,
        description="fp8_cs is torchao's float8, with these scales; absent: Transformer Engine's current scaling",
    )

    @property
    def keeps_narrow_inputs(self) -> bool:
        """Are 8-bit and 4-bit copies of linear inputs kept instead of the wide ones? Transformer Engine's are;
        torchao's float8 casts from the bf16 input: fp8 and bf16 runs peak within 0.5 %."""
        return self.float8_scales is None

    @property
    def tp_gathers_float8(self) -> bool:
        """Are linear layers of a dense fp8 model given 8-bit inputs and gradients before tensor parallelism gathers
        them? With one scale a tensor (torchao's Float8ColwiseParallel)."""
        return self.float8_scales is Float8Scales.TENSOR

    @property
    def received_rows(self) -> float:
        """Of a buffer of one size, over balanced ones; 0: as many as come [1]."""
        return self.expert_buffers[0] if self.expert_buffers else 0.0

    @property
    def kept_rows(self) -> float:
        """Of them, kept for the backward pass [1]."""
        return self.expert_buffers[1] if self.expert_buffers else 0.0

    def with_loss(self, kind: CrossEntropy) -> Self:
        """The same with a loss of that kind: its own, or as usual."""
        loss = self.loss if self.loss.kind is kind else LOSSES[kind]()
        return self.model_copy(update={"loss": loss})

    def attention_of(self, attention: Attention) -> AttentionKernel:
        """The kernel of one layer: where its heads are too wide for a flash kernel, the softmax alone is fused, as
        Transformer Engine chooses layer by layer (pytorch/attention/dot_product_attention/utils.py
        get_attention_backend). Kernels that gather keys have widths of their own."""
        wide = max(attention.head_dim, attention.v_head_dim) > FLASH_WIDTH and not attention.sparse
        return AttentionKernel.FUSED_SOFTMAX if wide and self.attention.is_flash else self.attention


class Compute(Section):
    """Time over what the kernel tables say, per kind of work [1]."""

    gemm: dict[Dtype, float] = Field(default_factory=dict, description="factor by format; missing: 1")
    grouped_gemm: float = Field(
        1.0,
        ge=0.3,
        le=6.0,
        description="time of the experts' GEMMs relative to that of others of their format",
    )
    grouped_gemm_16_bit: dict[Architecture, Annotated[float, Field(ge=0.3, le=6.0)]] = Field(
        default_factory=dict,
        description="the same of those in bf16 and fp16 alone, by architecture: software with grouped kernels of its "
        "own; missing: 1",
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


class Host(Section):
    """Time the host needs to launch a layer's kernels; the layer takes the longer of host and device [s]."""

    layer_floor: Seconds = Field(0.0005, ge=0, le=0.05, description="forward + backward of a layer at tp 1")
    layer_floor_tp: Seconds = Field(0.0005, ge=0, le=0.05, description="the same at tp > 1")
    moe_layer_floor: Seconds = Field(0.0, ge=0, le=0.1, description="added where the layer routes to experts")
    expert_launch: Seconds = Field(
        0.0,
        ge=0,
        le=1e-3,
        description="one launch of the grouped GEMMs, where each expert has its own, or of a loop over experts",
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
    tensor_update: Seconds = Field(
        0.0, ge=0, le=1e-3, description="added per step for every tensor of which a rank updates a part"
    )


class Communication(Section):
    """Which part of each collective is not hidden, and how well it uses the links [1]."""

    tp_exposed: float = Field(1.0, ge=0, le=3, description="exposed share of tensor-parallel time in a node")
    tp_exposed_nodes: float = Field(1.6, ge=0, le=5, description="the same when tp crosses nodes")
    tp_overlapped: bool = Field(
        False,
        description="tensor-parallel collectives run in parts overlapped with the GEMMs (user buffers of Transformer "
        "Engine): `tp_exposed` is what is left of them, and launch files ask for it",
    )
    gathers_qkv: bool = Field(
        False,
        description="where tp exceeds the key/value heads, queries, keys and values are gathered whole behind their "
        "GEMM, instead of GEMMs with copies of these heads",
    )
    cp_exchange: ContextExchange = Field(
        ContextExchange.RING,
        description="how context parallelism passes keys and values on where p2p is asked for",
    )
    cp_packed: PackedContext = Field(
        PackedContext.FUSED,
        description="what packed documents can be exchanged by, and how they are put in order",
    )
    cp_overlap: float = Field(
        0.8, ge=0, le=1, description="share of attention time that can hide the CP ring"
    )
    dispatcher: Dispatcher = Dispatcher.ALL_TO_ALL
    ep_exposed: float = Field(1.0, ge=0, le=3, description="time of dispatch and combine over the link model")
    ep_overlap: float = Field(
        0.0, ge=0, le=1, description="share of a layer's compute that hides dispatch and combine"
    )
    pair_sm_share: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="overlapped pairs of DualPipe hide dispatch and combine under the other micro-batch's compute, "
        "from which communication takes this share of the compute units; absent: they hide nothing",
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
    dp_by_chunk: bool = Field(
        False,
        description="the interleaved schedule reduces a chunk's gradients behind its last micro-batch, and gathers its "
        "parameters ahead of its first, under the other chunks",
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
    owner_messages: bool = Field(
        False,
        description="ZeRO 1 gives whole tensors to ranks: gradients are reduced to the owner, which broadcasts what it "
        "updated, a message each",
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
    unit_messages: bool = Field(
        False,
        description="sharded weights are gathered, and their gradients scattered, in a message for every layer, the "
        "embedding and the head (units of FSDP)",
    )
    bucket_latency: Seconds = Field(0.0, ge=0, le=1e-3, description="seconds per bucket and other DP rank")
    gradient_bytes: float = Field(4.0, description="bytes per gradient on the wire")
    slowdown_per_doubling: float = Field(
        0.009, ge=0, le=0.1, description="stragglers: step growth per doubling of nodes"
    )

    @property
    def pair_overlap(self) -> bool:
        """Do overlapped pairs of DualPipe hide dispatch and combine?"""
        return self.pair_sm_share is not None
