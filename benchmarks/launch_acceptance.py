"""Do the frameworks accept what planner exports, and refuse what it calls illegal?

    python -m benchmarks.launch_acceptance --triples 200 --legal 5 --illegal 200 --json OUT.json
    MEGATRON_PATH=CHECKOUT MEGATRON_RELEASE=main-2026-08 python -m benchmarks.launch_acceptance --frameworks megatron

Every launch is rendered (each option against the release's table), read back by planner, and given to the framework's
own code where a registry package or MEGATRON_PATH has it; values read there must be the plan's, and its rank groups
planner's. Of some launches of each triple a random rank is built on the meta device under a process group that sends
nothing: its groups and parameters must be planner's. Triples whose model the framework cannot express are counted and
others drawn in their place. Needs the extra `frameworks`. Left out: running a step, which needs accelerators.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Final

from benchmarks.launch_cases import STACKS, Case, Triple, illegal_launch, legal_launches, triples, varied
from benchmarks.launch_judges import GROUPS, JUDGES, RANKS, Written, can_judge, judge
from benchmarks.launch_read_back import differences, said_of
from planner.ask.request import cost_model
from planner.cost.pipeline.stages import stage_classes
from planner.cost.shards import ShardModel
from planner.errors import UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import Launch
from planner.solve.place import layout_of
from planner.spec.config import AXES, ConfigTable
from planner.spec.rule import Problem

MOST_DRAWN: Final = 30  # triples tried for each that can be expressed
BUILT: Final = 2  # launches of a triple whose rank is built: the best, and a random legal one


@dataclass
class Tally:
    """What became of the launches of one framework. `notes`: message -> how often, with one example each."""

    framework: str
    triples: int = 0
    written: int = 0
    best: int = 0
    models_not_expressible: Counter[str] = field(default_factory=Counter)
    not_expressible: Counter[str] = field(default_factory=Counter)
    wrongly_read_back: list[str] = field(default_factory=list)
    said_otherwise: Counter[str] = field(default_factory=Counter)
    judged: int = 0
    refused: list[str] = field(default_factory=list)
    wrong_values: list[str] = field(default_factory=list)
    wrong_groups: list[str] = field(default_factory=list)
    groups: int = 0
    ranks: int = 0
    ranks_with_parameters: int = 0
    wrong_ranks: list[str] = field(default_factory=list)
    not_built: Counter[str] = field(default_factory=Counter)
    illegal: int = 0
    illegal_refused: int = 0
    illegal_not_written: int = 0
    disagreements: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        """Was every legal launch accepted as it was meant?"""
        return not (
            self.wrongly_read_back
            or self.refused
            or self.wrong_values
            or self.wrong_groups
            or self.wrong_ranks
            or self.not_built
        )

    def facts(self) -> dict[str, Any]:
        """The tally as plain data."""
        return {
            name: dict(value.most_common()) if isinstance(value, Counter) else value
            for name, value in self.__dict__.items()
        }


def write_cases(tally: Tally, release: str, cases: Iterable[Case], folder: Path) -> list[Written]:
    """Render cases into folders; what cannot be expressed is counted, what reads back differently is listed."""
    chosen = framework(tally.framework)
    written: list[Written] = []
    for number, case in enumerate(cases):
        try:
            files = chosen.render(case.launch, release)
        except UnsupportedError as error:
            if case.kind == "illegal":
                tally.illegal_not_written += 1
            else:
                tally.not_expressible[" ".join(error.must.split())] += 1
            continue
        target = folder / f"{case.kind}-{number}"
        target.mkdir(parents=True)
        for name, text in files.items():
            (target / name).write_text(text, encoding="utf-8")
        rank = random.Random(f"{number} {said_of(case)}").randrange(case.launch.devices)
        written.append(Written(case, target, rank))
        if case.kind != "illegal":
            tally.written += 1
            tally.best += case.kind == "best"
            wrong, said = differences(tally.framework, files, case)
            tally.wrongly_read_back += [wrong] * bool(wrong)
            tally.said_otherwise += Counter([said] * bool(said))
    return written


def _legal(
    tally: Tally, release: str, asked: Iterator[Triple], triples: int, count: int, seed: int, plain: bool
) -> Iterator[Case]:
    """Legal launches of `triples` triples whose model the release can express; the others are counted."""
    refused: dict[str, str] = {}
    for triple in asked:
        if tally.triples >= triples or sum(tally.models_not_expressible.values()) > MOST_DRAWN * triples:
            return
        if triple.model in refused:
            tally.models_not_expressible[refused[triple.model]] += 1
            continue
        try:
            question = triple if plain else varied(triple, tally.framework, seed)
            try:
                cases = list(legal_launches(question, tally.framework, count, seed, release))
            except UnsupportedError as error:
                if question == triple:
                    raise
                tally.not_expressible[" ".join(error.must.split())] += 1
                cases = list(legal_launches(triple, tally.framework, count, seed, release))
            yield from cases
            tally.triples += 1
        except UnsupportedError as error:
            refused[triple.model] = " ".join(error.must.split())
            tally.models_not_expressible[refused[triple.model]] += 1


def accept(tally: Tally, release: str, legal: Iterable[Case], illegal: Iterable[Case], work: Path) -> Tally:
    """Everything found of one framework's launches."""
    name = tally.framework
    written = write_cases(tally, release, legal, work / "legal")
    if can_judge(name):
        for w, answer in zip(written, judge(name, JUDGES[name], written, work), strict=True):
            tally.judged += 1
            _compare(tally, w.case, answer)
    if name == "megatron" and find_spec("megatron") is not None:
        _compare_groups(tally, written, judge(name, GROUPS, written, work))
    if name in RANKS and can_judge(name):
        chosen = list(_to_build(name, written))
        for w, answer in zip(chosen, judge(name, RANKS[name], chosen, work), strict=True):
            _compare_rank(tally, w, answer)
    bad = write_cases(tally, release, illegal, work / "illegal")
    tally.illegal = len(bad) + tally.illegal_not_written
    tally.illegal_refused = tally.illegal_not_written
    if can_judge(name):
        for w, answer in zip(bad, judge(name, JUDGES[name], bad, work), strict=True):
            if "error" in answer:
                tally.illegal_refused += 1
            else:
                tally.disagreements[" ".join(w.case.broken)] += 1
    return tally


