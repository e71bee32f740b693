"""Which published rows can be written in the columns of `planner validate`, and what keeps the others out?

    python -m benchmarks.strict_table RUNS.csv MODELS.json -o DIR

Writes DIR/runs.csv with the models, clusters and stacks that it names as files beside it. A row is kept if the strict
reader predicts the step time and the peak that the reader of free text does (within `SAME`). Left out, with a count by
reason: the others. A row's verdict may differ where its free text leaves open what could make it fit.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, get_args

import yaml

from benchmarks.published.descriptions import plain_description
from benchmarks.published.measured import measurement_of, number_of
from benchmarks.published.runs import (
    INPUT_COLUMNS,
    ClusterFigures,
    Run,
    RunReader,
    cluster_figures,
    read_models,
    read_rows,
)
from benchmarks.published.validate import predict_rows, states_flops_alone
from planner.calibrate.flops_rate import KINDS
from planner.calibrate.predict import refusal
from planner.calibrate.run_table import AXES, COLUMNS, Outcome
from planner.calibrate.validate import validate_table
from planner.catalog.load_stacks import load_stack
from planner.errors import PlannerError, UnsupportedError
from planner.spec.config import ParallelConfig, Recompute, value_text
from planner.spec.job import AdapterTargets, Job
from planner.spec.load_loads import BALANCED
from planner.spec.load_model import load_model, resolve_catalog_name
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.device_kernels import with_device_kernels
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.model import ModelSpec
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.stack.section import Bytes, Seconds, Section
from planner.units import GIB

SAME: Final = 1e-9  # relative, of step time and peak
TABLE: Final = "runs.csv"
_FIGURE: Final = re.compile(r"\d[\d,.]*")
_LONGEST: Final = 110  # letters of a reason
_UNITS: Final = ((get_args(Seconds)[1], "s"), (get_args(Bytes)[1], "B"))  # by what reads them
_OF_FILES: Final = ("name", "family", "source", "assumed", "described", "max_position")  # of a model
_FABRICS: Final = {
    "infiniband": "ib", "roce": "roce", "efa": "efa", "ethernet": "eth", "omnipath": "opa", "slingshot": "slingshot",
}  # fmt: skip


@dataclass
class Files:
    """The files beside a table: text by path, and which path a thing has."""

    texts: dict[str, str] = field(default_factory=dict)
    _stacks: list[tuple[Stack, str]] = field(default_factory=list)

    def model(self, key: str, entry: Mapping[str, Any], spec: ModelSpec) -> str:
        """MODEL of an entry of a models file: of the catalog where it states no layers, or the same ones, else a file.
        Raises `PlannerError`."""
        named = resolve_catalog_name(str(entry.get("hf_id") or "")) or resolve_catalog_name(key)
        if named is not None and (
            not entry.get("layers") or _same_layers(load_model(named, spec.mtp_layers > 0), spec)
        ):
            return named
        described, _ = plain_description(entry, key)
        return self._add("models", key, {**described, "name": key})

    def cluster(self, figures: ClusterFigures, built: Cluster) -> str:
        """CLUSTER of a row's machine: a shorthand where it says the same, else a file."""
        if built.products != 1.0:
            raise UnsupportedError("products of a machine that were timed apart are in no cluster file")
        short = _shorthand(figures)
        try:
            if _alike(load_cluster(short, figures.gpus), built):
                return short
        except PlannerError:
            pass
        words = [short, *([] if figures.domain is None else [f"domain {figures.domain}"])]
        return self._add("clusters", " ".join(words), _cluster_document(figures, built))

    def stack(self, run: Run) -> str:
        """STACK of a run: a shipped name where that is the same, else a file."""
        problem = run.problem
        shipped = load_stack(run.stack)
        kernels = with_device_kernels(
            shipped, problem.model, problem.cluster.accelerator, problem.job.precision
        )
        if problem.stack in (shipped, kernels):
            return run.stack
        for stack, path in self._stacks:
            if stack == problem.stack:
                return path
        path = self._add("stacks", f"{run.stack}-{len(self._stacks) + 1}", _section_document(problem.stack))
        self._stacks.append((problem.stack, path))
        return path

    def _add(self, folder: str, name: str, document: Mapping[str, Any]) -> str:
        path = f"{folder}/{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-')}.yaml"
        self.texts[path] = yaml.safe_dump(_plain(document), sort_keys=False, allow_unicode=True, width=100)
        return path


