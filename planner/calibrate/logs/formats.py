"""What does a line of a training log say of a step? Its time, throughput, batch, FLOP rate and MFU, by format.

A format is a table row: patterns whose groups are named after what they hold. Left out: bars (`bars.py`), memory
(`memory_messages.py`), and which of the lines count (`lines.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

_LEAST, _MOST = 1e-9, 1e18  # figures beyond them are none
_NUMBER: Final = r"[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?\d+)?"
_SECONDS_OF: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
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
    parts of `seconds`; `percent`, of `mfu`; `per_second`, steps; `time`, of `clock` as 1:02:03 or 1h 2m 3s. A line that
    lacks the first figure is of another format. `micro`: as in `LoggedStep`; `block`: a line above says which step it
    is, as `named_step` reads it."""

    framework: str
    patterns: tuple[re.Pattern[str], ...]
    micro: bool = False
    block: bool = False


def _format(framework: str, *patterns: str, micro: bool = False, block: bool = False) -> _Format:
    return _Format(framework, tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns), micro, block)


def _figure_of(name: str, letter: str = "") -> str:
    return rf"(?P<{name}>{_NUMBER}{letter})"


def _entry(key: str, name: str) -> str:
    """Of a dictionary as Python or JSON writes it, its figures as text or not, or of "key = figure"."""
    return rf"""['"]?(?<!\w){key}['"]?\s*[:=]\s*['"]?{_figure_of(name)}"""


