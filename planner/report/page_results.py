"""What stands on a page about several clusters side by side, or about sizes of one?

Left out: layout (`html`), and how either answer was found.
"""

from __future__ import annotations

from planner.report import chart_data, charts, facts
from planner.report.dryrun_file import DryRunFile
from planner.report.facts import Figure, tonnes
from planner.report.page import Block, Page, Section, chart, lines, table
from planner.report.result_file import ComparisonFile, Outcome, ResultFile, SizingFile, Standing
from planner.report.words import line_of, text_of, texts
from planner.spec.machine.load_cluster import noun_of
from planner.spec.terms import term_name
from planner.units import GIB, format_energy


def result_page(result: ResultFile) -> Page:
    """The page of a comparison, a sizing or a dry run."""
    charts.require_altair()
    if isinstance(result, DryRunFile):
        from planner.report.page_dryrun import dryrun_page  # needs no part of this

        return dryrun_page(result)
    return comparison_page(result) if isinstance(result, ComparisonFile) else sizing_page(result)


def comparison_page(result: ComparisonFile) -> Page:
    """Clusters side by side in the order of the objective."""
    running = [standing for standing in result.clusters if standing.step_time is not None]
    sections: list[Section] = []
    if running:
        rows = [(standing.cluster, *_cells(standing)) for standing in running]
        noun = noun_of(standing.accelerator for standing in running)
        heads = tuple(head.format(noun=noun) for head in _STANDING_HEADS)
        sections.append(Section("standings", "Side by side", (table(heads, rows, marked=0),)))
        sections.append(_steps(running))
        sections += _trade(running)
    for standing in result.clusters:
        title = standing.cluster + (f", {standing.gpus:,} {_noun(standing)}s" if standing.gpus else "")
        blocks = _outcome_blocks(standing)
        sections.append(Section(f"cluster-{len(sections)}", title, blocks))
    sections.append(Section("assumed", "Assumed", (lines(texts(result.assumptions)),)))
    return Page(
        title="Which cluster trains it best?",
        kicker="comparison of clusters",
        verdict="found" if result.found else "none can",
        tone="good" if result.found else "bad",
        lead=result.headline,
        sections=tuple(sections),
        subject=result.subject,
    )


_STANDING_HEADS = (
    "cluster", "{noun}s", "step", "tokens/s/{noun}", "MFU", "days", "cost", "energy", "goodput", "free", "memory",
)  # fmt: skip


def _noun(o: Outcome) -> str:
    """What its devices are called."""
    return noun_of([o.accelerator])


def _cells(o: Outcome) -> tuple[str, ...]:
    run = o.run
    return (
        f"{o.gpus:,}" if o.gpus else "",
        facts.precise_time(o.step_time) if o.step_time else "",
        f"{o.tokens_per_second_per_device:,.0f}" if o.tokens_per_second_per_device else "",
        f"{100 * o.mfu:.1f} %" if o.mfu else "",
        f"{o.days:,.1f}" if o.days else "",
        f"${facts.count(run.cost)}" if run and run.cost is not None else "",
        format_energy(run.energy) if run and run.energy else "",
        f"{100 * run.goodput:.1f} %" if run and run.goodput else "",
        f"{o.memory_headroom / GIB:.1f} GiB" if o.memory_headroom is not None else "",
        o.memory_verdict.replace("_", " "),
    )


def _steps(running: list[Standing]) -> Section:
    rows = chart_data.standing_rows([standing.model_dump() for standing in running])
    text = "Seconds of a step, by what they go to. Communication counts where computing does not hide it."
    drawn = chart("standings", text, charts.standings_chart(rows), charts.kind_legend(rows))
    return Section("steps", "Where each step goes", (drawn,))


def _trade(running: list[Standing]) -> list[Section]:
    rows = chart_data.trade_rows([standing.model_dump() for standing in running])
    if len(rows) < 2:
        return []
    drawn = chart(
        "trade", "Days against cost of the whole run; lower left is better.", charts.trade_chart(rows)
    )
    return [Section("trade", "Time and cost", (drawn,))]


def _outcome_blocks(o: Outcome) -> tuple[Block, ...]:
    if o.step_time is None:
        return (Block("text", text=line_of(o.reason) or "no plan"),)
    limits = [f"{term_name(name)} {100 * share:.0f} %" for name, share in list(o.limits.items())[:3]]
    said = [o.configuration, f"the step is {', '.join(limits)}"]
    if o.run and o.run.price_per_device_hour is not None:
        said.append(facts.price_sentence(o.run, _noun(o)))
    if o.run and o.run.power_source:
        said.append(f"{o.run.power_per_device:,.0f} W per {_noun(o)}, {o.run.power_source}")
    if o.calibration_level:
        said.append(f"step time, 80% interval: {facts.ends_in_percent(o.band)} ({o.calibration_level})")
    return (Block("figures", figures=outcome_figures(o)), lines(said))