def _to_build(framework: str, written: Iterable[Written]) -> Iterator[Written]:
    """The first launches of every triple. Of Megatron-LM without hybrids and sparse attention, whose kernels do not
    load without a GPU and which tests/frameworks builds (test_hybrids.py, test_sparse_attention_in_files.py)."""
    seen: Counter[Triple] = Counter()
    for w in written:
        model = w.case.launch.model
        if framework == "megatron" and (model.state_spaces or model.indexers):
            continue
        seen[w.case.triple] += 1
        if seen[w.case.triple] <= BUILT:
            yield w


def _compare(tally: Tally, case: Case, answer: dict[str, Any]) -> None:
    if "error" in answer:
        tally.refused.append(f"{said_of(case)}: {answer['error']}")
        return
    job = case.launch.job
    wanted = {
        **{axis: getattr(case.launch.config, axis) for axis in AXES}, "devices": case.launch.devices,
        "seq_len": job.seq_len, "global_batch": job.global_batch, "layers": case.launch.model.num_layers,
    }  # fmt: skip
    wrong = [f"{k} {v} for {wanted[k]}" for k, v in answer["values"].items() if v != wanted[k]]
    if wrong:
        tally.wrong_values.append(f"{said_of(case)}: {', '.join(wrong)}")


def _compare_groups(tally: Tally, written: Sequence[Written], answers: Sequence[dict[str, Any]]) -> None:
    for w, answer in zip(written, answers, strict=True):
        layout = layout_of(w.case.triple.problem(STACKS[tally.framework]), w.case.launch.config)
        for name, groups in answer["values"].items():
            mine = sorted(row.tolist() for row in layout.groups(name))
            tally.groups += 1
            if mine != groups:
                tally.wrong_groups.append(f"{said_of(w.case)}: {name}")


