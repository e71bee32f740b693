"""How does transformers run the package flash_attn, where there is no device for it?

PyTorch has the same kernels, with the same results and the same blocks inside: flash_attn 2.8 flash_attn_interface.py
(`FlashAttnFunc`, `FlashAttnVarlenFunc`), csrc/flash_attn/flash_api.cpp; pytorch/pytorch
aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp. Left out: its versions 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from transformers import PreTrainedModel, modeling_flash_attention_utils

from planner.errors import UnsupportedError

FLASH_ATTENTION: Final = "flash_attention_2"
_ALIGNED: Final = 8  # elements of a head


@contextmanager
def flash_attention() -> Iterator[None]:
    """Have transformers find the package while it is entered."""
    used, own = modeling_flash_attention_utils, PreTrainedModel._check_and_adjust_attn_implementation

    def check(model: Any, asked: str | None, *given: Any, **named: Any) -> Any:
        if asked != FLASH_ATTENTION:
            return own(model, asked, *given, **named)
        if not model._supports_flash_attn:
            must = "packed batches need a model that runs with FlashAttention"
            raise UnsupportedError(must, type(model).__name__, "leave packing out")
        return asked

    before = used._lazy_imports, used._loaded_implementation
    try:
        used._lazy_imports = lambda *_, **__: (
            _plain, _varying, None, used._pad_input, used._unpad_input,
        )  # fmt: skip
        used._loaded_implementation = None
        PreTrainedModel._check_and_adjust_attn_implementation = check
        yield
    finally:
        used._lazy_imports, used._loaded_implementation = before
        PreTrainedModel._check_and_adjust_attn_implementation = own


def _plain(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, deterministic: bool = False,
) -> Any:  # fmt: skip
    """Of sequences of one length (batch, length, heads, width)."""
    return _attended(
        q, k, v, (None, None, q.shape[1], k.shape[1]), dropout_p, softmax_scale, causal, window_size
    )


def _varying(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, deterministic: bool = False,
) -> Any:  # fmt: skip
    """Of sequences end to end (tokens, heads, width); where each begins, and the longest."""
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return _attended(q, k, v, lengths, dropout_p, softmax_scale, causal, window_size)


def _attended(
    q: Any, k: Any, v: Any, lengths: tuple[Any, Any, int, int], dropout: float, scale: float | None, causal: bool,
    window: tuple[int, int],
) -> Any:  # fmt: skip
    width = q.shape[-1]
    scale = width**-0.5 if scale is None else scale
    if width % _ALIGNED:
        q, k, v = (torch.nn.functional.pad(one, (0, -width % _ALIGNED)) for one in (q, k, v))
    left, right = (None if size < 0 else size for size in window)
    result = torch.ops.aten._flash_attention_forward(
        q, k, v, *lengths, dropout, causal, False, scale=scale, window_size_left=left, window_size_right=right
    )[0]
    return result[..., :width]
