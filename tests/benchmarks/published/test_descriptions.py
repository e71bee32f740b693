"""Entries of a models file as curators write them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.published.descriptions import described_model
from planner.errors import FileInputError, UnsupportedError
from planner.report.words import texts
from planner.spec.attention import AttentionKind, QkNorm
from planner.spec.description import spec_from_description
from planner.spec.layer import NormKind
from planner.spec.model import ModelSpec
from tests.benchmarks.rows import MODELS

SMALL = {key: value for key, value in MODELS["small"].items() if key != "source"}
MIXTURE = MODELS["moe"]
MLA = {"q_lora_rank": None, "kv_lora_rank": 64, "qk_nope": 128, "qk_rope": 64, "v": 128}


def read(**changed: Any) -> ModelSpec:
    return described_model({**SMALL, **changed}, "small")


@pytest.mark.parametrize(
    "changed",
    [
        {"layers": 32.0}, {"layers": "32"}, {"hidden": 4096.0}, {"vocab": "128,256"}, {"head_dim": 128.0},
        {"gated_mlp": "true"}, {"gated_mlp": "SwiGLU"}, {"tied_embeddings": "False"}, {"tied_embeddings": 0},
        {"params_total_b": "~8"}, {"source": ["a", "b"]}, {"hf_id": 5}, {"moe": {}}, {"mla": {}},
        {"moe": {"experts": 0}}, {"moe": {**MIXTURE["moe"], "experts": 0}},
        {"context": 0}, {"norm": "rmsnorm"}, {"positions": "rope"},
        {"attention": "GQA"}, {"attention": ""}, {"attention": None}, {"attention": "grouped-query"},
        {"qk_norm": None}, {"bias": "no"},
    ],
)  # fmt: skip
def test_other_spellings_of_the_same_model(changed: dict[str, Any]) -> None:
    found, plain = read(**changed), described_model(SMALL, "small")
    assert found.layers == plain.layers
    assert (found.vocab, found.hidden, found.tied_embeddings) == (
        plain.vocab,
        plain.hidden,
        plain.tied_embeddings,
    )
    assert found.norm_kind is NormKind.RMS
    assert found.position_rows == 0


@pytest.mark.parametrize(
    ("changed", "kind", "kv_heads"),
    [
        ({"attention": "mqa", "kv_heads": None}, AttentionKind.GQA, 1),
        ({"attention": "MQA", "kv_heads": 1}, AttentionKind.GQA, 1),
        ({"attention": "MHA", "kv_heads": 32}, AttentionKind.MHA, 32),
        ({"attention": "multi-head", "kv_heads": None}, AttentionKind.MHA, 32),
        ({"attention": "swa"}, AttentionKind.GQA, 8),
        ({"attention": "MLA", "mla": MLA}, AttentionKind.MLA, 32),
        ({"attention": "gqa", "mla": MLA}, AttentionKind.MLA, 32),
    ],
)
def test_kinds_of_attention(changed: dict[str, Any], kind: AttentionKind, kv_heads: int) -> None:
    attention = read(**changed).layers[0].attention
    assert attention is not None
    assert (attention.kind, attention.kv_heads) == (kind, kv_heads)


@pytest.mark.parametrize(
    ("text", "window", "said"),
    [
        ("gqa", None, ""),
        ("mqa", None, ""),
        ("gqa (sliding window)", None, "to all tokens"),
        ("swa", None, "to all tokens"),
        ("gqa (sliding window 1024)", 1024, "a window of 1024 tokens in every layer"),
        ("gqa (sliding window 1024, alternating)", None, "to all tokens"),
        ("mha (parallel block)", None, "what else it says is not modelled"),
    ],
)
def test_a_remark_on_attention_is_said(text: str, window: int | None, said: str) -> None:
    spec = read(attention=text)
    assert spec.layers[0].attention is not None
    assert spec.layers[0].attention.window == window
    assert [said in what for what in texts(spec.assumed) if what.startswith("attention")] == [True] * bool(
        said
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"attention": "linear"}, {"attention": "gqa (hybrid mamba2)"}, {"attention": "Hybrid"}, {"layers": None},
        {"layers": "n/a"}, {"vocab": ""}, {"mamba": {"heads": 8, "head_dim": 64, "state": 128, "groups": 8}},
    ],
)  # fmt: skip
def test_architectures_that_no_field_tells_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        read(**changed)


@pytest.mark.parametrize(
    "changed", [{"layers": 32.5}, {"heads": True}, {"gated_mlp": "perhaps"}, {"attention": "mla"}]
)
def test_what_is_no_value_of_its_field_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(FileInputError):
        read(**changed)


def test_what_is_ignored_is_said() -> None:
    assert "notes = 'x' ignored" in texts(read(notes="x").assumed)
    spec = described_model(
        {**MIXTURE, "moe": {**MIXTURE["moe"], "n_group": 8, "top_k": 2.0, "shared_ffn": None}}, "m"
    )
    assert "moe.n_group = 8 ignored" in texts(spec.assumed)
    assert spec.layers == described_model(MIXTURE, "m").layers


def test_nothing_stated_stays_not_stated() -> None:
    """Null switches take the defaults, and a table of no positions is none."""
    plain = {**SMALL, "gated_mlp": None}
    assert described_model(plain, "m").layers == spec_from_description(plain, "m").layers
    assert described_model({**SMALL, "gated_mlp": False, "positions": 0}, "m").position_rows == 0
    assert described_model({**SMALL, "gated_mlp": "gelu"}, "m").position_rows > 0
    attention = read(qk_norm=True).layers[0].attention
    assert attention is not None
    assert attention.qk_norm is QkNorm.HEAD


def test_a_described_hybrid_keeps_its_remark_to_itself() -> None:
    mamba = {"heads": 64.0, "head_dim": 64, "state": 128, "groups": 8, "conv": None}
    entry = {
        **SMALL,
        "layers": 3,
        "hybrid_pattern": "M*-",
        "attention": "GQA (hybrid Mamba2)",
        "mamba": mamba,
    }
    spec = described_model(entry, "h")
    assert [layer.state_space is not None for layer in spec.layers] == [True, False, False]
    assert not any(said.startswith("attention") for said in texts(spec.assumed))
