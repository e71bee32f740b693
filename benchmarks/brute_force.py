"""Is any answer beaten? Random small questions, each looked at whole: all configurations under all layouts.

    python -m benchmarks.brute_force [--questions 300] [--seed 0] [--only 17] [--models DIR] [--json OUT] [--write]

An answer is beaten where something that `planner estimate` accepts takes less than what the answer's certificate says
none takes. The oracle shares no code with the search: `legal_space` enumerates, `least_times` bounds, `exhaustive`
looks. Everything follows from the seed; `--only` asks one question again, `--models` keeps the models for it. `--write`
puts the table into benchmarks/RESULTS.md. Left out: models of the catalog (`benchmarks/hill_climb.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.judged import Judged, judge
from benchmarks.random_questions import random_question
from benchmarks.results_file import write_section

WORST: Final = 10  # beaten answers that the table names
HEADS: Final = (
    "model",
    "questions",
    "proven",
    "beaten",
    "of these by what is tried",
    "worst",
    "looked at whole",
)


def judged_question(seed: str, folder: Path) -> tuple[str, Judged]:
    """The model's kind and the judged answer of the question of a seed."""
    asked = random_question(seed, folder)
    return str(asked.config["model_type"]), judge(seed, asked.request, asked.problem, asked.space)


def table(found: Sequence[tuple[str, Judged]]) -> str:
    """Beaten answers by kind of model, and the worst of them, as Markdown."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---|" + "---:|" * (len(HEADS) - 1)]
    kinds = sorted({kind for kind, _ in found})
    for kind in kinds:
        lines.append(_line(kind, [one for own, one in found if own == kind]))
    every = [one for _, one in found]
    lines.append(_line("all", every))
    return "\n".join([*lines, "", *_worst(every), *_refusals(every), "", _effort(every)])


def _line(kind: str, some: Sequence[Judged]) -> str:
    beaten = [one for one in some if one.proven and one.beaten]
    tried = [one for one in beaten if one.faster_tried > 0]
    worst = max((one.faster for one in beaten), default=0.0)
    cells = (len(some), _count(some, lambda one: one.proven), len(beaten), len(tried), f"{worst:.1%}",
             _count(some, lambda one: one.complete))  # fmt: skip
    return f"| {kind} | " + " | ".join(map(str, cells)) + " |"


def _count(some: Iterable[Judged], holds: Callable[[Judged], bool]) -> int:
    return sum(map(holds, some))


def _worst(every: Sequence[Judged]) -> list[str]:
    beaten = sorted((one for one in every if one.beaten), key=lambda one: -one.faster)
    return [
        f"- {one.name}: {one.beaten}" + f", by {one.faster:.2%} (gap {one.gap or 0:.2%})" * (one.step is not None)
        + f": `{one.reproduce}`"
        for one in beaten[:WORST]
    ]  # fmt: skip


def _refusals(every: Sequence[Judged]) -> list[str]:
    """What the cost model calls faster and `planner estimate` does not accept, one of each question."""
    return [f"- {one.name}: refused by estimate: {one.refused[0]}" for one in every if one.refused]


def _effort(every: Sequence[Judged]) -> str:
    plans, oracle = (sum(getattr(one, name) for one in every) for name in ("plan_seconds", "oracle_seconds"))
    costed, simulated = (sum(getattr(one, name) for one in every) for name in ("costed", "simulated"))
    return (
        f"{len(every)} questions, {plans:.0f} CPU s of plans, {oracle:.0f} CPU s of the oracle: {costed / 1e6:.0f} "
        f"million configurations with their layouts costed, {simulated / 1e3:.0f} thousand pipelines simulated."
    )


def main() -> None:
    """Ask all questions; print the table or write it into RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.brute_force", description=__doc__)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="ask this one alone")
    parser.add_argument("--models", type=Path, help="where the models' files are kept")
    parser.add_argument(
        "--json", type=Path, help="every judged answer; those that it holds are not asked again"
    )
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    given = parser.parse_args()
    numbers = range(given.questions) if given.only is None else (given.only,)
    kept = json.loads(given.json.read_text()) if given.json and given.json.exists() else []
    known = {one["name"]: (one.pop("model"), Judged(**one)) for one in kept}
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.models or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for number in numbers:
            seed = f"{given.seed}-{number}"
            found.append(known.get(seed) or judged_question(seed, folder))
            kind, one = found[-1]
            said = f"{one.beaten}, {one.faster:.2%}" if one.beaten else "not beaten"
            print(f"{one.name} {kind}: {one.verdict}, {said}", file=sys.stderr, flush=True)
            if given.json:
                given.json.write_text(json.dumps([{"model": k, **asdict(j)} for k, j in found], indent=1))
    if given.write:
        write_section("brute-force", table(found))
    else:
        print(table(found))


if __name__ == "__main__":
    main()