_MS, _SECONDS, _RATE, _FLOPS = (_figure_of(name) for name in ("ms", "seconds", "tokens_per_device", "flops"))
_AT: Final = r"(?P<step>\d{1,12})"
_TIME: Final = r"(?P<time>(?:\d{1,5} days?, )?\d{1,3}:\d\d:\d\d)"
_PAST: Final = r"""elapsed_time['"]: *['"](?P<time>(?:\d{1,6}[dhm] ){0,3}\d{1,6}s)"""
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
    _format("composer", rf"\bTrain throughput/batches_per_sec:\s*{_figure_of('per_second')}", block=True),
    # MaxText common/metric_logger.py, a line of every host; the rates are left out while a batch grows
    _format(
        "maxtext",
        rf"\bcompleted step:\s*(?P<step>\d+), seconds:\s*{_SECONDS}",
        rf"\bTokens/s/device:\s*{_RATE}",
        rf"\bTFLOP/s/device:\s*{_FLOPS}",
    ),
    # modelscope/ms-swift 3602360a swift/trainers/patcher.py ("iteration": megatron/callbacks/print.py): the speed is
    # an average since the start, so that the clock beside it counts; older releases said iterations per second
    _format(
        "ms-swift",
        _entry(r"train_speed\(s/it\)", "seconds"),
        rf"""(?:max_steps\]?|iteration)['"]: *['"]{_AT}/""",
        _PAST,
    ),
    _format(
        "ms-swift",
        _entry(r"train_speed\(iter/s\)", "per_second"),
        rf"""max_steps\]?['"]: *['"]{_AT}/""",
        _PAST,
    ),
    # pytorch/torchtune bd2a0fc7 training/metric_logging.py log_dict, on a console, in a file, as JSON; of tokens that
    # have a label
    _format("torchtune", rf"\bStep {_AT} \|.*?\btokens_per_second_per_gpu:{_RATE}"),
    _format("torchtune", rf"""^\s*\{{"step": *{_AT}, .*"tokens_per_second_per_gpu": *{_RATE}"""),
    # axolotl-ai-cloud/axolotl 067b021c core/trainers/base.py log, of tokens that have a label; the first name is of
    # older releases
    _format(
        "axolotl", _entry(r"(?:tokens_per_second_per_gpu|tokens/train_per_sec_per_gpu)", "tokens_per_device")
    ),
    # hiyouga/LLaMA-Factory ff6d4d12 train/callbacks.py LogCallback, trainer_log.jsonl; lines without a loss are of
    # evaluation
    _format(
        "llamafactory", rf"\"loss\": *-?\d.*\"elapsed_time\": *\"{_TIME}", _entry("current_steps", "step")
    ),
    # NVIDIA-NeMo/Automodel 36044ad3 recipes/llm/train_ft.py log_train_metrics: of all devices, as the rate beside it is
    # divided by dp and cp alone; and the file of components/loggers/metric_logger.py
    _format("nemo-automodel", rf"\bstep {_AT} \| epoch .*?\| tps {_figure_of('tokens')}"),
    _format("nemo-automodel", rf"\"tps\": *{_figure_of('tokens')}, *\"tps_per_gpu\"", _entry("step", "step")),
    # allenai/OLMo-core fa6c5014 train/callbacks/speed_monitor.py, console_logger.py: a metric a line below "[step="
    _format("olmo-core", rf"\bthroughput/device/TPS=\s*{_RATE}", block=True),
    # karpathy/nanochat 92d63d4e scripts/base_train.py, chat_sft.py
    _format(
        "nanochat",
        rf"\bstep {_AT}.*?\| dt: {_MS}ms",
        rf"\btok/sec: {_figure_of('tokens')}",
        rf"\b(?:bf16_)?mfu: {_figure_of('percent')}",
    ),
    # karpathy/nanoGPT 3adf61e1 train.py, bench.py; their mfu is that of an A100 whatever runs
    _format("nanogpt", rf"\biter {_AT}: loss .*?\btime {_MS}ms"),
    _format("nanogpt", rf"\btime per iteration: {_MS}ms, MFU"),
    # karpathy/llm.c f1e2ace6 train_gpt2.cu; train_gpt2.py, train_llama3.py and train_gpt2_fp32.cu in brackets
    _format(
        "llm.c", rf"\bstep +{_AT}/\d+ ?[|:].*?[|(] ?{_MS} ms[ ,]", rf"\| {_figure_of('percent')}% \w+ MFU"
    ),
    # Lightning-AI/litgpt 26857050 pretrain.py, finetune/: of one micro-batch
    _format("litgpt", rf"\biter {_AT} step \d+.*?\biter time: {_MS} ?ms", micro=True),
    # stanford-crfm/levanter 9263f81e callbacks/_metrics.py pbar_logger, a bar of tqdm-loggable 5083a123 tqdm_logging.py
    # display, which shortens thousands
    _format("levanter", rf"\bProgress on:train (?P<step>\d[\d.]*k?)it/.*?\brate:{_figure_of('seconds')}s/it"),
    _format(
        "levanter", rf"\bProgress on:train (?P<step>\d[\d.]*k?)it/.*?\brate:{_figure_of('per_second')}it/s"
    ),
    # PaddlePaddle/PaddleNLP 01f74360 trainer/trainer_utils.py speed_metrics
    _format("paddlenlp", _entry("interval_steps_per_second", "per_second"), _entry("global_step", "step")),
    # InternLM/InternEvo c628a8c8 train/pipeline.py record_current_batch_training_metrics
    _format(
        "internevo",
        rf"\btgs \(tokens/gpu/second\)=\s*{_RATE}",
        rf"\bstep=\s*{_AT}",
        rf"\btflops=\s*{_FLOPS}",
    ),
    # deepspeedai/DeepSpeed edaa7221 runtime/pipe/engine.py train_batch; runtime/engine.py step with
    # wall_clock_breakdown, timers of all micro-batches of a step, with other names before 0.9
    _format("deepspeed", rf"\bsteps: {_AT} loss: .*?\biter time \(s\): {_SECONDS}"),
    _format(
        "deepspeed",
        rf"time \(ms\) \| (?:fwd|forward): {_MS} \| (?:bwd|backward): {_figure_of('ms_bwd')} "
        rf".*?\| step: {_figure_of('ms_step')}",
    ),
    # foundation-model-stack/fms-fsdp 5a296afe utils/train_utils.py train: a figure a line below "step:"
    _format("fms-fsdp", rf"^current step time: {_SECONDS}", block=True),
    # reinforcement learning: what its trainer's updates take, rollouts left out. volcengine/verl b178a3cd
    # utils/logger/aggregate_logger.py; trainer/ppo/ray_trainer.py, trainer/fsdp_sft_trainer.py
    _format(
        "verl",
        rf"\btiming_s/update_actor:(?:np\.float\d+\()?{_SECONDS}",
        rf"\bstep:{_AT}",
        rf"\bperf/mfu/actor:(?:np\.float\d+\()?{_figure_of('mfu')}",
    ),
    _format("verl", rf"\btrain/time\(s\):{_SECONDS}", rf"\bstep:{_AT}"),
    # NVIDIA-NeMo/RL 7ea279ab algorithms/sft.py, dpo.py, grpo.py: a timer a line below "===== Step 1/100 ====="
    _format("nemo-rl", rf"\bpolicy_training: {_SECONDS}s", block=True),
)
# how those that print a figure a line name the step above; composer's "[batch=10/4800]:" with them
_HEAD: Final = re.compile(r"\[(?:step|batch)=(\d{1,12})/|^step: (\d{1,12})$|(?<!=)={5,} Step (\d{1,12})/")
HINTS: Final = (
    "elapsed time per iteration", "step time", "train_step_timing", "tps:", "tps ", '"tps', "tps=", "wps:", "tgs",
    "samplespersec", "time_per_iteration_ms", "train_steps_per_second", "batches_per_sec", "completed step",
    "train_speed", "tokens_per_second", "tokens/train_per_sec", "elapsed_time", "dt:", "ms, mfu", " ms |", " tok/s)",
    "time (ms) | f", "rate:", "interval_steps_per_second", "iter time", "time per iteration", "timing_s/update_actor",
    "train/time(s)", "policy_training",
)  # fmt: skip
HEAD_HINTS: Final = ("[step=", "[batch=", "step: ", "= step ")

