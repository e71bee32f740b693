"""How far are predictions of published runs from their measurements, and which facts about these sources count apart?

nanotron's 90th percentile and its sweeps stand apart: nothing in a row announces its slow mode. Failures of unknown
cause are also counted as out of memory. Left out: the statistics themselves (`planner/calibrate/statistics.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from benchmarks.published.measured import PublishedMeasurement, unread_cells
from planner.calibrate.statistics import (
    ROWS_NAMED,
    SMALLEST_SOURCE,
    Answer,
    mean_of_sources,
    oom_summary,
    summarise,
    sweep_means,
)
from planner.calibrate.tables import (
    HEADER,
    HEADLINES,
    count_lines,
    headline,
    memory_lines,
    percent,
    some,
    source_lines,
    sweeps_line,
    unread_flops_lines,
)

NANOTRON_SOURCE: Final = "ultrascale_playbook"
_HEADLINES: Final = {
    "headline_dense": "step_time_dense",
    "headline_moe": "step_time_moe",
    "headline_moe_no_hybrids": "step_time_moe_no_hybrids",
}


def summarise_published(answers: Sequence[Answer]) -> dict[str, Any]:
    """The summary of OUT.json."""
    summary = summarise(answers)
    members: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        members[answer.source].append(answer)
    for name, source in summary["sources"].items():
        source["crashes"] = _crashes(members[name])
    for key, part in _HEADLINES.items():
        summary[key] = mean_with_nanotron_apart(summary["sources"], part)
    summary["sweep_means"] = _sweeps_apart(summary)
    unread = {
        "unread_cells": dict(Counter(name for a in answers for name in unread_cells(a.row))),
        "rows_of_unread_cells": _rows_unread(answers),
    }
    ordered: dict[str, Any] = {}
    for key, value in summary.items():  # in the order that readers of older files know
        ordered |= (unread if key == "unread_flops" else {}) | {key: value}
    return ordered


def _crashes(answers: Sequence[Answer]) -> dict[str, float | int] | None:
    """Verdicts of a source where failures of unknown cause stand in for out of memory; None without failures."""
    if not any(answer.measured.failed for answer in answers):
        return None
    return oom_summary([_as_oom(answer) for answer in answers])


def _as_oom(answer: Answer) -> Answer:
    m = answer.measured
    unknown = m.failed and not (isinstance(m, PublishedMeasurement) and m.told_apart)
    return replace(answer, measured=replace(m, oom=True)) if unknown else answer


def mean_with_nanotron_apart(sources: Mapping[str, dict[str, Any]], key: str) -> dict[str, Any] | None:
    """`mean_of_sources`, nanotron's 90th percentile apart (`p90_nanotron`) where there are others."""
    means, own = mean_of_sources(sources, key), sources.get(NANOTRON_SOURCE)
    others = {name: source for name, source in sources.items() if name != NANOTRON_SOURCE}
    rest = mean_of_sources(others, key)
    part = own[key] if own else None
    if (
        means is None
        or not own
        or not part
        or part["rows"] < SMALLEST_SOURCE
        or not own["judged"]
        or not rest
    ):
        return means
    return means | {"p90": rest["p90"], "p90_nanotron": part["p90"]}


def _sweeps_apart(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Means over judged sweeps, nanotron's apart."""
    judged = [s for s in summary["sweeps"] if summary["sources"][s["source"]]["judged"]]
    parts = {
        "nanotron": [s for s in judged if s["source"] == NANOTRON_SOURCE],
        "others": [s for s in judged if s["source"] != NANOTRON_SOURCE],
    }
    return {name: means for name, part in parts.items() if (means := sweep_means(part))}


def _rows_unread(answers: Sequence[Answer]) -> dict[str, list[dict[str, Any]]]:
    """By measured column the first rows whose cell is no number, with the cell."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for answer in answers:
        for name in unread_cells(answer.row):
            if len(found[name]) < ROWS_NAMED:
                found[name].append({"row": answer.output["row"], "cell": answer.row[name][:40]})
    return dict(found)


def tail_text(part: dict[str, Any]) -> str:
    """The mean 90th percentile of a headline, and nanotron's, which is counted apart."""
    apart = f" (nanotron apart: {percent(part, 'p90_nanotron')} %)" if "p90_nanotron" in part else ""
    return f"{percent(part, 'p90')} %{apart}"


def published_lines(summary: dict[str, Any]) -> list[str]:
    """What all rows together say."""
    lines = [
        *count_lines(summary),
        *(
            f"{name} of {count} row{'s' * (count != 1)} is no number above 0: not compared ("
            + some(
                [f"row {c['row'] + 1}: {c['cell']!r}" for c in summary["rows_of_unread_cells"][name]], count
            )
            + ")"
            for name, count in summary["unread_cells"].items()
        ),
        *unread_flops_lines(summary),
        *(headline(what, part, tail_text(part)) for key, what in HEADLINES if (part := summary[key])),
        *memory_lines(summary),
    ]
    for name, source in summary["sources"].items():
        if crashes := source["crashes"]:
            lines.append(
                f"{name}: {crashes['failures']} failures of unknown cause taken as out of memory: "
                f"precision {crashes['precision']:.3f}, recall {crashes['recall']:.3f}"
            )
    means = summary["sweep_means"].items()
    return [*lines, *(sweeps_line(f"{part['sweeps']} sweeps ({name})", part) for name, part in means)]


def markdown_table(summary: dict[str, Any], date: str) -> str:
    """The summary for RESULTS.md."""
    lines = [
        f"Measured {date} with `python -m benchmarks.accuracy`; errors in percent, * listed, not judged.",
        "Stacks are fitted on these rows; errors on groups never seen are below (benchmarks/cross_validate.py).",
        "",
    ]
    lines += [f"- {line}" for line in published_lines(summary)]
    lines += ["", "| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
    lines += ["| " + " | ".join(line) + " |" for line in source_lines(summary["sources"])]
    return "\n".join(lines)
