"""How much memory do kernels of PyTorch's attention ask for while they run backward?

Plain numbers, for tensors as they are and for sizes of a model alike. Left out: what they return.
"""

from __future__ import annotations

from math import ceil
from typing import Final

FP32: Final = 4
_WIDTHS: Final = 32  # of heads, and 256 above the last multiple of it that has a kernel
_WIDEST: Final = 192
# memory-efficient attention from Ampere on, by bytes of a number: queries and keys of a tile, its widest head
_TILES: Final = {
    2: ((64, 64, 32), (64, 64, 64), (128, 128, 128), (128, 64, 65536)),
    4: ((64, 64, 32), (64, 64, 64), (128, 64, 128), (128, 64, 65536)),
}
_LOCK: Final = 16  # bytes beside a tile
_MOST_SPLITS: Final = 200


def padded_width(width: int) -> int:
    """Width of heads in the sums of FlashAttention-2 (csrc/flash_attn/flash_api.cpp)."""
    return ceil(width / _WIDTHS) * _WIDTHS if width <= _WIDEST else 256


def masked_space(
    batch: int, heads: int, length: int, keys: int, widths: tuple[int, int], element: int
) -> int:
    """Gradients in fp32 that memory-efficient attention sums by tiles, each with a lock: of queries, and of keys and
    values in 16 bits where a tile is smaller than a head [bytes]. `widths`: of queries and of values; `element`: bytes
    of a number (aten/native/transformers/cuda/mem_eff_attention/kernel_backward.h)."""
    widest = max(widths)
    rows, columns, most = next(tile for tile in _TILES[element] if widest <= tile[2])
    floats = ceil(length / rows) * ceil(widths[0] / columns) * (_LOCK // FP32 + rows * columns)
    if most > rows and element < FP32:
        splits = max(min(ceil(keys / columns), _MOST_SPLITS // (batch * heads)), 1)
        floats += splits * columns * sum(ceil(one / rows) * rows for one in widths)
    return batch * heads * (ceil(floats / 4) * 4) * FP32
