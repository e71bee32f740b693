"""The kinds that a stack chooses among: of attention, its context and its chosen keys, loss, float8, dispatch of
tokens, split of layers."""

from __future__ import annotations

from enum import StrEnum


class AttentionKernel(StrEnum):
    """Which attention kernel runs. FLASH is the fastest the accelerator has, the one the kernel tables timed;
    FLASH_2 is FlashAttention-2, which leaves Hopper and later half idle; FLASH_TRITON is FlashAttention as written in
    Triton before its compiler became MLIR (MPT's, for its biases on scores). MEMORY_EFFICIENT is the kernel that
    PyTorch's `scaled_dot_product_attention` takes where it is given a mask: it works on the whole square."""

    FLASH = "flash"
    FLASH_2 = "flash-2"
    FLASH_TRITON = "flash-triton"
    MEMORY_EFFICIENT = "memory-efficient"
    FUSED_SOFTMAX = "fused-softmax"
    EAGER = "eager"

    @property
    def is_flash(self) -> bool:
        return self in (AttentionKernel.FLASH, AttentionKernel.FLASH_2, AttentionKernel.FLASH_TRITON)

    @property
    def tiled(self) -> bool:
        """Does it keep statistics of the scores instead of scores?"""
        return self.is_flash or self is AttentionKernel.MEMORY_EFFICIENT


class SparseKernel(StrEnum):
    """Which kernels attend to the keys that an indexer chose (Megatron-LM's --dsa-kernel-backend): FlashMLA's and
    cuDNN's, TileLang's, or PyTorch's operations on all scores."""

    CUDNN = "cudnn"
    TILELANG = "tilelang"
    NONE = "none"


class CrossEntropy(StrEnum):
    """How the loss is computed (`spec.stack.losses`)."""

    EAGER = "eager"
    VOCAB_PARALLEL = "vocab-parallel"
    COMPILED = "compiled"
    FUSED = "fused"
    CHUNKED = "chunked"
    LINEAR = "linear"


class StaysGathered(StrEnum):
    """Which parameters `fully_shard` keeps gathered from the forward to the backward pass: none, final norm and head,
    all of the root's own (embedding, norm, head), or these and the last layer's."""

    NOTHING = "nothing"
    HEAD = "head"
    ROOT = "root"
    LAST_LAYER = "last-layer"


class TorchPipelining(StrEnum):
    """Release of torch.distributed.pipelining whose stages run a pipeline: TORCH_2_6 keeps outputs of all micro-batches
    until the next step, TORCH_2_13 drops them (torchtitan 0.3.0 trainer.py return_outputs=False)."""

    TORCH_2_6 = "torch-2.6"
    TORCH_2_13 = "torch-2.13"


class Dispatcher(StrEnum):
    """How tokens reach their experts: NCCL all-to-all, or a fused kernel that sends each token once per node.

    DEEPEP's kernels were tuned for Hopper; HYBRIDEP's fill the links of Blackwell too. ALL_GATHER hands every token to
    all ranks of the group, which reduce-scatter what their experts make of it (Megatron-Core's default).
    """

    ALL_TO_ALL = "all-to-all"
    ALL_GATHER = "all-gather"
    DEEPEP = "deepep"
    HYBRIDEP = "hybridep"

    @property
    def fused(self) -> bool:
        """Is it a fused kernel, with buffers of its own?"""
        return self in (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP)


class ContextExchange(StrEnum):
    """How a framework's own context parallelism (`cp_kind` p2p) passes keys and values on.

    RING: to the next rank, while attention works on the last ones (Transformer Engine, which can be asked for the
    others, too). GATHERED_RING: all are gathered first, attention still works on one rank's after another's (torch,
    rotate method allgather). GATHER: all are gathered and attended in one kernel (torch's FlexAttention, MaxText).
    ALL_TO_ALL: each rank gets whole texts of some heads (DeepSpeed's Ulysses).
    """

    RING = "ring"
    GATHERED_RING = "gathered-ring"
    GATHER = "gather"
    ALL_TO_ALL = "all-to-all"


class PackedContext(StrEnum):
    """What packed texts can be exchanged by under context parallelism, and how those are put in order that come whole.

    Transformer Engine: RING, keys and values passed on alone, up to 2.10; SINGLY, also heads dealt by all-to-all,
    whose texts are put in order one by one, from 2.11 on (NVIDIA/TransformerEngine@a75da0c); FUSED, also keys and
    values gathered, and all texts put in order by one kernel, from 2.18 on (@7010118).
    """

    RING = "ring"
    SINGLY = "singly"
    FUSED = "fused"


class NarrowKept(StrEnum):
    """What a layer keeps in fewer bits than it has: SWIGLU: a gated activation's input, in 8 (Transformer Engine's
    activation_func_fp8_input_store). SWIGLU_AND_ATTENTION: that and attention's output in 12, E5M6, for attention's
    backward pass and the projection's together (DeepSeek-V3, arXiv 2412.19437, section 3.3.3)."""

    NOTHING = "nothing"
    SWIGLU = "swiglu"
    SWIGLU_AND_ATTENTION = "swiglu-and-attention"


class FusedLinear(StrEnum):
    """Which linear layers are one: q, k and v as well as gate and up, in Megatron's models and nanotron's; q, k and v
    alone (torchtitan 0.3.0); none."""

    ALL = "all"
    QKV = "qkv"
    NONE = "none"


class Float8Scales(StrEnum):
    """Scales of torchao's float8: one a TENSOR, or one for every ROW (and column) of values that a product sums."""

    TENSOR = "tensor"
    ROW = "row"


class RecomputedLayers(StrEnum):
    """How many layers of a rank may be fully recomputed: any, one of every so many, or all."""

    ANY = "any"
    EVERY = "every"
    ALL = "all"


class PipelineSplit(StrEnum):
    """How layers are dealt to stages: evenly, by cost (an explicit layout), or nanotron's greedy rule."""

    EVEN = "even"
    BALANCED = "balanced"
    NANOTRON = "nanotron"
