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

from planner.cli import command_line

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
JOB = ("llama-3.1-8b", "dgx-h100", "--gpus")
ESTIMATE = ("estimate", *JOB, "8")
# libraries that one verb has a use for, if any, and what runs processes
RARE = (
    "altair", "concurrent.futures", "distributed", "jinja2", "multiprocessing", "networkx", "pandas", "pyarrow",
    "starlette", "torch", "uvicorn",
)  # fmt: skip
# what answers a question about no job
SEARCHES = ("ortools", "planner.answer.answerer", "planner.answer.plan", "planner.solve")
READERS = ("planner.frameworks.megatron.parse", "planner.frameworks.shell.script")
OTHERS = ("planner.frameworks.deepspeed", "planner.frameworks.maxtext", "planner.frameworks.torchtitan")
TABLES = ("rich", "planner.report.text")
# of arguments, in which PLAN stands for a plan file: what they have no use for beside `RARE`
SPARED = {
    ("--help",): ("numpy", "ortools", "pydantic", "rich", "yaml", "planner.cost", "planner.spec"),
    ("--version",): ("numpy", "ortools", "pydantic", "rich", "yaml", "planner.cost", "planner.spec"),
    ("model", "deepseek-v3"): (*SEARCHES, *READERS, *OTHERS, "planner.cli.check", "planner.spec.hf.gpt"),
    ("clusters", "dgx-h100"): (*SEARCHES, *READERS, *OTHERS, "planner.cli.check", "planner.schedule"),
    ("stacks", "megatron-2026"): (*SEARCHES, *READERS, *OTHERS, "planner.cli.check", "planner.schedule"),
    ("assumptions",): (*SEARCHES, *READERS, *OTHERS, "planner.cli.check"),
    ("export", "PLAN", "-o", "FOLDER"): (*SEARCHES, *READERS, *OTHERS, *TABLES, "planner.cost.model"),
    ("explain", "PLAN"): ("ortools", *READERS, *OTHERS, "planner.cli.trace"),
    ESTIMATE: ("numpy.ma", "ortools", *READERS, *OTHERS, "planner.cli.check", "planner.spec.hf.gpt"),
    (*ESTIMATE, "--json"): ("ortools", *READERS, *OTHERS, *TABLES),
    ("plan", *JOB, "8", "--set", "pp=1"): ("ortools", *READERS, *OTHERS, "planner.cli.check"),
}


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


def test_what_counts_its_objects_says_nothing_at_the_end() -> None:
    """Words of a library behind the last of Python's, for which one that ran before all else stands."""
    script = (
        "import atexit, os, sys, types; atexit.register(lambda: os.write(2, b'leaked 4 instances'))\n"
        "sys.modules.update(triton=types.ModuleType('triton'))\n"
        "from planner.__main__ import main; sys.argv = ['planner', 'plan', 'no-such-model', 'dgx-h100']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "unknown model" in done.stderr
    assert "leaked" not in done.stderr


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan on one node, written by the command."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    left_by("plan", *JOB, "8", "--set", "tp=2", "--set", "pp=1", "-o", str(path))
    return path


@pytest.mark.parametrize("arguments", SPARED, ids=" ".join)
def test_a_verb_loads_no_more_than_it_needs(
    arguments: tuple[str, ...], plan_file: Path, tmp_path: Path
) -> None:
    words = {"PLAN": str(plan_file), "FOLDER": str(tmp_path / "launch")}
    loaded = left_by(*(words.get(word, word) for word in arguments)).modules
    spared = (*RARE, *SPARED[arguments])
    assert {name for name in loaded if name.startswith(tuple(f"{one}." for one in spared))} == set()
    assert loaded.isdisjoint(spared)


def test_the_verb_that_is_asked_for_is_the_only_one() -> None:
    every = len(command_line().registered_commands)
    assert every > 15
    assert len(command_line("plan").registered_commands) == 1
    assert len(command_line("plam").registered_commands) == every, "so that what was meant can be told"
