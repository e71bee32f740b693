"""How do the charts of a page look? Vega-Lite specifications, drawn by Altair from the rows of `chart_data`.

Colours are the page's own (CSS variables), so that one drawing serves light, dark and print. Left out: the numbers,
and the page around a chart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from planner.errors import InputError, install_hint
from planner.report.chart_data import KIND_ORDER, Row

try:
    import altair as alt
except ModuleNotFoundError:  # an optional extra
    alt = None

Spec = dict[str, Any]
Legend = tuple[tuple[str, str], ...]  # word, colour; drawn by the page, which can wrap it
MISSING: Final = "pages need the libraries that draw charts"
INSTALL: Final = install_hint("report")

_KIND_COLOURS: Final = {
    "compute": "var(--blue)", "recomputed": "var(--cyan)", "communication": "var(--orange)",
    "waiting": "var(--purple)", "other": "var(--grey)", "total": "var(--ink)",
}  # fmt: skip
PART_COLOURS: Final = tuple(
    f"var(--{name})"
    for name in ("blue", "orange", "green", "yellow", "cyan", "purple", "red", "olive", "navy", "grey")
)
_FONT: Final = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_ROW: Final = 26  # pixels of a bar's row


def require_altair() -> None:
    """Raise `InputError` where the libraries of the extra are not installed."""
    if alt is None:
        raise InputError(MISSING, hint=INSTALL)


def finished(chart: Any, height: int | None = None) -> Spec:
    """The chart as a specification as wide as its place on the page, in the page's colours."""
    sized = chart.properties(width="container", **({"height": height} if height else {}))
    axis = {
        "labelColor": "var(--soft)", "titleColor": "var(--soft)", "gridColor": "var(--line)",
        "tickColor": "var(--line)", "domainColor": "var(--line)", "labelFontSize": 12,
        "titleFontSize": 12, "titleFontWeight": "normal",
        "labelLimit": 260, "labelFont": _FONT, "titleFont": _FONT, "labelPadding": 6, "titlePadding": 10,
        "labelSeparation": 6,
    }  # fmt: skip
    spec: Spec = (
        sized.configure(background="transparent", font=_FONT, padding=4)
        .configure_view(stroke=None)
        .configure_axis(**axis)
        .configure_text(fontSize=12, font=_FONT, color="var(--ink)")
        .to_dict(validate=False)  # a test validates; here it would take longest of all
    )
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def data_of(rows: Sequence[Row]) -> Any:
    """Rows as the data of a chart."""
    return alt.Data(values=[dict(row) for row in rows])


def labelled() -> Any:
    """What a screen reader says of a mark."""
    return alt.Description("label:N")


def kind_legend(rows: Sequence[Row]) -> Legend:
    """The kinds of terms that these rows hold, with their colours."""
    held = {row["kind"] for row in rows} - {"total"}
    return tuple((kind, _KIND_COLOURS[kind]) for kind in KIND_ORDER if kind in held)


def _kind_colour(rows: Sequence[Row]) -> Any:
    kinds = [kind for kind in KIND_ORDER if any(row["kind"] == kind for row in rows)]
    scale = alt.Scale(domain=kinds, range=[_KIND_COLOURS[kind] for kind in kinds])
    return alt.Color("kind:N", scale=scale, legend=None)


def waterfall_chart(rows: Sequence[Row]) -> Spec:
    """The terms of a step as bars that start where the one above ends; the words stand where there is room."""
    total = max((row["end"] for row in rows), default=1.0)
    scale = alt.Scale(domain=[0, total], nice=False)
    y = alt.Y("part:N", sort=[row["part"] for row in rows], title=None, axis=_names())
    bars = alt.Chart(data_of(rows)).mark_bar(cornerRadius=2).encode(
        x=alt.X("start:Q", title="seconds", scale=scale, axis=alt.Axis(tickCount=5)), x2="end:Q", y=y,
        color=_kind_colour(rows), description=labelled(),
        tooltip=[alt.Tooltip("part:N", title=" "), alt.Tooltip("said:N", title="takes")],
    )  # fmt: skip
    inside = [row for row in rows if row["end"] - row["start"] > 0.5 * total]
    after = [row for row in rows if row not in inside and row["end"] <= 0.5 * total]
    before = [row for row in rows if row not in inside and row not in after]
    words = [
        _words(inside, "start", y, scale, align="left", dx=8, color="var(--paper)"),
        _words(after, "end", y, scale, align="left", dx=7),
        _words(before, "start", y, scale, align="right", dx=-7),
    ]
    return finished(alt.layer(bars, *(layer for layer in words if layer is not None)), _ROW * len(rows))


def _words(rows: Sequence[Row], at: str, y: Any, scale: Any, **look: Any) -> Any:
    if not rows:
        return None
    return alt.Chart(data_of(rows)).mark_text(aria=False, **look).encode(
        x=alt.X(f"{at}:Q", scale=scale), y=y, text="said:N"
    )  # fmt: skip


def _names() -> Any:
    return alt.Axis(ticks=False, domain=False)


