"""Hydra takes the overrides that planner writes for Megatron-Bridge, over recipes as they are.

Source: NVIDIA-NeMo/Megatron-Bridge v0.6.0 and 067f987, training/utils/omegaconf_utils.py parse_hydra_overrides: no key
is new, a section that is a name or nothing has no fields, and those of a model are its class's.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from planner.frameworks import framework
from planner.frameworks.framework import Launch
from planner.frameworks.megatron_bridge.names import read_as
from planner.frameworks.megatron_bridge.recipes import RELEASES, recipe_of
from planner.frameworks.options import option_table, table_classes
from planner.spec.config import ParallelConfig, Schedule
from planner.spec.load_model import load_model
from tests.frameworks.launches import CONFIGS, launch, problem
from tests.frameworks.test_own_parsers import needs, run

STACKS = ("megatron-2026", "megatron-2026+grad-reduce-in-bf16+no-overlap-param-gather")
TALL = ParallelConfig(tp=4, pp=16, dp=2, micro_batch=1, num_microbatches=128, sp=1, zero=1)
HYBRID = replace(CONFIGS["megatron"], vpp=1, ep=8, schedule=Schedule.ONE_F_ONE_B)


def launches() -> list[Launch]:
    found = []
    for stack in STACKS:
        for precision in ("bf16", "fp8_cs", "fp8_mx"):
            for model in ("llama-3-8b", "llama-3.1-70b"):
                found.append(launch(model, CONFIGS["megatron"], problem(model, stack, precision=precision)))
        uneven = (4, *[5] * 14, 6)
        found.append(launch("llama-3.1-70b", TALL, problem("llama-3.1-70b", stack), uneven))
        name = "nemotron-3-super-120b-a12b"
        predicting = replace(load_model(name, with_mtp=True), mtp_layers=2)
        found.append(launch(name, HYBRID, replace(problem(name, stack), model=predicting)))
        found.append(
            launch("glm-4.5-air", replace(TALL, tp=1, sp=0, pp=2, ep=8, dp=64), problem("glm-4.5-air", stack))
        )
    return found


SCRIPT = """
import json, sys
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
tables, cases = json.load(open(sys.argv[1]))
def empty(names):
    base = {}
    for *sections, field in (name.split(".") for name in names):
        inner = base
        for section in sections:
            inner = inner.setdefault(section, {})
        if sections:
            inner[field] = None
    return base
refused = []
for table, sections, spelled, words, pattern, layout in cases:
    base = empty(tables[table])
    base["mixed_precision"] = {"bf16": True, "grad_reduce_in_fp32": True} if spelled else "bf16_mixed"
    if not sections:
        base["comm_overlap"] = None
    made = OmegaConf.create(base)
    OmegaConf.set_struct(made, True)
    parsed = OverridesParser.create().parse_overrides(words)
    try:
        ConfigLoaderImpl._apply_overrides_to_config(overrides=parsed, cfg=made)
    except Exception as error:
        refused.append(str(error).split("'")[1])
        continue
    assert made.model.get("hybrid_layer_pattern") == pattern
    assert made.model.get("transformer", made.model).pipeline_model_parallel_layout == layout
print("taken", len(cases) - len(refused), "refused", len(refused), *set(refused))
"""


def case_of(told: Launch, version: str, by: str) -> tuple[str, list[object]]:
    """The table that decides in release `by`, and what it decides on: what is written for `version`."""
    script = framework("megatron-bridge").render(told, version)["launch.sh"]
    array = script[script.index("OVERRIDE_ARGS=(") :].split("\n)")[0] + "\n)"
    shown = subprocess.run(
        ["bash", "-c", array + '\nprintf "%s\\n" "${OVERRIDE_ARGS[@]}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    words = shown.stdout.splitlines()
    said = {read_as(name): value.strip("'") for name, _, value in (word.partition("=") for word in words)}
    recipe = recipe_of(re.findall(r"--recipe (\S+)", script)[0], by)
    layout, pattern = said["model.pipeline_model_parallel_layout"], said.get("model.hybrid_layer_pattern")
    written = None if layout == "null" else layout
    return f"{by} {recipe.kind}", [recipe.overlaps, recipe.spells_precision, words, pattern, written]


@needs("hydra")
@pytest.mark.slow
def test_hydra_takes_what_is_written(tmp_path: Path) -> None:
    """For the release that it is written for; what is written of a Llama for the other it refuses."""
    tables = {
        f"{version} {kind}": [*option_table("megatron-bridge", version, kind)]
        for version in RELEASES
        for kind in ("", *table_classes("megatron-bridge", version))
    }
    told, (older, newer) = launches(), RELEASES
    llamas = [one for one in told if one.model.name.startswith("llama")]
    for expected, pairs in (
        (["taken", str(2 * len(told)), "refused", "0"], [(one, v, v) for one in told for v in RELEASES]),
        (["taken", "0", "refused", str(len(llamas)), "model.tensor_model_parallel_size"],
         [(one, older, newer) for one in llamas]),
        (["taken", "0", "refused", str(len(llamas)), "model.transformer.tensor_model_parallel_size"],
         [(one, newer, older) for one in llamas]),
    ):  # fmt: skip
        cases = [[table, *case] for table, case in (case_of(*pair) for pair in pairs)]
        (tmp_path / "cases.json").write_text(json.dumps([tables, cases]))
        assert run(SCRIPT, str(tmp_path / "cases.json")).split() == expected