def outcome_figures(o: Outcome) -> tuple[Figure, ...]:
    """The figures one decides by."""
    found = []
    if o.step_time and o.step_time_low and o.step_time_high:
        band = facts.interval(facts.precise_time(o.step_time_low), facts.precise_time(o.step_time_high))
        found.append(Figure("step time", facts.precise_time(o.step_time), band))
    if o.tokens_per_second_per_device and o.mfu:
        rate = f"{o.tokens_per_second_per_device:,.0f} tokens/s/{_noun(o)}"
        found.append(Figure("throughput", rate, f"MFU {100 * o.mfu:.1f} %"))
    if o.memory_headroom is not None:
        word = o.memory_verdict.replace("_", " ")
        found.append(Figure("free memory", f"{o.memory_headroom / GIB:.1f} GiB", word))
    if o.days:
        low_high = (
            facts.interval(facts.days(o.days_low), facts.days(o.days_high))
            if o.days_low and o.days_high
            else ""
        )
        found.append(Figure("whole run", facts.days(o.days), low_high))
    if o.run and o.run.goodput:
        found.append(Figure("goodput", f"{100 * o.run.goodput:.1f} %", facts.goodput_sentence(o.run)))
    if o.run and o.run.cost is not None and o.run.price_per_device_hour is not None:
        price = f"${o.run.price_per_device_hour:.2f} per {_noun(o)}-hour"
        found.append(Figure("cost", f"${facts.count(o.run.cost)}", price))
    if o.run and o.run.energy:
        carbon = f"{tonnes(o.run.emissions)} CO2" if o.run.emissions is not None else ""
        found.append(Figure("energy", format_energy(o.run.energy), carbon))
    return tuple(found)


def sizing_page(result: SizingFile) -> Page:
    """The answer, the curve of time and money with its knee, and what was tried."""
    sections: list[Section] = []
    known = [point for point in (result.answer, result.fewest, *result.curve) if point is not None]
    noun = noun_of(point.accelerator for point in known)
    if result.answer is not None and result.answer.gpus is not None:
        title = f"{result.answer.gpus:,} {noun}s"
        sections.append(Section("answer", title, _outcome_blocks(result.answer)))
    if result.landmarks:
        sections.append(Section("landmarks", "Sizes", (lines(result.landmarks),)))
    if len(result.curve) > 1:
        sections.append(_curve(result, noun))
    rows = [
        (f"{t.gpus:,}", f"{t.nodes:,}", t.verdict.replace("_", " "), f"{t.days:,.1f}" if t.days else "",
         f"${facts.count(t.cost)}" if t.cost is not None else "", line_of(t.reason))
        for t in result.tried
    ]  # fmt: skip
    heads = (f"{noun}s", "nodes", "verdict", "days", "cost", "")
    sections.append(Section("tried", "Sizes tried", (table(heads, rows),), True))
    sections.append(Section("assumed", "Assumed", (lines(texts(result.assumptions)),)))
    return Page(
        title=f"How many {noun}s should it take?",
        kicker="size of a cluster",
        verdict="found" if result.found else "no such size",
        tone="good" if result.found else "bad",
        lead=result.headline,
        sections=tuple(sections),
        subject=result.subject,
    )


def _curve(result: SizingFile, noun: str) -> Section:
    marks: dict[int, str] = {}
    if result.knee is not None:
        marks[result.knee] = "knee"
    if result.answer is not None and result.answer.gpus is not None:
        known = marks.get(result.answer.gpus)
        marks[result.answer.gpus] = f"answer, {known}" if known else "answer"
    points, beside = [*result.curve], None
    if result.answer is not None and result.answer.gpus not in {point.gpus for point in points}:
        points.append(result.answer)
        beside = result.answer.gpus
    points.sort(key=lambda point: point.gpus or 0)
    rows = chart_data.curve_rows([point.model_dump() for point in points], marks, beside)
    over = f"over the number of {noun}s."
    blocks = [chart("days", f"Days of the run {over}", charts.curve_chart(rows, "days", noun))]
    if any(row["cost"] is not None for row in rows):
        blocks.append(chart("cost", f"Its price {over}", charts.curve_chart(rows, "cost", noun)))
    several = len({point.global_batch for point in result.curve}) > 1
    rest = ("step", "days", "faster", f"{noun}-hours", "cost", "goodput", "", "lost most to")
    heads = (f"{noun}s", "batch", *rest) if several else (f"{noun}s", *rest)
    blocks.append(table(heads, _curve_rows(result, several, marks)))
    blocks.append(Block("text", text=f"The curve ends here: {line_of(result.curve_ended)}."))
    return Section("curve", "Time and cost over size", tuple(blocks))


def _curve_rows(result: SizingFile, several: bool, marks: dict[int, str]) -> list[tuple[str, ...]]:
    ends = {doubling.to: doubling for doubling in result.doublings}
    found: list[tuple[str, ...]] = []
    for point in result.curve:
        doubling, run = ends.get(point.gpus or 0), point.run
        cells = _cells(point)
        batch = (f"{point.global_batch or 0:,}",) if several else ()
        found.append((
            cells[0], *batch, cells[1], cells[4], f"{doubling.speedup:.2f}x" if doubling else "",
            facts.count(run.held_gpu_hours or run.gpu_hours) if run else "", cells[5], cells[7],
            marks.get(point.gpus or 0, ""), text_of(doubling.binds) if doubling and doubling.binds else "",
        ))  # fmt: skip
    return found
