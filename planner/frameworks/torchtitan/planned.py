"""What does a plan decide that torchtitan 0.3.0 takes from Python only? A configuration function of its own.

`planned_config.py` starts from a shipped configuration and sets the model's flavour, float8, the experts' dispatcher,
the attention kernel, the loss and the modules of every pipeline stage. Left out: what the command line says
(`options.py`).
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from planner.errors import FileInputError
from planner.frameworks.framework import Launch
from planner.frameworks.torchtitan.names import (
    FLOAT8,
    FUNCTIONS,
    MODELS,
    Shipped,
    asks_for_flex,
    chunks_loss,
    uses_deepep,
)
from planner.spec.precision import Precision

PLANNED: Final = "planned_config.py"
_QUANTIZATION: Final = "torchtitan.components.quantization"


def needs_planned(launch: Launch, shipped: Shipped, modules: list[list[str]] | None) -> bool:
    """Is there anything that the command line cannot say?"""
    plain = shipped.ready and launch.job.precision is not FLOAT8 and not uses_deepep(launch)
    return not plain or modules is not None or not chunks_loss(launch) or asks_for_flex(launch, shipped)


def write_planned(launch: Launch, shipped: Shipped, modules: list[list[str]] | None) -> str:
    """The text of planned_config.py, whose function is `planned`."""
    experts = launch.model.is_moe
    imports = ["torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss"]
    if not chunks_loss(launch):
        imports = ["torchtitan.components.loss import CrossEntropyLoss"]
    words = ["FLAVOR"]
    converters: list[str] = []
    if launch.job.precision is FLOAT8:
        names = ["Float8GroupedExpertsConverter"] * experts + ["Float8LinearConverter"]
        imports.append(f"{_QUANTIZATION} import {', '.join(names)}")
        skipped = '["lm_head", "router.gate"]' if experts else '["lm_head"]'
        compiled = "model_compile_enabled=True"
        converters.append(f"Float8LinearConverter.Config(filter_fqns={skipped}, {compiled})")
        converters += [f"Float8GroupedExpertsConverter.Config({compiled})"] * experts
        words.append("converters=CONVERTERS")
    if uses_deepep(launch):
        words.append('moe_comm_backend="deepep"')
    if asks_for_flex(launch, shipped):
        words.append('attn_backend="flex"')
    imports += [
        "torchtitan.models.common.config_utils import decoder_vocab_size",
        f"torchtitan.models.{shipped.family} import model_registry",
        f"torchtitan.models.{shipped.family}.config_registry import {shipped.base}",
    ]
    loss = "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(config.model_spec))"
    if chunks_loss(launch):
        loss = f"ChunkedLossWrapper.Config(loss_fn={loss})"
    return "\n".join(
        [
            '"""A shipped configuration with what the plan decides and the command line cannot say."""',
            "",
            *(f"from {line}" for line in imports),
            "",
            f'FLAVOR = "{shipped.flavor}"',
            *(["CONVERTERS = [", *(f"    {line}," for line in converters), "]"] if converters else []),
            *(["MODULES = [", *(f"    {part!r},".replace("'", '"') for part in modules), "]"] if modules else []),
            "",
            "",
            "def planned():",
            f"    config = {shipped.base}()",
            f"    config.model_spec = model_registry({', '.join(words)})",
            f"    config.loss = {loss}",
            *(["    config.parallelism.module_fqns_per_model_part = MODULES"] if modules else []),
            "    return config",
            "",
        ]
    )  # fmt: skip


def read_planned(text: str, name: str) -> dict[str, Any]:
    """What a planned configuration says, as settings. Raises `FileInputError`."""
    family = re.search(r"^from torchtitan\.models\.(\w+) import model_registry$", text, re.MULTILINE)
    flavor = re.search(r'^FLAVOR = "([\w.-]+)"$', text, re.MULTILINE)
    if family is None or flavor is None:
        raise FileInputError(name, "must be as the export writes it", "something else")
    said: dict[str, Any] = {"model.name": family[1], "model.flavor": flavor[1]}
    listed = re.search(r"^MODULES = (\[.*?^\])$", text, re.MULTILINE | re.DOTALL)
    if listed is not None:
        try:
            said["parallelism.module_fqns_per_model_part"] = ast.literal_eval(listed[1])
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise FileInputError(name, "MODULES must be a list of lists", str(error)) from None
    if "Float8LinearConverter.Config" in text:
        said["model.converters"] = "float8"
    if 'moe_comm_backend="deepep"' in text:
        said["parallelism.expert_parallel_comm_backend"] = "deepep"
    said["loss"] = "chunked" if "ChunkedLossWrapper.Config" in text else "whole"
    return said


def shipped_model(said: dict[str, Any]) -> tuple[str, Precision | None]:
    """The catalog's name of the model that settings of 0.3.0 name, "" for none; its configuration's precision."""
    function = str(said.get("config", ""))
    if function in FUNCTIONS:
        return FUNCTIONS[function]
    for name, shipped in MODELS.items():
        if (said.get("model.name"), said.get("model.flavor")) == (shipped.family, shipped.flavor):
            return name, None
        if shipped.ready and function == shipped.base:
            return name, None
    return "", None
