"""FLOPs: counts made on real implementations, hand-worked numbers, conventions of the frameworks."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.published_data import published, published_cases
from planner.cost.flops import model_flops, outer_gemms
from planner.cost.mfu import (
    MfuConvention,
    core_forward_flops_per_token,
    layers_forward_flops_per_token,
    mfu_flops_per_token,
)
from planner.cost.operations.lists import layer_gemms, model_operations
from planner.cost.operations.operation import Shard, gemm_flops
from planner.cost.operations.pairs import attended_pairs, attention_flops
from planner.cost.params import model_parameters
from planner.spec.attention import Attention, AttentionKind
from planner.spec.hf import read_hf_config
from planner.spec.load_model import catalog_models, load_model
from planner.spec.mixers import DeltaNet, ShortConvolution
from planner.spec.residual import AttentionResiduals

ORACLE = [row for row in published_cases("oracles/flops_oracle.csv") if not row["caveat"]]
PLAIN = Attention(AttentionKind.GQA, 8, 2, 16, 16)


def test_the_oracle_has_all_its_rows() -> None:
    assert published("oracles").is_dir()
    assert len(ORACLE) == 106


@pytest.mark.parametrize("row", ORACLE, ids=lambda row: f"{row['name']}-{row['batch']}x{row['seq']}")
def test_counts_of_real_implementations(row: dict[str, str]) -> None:
    config = json.loads(published(f"models/{row['name']}/config.json").read_text())
    spec = read_hf_config(config, "config.json", row["name"])
    flops = model_flops(spec, int(row["batch"]), int(row["seq"]))
    assert flops.forward_linear == int(row["fwd_linear"]) + int(row["fwd_grouped_mm"])
    assert flops.forward_attention == int(row["fwd_attn_bmm"])
    assert flops.backward == int(row["bwd_flops"])


def test_a_llama_layer_by_hand() -> None:
    spec = load_model("llama-3.1-8b")
    gemms = {gemm.name: gemm for gemm in layer_gemms(spec.layers[0], spec.hidden)}
    assert list(gemms) == ["qkv", "attention_out", "mlp_fc1", "mlp_fc2"]
    qkv = gemms["qkv"]
    assert (qkv.in_features, qkv.out_features, qkv.kv_out_features) == (4096, 4096, 2 * 1024)
    assert gemms["mlp_fc1"].out_features == 2 * 14336
    assert [gemm.shard for gemm in gemms.values()] == [Shard.COLUMN, Shard.ROW] * 2
    assert gemm_flops(qkv, 10) == 2 * 10 * 4096 * 6144
    assert [gemm.out_features for gemm in outer_gemms(spec)] == [128256]


def test_experts_and_latent_attention_by_hand() -> None:
    spec = load_model("deepseek-v3")
    gemms = {gemm.name: gemm for gemm in layer_gemms(spec.layers[-1], spec.hidden)}
    names = ["q_a", "q_b", "kv_a", "kv_b", "attention_out", "router"]
    assert list(gemms) == [*names, "shared_fc1", "shared_fc2", "expert_fc1", "expert_fc2"]
    assert gemms["q_b"].out_features == 128 * 192
    assert gemms["kv_b"].out_features == 128 * 256
    assert gemms["kv_a"].shard is Shard.NONE
    fc1 = gemms["expert_fc1"]
    assert (fc1.groups, fc1.rows_per_token, fc1.expert, fc1.out_features) == (256, 8, True, 4096)
    assert not gemms["shared_fc1"].expert


@pytest.mark.parametrize("name", catalog_models())
def test_products_hold_exactly_the_matrix_parameters(name: str) -> None:
    """Each layer's products have as many weights as the layer has parameters beside norms and biases."""
    spec = load_model(name)
    for layer in spec.layer_kinds:
        weights = sum(
            gemm.groups * gemm.in_features * (gemm.out_features + gemm.kv_out_features)
            for gemm in layer_gemms(layer, spec.hidden)
        )
        rest = (
            sum(op.weights.total for op in model_operations(layer, spec.hidden) if op.kind != "norms")
            - weights
        )
        a, mlp, moe, s = layer.attention, layer.mlp, layer.moe, layer.state_space
        if moe and moe.router_scale:  # scales of the router's input and of every expert
            rest -= spec.hidden + moe.experts
        biased = (
            (a and (a.qkv_bias or a.out_bias or a.sinks)) or (mlp and mlp.bias) or (moe and moe.expert_bias)
        )
        if isinstance(s, DeltaNet):  # convolution, scalars of every head, a norm that they share
            rest -= s.conv_width * s.conv + s.scalars * s.heads + s.head_dim
        elif s is not None:  # convolution; where heads have a time step its bias, decay and skip; a norm
            norm = 0 if isinstance(s, ShortConvolution) else s.inner
            rest -= s.conv_width * (s.conv + s.conv_bias) + 3 * s.scalars * s.heads + norm
        if isinstance(layer.residual, AttentionResiduals):  # a query and a norm of keys for every branch
            rest -= 2 * spec.hidden * len(layer.residual.earlier)
        rest -= moe.latent * moe.latent_norm if moe else 0
        if a and a.indexer and not a.indexer.shared:  # scale and shift of the norm of its key
            rest -= 2 * a.indexer.head_dim
        assert rest > 0 if biased else rest == 0


