"""What stands on a page about an answer, and in which order? Sections of plain blocks, computed from the answer alone.

A block is a figure strip, a table, a chart, a drawing, a list or a sentence; `html` lays them out. Left out: layout,
colour, and which file the page goes to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from planner.report import chart_data, charts, facts, nearest, options_text, proof
from planner.report.facts import Figure
from planner.report.words import line_of, texts
from planner.spec.planfile import Choice, NearestRun, Plan, Verdict
from planner.spec.verdict import MemoryVerdict
from planner.units import GIB, format_capacity

Tone = Literal["good", "fair", "bad"]


@dataclass(frozen=True)
class Block:
    """One piece of a section. `kind`: which of the fields below it shows."""

    kind: Literal["figures", "table", "chart", "drawing", "lines", "text", "chips"]
    text: str = ""
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    marked: int | None = None
    figures: tuple[Figure, ...] = ()
    lines: tuple[str, ...] = ()
    name: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    legend: charts.Legend = ()


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    name: str
    title: str
    blocks: tuple[Block, ...]
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """A whole page. `tone` colours the verdict; `kicker` is the line above the title; `lead` a sentence, or a
    configuration."""

    title: str
    kicker: str
    verdict: str
    tone: Tone
    lead: str
    sections: tuple[Section, ...]
    lead_is_code: bool = False
    subject: tuple[str, ...] = ()


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], marked: int | None = None) -> Block:
    """A table; the row `marked` stands out."""
    return Block("table", heads=tuple(heads), rows=tuple(tuple(row) for row in rows), marked=marked)


def chart(name: str, text: str, spec: Mapping[str, Any], legend: charts.Legend = ()) -> Block:
    """A chart with the sentence that says what it shows."""
    return Block("chart", name=name, text=text, spec=spec, legend=legend)


def lines(items: Sequence[str]) -> Block:
    """A list."""
    return Block("lines", lines=tuple(items))


_VERDICTS: Mapping[Verdict, tuple[str, Tone]] = {
    Verdict.FOUND: ("fits", "good"),
    Verdict.NOTHING_FITS: ("nothing fits", "bad"),
    Verdict.NOTHING_LEGAL: ("nothing is legal", "bad"),
    Verdict.DOES_NOT_FIT: ("does not fit", "bad"),
    Verdict.ILLEGAL: ("not legal", "bad"),
}


def plan_page(plan: Plan, drawing: str = "", not_drawn: str = "") -> Page:
    """The page of a plan. `drawing`: its pipeline as an SVG; `not_drawn`: why there is none."""
    charts.require_altair()
    verdict, tone = _VERDICTS[plan.verdict]
    best = plan.choices[0] if plan.choices else None
    if plan.found and best and best.memory.verdict is MemoryVerdict.BORDERLINE:
        verdict, tone = "borderline", "fair"
    sections: list[Section] = []
    if best is not None:
        sections += _choice_sections(plan, best, drawing, not_drawn)
    else:
        sections += _why_not(plan)
    if plan.nearest_run is not None:
        sections.append(_published_section(plan, plan.nearest_run))
    if plan.search.candidates > 1:
        rows = [
            (("less " if line.taken_away else "") + line.label, f"{line.candidates:,}")
            for line in proof.space_account(plan.search)
        ]
        said = [proof.search_sentence(plan.search)]
        if plan.search.certificate is not None:
            said.insert(0, proof.proof_sentence(plan.search.certificate))
        blocks = (table(("", "candidates"), rows), lines(said))
        sections.append(Section("space", "The space searched", blocks, True))
    sections += _grounds(plan)
    model, cluster = plan.subject.model, plan.subject.cluster
    lead = best.config.text if best else facts.headline_lines(plan)[0]
    return Page(
        title=f"{model.name} on {cluster.devices:,} {cluster.accelerator}",
        kicker="training plan",
        verdict=verdict,
        tone=tone,
        lead=lead,
        lead_is_code=best is not None,
        sections=tuple(sections),
        subject=(*facts.subject_lines(plan), *options_text.turned_on_lines(plan)),
    )


def _choice_sections(plan: Plan, best: Choice, drawing: str, not_drawn: str) -> list[Section]:
    cautions = proof.cautions(plan)
    head: list[Block] = [
        Block("figures", figures=facts.key_figures(best, facts.noun_in(plan))[:4]),
        Block("chips", figures=_axes(best)),
    ]
    if said := facts.head_lines(plan):
        head.insert(0, lines(said))
    if plan.nearest is not None:
        head.append(Block("text", text=f"nearest that fits: {plan.nearest.config.text}"))
    if cautions:
        head.append(lines(cautions))
    if plan.smallest_change:
        head.append(lines([f"what would help: {each}" for each in texts(plan.smallest_change)]))
    sections = [Section("answer", "The answer", tuple(head))]
    if best.run is not None:
        sections.append(_run_section(best, facts.noun_in(plan)))
    if plan.search.stacks:
        sections.append(_stacks_section(plan))
    if len(plan.choices) > 1:
        sections.append(_top_section(plan))
    sections.append(_step_section(plan, best))
    sections.append(_memory_section(plan, best))
    if drawing:
        block = Block("drawing", name="pipeline", text=drawing)
        sections.append(Section("pipeline", "The pipeline, pass by pass", (block,)))
    elif not_drawn:
        sections.append(Section("pipeline", "The pipeline", (Block("text", text=not_drawn),)))
    front = chart_data.pareto_rows(plan)
    if len(front) > 1:
        text = (
            "Step time against free memory. On the line nothing is both faster and leaves more memory free."
        )
        block = chart("pareto", text, charts.pareto_chart(front), charts.pareto_legend(front))
        sections.append(Section("pareto", "What memory buys", (block,)))
    sections += _map_sections(plan, best)
    return sections


def _axes(choice: Choice) -> tuple[Figure, ...]:
    config = choice.config
    shown = [
        ("tensor", f"tp {config.tp}" + (" + sp" if config.sp else "")),
        ("context", f"cp {config.cp}"),
        ("pipeline", f"pp {config.pp}" + (f" x {config.vpp}" if config.vpp > 1 else "")),
        ("expert", f"ep {config.ep}" + (f", etp {config.etp}" if config.etp > 1 else "")),
        ("data", f"dp {config.dp}"),
        ("sharding", f"ZeRO {config.zero}"),
        ("micro-batch", f"{config.micro_batch} x {config.num_microbatches}"),
        ("recomputed", facts.recompute_word(config)),
    ]
    neutral = {"context": "cp 1", "pipeline": "pp 1", "expert": "ep 1", "tensor": "tp 1"}
    return tuple(Figure(label, value) for label, value in shown if neutral.get(label) != value)


def _run_section(best: Choice, noun: str) -> Section:
    assert best.run is not None, "asked only of runs with a length"
    blocks = [Block("figures", figures=facts.key_figures(best, noun)[4:])]
    rows = chart_data.goodput_rows(best.run)
    if rows:
        blocks.append(
            chart(
                "goodput",
                "What the wall clock goes to.",
                charts.goodput_chart(rows),
                charts.goodput_legend(rows),
            )
        )
    return Section("run", "The whole run", tuple(blocks))


def _stacks_section(plan: Plan) -> Section:
    standings = plan.search.stacks
    blocks = [
        table(("stack", "step", "slower", "configuration"), options_text.stack_rows(standings), marked=0)
    ]
    if said := options_text.lead_sentence(standings):
        blocks.append(Block("text", text=f"{said}."))
    return Section("stacks", "The stacks compared", tuple(blocks))


def _top_section(plan: Plan) -> Section:
    grid = facts.configuration_grid(plan.choices)
    versus, against = facts.against_first(plan.choices)
    heads = ("#", *grid.axes, "step", versus, f"tokens/s/{facts.noun_in(plan)}", "MFU", "memory", "")
    rows = []
    for number, (axes, choice) in enumerate(zip(grid.rows, plan.choices, strict=True), start=1):
        rows.append(
            (
                str(number),
                *axes,
                facts.precise_time(choice.step_time),
                against[number - 1],
                f"{choice.tokens_per_second_per_device:,.0f}",
                f"{100 * choice.mfu:.1f} %",
                f"{choice.memory.peak / GIB:.1f} GiB",
                facts.MEMORY_WORDS[choice.memory.verdict]
                + (", recommended" if plan.recommended == number - 1 > 0 else ""),
            )
        )
    blocks = [table(heads, rows, marked=0)]
    if grid.common:
        blocks.insert(0, Block("text", text=f"All with {grid.common}."))
    if grid.legend:
        blocks.append(Block("text", text=f"Stacks: {'; '.join(grid.legend)}."))
    if said := proof.once_sentence(plan.search):
        blocks.append(Block("text", text=f"{said.capitalize()}."))
    difference, *terms = facts.comparison(plan.choices[0], plan.choices[1], 2)
    detail = ": " + ", ".join(terms) if terms else ""
    blocks.append(Block("text", text=f"Against the runner-up: {difference}{detail}."))
    return Section("top", f"Best {len(plan.choices)}", tuple(blocks))


def _step_section(plan: Plan, best: Choice) -> Section:
    rows = chart_data.waterfall_rows(best.time, best.step_time)
    text = (
        f"{facts.precise_time(best.step_time)} a step, "
        + facts.interval(facts.precise_time(best.step_time_low), facts.precise_time(best.step_time_high))
        + ". Communication counts where it is not overlapped."
    )
    why = (lines(texts(best.why)),) if best.why else ()
    block = chart("waterfall", text, charts.waterfall_chart(rows), charts.kind_legend(rows))
    return Section("step", "Where the step goes", (block, *why))


def _memory_section(plan: Plan, best: Choice) -> Section:
    said = [text for text in (facts.logged_sentence(best.memory), facts.layers_sentence(best)) if text]
    blocks = (_memory_block(plan, best), lines(said))
    return Section("memory", "Memory of each pipeline rank at its peak", blocks)


def _memory_block(plan: Plan, choice: Choice) -> Block:
    rows = chart_data.memory_rows(choice.memory)
    capacity = plan.subject.cluster.memory_per_device / GIB
    drawn = charts.memory_chart(rows, choice.memory.limit / GIB, capacity)
    return chart("memory", facts.memory_sentence(choice.memory) + ".", drawn, charts.part_legend(rows))


def _map_sections(plan: Plan, best: Choice) -> list[Section]:
    cluster = plan.subject.cluster
    spans = chart_data.axis_spans(plan, best)
    if not spans:
        return []
    per_cell, _ = chart_data.cell_size(cluster)
    noun = facts.noun_in(plan)
    cells = {1: f"one {noun}", cluster.devices_per_node: "one node"}.get(per_cell, f"{per_cell:,} {noun}s")
    rows = [
        (s.axis, f"{s.size:,}", f"{s.stride:,}", f"{s.groups:,}", s.links, s.what) for s in spans
    ]  # fmt: skip
    blocks = [table(("axis", "ranks", "stride", "groups", "links they cross", "what they send"), rows)]
    every = chart_data.map_rows(spans, cluster)
    for span in spans:
        own = [row for row in every if row["axis"] == span.axis]
        text = f"{span.axis}: the {span.size:,} ranks that work with rank 0. A cell is {cells}."
        blocks.append(chart(f"map-{span.group}", text, charts.map_chart(own)))
    return [Section("map", "Which ranks talk over which links", tuple(blocks))]


def _published_section(plan: Plan, run: NearestRun) -> Section:
    shown = nearest.figures(plan, run, facts.noun_in(plan))
    blocks = (
        Block("text", text=nearest.settings_sentence(run) + "."),
        Block("figures", figures=shown),
        Block("text", text=run.link),
    )
    return Section("published", "Nearest published run", blocks)


def _why_not(plan: Plan) -> list[Section]:
    blocks = [
        Block("text", text=f"{broken.rule}: {broken.reason}. Hint: {broken.hint}")
        for broken in plan.violations
    ]
    if plan.smallest_change:
        helps = "" if plan.verdict is Verdict.NOTHING_FITS else "What would help: "
        blocks.append(Block("text", text=helps + line_of(plan.smallest_change)))
    sections = [Section("answer", "Why", tuple(blocks))] if blocks else []
    if plan.nearest is not None:
        near = plan.nearest
        title = "Needs least memory" if plan.verdict is Verdict.NOTHING_FITS else "Nearest legal"
        blocks = [
            Block("text", text=near.config.text),
            Block("figures", figures=facts.key_figures(near, facts.noun_in(plan))[:4]),
            _memory_block(plan, near),
        ]
        sections.append(Section("nearest", title, tuple(blocks)))
    elif plan.nearest_config is not None:
        text = Block("text", text=plan.nearest_config.text)
        sections.append(Section("nearest", "Nearest legal", (text,)))
    return sections


def _grounds(plan: Plan) -> list[Section]:
    cluster, stack = plan.subject.cluster, plan.subject.stack
    sources = [
        f"model: {plan.subject.model.source}",
        f"cluster: {cluster.source}",
        f"stack: {stack.name}, {stack.description}",
    ]
    if cluster.unverified:
        sources.append(f"unverified (no source): {', '.join(cluster.unverified)}")
    sources.append(
        f"memory: {format_capacity(cluster.memory_per_device)} a device, {100 * plan.headroom:g} % kept back"
    )
    return [
        Section("confidence", "How sure this is", (Block("text", text=proof.confidence_sentence(plan) + "."),)),
        Section("assumed", "Assumed", (lines(proof.assumed(plan)),)),
        Section("sources", "Sources", (lines(sources),)),
        Section("left-out", "Not modelled", (lines(texts(plan.not_modelled)),)),
    ]  # fmt: skip
