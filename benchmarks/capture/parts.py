"""Which operations and changes of memory does each layer of a recorded step have, forward and backward?

By the names of modules, whatever software ran. Left out: the optimizer, and gradients that stay for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from planner.cost.captured.operation import Operation, Phase
from planner.dryrun.allocator.trace import Kind
from planner.dryrun.recording import Holds, Recording


@dataclass
class Part:
    """A stretch of a step: operations, and changes of memory by (bytes, sign, cast weights)."""

    where: int | None
    phase: Phase
    operations: list[Operation]
    changes: list[tuple[int, int, bool]]
    births: list[int]


_LAYER: Final = re.compile(r"^[^0-9]*?\.(\d+)(?=\.|$)")


def parts_of(recording: Recording, count: int) -> list[Part]:
    """The passes of a step of a model of `count` layers, cut where it goes from one layer to another; `where`: the
    layer, -1 before all of them, None behind."""
    what, blocks = recording.trace.what, recording.trace.blocks
    size = {int(block): int(asked) for asked, block in zip(what, blocks, strict=True) if asked >= 0}
    begin = next(i for i, one in enumerate(recording.operations) if one.first >= recording.first_step)
    gone = set(blocks[what == Kind.FREE].tolist())  # what multiplies matrices keeps its workspace for good
    found: list[Part] = []
    where: int | None = -1
    phase = Phase.FORWARD
    for i, one in enumerate(recording.operations[begin:], begin):
        if one.phase is not phase:
            phase, where = one.phase, None
        at = _LAYER.search(one.module)
        if at is not None:
            where = int(at[1])
        elif one.module and phase is Phase.FORWARD and where == count - 1:
            where = None
        elif one.module and phase is Phase.BACKWARD and where == 0:
            where = -1
        if not found or (found[-1].where, found[-1].phase) != (where, phase):
            found.append(Part(where, phase, [], [], []))
        part = found[-1]
        part.operations.append(one)
        rest = recording.operations[i + 1 : i + 2]
        end = rest[0].first if rest else recording.end
        events = [e for e in range(one.first, end) if what[e] >= Kind.FREE]
        # blocks that come to their end together do so in any order
        for event in sorted(events, key=lambda e: (0, e) if what[e] >= 0 else (1, int(blocks[e]))):
            block = int(blocks[event])
            kind = recording.kinds.get(block)
            if kind is Holds.GRADIENTS:
                part.births += [len(part.changes)] if what[event] >= 0 else []
            # those that a loss makes part by part, within the forward pass, are at work there
            if kind is Holds.GRADIENTS and phase is Phase.BACKWARD:
                continue
            if kind is not Holds.WORKSPACE or block in gone:
                part.changes.append((size[block], 1 if what[event] >= 0 else -1, kind is Holds.CAST))
    return found
