"""How long did a step of the user's own run take, and of which configuration was it?

A run is a log (or a measured time) and the axes that its launcher was given. Left out: formats of logs
(`log_lines.py`) and what the steps mean (`estimate.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner.answer.estimate import named_config
from planner.ask.request import Question, check_request, resolve
from planner.calibrate.binding_rules import impossible
from planner.calibrate.correction.estimate import Observation
from planner.calibrate.logs.lines import LogFacts, LoggedStep, read_log
from planner.catalog.load_stacks import default_stack, stack_families
from planner.dialect import option
from planner.errors import InputError, UnitError
from planner.report.words import texts
from planner.space.restriction import parse_restriction, separate
from planner.spec.config import ParallelConfig
from planner.spec.findings import Finding
from planner.spec.machine.accelerator import Accelerator
from planner.spec.machine.load_cluster import accelerator_of, load_accelerator
from planner.spec.rule import Problem
from planner.units import parse_quantity

WARM_UP: Final = 10  # steps at most that are not counted, a fifth of a short log
_RATE: Final = re.compile(
    r"^(\d[\d,]*(?:\.\d+)?)\s*(k?)\s*tok(?:en)?s?\s*/\s*s(?:ec)?\s*(/\s*(?:gpu|device|chip|tpu|hpu))?$",
    re.IGNORECASE,
)
_OF_JOB: Final = ("gpus", "seq_len", "global_batch", "precision")


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: the median after warming up, its relative spread (interquartile), steps counted."""

    seconds: float
    spread: float
    steps: int
    note: str = ""


def seconds_of(step: LoggedStep, tokens_per_step: float, batch: float, devices: int) -> float | None:
    """Seconds of one logged step of a known job."""
    if step.seconds is not None:
        return step.seconds
    if step.tokens_per_device:
        return tokens_per_step / (step.tokens_per_device * devices)
    return batch / step.samples if step.samples else None


