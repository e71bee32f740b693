"""Does a Dask cluster give the table of one process, go on without its dead, and say truly why it cannot?"""

from __future__ import annotations

import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import planner
from planner.ask.request import Request
from planner.cli import dask_workers
from planner.cli.dask_workers import _other_versions, _Point, _quiet, _Sweep, answer_packed, dask
from planner.errors import InputError
from tests.test_sweep_workers import answered, points

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

ADDRESS = "tcp://10.0.0.1:8786"
POINTS = 60
SWEEP = (
    "model: llama-3.2-1b\ncluster: 1x8 h100 400G-ib\ngpus: 8\nglobal_batch: 64\n"
    f"seq_len: {[1024 + 128 * i for i in range(POINTS)]}\nset: {{tp: 1, pp: 1, cp: 1}}\n"
)
ABSENT = "raise ModuleNotFoundError(\"No module named 'planner'\")\n"
OTHER = f"__version__ = '0.0.9'\n__path__ = [{str(Path(planner.__file__).parent)!r}]\n"


def sweep(status: str = "running", **calls: Any) -> _Sweep:
    """A sweep whose client is in that state and answers those calls."""
    client = SimpleNamespace(status=status, loop=object(), **calls)
    return _Sweep(distributed, client, ADDRESS, calls.get("say", print))


def cancelled(reason: str) -> Exception:
    error: Exception = distributed.CancelledError("planner.point-0")
    error.reason = reason  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InputError("all workers must run the same planner"), ["must run the same planner"]),
        (
            distributed.KilledWorker("key", SimpleNamespace(address="tcp://10.0.0.2:9"), 3),
            ["workers must stay alive", "4 died while they worked on the same point", "tcp://10.0.0.2:9"],
        ),
        (
            ModuleNotFoundError("No module named 'planner'"),
            [
                "must be able to import",
                "No module named 'planner', on tcp://10.0.0.3:1 and 1 more",
                "install",
            ],
        ),
        (
            ZeroDivisionError("division\nby zero"),
            ["must answer its point", "ZeroDivisionError: division by zero", "--workers 1"],
        ),
    ],
)
def test_a_task_that_fails_is_told_by_its_error(error: Exception, said: list[str]) -> None:
    told = {"tcp://10.0.0.2:1": os, "tcp://10.0.0.3:1": ImportError(), "tcp://10.0.0.4:1": ImportError()}
    future = SimpleNamespace(status="error", result=raising(error))
    with pytest.raises(InputError) as raised:
        sweep(run=lambda *_, on_error: told)._rows(future)
    assert all(part in str(raised.value) for part in said), raised.value


def raising(error: Exception) -> Callable[..., Any]:
    def result(timeout: float) -> None:
        raise error

    return result


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        ("connecting", distributed.CancelledError("planner.point-0"), "the connection to"),
        ("closed", RuntimeError("IOLoop is closed"), "the connection to"),
        ("running", cancelled("scheduler-connection-lost"), "the connection to"),
        ("running", distributed.comm.CommClosedError("in <TCP>"), "the connection to"),
        ("running", cancelled("scheduler-restart"), "must not be cancelled\n  given: a point was"),
        ("running", distributed.CancelledError("planner.point-0"), "must not be cancelled"),
    ],
)
def test_a_future_that_ends_without_its_task_is_told_apart(status: str, error: Exception, said: str) -> None:
    made = sweep(status)
    with pytest.raises(type(error)):
        made._rows(SimpleNamespace(status="cancelled", result=raising(error)))
    reason = made._reason(error)
    assert isinstance(reason, InputError)
    assert said in str(reason)
    assert ADDRESS in str(reason)


def test_an_error_of_our_own_keeps_its_traceback() -> None:
    error = KeyError("a slip")
    assert sweep()._reason(error) is error


