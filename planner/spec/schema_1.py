"""How does a plan file of schema 1 read today? It held codes and bit masks where schema 2 has names.

Left out: what is wrong with a file, which `load_plan.py` says of what this leaves as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from planner.spec.config import (
    CODED,
    CUDA_GRAPH_MODULES,
    OFFLOAD_LABELS,
    RECOMPUTE_MODULES,
    SCHEDULE_LABELS,
    ContextKind,
    CudaGraphs,
    ParallelConfig,
    Recompute,
    named_value,
)
from planner.spec.planned_config import PlannedConfig

# how many codes each axis had, from 0
_CODES: Final[Mapping[str, int]] = {
    "recompute": len(Recompute), "recompute_modules": 2 ** len(RECOMPUTE_MODULES), "cp_kind": len(ContextKind),
    "schedule": len(SCHEDULE_LABELS), "offload": len(OFFLOAD_LABELS), "cuda_graph_impl": len(CudaGraphs),
    "cuda_graph_modules": 2 ** len(CUDA_GRAPH_MODULES), "sp": 2,
}  # fmt: skip
_PARTS: Final = ("recompute", "sp", "cp_kind", "schedule", "offload", "cuda_graphs")


def upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """A plan of schema 1 as one of schema 2; what is malformed stays as it is."""
    for place, key in _configs(document):
        place[key] = _named(place[key])
    search = document.get("search")
    if isinstance(search, dict) and isinstance(fixed := search.get("restricted"), dict):
        search["restricted"] = {axis: _values(axis, values) for axis, values in fixed.items()}
    return document | {"schema_version": 2}


def _configs(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Every place where a configuration stands, with its key there."""
    holders = [document.get("nearest"), document.get("nearest_run")]
    for name in ("choices", "pareto"):
        listed = document.get(name)
        holders += listed if isinstance(listed, list) else []
    yield from ((held, "config") for held in holders if isinstance(held, dict) and "config" in held)
    if document.get("nearest_config") is not None:
        yield document, "nearest_config"


def _is_code(axis: str, value: object) -> bool:
    return type(value) is int and 0 <= value < _CODES[axis]


def _named(config: object) -> object:
    """A configuration with names in place of its codes."""
    if not isinstance(config, dict) or not all(_is_code(axis, config.get(axis, 0)) for axis in _CODES):
        return config
    codes = {axis: config[axis] for axis in _CODES if axis in config}
    names = PlannedConfig.of(ParallelConfig(**codes)).model_dump(mode="json", include=set(_PARTS))
    kept = {key: value for key, value in config.items() if key not in (*_CODES, "recompute_layers")}
    if isinstance(names["recompute"], dict):
        names["recompute"]["layers"] = config.get("recompute_layers", 0)
    return kept | names


def _values(axis: str, values: object) -> object:
    if axis not in CODED or not isinstance(values, list):
        return values
    return [named_value(axis, value) if _is_code(axis, value) else value for value in values]
