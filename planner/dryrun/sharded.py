"""Which blocks hold gathered weights and gradients of a model that FSDP2 shards?

Known by which of its functions asks for them. Source: pytorch 2.13 torch/distributed/fsdp/_fully_shard
(`_fsdp_collectives.py`, `_fsdp_param.py`, `_fsdp_param_group.py`). Left out: what lies behind gathered weights once
they are given back and asked for again, which the recorder follows by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from planner.dryrun.recorder import Recorder
from planner.dryrun.recording import Holds

_ASKS: Final = (
    (_fsdp_param_group, "foreach_all_gather", Holds.GATHERED),
    (_fsdp_param_group, "foreach_all_gather_copy_out", Holds.GATHERED),
    (_fsdp_param_group, "foreach_reduce", Holds.GRADIENTS),
    (FSDPParam, "to_accumulated_grad_if_needed", Holds.GRADIENTS),
)


@contextmanager
def sharded_blocks_told(recorder: Recorder) -> Iterator[None]:
    """Have the recorder know while it is entered what FSDP2 gathers, sums and accumulates."""
    own = FSDPParamGroup.post_backward

    def post_backward(group: Any, *args: Any) -> Any:
        recorder.hold(_whole_gradients(group), Holds.GRADIENTS)
        return own(group, *args)

    with ExitStack() as stack:
        for place, name, kind in _ASKS:
            stack.enter_context(patch.object(place, name, holding(recorder, getattr(place, name), kind)))
        stack.enter_context(patch.object(FSDPParamGroup, "post_backward", post_backward))
        yield


def holding(recorder: Recorder, function: Callable[..., Any], kind: Holds) -> Callable[..., Any]:
    """The function, whose blocks are of a kind."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with recorder.holding(kind):
            return function(*args, **kwargs)

    return run


def _whole_gradients(group: Any) -> list[Any]:
    """Of weights that the backward pass has gone through: before ranks sum them, or where they accumulate them."""
    weights = [getattr(one, "_unsharded_param", None) for one in group.fsdp_params]
    return [one.grad for one in weights if one is not None and one.grad is not None]


@contextmanager
def shards_beside(recorder: Recorder) -> Iterator[None]:
    """Have the recorder leave out while it is entered what FSDP2 gathers and sums."""
    with ExitStack() as stack:
        for name in ("foreach_all_gather", "foreach_all_gather_copy_out", "foreach_reduce"):
            own = getattr(_fsdp_param_group, name)
            stack.enter_context(patch.object(_fsdp_param_group, name, _beside(recorder, own)))
        yield


def _beside(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with recorder.beside():
            return function(*args, **kwargs)

    return run
