"""How many bytes does a request take, and how many does a new segment for it?

In units of 512 bytes, of which every size in the allocator is a multiple (c10/cuda/CUDACachingAllocator.cpp of PyTorch
2.11 to 2.13: round_size, roundup_power2_next_division, get_allocation_size).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.dryrun.allocator.settings import MIB, AllocatorSettings

Column = NDArray[np.int64]

UNIT: Final = 512  # bytes
SMALL: Final = MIB // UNIT  # the largest request that the small pool serves
SMALL_SEGMENT: Final = 2 * MIB // UNIT
_WHOLE: Final = 10 * MIB // UNIT  # requests from here on get a segment of their own size, in steps of
_STEP: Final = 2 * MIB // UNIT
_FIRST: Final = MIB.bit_length() - 1  # the first interval of divisions holds 1 MiB and all below


def rounded(asked: Column, settings: AllocatorSettings) -> Column:
    """What requests of `asked` bytes take [units of 512 bytes]: 0 for 0 bytes, else 1 or more.

    The next multiple of 512 bytes; with divisions d > 1 of the size's interval and more than d x 512 bytes, the next
    multiple of 2^floor(log2 size) / d, powers of two as they are.
    """
    units = -(-asked // UNIT)
    if max(settings.roundup_divisions) > 1:
        power = np.frexp(np.maximum(asked, 1).astype(np.float64))[1].astype(np.int64) - 1  # floor of log2
        intervals = np.array(settings.roundup_divisions, np.int64)
        divisions = intervals[np.clip(power - _FIRST, 0, len(intervals) - 1)]
        steps = np.maximum(np.left_shift(1, power) // np.maximum(divisions, 1), 1)
        divided = (divisions > 1) & (asked > UNIT * divisions)
        units = np.where(divided, -(-asked // steps) * steps // UNIT, units)
    return units


def segment_of(size: int, large_segment: int) -> int:
    """What cudaMalloc is asked for, for a request of `size` [units]."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return large_segment if size < _WHOLE else -(-size // _STEP) * _STEP
