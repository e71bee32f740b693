"""Does a diagnosis name the cause that was injected into the prediction of a random run?

Usage: python -m benchmarks.injected_causes
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

from planner.ask.request import Request
from planner.calibrate.correction.estimate import Observation
from planner.calibrate.diagnosis.causes import CAUSES, Cause
from planner.calibrate.diagnosis.diagnose import diagnose
from planner.calibrate.diagnosis.hypotheses import Evidence, model_flops, peak_of
from planner.calibrate.own_runs import observe
from planner.calibrate.predict import predicted_cost
from planner.errors import PlannerError

SEVERITY = {"fabric": 0.25, "overlap": 1.0, "host": 6.0, "imbalance": 2.0, "peak": 0.5, "recompute": 1.0}
BY_NAME: dict[str, Cause] = {cause.name: cause for cause in CAUSES}
NOISE, WIDTH = 0.01, 0.05  # of measurements; of a calibrated stack
LEAST_GAP = 1.1  # a smaller gap is within the error of a prediction, and needs no cause
DENSE = ("llama-3-8b", "llama-3.1-70b", "qwen3-14b", "llama-2-13b")
EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b")


def _run(random_: random.Random, cause: str) -> tuple[Observation, Observation | None] | None:
    """A random run on several nodes, and the same on one where it can be."""
    model = random_.choice(EXPERTS if cause == "imbalance" else (*DENSE, *EXPERTS))
    gpus = random_.choice((16, 32, 64, 128))
    ep = random_.choice((2, 4, 8)) if model in EXPERTS else 1
    batch = gpus * random_.choice((1, 2, 4))
    axes = (
        f"tp={random_.choice((1, 2, 4, 8))},pp={random_.choice((1, 2, 4))},ep={ep},"
        f"micro_batch={random_.choice((1, 2))}"
    )
    base = Request(
        model=model, cluster=random_.choice(("dgx-h100", "aws-p5", "dgx-a100", "dgx-b200")), gpus=gpus,
        seq_len=random_.choice((2048, 4096, 8192)), global_batch=str(batch),
    )  # fmt: skip
    try:
        whole = observe(base, f"1 s:{axes}")[0]
    except PlannerError:
        return None
    try:
        return whole, observe(base, f"1 s:{axes},gpus=8,global_batch={max(batch * 8 // gpus, 1)}")[0]
    except PlannerError:
        return whole, None


def _injected(
    seen: Observation, names: tuple[str, ...], random_: random.Random
) -> tuple[Evidence, float] | None:
    """What a log of the run would show under causes, and measured over predicted time without noise."""
    usual = predicted_cost(seen.problem, seen.config)
    changed, reported = seen, 1.0
    for name in names:
        cause = BY_NAME[name]
        if cause.reported:
            reported *= SEVERITY[name]
        elif cause.needs(seen):
            with_it = cause.change(changed, SEVERITY[name])
            if with_it is None:
                return None
            changed = with_it
    told = predicted_cost(changed.problem, changed.config)

    def noisy(value: float) -> float:
        return value * math.exp(random_.gauss(0, NOISE))

    seconds = noisy(told.seconds)
    mfu = reported * model_flops(seen) / seconds / peak_of(seen)
    shown = Evidence(replace(seen, seconds=seconds), memory=noisy(told.memory), mfu=mfu, width=WIDTH)
    return shown, told.seconds / usual.seconds


def cases(seed: int, count: int) -> Iterator[tuple[str, list[Evidence]]]:
    """Names of causes and what the logs of one or two runs show."""
    random_ = random.Random(seed)
    made = 0
    while made < count:
        name = random_.choice(tuple(SEVERITY))
        runs = _run(random_, name)
        if runs is None or not BY_NAME[name].needs(runs[0]):
            continue
        first = _injected(runs[0], (name,), random_)
        if first is None or (name != "peak" and first[1] < LEAST_GAP):
            continue
        evidence = [first[0]]
        if runs[1] is not None and (second := _injected(runs[1], (name,), random_)) is not None:
            evidence.append(second[0])
        made += 1
        yield name, evidence


PAIRS = (("fabric", "recompute"), ("host", "recompute"), ("peak", "recompute"), ("peak", "fabric"))


def pairs(seed: int, count: int) -> Iterator[tuple[tuple[str, str], list[Evidence]]]:
    """Two causes at once, each with a share of the gap, and what the logs of one or two runs show."""
    random_ = random.Random(seed)
    made = 0
    while made < count:
        names = random_.choice(PAIRS)
        runs = _run(random_, names[0])
        if runs is None:
            continue
        alone = [_injected(runs[0], (name,), random_) for name in names]
        both = _injected(runs[0], names, random_)
        if both is None or any(
            part is None or (name != "peak" and part[1] < LEAST_GAP)
            for name, part in zip(names, alone, strict=True)
        ):
            continue
        evidence = [both[0]]
        if runs[1] is not None and (second := _injected(runs[1], names, random_)) is not None:
            evidence.append(second[0])
        made += 1
        yield names, evidence


def first_named(seed: int, count: int) -> int:
    """In how many of as many cases the cause is ranked first."""
    return sum(_named(evidence)[:1] == [name] for name, evidence in cases(seed, count))


def both_named(seed: int, count: int) -> int:
    """In how many of as many pairs both causes are among the first three."""
    return sum(set(names) <= set(_named(evidence)[:3]) for names, evidence in pairs(seed, count))


def _named(evidence: list[Evidence]) -> list[str]:
    return [found.cause.name if found.cause else "" for found in diagnose(evidence).findings]


if __name__ == "__main__":
    print(f"one cause: ranked first in {first_named(0, 200)} of 200 cases")
    print(f"two causes: both among the first three in {both_named(0, 20)} of 20")
