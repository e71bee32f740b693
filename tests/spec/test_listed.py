"""Do expressions and forms say what runs, whatever the sizes?"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.layer import Activation, Layer, Mlp
from planner.spec.listed import Product, Values, choices, fixed_sizes, form, layer_form, model_form, sizes_of
from tests.problems import attention, dense_model, moe_model


def test_a_product_has_each_symbol_as_often_as_it_stands_there() -> None:
    assert Product(0.5, ("b", "s", "s")).of({"b": 3, "s": 4, "h": 7}) == 24.0
    assert Product(7.0, ()).of({}) == 7.0


def test_a_form_has_no_sizes_but_what_decides_the_operations() -> None:
    small, large = dense_model(), dense_model(layers=40, hidden=4096, heads=32, ffn=11008, vocab=50000)
    assert model_form(small, 4096, "one") == model_form(large, 4096, "one")
    assert model_form(small, 4096, "one") != model_form(dense_model(tied=True), 4096, "one")
    assert model_form(small, 4096, "one") != model_form(
        dense_model(kv_heads=16), 4096, "one"
    )  # keys are not repeated
    assert model_form(small, 4096, "one") != model_form(moe_model(), 4096, "one")


def test_kinds_of_layers_that_differ_have_different_forms() -> None:
    plain = Layer(attention(), Mlp(4096, True, False, Activation.SILU), None)
    for other in (
        replace(plain, attention=replace(attention(), window=512)),
        replace(plain, attention=replace(attention(), qkv_bias=True)),
        replace(plain, mlp=Mlp(4096, True, False, Activation.GELU_TANH)),
        replace(plain, norms=4),
    ):
        assert form(other) != form(plain)
    assert form(plain) == form(replace(plain, mlp=Mlp(9216, True, False, Activation.SILU)))


def test_what_of_a_configuration_chooses_kernels() -> None:
    config = {
        "hidden_act": "gelu_new",
        "attn_pdrop": 0.1,
        "attention_dropout": 0.0,
        "output_router_logits": True,
    }
    chosen = {
        "hidden_act": "gelu_new",
        "attn_pdrop": True,
        "attention_dropout": False,
        "output_router_logits": True,
    }
    idle = {
        "classifier_dropout": 0.1,
        "summary_first_dropout": 0.1,
        "partial_rotary_factor": 0.5,
        "hidden_size": 8,
    }
    assert choices(config | idle) == chosen


def test_sizes_that_are_the_same_in_all_runs_are_fixed() -> None:
    assert fixed_sizes([{"b": 7, "d": 192, "i": 64, "k": 1}, {"b": 11, "d": 192, "i": 64, "k": 1}]) == {
        "d": 192
    }


def test_expressions_that_nobody_asks_for_need_no_symbols() -> None:
    values = Values([(Product(2.0, ("b",)), Product(1.0, ())), (Product(1.0, ("e",)),)], {"b": 3})
    assert values[0] == 7.0


def test_a_window_longer_than_sequences_is_none() -> None:
    plain = Layer(attention(), Mlp(4096, True, False, Activation.SILU), None)
    windowed = replace(plain, attention=replace(attention(), window=512))
    assert layer_form(windowed, 511) == layer_form(plain, 511)
    assert layer_form(windowed, 512) == f"{form(windowed)} heads to 128" != layer_form(plain, 512)


def test_sizes_are_those_of_the_layer_or_of_the_first_that_has_any() -> None:
    model = moe_model(leading_dense=1)
    dense, sparse = model.layer_kinds
    assert "e" not in sizes_of(model, dense, 2, 128)
    assert sizes_of(model, sparse, 2, 128)["e"] == 16
    outside = sizes_of(model, None, 2, 128, rank=8)
    assert (outside["b"], outside["s"], outside["x"], outside["r"]) == (2, 128, 129, 8)
    assert (outside["f"], outside["g"]) == (4 * 2048, 1024)
