"""How good are predictions of runs that nobody fitted? `python -m benchmarks.rounds [--json OUT] [--write]`.

`benchmarks/rounds/round_*.csv` hold runs that others published, collected in rounds, in the columns of `planner
validate`. Each was first judged by planner of that day; errors whose cause was found in sources were mended since, so
that only figures of the day (RESULTS.md) are blind; widths of intervals (`planner/answer/interval.py`) were chosen on
them. Left out: fitting times, for which no row may serve.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.results_file import with_section, write_section
from planner.answer.interval import COMMUNICATION
from planner.calibrate.statistics import Answer
from planner.calibrate.validate import table_answers

TABLES: Final = Path(__file__).with_name("rounds")
README: Final = Path(__file__).parents[1] / "README.md"
TITLES: Final = {
    1: "fine-tuning and frameworks without a fitted stack", 2: "large pretraining, MLPerf",
    3: "AMD, ZeRO-3, MoE, consumer cards, zero bubble", 4: "GH200 and Blackwell", 5: "small clusters, V100",
    6: "peaks of memory", 7: "FSDP2 loops and MoE", 8: "FSDP to 2,048 devices, offloaded activations",
    9: "adapters, fine-tuning, 8 bits", 10: "RL trainers, MLPerf v6.0", 11: "V100, MI250X, long sequences",
    12: "MoE over EFA, CI records, TPUs, Gaudi", 13: "sweeps by students and laboratories",
}  # fmt: skip
_HEADER: Final = (
    "round", "first seen", "runs", "publishers", "step times", "ratio", "error", "p90", "in band", "peaks", "ratio",
    "error", "p90", "out of memory", "called so", "called a fit", "ran, called too large", "no figure",
)  # fmt: skip


def tables(folder: Path = TABLES) -> list[Path]:
    """The tables of all rounds, in order."""
    return sorted(folder.glob("round_*.csv"))


def judged(paths: Iterable[Path]) -> dict[str, list[Answer]]:
    """Every row of every round with its prediction and its measurement, by the name of the round."""
    return {path.stem: table_answers(path) for path in paths}


def figures(answers: Sequence[Answer]) -> dict[str, Any]:
    """Of some rows: counts, and errors of step times and of peaks; a source counts by its rows."""
    times = [ratio for answer in answers if (ratio := answer.time_ratio) is not None]
    peaks = [ratio for answer in answers if (ratio := answer.memory_ratio) is not None]
    banded = [
        low <= answer.measured.step_time <= high
        for answer in answers
        if answer.measured.step_time
        and (low := answer.output["step_time_low_s"])
        and (high := answer.output["step_time_high_s"])
    ]
    lost = [
        answer.output["verdict"] for answer in answers if answer.measured.oom and answer.output["verdict"]
    ]
    return {
        "runs": len(answers),
        "publishers": len({answer.row.get("publisher", "") for answer in answers}),
        "first_seen": min((answer.row["first_seen"] for answer in answers), default=""),
        "times": _errors(times),
        "within": sum(banded) / len(banded) if banded else None,
        "peaks": _errors(peaks),
        "oom": len(lost),
        "oom_called": lost.count("does_not_fit"),
        "oom_missed": lost.count("fits"),
        "ran_refused": sum(
            answer.output["verdict"] == "does_not_fit" for answer in answers if not failed(answer)
        ),
        "no_figure": sum(
            answer.output["step_time_s"] is None and not answer.measured.oom for answer in answers
        ),
    }


def failed(answer: Answer) -> bool:
    """Did a run end without a step?"""
    return answer.measured.oom or answer.measured.failed


def _errors(ratios: Sequence[float]) -> dict[str, float] | None:
    """Of predicted over measured: how many, the median, median and 90th percentile of the error [1]."""
    if not ratios:
        return None
    sizes = sorted(abs(ratio - 1) for ratio in ratios)
    p90 = statistics.quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0]
    return {
        "rows": len(ratios), "ratio": statistics.median(ratios), "median": statistics.median(sizes), "p90": p90,
    }  # fmt: skip


def by_publisher(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    """The rows of each publisher."""
    found: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        found[answer.row.get("publisher", "")].append(answer)
    return found


def each_the_same(answers: Sequence[Answer]) -> dict[str, float | None]:
    """Error and share in band where each publisher weighs the same: the mean over publishers of their median, [1]."""
    parts = [figures(rows) for rows in by_publisher(answers).values()]
    errors = [part["times"]["median"] for part in parts if part["times"]]
    within = [part["within"] for part in parts if part["within"] is not None]
    return {"error": statistics.fmean(errors), "within": statistics.fmean(within)}


def share_of(answer: Answer, *terms: str) -> float:
    """The share of a predicted step that some terms take [1]."""
    whole = sum(answer.time.values())
    return sum(answer.time.get(name, 0.0) for name in terms) / whole if whole else 0.0


KINDS: Final[Mapping[str, Callable[[Answer], bool]]] = {
    "dense": lambda answer: not answer.moe,
    "mixtures of experts": lambda answer: answer.moe,
    "the host decides 30 % of the step or more": lambda answer: share_of(answer, "host_bound") >= 0.3,
    "10 to 30 %": lambda answer: 0.1 <= share_of(answer, "host_bound") < 0.3,
    "exposed communication 20 % or more": lambda answer: share_of(answer, *COMMUNICATION) >= 0.2,
    "below 5 %": lambda answer: share_of(answer, *COMMUNICATION) < 0.05,
    "copies to the host 5 % or more": lambda answer: share_of(answer, "host_transfer") >= 0.05,
    "stacks that were fitted": lambda answer: answer.output["calibration_level"] != "L0",
    "stacks that were not": lambda answer: answer.output["calibration_level"] == "L0",
    "adapters": lambda answer: bool(answer.row.get("lora_rank")),
    "8 devices or fewer": lambda answer: answer.devices <= 8,
    "9 to 64": lambda answer: 8 < answer.devices <= 64,
    "more than 512": lambda answer: answer.devices > 512,
}


def kinds_table(answers: Sequence[Answer]) -> list[str]:
    """By kind of step: step times, publishers, and ratio, error and share in band, publishers weighing the same."""
    lines = [
        "| kind | step times | publishers | ratio | error | in band |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    timed = [answer for answer in answers if answer.time_ratio is not None]
    for kind, holds in {"all": lambda _: True, **KINDS}.items():
        rows = [answer for answer in timed if holds(answer)]
        if not rows:
            continue
        parts = [figures(part) for part in by_publisher(rows).values()]
        ratio = statistics.median(part["times"]["ratio"] for part in parts)
        same = each_the_same(rows)
        error, within = same["error"] or 0.0, _percent(same["within"])
        lines.append(f"| {kind} | {len(rows)} | {len(parts)} | {ratio:.2f} | {100 * error:.0f} | {within} |")
    return lines


def table(rounds: Mapping[str, Sequence[Answer]]) -> list[str]:
    """The figures as a table in Markdown, all rounds together first."""
    everything = [answer for answers in rounds.values() for answer in answers]
    lines = ["| " + " | ".join(_HEADER) + " |", "|" + " --- |" * len(_HEADER)]
    for name, answers in [("all", everything), *rounds.items()]:
        lines.append(
            "| " + " | ".join(_cells(name.removeprefix("round_").lstrip("0"), figures(answers))) + " |"
        )
    return lines


def _cells(name: str, part: Mapping[str, Any]) -> list[str]:
    return [
        name, part["first_seen"], f"{part['runs']:,}", str(part["publishers"]), *_error_cells(part["times"]),
        _percent(part["within"]),
        *_error_cells(part["peaks"]),
        *(str(part[key]) for key in ("oom", "oom_called", "oom_missed", "ran_refused", "no_figure")),
    ]  # fmt: skip


def _error_cells(errors: Mapping[str, float] | None) -> list[str]:
    if errors is None:
        return [""] * 4
    return [
        str(errors["rows"]), f"{errors['ratio']:.2f}", f"{100 * errors['median']:.0f}", f"{100 * errors['p90']:.0f}",
    ]  # fmt: skip


def readme_table(rounds: Mapping[str, Sequence[Answer]]) -> list[str]:
    """The same for README.md: step times alone, all rounds together first."""
    everything = [answer for answers in rounds.values() for answer in answers]
    whole, same = figures(everything), each_the_same(everything)
    parts = {"all": whole} | {TITLES[int(name[-2:])]: figures(answers) for name, answers in rounds.items()}
    head = (
        "runs that nobody fitted",
        "step times",
        "median error",
        "p90",
        "predicted / measured",
        "in the interval",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for title, part in parts.items():
        rows, ratio, error, p90 = _error_cells(part["times"])
        lines.append(f"| {title} | {rows} | {error} % | {p90} % | {ratio} | {_percent(part['within'])} |")
    peaks, ratio, error, p90 = _error_cells(whole["peaks"])
    return [
        *lines, "",
        f"{whole['runs']:,} runs of {whole['publishers']} publishers; each of these weighing the same, the error is "
        f"{_percent(same['error'])} and {_percent(same['within'])} lie in the interval. {peaks} peaks of memory: error "
        f"{error} %, p90 {p90} %, {ratio} of the measured in the median. Of {whole['oom']} runs out of memory "
        f"{whole['oom_called']} are called so and {whole['oom_missed']} a fit; of those that ran "
        f"{whole['ran_refused']} are called too large.",
    ]  # fmt: skip


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def worst_publishers(answers: Sequence[Answer], most: int = 8) -> list[str]:
    """The publishers whose median error is largest, five rows at least."""
    parts = [(name, figures(rows)["times"]) for name, rows in by_publisher(answers).items()]
    known = [(part["median"], name, part) for name, part in parts if part and part["rows"] >= 5]
    return [
        f"{name} {100 * median:.0f} % (ratio {part['ratio']:.2f}, {part['rows']} rows)"
        for median, name, part in sorted(known, reverse=True)[:most]
    ]


def without_figure(answers: Sequence[Answer]) -> list[str]:
    """Why rows have none, the most frequent reason first."""
    reasons: dict[str, int] = defaultdict(int)
    for answer in answers:
        if answer.output["step_time_s"] is None and not answer.measured.oom:
            reasons[str(answer.output["reason"]).split(";")[0][:120]] += 1
    return [f"{count} rows: {reason}" for reason, count in sorted(reasons.items(), key=lambda pair: -pair[1])]


def report(rounds: Mapping[str, Sequence[Answer]]) -> list[str]:
    """All that RESULTS.md says."""
    everything = [answer for answers in rounds.values() for answer in answers]
    same = each_the_same(everything)
    return [
        *table(rounds), "",
        f"Each publisher weighing the same, the error is {_percent(same['error'])} and {_percent(same['within'])} lie "
        "in band. By kind of step, alike:",
        "", *kinds_table(everything),
        "", "Furthest off: " + "; ".join(worst_publishers(everything)) + ".",
        "", "Without a figure: " + ("; ".join(without_figure(everything)) or "none") + ".",
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rounds", description=__doc__)
    parser.add_argument("tables", nargs="*", type=Path, help="these alone (default: all)")
    parser.add_argument("--json", type=Path, help="where to write every row")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md and README.md")
    given = parser.parse_args(arguments)
    rounds = judged(given.tables or tables())
    lines = report(rounds)
    print("\n".join(lines))
    if given.json:
        rows = {name: [answer.output for answer in answers] for name, answers in rounds.items()}
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    if given.write:
        said = f"Judged {datetime.date.today().isoformat()} with `python -m benchmarks.rounds`; errors in percent."
        write_section("rounds", "\n".join([said, "", *lines]))
        README.write_text(
            with_section(README.read_text(encoding="utf-8"), "rounds", "\n".join(readme_table(rounds))),
            encoding="utf-8",
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
