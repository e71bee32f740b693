"""How do the workers of a Dask cluster answer the points of a sweep, and what is said where they cannot?

A point travels as bytes, which its task alone reads: the scheduler needs no planner, and on a worker without one the
task fails with the reason, where Dask's own message would end the worker. Dask asks again what a dead worker was
working on. While the cluster works, Dask's own logs are silent: what ends a sweep is an error, what holds it up is
said. Left out: how a point is answered (`sweep_workers`), and what becomes of the answers (`cli.sweep`).
"""

from __future__ import annotations

import gc
import logging
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Final
from uuid import uuid4

from planner import __version__
from planner.ask.request import Request
from planner.cli.sweep_workers import AHEAD, Answer, Workers, answer_point
from planner.errors import InputError, PlannerError, install_hint
from planner.spec.rows import Row

CONNECT: Final = 15  # seconds, in which a scheduler must answer
LOOK: Final = 2  # seconds between two looks at the workers
PATIENCE: Final = (
    5  # seconds without a worker, before it is said: workers that start with the sweep need a few
)
REMIND: Final = 600  # seconds, after which it is said again
_POLL: Final = 0.05  # seconds between two looks at the answers

_LOGGERS: Final = ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio")
_COMPARED: Final = ("python", "dask", "distributed", "numpy")
_SAME_DASK: Final = "install the same dask and distributed here, at the scheduler and on the workers"

Say = Callable[[str], object]


