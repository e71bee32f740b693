"""Which number formats does a training recipe compute, store and send in?

Names follow Megatron-LM and Transformer Engine (`--fp8-recipe`, `--fp4-format`). Left out: first and last layers in
bf16, which the job states.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Dtype(StrEnum):
    """A number format of the tensor cores; the key of peak rates and kernel tables."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"


class Precision(StrEnum):
    """A mixed-precision recipe."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"  # delayed scaling
    FP8_CS = "fp8_cs"  # per-tensor current scaling
    FP8_MX = "fp8_mx"  # MXFP8, one scale per 32 values
    FP8_BLOCKWISE = "fp8_blockwise"  # 128 x 128 weight and 1 x 128 activation blocks (DeepSeek-V3)
    NVFP4 = "nvfp4"

    @classmethod
    def _missing_(cls, value: object) -> Precision | None:
        """The recipe by another of its names: Megatron-LM's `--fp8-recipe` words and common spellings."""
        known = {
            "bfloat16": cls.BF16,
            "float16": cls.FP16,
            "float32": cls.FP32,
            "fp8_delayed": cls.FP8,
            "fp8_tensorwise": cls.FP8_CS,
            "mxfp8": cls.FP8_MX,
            "fp4": cls.NVFP4,
        }
        return known.get(value.lower().replace("-", "_")) if isinstance(value, str) else None


@dataclass(frozen=True)
class PrecisionRecipe:
    """What a recipe does to each part of a step.

    `gemm`: format of the linear layers. `other`: format of attention, norms, the residual stream and
    communication. `weight_bytes`, `activation_bytes`: size of one stored value [bytes]. `operand_bytes`: of one value
    as a linear layer reads it, with its share of the scales: 1 byte for 32 values in MXFP8, 4 for 128 in blocks, 1 for
    16 in NVFP4 (Transformer Engine, pytorch/tensor/*_tensor.py) [bytes].
    """

    gemm: Dtype
    other: Dtype
    weight_bytes: float
    activation_bytes: float
    operand_bytes: float


RECIPES: dict[Precision, PrecisionRecipe] = {
    Precision.FP32: PrecisionRecipe(Dtype.TF32, Dtype.FP32, 4, 4, 4),
    Precision.FP16: PrecisionRecipe(Dtype.FP16, Dtype.FP16, 2, 2, 2),
    Precision.BF16: PrecisionRecipe(Dtype.BF16, Dtype.BF16, 2, 2, 2),
    Precision.FP8: PrecisionRecipe(Dtype.FP8, Dtype.BF16, 2, 2, 1),
    Precision.FP8_CS: PrecisionRecipe(Dtype.FP8, Dtype.BF16, 2, 2, 1),
    Precision.FP8_MX: PrecisionRecipe(Dtype.FP8, Dtype.BF16, 2, 2, 1 + 1 / 32),
    Precision.FP8_BLOCKWISE: PrecisionRecipe(Dtype.FP8, Dtype.BF16, 2, 2, 1 + 4 / 128),
    Precision.NVFP4: PrecisionRecipe(Dtype.FP4, Dtype.BF16, 2, 2, 1 / 2 + 1 / 16),
}

_BITS = {Dtype.FP32: 32, Dtype.TF32: 32, Dtype.FP16: 16, Dtype.BF16: 16, Dtype.FP8: 8, Dtype.FP4: 4}


def bits_of(precision: Precision) -> int:
    """Width of the numbers that linear layers compute with [bits]; of TF32 as it is stored."""
    return _BITS[RECIPES[precision].gemm]
