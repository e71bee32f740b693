"""What did a dry run find? Plain data, and a document for the terminal.

Left out: the dry run (`planner/dryrun/`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any, Final

from rich.console import Group, RenderableType

from planner import __version__
from planner.cost.captured.operation import Phase
from planner.dialect import option
from planner.dryrun.beside_snapshot import Beside
from planner.dryrun.outcome import Alive, RankMemory
from planner.dryrun.question import DryRun
from planner.dryrun.timing.step import RankTime
from planner.report.dryrun_file import needed_once
from planner.report.snapshot import snapshot_facts, snapshot_section
from planner.report.text import bullets, labelled, listing, prose, section
from planner.report.words import dumped, texts
from planner.spec.verdict import MemoryVerdict
from planner.units import GIB, format_capacity, format_time

_STYLES: Final = {MemoryVerdict.FITS: "bold green", MemoryVerdict.BORDERLINE: "bold yellow"}
_RANK_COLUMNS: Final = ("rank", "allocated [GiB]", "reserved [GiB]", "peak in", "verdict")
_ROWS: Final = 12  # of what is alive
_BARS: Final = " ▁▂▃▄▅▆▇█"
_COLUMNS: Final = 72
_TIMES: Final = ("step", "forward", "backward", "optimizer")
_MARKS: Final = {Phase.FORWARD: "f", Phase.BACKWARD: "b", Phase.OPTIMIZER: "o"}

_NO_TIME: Final = "not told: of pipelines, of Megatron, and of states on the host"


def dryrun_facts(found: DryRun, beside: Beside | None = None) -> dict[str, Any]:
    """The dry run as plain data: amounts in bytes, times in seconds. `beside`: the run of a snapshot."""
    worst, slowest = found.worst, found.slowest
    return {
        "kind": "dryrun",
        "planner_version": __version__,
        "verdict": str(worst.verdict),
        "allocated_peak": worst.allocated_peak,
        "reserved_peak": worst.reserved_peak,
        "host_peak": worst.host_peak,
        "limit": worst.limit,
        **{f"{name}_time": slowest and getattr(slowest, name) for name in _TIMES},
        "phase": str(worst.phase),
        "operation": worst.operation,
        "module": worst.module,
        "operations": worst.operations,
        "estimated_peak": found.estimated_peak,
        "model": found.model,
        "accelerator": found.accelerator,
        "devices": found.devices,
        "configuration": found.configuration,
        "stack": found.stack,
        "software": dict(found.software),
        "largest_micro_batch": found.largest_micro_batch,
        "longest_sequence": found.longest_sequence,
        "ranks": [_rank_facts(rank) for rank in found.ranks],
        "times": [asdict(time) for time in found.times],
        "snapshot": None if beside is None else snapshot_facts(beside),
        "assumptions": dumped(found.assumptions),
    }


def _rank_facts(rank: RankMemory) -> dict[str, Any]:
    facts = asdict(replace(rank, blocks=()))
    del facts["blocks"]  # as many as there are sizes
    if rank.out_of_memory is not None:
        facts["out_of_memory"]["unallocated"] = rank.out_of_memory.unallocated
    return facts


def dryrun_document(found: DryRun, beside: Beside | None = None) -> RenderableType:
    """Verdict, peaks, timeline, what is alive at the peak, and what a run of one's own has otherwise."""
    worst = found.worst
    verdict = str(worst.verdict).replace("_", " ")
    head = (
        f"{found.configuration}: {verdict}, {_of_rank(found)}{_gib(worst.allocated_peak)} GiB allocated and "
        f"{_gib(worst.reserved_peak)} reserved of {_gib(worst.limit)} that the allocator can have"
    )
    blocks: list[RenderableType] = [prose(head, _STYLES.get(worst.verdict, "bold red"))]
    blocks.append(section("Peak", labelled(_peak(found))))
    if found.slowest is not None:
        blocks.append(section("Time of a step", labelled(_times(found.slowest))))
    else:
        blocks.append(section("Time of a step", prose(_NO_TIME)))
    blocks.append(section("Allocated over a step (f forward, b backward, o optimizer)", prose(_drawn(worst))))
    blocks.append(
        section("Held at the peak [GiB]", listing(("what", "made in", "GiB", "blocks"), _held(worst.alive)))
    )
    if beside is not None:
        blocks.append(snapshot_section(beside, worst))
    if len(found.ranks) > 1:
        blocks.append(section("Ranks", listing(_RANK_COLUMNS, map(_rank_row, found.ranks))))
    if found.assumptions:
        blocks.append(section("Assumed", bullets(texts(found.assumptions))))
    return Group(*blocks)


