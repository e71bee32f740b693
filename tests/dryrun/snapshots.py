"""Memory snapshots as PyTorch writes them (torch.cuda.memory._snapshot), made of a trace and its replay."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from planner.dryrun.allocator.result import Replay
from planner.dryrun.allocator.trace import Kind, Trace

START = 0x7F0000000000
APART = 1 << 40  # between addresses of blocks, so that none lies where another did


def snapshot(trace: Trace, replayed: Replay, lost: int = 0) -> dict[str, Any]:
    """The snapshot at the end of a trace, whose history has lost its first events."""
    what, blocks = trace.what.tolist(), trace.blocks.tolist()
    amounts = np.diff(replayed.allocated_timeline, prepend=0).tolist()
    changes = np.diff(replayed.changes[:, 1], prepend=0).tolist()
    entries: list[dict[str, Any]] = []
    asked: dict[int, int] = {}
    taken: dict[int, int] = {}
    for event, (code, block, amount) in enumerate(zip(what, blocks, amounts, strict=True)):
        for at, change in zip(replayed.changes[:, 0].tolist(), changes, strict=True):
            if at == event and change:
                action = "segment_alloc" if change > 0 else "segment_free"
                entries.append(entry(action, START, abs(change)))
        if code > 0:
            asked[block], taken[block] = code, amount
            entries.append(entry("alloc", START + block * APART, code))
        elif code == Kind.FREE and asked.get(block):
            for action in ("free_requested", "free_completed"):
                entries.append(entry(action, START + block * APART, asked[block]))
    entries.append(entry("snapshot", 0, 0))
    held = [
        {"size": taken[block], "requested_size": asked[block], "address": START + block * APART,
         "state": "active_allocated", "frames": []}
        for block in replayed.live[:, 0].tolist()
    ]  # fmt: skip
    free = {"size": replayed.reserved - replayed.allocated, "requested_size": 0, "address": START - 512,
            "state": "inactive", "frames": []}  # fmt: skip
    segment = {
        "device": 0, "address": START, "total_size": replayed.reserved, "allocated_size": replayed.allocated,
        "active_size": replayed.allocated, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
        "is_expandable": False, "frames": [], "blocks": [*held, free],
    }  # fmt: skip
    return {"segments": [segment], "device_traces": [entries[lost:], []], "allocator_settings": {}}


def entry(action: str, address: int, size: int, **more: Any) -> dict[str, Any]:
    """One event of a history."""
    where = {"filename": "/home/me/train.py", "line": 7, "name": "step"}
    inside = {"filename": "/site-packages/torch/nn/functional.py", "line": 90, "name": "linear"}
    cpp = {"filename": "??", "line": 0, "name": "at::empty"}
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "pool_id": (0, 0),
            "frames": [cpp, inside, where], **more}  # fmt: skip


def pickled(held: object) -> bytes:
    """As `_dump_snapshot` writes it."""
    return pickle.dumps(held)
