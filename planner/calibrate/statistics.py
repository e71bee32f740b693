"""How far are predictions from measurements? Errors by source, out-of-memory verdicts, and choices in sweeps.

Left out: predicting (`predict.py`) and tables for people (`validate.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.published.measured import Measurement, group_of, is_judged, sweep_of, unread_cells
from planner.spec.verdict import WORTH_THE_RISK

Array = NDArray[np.float64]

SMALLEST_SOURCE: Final = 5
SMALLEST_SWEEP: Final = 6
SMALLEST_SPREAD: Final = 0.03
NANOTRON_SOURCE: Final = "ultrascale_playbook"
REGRETS: Final = {
    "regret": "pick",
    "regret_of_three": "best of three",
    "regret_of_five": "best of five",
    "regret_of_fitting": "pick without the borderline",
}
_OOM_WEIGHT: Final = {"does_not_fit": 1.0, "borderline": 0.5, "fits": 0.0}
_DIGITS: Final = 4
ROWS_NAMED: Final = 5  # of those with one fault


@dataclass(frozen=True)
class Answer:
    """One row: what it says, what was predicted (an object of OUT.json), what was measured. `moe`: of a mixture of
    experts; `hybrid`: of a model with state spaces, which may be one too. `unread_flops`: why the TFLOP/s of a row
    that states them alone give no step time."""

    row: dict[str, str]
    output: dict[str, Any]
    measured: Measurement
    moe: bool
    hybrid: bool = False
    unread_flops: str = ""

    @property
    def time_ratio(self) -> float | None:
        """Predicted over measured step time [1]."""
        predicted = self.output["step_time_s"]
        return predicted / self.measured.step_time if predicted and self.measured.step_time else None

    @property
    def memory_ratio(self) -> float | None:
        """Predicted over measured peak memory [1]."""
        predicted, measured = self.output["peak_mem_gib"], self.measured.peak_memory
        return predicted * 2**30 / measured if predicted and measured else None


def error_summary(ratios: Sequence[float]) -> dict[str, float | int] | None:
    """Median, mean, 90th percentile of |ratio - 1|, and the median of ratio - 1 as bias; None without rows."""
    if not ratios:
        return None
    signed = np.array(ratios) - 1
    size = np.abs(signed)
    return {
        "rows": len(size),
        "median": _rounded(np.median(size)),
        "mean": _rounded(size.mean()),
        "p90": _rounded(np.percentile(size, 90)),
        "bias": _rounded(np.median(signed)),
    }


def _rounded(value: Any) -> float:
    return round(float(value), _DIGITS)


def oom_summary(answers: Sequence[Answer], crashes: bool = False) -> dict[str, float | int] | None:
    """Precision and recall of "does not fit"; a borderline counts half. `crashes`: failures stand in for OOMs. Rows
    without a predicted memory, which break a rule, are none of either."""
    hit = false = missed = 0.0
    failures = ran = false_fits = 0
    for answer in answers:
        weight = _OOM_WEIGHT.get(answer.output["verdict"] or "")
        if weight is None or answer.output["peak_mem_gib"] is None:
            continue
        m = answer.measured
        if m.oom or (crashes and m.crashed and not m.told_apart):
            failures, hit, missed = failures + 1, hit + weight, missed + 1 - weight
            false_fits += weight == 0.0
        elif m.ran:
            ran, false = ran + 1, false + weight
    if not failures:
        return None
    return {
        "failures": failures,
        "ran": ran,
        "precision": _rounded(hit / (hit + false) if hit + false else 0.0),
        "recall": _rounded(hit / failures),
        "false_fits": _rounded(false_fits / failures),
    }


def ranks(values: Array) -> Array:
    """Ranks from 1, ties sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    result: Array = (last - (counts - 1) / 2)[inverse].astype(np.float64)
    return result


def spearman(a: Array, b: Array) -> float:
    """Spearman's rank correlation [-1, 1]; 0 where one side is constant."""
    x, y = ranks(a) - (len(a) + 1) / 2, ranks(b) - (len(b) + 1) / 2
    norm = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / norm if norm else 0.0


