"""Kept numbers: what is asked for again is what was evaluated, whatever else was asked for between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost import kept_tables
from planner.cost.kept_tables import KeptTables

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Inner:
    square: Array


@dataclass(frozen=True)
class _Table:
    both: Array
    inner: _Inner


def _of(keys: NDArray[np.int32]) -> _Table:
    one, other = keys.T.astype(float)
    return _Table(np.array([one, other]), _Inner(one**2 + other / 256))


def test_kept_values_are_those_evaluated(monkeypatch) -> None:
    monkeypatch.setattr(kept_tables, "MOST_KEPT", 40)
    monkeypatch.setattr(kept_tables, "MOST_AT_ONCE", 25)
    rng, kept, asked = np.random.default_rng(7), KeptTables[_Table](), 0
    # 256 ends in a byte of zeros, 0 in four
    every = np.array([(a, b) for a in (0, 1, 256, 257) for b in (0, 1, 255, 256, 65536)], dtype=np.int32)
    every = np.concatenate(
        [every, np.array([(a, -b) for a in range(7) for b in range(1, 6)], dtype=np.int32)]
    )
    for _ in range(60):
        keys = every[rng.permutation(len(every))[: rng.integers(1, 31)]]
        rows: list[int] = []

        def evaluate(some: NDArray[np.intp], keys=keys, rows=rows) -> _Table:
            rows.extend(some.tolist())
            return _of(keys[some])

        found, wanted = kept.of([keys[:, 0], keys[:, 1]], evaluate), _of(keys)
        assert np.array_equal(found.both, wanted.both)
        assert np.array_equal(found.inner.square, wanted.inner.square)
        asked += len(keys) - len(rows)
    assert asked > 100, "some are not evaluated again"
