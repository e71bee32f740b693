"""How long does an operation take that only moves bytes, some of which a cache holds?

One operation of PyTorch, whose operands may lie differently in memory. Left out: which bytes (`passes.py`,
`cost/captured/traffic.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planner.spec.machine.accelerator import Accelerator
from planner.spec.machine.rates import KernelRates


class Access(StrEnum):
    """How kernels get at what they read and write.

    EVEN: 16 bytes at once, as all operands have one format and lie alike in memory. APART: value by value, as one is
    repeated over the others, turned, cut out, or of another format (pytorch/pytorch aten/src/ATen/native/cuda/
    CUDALoops.cuh, `launch_vectorized_kernel` or not). LISTS: parts of lists of tensors, a fixed number in a kernel;
    FUSED: the same with a whole optimizer in it.
    """

    EVEN = "even"
    APART = "apart"
    LISTS = "lists"
    FUSED = "fused"


@dataclass(frozen=True)
class Moved:
    """What an operation moves: bytes `read` and `written`, by so many `kernels`, 1 or more.

    `width`: of a value [bytes].
    """

    read: float = 0.0
    written: float = 0.0
    kernels: int = 1
    access: Access = Access.EVEN
    width: int = 4

    @property
    def size(self) -> float:
        """Both [bytes]."""
        return self.read + self.written


def moved_time(moved: Moved, accelerator: Accelerator, rates: KernelRates) -> float:
    """Time of an operation that only moves bytes [s].

    kernels x launch_latency + bytes / (bandwidth x efficiency of the access) x (missed + (1 - missed) / cache_gain).
    What is missed rises from nothing, where a kernel touches no more than the L2 cache holds, to everything at three
    times as much: the next operation reads what the last one wrote. Of lists all is missed. Validity: operations one
    after the other on the same tensors.
    """
    moving, missed = rates.moving, 1.0
    by_width = {Access.APART: moving.apart, Access.LISTS: moving.lists, Access.FUSED: moving.fused}.get(
        moved.access
    )
    efficiency = by_width[2 if moved.width <= 2 else 4] if by_width else rates.memory_efficiency
    if accelerator.l2 and moved.access in (Access.EVEN, Access.APART):
        missed = min(max((moved.size / moved.kernels / accelerator.l2 - 1.0) / 2.0, 0.0), 1.0)
    streamed = moved.size / (accelerator.memory_bandwidth * efficiency)
    return moved.kernels * rates.launch_latency + streamed * (
        missed + (1.0 - missed) / rates.moving.cache_gain
    )
