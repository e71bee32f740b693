"""What did a training step ask of the allocator, and in which order?

Events of one device, recorded in the order in which the host issued them. A block is known by the number of its
allocation, counted from 0 and never used again. Left out: CUDA graphs, whose allocations come from pools of their own.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]


class Kind(IntEnum):
    """What an event is, where it allocates nothing; an allocation holds its bytes, 0 or more."""

    FREE = -1
    USE_ON = -2
    CATCH_UP = -3
    EMPTY_CACHE = -4
    RESET_PEAKS = -5


_LIVE: Final = 0
_FREED: Final = 1


class Trace:
    """Recorded events. Misuse, such as a block freed twice, raises `ValueError`."""

    def __init__(self) -> None:
        self._what = array("q")  # bytes asked for, or a kind
        self._blocks = array("q")  # the block, or where there is none the number of the event
        self._streams = array("q")
        self._stream_of = array("q")  # of each block
        self._state = bytearray()  # of each block

    def __len__(self) -> int:
        return len(self._what)

    @property
    def num_blocks(self) -> int:
        """How many blocks were allocated."""
        return len(self._stream_of)

    def allocate(self, asked: int, stream: int = 0) -> int:
        """A tensor of `asked` bytes is made by work of `stream` (0, 1, ...). Gives the number of its block.

        Nothing is allocated for 0 bytes, but the block has a number all the same.
        """
        if asked < 0 or stream < 0:
            raise ValueError(f"bytes and streams are 0 or more, not {asked} and {stream}")
        block = len(self._stream_of)
        self._append(asked, block, stream)
        self._stream_of.append(stream)
        self._state.append(_LIVE)
        return block

    def free(self, block: int) -> None:
        """The last reference to a block is gone."""
        self._check(block)
        self._state[block] = _FREED
        self._append(Kind.FREE, block, self._stream_of[block])

    def use_on(self, block: int, stream: int) -> None:
        """Work of another stream uses a block (`Tensor.record_stream`): once freed, it is held until that is done."""
        self._check(block)
        if stream != self._stream_of[block]:
            self._append(Kind.USE_ON, block, stream)

    def catch_up(self, stream: int) -> None:
        """All work given to a stream so far is done, so that the next allocation finds what waited for it."""
        self._append(Kind.CATCH_UP, len(self), stream)

    def empty_cache(self) -> None:
        """`torch.cuda.empty_cache`."""
        self._append(Kind.EMPTY_CACHE, len(self), 0)

    def reset_peaks(self) -> None:
        """`torch.cuda.reset_peak_memory_stats`, between the first step and those after it."""
        self._append(Kind.RESET_PEAKS, len(self), 0)

    def largest_total(self) -> int:
        """The most bytes asked for by blocks that are there at once, each as large as asked for."""
        what, blocks = self.what, self.blocks
        asked = np.zeros(self.num_blocks, np.int64)
        made = what >= 0
        asked[blocks[made]] = what[made]
        freed = what == Kind.FREE
        change = np.where(made, what, 0)
        change[freed] = -asked[blocks[freed]]
        return int(np.cumsum(change).max(initial=0))

    @property
    def what(self) -> Column:
        """By event, bytes asked for [bytes] or a `Kind`."""
        return np.array(self._what, np.int64)

    @property
    def blocks(self) -> Column:
        """By event, the block; the event's own number where it has none."""
        return np.array(self._blocks, np.int64)

    @property
    def streams(self) -> Column:
        """By event, the stream; where a block is freed, that of its allocation."""
        return np.array(self._streams, np.int64)

    def _append(self, what: int, block: int, stream: int) -> None:
        self._what.append(what)
        self._blocks.append(block)
        self._streams.append(stream)

    def _check(self, block: int) -> None:
        if not 0 <= block < len(self._state) or self._state[block] == _FREED:
            raise ValueError(f"block {block} is not allocated")
