"""How long did a step of the user's own run take, and of which configuration was it?

A run is a log (or a measured time) and the axes that its launcher was given. Left out: formats of logs
(`logs/`) and what the steps mean (`estimate.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.answer.estimate import named_config
from planner.ask.request import Question, check_request, resolve
from planner.calibrate.binding_rules import impossible
from planner.calibrate.correction.estimate import Observation
from planner.calibrate.logs.formats import LoggedStep
from planner.calibrate.logs.lines import LogFacts, read_log
from planner.catalog.load_stacks import default_stack, stack_families
from planner.dialect import option
from planner.errors import InputError, UnitError
from planner.report.words import texts
from planner.space.restriction import parse_restriction, separate
from planner.spec.config import ParallelConfig
from planner.spec.findings import Finding, finding
from planner.spec.machine.accelerator import Accelerator
from planner.spec.machine.load_cluster import accelerator_of, load_accelerator
from planner.spec.rule import Problem
from planner.units import parse_quantity

WARM_UP: Final = 10  # steps at most that are not counted, a fifth of a short log
_FIRST: Final = 2  # steps that compile and warm up whatever follows
_LEAST: Final = 5  # steps of a speed that lasts
_CHANGED: Final = 0.2  # log of the least change of speed that is told
_VARIES: Final = 0.2  # spread above which steps are said to vary
_RATE: Final = re.compile(
    r"^(\d[\d,]*(?:\.\d+)?)\s*(k?)\s*tok(?:en)?s?\s*/\s*s(?:ec)?\s*(/\s*(?:gpu|device|chip|tpu|hpu))?$",
    re.IGNORECASE,
)
_OF_JOB: Final = ("gpus", "seq_len", "global_batch", "precision")


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: the median after warming up, its relative spread (interquartile), steps counted; `findings`:
    what was left out of a log, and why."""

    seconds: float
    spread: float
    steps: int
    findings: tuple[Finding, ...] = ()


def seconds_of(step: LoggedStep, problem: Problem, config: ParallelConfig) -> float | None:
    """Seconds of one logged step of a known job."""
    job, devices = problem.job, problem.cluster.num_devices
    if step.seconds is not None:
        return step.seconds * (config.num_microbatches if step.micro else 1)
    if step.tokens_per_device or step.tokens:
        return job.tokens_per_step / (step.tokens or (step.tokens_per_device or 1.0) * devices)
    return job.global_batch / step.samples if step.samples else None


def step_time(facts: LogFacts, problem: Problem, config: ParallelConfig) -> StepTime:
    """The step time that a log shows for a job. Raises `InputError` where log and job contradict each other, and where
    no step behind the first ones is there."""
    name = Path(facts.name).name
    found = list(facts.findings)
    steps, grown = _of_the_batch(facts, problem, name)
    found += grown
    timed = [(step, s) for step in steps if (s := seconds_of(step, problem, config)) is not None]
    if not timed:
        given = "; ".join(texts(found)) or "memory or out-of-memory messages only"
        raise InputError(
            f"{name} must hold step times", given,
            "planner diagnose explains memory messages; give --measured SECONDS for a step time",
        )  # fmt: skip
    times = np.array([seconds for _, seconds in timed])
    numbered = timed[0][0].step is not None
    if numbered and len(times) <= _FIRST and (timed[-1][0].step or 0) <= _FIRST:
        raise InputError(
            f"{name} must hold steps behind the first, which holds compilation and warming up",
            f"{len(times)} of them alone", "log some more, or give --measured SECONDS for a step time",
        )  # fmt: skip
    skipped = min(WARM_UP, -(-len(times) // 5)) if len(times) > 2 else 0
    counted = times[skipped:]
    change = _change_of(counted)
    if change:
        before, counted = counted[:change], counted[change:]
        step = timed[skipped + change][0].step
        found.append(
            finding(
                "speed_changed", log=name, before=float(np.median(before)), after=float(np.median(counted)),
                step=skipped + change + 1 if step is None else step,
            )
        )  # fmt: skip
    middle = float(np.median(counted))
    low, high = np.percentile(counted, (25, 75))
    spread = float(high - low) / middle
    if not numbered and len(times) == 1:
        found.append(finding("average_of_run", log=name))
    else:
        of = len(times) if len(counted) < len(times) else None
        within = {"counted": len(counted), "of": of, "within": spread}
        found.insert(0, finding("steps_of_log", log=name, framework=facts.framework, **within))
    if spread > _VARIES:
        found.append(finding("steps_vary", log=name, by=spread))
    return StepTime(middle, spread, len(counted), tuple(found))


def _change_of(times: NDArray[np.float64]) -> int:
    """Where steps pass to another speed that lasts, so that both parts vary less than they differ; 0: nowhere.

    The place that divides the logarithms into two parts of the least squares; each has a fifth of them and `_LEAST`
    steps, their medians differ by a fifth, and by three times the spread in either."""
    n = len(times)
    least = max(_LEAST, n // 5)
    if n < 2 * least:
        return 0
    log = np.log(times)
    sums, k = np.cumsum(log), np.arange(1, n)
    left, right = sums[:-1] / k, (sums[-1] - sums[:-1]) / (n - k)
    between = k * (n - k) * (left - right) ** 2
    between[: least - 1] = between[n - least :] = 0.0
    at = int(between.argmax()) + 1
    parts = log[:at], log[at:]
    apart = abs(float(np.median(parts[0]) - np.median(parts[1])))
    spread = max(float(np.subtract(*np.percentile(part, (75, 25)))) for part in parts)
    return at if apart > max(_CHANGED, 3 * spread) else 0


def _of_the_batch(facts: LogFacts, problem: Problem, name: str) -> tuple[list[LoggedStep], list[Finding]]:
    """The steps of the job's batch. Raises `InputError` where there are none."""
    job = problem.job
    logged = sorted({step.batch for step in facts.steps if step.batch})
    own = [batch for batch in logged if batch in (job.global_batch, job.tokens_per_step)]
    if logged and not own:
        said = " to ".join(f"{batch:,.0f}" for batch in dict.fromkeys((logged[0], logged[-1])))
        hint = f"give {option('global_batch', f'{logged[-1]:.0f}')}"
        raise InputError(
            f"the log {name} must be of the configuration given",
            f"it says a global batch of {said} sequences, the configuration {job.global_batch}", hint,
        )  # fmt: skip
    if len(logged) < 2:
        return list(facts.steps), []
    steps = [step for step in facts.steps if step.batch in own]
    others = [batch for batch in logged if batch not in own]
    left = len(facts.steps) - len(steps)
    return steps, [finding("batches_left_out", log=name, batch=own[0], others=others, steps=left)]


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
        time = step_time(facts, problem, config)
        seconds, name = time.seconds, Path(source).name
        said += texts(time.findings)
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
