"""What does a training log say? Step times, throughput, memory and out-of-memory messages, line by line.

Reads the formats of `formats.py`, of several releases, with colours, rank prefixes and wrapped lines, as a stream: a
log may be larger than the memory. A number counts only in context: of progress bars the training's, of a run that was
resumed the last attempt, of the steps of a rank the middle one of all ranks. Left out: the configuration of the run,
which its owner gives (`calibrate/own_runs.py`).
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from planner.calibrate.logs.bars import Bars
from planner.calibrate.logs.exports import EXPORTS, Export, export_in
from planner.calibrate.logs.formats import (
    ELAPSED,
    FORMATS,
    HEAD_HINTS,
    HINTS,
    ITERATION,
    LoggedStep,
    below,
    named_step,
    step_line,
)
from planner.calibrate.logs.memory_messages import (
    LOST_HINTS,
    LostMemory,
    MemoryLine,
    OutOfMemory,
    lost_memory,
    memory_line,
    out_of_memory,
)
from planner.calibrate.logs.others import HEAD, named
from planner.calibrate.logs.text import check_log, lines_of, plain
from planner.errors import FileInputError
from planner.report.words import texts
from planner.spec.findings import Finding, finding

MOST_STEPS: Final = 200_000
_MOST_MESSAGES: Final = 10_000
_CONTINUED: Final = 8  # lines a message may be wrapped over
_TELLING: Final = (
    *HINTS,
    *HEAD_HINTS,
    *LOST_HINTS,
    "iteration",
    "memory",
    "max_ma",
    "traceback",
    "loss",
    "eval_",
    "it/s",
    "s/it",
    "/s]",
    "across ranks",
)
_MOST_EARLIER: Final = 100  # lines back that a clock is compared with
_BEHIND: Final = 2  # steps that ranks may lie apart; a log that falls back by more was resumed
_TIMER: Final = re.compile(r"^\s{1,12}([a-z][a-z0-9/-]{2,60}) \.{2,}: ?\((\d+\.\d+), (\d+\.\d+)\)")
_RL: Final = re.compile(r"\btiming_s/gen:|• (?:exposed_)?generation:", re.IGNORECASE)
_RESOLVED: Final = 20.0  # s between two readings of a clock of whole seconds: 5 %


@dataclass(frozen=True)
class LogFacts:
    """A whole log. `steps` in order, one of each number; `ranks`: those whose prefixes were seen; `timers`: of
    Megatron's own, the longest of a rank [s], step by step; `findings`: what was left out, and why; `lost`: memory that
    ran out outside the allocator."""

    name: str
    steps: tuple[LoggedStep, ...]
    memory: tuple[MemoryLine, ...]
    ooms: tuple[OutOfMemory, ...]
    lines: int
    ranks: tuple[int, ...]
    timers: dict[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    findings: tuple[Finding, ...] = ()
    lost: tuple[LostMemory, ...] = ()

    @property
    def framework(self) -> str:
        """The framework of most lines; empty where no line is of a known format."""
        names = [step.framework for step in self.steps]
        return max(sorted(set(names)), key=names.count) if names else ""


def _logical_lines(lines: Iterable[str]) -> Iterator[tuple[str, int | None]]:
    """Plain lines that may say something; one cut in the middle of a Megatron step is joined with what follows."""
    held, waiting, quiet = "", 0, 0
    rank: int | None = None
    for line in lines:
        lower = line.lower()
        quiet = 0 if any(hint in lower for hint in _TELLING) else quiet + 1
        if quiet > _CONTINUED and not held:
            continue
        for part in line.split("\r"):  # progress bars rewrite one line
            text, of = plain(part)
            if held:
                joins = waiting and "|" in text and not ITERATION.search(text)
                held, waiting = (f"{held} {text.strip()}", waiting - 1) if joins else (held, 0)
                if waiting and not ELAPSED.search(held):
                    continue
                yield held, rank
                held = ""
                if joins:
                    continue
            if ITERATION.search(text) and text.endswith("|") and "per iteration (ms)" not in text:
                held, rank, waiting = text, of, 3
                continue
            yield text, of
    if held:
        yield held, rank


class _Messages:
    """Messages of a device without memory left, each collected over the lines it may be wrapped over."""

    def __init__(self) -> None:
        self.found: list[OutOfMemory] = []
        self._text, self._more = "", 0
        self._rank: int | None = None

    def take(self, text: str, rank: int | None) -> None:
        """Look at one more line."""
        starts = "out of memory" in text.lower()
        if self._more and (starts or "Traceback" in text):
            self.end()
        if self._more:
            self._text, self._more = f"{self._text} {text.strip()}", self._more - 1
            if not self._more:
                self.end()
        elif starts:
            self._text, self._rank, self._more = text, rank, _CONTINUED

    def end(self) -> None:
        """No line follows."""
        if self._more or self._text:
            found = out_of_memory(self._text, self._rank)
            self.found += [found] if found is not None and len(self.found) < _MOST_MESSAGES else []
        self._text, self._more = "", 0


class _Steps:
    """Numbered and other steps, in order."""

    def __init__(self) -> None:
        self._attempts: list[dict[tuple[str, int], list[LoggedStep]]] = [{}]
        self._others: list[LoggedStep] = []
        self._last = -1
        self.count = 0
        self.clocked = False  # times are differences of a clock

    def take(self, step: LoggedStep) -> None:
        """One more. A number that falls back begins another attempt of a run that was resumed."""
        if self.count >= MOST_STEPS:
            return
        self.count += 1
        self.clocked |= step.clock is not None
        if step.step is None:
            self._others.append(step)
            return
        if step.step < self._last - _BEHIND:
            self._attempts.append({})
            self._last = step.step
        self._last = max(self._last, step.step)
        self._attempts[-1].setdefault((step.framework, step.step), []).append(step)

    def chosen(self) -> tuple[list[LoggedStep], Finding | None]:
        """Those of the last attempt that says enough, and that there were others."""
        tried = [one for one in self._attempts if one]
        if not tried:
            return self._others, None
        most = max(len(one) for one in tried)
        last = [one for one in tried if len(one) > min(_BEHIND, most - 1)][-1]
        found = _with_clock([_middle(of) for of in last.values()])
        if len(tried) == 1:
            return found, None
        first, end = min(step for _, step in last), max(step for _, step in last)
        return found, finding("run_resumed", attempts=len(tried), first=first, last=end)


def _with_clock(steps: Sequence[LoggedStep]) -> list[LoggedStep]:
    """Steps whose lines show a clock, with the time since an earlier line: the last one, or the last that is far enough
    back where the clock counts whole seconds. One alone keeps what it says."""
    found, earlier = list[LoggedStep](), list[tuple[float, int]]()
    whole = all(step.clock is None or step.clock.is_integer() for step in steps)
    for step in steps:
        if step.clock is None or step.step is None:
            found.append(step)
            continue
        far = [one for one in earlier if not whole or step.clock - one[0] >= _RESOLVED]
        if earlier and step.clock < earlier[-1][0]:
            earlier.clear()  # started anew
        elif earlier:
            clock, number = (far or earlier[:1])[-1]
            if step.clock > clock and step.step > number:
                seconds = (step.clock - clock) / (step.step - number)
                found.append(replace(step, seconds=seconds, clock=None))
        earlier.append((step.clock, step.step))
        del earlier[:-_MOST_EARLIER]
    return found or [replace(step, clock=None) for step in steps if step.seconds]


def read_lines(lines: Iterable[str], name: str) -> LogFacts:
    """Everything of a log that planner understands. Raises `FileInputError` for an export of several runs."""
    counter = itertools.count()
    export, text = export_in((line for line, _ in zip(lines, counter, strict=False)), name)
    if export is not None:
        facts = _of_export(export, name)
        return replace(facts, lines=next(counter))
    facts = _of_text(text, name)
    return replace(facts, lines=next(counter))


def _of_export(export: Export, name: str) -> LogFacts:
    steps = _Steps()
    for step in export.steps:
        steps.take(step)
    found, resumed = steps.chosen()
    said = [resumed] if resumed is not None else []
    if steps.clocked and found:
        said.append(finding("times_by_clock"))
    return LogFacts(name, tuple(found), export.memory, (), 0, (), findings=tuple(said))


def _of_text(lines: Iterable[str], name: str) -> LogFacts:
    steps, bars, messages = _Steps(), Bars(), _Messages()
    memory: list[MemoryLine] = []
    timers: dict[str, list[float]] = defaultdict(list)
    lost: list[LostMemory] = []
    rollouts, head = False, None
    ranks: set[int] = set()
    for text, rank in _logical_lines(lines):
        if rank is not None:
            ranks.add(rank)
        messages.take(text, rank)
        line = memory_line(text, rank)
        if line is not None and len(memory) < MOST_STEPS:
            memory.append(line)
        if (timer := _TIMER.match(text)) is not None and len(timers) < MOST_STEPS:
            timers[timer[1]].append(float(timer[3]) / 1e3)
        rollouts |= _RL.search(text) is not None
        if (gone := lost_memory(text, rank)) is not None and len(lost) < _MOST_MESSAGES:
            lost.append(gone)
        step = step_line(text)
        if step is not None:
            steps.take(below(step, head))
        elif (above := named_step(text)) is not None:
            head = above
        else:
            bars.take(text)
    messages.end()
    own, resumed = steps.chosen()
    others = [step for step in own if step.step is None]
    barred, ignored, undecided = bars.chosen()
    numbered = [step for step in own if step.step is not None]
    # the average that a trainer states at its end holds its start
    every = numbered or barred or others
    said = [resumed] if resumed is not None else []
    if steps.clocked and every is numbered:
        said.append(finding("times_by_clock"))
    if every is barred and barred and ignored:
        said.append(finding("bars_left_out", bars=ignored))
    if not every and undecided:
        said.append(finding("bars_undecided", bars=undecided))
    if not every and (ignored and not undecided):
        said.append(finding("bars_of_others", bars=ignored))
    if rollouts:
        said.append(finding("rollouts_left_out") if every else finding("rollouts_alone"))
    return LogFacts(
        name, tuple(every), tuple(memory), tuple(messages.found), 0, tuple(sorted(ranks)),
        {of: tuple(times) for of, times in timers.items()}, tuple(said), tuple(lost),
    )  # fmt: skip


def _middle(of: list[LoggedStep]) -> LoggedStep:
    """One of the lines that several ranks logged for the same step: the middle one by time."""
    ordered = sorted(of, key=lambda step: step.seconds or 1 / (step.tokens_per_device or step.samples or 1))
    return ordered[len(ordered) // 2]


def read_log(path: Path) -> LogFacts:
    """The log in a file, as a stream. Raises `FileInputError`."""
    facts = _read_once(path, *check_log(path))
    if not (facts.steps or facts.memory or facts.ooms or facts.lost):
        if (kind := named(_head(path))) is not None:
            raise FileInputError(str(path), "a log must be the text that a training run printed", *kind)
        must = "a log must hold step times, memory lines or an out-of-memory message of a known format"
        given = "; ".join(texts(facts.findings)) or f"{facts.lines} lines, none of them"
        raise FileInputError(str(path), must, given, f"formats: {', '.join((*FORMATS, *EXPORTS))}")
    return facts


def _head(path: Path) -> str:
    """The beginning of a log without colours and prefixes."""
    text = ""
    for line in lines_of(path):
        text += plain(line)[0] + "\n"
        if len(text) > HEAD:
            break
    return text


@functools.lru_cache(maxsize=8)
def _read_once(path: Path, size: int, changed: int) -> LogFacts:
    """A log that did not change since it was read is not read again."""
    return read_lines(lines_of(path), str(path))
