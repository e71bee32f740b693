"""What does a training log say? Step times, throughput, memory and out-of-memory messages, line by line.

Reads the formats of Megatron-LM and Megatron-Bridge, NeMo, torchtitan, DeepSpeed, nanotron, Composer, the
transformers trainer and MaxText, of several releases, with colours, rank prefixes and wrapped lines, as a stream: a
log may be larger than the memory. Left out: the configuration of the run, which its owner gives
(`calibrate/own_runs.py`).
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from planner.calibrate.logs.memory_messages import MemoryLine, OutOfMemory, memory_line, out_of_memory
from planner.errors import FileInputError

LONGEST_LINE: Final = 20_000  # characters; the rest of a line holds no figure
MOST_STEPS: Final = 200_000
LARGEST_LOG: Final = 2_000_000_000  # bytes
_MOST_MESSAGES: Final = 10_000
_LEAST, _MOST = 1e-9, 1e18  # figures beyond them are none
_CONTINUED: Final = 8  # lines a message may be wrapped over
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[@-Z\\-_]")
# "[rank3]:", "[default0]:[rank0]:", "0: " of srun -l, "worker-1: " of pdsh
_PREFIX: Final = re.compile(
    r"^\s*(?:\[(?:rank|default)\s?(\d+)\]:?\s*|(\d{1,6}): (?=\S)|[\w.-]{1,60}-\d+: (?=\S))+", re.IGNORECASE
)
_NUMBER: Final = r"[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?\d+)?"
_SUFFIX: Final = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True)
class LoggedStep:
    """One step as logged. `seconds`, `tokens_per_device` [1/s], `samples` [sequences/s], `batch` [sequences],
    `flops` [TFLOP/s per device], `mfu` [1]; None where the line does not say."""

    framework: str
    step: int | None = None
    seconds: float | None = None
    tokens_per_device: float | None = None
    samples: float | None = None
    batch: float | None = None
    flops: float | None = None
    mfu: float | None = None


@dataclass(frozen=True)
class LogFacts:
    """A whole log. `steps` in order, one of each number; `ranks`: those whose prefixes were seen."""

    name: str
    steps: tuple[LoggedStep, ...]
    memory: tuple[MemoryLine, ...]
    ooms: tuple[OutOfMemory, ...]
    lines: int
    ranks: tuple[int, ...]

    @property
    def framework(self) -> str:
        """The framework of most lines; empty where no line is of a known format."""
        names = [step.framework for step in self.steps]
        return max(sorted(set(names)), key=names.count) if names else ""


@dataclass(frozen=True)
class _Format:
    """Lines of a framework. `patterns`: each looked for in a line, with groups of these names: `step`, its number;
    figures by the field of `LoggedStep`, where a letter may follow for thousands and more; `ms` and `percent`, of
    `seconds` and `mfu` in these units; `per_second`, steps. A line that lacks the first figure is of another format."""

    framework: str
    patterns: tuple[re.Pattern[str], ...]


def _format(framework: str, *patterns: str) -> _Format:
    return _Format(framework, tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns))


def _figure_of(name: str, letter: str = "") -> str:
    return rf"(?P<{name}>{_NUMBER}{letter})"


_MS, _SECONDS, _RATE, _FLOPS = (_figure_of(name) for name in ("ms", "seconds", "tokens_per_device", "flops"))
_ITERATION: Final = re.compile(r"\biteration:?\s+(?P<step>\d+)\s*/", re.IGNORECASE)
_ELAPSED: Final = re.compile(rf"elapsed time per iteration \(ms\):?\s*{_MS}", re.IGNORECASE)
_FORMATS: Final = (
    _format(
        "megatron",
        _ELAPSED.pattern,
        _ITERATION.pattern,
        rf"tokens[/ ](?:s|sec|second)(?:/GPU| per GPU)[^:]*:\s*{_RATE}",
        rf"global batch size:\s*{_figure_of('batch')}",
        rf"(?:(?:throughput|compute) per GPU \(TFLOP/s/GPU\)|TFLOPs):\s*{_FLOPS}",
    ),
    _format(
        "megatron-bridge",
        rf"Step Time\s*:\s*{_SECONDS}\s*s\b(?:.*?utilization:\s*{_FLOPS}\s*MODEL_TFLOP)?",
    ),
    _format(
        "nanotron",
        rf"time_per_iteration_ms:\s*{_figure_of('ms', '[KMBT]?')}",
        _ITERATION.pattern,
        rf"tokens_per_sec_per_gpu:\s*{_figure_of('tokens_per_device', '[KMBT]?')}",
        rf"model_tflops_per_gpu:\s*{_figure_of('flops', '[KMBT]?')}",
    ),
    # not "validate step:", whose tps are of forward passes alone
    _format(
        "torchtitan",
        rf"(?<!validate )\bstep:\s*(?P<step>[\d,]+)\s.*?\b(?:tps|wps|tgs):\s*{_RATE}",
        rf"\btflops:\s*{_FLOPS}",
        rf"\bmfu:\s*{_figure_of('percent')}\s*%",
    ),
    _format(
        "deepspeed",
        rf"(?:global_step=|\b\d+/)(?P<step>\d+), RunningAvgSamplesPerSec={_NUMBER}, "
        rf"CurrSamplesPerSec={_figure_of('samples')}",
    ),
    _format(
        "nemo",
        rf"train_step_timing in s['\"]?\s*[=:]\s*{_SECONDS}",
        r"(?:global_step|iteration)['\"]?\s*[=:]?\s*(?P<step>\d+)",
    ),
    _format("transformers", rf"'train_steps_per_second':\s*{_figure_of('per_second')}"),
    _format(
        "transformers",
        rf"\b(?P<step>\d+)/\d+ \[[^\]]*?\b(?:{_SECONDS}s/it|{_figure_of('per_second')}it/s)",
    ),
    # composer/loggers/console_logger.py: one metric a line below "[batch=10/4800]:", averaged over a window of batches
    _format("composer", rf"\bTrain throughput/batches_per_sec:\s*{_figure_of('per_second')}"),
    # MaxText common/metric_logger.py, a line of every host; the rates are left out while a batch grows
    _format(
        "maxtext",
        rf"\bcompleted step:\s*(?P<step>\d+), seconds:\s*{_SECONDS}",
        rf"\bTokens/s/device:\s*{_RATE}",
        rf"\bTFLOP/s/device:\s*{_FLOPS}",
    ),
)
_HINTS: Final = (
    "elapsed time per iteration", "step time", "train_step_timing", "tps:", "wps:", "tgs:", "samplespersec",
    "time_per_iteration_ms", "train_steps_per_second", "s/it", "it/s", "batches_per_sec",
    "completed step",
)  # fmt: skip
_TELLING: Final = (*_HINTS, "iteration", "memory", "max_ma", "traceback")


def plain(line: str) -> tuple[str, int | None]:
    """A line without colours and rank prefix, and the rank."""
    text = _ANSI.sub("", line[:LONGEST_LINE]).rstrip("\r\n")
    match = _PREFIX.match(text)
    if match is None:
        return text, None
    rank = match[1] or match[2]
    return text[match.end() :], int(rank) if rank else None


def step_line(text: str) -> LoggedStep | None:
    """What a plain line says of a step; None where it is of no known format."""
    lower = text.lower()
    if not any(hint in lower for hint in _HINTS):
        return None
    return next((found for form in _FORMATS if (found := _read(form, text)) is not None), None)


def _read(form: _Format, text: str) -> LoggedStep | None:
    """What a line of a format says; None where it is of another."""
    said: dict[str, float | None] = {}
    step: int | None = None
    for pattern in form.patterns:
        match = pattern.search(text)
        for name, number in match.groupdict().items() if match is not None else ():
            if name == "step":
                step = int(number.replace(",", "")[:12])
            elif number is not None:
                said[name] = _figure(number)
        if not next(iter(said.values()), None):
            return None
    ms, percent, per_second = (said.pop(name, None) for name in ("ms", "percent", "per_second"))
    if ms or per_second:
        said["seconds"] = ms / 1e3 if ms else 1 / (per_second or 1.0)
    return LoggedStep(form.framework, step, **said, mfu=percent / 100 if percent else None)


def _figure(number: str) -> float | None:
    """A figure above 0 that something measured can have, of which a letter may stand for thousands; None for others."""
    letter = number[-1] if number[-1].isalpha() else ""
    value = float(number.removesuffix(letter).replace(",", "")) * _SUFFIX.get(letter, 1.0)
    return value if _LEAST < value < _MOST else None


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
                joins = waiting and "|" in text and not _ITERATION.search(text)
                held, waiting = (f"{held} {text.strip()}", waiting - 1) if joins else (held, 0)
                if waiting and not _ELAPSED.search(held):
                    continue
                yield held, rank
                held = ""
                if joins:
                    continue
            if _ITERATION.search(text) and text.endswith("|") and "per iteration (ms)" not in text:
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


def read_lines(lines: Iterable[str], name: str) -> LogFacts:
    """Everything of a log that planner understands."""
    numbered: dict[tuple[str, int], list[LoggedStep]] = {}
    unnumbered: list[LoggedStep] = []
    memory: list[MemoryLine] = []
    messages, counter = _Messages(), itertools.count()
    ranks: set[int] = set()
    for text, rank in _logical_lines(line for line, _ in zip(lines, counter, strict=False)):
        if rank is not None:
            ranks.add(rank)
        messages.take(text, rank)
        line = memory_line(text, rank)
        if line is not None and len(memory) < MOST_STEPS:
            memory.append(line)
        step = step_line(text)
        if step is None or len(numbered) + len(unnumbered) >= MOST_STEPS:
            continue
        if step.step is None:
            unnumbered.append(step)
        else:
            numbered.setdefault((step.framework, step.step), []).append(step)
    messages.end()
    every = [_middle(of) for of in numbered.values()] or unnumbered
    return LogFacts(
        name, tuple(every), tuple(memory), tuple(messages.found), next(counter), tuple(sorted(ranks))
    )


def _middle(of: list[LoggedStep]) -> LoggedStep:
    """One of the lines that several ranks logged for the same step: the middle one by time."""
    ordered = sorted(of, key=lambda step: step.seconds or 1 / (step.tokens_per_device or step.samples or 1))
    return ordered[len(ordered) // 2]


def read_log(path: Path) -> LogFacts:
    """The log in a file, as a stream. Raises `FileInputError`."""
    try:
        if path.is_dir():
            raise FileInputError(str(path), "a log must be a file", "a folder", "name the log in it")
        if path.exists() and not path.is_file():  # read more than once
            raise FileInputError(
                str(path), "a log must be a regular file", "a pipe or device", "save it first"
            )
        size = path.stat().st_size
        if size > LARGEST_LOG:
            hint = f"cut it: tail -n 200000 {path.name} > short.log"
            raise FileInputError(str(path), "a log must be smaller than 2 GB", f"{size / 1e9:.1f} GB", hint)
        facts = _read_once(path, size, path.stat().st_mtime_ns)
    except FileNotFoundError:
        hint = "check the path, or give a step time above 0 or a throughput: '7.9 s', '9300 tokens/s/GPU'"
        raise FileInputError(str(path), "the log must exist", hint=hint) from None
    except OSError as error:
        raise FileInputError(str(path), "the log must be readable", str(error.strerror or error)) from None
    if not (facts.steps or facts.memory or facts.ooms):
        must = "a log must hold step times, memory lines or an out-of-memory message of a known format"
        hint = (
            "formats: Megatron-LM, Megatron-Bridge, NeMo, torchtitan, DeepSpeed, nanotron, Composer, transformers, "
            "MaxText"
        )
        raise FileInputError(str(path), must, f"{facts.lines} lines, none of them", hint)
    return facts


@functools.lru_cache(maxsize=8)
def _read_once(path: Path, size: int, changed: int) -> LogFacts:
    """A log that did not change since it was read is not read again."""
    with path.open("rb") as file:
        if b"\0" in file.read(8192):
            raise FileInputError(str(path), "a log must be text", "bytes of zero in it")
    with path.open(encoding="utf-8", errors="replace") as text:
        return read_lines(_bounded_lines(text), str(path))


def _bounded_lines(text: Iterable[str]) -> Iterator[str]:
    """Lines of a file, a line without an end in pieces: never more than `LONGEST_LINE` in hand."""
    read = getattr(text, "readline", None)
    if read is None:
        yield from text
        return
    while line := read(LONGEST_LINE):
        yield line
