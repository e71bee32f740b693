"""Which options does a log repeat? Dumps of launch arguments and lines that name precision and network.

Megatron-LM prints every argument as `name ........ value`; NCCL and PyTorch name networks and formats in passing. What
is found is words for `causes.py`. Left out: everything else a log says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from planner.calibrate.diagnosis.causes import SLOW_DATA
from planner.calibrate.logs.lines import LogFacts
from planner.calibrate.logs.text import check_log, lines_of, plain
from planner.errors import FileInputError

_ARGUMENT: Final = re.compile(r"^\s*([a-z][a-z0-9_]{2,60}) \.{3,} (\S.{0,80}?)\s*$")
_WORDS: Final = (
    "net/socket", "using network socket", "using network ib", "net/ib", "p2p is disabled",
    "using torch.float32 for parameters", "using torch.bfloat16 for parameters", "alloc_retries", "cache flushes",
    "flushing", "straggler", "cpuadam",
)  # fmt: skip
_WAITS: Final = 0.1  # share of a step spent on waiting for its batch that is more than usual
_WORLD: Final = re.compile(
    r"using world size: (\d+), data-parallel size: (\d+).*?tensor-model-parallel size: (\d+),"
    r"(?:.*?) ?pipeline-model-parallel size: (\d+)"
)


def marks_of(lines: Iterable[str]) -> frozenset[str]:
    """What a log says of its options: "name=value" of every argument in lower case, and telling words."""
    found: set[str] = set()
    for line in lines:
        lower = line.lower()
        if " ..." not in line and not any(word in lower for word in (*_WORDS, "using world size")):
            continue
        text = plain(line)[0]
        if match := _ARGUMENT.match(text):
            if len(found) < 10_000:
                found.add(f"{match[1]}={match[2].lower()}")
            continue
        found |= {word for word in _WORDS if word in lower}
        if match := _WORLD.search(text):
            found |= {f"{name}={match[i]}" for i, name in enumerate(("world", "dp", "tp", "pp"), start=1)}
    return frozenset(found)


def read_marks(path: Path) -> frozenset[str]:
    """The same of a file; nothing where it cannot be read, which `read_log` has told already."""
    try:
        check_log(path)
        return marks_of(lines_of(path))
    except FileInputError:
        return frozenset()


def slow_timers(facts: LogFacts, seconds: float) -> frozenset[str]:
    """What Megatron's own timers say of a run whose steps take so long [s]: that batches are waited for."""
    waited = facts.timers.get("batch-generator", ())
    return frozenset({SLOW_DATA} if waited and float(np.median(waited)) > _WAITS * seconds else ())
