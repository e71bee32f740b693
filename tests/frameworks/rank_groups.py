"""Which ranks form the groups of each axis?

Ranks are numbered through a grid of axes, the first axis fastest (Megatron-LM's RankGenerator; row-major meshes
of torch read from the right). Left out: which link a group runs over, which the cluster's tiers say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def rank_groups(order: Sequence[str], sizes: Mapping[str, int], axes: Sequence[str]) -> list[list[int]]:
    """Groups of ranks that differ only in `axes`, in ascending order; axes of `order` fastest first."""
    unknown = [axis for axis in axes if axis not in order]
    assert not unknown, f"axes {unknown} are not in the order {order}"
    shape = [sizes.get(axis, 1) for axis in reversed(order)]
    grid = np.arange(int(np.prod(shape))).reshape(shape)
    names = list(reversed(order))
    moved = [names.index(axis) for axis in names if axis in axes]
    kept = [i for i in range(len(names)) if i not in moved]
    width = int(np.prod([shape[i] for i in moved])) if moved else 1
    flat = grid.transpose([*kept, *moved]).reshape(-1, width)
    return sorted(sorted(int(rank) for rank in group) for group in flat)
