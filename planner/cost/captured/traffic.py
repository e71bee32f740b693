"""How many bytes does an operation of PyTorch read and write on a GPU, how, and in how many kernels?

By its name, for what is bound by memory; products and attention are `kernels.py`'s. An operation that is not named
here reads what it takes and writes what it gives, in one kernel. Sources: pytorch/pytorch aten/src/ATen/native/cuda, by
the name of the operation, and where that says so another file. Left out: what the cache saves of it
(`cost/device/moved.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Final

from planner.cost.captured.operation import Operation, Shape
from planner.cost.device.moved import Access, Moved

_BYTES: Final = {"bool": 1, "complex64": 8, "complex128": 16}
_CASTS: Final = ("_to_copy", "copy_")  # have a kernel for each pair of formats
_LISTS: Final = ("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad")
_LOOKED_AT: Final = 4  # tensors of lists, which are as long as a model has parameters
# Shared memory that softmax kernels keep a row in; they read a longer one thrice forward, for its greatest, for its sum
# and for the result, and its gradient twice backward (SoftMax.cu, `cunn_SoftMaxForward`, `cunn_SoftMaxBackward`)
# [bytes].
_SHARED: Final = 48 * 1024
# A kernel over lists of tensors takes 320 chunks of 65,536 values (MultiTensorApply.cuh).
CHUNK: Final = 65536
CHUNKS: Final = 320

Parts = tuple[Moved, ...]


def width(dtype: str) -> int:
    """Size of one value of a number format, as PyTorch calls it [bytes]."""
    digits = "".join(c if c.isdigit() else " " for c in dtype).split()
    return _BYTES.get(dtype) or (max(int(digits[0]) // 8, 1) if digits else 1)


def size(shape: Shape) -> float:
    """Bytes of a tensor."""
    return float(prod(shape[0])) * width(shape[1])


def total(shapes: tuple[Shape, ...]) -> float:
    """Bytes of tensors."""
    return sum(map(size, shapes))


def plain_name(operation: Operation) -> str:
    """Name without namespace and overload: of `aten.add.Tensor` it is `add`."""
    return operation.name.split(".")[1]


def moved_by(operation: Operation) -> Parts:
    """What an operation that is bound by memory moves, kernel after kernel; nothing where it has no kernel."""
    name = plain_name(operation)
    rule = _RULES.get(name) or (_listed if name.startswith(_LISTS) else _value_by_value)
    return rule(operation)


def _value_by_value(operation: Operation) -> Parts:
    """Of every value one, in vectors where all tensors lie alike and have one format."""
    met = [one for one in operation.taken[:_LOOKED_AT] + operation.given[:_LOOKED_AT] if one[0]]
    widths = {width(dtype) for _, dtype in met}
    alike = operation.alike and (len(widths) <= 1 or plain_name(operation) in _CASTS)
    narrow = 2 if len(widths) > 1 else max(widths, default=4)  # formats are cast one by one
    read = operation.taken[1:] if plain_name(operation) == "copy_" else operation.taken
    return (Moved(total(read), total(operation.given), 1, Access.EVEN if alike else Access.APART, narrow),)


def _nothing(_: Operation) -> Parts:
    return ()


def _fill(operation: Operation) -> Parts:
    return (Moved(0.0, total(operation.given)),)


def _rows(operation: Operation) -> Parts:
    """Whole rows, however tensors lie: reductions and norms."""
    return (Moved(total(operation.taken), total(operation.given)),)


def _gathered(operation: Operation) -> Parts:
    """What is read is as much as what is written, and indices."""
    found, picked = total(operation.given), total(operation.taken[1:])
    return (Moved(found + picked, found, 1, Access.APART, width(operation.taken[0][1])),)


def _looked_up(operation: Operation) -> Parts:
    """Rows of a table, which are long."""
    found, picked = total(operation.given), total(operation.taken[1:])
    return (Moved(found + picked, found),)


def _scattered(operation: Operation) -> Parts:
    """Values are put into a tensor where indices say, or into a copy of it."""
    whole, values = size(operation.taken[0]), size(operation.taken[-1])
    put = Moved(total(operation.taken[1:]), values, 1, Access.APART, width(operation.taken[0][1]))
    return (put,) if plain_name(operation).endswith("_") else (Moved(whole, whole), put)


def _added_into(operation: Operation) -> Parts:
    """The same where what is there is read; indices are sorted before (Indexing.cu, `index_put_with_sort_kernel`)."""
    *before, put = _scattered(operation)
    there = size(operation.taken[-1])
    indices = operation.taken[1:-1]
    order = (
        _radix_sort(indices[0])
        if indices and plain_name(operation).startswith(("index_put", "_index"))
        else ()
    )
    return (*before, *order, Moved(put.read + there, put.written, 1, put.access, put.width))


def _put(operation: Operation) -> Parts:
    accumulates = any(operation.flags)
    return _added_into(operation) if accumulates else _scattered(operation)


def _into_zeros(operation: Operation) -> Parts:
    """Zeros, a part of which is written again."""
    part = size(operation.taken[0])
    return (*_fill(operation), Moved(part, part, 1, Access.APART, width(operation.taken[0][1])))


def _rows_of_embedding(operation: Operation) -> Parts:
    """Indices are sorted, zeros written, and gradients added up where they belong (Embedding.cu,
    EmbeddingBackwardKernel.cu)."""
    rows = size(operation.taken[0])
    return (*_radix_sort(operation.taken[1]), *_fill(operation), Moved(2.0 * rows, rows))


def _one_of_each_row(operation: Operation) -> Parts:
    """A value of each row, of which memory gives 32 bytes."""
    shape = operation.taken[0][0]
    return (Moved(32.0 * prod(shape[:-1]), total(operation.given)),)


def _softmax(operation: Operation) -> Parts:
    times = 1.0 if _fits(operation.taken[0]) else 3.0
    return (Moved(times * size(operation.taken[0]), total(operation.given)),)


def _softmax_backward(operation: Operation) -> Parts:
    gradient = size(operation.taken[0])
    again = 0.0 if _fits(operation.taken[0]) else gradient
    return (Moved(total(operation.taken) + again, total(operation.given)),)


def _fits(shape: Shape) -> bool:
    return shape[0][-1] * width(shape[1]) <= _SHARED


def _norm_backward(operation: Operation) -> Parts:
    """One kernel for the input's gradient, one for those of the weights, which reads both again."""
    both = total(operation.taken[:2])
    return Moved(both, size(operation.given[0])), Moved(both, total(operation.given[1:]))


