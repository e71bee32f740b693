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
    """LIBRARY: kernels of Megatron, Transformer Engine or XLA. TORCH: PyTorch's modules, compiled or not. MODELLING:
    Hugging Face transformers' modelling code, operation by operation but for what Liger's kernels do. MODULES:
    nanotron's layers. ALEPH: Aleph Alpha's."""

    LIBRARY = "library"
    TORCH = "torch"
    MODELLING = "modelling"
    MODULES = "modules"
    ALEPH = "aleph"


class Code(Section):
    """What every kind has. Of a kind itself:

    `single`: whether what has no kernel of its own is counted as single operations.
    `norm_bytes`: kept by an RMS norm without a kernel beside its input [bytes per hidden value].
    `stream_extra`: further bytes that a layer keeps [bytes per hidden value].
    `score_bytes`: kept without flash attention; 0: counted op by op [bytes per score].
    `boundary_bytes`: kept of each micro-batch that a pipeline stage has in flight [bytes per hidden value].
    `pins_qkv`: whether MHA's rotated queries keep the fused q, k, v tensor alive beside a copy of keys and values.
    `keeps_gathered`: whether a sequence-parallel linear layer keeps its gathered input instead of its shard.
    """

    single: ClassVar[bool] = False
    boundary_bytes: ClassVar[float] = 0.0
    pins_qkv: ClassVar[bool] = False
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
        """Has what PyTorch's programs run so kernels for all parts? torch.compile makes them."""
        return len(self.fused) == len(Part) and not self.single

    @property
    def eager(self) -> bool:
        """Does PyTorch run experts' outputs and 4-bit weights operation by operation? The ones are cast to fp32,
        weighed and cast back, and kept in fp32; the others dequantised by separate operations."""
        return False


class _Counted(Code):
    norm_bytes: ClassVar[float] = 4.0
    stream_extra: ClassVar[float] = 0.0
    score_bytes: ClassVar[float] = 0.0


class Library(_Counted):
    """Kernels written for training."""

    kind: Literal[CodeKind.LIBRARY] = CodeKind.LIBRARY


class Torch(_Counted):
    """Norms are torch.nn.RMSNorm's: peaks of runs without compilation show no upcast copies. Experts: torchtitan 0.3.0
    models/common/token_dispatcher.py LocalTokenDispatcher.combine; weights: torchao 0.18
    NF4Tensor.get_original_weight."""

    norm_bytes: ClassVar[float] = 0.0

    kind: Literal[CodeKind.TORCH] = CodeKind.TORCH

    @property
    def eager(self) -> bool:
        return not self.fused_activation


class Modelling(_Counted):
    """transformers' modelling code without torch.compile."""

    single: ClassVar[bool] = True

    kind: Literal[CodeKind.MODELLING] = CodeKind.MODELLING
    fused: tuple[Part, ...] = Field((), description="parts of a layer that Liger's kernels do")


class Modules(_Counted):
    """nanotron's: rotary in place on a view of the permuted q, k, v, keys and values copied by torch.cat; the output
    that a stage has sent stays until its gradient comes (huggingface/nanotron, branch nouamane/bench2, models/llama.py,
    parallel/tensor_parallel/functional.py)."""

    boundary_bytes: ClassVar[float] = 2.0
    pins_qkv: ClassVar[bool] = True

    kind: Literal[CodeKind.MODULES] = CodeKind.MODULES
    fused: tuple[Part, ...] = WITHOUT_ACTIVATION


class Aleph(Code):
    """Aleph Alpha's (Aleph-Alpha/scaling of 2024, src/scaling/core/nn and transformer/model): sequence parallelism
    gathers behind the norm, and linear layers keep what they get (norm/rms_norm.py); values, a view of the fused q, k,
    v, stay beside the rotated queries and keys (attention.py); as does the output that a stage has sent."""

    boundary_bytes: ClassVar[float] = 2.0
    pins_qkv: ClassVar[bool] = True
    keeps_gathered: ClassVar[bool] = True

    kind: Literal[CodeKind.ALEPH] = CodeKind.ALEPH
    fused: tuple[Part, ...] = WITHOUT_ACTIVATION
    norm_bytes: float = Field(4.0, ge=0, le=16, description="fp32 copies of a norm without a kernel")
    stream_extra: float = Field(0.0, ge=0, le=16, description="further bytes a layer keeps per hidden value")
    score_bytes: float = Field(0.0, ge=0, le=16, description="bytes of a softmax in fp32 and its copy")


LayerCode = Annotated[
    Library | Torch | Modelling | Modules | Aleph, Field(discriminator="kind"), of_a_kind(CodeKind)
]
