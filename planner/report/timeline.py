"""What does a timed pipeline schedule look like? A row per rank, time to the right: in a terminal and as an SVG.

Left out: the schedule itself and its times (planner/schedule), and writing files.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from planner.schedule.actions import Pass
from planner.schedule.simulate import Timeline

MOST_ROWS: Final = 32  # ranks drawn in a terminal
MOST_CELLS: Final = 20_000  # rectangles of an SVG; beyond it passes are merged
_IDLE, _MIXED = -1, -2
_CROWD: Final = 4  # passes in one column from which on it is drawn as a mixture
_LETTER: Final = "FBWB"  # by Pass; both kinds of backward are a B
_STYLE: Final = ("white on blue", "black on green", "black on yellow", "black on green")
_CLASS: Final = ("f", "b", "w", "b")


@dataclass(frozen=True)
class Cell:
    """A stretch of one rank's row: from column `first` to before `last`."""

    first: float
    last: float
    kind: int  # a Pass, _IDLE or _MIXED
    label: str
    late: bool  # not the rank's first stage


def drawn_ranks(ranks: int, most: int = MOST_ROWS) -> list[int]:
    """Ranks to draw: all, or the first and last half of `most`."""
    if ranks <= most:
        return list(range(ranks))
    return [*range(most // 2), *range(ranks - most // 2, ranks)]


def drawn_spans(timeline: Timeline, rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of a rank's passes as drawn: the halves of an overlapped pair stand side by side."""
    count = int(np.count_nonzero(timeline.table.kind[rank] >= 0))
    start, end = timeline.start[rank, :count].copy(), timeline.end[rank, :count].copy()
    half = np.flatnonzero(timeline.table.joined[rank, :count])
    half = half[start[half] == start[half + 1]] if half.size else half
    middle = (start[half] + end[half]) / 2
    end[half], start[half + 1] = middle, middle
    return start, end


def columns_of(timeline: Timeline, rank: int, columns: int) -> NDArray[np.int64]:
    """What fills each column of a rank's row: the position of a pass, or `_IDLE`, or `_MIXED`.

    A column takes the pass that fills most of it, or idling where that is more than half. Where columns are so
    wide that several kinds of pass share one, it is mixed.
    """
    edges = np.linspace(0.0, timeline.makespan, columns + 1)
    start, end = drawn_spans(timeline, rank)
    kinds = timeline.table.kind[rank, : start.size]
    first = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, columns - 1)
    last = np.clip(np.searchsorted(edges, end, side="left"), first + 1, columns)
    most, busy = np.zeros(columns), np.zeros(columns)
    seen = np.zeros((columns, len(Pass)), dtype=np.int64)
    chosen = np.full(columns, _IDLE, dtype=np.int64)
    for k in range(start.size):
        span = slice(int(first[k]), int(last[k]))
        share = np.minimum(edges[span.start + 1 : span.stop + 1], end[k]) - np.maximum(edges[span], start[k])
        busy[span] += share
        seen[span, kinds[k]] += share > 0
        better = share > most[span] * (1 + 1e-9)
        most[span] = np.where(better, share, most[span])
        chosen[span] = np.where(better, k, chosen[span])
    crowded = (seen.sum(axis=1) >= _CROWD) & (np.count_nonzero(seen, axis=1) > 1)
    chosen[crowded] = _MIXED
    chosen[busy < 0.5 * timeline.makespan / columns] = _IDLE
    return chosen


def row_cells(timeline: Timeline, rank: int, columns: int) -> Iterator[Cell]:
    """A rank's row as cells on a grid of `columns`."""
    table = timeline.table
    chosen = columns_of(timeline, rank, columns)
    bounds = np.flatnonzero(np.diff(chosen)) + 1
    early = int(table.stage[rank][table.stage[rank] >= 0].min())
    for first, last in zip((0, *bounds), (*bounds, columns), strict=True):
        k = int(chosen[first])
        if k < 0:
            yield Cell(float(first), float(last), k, "", False)
            continue
        late = int(table.stage[rank, k]) != early
        yield Cell(float(first), float(last), int(table.kind[rank, k]), str(table.microbatch[rank, k]), late)


def timeline_text(timeline: Timeline, width: int) -> Text:
    """The drawing for a terminal of `width` columns; readable without colour.

    F, B, W and the micro-batch where the cell has room; lower case for a rank's later stages; dots idle. With many
    passes: a column shows what fills most of it, # where several kinds share it.
    """
    ranks = drawn_ranks(timeline.table.ranks)
    margin = len(str(timeline.table.ranks - 1)) + 6
    columns = max(10, width - margin)
    text = Text(no_wrap=True, overflow="crop")
    previous = -1
    for rank in ranks:
        if rank != previous + 1:
            text.append(f"... {rank - previous - 1} ranks left out\n", "dim")
        previous = rank
        text.append(f"rank {rank:<{margin - 5}}")
        for cell in row_cells(timeline, rank, columns):
            _append_cell(text, cell)
        text.append("\n")
    text.append(f"{'':>{margin}}0{timeline.makespan:>{columns - 1}.6g}")
    return text


def _append_cell(text: Text, cell: Cell) -> None:
    room = int(cell.last - cell.first)
    if cell.kind == _IDLE:
        text.append("·" * room, "dim")
        return
    if cell.kind == _MIXED:
        text.append("#" * room)
        return
    letter = _LETTER[cell.kind].lower() if cell.late else _LETTER[cell.kind]
    label = letter + cell.label
    shown = label.ljust(room) if len(label) <= room else letter.ljust(room)
    text.append(shown, _STYLE[cell.kind] + (" bold" if cell.late else ""))


_SVG_STYLE: Final = """
.timeline text{font:11px ui-sans-serif,system-ui,sans-serif;fill:#1f2328}
.timeline .paper{fill:#ffffff}.timeline .row{fill:#e9ecf0}
.timeline .f{fill:#3f6fc4}.timeline .b{fill:#2f8547}.timeline .w{fill:#e0b030}.timeline .m{fill:#8a94a3}
.timeline .late{fill-opacity:.7}.timeline .cell text{fill:#ffffff;text-anchor:middle;font-size:10px}
.timeline .cell .dark{fill:#1f2328}.timeline .end{text-anchor:end}.timeline .title{font-size:13px;font-weight:600}
@media (prefers-color-scheme:dark){
.timeline text{fill:#e6e9ee}.timeline .paper{fill:#14171c}.timeline .row{fill:#2a303a}}
"""
_ROW_HEIGHT, _LEFT, _TOP, _WIDTH = 20.0, 64.0, 52.0, 1200.0
_FEWEST_COLUMNS: Final = 100


def timeline_svg(timeline: Timeline, title: str, most_ranks: int = 256, most_cells: int = MOST_CELLS) -> str:
    """The drawing as one self-contained SVG, for light and dark pages. Cells carry their pass as a tooltip."""
    table = timeline.table
    ranks = drawn_ranks(table.ranks, most_ranks)
    height = _TOP + len(ranks) * _ROW_HEIGHT + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20:.0f} {height:.0f}" '
        f'width="100%" class="timeline" role="img" aria-label="{html.escape(title)}">',
        f"<style>{_SVG_STYLE}</style>",
        f'<rect class="paper" width="{_LEFT + _WIDTH + 20:.0f}" height="{height:.0f}"/>',
        f'<text class="title" x="{_LEFT:.0f}" y="20">{html.escape(title)}</text>',
    ]
    columns = max(_FEWEST_COLUMNS, most_cells // len(ranks))
    merged = table.kind.shape[1] > columns
    lines.extend(_svg_legend(bool(table.where(Pass.WEIGHT_GRADIENT).any()), merged))
    for row, rank in enumerate(ranks):
        y = _TOP + row * _ROW_HEIGHT
        lines.append(f'<text class="end" x="{_LEFT - 6:.0f}" y="{y + 13:.1f}">rank {rank}</text>')
        lines.append(f'<rect class="row" x="{_LEFT:.0f}" y="{y:.1f}" width="{_WIDTH:.0f}" height="16"/>')
        cells = _merged_cells(timeline, rank, columns) if merged else _exact_cells(timeline, rank)
        lines.extend(_svg_cell(cell, y) for cell in cells)
    lines.extend(_svg_axis(timeline.makespan, _TOP + len(ranks) * _ROW_HEIGHT))
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def _exact_cells(timeline: Timeline, rank: int) -> Iterator[Cell]:
    table, scale = timeline.table, _WIDTH / timeline.makespan
    start, end = drawn_spans(timeline, rank)
    early = int(table.stage[rank, : start.size].min())
    for k in range(start.size):
        label, late = str(table.microbatch[rank, k]), int(table.stage[rank, k]) != early
        yield Cell(start[k] * scale, end[k] * scale, int(table.kind[rank, k]), label, late)


def _merged_cells(timeline: Timeline, rank: int, columns: int) -> Iterator[Cell]:
    """Cells on a grid coarse enough for the whole drawing to stay small."""
    scale = _WIDTH / columns
    for cell in row_cells(timeline, rank, columns):
        if cell.kind != _IDLE:
            yield Cell(cell.first * scale, cell.last * scale, cell.kind, cell.label, cell.late)


def _svg_cell(cell: Cell, y: float) -> str:
    x, width = _LEFT + cell.first, max(cell.last - cell.first - 0.4, 0.2)
    kind = "m" if cell.kind == _MIXED else _CLASS[cell.kind] + (" late" if cell.late else "")
    rect = f'<rect class="{kind}" x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="16"/>'
    if cell.kind == _MIXED:
        return rect
    tip = f"<title>{_LETTER[cell.kind]} micro-batch {cell.label}</title>"
    if width < 7 * len(cell.label) + 2:
        return f"<g>{tip}{rect}</g>"
    ink = ' class="dark"' if cell.kind == Pass.WEIGHT_GRADIENT else ""
    text = f'<text{ink} x="{x + width / 2:.2f}" y="{y + 12:.1f}">{cell.label}</text>'
    return f'<g class="cell">{tip}{rect}{text}</g>'


def _svg_legend(split: bool, merged: bool) -> Iterator[str]:
    """What is drawn: backward passes, whole or `split` in two, and cells of several passes where `merged`."""
    backward = (
        (("b", "backward, input gradient"), ("w", "weight gradient")) if split else (("b", "backward"),)
    )
    words = (("f", "forward"), *backward, *((("m", "mixed"),) if merged else ()), ("row", "idle"))
    x = _LEFT
    for kind, word in words:
        yield f'<rect class="{kind}" x="{x:.0f}" y="30" width="14" height="12"/>'
        yield f'<text x="{x + 19:.0f}" y="40">{word}</text>'
        x += 40 + 6.2 * len(word)
    yield f'<text x="{x:.0f}" y="40">paler: later stages of the rank</text>'


def _svg_axis(makespan: float, y: float) -> Iterator[str]:
    for time in _ticks(makespan):
        x = _LEFT + _WIDTH * (time / makespan if makespan else 0.0)
        anchor = "" if time == 0 else ' class="end"'
        yield f'<text{anchor} x="{x:.0f}" y="{y + 14:.1f}">{time:.4g}</text>'


def _ticks(makespan: float) -> list[float]:
    """Round times from 0 on, four or more of them, and the makespan."""
    if not makespan > 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(makespan / 4))
    step = next((power * nice for nice in (5.0, 2.0) if power * nice <= makespan / 4), power)
    round_times = [step * i for i in range(int(0.94 * makespan / step) + 1)]
    return [*round_times, makespan]
