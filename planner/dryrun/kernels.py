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

_MIB: Final = 2**20
PRODUCTS: Final = frozenset(
    f"aten.{name}.{way}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_mm")
    for way in ("default", "out")
)
_SDPA_FLASH_BACKWARD: Final = "aten._scaled_dot_product_flash_attention_backward.default"
_FLASH_BACKWARD: Final = "aten._flash_attention_backward.default"
_EFFICIENT_BACKWARD: Final = "aten._scaled_dot_product_efficient_attention_backward.default"
_FP32: Final = 4
_ROWS: Final = 128  # of queries that a block of the backward kernel takes
_WIDTHS: Final = 32  # of heads, and 256 above the last multiple of it that has a kernel
_WIDEST: Final = 192
# memory-efficient attention from Ampere on, by bytes of a number: queries and keys of a tile, its widest head
_TILES: Final = {
    2: ((64, 64, 32), (64, 64, 64), (128, 128, 128), (128, 64, 65536)),
    4: ((64, 64, 32), (64, 64, 64), (128, 64, 128), (128, 64, 65536)),
}
_LOCK: Final = 16  # bytes beside a tile
_MOST_SPLITS: Final = 200


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
    width = query.shape[-1]
    wide = -(-width // _WIDTHS) * _WIDTHS if width <= _WIDEST else 256
    blocks = [heads * rows * _FP32, heads * rows * wide * _FP32]
    if key_heads != heads:
        blocks += 2 * [key.numel() // key_heads * heads * query.element_size()]
    return blocks


def _efficient_backward(gradient: Any, query: Any, key: Any, value: Any) -> list[int]:
    """Sums of a row, and gradients in fp32 by tiles, each with a lock: of queries; of keys and values in 16 bits too,
    where a tile is smaller than a head. A gradient in another order of dimensions is copied. (batch, heads, length,
    width)."""
    batch, heads, length, width = query.shape
    keys, widest = key.shape[2], max(width, value.shape[3])
    rows, columns, most = next(tile for tile in _TILES[query.element_size()] if widest <= tile[2])
    splits = 1
    floats = -(-length // rows) * -(-width // columns) * (_LOCK // _FP32 + rows * columns)
    if most > rows and query.element_size() < _FP32:
        splits = max(min(-(-keys // columns), _MOST_SPLITS // (batch * heads)), 1)
        floats += splits * columns * sum(-(-one // rows) * rows for one in (width, value.shape[3]))
    blocks = [batch * heads * length * _FP32, batch * heads * (-(-floats // 4) * 4) * _FP32]
    copied = not gradient.transpose(1, 2).is_contiguous()
    return [gradient.numel() * gradient.element_size(), *blocks] if copied else blocks
