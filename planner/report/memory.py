"""What takes the memory, on which pipeline rank, at which moment? Plain data, and a document for the terminal.

The figures are the terms of the cost model that the search uses. Left out: how they come about (`cost.memory.moments`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from planner.cost.memory.moments import PHASES
from planner.cost.table import CostTable
from planner.dialect import option
from planner.report.facts import kept_back
from planner.report.text import bullets, labelled, listing, prose, section
from planner.report.words import dumped, text_of, texts
from planner.report.words.memory import lack_of
from planner.solve.moves import Move
from planner.spec.findings import Finding
from planner.spec.machine.architecture import DeviceWords
from planner.spec.planfile import Choice
from planner.spec.terms import term_name
from planner.units import GIB, format_capacity

# moments of a step under the phase that users know
SHOWN: Final = {
    "init": ("after_init",),
    "fwd": ("forward",),
    "loss": ("loss",),
    "bwd": ("head_backward", "backward", "layer_reduction", "layer_backward", "backward_end"),
    "reduce": ("gradient_reduction",),
    "update": ("optimizer",),
    "gath.": ("parameter_gather",),
}
_SHADES: Final = ("blue", "cyan", "green", "yellow", "magenta", "red", "bright_blue", "bright_green", "white")
_WIDTH: Final = 48
RESERVED: Final = "reserved memory"
CONTEXT: Final = "cuda_context"  # whatever the driver is


@dataclass(frozen=True)
class StageTerms:
    """Equal pipeline ranks: bytes by moment and term, the allocator's and what lies outside it."""

    ranks: tuple[int, ...]
    layers: int
    terms: Mapping[str, Mapping[str, float]]
    outside: Mapping[str, float]
    first_step_less: float

    def total(self, moment: str) -> float:
        """All of a moment, outside the allocator included [bytes]."""
        return sum(self.terms[moment].values()) + sum(self.outside.values())

    @property
    def binding(self) -> str:
        """The moment of the peak, the first of those equal to the byte."""
        return max(self.terms, key=lambda moment: round(self.total(moment)))

    @property
    def peak(self) -> float:
        """The most that these ranks hold [bytes]."""
        return self.total(self.binding)

    @property
    def first_step_peak(self) -> float:
        """The same in the first step, whose passes run before the optimizer's moments exist [bytes]."""
        return max(self.total(m) - (0.0 if m == "optimizer" else self.first_step_less) for m in self.terms)


@dataclass(frozen=True)
class Captured:
    """CUDA graphs by name and the bytes by which they raise the peak; `counted`: the configuration has them, else they
    are the widest that it could have."""

    graphs: str
    raised: float
    counted: bool


@dataclass(frozen=True)
class MemoryReport:
    """Everything about the memory of one configuration. `host`: bytes a node's host holds of what is offloaded;
    `host_memory`: what it has, None where the cluster does not say; `staging`: of a checkpoint it takes in on its way
    to storage; `captured`: None where no CUDA graphs are legal; `sequence`: the longest that fits, in
    steps of `sequence_step` [tokens]; `words`: in which users speak of the
    device."""

    choice: Choice
    stages: tuple[StageTerms, ...]
    moves: tuple[Move, ...]
    micro_batch: int
    sequence: int
    sequence_step: int
    checkpoint: float
    weights: float
    host: float
    staging: float
    error: float
    counter: str
    words: DeviceWords
    assumptions: tuple[Finding, ...] = ()
    captured: Captured | None = None
    host_memory: float | None = None


def stage_terms(
    cost: CostTable, row: int, outside: Mapping[str, float], moments_share: float
) -> tuple[StageTerms, ...]:
    """The terms of every class of stages. `moments_share`: of the optimizer's bytes, those born in the first update."""
    detail = cost.detail
    assert detail is not None, "costed with keep_terms"
    pipeline = int(detail.class_row[row])
    found = []
    for j, ranks in enumerate(detail.classes.members[pipeline]):
        terms: dict[str, dict[str, float]] = {
            moment: {name: float(v[row, j]) for name, v in detail.memory[moment].items() if v[row, j]}
            for moment in PHASES
            if moment in detail.memory
        }
        less = moments_share * terms["after_init"].get("optimizer", 0.0)
        layers = int(np.sum(detail.classes.layers[pipeline, j]))
        found.append(StageTerms(tuple(ranks), layers, terms, outside, less))
    return tuple(sorted(found, key=lambda stage: stage.ranks[0]))