def test_rows_that_a_worker_took_along_are_waited_for_again() -> None:
    made = sweep()
    made.ready = SimpleNamespace(add=(again := []).append)
    lost = SimpleNamespace(status="pending", result=raising(TimeoutError()))
    assert made._rows(lost) is None
    assert again == [lost]


def test_a_cluster_without_workers_is_said_in_time_and_not_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, threads, said = 100.0, dict[str, int](), list[str]()
    monkeypatch.setattr(dask_workers, "time", SimpleNamespace(monotonic=lambda: now))
    made = sweep(nthreads=lambda: threads, say=said.append)

    def look(seconds: float) -> int:
        nonlocal now
        now += seconds
        made._look()
        return len(said)

    assert look(0) == look(4) == 0
    assert look(4) == 1
    assert said == [f"no worker is connected to {ADDRESS}; waiting: start one with dask worker {ADDRESS}"]
    assert look(500) == 1
    assert look(500) == 2
    threads = {"tcp://10.0.0.2:1": 3}
    assert look(9) == 2
    assert made.threads == 3
    threads = {}
    assert look(4) == look(4) == 2  # a worker came, and died before it answered
    made.reminded = None  # it answered
    assert look(4) == 3


def test_other_versions_are_named_once_each() -> None:
    def packages(**versions: str | None) -> dict[str, object]:
        return {
            "packages": {"python": "3.11.7.final.0", "dask": "2", "distributed": "2", "numpy": "2"} | versions
        }

    same = {"client": packages(), "scheduler": packages(numpy=None), "workers": {"a": packages(), "b": None}}
    assert _other_versions(same) == ""
    workers = {"a": packages(distributed="1"), "b": packages(distributed="1", python="3.11.9.final.0")}
    other = {"client": packages(), "scheduler": packages(python="3.12.1.final.0"), "workers": workers}
    assert _other_versions(other) == (
        "python 3.11 here, 3.12 on the scheduler; distributed 2 here, 1 on a and 1 more"
    )


def test_a_point_is_answered_where_its_bytes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    request = points(1)[0]
    packed = pickle.dumps(_Point(request))
    asked: list[Request] = []
    monkeypatch.setattr(dask_workers, "answer_point", asked.append)
    pickle.loads(packed)
    assert asked == [request]


def test_another_planner_is_refused_before_it_reads_the_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "get_worker", lambda: SimpleNamespace(address="tcp://10.0.0.2:1"))
    with pytest.raises(InputError, match=rf"0.0.9 here, {planner.__version__} on tcp://10.0.0.2:1"):
        answer_packed("0.0.9", b"no pickle")


def test_logs_of_dask_alone_are_silent() -> None:
    def heard(name: str) -> bool:
        return logging.getLogger(name).isEnabledFor(logging.ERROR)

    dask_s = ("distributed.client", "distributed.comm.core", "distributed.utils", "tornado.application")
    with _quiet():
        assert not any(map(heard, dask_s))
        assert heard("planner")
    assert all(map(heard, ("distributed.client", "distributed.comm.core", "distributed.utils")))


def test_a_scheduler_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_workers, "CONNECT", 1)
    with pytest.raises(InputError, match="scheduler must answer"):
        list(dask("tcp://127.0.0.1:9", print)(points(1)))


def test_a_port_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_workers, "CONNECT", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(InputError, match="a connection, but no answer"):
            list(dask(f"tcp://127.0.0.1:{silent.getsockname()[1]}", print)(points(1)))