def _sorted(operation: Operation) -> Parts:
    return _radix_sort(operation.taken[0])


def _radix_sort(keys: Shape) -> Parts:
    """Keys with their places, eight bits a pass, and what counts them (cub, DeviceRadixSort)."""
    passes = width(keys[1])
    each = size(keys) + 8.0 * prod(keys[0])
    return (Moved(passes * each, passes * each, passes + 2),)


def _nonzero(operation: Operation) -> Parts:
    """Counted, and after the host has the count written (Nonzero.cu)."""
    mask = total(operation.taken)
    return Moved(mask, 0.0, 2), Moved(mask, total(operation.given), 3)


def _listed(operation: Operation) -> Parts:
    """Of lists of tensors, in kernels that take so many chunks each."""
    widest = max((width(one[1]) for one in operation.taken[:_LOOKED_AT]), default=4)
    launches = _launches(operation.given if operation.given and operation.given[0][0] else operation.taken)
    return (Moved(total(operation.taken), total(operation.given), launches, Access.LISTS, widest),)


def _fused_update(operation: Operation) -> Parts:
    """Weights, gradients and moments are read, all but gradients written; what is taken ends with numbers of steps."""
    weights = len(operation.given)
    tensors = tuple(shape for shape in operation.taken if shape[0])
    moved = total(tensors)
    lists = max(len(tensors) / max(weights, 1), 1.0)
    widest = max((width(one[1]) for one in operation.taken[:_LOOKED_AT]), default=4)
    written = moved * (lists - 1.0) / lists
    return (Moved(moved, written, _launches(operation.given), Access.FUSED, widest),)


def _laid_together(operation: Operation) -> Parts:
    """Shards are copied behind each other into their place in the buffer that is gathered."""
    own = size(operation.given[0])
    return (Moved(own, own, 1, Access.LISTS, width(operation.given[0][1])),)


def _launches(shapes: tuple[Shape, ...]) -> int:
    chunks = sum(-(-prod(shape) // CHUNK) for shape, _ in shapes)
    return max(-(-chunks // CHUNKS), 1)


_RULES: Final[Mapping[str, Callable[[Operation], Parts]]] = {
    **dict.fromkeys(
        ("_unsafe_view", "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
         "_local_scalar_dense", "item", "lift_fresh", "lift_fresh_copy", "set_", "resize_", "record_stream",
         "wait_tensor"),
        _nothing,
    ),
    **dict.fromkeys(
        ("zeros", "zeros_like", "new_zeros", "zero_", "ones", "ones_like", "new_ones", "full", "full_like", "new_full",
         "fill_", "fill", "arange", "scalar_tensor", "nll_loss_backward"),
        _fill,
    ),
    **dict.fromkeys(
        ("sum", "mean", "amax", "amin", "max", "linalg_vector_norm", "native_layer_norm", "_fused_rms_norm",
         "native_dropout", "native_dropout_backward"),
        _rows,
    ),
    **dict.fromkeys(("index", "gather", "index_select", "take"), _gathered),
    "embedding": _looked_up,
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), _put),
    **dict.fromkeys(("scatter", "scatter_", "index_copy", "index_copy_"), _scattered),
    **dict.fromkeys(("index_add", "index_add_", "scatter_add", "scatter_add_"), _added_into),
    **dict.fromkeys(("slice_backward", "select_backward"), _into_zeros),
    "embedding_dense_backward": _rows_of_embedding,
    "nll_loss_forward": _one_of_each_row,
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_backward),
    **dict.fromkeys(("native_layer_norm_backward", "_fused_rms_norm_backward"), _norm_backward),
    "sort": _sorted,
    "all_gather_copy_in": _laid_together,
    "nonzero": _nonzero,
    **dict.fromkeys(("_fused_adamw_", "_fused_adam_", "_fused_sgd_", "_fused_adagrad_"), _fused_update),
}  # fmt: skip