def part_legend(rows: Sequence[Row]) -> Legend:
    """The parts that these rows hold, largest first, with their colours."""
    parts = _part_names(rows)
    return tuple((part, PART_COLOURS[i % len(PART_COLOURS)]) for i, part in enumerate(parts))


def _part_names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["part"] for row in sorted(rows, key=lambda row: row["order"])))


def memory_chart(rows: Sequence[Row], limit: float, capacity: float) -> Spec:
    """The parts of every rank's peak side by side, with the line they must stay left of [GiB]."""
    stages = list(dict.fromkeys(row["stage"] for row in rows))
    widest = max([capacity, *(sum(r["amount"] for r in rows if r["stage"] == s) for s in stages)])
    x = alt.X("amount:Q", title="GiB", stack="zero", scale=alt.Scale(domain=[0, widest * 1.04], nice=False))
    bars = alt.Chart(data_of(rows)).mark_bar().encode(
        x=x, y=alt.Y("stage:N", sort=stages, title=None, axis=_names()),
        color=_parts(rows), order="order:Q", description=labelled(),
        tooltip=[alt.Tooltip("stage:N", title=" "), alt.Tooltip("part:N"), alt.Tooltip("said:N", title="takes"),
                 alt.Tooltip("phase:N", title="in")],
    )  # fmt: skip
    line = {"at": limit, "label": f"limit: {limit:.1f} GiB", "said": f"limit {limit:.1f} GiB"}
    rule = alt.Chart(data_of([line])).mark_rule(color="var(--ink)", strokeWidth=2, strokeDash=[5, 4]).encode(
        x="at:Q", tooltip=alt.Tooltip("said:N", title=" "), description=labelled(),
    )  # fmt: skip
    text = alt.Chart(data_of([line])).mark_text(align="right", dx=-6, baseline="bottom", dy=-3, aria=False).encode(
        x="at:Q", y=alt.value(0), text="said:N",
    )  # fmt: skip
    return finished(bars + rule + text, max(_ROW * len(stages), 2 * _ROW))


def _parts(rows: Sequence[Row]) -> Any:
    parts = part_legend(rows)
    scale = alt.Scale(domain=[part for part, _ in parts], range=[colour for _, colour in parts])
    return alt.Color("part:N", scale=scale, legend=None)


_RANK_COLOURS: Final = {
    "the answer": "var(--orange)",
    "on the front": "var(--blue)",
    "behind it": "var(--grey)",
}


def pareto_legend(rows: Sequence[Row]) -> Legend:
    """What the points are, with their colours."""
    held = {row["rank"] for row in rows}
    return tuple((word, colour) for word, colour in _RANK_COLOURS.items() if word in held)


def pareto_chart(rows: Sequence[Row]) -> Spec:
    """Step time against free memory, the front joined by a line."""
    shades = alt.Scale(domain=list(_RANK_COLOURS), range=list(_RANK_COLOURS.values()))
    fast = alt.Scale(type="log", nice=False, padding=24)
    x = alt.X("step:Q", title="step time [s]", scale=fast, axis=alt.Axis(tickCount=6, format="~g"))
    y = alt.Y(
        "free:Q",
        title="free memory [GiB]",
        scale=alt.Scale(zero=False, nice=False, padding=24),
        axis=alt.Axis(tickCount=6),
    )
    front = [row for row in rows if row["on_front"]]
    line = alt.Chart(data_of(front)).mark_line(
        interpolate="step-after", color="var(--blue)", strokeWidth=1.5, opacity=0.6, aria=False
    ).encode(x=x, y=y)  # fmt: skip
    drawn = sorted(rows, key=lambda row: bool(row["best"]))  # the answer over all others
    points = alt.Chart(data_of(drawn)).mark_point(filled=True, stroke="var(--paper)", strokeWidth=1, opacity=1).encode(
        x=x, y=y,
        color=alt.Color("rank:N", scale=shades, legend=None),
        size=alt.condition("datum.best", alt.value(190), alt.value(80)),
        tooltip=[alt.Tooltip("configuration:N", title=" "), alt.Tooltip("said:N", title="takes")],
        description=labelled(),
    )  # fmt: skip
    return finished(line + points, 300)


def map_chart(rows: Sequence[Row]) -> Spec:
    """The cluster as cells; those that hold ranks of one group are filled."""
    lines = max(row["y"] for row in rows) + 1
    held = max(row["members"] for row in rows)
    shade = alt.Scale(domain=[0, 1, max(held, 2)], range=[1, 0.55 if held > 1 else 1, 1])
    none = {"ticks": False, "labels": False, "domain": False, "grid": False}
    chart = alt.Chart(data_of(rows)).mark_rect(cornerRadius=2, stroke="var(--paper)", strokeWidth=1).encode(
        x=alt.X("x:O", title=None, axis=alt.Axis(**none)), y=alt.Y("y:O", title=None, axis=alt.Axis(**none)),
        color=alt.condition("datum.members > 0", alt.value("var(--blue)"), alt.value("var(--cell)")),
        opacity=alt.Opacity("members:Q", scale=shade, legend=None),
        tooltip=[alt.Tooltip("cell:N", title=" "), alt.Tooltip("members:Q", title="of the group")],
        description=labelled(),
    )  # fmt: skip
    return finished(chart, (9 if lines > 8 else 14) * lines)


