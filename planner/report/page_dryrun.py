"""What stands on a page about a dry run? Its verdict, memory over the step, and what is held at the peak.

Left out: layout (`html`), and how the step was run.
"""

from __future__ import annotations

from planner.report import charts, dryrun_charts
from planner.report.dryrun_charts import short, word_of
from planner.report.dryrun_file import DryRunFile, RankFile, SnapshotFile, needed_once
from planner.report.facts import MEMORY_WORDS, Figure
from planner.report.page import Block, Page, Section, Tone, chart, lines, table
from planner.report.snapshot import HEADS, remarks, unmatched_rows
from planner.report.words import texts
from planner.spec.verdict import MemoryVerdict
from planner.units import GIB, format_capacity

_TONES: dict[MemoryVerdict, Tone] = {
    MemoryVerdict.FITS: "good", MemoryVerdict.BORDERLINE: "fair", MemoryVerdict.DOES_NOT_FIT: "bad",
}  # fmt: skip
_ROWS = 30  # of what is held


def dryrun_page(result: DryRunFile) -> Page:
    """The page of a dry run."""
    charts.require_altair()
    worst = result.worst
    sections = [Section("answer", "The answer", tuple(_answer(result, worst)))]
    if len(result.ranks) > 1:
        sections.append(_ranks(result))
    if worst.timeline:
        of = f" of rank {worst.rank}" if len(result.ranks) > 1 else ""
        sections.append(Section("timeline", f"Memory{of} over a step", (_timeline(worst),)))
    sections.append(Section("held", "Held at the peak", (_held(worst),)))
    if result.snapshot is not None:
        sections.append(_snapshot(result.snapshot, result))
    ran = ", ".join(f"{name} {version}" for name, version in result.software.items())
    said = [f"{worst.operations:,} operations a step, of {ran}", *texts(result.assumptions)]
    sections.append(Section("assumed", "Ran, and assumed", (lines(said),)))
    return Page(
        title=f"{result.model} on {result.devices:,} {result.accelerator}",
        kicker="dry run",
        verdict=MEMORY_WORDS[worst.verdict],
        tone=_TONES[worst.verdict],
        lead=result.configuration,
        lead_is_code=True,
        sections=tuple(sections),
        subject=(result.stack,),
    )


def _answer(result: DryRunFile, worst: RankFile) -> list[Block]:
    where = f"{worst.phase}: {short(worst.operation)}" + (f", {worst.module}" if worst.module else "")
    figures = [
        Figure("allocated peak", _gib(worst.allocated_peak), where),
        Figure(
            "reserved peak",
            _gib(worst.reserved_peak),
            f"of {_gib(worst.limit)} that the allocator can have",
        ),
        *(Figure(name, _gib(size), said) for name, size, said in needed_once(worst)),
    ]
    if result.estimated_peak is not None:
        figures.append(Figure("estimate", _gib(result.estimated_peak), "with all that lies outside PyTorch"))
    if result.largest_micro_batch is not None:
        figures.append(Figure("largest micro-batch", f"{result.largest_micro_batch:,}", "that runs"))
    if result.longest_sequence is not None:
        figures.append(Figure("longest sequence", f"{result.longest_sequence:,} tokens", "that runs"))
    said = []
    if (failed := worst.out_of_memory) is not None:
        said.append(
            f"out of memory: {format_capacity(failed.tried)} asked for, {format_capacity(failed.allocated)} "
            f"allocated, {format_capacity(failed.unallocated)} reserved but unallocated"
        )
    if worst.helped_by:
        said.append(f"would fit with PYTORCH_CUDA_ALLOC_CONF={' or '.join(worst.helped_by)}")
    return [Block("figures", figures=tuple(figures)), *([lines(said)] if said else [])]


def _ranks(result: DryRunFile) -> Section:
    rows = [
        (str(one.rank), f"{one.allocated_peak / GIB:.2f}", f"{one.reserved_peak / GIB:.2f}", str(one.phase),
         one.module, MEMORY_WORDS[one.verdict])
        for one in result.ranks
    ]  # fmt: skip
    marked = result.ranks.index(result.worst)
    heads = ("rank", "allocated GiB", "reserved GiB", "phase", "module", "")
    return Section("ranks", "Peak of each rank", (table(heads, rows, marked),))


def _timeline(rank: RankFile) -> Block:
    text = (
        "What is allocated by what it holds, and what is reserved (the line), event by event of one step. "
        "The pointer shows the operation and its module."
    )
    return chart(
        "memory-timeline", text, dryrun_charts.memory_timeline(rank), dryrun_charts.memory_legend(rank)
    )


def _held(rank: RankFile) -> Block:
    rows = [
        (word_of(one.holds), one.module, f"{one.size / GIB:.2f}", f"{one.blocks:,}")
        for one in rank.alive[:_ROWS]
    ]
    if rest := rank.alive[_ROWS:]:
        size, blocks = sum(one.size for one in rest), sum(one.blocks for one in rest)
        rows.append(("others", "", f"{size / GIB:.2f}", f"{blocks:,}"))
    return table(("what", "made in", "GiB", "blocks"), rows)


def _snapshot(run: SnapshotFile, result: DryRunFile) -> Section:
    ran = next(one for one in result.ranks if one.rank == run.rank)
    figures = (
        Figure(
            "allocated peak",
            _gib(run.allocated_peak),
            f"dry run {_gib(ran.allocated_peak)}, {run.allocated_off:+.1%}",
        ),
        Figure(
            "reserved peak",
            _gib(run.reserved_peak),
            f"dry run {_gib(ran.reserved_peak)}, {run.reserved_off:+.1%}",
        ),
    )
    blocks = [Block("figures", figures=figures)]
    if run.events:
        text = "What the run had allocated and reserved over the history of its snapshot."
        drawn = dryrun_charts.run_timeline(run.timeline)
        blocks.append(chart("run-timeline", text, drawn, dryrun_charts.RUN_LEGEND))
    if rows := unmatched_rows(run.only_run, run.only_dryrun):
        blocks += [
            Block("text", text="Blocks at the peak that only one of the two has, by size:"),
            table(HEADS, rows),
        ]
    if said := remarks(run.events, run.allocated_at_start, run.out_of_memory):
        blocks.append(lines(said))
    return Section("snapshot", f"Beside the run of the snapshot, device {run.device}", tuple(blocks))


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"
