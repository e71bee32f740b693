"""Is an answer about a model of the catalog beaten by what hill-climbing finds, or by what was found before?

    python -m benchmarks.hill_climb [--only llama-3.2-1b] [--starts 2] [--json OUT] [--write]

Spaces too large to be looked at whole: from the plan's best choices and from random legal configurations, moves over
all degrees, micro-batch, vpp, schedule, sharding, recomputation and layouts (layers from any chunk to any other),
costed as `planner estimate` does, until none is faster. What beat answers before (`known_better.py`) is held beside.
`--write` puts the table into benchmarks/RESULTS.md. Left out: small questions, which `benchmarks/brute_force.py` looks
at whole.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.climbing import Climber, random_start
from benchmarks.exhaustive import ROUNDING, Hunt
from benchmarks.judged import Asked, Judged, held_at, named_as_held, why_beaten
from benchmarks.known_better import KNOWN, Case, Known
from benchmarks.results_file import write_section
from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.ask.request import resolve
from planner.errors import PlannerError
from planner.report.words import worded
from planner.spec.planfile import Plan
from planner.spec.verdict import MemoryVerdict

BEST: Final = 3  # choices of a plan that a climb begins at

_NODE: Final = "1x8 rtx4090 100G-ib"
CASES: Final = (
    Case("llama-3.2-1b", "dgx-h100", 32, 4096, 128, settings=("pp=8", "vpp=1")),
    Case("llama-3.2-3b", _NODE, 8, 4096, 64, settings=("pp=4,8",)),
    Case("llama-3.1-8b", "dgx-h100", 64, 8192, 256, settings=("pp=2,4,8",)),
    Case("llama-3.1-70b", "dgx-h100", 128, 8192, 512),
    Case("llama-3.1-405b", "dgx-h100", 1024, 8192, 1024),
    Case("gemma-2-2b", "dgx-h100", 16, 4096, 64, settings=("pp=8", "vpp=1")),
    Case("gemma-2-9b", "dgx-h100", 32, 4096, 128, settings=("pp=4,8",)),
    Case("gemma-3-1b", "dgx-h100", 16, 4096, 64, settings=("pp=8", "vpp=1")),
    Case("gemma-3-4b", "dgx-h100", 32, 4096, 128, settings=("pp=8", "vpp=1")),
    Case("gemma-3-12b", "dgx-h100", 64, 8192, 256),
    Case("gemma-3-27b", "dgx-h100", 64, 8192, 256, settings=("pp=2,4,8",)),
    Case("qwen2.5-7b", "dgx-a100", 32, 4096, 128, "megatron-2025", ("pp=2,4,8",)),
    Case("qwen2.5-32b", "dgx-h100", 64, 8192, 256, "torchtitan-2026", ("pp=2,4,8",)),
    Case("qwen3-8b", _NODE, 8, 4096, 64, "torchtitan-2026-eager", ("pp=2,4,8",)),
    Case("qwen3-32b", "dgx-h100", 128, 8192, 256),
    Case("qwen3-30b-a3b", "dgx-h100", 32, 4096, 256, settings=("pp=2,4,8",)),
    Case("qwen3-235b-a22b", "dgx-h100", 256, 4096, 1024),
    Case("qwen3-next-80b-a3b", "dgx-h100", 256, 8192, 512),
    Case("mixtral-8x7b", "dgx-h100", 64, 4096, 256),
    Case("deepseek-v2-lite", "dgx-h100", 32, 4096, 256, settings=("pp=2,4,8",)),
    Case("deepseek-v3", "dgx-h100", 1024, 4096, 4096),
    Case("gpt-oss-20b", "dgx-h100", 32, 4096, 256, settings=("pp=2,4,8",)),
    Case("gpt-oss-120b", "dgx-h100", 256, 8192, 512),
    Case("glm-4.5-air", "dgx-h100", 256, 4096, 1024),
    Case("nemotron-h-8b", "dgx-h100", 64, 8192, 256),
    Case("llama-4-scout", "dgx-h100", 256, 8192, 512),
    Case("olmo-2-32b", "dgx-b200", 64, 4096, 256, "torchtitan-2026-eager"),
    Case("mistral-nemo-12b", "dgx-a100", 64, 4096, 256, "megatron-2024"),
)


def climbed(case: Case, starts: int, folder: Path) -> Judged:
    """The answer to a question and the best that climbing finds, from its own choices and `starts` others."""
    request = case.request(folder)
    problem, _ = resolve(request)
    began = time.process_time()
    plan = make_plan(request)
    planned = time.process_time()
    asked, held = Asked(request, problem), held_at(problem, request)
    free = {axis: values for axis, values in held.items() if axis not in named_as_held(plan)}
    sure = plan.found and plan.choices[0].memory.verdict is MemoryVerdict.FITS
    allowed = asked.safe if sure or not plan.found else asked.limit
    within = Climber(asked.model, request.restrict, held, allowed)
    known = plan.choices[0].step_time * (1 - ROUNDING) if plan.found else math.inf
    tried = best = Hunt(known)
    rng = random.Random(case.model)
    begins = [
        (choice.config.parallel(), choice.split.layers_per_chunk if choice.split else ())
        for choice in plan.choices[:BEST]
    ]
    begins += [start for _ in range(starts) if (start := random_start(within, rng)) is not None]
    for config, layout in begins:
        tried = _better(tried, within.climb(config, layout))
    best = tried
    if free and (best.config or begins):
        beyond = Climber(
            asked.model, request.restrict, {a: v for a, v in held.items() if a not in free}, allowed
        )
        begin = (best.config, best.layout) if best.config else begins[0]
        best = _better(best, beyond.climb(*begin))
    for hunt in {id(tried): tried, id(best): best}.values():
        refusal = asked.confirm(hunt.config, hunt.layout, hunt.step) if hunt.config else ""
        if refusal:
            hunt.refused.append(refusal)
            hunt.config = None
    why = _why(plan, best)
    seconds = planned - began, time.process_time() - planned
    return asked.judged(case.name, plan, replace(best, complete=False), why, tried, seconds)


def _better(known: Hunt, other: Hunt) -> Hunt:
    costed = known.costed + other.costed
    return replace(other if other.step < known.least else known, costed=costed)


def _why(plan: Plan, hunt: Hunt) -> str:
    if plan.found:
        return why_beaten(plan, hunt)
    return "nothing is said to fit" if hunt.config else ""


@dataclass(frozen=True)
class Before:
    """What was found before beside the answer of today: step times, and what the answer says none is faster than [s].
    `beaten`: is that wrong, and not of what the answer says that the program holds?"""

    name: str
    step: float
    other: float
    bound: float
    beaten: bool


def known_beaten(known: Known, folder: Path) -> Before:
    """Today's answer to a question that was beaten before. Raises `PlannerError` where `planner estimate` no longer
    takes what beat it."""
    plan = make_plan(known.case.request(folder))
    found = make_estimate(known.case.named(folder, known.better))
    if not found.found:
        raise PlannerError("what was found must fit", str(worded(found)))
    proof, other = plan.search.certificate, found.choices[0].step_time
    step = plan.choices[0].step_time if plan.found else math.inf
    bound = step if proof is None or proof.bound is None else proof.bound
    held = bool(known.held) and set(known.held) <= set(named_as_held(plan))
    return Before(known.name, step, other, bound, not held and other < bound * (1 - ROUNDING))


def table(found: Sequence[Judged], before: Sequence[Before]) -> str:
    """What climbing found, question by question, and what was found before, as Markdown."""
    lines = [
        "| question | step | gap | faster by | of what is tried | found | CPU s |",
        "|---|---:|---:|---:|---:|---|---:|",
    ]
    for one in found:
        gap = "" if one.gap is None else f"{one.gap:.2%}"
        what = f"{one.beaten}: `{one.reproduce}`" if one.beaten else ("within the gap" if one.best else "")
        took = f"{one.step:.4g} s" if one.step else one.verdict
        cells = (
            one.name,
            took,
            gap,
            f"{one.faster:.2%}",
            f"{one.faster_tried:.2%}",
            what,
            f"{one.oracle_seconds:.0f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "| found before | answer | found | faster by | bound of the answer |",
        "|---|---:|---:|---:|---:|",
    ]
    for old in before:
        slower = max(old.step / old.other - 1, 0)
        lines.append(
            f"| {old.name} | {old.step:.4g} s | {old.other:.4g} s | {slower:.2%} | {old.bound:.4g} s |"
        )
    beaten, still = (sum(bool(one.beaten) for one in some) for some in (found, before))
    said = f"Beaten: {beaten} of {len(found)} climbed, {still} of {len(before)} known before."
    return "\n".join([*lines, "", said])


def main() -> None:
    """Climb for every case; print the table or write it into RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hill_climb", description=__doc__)
    parser.add_argument("--only", help="this model alone")
    parser.add_argument("--starts", type=int, default=2, help="random configurations that climbs begin at")
    parser.add_argument("--json", type=Path, help="every climb; those that it holds are not made again")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    given = parser.parse_args()
    kept = json.loads(given.json.read_text()) if given.json and given.json.exists() else []
    answered = {one["name"]: Judged(**one) for one in kept}
    with tempfile.TemporaryDirectory() as scratch:
        found, before = [], []
        for known in KNOWN if given.only is None else ():
            before.append(known_beaten(known, Path(scratch)))
            print(before[-1], file=sys.stderr, flush=True)
        for case in CASES:
            if given.only in (None, case.model):
                found.append(answered.get(case.name) or climbed(case, given.starts, Path(scratch)))
                one = found[-1]
                print(f"{one.name}: {one.faster:.2%} {one.reproduce}", file=sys.stderr, flush=True)
                if given.json:
                    given.json.write_text(json.dumps([asdict(one) for one in found], indent=1))
    if given.write:
        write_section("hill-climb", table(found, before))
    else:
        print(table(found, before))


if __name__ == "__main__":
    main()
