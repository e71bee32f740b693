"""What does FlexAttention ask of a device? Its compiled kernels, which no fake tensors can run, as operations.

Forward: the output and the sums of scores. Backward: gradients of queries, keys and values, and beside them, in fp32,
the row sums of output times gradient, which a kernel of their own writes. Sources: pytorch/pytorch
torch/_inductor/kernel/flex/flex_attention.py (`flex_attention`, `flex_attention_backward`) and
torch/nn/attention/flex_attention.py (`create_block_mask`). Left out: the mask's function, which the kernels inline.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import torch
from torchtitan.distributed import activation_checkpoint
from torchtitan.models.common.attention import FlexAttention

BLOCK: Final = 128  # positions of a block of the mask
_NAMESPACE: Final = "planner"


@contextmanager
def flex_attention() -> Iterator[None]:
    """Have torchtitan's attention run as operations without data, whose results its selective checkpointing keeps."""
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    saved = activation_checkpoint._get_default_save_ops
    try:
        library.define("flex(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor)")
        library.define("flex_sums(Tensor out, Tensor given) -> Tensor")
        library.define(
            "flex_backward(Tensor given, Tensor q, Tensor k, Tensor v, Tensor out, Tensor scores, Tensor sums)"
            " -> (Tensor, Tensor, Tensor)"
        )
        for name, func in (("flex", _forward), ("flex_sums", _sums), ("flex_backward", _backward)):
            library.impl(name, func, "CompositeExplicitAutograd")
            library.impl(name, func, "Meta")
        kept = lambda: {*saved(), torch.ops.planner.flex.default}  # noqa: E731
        with (
            patch.object(activation_checkpoint, "_get_default_save_ops", kept),
            patch.object(FlexAttention, "forward", _attend),
        ):
            yield
    finally:
        library._destroy()


@dataclass(frozen=True)
class Mask:
    """A mask of blocks: which hold anything and which are whole, by row and by column."""

    tensors: tuple[Any, ...]

    @staticmethod
    def of(positions: Any) -> Mask:
        """That of documents in a batch; positions: (batch, length)."""
        batch, length = positions.shape
        blocks = -(-length // BLOCK)
        shapes = 4 * [(batch, 1, blocks), (batch, 1, blocks, blocks)]
        return Mask(tuple(torch.empty(shape, dtype=torch.int32) for shape in shapes))


def _attend(self: Any, q_BLNH: Any, k_BLNH: Any, v_BLNH: Any, **_: Any) -> Any:
    """Each (batch, length, heads, width), by the names of torchtitan's own."""
    parts = (one.transpose(1, 2) for one in (q_BLNH, k_BLNH, v_BLNH))
    return _Flex.apply(*parts).transpose(1, 2)


class _Flex(torch.autograd.Function):  # type: ignore[misc]  # torch is not checked
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        out, scores = torch.ops.planner.flex(q, k, v)
        ctx.save_for_backward(q, k, v, out, scores)
        return out

    @staticmethod
    def backward(ctx: Any, given: Any) -> Any:
        q, k, v, out, scores = ctx.saved_tensors
        sums = torch.ops.planner.flex_sums(out, given)
        return torch.ops.planner.flex_backward(given, q, k, v, out, scores, sums)


def _forward(q: Any, k: Any, v: Any) -> Any:
    """q, k, v: (batch, heads, length, width), the output laid out as queries are."""
    shape = (*q.shape[:-1], v.shape[-1])
    rows = q.new_empty((shape[0], shape[2], shape[1], shape[3])).transpose(1, 2)
    return rows, q.new_empty(q.shape[:-1], dtype=torch.float32)


def _sums(out: Any, given: Any) -> Any:
    return out.new_empty(out.shape[:-1], dtype=torch.float32)


def _backward(given: Any, q: Any, k: Any, v: Any, out: Any, scores: Any, sums: Any) -> Any:
    return tuple(torch.empty_like(one) for one in (q, k, v))
