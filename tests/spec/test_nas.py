"""Llama-Nemotron pruned by search: every layer its own, some without attention, some nothing at all."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost.params import model_parameters
from planner.errors import FileInputError, UnsupportedError
from planner.report.words import texts
from planner.spec.hf import read_hf_config
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec

ATTENDS, NOTHING = {"n_heads_in_group": 4, "no_op": False, "window_length": None}, {"no_op": True}
WIDE = {"ffn_mult": 2.625, "no_op": False, "sparsify": None}


def read(*blocks: tuple[dict[str, Any], dict[str, Any]]) -> ModelSpec:
    config = {"model_type": "nemotron-nas", "hidden_size": 512, "num_hidden_layers": len(blocks), "vocab_size": 99,
              "num_attention_heads": 8, "num_key_value_heads": None, "intermediate_size": None,
              "block_configs": [{"attention": attention, "ffn": ffn} for attention, ffn in blocks]}  # fmt: skip
    return read_hf_config(config, "config.json", "m")


@pytest.mark.parametrize(
    ("name", "total", "layers"),
    [("llama-3.3-nemotron-super-49b", "49.9", 80), ("llama-3.1-nemotron-ultra-253b", "253.4", 81)],
)
def test_published_totals(name: str, total: str, layers: int) -> None:
    model = load_model(name)
    assert f"{model_parameters(model).total / 1e9:.1f}" == total
    assert model.num_layers == layers


def test_layers_are_what_their_blocks_say() -> None:
    model = read((ATTENDS, WIDE), (NOTHING, {"ffn_mult": 0.5}), (ATTENDS, NOTHING), (NOTHING, NOTHING))
    first, second, third = model.layers
    assert first.attention is not None
    assert (first.attention.heads, first.attention.kv_heads, first.attention.head_dim) == (8, 2, 64)
    assert [layer.norms for layer in model.layers] == [2, 1, 1]
    assert [layer.mlp.ffn if layer.mlp else 0 for layer in model.layers] == [
        1024,
        256,
        0,
    ]  # 896 and 170, rounded up
    assert (second.attention, third.mlp) == (None, None)
    assert "layers that compute nothing = 1 (not counted among the layers)" in texts(model.assumed)


@pytest.mark.parametrize(
    ("attention", "ffn"),
    [({"replace_with_linear": True}, WIDE), ({**ATTENDS, "window_length": 64}, WIDE),
     (ATTENDS, {**WIDE, "sparsify": "2:4"})],
)  # fmt: skip
def test_what_a_block_may_not_be(attention: dict[str, Any], ffn: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="block_configs"):
        read((attention, ffn))


@pytest.mark.parametrize(
    ("attention", "ffn", "field"),
    [({"n_heads_in_group": 3}, WIDE, "num_attention_heads"), (ATTENDS, {"ffn_mult": None}, "ffn_mult"),
     ({}, WIDE, "n_heads_in_group")],
)  # fmt: skip
def test_blocks_are_checked(attention: dict[str, Any], ffn: dict[str, Any], field: str) -> None:
    with pytest.raises(FileInputError, match=field):
        read((attention, ffn))
    with pytest.raises(FileInputError, match="every layer"):
        read_hf_config(
            {"model_type": "nemotron-nas", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 99,
             "num_attention_heads": 4, "block_configs": []}, "config.json", "m",
        )  # fmt: skip
