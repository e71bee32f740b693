"""Which blocks hold what, of those that DeepSpeed's ZeRO asks for? Known by its own names and functions.

Source: deepspeed 0.19 runtime/zero/stage_1_and_2.py, stage3.py, partitioned_param_coordinator.py,
runtime/bf16_optimizer.py, runtime/fp16/fused_optimizer.py, unfused_optimizer.py. Left out: partitions swapped to disks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, Final
from unittest.mock import patch

import torch

from planner.dryrun.recorder import Recorder
from planner.dryrun.recording import Holds
from planner.dryrun.sharded import holding

_ZERO: Final = "deepspeed.runtime.zero"
_ZERO_2: Final = f"{_ZERO}.stage_1_and_2", "DeepSpeedZeroOptimizer"
_ZERO_3: Final = f"{_ZERO}.stage3", "DeepSpeedZeroOptimizer_Stage3"
_COORDINATOR: Final = f"{_ZERO}.partitioned_param_coordinator", "PartitionedParameterCoordinator"
_PARTITIONING: Final = f"{_ZERO}.partition_parameters", "Init"
# a class's module and name, a function of its, and what that asks for
_ASKS: Final = (
    (*_COORDINATOR, "fetch_sub_module", Holds.GATHERED),
    (*_ZERO_3, "_post_step", Holds.GATHERED),  # of weights that stay whole
    (*_PARTITIONING, "_partition", Holds.WEIGHTS),
    (*_ZERO_3, "reduce_ready_partitions_and_remove_grads", Holds.GRADIENTS),
    (*_ZERO_3, "independent_gradient_partition_epilogue", Holds.GRADIENTS),
    (*_ZERO_3, "_prepare_fp32_grad_for_sub_group", Holds.GRADIENTS),
    (*_ZERO_2, "process_gradients", Holds.GRADIENTS),
    (*_ZERO_2, "setup_buckets", Holds.GRADIENTS),
    (*_ZERO_2, "independent_gradient_partition_epilogue", Holds.GRADIENTS),
)
_WEIGHTS: Final = ("bit16_groups_flat", "lp_param_buffer", "bf16_groups_flat", "fp16_groups_flat")
_MASTERS: Final = (
    "single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition", "fp32_groups_flat",
    "fp32_groups",
)  # fmt: skip
_GRADIENTS: Final = (
    "averaged_gradients", "grad_partitions_flat_buffer", "fp32_groups_gradients_flat",
    "temp_grad_buffer_for_gpu_offload",
)  # fmt: skip


@contextmanager
def zero_blocks_told(recorder: Recorder) -> Iterator[None]:
    """Have the recorder know while it is entered what ZeRO gathers, and where it sums gradients."""

    def clipped(own: Any) -> Any:
        def run(optimizer: Any, grads: Any, norm: Any) -> Any:
            recorder.hold(list(_tensors(grads)), Holds.GRADIENTS)
            return own(optimizer, grads, norm)

        return run

    with ExitStack() as stack:
        for module, name, function, kind in _ASKS:
            place = getattr(import_module(module), name)
            if not hasattr(place, function):  # of another release: what it asks for is not told apart
                continue
            own = _with_gradient(recorder, getattr(place, function), kind)
            stack.enter_context(patch.object(place, function, holding(recorder, own, kind)))
        place = getattr(import_module(_ZERO_2[0]), _ZERO_2[1])
        own = place.unscale_and_clip_grads
        stack.enter_context(patch.object(place, "unscale_and_clip_grads", clipped(own)))
        yield


def _with_gradient(recorder: Recorder, own: Any, kind: Holds) -> Any:
    """A function of ZeRO's that may be given a weight whose gradient has come."""
    if kind is not Holds.GRADIENTS:
        return own

    def run(optimizer: Any, *given: Any) -> Any:
        grads = [one.grad for one in given if isinstance(one, torch.nn.Parameter)]
        recorder.hold([one for one in grads if one is not None], kind)
        return own(optimizer, *given)

    return run


def hold_states(engine: Any, recorder: Recorder) -> None:
    """Write down what a rank keeps from step to step."""
    optimizer = engine.optimizer
    weights = list(engine.module.parameters())
    shards = [one.ds_tensor for one in weights if hasattr(one, "ds_tensor")]
    recorder.hold([*(shards or weights), *_named(optimizer, _WEIGHTS)], Holds.WEIGHTS)
    masters = list(_named(optimizer, _MASTERS))
    moments = _tensors([list(one.values()) for one in _states(optimizer)])
    recorder.hold([*masters, *moments], Holds.OPTIMIZER_STATES)
    hold_gradients(engine, recorder)


def hold_gradients(engine: Any, recorder: Recorder) -> None:
    """Write down gradients that are there, of weights and of their copies in fp32."""
    optimizer = engine.optimizer
    weights = [*engine.module.parameters(), *_named(optimizer, _MASTERS)]
    grads = [one.grad for one in weights if one.grad is not None]
    recorder.hold([*grads, *_named(optimizer, _GRADIENTS)], Holds.GRADIENTS)


def _states(optimizer: Any) -> Iterable[dict[str, Any]]:
    """Of each tensor that PyTorch's optimizer inside updates."""
    inner = optimizer
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    return [one for one in inner.state.values() if isinstance(one, dict)]


def _named(optimizer: Any, names: Iterable[str]) -> Iterator[Any]:
    return _tensors([getattr(optimizer, name, None) for name in names])


def _tensors(value: Any) -> Iterator[Any]:
    """Those in lists and mappings, however deep."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
