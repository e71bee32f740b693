"""Is planner better or worse than its baseline? `python -m benchmarks.baseline [DATA] [--write] [--only PART ...]`.

Compares accuracy by source, groups and publishers left out, rounds, runs on one device, processor seconds of twelve
commands and lines by concern with `baseline.json`, and prints what differs by more than a hundredth. DATA is a folder
with measured/runs.csv and device/ (default: ../shared/data). Parts are measured each in a process of its own; what is
not there is left out and said. `--write` makes the baseline anew. Processor seconds hold for one machine: commands of
the baseline's commit are timed again beside today's where `--beside CHECKOUT` names one. Left out: proofs, which
`gaps.py` and `brute_force.py` judge.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
FILE: Final = Path(__file__).with_name("baseline.json")
DATA: Final = ROOT.parent / "shared" / "data"
ALIKE: Final = 0.01  # of a figure: what is no more apart is not told
_DEEPSEEK: Final = "plan deepseek-v3 deepseek-h800 --gpus 2048 --seq-len 4096 --global-batch 15360"
COMMANDS: Final = (
    "--help",
    "model deepseek-v3",
    "estimate llama-3.1-8b dgx-h100 --gpus 8",
    "estimate deepseek-v3 deepseek-h800 --gpus 2048 --seq-len 4096 --global-batch 15360 --set pp=16 --set ep=64",
    "plan llama-3.2-1b '1x8 h100' --seq-len 4096 --global-batch 64",
    "plan llama-3.1-8b dgx-h100 --gpus 64",
    "plan qwen3-30b-a3b dgx-h100 --gpus 16 --seq-len 4096 --global-batch 1024",
    "plan llama-3.1-70b dgx-h100 --gpus 512 --stack torchtitan-2026",
    _DEEPSEEK,
    f"{_DEEPSEEK} --precision fp8 --stack hai-llm-2024",
    "size llama-3.1-70b dgx-h100 --days 30 --tokens 2T",
    "compare llama-3.1-70b --clusters dgx-h100,dgx-b200 --gpus 256 --tokens 1T",
)
_JUDGED: Final = ("step_time_dense", "step_time_moe", "memory", "oom")
Figures = dict[str, Any]


def errors(ratios: Sequence[float]) -> Figures:
    """Of predicted over measured: count, median of ratios, median and 90th percentile of the error [1]."""
    sizes = sorted(abs(ratio - 1) for ratio in ratios)
    last = quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0]
    figures = {"ratio": median(ratios), "median": median(sizes), "p90": last}
    return {"rows": len(ratios)} | {name: round(value, 4) for name, value in figures.items()}


def accuracy(data: Path) -> Figures:
    """Errors of step times and peaks by source of the published runs."""
    summary = _run("accuracy", data / "measured/runs.csv", data / "measured/models.json")["summary"]
    return {
        name: {what: part[what] for what in _JUDGED if part.get(what)}
        for name, part in summary["sources"].items()
    } | {name: summary[name] for name in ("headline_dense", "headline_moe", "step_time_hybrid")}


def left_out(data: Path) -> Figures:
    """Errors by source where no constant has seen a row's group, and none a row's publisher."""
    table = _run("cross_validate", data / "measured/runs.csv", data / "measured/models.json", "--hide")
    return {name: table[name] for name in ("groups", "publishers")}


def rounds(data: Path) -> Figures:
    """Errors of the runs of others, by round."""
    from benchmarks.rounds import figures, judged, tables

    found = judged(tables())
    everything = [answer for answers in found.values() for answer in answers]
    return {name: figures(answers) for name, answers in [("all", everything), *found.items()]}


def device_runs(data: Path) -> Figures:
    """Errors of runs on one H100, of which nothing is fitted."""
    found = _run("device_runs", data / "device/transformers_one_gpu.csv", data.parent / "device/configs")
    parts = {"step time": "step", "allocated peak": "allocated", "reserved peak": "reserved"}
    ran = {
        name: [one for one in found if one[f"measured_{part}"] is not None] for name, part in parts.items()
    }
    failed = [one for one in found if one["measured_step"] is None]
    return {
        name: errors([one[part] / one[f"measured_{part}"] for one in ran[name]])
        for name, part in parts.items()
    } | {"failures": len(failed), "failures_called_a_fit": sum(one["verdict"] == "fits" for one in failed)}


def commands(checkout: Path) -> Figures:
    """Processor seconds and peak memory of twelve commands, compiled modules on disk, the lesser of two runs."""
    return {
        command: min((_timed(command, checkout) for _ in range(2)), key=lambda t: t["cpu_s"])
        for command in COMMANDS
    }


def lines(checkout: Path) -> Figures:
    """Lines of Python by concern: the folders of planner/, and what lies beside it."""
    found: dict[str, int] = defaultdict(int)
    for path in sorted(
        (
            *checkout.glob("planner/**/*.py"),
            *checkout.glob("benchmarks/**/*.py"),
            *checkout.glob("tests/**/*.py"),
        )
    ):
        parts = path.relative_to(checkout).parts
        name = "/".join(parts[:2]) if parts[0] == "planner" and len(parts) > 2 else parts[0]
        count = len(path.read_text(encoding="utf-8").splitlines())
        found[name] += count
        if parts[0] == "planner":
            found["planner, all"] += count
    return dict(found)


PARTS: Final[Mapping[str, Callable[[Path], Figures]]] = {
    "accuracy": accuracy, "left_out": left_out, "rounds": rounds, "device_runs": device_runs,
    "commands": lambda data: commands(ROOT), "lines": lambda data: lines(ROOT),
}  # fmt: skip
_NEED_DATA: Final = ("accuracy", "left_out", "device_runs")


def _run(module: str, *arguments: Path | str) -> Any:
    """What a benchmark writes as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments), "--json", str(out)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text(encoding="utf-8"))


