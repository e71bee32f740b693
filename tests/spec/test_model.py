"""The model structure itself: interning, derived properties, refusal of contradictions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import InputError
from planner.spec.attention import Attention, AttentionKind
from planner.spec.layer import Activation, Layer, Mlp, Moe
from planner.spec.model import ModelSpec

ATTENTION = Attention(AttentionKind.GQA, 8, 2, 16, 16)
MLP = Mlp(ffn=256, gated=True, bias=False, activation=Activation.SILU)
MOE = Moe(
    experts=4,
    top_k=2,
    expert_ffn=64,
    gated=True,
    expert_bias=False,
    shared_ffn=0,
    shared_gate=False,
    router_bias=False,
)
MLA = Attention(AttentionKind.MLA, 4, 4, 24, 16, kv_lora_rank=8, qk_rope_dim=8)


def model(*layers: Layer) -> ModelSpec:
    return ModelSpec("m", "llama", hidden=128, vocab=1000, layers=layers, tied_embeddings=False)


def test_layers_are_interned_and_kinds_keep_their_order() -> None:
    dense, sparse = Layer(ATTENTION, MLP, None), Layer(ATTENTION, None, MOE)
    spec = model(dense, sparse, replace(dense), sparse, replace(sparse))
    assert spec.num_layers == 5
    assert spec.layer_kinds == (dense, sparse)
    assert spec.layer_kind_of == (0, 1, 0, 1, 1)
    assert spec.layers[0] is spec.layers[2]
    assert spec.layers[1] is spec.layers[4]
    assert spec.is_moe
    assert not model(dense).is_moe


def test_a_model_is_hashable_and_equal_by_value() -> None:
    first, second = model(Layer(ATTENTION, MLP, None)), model(Layer(ATTENTION, MLP, None))
    assert first == second
    assert len({first, second}) == 1
    assert first != replace(first, vocab=1001)


def test_embedding_is_as_wide_as_the_model_unless_stated() -> None:
    assert model(Layer(ATTENTION, MLP, None)).embedding_width == 128
    assert replace(model(Layer(ATTENTION, MLP, None)), embedding_width=64).embedding_width == 64


def test_mla_splits_a_head_into_rotated_and_unrotated_parts() -> None:
    assert MLA.qk_nope_dim == 16
    assert ATTENTION.qk_nope_dim == 16


@pytest.mark.parametrize(
    ("part", "change", "field"),
    [
        (ATTENTION, {"heads": 0}, "heads"),
        (ATTENTION, {"heads": 7}, "kv_heads"),
        (ATTENTION, {"head_dim": -1}, "head_dim"),
        (ATTENTION, {"head_dim": 16.0}, "head_dim"),
        (ATTENTION, {"heads": True}, "heads"),
        (ATTENTION, {"kind": AttentionKind.MHA}, "kv_heads"),
        (ATTENTION, {"kv_lora_rank": 8}, "kv_lora_rank"),
        (ATTENTION, {"window": 0}, "window"),
        (MLA, {"kv_lora_rank": 0}, "kv_lora_rank"),
        (MLA, {"qk_rope_dim": 24}, "qk_rope_dim"),
        (MLA, {"kv_heads": 2}, "kv_heads"),
        (MLP, {"ffn": 0}, "ffn"),
        (MOE, {"top_k": 5}, "top_k"),
        (MOE, {"experts": 0}, "experts"),
        (MOE, {"groups": 3, "top_groups": 1}, "groups"),
        (MOE, {"groups": 2, "top_groups": 3}, "top_groups"),
        (Layer(ATTENTION, MLP, None), {"moe": MOE}, "at most one"),
        (Layer(None, MLP, None), {"mlp": None}, "something to compute"),
        (model(Layer(ATTENTION, MLP, None)), {"vocab": 0}, "vocab"),
        (model(Layer(ATTENTION, MLP, None)), {"layers": ()}, "layers"),
        (model(Layer(ATTENTION, MLP, None)), {"mtp_layers": -1}, "mtp_layers"),
    ],
)
def test_contradictions_are_refused_by_field(part: object, change: dict[str, object], field: str) -> None:
    with pytest.raises(InputError, match=field):
        replace(part, **change)  # type: ignore[type-var]