_GOODPUT_COLOURS: Final = ("var(--green)", "var(--orange)", "var(--purple)", "var(--red)", "var(--grey)")


def goodput_legend(rows: Sequence[Row]) -> Legend:
    """What the wall clock goes to, with its colours."""
    return tuple((row["part"], colour) for row, colour in zip(rows, _GOODPUT_COLOURS, strict=False))


def goodput_chart(rows: Sequence[Row]) -> Spec:
    """The wall clock as one bar of what it goes to."""
    parts = goodput_legend(rows)
    scale = alt.Scale(domain=[part for part, _ in parts], range=[colour for _, colour in parts])
    percent = alt.Axis(format="%", tickCount=5)
    chart = alt.Chart(data_of(rows)).mark_bar(cornerRadius=1).encode(
        x=alt.X("share:Q", title=None, stack="zero", scale=alt.Scale(domain=[0, 1]), axis=percent),
        color=alt.Color("part:N", scale=scale, legend=None), order="order:Q", description=labelled(),
        tooltip=[alt.Tooltip("part:N", title=" "), alt.Tooltip("said:N", title="takes")],
    )  # fmt: skip
    return finished(chart, 34)


def standings_chart(rows: Sequence[Row]) -> Spec:
    """The step of every cluster by what it goes to."""
    clusters = list(dict.fromkeys(row["cluster"] for row in rows))
    chart = alt.Chart(data_of(rows)).mark_bar(cornerRadius=1).encode(
        x=alt.X("amount:Q", title="seconds a step", stack="zero"),
        y=alt.Y("cluster:N", sort=clusters, title=None, axis=_names()),
        color=_kind_colour(rows), order="order:Q", description=labelled(),
        tooltip=[alt.Tooltip("cluster:N", title=" "), alt.Tooltip("kind:N"), alt.Tooltip("said:N", title="takes")],
    )  # fmt: skip
    return finished(chart, 34 * len(clusters))


def trade_chart(rows: Sequence[Row]) -> Spec:
    """Days against money, a point for each cluster."""
    # room for the names beside the points may reach below 0, where no run ends
    axis = alt.Axis(tickCount=6, labelExpr="datum.value < 0 ? '' : datum.label")
    x = alt.X("days:Q", title="days", scale=alt.Scale(zero=False, padding=60), axis=axis)
    y = alt.Y(
        "cost:Q",
        title="cost [$]",
        scale=alt.Scale(zero=False, padding=30),
        axis=alt.Axis(format="$~s", tickCount=5),
    )
    base = alt.Chart(data_of(rows))
    points = base.mark_point(filled=True, size=140, color="var(--blue)", opacity=1).encode(
        x=x, y=y, description=labelled(),
        tooltip=[alt.Tooltip("cluster:N", title=" "), alt.Tooltip("said:N", title="takes")],
    )  # fmt: skip
    text = base.mark_text(dy=-14, aria=False).encode(x=x, y=y, text="cluster:N")
    return finished(points + text, 260)


def curve_chart(rows: Sequence[Row], value: str, noun: str) -> Spec:
    """Days or money (`value`: "days", "cost") over the number of devices, called `noun`, doublings equally wide."""
    title, form = ("days", ",~f") if value == "days" else ("cost [$]", "$~s")
    known = [row for row in rows if row[value] is not None]
    scale = alt.Scale(type="log", base=2, nice=False, padding=30)
    ticks = sorted({row["gpus"] for row in known})
    every = math.ceil(len(ticks) / 8)
    x = alt.X(
        "gpus:Q", title=f"{noun}s", scale=scale, axis=alt.Axis(values=ticks[::every], format=",", grid=False)
    )
    up = alt.Scale(type="log", base=2) if value == "days" else alt.Scale(zero=True)
    y = alt.Y(f"{value}:Q", title=title, scale=up, axis=alt.Axis(format=form, tickCount=5))
    base = alt.Chart(data_of(known))
    joined = alt.Chart(data_of([row for row in known if row["on_curve"]]))
    line = joined.mark_line(color="var(--blue)", strokeWidth=2, aria=False).encode(x=x, y=y)
    points = base.mark_point(filled=True, stroke="var(--paper)", strokeWidth=1, opacity=1).encode(
        x=x, y=y, description=labelled(), tooltip=alt.Tooltip("said:N", title=" "),
        color=alt.condition("datum.mark != ''", alt.value("var(--orange)"), alt.value("var(--blue)")),
        size=alt.condition("datum.mark != ''", alt.value(170), alt.value(70)),
    )  # fmt: skip
    text = base.mark_text(dy=-16, fontWeight="bold", aria=False).encode(x=x, y=y, text="mark:N")
    return finished(line + points + text, 240)
