"""Which clusters were compared, and how do they stand? Plain data, and a document for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.text import Text

from planner import __version__
from planner.answer.compare import Comparison, Objective, Standing
from planner.answer.outcome import run_days
from planner.dialect import option
from planner.report.facts import MEMORY_WORDS, days, days_cell, ends_in_percent, precise_time
from planner.report.outcome import (
    Facts,
    band_of_days,
    choice_lines,
    money,
    outcome_facts,
    shared_assumptions,
)
from planner.report.tables import Fitting, WordTable
from planner.report.text import bullets, prose, section
from planner.report.words import dumped, line_of, text_of, texts
from planner.spec.findings import Finding, finding
from planner.spec.machine.load_cluster import noun_of
from planner.spec.verdict import MemoryVerdict
from planner.units import GIB, format_count, format_energy

_OBJECTIVE_WORDS = {
    Objective.STEP_TIME: "step time",
    Objective.DAYS: "days",
    Objective.COST: "cost",
    Objective.ENERGY: "energy",
}
_FIRST_WORDS = {
    Objective.STEP_TIME: "is fastest",
    Objective.DAYS: "ends first",
    Objective.COST: "costs least",
    Objective.ENERGY: "takes least energy",
}
_STYLES = {MemoryVerdict.FITS: "", MemoryVerdict.BORDERLINE: "yellow", MemoryVerdict.DOES_NOT_FIT: "red"}


def comparison_facts(comparison: Comparison) -> Facts:
    """The comparison as plain data, in planner's inner units."""
    rows = []
    for place, standing in enumerate(comparison.standings, start=1):
        facts = (
            outcome_facts(standing.plan)
            if standing.plan
            else {
                "verdict": "refused",
                "gpus": standing.gpus,
                "accelerator": standing.accelerator,
            }
        )
        head: Facts = {"place": place if standing.best else None, "cluster": standing.cluster}
        reason = {"reason": dumped(standing.reason)} if standing.reason else {}
        rows.append(head | facts | reason | {"seconds": standing.seconds})
    return {
        "kind": "comparison",
        "planner_version": __version__,
        "headline": headline(comparison),
        "subject": _subject(comparison),
        "objective": str(comparison.objective),
        "found": comparison.found,
        "tokens": comparison.tokens,
        "global_batch": comparison.batch.model_dump(),
        "clusters": rows,
        "assumptions": dumped(_assumptions(comparison)),
    }


def comparison_document(comparison: Comparison) -> RenderableType:
    """The verdict, the table, what stands behind each row, and what is assumed."""
    first = comparison.standings[0]
    style = "bold red" if first.best is None else "bold green"
    if first.best and first.value(comparison.objective) is None:
        style = "bold yellow"
    blocks: list[RenderableType] = [prose(headline(comparison), style)]
    blocks += [prose(line) for line in _subject(comparison)]
    running = [standing for standing in comparison.standings if standing.best]
    if running:
        blocks += [Text(""), _table(running, comparison.tokens is not None)]
    for standing in comparison.standings:
        blocks.append(_details(standing))
    blocks.append(section("Assumed", bullets(texts(_assumptions(comparison)))))
    return Group(*blocks)


def _noun(standings: Sequence[Standing]) -> str:
    """What their devices are called."""
    return noun_of(standing.accelerator for standing in standings)


def headline(comparison: Comparison) -> str:
    """Which cluster is first, in one sentence."""
    word = _OBJECTIVE_WORDS[comparison.objective]
    best = comparison.standings[0]
    if best.best is None:
        return "none of these clusters can train the model"
    mine = best.value(comparison.objective)
    if mine is None:
        return f"the {word} of no cluster is known: give {option('assume', 'price=2.50 $/h')}"
    listed = best.best.run is not None and best.best.run.list_price
    amount = _amount(mine, comparison.objective, listed)
    if sum(s.best is not None for s in comparison.standings) == 1 < len(comparison.standings):
        return f"only {best.cluster} can train the model: {amount}"
    others = [s for s in comparison.standings[1:] if s.value(comparison.objective) is not None]
    text = f"{best.cluster} {_FIRST_WORDS[comparison.objective]}: {amount}"
    if others and (next_best := others[0].value(comparison.objective)) and mine:
        longer = comparison.objective in (Objective.STEP_TIME, Objective.DAYS)
        times = f"{next_best / mine:.2f}"
        takes = f"takes {times} times as {'long' if longer else 'much'}"
        text += f"; {others[0].cluster} {takes if times != '1.00' else 'is as good within 0.5 %'}"
    return text


