"""What do Megatron-Bridge's pre-training recipes set? Writes `planner/frameworks/megatron_bridge/recipes.yaml`.

    python -m benchmarks.bridge_recipes 0.6.0=CHECKOUT:v0.6.0 0.7.0=CHECKOUT:COMMIT

Recipes are functions that assign plain values to fields of a ConfigContainer; they are read from the source of
checkouts, one of every release, oldest first, for the package needs a GPU to be imported. Those whose model is no
provider but a configuration that a builder takes (get_model_config) are told by how their names begin. Left out: fields
that planner does not read, and values that are computed, which are listed as such.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.framework_options import differing
from planner.frameworks.megatron_bridge.precision import NAMED
from planner.frameworks.megatron_bridge.recipes import BENCHMARKS, MORE_RECIPES, READ, RECIPE_FILE, RECIPES

COMMON: Final = "_pretrain_common"
SOURCE: Final = "NVIDIA-NeMo/Megatron-Bridge {commit}, src/megatron/bridge/recipes"
FOLDER: Final = "src/megatron/bridge"
# gives a recipe a model that is no provider (models/conversion/auto_bridge.py)
BUILT: Final = ".get_model_config"
# of a ConfigContainer, built anew by recipes
SECTIONS: Final = ("comm_overlap", "model")
PRECISION: Final = "mixed_precision"
GRAPHS: Final = "set_cuda_graph_modules"  # sets fields of the model that it is given (utils/cuda_graph.py)
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
            elif isinstance(node, ast.AnnAssign | ast.Assign) and node.value:
                target = ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
                if target.isupper():
                    constants[target] = node.value
    return found, names, constants


def settings_of(name: str, functions: Functions, constants: Constants) -> dict[str, Any]:
    """Dotted field -> value, of those that planner reads; "computed" where the source does not say the value."""
    found: dict[str, Any] = {}
    for line in functions[name].body:
        if isinstance(line, ast.Return) and isinstance(line.value, ast.Call):
            found |= _base(line.value, functions, constants)
        elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Call):
            if ast.unparse(line.value.func) == GRAPHS:
                found["model.cuda_graph_modules"] = _value(line.value.args[1])
        elif isinstance(line, ast.Assign) and len(line.targets) == 1:
            found = _assigned(line, found, functions, constants)
    return found


def _assigned(
    line: ast.Assign, found: dict[str, Any], functions: Functions, constants: Constants
) -> dict[str, Any]:
    """The settings with what a line sets."""
    target, value = ast.unparse(line.targets[0]), line.value
    if target == "cfg" and isinstance(value, ast.Call):
        return {**found, **_base(value, functions, constants)}
    if not target.startswith("cfg."):
        return found
    value = constants.get(ast.unparse(value), value)
    section = target.removeprefix("cfg.")
    if section == PRECISION:
        kept = {field: old for field, old in found.items() if not field.startswith(PRECISION)}
        return kept | _precision(value, found)
    if section in SECTIONS and isinstance(value, ast.Call):
        return {**found, **_fields({f"{section}.{field.arg}": field.value for field in value.keywords})}
    return {**found, **_fields({section: value})}


def _base(call: ast.Call, functions: Functions, constants: Constants) -> dict[str, Any]:
    name = ast.unparse(call.func)
    return settings_of(name, functions, constants) if name in functions else _container(call)


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
    if (name := ast.unparse(node)).startswith("torch."):
        return name
    if name == "cfg.model.vocab_size":  # a tokenizer of as many
        return None
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return "computed"
    return value if value is None or isinstance(value, bool | int | float | str) else _listed(value)


def _precision(node: ast.expr, before: dict[str, Any]) -> dict[str, Any]:
    """A mixed precision by name; of a configuration that the recipe builds also whether it reduces gradients in fp32,
    so that what spells one out can be told from a name."""
    if not isinstance(node, ast.Call):
        return {PRECISION: _value(node)}
    function = ast.unparse(node.func)
    said = {field.arg: ast.unparse(field.value) for field in node.keywords}
    wide = f"{PRECISION}.grad_reduce_in_fp32"
    if function == "get_mixed_precision_config":
        given = node.args[0]
        name = before.get(PRECISION) if ast.unparse(given) == f"cfg.{PRECISION}" else _value(given)
        return {PRECISION: name, wide: NAMED[str(name)]["grad_reduce_in_fp32"]}
    spelled = function == "MixedPrecisionConfig" and said.get("bf16") == "True"
    if spelled and said.get("fp8", "None") == "None":
        return {PRECISION: "bf16_mixed", wide: said.get("grad_reduce_in_fp32", "True") == "True"}
    if function in NAMED and not said:
        return {PRECISION: function, wide: NAMED[function]["grad_reduce_in_fp32"]}
    return {PRECISION: "computed"}


def _listed(value: Any) -> str:
    plain = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return f"[{','.join(value)}]" if plain else "computed"


def built(checkout: Path) -> list[str]:
    """How the names of recipes begin whose model is no provider, of benchmarks too."""
    functions: Functions = {}
    names: dict[str, str] = {}
    for folder in ("recipes", "perf_recipes"):
        found, others, _ = functions_of(checkout / FOLDER / folder)
        functions, names = found | functions, names | others
    recipes = {name for name in {*functions, *names} if re.match(r"[a-z]\w*_config$", name)}
    made = {name for name in recipes if _is_built(names.get(name, name), functions, names)}
    families = {re.split(r"[\d_]", name)[0] for name in made}
    if wrong := [name for name in recipes - made if name.startswith(tuple(families))]:
        raise SystemExit(f"begin as recipes of another kind of model do: {', '.join(sorted(wrong))}")
    return sorted(families)


def _is_built(name: str, functions: Functions, names: dict[str, str]) -> bool:
    """Has a recipe, or one that it starts from, such a model?"""
    if name not in functions:
        return False
    called = [ast.unparse(node.func) for node in ast.walk(functions[name]) if isinstance(node, ast.Call)]
    others = {names.get(other, other) for other in called} - {name}
    return any(call.endswith(BUILT) for call in called) or any(
        _is_built(other, functions, names) for other in others
    )


def release_of(checkout: Path, commit: str) -> dict[str, Any]:
    """The recipes of one release: settings common to all, and what each recipe sets beyond."""
    functions, names, constants = functions_of(checkout / FOLDER / "recipes")
    common = settings_of(COMMON, functions, constants)
    recipes = {}
    for recipe in (*RECIPES.values(), *MORE_RECIPES):
        function = names.get(recipe, recipe)
        own = {
            k: v for k, v in settings_of(function, functions, constants).items() if common.get(k, ...) != v
        }
        same = {other for other, known in names.items() if known == function} | {function}
        others = sorted(same - {recipe, *BENCHMARKS})
        recipes[recipe] = {"names": others, "settings": dict(sorted(own.items()))}
    return {
        "source": SOURCE.format(commit=commit),
        "built": built(checkout),
        "common": dict(sorted(common.items())),
        "recipes": recipes,
    }


def document_of(releases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The recipe file: the newest release, and what recipes set otherwise in each before."""
    *_, newest = releases.values()
    said = {}
    for release, found in releases.items():
        changes = {}
        for name in newest["recipes"]:
            ours, theirs = (one["common"] | one["recipes"][name]["settings"] for one in (newest, found))
            if theirs != ours:
                changes[name] = differing(theirs, ours)
        said[release] = {"source": found["source"], "built": found["built"], "changes": changes}
    return {"releases": said, "common": newest["common"], "recipes": newest["recipes"]}


def main() -> None:
    """Entry point."""
    given = [re.fullmatch("(.+?)=(.+):(.+)", argument) for argument in sys.argv[1:]]
    if not given or not all(given):
        raise SystemExit(__doc__)
    found = {match[1]: release_of(Path(match[2]), match[3]) for match in given if match}
    document = document_of(found)
    RECIPE_FILE.write_text(yaml.safe_dump(document, sort_keys=False, width=110), encoding="utf-8")
    print(RECIPE_FILE)


if __name__ == "__main__":
    main()
