"""How are memory and its holders over a step drawn? Rows of plain values, and the charts of them.

Left out: what else stands on the page (`page_dryrun.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from planner.dryrun.recording import Holds
from planner.report.chart_data import Row
from planner.report.charts import Legend, Spec, data_of, finished, labelled
from planner.report.dryrun_file import MomentFile, RankFile
from planner.units import GIB

try:
    import altair as alt
except ModuleNotFoundError:  # an optional extra
    alt = None

# from the bottom: what stays over the step lies below what comes and goes
_COLOURS: Final = {
    Holds.WEIGHTS: "var(--blue)",
    Holds.OPTIMIZER_STATES: "var(--purple)",
    Holds.INPUT: "var(--grey)",
    Holds.WORKSPACE: "var(--cyan)",
    Holds.GRADIENTS: "var(--orange)",
    Holds.GATHERED: "var(--navy)",
    Holds.CAST: "var(--olive)",
    Holds.ACTIVATIONS: "var(--green)",
    Holds.TEMPORARY: "var(--yellow)",
}
_RESERVED: Final = "var(--ink)"
_NARROW: Final = 0.04  # of the step: a phase without room for its name
_HEIGHT: Final = 320


def holds_in(rank: RankFile) -> tuple[Holds, ...]:
    """The kinds of holders that the rank has at any time, from the bottom of the chart."""
    return tuple(kind for kind in _COLOURS if any(moment.held.get(kind) for moment in rank.timeline))


def word_of(kind: Holds) -> str:
    """What a block holds, in a word."""
    return kind.replace("_", " ")


def moment_rows(rank: RankFile) -> list[Row]:
    """A row of each moment and kind of holder [GiB]; those of the peak have a label."""
    peak = max(range(len(rank.timeline)), key=lambda at: rank.timeline[at].allocated)
    rows = []
    for at, moment in enumerate(rank.timeline):
        for order, kind in enumerate(holds_in(rank)):
            size = moment.held.get(kind, 0) / GIB
            row: Row = {"at": at, "holds": word_of(kind), "order": order, "size": round(size, 4)}
            if at == peak:
                row["label"] = f"{word_of(kind)} at the peak: {size:.2f} GiB"
            rows.append(row)
    return rows


def hover_rows(rank: RankFile) -> list[Row]:
    """A row of each moment with all that is told of it [GiB]."""
    return [
        {
            "at": at,
            "allocated": round(moment.allocated / GIB, 4),
            "reserved": round(moment.reserved / GIB, 4),
            "phase": moment.phase,
            "operation": short(moment.operation),
            "module": moment.module or "-",
            **{word_of(kind): round(moment.held.get(kind, 0) / GIB, 4) for kind in holds_in(rank)},
        }
        for at, moment in enumerate(rank.timeline)
    ]


def phase_rows(timeline: Sequence[MomentFile]) -> list[Row]:
    """Where each phase begins and ends, in moments; no name where there is no room."""
    rows, start = list[Row](), 0
    for phase, group in groupby(timeline, key=lambda moment: moment.phase):
        end = start + len(list(group))
        name = str(phase) if end - start >= _NARROW * len(timeline) else ""
        rows.append({"start": start, "end": end, "middle": (start + end) / 2, "phase": name})
        start = end
    return rows


def short(operation: str) -> str:
    """The name of an operation without its namespace and overload."""
    return operation.removeprefix("aten.").partition(".")[0]


def memory_legend(rank: RankFile) -> Legend:
    """What the areas and the line are."""
    areas = [(word_of(kind), _COLOURS[kind]) for kind in reversed(holds_in(rank))]
    return (*areas, ("reserved", _RESERVED))


def memory_timeline(rank: RankFile) -> Spec:
    """What is allocated over the step by what it holds, what is reserved above it, and the most that can be [GiB]."""
    kinds, hover, phases = holds_in(rank), hover_rows(rank), phase_rows(rank.timeline)
    limit = rank.limit / GIB
    top = max(rank.reserved_peak / GIB, max(row["allocated"] for row in hover))
    top = max(top, limit) if limit <= 2 * top else top
    x = _event_axis("at", len(hover))
    y = alt.Scale(domain=[0, top * 1.08], nice=False)
    colours = alt.Scale(domain=[word_of(kind) for kind in kinds], range=[_COLOURS[kind] for kind in kinds])
    areas = alt.Chart(data_of(moment_rows(rank))).mark_area(interpolate="step-after", aria=False).encode(
        x=x, y=alt.Y("size:Q", title="GiB", stack="zero", scale=y, axis=alt.Axis(tickCount=6)),
        color=alt.Color("holds:N", scale=colours, legend=None), order="order:Q",
    )  # fmt: skip
    line = alt.Chart(data_of(hover)).mark_line(
        interpolate="step-after", color=_RESERVED, strokeWidth=1.5, aria=False
    ).encode(x=x, y=alt.Y("reserved:Q", scale=y))  # fmt: skip
    layers = [areas, line, *_phases(phases, len(hover)), *_levels(rank, top, y), _hover(hover, kinds, x)]
    return finished(alt.layer(*layers), _HEIGHT)


def _event_axis(field: str, number: int) -> Any:
    """Moments from left to right: the events of a step have no scale that anyone counts by."""
    plain = alt.Axis(labels=False, ticks=False, grid=False)
    return alt.X(f"{field}:Q", title=None, scale=alt.Scale(domain=[0, number], nice=False), axis=plain)


def _phases(rows: Sequence[Row], number: int) -> list[Any]:
    """A line where a phase begins, and its name above."""
    begins = alt.Chart(data_of(rows[1:])).mark_rule(
        color="var(--soft)", strokeWidth=1, strokeDash=[2, 3], aria=False
    ).encode(x=_event_axis("start", number))  # fmt: skip
    names = alt.Chart(data_of(rows)).mark_text(baseline="top", dy=2, color="var(--soft)", aria=False).encode(
        x=_event_axis("middle", number), y=alt.value(0), text="phase:N"
    )  # fmt: skip
    return [begins, names] if len(rows) > 1 else [names]


def _levels(rank: RankFile, top: float, scale: Any) -> list[Any]:
    """The most that the allocator can have, where that is in sight, told to who cannot see, too."""
    limit = rank.limit / GIB
    if limit > top:
        return []
    rows: list[Row] = [{"level": limit, "said": f"limit {limit:.1f} GiB", "label": f"limit: {limit:.2f} GiB"}]
    base = alt.Chart(data_of(rows))
    rule = base.mark_rule(color="var(--red)", strokeWidth=1.5, strokeDash=[5, 4]).encode(
        y=alt.Y("level:Q", scale=scale), description=labelled()
    )
    text = base.mark_text(align="right", baseline="top", dy=4, dx=-4, aria=False).encode(
        x=alt.value("width"), y=alt.Y("level:Q", scale=scale), text="said:N"
    )
    return [rule, text]


def _hover(rows: Sequence[Row], kinds: Sequence[Holds], x: Any) -> Any:
    """What is told of the moment under the pointer."""
    told = ["phase:N", "module:N", "operation:N"]
    sizes = ["allocated", "reserved", *(word_of(kind) for kind in reversed(kinds))]
    tips = [*(alt.Tooltip(name) for name in told)]
    tips += [alt.Tooltip(f"{name}:Q", title=f"{name} [GiB]", format=".2f") for name in sizes]
    return alt.Chart(data_of(rows)).mark_rule(opacity=0, strokeWidth=3, aria=False).encode(x=x, tooltip=tips)


def run_rows(timeline: Sequence[tuple[int, int]]) -> list[Row]:
    """What a run of one's own has allocated and reserved over its history [GiB]; the peak has a label."""
    rows: list[Row] = [
        {"at": at, "allocated": round(allocated / GIB, 4), "reserved": round(reserved / GIB, 4)}
        for at, (allocated, reserved) in enumerate(timeline)
    ]
    peak = max(rows, key=lambda row: row["allocated"])
    peak["label"] = f"at the peak: {peak['allocated']:.2f} GiB allocated, {peak['reserved']:.2f} reserved"
    return rows