def memory_facts(report: MemoryReport, stage: int | None) -> dict[str, Any]:
    """The report as plain data, bytes throughout."""
    memory = report.choice.memory
    return {
        "config": report.choice.config.model_dump(),
        "verdict": str(memory.verdict),
        "limit": memory.limit,
        "peak": memory.peak,
        "borderline_within": report.error,
        "binding_stage": memory.stage,
        "binding_moment": memory.phase,
        "logged": memory.logged,
        "logged_counter": report.counter,
        "stages": [_stage_facts(s) for s in _chosen(report.stages, stage)],
        "moves": [
            {
                "move": move.change.model_dump(),
                "config": move.config.describe(),
                "saved": move.saved,
                "slower": move.slower,
                "fits": move.fits,
            }
            for move in report.moves
        ],
        "largest_micro_batch": report.micro_batch,
        "longest_sequence": report.sequence,
        "longest_sequence_step": report.sequence_step,
        "checkpoint_full": report.checkpoint,
        "checkpoint_weights": report.weights,
        "host_per_node": report.host,
        "host_memory": report.host_memory,
        "cuda_graphs": None if report.captured is None else asdict(report.captured),
        "checkpoint_staging_per_node": report.staging,
        "assumptions": dumped(report.assumptions),
    }


def _stage_facts(stage: StageTerms) -> dict[str, Any]:
    return {
        "ranks": list(stage.ranks),
        "layers": stage.layers,
        "peak": stage.peak,
        "binding_moment": stage.binding,
        "first_step_peak": stage.first_step_peak,
        "outside_allocator": dict(stage.outside),
        "moments": {moment: dict(terms) for moment, terms in stage.terms.items()},
    }


def _chosen(stages: Sequence[StageTerms], stage: int | None) -> Sequence[StageTerms]:
    return stages if stage is None else [s for s in stages if stage in s.ranks]


def memory_document(report: MemoryReport, stage: int | None) -> RenderableType:
    """Verdict, table of stages and phases, a stacked bar for each, moves."""
    memory, chosen = report.choice.memory, _chosen(report.stages, stage)
    verdict = memory.verdict.replace("_", " ")
    style = {"fits": "bold green", "borderline": "bold yellow"}.get(str(memory.verdict), "bold red")
    head = (
        f"{report.choice.config.text}: {verdict}, {format_capacity(memory.peak)} of {format_capacity(memory.limit)} "
        f"usable{kept_back(memory)} on pipeline rank {memory.stage}, {term_name(memory.phase)}"
    )
    if memory.host_short:
        head += f"; {lack_of(memory)}"
    present = {name for s in chosen for name in s.terms}
    shown = {phase: moments for phase, moments in SHOWN.items() if present.intersection(moments)}
    heads = ("ranks", "layers", *shown, "peak", "first")
    rows = [
        (_span(s.ranks), str(s.layers), *(_of_phase(s, names) for names in shown.values()), _gib(s.peak),
         _gib(s.first_step_peak))
        for s in chosen
    ]  # fmt: skip
    blocks: list[RenderableType] = [
        prose(head, style),
        section(
            "Memory of each pipeline rank by phase [GiB]; first: peak of the first step", listing(heads, rows)
        ),
    ]
    blocks += [_stage_section(s, memory.limit, report.words) for s in chosen]
    if report.moves:
        moves = [
            (text_of(move.change), _gib(move.saved), f"{move.slower:+.1%}", "fits" if move.fits else "")
            for move in report.moves
        ]
        blocks.append(
            section("What saves memory [GiB]", listing(("change", "saved", "step time", ""), moves))
        )
    blocks.append(section("Also", labelled(_beside(report))))
    if report.assumptions:
        blocks.append(section("Assumed", bullets(texts(report.assumptions))))
    return Group(*blocks)


