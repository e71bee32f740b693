"""What do Megatron-Bridge's pre-training recipes set? Writes `planner/frameworks/megatron_bridge/recipes.yaml`.

    python -m benchmarks.bridge_recipes CHECKOUT COMMIT

Recipes are functions that assign plain values to fields of a ConfigContainer; they are read from the source of a
checkout, for the package needs a GPU to be imported. Left out: fields that planner does not read, and values that are
computed, which are listed as such.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from planner.frameworks.megatron_bridge.parse import PRECISIONS
from planner.frameworks.megatron_bridge.recipes import READ, RECIPE_FILE, RECIPES

COMMON: Final = "_pretrain_common"
SOURCE: Final = "NVIDIA-NeMo/Megatron-Bridge {commit}, src/megatron/bridge/recipes"
# of a ConfigContainer, built anew by recipes
SECTIONS: Final = ("comm_overlap",)
Functions = dict[str, ast.FunctionDef]


Constants = dict[str, ast.expr]


def functions_of(folder: Path) -> tuple[Functions, dict[str, str], Constants]:
    """Every function below a folder by name, other names that they are imported under, and named constants."""
    found: Functions = {}
    names: dict[str, str] = {}
    constants: Constants = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, node)
            elif isinstance(node, ast.ImportFrom):
                names |= {alias.asname: alias.name for alias in node.names if alias.asname}
            elif isinstance(node, ast.AnnAssign) and node.value and ast.unparse(node.target).isupper():
                constants[ast.unparse(node.target)] = node.value
    return found, names, constants


def settings_of(name: str, functions: Functions, constants: Constants) -> dict[str, Any]:
    """Dotted field -> value, of those that planner reads; "computed" where the source does not say the value."""
    found: dict[str, Any] = {}
    for line in functions[name].body:
        if not isinstance(line, ast.Assign) or len(line.targets) != 1:
            continue
        target, value = ast.unparse(line.targets[0]), line.value
        if target == "cfg" and isinstance(value, ast.Call):
            base = ast.unparse(value.func)
            found |= settings_of(base, functions, constants) if base in functions else _container(value)
        elif target.startswith("cfg."):
            value = constants.get(ast.unparse(value), value)
            section = target.removeprefix("cfg.")
            if section in SECTIONS and isinstance(value, ast.Call):
                found |= _fields({f"{section}.{field.arg}": field.value for field in value.keywords})
            else:
                found |= _fields({section: value})
    return found


def _container(call: ast.Call) -> dict[str, Any]:
    """Fields of a ConfigContainer that is built with its sections."""
    said: dict[str, ast.expr] = {}
    for section in call.keywords:
        if isinstance(section.value, ast.Call):
            said |= {f"{section.arg}.{field.arg}": field.value for field in section.value.keywords}
        else:
            said[str(section.arg)] = section.value
    return _fields(said)


def _fields(said: dict[str, ast.expr]) -> dict[str, Any]:
    return {name: _value(node) for name, node in said.items() if name in READ}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        return _precision(node)
    if (name := ast.unparse(node)).startswith("torch."):
        return name
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return "computed"
    return value if value is None or isinstance(value, bool | int | str) else _listed(value)


def _precision(call: ast.Call) -> str:
    """A mixed precision by the name of its recipe, which a function is called like, is given, or spells out."""
    function = ast.unparse(call.func)
    if function == "get_mixed_precision_config":
        return str(_value(call.args[0]))
    said = {field.arg: ast.unparse(field.value) for field in call.keywords}
    if (
        function == "MixedPrecisionConfig"
        and said.get("bf16") == "True"
        and said.get("fp8", "None") == "None"
    ):
        return "bf16_mixed"
    return function if function in PRECISIONS.values() and not said else "computed"


def _listed(value: Any) -> str:
    plain = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return f"[{','.join(value)}]" if plain else "computed"


def document_of(checkout: Path, commit: str) -> dict[str, Any]:
    """The recipe file: settings common to all, and what each recipe sets beyond."""
    functions, names, constants = functions_of(checkout / "src/megatron/bridge/recipes")
    common = settings_of(COMMON, functions, constants)
    recipes = {}
    for recipe in RECIPES.values():
        own = {k: v for k, v in settings_of(recipe, functions, constants).items() if common.get(k, ...) != v}
        others = sorted(other for other, known in names.items() if known == recipe)
        recipes[recipe] = {"names": others, "settings": dict(sorted(own.items()))}
    return {
        "source": SOURCE.format(commit=commit),
        "common": dict(sorted(common.items())),
        "recipes": recipes,
    }


def main() -> None:
    """Entry point."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    document = document_of(Path(sys.argv[1]), sys.argv[2])
    RECIPE_FILE.write_text(yaml.safe_dump(document, sort_keys=False, width=110), encoding="utf-8")
    print(RECIPE_FILE)


if __name__ == "__main__":
    main()
