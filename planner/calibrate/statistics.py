"""How far are predictions from measurements? Errors by source, out-of-memory verdicts, and choices in sweeps.

Left out: predicting (`predict.py`) and tables for people (`validate.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.measured import Measurement
from planner.spec.verdict import WORTH_THE_RISK

Array = NDArray[np.float64]

SMALLEST_SOURCE: Final = 5
SMALLEST_SWEEP: Final = 6
SMALLEST_SPREAD: Final = 0.03
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
    """One row with what was predicted and what was measured."""

    row: Mapping[str, str]  # its cells, by column
    output: dict[str, Any]  # what was predicted: an object of OUT.json
    measured: Measurement
    source: str  # what errors are grouped by
    sweep: tuple[str, ...]  # what the rows of one sweep share: everything but how the work is divided
    devices: float = 1.0
    moe: bool = False  # of a mixture of experts
    hybrid: bool = False  # of a model with state spaces, which may be a mixture too
    judged: bool = True  # whether headlines count it
    unread_flops: str = ""  # why the TFLOP/s of a row that states them alone give no step time
    time: Mapping[str, float] = field(default_factory=dict)  # predicted, term -> seconds

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
        "median": rounded(np.median(size)),
        "mean": rounded(size.mean()),
        "p90": rounded(np.percentile(size, 90)),
        "bias": rounded(np.median(signed)),
    }


def rounded(value: Any) -> float:
    """A figure of a summary, to four digits behind the point."""
    return round(float(value), _DIGITS)


def oom_summary(answers: Sequence[Answer]) -> dict[str, float | int] | None:
    """Precision and recall of "does not fit"; a borderline counts half. Rows without a predicted memory, which break a
    rule, are none of either."""
    hit = false = missed = 0.0
    failures = ran = false_fits = 0
    for answer in answers:
        weight = _OOM_WEIGHT.get(answer.output["verdict"] or "")
        if weight is None or answer.output["peak_mem_gib"] is None:
            continue
        if answer.measured.oom:
            failures, hit, missed = failures + 1, hit + weight, missed + 1 - weight
            false_fits += weight == 0.0
        elif answer.measured.ran:
            ran, false = ran + 1, false + weight
    if not failures:
        return None
    return {
        "failures": failures,
        "ran": ran,
        "precision": rounded(hit / (hit + false) if hit + false else 0.0),
        "recall": rounded(hit / failures),
        "false_fits": rounded(false_fits / failures),
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
            sweeps[answer.sweep].append(answer)
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
                "source": timed[0].source,
                "rows": len(timed),
                "spearman": rounded(spearman(predicted, measured)),
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
    return rounded(min(time for time in ran if time is not None) / best - 1)


def source_summaries(answers: Sequence[Answer]) -> dict[str, dict[str, Any]]:
    """By source: rows by status, errors of dense and MoE step times, of memory, and out-of-memory verdicts."""
    groups: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[answer.source].append(answer)
    return {name: _source_summary(members) for name, members in groups.items()}


def _source_summary(answers: list[Answer]) -> dict[str, Any]:
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
        "judged": answers[0].judged,
        "step_time_dense": error_summary(dense),
        "step_time_moe": error_summary(moe),
        "step_time_moe_no_hybrids": error_summary(
            [r for a in answers if a.moe and not a.hybrid and (r := a.time_ratio) is not None]
        ),
        "memory": error_summary(memory),
        "oom": oom_summary(answers),
    }


def _rows_with(answers: Sequence[Answer], reason: str) -> list[int]:
    """The first rows that have no figures for this reason."""
    return [a.output["row"] for a in answers if a.output["reason"] == reason][:ROWS_NAMED]


def mean_of_sources(sources: Mapping[str, dict[str, Any]], key: str) -> dict[str, Any] | None:
    """Mean over judged sources with enough timed rows of their median, 90th percentile and bias."""
    counted = [
        s[key] for s in sources.values() if s["judged"] and s[key] and s[key]["rows"] >= SMALLEST_SOURCE
    ]
    if not counted:
        return None
    means = {name: rounded(np.mean([s[name] for s in counted])) for name in ("median", "bias", "p90")}
    return {"sources": len(counted), "rows": sum(s["rows"] for s in counted), **means}


def summarise(answers: Sequence[Answer]) -> dict[str, Any]:
    """The summary of OUT.json."""
    sources = source_summaries(answers)
    judged = [a for a in answers if a.judged]
    sweeps = sweep_summaries(answers)
    status = Counter(a.output["status"] for a in answers)
    illegal = [a for a in answers if a.output["legal"] is False]
    foretold = sum(a.measured.oom or a.measured.failed for a in illegal)
    told = [a for a in judged if not a.measured.failed]
    failed = Counter(a.source for a in told if a.measured.oom)
    recorded = set(failed)
    return {
        "rows": len(answers),
        "status": dict(sorted(status.items())),
        # rows with figures, and those recorded as failed of which a broken rule said so
        "answered": status["ok"] - len(illegal) + foretold,
        "illegal": {"rows": len(illegal), "failed": foretold, "ran": sum(a.measured.ran for a in illegal)},
        "reasons": dict(Counter(a.output["reason"] for a in answers if a.output["reason"]).most_common()),
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
        "oom_where_recorded": oom_summary([a for a in told if a.source in recorded]),
        "oom_of_sweeps": oom_summary([a for a in told if failed[a.source] >= SMALLEST_SWEEP]),
        "sweeps": sweeps,
        "sweep_means": sweep_means([s for s in sweeps if sources[s["source"]]["judged"]]),
        "sources": sources,
        "worst": _worst(judged),
    }


def sweep_means(sweeps: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Medians over sweeps, means over the means of sources, the worst sweep; None without sweeps."""
    if not sweeps:
        return None
    names = ("spearman", *REGRETS)
    columns = {name: np.array([s[name] for s in sweeps]) for name in names}
    source = np.array([s["source"] for s in sweeps])
    result: dict[str, Any] = {"sweeps": len(sweeps), "missed": sum(s["missed"] for s in sweeps)}
    for name, values in columns.items():
        result[f"median_{name}"] = rounded(np.median(values))
        means = [values[source == one].mean() for one in np.unique(source)]
        result[f"mean_{name}"] = rounded(np.mean(means))
        result[f"worst_{name}"] = rounded(values.min() if name == "spearman" else values.max())
    return result


def _worst(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """The 20 rows whose step time is furthest off, at most two of each source."""
    timed = [(abs(np.log(ratio)), a) for a in answers if (ratio := a.time_ratio) is not None]
    timed.sort(key=lambda pair: -pair[0])
    taken: Counter[str] = Counter()
    chosen = []
    for _, answer in timed:
        taken[answer.source] += 1
        if taken[answer.source] <= 2:
            chosen.append(answer)
    return [
        {
            "row": a.output["row"],
            "source": a.source,
            "model": a.row.get("model", ""),
            "gpus": a.row.get("gpus", ""),
            "config": a.output["config"],
            "predicted_s": a.output["step_time_s"],
            "measured_s": rounded(a.measured.step_time),
        }
        for a in chosen[:20]
    ]