class _Point:
    """A point to be answered where these bytes are read: reading them makes the call."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def __reduce__(self) -> tuple[Any, ...]:
        return answer_packed, (__version__, pickle.dumps(self.request))


def answer_packed(version: str, packed: bytes) -> list[Row]:
    """The rows of a packed request; `version`: of the planner that asks. Raises `InputError` if this one is another."""
    if version != __version__:
        from distributed import get_worker

        given = f"{version} here, {__version__} on {get_worker().address}"
        raise InputError("all workers must run the same planner", given, "install this one on every worker")
    return answer_point(pickle.loads(packed))


def dask(address: str, say: Say) -> Workers:
    """The workers of the Dask scheduler at an address; `say` is told what holds them up.

    Raises `InputError` where the scheduler cannot be reached, or answers stop coming.
    """

    def work(points: Mapping[int, Request]) -> Iterator[Answer]:
        distributed = _distributed()
        with _quiet():
            client = _connected(distributed, address, say)
            try:
                yield from _Sweep(distributed, client, address, say).answers(points)
            finally:
                client.close()

    return work


def _distributed() -> Any:
    try:
        import distributed
    except ModuleNotFoundError:
        must = "--dask needs Dask's distributed package, here and on the workers"
        raise InputError(must, hint=install_hint("sweep")) from None
    return distributed


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing of Dask's logs, tracebacks of a lost connection for one, on stderr."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _connected(distributed: Any, address: str, say: Say) -> Any:
    """A client of the scheduler. Raises `InputError`.

    Made in a thread: a port where something listens and never answers would hold this one for ever.
    """
    made: Future[Any] = Future()

    def connect() -> None:
        try:
            made.set_result(distributed.Client(address, timeout=CONNECT, set_as_default=False))
            return
        except (OSError, ValueError) as error:
            failure = _unreachable(f"{address}: {error}")
        except Exception as error:  # neither understands the other
            must = "what answers must be a scheduler of the Dask of this machine"
            given = f"{address} answers Dask {distributed.__version__} with {_named(error)}"
            failure = InputError(must, given, f"check the address; {_SAME_DASK}")
        gc.collect()  # half a client, which at the end of the process would wait 30 s
        made.set_exception(failure)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        threading.Thread(target=connect, daemon=True).start()
        try:
            client = made.result(2 * CONNECT)
        except TimeoutError:
            raise _unreachable(f"{address}: a connection, but no answer in {2 * CONNECT} s") from None
    if warned and (differing := _other_versions(client.get_versions())):
        say(f"the cluster runs other versions: {differing}")
    return client


def _unreachable(given: str) -> InputError:
    hint = "start one: dask scheduler, and dask worker ADDRESS on every machine"
    return InputError("the Dask scheduler must answer", given[:300], hint)


def _other_versions(told: Mapping[str, Any]) -> str:
    """What the scheduler and the workers have in another version, from what Dask tells of all; "" if nothing."""
    found = []
    for name in _COMPARED:
        own = _version(told["client"], name)
        there = {"the scheduler": told["scheduler"], **told["workers"]}
        others = {who: at for who in there if (at := _version(there[who], name)) not in (None, own)}
        if others:
            who, at = next(iter(others.items()))
            found.append(f"{name} {own} here, {at} on {who}{_and_more(others)}")
    return "; ".join(found)


def _version(told: Any, name: str) -> str | None:
    found: str | None = (told or {}).get("packages", {}).get(name)
    return ".".join(found.split(".")[:2]) if found and name == "python" else found


def _and_more(others: Collection[object]) -> str:
    return f" and {len(others) - 1:,} more" if len(others) > 1 else ""


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


class _Sweep:
    """One sweep on a cluster: what is handed out, and since when there is nobody to work on it."""

    def __init__(self, distributed: Any, client: Any, address: str, say: Say) -> None:
        self.distributed, self.client, self.address, self.say = distributed, client, address, say
        self.ready = distributed.as_completed([], loop=client.loop, raise_errors=False)
        self.numbers: dict[str, int] = {}  # points handed out, by key
        self.threads = 0  # of all workers
        self.looked = self.manned = time.monotonic()  # the last look, and the last that saw a worker
        self.reminded: float | None = None  # when it was said that there is none, since the last answer

    def answers(self, points: Mapping[int, Request]) -> Iterator[Answer]:
        """The answers as they come. Raises `InputError` where one does not."""
        waiting = iter(points.items())
        try:
            self._look()
            while True:
                self._hand_out(waiting)
                if not self.numbers:
                    return
                future = self._next()
                rows = None if future is None else self._rows(future)
                if rows is not None:
                    self.reminded = None
                    yield self.numbers.pop(future.key), rows
        except PlannerError:
            raise
        except Exception as error:
            raise self._reason(error) from None

    def _hand_out(self, waiting: Iterator[tuple[int, Request]]) -> None:
        """So many points for every thread of a worker that none waits for work."""
        while len(self.numbers) < AHEAD * max(self.threads, 1) and (point := next(waiting, None)):
            key, packed = f"planner.point-{point[0]}-{uuid4().hex}", pickle.dumps(_Point(point[1]))
            self.ready.add(self.client.submit(pickle.loads, packed, key=key, pure=False))
            self.numbers[key] = point[0]

    def _next(self) -> Any:
        """A future that has ended; None where workers were looked at instead."""
        while True:
            if time.monotonic() >= self.looked + LOOK:
                self._look()
                return None
            if self.ready.has_ready():
                return next(self.ready)
            time.sleep(_POLL)

    def _look(self) -> None:
        """Who is there to work? Nobody for long: that is said."""
        self.threads = sum(self.client.nthreads().values())
        self.looked = now = time.monotonic()
        if self.threads:
            self.manned = now
        elif now >= self.manned + PATIENCE and (self.reminded is None or now >= self.reminded + REMIND):
            start = f"waiting: start one with dask worker {self.address}"
            self.say(f"no worker is connected to {self.address}; {start}")
            self.reminded = now

    def _rows(self, future: Any) -> list[Row] | None:
        """The rows of a future that has ended; None where the worker that held them died and others are asked."""
        try:
            rows: list[Row] = future.result(timeout=LOOK)
        except Exception as error:
            if future.status == "error":  # of its task
                raise self._failure(error) from None
            if not isinstance(error, TimeoutError):
                raise
            self.ready.add(future)
            return None
        future.release()
        return rows

    def _failure(self, error: Exception) -> InputError:
        """Why a worker has no answer."""
        if isinstance(error, InputError):
            return error
        if isinstance(error, self.distributed.KilledWorker):
            last = getattr(error.args[1], "address", "an unknown address")
            given = f"{error.args[2] + 1} died while they worked on the same point, the last at {last}"
            other = f"another Dask than {self.distributed.__version__}"
            hint = f"see its log: no memory left (use fewer --nthreads), or {other}, say"
            return InputError("workers must stay alive", given, hint)
        if isinstance(error, ImportError):
            must = "every worker must be able to import this planner"
            hint = f"install planner {__version__} there, or stop that worker"
            return InputError(must, f"{_named(error)}{self._unable()}", hint)
        hint = (
            "--workers 1 instead of --dask tells whether the point is at fault or the cluster; " + _SAME_DASK
        )
        return InputError("a worker must answer its point", _named(error), hint)

    def _unable(self) -> str:
        """Which workers cannot import this module; "" where they do not tell."""
        with suppress(Exception):
            told = self.client.run(import_module, __name__, on_error="return")
            unable = [address for address, found in told.items() if isinstance(found, Exception)]
            return f", on {unable[0]}{_and_more(unable)}" if unable else ""
        return ""

    def _reason(self, error: Exception) -> Exception:
        """What an error of a call to the scheduler means, or of a future that ended without its task."""
        cancelled = isinstance(error, self.distributed.CancelledError)
        lost = self.client.status != "running" or getattr(error, "reason", "") == "scheduler-connection-lost"
        if lost or isinstance(error, OSError):
            must = "the Dask scheduler must stay until the sweep ends"
            given = f"the connection to {self.address} was lost"
            return InputError(must, given, "look into its log, start it and its workers again")
        if cancelled:
            given = f"a point was, at {self.address}: {getattr(error, 'reason', 'no reason is known')}"
            hint = "do not restart the cluster while a sweep runs"
            return InputError("the points of a sweep must not be cancelled", given, hint)
        return error
