"""Who makes the plans that a comparison or a sizing asks for? This process, or others that begin before it asks.

Left out: many machines, which `sweep_workers` uses, and what is asked.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from planner.answer.outcome import check_whole
from planner.answer.plan import make_plan
from planner.ask.request import Request
from planner.spec.planfile import Plan

_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGHUP")


def spawned_pool(processes: int) -> ProcessPoolExecutor:
    """So many processes that share nothing with this one, and end when it does."""
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_end_with_parent)


@contextmanager
def signals_held() -> Iterator[None]:
    """Have signals whose handlers may raise wait until it is left: an exception that comes when a lock of a pool is
    taken, and its block not yet entered, would hold the lock for ever, and the end of the pool wait for it."""
    came: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    try:
        if threading.current_thread() is threading.main_thread():  # where handlers run
            for number in filter(None, (getattr(signal, name, None) for name in _SIGNALS)):
                if callable(handler := signal.getsignal(number)):
                    before[number] = handler
                    signal.signal(number, note)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def end_pool(pool: ProcessPoolExecutor) -> None:
    """End the processes of a pool, whatever they do, and what they share."""
    with signals_held():
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


Name = TypeVar("Name")
Value = TypeVar("Value")


class Tasks(Generic[Name, Value]):
    """What a pool was given to do, each by a name, and its results in the order in which they are ready.

    They come through a queue, whose `get` takes no lock that an exception could leave taken.
    """

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self._done: SimpleQueue[Future[Value]] = SimpleQueue()
        self._names: dict[Future[Value], Name] = {}

    def __len__(self) -> int:
        return len(self._names)

    def give(self, name: Name, function: Callable[..., Value], *args: Any) -> None:
        """Have it done."""
        with signals_held():
            future = self._pool.submit(function, *args)
            self._names[future] = name
            future.add_done_callback(self._done.put)

    def next(self) -> tuple[Name, Callable[[], Value]]:
        """The next one that is ready, waited for, and what gives its result, or raises what it raised."""
        future = self._done.get()

        def result() -> Value:
            with signals_held():
                return future.result()

        return self._names.pop(future), result


def _end_with_parent() -> None:
    """In a process of a pool: one whose parent was killed would wait for work for ever, as no queue was closed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Planners:
    """Makes plans; with several `processes` those that were foreseen are on their way when they are asked for."""

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._tasks: Tasks[str, Plan] | None = None
        self._foreseen: dict[str, Callable[[], Plan] | None] = {}  # None: not ready

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            end_pool(self._pool)  # with what was foreseen and not asked for

    def foresee(self, request: Request) -> None:
        """It will probably be asked for; only with several processes anything is done."""
        name = repr(request)
        if self.processes < 2 or name in self._foreseen:
            return
        if self._pool is None or self._tasks is None:
            self._pool = spawned_pool(self.processes)
            self._tasks = Tasks(self._pool)
        self._tasks.give(name, make_plan, request)
        self._foreseen[name] = None

    def plan(self, request: Request) -> Plan:
        """The plan. Raises `PlannerError`; `KeyboardInterrupt` rather than half an answer."""
        plan = self._foreseen_plan(repr(request)) or make_plan(request)
        check_whole(plan)
        return plan

    def _foreseen_plan(self, name: str) -> Plan | None:
        """That of another process, waited for; None where none was asked. Raises what making it raised."""
        if self._tasks is None or name not in self._foreseen:
            return None
        while (made := self._foreseen[name]) is None:
            ready, result = self._tasks.next()
            self._foreseen[ready] = result
        return made()
