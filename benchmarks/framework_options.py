"""Which options does each release of a framework have? Writes `planner/frameworks/options/*.json`.

    python -m benchmarks.framework_options megatron 0.16.1=CHECKOUT main-2026-08=CHECKOUT
    python -m benchmarks.framework_options megatron-bridge 0.7.0=BRIDGE:MEGATRON
    python -m benchmarks.framework_options torchtitan 0.3.0=INTERPRETER
    python -m benchmarks.framework_options deepspeed 0.19.8=INTERPRETER
    python -m benchmarks.framework_options accelerate 1.15.0=INTERPRETER
    python -m benchmarks.framework_options nanotron 0.4-2411b022=CHECKOUT
    python -m benchmarks.framework_options maxtext 0.2.4-e591f30=CHECKOUT

A release is transcribed from its own code and added to the table, or replaced there; the others stay. Of Megatron-LM
its parser is built and asked, from a checkout with torch, triton, six and einops importable. Of torchtitan PATH is a
Python interpreter that has the release: tyro's parser is asked, before 0.3 its JobConfig. Of Megatron-Bridge PATH is
BRIDGE:MEGATRON, checkouts whose dataclasses are read from the source, which of the model depend on the class that a
recipe builds it by; a type that the table states more closely than the source does is kept. Of DeepSpeed its sections'
models are asked, and the names and defaults of its constants where it reads plain dictionaries; of Accelerate its
dataclass and the parser of `accelerate launch`; of nanotron the dataclasses below its Config, of MaxText the classes of
its MaxTextConfig, from the source. Left out: help texts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.source_fields import bridge_classes, bridge_options, maxtext_options, nanotron_options
from planner.frameworks.options import OPTIONS_FOLDER

Table = dict[str, str]
_TYPES: Final = """
import json, typing
def text(annotation):
    names = str(getattr(annotation, "__name__", annotation))
    parts = [a for a in typing.get_args(annotation) if a is not type(None)]
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return "str " + "|".join(str(a) for a in parts)
    if origin in (list, tuple, set):
        inner = text(parts[0]) if parts else "str"
        return (inner if inner in ("int", "float") else "str") + "*"
    if hasattr(annotation, "__members__"):
        return "str " + "|".join(str(getattr(m, "value", m)) for m in annotation)
    if parts and origin is not dict:
        kinds = [text(part) for part in parts]
        return next((k for k in ("bool", "int", "float") if k in kinds and "str" not in kinds), kinds[0])
    return names if names in ("int", "float", "bool") else "str"
"""
_MEGATRON: Final = """
import argparse, json, sys, typing
import typing_extensions
typing.override = typing_extensions.override
sys.path.insert(0, sys.argv[1])
from megatron.training.arguments import add_megatron_arguments
from megatron.post_training.arguments import add_modelopt_args  # which pretrain_gpt.py takes beside nvidia-modelopt
parser = add_modelopt_args(add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False)))
found = {}
for action in parser._actions:
    kind = getattr(action.type, "__name__", "str") if action.type else "str"
    kind = kind if kind in ("int", "float") else "str"
    kind = "flag" if action.nargs == 0 else kind + ("*" if action.nargs else "")
    choices = "|".join(str(getattr(c, "name", c)) for c in action.choices) if action.choices else ""
    for name in action.option_strings:
        if name.startswith("--") and name != "--help":
            found[name] = (kind + " " + choices).strip()
print("OPTIONS" + json.dumps(found))
"""
_TORCHTITAN: Final = (
    _TYPES
    + """
found = {}
try:
    from torchtitan.config import JobConfig
except ImportError:
    import tyro
    from torchtitan.config import ConfigManager
    from torchtitan.config.manager import custom_registry
    default, _ = ConfigManager()._load_config(["--module", "llama3", "--config", "llama3_8b"])
    parser = tyro.extras.get_parser(type(default), default=default, registry=custom_registry)
    found = {"--module": "str", "--config": "str"}
    for action in parser._actions:
        kind = "float" if "FLOAT" in str(action.metavar) else "int" if "INT" in str(action.metavar) else "str"
        kind = "flag" if action.nargs == 0 else kind
        if action.nargs not in (0, 1, None):
            kind += "*"
        choices = "|".join(map(str, action.choices)) if action.choices else ""
        if not action.option_strings and action.choices:
            kinds = [c for c in action.choices if str(c).startswith("activation-checkpoint:")]
            found["activation-checkpoint"] = "str " + "|".join(c.partition(":")[2] for c in kinds)
        for name in action.option_strings:
            if name.startswith("--") and name != "--help":
                found["--" + name[2:].replace("-", "_")] = (kind + " " + choices).strip()