def _same_layers(one: ModelSpec, other: ModelSpec) -> bool:
    """Are two models the same but for what they are called and where they were read?"""
    names = (f.name for f in fields(ModelSpec) if f.name not in _OF_FILES)
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _section_document(section: Section) -> dict[str, Any]:
    """A stack or a part of one as a stack file has it: what is not as usual, times and sizes with their units."""
    document = section.model_dump(mode="json", exclude_defaults=True)
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        unit = next((unit for reader, unit in _UNITS if any(part is reader for part in info.metadata)), None)
        if isinstance(value, Section) and value != info.default:
            document[name] = _section_document(value)
        elif name in document and unit:
            document[name] = f"{value!r} {unit}"
        elif name == "kind":
            document[name] = str(value)
    return document


def _plain(value: Any) -> Any:
    """A document without nulls and enums, as YAML holds it."""
    return json.loads(json.dumps({key: part for key, part in value.items() if part is not None}))


def _shorthand(figures: ClusterFigures) -> str:
    nodes = -(-figures.gpus // figures.per_node)
    text = f"{nodes}x{figures.per_node} {figures.chip.name}"
    if figures.kind is None or figures.injection is None:
        return text
    speed = figures.injection / figures.per_node * 8e-9
    return f"{text} {speed:.3f}".rstrip("0").rstrip(".") + f"G-{_FABRICS.get(figures.kind, figures.kind)}"


def _alike(one: Cluster, other: Cluster) -> bool:
    """Are two clusters the same devices behind the same links?"""
    names = (
        "accelerator",
        "num_devices",
        "devices_per_node",
        "scale_up_domain",
        "tiers",
        "fabric",
        "products",
    )
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _cluster_document(figures: ClusterFigures, built: Cluster) -> dict[str, Any]:
    """A cluster file of a row's machine."""
    chip = figures.chip
    node: dict[str, Any] = {
        "accelerators": figures.per_node,
        "scale_up": {"kind": chip.scale_up_kind, "domain": built.scale_up_domain},
    }
    document = {"name": built.name, "accelerator": chip.name, "nodes": "any", "node": node}
    if figures.gpus > max(figures.per_node, built.scale_up_domain):
        typical = chip.typical_node
        kind = figures.kind or built.fabric
        injection = figures.injection
        if injection is None and typical is not None:
            injection = typical.injection_bandwidth(kind) * figures.per_node / typical.accelerators
        if injection is not None:
            bits = injection / figures.per_node * 8e-9
            node |= {"nics": figures.per_node, "nic_bandwidth": f"{bits!r} Gbit/s"}
        document["fabric"] = {"kind": kind}
    return document


def cells_of(
    row: Mapping[str, str], run: Run, figures: ClusterFigures, model: str, files: Files
) -> dict[str, str]:
    """A published row in the columns of a strict table; without those that are empty."""
    problem = run.problem
    job = problem.job
    cells = {
        "source": row["source"], "source_ref": row["source_ref"], "model": model,
        "cluster": files.cluster(figures, problem.cluster), "gpus": str(problem.cluster.num_devices),
        "seq_len": str(job.seq_len), "global_batch": str(job.global_batch), "precision": str(job.precision),
        "optimizer": str(job.optimizer), "stack": files.stack(run), **_axes(run.config), **_tuning(job, problem),
        **_measured(row),
    }  # fmt: skip
    return {name: " ".join(text.split()) for name, text in cells.items() if text}


def _axes(config: ParallelConfig) -> dict[str, str]:
    """The axes of a configuration as `--set` takes them; those that mean nothing in it are left out."""
    idle = {
        "hsdp": not config.hsdp,
        "cp_kind": not config.cp_kind,
        "recompute_layers": config.recompute != Recompute.FULL,
        "recompute_modules": config.recompute != Recompute.SELECTIVE or not config.recompute_modules,
        "cuda_graph_modules": not config.cuda_graph_impl,
    }
    return {axis: value_text(axis, getattr(config, axis)) for axis in AXES if not idle.get(axis)}


def _tuning(job: Job, problem: Problem) -> dict[str, str]:
    """Adapters, lengths, prediction modules and layers in bf16."""
    adapters = job.lora_rank is not None
    return {
        "lora_rank": str(job.lora_rank) if adapters else "",
        "frozen_bits": str(job.frozen_bits) if adapters else "",
        "lora_targets": str(job.lora_targets) if job.lora_targets is not AdapterTargets.ALL_LINEAR else "",
        "mean_len": f"{job.mean_length:g}" if job.mean_length is not None else "",
        "packed": "true" if job.packed else "",
        "mtp": "true" if problem.model.mtp_layers else "",
        "bf16_layers": ",".join(map(str, job.bf16_layers)) if any(job.bf16_layers) else "",
        "expert_loads": BALANCED if problem.model.is_moe and job.expert_imbalance == () else "",
    }


def _measured(row: Mapping[str, str]) -> dict[str, str]:
    """What a row measured."""
    measured = measurement_of(row)
    kind = (row.get("flops_kind") or "").strip().lower()
    rate = number_of(row, "tflops_per_gpu") if states_flops_alone(row) and kind in KINDS else None
    failed = Outcome.OOM if measured.oom else Outcome.FAILED if measured.failed else ""
    return {
        "step_time_s": repr(measured.step_time) if measured.step_time else "",
        "tflops_per_gpu": repr(rate) if rate else "",
        "flops_kind": kind if rate else "",
        "peak_mem_gib": repr(measured.peak_memory / GIB) if measured.peak_memory else "",
        "outcome": str(failed),
    }


@dataclass(frozen=True)
class Converted:
    """`kept`: cells of the rows that the strict reader predicts alike, by their place in the file they come from;
    `files`: text by path; `reasons`: why others are not among them."""

    kept: dict[int, dict[str, str]]
    files: dict[str, str]
    reasons: Counter[str]


def converted(rows: Sequence[Mapping[str, str]], models: Mapping[str, Any]) -> Converted:
    """Published rows as a strict table, as far as it says the same."""
    reader, files, reasons = RunReader(models), Files(), Counter[str]()
    tried: dict[int, dict[str, str]] = {}
    for index, row in enumerate(rows):
        try:
            run = reader.read(row)
            inputs = {name: str(row.get(name) or "").strip() for name in INPUT_COLUMNS}
            cluster = run.problem.cluster
            figures = cluster_figures(inputs, cluster.accelerator, cluster.num_devices, [])
            model = files.model(inputs["model"], models[inputs["model"]], run.problem.model)
            tried[index] = cells_of(row, run, figures, model, files)
        except PlannerError as error:
            reasons[_in_short(refusal(error))] += 1
    chosen = [rows[index] for index in tried]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), list(tried.values()), files.texts)
        strict = validate_table(Path(folder) / TABLE).rows
    kept = {}
    for index, now, free in zip(tried, strict, predict_rows(chosen, models), strict=True):
        if reason := _differs(now, free):
            reasons[reason] += 1
        else:
            kept[index] = tried[index]
    named = {cells[name] for cells in kept.values() for name in ("model", "cluster", "stack")}
    return Converted(kept, {path: text for path, text in files.texts.items() if path in named}, reasons)


