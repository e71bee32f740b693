"""Which training runs have others published? The best of each model, device, number of devices and width of numbers.

Made by `python -m benchmarks.published_runs` from the collection that stacks are fitted to; read where an answer is
told beside the nearest of them. Left out: what planner predicts for them (`planner/nearest_run.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from planner.spec.attention import AttentionKind
from planner.spec.model import ModelSpec

FILE: Final = "published_runs.json"


@dataclass(frozen=True)
class PublishedModel:
    """A model as its curator described it. `kind`: as `kind_of`; `total`, `active`: parameters, of all experts and of
    those that a token passes [1]."""

    name: str
    kind: str
    layers: int
    hidden: int
    total: int
    active: int
    description: Mapping[str, Any]


@dataclass(frozen=True)
class PublishedRun:
    """A run as published. `cells`: its row, by column; `step_time`: measured [s]; `link`: where it is published."""

    model: PublishedModel
    device: str
    devices: int
    cells: Mapping[str, str]
    step_time: float
    link: str


def kind_of(model: ModelSpec) -> str:
    """What sort of layers a model has, in words: models of one kind and size take about the same."""
    words = ["hybrid"] if model.state_spaces else []
    words += ["mixture"] if model.is_moe else ["dense"]
    latent = any(layer.attention and layer.attention.kind is AttentionKind.MLA for layer in model.blocks)
    gated = any(part.gated for layer in model.blocks if (part := layer.moe or layer.mlp))
    return " ".join([*words, *(["latent"] if latent else []), *(["gated"] if gated else [])])


@lru_cache(maxsize=1)
def published_runs() -> tuple[PublishedRun, ...]:
    """All of them."""
    held = json.loads((files("planner.catalog") / FILE).read_text(encoding="utf-8"))
    models = {name: PublishedModel(name, **fields) for name, fields in held["models"].items()}
    found = []
    for device, link, seconds, cells in held["runs"]:
        row = dict(zip(held["columns"], cells.split("\t"), strict=True))
        found.append(
            PublishedRun(models[row["model"]], device, int(row["gpus"]), row, seconds, held["links"][link])
        )
    return tuple(found)
