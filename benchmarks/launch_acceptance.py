"""Do the frameworks accept what planner exports, and refuse what it calls illegal?

    python -m benchmarks.launch_acceptance --triples 200 --legal 5 --illegal 200 --json OUT.json
    MEGATRON_PATH=CHECKOUT MEGATRON_RELEASE=main-2026-08 python -m benchmarks.launch_acceptance --frameworks megatron

Every launch is rendered (each option against the release's table), read back by planner, and given to the framework's
own code where a registry package or MEGATRON_PATH has it; values read there must be the plan's, and its rank groups
planner's. Needs the extra `frameworks`. Left out: running a step, which needs accelerators.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.launch_cases import STACKS, Case, Triple, illegal_launch, legal_launches, triples
from planner.errors import PlannerError, UnsupportedError
from planner.frameworks import framework
from planner.spec.config import AXES

# axes that files say: read back they must be the plan's (num_microbatches and dp follow where absent)
_READ_BACK: Final = (
    "tp",
    "cp",
    "pp",
    "dp",
    "vpp",
    "ep",
    "etp",
    "micro_batch",
    "zero",
    "recompute",
    "recompute_layers",
)
_PACKAGES: Final = {"deepspeed": "deepspeed", "torchtitan": "torchtitan", "accelerate": "accelerate"}
_CAPABILITY: Final = {"a100": 8, "b200": 10, "gb200": 10, "b300": 10, "gb300": 10}
_PRELUDE: Final = """
import json, os, sys, traceback, warnings
warnings.simplefilter("ignore")
def run(judge):
    source, target = sys.argv[1:3]
    cases, answers = json.load(open(source)), []
    for case in cases:
        try:
            answers.append({"values": judge(case)})
        except SystemExit as error:
            answers.append({"error": "exit " + str(error)})
        except BaseException as error:
            answers.append({"error": type(error).__name__ + ": " + str(error)[:400]})
    json.dump(answers, open(target, "w"))
"""
_JUDGES: Final = {
    "deepspeed": """
import deepspeed.runtime.config as runtime
from deepspeed.launcher.runner import fetch_hostfile
runtime.dist.get_rank = lambda *a, **k: 0
def judge(case):
    class Grid:
        def get_data_parallel_world_size(self):
            return case["config"]["dp"]
    read = runtime.DeepSpeedConfig(case["folder"] + "/ds_config.json", mpu=Grid())
    return {"zero": read.zero_config.stage, "micro_batch": read.train_micro_batch_size_per_gpu,
            "num_microbatches": read.gradient_accumulation_steps,
            "tp": read.tensor_parallel_config.autotp_size or 1,
            "devices": sum(fetch_hostfile(case["folder"] + "/hostfile").values())}
run(judge)
""",
    "torchtitan": """
import inspect
from torchtitan.config import ConfigManager
from torchtitan.distributed.parallel_dims import ParallelDims
def judge(case):
    sys.path.insert(0, case["folder"])
    sys.modules.pop("planned_config", None)
    read = ConfigManager().parse_args(case["words"])
    sys.path.remove(case["folder"])
    p = read.parallelism
    sizes = dict(dp_replicate=p.data_parallel_replicate_degree, dp_shard=p.data_parallel_shard_degree,
                 cp=p.context_parallel_degree, tp=p.tensor_parallel_degree, pp=p.pipeline_parallel_degree,
                 ep=p.expert_parallel_degree, etp=getattr(p, "expert_tensor_parallel_degree", 1),
                 world_size=case["devices"])
    known = inspect.signature(ParallelDims).parameters
    dims = ParallelDims(**{name: size for name, size in sizes.items() if name in known})
    assert read.training.seq_len % dims.seq_len_divisor == 0, "seq_len % seq_len_divisor"
    return {"tp": p.tensor_parallel_degree, "pp": p.pipeline_parallel_degree, "cp": p.context_parallel_degree,
            "ep": p.expert_parallel_degree,
            "dp": p.data_parallel_replicate_degree * p.data_parallel_shard_degree, "devices": dims.world_size,
            "seq_len": read.training.seq_len, "global_batch": read.training.global_batch_size}
