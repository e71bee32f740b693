"""Which operations does a program of PyTorch run, and which blocks of memory does it ask for, in which order?

Everything that is dispatched on fake tensors is written down: a block when a result holds a new storage, its end when
the storage dies. Left out: how blocks are placed (`allocator/`), and how long anything takes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from planner.cost.captured.operation import HostWork, Message, Operation, Phase, Shape
from planner.dryrun.kernels import PRODUCTS, asked_inside, workspace
from planner.dryrun.periods import Links
from planner.dryrun.recording import Holds, Recording, Wait
from planner.dryrun.values import Values, forget_value


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
        self.message_of: Callable[[Any, Sequence[Any], Sequence[Any]], Message | None] | None = None
        self.links: Links | None = None  # where it is written down what operations take
        self._last = dict[int, int]()  # number of the last operation, by queue
        self._sent = dict[int, int]()  # number of the message that gave a storage which nobody waited for yet
        self._beside = False
        self._pinned = False
        self._values, self._capability = values, capability
        self._blocks = dict[int, tuple[Any, int]]()  # by storage
        self._names = dict[int, str]()
        self._modules = [""]
        self._module_of = dict[int, str]()  # by number of the backward function
        self._threads = set[bool]()
        self._views = self._entered = 0
        self._ahead: int | None = None  # events before the first block that the next operation was given

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled where it is entered, so that no call needs to be kept from it."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What torch.compile compiles is traced without it, and written down when it is called (`compiled/`)."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE:  # asked more often than all else together
            return args[0].fake_device if isinstance(args[0], FakeTensor) else args[0].device
        if self.composed and not self.composed.isdisjoint(types):
            return NotImplemented
        named = kwargs or {}
        if _picks_by_mask(func, args):
            args = args[0], self._as_places(args[1]), *args[2:]
        known, out = self._values.answered(func, args)
        if not known:
            out = func(*args, **named)
        made = _tensors(out)
        if not known:
            self._values.follow(func, args, named, made)
        if self._beside or func.namespace in _BESIDE:
            return out
        module = self._module()
        if func.is_view:
            self._views += 1
        elif made and all(map(self._is_host, made)):
            for one in made:
                self._host_block_of(one)
        else:
            self._write(func, args, module, made)
        return out

    def as_one(self, name: str, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Run a function as the one operation of that name: of what it makes, only what it returns is allocated."""
        if self._beside:
            return function(*args)
        with self.beside():
            out = function(*args)
        self._write(name, tuple(args), self._module(), _tensors(out))
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

    def begin_step(self, step: int) -> None:
        """Mark where the first (0) or the second step (1) begins."""
        recording = self.recording
        if step:
            recording.second_step = len(recording.trace)
            recording.trace.reset_peaks()
        else:
            recording.first_step = len(recording.trace)

    def hold(self, tensors: Sequence[Any], kind: Holds) -> None:
        """Write down tensors that are there already, and what they are; nothing of what is run beside."""
        if self._beside:
            return
        for tensor in tensors:
            local = getattr(tensor, "_local_tensor", tensor)
            if isinstance(tensor, torch.nn.Parameter):
                forget_value(local)
            if not self._is_host(local):
                self.recording.kinds[self._block_of(local)] = kind

    @contextmanager
    def holding(self, kind: Holds) -> Iterator[None]:
        """Say what blocks hold that are made while it is entered, also those given back before it is left."""
        first = self.recording.trace.num_blocks
        yield
        for block in range(first, self.recording.trace.num_blocks):
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

    @contextmanager
    def numbers_reported(self) -> Iterator[None]:
        """Take numbers without a value that the program asks for to be ones that it only reports."""
        self._values.reported = True
        try:
            yield
        finally:
            self._values.reported = False

    def name_modules(self, model: Any, of: str = "") -> None:
        """Have operations of a model's modules carry their names, behind that `of` another model than the first."""
        self._names |= {id(module): of + name.replace(_WRAPPER, "") for name, module in model.named_modules()}
        if self.links is not None:
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                block = self._known_block(getattr(tensor, "_local_tensor", tensor))
                if block >= 0:
                    self.links.names[block] = of + name.replace(_WRAPPER, "")

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
        self._entered += 1
        self._modules.append(self._names.get(id(module), self._modules[-1]))

    def _leave_module(self, *_: Any) -> None:
        self._modules.pop()

    def allocate_ahead(self, tensor: Any) -> None:
        """Write down a buffer that was made for the operation that comes next."""
        if self._ahead is None:
            self._ahead = len(self.recording.trace)
        self._block_of(tensor, len(self.recording.operations))

    def write_kernel(
        self, name: str, taken: tuple[Shape, ...], given: tuple[Shape, ...], flags: tuple[bool, ...] = ()
    ) -> None:
        """Write down an operation that writes into tensors that are there already; `flags`: see `flags_of`."""
        self._operation(name, self._module(), taken, given, flags)

    def _module(self) -> str:
        """The module whose operation runs; in the backward pass, that of the forward pass which it belongs to."""
        node, module = torch._C._current_autograd_node(), self._modules[-1]
        if node is not None:
            return module or self._module_of.get(node._sequence_nr(), "")
        # the first after a node is its own; others, without gradients, may be of other modules
        self._module_of.setdefault(torch.autograd._get_sequence_nr() - 1, module)
        return module

    def mark(self, stream: int | None = None) -> int | None:
        """The last operation that went to a queue, None where there is none; the queue is that which work goes to where
        none is named."""
        return self._last.get(self.stream if stream is None else stream)

    def wait_for(self, operation: int | None, stream: int | None = None) -> None:
        """What goes to a queue from here on comes after an operation has ended; the queue is that which work goes to
        where none is named."""
        if operation is not None and not self._beside:
            queue = self.stream if stream is None else stream
            self.recording.waits.append(Wait(len(self.recording.operations), queue, operation))

    def _write(self, func: Any, args: tuple[Any, ...], module: str, made: list[Any]) -> None:
        name = str(func)
        shape = shape_of if name in PRODUCTS else _held_shape
        taken = tuple(shape(one) for arg in args for one in _tensors(arg))
        schema = getattr(func, "_schema", None)  # none of what is run as one
        # lists are changed in place
        written = made or (_tensors(args[0]) if schema and schema.is_mutable else [])
        given = tuple(shape_of(one) for one in written)
        message = self.message_of and self.message_of(func, args, made)
        if name == _WAIT_TENSOR:
            self.wait_for(self._sent.pop(id(args[0].untyped_storage()), None))
        number = self._operation(
            name, module, taken, given, flags_of(name, args), _alike(args, written), message
        )
        if message is not None and message.apart:
            self._sent |= {id(one.untyped_storage()): number for one in made}
        taken_of = [self._known_block(one) for arg in args for one in _tensors(arg)] if self.links else []
        for one in made:
            if not self._is_host(one):
                self._block_of(one, number)
        if self.links is not None:
            self.links.taken[number] = tuple(taken_of)
            self.links.given[number] = tuple(map(self._known_block, written))
        if name == _CAST and self.phase in _PASSES and made and self._is_weight(args[0]):
            self.recording.kinds.setdefault(self._block_of(made[0], number), Holds.CAST)
        inside = [self._allocate(size, number) for size in asked_inside(name, args, made)]
        for block in inside:
            self.recording.kinds[block] = Holds.WORKSPACE
            self.recording.trace.free(block)

    def _is_weight(self, tensor: Any) -> bool:
        """Is all that lies behind a tensor one weight, or several?"""
        return self.recording.kinds.get(self._known_block(tensor)) in _WEIGHTS

    def _operation(
        self,
        name: str,
        module: str,
        taken: tuple[Shape, ...],
        given: tuple[Shape, ...],
        flags: tuple[bool, ...] = (),
        alike: bool = True,
        message: Message | None = None,
    ) -> int:
        """Write down an operation, and the workspace of a first product. Gives its number."""
        recording = self.recording
        number, first = len(recording.operations), len(recording.trace)
        first, self._ahead = first if self._ahead is None else self._ahead, None
        node = torch._C._current_autograd_node()
        by_autograd = node is not None and len(self._modules) == 1  # else a module is run again for it
        host = HostWork(self._views, self._entered, by_autograd)
        self._views = self._entered = 0
        recording.operations.append(
            Operation(name, module, self.phase, first, taken, given, self.stream, flags, alike, host, message)
        )
        if self.links is not None:
            self.links.taken.append((-1,) * len(taken))
            self.links.given.append((-1,) * len(given))
        if message is None or not message.apart:
            self._last[self.stream] = number
        forward = node is None  # the backward pass has a thread of its own
        if name in PRODUCTS and forward not in self._threads:
            self._threads.add(forward)
            recording.kinds[self._allocate(workspace(self._capability), number)] = Holds.WORKSPACE
        return number

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

    def _known_block(self, tensor: Any) -> int:
        """The block behind a tensor, -1 where there is none yet."""
        return self._blocks.get(id(tensor.untyped_storage()), (None, -1))[1]

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


