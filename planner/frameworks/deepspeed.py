"""DeepSpeed 0.19.8: ds_config.json, a hostfile, and settings of PipelineModule.

Source: deepspeed 0.19.8 (runtime/config.py, runtime/zero/config.py, runtime/pipe/module.py, runtime/engine.py).
Pipeline stages are not part of the JSON file: pipeline.json holds the arguments of PipelineModule. Left out:
offload to NVMe and of a pipeline's states, AutoEP, quantised communication.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from planner.catalog.stack_options import FLASH_ATTENTION_3, PURE_BF16
from planner.errors import InputError
from planner.frameworks.details import left_out
from planner.frameworks.fields import Settings, dump_json, flatten, load_settings, option_words
from planner.frameworks.framework import Files, Framework, Launch, ParsedConfig
from planner.frameworks.layout import is_even
from planner.frameworks.options import check_options, table_source, unknown_options
from planner.frameworks.programs import (
    DEEPSPEED_PROGRAM,
    MODEL_CONFIG,
    NEWER_FLASH,
    PROGRAM,
    check_program,
    kernel_notes,
    kernel_words,
)
from planner.frameworks.refuse import is_pure_bf16, require, require_axis, require_whole_recompute, uncaptured
from planner.frameworks.rulebook import (
    no_idle_experts,
    no_selective,
    only,
    shards_or_hosts,
    whole_recompute,
    whole_scans,
)
from planner.frameworks.scripts import README, launch_files, readme
from planner.frameworks.shell.script import Script, is_script
from planner.frameworks.trainer import Trainer, devices_of, trainer_of, words_of
from planner.frameworks.zero_settings import with_full_names, zero_settings
from planner.spec.config import OFFLOAD_OPTIMIZER, OFFLOAD_PARAMETERS, Mask, Recompute, Schedule
from planner.spec.job import Optimizer
from planner.spec.precision import Precision
from planner.spec.rule import Columns, Problem, Rule

TITLE: Final = "DeepSpeed"
VERSION: Final = "0.19.8"
CONFIG, HOSTFILE, PIPELINE = "ds_config.json", "hostfile", "pipeline.json"
IMAGE: Final = "nvcr.io/nvidia/pytorch:25.09-py3"
TRIAL_STEPS: Final = 50
PURE_SETTINGS: Final = ("bf16_master_weights_and_grads", "bf16_optimizer_states")
# words of the optimizer or scheduler that is named, and sections that the table does not go into
_FREE: Final = (
    "optimizer.params.", "scheduler.params.", "checkpoint.parallel_write.", "compression_training.", "autotuning.",
    "data_efficiency.", "elasticity.", "curriculum_learning.", "weight_quantization.", "timers.",
    "datastates.", "tensor_parallel.partition_config.",
)  # fmt: skip
# sections whose models forbid other names (runtime/config_utils.py DeepSpeedConfigModel); others are asked by name
_STRICT: Final = (
    "zero_optimization.", "bf16.", "fp16.", "compile.", "tensor_parallel.", "expert_parallel.", "hybrid_engine.",
    "tensorboard.", "wandb.", "csv_monitor.", "comet.", "comms_logger.",
)  # fmt: skip


def _pipeline_zero(columns: Columns, problem: Problem) -> Mask:
    return (columns["pp"] == 1) | (columns["zero"] <= 1)


def _kv_heads(columns: Columns, problem: Problem) -> Mask:
    legal = np.ones(len(columns["tp"]), dtype=np.bool_)
    for attention in problem.model.attentions:
        legal &= attention.kv_heads % columns["tp"] == 0
    return legal


def _ulysses(columns: Columns, problem: Problem) -> Mask:
    cp, legal = columns["cp"], np.ones(len(columns["cp"]), dtype=np.bool_)
    for attention in problem.model.attentions:
        heads, kv = attention.heads, attention.kv_heads
        legal &= (heads % cp == 0) & ((kv % cp == 0) | (cp % kv == 0))
    return legal


def _schedule(columns: Columns, problem: Problem) -> Mask:
    return (columns["schedule"] == Schedule.ONE_F_ONE_B) & (columns["vpp"] == 1)


def _one_group_of_neighbours(columns: Columns, problem: Problem) -> Mask:
    return (columns["tp"] == 1) | (columns["cp"] == 1)


def _pure_bf16(columns: Columns, problem: Problem) -> Mask:
    alone = columns["dp"] * columns["cp"] == 1  # ZeRO of one rank
    return np.asarray((not problem.stack.states.pure_bf16) | (columns["zero"] > 0) | alone, dtype=np.bool_)


def _offload_flat(columns: Columns, problem: Problem) -> Mask:
    return (columns["pp"] == 1) | (columns["offload"] == 0)


def _flat(columns: Columns, problem: Problem) -> Mask:
    return (columns["pp"] == 1) | (columns["tp"] * columns["cp"] == 1)


RULES: Final[tuple[Rule, ...]] = (
    only("sp", (0,), TITLE, "DeepSpeed runtime/tensor_parallel (AutoTP has no sequence parallelism)"),
    only("ep", (1,), TITLE, "planner: AutoEP is not written"),
    only("etp", (1,), TITLE, "planner: AutoEP is not written"),
    whole_recompute(TITLE, "transformers gradient_checkpointing_enable; DeepSpeed PipelineModule"),
    no_selective(TITLE, "transformers gradient_checkpointing_enable; DeepSpeed PipelineModule"),
    shards_or_hosts(
        "DeepSpeed runtime/zero/stage_1_and_2.py (ZeRO-Offload of one device), runtime/engine.py "
        "_do_optimizer_sanity_check (stage 0 makes no ZeRO optimizer)"
    ),
    Rule(
        "pipeline-offload", ("pp", "offload"), _offload_flat,
        "a pipeline keeps everything on its devices; pp={pp} offload={offload}", "set pp=1, or offload=none",
        "planner: what a pipeline keeps on the host is not written",
    ),
    Rule(
        "pipeline-flat", ("tp", "cp", "pp"), _flat,
        "a pipeline of plain DeepSpeed runs without tp and cp; tp={tp} cp={cp} pp={pp}",
        "set pp=1, or tp=1 and cp=1 (Megatron-DeepSpeed runs both, but its arguments are not written)",
        "DeepSpeed runtime/pipe/module.py (tp needs a topology and layers of one's own)",
    ),
    Rule(
        "pipeline-zero", ("pp", "zero"), _pipeline_zero,
        "a pipeline shards optimizer states at most (zero 0 or 1); pp={pp} zero={zero}", "set zero=1",
        "DeepSpeed runtime/pipe/engine.py PipelineEngine.__init__",
    ),
    Rule(
        "pure-bf16-zero", ("zero", "dp", "cp"), _pure_bf16,
        "full bf16 training needs ZeRO 1, 2 or 3; zero={zero}", "set zero=1",
        "DeepSpeed runtime/config.py DeepSpeedConfig._do_error_check",
    ),
    Rule(
        "kv-heads-tp", ("tp",), _kv_heads,
        "tp must divide the key/value heads, {kv}; tp={tp}", "choose a tp that divides them",
        "DeepSpeed runtime/engine.py _apply_autotp_partitioning",
        lambda p: {"kv": min((a.kv_heads for a in p.model.attentions), default=0)},
    ),
    Rule(
        "ulysses-heads", ("cp",), _ulysses,
        "cp must divide the {heads} attention heads, and divide the {kv} key/value heads or they it; cp={cp}",
        "choose a cp that does", "DeepSpeed runtime/sequence_parallel/ulysses_sp.py UlyssesSPAttentionHF",
        lambda p: {
            "heads": min((a.heads for a in p.model.attentions), default=0),
            "kv": min((a.kv_heads for a in p.model.attentions), default=0),
        },
    ),
    Rule(
        "autotp-ulysses", ("tp", "cp"), _one_group_of_neighbours,
        "AutoTP and Ulysses take the same neighbouring ranks, so one of tp and cp must be 1; tp={tp} cp={cp}",
        "set tp=1 or cp=1",
        "DeepSpeed utils/groups.py _init_tp_mesh_device, runtime/sequence_parallel/parallel_state_sp.py "
        "initialize_sequence_parallel",
    ),
    whole_scans(TITLE),
    no_idle_experts(TITLE),
    Rule(
        "schedule-supported", ("vpp", "schedule"), _schedule,
        "the pipeline schedule must be 1F1B without virtual stages; vpp={vpp}", "set vpp=1",
        "DeepSpeed runtime/pipe/schedule.py TrainSchedule",
    ),
)  # fmt: skip


def settings_of(launch: Launch) -> dict[str, Any]:
    """ds_config.json as settings. Raises `UnsupportedError`."""
    config, job = launch.config, launch.job
    _check(launch)
    zero: dict[str, Any] = {
        "stage": max(config.zero, int(is_pure_bf16(launch))),  # where there is one rank to shard over
        "overlap_comm": config.pp == 1,  # which a pipeline takes back
        "contiguous_gradients": True,
        "reduce_bucket_size": 500_000_000,
        "allgather_bucket_size": 500_000_000,
    }
    if config.zero == 3:
        zero |= {
            "stage3_prefetch_bucket_size": 50_000_000,
            "stage3_param_persistence_threshold": 100_000,
            "stage3_max_live_parameters": 1_000_000_000,
        }
    for bit, what in ((OFFLOAD_OPTIMIZER, "optimizer"), (OFFLOAD_PARAMETERS, "param")):
        if config.offload & bit:
            zero[f"offload_{what}"] = {"device": "cpu", "pin_memory": True}
    settings: dict[str, Any] = {
        # with AutoTP DeepSpeed takes tensor-parallel ranks for copies of the data here, and refuses any other product
        **({"train_batch_size": job.global_batch} if config.tp == 1 else {}),
        "train_micro_batch_size_per_gpu": config.micro_batch,
        "gradient_accumulation_steps": config.num_microbatches,
        "steps_per_print": 1,
        "wall_clock_breakdown": False,
        "gradient_clipping": 1.0,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
        },
        "zero_optimization": zero,
    }
    if job.precision is not Precision.FP32:
        settings["bf16" if job.precision is Precision.BF16 else "fp16"] = {"enabled": True}
    if is_pure_bf16(launch):
        settings["bf16"] |= dict.fromkeys(PURE_SETTINGS, True)
    if config.tp > 1:
        settings["tensor_parallel"] = {"autotp_size": config.tp}
    if config.cp > 1:
        settings["sequence_parallel_size"] = config.cp
    if config.recompute == Recompute.FULL and config.pp > 1:
        settings["activation_checkpointing"] = {"partition_activations": False}
    return settings


def _check(launch: Launch) -> None:
    config, job = launch.config, launch.job
    for axis, allowed in (("ep", (1,)), ("etp", (1,)), ("vpp", (1,)), ("sp", (0,)), ("schedule", (0,))):
        require_axis(launch, TITLE, axis, allowed)
    require(config.pp == 1 or config.zero <= 1, TITLE, "ZeRO 2 or 3 with a pipeline", f"zero={config.zero}")
    require(
        config.pp == 1 or config.tp * config.cp == 1,
        TITLE,
        "a pipeline with tp or cp by settings",
        config.describe(),
    )
    require(config.tp == 1 or config.cp == 1, TITLE, "AutoTP with Ulysses", config.describe())
    require_whole_recompute(launch, TITLE, OFFLOAD_OPTIMIZER | OFFLOAD_PARAMETERS)
    require(config.pp == 1 or not config.offload, TITLE, "offloading with a pipeline", config.describe())
    require(config.recompute != Recompute.SELECTIVE, TITLE, "selective recomputation", "recompute=selective")
    require(job.optimizer is Optimizer.ADAMW, TITLE, "this optimizer", job.optimizer)
    formats = (Precision.BF16, Precision.FP16, Precision.FP32)
    require(job.precision in formats, TITLE, "this precision", job.precision)
    sharded = config.zero > 0 or config.dp * config.cp == 1
    require(sharded or not is_pure_bf16(launch), TITLE, "full bf16 training without ZeRO", "zero=0")
    require(not config.hsdp, TITLE, "states sharded within groups (it dropped MiCS)", f"hsdp={config.hsdp}")


def pipeline_settings(launch: Launch) -> dict[str, Any]:
    """Arguments of PipelineModule: stages, how layers are dealt, and every how many layers activations are kept."""
    return {
        "num_stages": launch.config.pp,
        "partition_method": "uniform" if is_even(launch.chunks) else "parameters",
        "activation_checkpoint_interval": int(launch.config.recompute == Recompute.FULL),
    }


def hostfile(launch: Launch) -> str:
    """One line a node; the names are placeholders for the nodes that the job gets."""
    return "".join(f"node-{i} slots={launch.devices_per_host}\n" for i in range(launch.nodes))


def render(launch: Launch, version: str) -> Files:
    """ds_config.json, hostfile, train.py or pipeline.json, what starts it, and a README."""
    settings = settings_of(launch)
    check_options("deepspeed", version, option_words(settings))
    extra = {CONFIG: dump_json(settings), HOSTFILE: hostfile(launch)}
    missing = [
        f"{HOSTFILE}: node names are placeholders; only the deepspeed launcher reads it, launch.sh does not",
        "data: train.py makes tokens up; replace it by your program",
        *left_out(launch.model),
        *uncaptured(launch, TITLE),
    ]
    if launch.config.pp > 1:
        extra[PIPELINE] = dump_json(pipeline_settings(launch))
        missing += [
            f"the pipeline model: pass {PIPELINE} to PipelineModule(layers, **settings) in your own {PROGRAM}; "
            "DeepSpeed has no setting for it",
            "how layers are dealt to stages: DeepSpeed balances parameters where they don't divide evenly",
        ]
    else:
        check_program(launch.model)
        extra |= {PROGRAM: DEEPSPEED_PROGRAM}
    if launch.details.raw is not None:
        extra[MODEL_CONFIG] = dump_json(launch.details.raw)
    else:
        missing.append(f"the model: put its {MODEL_CONFIG} beside {PROGRAM}")
    steps = (
        TRIAL_STEPS if launch.job.tokens is None else int(-(-launch.job.tokens // launch.job.tokens_per_step))
    )
    words: list[tuple[str, ...]] = [
        ("--seq-len", str(launch.job.seq_len)),
        ("--micro-batch", str(launch.config.micro_batch)),
        ("--accumulate", str(launch.config.num_microbatches)),
        ("--steps", str(max(steps, 1))),
    ]
    if launch.config.recompute == Recompute.FULL:
        words.append(("--recompute",))
    if launch.config.pp == 1:
        stack = launch.stack_of("deepspeed")
        words += kernel_words(stack, launch.accelerator)
        missing += kernel_notes(stack, launch.model, launch.accelerator)
    prelude = 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)'
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    files = launch_files(launch, environment, {"PROGRAM": words}, f'"$HERE/{PROGRAM}"', IMAGE, extra, prelude)
    run = [
        f"`NODE_RANK=0 MASTER_ADDR=host0 bash launch.sh` on every one of {launch.nodes} nodes, or",
        f"`deepspeed --hostfile {HOSTFILE} {PROGRAM} ...` with the names of your nodes.",
    ]
    return {**files, README: readme(launch, TITLE, version, table_source("deepspeed", version), run, missing)}


def parse(files: Mapping[str, str]) -> ParsedConfig:
    """What ds_config.json, hostfile and pipeline.json say. Raises `FileInputError` naming the setting."""
    files = {**_written(files), **files}
    name = next(
        (file for file, text in files.items() if recognizes(file, text) and file.endswith(".json")), None
    )
    if name is None:
        must = "a DeepSpeed configuration must be a JSON file with train_micro_batch_size_per_gpu"
        wanted = _named(words_of(files))
        raise InputError(must, ", ".join(files), f"name {wanted} beside the script" if wanted else "")
    stated = with_full_names(load_settings(files[name], name))
    words = words_of(files)
    trainer = trainer_of(words)
    s = Settings(trainer.filled(stated), name)
    pipe = next((load_settings(text, f) for f, text in files.items() if f.endswith(PIPELINE)), {})
    pp = Settings(pipe, PIPELINE).count("num_stages", s.count("pipeline.stages", 1))
    tp = max(s.count("tensor_parallel.autotp_size", 1, least=0), 1)
    cp = s.count("sequence_parallel_size", 1)
    stage = s.count("zero_optimization.stage", 0, least=0)
    devices = _devices(files)
    dp, batch, of_batch = _batch(s, max(devices // (tp * cp * pp), 1) if devices else None, tp)
    if dp is not None:
        devices = devices or dp * tp * cp * pp
    axes = {
        "tp": tp, "cp": cp, "pp": pp, "zero": stage, "vpp": 1, "sp": 0, "etp": 1,
        "ep": s.count("expert_parallel.autoep_size", 1), "schedule": int(Schedule.ONE_F_ONE_B),
    }  # fmt: skip
    axes["offload"] = _offload(s)
    notes = [] if dp is not None else ["the number of devices is not in these files"]
    automatic = sorted(n for n, value in s.values.items() if value == "auto" and "batch" in n)
    if stage == 3 and s.count("zero_optimization.zero_hpz_partition_size", 1) > 1:
        notes.append("zero_hpz_partition_size, a second copy of the weights in every group, is not costed")
    notes += [f"left to the program: {', '.join(automatic)}"] if automatic else []
    recompute = Recompute.FULL if _recomputes(words, trainer, pipe) else Recompute.NONE
    options = (FLASH_ATTENTION_3,) if set(words.get("attention", ())) & NEWER_FLASH else ()
    kind = s.text("optimizer.type", "AdamW")
    if kind.lower() not in ("adam", "adamw"):
        notes.append(f"optimizer.type {kind[:40]}: costed as AdamW with fp32 moments")
    strange, passed = _unknown(stated)
    notes += [f"DeepSpeed passes over what it does not know: {option}" for option in passed]
    axes["recompute"] = int(recompute)
    axes |= of_batch
    automatic_bf16 = s.values.get("bf16.enabled") == "auto" and not s.flag("fp16.enabled")
    precision = Precision.FP16 if s.flag("fp16.enabled") else Precision.FP32
    if s.flag("bf16.enabled") or automatic_bf16:
        precision = Precision.BF16
    settings, said = zero_settings(s, stage)
    notes += said
    pure = [s.flag(f"bf16.{name}") for name in PURE_SETTINGS]
    if any(pure) and not all(pure):
        notes.append(f"costed with fp32 masters: only {' with '.join(PURE_SETTINGS)} is pure bf16")
    return ParsedConfig(
        framework="deepspeed",
        version=VERSION,
        axes=axes,
        devices=devices,
        seq_len=trainer.seq_len,
        global_batch=batch,
        precision=precision,
        model=trainer.model,
        named=trainer.named,
        optimizer=None if s.has("optimizer.type") else trainer.optimizer,
        unknown=strange,
        notes=(*notes, *trainer.notes),
        stack_options=(*((PURE_BF16,) if all(pure) else ()), *options),
        stack_settings=settings,
    )


def _batch(s: Settings, dp: int | None, tp: int) -> tuple[int | None, int | None, dict[str, int]]:
    """Data-parallel ranks, global batch, and the axes that the batch decides; None and left out where the devices
    decide, which `dp` counts where they are known.

    The batch is ranks x micro-batch x steps of accumulation; what is not given follows from the others (DeepSpeed
    0.19.8 runtime/config.py _set_batch_related_parameters). AutoTP's `tp` ranks count as ranks there, though they share
    their data: the global batch is that part of what is stated.
    """
    micro = s.count("train_micro_batch_size_per_gpu", 1) if s.has("train_micro_batch_size_per_gpu") else None
    batch = max(s.count("train_batch_size", 1) // tp, 1) if s.has("train_batch_size") else None
    accumulated, accumulates = s.count("gradient_accumulation_steps", 1), s.has("gradient_accumulation_steps")
    if micro is None and dp is None and batch is not None:
        return None, batch, {"num_microbatches": accumulated}
    if micro is None:
        micro = max((batch or 1) // ((dp or 1) * accumulated), 1)
    if dp is None and batch is not None and accumulates:
        dp = max(batch // (micro * accumulated), 1)
    if dp is not None:
        batch = batch if batch is not None else dp * micro * accumulated
        return dp, batch, {"micro_batch": micro, "dp": dp, "num_microbatches": max(batch // (dp * micro), 1)}
    if batch is None and accumulates:
        return None, None, {"micro_batch": micro, "num_microbatches": accumulated}
    return None, batch, {"micro_batch": micro}


def _offload(s: Settings) -> int:
    """What lies on the host, as bits of `offload`: 1 optimizer states, 2 parameters; under their older names too."""
    found, zero = 0, "zero_optimization"
    for bit, what, older in ((1, "optimizer", "cpu_offload"), (2, "param", "cpu_offload_param")):
        named = s.text(f"{zero}.offload_{what}.device", "cpu" if s.flag(f"{zero}.{older}") else "none")
        found |= bit * (named != "none")
    return found


def _recomputes(words: Mapping[str, list[str]], trainer: Trainer, pipe: Mapping[str, Any]) -> bool:
    """Are layers recomputed: by PipelineModule's arguments, or the program's words?"""
    return bool(pipe.get("activation_checkpoint_interval")) or trainer.recompute or "recompute" in words


def _unknown(document: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Settings that DeepSpeed refuses (its sections' models forbid others), and those that it does not look at."""
    names = [name for name in flatten(document) if not name.startswith(_FREE)]
    strange = unknown_options("deepspeed", VERSION, names)
    refused = tuple(name for name in strange if name.startswith(_STRICT))
    return refused, tuple(name for name in strange if name not in refused)


