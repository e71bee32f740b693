"""What is the answer to one point of a sweep? A request in, rows of a table out, in whichever process.

Rows hold no times of day and no durations of the search, so the same point gives the same row everywhere. Left out:
which points there are (`spec.load_sweep`), and who works on them (`cli.sweep`).
"""

from __future__ import annotations

from planner import __version__
from planner.errors import InputError, PlannerError
from planner.outcome import check_whole
from planner.plan import make_plan
from planner.request import Request
from planner.spec.rows import COLUMNS, Row, plan_rows

_ASKED = ("model", "cluster", "gpus", "seq_len", "precision", "optimizer", "stack")


def answer_point(request: Request, version: str = __version__) -> list[Row]:
    """The rows of a request's best configurations; one with the reason where there is none.

    `version`: of the planner that asks. Raises `InputError` if this one is another, as a worker's may be.
    """
    if version != __version__:
        raise InputError("all workers must run the same planner", f"{__version__}, asked by {version}")
    try:
        plan = make_plan(request)
    except PlannerError as error:
        reason = "; ".join(part for part in (error.must, error.given, error.hint) if part)
        asked = {key: getattr(request, key) for key in _ASKED}
        return [
            dict.fromkeys(COLUMNS)
            | asked
            | {"tokens": request.tokens, "verdict": "refused", "reason": reason}
        ]
    check_whole(plan)
    named = {"model": request.model, "cluster": request.cluster}  # as asked: two files may hold the same name
    return [row | named for row in plan_rows(plan)]
