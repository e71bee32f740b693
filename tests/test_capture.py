"""Are numbers of two runs written as what they are made of, and runs that differ refused?"""

from __future__ import annotations

import pytest

from benchmarks.capture.naming import Namer, NotListedError, listed_pass
from benchmarks.capture.parts import Part
from planner.catalog.load_operations import Tables
from planner.cost.captured.operation import Operation, Phase
from planner.spec.listed import Product

SIZES = (
    {"b": 7, "s": 640, "h": 528, "a": 6, "k": 3, "d": 88, "w": 0, "m": 2, "p": 64, "i": 96},
    {"b": 11, "s": 2176, "h": 1560, "a": 15, "k": 5, "d": 104, "w": 0, "m": 3, "p": 64, "i": 128},
)


def value(expression: tuple[Product, ...], way: int) -> float:
    return sum(one.of(SIZES[way]) for one in expression)


def test_a_number_is_the_product_of_fewest_symbols() -> None:
    namer = Namer(SIZES)
    assert namer.named((2 * 7 * 640 * 528, 2 * 11 * 2176 * 1560)) == (Product(2.0, ("b", "s", "h")),)
    assert namer.named((64, 64)) == (Product(64.0, ()),)  # one size in both runs is no symbol
    assert namer.named((0, 0)) == (Product(0.0, ()),)


def test_a_sum_has_the_smallest_factors_that_fit() -> None:
    """Queries, keys and values in one matrix [bytes]: 304*h*a and what pads heads fit both runs as well, by chance."""
    both = tuple(2 * one["h"] * (one["a"] + 2 * one["k"]) * one["d"] for one in SIZES)
    found = Namer(SIZES).named((both[0], both[1]))
    assert [value(found, way) for way in (0, 1)] == list(both)
    assert sorted(one.factor for one in found) == [2.0, 4.0]


def test_a_number_that_no_symbols_give_is_refused() -> None:
    with pytest.raises(NotListedError, match="no sum of products"):
        Namer(SIZES).named((4, 8))


def test_runs_that_do_not_do_the_same_are_refused() -> None:
    def part(*names: str) -> Part:
        shape = ((7, 640), "bfloat16")
        operations = [Operation(name, "", Phase.FORWARD, 0, (shape,), (shape,)) for name in names]
        return Part(0, Phase.FORWARD, operations, [], [])

    with pytest.raises(NotListedError, match="do not do the same"):
        listed_pass(
            (part("aten.mm.default"), part("aten.mm.default", "aten.mm.default")), Namer(SIZES), Tables()
        )
