"""Architectures described by hand, and those of the published runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.published_data import published
from planner.cost.params import model_parameters
from planner.errors import FileInputError, UnsupportedError
from planner.report.words import texts
from planner.spec.attention import AttentionKind
from planner.spec.description import spec_from_description
from planner.spec.findings import Finding
from planner.spec.load_model import load_model

BASE = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 100, "ffn": 96}
MOE = {"experts": 8, "top_k": 2, "expert_ffn": 32}
MLA = {"q_lora_rank": None, "kv_lora_rank": 8, "qk_nope": 16, "qk_rope": 8, "v": 16}


def test_what_is_not_stated_is_said_to_be_assumed() -> None:
    spec = spec_from_description(BASE, "small")
    assert "kv_heads = 4" in texts(spec.assumed)
    assert "gated_mlp = True" in texts(spec.assumed)
    assert spec.layers[0].attention.head_dim == 16


def test_a_full_description_equals_the_configuration_file() -> None:
    fields = {
        "layers": 32,
        "hidden": 4096,
        "ffn": 14336,
        "heads": 32,
        "kv_heads": 8,
        "vocab": 128256,
        "tied_embeddings": False,
        "gated_mlp": True,
        "attention": "gqa",
    }
    spec = spec_from_description(fields, "llama")
    assert model_parameters(spec) == model_parameters(load_model("llama-3.1-8b"))


def test_latent_attention_and_experts_equal_deepseek_v3() -> None:
    fields = json.loads(json.dumps(DEEPSEEK_V3))
    ours = model_parameters(spec_from_description(fields, "v3"))
    assert ours == model_parameters(load_model("deepseek-v3"))


def test_moe_every_counts_from_one_after_the_dense_layers() -> None:
    spec = spec_from_description({**BASE, "moe": {**MOE, "moe_every": 2}}, "m")
    assert [layer.moe is not None for layer in spec.layers] == [False, True, False, True]
    spec = spec_from_description({**BASE, "moe": {**MOE, "first_dense_layers": 3}}, "m")
    assert [layer.moe is not None for layer in spec.layers] == [False, False, False, True]


def test_latent_attention_without_query_compression() -> None:
    attention = spec_from_description({**BASE, "attention": "mla", "mla": MLA}, "m").layers[0].attention
    assert attention.kind is AttentionKind.MLA
    assert (attention.head_dim, attention.q_lora_rank) == (24, 0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"hidden": "64"}, "hidden"),
        ({"hidden": 64.0}, "hidden"),
        ({"heads": True}, "heads"),
        ({"heads": 3}, "heads"),
        ({"kv_heads": 3}, "kv_heads"),
        ({"layers": -1}, "layers"),
        ({"ffn": None}, "ffn"),
        ({"colour": 1}, "colour"),
        ({"attention": "linear"}, "attention"),
        ({"attention": "mla"}, "mla"),
        ({"moe": {**MOE, "top_k": 9}}, "top_k"),
        ({"moe": {**MOE, "capacity": 9}}, r"moe\.capacity"),
    ],
)
def test_a_wrong_field_is_refused_by_name(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(FileInputError, match=complaint):
        spec_from_description({**BASE, **change}, "m", "model.yaml")


@pytest.mark.parametrize(
    "change",
    [
        {"layers": None},
        {"vocab": None},
        {"attention": "gqa (hybrid mamba2)"},
        {"hybrid_pattern": "M*"},
        {"mamba": {"heads": 8}},
    ],
)
def test_hybrids_and_undescribed_models_are_unsupported(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        spec_from_description({**BASE, **change}, "m")


def test_what_others_already_assumed_comes_first() -> None:
    spec = spec_from_description(BASE, "m", assumed=(Finding(code="text", text="colour = 1 ignored"),))
    assert texts(spec.assumed)[0] == "colour = 1 ignored"
    assert len(spec.assumed) > 1


def stated_precision(total: float) -> float:
    """Half a unit of the last digit a total was written with, in billions."""
    decimals = repr(float(total)).rstrip("0").partition(".")[2]
    return 0.5 * 10.0 ** -len(decimals)


def test_models_of_the_published_runs() -> None:
    """All load or are refused with a reason; totals agree within rounding and 0.6 %.

    The totals of the source leave out norms and biases, and learned positions or count other rows of them
    (0.5 % of the smallest model). Outliers are rounded in their source: Megatron's H100 table counts an untied
    head, and two NeMo recipes and the small models of the A100 table are named by a round number.
    """
    outliers = {"gpt3_20b", "gpt3_5b", "nemotron3_22b", "mlm_gpt_a100_18b", "mlm_gpt_a100_1.7b"}
    refused, checked = [], 0
    entries = json.loads(published("measured/models.json").read_text())
    for name, entry in entries.items():
        try:
            spec = spec_from_description(entry, name)
        except UnsupportedError:
            refused.append(name)
            continue
        total, stated = model_parameters(spec).total / 1e9, entry["params_total_b"]
        if stated is None or name in outliers:
            continue
        checked += 1
        head = spec.vocab * spec.hidden / 1e9 if name.startswith("mlm_gpt_h100") else 0.0
        assert abs(total + head - stated) <= stated_precision(stated) + 0.006 * stated, name
    assert refused == [name for name, entry in entries.items() if entry["layers"] is None]
    assert checked >= 60


DEEPSEEK_V3 = {
    "layers": 61,
    "hidden": 7168,
    "ffn": 18432,
    "heads": 128,
    "vocab": 129280,
    "tied_embeddings": False,
    "gated_mlp": True,
    "attention": "mla",
    "moe": {
        "experts": 256,
        "top_k": 8,
        "expert_ffn": 2048,
        "shared_ffn": 2048,
        "first_dense_layers": 3,
        "moe_every": 1,
    },
    "mla": {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope": 128, "qk_rope": 64, "v": 128},
}


def test_a_misspelt_key_is_hinted_at() -> None:
    fields = {("hiden" if key == "hidden" else key): value for key, value in BASE.items()}
    with pytest.raises(UnsupportedError, match=r"hint: add `hidden` \(check the spelling of the keys\)"):
        spec_from_description(fields, "small")
