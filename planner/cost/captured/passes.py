"""What does a listed pass take and hold, for one size of everything? A fold over its operations and its changes of
memory.

Left out: which passes a step has (`layers.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.captured.kernels import Device, kind_of
from planner.cost.captured.operation import HostWork, Operation, Phase
from planner.cost.captured.seconds import device_seconds, issue_seconds
from planner.spec.listed import Both, ListedPass, ListedShape, Lists, Sizes, Values
from planner.spec.machine.host import HostRates

Array = NDArray[np.float64]
_COLLECTIVES: Final = "_c10d_functional."
_WAITED: Final = "_c10d_functional.wait_tensor.default"
BLOCK: Final = 512  # bytes that the caching allocator rounds to (c10/core/AllocatorConfig.h, kMinBlockSize)


@dataclass(frozen=True)
class PassCost:
    """`device`: seconds by kind of operation (`kernels.kind_of`); `host`: of issuing all [s]. `net`: bytes that are
    left behind it, `peak`: the most beyond those before it; `early`, `late`: the most before and from the first
    gradient on that stays for the update, without it; `late` nothing where there is none [bytes]."""

    device: Mapping[str, float]
    host: float
    net: float
    peak: float
    early: float
    late: float
    messages: int

    @property
    def busy(self) -> float:
        """Seconds of the device."""
        return sum(self.device.values())

    @property
    def seconds(self) -> float:
        """The longer of device and host [s]."""
        return self.sending(0.0)

    def sending(self, sent: float) -> float:
        """The same where messages that nothing hides take so long."""
        return max(self.busy + sent, self.host)


@dataclass(frozen=True)
class BothCosts:
    """Of the two passes of a part."""

    forward: PassCost
    backward: PassCost

    @property
    def seconds(self) -> float:
        """Of both passes, each the longer of device and host [s]."""
        return self.forward.seconds + self.backward.seconds

    @property
    def busy(self) -> float:
        """Seconds of the device."""
        return self.forward.busy + self.backward.busy

    @property
    def host(self) -> float:
        """Seconds of the host."""
        return self.forward.host + self.backward.host

    def sent_again(self, bare: BothCosts) -> float:
        """Share of the messages of a forward pass that the backward one sends again, beside a `bare` one [1]."""
        return (self.backward.messages - bare.backward.messages) / max(bare.forward.messages, 1)


def sends_message(operation: Operation) -> bool:
    """Is it one of PyTorch's collectives?"""
    return operation.name.startswith(_COLLECTIVES) and operation.name != _WAITED


class ListedCosts:
    """Binds lists to sizes, a device and its host."""

    def __init__(self, lists: Lists, sizes: Sizes, device: Device, host: HostRates) -> None:
        self.lists, self.device, self.host = lists, device, host
        self.values = Values(lists.expressions, sizes)

    def copies(self, part: Both) -> float:
        """Bytes of weights in another format that a part's forward pass leaves."""
        return sum(self._rounded(one.size) * one.sign for one in part.forward.changes if one.cast)

    def both(self, part: Both) -> BothCosts:
        """The cost of both passes of a part."""
        return BothCosts(self._cost(part.forward, Phase.FORWARD), self._cost(part.backward, Phase.BACKWARD))

    def _cost(self, one: ListedPass, phase: Phase) -> PassCost:
        operations = [self._operation(number, phase) for number in one.operations]
        sends = [sends_message(operation) for operation in operations]
        seconds = np.where(sends, 0.0, device_seconds(operations, self.device))
        device: dict[str, float] = {}
        for operation, took in zip(operations, seconds.tolist(), strict=True):
            kind = kind_of(operation)
            device[kind] = device.get(kind, 0.0) + took
        # the call itself comes before the first part of a pass alone
        issued = float(issue_seconds(operations, self.host).sum()) - self.host.call * bool(operations)
        levels = self._levels(one)
        early, late = levels[: one.born + 1], levels[one.born + 1 :]
        return PassCost(
            device, issued, float(levels[-1]), float(levels.max()), float(early.max()),
            float(late.max(initial=-np.inf)), sum(sends),
        )  # fmt: skip

    def _levels(self, one: ListedPass) -> Array:
        """Bytes beyond those before a pass, at its start and behind each of its n changes (n + 1,)."""
        blocks = [change.sign * self._rounded(change.size) for change in one.changes]
        return np.concatenate([np.zeros(1), np.cumsum(np.array(blocks, dtype=np.float64))])

    def _rounded(self, size: int) -> float:
        return -(-self.values[size] // BLOCK) * BLOCK

    def _operation(self, number: int, phase: Phase) -> Operation:
        one = self.lists.operations[number]
        host = HostWork(one.views, one.modules, one.by_autograd)
        taken, given = self._shapes(one.taken), self._shapes(one.given)
        return Operation(one.name, "", phase, 0, taken, given, 0, one.flags, one.alike, host)

    def _shapes(self, shapes: Sequence[ListedShape]) -> tuple[tuple[tuple[int, ...], str], ...]:
        return tuple((tuple(int(self.values[dim]) for dim in dims), dtype) for dims, dtype in shapes)
