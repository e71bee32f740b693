"""Which numbers does a training stack have? Reads `catalog/stacks/NAME.yaml`.

Left out: which stack a published run was made with (`benchmarks/published/stack_of.py`), and fitting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from planner.catalog.stack_options import SEPARATOR, with_options
from planner.dialect import option
from planner.errors import (
    FileInputError,
    InputError,
    UnknownNameError,
    UnsupportedError,
    field_given,
    field_must,
)
from planner.spec.load_yaml import read_yaml
from planner.spec.machine.accelerator import Accelerator
from planner.spec.machine.compiled_devices import runs_on
from planner.spec.precision import Precision
from planner.spec.stack import Stack

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
STACKS_FOLDER: Final = Path(__file__).with_name("stacks")
DEFAULT_STACK: Final = "megatron-2026"
ADAPTERS_STACK: Final = "transformers-2026"  # PEFT's
FILES: Final = (".yaml", ".yml")
# software without stacks of its own -> the family whose stacks are meant
_RUNS_ON: Final = {
    "accelerate": "fsdp", "composer": "fsdp", "megatron-bridge": "megatron", "nemo": "megatron",
}  # fmt: skip


def stack_names() -> list[str]:
    """Names of the shipped stacks."""
    return sorted(path.stem for path in STACKS_FOLDER.glob("*.yaml"))


EXTENDED_BAND: Final = 2.0  # of a stack that no run was compared with, over that of the one it extends
_OF_ONE_STACK: Final = ("name", "description", "released", "source", "fitted", "fitted_on", "devices")


@lru_cache(maxsize=64)
def load_stack(name: str) -> Stack:
    """The stack of that name; capitals, `_` and spaces don't matter, and a path to a YAML file is read as one. A family
    is its newest (`stack_families`). Options follow the name: `megatron-2026+no-fp8-param-gather`
    (`catalog.stack_options`).

    Raises `UnknownNameError` for a name that is none, `FileInputError` for a file that cannot be understood.
    """
    key, *options = _normal(name).split(SEPARATOR)
    if key not in stack_names() and name.endswith(FILES):
        return read_stack(Path(name))
    return with_options(read_stack(STACKS_FOLDER / f"{shipped_stack(name)}.yaml"), options)


@lru_cache(maxsize=1)
def stack_families() -> Mapping[str, str]:
    """The newest stack that may be planned for of every family: a stack's name without its year, and where no name is
    so called its framework, or software that runs on those of a family. Of two of one month the first by name."""
    stacks = [load_stack(name) for name in stacks_to_plan()]
    named: dict[str, list[Stack]] = {}
    for stack in stacks:
        named.setdefault(re.sub(r"-\d{4}.*", "", stack.name), []).append(stack)
    frameworks = sorted({stack.framework for stack in stacks} - named.keys())
    named |= {of: [stack for stack in stacks if stack.framework == of] for of in frameworks}
    newest = {family: max(kin, key=lambda stack: stack.released).name for family, kin in named.items()}
    return newest | {software: newest[family] for software, family in _RUNS_ON.items()}


def shipped_stack(name: str) -> str:
    """The name of the shipped stack that a name means, options aside. Raises `UnknownNameError`."""
    key = _normal(name).partition(SEPARATOR)[0]
    if key in stack_names():
        return key
    families = stack_families()
    if not key and SEPARATOR in name:
        hint = f"write {option('stack', DEFAULT_STACK + name)}, or the stack that it is of"
        raise InputError("options must stand behind the name of their stack", name, hint)
    if key not in families:
        hint = f"(of a family the newest is meant: {', '.join(sorted(families))})"
        raise UnknownNameError("stack", name, stack_names(), hint)
    return families[key]


def stack_to_plan(name: str) -> Stack:
    """The stack of that name, of which steps can be foretold. Raises `InputError` for one that only sums profiles."""
    stack = load_stack(name)
    if stack.engine.composed:
        must = "the stack must be training software that runs"
        given = f"{stack.name}, which sums profiles of one device and recomputes nothing"
        raise InputError(must, given, f"planner stacks {stack.name} says what was profiled: choose that")
    return stack


def stacks_to_plan() -> list[str]:
    """Names of the shipped stacks that a plan may be for."""
    return [name for name in stack_names() if not load_stack(name).engine.composed]


def default_stack(chip: Accelerator, adapters: bool = False) -> str:
    """The stack that is meant where none is named: of `adapters` that of PEFT, with which most are trained and which no
    launch file of Megatron-LM states; else Megatron's newest. Where that does not run, the newest that does."""
    if adapters and runs_on(load_stack(ADAPTERS_STACK), chip):
        return ADAPTERS_STACK
    if runs_on(load_stack(DEFAULT_STACK), chip):
        return DEFAULT_STACK
    fitting = [stack for stack in map(load_stack, stacks_to_plan()) if runs_on(stack, chip)]
    return max(fitting, key=lambda stack: stack.released).name


def require_release(stack: Stack, precision: Precision) -> None:
    """Raise `UnsupportedError` for a recipe that the stack's release lacks, with the newest stack that has it: of the
    same framework, else the default."""
    if precision not in stack.limits.no_recipes:
        return
    others = [load_stack(name) for name in stacks_to_plan()]
    same = [s for s in others if s.framework == stack.framework and precision not in s.limits.no_recipes]
    newest = max(same, key=lambda other: other.released, default=load_stack(DEFAULT_STACK))
    raise UnsupportedError(
        f"{stack.name} must have the recipe {precision}",
        f"software of {stack.released}, which lacks it",
        f"choose a newer stack, as {option('stack', newest.name)}, or another precision, as bf16",
    )


def is_shipped(name: str) -> bool:
    """Is a stack's name, options aside, one that planner ships?"""
    return _normal(name).partition(SEPARATOR)[0] in stack_names()


def _normal(name: str) -> str:
    return "-".join(name.strip().lower().replace("_", " ").split())


def read_stack(path: Path) -> Stack:
    """The stack in a file. Raises `FileInputError` naming file and field.

    A file with `extends: NAME` states only what differs from that shipped stack, key by key, but all of an engine or a
    loss of another kind; its bands, unless stated, are `EXTENDED_BAND` times as wide, and it counts as not fitted.
    """
    document = read_yaml(path)
    if "extends" in document:
        document = _extended(path, document)
    try:
        return Stack.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        given = field_given(first)
        raise FileInputError(str(path), field_must(first), given, field=field) from None


def _extended(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """The document completed by the one it extends."""
    own = dict(document)
    stated = str(own.pop("extends"))
    try:
        name = shipped_stack(stated)
    except UnknownNameError:
        must = f"must be a stack that planner ships: {', '.join(stack_names())}"
        raise FileInputError(str(path), must, stated, field="extends") from None
    shipped = (STACKS_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    base: dict[str, Any] = yaml.load(shipped, _SafeLoader)
    if "extends" in base:
        raise FileInputError(str(path), "must be a stack that extends no other", name, field="extends")
    bands = {key: EXTENDED_BAND * value for key, value in base.items() if key in ("band", "band_moe")}
    kept = {key: value for key, value in base.items() if key not in _OF_ONE_STACK}
    return _merged({**kept, **bands, "kin": name}, own)


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    if own.get("kind", base.get("kind")) != base.get("kind"):
        return own
    both = {
        key: _merged(base[key], value)
        for key, value in own.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return {**base, **own, **both}
