"""How far are proofs open, over all models of the catalog, at default effort?

    python -m benchmarks.gaps [--models llama-3.1-8b,...] [--gpus 16,128] [--every 46] [--json OUT] [--before OLD]

Every model on 16, 128 and 1,024 devices of two clusters, at its default batch and sequence, under its usual stacks: the
newest of each framework that has something legal for it. Each question in a process of its own; seconds are processor
time of the answer, the start of Python not included. `--json` keeps every answer, a line each, and goes on where it
was left; `--every` asks one in so many; `--before` sets answers of an older commit beside (`gaps_before.csv`: of
15a9d0f9). `--write` puts the table into benchmarks/RESULTS.md. Left out: whether answers are beaten
(`benchmarks/brute_force.py`).
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.results_file import write_section
from planner.answer.plan import make_plan
from planner.ask.request import Request
from planner.catalog.load_stacks import load_stack, stacks_to_plan
from planner.errors import PlannerError
from planner.frameworks import explicit_splits
from planner.spec.load_model import catalog_models
from planner.spec.planfile import Verdict

CLUSTERS: Final = ("dgx-h100", "dgx-b200")
SIZES: Final = (16, 128, 1024)
BEFORE: Final = Path(__file__).with_name("gaps_before.csv")  # of commit 15a9d0f9
CLOSED: Final = 1e-3  # gaps that count as closed, and what none may exceed
NARROW: Final = 1e-2
WORST: Final = 12


@dataclass(frozen=True)
class Asked:
    """One question and its answer. `step` and `cpu` in seconds; `gap` none where nothing fits."""

    model: str
    cluster: str
    gpus: int
    stack: str
    verdict: str
    gap: float | None
    step: float | None
    cpu: float
    best: str

    @property
    def name(self) -> tuple[str, str, int, str]:
        """What it asks."""
        return self.model, self.cluster, self.gpus, self.stack


def usual_stacks(cluster: str) -> list[str]:
    """The newest stacks of each framework, the newest first; of the second cluster Megatron's alone."""
    stacks = sorted(map(load_stack, stacks_to_plan()), key=lambda stack: stack.released, reverse=True)
    newest: dict[str, str] = {}
    for stack in stacks:
        newest[stack.framework] = max(newest.get(stack.framework, ""), stack.released)
    frameworks = newest if cluster == CLUSTERS[0] else ("megatron",)
    return [s.name for s in stacks if s.framework in frameworks and s.released == newest[s.framework]]


def questions(models: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[str, str, int, str]]:
    """Model, cluster, devices and stack of all."""
    for cluster in CLUSTERS:
        for stack in usual_stacks(cluster):
            for model in models:
                for gpus in sizes:
                    yield model, cluster, gpus, stack


def answer(model: str, cluster: str, gpus: int, stack: str) -> Asked:
    """The answer to one question; `refused` where it cannot be asked."""
    began = time.process_time()
    verdict, gap, step, best = "refused", None, None, ""
    try:
        plan = make_plan(Request(model, cluster, gpus, stack=stack, front=False, seek_batch=False))
        verdict = str(plan.verdict)
        if plan.found and plan.search.certificate:
            gap, step, best = (
                plan.search.certificate.gap,
                plan.choices[0].step_time,
                plan.choices[0].config.text,
            )
    except PlannerError as error:
        best = str(error).partition("\n")[0]
    return Asked(model, cluster, gpus, stack, verdict, gap, step, time.process_time() - began, best)


def _send(pipe: Connection, question: tuple[str, str, int, str]) -> None:
    pipe.send(answer(*question))


def apart(question: tuple[str, str, int, str]) -> Asked:
    """The answer of a process of its own, which has imported what this one has and answered nothing before."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, question))
    process.start()
    there.close()
    found: Asked = here.recv()
    process.join()
    return found


def read(path: Path) -> list[Asked]:
    """Answers kept in a file, JSON lines or CSV."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix != ".csv":
        return [Asked(**json.loads(line)) for line in lines]
    return [
        Asked(
            row["model"], row["cluster"], int(row["gpus"]), row["stack"], row["verdict"],
            float(row["gap"]) if row["gap"] else None, float(row["step"]) if row["step"] else None,
            float(row["cpu"]), row["best"],
        )
        for row in csv.DictReader(lines)
    ]  # fmt: skip


