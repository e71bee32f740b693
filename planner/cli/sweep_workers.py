"""Who works on the points of a sweep? This process or a pool of processes; `dask_workers` has those of a cluster.

A request in, rows of a table out, in whichever process. Rows hold no times of day and no durations of the search, so
the same point gives the same row everywhere. Answers come in the order in which they are ready, each with the number
of its point. A worker that dies is replaced and its points are asked again. Left out: which points there are
(`ask.load_sweep`), and what becomes of the answers (`cli.sweep`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from typing import Final

from planner.answer.outcome import check_whole
from planner.answer.plan import make_plan
from planner.answer.planners import Tasks, end_pool, spawned_pool
from planner.ask.load_sweep import IN_FILE
from planner.ask.request import Request
from planner.errors import InputError, PlannerError
from planner.report.words import worded
from planner.spec.rows import COLUMNS, Row, plan_rows

Answer = tuple[int, list[Row]]
Workers = Callable[[Mapping[int, Request]], Iterator[Answer]]
AHEAD: Final = 4  # points handed out for every worker, so that none waits
MOST_DEATHS: Final = 3  # of workers in a row, without an answer in between

_ASKED = ("model", "cluster", "gpus", "seq_len", "precision", "optimizer", "stack")


def answer_point(request: Request) -> list[Row]:
    """The rows of a request's best configurations; one with the reason where there is none."""
    try:
        plan = worded(make_plan(request), IN_FILE)
    except PlannerError as error:
        error.say_in(IN_FILE)
        reason = "; ".join(part for part in (error.must, error.given, error.hint) if part)
        asked = {key: getattr(request, key) for key in _ASKED}
        return [
            dict.fromkeys(COLUMNS)
            | asked
            | {"tokens": request.tokens, "verdict": "refused", "reason": reason}
        ]
    check_whole(plan)
    named = {"model": request.model, "cluster": request.cluster}  # as asked: two files may hold the same name
    return [row | named for row in plan_rows(plan)[: request.top]]


def here(points: Mapping[int, Request]) -> Iterator[Answer]:
    """All in this process, in order."""
    for number, request in points.items():
        yield number, answer_point(request)


def pool(processes: int) -> Workers:
    """So many processes of this machine."""

    def work(points: Mapping[int, Request]) -> Iterator[Answer]:
        left, deaths = dict(points), 0
        while left:
            try:
                for number, rows in _pool_round(left, processes):
                    deaths = 0
                    del left[number]
                    yield number, rows
            except BrokenProcessPool:
                deaths += 1
                if deaths >= MOST_DEATHS:
                    _give_up(deaths)

    return work


def _give_up(deaths: int) -> None:
    must = "workers must stay alive"
    hint = "look for a lack of memory, use fewer --workers; what is done is kept, run the same again to go on"
    raise InputError(must, f"{deaths} died in a row without an answer", hint)


def _pool_round(points: Mapping[int, Request], processes: int) -> Iterator[Answer]:
    """Until all are answered or a process dies."""
    waiting, executor = iter(list(points.items())), spawned_pool(processes)
    try:
        tasks = Tasks[int, list[Row]](executor)
        while True:
            while len(tasks) < AHEAD * processes and (point := next(waiting, None)):
                tasks.give(point[0], answer_point, point[1])
            if not tasks:
                return
            number, rows = tasks.next()
            yield number, rows()
    finally:
        end_pool(executor)  # all is answered, or nobody waits for the rest
