"""How far are estimates from training steps of transformers that were measured on one device, and do they fit as told?

    python -m benchmarks.device_runs RUNS.csv CONFIGS [--stack transformers-2026] [--json OUT] [--write]

RUNS.csv has the columns of ../shared/data/device/transformers_one_gpu.csv; CONFIGS holds a folder with a config.json
for every model in it. Predictions read the settings of a run alone. Errors are of the step's time, of the allocated
peak and of the reserved one; of verdicts it counts recorded failures that are called a fit. Left out: runs on several
devices.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.results_file import write_section
from planner.answer.estimate import make_estimate
from planner.ask.request import Request
from planner.catalog.stack_options import (
    AUTOCAST,
    COMPILE,
    EAGER_ATTENTION,
    EAGER_EXPERTS,
    FOREACH,
    SEPARATOR,
)
from planner.report.words import worded
from planner.spec.config import Recompute
from planner.spec.verdict import MemoryVerdict
from planner.units import GIB

Row = Mapping[str, str]
STACK: Final = "transformers-2026"
CLUSTERS: Final = {"h100_sxm_80g": "1x1 h100"}
# column, value -> option of the stack
OPTIONS: Final = {
    ("weights", "fp32 under bf16 autocast"): AUTOCAST, ("attention", "eager"): EAGER_ATTENTION,
    ("adamw", "foreach"): FOREACH, ("compile", "True"): COMPILE, ("experts", "eager"): EAGER_EXPERTS,
}  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """A run as predicted and as measured; measured ones are none where it ran out of memory. Times in seconds."""

    id: str
    settings: str
    step: float
    allocated: float
    reserved: float
    verdict: str
    measured_step: float | None
    measured_allocated: float | None
    measured_reserved: float | None


def question_of(row: Row, configs: Path, folder: Path, stack: str = STACK) -> Request:
    """The question whose estimate foretells a run."""
    options = [option for (column, value), option in OPTIONS.items() if row[column] == value]
    micro_batch, accumulated = int(row["micro_batch"]), int(row["grad_accumulation"])
    checkpointed = row["checkpointing"] == "True"
    restrict = {"micro_batch": (micro_batch,)}
    if checkpointed:
        restrict["recompute"] = (int(Recompute.FULL),)
    return Request(
        model=str(_model(row, configs, folder)), cluster=CLUSTERS[row["gpu"]], gpus=1, seq_len=int(row["seq_len"]),
        global_batch=str(micro_batch * accumulated), precision="bf16", stack=SEPARATOR.join([stack, *options]),
        set=restrict, lora_rank=int(float(row["lora_rank"])) if row["lora_rank"] else None,
    )  # fmt: skip


def _model(row: Row, configs: Path, folder: Path) -> Path:
    """The configuration that a run had, with its own number of layers and ties."""
    config = json.loads((configs / row["model"] / "config.json").read_text(encoding="utf-8"))
    config["tie_word_embeddings"] = row["tied"] == "True"
    if row["layers"]:
        config["num_hidden_layers"] = layers = int(float(row["layers"]))
        for name in ("layer_types", "mlp_layer_types"):
            if config.get(name):
                config[name] = config[name][:layers]
    own = folder / row["id"]
    own.mkdir()
    (own / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return own


def judged(row: Row, configs: Path, folder: Path, stack: str = STACK) -> Judged:
    """A run as predicted and as measured."""
    plan = make_estimate(question_of(row, configs, folder, stack))
    if not plan.choices:
        raise SystemExit(f"run {row['id']} cannot be estimated: {worded(plan)}")
    (choice,) = plan.choices
    memory, failed = choice.memory, row["oom"] == "True"
    outside = memory.terms["outside_allocator"]
    return Judged(
        row["id"], settings_of(row), choice.step_time, memory.logged, memory.peak - outside, str(memory.verdict),
        *(None if failed else float(row[name]) * unit for name, unit in
          (("step_s", 1.0), ("peak_allocated_gib", GIB), ("peak_reserved_gib", GIB))),
    )  # fmt: skip


def settings_of(row: Row) -> str:
    """What a run did, in a line."""
    settings = [row["model"], row["weights"].split()[0], f"{row['micro_batch']} x {row['seq_len']}"]
    names = ("checkpointing", "lora_rank", "layers", "grad_accumulation")
    settings += [f"{name} {row[name]}" for name in names if row[name] not in ("", "False", "1")]
    options = [option for (column, value), option in OPTIONS.items() if row[column] == value]
    return ", ".join([*settings, *options])


def errors(found: Sequence[Judged], predicted: str, measured: str) -> np.ndarray[Any, Any]:
    """Predicted over measured, less one, of the runs that ran (n,) [1]."""
    ran = [one for one in found if getattr(one, measured) is not None]
    return np.array([getattr(one, predicted) / getattr(one, measured) - 1 for one in ran])


def section(found: Sequence[Judged], stack: str) -> str:
    """Errors and verdicts, and the runs that are farthest off."""
    lines = [
        f"`{stack}` on {len(found)} runs of one device, of which nothing was fitted: {_verdicts(found)}.", "",
        "| | runs | error, median | 90th percentile | worst | too low |", "|---|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    measures = {"step time": "step", "allocated peak": "allocated", "reserved peak": "reserved"}
    for words, name in measures.items():
        off = errors(found, name, f"measured_{name}")
        size = np.abs(off)
        shares = (np.median(size), np.quantile(size, 0.9), size.max(), (off < 0).mean())
        lines.append(f"| {words} | {len(off)} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")
    lines += ["", "| farthest off | predicted | measured | error |", "|---|---:|---:|---:|"]
    for words, name, shown in (
        ("step time", "step", lambda seconds: f"{1e3 * seconds:,.0f} ms"),
        ("allocated peak", "allocated", lambda size: f"{size / GIB:.1f} GiB"),
    ):
        lines += _farthest(found, words, name, shown)
    return "\n".join(lines)


def _farthest(found: Sequence[Judged], words: str, name: str, shown: Callable[[float], str]) -> list[str]:
    ran = [one for one in found if getattr(one, f"measured_{name}") is not None]
    pairs = [(getattr(one, name), getattr(one, f"measured_{name}"), one.settings) for one in ran]
    worst = sorted(pairs, key=lambda pair: -abs(pair[0] / pair[1] - 1))[:4]
    return [
        f"| {words}: {settings} | {shown(predicted)} | {shown(measured)} | {predicted / measured - 1:+.0%} |"
        for predicted, measured, settings in worst
    ]


def _verdicts(found: Sequence[Judged]) -> str:
    failed = [one for one in found if one.measured_step is None]
    ran = [one for one in found if one.measured_step is not None]
    fits = sum(one.verdict == MemoryVerdict.FITS for one in failed)
    refused = sum(one.verdict == MemoryVerdict.DOES_NOT_FIT for one in ran)
    unsure = sum(one.verdict == MemoryVerdict.BORDERLINE for one in ran)
    return (
        f"{fits} of {len(failed)} recorded failures are called a fit, {refused} of {len(ran)} that ran no fit and "
        f"{unsure} borderline"
    )


def main() -> None:
    """Judge the runs of a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_runs", description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("configs", type=Path, help="a folder with a config.json for every model")
    parser.add_argument("--stack", default=STACK)
    parser.add_argument("--json", type=Path, help="every run as predicted and as measured")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    given = parser.parse_args()
    with given.runs.open(newline="", encoding="utf-8") as lines, tempfile.TemporaryDirectory() as folder:
        found = [judged(row, given.configs, Path(folder), given.stack) for row in csv.DictReader(lines)]
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in found], indent=1), encoding="utf-8")
    inside = section(found, given.stack)
    print(inside)
    if given.write:
        write_section("device-runs", inside)


if __name__ == "__main__":
    main()
