"""Does a pool give the same answers as one process, and survive the death of a worker?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from planner.answer.planners import Tasks, end_pool, spawned_pool
from planner.ask.request import Request
from planner.cli.sweep_workers import here, pool
from planner.spec.rows import Row

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


def points(count: int) -> dict[int, Request]:
    return {
        i: Request(
            "llama-3.1-8b",
            "4x8 h100 400G-ib",
            32,
            seq_len=2048 + 256 * i,
            global_batch="64",
            set={"ep": (1,)},
        )
        for i in range(count)
    }


def children() -> list[int]:
    """Processes that this one started."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    every = [
        Path(f"/proc/{os.getpid()}/task/{task.name}/children") for task in Path("/proc/self/task").iterdir()
    ]
    assert path in every or every
    return [int(pid) for task in every if task.exists() for pid in task.read_text().split()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_pool_survives_the_death_of_a_process() -> None:
    asked = points(10)
    expected = dict(here(asked))
    before = set(children())
    got: dict[int, list[Row]] = {}
    for number, rows in pool(2)(asked):
        if not got:
            workers = [
                pid
                for pid in set(children()) - before
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            os.kill(workers[0], signal.SIGKILL)
        got[number] = rows
    assert got == expected


def answered(journal: Path, lines: int) -> bool:
    return journal.exists() and journal.read_bytes().count(b"\n") > lines


def test_errors_survive_the_way_between_processes() -> None:
    import pickle

    from planner.errors import FileInputError, UnitError, UnknownNameError

    for error in (FileInputError("f", "must", "given", "hint", field="k"), UnknownNameError("model", "x", ["y"]),
                  UnitError("must", "given")):  # fmt: skip
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is type(error)
        assert (str(back), back.__dict__) == (str(error), error.__dict__)


def test_plans_made_ahead_are_those_made_here() -> None:
    from planner.answer.plan import make_plan
    from planner.answer.planners import Planners

    asked = points(2)
    with Planners(2) as planners:
        for request in asked.values():
            planners.foresee(request)
        for request in asked.values():
            assert planners.plan(request).choices == make_plan(request).choices
    assert not [pid for pid in children() if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_processes_end_with_a_killed_parent() -> None:
    program = (
        "import os, time\nfrom planner.answer.planners import spawned_pool\n"
        "if __name__ == '__main__':\n"
        "    print(spawned_pool(1).submit(os.getpid).result(), flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
        try:
            parent.communicate(timeout=30)  # until nobody holds the other end
        except subprocess.TimeoutExpired:
            os.kill(worker, signal.SIGKILL)
            raise


def worked() -> None:
    executor = spawned_pool(1)
    try:
        tasks = Tasks[int, int](executor)
        for number in range(40):
            tasks.give(number, abs, -number)
        while tasks:
            number, result = tasks.next()
            assert result() == number
        signal.raise_signal(signal.SIGTERM)
    finally:
        end_pool(executor)


class Told(BaseException):
    """What a handler of a signal raises."""


@pytest.mark.parametrize("locks", range(0, 40, 8))
def test_a_pool_ends_wherever_a_signal_came(locks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as a lock was just taken, and the block that gives it back not yet entered."""
    own, main, left = threading.Condition.__enter__, threading.get_ident(), iter(range(locks))

    def told(number: int, frame: object) -> None:
        raise Told

    def entered(condition: threading.Condition) -> bool:
        found = own(condition)
        if threading.get_ident() == main and next(left, None) is None:
            monkeypatch.setattr(threading.Condition, "__enter__", own)
            signal.raise_signal(signal.SIGTERM)
        return found

    before = signal.signal(signal.SIGTERM, told)
    try:
        monkeypatch.setattr(threading.Condition, "__enter__", entered)
        with pytest.raises(Told):
            worked()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_sweep_told_to_end_cleans_up_and_keeps_what_is_done(tmp_path: Path) -> None:
    file, table = tmp_path / "sweep.yaml", tmp_path / "table.csv"
    file.write_text("model: llama-3.2-1b\ncluster: 1x8 h100 400G-ib\ngpus: 8\nglobal_batch: 64\n"
                    f"seq_len: {[1024 + 128 * i for i in range(200)]}\nset: {{tp: 1, pp: 1, cp: 1}}\n")  # fmt: skip
    command = [sys.executable, "-m", "planner", "sweep", str(file), "-o", str(table), "--workers", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        journal, end = tmp_path / ".table.csv.progress", time.monotonic() + 120
        while not answered(journal, 2):
            assert time.monotonic() < end
            time.sleep(0.02)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    kept = journal.read_bytes()
    assert kept.endswith(b"\n")
    assert not table.exists()
    done = len(kept.splitlines()) - 1
    assert f"{done} of 200 points are done and kept" in said
    assert "leaked" not in said
    assert "Traceback" not in said
