"""DeepSpeed 0.19.8: ds_config.json, a hostfile, and settings of PipelineModule.

Source: deepspeed 0.19.8 (runtime/config.py, runtime/zero/config.py, runtime/pipe/module.py, runtime/engine.py).
Pipeline stages are not part of the JSON file: pipeline.json holds the arguments of PipelineModule. Left out:
offload to NVMe and of a pipeline's states, AutoEP, quantised communication.
"""

from __future__ import annotations

from typing import Final

from planner.frameworks.deepspeed.names import CONFIG, HOSTFILE, PIPELINE, TITLE, VERSION
from planner.frameworks.deepspeed.parse import parse, recognizes
from planner.frameworks.deepspeed.rules import RULES
from planner.frameworks.deepspeed.settings import pipeline_settings, settings_of
from planner.frameworks.details import left_out
from planner.frameworks.fields import dump_json, option_words
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
from planner.frameworks.refuse import uncaptured
from planner.frameworks.scripts import HERE, IMAGE, README, launch_files, readme, started_on_nodes
from planner.spec.config import Recompute, Schedule


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
        *left_out(launch.model),
        *uncaptured(launch, TITLE),
    ]
    if launch.config.pp > 1:
        extra[PIPELINE] = dump_json(pipeline_settings(launch))
        missing += [
            f"the program: put your own {PROGRAM} beside these files. It passes {PIPELINE} to "
            "PipelineModule(layers, **settings); DeepSpeed has no setting for it, and no model of transformers is one",
            "how layers are assigned to pipeline ranks: DeepSpeed balances parameters where they don't divide evenly",
        ]
    else:
        check_program(launch.model)
        extra |= {PROGRAM: program_text("deepspeed")}
        missing += release_notes(launch.model)
        missing.append(f"data: {PROGRAM} makes tokens up; replace it by your program")
    if launch.details.raw is not None:
        extra[MODEL_CONFIG] = dump_json(launch.details.raw)
    else:
        missing.append(f"the model: put its {MODEL_CONFIG} beside {PROGRAM}")
    words: list[tuple[str, ...]] = [
        ("--seq-len", str(launch.job.seq_len)),
        ("--micro-batch", str(launch.config.micro_batch)),
        ("--accumulate", str(launch.config.num_microbatches)),
        ("--steps", str(launch.steps)),
    ]
    if launch.config.recompute == Recompute.FULL:
        words.append(("--recompute",))
    if launch.config.pp == 1:
        stack = launch.stack_of("deepspeed")
        words += kernel_words(stack, launch.accelerator)
        missing += kernel_notes(stack, launch.model, launch.accelerator)
    prelude = HERE
    if launch.config.pp > 1:
        lacks = f"{PROGRAM} is missing: your own program of a PipelineModule, see README.md"
        prelude += f'\n[[ -f "$HERE/{PROGRAM}" ]] || {{ echo "{lacks}" >&2; exit 1; }}'
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    files = launch_files(launch, environment, {"PROGRAM": words}, f'"$HERE/{PROGRAM}"', IMAGE, extra, prelude)
    run = [
        f"{started_on_nodes(launch)}, or",
        f"`deepspeed --hostfile {HOSTFILE} {PROGRAM} ...` with the names of your nodes.",
    ]
    return {**files, README: readme(launch, TITLE, version, table_source("deepspeed", version), run, missing)}


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
)