else:
    import dataclasses
    def walk(kind, prefix):
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            inner = hints[field.name]
            if dataclasses.is_dataclass(inner):
                walk(inner, prefix + field.name + ".")
            else:
                found[prefix + field.name] = text(inner)
    walk(JobConfig, "")
print("OPTIONS" + json.dumps(found))
"""
)
# Sections that DeepSpeed reads as plain dictionaries have their names and defaults as constants.
_DEEPSPEED: Final = (
    _TYPES
    + """
import importlib, typing
import pydantic
found = {}
def walk(kind, prefix):
    for name, field in kind.model_fields.items():
        parts = [field.annotation, *typing.get_args(field.annotation)]
        inner = next((p for p in parts if isinstance(p, type) and issubclass(p, pydantic.BaseModel)), None)
        name = field.alias or name
        if inner is not None:
            walk(inner, prefix + name + ".")
        else:
            found[prefix + name] = text(field.annotation)
MODELS = {
    "zero_optimization": "runtime.zero.config.DeepSpeedZeroConfig",
    "bf16": "runtime.precision_config.DeepSpeedBF16Config", "fp16": "runtime.precision_config.DeepSpeedFP16Config",
    "compile": "compile.config.CompileConfig", "tensor_parallel": "runtime.tensor_parallel.config.TPTrainingConfig",
    "hybrid_engine": "runtime.config.HybridEngineConfig", "tensorboard": "monitor.config.TensorBoardConfig",
    "wandb": "monitor.config.WandbConfig", "csv_monitor": "monitor.config.CSVConfig",
    "comet": "monitor.config.CometConfig", "comms_logger": "comm.config.CommsLoggerConfig",
}
for section, path in MODELS.items():
    module, _, name = path.rpartition(".")
    walk(getattr(importlib.import_module("deepspeed." + module), name), section + ".")
def constants(module, prefix, section):
    known = vars(importlib.import_module("deepspeed." + module))
    for name, value in known.items():
        if name.startswith(prefix) and isinstance(value, str) and name + "_DEFAULT" in known and value.isidentifier():
            default = known[name + "_DEFAULT"]
            kind = type(default).__name__
            found[section + value] = kind if kind in ("bool", "int", "float") else "str"
import inspect, re
import deepspeed.runtime.config as runtime
source, named = inspect.getsource(runtime), vars(importlib.import_module("deepspeed.runtime.constants"))
def read(pattern, section):
    for name in re.findall(pattern, source):
        value = named.get(name) or vars(runtime).get(name)
        kind = type(named.get(name + "_DEFAULT")).__name__
        if isinstance(value, str):
            found[section + value] = kind if kind in ("bool", "int", "float") else "str"
read(r"get_scalar_param\\(\\s*param_dict,\\s*([A-Z_]+)", "")
read(r"param_dict\\.get\\(([A-Z_]+_SIZE),", "")
read(r"comm_type\\s*=\\s*([A-Z_]+)", "")
read(r"get_communication_data_type\\(\\s*param_dict,\\s*([A-Z_]+)", "")
read(r"data_types_params\\.get\\(([A-Z0-9_]+)", "data_types.")
read(r"checkpoint_params\\.get\\(([A-Z_]+)", "checkpoint.")
constants("runtime.constants", "TORCH_AUTOCAST_", "torch_autocast.")
for name in re.findall(r'"([a-z_]+)" in config:', source):
    found[name] = "int"
# what the optimizer's and the scheduler's classes take is theirs; those of Adam and SGD
found |= {"optimizer.type": "str", "scheduler.type": "str"}
found |= {"optimizer.params." + name: kind for name, kind in dict(
    lr="float", betas="float*", eps="float", weight_decay="float", momentum="float", torch_adam="bool").items()}
