"""What a fresh process of the command loads, starts and collects: no more than its verb needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

REPORTING = """
import atexit, gc, json, os, sys
def tell():  # after whatever the command registers
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
    told = {"modules": sorted(sys.modules), "threads": threads, "collected_at_the_end": not gc.get_freeze_count()}
    print("TOLD " + json.dumps(told), file=sys.stderr)
atexit.register(tell)
from planner.__main__ import main
sys.argv = ["planner", *sys.argv[1:]]
main()
"""
ESTIMATE = ("estimate", "llama-3.1-8b", "dgx-h100", "--gpus", "8")


@dataclass(frozen=True)
class Left:
    """A process at its end."""

    modules: frozenset[str]
    threads: int
    collected_at_the_end: bool


@lru_cache(maxsize=32)
def left_by(*arguments: str) -> Left:
    """What a command leaves that finds something, or nothing that fits."""
    fresh = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", REPORTING, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=fresh)
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stderr.rpartition("TOLD ")[2])
    return Left(frozenset(told["modules"]), told["threads"], told["collected_at_the_end"])


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="only Linux lists threads there")
def test_an_answer_is_made_in_one_thread() -> None:
    left = left_by(*ESTIMATE)
    assert "numpy" in left.modules
    assert left.threads == 1


def test_nothing_is_collected_when_a_process_ends() -> None:
    assert not left_by(*ESTIMATE).collected_at_the_end