def _differs(now: Mapping[str, Any], free: Mapping[str, Any]) -> str:
    """Why a row is not the same question; empty where it is."""
    if not free["legal"]:
        return "without figures in free text, too"
    if now["step_time_s"] is None:
        return _in_short(now["reason"].rpartition("yaml: ")[2])
    for name, what in (("step_time_s", "step time"), ("peak_mem_gib", "peak memory")):
        if abs(now[name] / free[name] - 1) > SAME:
            return f"another {what}"
    return ""


def _in_short(reason: str) -> str:
    """A reason without the figures of its row."""
    return _FIGURE.sub("N", reason)[:_LONGEST]


def write(folder: Path, rows: Sequence[Mapping[str, str]], files: Mapping[str, str]) -> None:
    """Write a table and the files that it names."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    columns = [name for name in COLUMNS if any(name in row for row in rows)]
    with (folder / TABLE).open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns, restval="")
        table.writeheader()
        table.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strict_table", description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder, made anew")
    given = parser.parse_args()
    rows = read_rows(given.runs)
    found = converted(rows, read_models(given.models))
    if given.output.exists():
        shutil.rmtree(given.output)
    given.output.mkdir(parents=True)
    write(given.output, list(found.kept.values()), found.files)
    print(f"{len(found.kept)} of {len(rows)} rows, {len(found.files)} files beside them; the others:")
    for reason, count in found.reasons.most_common():
        print(f"  {count:5} {reason}")


if __name__ == "__main__":
    main()
