"""Which is the largest of a kind that fits, where each try is a dry run?

Few tries: peaks grow nearly in proportion, so that a line through the last two says where to look next.
"""

from __future__ import annotations

from collections.abc import Callable


def largest_that_fits(peak: Callable[[int], tuple[bool, float]], start: int, limit: float, most: int) -> int:
    """The largest number from 1 to `most` that fits, 0 where none does; `peak`: whether a number fits, and its peak, to
    be at most `limit` where it does [bytes]. Whatever is smaller than one that fits is taken to fit."""
    low, high = 0, most + 1
    tried: list[tuple[int, float]] = []
    at = min(max(start, 1), most)
    while high - low > 1:
        fits, size = peak(at)
        low, high = (at, high) if fits else (low, at)
        tried.append((at, size))
        at = min(max(_guess(tried, limit, 2 * at if fits else (low + high) // 2), low + 1), high - 1)
    return low


def _guess(tried: list[tuple[int, float]], limit: float, otherwise: int) -> int:
    """Where a line through the last two tries meets the limit."""
    if len(tried) < 2:
        return otherwise
    (a, first), (b, second) = tried[-2:]
    slope = (second - first) / (b - a)
    return int(b + (limit - second) / slope) if slope > 0 else otherwise
