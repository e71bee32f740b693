"""How does each release take the model and its kernels: sections of a TOML file (0.2.2), or options (0.3.0)?

A shipped configuration brings defaults of its own (compilation, asynchronous tensor parallelism, a profiler), so that
everything a plan relies on is written, whether it is the default or not. Left out: `planned.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.frameworks.framework import Launch
from planner.frameworks.torchtitan.names import FLOAT8, Shipped, compiles, gathers_float8, scales_rows
from planner.spec.config import CudaGraphs, Recompute

Sections = Mapping[str, Mapping[str, Any]]


def recompute_mode(launch: Launch) -> str:
    """The name of the recomputation mode."""
    return Recompute(launch.config.recompute).name.lower()


def _recomputation(launch: Launch) -> dict[str, str]:
    """The same of 0.2.2, which calls one layer of so many selective, too."""
    config, most = launch.config, -(-launch.model.num_layers // launch.config.pp)
    if config.recompute == Recompute.SELECTIVE:
        return {"mode": "selective", "selective_ac_option": "op"}
    if config.recompute == Recompute.FULL and config.recompute_layers < most:
        return {"mode": "selective", "selective_ac_option": str(most // config.recompute_layers)}
    return {"mode": recompute_mode(launch)}


def toml_sections(launch: Launch, shipped: Shipped, sections: Sections) -> dict[str, dict[str, Any]]:
    """The TOML file of 0.2.2."""
    toml: dict[str, dict[str, Any]] = {
        "model": {"name": shipped.family, "flavor": shipped.toml_flavor},
        **{name: dict(section) for name, section in sections.items()},
        "activation_checkpoint": _recomputation(launch),
        "optimizer": {"name": "AdamW", "lr": 3e-4, "implementation": "fused"},
        "lr_scheduler": {"warmup_steps": min(2, sections["training"]["steps"])},
    }
    toml["training"]["dataset"] = "c4_test"
    toml["parallelism"]["enable_async_tensor_parallel"] = False
    toml["compile"] = {"enable": compiles(launch), "components": ["model", "loss"]}
    if launch.job.precision is FLOAT8:
        toml["model"]["converters"] = ["quantize.linear.float8"]
        # the head stays in bf16, as the cost model has it; a recipe's name excludes the float8 all-gather
        gathers = {"enable_fsdp_float8_all_gather": True, "precompute_float8_dynamic_scale_for_fsdp": True}
        named = {"recipe_name": "rowwise" if scales_rows(launch) else "tensorwise"}
        recipe = gathers if gathers_float8(launch) else named
        toml["quantize.linear.float8"] = {**recipe, "filter_fqns": ["output"]}
    return toml


def cli_options(launch: Launch, module: str, function: str, sections: Sections) -> list[tuple[str, ...]]:
    """The command line of 0.3.0; `module` and `function` name the configuration it starts from."""
    options: list[tuple[str, ...]] = [("--module", module), ("--config", function)]
    for section, values in sections.items():
        options += [
            (f"--{section}.{name}", *([] if value is True else [str(value)]))
            for name, value in values.items()
        ]
    if compiles(launch):
        options += [("--compile.enable",), ("--compile.components", "model,loss")]
    else:
        options.append(("--compile.no_enable",))
    options += [
        ("--compile.no_enable_async_tensor_parallel",),
        ("--optimizer.implementation", "fused"),
        ("--parallelism.enable_sequence_parallel",),
        ("--profiler.no_enable_profiling",),
        ("--dataloader.dataset", "c4_test"),
    ]
    captures = launch.config.cuda_graph_impl == CudaGraphs.FULL_ITERATION
    options.append((f"--training.{'no_' if captures else ''}disable_cuda_graphs",))
    return [*options, (f"activation-checkpoint:{recompute_mode(launch)}",)]


def dump_toml(sections: Sections) -> str:
    """Sections of plain values as a TOML document."""
    lines: list[str] = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {_toml_value(value)}" for name, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    text = str(value)
    assert all(c.isprintable() and c not in '"\\' for c in text), f"{text!r} needs no escapes"
    return f'"{text}"'
