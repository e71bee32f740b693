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
from planner.dryrun.values import Values


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
        self._ahead: int | None = None  # events before the first block that the next operation was given
        self._silent = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What torch.compile compiles is traced without it, and written down when it is called (`compiled/`)."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE:  # asked more often than all else together
            return args[0].fake_device if isinstance(args[0], FakeTensor) else args[0].device
        named = kwargs or {}
        if self._silent:
            return func(*args, **named)
        known, out = self._values.answered(func, args)
        if not known:
            out = func(*args, **named)
        made = [out] if isinstance(out, torch.Tensor) else _tensors(out)
        if not known:
            self._values.follow(func, args, named, made)
        if func.namespace not in _BESIDE and not func.is_view:
            self._write(func, args, named, made)
        return out

    def hold(self, tensors: Sequence[Any], kind: Holds) -> None:
        """Write down tensors that are there already, and what they are."""
        for tensor in tensors:
            self.recording.kinds[self._block_of(tensor)] = kind

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

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Write nothing down while it is entered."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def allocate_ahead(self, tensor: Any) -> None:
        """Write down a buffer that was made for the operation that comes next."""
        if self._ahead is None:
            self._ahead = len(self.recording.trace)
        self._block_of(tensor, len(self.recording.operations))

    def write_kernel(self, name: str, taken: tuple[Shape, ...], given: tuple[Shape, ...]) -> None:
        """Write down an operation that writes into tensors that are there already."""
        self._operation(name, taken, given)

    def _write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: list[Any]) -> None:
        name = str(func)
        taken = tuple(shape_of(one) for one in args if isinstance(one, torch.Tensor))
        number = self._operation(name, taken, tuple(shape_of(one) for one in made))
        for one in made:
            self._block_of(one, number)
        inside = [self._allocate(size, number) for size in asked_inside(name, args, made)]
        for block in inside:
            self.recording.trace.free(block)

    def _operation(self, name: str, taken: tuple[Shape, ...], given: tuple[Shape, ...]) -> int:
        """Write down an operation, and the workspace of a first product. Gives its number."""
        recording = self.recording
        number, first = len(recording.operations), len(recording.trace)
        first, self._ahead = first if self._ahead is None else self._ahead, None
        node = torch._C._current_autograd_node()
        module = self._modules[-1]
        if node is not None:
            module = module or self._module_of.get(node._sequence_nr(), "")
        elif module:
            self._module_of[torch.autograd._get_sequence_nr() - 1] = module
        recording.operations.append(Operation(name, module, self.phase, first, taken, given))
        if (
            name in PRODUCTS and (node is None) not in self._threads
        ):  # the backward pass has a thread of its own
            self._threads.add(node is None)
            recording.kinds[self._allocate(workspace(self._capability), number)] = Holds.WORKSPACE
        return number

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


def _tensors(out: Any) -> list[Any]:
    return [one for one in out if isinstance(one, torch.Tensor)] if isinstance(out, (tuple, list)) else []


def shape_of(tensor: Any) -> Shape:
    """Dimensions of a tensor, and its number format."""
    return tuple(tensor.shape), _DTYPES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")


_BESIDE: Final = ("prim", "profiler")  # namespaces of what is no operation
_DEVICE: Final = torch.ops.prim.device.default
_DTYPES: Final = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.int64: "int64"}