def _compare_rank(tally: Tally, w: Written, answer: dict[str, Any]) -> None:
    """The parameters and the groups of one rank."""
    if "error" in answer:
        tally.not_built[f"{w.case.triple.model}: {answer['error'][:160]}"] += 1
        return
    launch, problem = w.case.launch, w.case.triple.problem(STACKS[tally.framework])
    layout, values = layout_of(problem, launch.config), answer["values"]
    wrong = []
    for axis, group in values["groups"].items():
        rows = layout.groups(axis).tolist()
        mine = next(sorted(row) for row in rows if w.rank in row)
        wrong += [f"{axis} {group} for {mine}"] if mine != group else []
    if "parameters" in values:
        tally.ranks_with_parameters += 1
        stage = layout.place_of(w.rank)["pp"]
        planned = round(parameters_by_stage(problem, launch)[stage])
        wrong += (
            [f"parameters {values['parameters']} for {planned}"] if planned != values["parameters"] else []
        )
    tally.ranks += 1
    if wrong:
        tally.wrong_ranks.append(f"{said_of(w.case)}, rank {w.rank}: {', '.join(wrong)}")


def parameters_by_stage(problem: Problem, launch: Launch) -> list[float]:
    """Parameters that a rank of every pipeline stage holds before ZeRO divides them, as the cost model counts them."""
    config, model = launch.config, problem.model
    table = ConfigTable.of([config])
    stack = problem.stack.model_copy(update={"split": launch.chunks})
    given = replace(problem, stack=stack)
    classes = stage_classes(
        table["pp"], table["vpp"], table["schedule"], model.layer_kind_of, launch.chunks, 0.0, 0.0
    )
    shards = ShardModel(given, cost_model(given).links).shards(table, classes)
    found = [0.0] * config.pp
    for number, stages in enumerate(classes.members[int(classes.of_row[0])]):
        for stage in stages:
            found[stage] = float(shards.dense[0, number] + shards.expert[0, number])
    return found


def run(
    names: Sequence[str], count: int, legal: int, illegal: int, seed: int, plain: bool = False
) -> list[Tally]:
    """The tallies of several frameworks over triples drawn in the same order; `plain`: in bf16, nothing else asked."""
    first = list(islice(triples(seed), count))
    found = []
    for name in names:
        release = framework(name).default_version
        if name == "megatron":
            release = os.environ.get("MEGATRON_RELEASE", release)
        tally = Tally(name)
        good = _legal(tally, release, triples(seed), count, legal, seed, plain) if legal else iter(())
        wrong = (
            illegal_launch(triple, name, seed + i) for i, triple in enumerate((first * illegal)[:illegal])
        )
        with tempfile.TemporaryDirectory() as folder:
            found.append(accept(tally, release, good, (case for case in wrong if case), Path(folder)))
        print(summary(found[-1]), file=sys.stderr, flush=True)
    return found


def summary(tally: Tally) -> str:
    """One line of a framework's tally."""
    own = (
        f"{tally.judged} judged by its own code, {len(tally.refused)} refused"
        if tally.judged
        else "table only"
    )
    return (
        f"{tally.framework}: {tally.triples} triples, {tally.written} launches ({tally.best} best plans), "
        f"{sum(tally.not_expressible.values())} not expressible; {own}, {len(tally.wrong_values)} with other values, "
        f"{tally.groups} kinds of rank groups, {len(tally.wrong_groups)} wrong; "
        f"{tally.ranks} ranks built ({tally.ranks_with_parameters} with parameters), {len(tally.wrong_ranks)} wrong, "
        f"{sum(tally.not_built.values())} not buildable; {len(tally.wrongly_read_back)} read back otherwise, "
        f"{sum(tally.said_otherwise.values())} as their README says; "
        f"illegal: {tally.illegal_refused} of {tally.illegal} refused"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--frameworks", nargs="+", default=list(STACKS), choices=list(STACKS))
    parser.add_argument("--triples", type=int, default=200)
    parser.add_argument("--legal", type=int, default=5, help="beside the best plan; with 0 not even that")
    parser.add_argument("--illegal", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="bf16, no options of stacks, no axes held fixed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tallies = run(
        options.frameworks, options.triples, options.legal, options.illegal, options.seed, options.plain
    )
    if options.json:
        options.json.write_text(json.dumps([tally.facts() for tally in tallies], indent=1))
    raise SystemExit(0 if all(tally.clean for tally in tallies) else 1)


if __name__ == "__main__":
    main()
