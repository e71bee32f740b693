"""What does a validation look like in text? Plain lines for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from planner.calibrate.statistics import REGRETS, ROWS_NAMED

_MOST_REASONS, _LONGEST = 20, 160
HEADLINES: Final = (("headline_dense", "dense"), ("headline_moe", "mixture of experts"))
HEADER: Final = ("source", "rows", "step time", "p90", "bias", "memory", "p90", "bias")


def percent(part: dict[str, Any] | None, key: str, sign: bool = False) -> str:
    """A figure of a summary in percent; empty where there is none."""
    if not part:
        return ""
    return f"{100 * part[key]:+.1f}" if sign else f"{100 * part[key]:.1f}"


def source_lines(sources: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """One line per source and kind of model with anything measured: errors in percent."""
    lines: list[tuple[str, ...]] = []
    for name, source in sorted(sources.items()):
        for key, suffix in (("step_time_dense", ""), ("step_time_moe", " (MoE)")):
            time, memory = source[key], source["memory"] if key == "step_time_dense" else None
            if not (time or memory):
                continue
            label = name + suffix + ("" if source["judged"] else " *")
            counted = str(time["rows"]) if time else ""
            errors = (percent(time, "median"), percent(time, "p90"), percent(time, "bias", sign=True))
            peak = (percent(memory, "median"), percent(memory, "p90"), percent(memory, "bias", sign=True))
            lines.append((label, counted, *errors, *peak))
    return lines


def some(named: list[str], count: int) -> str:
    """Those of `count` that are named, and that there are more."""
    return ", ".join([*named, "..."] if count > len(named) else named)


def total_lines(summary: dict[str, Any]) -> list[str]:
    """What all rows together say."""
    lines = [*count_lines(summary), *unread_flops_lines(summary)]
    for key, what in HEADLINES:
        if part := summary[key]:
            lines.append(headline(what, part, f"{percent(part, 'p90')} %"))
    lines += [*memory_lines(summary)]
    if sweeps := summary["sweep_means"]:
        lines.append(sweeps_line(f"{sweeps['sweeps']} sweeps", sweeps))
    return lines


def count_lines(summary: dict[str, Any]) -> list[str]:
    """How many rows there are, by status, and how many break a rule."""
    status = ", ".join(f"{count} {name}" for name, count in summary["status"].items())
    lines = [f"{summary['rows']} row{'s' * (summary['rows'] != 1)}: {status}"]
    if (illegal := summary["illegal"])["rows"]:
        lines.append(
            f"{illegal['rows']} of them break a rule of their framework and have no figures: {illegal['failed']} are "
            f"recorded as failed, which counts as answered, {illegal['ran']} ran"
        )
    return lines


def unread_flops_lines(summary: dict[str, Any]) -> list[str]:
    """The rows whose TFLOP/s give no step time, by reason."""
    return [
        f"tflops_per_gpu of {len(rows)} row{'s' * (len(rows) != 1)} gives no step time: {reason} ("
        + some([f"row {row + 1}" for row in rows[:ROWS_NAMED]], len(rows))
        + ")"
        for reason, rows in summary["unread_flops"].items()
    ]


def headline(what: str, part: dict[str, Any], tail: str) -> str:
    """The errors of step times over sources in a line; `tail`: their 90th percentile in words."""
    return (
        f"step time, {what}, mean over {part['sources']} sources: median error {percent(part, 'median')} %, "
        f"p90 {tail}, bias {percent(part, 'bias', sign=True)} %"
    )


def memory_lines(summary: dict[str, Any]) -> list[str]:
    """Errors of peak memory, and how well out-of-memory is foretold."""
    lines = []
    if memory := summary["memory"]:
        lines.append(
            f"peak memory, {memory['rows']} rows: median error {percent(memory, 'median')} %, "
            f"p90 {percent(memory, 'p90')} %, bias {percent(memory, 'bias', sign=True)} %"
        )
    for key, where in (
        ("oom_of_sweeps", "sweeps that record it"), ("oom_where_recorded", "sources that record it"),
        ("oom", "all sources"),
    ):  # fmt: skip
        if oom := summary[key]:
            lines.append(
                f"out of memory, {where}, {oom['failures']} recorded, {oom['ran']} that ran: precision "
                f"{oom['precision']:.3f}, recall {oom['recall']:.3f}, false fits {percent(oom, 'false_fits')} %"
            )
    return lines


def sweeps_line(what: str, means: dict[str, Any]) -> str:
    """What taking planner's picks of sweeps would lose, in a line."""
    shown = {
        key: [percent(means, f"{which}_{key}") for which in ("median", "mean", "worst")] for key in REGRETS
    }
    return (
        f"{what}: Spearman median {means['median_spearman']:.3f}, worst "
        f"{means['worst_spearman']:.3f}; {means['missed']} picks recorded as out of memory; regret median, mean "
        "over sources, worst: "
        + "; ".join(f"{REGRETS[key]} {', '.join(parts)} %" for key, parts in shown.items())
    )


def _without_figures(sources: dict[str, dict[str, Any]]) -> list[str]:
    """Rows that have no figures, by source and reason, the most frequent first; long reasons cut."""
    found = sorted(
        (-count, name, reason)
        for name, source in sources.items()
        for reason, count in source["reasons"].items()
    )
    lines = []
    for count, name, reason in found:
        rows = [str(row + 1) for row in sources[name]["rows_of_reasons"][reason]]
        label = f"row{'s' * (count != -1)} {some(rows, -count)}"
        lines.append(f"  {-count} of {name}: {reason[:_LONGEST]} ({label})")
    rest = len(lines) - _MOST_REASONS
    return [*lines[:_MOST_REASONS], f"  ... {rest} more reasons: --json"] if rest > 0 else lines


def _aligned(line: tuple[str, ...], widths: list[int]) -> list[str]:
    """The first cell to the left, the others to the right."""
    rest = zip(line[1:], widths[1:], strict=True)
    return [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in rest)]


def _sweep_line(sweep: dict[str, Any]) -> str:
    regrets = f"{percent(sweep, 'regret')} %, {percent(sweep, 'regret_of_three')} %"
    failed = "" if sweep["pick_ran"] else "; its pick among all rows failed"
    return f"  {sweep['sweep']}: {sweep['rows']}, {sweep['spearman']:.3f}, {regrets}{failed}"


def text_table(summary: dict[str, Any], totals: Sequence[str]) -> str:
    """The summary as aligned columns; errors in percent, * marks sources that are listed, not judged.

    `totals`: what all rows together say, as `total_lines` has it.
    """
    table = [HEADER, *source_lines(summary["sources"])]
    widths = [max(len(line[i]) for line in table) for i in range(len(HEADER))]
    lines = ["  ".join(_aligned(line, widths)) for line in table]
    worst = [
        f"  row {w['row'] + 1} {w['source']} {w['model']} {w['gpus']} GPUs {w['config']}: {w['predicted_s']:.3g} s, "
        f"measured {w['measured_s']:.3g} s"
        for w in summary["worst"]
    ]
    lines += ["", *totals]
    for title, rows in (
        (
            "sweeps (rows, Spearman, regret of the pick, of the best of three):",
            map(_sweep_line, summary["sweeps"]),
        ),
        ("rows without figures:", _without_figures(summary["sources"])),
        ("furthest off:", worst),
    ):
        if told := list(rows):
            lines += ["", title, *told]
    lines += ["", "row 1 is the first below the header"]
    return "\n".join(lines)
