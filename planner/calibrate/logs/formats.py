"""What does a line of a training log say of a step? Its time, throughput, batch, FLOP rate and MFU, by format.

A format is a table row: patterns whose groups are named after what they hold. Left out: bars (`bars.py`), memory
(`memory_messages.py`), and which of the lines count (`lines.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LEAST, _MOST = 1e-9, 1e18  # figures beyond them are none
_NUMBER: Final = r"[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?\d+)?"
_SUFFIX: Final = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True)
class LoggedStep:
    """One step as logged. `seconds`, `tokens_per_device` [1/s], `tokens` of all devices [1/s], `samples` [sequences/s],
    `batch` [sequences], `flops` [TFLOP/s per device], `mfu` [1], `clock` [s] since some time; None where the line does
    not say. `micro`: whether `seconds` are of a micro-batch."""

    framework: str
    step: int | None = None
    seconds: float | None = None
    tokens_per_device: float | None = None
    tokens: float | None = None
    samples: float | None = None
    batch: float | None = None
    flops: float | None = None
    mfu: float | None = None
    clock: float | None = None
    micro: bool = False


@dataclass(frozen=True)
class _Format:
    """Lines of a framework. `patterns`: each looked for in a line, with groups of these names: `step`, its number;
    figures by the field of `LoggedStep`, a letter behind them for thousands and more; `ms` and what begins with it,
    parts of `seconds`; `percent`, of `mfu`; `per_second`, steps; `time`, of `clock` as hours:minutes:seconds. A line
    that lacks the first figure is of another format. `micro`: as in `LoggedStep`."""

    framework: str
    patterns: tuple[re.Pattern[str], ...]
    micro: bool = False


def _format(framework: str, *patterns: str, micro: bool = False) -> _Format:
    return _Format(framework, tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns), micro)


def _figure_of(name: str, letter: str = "") -> str:
    return rf"(?P<{name}>{_NUMBER}{letter})"


def _entry(key: str, name: str) -> str:
    """Of a dictionary as Python or JSON writes it, its figures as text or not, or of "key = figure"."""
    return rf"""['"]?(?<!\w){key}['"]?\s*[:=]\s*['"]?{_figure_of(name)}"""


_MS, _SECONDS, _RATE, _FLOPS = (_figure_of(name) for name in ("ms", "seconds", "tokens_per_device", "flops"))
_AT: Final = r"(?P<step>\d{1,12})"
_TIME: Final = r"(?P<time>(?:\d{1,5} days?, )?\d{1,3}:\d\d:\d\d)"
ITERATION: Final = re.compile(r"\biteration:?\s+(?P<step>\d+)\s*/", re.IGNORECASE)
ELAPSED: Final = re.compile(rf"elapsed time per iteration \(ms\):?\s*{_MS}", re.IGNORECASE)
_FORMATS: Final = (
    _format(
        "megatron",
        ELAPSED.pattern,
        ITERATION.pattern,
        rf"tokens[/ ](?:s|sec|second)(?:/GPU| per GPU)[^:]*:\s*{_RATE}",
        rf"global batch size:\s*{_figure_of('batch')}",
        rf"(?:(?:throughput|compute) per GPU \(TFLOP/s/GPU\)|TFLOPs):\s*{_FLOPS}",
    ),
    _format(
        "megatron-bridge",
        # not the "Total step time" of reinforcement learning
        rf"(?-i:(?<!\w)(?<!\w )Step Time)\s*:\s*{_SECONDS}\s*s\b(?:.*?utilization:\s*{_FLOPS}\s*MODEL_TFLOP)?",
    ),
    _format(
        "nanotron",
        rf"time_per_iteration_ms:\s*{_figure_of('ms', '[KMBT]?')}",
        ITERATION.pattern,
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
    _format("transformers", _entry("train_steps_per_second", "per_second")),
    # composer/loggers/console_logger.py: one metric a line below "[batch=10/4800]:", averaged over a window of batches
    _format("composer", rf"\bTrain throughput/batches_per_sec:\s*{_figure_of('per_second')}"),
    # MaxText common/metric_logger.py, a line of every host; the rates are left out while a batch grows
    _format(
        "maxtext",
        rf"\bcompleted step:\s*(?P<step>\d+), seconds:\s*{_SECONDS}",
        rf"\bTokens/s/device:\s*{_RATE}",
        rf"\bTFLOP/s/device:\s*{_FLOPS}",
    ),
    # swift/trainers/utils.py, its callback of progress
    _format(
        "ms-swift",
        _entry(r"train_speed\(iter/s\)", "per_second"),
        rf"""global_step/max_steps['"]: *['"]{_AT}""",
    ),
    _format(
        "ms-swift", _entry(r"train_speed\(s/it\)", "seconds"), rf"""global_step/max_steps['"]: *['"]{_AT}"""
    ),
    # torchtune/training/metric_logging.py, a line of a file
    _format("torchtune", rf"\bStep {_AT} \|.*?\btokens_per_second_per_gpu:{_RATE}"),
    _format(
        "axolotl", _entry(r"(?:tokens_per_second_per_gpu|tokens/train_per_sec_per_gpu)", "tokens_per_device")
    ),
    # llamafactory/train/callbacks.py LogCallback, trainer_log.jsonl
    _format("llamafactory", rf"\"elapsed_time\": *\"{_TIME}", _entry("current_steps", "step")),
    _format("nemo-automodel", rf"\bstep {_AT} \|.*?\btps [\d,.]+\({_RATE}/gpu\)"),
    _format("nemo-automodel", _entry("tps_per_gpu", "tokens_per_device"), _entry("step", "step")),
    _format("olmo-core", rf"throughput/device/TPS(?: \(actual avg\))?=\s*{_RATE}"),
    _format(
        "nanochat",
        rf"\bstep {_AT}.*?\bdt: {_MS}ms",
        rf"\btok/sec: {_figure_of('tokens')}",
        rf"\bmfu: {_figure_of('percent')}",
    ),
    _format("nanogpt", rf"\biter {_AT}: loss .*?\btime {_MS}ms", micro=False),
    _format("llm.c", rf"\bstep +{_AT}/.*?\| {_MS} ms \|", rf"\| {_figure_of('percent')}% \w+ MFU"),
    _format("litgpt", rf"\biter {_AT}.*?\biter time: {_MS} ms", micro=True),
    _format("levanter", rf"\bProgress on:train {_AT}(?:\.\d+)?it/.*?\brate:{_figure_of('seconds')}s/it"),
    _format("levanter", rf"\bProgress on:train {_AT}(?:\.\d+)?it/.*?\brate:{_figure_of('per_second')}it/s"),
    _format("paddlenlp", _entry("interval_steps_per_second", "per_second"), _entry("global_step", "step")),
    _format(
        "internevo",
        rf"\btgs \(tokens/gpu/second\)=\s*{_RATE}",
        rf"\bstep=\s*{_AT}",
        rf"\btflops=\s*{_FLOPS}",
    ),
    # runtime/pipe/engine.py train_batch; runtime/engine.py with wall_clock_breakdown, of a whole step
    _format("deepspeed", rf"\bsteps: {_AT} loss: .*?\biter time \(s\): {_SECONDS}"),
    _format(
        "deepspeed",
        rf"time \(ms\) \| fwd: {_MS} \| bwd: {_figure_of('ms_bwd')} .*?\| step: {_figure_of('ms_step')}",
    ),
    _format("fms-fsdp", rf"\bcurrent token per gpu per sec: {_RATE}"),
    # reinforcement learning: what its trainer's updates take, rollouts left out
    _format("verl", rf"\btiming_s/update_actor:{_SECONDS}", rf"\bstep:{_AT}"),
    _format("verl", rf"\btrain/time\(s\):{_SECONDS}", rf"\bstep:{_AT}"),
    _format("nemo-rl", rf"\bpolicy_training:\s*{_SECONDS}s"),
)
HINTS: Final = (
    "elapsed time per iteration", "step time", "train_step_timing", "tps:", "tps ", "tps_per_gpu", "tps=",
    "/tps (", "wps:", "tgs", "samplespersec",
    "time_per_iteration_ms", "train_steps_per_second", "batches_per_sec", "completed step", "train_speed",
    "tokens_per_second", "tokens/train_per_sec", "elapsed_time", "dt:", "ms, mfu", " ms |",
    "time (ms) | fwd", "rate:",
    "interval_steps_per_second", "iter time", "token per gpu per sec", "timing_s/update_actor", "train/time(s)",
    "policy_training",
)  # fmt: skip