def step_time(facts: LogFacts, problem: Problem) -> StepTime:
    """The step time that a log shows for a job. Raises `InputError` where log and job contradict each other."""
    job, devices = problem.job, problem.cluster.num_devices
    _check_batch(facts, problem)
    times = np.array(
        [
            seconds
            for step in facts.steps
            if (seconds := seconds_of(step, job.tokens_per_step, job.global_batch, devices)) is not None
        ]
    )
    if not len(times):
        raise InputError(
            f"{facts.name} must hold step times", "memory or out-of-memory messages only",
            "planner diagnose explains them; give --measured SECONDS for a step time",
        )  # fmt: skip
    skipped = min(WARM_UP, -(-len(times) // 5)) if len(times) > 2 else 0
    counted = times[skipped:]
    middle = float(np.median(counted))
    low, high = np.percentile(counted, (25, 75))
    note = f"{len(counted)} of {len(times)} steps" if skipped else f"{len(counted)} steps"
    return StepTime(middle, float(high - low) / middle, len(counted), note)


def _check_batch(facts: LogFacts, problem: Problem) -> None:
    job = problem.job
    logged = {step.batch for step in facts.steps if step.batch}
    if len(logged) == 1 and (batch := logged.pop()) not in (job.global_batch, job.tokens_per_step):
        hint = f"give {option('global_batch', f'{batch:.0f}')}"
        raise InputError(
            f"the log {facts.name} must be of the configuration given",
            f"it says a global batch of {batch:.0f} sequences, the configuration {job.global_batch}", hint,
        )  # fmt: skip


def parse_run(text: str) -> tuple[str, dict[str, str]]:
    """ "train.log:tp=8,pp=2" as the log (or a time) and its settings. Raises `InputError`."""
    axis = r"\s*[\w-]+\s*=[^,=]+"
    match = re.match(rf"^(.*?)(?::({axis}(?:[\s,]+{axis})*))?$", text.strip(), re.DOTALL)
    figure, _, rest = text.strip().partition(":")
    if match is None or not match[1] or (not match[2] and rest and is_time(figure)):
        hint = "write b.log:tp=4,pp=4 or '7.9 s:tp=2,micro_batch=2'"
        raise InputError("--run must look like LOG:axis=value,axis=value", repr(text), hint)
    pairs = [part.split("=") for part in separate([match[2]] if match[2] else [])]
    settings = {name.strip().replace("-", "_"): value.strip() for name, value in pairs}
    if len(settings) < len(pairs):
        raise InputError("each axis of a --run must be given once", repr(text))
    return match[1], settings


def request_of(base: Question, settings: Mapping[str, str]) -> Question:
    """The question of one run: the common options with its own settings. Raises `InputError`."""
    axes = [f"{name}={value}" for name, value in settings.items() if name not in _OF_JOB]
    own: dict[str, Any] = {name: value for name, value in settings.items() if name in _OF_JOB}
    return replace(base, set={**base.restrict, **parse_restriction(axes, "run")}, **own)


def stack_for(framework: str, chip: Accelerator) -> str:
    """The newest stack of a log's framework; the device's default where it is of none."""
    return stack_families().get(framework) or default_stack(chip)


def configured(
    base: Question, text: str, facts: LogFacts | None
) -> tuple[Problem, ParallelConfig, tuple[Finding, ...]]:
    """Problem and configuration of one run, and what was assumed. Raises `PlannerError`."""
    request = request_of(base, parse_run(text)[1])
    if facts is not None and request.stack is None and request.calibration is None:
        chip = load_accelerator(accelerator_of(request.cluster))
        request = replace(request, stack=stack_for(facts.framework, chip))
    check_request(request, search=False)
    problem, assumed = resolve(request)
    config, defaults = named_config(request.restrict, problem)
    check_possible(config, problem, text)
    return problem, config, (*assumed, *defaults)


def observe(base: Question, text: str) -> tuple[Observation, tuple[str, ...]]:
    """One run of the user: its configuration, its step time, and what was assumed beside its
    axes. Raises `PlannerError`."""
    source, _ = parse_run(text)
    facts = None if is_time(source) else read_log(Path(source))
    problem, config, assumed = configured(base, text, facts)
    said = [*texts(one for one in assumed if one.code != "defaults_used")]
    if facts is None:
        seconds = measured_seconds(source, problem)
        name = f"{seconds:.4g} s measured"
    else:
        time = step_time(facts, problem)
        seconds, name = time.seconds, Path(source).name
        said.append(f"{name}: {facts.framework}, {time.note}, middle half within {time.spread:.1%}")
        if time.spread > 0.2:
            said.append(f"{name}: its steps vary by {time.spread:.0%}; measure when the machine is quiet")
    devices = f"{problem.cluster.num_devices} {problem.cluster.accelerator.noun}s"
    described = f"{name} ({devices}, {config.describe()})"
    return Observation(described, problem, config, seconds), tuple(said)


def check_possible(config: ParallelConfig, problem: Problem, run: str) -> None:
    """Refuse a configuration that no run can have. Raises `InputError`."""
    if broken := impossible(config, problem):
        hint = "check its axes and its global_batch"
        raise InputError("the configuration of a run must be possible", f"{run}: {broken}", hint)


def is_time(text: str) -> bool:
    """Whether the words are a step time or a throughput, not the name of a log."""
    try:
        parse_quantity(text, "time")
    except UnitError:
        return bool(_RATE.match(text.strip())) and not Path(text).exists()
    return not Path(text).exists()


def measured_seconds(text: str, problem: Problem) -> float:
    """ "4.31 s", "9300 tokens/s/GPU" or "149k tok/s" as seconds of a step of the job. Raises `InputError`."""
    match = _RATE.match(text.strip())
    if match is None:
        seconds = parse_quantity(text, "time")
    else:
        rate = float(match[1].replace(",", "")) * (1e3 if match[2] else 1.0)
        devices = problem.cluster.num_devices if match[3] else 1
        seconds = problem.job.tokens_per_step / (rate * devices) if rate else 0.0
    if not 1e-6 < seconds < 1e6:
        raise InputError("a measured step must take from a microsecond to a million seconds", text)
    return seconds