def test_causal_work_is_a_triangle() -> None:
    assert attended_pairs(PLAIN, 4) == 1 + 2 + 3 + 4
    assert attention_flops(PLAIN, 2, 4) == 2 * 2 * 16 * 8 * 32


@pytest.mark.parametrize(("window", "seq"), [(1, 7), (3, 7), (7, 7), (9, 7), (3, 9), (4, 1)])
def test_windows_against_counting_pairs(window: int, seq: int) -> None:
    sliding, chunked = replace(PLAIN, window=window), replace(PLAIN, window=window, chunked=True)
    pairs = [(i, j) for i in range(seq) for j in range(i + 1)]
    assert attended_pairs(sliding, seq) == sum(i - j < window for i, j in pairs)
    assert attended_pairs(chunked, seq) == sum(i // window == j // window for i, j in pairs)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_column_gives_what_its_rows_give(window: int | None, chunked: bool) -> None:
    attention = replace(PLAIN, window=window, chunked=chunked)
    column = np.array([1.0, 3.0, 10.0, 4096.0])
    rows = [attended_pairs(attention, seq) for seq in column]
    np.testing.assert_array_equal(attended_pairs(attention, column), rows)


def test_mtp_runs_a_layer_a_projection_and_the_head_again() -> None:
    with_mtp, without = load_model("deepseek-v3", with_mtp=True), load_model("deepseek-v3")
    extra = model_flops(with_mtp, 1, 1).forward_linear - model_flops(without, 1, 1).forward_linear
    layer = sum(gemm_flops(gemm, 1) for gemm in layer_gemms(without.layers[-1], without.hidden))
    assert extra == layer + 2 * 2 * 7168**2 + 2 * 7168 * 129280


class TestConventions:
    def test_full_square_of_gpt_is_the_published_formula(self) -> None:
        """Narayanan 2021: 96 B s l h^2 (1 + s / 6h + V / 16 l h) with recomputation, so 72 ... without."""
        spec = load_model("gpt-3-175b")
        h, layers, vocab, s = 12288, 96, 50257, 2048
        formula = 72 * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
        assert mfu_flops_per_token(spec, 2048, MfuConvention.FULL_SQUARE) == pytest.approx(formula, rel=1e-12)

    def test_whole_recomputation_adds_a_third_of_what_the_layers_compute(self) -> None:
        """Narayanan 2021, equation 3: 96 B s l h^2 (1 + s / 6h + V / 16 l h), the head computed once."""
        spec = load_model("gpt-3-175b")
        h, layers, vocab, s = 12288, 96, 50257, 2048
        formula = 96 * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
        once = mfu_flops_per_token(spec, 2048, MfuConvention.FULL_SQUARE)
        again = layers_forward_flops_per_token(spec, 2048, MfuConvention.FULL_SQUARE)
        assert once + again == pytest.approx(formula, rel=1e-12)
        core = core_forward_flops_per_token(spec, 2048, MfuConvention.FULL_SQUARE)
        assert core == pytest.approx(4 * layers * h * s, rel=1e-12)
        half = core_forward_flops_per_token(spec, 2048, MfuConvention.CAUSAL_HALF)
        assert half == pytest.approx(core / 2, rel=1e-12)

    def test_causal_half_halves_attention_alone(self) -> None:
        spec = load_model("llama-3.1-8b")
        linear = mfu_flops_per_token(spec, 0, MfuConvention.FULL_SQUARE)
        full = mfu_flops_per_token(spec, 8192, MfuConvention.FULL_SQUARE)
        half = mfu_flops_per_token(spec, 8192, MfuConvention.CAUSAL_HALF)
        assert half - linear == pytest.approx((full - linear) / 2)

    def test_windows_shorten_attention_in_the_causal_count_alone(self) -> None:
        spec = load_model("mistral-7b")
        half = [mfu_flops_per_token(spec, seq, MfuConvention.CAUSAL_HALF) for seq in (4096, 8192)]
        assert half[0] == half[1]
        full = [mfu_flops_per_token(spec, seq, MfuConvention.FULL_SQUARE) for seq in (4096, 8192)]
        assert full[0] < full[1]

    def test_palm_by_hand(self) -> None:
        """6 x 8,030,261,248 + 12 x 32 layers x 4096 x 8192."""
        spec = load_model("llama-3.1-8b")
        expected = 6 * 8_030_261_248 + 12 * 32 * 4096 * 8192
        assert mfu_flops_per_token(spec, 8192, MfuConvention.PALM) == expected
        without_table = expected - 6 * 128256 * 4096
        assert mfu_flops_per_token(spec, 8192, MfuConvention.TORCHTITAN) == without_table

    def test_six_n_ignores_the_sequence(self) -> None:
        spec = load_model("mixtral-8x7b")
        assert mfu_flops_per_token(spec, 8192, MfuConvention.SIX_N) == 6 * model_parameters(spec).active

    @pytest.mark.parametrize("convention", MfuConvention)
    def test_every_convention_takes_a_column(self, convention: MfuConvention) -> None:
        spec = load_model("gpt-oss-20b")
        column = np.array([64.0, 4096.0])
        rows = [mfu_flops_per_token(spec, seq, convention) for seq in (64.0, 4096.0)]
        np.testing.assert_allclose(mfu_flops_per_token(spec, column, convention), rows, rtol=1e-15)