def _of_rank(found: DryRun) -> str:
    return f"on rank {found.worst.rank} " if len(found.ranks) > 1 else ""


def _rank_row(rank: RankMemory) -> tuple[str, ...]:
    when = f"{rank.phase}: {_short(rank.operation)}"
    verdict = str(rank.verdict).replace("_", " ")
    return str(rank.rank), _gib(rank.allocated_peak), _gib(rank.reserved_peak), when, verdict


def _peak(found: DryRun) -> list[tuple[str, str, str]]:
    worst = found.worst
    ran = ", ".join(f"{name} {version}" for name, version in found.software.items())
    rows = [
        ("when", f"{worst.phase}: {_short(worst.operation)}", worst.module),
        *((name, f"{_gib(size)} GiB", said) for name, size, said in needed_once(worst)),
        ("estimate", *_estimate(found)),
        ("ran", f"{worst.operations:,} operations", f"a step, of {ran}"),
    ]
    if worst.host_peak:
        rows.append(("host", f"{_gib(worst.host_peak)} GiB", "of a rank's tensors in its host's memory"))
    if found.largest_micro_batch is not None:
        rows.append(("largest", f"micro-batch {found.largest_micro_batch:,}", "runs, all else as it is"))
    if found.longest_sequence is not None:
        rows.append(("longest", f"{found.longest_sequence:,} tokens", "run, all else as it is"))
    failed = worst.out_of_memory
    if failed is not None:
        held = f"{_gib(failed.allocated)} allocated, {_gib(failed.unallocated)} reserved but unallocated"
        rows.insert(1, ("out of memory", f"{_gib(failed.tried)} GiB", f"asked for, {held}"))
    if worst.helped_by:
        rows.insert(1, ("would fit with", " or ".join(worst.helped_by), f"as {option('alloc_conf')}"))
    return rows


def _times(time: RankTime) -> list[tuple[str, str, str]]:
    waits = max(1.0 - time.busy / time.step, 0.0)
    of = f"the device waits for the host {waits:.0%} of it"
    if time.messages:
        waits, apart = max(waits - time.exposed / time.step, 0.0), time.exposed / time.step
        of = f"the device waits for the host {waits:.0%} and for messages {apart:.0%} of it"
    sent = [("messages", format_time(time.messages), "alone on their links")] if time.messages else []
    return [
        ("step", format_time(time.step), of),
        *sent,
        ("forward", format_time(time.forward), ""),
        ("backward", format_time(time.backward), ""),
        ("optimizer", format_time(time.optimizer), "with clipping"),
    ]


def _estimate(found: DryRun) -> tuple[str, str]:
    if found.unestimated:
        return "none", f"planner estimate has no {', '.join(map(option, found.unestimated))}"
    if found.estimated_peak is None:
        return "none", "planner has no reader for this model"
    return format_capacity(found.estimated_peak), "by planner estimate, with all that lies outside PyTorch"


def _held(alive: Iterable[Alive]) -> list[tuple[str, ...]]:
    every = list(alive)
    rows: list[tuple[str, ...]] = [
        (str(one.holds).replace("_", " "), one.module, _gib(one.size), f"{one.blocks:,}")
        for one in every[:_ROWS]
    ]
    rest = every[_ROWS:]
    if rest:
        size, blocks = sum(one.size for one in rest), sum(one.blocks for one in rest)
        rows.append(("others", "", _gib(size), f"{blocks:,}"))
    return rows


def _drawn(rank: RankMemory) -> str:
    """The timeline as a row of bars, and the phases below."""
    points = rank.timeline
    if not points:
        return ""
    top = max(one.allocated for one in points)
    shown = [points[i * len(points) // _COLUMNS :][: -(-len(points) // _COLUMNS)] for i in range(_COLUMNS)]
    bars = "".join(
        _BARS[round(max(one.allocated for one in part) / top * (len(_BARS) - 1))] for part in shown
    )
    marks = "".join(_MARKS.get(part[0].phase, " ") for part in shown)
    return f"{bars}\n{marks}"


def _short(operation: str) -> str:
    own = operation.removeprefix("aten.")
    return operation if own == operation else own.partition(".")[0]


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"