def _named(words: Mapping[str, list[str]]) -> str:
    """The JSON file that a program's words name; empty where they name none."""
    given = (value for name in ("deepspeed", "deepspeed_config") for value in words.get(name, ())[:1])
    return next((value for value in given if value.endswith(".json")), "")


def _devices(files: Mapping[str, str]) -> int | None:
    for file, text in files.items():
        if file.split("/")[-1].startswith("hostfile"):
            slots = re.findall(r"^\s*[^#\s]+\s+slots=(\d{1,6})\s*$", text, re.MULTILINE)
            return sum(int(count) for count in slots) or None
    return devices_of(files)


def _written(files: Mapping[str, str]) -> dict[str, str]:
    """Settings that scripts write before they launch."""
    found: dict[str, str] = {}
    for file, text in files.items():
        if is_script(file):
            written = Script().follow(text).files
            found |= {
                name if name.endswith(".json") else f"{name}.json": body for name, body in written.items()
            }
    return found


def recognizes(name: str, text: str) -> bool:
    """A ds_config.json, a script that names or writes one, a hostfile or pipeline.json."""
    plain = name.split("/")[-1]
    other = "--tensor-model-parallel-size" in text or "--num-layers" in text  # Megatron-DeepSpeed
    if is_script(name) and "--deepspeed" in text and not other and _named(words_of({name: text})):
        return True
    if is_script(name) and "zero_optimization" in text and "--tensor-model-parallel-size" not in text:
        return any("zero_optimization" in body for body in _written({name: text}).values())
    return (
        plain.endswith(".json") and ("train_micro_batch_size_per_gpu" in text or "zero_optimization" in text)
    ) or plain in (
        HOSTFILE,
        PIPELINE,
    )


DEEPSPEED: Final = Framework(
    name="deepspeed",
    title=TITLE,
    versions=(VERSION,),
    default_version=VERSION,
    rules=RULES,
    schedules=(Schedule.ONE_F_ONE_B,),
    zero_stages=(0, 1, 2, 3),
    splits="",
    dense_order=("tp", "cp", "dp", "pp"),
    expert_order=("ep", "edp", "pp"),
    render=render,
    parse=parse,
    recognizes=recognizes,
    stacks=("deepspeed",),
)