def _amount(value: float, objective: Objective, listed: bool) -> str:
    """A value of the objective with its unit. `listed`: dollars are at a list price."""
    if objective is Objective.STEP_TIME:
        return f"{precise_time(value)} a step"
    if objective is Objective.DAYS:
        return days(value)
    if objective is Objective.ENERGY:
        return format_energy(value)
    return f"{money(value)}{' at list price' if listed else ''} for the run"


def _subject(comparison: Comparison) -> list[str]:
    subject = next((s.plan.subject for s in comparison.standings if s.plan), None)
    if subject is None:
        return []
    tokens = (
        f", {format_count(comparison.tokens).replace(' ', '')} tokens in all" if comparison.tokens else ""
    )
    first = f"{subject.model.name}: sequences of {subject.job.lengths('')}, {subject.job.precision}{tokens}"
    return [first, text_of(comparison.batch)]


_HEADS = (
    "{noun}s",
    "step",
    "tok/s/{noun}",
    "MFU %",
    "days",
    "cost",
    "energy",
    "goodput",
    "free GiB",
    "memory",
)
_WIDTHS = (tuple(range(10)), (0, 1, 2, 4, 5, 7, 8, 9), (0, 1, 4, 5, 7, 8, 9), (0, 1, 4, 5, 8), (0, 1, 5))


def _table(standings: list[Standing], with_run: bool) -> RenderableType:
    rows = [_cells(standing) for standing in standings]
    tables: list[RenderableType] = []
    noun = _noun(standings)
    for width in _WIDTHS:
        kept = [i for i in width if with_run or _HEADS[i] not in ("days", "cost", "energy", "goodput")]
        table = WordTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
        table.add_column("cluster", no_wrap=True)
        for index in kept:
            justify = "left" if _HEADS[index] == "memory" else "right"
            table.add_column(_HEADS[index].format(noun=noun), justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for standing, row in zip(standings, rows, strict=True):
            best = standing.best
            style = _STYLES[best.memory.verdict] if best else ""
            cells = [prose(row[i], style if _HEADS[i] == "memory" else "") for i in kept]
            table.add_row(prose(standing.cluster, "bold" if standing is standings[0] else ""), *cells)
        tables.append(table)
    return Fitting(tables)


def _cells(standing: Standing) -> tuple[str, ...]:
    best = standing.best
    assert best is not None, "only clusters with a plan are in the table"
    run = best.run
    return (
        f"{standing.gpus:,}",
        precise_time(best.step_time),
        f"{best.tokens_per_second_per_device:,.0f}",
        f"{100 * best.mfu:.1f}",
        days_cell(run_days(run)) if run else "",
        money(run.cost) if run else "",
        format_energy(run.energy) if run and run.energy else "",
        f"{100 * run.goodput:.1f} %" if run and run.goodput else "",
        f"{(best.memory.limit - best.memory.peak) / GIB:.1f}",
        MEMORY_WORDS[best.memory.verdict],
    )


def _details(standing: Standing) -> RenderableType:
    noun = _noun([standing])
    if standing.best is None:
        count = f", {standing.gpus:,} {noun}s" if standing.gpus else ""
        return section(f"{standing.cluster}{count}: no plan", prose(line_of(standing.reason)))
    whole = band_of_days(standing.best)
    lines = [*choice_lines(standing.best, noun), *([f"whole run {whole}"] if whole else [])]
    if standing.plan and standing.plan.confidence.level:
        trust = standing.plan.confidence
        lines.append(f"step time, 80% interval: {ends_in_percent(trust.band)} ({trust.level})")
    return section(f"{standing.cluster}, {standing.gpus:,} {noun}s", bullets(lines))


def _assumptions(comparison: Comparison) -> tuple[Finding, ...]:
    """What all plans assumed, then what only some did, under the cluster's name."""
    plans = [(standing.cluster, standing.plan) for standing in comparison.standings if standing.plan]
    every = shared_assumptions(plan for _, plan in plans)
    common = [line for line in every if all(line in plan.assumptions for _, plan in plans)]
    single = [
        line.model_copy(update={"text": f"{cluster}: {text_of(line)}"})
        for cluster, plan in plans
        for line in plan.assumptions
        if line not in common
    ]
    if comparison.tokens is None:
        return (*common, *single)
    return (*common, *single, finding("devices_given", noun=_noun(comparison.standings)))