def write_csv(path: Path, every: Sequence[Asked]) -> None:
    """Keep answers to compare with."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Asked)])
        for one in every:
            gap, step = ("" if x is None else f"{x:.6g}" for x in (one.gap, one.step))
            writer.writerow([*one.name, one.verdict, gap, step, f"{one.cpu:.2f}", one.best])


def _shares(some: Iterable[Asked]) -> list[str]:
    gaps = np.array([one.gap for one in some if one.gap is not None])
    if not len(gaps):
        return ["0", "", "", ""]
    closed, narrow = (f"{float((gaps <= limit).mean()):.1%}" for limit in (CLOSED, NARROW))
    return [str(len(gaps)), closed, narrow, f"{gaps.max():.2%}"]


def table(now: Sequence[Asked], before: Sequence[Asked]) -> str:
    """Shares of closed gaps by stack and by size, today and before, and the worst cases, as Markdown."""
    asked = {one.name for one in now}
    then = {one.name: one for one in before if one.name in asked}
    head = ["answers", "gap <= 0.1 %", "<= 1 %", "worst"]
    lines = [
        "| stack, cluster | "
        + " | ".join([*head, *(f"{word} before" for word in head)])
        + " | CPU s, median | before |",
        "|---|" + "---:|" * 10,
    ]
    groups: dict[str, list[Asked]] = {}
    for one in now:
        groups.setdefault(f"{one.stack}, {one.cluster}", []).append(one)
        if explicit_splits(load_stack(one.stack).framework):
            groups.setdefault("all that can be told a layout", []).append(one)
        groups.setdefault(f"all on {one.gpus:,} devices", []).append(one)
        groups.setdefault("all", []).append(one)
    for name, some in sorted(groups.items(), key=lambda group: group[0].startswith("all")):
        old = [then[one.name] for one in some if one.name in then]
        seconds = [f"{np.median([one.cpu for one in part]):.2f}" if part else "" for part in (some, old)]
        lines.append("| " + " | ".join([name, *_shares(some), *_shares(old), *seconds]) + " |")
    slower = [one for one in now if _slower(one, then.get(one.name)) > NARROW * CLOSED]
    lines += ["", f"Slower than before by more than 0.001 %: {len(slower)} answers.", "", *_worst(now, then)]
    return "\n".join(lines)


def _slower(one: Asked, old: Asked | None) -> float:
    """By how much of the older step the answer is slower."""
    if old is None or old.step is None:
        return 0.0
    return one.step / old.step - 1 if one.step is not None else float("inf")


def _worst(now: Sequence[Asked], then: dict[tuple[str, str, int, str], Asked]) -> list[str]:
    lines = [
        "| widest gaps | devices | stack, cluster | gap | before | step | before | best |",
        "|---|---:|---|---:|---:|---:|---:|---|",
    ]
    for one in sorted(now, key=lambda one: -(one.gap or 0.0))[:WORST]:
        old = then.get(one.name)
        gaps = [f"{x.gap:.2%}" if x and x.gap is not None else "" for x in (one, old)]
        steps = [f"{x.step:.4g} s" if x and x.step is not None else "" for x in (one, old)]
        where = f"{one.stack}, {one.cluster}"
        lines.append("| " + " | ".join([one.model, f"{one.gpus:,}", where, *gaps, *steps, one.best]) + " |")
    return lines


def main() -> None:
    """Ask all questions; print the table or write it into RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gaps", description=__doc__)
    parser.add_argument("--models", help="with commas between; all of the catalog")
    parser.add_argument("--gpus", help="with commas between; 16,128,1024")
    parser.add_argument(
        "--json", type=Path, help="a line for every answer; those that it holds are not asked again"
    )
    parser.add_argument(
        "--before", type=Path, default=BEFORE, help="answers to compare with, of --json or --csv"
    )
    parser.add_argument("--csv", type=Path, help="keep the answers to compare with")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    parser.add_argument(
        "--every", type=int, default=1, help="ask a question of so many alone; a sample in few minutes"
    )
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    given = parser.parse_args()
    models = given.models.split(",") if given.models else catalog_models()
    sizes = [int(size) for size in given.gpus.split(",")] if given.gpus else SIZES
    known = {one.name: one for one in read(given.json)} if given.json else {}
    now = []
    for question in islice(questions(models, sizes), given.first, None, given.every):
        one = known.get(question) or apart(question)
        if given.json and question not in known:
            with given.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(one)) + "\n")
        print(*question, one.verdict, one.gap, file=sys.stderr, flush=True)
        if one.verdict not in ("refused", Verdict.NOTHING_LEGAL):
            now.append(one)
    if given.csv:
        write_csv(given.csv, now)
    found = table(now, read(given.before))
    if given.write:
        write_section("gaps", found)
    else:
        print(found)


if __name__ == "__main__":
    main()
