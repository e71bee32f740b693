"""torchtitan: 0.2.2 with a TOML file, 0.3.0 with command-line options.

Source: torchtitan 0.2.2 and 0.3.0 from PyPI (config, distributed/pipeline_parallel.py, distributed/parallel_dims.py).
Models are those torchtitan ships. Left out: main after 0.3.0, which renamed the batch options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.frameworks.fields import option_words
from planner.frameworks.framework import Files, Framework, Launch, ParsedConfig
from planner.frameworks.known import known_as
from planner.frameworks.options import check_options, table_source
from planner.frameworks.refuse import require
from planner.frameworks.scripts import HERE, IMAGE, README, launch_files, readme, started_on_nodes
from planner.frameworks.torchtitan.names import (
    CLI,
    FLOAT8,
    MODELS,
    SCHEDULES,
    TITLE,
    TOML,
    Shipped,
    asks_for_flex,
    chunks_loss,
    require_recipe,
    scales_rows,
)
from planner.frameworks.torchtitan.options import cli_options, dump_toml, toml_sections
from planner.frameworks.torchtitan.planned import PLANNED, needs_planned, write_planned
from planner.frameworks.torchtitan.rules import RULES
from planner.frameworks.torchtitan.settings import settings_of
from planner.spec.config import CudaGraphs
from planner.spec.stack.kinds import AttentionKernel

CONFIG: Final = "config.toml"
_LONGER: Final = "sequences longer than its RoPE table of the model"


def render(launch: Launch, version: str) -> Files:
    """launch.sh with options (0.3.0) or a TOML file (0.2.2), what starts it, and a README."""
    known = [name for name, shipped in MODELS.items() if version == CLI or shipped.toml_flavor]
    name = known_as(launch.model, known, TITLE)
    shipped, sections = MODELS[name], settings_of(launch, version)
    if version == CLI:
        require(launch.job.seq_len <= shipped.longest, f"{TITLE} {CLI}", _LONGER, launch.job.seq_len)
    assets = "".join(letter for letter in name if letter.isalnum() or letter in ".-")
    prelude = ["# the tokenizer's folder", f"HF_ASSETS_PATH=${{HF_ASSETS_PATH:-./assets/hf/{assets}}}"]
    environment = {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
    }
    run = [f"{started_on_nodes(launch)}."]
    end = readme(
        launch, TITLE, version, table_source("torchtitan", version), run, _missing(launch, version, shipped)
    )
    if version == TOML:
        toml = toml_sections(launch, shipped, sections)
        check_options("torchtitan", version, option_words(toml))
        program = (
            f'-m torchtitan.train --job.config_file "$HERE/{CONFIG}" --model.hf_assets_path "$HF_ASSETS_PATH"'
        )
        text = "\n".join([*prelude, HERE])
        files = launch_files(launch, environment, {}, program, IMAGE, {CONFIG: dump_toml(toml)}, text)
        return {**files, README: end}
    extra: dict[str, str] = {}
    module, function = shipped.family, shipped.base
    modules = sections["parallelism"].pop("module_fqns_per_model_part", None)
    if needs_planned(launch, shipped, modules):
        extra[PLANNED] = write_planned(launch, shipped, modules)
        module, function = PLANNED.removesuffix(".py"), "planned"
        prelude += [HERE, 'export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"']
    options = cli_options(launch, module, function, sections)
    check_options("torchtitan", version, [o for o in options if o[0].startswith("--")])
    program = '-m torchtitan.train --hf_assets_path "$HF_ASSETS_PATH"'
    text = "\n".join(prelude)
    files = launch_files(launch, environment, {"TITAN": options}, program, IMAGE, extra, text)
    return {**files, README: end}


def _missing(launch: Launch, version: str, shipped: Shipped) -> list[str]:
    """What the files do not say, and what the plan's stack counts on that they do not bring."""
    said = [
        "data: the dataset is c4_test, which lies in a checkout of torchtitan (tests/assets), not in its wheel: start "
        "in the checkout, or name your own",
        "the tokenizer: set HF_ASSETS_PATH",
    ]
    if launch.config.zero == 2:
        said.append("ZeRO 2 is written as FSDP2 that keeps the gathered weights until the backward pass")
    if version == CLI:  # .github/workflows/validate_rc.yaml; the types are those of parallelism.spmd_backend
        said.append(
            "PyTorch: 0.3.0 is released for 2.14; fully_shard of 2.13 refuses how it types parameters"
        )
    if asks_for_flex(launch, shipped):
        said.append(
            "gpt-oss's own variable-length attention, which 0.3.0 refuses with cp: FlexAttention is asked for"
        )
    graphs = CudaGraphs(launch.config.cuda_graph_impl)
    if graphs and (version == TOML or graphs is not CudaGraphs.FULL_ITERATION):
        said.append(
            f"CUDA graphs that the plan counts on ({graphs.label}): {version} does not capture them so"
        )
    stack = launch.stack_of("torchtitan")
    if stack is None:
        said.append("kernels of the plan's stack, which is none of torchtitan's: defaults are used")
        return said
    if version == TOML and chunks_loss(launch):
        said.append("0.2.2 takes the loss in one piece: more memory at the loss than predicted")
    if version == CLI and stack.kernels.attention is not AttentionKernel.FLASH:
        said.append("the attention kernel: 0.3.0 takes FlexAttention, variable-length attention for gpt-oss")
    if version == CLI and launch.job.precision is FLOAT8 and not scales_rows(launch):
        said.append("one float8 scale a tensor: 0.3.0 scales by rows, which multiplies more slowly")
    return said


def _parse(files: Mapping[str, str]) -> ParsedConfig:
    from planner.frameworks.torchtitan.parse import parse  # plans read no files

    return parse(files)


def recognizes(name: str, text: str) -> bool:
    """A torchtitan TOML file, or a script with its options."""
    if name.endswith(".toml"):  # not a Python project's
        return not name.endswith("pyproject.toml")
    if any(word in text for word in ("--parallelism.", "--job.config_file", "flame.train")):
        return True
    return "torchtitan" in text and not name.endswith((".yaml", ".yml"))  # where others speak of it


TORCHTITAN: Final = Framework(
    name="torchtitan",
    title=TITLE,
    versions=(TOML, CLI),
    default_version=CLI,
    rules=RULES,
    schedules=tuple(dict.fromkeys(kind for kind, _ in SCHEDULES.values())),
    zero_stages=(0, 2, 3),
    splits="fewer layers in the first and last stage, or a list of modules",
    dense_order=("tp", "cp", "dp", "pp"),
    expert_order=("ep", "edp", "pp"),
    render=render,
    parse=_parse,
    recognizes=recognizes,
    require_recipe=require_recipe,
    balances=True,  # models/common/moe.py, load_balance_coeff 1e-3
)