constants("runtime.activation_checkpointing.config", "ACT_CHKPT_", "activation_checkpointing.")
constants("runtime.swap_tensor.constants", "AIO_", "aio.")
constants("profiling.constants", "FLOPS_PROFILER_", "flops_profiler.")
from deepspeed.runtime.config import get_pipeline_config
for name, default in get_pipeline_config({}).items():
    kind = type(default).__name__
    found["pipeline." + name] = "int" if name == "stages" else kind
import dataclasses
from deepspeed.module_inject.auto_ep_config import AutoEPConfig
for field in (field for field in dataclasses.fields(AutoEPConfig) if field.name[0] != "_"):
    found["expert_parallel." + field.name] = text(typing.get_type_hints(AutoEPConfig)[field.name])
print("OPTIONS" + json.dumps(found))
"""
)
_ACCELERATE: Final = (
    _TYPES
    + """
import dataclasses, typing
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import launch_command_parser
found = {}
hints = typing.get_type_hints(ClusterConfig)
for field in dataclasses.fields(ClusterConfig):
    found[field.name] = text(hints[field.name])
# nested settings become the launcher's own (commands/launch.py _validate_launch_command)
GROUPS = {"fsdp_": "fsdp_config", "megatron_lm_": "megatron_lm_config", "fp8_": "fp8_config",
          "dynamo_": "dynamo_config", "parallelism_config_": "parallelism_config"}
DEEPSPEED = ("deepspeed_", "zero", "offload_", "gradient_")
for action in launch_command_parser()._actions:
    kind = getattr(action.type, "__name__", "str") if action.type else "str"
    kind = "bool" if action.nargs == 0 or kind == "str_to_bool" else kind if kind in ("int", "float") else "str"
    name = action.dest
    for prefix, section in GROUPS.items():
        if name.startswith(prefix):
            found[section + "." + name] = kind
            if section in ("fp8_config", "fsdp_config", "dynamo_config"):  # their prefix may be left out
                found[section + "." + name[len(prefix):]] = kind
    if name.startswith(DEEPSPEED):
        found["deepspeed_config." + name] = kind
# settings of a YAML that have no word on the command line
import inspect, re
import accelerate.utils.launch
for name in re.findall(r'getattr\\(args, "(fsdp_\\w+)"', inspect.getsource(accelerate.utils.launch)):
    for written in (name, name[len("fsdp_"):]):
        found.setdefault("fsdp_config." + written, "str")
print("OPTIONS" + json.dumps(found))
"""
)


def _asked(interpreter: str, script: str, *words: str) -> Table:
    answer = subprocess.run(
        [interpreter, "-W", "ignore", "-c", script, *words], capture_output=True, text=True
    )
    lines = [line for line in answer.stdout.splitlines() if line.startswith("OPTIONS")]
    if not lines:
        raise SystemExit(answer.stderr[-2000:])
    found: Table = json.loads(lines[0].removeprefix("OPTIONS"))
    return found


def megatron_options(checkout: str) -> Table:
    """Option -> type and choices, from the parser of a checkout."""
    return _asked(sys.executable, _MEGATRON, checkout)


def torchtitan_options(interpreter: str) -> Table:
    """The same of the release that an interpreter has."""
    return _asked(interpreter, _TORCHTITAN)


def deepspeed_options(interpreter: str) -> Table:
    """Setting of ds_config.json -> type, of the release that an interpreter has."""
    return _asked(interpreter, _DEEPSPEED)


def accelerate_options(interpreter: str) -> Table:
    """Setting of Accelerate's YAML -> type, of the release that an interpreter has."""
    return _asked(interpreter, _ACCELERATE)


