"""Which operations does a program of PyTorch run, and which blocks of memory does it ask for, in which order?

Everything that is dispatched on fake tensors is written down: a block when a result holds a new storage, its end when
the storage dies. Left out: how blocks are placed (`allocator/`), and how long anything takes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from planner.dryrun.kernels import PRODUCTS, asked_inside, workspace
from planner.dryrun.recording import Holds, Operation, Phase, Recording, Shape
from planner.dryrun.values import Values, forget_value


class Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch is not checked
    """Writes down what is dispatched while it is entered."""

    def __init__(self, values: Values, capability: tuple[int, int]) -> None:
        super().__init__()
        self.recording, self.phase = Recording(), Phase.BUILD
        self._values, self._capability = values, capability
        self._blocks = dict[int, tuple[Any, int]]()  # by storage
        self._names = dict[int, str]()
        self._modules = [""]
        self._module_of = dict[int, str]()  # by number of the backward function
        self._threads = set[bool]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE:  # asked more often than all else together
            return args[0].fake_device if isinstance(args[0], FakeTensor) else args[0].device
        named = kwargs or {}
        if _picks_by_mask(func, args):
            args = args[0], self._as_places(args[1]), *args[2:]
        known, out = self._values.answered(func, args)
        if not known:
            out = func(*args, **named)
        made = [out] if isinstance(out, torch.Tensor) else _tensors(out)
        if not known:
            self._values.follow(func, args, named, made)
        if func.namespace not in _BESIDE and not func.is_view:
            self._write(func, args, named, made)
        return out

    def _as_places(self, indices: Sequence[Any]) -> list[Any]:
        """Indices with the places where masks are set in place of the masks, which is how they are looked up."""
        found = []
        for index in indices:
            if index is None or index.dtype != torch.bool:
                found.append(index)
            else:
                places = self.__torch_dispatch__(_NONZERO, (), (index,))
                found += [
                    self.__torch_dispatch__(_SELECT, (), (places, 1, dim)) for dim in range(index.dim())
                ]
        return found

    def hold(self, tensors: Sequence[Any], kind: Holds) -> None:
        """Write down tensors that are there already, and what they are."""
        for tensor in tensors:
            self.recording.kinds[self._block_of(tensor)] = kind
            if isinstance(tensor, torch.nn.Parameter):
                forget_value(tensor)

    def name_modules(self, model: Any) -> None:
        """Have operations of a model's modules carry their names."""
        self._names = {id(module): name for name, module in model.named_modules()}

    @contextmanager
    def modules_followed(self) -> Iterator[None]:
        """Know while it is entered in which module an operation runs."""
        hooks = torch.nn.modules.module
        handles = (
            hooks.register_module_forward_pre_hook(self._enter_module),
            hooks.register_module_forward_hook(self._leave_module, always_call=True),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter_module(self, module: Any, _: Any) -> None:
        self._modules.append(self._names.get(id(module), self._modules[-1]))

    def _leave_module(self, *_: Any) -> None:
        self._modules.pop()

    def _write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: list[Any]) -> None:
        recording = self.recording
        number, first = len(recording.operations), len(recording.trace)
        node = torch._C._current_autograd_node()
        module = self._modules[-1]
        if node is not None:
            module = module or self._module_of.get(node._sequence_nr(), "")
        elif module:
            self._module_of[torch.autograd._get_sequence_nr() - 1] = module
        name = str(func)
        taken = tuple(_shape(one) for one in args if isinstance(one, torch.Tensor))
        recording.operations.append(
            Operation(name, module, self.phase, first, taken, tuple(_shape(one) for one in made))
        )
        if (
            name in PRODUCTS and (node is None) not in self._threads
        ):  # the backward pass has a thread of its own
            self._threads.add(node is None)
            recording.kinds[self._allocate(workspace(self._capability), number)] = Holds.WORKSPACE
        for one in made:
            self._block_of(one, number)
        inside = [self._allocate(size, number) for size in asked_inside(name, args, made)]
        for block in inside:
            recording.trace.free(block)

    def _allocate(self, size: int, operation: int) -> int:
        self.recording.made_by.append(operation)
        return self.recording.trace.allocate(size)

    def _block_of(self, tensor: Any, operation: int = -1) -> int:
        """The block behind a tensor, allocated where it is new."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._blocks:
            return self._blocks[key][1]
        block = self._allocate(storage.nbytes(), operation)

        def ended(_: Any) -> None:
            self._blocks.pop(key, None)
            self.recording.trace.free(block)

        self._blocks[key] = weakref.ref(storage, ended), block
        return block


def _picks_by_mask(func: Any, args: tuple[Any, ...]) -> bool:
    """Does an operation look places up that a mask sets, as indexing and its gradient do?"""
    adds = func in _INDEX_PUT and args[3:4] == (True,)
    return (func is _INDEX or adds) and any(one is not None and one.dtype == torch.bool for one in args[1])


def _tensors(out: Any) -> list[Any]:
    return [one for one in out if isinstance(one, torch.Tensor)] if isinstance(out, (tuple, list)) else []


def _shape(tensor: Any) -> Shape:
    return tuple(tensor.shape), _DTYPES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")


_BESIDE: Final = ("prim", "profiler")  # namespaces of what is no operation
_DEVICE: Final = torch.ops.prim.device.default
_NONZERO: Final = torch.ops.aten.nonzero.default
_SELECT: Final = torch.ops.aten.select.int
_INDEX: Final = torch.ops.aten.index.Tensor
_INDEX_PUT: Final = (torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)
_DTYPES: Final = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.int64: "int64"}
