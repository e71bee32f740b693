"""Is the reserved peak that of an allocator written by others?"""

from __future__ import annotations

import ast
import bisect
import random
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.published_data import beside
from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.settings import MIB
from planner.dryrun.allocator.trace import Trace


def oracle() -> Callable[[list[tuple[int, int]]], int]:
    """Its function `allocator`, without what else the script imports: events (tag, bytes or 0 for a free) to a peak."""
    script = beside("device/replay_on_fake_tensors.py")
    tree = ast.parse(script.read_text(encoding="utf-8"))
    kept = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "allocator"]
    names: dict[str, Any] = {"bisect": bisect}
    exec(compile(ast.Module(kept, []), str(script), "exec"), names)
    return names["allocator"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(20))
def test_the_reserved_peak_is_the_oracles(seed: int) -> None:
    """Sizes differ all, since the oracle takes any of equal blocks."""
    draw, trace, events, live = random.Random(seed), Trace(), [], []
    for _ in range(500):
        if live and draw.random() < 0.48:
            block = live.pop(draw.randrange(len(live)))
            trace.free(block)
            events.append((block, 0))
        else:
            size = 512 * draw.randrange(1, (64 if draw.random() < 0.7 else 1) * MIB // 512)
            live.append(trace.allocate(size))
            events.append((live[-1], size))
    assert replay(trace).peaks.reserved == oracle()(events)
