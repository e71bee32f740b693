"""What decides how long a training software takes? Its kernels, their rates, its host, and what it exchanges how.

Left out: what it keeps in memory (`spec/stack/engines.py`, `spec/stack/memory.py`).
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from planner.spec.attention import Attention
from planner.spec.precision import Dtype
from planner.spec.stack.kinds import (
    AttentionKernel,
    ContextExchange,
    CrossEntropy,
    Dispatcher,
    Float8Scales,
    KeyValueHeads,
    SparseKernel,
)
from planner.spec.stack.section import Seconds, Section

# FlashAttention's widest head (Dao-AILab/flash-attention, README: head dimensions up to 256).
FLASH_WIDTH: Final = 256


class Kernels(Section):
    """Which kernels a layer is made of; decides saved activations and memory-bound time."""

    attention: AttentionKernel = AttentionKernel.FLASH
    fused_mla_on_blackwell: bool = Field(
        True,
        description="has fused attention for multi-head latent attention on Blackwell; else its softmax alone is fused",
    )
    sparse_attention: SparseKernel | None = Field(
        None, description="kernels of attention behind an indexer; absent: the software has none"
    )
    fused_norm: bool = True
    fused_activation: bool = True
    single_operations: bool = Field(
        False,
        description="norms, rotary embedding, activation, sums and loss run operation by operation, as Hugging Face "
        "transformers' modelling code does without torch.compile (cost/operations/), but for those with fused kernels",
    )
    fused_experts: bool = Field(
        False,
        description="in fp8_mx on Blackwell grouped GEMMs apply the experts' gated activation and quantise what "
        "they write (Transformer Engine's CuTe DSL grouped MLP)",
    )
    expert_capacity: float = Field(
        0.0,
        ge=0,
        le=1024,
        description="rows of every rank's experts over those that balanced routing sends it, received into a buffer of "
        "one size (moe_expert_rank_capacity_factor); 0: as many as come",
    )
    expert_stash: float = Field(
        0.0,
        ge=0,
        le=1024,
        description="rows kept for the backward pass over balanced ones, in pages of one buffer (moe_paged_stash, its "
        "factor on the device); 0: all of the capacity",
    )
    expert_padding: float = Field(
        0.0,
        ge=0,
        le=1024,
        description="rows of every expert over those that balanced routing sends it: more are dropped, fewer padded "
        "(moe_expert_capacity_factor with moe_pad_expert_input_to_capacity); 0: as many as come",
    )
    fused_rotary: bool = Field(
        False, description="beside separate unfused ops: queries and keys are rotated by one kernel"
    )
    rotates_texts: bool = Field(
        False, description="packed documents are rotated one by one, by separate unfused ops"
    )
    cross_entropy: CrossEntropy = CrossEntropy.VOCAB_PARALLEL
    dropout: bool = False
    saves_gathered_input: bool = Field(
        False, description="keeps the all-gathered input of a sequence-parallel linear instead of its shard"
    )
    eager_norm_bytes: float = Field(
        4.0, ge=0, le=16, description="kept by an unfused RMS norm beside its inputs, per hidden value"
    )
    stream_extra: float = Field(0.0, ge=0, le=16, description="further bytes a layer keeps per hidden value")
    score_bytes: float = Field(
        0.0, ge=0, le=16, description="kept per attention score without flash attention; 0: counted op by op"
    )
    activation_input_bytes: float = Field(
        0.0,
        ge=0,
        le=4,
        description="kept per value of the MLP's activation input (activation_func_fp8_input_store: 1); "
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
    pins_fused_qkv: bool = Field(
        False,
        description="MHA's rotated queries keep the fused q, k, v tensor alive beside a copy of keys and values",
    )
    fused_qkv: bool = Field(
        False, description="q, k and v are one linear layer where linear layers are counted one by one"
    )
    probs_in_activation: bool = Field(
        False,
        description="routing probabilities weigh the expert's activation, so that its output is not kept",
    )
    weighs_outputs_apart: bool = Field(
        False,
        description="experts' outputs are cast to fp32, weighed and cast back by separate ops, and kept in fp32",
    )
    float8_scales: Float8Scales | None = Field(
        None,
        description="fp8_cs is torchao's float8, with these scales; absent: Transformer Engine's current scaling",
    )
    eager_dequantise: bool = Field(
        False,
        description="frozen 4-bit weights are dequantised by separate unfused ops of PyTorch (torchao, not compiled)",
    )
    loss_bytes: float = Field(4.0, ge=2, le=4, description="bytes per logit in an unfused loss")
    loss_peak: float = Field(
        3.0,
        ge=1,
        le=6,
        description="copies of the logits in `loss_bytes` alive at the peak of an unfused loss, and blocks of their "
        "size that something small keeps from them",
    )
    split_loss_peak: float = Field(
        0.0, ge=0, le=4, description="the same of a loss on logits that tp ranks split; 0: as `loss_peak`"
    )
    loss_chunks: int = Field(8, ge=1, description="parts of the logits that a chunked loss works on in turn")
    loss_again: bool = Field(
        False,
        description="a chunked loss makes its logits again in the backward pass (MaxText's num_vocab_tiling)",
    )
    loss_adds_in_product: bool = Field(
        False,
        description="a linear loss adds a part's gradient of the head's weight to the sum in the product that makes it "
        "(Liger before 0.6.2)",
    )
    idle_scores: float = Field(
        0.0,
        ge=0,
        le=3,
        description="tensors of an unfused softmax's scores whose blocks lie idle at an unfused loss",
    )
    whole_logit_bytes: float = Field(
        0.0,
        ge=0,
        le=16,
        description="bytes per logit of the whole vocabulary that every tp rank holds at the loss",
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
        0.01,
        ge=0,
        le=10,
        description="logging, data loader, gradient clipping per step; 10 and 11 ms where sweeps tell it "
        "(megatron-deepspeed-2022, megatron-2026)",
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
