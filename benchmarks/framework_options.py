"""Which options does each release of a framework have? Writes `planner/frameworks/options/*.yaml`.

    python -m benchmarks.framework_options megatron 0.16.1=PATH 0.18.2=PATH main-2026-08=PATH

PATH is a checkout of Megatron-LM at that release. Its parser is built and asked for its options, so torch,
triton, six and einops must be importable. The other tables are short and were entered by hand from the files
they name. Left out: help texts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml

from planner.frameworks.options import OPTIONS_FOLDER

_ASK = """
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


def megatron_options(checkout: Path) -> dict[str, str]:
    """Option -> type and choices, from the parser of a checkout."""
    ask = [sys.executable, "-c", _ASK, str(checkout)]
    answer = subprocess.run(ask, capture_output=True, text=True, check=True)
    line = next(line for line in answer.stdout.splitlines() if line.startswith("OPTIONS"))
    found: dict[str, str] = json.loads(line.removeprefix("OPTIONS"))
    return found


def write_megatron(releases: dict[str, Path]) -> Path:
    """The table: what the last release has, and where the others differ."""
    tables = {version: megatron_options(path) for version, path in releases.items()}
    union: dict[str, str] = {}
    for table in tables.values():
        union |= table
    document = {
        "framework": "megatron",
        "releases": {
            version: {
                "source": f"NVIDIA/Megatron-LM {version}, megatron/training/arguments.py add_megatron_arguments",
                "absent": sorted(set(union) - set(table)),
                "own": {name: text for name, text in sorted(table.items()) if union[name] != text},
            }
            for version, table in tables.items()
        },
        "options": dict(sorted(union.items())),
    }
    target = OPTIONS_FOLDER / "megatron.yaml"
    target.write_text(yaml.safe_dump(document, sort_keys=False, width=110), encoding="utf-8")
    return target


def main() -> None:
    """Entry point."""
    if len(sys.argv) < 3 or sys.argv[1] != "megatron":
        raise SystemExit(__doc__)
    pairs = (argument.partition("=") for argument in sys.argv[2:])
    print(write_megatron({version: Path(path) for version, _, path in pairs}))


if __name__ == "__main__":
    main()
