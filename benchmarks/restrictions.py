"""Does a restriction make an answer faster, or more effort much better? It must not.

    python -m benchmarks.restrictions [--pairs 500] [--seed 0] [--only 17] [--models DIR] [--json OUT] [--write]

Random pairs of a question and the same with one restriction more: values of any axis of `--set`, of `--without`, more
headroom. The narrower question's answer must take no less than what the wider one's says none takes: its step time
where the gap is 0. Values that the wider answer names as held by the program are no restriction. 8 times the effort
must gain at most 0.1 %. Questions are small random ones and models of the catalog.
Left out: whether the wider answer is the best there is (`benchmarks/brute_force.py`).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.judged import command, named_as_held, pinned, settings
from benchmarks.random_questions import TRIES, random_request
from benchmarks.results_file import without_folders, write_section
from planner.answer.plan import make_plan
from planner.ask.request import Request, resolve
from planner.errors import PlannerError
from planner.space.axes import RESTRICTABLE
from planner.space.without import known_names
from planner.spec.config import CudaGraphs, Recompute
from planner.spec.planfile import Plan, Verdict
from planner.spec.rule import Problem
from planner.spec.verdict import MemoryVerdict

ROUNDING: Final = 1e-9
MORE_EFFORT: Final = 8.0
MOST_GAINED: Final = 1e-3  # by that
DULL: Final = 0.8  # of restrictions to what the answer has anyway that are not asked about
SMALL: Final = 0.6  # share of pairs about small random models
MODELS: Final = (
    "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "gemma-2-2b", "gemma-3-4b", "gemma-3-12b", "qwen2.5-7b", "qwen3-4b",
    "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b", "mixtral-8x7b", "nemotron-h-8b", "olmo-2-13b", "mistral-7b",
    "moonlight-16b-a3b", "qwen3-next-80b-a3b", "llama-3.1-70b",
)  # fmt: skip
STACKS: Final = ("megatron-2026", "megatron-2026", "megatron-2025", "megatron-2024", "megatron-fsdp-2026",
                 "torchtitan-2026", "torchtitan-2026-eager", "torchtitan-2024", "deepspeed-2025", "nanotron-2024",
                 "maxtext-2024", "hai-llm-2024")  # fmt: skip
PLACES: Final = (("1x8 rtx4090 100G-ib", 8), ("2x8 a100 200G-ib", 16), ("dgx-h100", 32), ("dgx-h100", 64),
                 ("1x8 h100 400G-ib", 8), ("dgx-b200", 16))  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Two answers. `change`: what the narrower question adds; `violation`: what is wrong, empty where nothing is, and
    `by` how much [1]; `gained`: by more effort [1], none where it is not to be had. Times in seconds."""

    name: str
    change: str
    wider: str
    step: float | None
    gap: float | None
    narrower: str
    other: float | None
    violation: str
    by: float
    gained: float | None
    seconds: float


def random_pair(seed: str, folder: Path) -> Outcome:
    """The pair of a seed, asked."""
    rng = random.Random(seed)
    for _ in range(TRIES):
        drawn = _drawn(rng, folder / f"pair-{seed}.json")
        if drawn is None:
            continue
        began = time.process_time()
        plan = make_plan(replace(drawn[0], top=5))
        for _ in range(20) if plan.verdict is not Verdict.NOTHING_LEGAL else ():
            narrower = _narrowed(rng, plan, *drawn)
            if narrower is not None:
                return _compared(seed, plan, drawn, *narrower, began)
    raise AssertionError(f"no pair of seed {seed} can be asked")


def _drawn(rng: random.Random, path: Path) -> tuple[Request, Problem] | None:
    """A question, small or about a model of the catalog."""
    if rng.random() < SMALL:
        small = random_request(rng, path)
        return small and small[:2]
    cluster, gpus = rng.choice(PLACES)
    batch, length = gpus * rng.choice((1, 2, 4, 8)), rng.choice((2048, 4096, 8192))
    request = Request(
        rng.choice(MODELS), cluster, gpus, seq_len=length, global_batch=str(batch),
        stack=rng.choice(STACKS), seek_batch=False, front=False, headroom=rng.choice((0.05, 0.05, 0.2, 0.5)),
        set=rng.choice(({}, {}, {"pp": (2, 4, 8)}, {"tp": (1, 2)}, {"cp": (1,)}, {"pp": (8,), "vpp": (1,)})),
    )  # fmt: skip
    try:
        return request, resolve(request)[0]
    except PlannerError:
        return None


def _narrowed(
    rng: random.Random, plan: Plan, request: Request, problem: Problem
) -> tuple[Request, str, str] | None:
    """The question with one restriction more, in words, and the axis that it is of; None where there is none."""
    if rng.random() < 0.1:
        more = min(request.headroom + rng.choice((0.02, 0.1, 0.3)), 0.95)
        return replace(request, headroom=more), f"--headroom {100 * more:g}%", "headroom"
    axis = rng.choice(RESTRICTABLE)
    values = _values(rng, axis, plan, problem)
    if axis in request.restrict:
        values = tuple(value for value in values if value in request.restrict[axis])
    if not values or request.restrict.get(axis) == values:
        return None
    if rng.random() < 0.2:
        name = rng.choice(known_names())
        return replace(request, without=(name,)), f"--without {name}", name
    restrict = {**request.restrict, axis: values}
    selective = int(Recompute.SELECTIVE)
    if axis == "recompute_modules" and selective not in restrict.setdefault("recompute", (selective,)):
        return None
    return replace(request, set=restrict), " ".join(f"--set {s}" for s in settings({axis: values})), axis