run(judge)
""",
    "accelerate": """
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
def judge(case):
    words = ["--config_file", case["folder"] + "/accelerate.yaml", "--machine_rank", "0", "--main_process_ip",
             "127.0.0.1", "--main_process_port", "29500", case["folder"] + "/train.py"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    values = {"devices": args.num_processes}
    if case["config"]["zero"] >= 2:
        named = {k: int(getattr(args, f"parallelism_config_{k}")) for k in
                 ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")}
        total = ParallelismConfig(**named).total_size
        assert total == case["devices"], f"{total} of {case['devices']} devices"
        values |= {"tp": named["tp_size"], "cp": named["cp_size"],
                   "dp": named["dp_replicate_size"] * named["dp_shard_size"]}
    return values
run(judge)
""",
    "megatron": """
import typing
import typing_extensions
typing.override = typing_extensions.override
sys.path.insert(0, os.environ["MEGATRON_PATH"])
import torch
major = 9
torch.cuda.get_device_capability = lambda *a, **k: (major, 0)
torch.cuda.get_device_properties = lambda *a, **k: type("D", (), dict(major=major, minor=0, total_memory=80 << 30))()
from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args
from megatron.core.parallel_state import RankGenerator
def judge(case):
    global major
    major = case["capability"]
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(case["env"], WORLD_SIZE=str(case["devices"]), RANK="0")
    sys.argv = ["pretrain_gpt.py", *case["words"]]
    args = parse_args()
    validate_args(args)
    args.apply_rope_fusion = args.moe_permute_fusion = False  # kernels of Transformer Engine, which needs a GPU
    read = core_transformer_config_from_args(args)
    return {"dp": args.data_parallel_size, "vpp": args.virtual_pipeline_model_parallel_size or 1,
            "tp": args.tensor_model_parallel_size, "pp": args.pipeline_model_parallel_size,
            "cp": args.context_parallel_size, "ep": args.expert_model_parallel_size,
            "sp": int(args.sequence_parallel), "micro_batch": args.micro_batch_size,
            "global_batch": args.global_batch_size, "layers": read.num_layers, "seq_len": args.seq_length}
run(judge)
""",
}
_GROUPS: Final = """
from megatron.core.parallel_state import RankGenerator
def judge(case):
    c, world = case["config"], case["devices"]
    dense = RankGenerator(tp=c["tp"], ep=1, dp=c["dp"], pp=c["pp"], cp=c["cp"], order="tp-cp-ep-dp-pp")
    found = {name: dense.get_ranks(axes) for name, axes in
             (("tp", "tp"), ("cp", "cp"), ("dp", "dp"), ("dp_cp", "dp-cp"), ("pp", "pp"))}
    if case["experts"]:
        edp = world // (c["etp"] * c["ep"] * c["pp"])
        grid = RankGenerator(tp=c["etp"], ep=c["ep"], dp=edp, pp=c["pp"], cp=1, order="tp-cp-ep-dp-pp")
        found |= {name: grid.get_ranks(axes) for name, axes in (("etp", "tp"), ("ep", "ep"), ("edp", "dp"))}
    return {name: sorted(sorted(group) for group in groups) for name, groups in found.items()}
run(judge)
"""


@dataclass
class Tally:
    """What became of the launches of one framework. `notes`: message -> how often, with one example each."""

    framework: str
    triples: int = 0
    written: int = 0
    best: int = 0
    models_not_expressible: Counter[str] = field(default_factory=Counter)
    not_expressible: Counter[str] = field(default_factory=Counter)
    wrongly_read_back: list[str] = field(default_factory=list)
    judged: int = 0
    refused: list[str] = field(default_factory=list)
    wrong_values: list[str] = field(default_factory=list)
    wrong_groups: list[str] = field(default_factory=list)
    groups: int = 0
    illegal: int = 0
    illegal_refused: int = 0
    illegal_not_written: int = 0
    disagreements: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        """Was every legal launch accepted as it was meant?"""
        return not (self.wrongly_read_back or self.refused or self.wrong_values or self.wrong_groups)

    def facts(self) -> dict[str, Any]:
        """The tally as plain data."""
        return {
            name: dict(value.most_common()) if isinstance(value, Counter) else value
            for name, value in self.__dict__.items()
        }


@dataclass(frozen=True)
class Written:
    """A rendered launch in its folder."""

    case: Case
    folder: Path


def said_of(case: Case) -> str:
    """A case in one line, to find it again."""
    t = case.triple
    return (
        f"{t.model} {t.cluster} {t.devices} seq {t.seq_len} batch {t.batch}: {case.launch.config.describe()}"
    )


def write_cases(tally: Tally, release: str, cases: Iterable[Case], folder: Path) -> list[Written]:
    """Render cases into folders; what cannot be expressed is counted, what reads back differently is listed."""
    chosen = framework(tally.framework)
    written: list[Written] = []
    for number, case in enumerate(cases):
        try:
            files = chosen.render(case.launch, release)
        except UnsupportedError as error:
            if case.kind == "illegal":
                tally.illegal_not_written += 1
            else:
                tally.not_expressible[" ".join(error.must.split())] += 1
            continue
        target = folder / f"{case.kind}-{number}"
        target.mkdir(parents=True)
        for name, text in files.items():
            (target / name).write_text(text, encoding="utf-8")
        written.append(Written(case, target))
        if case.kind != "illegal":
            tally.written += 1
            tally.best += case.kind == "best"
            tally.wrongly_read_back += _differences(tally.framework, files, case)
    return written


def _differences(name: str, files: dict[str, str], case: Case) -> list[str]:
    """What planner reads back from the files otherwise than the plan has it."""
    kept = {
        n: t
        for n, t in files.items()
        if n not in ("README.md", "kubernetes.yaml", "launch.sbatch", "train.py")
    }
    try:
        read = framework(name).parse(kept)
    except PlannerError as error:
        return [f"{said_of(case)}: not read back: {' '.join(str(error).split())}"]
    config, job = case.launch.config, case.launch.job
    wrong = [
        f"{axis} {read.axes[axis]} for {getattr(config, axis)}"
        for axis in _READ_BACK
        if axis in read.axes and read.axes[axis] != getattr(config, axis) and not _free(axis, case)
    ]
    if read.seq_len not in (None, job.seq_len) or read.global_batch not in (None, job.global_batch):
        wrong.append(f"sequences {read.seq_len} x {read.global_batch}")
    if read.unknown:
        wrong.append("unknown " + ", ".join(read.unknown))
    if read.layers and read.layers != case.launch.chunks:
        wrong.append(f"layers {read.layers} for {case.launch.chunks}")
    return [f"{said_of(case)}: {', '.join(wrong)}"] if wrong else []


def _free(axis: str, case: Case) -> bool:
    """Has the axis no meaning in this configuration?"""
    config = case.launch.config
    if axis == "etp":
        return not case.launch.model.is_moe
    if axis == "zero":
        return config.dp * config.cp == 1
    # "all layers" has more than one number where stages are uneven
    deep = -(-case.launch.model.num_layers // config.pp)
    return axis == "recompute_layers" and config.recompute_layers >= deep


STUB: Final = """#!/usr/bin/env python3
import json, os, sys
json.dump({"argv": sys.argv[1:], "env": {k: v for k, v in os.environ.items() if k.startswith("CUDA")}},
          open(os.environ["STUB_OUT"], "w"))
"""


def words_of(folder: Path, program: str) -> tuple[list[str], dict[str, str]]:
    """The words that launch.sh hands to its program, and the environment it sets, from bash itself."""
    stub = folder / "bin" / "torchrun"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text(STUB)
    stub.chmod(0o755)
    out = folder / "words.json"
    path = f"{stub.parent}:{os.environ['PATH']}"
    subprocess.run(["bash", str(folder / "launch.sh")], check=True, env={"PATH": path, "STUB_OUT": str(out)})
    said = json.loads(out.read_text())
    words = said["argv"]
    return words[next(i for i, word in enumerate(words) if word.endswith(program)) + 1 :], said["env"]


_PROGRAMS: Final = {"torchtitan": "torchtitan.train", "megatron": "pretrain_gpt.py"}


def judge(name: str, script: str, written: Sequence[Written], work: Path) -> list[dict[str, Any]]:
    """What the framework's own code says of each launch: its values, or an error."""
    listed = []
    for w in written:
        words, env = (
            words_of(w.folder, _PROGRAMS[name]) if name in _PROGRAMS and script != _GROUPS else ([], {})
        )
        launch = w.case.launch
        listed.append(
            {
                "folder": str(w.folder), "words": words, "env": env, "devices": launch.devices,
                "config": {axis: getattr(launch.config, axis) for axis in AXES}, "experts": launch.model.is_moe,
                "capability": _CAPABILITY.get(launch.accelerator.split("-")[0], 9),
            }
        )  # fmt: skip
    cases, answers = work / "cases.json", work / "answers.json"
    cases.write_text(json.dumps(listed))
    command = [sys.executable, "-W", "ignore", "-c", _PRELUDE + script, str(cases), str(answers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: list[dict[str, Any]] = json.loads(answers.read_text())
    return found


def can_judge(name: str) -> bool:
    """Is the framework's own code here?"""
    if name == "megatron":
        return "MEGATRON_PATH" in os.environ
    return name in _PACKAGES and find_spec(_PACKAGES[name]) is not None


def _legal(tally: Tally, asked: Sequence[Triple], count: int, seed: int) -> Iterator[Case]:
    """Legal launches of all triples whose model the framework can express; the others are counted."""
    for triple in asked:
        try:
            yield from legal_launches(triple, tally.framework, count, seed)
            tally.triples += 1
        except UnsupportedError as error:
            tally.models_not_expressible[" ".join(error.must.split())] += 1


def accept(tally: Tally, release: str, legal: Iterable[Case], illegal: Iterable[Case], work: Path) -> Tally:
    """Everything found of one framework's launches."""
    name = tally.framework
    written = write_cases(tally, release, legal, work / "legal")
    if can_judge(name):
        for w, answer in zip(written, judge(name, _JUDGES[name], written, work), strict=True):
            tally.judged += 1
            _compare(tally, w.case, answer)
    if name == "megatron" and find_spec("megatron") is not None:
        _compare_groups(tally, written, judge(name, _GROUPS, written, work))
    bad = write_cases(tally, release, illegal, work / "illegal")
    tally.illegal = len(bad) + tally.illegal_not_written
    tally.illegal_refused = tally.illegal_not_written
    if can_judge(name):
        for w, answer in zip(bad, judge(name, _JUDGES[name], bad, work), strict=True):
            if "error" in answer:
                tally.illegal_refused += 1
            else:
                tally.disagreements[" ".join(w.case.broken)] += 1
    return tally


def _compare(tally: Tally, case: Case, answer: dict[str, Any]) -> None:
    if "error" in answer:
        tally.refused.append(f"{said_of(case)}: {answer['error']}")
        return
    job = case.launch.job
    wanted = {
        **{axis: getattr(case.launch.config, axis) for axis in AXES}, "devices": case.launch.devices,
        "seq_len": job.seq_len, "global_batch": job.global_batch, "layers": case.launch.model.num_layers,
    }  # fmt: skip
    wrong = [f"{k} {v} for {wanted[k]}" for k, v in answer["values"].items() if v != wanted[k]]
    if wrong:
        tally.wrong_values.append(f"{said_of(case)}: {', '.join(wrong)}")


def _compare_groups(tally: Tally, written: Sequence[Written], answers: Sequence[dict[str, Any]]) -> None:
    from planner.solve.place import layout_of

    for w, answer in zip(written, answers, strict=True):
        launch = w.case.launch
        problem = w.case.triple.problem(STACKS[tally.framework])
        layout = layout_of(problem, replace(launch.config, etp=launch.config.etp))
        for name, groups in answer["values"].items():
            mine = sorted(row.tolist() for row in layout.groups(name))
            tally.groups += 1
            if mine != groups:
                tally.wrong_groups.append(f"{said_of(w.case)}: {name}")


def run(names: Sequence[str], count: int, legal: int, illegal: int, seed: int) -> list[Tally]:
    """The tallies of several frameworks over the same triples."""
    asked, found = triples(count, seed), []
    for name in names:
        release = framework(name).default_version
        if name == "megatron":
            release = os.environ.get("MEGATRON_RELEASE", release)
        tally = Tally(name)
        good = _legal(tally, asked, legal, seed)
        wrong = (
            illegal_launch(triple, name, seed + i) for i, triple in enumerate((asked * illegal)[:illegal])
        )
        with tempfile.TemporaryDirectory() as folder:
            found.append(accept(tally, release, good, (case for case in wrong if case), Path(folder)))
        print(summary(found[-1]), file=sys.stderr, flush=True)
    return found


def summary(tally: Tally) -> str:
    """One line of a framework's tally."""
    own = (
        f"{tally.judged} judged by its own code, {len(tally.refused)} refused"
        if tally.judged
        else "table only"
    )
    return (
        f"{tally.framework}: {tally.triples} triples, {tally.written} launches ({tally.best} best plans), "
        f"{sum(tally.not_expressible.values())} not expressible; {own}, {len(tally.wrong_values)} with other values, "
        f"{tally.groups} kinds of rank groups, {len(tally.wrong_groups)} wrong; "
        f"{len(tally.wrongly_read_back)} read back otherwise; "
        f"illegal: {tally.illegal_refused} of {tally.illegal} refused"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--frameworks", nargs="+", default=list(STACKS), choices=list(STACKS))
    parser.add_argument("--triples", type=int, default=200)
    parser.add_argument("--legal", type=int, default=5)
    parser.add_argument("--illegal", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tallies = run(options.frameworks, options.triples, options.legal, options.illegal, options.seed)
    if options.json:
        options.json.write_text(json.dumps([tally.facts() for tally in tallies], indent=1))
    raise SystemExit(0 if all(tally.clean for tally in tallies) else 1)


if __name__ == "__main__":
    main()
