"""One process of many, as PyTorch's distributed code sees it, where no other runs.

Collectives go to PyTorch's fake process group, which gives tensors of the right shapes at once. What asks for a
device's streams gets streams that only carry a number: blocks of memory of different ones come from pools of their own.
Left out: what collectives take (`timing/messages.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

import torch.distributed as distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.debug import (
    _clear_fast_path_sharding_prop_cache,
    _clear_python_sharding_prop_cache,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from planner.dryrun.messages import message_of, works_followed
from planner.dryrun.recorder import Recorder
from planner.dryrun.recording import HOST
from planner.dryrun.sharded import sharded_blocks_told

_FULLY_SHARD: Final = "torch.distributed.fsdp._fully_shard"
_ASK_FOR_DEVICE: Final = ("_fsdp_collectives", "_fsdp_init", "_fsdp_param_group", "_fsdp_state")


@contextmanager
def process_of(rank: int, world: int, recorder: Recorder) -> Iterator[None]:
    """Be this rank of `world` while it is entered, and have the recorder follow streams and shards."""
    if distributed.is_initialized():
        raise RuntimeError("a process group is there already")
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    log = logging.getLogger("torch.distributed")
    try:
        with ExitStack() as stack:
            stack.callback(log.setLevel, log.level)
            log.setLevel(logging.ERROR)
            device = Device(recorder)
            for name in _ASK_FOR_DEVICE:
                stack.enter_context(patch(f"{_FULLY_SHARD}.{name}._get_device_handle", device.of))
            # FSDP waits so for weights that were gathered ahead and not needed, as of layers without a gradient
            stack.enter_context(patch("torch.accelerator.current_stream", device.current_stream))
            stack.enter_context(sharded_blocks_told(recorder))
            stack.enter_context(_shapes_beside(recorder))
            stack.enter_context(_real_meshes())
            stack.enter_context(recorder.storages_followed())
            stack.enter_context(works_followed(recorder))
            recorder.message_of = message_of
            recorder.composed = frozenset({DTensor})
            yield
    finally:
        distributed.destroy_process_group()
        for forget in (_clear_python_sharding_prop_cache, _clear_fast_path_sharding_prop_cache):
            forget()  # what is planned holds the groups that were there


@contextmanager
def _shapes_beside(recorder: Recorder) -> Iterator[None]:
    """Leave out operations that DTensor runs on tensors of its own to learn the shape of a result."""
    own = ShardingPropagator._propagate_tensor_meta_non_cached

    def beside(propagator: Any, schema: Any) -> Any:
        with recorder.beside():
            return own(propagator, schema)

    with patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", beside):
        yield


@contextmanager
def _real_meshes() -> Iterator[None]:
    """Have numbers of ranks in a mesh be real: they are no data of the device."""
    with ExitStack() as stack:
        for name in ("_create_sub_mesh", "_flatten", "_unflatten", "_create_flatten_mesh"):
            own = getattr(DeviceMesh, name, None)
            if own is not None:
                stack.enter_context(patch.object(DeviceMesh, name, _without_modes(own)))
        yield


def _without_modes(own: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return own(*args, **kwargs)

    return run


class Mark:
    """A mark behind the work that a queue of the device was given."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._behind: int | None = None

    def record(self, stream: Queue | None = None) -> Mark:
        """Set it."""
        self._behind = self._recorder.mark(None if stream is None else stream.number)
        return self

    def wait(self, stream: Queue | None = None) -> None:
        """Have a queue wait for it."""
        self._recorder.wait_for(self._behind, None if stream is None else stream.number)

    def synchronize(self) -> None:
        """The host waits."""
        self._recorder.wait_for(self._behind, HOST)

    def query(self) -> bool:
        """Is it reached?"""
        return True


@dataclass(frozen=True)
class Queue:
    """A queue of the device's work: 0 is the one that nobody made."""

    recorder: Recorder = field(compare=False, repr=False)
    number: int

    def wait_stream(self, other: Queue) -> None:
        """Work waits on the device; the host goes on."""
        self.wait_event(other.record_event())

    def wait_event(self, event: Mark) -> None:
        """See `wait_stream`."""
        event.wait(self)

    def record_event(self, event: Mark | None = None) -> Mark:
        """A mark behind the work given so far."""
        return (event or Mark(self.recorder)).record(self)

    def synchronize(self) -> None:
        """The host waits."""
        self.record_event().synchronize()


class Device:
    """Stands for `torch.cuda` where code asks for streams and events."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._made = recorder, 0

    def of(self, kind: str) -> Device:
        """The module of a kind of device."""
        return self

    def Event(self, *_: Any, **__: Any) -> Mark:  # noqa: N802  # PyTorch's name
        """A new mark."""
        return Mark(self._recorder)

    def Stream(self, priority: int = 0) -> Queue:  # noqa: N802
        """A new queue."""
        self._made += 1
        return Queue(self._recorder, self._made)

    def current_stream(self, _: Any = None) -> Queue:
        """The queue that work goes to, of the only device."""
        return Queue(self._recorder, self._recorder.stream)

    def default_stream(self) -> Queue:
        """The one that nobody made."""
        return Queue(self._recorder, 0)

    def current_device(self) -> int:
        """The only one."""
        return 0

    @contextmanager
    def stream(self, stream: Queue) -> Iterator[None]:
        """Have work go to a queue while it is entered."""
        before, self._recorder.stream = self._recorder.stream, stream.number
        try:
            yield
        finally:
            self._recorder.stream = before


def mesh_of(sizes: dict[str, int]) -> Any:
    """Ranks as a grid of so many along each named dimension."""
    with _disable_current_modes():
        return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
