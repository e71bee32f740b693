"""What does each of some configurations recompute? Columns of it: kind, modules, layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, IntColumn, Mask, Recompute

RECOMPUTE_AXES: Final = ("recompute", "recompute_modules", "recompute_layers")
WITHIN: Final = {"moe": ("moe_act", "shared_experts")}  # modules that another one holds


@dataclass(frozen=True)
class Recomputations:
    """Equally long columns of the axes of recomputation, (n,) each."""

    kind: IntColumn
    modules: IntColumn
    layers: IntColumn

    @classmethod
    def of(cls, ways: Sequence[tuple[int, int, int]]) -> Recomputations:
        """From (recompute, recompute_modules, recompute_layers) of each."""
        return cls(*np.array(ways, dtype=np.int32).reshape(len(ways), 3).T)

    @classmethod
    def joined(cls, parts: Sequence[Recomputations]) -> Recomputations:
        """One after another."""
        if not parts:
            return cls.of([])
        return cls(
            np.concatenate([part.kind for part in parts]),
            np.concatenate([part.modules for part in parts]),
            np.concatenate([part.layers for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.layers)

    def take(self, rows: NDArray[np.signedinteger] | slice | Mask) -> Recomputations:
        """Some of them."""
        return Recomputations(self.kind[rows], self.modules[rows], self.layers[rows])

    @property
    def columns(self) -> dict[str, IntColumn]:
        """By axis."""
        return {"recompute": self.kind, "recompute_modules": self.modules, "recompute_layers": self.layers}

    def given_to(self, table: ConfigTable) -> ConfigTable:
        """As many configurations, recomputing this."""
        return ConfigTable({**table.columns, **self.columns})

    @property
    def starts_with_least(self) -> bool:
        """Takes none of them less time than the first?

        Nothing before anything, fewer whole layers before more, and modules before others beside them.
        """
        if not len(self) or self.kind[0] == Recompute.NONE:
            return True
        alike = self.kind == self.kind[0]
        more = (self.layers >= self.layers[0]) & (self.modules & self.modules[0] == self.modules[0])
        return bool((alike & more).all())


def module_lists(names: Iterable[str]) -> tuple[int, ...]:
    """Masks of `recompute_modules` of those names, fewest first, without lists in which one lies within another."""
    known = list(names)
    lists = (set(chosen) for size in range(1, len(known) + 1) for chosen in combinations(known, size))
    apart = (chosen for chosen in lists if not any(chosen & set(WITHIN.get(name, ())) for name in chosen))
    return tuple(sum(1 << RECOMPUTE_MODULES.index(name) for name in chosen) for chosen in apart)
