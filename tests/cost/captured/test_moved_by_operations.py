"""Does an operation move what its kernels on a GPU move?"""

import pytest

from planner.cost.captured.operation import Operation, Phase, Shape
from planner.cost.captured.traffic import moved_by, width
from planner.cost.device.moved import Access


def tensor(*shape: int, dtype: str = "bfloat16") -> Shape:
    return shape, dtype


def operation(name: str, taken: list[Shape], given: list[Shape], **other: object) -> Operation:
    return Operation(f"aten.{name}", "", Phase.FORWARD, 0, tuple(taken), tuple(given), **other)  # type: ignore[arg-type]


def moved(name: str, taken: list[Shape], given: list[Shape], **other: object) -> float:
    return sum(part.size for part in moved_by(operation(name, taken, given, **other)))


X = tensor(8, 1000)
WIDE = tensor(8, 1000, dtype="float32")


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("bfloat16", 2), ("float32", 4), ("int64", 8), ("bool", 1), ("uint8", 1), ("float8_e4m3fn", 1), ("complex64", 8)],
)  # fmt: skip
def test_widths(dtype: str, size: int) -> None:
    assert width(dtype) == size


@pytest.mark.parametrize(
    ("name", "taken", "given", "size"),
    [
        ("add.Tensor", [X, X], [X], 6 * 8000),
        ("_to_copy.default", [X], [WIDE], 6 * 8000),
        ("zeros_like.default", [X], [X], 2 * 8000),
        ("_unsafe_view.default", [X], [X], 0),
        ("copy_.default", [X, WIDE], [X], 6 * 8000),
        # rows of a table, not the table
        ("embedding.default", [tensor(50000, 1000), tensor(8, dtype="int64")], [X], 4 * 8000 + 64),
        # zeros of the whole, and the part read and written
        ("slice_backward.default", [tensor(8, 500)], [X], 2 * 8000 + 4 * 4000),
        # a short row is read once, one of 128,000 thrice
        ("_log_softmax.default", [WIDE], [WIDE], 8 * 8000),
        ("_log_softmax.default", [tensor(8, 128000, dtype="float32")], [tensor(8, 128000, dtype="float32")],
         16 * 8 * 128000),
        ("nll_loss_backward.default", [tensor(), WIDE, tensor(8, dtype="int64"), tensor()], [WIDE], 4 * 8000),
        ("index_add_.default", [tensor(90, 1000), tensor(8, dtype="int64"), X], [tensor(90, 1000)], 6 * 8000 + 64),
        ("_foreach_mul_.Scalar", [X, X], [X, X], 8 * 8000),
        # weight, gradient and two moments are read, all but the gradient written
        ("_fused_adamw_.default", [WIDE, WIDE, WIDE, WIDE, tensor(dtype="float32")], [WIDE], 28 * 8000),
    ],
)  # fmt: skip
def test_bytes(name: str, taken: list[Shape], given: list[Shape], size: float) -> None:
    assert moved(name, taken, given) == size


def test_indices_are_sorted_where_values_are_added() -> None:
    places = tensor(8, dtype="int64")
    put = operation("index_put.default", [X, places, X], [X], flags=(False,))
    added = operation("index_put.default", [X, places, X], [X], flags=(True,))
    assert len(moved_by(added)) == len(moved_by(put)) + 1
    assert moved_by(added)[1].kernels > 1


@pytest.mark.parametrize(
    ("taken", "alike", "access", "width"),
    [
        ([X, X], True, Access.EVEN, 2),
        ([X, tensor(1, 1000)], False, Access.APART, 2),
        ([WIDE, tensor(1, 1000, dtype="float32")], False, Access.APART, 4),
        ([X, WIDE], True, Access.APART, 2),  # each value is cast
    ],
)
def test_vectors_need_tensors_that_lie_alike(
    taken: list[Shape], alike: bool, access: Access, width: int
) -> None:
    (found,) = moved_by(operation("mul.Tensor", taken, [taken[0]], alike=alike))
    assert (found.access, found.width) == (access, width)


def test_lists_are_launched_chunk_by_chunk() -> None:
    # 400 tensors of 65,536 values: 320 chunks in the first kernel
    many = [tensor(65536)] * 400
    (found,) = moved_by(operation("_foreach_mul_.Scalar", many, many))
    assert (found.kernels, found.access) == (2, Access.LISTS)
