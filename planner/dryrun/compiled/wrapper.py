"""What does the program that Inductor wrote for a graph allocate, run and free, and in which order?

The program itself is run: the text of its function `call`, in which buffers are made, given on to later ones and
deleted. Only what it calls is replaced: buffers are fake tensors, a fused kernel is written down and does nothing,
products by PyTorch's own functions likewise, and any other operation of PyTorch is dispatched on fake tensors.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from math import inf, nan
from types import SimpleNamespace
from typing import Any, Final

import torch

from planner.cost.captured.operation import Shape
from planner.dryrun.recorder import Recorder, flags_of, shape_of

FUSED: Final = "inductor.fused"
_POINTERS: Final = re.compile(r"\b(in_out_ptr|in_ptr|out_ptr)\d+")
_KEPT: Final = ("runner", "call")  # assignments of the text that are run


def callable_of(source: str, constants: Mapping[str, Any], recorder: Recorder) -> Callable[..., Any]:
    """The function that a generated module offers; calls of it are written down by the recorder.

    `constants`: tensors that the graph holds, by name.
    """
    kept: list[ast.stmt] = []
    names = _Names(recorder).all() | dict(constants)
    for statement in ast.parse(source).body:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef)):
            kept.append(statement)
        elif isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Name):
            if target.id in _KEPT:
                kept.append(statement)
            elif _compiles(statement.value):
                names[target.id] = _Kernel(recorder, _pointers(statement.value))
    exec(compile(ast.Module(kept, []), "<inductor>", "exec"), names)
    return names["call"]


def _compiles(value: Any) -> bool:
    """Is it `async_compile.…(…)`?"""
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Attribute) and getattr(called.value, "id", None) == "async_compile"


def _pointers(value: Any) -> tuple[str, ...]:
    """Kinds of the pointers that a kernel takes, in their order: in_ptr, out_ptr, in_out_ptr."""
    texts = [one.value for one in value.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    head = re.search(r"^def \w+\((.*?)\)", texts[-1], re.MULTILINE | re.DOTALL)
    return tuple(match[1] for match in _POINTERS.finditer(head[1])) if head else ()


class _Kernel:
    """A fused kernel: it reads and writes no more elements of a tensor than it has iterations."""

    def __init__(self, recorder: Recorder, pointers: tuple[str, ...]) -> None:
        self._recorder, self._pointers = recorder, pointers

    def run(self, *args: Any, **_: Any) -> None:
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        iterations = math.prod(one for one in args if isinstance(one, int)) or 1
        shapes = [_at_most(shape_of(one), iterations) for one in tensors]
        kinds = self._pointers if len(self._pointers) == len(tensors) else ("in_out_ptr",) * len(tensors)
        pairs = list(zip(kinds, shapes, strict=True))
        self._recorder.write_kernel(
            FUSED,
            tuple(shape for kind, shape in pairs if kind != "out_ptr"),
            tuple(shape for kind, shape in pairs if kind != "in_ptr"),
        )

    def __call__(self, *_: Any) -> None:
        """Of the host, and so nothing that is asked of a device."""


def _at_most(shape: Shape, elements: int) -> Shape:
    return shape if math.prod(shape[0]) <= elements else ((elements,), shape[1])


class _Extern:
    """`extern_kernels`: functions of PyTorch that write into a buffer."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def run(*args: Any, out: Any = None, **kwargs: Any) -> Any:
            if out is None:
                return getattr(torch.ops.aten, name)(*args, **kwargs)
            taken = tuple(shape_of(one) for one in args if isinstance(one, torch.Tensor))
            named = f"aten.{name}.default"
            self._recorder.write_kernel(named, taken, (shape_of(out),), flags_of(named, args))
            return out

        return run


class _HigherOrder:
    """`torch.ops.higher_order`: operations of operations, of which random ones with a state of their own are run."""

    @staticmethod
    def graphsafe_run_with_rng_state(operation: Any, *args: Any, rng_state: Any, **kwargs: Any) -> Any:
        return operation(*args, **kwargs)


class _Operations:
    """`torch.ops`."""

    higher_order = _HigherOrder()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.ops, name)


class _Torch:
    """The module torch, whose device does nothing."""

    ops = _Operations()
    cuda = SimpleNamespace(_DeviceGuard=lambda _: nullcontext(), set_device=lambda _: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _Names:
    """What a generated module finds under its global names."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def all(self) -> dict[str, Any]:
        return {
            "torch": _Torch(), "aten": torch.ops.aten, "inductor_ops": torch.ops.inductor, "math": math, "inf": inf,
            "nan": nan, "device": lambda *_, **__: torch.device("cpu"), "extern_kernels": _Extern(self._recorder),
            "empty_strided_cuda": self._allocate, "empty_strided_cpu": self._on_host, "empty_strided": self._on_host,
            "empty_strided_cpu_pinned": self._on_host, "reinterpret_tensor": self._view,
            "get_raw_stream": lambda _: 0, "copy_if_misaligned": lambda tensor: tensor,
            "assert_size_stride": _nothing, "assert_alignment": _nothing, "run_intermediate_hooks": _nothing,
        }  # fmt: skip

    def _allocate(self, size: Any, stride: Any, dtype: Any) -> Any:
        buffer = self._on_host(size, stride, dtype)
        self._recorder.allocate_ahead(buffer)
        return buffer

    def _on_host(self, size: Any, stride: Any, dtype: Any, **_: Any) -> Any:
        with self._recorder.beside():
            return torch.empty_strided(size, stride, dtype=dtype)

    def _view(self, tensor: Any, size: Any, stride: Any, offset: int) -> Any:
        with self._recorder.beside():
            return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _nothing(*_: Any) -> None:
    """Checks that hold of what the compiler itself laid out."""
