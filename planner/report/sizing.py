"""What came of sizing a cluster? Plain data, and a document for the terminal."""

from __future__ import annotations

import math

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType

from planner import __version__
from planner.answer.growth import PASSING_GAIN, PAYING_SPEEDUP, Doubling, Point
from planner.answer.outcome import run_days
from planner.answer.size import Goal, Sizing
from planner.report.facts import count, days, days_cell, key_figures, noun_in, precise_time
from planner.report.outcome import Facts, cost_of, money, outcome_facts, routing_of, shared_assumptions
from planner.report.tables import Fitting, WordTable
from planner.report.text import bullets, labelled, prose, section
from planner.report.words import dumped, line_of, text_of, texts
from planner.spec.findings import Finding, finding
from planner.spec.planfile import Verdict

_MOST_TRIED = 40


def sizing_facts(sizing: Sizing) -> Facts:
    """The sizing as plain data, in planner's inner units."""
    return {
        "kind": "sizing",
        "planner_version": __version__,
        "headline": headline(sizing),
        "subject": [_subject(sizing)],
        "goal": str(sizing.goal),
        "target": sizing.target,
        "found": sizing.found,
        "answer": _point(sizing.answer),
        "fewest": _point(sizing.fewest),
        "cheapest": _point(sizing.cheapest),
        "fastest": _point(sizing.fastest),
        "knee": sizing.knee.gpus if sizing.knee else None,
        "curve": [_point(point) for point in sizing.curve],
        "curve_ended": dumped(sizing.end),
        "least_gpus": sizing.least_gpus,
        "longest_days": _finite(sizing.longest),
        "landmarks": _landmarks(sizing),
        "doublings": [
            {
                "from": d.start.gpus,
                "to": d.end.gpus,
                "speedup": d.speedup,
                "pays": d.pays,
                "binds": d.binds and d.binds.model_dump(),
                "excess_seconds": dict(d.excess),
            }
            for d in sizing.doublings
        ],
        "tried": [
            {
                "gpus": point.gpus,
                "nodes": point.nodes,
                "global_batch": point.batch,
                "verdict": str(point.plan.verdict),
                "days": _finite(point.days) if point.run else None,
                "cost": _finite(point.cost),
                "reason": dumped(point.reason),
            }
            for point in sizing.tried
        ],
        "global_batch": sizing.batch.model_dump(),
        "assumptions": dumped(_assumptions(sizing)),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _point(point: Point | None) -> Facts | None:
    return outcome_facts(point.plan) if point else None


def sizing_document(sizing: Sizing) -> RenderableType:
    """The answer, the curve with its knee, and what was tried."""
    blocks: list[RenderableType] = [prose(headline(sizing), "bold green" if sizing.found else "bold red")]
    blocks.append(prose(_subject(sizing)))
    if sizing.answer is not None and sizing.answer.best is not None:
        best = sizing.answer.best
        noun = _noun(sizing)
        figures = labelled((figure.label, figure.value, figure.note) for figure in key_figures(best, noun))
        blocks.append(section(f"{sizing.answer.gpus:,} {noun}s: {best.config.text}", figures))
    if landmarks := _landmarks(sizing):
        blocks.append(section("Sizes", bullets(landmarks)))
    if len(sizing.curve) > 1:
        blocks.append(section("Time and cost over size", _curve(sizing), *_notes(sizing)))
    blocks.append(section("Tried", prose(_tried(sizing)), *_refused(sizing)))
    blocks.append(section("Assumed", bullets(texts(_assumptions(sizing)))))
    return Group(*blocks)


def _noun(sizing: Sizing) -> str:
    return noun_in(sizing.tried[0].plan)


def _subject(sizing: Sizing) -> str:
    subject = sizing.tried[0].plan.subject
    where = f"{subject.model.name} on {subject.cluster.name}"
    answer = sizing.answer
    several = len({point.batch for point in sizing.tried}) > 1
    own = f", {answer.batch:,} at {answer.gpus:,} {_noun(sizing)}s" if answer is not None and several else ""
    return f"{where}: sequences of {subject.job.lengths('')}, {text_of(sizing.batch)}{own}"


def headline(sizing: Sizing) -> str:
    """The answer in one sentence."""
    answer, target = sizing.answer, sizing.target
    if answer is None or answer.best is None:
        return _no_answer(sizing)
    size = f"{answer.gpus:,} {_noun(sizing)}s ({answer.nodes:,} node{'s' if answer.nodes > 1 else ''})"
    run = answer.run
    whole = f"{days(run_days(run))}, {cost_of(run) or 'price not known'}" if run else ""
    if sizing.goal is Goal.DAYS and target is not None:
        return f"{size} are the fewest tried that end within {days(target)}: {whole}"
    if sizing.goal is Goal.BUDGET and target is not None:
        return f"{size} are the fastest tried within {money(target)}: {whole}"
    return f"{size} are the fewest that fit" + (f": {whole}" if whole else "")


def _no_answer(sizing: Sizing) -> str:
    noun = _noun(sizing)
    if sizing.fewest is None:
        last = sizing.tried[-1]
        return f"nothing runs on up to {last.gpus:,} {noun}s: {line_of(last.reason)}"
    fast, cheap = sizing.fastest, sizing.cheapest
    if sizing.goal is Goal.DAYS and fast is not None and sizing.target is not None:
        most = f"the fastest, {fast.gpus:,} {noun}s, takes {days(fast.days)}"
        return f"no size ends within {days(sizing.target)}: {most}"
    assert sizing.target is not None, "only goals with a target can fail where something fits"
    least = f": the cheapest, {cheap.gpus:,} {noun}s, costs {money(cheap.cost)}" if cheap else ""
    return f"no size stays within {money(sizing.target)}{least}"


def _landmarks(sizing: Sizing) -> list[str]:
    lines, noun = [], _noun(sizing)
    for word, point in (
        ("fewest that fit" if not sizing.least_gpus else "smallest tried", sizing.fewest),
        ("cheapest", sizing.cheapest if sizing.curve else None),
        ("fastest", sizing.fastest if sizing.curve else None),
    ):
        if point is not None and point.best is not None:
            run = point.run
            whole = f": {days(run_days(run))}" if run else f": {precise_time(point.best.step_time)} a step"
            price = f", {money(run.cost)}" if run and run.cost is not None else ""
            lines.append(f"{word}: {point.gpus:,} {noun}s{whole}{price}")
    if sizing.least_gpus:
        least = f"fewer than {sizing.least_gpus:,} {noun}s would take more than {days(sizing.longest)}"
        lines.append(f"{least} even at their peak: not looked at")
    better = _better(sizing)
    if better is not None:
        whole = f"{days(better.days)}, {money(better.cost)}"
        lines.append(f"{better.gpus:,} {noun}s end sooner than the answer and cost less: {whole}")
    if sizing.knee is not None:
        bad = next(d for d in sizing.doublings if d.start is sizing.knee)
        lines.append(
            f"knee: {sizing.knee.gpus:,} {noun}s; doubling gives only {bad.speedup:.2f}x, limited by "
            + (text_of(bad.binds) if bad.binds else "nothing in particular")
        )
    elif len(sizing.curve) > 1:
        lines.append(f"no knee up to {sizing.curve[-1].gpus:,} {noun}s: every doubling is worthwhile")
    return lines


def _better(sizing: Sizing) -> Point | None:
    """The cheapest size tried that is both faster and cheaper than the answer, if there is one."""
    answer = sizing.answer
    if answer is None or answer.run is None or sizing.goal is Goal.BUDGET:
        return None
    found = [p for p in sizing.tried if p.days < answer.days and p.cost < answer.cost]
    return min(found, key=lambda point: point.cost, default=None)


_HEADS = (
    "{noun}s", "batch", "step", "days", "faster", "{noun}-hours", "cost", "goodput", "", "main scaling loss",
)  # fmt: skip
_WIDTHS = (tuple(range(10)), (0, 1, 2, 3, 4, 6, 8, 9), (0, 1, 3, 4, 6, 8, 9))


def _curve(sizing: Sizing) -> RenderableType:
    by_end: dict[int, Doubling] = {d.end.gpus: d for d in sizing.doublings}
    rows = [_row(point, by_end.get(point.gpus), sizing) for point in sizing.curve]
    tables: list[RenderableType] = []
    several = len({point.batch for point in sizing.curve}) > 1
    widths = [tuple(index for index in width if several or _HEADS[index] != "batch") for width in _WIDTHS]
    for width, wraps in (*((width, False) for width in widths), (widths[-1], True)):
        table = WordTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
        for index in width:
            last = index == len(_HEADS) - 1
            table.add_column(
                _HEADS[index].format(noun=_noun(sizing)),
                justify="left" if index >= 8 else "right",
                no_wrap=not (last and wraps),
            )
        for point, row in zip(sizing.curve, rows, strict=True):
            style = "bold" if point is sizing.answer else ""
            table.add_row(*(prose(row[i], style or ("yellow" if i == 8 else "")) for i in width))
        tables.append(table)
    return Fitting(tables)


def _row(point: Point, doubling: Doubling | None, sizing: Sizing) -> tuple[str, ...]:
    best, run = point.best, point.run
    assert best is not None, "the curve holds sizes at which something fits"
    marks = [
        word
        for word, marked in (("answer", sizing.answer), ("knee", sizing.knee))
        if marked is not None and marked.gpus == point.gpus
    ]
    return (
        f"{point.gpus:,}",
        f"{point.batch:,}",
        precise_time(best.step_time),
        days_cell(run_days(run)) if run else "",
        f"{doubling.speedup:.2f}x" if doubling else "",
        count(run.held_gpu_hours or run.gpu_hours) if run else "",
        money(run.cost) if run else "",
        f"{100 * run.goodput:.1f} %" if run and run.goodput else "",
        ", ".join(marks),
        text_of(doubling.binds) if doubling and doubling.binds else "",
    )


def _notes(sizing: Sizing) -> list[RenderableType]:
    rule = f"a doubling is worthwhile if it is at least {PAYING_SPEEDUP:g}x faster"
    last = sizing.curve[-1]
    batch = last.run.batch if last.run else None
    said = f"at {last.gpus:,} {_noun(sizing)}s: {text_of(batch)}" if batch is not None else ""
    notes = (f"{rule}; the curve ends here: {line_of(sizing.end)}", said)
    return [prose(note, "dim") for note in notes if note]


def _tried(sizing: Sizing) -> str:
    sizes = [f"{point.gpus:,}" for point in sizing.tried]
    shown = ", ".join(sizes[:_MOST_TRIED]) + (", ..." if len(sizes) > _MOST_TRIED else "")
    if len(sizes) == 1:
        return f"{shown} {_noun(sizing)}s"
    full = f"{sizing.answer.gpus:,} {_noun(sizing)}s" if sizing.answer else "the answer"
    return (
        f"{len(sizes)} sizes of whole nodes: {shown}; sizes between them may do slightly better; uneven splits of the "
        f"layers are solved in full for {full}, where others may be up to {PASSING_GAIN:.0%} slower than they need be"
    )


def _refused(sizing: Sizing) -> list[RenderableType]:
    """The largest size that is too small, and the sizes that cannot be split, a line each."""
    small = [point for point in sizing.tried if point.plan.verdict is Verdict.NOTHING_FITS]
    odd = [f"{point.gpus:,}" for point in sizing.tried if point.plan.verdict is Verdict.NOTHING_LEGAL]
    lines = [f"{small[-1].gpus:,} {_noun(sizing)}s: {line_of(small[-1].reason)}"] if small else []
    if odd:
        batch = "the batch" if sizing.chooses_batch else f"{sizing.tried[0].batch:,} sequences"
        lines.append(
            f"{', '.join(odd)} {_noun(sizing)}s: no legal way to split the model and {batch} over them"
        )
    return [bullets(lines)] if lines else []


def _assumptions(sizing: Sizing) -> tuple[Finding, ...]:
    chosen = sizing.answer or sizing.fewest or sizing.tried[-1]
    own = finding("batch_of_each_size" if sizing.chooses_batch else "batch_fixed")
    spares: tuple[Finding, ...] = ()
    if chosen.run is not None and chosen.run.spare_nodes_needed is not None:
        needed = chosen.run.spare_nodes_needed
        spares = (finding("spare_nodes_held", held=chosen.run.spare_nodes, needed=needed),)
    routing = routing_of(chosen.plan.choices[0]) if chosen.plan.choices else ()
    return (own, *spares, *shared_assumptions([chosen.plan]), *routing)
