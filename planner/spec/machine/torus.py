"""How are the devices of a slice joined where each is linked to its neighbours alone, and which shape does it have?

A slice is what of a torus one job is given. Left out: twisted tori, which shorten the ways of slices whose axes differ
in length, and links that failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import NamedTuple


class Axis(NamedTuple):
    """Devices along one axis, one link's bytes/s per direction, and whether the ends are joined to a ring."""

    length: int
    link: float
    closed: bool


@dataclass(frozen=True)
class Torus:
    """A grid of devices. `shape`: devices along each axis; `links`: bytes/s per direction of one link along it.

    `ring`: an axis whose length is a multiple of it closes to a ring, any other is a line. `cubes`: rings close where
    all axes would alone, as optical switches join whole cubes of `ring` devices along each axis (TPU v4, v5p).
    `slices`: the shapes that a job is given, whichever way their axes lie; empty: any grid, of cubes whole ones or
    an even part of one.
    """

    shape: tuple[int, ...]
    links: tuple[float, ...]
    ring: int
    cubes: bool = False
    slices: tuple[tuple[int, ...], ...] = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that have more than one device."""
        fits = [length % self.ring == 0 for length in self.shape]
        closed = [fit and (all(fits) or not self.cubes) for fit in fits]
        each = zip(self.shape, self.links, closed, strict=True)
        return tuple(Axis(*axis) for axis in each if axis[0] > 1)

    @property
    def bandwidth(self) -> float:
        """Of all links of a device together, per direction [bytes/s]."""
        return 2.0 * sum(self.links)

    @property
    def described(self) -> str:
        """The shape in words."""
        return _words(self.shape)

    @property
    def lent(self) -> str:
        """What a slice of it must be, in words."""
        if self.slices:
            return "of a shape that is lent, " + ", ".join(_words(shape) for shape in self.slices)
        cubes = (
            f" of whole cubes of {self.ring} along each axis or an even part of one," if self.cubes else ""
        )
        return f"a grid{cubes} within {self.described} devices"

    def holding(self, devices: int) -> Torus | None:
        """The slice of so many devices, None where no job is given so many of this one.

        Of all grids the one with the shortest longest axis, then with most rings, the fastest links, the least
        circumference: Google's own shapes of v4 to v6e slices (cloud.google.com/tpu/docs/v5p, v6e).
        """
        shapes = filter(self._lends, _shapes(devices, self.shape))
        return min((replace(self, shape=shape) for shape in shapes), key=_preference, default=None)

    def _lends(self, shape: tuple[int, ...]) -> bool:
        if self.slices:
            return tuple(sorted(shape)) in self.slices
        whole = all(length % self.ring == 0 for length in shape)
        return not self.cubes or whole or all(self.ring % length == 0 for length in shape)


def _words(shape: tuple[int, ...]) -> str:
    return " x ".join(str(length) for length in shape)


def _preference(slice_: Torus) -> tuple[float, ...]:
    rings = sum(axis.closed for axis in slice_.axes)
    fastest = sum(axis.link for axis in slice_.axes)
    return (max(slice_.shape), -rings, -fastest, sum(slice_.shape), *slice_.shape)


@lru_cache(maxsize=1024)
def _shapes(devices: int, within: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(shape for shape in _grids(devices, within) if prod(shape) == devices)


def _grids(devices: int, within: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not within:
        yield ()
        return
    for length in range(1, min(devices, within[0]) + 1):
        if devices % length == 0:
            for rest in _grids(devices // length, within[1:]):
                yield (length, *rest)
