"""Parameter counts: hand-worked numbers, published totals, the buckets of parallelism."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.published_data import published, published_cases
from planner.cost.operations.lists import model_operations
from planner.cost.params import (
    KINDS,
    inactive_parameters,
    layer_parameters,
    model_parameters,
    outer_parameters,
)
from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.hf import read_hf_config
from planner.spec.layer import Activation, Layer, Mlp, Moe
from planner.spec.load_model import catalog_models, load_model
from planner.spec.model import ModelSpec

ORACLE = published_cases("oracles/params_oracle.csv")
COLUMNS = {
    "embedding": "embedding",
    "position": "pos_embedding",
    "attention": "attn",
    "mlp": "mlp_dense",
    "experts": "experts",
    "shared_experts": "shared_expert",
    "router": "router",
    "norms": "norms",
    "final_norm": "final_norm",
    "head": "lm_head",
}
PLAIN = Attention(AttentionKind.GQA, 8, 2, 16, 16)
GATED = Mlp(256, gated=True, bias=False, activation=Activation.SILU)


def norms_of(layer: Layer) -> int:
    """Norms of a layer 128 wide, those inside attention included [parameters]."""
    return sum(op.weights.total for op in model_operations(layer, 128) if op.kind == "norms")


def test_the_oracle_has_all_its_rows() -> None:
    assert published("oracles").is_dir()
    assert len(ORACLE) == 38


@pytest.mark.parametrize("row", ORACLE, ids=lambda row: row["name"])
def test_counts_of_real_implementations(row: dict[str, str]) -> None:
    config = json.loads(published(f"models/{row['name']}/config.json").read_text())
    counts = model_parameters(read_hf_config(config, "config.json", row["name"]))
    assert counts.total == int(row["total"])
    assert counts.active == int(row["active"])
    assert {kind: counts.by_kind[kind] for kind in COLUMNS} == {k: int(row[c]) for k, c in COLUMNS.items()}


def test_a_llama_layer_by_hand() -> None:
    """Hidden 128: q 128 x 128, k and v 128 x 32 each, o 128 x 128, MLP 3 x 128 x 256, two norms."""
    counts = layer_parameters(Layer(PLAIN, GATED, None), 128)
    assert counts.column_row == 2 * 128 * 128 + 3 * 128 * 256
    assert counts.kv == 2 * 128 * 32
    assert counts.replicated == 2 * 128
    assert counts.router == counts.expert == counts.expert_replicated == counts.shared == 0


def test_biases_are_replicated_only_behind_row_parallel_weights() -> None:
    bare = layer_parameters(Layer(PLAIN, GATED, None), 128)
    biased = replace(PLAIN, qkv_bias=True, out_bias=True)
    counts = layer_parameters(Layer(biased, replace(GATED, bias=True), None, norm_bias=True), 128)
    assert counts.column_row - bare.column_row == 128 + 2 * 256
    assert counts.kv - bare.kv == 2 * 32
    assert counts.replicated - bare.replicated == 128 + 128 + 2 * 128


def test_experts_by_hand() -> None:
    moe = Moe(4, 2, 64, True, expert_bias=True, shared_ffn=32, shared_gate=True, router_bias=True)
    counts = layer_parameters(Layer(PLAIN, None, moe), 128)
    assert counts.router == 4 * 128 + 4
    assert counts.expert == 4 * (3 * 128 * 64 + 2 * 64)
    assert counts.expert_replicated == 4 * 128
    assert counts.shared == 3 * 128 * 32
    assert counts.replicated == 2 * 128 + 128
    assert inactive_parameters(Layer(PLAIN, None, moe), 128) == 2 * (3 * 128 * 64 + 2 * 64 + 128)


def test_latent_attention_by_hand() -> None:
    """DeepSeek-V3, one layer: 187,105,280 in projections, 1536 + 512 in the norms of the compressed streams."""
    layer = load_model("deepseek-v3").layers[0]
    dense = layer_parameters(replace(layer, mlp=Mlp(1, True, False, Activation.SILU)), 7168)
    q = 7168 * 1536 + 1536 * 128 * 192
    kv = 7168 * (512 + 64) + 512 * 128 * (128 + 128)
    assert q + kv + 128 * 128 * 7168 == 187_105_280
    assert dense.total == 187_105_280 + 3 * 7168 + 2 * 7168 + 1536 + 512
    assert dense.replicated == 7168 * (1536 + 576) + 2 * 7168 + 2048
    assert dense.kv == 0


def test_norms_of_queries_and_keys() -> None:
    layer = Layer(PLAIN, GATED, None)
    plain = norms_of(layer)
    head = norms_of(replace(layer, attention=replace(PLAIN, qk_norm=QkNorm.HEAD)))
    full = norms_of(replace(layer, attention=replace(PLAIN, qk_norm=QkNorm.FULL)))
    assert (plain, head - plain, full - plain) == (256, 2 * 16, (8 + 2) * 16)
    assert norms_of(replace(layer, norm_weight=False)) == 0


def test_sinks_are_divided_with_the_heads() -> None:
    layer = Layer(replace(PLAIN, sinks=True), GATED, None)
    assert (
        layer_parameters(layer, 128).column_row - layer_parameters(Layer(PLAIN, GATED, None), 128).column_row
        == 8
    )


def test_tied_embeddings_count_once() -> None:
    spec = ModelSpec("m", "llama", 128, 1000, (Layer(PLAIN, GATED, None),), tied_embeddings=True)
    assert outer_parameters(spec)["head"] == 0
    assert outer_parameters(replace(spec, tied_embeddings=False))["head"] == 128_000
    assert outer_parameters(replace(spec, head_bias=True))["head"] == 1000
    assert outer_parameters(spec)["embedding"] == 128_000
    assert outer_parameters(replace(spec, position_rows=10))["position"] == 1280


def test_mtp_adds_a_layer_a_projection_and_three_norms() -> None:
    with_mtp, without = load_model("deepseek-v3", with_mtp=True), load_model("deepseek-v3")
    extra = model_parameters(with_mtp).total - model_parameters(without).total
    assert extra == 11_507_286_016 + 2 * 7168**2 + 3 * 7168
    assert extra == model_parameters(with_mtp).by_kind["mtp"]
    assert model_parameters(with_mtp).active - model_parameters(without).active < extra


@pytest.mark.parametrize("name", catalog_models())
def test_buckets_and_kinds_sum_to_the_total(name: str) -> None:
    spec = load_model(name)
    counts = model_parameters(spec)
    layers = sum(layer_parameters(layer, spec.hidden).total for layer in spec.layers)
    assert counts.total == layers + sum(outer_parameters(spec).values())
    assert counts.total == sum(counts.by_kind.values())
    assert sorted(counts.by_kind) == sorted(KINDS)
    assert counts.active <= counts.total
    assert (counts.active < counts.total) == spec.is_moe
