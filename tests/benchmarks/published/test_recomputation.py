"""Recomputation as curators write it."""

from __future__ import annotations

import pytest

from benchmarks.published.recomputation import layers_in
from benchmarks.published.runs import Run, RunReader
from planner.spec.config import Recompute, recomputed_modules
from tests.benchmarks.rows import MODELS, ROW

STAGE = 16  # layers of a pipeline rank of the row


def read(text: str, **changed: str) -> Run:
    return RunReader(MODELS).read({**ROW, "recompute": text, **changed})


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("full:1/2", 8), ("full:50%", 8), ("full 4", 4), ("full, 4 layers", 4), ("full (4 layers)", 4), ("50%", 8),
        ("full:0.0", 0), ("0.5", 8), ("12.5 %", 2), ("every second layer", 8), ("every 4th layer", 4),
        ("1 of 2 layers", 8), ("half of the layers", 8), ("full:4.0", 4),
        ("block:4", 4), ("10 layers", 10), ("layers:10", 10), ("99 layers", 16),
        ("selective layer", 8), ("selective:4", 4), ("selective layer 4", 4), ("selective: 3/4", 12),
        ("true", 16), ("True", 16), ("1", 16), ("1.0", 16), ("yes", 16), ("activation checkpointing", 16),
        ("gradient checkpointing", 16), ("AC=full", 16), ("remat full", 16), ("all layers", 16), ("uniform", 16),
        ("full uniform 1", 16), ("uniform:1", 16), ("full (no flash attention)", 16), ("full+offload", 16),
        ("checkpointing every layer", 16), ("full; mlp", 16),
    ],
)  # fmt: skip
def test_layers(text: str, layers: int) -> None:
    config = read(text).config
    assert config.recompute is (Recompute.FULL if layers else Recompute.NONE)
    assert config.recompute_layers == layers


@pytest.mark.parametrize(
    "text",
    [
        "0", "0.0", "n/a", "null", "-", "disabled", "no recomputation", "none (flash attention)",
        "none; flash attention",
        "no activation checkpointing", "without", "not used", "off", "False", "AC=none", "full:0", "unknown", "N",
    ],
)  # fmt: skip
def test_none(text: str) -> None:
    assert read(text).config.recompute is Recompute.NONE


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("selective", ("core_attn",)), ("core attention", ("core_attn",)), ("selective (core-attn)", ("core_attn",)),
        ("selective:mla_up_proj+norm+moe_act", ("moe_act", "layernorm", "mla_up_proj")), ("moe act", ("moe_act",)),
        ("RMSNorm, MLA up-proj", ("layernorm", "mla_up_proj")), ("selective:moe", ("moe",)), ("per-op SAC", ("op",)),
        ("no full recomputation, selective mlp", ("mlp",)), ("modules", ("core_attn",)),
    ],
)  # fmt: skip
def test_modules(text: str, modules: tuple[str, ...]) -> None:
    config = read(text).config
    assert config.recompute is Recompute.SELECTIVE
    assert recomputed_modules(config.recompute_modules) == modules


def test_what_is_more_than_a_name_is_said() -> None:
    assert "recomputation 'yes': full, of 16 layers a pipeline rank" in read("yes").assumed
    for plain in ("none", "full", "full:5", "selective:mlp"):
        assert not any("recomputation" in said for said in read(plain).assumed)


def test_what_is_not_stated_may_be_all() -> None:
    """A cell that says that nothing is known leaves open what an empty one does."""
    for cell in ("", "n/a"):
        fallback = read(cell).fallback
        assert fallback is not None
        assert (fallback.recompute, fallback.recompute_layers) == (Recompute.FULL, STAGE)
    assert read("none").fallback is None


@pytest.mark.parametrize("share", [f"{n}/{m}" for m in (1, 2, 3, 4) for n in range(1, m + 1)])
def test_shares_of_layers_are_whole_layers_of_the_stage(share: str) -> None:
    layers = layers_in(f"full:{share}", STAGE)
    assert layers is not None
    assert 1 <= layers <= STAGE
