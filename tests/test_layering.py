"""Does every module import only its own layer or a lower one, and touch files only where files belong?"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import planner

PACKAGE = Path(planner.__file__).parent
LAYERS: tuple[tuple[str, ...], ...] = (
    ("dialect", "errors", "units"),
    ("spec", "catalog"),
    ("frameworks",),
    ("space",),
    ("cost", "schedule", "campaign"),
    ("solve",),
    ("ask",),
    ("answer",),
    ("report", "calibrate", "dryrun"),
    ("api", "cli", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
PURE = ("cost", "schedule", "campaign", "space", "solve")
IMPURE_MODULES = {"yaml", "json", "time", "os", "io", "pathlib", "logging", "subprocess"}
FILE_CALLS = {
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "makedirs", "unlink", "rename",
    "glob", "rglob", "iterdir", "touch", "rmtree", "save", "savez", "loadtxt", "savetxt", "fromfile", "tofile",
}  # fmt: skip


def top_of(module: str) -> str:
    """The part of the package that a dotted module belongs to: "planner.cost.model" -> "cost"."""
    parts = module.split(".")[1:]
    return parts[0] if parts else ""


def imported(tree: ast.AST) -> list[str]:
    """Dotted names of everything imported anywhere in a module, inside functions too."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.append(node.module or "")
            if node.module == "planner":
                names += [f"planner.{alias.name}" for alias in node.names]
    return names


def breaches(module: str, source: str) -> list[str]:
    """What a module of that dotted name does that its layer must not."""
    tree = ast.parse(source)
    own = top_of(module)
    found = []
    for name in imported(tree):
        if name.split(".")[0] in ("benchmarks", "tests"):
            found.append(f"{module} imports {name}, which is not installed")
        other = top_of(name) if name.startswith("planner") else ""
        if LEVEL.get(other, -1) > LEVEL[own]:
            found.append(f"{module} ({own}) imports {name} ({other}), a higher layer")
        if own in PURE and name.split(".")[0] in IMPURE_MODULES:
            found.append(f"{module} imports {name}")
    if not may_touch_files(module):
        found += [f"{module} calls {call}, which touches a file" for call in file_calls(tree)]
    if own in PURE:
        found += [f"{module} prints" for call in calls(tree) if call == "print"]
    return found


def may_touch_files(module: str) -> bool:
    own, last = top_of(module), module.rsplit(".", 1)[-1]
    loader = own in ("spec", "catalog") and last.startswith(("load", "save"))
    return loader or own in ("frameworks", "report", "calibrate", "cli")


def calls(tree: ast.AST) -> list[str]:
    """Names of everything called."""
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        f.id if isinstance(f, ast.Name) else f.attr
        for f in functions
        if isinstance(f, ast.Name | ast.Attribute)
    ]


def file_calls(tree: ast.AST) -> list[str]:
    return [name for name in calls(tree) if name in FILE_CALLS]


def modules() -> list[str]:
    paths = sorted(path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py"))
    dotted = [".".join(path.with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in dotted if name != "planner.__init__"]


def source_of(module: str) -> str:
    path = PACKAGE.parent.joinpath(*module.split("."))
    file = path.with_suffix(".py")
    return (file if file.exists() else path / "__init__.py").read_text(encoding="utf-8")


def test_every_part_of_the_package_has_a_layer() -> None:
    """A new module at the top level needs a place in LAYERS."""
    assert {top_of(module) for module in modules()} <= set(LEVEL)


@pytest.mark.parametrize("module", modules())
def test_module_keeps_to_its_layer(module: str) -> None:
    assert breaches(module, source_of(module)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("planner.cost.bad", "from planner.solve.search import search"),
        ("planner.spec.bad", "import planner.space.rules"),
        ("planner.errors", "from planner import spec"),
        ("planner.space.bad", "def f():\n    from planner.cost.model import CostModel"),
        ("planner.cost.bad", "import json"),
        ("planner.solve.bad", "from time import perf_counter"),
        ("planner.schedule.bad", "import yaml"),
        ("planner.spec.bad", "def f(path):\n    return open(path)"),
        ("planner.answer.plan", "def f(path):\n    return path.read_text()"),
        ("planner.answer.nearest_run", "from planner.calibrate.predict import predicted_cost"),
        ("planner.calibrate.bad", "from benchmarks.published.runs import RunReader"),
        ("planner.cli.bad", "import tests.problems"),
        ("planner.cost.bad", "def f(path):\n    path.write_text('')"),
        ("planner.cost.bad", "print(1)"),
    ],
)
def test_a_breach_is_seen(module: str, source: str) -> None:
    assert breaches(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("planner.cost.good", "from planner.schedule.formulas import in_flight"),
        ("planner.spec.load_good", "def f(path):\n    return open(path)"),
        ("planner.cli", "from planner.answer.plan import make_plan"),
        ("planner.report.good", "from planner.answer.answerer import Answerer"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert breaches(module, source) == []
