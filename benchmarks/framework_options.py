"""Which options does each release of a framework have? Writes `planner/frameworks/options/*.yaml`.

    python -m benchmarks.framework_options megatron 0.16.1=CHECKOUT main-2026-08=CHECKOUT
    python -m benchmarks.framework_options torchtitan 0.3.0=INTERPRETER

A release is transcribed from its own code and added to the table, or replaced there; the others stay. Of Megatron-LM
its parser is built and asked, from a checkout with torch, triton, six and einops importable. Of torchtitan PATH is a
Python interpreter that has the release: tyro's parser is asked, before 0.3 its JobConfig. Of Megatron-Bridge PATH is
BRIDGE:MEGATRON, checkouts whose dataclasses are read from the source; a type that the table states more closely than
the source does is kept. The other tables were entered by hand from the files that they name. Left out: help texts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.source_fields import bridge_options
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
parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
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
}


def releases_of(document: dict[str, Any]) -> dict[str, Table]:
    """Every release's own table, from a table file."""
    tables: dict[str, Table] = {}
    for release, said in document["releases"].items():
        absent, own = set(said["absent"]), said["own"]
        shared = {name: str(text) for name, text in document["options"].items() if name not in absent}
        tables[release] = {**shared, **own}
    return tables


def document_of(framework: str, tables: dict[str, Table], sources: dict[str, str]) -> dict[str, object]:
    """The table file: all options, and where each release differs."""
    union: Table = {}
    for table in tables.values():
        union |= table
    return {
        "framework": framework,
        "releases": {
            release: {
                "source": sources[release],
                "absent": sorted(set(union) - set(table)),
                "own": {name: text for name, text in sorted(table.items()) if union[name] != text},
            }
            for release, table in tables.items()
        },
        "options": dict(sorted(union.items())),
    }


def write(framework: str, paths: dict[str, str]) -> Path:
    """Transcribe releases into the framework's table."""
    transcribe, source = TRANSCRIBED[framework]
    target = OPTIONS_FOLDER / f"{framework}.yaml"
    document = yaml.safe_load(target.read_text(encoding="utf-8"))
    tables = releases_of(document)
    sources = {release: str(said["source"]) for release, said in document["releases"].items()}
    for release, path in paths.items():
        known = tables.get(release, {})
        tables[release] = {
            name: known.get(name, kind) if kind == "str" else kind for name, kind in transcribe(path).items()
        }
        sources.setdefault(release, source.format(release=release))
    text = yaml.safe_dump(
        document_of(framework, tables, sources), sort_keys=False, width=110, allow_unicode=True
    )
    target.write_text(text, encoding="utf-8")
    return target


def main() -> None:
    """Entry point."""
    if len(sys.argv) < 3 or sys.argv[1] not in TRANSCRIBED:
        raise SystemExit(__doc__)
    pairs = (argument.partition("=") for argument in sys.argv[2:])
    print(write(sys.argv[1], {release: path for release, _, path in pairs}))


if __name__ == "__main__":
    main()
