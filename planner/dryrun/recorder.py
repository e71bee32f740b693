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
        self.stream = 0  # that work goes to
        self.composed: frozenset[type] = (
            frozenset()
        )  # types of tensors made of others, whose work is written down
        self.host_is_apart = False  # are tensors of the device on "cpu:0", and others in the host's memory?
        self._beside = False
        self._pinned = False
        self._values, self._capability = values, capability
        self._blocks = dict[int, tuple[Any, int]]()  # by storage
        self._names = dict[int, str]()
        self._modules = [""]
        self._module_of = dict[int, str]()  # by number of the backward function
        self._threads = set[bool]()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled where it is entered, so that no call needs to be kept from it."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE:  # asked more often than all else together
            return args[0].fake_device if isinstance(args[0], FakeTensor) else args[0].device
        if self.composed and not self.composed.isdisjoint(types):
            return NotImplemented
        named = kwargs or {}
        known, out = self._values.answered(func, args)
        if not known:
            out = func(*args, **named)
        made = [out] if isinstance(out, torch.Tensor) else _tensors(out)
        if not known:
            self._values.follow(func, args, named, made)
        if not self._beside and func.namespace not in _BESIDE and not func.is_view:
            if made and all(map(self._is_host, made)):
                for one in made:
                    self._host_block_of(one)
            else:
                self._write(func, args, named, made)
        return out

    def hold(self, tensors: Sequence[Any], kind: Holds) -> None:
        """Write down tensors that are there already, and what they are."""
        for tensor in tensors:
            local = getattr(tensor, "_local_tensor", tensor)
            if not self._is_host(local):
                self.recording.kinds[self._block_of(local)] = kind

    @contextmanager
    def holding(self, kind: Holds) -> Iterator[None]:
        """Say what blocks hold that are made while it is entered, and not given back."""
        first = self.recording.trace.num_blocks
        yield
        for _, block in self._blocks.values():
            if block >= first:
                self.recording.kinds.setdefault(block, kind)

    @contextmanager
    def pinning(self) -> Iterator[None]:
        """The host pins what is made while it is entered."""
        self._pinned = True
        try:
            yield
        finally:
            self._pinned = False

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Leave out what runs while it is entered: it runs elsewhere, or nowhere."""
        before, self._beside = self._beside, True
        try:
            yield
        finally:
            self._beside = before

    @contextmanager
    def storages_followed(self) -> Iterator[None]:
        """Know while it is entered when memory behind a tensor is given back and asked for again, as FSDP does."""
        own = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            found = own(storage, size)
            if not self._beside:
                self._resized(storage, size)
            return found

        torch.UntypedStorage.resize_ = resize
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = own

    def name_modules(self, model: Any) -> None:
        """Have operations of a model's modules carry their names."""
        self._names = {id(module): name.replace(_WRAPPER, "") for name, module in model.named_modules()}

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
            Operation(name, module, self.phase, first, taken, tuple(_shape(one) for one in made), self.stream)
        )
        if (
            name in PRODUCTS and (node is None) not in self._threads
        ):  # the backward pass has a thread of its own
            self._threads.add(node is None)
            recording.kinds[self._allocate(workspace(self._capability), number)] = Holds.WORKSPACE
        for one in made:
            if not self._is_host(one):
                self._block_of(one, number)
        inside = [self._allocate(size, number) for size in asked_inside(name, args, made)]
        for block in inside:
            recording.kinds[block] = Holds.WORKSPACE
            recording.trace.free(block)

    def _allocate(self, size: int, operation: int) -> int:
        self.recording.made_by.append(operation)
        return self.recording.trace.allocate(size, self.stream)

    def _block_of(self, tensor: Any, operation: int = -1) -> int:
        """The block behind a tensor, allocated where it is new."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._blocks:
            return self._blocks[key][1]
        block = self._allocate(storage.nbytes(), operation)

        def ended(_: Any) -> None:
            self.recording.trace.free(self._blocks.pop(key)[1])

        self._blocks[key] = weakref.ref(storage, ended), block
        return block

    def _is_host(self, tensor: Any) -> bool:
        return self.host_is_apart and isinstance(tensor, FakeTensor) and tensor.fake_device.index is None

    def _host_block_of(self, tensor: Any) -> None:
        """Write down a block of the host's memory where it is new. PyTorch pins powers of two
        (aten/src/ATen/core/CachingHostAllocator.h, `c10::llvm::PowerOf2Ceil`)."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._blocks:
            return
        size = storage.nbytes()
        block = self.recording.host.allocate(1 << (size - 1).bit_length() if self._pinned and size else size)

        def ended(_: Any) -> None:
            self._blocks.pop(key)
            self.recording.host.free(block)

        self._blocks[key] = weakref.ref(storage, ended), block

    def _resized(self, storage: Any, size: int) -> None:
        """What is gathered comes and goes behind the same tensor; a block of 0 bytes stands for none."""
        key = id(storage)
        if key not in self._blocks:
            return
        kept, block = self._blocks[key]
        self.recording.trace.free(block)
        block = self._allocate(size, len(self.recording.operations) - 1)
        self.recording.kinds[block] = Holds.GATHERED
        self._blocks[key] = kept, block


def _tensors(out: Any) -> list[Any]:
    return [one for one in out if isinstance(one, torch.Tensor)] if isinstance(out, (tuple, list)) else []


def _shape(tensor: Any) -> Shape:
    return tuple(tensor.shape), _DTYPES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")


_WRAPPER: Final = "_checkpoint_wrapped_module."  # of PyTorch's checkpoint_wrapper
_BESIDE: Final = ("prim", "profiler")  # namespaces of what is no operation
_DEVICE: Final = torch.ops.prim.device.default
_DTYPES: Final = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.int64: "int64"}
