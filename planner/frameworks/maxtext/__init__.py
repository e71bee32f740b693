"""MaxText: python3 -m maxtext.trainers.pre_train.train with one YAML file over configs/base.yml, on TPUs and GPUs.

Source: AI-Hypercomputer/maxtext at e591f30 (2026-08; 0.2.4), src/maxtext/configs, layers, utils. Settings are its own
(`option_table`); a release ignores none: what it does not know it refuses. Left out: data other than made-up tokens,
checkpoints, and post-training.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from planner.frameworks.details import left_out
from planner.frameworks.fields import dump_yaml, option_words
from planner.frameworks.framework import Files, Framework, Launch, ParsedConfig
from planner.frameworks.maxtext.model import unwritten
from planner.frameworks.maxtext.names import CONFIG, SLICES, TITLE, VERSION, Hardware
from planner.frameworks.maxtext.rules import RULES
from planner.frameworks.maxtext.script import IMAGE, how_to_run, launch_script
from planner.frameworks.maxtext.settings import hardware_of, settings_of
from planner.frameworks.options import check_options, table_source
from planner.frameworks.refuse import uncaptured
from planner.frameworks.scripts import (
    LAUNCH,
    MANIFEST,
    README,
    SBATCH,
    kubernetes_manifest,
    readme,
    sbatch_script,
)
from planner.spec.config import Recompute, Schedule

_AXES: Final = re.compile(r"^\s*(ici|dcn)_\w+_parallelism\s*:", re.MULTILINE)
_BASE: Final = re.compile(r"^base_config\s*:", re.MULTILINE)
_OWN: Final = re.compile(
    r"^(per_device_batch_size|max_target_length|remat_policy|decoder_block)\s*:", re.MULTILINE
)
_PROGRAM: Final = re.compile(r"\bmax[tT]ext[./]|\bMaxText[./]|\b(?:ici|dcn)_\w+_parallelism=")


def render(launch: Launch, version: str) -> Files:
    """config.yml, launch.sh, what starts it on GPUs, and a README."""
    hardware, settings = hardware_of(launch), settings_of(launch)
    check_options("maxtext", version, option_words(settings))
    files = {LAUNCH: launch_script(launch, hardware), CONFIG: dump_yaml(settings)}
    queued = hardware is Hardware.GPU
    end = readme(
        launch, TITLE, version, table_source("maxtext", version), how_to_run(launch, hardware),
        _missing(launch, str(settings["model_name"])), queued,
    )  # fmt: skip
    if not queued:
        return {**files, README: end}
    manifest = kubernetes_manifest(launch, files, IMAGE)
    return {**files, SBATCH: sbatch_script(launch), MANIFEST: manifest, README: end}


def _missing(launch: Launch, name: str) -> list[str]:
    """What the files do not say, or what the program does otherwise than the plan counts."""
    config = launch.config
    said = ["data: made-up tokens; set dataset_type and packing for your own, and checkpoints"]
    kept = launch.stack is None or not launch.stack.kernels.code.keeps_by_name
    if kept and config.recompute == Recompute.SELECTIVE and any(layer.mlp for layer in launch.model.blocks):
        said.append(
            "what a dense MLP's activation gives, which every remat_policy computes again: less memory than planned"
        )
    if config.pp > 1:
        said.append(
            "embedding and head on the first and the last stage: it computes them on all stages, each for a part of "
            "the batch"
        )
    if launch.accelerator in SLICES:
        said.append("libtpu's flags (LIBTPU_INIT_ARGS): MaxText's recipes for TPUs set some of overlap")
    if launch.stack_of("maxtext") is None:
        said.append("kernels of the plan's stack, which is none of MaxText's: defaults are used")
    return [*said, *left_out(launch.model), *unwritten(launch, name), *uncaptured(launch, TITLE)]


def _parse(files: Mapping[str, str]) -> ParsedConfig:
    from planner.frameworks.maxtext.parse import parse  # plans read no files

    return parse(files)


def recognizes(name: str, text: str) -> bool:
    """A YAML file with axes of its mesh, or that starts from another; a script that runs it or sets such axes."""
    if name.endswith((".yml", ".yaml")):
        return bool(_AXES.search(text) or (_BASE.search(text) and _OWN.search(text)))
    return not name.endswith((".json", ".toml", ".py")) and bool(_PROGRAM.search(text))


MAXTEXT: Final = Framework(
    name="maxtext",
    title=TITLE,
    versions=(VERSION,),
    default_version=VERSION,
    rules=RULES,
    schedules=(Schedule.ONE_F_ONE_B, Schedule.GPIPE),
    zero_stages=(0, 1, 3),
    splits="",
    dense_order=("tp", "cp", "dp", "pp"),
    expert_order=("etp", "ep", "edp", "pp"),
    render=render,
    parse=_parse,
    recognizes=recognizes,
    usual_zero=3,  # ici_fsdp_parallelism is -1 in configs/base.yml
)