RUN_LEGEND: Final[Legend] = (("allocated", "var(--blue)"), ("reserved", _RESERVED))


def run_timeline(timeline: Sequence[tuple[int, int]]) -> Spec:
    """What a run of one's own has allocated and reserved over its history [GiB]."""
    rows = run_rows(timeline)
    top = max(row["reserved"] for row in rows)
    x = _event_axis("at", len(rows))
    y = alt.Scale(domain=[0, max(top, 1e-3) * 1.08], nice=False)
    base = alt.Chart(data_of(rows))
    area = base.mark_area(interpolate="step-after", color="var(--blue)", aria=False).encode(
        x=x, y=alt.Y("allocated:Q", title="GiB", scale=y, axis=alt.Axis(tickCount=5))
    )
    line = base.mark_line(
        interpolate="step-after", color=_RESERVED, strokeWidth=1.5, aria=False
    ).encode(x=x, y=alt.Y("reserved:Q", scale=y))  # fmt: skip
    tips = [
        alt.Tooltip(f"{name}:Q", title=f"{name} [GiB]", format=".2f") for name in ("allocated", "reserved")
    ]
    hover = base.mark_rule(opacity=0, strokeWidth=3, aria=False).encode(x=x, tooltip=tips)
    return finished(alt.layer(area, line, hover), 200)
