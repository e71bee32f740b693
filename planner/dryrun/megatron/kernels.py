"""What do kernels that have no CPU version give, and keep for the backward pass?

Shapes, number formats and lifetimes, and no values: attention by a flash kernel; Transformer Engine's norms, grouped
products, loss, rotation of heads and order of tokens (TransformerEngine 2.x pytorch/module/grouped_linear.py,
cross_entropy.py, attention/rope.py, permutation.py); Megatron-Core's rotation of latent attention
(megatron/core/fusions/fused_mla_yarn_rope_apply.py). Left out: what they ask for while they run, but for the flash
kernel's (`planner/dryrun/kernels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from planner.dryrun.recorder import Recorder
from planner.dryrun.recording import Holds


@dataclass(frozen=True)
class Work:
    """A recorder at work for a device of a compute capability, and what kernels keep for good.

    `gradients`: by shape and format, the tensor that stands for gradients which are in their buffer.
    """

    recorder: Recorder
    capability: tuple[int, int]
    gradients: dict[tuple[object, ...], Any] = field(default_factory=dict)
    workspaces: list[Any] = field(default_factory=list)

    def keep(self, shape: Sequence[int], dtype: Any) -> Any:
        """A tensor that stays."""
        kept = torch.empty(tuple(shape), dtype=dtype)
        self.recorder.hold([kept], Holds.WORKSPACE)
        return kept


AT_WORK: Final[list[Work]] = []  # the last of them is the one
_STREAMS: Final = 4  # of grouped products
_FLASH: Final = "aten._scaled_dot_product_flash_attention{}.default"


def one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as torch.compile runs it: one operation, of which only what it returns is allocated.

    Where its inputs have gradients it runs operation by operation, so that what it saves is seen.
    """

    def fused(*args: Any, **named: Any) -> Any:
        if not AT_WORK or torch.is_grad_enabled():
            return function(*args, **named)
        return AT_WORK[-1].recorder.as_one(f"fused_{function.__name__}", partial(function, **named), args)

    return fused


def changed(name: str, *tensors: Any) -> None:
    """An operation that only writes into what is there."""
    if AT_WORK:
        AT_WORK[-1].recorder.as_one(name, lambda *_: (), tensors)


def made(name: str, taken: Sequence[Any], *results: tuple[Sequence[int], Any]) -> Any:
    """What an operation gives: a tensor of each shape and number format, alone where there is one."""

    def make(*_: Any) -> Any:
        return tuple(torch.empty(tuple(shape), dtype=dtype) for shape, dtype in results)

    given = AT_WORK[-1].recorder.as_one(name, make, taken) if AT_WORK else make()
    return given if len(results) > 1 else given[0]


def standing_in(shape: Sequence[int], dtype: Any, zero: bool = False) -> Any:
    """What is returned for a gradient that was added to its buffer: one tensor of each shape, for good
    (TransformerEngine 2.x pytorch/module/base.py `get_dummy_wgrad`)."""
    work, key = AT_WORK[-1], (*shape, dtype)
    if key not in work.gradients:
        work.gradients[key] = work.keep(shape, dtype)
    return work.gradients[key].detach()


class Flash(torch.autograd.Function):  # type: ignore[misc]  # torch is not checked
    """Attention without scores: query (s, b, heads, d), key (s, b, groups, d), value (s, b, groups, e) give
    (s, b, heads, e), and a number for each row and head that is kept."""

    @staticmethod
    def forward(context: Any, query: Any, key: Any, value: Any) -> Any:
        length, batch, heads, _ = query.shape
        shape = (length, batch, heads, value.shape[3])
        taken = [_heads_first(one) for one in (query, key, value)]
        out, sums = made(
            _FLASH.format(""), taken, (shape, query.dtype), ((batch, heads, length), torch.float32)
        )
        context.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        *inputs, out, sums = context.saved_tensors
        taken = [_heads_first(one) for one in (gradient, *inputs, out)]
        return made(_FLASH.format("_backward"), (*taken, sums), *((one.shape, one.dtype) for one in inputs))


def _heads_first(tensor: Any) -> Any:
    """(s, b, heads, d) as (b, heads, s, d), as PyTorch's kernels name their dimensions."""
    return tensor.permute(1, 2, 0, 3)


class Norm(torch.autograd.Function):  # type: ignore[misc]  # torch is not checked
    """A norm by the root of the mean square, in one kernel that keeps a number for each row beside its input."""

    @staticmethod
    def forward(context: Any, rows: Any, weight: Any) -> Any:
        scales = ((*rows.shape[:-1], 1), torch.float32)
        out, roots = made("aten._fused_rms_norm.default", (rows, weight), (rows.shape, rows.dtype), scales)
        context.save_for_backward(rows, weight, roots)
        return out

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        rows, weight, roots = context.saved_tensors
        taken = (gradient, rows, roots, weight)
        results = ((rows.shape, rows.dtype), (weight.shape, weight.dtype))
        return made("aten._fused_rms_norm_backward.default", taken, *results)


class Loss(torch.autograd.Function):  # type: ignore[misc]  # torch is not checked
    """Cross-entropy of Transformer Engine (pytorch/cross_entropy.py): of logits (s, b, vocabulary) one loss a token
    (s, b), and gradients that are written where the logits are."""

    @staticmethod
    def forward(context: Any, logits: Any) -> Any:
        context.save_for_backward(logits.detach())
        return made("te_cross_entropy", (logits,), (logits.shape[:2], torch.float32))

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        (logits,) = context.saved_tensors
        changed("te_cross_entropy_backward", logits, gradient)
        return logits