class Cluster:
    """Processes of a cluster on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "scheduler.json"
        self.started: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("scheduler", "--port", "0", planner=ABSENT)
        until(self.file.exists)
        self.address: str = json.loads(self.file.read_text())["address"]

    def _start(self, part: str, *options: str, planner: str = "") -> subprocess.Popen[bytes]:
        """One that finds another planner, where the text of one is given."""
        place = self.folder / f"{part}-{len(self.started)}"
        place.mkdir()
        path = Path.cwd()
        if planner:
            (place / "planner").mkdir()
            (place / "planner" / "__init__.py").write_text(planner)
            path = place
        command = [sys.executable, "-m", f"distributed.cli.dask_{part}", "--host", "127.0.0.1", "--no-dashboard",
                   "--scheduler-file", str(self.file), *options]  # fmt: skip
        with (place / "log").open("wb") as log:
            self.started.append(
                subprocess.Popen(
                    command, cwd=place, env=os.environ | {"PYTHONPATH": str(path)}, stderr=log, stdout=log
                )
            )
        return self.started[-1]

    def worker(self, planner: str = "") -> subprocess.Popen[bytes]:
        return self._start("worker", "--nthreads", "1", "--no-nanny", planner=planner)

    def sweep(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """A sweep by this cluster, which tells NAME.err."""
        (self.folder / "sweep.yaml").write_text(SWEEP)
        command = [sys.executable, "-m", "planner", "sweep", str(self.folder / "sweep.yaml"), *options]
        with (self.folder / f"{name}.err").open("wb") as told:
            self.started.append(
                subprocess.Popen([*command, "-o", str(self.folder / f"{name}.csv")], stderr=told)
            )
        return self.started[-1]

    def on_it(self, name: str) -> subprocess.Popen[bytes]:
        return self.sweep(name, "--dask", self.address)

    def told(self, name: str) -> str:
        return (self.folder / f"{name}.err").read_text()

    def answered(self, name: str, points: int) -> Callable[[], bool]:
        return lambda: answered(self.folder / f".{name}.csv.progress", points)


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    for process in made.started:
        process.kill()
    for process in made.started:
        process.wait()


@pytest.mark.slow
def test_the_dead_are_replaced_and_the_table_is_that_of_one_process(cluster: Cluster) -> None:
    """A worker dies, then the last one; a new one comes. The scheduler has no planner."""
    workers = [cluster.worker(), cluster.worker()]
    sweep = cluster.on_it("dask")
    until(cluster.answered("dask", 1))
    workers[0].kill()
    until(cluster.answered("dask", 2))
    workers[1].kill()
    until(lambda: "no worker is connected" in cluster.told("dask"))
    cluster.worker()
    assert sweep.wait(120) == 0, cluster.told("dask")
    assert cluster.told("dask").count("no worker is connected") == 1
    assert cluster.sweep("here", "--workers", "1").wait(120) == 0
    assert (cluster.folder / "dask.csv").read_bytes() == (cluster.folder / "here.csv").read_bytes()


@pytest.mark.slow
def test_a_killed_scheduler_is_told_as_that_and_what_is_done_is_kept(cluster: Cluster) -> None:
    cluster.worker()
    sweep = cluster.on_it("t")
    until(cluster.answered("t", 2))
    cluster.scheduler.kill()
    assert sweep.wait(60) == 2
    done = (cluster.folder / ".t.csv.progress").read_bytes().count(b"\n") - 1
    assert cluster.told("t").splitlines() == [
        f"0 of {POINTS} points done",
        f"{done} of {POINTS} points are done and kept; run the same again to go on",
        "error: the Dask scheduler must stay until the sweep ends",
        f"  given: the connection to {cluster.address} was lost",
        "  hint: look into its log, start it and its workers again",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "said"),
    [
        (ABSENT, "No module named 'planner', on tcp://"),
        (OTHER, f"{planner.__version__} here, 0.0.9 on tcp://"),
    ],
)
def test_a_worker_with_another_planner_or_none_is_named(other: str, said: str, cluster: Cluster) -> None:
    cluster.worker(other)
    assert cluster.on_it("t").wait(60) == 2
    told = cluster.told("t").splitlines()
    assert [line.split(":")[0].strip() for line in told] == [
        f"0 of {POINTS} points done",
        "error",
        "given",
        "hint",
    ]
    assert said in told[-2]