# framework -> how a release is transcribed, and what of it
TRANSCRIBED: Final[dict[str, tuple[Callable[[str], Table], str]]] = {
    "megatron": (
        megatron_options,
        "NVIDIA/Megatron-LM {release}, megatron/training/arguments.py add_megatron_arguments",
    ),
    "megatron-bridge": (
        bridge_options,
        "NVIDIA-NeMo/Megatron-Bridge {release}, dataclasses of src/megatron/bridge and megatron-core",
    ),
    "torchtitan": (torchtitan_options, "torchtitan {release} (PyPI), torchtitan/config"),
    "deepspeed": (deepspeed_options, "deepspeed {release} (PyPI), runtime/config.py, runtime/constants.py"),
    "accelerate": (
        accelerate_options,
        "accelerate {release} (PyPI), commands/config/config_args.py, commands/launch.py",
    ),
    "nanotron": (nanotron_options, "huggingface/nanotron {release}, dataclasses of src/nanotron/config"),
    "maxtext": (
        maxtext_options,
        "AI-Hypercomputer/maxtext {release}, src/maxtext/configs/types.py MaxTextConfig",
    ),
}
# framework -> how options are transcribed that depend on a class: class -> those of the sections whose fields it has
CLASSES: Final[dict[str, Callable[[str], dict[str, Table]]]] = {"megatron-bridge": bridge_classes}


def releases_of(document: dict[str, Any]) -> dict[str, Table]:
    """Every release's own table, from a table file."""
    tables: dict[str, Table] = {}
    for release, said in document["releases"].items():
        absent, own = set(said["absent"]), said["own"]
        shared = {name: str(text) for name, text in document["options"].items() if name not in absent}
        tables[release] = {**shared, **own}
    return tables


def differing(table: Table, usual: Table) -> dict[str, Any]:
    """What a table has of the usual one, and beside it."""
    own = {name: text for name, text in sorted(table.items()) if usual.get(name) != text}
    return {"absent": sorted(set(usual) - set(table)), "own": own}


def with_class(own: Table, table: Table) -> Table:
    """A release's options where a class has `own` instead of what the table has in the same sections; of one field in
    both, under whatever name, the closer type counts."""
    sections = {name.partition(".")[0] for name in own}
    found = {name: text for name, text in table.items() if name.partition(".")[0] not in sections}
    for name, text in own.items():
        section, *_, field = name.split(".")
        found[name] = table.get(f"{section}.{field}", text) if text == "str" else text
    return found


def document_of(
    framework: str, tables: dict[str, Table], sources: dict[str, str], classes: dict[str, dict[str, Any]]
) -> dict[str, object]:
    """The table file: all options, and where each release differs, and from it each of its classes."""
    union: Table = {}
    for table in tables.values():
        union |= table
    releases = {
        release: {"source": sources[release], **differing(table, union)} for release, table in tables.items()
    }
    for release in filter(classes.get, classes):
        releases[release]["classes"] = classes[release]
    return {"framework": framework, "releases": releases, "options": dict(sorted(union.items()))}


def write(framework: str, paths: dict[str, str]) -> Path:
    """Transcribe releases into the framework's table."""
    transcribe, source = TRANSCRIBED[framework]
    target = OPTIONS_FOLDER / f"{framework}.json"
    document = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {"releases": {}}
    tables = releases_of(document)
    sources = {release: str(said["source"]) for release, said in document["releases"].items()}
    classes = {
        release: said["classes"] for release, said in document["releases"].items() if "classes" in said
    }
    for release, path in paths.items():
        known = tables.get(release, {})
        tables[release] = {
            name: known.get(name, kind) if kind == "str" else kind for name, kind in transcribe(path).items()
        }
        sources.setdefault(release, source.format(release=release))
        if framework in CLASSES:
            table, found = tables[release], CLASSES[framework](path)
            classes[release] = {kind: differing(with_class(own, table), table) for kind, own in found.items()}
    text = json.dumps(document_of(framework, tables, sources, classes), indent=1, ensure_ascii=False)
    target.write_text(text + "\n", encoding="utf-8")
    return target


def main() -> None:
    """Entry point."""
    if len(sys.argv) < 3 or sys.argv[1] not in TRANSCRIBED:
        raise SystemExit(__doc__)
    pairs = (argument.partition("=") for argument in sys.argv[2:])
    print(write(sys.argv[1], {release: path for release, _, path in pairs}))


if __name__ == "__main__":
    main()