FORMATS: Final = tuple(sorted({form.framework for form in _FORMATS}))


def step_line(text: str) -> LoggedStep | None:
    """What a plain line says of a step; None where it is of no known format."""
    lower = text.lower()
    if not any(hint in lower for hint in HINTS):
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
            elif name == "time" and number is not None:
                said["clock"] = _seconds_of(number)
            elif number is not None:
                said[name] = figure(number)
        if not next(iter(said.values()), None):
            return None
    percent, per_second = (said.pop(name, None) for name in ("percent", "per_second"))
    parts = [said.pop(name) or 0.0 for name in list(said) if name.startswith("ms")]
    if parts or per_second:
        said["seconds"] = sum(parts) / 1e3 if parts else 1 / (per_second or 1.0)
    return LoggedStep(form.framework, step, **said, mfu=percent / 100 if percent else None, micro=form.micro)


def _seconds_of(time: str) -> float:
    """ "1 day, 2:03:04" [s]."""
    days, _, rest = time.rpartition(", ")
    hours, minutes, seconds = (int(part) for part in rest.split(":"))
    return (int(days.split()[0]) if days else 0) * 86400.0 + hours * 3600.0 + minutes * 60.0 + seconds


def figure(number: str) -> float | None:
    """A figure above 0 that something measured can have, of which a letter may stand for thousands; None for others."""
    letter = number[-1] if number[-1].isalpha() else ""
    value = float(number.removesuffix(letter).replace(",", "")) * _SUFFIX.get(letter, 1.0)
    return value if _LEAST < value < _MOST else None
