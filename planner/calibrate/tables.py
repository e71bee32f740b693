"""What does a validation look like in text? Plain lines for a terminal, Markdown for benchmarks/RESULTS.md."""

from __future__ import annotations

from typing import Any

from planner.calibrate.statistics import REGRETS, ROWS_NAMED

_MOST_REASONS, _LONGEST = 20, 160
_HEADER = ("source", "rows", "step time", "p90", "bias", "memory", "p90", "bias")


def _percent(part: dict[str, Any] | None, key: str, sign: bool = False) -> str:
    if not part:
        return ""
    return f"{100 * part[key]:+.1f}" if sign else f"{100 * part[key]:.1f}"


def _source_lines(sources: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """One line per source and kind of model with anything measured: errors in percent."""
    lines: list[tuple[str, ...]] = []
    for name, source in sorted(sources.items()):
        for key, suffix in (("step_time_dense", ""), ("step_time_moe", " (MoE)")):
            time, memory = source[key], source["memory"] if key == "step_time_dense" else None
            if not (time or memory):
                continue
            label = name + suffix + ("" if source["judged"] else " *")
            counted = str(time["rows"]) if time else ""
            errors = (_percent(time, "median"), _percent(time, "p90"), _percent(time, "bias", sign=True))
            peak = (_percent(memory, "median"), _percent(memory, "p90"), _percent(memory, "bias", sign=True))
            lines.append((label, counted, *errors, *peak))
    return lines


def tail_text(part: dict[str, Any]) -> str:
    """The mean 90th percentile of a headline, and nanotron's, which is counted apart."""
    apart = f" (nanotron apart: {_percent(part, 'p90_nanotron')} %)" if "p90_nanotron" in part else ""
    return f"{_percent(part, 'p90')} %{apart}"


def _some(named: list[str], count: int) -> str:
    """Those of `count` that are named, and that there are more."""
    return ", ".join([*named, "..."] if count > len(named) else named)


def _total_lines(summary: dict[str, Any]) -> list[str]:
    status = ", ".join(f"{count} {name}" for name, count in summary["status"].items())
    lines = [f"{summary['rows']} row{'s' * (summary['rows'] != 1)}: {status}"]
    if (illegal := summary["illegal"])["rows"]:
        lines.append(
            f"{illegal['rows']} of them break a rule of their framework and have no figures: {illegal['failed']} are "
            f"recorded as failed, which counts as answered, {illegal['ran']} ran"
        )
    lines += [
        f"{name} of {count} row{'s' * (count != 1)} is no number above 0: not compared ("
        + _some([f"row {c['row'] + 1}: {c['cell']!r}" for c in summary["rows_of_unread_cells"][name]], count)
        + ")"
        for name, count in summary["unread_cells"].items()
    ]
    lines += [
        f"tflops_per_gpu of {len(rows)} row{'s' * (len(rows) != 1)} gives no step time: {reason} ("
        + _some([f"row {row + 1}" for row in rows[:ROWS_NAMED]], len(rows))
        + ")"
        for reason, rows in summary["unread_flops"].items()
    ]
    for key, what in (("headline_dense", "dense"), ("headline_moe", "mixture of experts")):
        part = summary[key]
        if part:
            lines.append(
                f"step time, {what}, mean over {part['sources']} sources: median error {_percent(part, 'median')} %, "
                f"p90 {tail_text(part)}, bias {_percent(part, 'bias', sign=True)} %"
            )
    if memory := summary["memory"]:
        lines.append(
            f"peak memory, {memory['rows']} rows: median error {_percent(memory, 'median')} %, "
            f"p90 {_percent(memory, 'p90')} %, bias {_percent(memory, 'bias', sign=True)} %"
        )
    for key, where in (
        ("oom_of_sweeps", "sweeps that record it"), ("oom_where_recorded", "sources that record it"),
        ("oom", "all sources"),
    ):  # fmt: skip
        if oom := summary[key]:
            lines.append(
                f"out of memory, {where}, {oom['failures']} recorded, {oom['ran']} that ran: precision "
                f"{oom['precision']:.3f}, recall {oom['recall']:.3f}, false fits {_percent(oom, 'false_fits')} %"
            )
    for name, source in summary["sources"].items():
        if crashes := source["crashes"]:
            lines.append(
                f"{name}: {crashes['failures']} failures of unknown cause taken as out of memory: "
                f"precision {crashes['precision']:.3f}, recall {crashes['recall']:.3f}"
            )
    for name, sweeps in summary["sweep_means"].items():
        shown = {
            key: [_percent(sweeps, f"{what}_{key}") for what in ("median", "mean", "worst")]
            for key in REGRETS
        }
        lines.append(
            f"{sweeps['sweeps']} sweeps ({name}): Spearman median {sweeps['median_spearman']:.3f}, worst "
            f"{sweeps['worst_spearman']:.3f}; {sweeps['missed']} picks recorded as out of memory; regret median, mean "
            "over sources, worst: "
            + "; ".join(f"{REGRETS[key]} {', '.join(parts)} %" for key, parts in shown.items())
        )
    return lines


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
        label = f"row{'s' * (count != -1)} {_some(rows, -count)}"
        lines.append(f"  {-count} of {name}: {reason[:_LONGEST]} ({label})")
    rest = len(lines) - _MOST_REASONS
    return [*lines[:_MOST_REASONS], f"  ... {rest} more reasons: --json"] if rest > 0 else lines


def _aligned(line: tuple[str, ...], widths: list[int]) -> list[str]:
    """The first cell to the left, the others to the right."""
    rest = zip(line[1:], widths[1:], strict=True)
    return [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in rest)]


def _sweep_line(sweep: dict[str, Any]) -> str:
    regrets = f"{_percent(sweep, 'regret')} %, {_percent(sweep, 'regret_of_three')} %"
    failed = "" if sweep["pick_ran"] else "; its pick among all rows failed"
    return f"  {sweep['sweep']}: {sweep['rows']}, {sweep['spearman']:.3f}, {regrets}{failed}"


def text_table(summary: dict[str, Any]) -> str:
    """The summary as aligned columns; errors in percent, * marks sources that are listed, not judged."""
    table = [_HEADER, *_source_lines(summary["sources"])]
    widths = [max(len(line[i]) for line in table) for i in range(len(_HEADER))]
    lines = ["  ".join(_aligned(line, widths)) for line in table]
    worst = [
        f"  row {w['row'] + 1} {w['source']} {w['model']} {w['gpus']} GPUs {w['config']}: {w['predicted_s']:.3g} s, "
        f"measured {w['measured_s']:.3g} s"
        for w in summary["worst"]
    ]
    lines += ["", *_total_lines(summary)]
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
    if summary["worst"] or summary["reasons"] or summary["unread_cells"] or summary["unread_flops"]:
        lines += ["", "row 1 is the first below the header"]
    return "\n".join(lines)


def markdown_table(summary: dict[str, Any], date: str) -> str:
    """The summary for RESULTS.md."""
    lines = [
        f"Measured {date} with `python -m benchmarks.accuracy`; errors in percent, * listed, not judged.",
        "Stacks are fitted on these rows; errors on groups never seen are below (benchmarks/cross_validate.py).",
        "",
    ]
    lines += [f"- {line}" for line in _total_lines(summary)]
    lines += ["", "| " + " | ".join(_HEADER) + " |", "|" + " --- |" * len(_HEADER)]
    lines += ["| " + " | ".join(line) + " |" for line in _source_lines(summary["sources"])]
    return "\n".join(lines)
