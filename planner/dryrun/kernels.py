"""What do kernels ask of the allocator while an operation runs, beside its results?

Sources: pytorch/pytorch aten/src/ATen/cuda/CublasHandlePool.cpp (`parseChosenWorkspaceSize`),
aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (`mha_bwd`, `mha_varlen_bwd`), attention_backward.cu
(`_efficient_attention_backward`) and mem_eff_attention/kernel_backward.h (`workspace_size`). Left out: what is smaller
than a mebibyte, such as the places that sums of norms and sorted rows of embeddings take; devices whose blocks share
less than 160 KiB, which run smaller kernels of memory-efficient attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from planner.spec.kernel_space import FP32, masked_space, padded_width

_MIB: Final = 2**20
PRODUCTS: Final = frozenset(
    f"aten.{name}.{way}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_mm")
    for way in ("default", "out")
)
_SDPA_FLASH_BACKWARD: Final = "aten._scaled_dot_product_flash_attention_backward.default"
_FLASH_BACKWARD: Final = "aten._flash_attention_backward.default"
_EFFICIENT_BACKWARD: Final = "aten._scaled_dot_product_efficient_attention_backward.default"
_ROWS: Final = 128  # of queries that a block of the backward kernel takes


def workspace(capability: tuple[int, int]) -> int:
    """What cuBLAS is given by each thread that multiplies matrices, for good [bytes]: 32 MiB from Hopper on, else 4,096
    KiB twice and 16 KiB eight times. The backward pass runs in a thread of its own."""
    return 32 * _MIB if capability >= (9, 0) else 2 * 4 * _MIB + 8 * 16 * 1024


def asked_inside(name: str, args: tuple[Any, ...], made: Sequence[Any]) -> list[int]:
    """Blocks that an operation holds until it returns [bytes]."""
    if name == _SDPA_FLASH_BACKWARD:  # (batch, heads, length, width)
        query, key = args[1], args[2]
        batch, heads, length, _ = query.shape
        return _flash_backward(query, key, key.shape[1], batch * (-(-length // _ROWS) * _ROWS), heads)
    if name == _FLASH_BACKWARD:  # (batch, length, heads, width), or texts end to end (tokens, heads, width)
        query, key, ends = args[1], args[2], args[6]
        if ends is None:
            batch, length, heads, _ = query.shape
            rows = batch * (-(-length // _ROWS) * _ROWS)
        else:
            rows, heads = query.shape[0] + _ROWS * (ends.numel() - 1), query.shape[1]
        return _flash_backward(query, key, key.shape[-2], rows, heads)
    return _efficient_backward(*args[:4]) if name == _EFFICIENT_BACKWARD else []


def _flash_backward(query: Any, key: Any, key_heads: int, rows: int, heads: int) -> list[int]:
    """Sums of a row, gradients of queries in fp32, and where queries share keys their gradients head by head."""
    wide = padded_width(query.shape[-1])
    blocks = [heads * rows * FP32, heads * rows * wide * FP32]
    if key_heads != heads:
        blocks += 2 * [key.numel() // key_heads * heads * query.element_size()]
    return blocks


def _efficient_backward(gradient: Any, query: Any, key: Any, value: Any) -> list[int]:
    """Sums of a row, and gradients in fp32 by tiles, of (batch, heads, length, width). A gradient in another order of
    dimensions is copied."""
    batch, heads, length, width = query.shape
    space = masked_space(batch, heads, length, key.shape[2], (width, value.shape[3]), query.element_size())
    blocks = [batch * heads * length * FP32, space]
    copied = not gradient.transpose(1, 2).is_contiguous()
    return [gradient.numel() * gradient.element_size(), *blocks] if copied else blocks
