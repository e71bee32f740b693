"""What does an operation of PyTorch's process groups send, and what waits for it?

Source: the schemas of pytorch 2.13 in the namespaces `c10d`, whose operations run where they are called only if
`async_op` is false and else in a queue of their group until somebody waits for their `Work`, and `_c10d_functional`,
which always have that queue until `wait_tensor`. Left out: how long it takes (`timing/messages.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any, Final
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
import torch.distributed as distributed
from torch._C._distributed_c10d import FakeWork
from torch.distributed.distributed_c10d import ProcessGroup, _resolve_process_group

from planner.cost.captured.operation import Message
from planner.dryrun.recorder import Recorder

_SPACES: Final = ("c10d", "_c10d_functional", "_dtensor")
_RESULT: Final = -1
# kind, and which of the arguments holds the bytes that count
_SENT: Final = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_": ("all_gather", 0),
    "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("broadcast", 0),  # the same chain the other way round
    "barrier": ("all_reduce", 0),  # of one number
    "send": ("p2p", 0),
    "recv_": ("p2p", 0),
    "all_reduce": ("all_reduce", 0),
    "all_reduce_": ("all_reduce", 0),
    "all_reduce_coalesced": ("all_reduce", 0),
    "all_reduce_coalesced_": ("all_reduce", 0),
    "all_gather_into_tensor": ("all_gather", _RESULT),
    "all_gather_into_tensor_out": ("all_gather", _RESULT),
    "all_gather_into_tensor_coalesced": ("all_gather", _RESULT),
    "reduce_scatter_tensor": ("reduce_scatter", 0),
    "reduce_scatter_tensor_out": ("reduce_scatter", 0),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 0),
    "all_to_all_single": ("all_to_all", 0),
    "shard_dim_alltoall": ("all_to_all", 0),
    "broadcast": ("broadcast", 0),
}
# that give a `Work`; some are called otherwise in older releases
_CALLS: Final = (
    "allreduce", "allreduce_coalesced", "allgather", "allgather_coalesced", "_allgather_base", "all_gather_single",
    "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_single", "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced", "alltoall",
    "alltoall_base", "all_to_all_single", "broadcast", "reduce", "send", "recv", "_end_coalescing",
)  # fmt: skip


def message_of(func: Any, args: Sequence[Any], made: Sequence[Any]) -> Message | None:
    """What an operation sends; None for one that sends nothing. `made`: the tensors that it gives."""
    if getattr(func, "namespace", "") not in _SPACES:  # of what is run as one there is none
        return None
    name = func._schema.name.partition("::")[2]
    group = _group(args)
    if group is None:
        return None
    kind, place = _SENT.get(name, (name, 0))
    ranks = sorted(distributed.get_process_group_ranks(group))
    stride = min((b - a for a, b in pairwise(ranks)), default=1)
    apart = not any(one is False for one in args)
    return Message(kind, _bytes(made if place == _RESULT else args[place]), len(ranks), stride, apart)


def _group(args: Sequence[Any]) -> Any:
    for one in args:
        if isinstance(one, torch.ScriptObject) and "ProcessGroup" in str(one._type()):
            return ProcessGroup.unbox(one)
    named = [one for one in args if isinstance(one, str)]
    return _resolve_process_group(named[-1]) if named else None


def _bytes(value: Any) -> int:
    """Of a tensor, or of all in a list, or in lists of lists."""
    if isinstance(value, torch.Tensor):
        return math.prod(value.shape) * value.element_size()
    return sum(map(_bytes, value))


@contextmanager
def works_followed(recorder: Recorder) -> Iterator[None]:
    """Know while it is entered which operation a `Work` stands for, and what waits for it."""
    numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
    own = FakeWork.wait

    def called(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            work = call(*args, **kwargs)
            if work is not None:
                numbers[work] = len(recorder.recording.operations) - 1
            return work

        return run

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        if work in numbers:
            recorder.wait_for(numbers[work])
        return own(work, *args, **kwargs)

    with ExitStack() as stack:
        for name in filter(ProcessGroup.__dict__.__contains__, _CALLS):
            stack.enter_context(patch.object(ProcessGroup, name, called(getattr(ProcessGroup, name))))
        stack.enter_context(patch.object(FakeWork, "wait", wait))
        yield