def _picks_by_mask(func: Any, args: tuple[Any, ...]) -> bool:
    """Does an operation look places up that a mask sets, as indexing and its gradient do?"""
    adds = func in _INDEX_PUT and args[3:4] == (True,)
    return (func is _INDEX or adds) and any(one is not None and one.dtype == torch.bool for one in args[1])


def _tensors(value: Any) -> list[Any]:
    """A tensor, or those of a list."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for one in value if isinstance(one, torch.Tensor)] if isinstance(value, (tuple, list)) else []


def flags_of(name: str, args: tuple[Any, ...]) -> tuple[bool, ...]:
    """Of a product, which of its tensors lie transposed in memory; of others, what is asked for as yes or no."""
    if name in PRODUCTS:
        return tuple(one.dim() > 1 and one.stride(-1) != 1 for arg in args for one in _tensors(arg))
    return tuple(arg for arg in args if arg is True or arg is False)


def _alike(args: tuple[Any, ...], written: list[Any]) -> bool:
    """Do all tensors of several values that an operation meets have one shape, and lie alike and densely in memory?"""
    met = [one for arg in args for one in _tensors(arg) if one.dim()] + written
    if not met:
        return True
    first = met[0]
    shape, stride = first.shape, first.stride()
    last = sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    dense = last + 1 == first.numel()
    return dense and all(one.shape == shape and one.stride() == stride for one in met[1:])


def shape_of(tensor: Any) -> Shape:
    """Dimensions of a tensor, and its number format."""
    return tuple(tensor.shape), _DTYPES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")


def _held_shape(tensor: Any) -> Shape:
    """The shape in memory, where what `expand` repeats lies once."""
    shape, dtype = shape_of(tensor)
    stride = tensor.stride()
    return (
        tuple(n if step else 1 for n, step in zip(shape, stride, strict=True)) if 0 in stride else shape
    ), dtype


_WRAPPER: Final = "_checkpoint_wrapped_module."  # of PyTorch's checkpoint_wrapper
_BESIDE: Final = ("prim", "profiler")  # namespaces of what is no operation
_CAST: Final = "aten._to_copy.default"
_PASSES: Final = (Phase.FORWARD, Phase.BACKWARD)
_WEIGHTS: Final = (Holds.WEIGHTS, Holds.GATHERED)
_WAIT_TENSOR: Final = "_c10d_functional.wait_tensor.default"
_DEVICE: Final = torch.ops.prim.device.default
_NONZERO: Final = torch.ops.aten.nonzero.default
_SELECT: Final = torch.ops.aten.select.int
_INDEX: Final = torch.ops.aten.index.Tensor
_INDEX_PUT: Final = (torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)
_DTYPES: Final = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.int64: "int64"}
