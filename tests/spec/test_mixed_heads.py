"""Models whose layers differ in their heads: what is read, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.cut import LayerShape
from planner.cost.operations.lists import layer_gemms
from planner.cost.operations.operation import gemm_flops
from planner.cost.operations.pairs import attention_flops
from planner.cost.params import layer_parameters, model_parameters
from planner.errors import FileInputError, InputError, UnsupportedError
from planner.report.words import texts
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.hf import read_hf_config
from planner.spec.load_model import load_model
from planner.spec.machine.device_kernels import missing_kernels, with_device_kernels
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.model import ModelSpec
from planner.spec.precision import RECIPES, Precision
from planner.spec.stack.kinds import AttentionKernel
from tests.problems import costs, layer_activations, problem

SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99,
    "intermediate_size": 48, "head_dim": 16,
}  # fmt: skip
GEMMA4 = {"model_type": "gemma4_text", **SMALL, "hidden_size_per_layer_input": 0, "global_head_dim": 32}


def read(config: dict[str, Any]) -> ModelSpec:
    return read_hf_config(config, "config.json", "m")


def attentions_of(model: ModelSpec) -> list[Attention]:
    return [layer.attention for layer in model.layers if layer.attention is not None]


def heads(model: ModelSpec) -> list[tuple[int, int, int, int | None]]:
    found = [layer.attention for layer in model.layers]
    return [(a.heads, a.kv_heads, a.head_dim, a.window) for a in found if a is not None]


@pytest.mark.parametrize(
    ("name", "total", "active"), [("gemma-4-31b", "30.7", "30.7"), ("gemma-4-26b-a4b", "25.2", "3.8")]
)
def test_published_totals_of_gemma_4(name: str, total: str, active: str) -> None:
    counted = model_parameters(load_model(name))
    assert (f"{counted.total / 1e9:.1f}", f"{counted.active / 1e9:.1f}") == (total, active)


def test_gemma_4_sees_everything_in_every_sixth_layer_and_the_last() -> None:
    slides, sees = (4, 2, 16, 512), (4, 2, 32, None)
    assert heads(read(GEMMA4)) == [slides] * 5 + [sees, sees]
    tied = read({**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1})
    assert heads(tied)[5] == (4, 1, 32, None)
    assert [a.tied_values for a in tied.attentions] == [False, True]


def test_layers_that_the_library_sets_apart() -> None:
    stated = read({**GEMMA4, "per_layer_config": {"1": {"head_dim": 8, "num_key_value_heads": 1}}})
    assert heads(stated)[:2] == [(4, 2, 16, 512), (4, 1, 8, 512)]
    assert heads(stated)[5] == (4, 2, 16, None)  # what it leaves out is as in all layers
    padded = read({**GEMMA4, "per_layer_config": {"01": {"head_dim": 8}}})  # as the library writes it
    assert heads(padded)[1] == (4, 2, 8, 512)
    with pytest.raises(FileInputError, match="number of a layer"):
        read({**GEMMA4, "per_layer_config": {"first": {"head_dim": 8}}})
    with pytest.raises(FileInputError, match="number of heads"):
        read({**GEMMA4, "per_layer_config": {"1": {"intermediate_size": 8}}})
    with pytest.raises(FileInputError, match="per_layer_config"):
        read({"model_type": "llama", **SMALL, "per_layer_config": {"1": {"num_key_value_heads": 1}}})


def test_what_gemma_4_is_refused_for() -> None:
    with pytest.raises(UnsupportedError, match="not modelled"):
        read({**GEMMA4, "use_bidirectional_attention": "all"})
    with pytest.raises(FileInputError, match="num_kv_shared_layers"):
        read(
            {**GEMMA4, "num_kv_shared_layers": 2}
        )  # the one layer that sees everything has nothing to borrow


E4B = {
    "model_type": "gemma4_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42,
    "num_attention_heads": 8, "num_key_value_heads": 2, "num_kv_shared_layers": 18, "vocab_size": 262144,
}  # fmt: skip


class TestOwnInputs:
    """Gemma 4 E4B: 18 of 42 layers borrow keys and values, all have 256 inputs of their own."""

    def test_parameters(self) -> None:
        found = model_parameters(read(E4B))
        assert found.by_kind["embedding"] == 262144 * 2560 + 42 * 256 * (262144 + 2560)
        assert found.by_kind["layer_inputs"] == 42 * 2 * 2560 * 256
        assert found.total == 7_463_013_376
        narrow = read({**E4B, "num_kv_shared_layers": 0})
        borrowed = 15 * (2 * 2560 * 512 + 256) + 3 * (2 * 2560 * 1024 + 512)
        assert model_parameters(narrow).total - found.total == borrowed

    def test_who_lends_to_whom(self) -> None:
        model = read({**E4B, "use_double_wide_mlp": True})
        attentions = [layer.attention for layer in model.layers if layer.attention is not None]
        assert [i for i, a in enumerate(attentions) if a.lends_kv] == [22, 23]
        assert [i for i, a in enumerate(attentions) if a.borrows_kv] == list(range(24, 42))
        assert [layer.mlp.ffn for layer in model.layers[22:26] if layer.mlp] == [10240, 10240, 20480, 20480]
        assert layer_gemms(model.layers[24], 2560)[0].kv_out_features == 0
        assert [g.name for g in layer_gemms(model.layers[0], 2560)][-2:] == ["side_gate", "side_out"]

    def test_a_recomputed_layer_keeps_what_others_read(self) -> None:
        subject = problem(read(E4B), "1x8 h100 400G-ib", seq_len=4096, stack="fsdp1-2023")
        model, keys = costs(subject).layers, ConfigTable.of([ParallelConfig(dp=8)])
        plain, lender, borrower = (model.layer(subject.model.layers[i], keys) for i in (0, 22, 24))
        stream, pairs = 2 * 4096 * 2560, 2 * 4096 * 2 * (256 + 256)
        assert float(plain.kept_full[0]) == float(borrower.kept_full[0]) == stream + 2 * 4096 * 256
        assert float((lender.kept_full - plain.kept_full)[0]) == pairs
        assert float(lender.kept[0]) == float(plain.kept[0])
        assert float(borrower.kept[0]) < float(plain.kept[0])
        assert float(borrower.forward["gemm"][0]) < float(plain.forward["gemm"][0])
        assert float(borrower.forward["attention"][0]) == float(plain.forward["attention"][0])

    def test_what_pytorch_keeps_of_a_layer(self) -> None:
        """Saved tensors of transformers 5.23's layers that lend and that borrow, over those of the stream."""
        model = read({**E4B, "hidden_size": 512, "intermediate_size": 1536, "head_dim": 64, "global_head_dim": 64,
                      "num_hidden_layers": 4, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 64,
                      "layer_types": ["sliding_attention", "full_attention"] * 2})  # fmt: skip
        subject = problem(model, seq_len=1024, stack="deepspeed-2025")
        layers, keys = costs(subject).layers, ConfigTable.of([ParallelConfig(dp=16)])
        lender, borrower = (float(layers.layer(model.layers[i], keys).kept[0]) / 1024 / 512 for i in (1, 2))
        assert lender == pytest.approx(87.60, abs=0.01)
        assert borrower == pytest.approx(
            83.04, abs=0.1
        )  # its norm of values, which it has not, keeps statistics

    def test_no_pipeline_divides_it(self) -> None:
        subject = problem(read(E4B), stack=load_stack("megatron-2026"))
        broken = explain_config(ParallelConfig(pp=2, dp=8), subject, rules_for(subject.stack))
        assert "shared-between-layers-pp" in {b.rule for b in broken}


