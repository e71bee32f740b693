"""Who makes the plans that a comparison or a sizing asks for? This process, or others that begin before it asks.

Left out: many machines, which `sweep_workers` uses, and what is asked.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType
from typing import Self

from planner.answer.outcome import check_whole
from planner.answer.plan import make_plan
from planner.ask.request import Request
from planner.spec.planfile import Plan


def spawned_pool(processes: int) -> ProcessPoolExecutor:
    """So many processes that share nothing with this one, and end when it does."""
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_end_with_parent)


def end_pool(pool: ProcessPoolExecutor) -> None:
    """End the processes of a pool, whatever they do, and what they share."""
    for process in list((pool._processes or {}).values()):
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


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
        self._waiting: dict[str, Future[Plan]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            end_pool(self._pool)  # with what was foreseen and not asked for

    def foresee(self, request: Request) -> None:
        """It will probably be asked for; only with several processes anything is done."""
        if self.processes < 2 or repr(request) in self._waiting:
            return
        if self._pool is None:
            self._pool = spawned_pool(self.processes)
        self._waiting[repr(request)] = self._pool.submit(make_plan, request)

    def plan(self, request: Request) -> Plan:
        """The plan. Raises `PlannerError`; `KeyboardInterrupt` rather than half an answer."""
        foreseen = self._waiting.get(repr(request))
        plan = make_plan(request) if foreseen is None else foreseen.result()
        check_whole(plan)
        return plan
