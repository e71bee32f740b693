"""Which freed blocks wait for other streams? Those that `Tensor.record_stream` told the allocator about.

PyTorch records an event on each of these streams when the block is freed, asks at the next allocation which are done,
and waits for all of them before it gives all cached memory back. Meanwhile the block counts as reserved, and no longer
as allocated. Source: insert_events, process_events, synchronize_and_free_events of c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Freed = tuple[int, int, int]  # address, size [units], pool


@dataclass
class LateFrees:
    """Blocks in use by other streams than their own, and those of them that were freed."""

    used_on: dict[int, set[int]] = field(default_factory=dict)
    """By live block, the other streams."""
    ready: list[Freed] = field(default_factory=list)
    """Freed, and all streams done: free from the next allocation on."""
    _queued: dict[int, list[int]] = field(default_factory=dict)  # by stream, freed blocks that wait for it
    _open: dict[int, tuple[int, Freed]] = field(
        default_factory=dict
    )  # by block, for how many streams it waits

    def hold(self, block: int, freed: Freed) -> None:
        """A block that other streams use was freed."""
        streams = self.used_on.pop(block)
        self._open[block] = len(streams), freed
        for stream in streams:
            self._queued.setdefault(stream, []).append(block)

    def catch_up(self, stream: int) -> None:
        """A stream is done with what it was given before."""
        for block in self._queued.pop(stream, ()):
            count, freed = self._open.pop(block)
            if count > 1:
                self._open[block] = count - 1, freed
            else:
                self.ready.append(freed)

    def take_ready(self) -> list[Freed]:
        """What is free now."""
        ready, self.ready[:] = list(self.ready), []
        return ready

    def take_all(self) -> list[Freed]:
        """All that waits, once every stream is done."""
        waiting = [freed for _, freed in self._open.values()]
        self._open.clear()
        self._queued.clear()
        return self.take_ready() + waiting
