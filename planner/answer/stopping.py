"""When must a search end before it is done? At a time limit, or when the user interrupts it.

The first Ctrl-C asks the search to hand over what it has; a second one ends the process. Left out: what a search
does when it is asked (`solve/`).
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Self

from planner.spec.planfile import Ending


class Stopwatch:
    """Time since it was made, and whether work must end. Catches Ctrl-C between `with` and its end; within that of
    another it ends with that one, and that one with it."""

    def __init__(self, time_limit: float | None = None) -> None:
        self.started = time.perf_counter()
        self.time_limit = time_limit
        self.ending = Ending.COMPLETE
        self._before: object = None
        self._outer: Stopwatch | None = None

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    def left(self) -> float:
        """Seconds until the time limit; infinite without one."""
        return float("inf") if self.time_limit is None else max(self.time_limit - self.seconds(), 0.0)

    def stopped(self) -> bool:
        """Must the search end now? The reason is kept in `ending`."""
        if self.ending is Ending.COMPLETE and self.left() <= 0:
            self.ending = Ending.TIME_LIMIT
        return self.ending is not Ending.COMPLETE

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.ending is Ending.INTERRUPTED:
            raise KeyboardInterrupt
        self.ending = Ending.INTERRUPTED
        if self._outer is not None:
            self._outer._interrupt(number, frame)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # handlers can be set nowhere else
            self._before = signal.signal(signal.SIGINT, self._interrupt)
            outer = getattr(self._before, "__self__", None)
            self._outer = outer if isinstance(outer, Stopwatch) else None
            if self._outer is not None and self._outer.ending is Ending.INTERRUPTED:
                self.ending = Ending.INTERRUPTED
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]
