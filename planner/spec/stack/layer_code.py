"""Which code runs what of a layer is neither a product nor attention: norms, rotation, activation, sums?

Left out: how often it passes over which values, and what else it keeps of them (`cost/operations/`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from planner.spec.stack.section import Section, of_a_kind


class Part(StrEnum):
    """What of a layer is one kernel, or several."""

    NORM = "norm"
    ACTIVATION = "activation"
    ROTARY = "rotary"


WITHOUT_ACTIVATION: Final = (Part.NORM, Part.ROTARY)


class CodeKind(StrEnum):
    """Names of the kinds of code."""

    LIBRARY = "library"
    TORCH = "torch"
    MODELLING = "modelling"
    MODULES = "modules"
    ALEPH = "aleph"
    XLA = "xla"


class Code(Section):
    """What every kind has. Of a kind itself:

    `single`: whether what has no kernel of its own is counted as single operations.
    `norm_bytes`: kept by an RMS norm without a kernel beside its input; `stream_extra`: further ones that a layer
    keeps; `boundary_bytes`: kept of each micro-batch that a pipeline stage has in flight [bytes per hidden value].
    `score_bytes`: kept without flash attention; 0: counted op by op [bytes per score].
    `idle_scores`: tensors of an unfused softmax's scores whose blocks lie idle at the loss [1].
    `pins_qkv`: whether MHA's rotated queries keep the fused q, k, v tensor alive beside a copy of keys and values.
    `keeps_by_name`: whether tensors are kept by name (policies of JAX), not what modules read: attention's output goes
    with its core, and what an activation gives, which has no name, is made again.
    `keeps_gathered`: whether a sequence-parallel linear layer keeps its gathered input instead of its shard.
    """

    single: ClassVar[bool] = False
    boundary_bytes: ClassVar[float] = 0.0
    idle_scores: ClassVar[float] = 0.0
    pins_qkv: ClassVar[bool] = False
    keeps_by_name: ClassVar[bool] = False
    keeps_gathered: ClassVar[bool] = False

    fused: tuple[Part, ...] = Field(tuple(Part), description="parts of a layer that are one kernel each")

    @property
    def fused_norm(self) -> bool:
        """Is a norm one kernel?"""
        return Part.NORM in self.fused

    @property
    def fused_activation(self) -> bool:
        """Is a gated activation one kernel?"""
        return Part.ACTIVATION in self.fused

    @property
    def compiled(self) -> bool:
        """Has it kernels for all parts, which torch.compile makes of PyTorch's programs?"""
        return len(self.fused) == len(Part) and not self.single

    @property
    def eager(self) -> bool:
        """Are experts' outputs cast to fp32, weighed, cast back and kept in fp32, and 4-bit weights dequantised, by
        PyTorch's operations?"""
        return False


class _Counted(Code):
    norm_bytes: ClassVar[float] = 4.0
    stream_extra: ClassVar[float] = 0.0
    score_bytes: ClassVar[float] = 0.0


class Library(_Counted):
    """Kernels of Megatron or Transformer Engine."""

    kind: Literal[CodeKind.LIBRARY] = CodeKind.LIBRARY


class XlaCode(_Counted):
    """Programs that XLA compiles. MaxText names queries, keys, values, attention's output ("context"), what its
    projection gives and what an MLP's first products give (layers/attentions.py, attention_op.py, linears.py
    checkpoint_name)."""

    keeps_by_name: ClassVar[bool] = True

    kind: Literal[CodeKind.XLA] = CodeKind.XLA


class Torch(_Counted):
    """PyTorch's modules, compiled or not. Norms are torch.nn.RMSNorm's: peaks of runs without compilation show no
    upcast copies. Experts: torchtitan 0.3.0 models/common/token_dispatcher.py LocalTokenDispatcher.combine; weights:
    torchao 0.18 NF4Tensor.get_original_weight."""

    norm_bytes: ClassVar[float] = 0.0

    kind: Literal[CodeKind.TORCH] = CodeKind.TORCH

    @property
    def eager(self) -> bool:
        return not self.fused_activation


class Modelling(_Counted):
    """Hugging Face transformers' modelling code, operation by operation but for what Liger's kernels do."""

    single: ClassVar[bool] = True

    kind: Literal[CodeKind.MODELLING] = CodeKind.MODELLING
    fused: tuple[Part, ...] = Field((), description="parts of a layer that Liger's kernels do")


class Modules(_Counted):
    """nanotron's layers: rotary in place on a view of the permuted q, k, v, keys and values copied by torch.cat; the
    output that a stage has sent stays until its gradient comes (huggingface/nanotron, branch nouamane/bench2,
    models/llama.py, parallel/tensor_parallel/functional.py)."""

    boundary_bytes: ClassVar[float] = 2.0
    pins_qkv: ClassVar[bool] = True

    kind: Literal[CodeKind.MODULES] = CodeKind.MODULES
    fused: tuple[Part, ...] = WITHOUT_ACTIVATION


class Aleph(Code):
    """Aleph Alpha's layers (Aleph-Alpha/scaling of 2024, src/scaling/core/nn and transformer/model): sequence
    parallelism gathers behind the norm, and linear layers keep what they get (norm/rms_norm.py); values, a view of the
    fused q, k, v, stay beside the rotated queries and keys (attention.py), as what a stage has sent does."""

    boundary_bytes: ClassVar[float] = 2.0
    idle_scores: ClassVar[float] = (
        3.0  # all that a layer's forward pass writes: scores, softmax, its copy in 16 bits
    )
    pins_qkv: ClassVar[bool] = True
    keeps_gathered: ClassVar[bool] = True

    kind: Literal[CodeKind.ALEPH] = CodeKind.ALEPH
    fused: tuple[Part, ...] = WITHOUT_ACTIVATION
    norm_bytes: float = Field(4.0, ge=0, le=16, description="fp32 copies of a norm without a kernel")
    stream_extra: float = Field(0.0, ge=0, le=16, description="further bytes a layer keeps per hidden value")
    score_bytes: float = Field(0.0, ge=0, le=16, description="bytes of a softmax in fp32 and its copy")


AnyCode = Library | Torch | Modelling | Modules | Aleph | XlaCode
LayerCode = Annotated[AnyCode, Field(discriminator="kind"), of_a_kind(CodeKind)]
