"""How are two runs of one form written in symbols?

A number that both have in one place is the sum of products of symbols that gives both. Takes recorded operations,
whatever software ran, and the sizes of both runs by symbol. Left out: numbers that no symbols give, and runs that do
not do the same: `NotListedError` says which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement
from math import prod
from typing import Final

from benchmarks.capture.parts import Part, parts_of
from planner.catalog.load_operations import Tables
from planner.cost.captured.operation import Phase, Shape
from planner.dryrun.recording import Recording
from planner.spec.layer import Layer
from planner.spec.listed import (
    DERIVED,
    Both,
    Change,
    Expression,
    ListedOperation,
    ListedPass,
    ListedShape,
    Lists,
    Product,
    Sizes,
    layer_form,
    sizes_of,
)
from planner.spec.model import ModelSpec

MOST_SYMBOLS: Final = 5  # of a product
FEW_SYMBOLS: Final = 4  # of the second product of a sum
FINEST: Final = 64  # parts of a whole that factors are counted in
EMPTY: Final = ListedPass((), (), 0)


class NotListedError(Exception):
    """A form that cannot be written as a list, and why."""


@dataclass(frozen=True)
class Run:
    """A run: what ran, of which model, at which length of sequences [tokens]; micro-batch, rank of adapters, and
    ranks that divide layers."""

    recording: Recording
    model: ModelSpec
    seq_len: int
    micro_batch: int
    rank: int = 0
    tensor: int = 1

    def sizes(self, layer: Layer | None) -> Sizes:
        """Of all symbols, for a kind of layer, or outside of them."""
        return sizes_of(self.model, layer, self.micro_batch, self.seq_len, self.rank, self.tensor)

    def form(self, layer: Layer) -> str:
        """Of a layer."""
        return layer_form(layer, self.seq_len)

    @property
    def parts(self) -> list[Part]:
        """Of its step."""
        return parts_of(self.recording, self.model.num_layers)


class Namer:
    """Writes pairs of numbers, one of each run, as expressions of symbols."""

    def __init__(self, sizes: Sequence[Sizes]) -> None:
        symbols = [one for one in sizes[0] if all(of[one] for of in sizes) and sizes[0][one] != sizes[1][one]]
        symbols.sort(
            key=lambda one: one in DERIVED
        )  # where both give a number, what does not follow from others does
        products = [
            found for count in range(MOST_SYMBOLS + 1) for found in combinations_with_replacement(symbols, count)
            if all(times <= 2 for times in Counter(found).values())
        ]  # fmt: skip
        self.values = {
            one: tuple(prod(int(of[symbol]) for symbol in one) for of in sizes) for one in products
        }
        self.alike: dict[
            Fraction, list[tuple[str, ...]]
        ] = {}  # by the ratio of both runs, those of fewest symbols first
        for one, (first, second) in self.values.items():
            self.alike.setdefault(Fraction(first, second), []).append(one)
        self.few = [one for one in products if len(one) <= FEW_SYMBOLS]
        self.known: dict[tuple[int, int], Expression] = {}

    def named(self, pair: tuple[int, int]) -> Expression:
        """The simplest expression of a pair. Raises `NotListedError`."""
        if pair not in self.known:
            found = self._product(pair)
            self.known[pair] = (found,) if found is not None else self._sum(pair)
        return self.known[pair]

    def _sum(self, pair: tuple[int, int]) -> Expression:
        found = []
        for factor in (1, 2, 4, -1):
            for few in self.few:
                rest = tuple(n - factor * value for n, value in zip(pair, self.values[few], strict=True))
                if min(rest) > 0 and (other := self._product(rest)) is not None:
                    found.append((other, Product(float(factor), few)))
        if not found:
            raise NotListedError(f"{pair} is no sum of products of symbols")
        return min(found, key=_odd)

    def _product(self, pair: Sequence[int]) -> Product | None:
        first, second = pair
        if not first and not second:
            return Product(0.0, ())
        for one in self.alike.get(Fraction(first, second), ()) if first and second else ():
            factor = Fraction(first, self.values[one][0])
            if FINEST % factor.denominator == 0 and (one or factor.denominator == 1):
                return Product(float(factor), one)
        return None


def _odd(expression: Expression) -> tuple[float, int]:
    """How unlikely a sum is: its factors are small and its products short where it is no chance."""
    factors = [Fraction(one.factor) for one in expression]
    return sum(abs(one.numerator) * one.denominator for one in factors), sum(
        len(one.symbols) for one in expression
    )


@lru_cache(maxsize=16)
def namer_of(*sizes: tuple[tuple[str, float], ...]) -> Namer:
    """One for the sizes of two runs."""
    return Namer([dict(one) for one in sizes])


def listed_pass(parts: Sequence[Part], namer: Namer, table: Tables) -> ListedPass:
    """One part of a step, of both runs, in symbols."""
    first, second = parts
    if [one.name for one in first.operations] != [one.name for one in second.operations]:
        raise NotListedError("the two runs do not do the same")
    if [rest for _, *rest in first.changes] != [rest for _, *rest in second.changes]:
        raise NotListedError("the two runs do not keep the same")

    def shape(pair: tuple[Shape, Shape]) -> ListedShape:
        one, other = pair
        if len(one[0]) != len(other[0]):
            raise NotListedError("tensors of the two runs differ in dimensions")
        return ListedShape(
            tuple(table.expression(namer.named(dims)) for dims in zip(one[0], other[0], strict=True)), one[1]
        )

    operations = []
    for one, other in zip(first.operations, second.operations, strict=True):
        if (len(one.taken), len(one.given), one.flags) != (len(other.taken), len(other.given), other.flags):
            raise NotListedError(f"{one.name} differs between the two runs")
        operations.append(table.operation(ListedOperation(
            one.name, tuple(map(shape, zip(one.taken, other.taken, strict=True))),
            tuple(map(shape, zip(one.given, other.given, strict=True))), one.flags, one.alike and other.alike,
            one.host.views, one.host.modules, one.host.by_autograd,
        )))  # fmt: skip
    changes = tuple(
        Change(table.expression(namer.named((one, other))), sign, cast)
        for (one, sign, cast), (other, *_) in zip(first.changes, second.changes, strict=True)
    )
    return ListedPass(tuple(operations), changes, min(first.births, default=len(changes)))


def shown(run: Run) -> dict[int, Layer]:
    """The layers that stand for a form each, by number: of its most frequent kind one in the middle of those which are
    neither the first nor the last."""
    found: dict[str, tuple[int, Layer]] = {}
    model = run.model
    number = Counter(model.layer_kind_of)
    for kind in sorted(number, key=lambda kind: number[kind]):
        alike = [i for i, own in enumerate(model.layer_kind_of) if own == kind]
        inner = [i for i in alike if 0 < i < model.num_layers - 1]
        layer = model.layer_kinds[kind]
        found[run.form(layer)] = (inner[len(inner) // 2] if inner else alike[0]), layer
    return dict(found.values())


def lists_of(runs: Sequence[Run], table: Tables, parted: bool) -> Lists:
    """Both runs of a form as lists; `parted`: is the loss made part by part? It is not listed then."""
    found = [run.parts for run in runs]
    if [(one.where, one.phase) for one in found[0]] != [(one.where, one.phase) for one in found[1]]:
        raise NotListedError("the two runs go through their layers in different ways")
    pairs = {(one.where, one.phase): (one, other) for one, other in zip(*found, strict=True)}
    if len(pairs) != len(found[0]):
        raise NotListedError("a pass comes to a layer twice")

    def both(where: int | None, layers: Sequence[Layer | None]) -> Both:
        namer = namer_of(*(tuple(run.sizes(layer).items()) for run, layer in zip(runs, layers, strict=True)))
        forward, backward = (
            listed_pass(pairs[where, phase], namer, table) if (where, phase) in pairs else EMPTY
            for phase in (Phase.FORWARD, Phase.BACKWARD)
        )
        return Both(forward, backward)

    layers: dict[str, Both] = {}
    for at, layer in shown(runs[0]).items():
        layers[runs[0].form(layer)] = both(at, [run.model.layers[at] for run in runs])
    # a loss part by part has as many parts as sizes say
    before, behind = (
        Both(EMPTY, EMPTY) if where is None and parted else both(where, (None, None)) for where in (-1, None)
    )
    return Lists(tuple(table.expressions), tuple(table.operations), before, layers, behind)