FORMATS: Final = tuple(sorted({form.framework for form in _FORMATS}))
_BLOCKS: Final = frozenset(form.framework for form in _FORMATS if form.block)


def named_step(text: str) -> int | None:
    """The step that a line names for the lines below it; None where it names none."""
    match = _HEAD.search(text)
    return next((int(number) for number in match.groups() if number), None) if match is not None else None


def below(step: LoggedStep, head: int | None) -> LoggedStep:
    """A step with the number that a line above named, where its format prints a figure a line."""
    return replace(step, step=head) if step.step is None and step.framework in _BLOCKS else step


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
                step = _step_of(number)
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
    if percent:
        said["mfu"] = percent / 100
    return LoggedStep(form.framework, step, **said, micro=form.micro)


def _step_of(number: str) -> int:
    """ "1,200" or, shortened, "1.20k"."""
    if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?k", number):
        return round(float(number[:-1]) * 1e3)
    digits = re.match(r"[\d,]*", number)
    return int((digits[0] if digits else "").replace(",", "")[:12] or 0)


def _seconds_of(time: str) -> float:
    """ "1 day, 2:03:04" or "1d 2h 3m 4s" [s]."""
    if time.endswith("s"):
        return sum(float(part[:-1]) * _SECONDS_OF[part[-1]] for part in time.lower().split())
    days, _, rest = time.rpartition(", ")
    hours, minutes, seconds = (int(part) for part in rest.split(":"))
    return (int(days.split()[0]) if days else 0) * 86400.0 + hours * 3600.0 + minutes * 60.0 + seconds


def figure(number: str) -> float | None:
    """A figure above 0 that something measured can have, of which a letter may stand for thousands; None for others."""
    letter = number[-1] if number[-1].isalpha() else ""
    value = float(number.removesuffix(letter).replace(",", "")) * _SUFFIX.get(letter, 1.0)
    return value if _LEAST < value < _MOST else None
