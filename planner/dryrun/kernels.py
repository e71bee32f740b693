"""What do kernels ask of the allocator while an operation runs, beside its results?

Sources: pytorch/pytorch aten/src/ATen/cuda/CublasHandlePool.cpp (`parseChosenWorkspaceSize`) and
aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (`mha_bwd`). Left out: what is smaller than a mebibyte,
such as the places that sums of norms and sorted rows of embeddings take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_MIB: Final = 2**20
PRODUCTS: Final = frozenset(
    f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_mm")
)
_FLASH_BACKWARD: Final = (
    "aten._scaled_dot_product_flash_attention_backward.default",
    "aten._flash_attention_backward.default",
)
_FP32: Final = 4
_ROWS: Final = 128  # of queries that a block of the backward kernel takes
_WIDTHS: Final = 32  # of heads, and 256 above the last multiple of it that has a kernel
_WIDEST: Final = 192


def workspace(capability: tuple[int, int]) -> int:
    """What cuBLAS is given by each thread that multiplies matrices, for good [bytes]: 32 MiB from Hopper on, else 4,096
    KiB twice and 16 KiB eight times. The backward pass runs in a thread of its own."""
    return 32 * _MIB if capability >= (9, 0) else 2 * 4 * _MIB + 8 * 16 * 1024


def asked_inside(name: str, args: tuple[Any, ...], made: Sequence[Any]) -> list[int]:
    """Blocks that an operation holds until it returns [bytes]."""
    return _flash_backward(args[1], args[2]) if name in _FLASH_BACKWARD else []


def _flash_backward(query: Any, key: Any) -> list[int]:
    """Sums of a row, gradients of queries in fp32, and where queries share keys their gradients head by head.

    `query`, `key`: (batch, heads, length, width).
    """
    batch, heads, length, width = query.shape
    rows = -(-length // _ROWS) * _ROWS
    wide = -(-width // _WIDTHS) * _WIDTHS if width <= _WIDEST else 256
    blocks = [batch * heads * rows * _FP32, batch * heads * rows * wide * _FP32]
    if key.shape[1] != heads:
        blocks += 2 * [batch * heads * key.shape[2] * width * query.element_size()]
    return blocks
