"""Megatron-LM: pretrain_gpt.py, or pretrain_hybrid.py, with arguments, from release 0.16 to main of 2026-08.

Uneven splits: first and last counts where that says it, else --pipeline-model-parallel-layout. ZeRO 1 is the
distributed optimizer, 2 and 3 are Megatron-FSDP. Left out: encoders and other pretraining programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.frameworks.details import left_out, unwritten_rotation
from planner.frameworks.framework import TRIAL_STEPS, Files, Framework, Launch, ParsedConfig
from planner.frameworks.megatron import delta, heterogeneous, sparse
from planner.frameworks.megatron.architecture import states_yarn, written_rotations
from planner.frameworks.megatron.arguments import (
    SCHEDULES,
    environment,
    option_groups,
    sparse_kernel,
    unlike_stack,
)
from planner.frameworks.megatron.connections import asserted
from planner.frameworks.megatron.hybrid import PATTERNS, PROGRAM, notes
from planner.frameworks.megatron.rules import RULES
from planner.frameworks.options import check_options, table_source
from planner.frameworks.refuse import require_masters
from planner.frameworks.scripts import HERE, IMAGE, README, launch_files, readme, started_on_nodes
from planner.spec.stack.engines import EngineKind

TITLE: Final = "Megatron-LM"


def render(launch: Launch, version: str) -> Files:
    """launch.sh with all arguments, what starts it, and a README."""
    require_masters(launch, TITLE)
    groups = option_groups(launch, version)
    check_options("megatron", version, (option for group in groups.values() for option in group))
    prelude = "\n".join(
        [
            "# A checkout of Megatron-LM; in its container it is where you put it.",
            "MEGATRON_PATH=${MEGATRON_PATH:-/opt/megatron-lm}",
            'export PYTHONPATH="$MEGATRON_PATH${PYTHONPATH:+:$PYTHONPATH}"',
        ]
    )
    program = f'"$MEGATRON_PATH/{PROGRAM if launch.model.mambas else "pretrain_gpt.py"}"'
    extra: Files = {}
    if heterogeneous.is_heterogeneous(launch.model):
        extra = {heterogeneous.FILE: heterogeneous.layers_file(launch.model, launch.details)}
        prelude += f"\n{HERE}"
        program += f' {heterogeneous.OPTION} "$HERE/{heterogeneous.FILE}"'
    files = launch_files(launch, environment(launch), groups, program, IMAGE, extra, prelude)
    run = [f"{started_on_nodes(launch, 'MEGATRON_PATH')}."]
    source = table_source("megatron", version)
    return {**files, README: readme(launch, TITLE, version, source, run, _unexpressed(launch, version))}


def _unexpressed(launch: Launch, version: str) -> list[str]:
    said = [
        "data: DATA_ARGS passes made-up tokens (--mock-data) and a null tokenizer; replace it by your data",
        "learning rate, warm-up, initialisation and checkpoints are placeholders or absent; they don't change a step",
        *left_out(launch.model),
        *unwritten_rotation(launch.details, written_rotations(launch.model, launch.details, version)),
        *unlike_stack(launch),
        *notes(launch.model),
        *delta.notes(launch.model),
        *heterogeneous.notes(launch.model),
        *sparse.notes(launch.model, sparse_kernel(launch)),
    ]
    if states_yarn(launch.model, launch.details, version):
        said.append(
            "fused rotary embedding: Megatron-LM switches it off with YaRN, which the prediction does not count"
        )
    if launch.job.tokens is None:
        said.append(f"the run ends after {TRIAL_STEPS} steps, since the plan names no number of tokens")
    if not launch.details.stated:
        said.append(
            "rotary base, norm epsilon and router conventions: no config.json was found, defaults are used"
        )
    return said


def _parse(files: Mapping[str, str]) -> ParsedConfig:
    from planner.frameworks.megatron.parse import parse  # plans read no files

    return parse(files)


def recognizes(name: str, text: str) -> bool:
    """A script or list of arguments of pretrain_gpt.py or pretrain_hybrid.py, or a YAML of them, Primus's too."""
    from planner.frameworks.megatron.model_args import is_model_args
    from planner.frameworks.megatron.primus import is_primus

    if is_model_args(name, text) or is_primus(name, text):
        return True
    telling = ("--tensor-model-parallel-size", "pretrain_gpt.py", "--num-layers", PATTERNS[0])
    return any(words in text for words in telling)


MEGATRON: Final = Framework(
    name="megatron",
    title=TITLE,
    versions=("0.16.1", "0.18.2", "main-2026-08"),
    default_version="0.18.2",
    rules=RULES,
    schedules=SCHEDULES,
    zero_stages=(0, 1, 2, 3),
    splits="first and last counts, or --pipeline-model-parallel-layout",
    dense_order=("tp", "cp", "dp", "pp"),
    expert_order=("etp", "ep", "edp", "pp"),
    render=render,
    parse=_parse,
    recognizes=recognizes,
    shards_all_by=EngineKind.MEGATRON_FSDP,
    starts_on=asserted,
    split_options=(
        "--num-virtual-stages-per-pipeline-rank",
        "--num-layers-per-virtual-pipeline-stage",
        "--pipeline-model-parallel-layout",
        *(f"--decoder-{end}-pipeline-num-layers" for end in ("first", "last")),
        *(f"--account-for-{what}-in-pipeline-split" for what in ("embedding", "loss")),
    ),
)
