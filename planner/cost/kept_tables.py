"""Tables of numbers that depend on a few small integers alone, evaluated once for each combination of them.

Left out: what they mean (`cost/levels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.spec.config import IntColumn

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Table = TypeVar("Table", bound="DataclassInstance")
Array = NDArray[np.float64]
Index = NDArray[np.intp]

MOST_AT_ONCE = 1024  # keys: to find more takes as long as to evaluate them
MOST_KEPT = 65536  # keys


class KeptTables(Generic[Table]):
    """Dataclasses of arrays, and of further such, whose last axis stands for keys: one value for every key that was
    asked for in a small table."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self._numbers = np.zeros((0, 0))
        self._layout: _Part | None = None

    def of(self, keys: Sequence[IntColumn], evaluate: Callable[[Index], Table]) -> Table:
        """The table of n distinct keys, given as equally long columns; `evaluate`: that of some of them, by row."""
        number = len(keys[0])
        if number > MOST_AT_ONCE:
            return evaluate(np.arange(number))
        codes = np.stack(keys, axis=1).astype(np.int32)
        # without the zeros at their end, which tell none of one length apart
        names: list[bytes] = codes.view(f"S{codes.shape[1] * codes.itemsize}").ravel().tolist()
        missing = [row for row, name in enumerate(names) if name not in self._places]
        if len(self._places) + len(missing) > MOST_KEPT:
            self._places, self._numbers, missing = {}, np.zeros((0, 0)), list(range(number))
        if missing:
            found = evaluate(np.array(missing))
            self._layout = self._layout or _Part.of(found)
            self._keep([names[row] for row in missing], found)
        assert self._layout is not None, "it holds some"
        table: Table = self._layout.built(self._numbers.take([self._places[name] for name in names], axis=1))
        return table

    def _keep(self, names: Sequence[bytes], found: Table) -> None:
        """Write the values of some keys down under their names."""
        numbers = np.concatenate([array.reshape(-1, len(names)) for array in _arrays(found)])
        start, end = len(self._places), len(self._places) + len(names)
        if end > self._numbers.shape[1]:
            grown = np.empty((len(numbers), max(2 * self._numbers.shape[1], end, 256)))
            if start:
                grown[:, :start] = self._numbers[:, :start]
            self._numbers = grown
        self._numbers[:, start:end] = numbers
        self._places.update(zip(names, range(start, end), strict=True))


def _arrays(table: DataclassInstance) -> Iterator[Array]:
    """The arrays of a table in the order of its fields."""
    for field in fields(table):
        part = getattr(table, field.name)
        if is_dataclass(part):
            assert not isinstance(part, type), "a table"
            yield from _arrays(part)
        else:
            yield part


@dataclass(frozen=True)
class _Part:
    """Where the numbers of an array lie, or of the fields of a table of `kind`."""

    start: int
    end: int
    leading: tuple[int, ...] = ()
    kind: type[Any] | None = None
    fields: tuple[tuple[str, _Part], ...] = ()

    @classmethod
    def of(cls, table: Any, start: int = 0) -> _Part:
        """That of a table whose first number lies at `start`."""
        if not is_dataclass(table):
            return cls(start, start + int(np.prod(table.shape[:-1])), table.shape[:-1])
        end, parts = start, list[tuple[str, _Part]]()
        for field in fields(table):
            parts.append((field.name, cls.of(getattr(table, field.name), end)))
            end = parts[-1][1].end
        return cls(start, end, (), type(table), tuple(parts))

    def built(self, numbers: Array) -> Any:
        """It, of all numbers one below the other (F, n)."""
        if self.kind is not None:
            return self.kind(**{name: part.built(numbers) for name, part in self.fields})
        if not self.leading:
            return numbers[self.start]
        return numbers[self.start : self.end].reshape(*self.leading, -1)
