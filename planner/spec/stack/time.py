"""What decides how long a training software takes? Its kernels, their rates, its host, and what it exchanges how.

Left out: what it keeps in memory (`spec/stack/engines.py`, `spec/stack/memory.py`).
"""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, field_validator

from planner.spec.attention import Attention
from planner.spec.precision import Dtype
from planner.spec.stack.kinds import (
    AttentionKernel,
    ContextExchange,
    CrossEntropy,
    Dispatcher,
    Float8Scales,
    FusedLinear,
    KeptWidths,
    KeyValueHeads,
    SparseKernel,
)
from planner.spec.stack.layer_code import LayerCode, Library
from planner.spec.stack.losses import LOSSES, OneLoss, VocabParallel
from planner.spec.stack.section import Seconds, Section

# FlashAttention's widest head (Dao-AILab/flash-attention, README: head dimensions up to 256).
FLASH_WIDTH: Final = 256
ExpertRows = Annotated[float, Field(ge=0, le=1024)]  # over those that balanced routing sends


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
    expert_buffers: tuple[ExpertRows, ExpertRows] | None = Field(
        None,
        description="rows over those that balanced routing sends a rank's experts, received into a buffer of one size "
        "(moe_expert_rank_capacity_factor) and kept for the backward pass (moe_paged_stash's factor on the device; as "
        "many without it); absent: as many as come",
    )
    expert_padding: ExpertRows = Field(
        0.0,
        description="rows of every expert over those that balanced routing sends it: more are dropped, fewer padded "
        "(moe_expert_capacity_factor with moe_pad_expert_input_to_capacity); 0: as many as come",
    )
    rotates_texts: bool = Field(
        False, description="packed documents are rotated one by one, by separate unfused ops"
    )
    loss: OneLoss = VocabParallel()
    dropout: bool = False
    kept_widths: KeptWidths = KeptWidths.NOTHING
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

    @field_validator("expert_buffers")
    @classmethod
    def _kept_were_received(cls, rows: tuple[float, float] | None) -> tuple[float, float] | None:
        if rows is not None and rows[1] > rows[0]:
            raise ValueError("no more rows can be kept for the backward pass than are received")
        return rows

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
    step_overhead: Seconds = Field(
        0.043,
        ge=0,
        le=10,
        description="logging, data loader, gradient clipping per step; a start value: the median of the eight fitted "
        "ones, of 10 to 574 ms",
    )
    tensor_update: Seconds = Field(
        0.0, ge=0, le=1e-3, description="added per step for every tensor of which a rank updates a part"
    )


class Communication(Section):
    """Which part of each collective is not hidden, and how well it uses the links [1]."""

    tp_exposed: float = Field(
        1.0,
        ge=0,
        le=3,
        description="exposed share of tensor-parallel time in a node; below 1 where collectives run in parts under "
        "products, for which Megatron's launch files ask (user buffers of Transformer Engine)",
    )
    tp_exposed_nodes: float = Field(1.6, ge=0, le=5, description="the same when tp crosses nodes")
    key_value_heads: KeyValueHeads = Field(
        KeyValueHeads.COPIED, description="what becomes of key/value heads where tp exceeds them"
    )
    cp_exchange: ContextExchange = Field(
        ContextExchange.RING,
        description="how context parallelism passes keys and values on where p2p is asked for; none: there is none",
    )
    dispatcher: Dispatcher = Field(
        Dispatcher.ALL_TO_ALL, description="how tokens reach experts of other ranks; none: there are none"
    )
    ep_exposed: float = Field(1.0, ge=0, le=3, description="time of dispatch and combine over the link model")
    ep_overlap: float = Field(
        0.0, ge=0, le=1, description="share of a layer's compute that hides dispatch and combine"
    )
    p2p_exposed: float = Field(
        1.0, ge=0, le=3, description="exposed share of 1F1B sends; interleaved hides them"
    )
    dp_time: float = Field(
        1.0, ge=0.3, le=10, description="gradient and parameter collectives over the link model"
    )
    dp_overlap: float = Field(
        0.8,
        ge=0,
        le=1,
        description="share of the compute beside it that hides data parallelism, as far as the engine lets it",
    )

    @property
    def gathers_qkv(self) -> bool:
        """Are queries, keys and values gathered whole where tp exceeds the key/value heads?"""
        return self.key_value_heads is KeyValueHeads.GATHERED

    @property
    def tp_overlapped(self) -> bool:
        """Do tensor-parallel collectives run under products?"""
        return self.tp_exposed < 1
