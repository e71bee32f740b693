"""Does Ctrl-C, at any moment of a search, leave a valid plan with its gap and no half-written file?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from planner.spec.load_plan import load_plan
from planner.spec.planfile import Ending

JOB = ["plan", "llama-3.1-8b", "8x8 h100 400G-ib", "--global-batch", "256", "-o"]
# the process interrupts itself when it comes to a named step, so that no test depends on time
SELF = """
import os, signal, sys
import importlib
module = importlib.import_module("{module}")
real = module.{name}
def interrupted(*args, **kwargs):
    module.{name} = real
    for _ in range({times}):
        os.kill(os.getpid(), signal.SIGINT)
    return real(*args, **kwargs)
module.{name} = interrupted
from planner.cli import main
main()
"""


def run(
    folder: Path, module: str, name: str, times: int = 1, job: Sequence[str] = JOB
) -> subprocess.CompletedProcess[str]:
    program = SELF.format(module=module, name=name, times=times)
    command = [sys.executable, "-c", program, *job, str(folder / "plan.json")]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), [
    ("planner.answer.over_members", "pose"), ("planner.solve.dealing", "bounds_of"), ("planner.answer.plan", "search"),
    ("planner.answer.plan", "pareto_front"), ("planner.answer.plan", "solve_splits"),
])  # fmt: skip
def test_an_interrupted_search_leaves_its_incumbent_and_gap(tmp_path: Path, module: str, name: str) -> None:
    ended = run(tmp_path, module, name)
    assert ended.returncode == 0, ended.stderr
    plan = load_plan(tmp_path / "plan.json")
    proof = plan.search.certificate
    assert proof is not None
    assert proof.ending is Ending.INTERRUPTED
    assert proof.gap is not None
    assert proof.bound is not None
    assert proof.best == plan.choices[0].step_time
    assert proof.bound <= proof.best
    assert plan.choices[0].config.text in ended.stdout
    assert "an interrupt" in ended.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name"), [("planner.answer.posed", "search"), ("planner.answer.plan", "search")]
)
def test_an_interrupt_ends_the_search_of_every_member_and_stack(
    tmp_path: Path, module: str, name: str
) -> None:
    more = ["--stack", "megatron-2026,torchtitan-2026"]
    ended = run(tmp_path, module, name, job=["plan", "qwen3-30b-a3b", "4x8 h100 400G-ib", *more, "-o"])
    assert ended.returncode == 0, ended.stderr
    plan = load_plan(tmp_path / "plan.json")
    proof = plan.search.certificate
    assert proof is not None
    assert proof.ending is Ending.INTERRUPTED
    assert plan.choices
    assert len(plan.search.stacks) == 2
    assert "an interrupt" in ended.stdout


@pytest.mark.slow
def test_a_second_interrupt_ends_the_process_without_a_file(tmp_path: Path) -> None:
    ended = run(tmp_path, "planner.answer.plan", "search", times=2)
    assert ended.returncode in (130, -signal.SIGINT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_interrupt_while_the_file_is_written_leaves_none(tmp_path: Path) -> None:
    ended = run(tmp_path, "os", "fsync")
    assert ended.returncode in (130, -signal.SIGINT)
    assert list(tmp_path.iterdir()) == []