def _values(rng: random.Random, axis: str, plan: Plan, problem: Problem) -> tuple[int, ...]:
    """Values of an axis that one of the answer's configurations has, and perhaps others."""
    limits = problem.stack.limits
    found = []
    if plan.found:
        best, config = (choice.config.parallel() for choice in (plan.choices[0], rng.choice(plan.choices)))
        named = pinned(config, problem)
        if axis in named and (axis != "cp_kind" or config.cp > 1):
            found.append(named[axis])
        if found and named[axis] == pinned(best, problem).get(axis) and rng.random() < DULL:
            found = []
    if axis == "offload":
        found.append(rng.choice(limits.offload))
    elif axis == "cuda_graph_impl":
        found.append(int(CudaGraphs[rng.choice(limits.cuda_graphs).upper()]))
    elif axis in ("pp", "tp", "cp", "ep", "vpp", "micro_batch") and rng.random() < 0.5:
        found.append(rng.choice((1, 2, 4, 8)))
    elif axis == "recompute":
        found.append(int(rng.choice(tuple(Recompute))))
    return tuple(dict.fromkeys(found))


def _compared(
    seed: str,
    plan: Plan,
    drawn: tuple[Request, Problem],
    narrower: Request,
    change: str,
    axis: str,
    began: float,
) -> Outcome:
    """Both answers, and what is wrong with them."""
    request, problem = drawn
    violation, by, other = "", 0.0, None
    try:
        narrow = make_plan(narrower)
    except PlannerError:  # what such a question may not ask for
        narrow = None
    proof = plan.search.certificate
    if narrow is not None and axis not in named_as_held(plan):
        violation, by = wrong(plan, narrow)
        other = narrow.choices[0].step_time if narrow.found else None
    return Outcome(
        name=seed,
        change=change,
        wider=command("plan", request, problem, settings(request.restrict)),
        step=plan.choices[0].step_time if plan.found else None,
        gap=proof.gap if proof else None,
        narrower=command("plan", narrower, problem, settings(narrower.restrict)),
        other=other,
        violation=violation,
        by=by,
        gained=gained(request, plan),
        seconds=time.process_time() - began,
    )


def wrong(plan: Plan, narrow: Plan) -> tuple[str, float]:
    """What is wrong with two answers of which the second one's question is the first's with a restriction more, and by
    how much of the narrower one's step the wider one's exceeds it."""
    if not narrow.found:
        return "", 0.0
    if not plan.found:
        return f"{plan.verdict} without the restriction", 0.0
    wide, other = plan.choices[0], narrow.choices[0]
    sure = [choice.memory.verdict is MemoryVerdict.FITS for choice in (wide, other)]
    if sure[0] and not sure[1]:
        return "", 0.0  # the wider one has what surely fits
    by = wide.step_time / other.step_time - 1
    if sure[1] and not sure[0]:
        return "surely fits with the restriction alone", by
    proof = plan.search.certificate
    bound = wide.step_time if proof is None or proof.bound is None else proof.bound
    return ("faster with the restriction" if other.step_time < bound * (1 - ROUNDING) else ""), by


def gained(request: Request, plan: Plan) -> float | None:
    """By how much of the step more effort makes it shorter; None where nothing is found."""
    if not plan.found:
        return None
    better = make_plan(replace(request, effort=MORE_EFFORT))
    return 1 - better.choices[0].step_time / plan.choices[0].step_time if better.found else None


def table(every: Sequence[Outcome]) -> str:
    """Violations by the axis restricted, and the worst, as Markdown."""
    groups: dict[str, list[Outcome]] = {}
    for one in every:
        groups.setdefault(one.change.removeprefix("--set ").split("=")[0].split(" ")[0], []).append(one)
    lines = ["| restriction | pairs | violations | worst |", "|---|---:|---:|---:|"]
    for name, some in [*sorted(groups.items()), ("all", list(every))]:
        broken = [one for one in some if one.violation]
        worst = f"{max((one.by for one in broken), default=0.0):.2%}"
        lines.append(f"| {name} | {len(some)} | {len(broken)} | {worst} |")
    found = sorted((one for one in every if one.violation), key=lambda one: -one.by)
    lines += [
        "",
        *(
            f"- {one.name}: {one.violation}, by {one.by:.2%}: `{without_folders(one.wider)}`; then `{one.change}`"
            for one in found[:10]
        ),
    ]
    effort = [one.gained for one in every if one.gained is not None]
    if effort:
        much = sum(gain > MOST_GAINED for gain in effort)
        lines += [
            "",
            f"8 times the effort: gains of more than 0.1 % in {much} of {len(effort)}, most {max(effort):.3%}.",
        ]
    seconds = sum(one.seconds for one in every)
    return "\n".join([*lines, "", f"{len(every)} pairs, {seconds:.0f} CPU s."])


def main() -> None:
    """Ask all pairs; print the table or write it into RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restrictions", description=__doc__)
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="ask this one alone")
    parser.add_argument("--models", type=Path, help="where the models' files are kept")
    parser.add_argument("--json", type=Path, help="every pair; those that it holds are not asked again")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    given = parser.parse_args()
    kept = json.loads(given.json.read_text()) if given.json and given.json.exists() else []
    known = {one["name"]: Outcome(**one) for one in kept}
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.models or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(given.pairs) if given.only is None else (given.only,):
            seed = f"{given.seed}-{number}"
            found.append(known.get(seed) or random_pair(seed, folder))
            one = found[-1]
            print(f"{one.name} {one.change}: {one.violation or 'holds'}", file=sys.stderr, flush=True)
            if given.json:
                given.json.write_text(json.dumps([asdict(one) for one in found], indent=1), encoding="utf-8")
    if given.write:
        write_section("restrictions", table(found))
    else:
        print(table(found))


if __name__ == "__main__":
    main()
