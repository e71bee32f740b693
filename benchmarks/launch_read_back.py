"""Does planner read its own launch files back as they were meant, configuration and cost?

    from benchmarks.launch_read_back import differences, said_of

Left out: what the frameworks say of them (`launch_judges.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import isclose
from typing import Any, Final

from benchmarks.launch_cases import STACKS, Case
from planner.ask.question import Question
from planner.cli.check import Judge
from planner.cli.files import config_of, problem_of
from planner.errors import PlannerError
from planner.frameworks import framework
from planner.frameworks.framework import ParsedConfig
from planner.frameworks.layout import ChunkLayers
from planner.spec.config import AXES, ParallelConfig
from planner.spec.rule import Problem

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


# what of a stack or a job no argument states, and the words by which the export's README.md says so
_LINEAR: Final = ("linear weights:", "float8 all-gather of linear weights:")
_GRADIENTS: Final = ("gradients kept and reduced in bf16:",)
_SCALES: Final = ("one float8 scale a tensor:",)
_ALONE: Final = ("tensor-parallel collectives under products", "tensor-parallel collectives alone")
_OWN: Final = ("the pipeline model:",)  # of one's own program
SAID: Final = {
    "kernels.attention": ("an attention mask:", *_OWN),
    "kernels.loss": ("the loss of the plan's stack", *_OWN),
    "kernels.kept_widths": ("SwiGLU's input kept in 8 bits",),
    "kernels.code": ("Liger's kernels:", *_OWN),
    "kernels.float8_scales": _SCALES,
    "communication.tp_exposed": _ALONE,
    "engine.gradient": _GRADIENTS,
    "engine.optimizer_transient": _GRADIENTS,
    "engine.fp8_param_gather": _LINEAR,
    "engine.fp4_param_gather": _LINEAR,
    "bf16_layers": ("layers in bf16:",),
}


def said_of(case: Case) -> str:
    """A case in one line, to find it again."""
    t = case.triple
    settings = " ".join((t.precision, t.optimizer, *(f"+{name}" for name in t.options), *t.pins))
    job = f"{t.model} {t.cluster} {t.devices} seq {t.seq_len} batch {t.batch} {settings}"
    return f"{job}: {case.launch.config.describe()}"


def differences(name: str, files: dict[str, str], case: Case) -> tuple[str, str]:
    """What planner reads back from the files otherwise than the plan has it, or, where that costs something and the
    export's README says so, what it says; empty strings where all is as planned."""
    kept = {
        n: t
        for n, t in files.items()
        if n not in ("README.md", "kubernetes.yaml", "launch.sbatch", "train.py")
    }
    try:
        read = framework(name).parse(kept)
    except PlannerError as error:
        return f"{said_of(case)}: not read back: {' '.join(str(error).split())}", ""
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
    costs, fields, said = _other_costs(name, read, case, files.get("README.md", ""))
    if costs and not said:
        wrong.append(f"{costs} ({fields})")
    return f"{said_of(case)}: {', '.join(wrong)}" if wrong else "", said


def _other_costs(name: str, read: ParsedConfig, case: Case, readme: str) -> tuple[str, str, str]:
    """Figures that `planner check` has otherwise than the plan; what differs, "found for meant"; and which of that the
    export's README says, where the figures are the plan's but for it."""
    triple, launch = case.triple, case.launch
    planned = triple.problem(STACKS[name])
    try:
        again, _ = problem_of(read, framework(name), Question(triple.model, triple.cluster, triple.devices))
        config = config_of(read, again)
        found = _figures(again, config, read.layers if config.pp > 1 else ())
    except PlannerError as error:
        return f"not costed: {' '.join(str(error).split())}", "", ""
    meant = _figures(planned, launch.config, launch.chunks if launch.config.pp > 1 else ())
    if not (wrong := _unequal(found, meant)):
        return "", "", ""
    fields = _other_fields(planned, again, launch.config, config)
    said = [key for key in fields if any(word in readme for word in SAID.get(key, ()))]
    put_back = _figures(_with_planned(again, planned, said), config, read.layers if config.pp > 1 else ())
    equal = bool(said) and not _unequal(put_back, meant)
    shown = ", ".join(f"{key} {value}" for key, value in fields.items())
    return ", ".join(wrong), shown, ", ".join(said) if equal else ""


def _unequal(found: dict[str, float], meant: dict[str, float]) -> list[str]:
    """Figures that differ by more than the order of sums."""
    return [
        f"{key} {found[key]:.6g} for {meant[key]:.6g}" for key in meant if not isclose(found[key], meant[key])
    ]


def _with_planned(read: Problem, planned: Problem, names: Iterable[str]) -> Problem:
    """What was read with some fields of the stack, or of the job, as planned."""
    stack, job = read.stack, read.job
    for name in names:
        section, _, key = name.rpartition(".")
        if not section:
            job = replace(job, **{key: getattr(planned.job, key)})
            continue
        own, other = getattr(stack, section), getattr(planned.stack, section)
        stack = stack.model_copy(update={section: own.model_copy(update={key: getattr(other, key)})})
    return replace(read, stack=stack, job=job)


def _figures(problem: Problem, config: ParallelConfig, chunks: ChunkLayers) -> dict[str, float]:
    choice = Judge(problem, Question("", "")).cost(config, chunks)
    return {"step": choice.step_time, "peak": choice.memory.peak, "host": sum(choice.memory.host.values())}


def _other_fields(
    planned: Problem, read: Problem, meant: ParallelConfig, found: ParallelConfig
) -> dict[str, str]:
    """Axes, and fields of the job and of the stack, that differ."""
    pairs: list[tuple[str, Any, Any]] = [(axis, getattr(meant, axis), getattr(found, axis)) for axis in AXES]
    named = ("precision", "optimizer", "bf16_layers", "seq_len", "global_batch")
    pairs += [(key, getattr(planned.job, key), getattr(read.job, key)) for key in named]
    for section in ("kernels", "communication", "engine", "host", "overhead"):
        own, other = getattr(planned.stack, section), getattr(read.stack, section)
        pairs += [(f"{section}.{key}", value, getattr(other, key, None)) for key, value in dict(own).items()]
    return {key: f"{other} for {own}" for key, own, other in pairs if own != other}


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
