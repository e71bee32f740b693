"""How does a table look where the terminal is too narrow for it? No word is broken: columns wrap at spaces, and where
that is not enough every row is told as a line.

Left out: tables that fit, which `rich` lays out.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_BAR: Final = frozenset("█▏▎▍▌▋▊▉# ")


class WordTable(Table):
    """A table of text that breaks no words."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(max_width=10_000)
        if Measurement.get(console, free, self).maximum <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        sizes = [self._sizes(console, free, index) for index in range(len(self.columns))]
        between = Measurement.get(console, free, self).maximum - sum(most for _, most in sizes)
        widths = shared_width(sizes, options.max_width - between)
        if widths is None:
            yield from self._lines()
            return
        narrow = copy.copy(self)
        narrow.columns = [copy.copy(column) for column in self.columns]
        for column, width in zip(narrow.columns, widths, strict=True):
            column.width = width
        yield from Table.__rich_console__(narrow, console, options)

    def _sizes(self, console: Console, free: ConsoleOptions, index: int) -> tuple[int, int]:
        """Widths of a column's longest word and of its longest cell."""
        column = self.columns[index]
        cells = [*column.cells, *([column.header] if self.show_header else [])]
        measured = [Measurement.get(console, free, cell) for cell in cells]
        most = max((size.maximum for size in measured), default=0)
        return (most if column.no_wrap else max((size.minimum for size in measured), default=0)), most

    def _lines(self) -> RenderResult:
        """Each row as a line of its cells, each behind the head of its column; bars are left out."""
        heads = [_plain(column.header) if self.show_header else "" for column in self.columns]
        for row in zip(*(column.cells for column in self.columns), strict=True):
            words = [_plain(cell) for cell in row]
            told = [f"{head} {word}".strip() for head, word in zip(heads, words, strict=True) if word]
            shown = [text for text in told if not _BAR.issuperset(text)]
            yield Text((", " if self.show_header else "  ").join(shown))


def shared_width(sizes: Sequence[tuple[int, int]], free: int) -> list[int] | None:
    """Widths of columns, from (longest word, longest cell) of each: none below its longest word, and what is left to
    those that want least. None where the words alone are too wide."""
    widths = [least for least, _ in sizes]
    left = free - sum(widths)
    if left < 0:
        return None
    wants = sorted((most - least, index) for index, (least, most) in enumerate(sizes))
    for served, (want, index) in enumerate(wants):
        more = min(left // (len(wants) - served), want)
        widths[index] += more
        left -= more
    return widths


@dataclass(frozen=True)
class Fitting:
    """The first of several renderables that fits the terminal, or the last."""

    candidates: Sequence[RenderableType]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(max_width=10_000)
        widths = [Measurement.get(console, free, candidate).maximum for candidate in self.candidates]
        yield next(
            (c for c, width in zip(self.candidates, widths, strict=True) if width <= options.max_width),
            self.candidates[-1],
        )


def _plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