def sweep_summaries(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Sweeps with enough configurations and spread: rank correlation, and what taking planner's picks would lose.

    Picks are made among all rows, failures included, by verdict ("does not fit" last) and predicted time, a borderline
    one only where it gains what is worth the risk, as `planner plan --borderline` makes them. `regret`:
    measured time of the first pick that ran over the best measured, less 1; `regret_of_three`, `regret_of_five`: of the
    best of the first three, five. `regret_of_fitting`: of the pick among those that surely fit, as `planner plan`
    makes it by default. `missed`: the first pick is recorded as out of memory; `pick_ran`: whether it ran.
    """
    sweeps: dict[tuple[str, ...], list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.output["step_time_s"]:
            sweeps[sweep_of(answer.row)].append(answer)
    found = []
    for key, members in sorted(sweeps.items()):
        timed = [a for a in members if a.time_ratio is not None]
        measured = np.array([a.measured.step_time for a in timed], dtype=np.float64)
        if len(timed) < SMALLEST_SWEEP or measured.max() / measured.min() - 1 < SMALLEST_SPREAD:
            continue
        predicted = np.array([a.output["step_time_s"] for a in timed], dtype=np.float64)
        picks = sorted(members, key=_preference)
        cautious = sorted(picks, key=lambda a: a.output["verdict"] != "fits")
        found.append(
            {
                "sweep": " ".join(part for part in key if part),
                "source": group_of(timed[0].row),
                "rows": len(timed),
                "spearman": _rounded(spearman(predicted, measured)),
                "regret": _regret(picks, 1, float(measured.min())),
                "regret_of_three": _regret(picks, 3, float(measured.min())),
                "regret_of_five": _regret(picks, 5, float(measured.min())),
                "regret_of_fitting": _regret(cautious, 1, float(measured.min())),
                "missed": picks[0].measured.oom,
                "pick_ran": picks[0].time_ratio is not None,
            }
        )
    return found


def _preference(answer: Answer) -> tuple[bool, float]:
    """What picks are sorted by: those that do not fit last, then step times, borderline ones handicapped [s]."""
    verdict, seconds = answer.output["verdict"], float(answer.output["step_time_s"])
    return verdict == "does_not_fit", seconds * (1 + WORTH_THE_RISK * (verdict == "borderline"))


def _regret(picks: Sequence[Answer], count: int, best: float) -> float:
    """The best measured time of the first `count` picks, of the next one that ran if none did, over `best`, less 1."""
    ran = [a.measured.step_time for a in picks[:count] if a.time_ratio is not None]
    ran = ran or [a.measured.step_time for a in picks if a.time_ratio is not None][:1]
    return _rounded(min(time for time in ran if time is not None) / best - 1)


def source_summaries(answers: Sequence[Answer]) -> dict[str, dict[str, Any]]:
    """By source: rows by status, errors of dense and MoE step times, of memory, and out-of-memory verdicts."""
    groups: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[group_of(answer.row)].append(answer)
    return {name: _source_summary(name, members) for name, members in groups.items()}


def _source_summary(name: str, answers: list[Answer]) -> dict[str, Any]:
    status = Counter(a.output["status"] for a in answers)
    reasons = Counter(a.output["reason"] for a in answers if a.output["reason"])
    dense = [r for a in answers if not a.moe and (r := a.time_ratio) is not None]
    moe = [r for a in answers if a.moe and (r := a.time_ratio) is not None]
    memory = [r for a in answers if (r := a.memory_ratio) is not None]
    return {
        "rows": len(answers),
        "status": dict(sorted(status.items())),
        "reasons": dict(reasons.most_common()),
        "rows_of_reasons": {reason: _rows_with(answers, reason) for reason in reasons},
        "judged": is_judged(name),
        "step_time_dense": error_summary(dense),
        "step_time_moe": error_summary(moe),
        "step_time_moe_no_hybrids": error_summary(
            [r for a in answers if a.moe and not a.hybrid and (r := a.time_ratio) is not None]
        ),
        "memory": error_summary(memory),
        "oom": oom_summary(answers),
        "crashes": oom_summary(answers, crashes=True) if any(a.measured.crashed for a in answers) else None,
    }


def _rows_with(answers: Sequence[Answer], reason: str) -> list[int]:
    """The first rows that have no figures for this reason."""
    return [a.output["row"] for a in answers if a.output["reason"] == reason][:ROWS_NAMED]


def mean_of_sources(sources: dict[str, dict[str, Any]], key: str) -> dict[str, Any] | None:
    """Mean over judged sources with enough timed rows of their median, 90th percentile and bias.

    Nanotron's 90th percentile stands apart (`p90_nanotron`): its slow mode is announced by nothing in a row.
    """
    judged = {
        name: s[key]
        for name, s in sources.items()
        if s["judged"] and s[key] and s[key]["rows"] >= SMALLEST_SOURCE
    }
    if not judged:
        return None
    means = {name: _rounded(np.mean([s[name] for s in judged.values()])) for name in ("median", "bias")}
    others = {name: s for name, s in judged.items() if name != NANOTRON_SOURCE} or judged
    means["p90"] = _rounded(np.mean([s["p90"] for s in others.values()]))
    if len(others) < len(judged):
        means["p90_nanotron"] = judged[NANOTRON_SOURCE]["p90"]
    return {"sources": len(judged), "rows": sum(s["rows"] for s in judged.values()), **means}


def summarise(answers: Sequence[Answer]) -> dict[str, Any]:
    """The summary of OUT.json."""
    sources = source_summaries(answers)
    judged = [a for a in answers if is_judged(group_of(a.row))]
    sweeps = sweep_summaries(answers)
    status = Counter(a.output["status"] for a in answers)
    illegal = [a for a in answers if a.output["legal"] is False]
    foretold = sum(a.measured.oom or a.measured.crashed for a in illegal)
    told = [a for a in judged if not a.measured.crashed]
    failed = Counter(group_of(a.row) for a in told if a.measured.oom)
    recorded = set(failed)
    return {
        "rows": len(answers),
        "status": dict(sorted(status.items())),
        # rows with figures, and those recorded as failed of which a broken rule said so
        "answered": status["ok"] - len(illegal) + foretold,
        "illegal": {"rows": len(illegal), "failed": foretold, "ran": sum(a.measured.ran for a in illegal)},
        "reasons": dict(Counter(a.output["reason"] for a in answers if a.output["reason"]).most_common()),
        "unread_cells": dict(Counter(name for a in answers for name in unread_cells(a.row))),
        "rows_of_unread_cells": _rows_unread(answers),
        "unread_flops": {
            reason: [a.output["row"] for a in answers if a.unread_flops == reason]
            for reason in dict.fromkeys(a.unread_flops for a in answers if a.unread_flops)
        },
        "headline_dense": mean_of_sources(sources, "step_time_dense"),
        "headline_moe": mean_of_sources(sources, "step_time_moe"),
        "headline_moe_no_hybrids": mean_of_sources(sources, "step_time_moe_no_hybrids"),
        "step_time_dense": error_summary(
            [r for a in judged if not a.moe and (r := a.time_ratio) is not None]
        ),
        "step_time_moe": error_summary([r for a in judged if a.moe and (r := a.time_ratio) is not None]),
        "step_time_hybrid": error_summary(
            [r for a in judged if a.hybrid and (r := a.time_ratio) is not None]
        ),
        "memory": error_summary([r for a in judged if (r := a.memory_ratio) is not None]),
        "oom": oom_summary(told),
        "oom_where_recorded": oom_summary([a for a in told if group_of(a.row) in recorded]),
        "oom_of_sweeps": oom_summary([a for a in told if failed[group_of(a.row)] >= SMALLEST_SWEEP]),
        "sweeps": sweeps,
        "sweep_means": _sweep_means(sweeps),
        "sources": sources,
        "worst": _worst(judged),
    }


def _sweep_means(sweeps: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Judged sweeps, nanotron's apart, whose slow mode nothing in a row announces."""
    judged = [s for s in sweeps if is_judged(s["source"])]
    nanotron = [s for s in judged if s["source"] == NANOTRON_SOURCE]
    others = [s for s in judged if s["source"] != NANOTRON_SOURCE]
    return {name: _means_of(part) for name, part in (("nanotron", nanotron), ("others", others)) if part}


def _means_of(sweeps: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over sweeps, means over the means of sources, the worst sweep."""
    names = ("spearman", *REGRETS)
    columns = {name: np.array([s[name] for s in sweeps]) for name in names}
    source = np.array([s["source"] for s in sweeps])
    result: dict[str, Any] = {"sweeps": len(sweeps), "missed": sum(s["missed"] for s in sweeps)}
    for name, values in columns.items():
        result[f"median_{name}"] = _rounded(np.median(values))
        means = [values[source == one].mean() for one in np.unique(source)]
        result[f"mean_{name}"] = _rounded(np.mean(means))
        result[f"worst_{name}"] = _rounded(values.min() if name == "spearman" else values.max())
    return result


def _rows_unread(answers: Sequence[Answer]) -> dict[str, list[dict[str, Any]]]:
    """By measured column the first rows whose cell is no number, with the cell."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for answer in answers:
        for name in unread_cells(answer.row):
            if len(found[name]) < ROWS_NAMED:
                found[name].append({"row": answer.output["row"], "cell": answer.row[name][:40]})
    return dict(found)


def _worst(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """The 20 rows whose step time is furthest off, at most two of each source."""
    timed = [(abs(np.log(ratio)), a) for a in answers if (ratio := a.time_ratio) is not None]
    timed.sort(key=lambda pair: -pair[0])
    taken: Counter[str] = Counter()
    chosen = []
    for _, answer in timed:
        source = group_of(answer.row)
        taken[source] += 1
        if taken[source] <= 2:
            chosen.append(answer)
    return [
        {
            "row": a.output["row"],
            "source": group_of(a.row),
            "model": a.row.get("model", ""),
            "gpus": a.row.get("gpus", ""),
            "config": a.output["config"],
            "predicted_s": a.output["step_time_s"],
            "measured_s": _rounded(a.measured.step_time),
        }
        for a in chosen[:20]
    ]
