"""Hugging Face Accelerate 1.15.0: one YAML file for `accelerate launch`, with FSDP2.

Source: accelerate 1.15.0 (commands/config/config_args.py, commands/launch.py, parallelism_config.py). There are no
pipelines and no expert parallelism. ZeRO 1 is written for its DeepSpeed plug-in, 2 and 3 as FSDP2, which keeps or
frees gathered weights. Left out: SageMaker, TPUs, Megatron-LM under Accelerate.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from planner.frameworks.accelerate.parse import (
    FP8_BACKENDS,
    PRECISIONS,
    VERSION,
    parse,
    recognizes,
)
from planner.frameworks.accelerate.restate import restated
from planner.frameworks.details import left_out
from planner.frameworks.fields import dump_json, dump_yaml, option_words
from planner.frameworks.framework import Files, Framework, Launch
from planner.frameworks.options import check_options, table_source
from planner.frameworks.programs import (
    MODEL_CONFIG,
    PROGRAM,
    check_program,
    kernel_notes,
    kernel_words,
    program_text,
    release_notes,
)
from planner.frameworks.refuse import (
    require,
    require_axis,
    require_masters,
    require_whole_recompute,
    uncaptured,
)
from planner.frameworks.rulebook import (
    no_idle_experts,
    no_selective,
    only,
    only_modelled,
    own_exchange,
    shards_or_hosts,
    whole_recompute,
    whole_scans,
)
from planner.frameworks.scripts import (
    HERE,
    IMAGE,
    LAUNCH,
    MANIFEST,
    README,
    SBATCH,
    kubernetes_manifest,
    readme,
    sbatch_script,
    started_on_nodes,
)
from planner.spec.config import OFFLOAD_STATES, Recompute
from planner.spec.job import Optimizer
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.rule import Rule

TITLE: Final = "Accelerate"
CONFIG: Final = "accelerate.yaml"


def _is_full(model: ModelSpec) -> bool:
    return all(attention.window is None and not attention.sinks for attention in model.attentions)


RULES: Final[tuple[Rule, ...]] = (
    only("sp", (0,), TITLE, "accelerate parallelism_config.py (sp there is Ulysses, a kind of cp)"),
    only("etp", (1,), TITLE, "accelerate parallelism_config.py ParallelismConfig"),
    only_modelled(
        "tp", (1,), TITLE,
        "accelerate 1.15.0 parallelism_config.py tp_size; accelerator.py _prepare_tp imports ReplicateParallel, which "
        "transformers 5 does not have",
    ),
    whole_recompute(TITLE, "accelerate utils/dataclasses.py fsdp_activation_checkpointing"),
    no_selective(TITLE, "accelerate utils/dataclasses.py fsdp_activation_checkpointing"),
    shards_or_hosts("DeepSpeed runtime/zero/stage_1_and_2.py (ZeRO-Offload); torch fully_shard on a mesh of one"),
    whole_scans(TITLE),
    own_exchange(TITLE, "accelerate 1.15.0 accelerator.py: set_rotate_method(cp_comm_strategy), allgather by default"),
    no_idle_experts(TITLE),
    Rule(
        "no-pipeline-no-experts", ("pp", "ep"), lambda c, p: (c["pp"] == 1) & (c["ep"] == 1),
        "there is no pipeline and no expert parallelism", "set pp=1 and ep=1",
        "accelerate parallelism_config.py ParallelismConfig", told=("pp", "ep"),
    ),
    Rule(
        "cp-fsdp", ("cp", "zero"), lambda c, p: (c["cp"] == 1) | np.isin(c["zero"], (2, 3)),
        "context parallelism needs FSDP2 (zero 2 or 3)", "set zero=3",
        "accelerate parallelism_config.py ParallelismConfig._validate_accelerator", told=("cp", "zero"),
    ),
    Rule(
        "cp-full-attention", ("cp",), lambda c, p: (c["cp"] == 1) | _is_full(p.model),
        "context parallelism takes full attention alone, {model} has windows or sinks", "set cp=1",
        "accelerate big_modeling.py _attach_context_parallel_hooks; torch context_parallel, which runs SDPA",
        lambda p: {"model": p.model.name}, told=("cp",),
    ),
)  # fmt: skip


def settings_of(launch: Launch) -> dict[str, Any]:
    """The YAML file as settings. Raises `UnsupportedError`."""
    config = launch.config
    _check(launch)
    settings: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _kind(launch),
        "mixed_precision": PRECISIONS[launch.job.precision],
        "num_machines": launch.nodes,
        "num_processes": launch.devices,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "downcast_bf16": False,
        "use_cpu": False,
        "debug": False,
    }
    if _kind(launch) == "FSDP":
        settings["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": config.zero == 3,
            "fsdp_activation_checkpointing": config.recompute == Recompute.FULL,
            # one rank that loads for all is what torchao is refused with
            "fsdp_cpu_ram_efficient_loading": launch.job.precision is not Precision.FP8_CS,
            "fsdp_offload_params": bool(config.offload),
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        shards = config.hsdp or config.dp * config.cp
        shard = max(shards // config.cp, 1)
        settings["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": config.dp // shard,
            "parallelism_config_dp_shard_size": shard,
            "parallelism_config_tp_size": config.tp,
            "parallelism_config_cp_size": config.cp,
            "parallelism_config_sp_size": 1,
        }
    if launch.job.precision in FP8_BACKENDS:
        settings["fp8_config"] = _fp8_settings(launch)
    if _kind(launch) == "DEEPSPEED":
        settings["deepspeed_config"] = {
            "zero_stage": config.zero,
            "gradient_accumulation_steps": config.num_microbatches,
            "offload_optimizer_device": "none",
            "offload_param_device": "none",
            "zero3_init_flag": False,
            "deepspeed_multinode_launcher": "standard",
        }
    return settings


def _fp8_settings(launch: Launch) -> dict[str, Any]:
    """The backend by name, since Accelerate takes what it finds installed where none is."""
    if launch.job.precision is Precision.FP8:
        return {"backend": FP8_BACKENDS[Precision.FP8], "fp8_format": "HYBRID"}
    stack = launch.stack_of("fsdp")
    asked = stack is not None and stack.engine.casts_for_gathers(launch.job.precision)
    gathers = asked and launch.config.zero >= 2 and not launch.model.is_moe
    return {"backend": FP8_BACKENDS[Precision.FP8_CS], "enable_fsdp_float8_all_gather": gathers}


def _kind(launch: Launch) -> str:
    if launch.config.zero >= 2:
        return "FSDP"
    if launch.config.zero == 1:
        return "DEEPSPEED"
    return "MULTI_GPU" if launch.devices > 1 else "NO"


def _check(launch: Launch) -> None:
    config, job = launch.config, launch.job
    for axis, allowed in (
        ("tp", (1,)),
        ("pp", (1,)),
        ("ep", (1,)),
        ("etp", (1,)),
        ("vpp", (1,)),
        ("sp", (0,)),
    ):
        require_axis(launch, TITLE, axis, allowed)
    require(config.zero >= 2 or config.cp == 1, TITLE, "cp without FSDP2", config.describe())
    shard = (config.hsdp or config.dp * config.cp) // config.cp
    legal = shard > 1 or config.cp > 1 or config.zero < 2
    require(legal, TITLE, "FSDP2 without a shard group above 1", config.describe())
    replicated = config.hsdp and (config.dp * config.cp) // config.hsdp > 1 and config.cp > 1
    require(not (replicated and shard == 1), TITLE, "replicas with cp and no sharding", config.describe())
    require(config.cp == 1 or _is_full(launch.model), TITLE, "cp with windows or sinks", config.describe())
    host = OFFLOAD_STATES if _kind(launch) == "FSDP" and launch.config.offload == OFFLOAD_STATES else 0
    require_whole_recompute(launch, TITLE, host)
    require_masters(launch, TITLE)  # the format of weights is the training program's
    require(not any(job.bf16_layers), TITLE, "first and last layers in bf16", job.bf16_layers)
    require(config.recompute != Recompute.SELECTIVE, TITLE, "selective recomputation", "recompute=selective")
    require(job.optimizer is Optimizer.ADAMW, TITLE, "this optimizer in train.py", job.optimizer)
    require(job.precision in PRECISIONS, TITLE, "this precision", job.precision)


def render(launch: Launch, version: str) -> Files:
    """accelerate.yaml, train.py, launch.sh, what starts it, and a README."""
    settings = settings_of(launch)
    check_options("accelerate", version, option_words(settings))
    check_program(launch.model)
    extra = {CONFIG: dump_yaml(settings), PROGRAM: program_text("accelerate")}
    missing = ["data: train.py makes tokens up; replace it by your program", *left_out(launch.model)]
    missing += [*release_notes(launch.model), *uncaptured(launch, TITLE)]
    if launch.config.zero == 2:
        missing.append("ZeRO 2 is FSDP2 that keeps gathered weights between forward and backward")
    if launch.details.raw is not None:
        extra[MODEL_CONFIG] = dump_json(launch.details.raw)
    else:
        missing.append(f"the model: put its {MODEL_CONFIG} beside {PROGRAM}")
    missing.append("the hosts' memory: every process builds the whole model there first, 4 bytes a parameter")
    # FSDP2 recomputes through its own setting
    recompute = launch.config.recompute == Recompute.FULL and launch.config.zero < 2
    words = (
        f"--seq-len {launch.job.seq_len} --micro-batch {launch.config.micro_batch} "
        f"--accumulate {launch.config.num_microbatches} --steps {launch.steps}" + " --recompute" * recompute
    )
    stack = launch.stack_of("fsdp")
    waits = stack is not None and stack.engine.reduces_once
    words += " --sync-each-batch" * (_kind(launch) == "FSDP" and not waits)
    kernels = kernel_words(stack, launch.accelerator)
    said = kernel_notes(stack, launch.model, launch.accelerator)
    if launch.config.cp > 1:  # which torch's context_parallel hands to SDPA alone
        kernels = [("--attention", "sdpa"), *(option for option in kernels if option[0] != "--attention")]
        said = ["the attention kernel of the plan's stack: with cp it is torch's own (sdpa)"]
    words += "".join(" " + " ".join(option) for option in kernels)
    missing += said
    script = "\n".join(
        [
            "#!/usr/bin/env bash",
            "# Starts this node's processes. Set NODE_RANK (0 .. nodes-1) and MASTER_ADDR on every node.",
            "set -euo pipefail",
            "NODE_RANK=${NODE_RANK:-0}",
            "MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}",
            "MASTER_PORT=${MASTER_PORT:-29500}",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            HERE,
            f'exec accelerate launch --config_file "$HERE/{CONFIG}" --machine_rank "$NODE_RANK" \\',
            '  --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \\',
            f'  "$HERE/{PROGRAM}" {words} "$@"',
            "",
        ]
    )
    files = {LAUNCH: script, **extra}
    run = [f"{started_on_nodes(launch)}."]
    return {
        **files,
        SBATCH: sbatch_script(launch),
        MANIFEST: kubernetes_manifest(launch, files, IMAGE),
        README: readme(launch, TITLE, version, table_source("accelerate", version), run, missing),
    }


ACCELERATE: Final = Framework(
    name="accelerate",
    title=TITLE,
    versions=(VERSION,),
    default_version=VERSION,
    rules=RULES,
    schedules=(),
    zero_stages=(0, 1, 2, 3),
    splits="",
    dense_order=("tp", "cp", "dp"),
    expert_order=(),
    render=render,
    parse=parse,
    recognizes=recognizes,
    restated=restated,
)