class Rotated(torch.autograd.Function):  # type: ignore[misc]  # torch is not checked
    """Heads (s, b, heads, d) turned by angles, in one kernel of Transformer Engine that keeps the angles alone."""

    @staticmethod
    def forward(context: Any, heads: Any, angles: Any) -> Any:
        context.save_for_backward(angles)
        return made("te_fused_rope", (heads, angles), (heads.shape, heads.dtype))

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        (angles,) = context.saved_tensors
        return made("te_fused_rope_backward", (gradient, angles), (gradient.shape, gradient.dtype)), None


class LatentQueries(torch.autograd.Function):  # type: ignore[misc]  # torch is not checked
    """Queries of latent attention (s, b, heads, d), part of which is turned in place (ApplyMLARotaryEmbQ)."""

    @staticmethod
    def forward(context: Any, queries: Any) -> Any:
        changed("fused_mla_rope_q", queries)
        return queries.view(queries.shape)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        gradient = gradient.contiguous()
        changed("fused_mla_rope_q_backward", gradient)
        return gradient


class LatentKeys(torch.autograd.Function):  # type: ignore[misc]  # torch is not checked
    """Keys and values of latent attention out of (s, b, heads, k + v) and the part (s, b, 1, e) that all heads share
    (ApplyMLARotaryEmbKV)."""

    @staticmethod
    def forward(context: Any, both: Any, shared: Any, of_keys: int, of_values: int) -> Any:
        context.both, context.shared = both.shape, shared.shape
        width = of_keys + shared.shape[-1]
        found = [((*both.shape[:3], each), both.dtype) for each in (width, of_values)]
        return made("fused_mla_rope_kv", (both, shared), *found)

    @staticmethod
    def backward(context: Any, keys: Any, values: Any) -> Any:
        taken = (keys.contiguous(), values.contiguous())
        found = ((context.both, keys.dtype), (context.shared, keys.dtype))
        return *made("fused_mla_rope_kv_backward", taken, *found), None, None


def _make_workspaces() -> None:
    """One for each of the streams of grouped products, 32 MiB from Hopper on and 4 before (TransformerEngine 2.x
    pytorch/module/base.py `get_multi_stream_cublas_workspace`, common/util/multi_stream.cpp)."""
    work = AT_WORK[-1]
    if not work.workspaces:
        size = (32 if work.capability >= (9, 0) else 4) * 2**20
        work.workspaces.extend(work.keep((size,), torch.uint8) for _ in range(_STREAMS))


class Grouped(torch.autograd.Function):  # type: ignore[misc]  # torch is not checked
    """Products of rows (n, k) in groups with a weight (m, k) each; `adds`: gradients of weights go to their buffer."""

    @staticmethod
    def forward(context: Any, rows: Any, adds: bool, *weights: Any) -> Any:
        _make_workspaces()
        context.adds = adds
        context.save_for_backward(rows, *weights)
        return made("te_grouped_gemm", (rows, *weights), ((rows.shape[0], weights[0].shape[0]), rows.dtype))

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        rows, *weights = context.saved_tensors
        of_rows = made("te_grouped_gemm", (gradient, *weights), (rows.shape, rows.dtype))
        shapes = [(weight.shape, weight.dtype) for weight in weights]
        if not context.adds:
            found = made("te_grouped_gemm", (rows, gradient), *shapes)
            return of_rows, None, *(found if len(shapes) > 1 else (found,))
        changed("te_grouped_gemm", rows, gradient, *[weight.main_grad for weight in weights])
        for weight in weights:
            weight.grad_added_to_main_grad = True
        return of_rows, None, *[standing_in(*shape) for shape in shapes]


class Permuted(torch.autograd.Function):  # type: ignore[misc]  # torch is not checked
    """Tokens (n, h) and their probabilities (n, experts) in order of experts: (m, h), (m,), and where each went."""

    @staticmethod
    def forward(context: Any, tokens: Any, probs: Any, routing: Any, count: int) -> Any:
        context.tokens, context.probs = tokens.shape, probs.shape
        wide = (routing.shape[0], 2 * routing.shape[1] + 1)
        places = made("te_make_row_id_map", (routing,), (wide, torch.int32))
        context.save_for_backward(places)
        context.mark_non_differentiable(places)
        rows = ((count, tokens.shape[1]), tokens.dtype)
        return *made("te_permute", (tokens, probs, places), rows, ((count,), probs.dtype)), places

    @staticmethod
    def backward(context: Any, rows: Any, probs: Any, _: Any) -> Any:
        (places,) = context.saved_tensors
        found = ((context.tokens, rows.dtype), (context.probs, probs.dtype))
        return *made("te_unpermute", (rows, probs, places), *found), None, None


class Unpermuted(torch.autograd.Function):  # type: ignore[misc]  # torch is not checked
    """Rows in order of experts (m, h) added up by tokens (n, h)."""

    @staticmethod
    def forward(context: Any, rows: Any, places: Any, shape: Sequence[int]) -> Any:
        context.rows = rows.shape
        context.save_for_backward(places)
        return made("te_unpermute", (rows, places), (shape, rows.dtype))

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        taken = (gradient, *context.saved_tensors)
        return made("te_permute", taken, (context.rows, gradient.dtype)), None, None


class Sorted(torch.autograd.Function):  # type: ignore[misc]  # torch is not checked
    """Chunks of rows in another order, with what goes with them."""

    @staticmethod
    def forward(context: Any, *rows: Any) -> Any:
        places = made("te_make_chunk_sort_map", (), ((rows[0].shape[0],), torch.int32))
        context.save_for_backward(places)
        return _alike(rows, places)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return _alike(gradients, *context.saved_tensors)


def _alike(tensors: Sequence[Any], places: Any) -> tuple[Any, ...]:
    return tuple(made("te_sort_chunks", (one, places), (one.shape, one.dtype)) for one in tensors)
