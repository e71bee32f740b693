"""Which training runs have others published? The best of each model, device, number of devices and width of numbers.

Made by `python -m benchmarks.published_runs` from the collection that stacks are fitted to, with what planner predicts
for each; read where an answer is told beside the nearest of them. Left out: which is nearest (`answer/nearest_run.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from planner.spec.attention import AttentionKind
from planner.spec.config import ContextKind, ParallelConfig
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision

FILE: Final = "published_runs.json"


@dataclass(frozen=True)
class PublishedModel:
    """A model as its curator described it."""

    name: str
    kind: str  # as `kind_of`
    layers: int
    hidden: int
    total: int  # parameters, of all experts [1]
    active: int  # parameters that a token passes [1]


@dataclass(frozen=True)
class PublishedRun:
    """A run as published, and what planner predicts for it."""

    model: PublishedModel
    accelerator: str
    devices: int
    seq_len: int  # [tokens]
    global_batch: int  # [sequences]
    precision: Precision
    software: str
    config: ParallelConfig
    own_kind: ContextKind  # what its context parallelism exchanges by unasked
    step_time: float  # as measured [s]
    predicted_step_time: float  # by the shipped numbers [s]
    link: str  # where it is published


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
    return tuple(
        _run(dict(zip(held["columns"], cells, strict=True)), models, held["links"]) for cells in held["runs"]
    )


def _run(
    cells: Mapping[str, Any], models: Mapping[str, PublishedModel], links: Sequence[str]
) -> PublishedRun:
    typed = {
        "model": models[cells["model"]],
        "precision": Precision(cells["precision"]),
        "config": ParallelConfig(**cells["config"]),
        "own_kind": ContextKind(cells["own_kind"]),
        "link": links[cells["link"]],
    }
    return PublishedRun(**{**cells, **typed})
