"""What do torchtitan's own files say? A TOML file (0.2.2), or options with the shipped configuration they start from.

Left out: Python configurations other than the one that the export writes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from planner.catalog.stack_options import FLOAT8_ROWWISE, FLOAT8_TENSORWISE, NO_COMPILE, PURE_BF16
from planner.errors import FileInputError, InputError
from planner.frameworks.fields import Settings, flatten, load_settings
from planner.frameworks.framework import ParsedConfig
from planner.frameworks.layout import ChunkLayers
from planner.frameworks.options import option_table, unknown_options
from planner.frameworks.shell.script import Script, is_script, options_of, product
from planner.frameworks.torchtitan.names import CLI, FLOAT8, MODELS, SCHEDULES, TOML
from planner.frameworks.torchtitan.older import ACCUMULATION, is_older, with_new_names
from planner.frameworks.torchtitan.planned import PLANNED, read_planned, shipped_model
from planner.frameworks.torchtitan.settings import stages_of
from planner.spec.config import OFFLOAD_STATES, CudaGraphs, Recompute, Schedule
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.stack.kinds import Dispatcher
from planner.spec.stack.losses import AnyLoss, Chunked, Eager, VocabParallel

_EAGER, _FITTED = "torchtitan-2026-eager", "torchtitan-2024"
_FITTED_SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE)
_MISSPELT = 0.9  # of letters in common
# configurations of 0.3.0 with compiled models: models/llama3/config_registry.py, models/qwen3/config_registry.py
_COMPILED = re.compile("405b|nvfp4|mxfp8")


def parse(files: Mapping[str, str]) -> ParsedConfig:
    """What a TOML file (0.2.2) or options (0.3.0) say. Raises `FileInputError` or `InputError`."""
    toml = next((name for name in files if name.endswith(".toml")), None)
    devices = _devices(files)
    scripts = {name: text for name, text in files.items() if is_script(name) and not name.endswith(".py")}
    stated, names = _words(scripts.values())
    words: dict[str, Any] = dict(stated)
    config_file = words.pop("job.config_file", "")
    if toml is not None:
        # the command line goes before the file (torchtitan 0.2.2 config/manager.py parse_args)
        # a section without settings says nothing
        said = {k: v for k, v in flatten(load_settings(files[toml], toml)).items() if v != {}} | words
        return _of_0_2(said, toml, devices)
    if config_file:
        must = "the TOML file that --job.config_file names must be given too"
        raise InputError(must, config_file[:80], "name it beside the script")
    for text in scripts.values():
        for kind in (
            word for word in Script().follow(text).words if word.startswith("activation-checkpoint:")
        ):
            words["activation_checkpoint.mode"] = kind.partition(":")[2]
    for name, text in files.items():
        if name.endswith(PLANNED):
            words |= read_planned(text, name)
    if not words:
        must = "torchtitan options or a TOML file must be given (--module, --config, --parallelism...)"
        python = any(name.endswith(".py") for name in files)
        how = (
            "Python configurations are not read: give the script that names one with its options"
            if python
            else ""
        )
        raise InputError(must, ", ".join(files), how)
    if is_older(words):
        return _of_0_2(words, next(iter(files)), devices)
    unknown = unknown_options("torchtitan", CLI, [n for n in names if not n.startswith("--job")])
    return _parsed(Settings(words, next(iter(files))), CLI, devices, unknown)


def _of_0_2(said: Mapping[str, Any], file: str, devices: int | None) -> ParsedConfig:
    """What settings of 0.2.2, or by names of before, say; of the latter, and of trainers made of such releases, those
    that 0.2.2 does not have are passed over, with a note."""
    said, older = with_new_names(said)
    unknown = unknown_options("torchtitan", TOML, said)
    if older and unknown:
        names = [_perhaps_misspelt(option.split(" ")[0]) for option in unknown]
        names = [name for name in names if name != ACCUMULATION]
        older, unknown = (*older, *([f"not of 0.2.2, passed over: {', '.join(names)}"] if names else [])), ()
    parsed = _parsed(Settings(said, file), TOML, devices, unknown)
    return replace(parsed, notes=(*parsed.notes, *older))


def _perhaps_misspelt(name: str) -> str:
    """A setting that 0.2.2 does not have, with one that it has where a letter or two are all that differs."""
    near = difflib.get_close_matches(name, option_table("torchtitan", TOML), n=1, cutoff=_MISSPELT)
    return f"{name} (nearest: {near[0]})" if near else name


def _words(scripts: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Settings that the options of scripts state, by dotted name (tyro takes - and _, and `no_` before a flag's), and
    the options as the table writes them."""
    said: dict[str, str] = {}
    names: list[str] = []
    table = option_table("torchtitan", CLI)
    for text in scripts:
        for option, *values in options_of(text)[0]:
            if "." in option or option in ("--module", "--config"):
                name = option[2:].replace("-", "_")
                names.append(f"--{name}")
                section, denied, field = name.partition(".no_")
                known = table.get(f"--{name}")
                flag = known is not None and known.type == "flag"  # what follows is not its own
                value = str(not denied) if flag or not values else values[0]
                said[f"{section}.{field}" if denied else name] = value
    return said, names


