"""Which published runs does the product name beside an answer, and how do these divide their work?

    python -m benchmarks.published_runs RUNS.csv MODELS.json [--write] [--results]

Of every model, device, number of devices and width of numbers the run with the most tokens per second. `--write` puts
them with what planner predicts into planner/catalog/published_runs.json, which is to be written anew whenever a
prediction moves; `--results` what they have in common into benchmarks/RESULTS.md: what a plan that is to be near to
practice should have (`planner/answer/recommend.py`). Left out: runs whose figures or settings are from memory, sums of
profiles, models cut to a few layers or below a billion parameters, adapters and fine-tuning, and nanotron's on more
than 128 devices.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.published.measured import group_of, is_judged, measurement_of
from benchmarks.published.runs import Run, RunReader, read_models, read_rows
from benchmarks.results_file import write_section
from planner.answer.recommend import Concerns, Setting, concerns
from planner.ask.request import cost_model
from planner.calibrate.predict import predicted_cost
from planner.catalog.load_published import FILE, kind_of
from planner.cost.params import model_parameters
from planner.errors import PlannerError
from planner.solve.splits.split import own_split
from planner.spec.config import AXES, ParallelConfig
from planner.spec.planfile import Concern
from planner.spec.precision import bits_of

SHIPPED: Final = Path(__file__).parents[1] / "planner" / "catalog" / FILE
_PROFILES: Final = ("vtrain_single", "vtrain_multi")
_CUT: Final = re.compile(r"proxy|layer-cut|_l\d+$")
SMALLEST: Final = 1e9  # parameters: smaller ones are no reason to plan
_OTHER_TRAINING: Final = re.compile(r"\b(LoRA|SFT|fine-tuning)\b", re.IGNORECASE)
# of each step, in no column that a prediction reads
_NOTHING_READ: Final = re.compile(r";? ?(HFU=[0-9.]+|NumParams=\d+)")
_PLACE: Final = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+) (?:(?:tag )?(?P<tag>(?:core_r|v)[\d.]+) )?(?P<path>[\w./+-]+)"
)
_REMOVED: Final = re.compile(r"@([0-9a-f]{7,40})\^")  # a commit that took the figures out


@dataclass(frozen=True)
class Best:
    """A published run: its row, what planner reads in it, and the step it measured [s]."""

    row: Mapping[str, str]
    run: Run
    step_time: float
    peak: float | None

    @property
    def rate(self) -> float:
        """Tokens per second and device [1/s]."""
        problem = self.run.problem
        return problem.job.tokens_per_step / self.step_time / problem.cluster.num_devices


def best_runs(rows: Sequence[Mapping[str, str]], models: Mapping[str, Any]) -> list[Best]:
    """The fastest of every model, device, number of devices and width of numbers, in the order of the file."""
    reader, best = RunReader(models), dict[tuple[Any, ...], Best]()
    for row in rows:
        found = _read(row, reader)
        if found is None:
            continue
        cluster, precision = found.run.problem.cluster, found.run.problem.job.precision
        key = (row["model"], cluster.accelerator.name, cluster.num_devices, bits_of(precision))
        if key not in best or found.rate > best[key].rate:
            best[key] = found
    return list(best.values())


def _read(row: Mapping[str, str], reader: RunReader) -> Best | None:
    """The run of a row that may be named; None for others."""
    measured = measurement_of(row)
    others = "UNVERIFIED" in row["notes"] or row["source"] in _PROFILES or not is_judged(group_of(row))
    cut = _CUT.search(row["model"]) or _CUT.search(row["notes"])
    if others or cut or _OTHER_TRAINING.search(row["extras"]) or not measured.ran or not measured.step_time:
        return None
    row = {**row, "extras": _NOTHING_READ.sub("", row["extras"]).strip("; ")}
    try:
        run = reader.read(row)
    except PlannerError:
        return None
    if model_parameters(run.problem.model).total < SMALLEST:
        return None
    return Best(row, run, measured.step_time, measured.peak_memory)


def link_of(reference: str) -> str:
    """Where a row is published, from what its curator noted."""
    if reference.startswith("HF space "):
        return f"https://huggingface.co/spaces/{reference.split()[2]}"
    place = _PLACE.match(reference)
    if place is None:
        raise ValueError(f"a reference must name a repository and a file: {reference!r}")
    if removed := _REMOVED.search(reference):
        return f"https://github.com/{place['repo']}/commit/{removed[1]}"
    if place["path"].startswith("skills/"):  # its folders have been renamed
        return f"https://github.com/{place['repo']}/tree/HEAD/skills"
    return f"https://github.com/{place['repo']}/blob/{place['tag'] or 'HEAD'}/{place['path']}"


def shipped_text(best: Sequence[Best]) -> str:
    """The file of the product: models once, links once, a run a line with what planner predicts for it."""
    models = dict[str, dict[str, Any]]()
    links: list[str] = []
    lines = []
    for each in best:
        name, spec, job = each.row["model"], each.run.problem.model, each.run.problem.job
        if name not in models:
            parameters = model_parameters(spec)
            models[name] = {
                "kind": kind_of(spec), "layers": spec.num_layers, "hidden": spec.hidden, "total": parameters.total,
                "active": parameters.active,
            }  # fmt: skip
        if (link := link_of(each.row["source_ref"])) not in links:
            links.append(link)
        cluster = each.run.problem.cluster
        cells = {
            "model": name, "accelerator": cluster.accelerator.name, "devices": cluster.num_devices,
            "seq_len": job.seq_len, "global_batch": job.global_batch, "precision": job.precision,
            "software": each.row["framework"], "config": _stated(each.run.config),
            "own_kind": each.run.problem.context_kinds[0], "step_time": float(f"{each.step_time:.5g}"),
            "predicted_step_time": predicted_cost(each.run.problem, each.run.config).seconds,
            "link": links.index(link),
        }  # fmt: skip
        lines.append(json.dumps(list(cells.values()), ensure_ascii=False, separators=(",", ":")))
    about = "made by python -m benchmarks.published_runs; each run is published where its link says"
    head = json.dumps(
        {"about": about, "columns": list(cells), "links": links, "models": models}, ensure_ascii=False
    )
    return head.removesuffix("}") + ', "runs": [\n' + ",\n".join(lines) + "\n]}\n"


def _stated(config: ParallelConfig) -> dict[str, int]:
    """The axes of a configuration that are not at their neutral value."""
    neutral = ParallelConfig()
    return {axis: value for axis in AXES if (value := int(getattr(config, axis))) != getattr(neutral, axis)}


def practice(best: Sequence[Best]) -> list[str]:
    """What the runs have in common, as `planner/answer/recommend.py` counts it."""
    each = [_concerns(run) for run in best]
    kinds = [int(found.get(Concern.KINDS, 0)) for found in each]
    lines = [
        f"Of {len(best)} runs, the best of their model, device, number of devices and width of numbers:",
        "",
    ]
    for most in range(max(kinds) + 1):
        lines.append(f"- {most} kinds of parallelism beside data parallelism: {kinds.count(most)}")
    for concern, applies in _APPLIES.items():
        could = [found for run, found in zip(best, each, strict=True) if applies(run.run.config)]
        having = sum(concern in found for found in could)
        lines.append(f"- {concern.replace('_', ' ')}: {having} of {len(could)}")
    held = [run.peak / run.run.problem.cluster.accelerator.memory for run in best if run.peak]
    shares = ", ".join(f"{share:.0%}" for share in np.percentile(held, (50, 75, 90)))
    said = f"by the stack's own counter, of {len(held)} that state it: {shares} (median, 75, 90 %)"
    lines.append(f"- share of the device held {said}")
    return lines


def _concerns(best: Best) -> Concerns:
    problem, config = best.run.problem, best.run.config
    chunks = own_split(cost_model(problem), config)
    return concerns(config, Setting.of(problem), chunks)


# of which configurations each is asked
_APPLIES: Final[Mapping[Concern, Callable[[ParallelConfig], bool]]] = {
    Concern.WIDE_TENSOR: lambda config: config.tp > 1,
    Concern.SHORT_CONTEXT: lambda config: config.cp > 1,
    Concern.ODD_DEGREE: lambda config: max(config.tp, config.cp, config.ep) > 1,
    Concern.UNEVEN_LAYERS: lambda config: config.pp > 1,
    Concern.SCHEDULE: lambda config: config.pp > 1,
    Concern.OFFLOAD: lambda config: True,
    Concern.GRAPHS: lambda config: True,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published_runs", description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("--write", action="store_true", help="write planner/catalog/published_runs.json")
    parser.add_argument("--results", action="store_true", help="update benchmarks/RESULTS.md")
    given = parser.parse_args()
    models = read_models(given.models)
    best = best_runs(read_rows(given.runs), models)
    text = shipped_text(best)
    print(f"{len(best)} runs of {len({each.row['model'] for each in best})} models, {len(text):,} bytes")
    lines = practice(best)
    print("\n".join(lines))
    if given.results:
        write_section("practice", "\n".join(lines))
    if given.write:
        SHIPPED.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
