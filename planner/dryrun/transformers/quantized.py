"""What do linear layers of 4 and 8 bits hold and ask for, as bitsandbytes keeps and runs them?

The package's kernels run on a device alone, so that these modules stand for its `Linear4bit` and `Linear8bitLt`:
tensors of the same bytes, and in both passes the same ones made and kept. Source: bitsandbytes 0.50 functional.py
(`quantize_4bit`, `quantize_blockwise`), autograd/_functions.py (`MatMul4Bit`, `MatMul8bitLt`), backends/cuda/ops.py;
which layers, transformers 5.17 integrations/bitsandbytes.py (`replace_with_bnb_linear`). 4 bits are NF4 with doubly
quantised scales, as in QLoRA. Left out: kernels for at most 1,536 tokens, which make no weight of 16 bits, and columns
of outliers of 8 bits, which follow from activations.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn import functional
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.quantizers.quantizers_utils import should_convert_module

from planner.dryrun.transformers.stand_in import stand_in

BLOCK: Final = 64  # weights that share a scale
SCALES: Final = 256  # scales that share another
CODES_4, CODES_8 = 16, 256  # numbers that a code stands for
OUTLIER: Final = 6.0  # llm_int8_threshold

_dequantize_scales = stand_in(
    "bitsandbytes_dequantize_blockwise(Tensor codes, Tensor scales, Tensor table) -> Tensor",
    lambda codes, scales, table: torch.empty(codes.shape, dtype=torch.float32),
)
_dequantize_4 = stand_in(
    "bitsandbytes_dequantize_4bit(Tensor codes, Tensor scales, int rows, int columns, ScalarType dtype) -> Tensor",
    lambda codes, scales, rows, columns, dtype: torch.empty(rows, columns, dtype=dtype),
)
_quantize_rows = stand_in(
    "bitsandbytes_int8_vectorwise_quant(Tensor rows) -> (Tensor, Tensor)",
    lambda rows: (torch.empty(rows.shape, dtype=torch.int8), torch.empty(rows.shape[0])),
)
_product_8 = stand_in(
    "bitsandbytes_int8_linear_matmul(Tensor rows, Tensor weight) -> Tensor",
    lambda rows, weight: torch.empty(rows.shape[0], weight.shape[0], dtype=torch.int32),
)
_dequantize_product = stand_in(
    "bitsandbytes_int8_mm_dequant(Tensor sums, Tensor row_scales, Tensor weight_scales) -> Tensor",
    lambda sums, row_scales, weight_scales: torch.empty(sums.shape, dtype=torch.float16),
)


def quantize(model: Any, bits: int, compute: Any) -> None:
    """Have linear layers of a model hold their weights in 4 or 8 bits; those of 4 run in the `compute` format."""
    kept = [*get_keys_to_not_convert(model), *(model._keep_in_fp32_modules or ())]
    for name, module in list(model.named_modules()):
        if type(module) is torch.nn.Linear and should_convert_module(name, kept):
            model.set_submodule(name, Linear4(module, compute) if bits == 4 else Linear8(module))


class Quantized(torch.nn.Linear):  # type: ignore[misc]  # torch is not checked
    """A linear layer with codes for weights."""

    def __init__(self, plain: Any, codes: Any) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight = torch.nn.Parameter(codes, requires_grad=False)
        self.bias = plain.bias
        if self.bias is not None:
            self.bias.requires_grad_(False)

    @property
    def W_q(self) -> Any:  # noqa: N802
        """By this PEFT knows that it has to ask for the weight (utils/integrations.py `dequantize_module_weight`)."""
        return self.weight


class Linear4(Quantized):
    """Two weights a byte, scales of a byte, scales of these, and tables of codes."""

    def __init__(self, plain: Any, compute: Any) -> None:
        number = plain.weight.numel()
        super().__init__(plain, torch.empty((number + 1) // 2, 1, dtype=torch.uint8))
        blocks = -(-number // BLOCK)
        self.dtype, self.compute_dtype = plain.weight.dtype, compute
        for name, tensor in {
            "scales": torch.empty(blocks, dtype=torch.uint8),
            "table": torch.empty(CODES_4),
            "offset": torch.empty(()),
            "scales_of_scales": torch.empty(-(-blocks // SCALES)),
            "table_of_scales": torch.empty(CODES_8),
        }.items():
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, x: Any) -> Any:
        """In the format that it computes in, and back."""
        return _Product4.apply(x.to(self.compute_dtype), self).to(x.dtype)

    def dequantize(self, dtype: Any = None, forward: bool = False) -> Any:
        """The weight of 16 or 32 bits."""
        scales = _dequantize_scales(self.scales, self.scales_of_scales, self.table_of_scales)
        scales = scales + self.offset if forward else scales.add_(self.offset)
        return _dequantize_4(self.weight, scales, self.out_features, self.in_features, dtype or self.dtype)


class _Product4(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, layer: Linear4) -> Any:
        ctx.layer = layer
        bias = None if layer.bias is None else layer.bias.to(x.dtype)
        return functional.linear(x, layer.dequantize(x.dtype, forward=True), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return torch.matmul(gradient, ctx.layer.dequantize().to(gradient.dtype)), None


class Linear8(Quantized):
    """A byte a weight, and a scale of each row."""

    def __init__(self, plain: Any) -> None:
        super().__init__(plain, torch.empty(plain.weight.shape, dtype=torch.int8))
        self.register_buffer("scales", torch.empty(plain.out_features), persistent=False)

    def forward(self, x: Any) -> Any:
        """In whole numbers."""
        return _Product8.apply(x, self)

    def dequantize(self) -> Any:
        """The weight of 32 bits (`int8_vectorwise_dequant`)."""
        return self.weight * self.scales[:, None] * (1 / 127)


class _Product8(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, layer: Linear8) -> Any:
        rows = x.reshape(-1, x.shape[-1])
        codes, scales = _rows_quantized(rows.to(torch.float16))
        result = _multiplied(codes, scales, layer, x.dtype)
        ctx.layer, ctx.shape, ctx.dtype = layer, x.shape, x.dtype
        ctx.rows = rows if ctx.needs_input_grad[0] else None  # held, as bitsandbytes does, and not read again
        return result.reshape(*x.shape[:-1], layer.out_features)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        layer = ctx.layer
        gradient = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        weight = layer.weight.to(ctx.dtype, copy=True).mul_(layer.scales.unsqueeze(1).mul(1 / 127))
        return torch.matmul(gradient.to(ctx.dtype), weight).view(ctx.shape), None


def _rows_quantized(half: Any) -> Any:
    outliers = half.abs() >= OUTLIER
    outliers.any()
    return _quantize_rows(half)


def _multiplied(codes: Any, scales: Any, layer: Linear8, dtype: Any) -> Any:
    sums = _product_8(codes, layer.weight)
    result = _dequantize_product(sums, scales, layer.scales)
    if layer.bias is not None and layer.bias.dtype != torch.float16:
        result.add_(layer.bias)
    return result.to(dtype)