def _devices(files: Mapping[str, str]) -> int | None:
    for text in files.values():
        options, variables = options_of(text) if "torchrun" in text else ([], {})
        words = {name: values for name, *values in options}
        nodes = (words.get("--nnodes") or [variables.get("NNODES", "")])[0]
        each = (
            words.get("--nproc-per-node") or words.get("--nproc_per_node") or [variables.get("NGPU", "")]
        )[0]
        nodes = nodes or "1"  # what torchrun takes
        if (devices := product(nodes, each)) is not None:
            return devices
    return None


def _parsed(s: Settings, version: str, devices: int | None, unknown: tuple[str, ...]) -> ParsedConfig:
    def degree(name: str, default: int = 1) -> int:
        return s.count(f"parallelism.{name}", default, least=-1)

    tp, cp, pp = (degree(f"{kind}_parallel_degree") for kind in ("tensor", "context", "pipeline"))
    replicate, shard = degree("data_parallel_replicate_degree"), degree("data_parallel_shard_degree", -1)
    if shard < 1 and devices:
        shard = max(devices // (tp * cp * pp * replicate), 1)
    known = shard >= 1
    if not known and replicate > 1:
        must = "data_parallel_shard_degree must be a number where there are replicas"
        raise InputError(must, "-1", "write the number, or give the torchrun script too")
    model, shipped_precision = _model(s, version)
    strange = _unknown_flavor(s, version) if model is None else ""
    dp = replicate * shard if known else 1
    # without a pipeline the schedule that is named does not run
    schedule, looped = _schedule(s) if pp > 1 else (Schedule.ONE_F_ONE_B, False)
    chunks = _chunks(s, model, pp, looped)
    local = s.count("training.local_batch_size", 8 if version == TOML else 1)
    micro = s.count("parallelism.pipeline_parallel_microbatch_size", 1) if pp > 1 else local
    accumulated = s.count(ACCUMULATION, 1)
    batch: int | None = s.count("training.global_batch_size", -1, least=-1)
    if batch is None or batch < 1:
        batch = local * dp * accumulated if known else None
    reshard = s.text("parallelism.fsdp_reshard_after_forward", "default")
    always = reshard == "always" or (reshard == "default" and pp == 1)
    sharded = shard * cp > 1 or not known
    recompute, every = _recompute(s, version)
    ep = degree("expert_parallel_degree")
    axes = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "vpp": max(len(chunks) // pp, 1) if chunks else 1,
        "ep": ep, "etp": tp if ep == 1 and model and model.is_moe else degree("expert_tensor_parallel_degree"),
        "micro_batch": micro, "num_microbatches": max((batch or 1) // (dp * micro), 1), "sp": int(tp > 1),
        "zero": (3 if always else 2) if sharded else 0,
        "hsdp": shard * cp if sharded and replicate > 1 else 0,
        "offload": OFFLOAD_STATES if s.flag("training.enable_cpu_offload") else 0,
        "recompute": int(recompute), "schedule": int(schedule),
        **_graphs(s, version, model, pp * ep),
    }  # fmt: skip
    if not known:  # all devices that are left; the cluster says how many
        del axes["dp"], axes["num_microbatches"]
        if batch is None:  # of a rank's own batch
            axes["num_microbatches"] = max(local // micro, 1) * accumulated
    fp8 = "float8" in s.text("model.converters", "") or shipped_precision is FLOAT8
    gathers, options, notes = _float8(s, version, shard > 1) if fp8 else (None, (), ())
    if pp > 1 and known and batch and batch > local * dp:
        # gradient accumulation, around forward and backward of all stages (train.py)
        notes += (
            f"a step runs the pipeline {batch // (local * dp)} times, each with {max(local // micro, 1)} micro-batches "
            f"and a bubble of its own, modelled as one run: a local_batch_size of {batch // dp} is one",
        )
    newer = ep > 1 or schedule not in _FITTED_SCHEDULES
    stack, eager = _software(s, version, newer)
    pure = (PURE_BF16,) if s.text("training.dtype", "float32") == "bfloat16" else ()
    deepep = s.text("parallelism.expert_parallel_comm_backend", "") == "deepep"
    fp32 = s.text("training.mixed_precision_param", "bfloat16") == "float32"
    return ParsedConfig(
        framework="torchtitan",
        version=version,
        axes=axes,
        devices=tp * cp * pp * dp if known else None,
        seq_len=s.count("training.seq_len", 1) if s.has("training.seq_len") else None,
        global_batch=batch,
        precision=FLOAT8 if fp8 else Precision.FP32 if fp32 else shipped_precision or Precision.BF16,
        model=model,
        missing=strange,
        layers=chunks,
        unknown=unknown,
        notes=(*notes, *((strange,) if strange else ())),
        loss=_loss(s, version, tp),
        balanced=s.flag("debug.moe_force_load_balance"),
        param_gather=gathers,
        dispatcher=Dispatcher.DEEPEP if deepep else None,
        stack_options=(*pure, *eager, *options),
        stack=stack,
        recompute_every=every,
    )


def _recompute(s: Settings, version: str) -> tuple[Recompute, int]:
    """The kind of checkpointing, and of how many layers one is recomputed whole.

    0.2.2 checkpoints whole layers selectively, one of two unless selective_ac_option says otherwise, or operations
    ("op"); 0.3.0 operations alone.
    """
    name, option = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
    mode = s.text(name, "selective")
    if mode in ("full", "none"):
        return (Recompute.FULL if mode == "full" else Recompute.NONE), 1
    if mode != "selective":
        must = "planner models full and selective activation checkpointing, and none"
        raise FileInputError(s.file, must, mode[:80], "full, selective or none", field=name)
    if version != TOML or s.text(option, "2") == "op":
        return Recompute.SELECTIVE, 1
    if not (said := s.text(option, "2")).isdecimal():
        must = "must be op, or of how many layers one is checkpointed"
        raise FileInputError(s.file, must, said[:80], field=option)
    return Recompute.FULL, max(int(said), 1)


def _software(s: Settings, version: str, newer: bool) -> tuple[str, tuple[str, ...]]:
    """The shipped stack of what the files run and its options: nothing is compiled unless they say so, or a
    configuration does that they start from; 0.2.2 is nearer to what torchtitan-2024 was fitted on than to 0.3.0, but
    for `newer`, expert parallelism and schedules that 0.1 did not have."""
    starts = version == CLI and _COMPILED.search(s.text("config", "")) is not None
    parts = s.values.get("compile.components", "model,loss")
    compiled = (s.flag("compile.enable") if s.has("compile.enable") else starts) and "model" in parts
    if version == TOML and not newer:
        return _FITTED, () if compiled else (NO_COMPILE,)
    return "" if compiled else _EAGER, ()


def _model(s: Settings, version: str) -> tuple[ModelSpec | None, Precision | None]:
    """The model, and a precision that comes with its configuration."""
    if version == CLI:
        name, precision = shipped_model(dict(s.values))
        return (load_model(name) if name else None), precision
    said = (s.text("model.name", ""), s.text("model.flavor", ""))
    found = (name for name, m in MODELS.items() if m.toml_flavor and (m.family, m.toml_flavor) == said)
    name = next(found, "")
    return (load_model(name) if name else None), None


def _unknown_flavor(s: Settings, version: str) -> str:
    """The flavor that a TOML file names and planner does not know of its family; empty where none is."""
    family, flavor = s.text("model.name", ""), s.text("model.flavor", "")
    known = {m.toml_flavor for m in MODELS.values() if m.family == family and m.toml_flavor}
    if version != TOML or not flavor or not known:
        return ""
    return f"model.flavor {flavor[:40]}: of {family} planner knows {', '.join(sorted(known))}"


def _float8(s: Settings, version: str, sharded: bool) -> tuple[bool | None, tuple[str, ...], tuple[str, ...]]:
    """Whether linear weights are gathered in float8, the option that its recipe is, and what of it is not costed.

    0.3.0 scales by rows, and has no option to gather so.

    Raises `InputError` where 0.2.2 does (components/quantization/float8.py Float8LinearConverter).
    """
    if version != TOML:
        return None, (FLOAT8_ROWWISE,), ()
    section = "quantize.linear.float8"
    recipe, asked = s.text(f"{section}.recipe_name", ""), s.flag(f"{section}.enable_fsdp_float8_all_gather")
    if recipe and asked:
        must = "enable_fsdp_float8_all_gather together with recipe_name is not supported: it is for one scale a tensor"
        raise InputError(must, f"recipe_name {recipe}"[:80], "leave recipe_name out")
    notes = []
    rows = recipe.startswith("rowwise")
    if rows and recipe != "rowwise":
        notes.append(f"recipe_name {recipe[:40]}: weight gradients in bf16 are modelled as float8")
    precomputed = s.flag(f"{section}.precompute_float8_dynamic_scale_for_fsdp")
    if asked and sharded and not precomputed:
        notes.append(
            "a scale's all-reduce for every weight before its gather is not modelled: set "
            "precompute_float8_dynamic_scale_for_fsdp"
        )
    return asked and sharded, (FLOAT8_ROWWISE if rows else FLOAT8_TENSORWISE,), tuple(notes)


def _graphs(s: Settings, version: str, model: ModelSpec | None, stages_and_experts: int) -> dict[str, int]:
    """0.3.0 captures unless told not to, which shipped configurations of experts and pipelines do."""
    if version != CLI or model is None:
        return {}
    silent = not s.has("training.disable_cuda_graphs")
    disabled = (model.is_moe or stages_and_experts > 1) if silent else s.flag("training.disable_cuda_graphs")
    return {"cuda_graph_impl": int(CudaGraphs.NONE if disabled else CudaGraphs.FULL_ITERATION)}


def _loss(s: Settings, version: str, tp: int) -> AnyLoss:
    """0.3.0 takes the loss in parts where nothing else is said, 0.2.2 whole, split over tensor-parallel ranks unless
    disable_loss_parallel gives each of them all logits (0.2.2 models/llama3/infra/parallelize.py apply_tp)."""
    if version != CLI:
        whole = tp > 1 and s.flag("parallelism.disable_loss_parallel")
        return Eager() if whole else VocabParallel()
    return VocabParallel() if s.text("loss", "chunked") == "whole" else Chunked()


def _schedule(s: Settings) -> tuple[Schedule, bool]:
    """The schedule and whether ranks hold several stages. Raises `FileInputError` for a name torch does not have."""
    text = s.text("parallelism.pipeline_parallel_schedule", "1F1B")
    known = {name.lower(): kind for name, kind in SCHEDULES.items()}
    if text.lower() not in known:
        must = "must be one of " + ", ".join(SCHEDULES)
        raise FileInputError(s.file, must, repr(text)[:80], field="parallelism.pipeline_parallel_schedule")
    return known[text.lower()]


def _chunks(s: Settings, model: ModelSpec | None, pp: int, looped: bool) -> ChunkLayers:
    parts = s.values.get("parallelism.module_fqns_per_model_part")
    if isinstance(parts, list):
        return tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)
    if model is None or pp == 1:
        return ()
    first = s.count("parallelism.pipeline_parallel_first_stage_less_layers", 1, least=0)
    last = s.count("parallelism.pipeline_parallel_last_stage_less_layers", 1, least=0)
    stages = pp * (2 if looped else 1)
    if s.has("parallelism.pipeline_parallel_layers_per_stage"):
        each = s.count("parallelism.pipeline_parallel_layers_per_stage", 1)
        stages = -(-(model.num_layers + first + last) // each)
        if stages % pp:
            must = "the stages that layers per stage give must be divisible by the pipeline degree"
            raise InputError(must, f"{stages} stages, pp {pp}", "change pipeline_parallel_layers_per_stage")
    return stages_of(model.num_layers, stages, first, last)
