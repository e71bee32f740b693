"""Which shipped model is this one? For frameworks that name models instead of describing them.

Left out: likeness; only equal dimensions count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from planner.errors import UnsupportedError
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec


def same_architecture(one: ModelSpec, other: ModelSpec) -> bool:
    """Have two models the same layers and dimensions, whatever they are called and were read from?"""
    return _bare(one) == _bare(other)


def _bare(model: ModelSpec) -> ModelSpec:
    model = model.with_wide_ends(0, 0)
    return replace(
        model, name="", family="", source="", assumed=(), max_position=0, mtp_layers=0, mtp_block=()
    )


def named_as(model: ModelSpec, names: Iterable[str]) -> str:
    """Which of the catalog `names` has this model's dimensions, its own first; empty where none has."""
    by_name = sorted(names, key=lambda candidate: candidate != model.name)
    return next((name for name in by_name if same_architecture(load_model(name), model)), "")


def known_as(model: ModelSpec, names: Iterable[str], framework: str) -> str:
    """Which of the catalog `names` has this model's dimensions. Raises `UnsupportedError` where none has."""
    listed = list(names)
    if name := named_as(model, listed):
        return name
    must = f"the model must be one that planner writes for {framework}: {', '.join(sorted(listed))}"
    given = f"{model.name} of other dimensions" if model.name in listed else model.name
    raise UnsupportedError(must, given, "export to another framework, or add the model there yourself")