def _timed(command: str, checkout: Path) -> Figures:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "planner", *shlex.split(command)], cwd=checkout, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1), f"{command} ended with {process.returncode}"
    return {"cpu_s": round(used.ru_utime + used.ru_stime, 2), "peak_mib": used.ru_maxrss // 1024}


def differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """What differs by more than `ALIKE`, one line each."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*before, *now)):
            yield from differences(before.get(key), now.get(key), f"{path}{' / ' if path else ''}{key}")
    elif isinstance(before, int | float) and isinstance(now, int | float):
        if abs(now - before) > ALIKE * max(abs(before), abs(now)):
            yield f"{path}: {before:g} -> {now:g}"
    elif before != now:
        yield f"{path}: {before} -> {now}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.baseline", description=__doc__)
    parser.add_argument("data", nargs="?", type=Path, default=DATA)
    parser.add_argument("--only", action="append", choices=[*PARTS], help="these parts alone; repeatable")
    parser.add_argument(
        "--beside", type=Path, metavar="CHECKOUT", help="time its commands on this machine, too"
    )
    parser.add_argument("--write", action="store_true", help="make baseline.json anew, of the parts measured")
    given = parser.parse_args(arguments)
    wanted = given.only or [*PARTS]
    there = [part for part in wanted if part not in _NEED_DATA or given.data.exists()]
    for part in sorted(set(wanted) - set(there)):
        print(f"{part}: left out, {given.data} is not there")
    held = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if given.beside and "commands" in there:
        held["commands"] = commands(given.beside)
    now = {part: PARTS[part](given.data) for part in there}
    for part in there:
        found = list(differences(held.get(part, {}), now[part]))
        print(f"{part}: {'as before' if not found else ''}", *found, sep="\n  ")
    if given.write:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        made = {"made": datetime.date.today().isoformat(), "commit": head.stdout.strip()}
        FILE.write_text(json.dumps({**held, **made, **now}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
