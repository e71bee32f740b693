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
    REMADE = "remade"
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
    all ranks of the group, which reduce-scatter what their experts make of it (Megatron-Core's default). NONE: the
    software deals no experts to ranks; where asked all the same, by NCCL's all-to-all, as Megatron-Core does.
    DEEPSEEK_V3 is DeepEP as DeepSeek-V3 was trained with it (arXiv 2412.19437): tokens are sent in 8 bits, and
    overlapped pairs of DualPipe hide the exchange.
    """

    NONE = "none"
    ALL_TO_ALL = "all-to-all"
    ALL_GATHER = "all-gather"
    DEEPEP = "deepep"
    HYBRIDEP = "hybridep"
    DEEPSEEK_V3 = "deepseek-v3"

    @property
    def fused(self) -> bool:
        """Is it a fused kernel, with buffers of its own?"""
        return self in (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP, Dispatcher.DEEPSEEK_V3)

    @property
    def is_deepep(self) -> bool:
        """Is it one of DeepEP's kernels?"""
        return self in (Dispatcher.DEEPEP, Dispatcher.DEEPSEEK_V3)

    @property
    def sent_bytes(self) -> float | None:
        """Of a value on its way to experts [bytes]: fp8 with one fp32 scale per 128 values (section 3.3.3); None: as
        wide as activations."""
        return 1.0 + 4.0 / 128 if self is Dispatcher.DEEPSEEK_V3 else None

    @property
    def pair_share(self) -> float | None:
        """Compute units that communication takes where overlapped pairs hide dispatch and combine under the other
        micro-batch's compute [1]: 20 of an H800's 132 (sections 3.2.1 and 3.2.2); None: they hide nothing."""
        return 0.1515 if self is Dispatcher.DEEPSEEK_V3 else None

    @property
    def exchanges_all(self) -> bool:
        """Is it NCCL's all-to-all?"""
        return self in (Dispatcher.NONE, Dispatcher.ALL_TO_ALL)


class ContextExchange(StrEnum):
    """How a framework's own context parallelism (`cp_kind` p2p) passes keys and values on.

    RING: to the next rank, while attention works on the last ones (Transformer Engine from 2.18 on, which can be asked
    for the others, too). Packed texts are passed on alone by its releases up to 2.10, RING_2_10; from 2.11 on their
    heads are dealt by all-to-all, too, and put in order one by one (RING_2_17, NVIDIA/TransformerEngine@a75da0c), from
    2.18 on gathered as well, and put in order by one kernel (@7010118). GATHERED_RING: all are gathered first,
    attention still works on one rank's after another's (torch, rotate method allgather). GATHER: all are gathered and
    attended in one kernel (torch's FlexAttention, MaxText). ALL_TO_ALL: each rank gets whole texts of some heads
    (DeepSpeed's Ulysses). NONE: the software has no context parallelism; where asked all the same, as RING.
    """

    NONE = "none"
    RING = "ring"
    RING_2_10 = "ring-te-2.10"
    RING_2_17 = "ring-te-2.17"
    GATHERED_RING = "gathered-ring"
    GATHER = "gather"
    ALL_TO_ALL = "all-to-all"


class KeyValueHeads(StrEnum):
    """What becomes of key/value heads where tensor-parallel ranks outnumber them: REFUSED, COPIED, or queries, keys and
    values GATHERED whole behind their product (Megatron-Core from 0.16 on, Megatron-LM#2565)."""

    REFUSED = "refused"
    COPIED = "copied"
    GATHERED = "gathered"


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
    """How layers are dealt to stages: evenly, by cost (an explicit layout), or greedily, by nanotron's rule."""

    EVEN = "even"
    BALANCED = "balanced"
    GREEDY = "greedy"