HUNYUAN: dict[str, Any] = {
    "model_type": "hunyuan", "hidden_size": 6400, "intermediate_size": 18304, "num_hidden_layers": 64,
    "num_attention_heads": 80, "num_key_value_heads": 8, "vocab_size": 129024, "use_qk_norm": True,
    "use_cla": True, "cla_share_factor": 2, "num_experts": 16, "use_mixed_mlp_moe": True, "num_shared_expert": 1,
    "moe_topk": 1,
}  # fmt: skip


class TestCrossLayerAttention:
    """Hunyuan-Large: every second layer borrows keys and values as projected, and rotates and norms the keys anew."""

    @pytest.mark.parametrize(
        ("changed", "inside"),
        [
            ({"use_cla": True, "cla_share_factor": 2, "use_qk_norm": True, "num_experts": 4,
              "use_mixed_mlp_moe": True, "num_shared_expert": 2}, 193_488),
            ({"num_experts": 1}, 85_120),
            ({"num_experts": 4, "attention_bias": True, "use_cla": True, "cla_share_factor": 3}, 144_000),
        ],
    )  # fmt: skip
    def test_layers_count_as_tencents_own_code(self, changed: dict[str, Any], inside: int) -> None:
        """Parameters of its HunYuanDecoderLayers on the meta device (models/modeling_hunyuan.py)."""
        small = {"hidden_size": 64, "intermediate_size": 24, "num_hidden_layers": 5, "num_attention_heads": 8,
                 "num_key_value_heads": 4, "vocab_size": 99}  # fmt: skip
        found = model_parameters(read({"model_type": "hunyuan", **small, **changed}))
        assert found.total - 2 * 99 * 64 - 64 == inside

    def test_published_total(self) -> None:
        """389B and 52B active (arXiv 2411.02265)."""
        found = model_parameters(read(HUNYUAN))
        assert (found.total // 10**9, found.active // 10**9) == (389, 52)

    def test_who_keeps_what(self) -> None:
        """Both keep rotated keys and what their norm reads; the values, which both read, count once."""
        subject = problem(read(HUNYUAN), "16x8 h100 400G-ib", seq_len=4096, stack="deepspeed-2025")
        layers, keys = costs(subject).layers, ConfigTable.of([ParallelConfig(dp=128, ep=16)])
        lender, borrower = (layers.layer(subject.model.layers[i], keys) for i in (0, 1))
        values = 2 * 4096 * 8 * 80
        assert float((lender.kept - borrower.kept)[0]) == values
        assert float((lender.kept_full - borrower.kept_full)[0]) == 2 * values
        assert float(borrower.forward["gemm"][0]) < float(lender.forward["gemm"][0])
        assert float(borrower.forward["attention"][0]) == float(lender.forward["attention"][0])
        last = layers.layer(subject.model.layers[63], keys)
        assert float(last.kept_full[0]) == float(borrower.kept_full[0])


def test_tied_values_spare_a_projection_and_no_attention() -> None:
    a = Attention(AttentionKind.GQA, 4, 2, 16, 16)
    tied = replace(a, tied_values=True)
    layer = load_model("llama-3-8b").layers[0]
    whole, less = (replace(layer, attention=one) for one in (a, tied))
    assert layer_parameters(whole, 64).kv - layer_parameters(less, 64).kv == 64 * 2 * 16
    products = [gemm_flops(layer_gemms(one, 64)[0], 1) for one in (whole, less)]
    assert products[0] - products[1] == 2 * 64 * 2 * 16
    assert attention_flops(a, 1, 8) == attention_flops(tied, 1, 8)
    with pytest.raises(InputError, match="tied_values"):
        replace(tied, v_head_dim=8)


def test_heads_too_wide_for_a_flash_kernel() -> None:
    model, chip = load_model("gemma-4-31b"), load_cluster("h100", 8).accelerator
    megatron, deepspeed = load_stack("megatron-2026"), load_stack("deepspeed-2025")
    kernels = [megatron.kernels.attention_of(a) for a in model.attentions]  # layer by layer
    assert kernels == [AttentionKernel.FLASH, AttentionKernel.FUSED_SOFTMAX]
    assert with_device_kernels(megatron, model, chip, Precision.BF16) is megatron
    one = with_device_kernels(deepspeed, model, chip, Precision.BF16).kernels  # a program has one for all
    assert {one.attention_of(a) for a in model.attentions} == {AttentionKernel.MEMORY_EFFICIENT}
    for stack in (megatron, deepspeed):
        (said,) = texts(missing_kernels(stack, model, chip, Precision.BF16))
        assert "512" in said


STEP = {"model_type": "step3p5", **SMALL, "moe_intermediate_size": 8, "sliding_window": 16,
        "layer_types": ["full_attention", *["sliding_attention"] * 7], "num_nextn_predict_layers": 1,
        "attention_other_setting": {"num_attention_heads": 6}, "moe_layers_enum": "2,3,4,5,6"}  # fmt: skip
# fields of the published config.json, and parameters in billions as printed: total, active
PUBLISHED: dict[str, tuple[dict[str, Any], str, str]] = {
    "Step-3.5-Flash": (
        {"model_type": "step3p5", "vocab_size": 128896, "sliding_window": 512, "num_sliding_attention_heads": 96,
         "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 11 + ["full_attention"]}, "196", "11",
    ),
    "MiMo-V2-Flash": ({"model_type": "mimo_v2_flash"}, "309", "15"),
    "Laguna-XS.2": (
        {"model_type": "laguna",
         "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 10,
         "num_attention_heads_per_layer": [48, 64, 64, 64] * 10}, "33", "3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_totals(name: str) -> None:
    config, total, active = PUBLISHED[name]
    counted = model_parameters(read(config))
    table = counted.by_kind["embedding"] if name == "Step-3.5-Flash" else 0  # which its figures leave out
    assert (f"{(counted.total - table) / 1e9:.0f}", f"{(counted.active - table) / 1e9:.0f}") == (
        total,
        active,
    )


def test_step_slides_with_more_heads() -> None:
    model = read(STEP)
    assert heads(model) == [(4, 2, 16, None)] + [(6, 2, 16, 16)] * 6
    assert [layer.moe is not None for layer in model.layers] == [False] * 2 + [True] * 5
    assert sorted({a.gate_width for a in model.attentions}) == [4, 6]


def test_mimo_has_sinks_and_more_pairs_where_it_slides() -> None:
    mimo = {"model_type": "mimo_v2_flash", **SMALL, "num_key_value_heads": 1, "v_head_dim": 8,
            "moe_intermediate_size": 8}  # fmt: skip
    model = read(mimo)
    assert heads(model) == [(4, 1, 16, None), *[(4, 2, 16, 129)] * 4, (4, 1, 16, None), (4, 2, 16, 129)]
    found = [layer.attention for layer in model.layers[:2]]
    assert [(a.sinks, a.v_head_dim) for a in found if a is not None] == [(False, 8), (True, 8)]
    with pytest.raises(FileInputError, match="swa_num_key_value_heads"):
        read({**mimo, "swa_num_key_value_heads": 4})


def test_mimo_2_5_is_flash_with_all_stated() -> None:
    flash = {"model_type": "mimo_v2_flash"}
    slides = [int(a.sinks) for a in attentions_of(read(flash))]
    stated = {"hybrid_layer_pattern": slides, "moe_layer_freq": [0] + [1] * 47}
    later = read({**flash, "model_type": "mimo_v2", **stated})
    assert model_parameters(later).by_kind == model_parameters(read(flash)).by_kind
    assert heads(later)[:2] == [(64, 4, 192, None), (64, 8, 192, 128)]
    assert [a.v_head_dim for a in attentions_of(later)] == [128] * 48


def test_mimo_pro_has_its_published_size() -> None:
    """1.02T and 42B active parameters; of its layers the kinds of attention hold as many (sgl-project/sglang#23808)."""
    pro = {"model_type": "mimo_v2", "hidden_size": 6144, "num_hidden_layers": 70, "num_attention_heads": 128,
           "num_key_value_heads": 8, "swa_num_attention_heads": 128, "n_routed_experts": 384,
           "hybrid_layer_pattern": [0] + [1] * 69, "moe_layer_freq": [0] + [1] * 69}  # fmt: skip
    counted = model_parameters(read(pro))
    assert (f"{counted.total / 1e12:.2f}", f"{counted.active / 1e9:.0f}") == ("1.02", "42")
    attention = 6144 * (128 * 192 + 8 * 192 + 8 * 128 + 128 * 128)
    assert counted.by_kind["attention"] == 70 * attention + 69 * 128  # a sink of every head where it slides
    full = read({**pro, "add_full_attention_sink_bias": True, "add_swa_attention_sink_bias": False})
    assert [a.sinks for a in attentions_of(full)] == [True] + [False] * 69


@pytest.mark.parametrize(
    "given",
    [
        {"hybrid_layer_pattern": None},
        {"hybrid_layer_pattern": [0] * 47},
        {"moe_layer_freq": [2] * 48},
        {"n_shared_experts": 1},
    ],
)
def test_mimo_2_5_states_the_kind_of_every_layer(given: dict[str, Any]) -> None:
    stated = {"model_type": "mimo_v2", "hybrid_layer_pattern": [0] * 48, "moe_layer_freq": [1] * 48}
    read(stated)
    with pytest.raises(FileInputError, match=next(iter(given))):
        read({**stated, **given})


def test_a_gate_of_every_head() -> None:
    a = Attention(AttentionKind.GQA, 4, 2, 16, 16, qkv_bias=True)
    model, stack = load_model("llama-3-8b"), load_stack("megatron-2026")
    each = [a, replace(a, head_gate=True), replace(a, output_gate=True)]
    plain, gated, whole = (replace(model.layers[0], attention=one) for one in each)
    assert layer_parameters(gated, 64).total - layer_parameters(plain, 64).total == 64 * 4  # without a bias
    assert layer_gemms(gated, 64)[0].out_features - layer_gemms(plain, 64)[0].out_features == 4
    cut = LayerShape(*(np.full(1, value) for value in (8.0, 1, 1, 1, 8, 1, 1, 1, 8)))
    recipe = RECIPES[Precision.BF16]
    kept = [
        float(sum(layer_activations(one, model, cut, stack.kernels, recipe).values())[0])
        for one in (plain, gated, whole)
    ]
    output = 2 * 8 * 4 * 16  # what the gate multiplies is kept, and the gate itself
    assert kept[1] - kept[0] == output + 2 * 8 * 4
    assert kept[2] - kept[0] == output + 2 * 8 * 4 * 16
    with pytest.raises(InputError, match="one gate"):
        replace(a, head_gate=True, output_gate=True)


def test_what_eager_norms_of_heads_keep() -> None:
    """Of every value its own and an fp32 copy, as saved tensors of transformers' Qwen 3 and Gemma 4 layers show."""
    a = Attention(AttentionKind.GQA, 4, 2, 16, 16)
    model, stack = load_model("llama-3-8b"), load_stack("deepspeed-2025")
    cut = LayerShape(*(np.full(1, value) for value in (8.0, 1, 1, 1, 8, 1, 1, 1, 8)))
    kept = [
        float(
            layer_activations(
                replace(model.layers[0], attention=one), model, cut, stack.kernels, RECIPES[Precision.BF16]
            )["qkv"][0]
        )
        for one in (a, replace(a, qk_norm=QkNorm.HEAD), replace(a, qk_norm=QkNorm.HEAD, value_norm=True))
    ]
    queries, keys = 8 * 4 * 16, 8 * 2 * 16
    assert kept[1] - kept[0] == (2 + 4) * (queries + keys)
    assert kept[2] - kept[1] == (2 + 4) * keys