def _host(report: MemoryReport) -> tuple[str, str, str]:
    """What a node's host holds, beside what the cluster says it has, and of what."""
    whole, has = report.host + report.staging, report.host_memory
    held = format_capacity(whole) if whole else "nothing"
    parts = [f"offloaded {format_capacity(report.host)}"] if report.host else []
    parts += [f"a checkpoint's copy {format_capacity(report.staging)}"] if report.staging else []
    said = f"per node: {', '.join(parts) or 'nothing is offloaded'}"
    if has is None:
        said += " (not checked: the cluster does not say what a host has, node.host_memory)"
    elif whole > has >= report.host:
        said += f"; none is made with {option('assume', 'checkpoint_writing=blocking')}"
    of = f" of {format_capacity(has)}" if has is not None and whole else ""
    return "host memory", f"{held}{of}{': over the limit' if has is not None and whole > has else ''}", said


def _beside(report: MemoryReport) -> list[tuple[str, str, str]]:
    graphs = []
    if (found := report.captured) is not None:
        said = (
            f"of the peak, for {found.graphs}"
            if found.counted
            else f"if captured by {found.graphs}; not counted"
        )
        graphs = [("CUDA graphs", f"+{format_capacity(found.raised)}", said)]
    memory = report.choice.memory
    outside = sum(report.stages[0].outside.values()) if report.counter == RESERVED else 0.0
    held = memory.logged > (memory.peak - outside) * (1 + 1e-9)  # blocks that are free, but not returned yet
    freed = "; the verdict leaves out blocks that PyTorch returns when memory is short" * held
    steps = f"all else unchanged, in steps of {report.sequence_step:,}"
    return [
        ("logged", format_capacity(memory.logged), f"the stack's counter: {report.counter}"),
        (report.words.monitor, format_capacity(max(memory.peak, memory.logged + outside)),
         f"with everything outside the allocator{freed}"),
        ("micro-batch", f"{report.micro_batch:,}", "largest that fits, all else unchanged")
        if report.micro_batch
        else ("micro-batch", "none fits", "all else unchanged"),
        ("sequence", f"{report.sequence:,} tokens", f"longest that fits, {steps}")
        if report.sequence
        else ("sequence", "none fits", steps),
        ("checkpoint", format_capacity(report.checkpoint), f"full state; weights {format_capacity(report.weights)}"),
        _host(report),
        *graphs,
    ]  # fmt: skip


def _stage_section(stage: StageTerms, limit: float, words: DeviceWords) -> RenderableType:
    terms = {**stage.terms[stage.binding], **stage.outside}
    ordered = sorted(((name, held) for name, held in terms.items() if held), key=lambda item: -item[1])
    bar, rows = Text(), []
    for i, (name, amount) in enumerate(ordered):
        shade = _SHADES[i % len(_SHADES)]
        bar.append("#" * round(_WIDTH * amount / max(limit, stage.peak)), shade)
        title = words.context if name == CONTEXT else term_name(name)
        rows.append((title, _gib(amount), f"{amount / stage.peak:.1%}"))
    bar.append("." * max(0, _WIDTH - len(bar.plain)), "dim")
    ranks = f"Rank{'s' * (len(stage.ranks) > 1)} {_span(stage.ranks)}"
    title = f"{ranks}, {term_name(stage.binding)}: {_gib(stage.peak)} GiB"
    return section(title, bar, listing(("part", "GiB", ""), rows))


def _of_phase(stage: StageTerms, moments: Sequence[str]) -> str:
    totals = [stage.total(moment) for moment in moments if moment in stage.terms]
    return _gib(max(totals)) if totals else "-"


def _gib(amount: float) -> str:
    return f"{amount / GIB:.2f}"


def _span(ranks: Sequence[int]) -> str:
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))
