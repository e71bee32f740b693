"""Families of 2025 and 2026: totals of published models, the refusals beside them, and the wrappers around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.cost.params import model_parameters
from planner.errors import FileInputError, UnsupportedError
from planner.report.words import texts
from planner.spec.attention import AttentionKind, QkNorm
from planner.spec.hf import read_hf_config
from planner.spec.layer import Activation
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec

LING: dict[str, Any] = {
    "model_type": "bailing_moe_v2", "vocab_size": 157184, "head_dim": 128, "num_experts": 256,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "num_shared_experts": 1, "max_position_embeddings": 32768,
}  # fmt: skip
K2: dict[str, Any] = {
    "model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 64, "n_routed_experts": 384, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "kv_lora_rank": 512, "q_lora_rank": 1536, "first_k_dense_replace": 1,
    "vocab_size": 163840,
}  # fmt: skip
# fields of the published config.json, and parameters in billions as their model cards print them: total, active
PUBLISHED: dict[str, tuple[dict[str, Any], str, str]] = {
    "Ling-mini-2.0": (
        {**LING, "num_hidden_layers": 20, "hidden_size": 2048, "intermediate_size": 5120, "first_k_dense_replace": 1,
         "moe_intermediate_size": 512, "num_attention_heads": 16, "num_key_value_heads": 4}, "16.3", "1.4",
    ),
    "Ling-flash-2.0": (
        {**LING, "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 9216, "first_k_dense_replace": 1,
         "moe_intermediate_size": 1024, "num_attention_heads": 32, "num_key_value_heads": 4}, "103", "6.2",
    ),
    "Ling-lite-1.5": (
        {"model_type": "bailing_moe", "hidden_size": 2048, "intermediate_size": 1408, "moe_intermediate_size": 1408,
         "num_experts": 64, "num_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6,
         "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 126464}, "16.8", "2.75",
    ),
    "DeepSeek-MoE-16B": (
        {"model_type": "deepseek", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
         "num_hidden_layers": 28, "num_attention_heads": 16, "n_routed_experts": 64, "n_shared_experts": 2,
         "num_experts_per_tok": 6, "first_k_dense_replace": 1, "vocab_size": 102400}, "16.4", "2.8",
    ),
    "Hunyuan-3": (
        {"model_type": "hy_v3", "hidden_size": 4096, "intermediate_size": 13312, "num_hidden_layers": 80,
         "num_attention_heads": 64, "num_experts": 192, "num_experts_per_tok": 8, "moe_intermediate_size": 1536,
         "vocab_size": 120832}, "295", "21",
    ),
    "Mistral-Small-4": (
        {"model_type": "mistral3", "text_config": {
            "model_type": "mistral4", "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 12288,
            "moe_intermediate_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 32,
            "n_routed_experts": 128, "num_experts_per_tok": 4}}, "119", "6.6",
    ),
    "Granite-4.0-micro": (
        {"model_type": "granitemoehybrid", "hidden_size": 2560, "shared_intermediate_size": 8192,
         "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 8, "num_local_experts": 0,
         "layer_types": ["attention"] * 40, "vocab_size": 100352, "tie_word_embeddings": True}, "3.4", "3.4",
    ),
    "InternLM2-20B": (
        {"model_type": "internlm2", "bias": False, "hidden_size": 6144, "intermediate_size": 16384,
         "num_hidden_layers": 48, "num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 92544},
        "19.86", "19.86",
    ),
    "MiMo-7B": (
        {"model_type": "mimo", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151680}, "7.6", "7.6",
    ),
    "Youtu-LLM-2B": (
        {"model_type": "youtu", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 32,
         "num_attention_heads": 16, "vocab_size": 128256}, "1.96", "1.96",
    ),
    "A.X-K1": (
        {"model_type": "axk1", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
         "num_attention_heads": 64, "vocab_size": 163840}, "519", "33",
    ),
    "EXAONE-3.5-32B": (
        {"model_type": "exaone", "hidden_size": 5120, "intermediate_size": 27392, "num_layers": 64,
         "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 102400, "activation_function": "silu"},
        "32.0", "32.0",
    ),
    "GPT-Neo-2.7B": (
        {"model_type": "gpt_neo", "hidden_size": 2560, "num_heads": 20, "num_layers": 32, "vocab_size": 50257,
         "attention_types": [[["global", "local"], 16]]}, "2.7", "2.7",
    ),
    "XVERSE-MoE-A4.2B": (
        {"model_type": "xverse", "hidden_size": 2560, "intermediate_size": 1728, "num_hidden_layers": 28,
         "num_attention_heads": 32, "num_experts": 64, "moe_top_k": 6, "num_shared_experts": 2, "vocab_size": 100534},
        "25.8", "4.2",
    ),
    "Kimi-K2.5 (text)": ({"model_type": "kimi_k25", "text_config": K2}, "1026", "33"),
}  # fmt: skip


def read(config: dict[str, Any]) -> ModelSpec:
    return read_hf_config(config, "config.json", "m")


def printed(parameters: float, like: str) -> str:
    """Billions, to the digits that are printed."""
    return f"{parameters / 1e9:.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_totals(name: str) -> None:
    config, total, active = PUBLISHED[name]
    counted = model_parameters(read(config))
    assert (printed(counted.total, total), printed(counted.active, active)) == (total, active)


GLM: dict[str, Any] = {
    "model_type": "chatglm", "num_layers": 28, "padded_vocab_size": 65024, "hidden_size": 4096, "kv_channels": 128,
    "ffn_hidden_size": 13696, "num_attention_heads": 32, "seq_length": 8192, "add_qkv_bias": True,
    "multi_query_attention": True, "multi_query_group_num": 2,
}  # fmt: skip
LIKE_LLAMA: dict[str, Any] = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}


@pytest.mark.parametrize(
    ("config", "total"),
    [
        ({**LIKE_LLAMA, "model_type": "qwen", "intermediate_size": 22016, "vocab_size": 151936}, 7_721_324_544),
        ({**LIKE_LLAMA, "model_type": "baichuan", "intermediate_size": 11008, "vocab_size": 125696}, 7_505_973_248),
        (GLM, 6_243_584_000), ({**GLM, "num_layers": 40, "padded_vocab_size": 151552}, 9_399_951_360),
        ({"model_type": "minicpm", "hidden_size": 2304, "intermediate_size": 5760, "num_hidden_layers": 40,
          "num_attention_heads": 36, "vocab_size": 122753}, 2_724_880_896),
        ({**LIKE_LLAMA, "model_type": "Yi", "intermediate_size": 11008, "num_key_value_heads": 4,
          "vocab_size": 64000}, 6_061_035_520),
    ],
)  # fmt: skip
def test_families_with_code_of_their_own_to_the_last_parameter(config: dict[str, Any], total: int) -> None:
    assert model_parameters(read(config)).total == total


@pytest.mark.parametrize(
    ("config", "said"),
    [({**GLM, "position_encoding_2d": True}, "ChatGLM-6B"), ({**LIKE_LLAMA, "model_type": "minicpm", "vocab_size": 99,
      "sparse_config": {"topk": 64}}, "InfLLM"), ({**LIKE_LLAMA, "model_type": "hunyuan_v1_dense", "vocab_size": 99,
      "intermediate_size": 64, "use_cla": True}, "use_cla")],
)  # fmt: skip
def test_what_their_code_does_otherwise_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        read(config)


@pytest.mark.parametrize(
    ("config", "hint"),
    [({"dim": 4096, "n_layers": 32}, "Hugging Face's form"),
     ({"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B"}, "Qwen/Qwen3-8B"),
     ({"_class_name": "FluxPipeline"}, "language models")],
)  # fmt: skip
def test_files_beside_a_configuration_are_named(config: dict[str, Any], hint: str) -> None:
    with pytest.raises(FileInputError) as caught:
        read(config)
    assert hint in caught.value.hint


def test_letters_say_which_layers_slide() -> None:
    small = {"model_type": "exaone4", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 4, "intermediate_size": 64, "vocab_size": 99}  # fmt: skip
    spec = read({**small, "sliding_window_pattern": "LLG"})
    assert [layer.attention.window for layer in spec.layers if layer.attention] == [4096, 4096, None, 4096]
    with pytest.raises(FileInputError, match="sliding_window_pattern"):
        read({**small, "sliding_window_pattern": "LGLG"})
    listed = ["sliding_attention", "full_attention"] * 2
    assert (
        read({**small, "sliding_window_pattern": "LGLG", "layer_types": listed}).layers[0].attention.window
        == 4096
    )


def test_a_text_model_of_deepseek_v2_without_latents_has_plain_heads() -> None:
    small = {"model_type": "deepseek_v2", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
             "moe_intermediate_size": 8, "num_experts_per_tok": 2, "n_routed_experts": 4, "vocab_size": 99}  # fmt: skip
    assert read({**small, "use_mla": False}).layers[0].attention.kind is AttentionKind.MHA
    assert read(small).layers[0].attention.kind is AttentionKind.MLA


def test_deepseek_v3_routes_within_groups_where_nothing_is_said() -> None:
    groups = [
        (moe.groups, moe.top_groups)
        for stated in ({}, {"n_group": 1, "topk_group": 1})
        for moe in [read({**K2, **stated}).layers[-1].moe]
        if moe is not None
    ]
    assert groups == [(8, 4), (0, 0)]


def test_internvl_names_its_text_model_otherwise() -> None:
    inner = {
        "model_type": "internlm2",
        **LIKE_LLAMA,
        "intermediate_size": 64,
        "vocab_size": 99,
        "bias": False,
    }
    spec = read({"model_type": "internvl_chat", "llm_config": inner})
    assert (spec.family, spec.hidden) == ("internlm2", 4096)


def test_a_classifier_is_planned_as_a_language_model() -> None:
    small = {**LIKE_LLAMA, "model_type": "llama", "intermediate_size": 64, "vocab_size": 99}
    said = texts(read({**small, "architectures": ["LlamaForSequenceClassification"]}).assumed)
    assert any(line.startswith("architectures = ") for line in said)


def test_ling_normed_queries_from_2_on() -> None:
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,
             "moe_intermediate_size": 8, "num_experts": 8, "num_experts_per_tok": 2}  # fmt: skip
    norms = {
        model_type: read({"model_type": model_type, **small}).layers[0].attention.qk_norm
        for model_type in ("bailing_moe", "bailing_moe_v2")
    }
    assert norms == {"bailing_moe": QkNorm.NONE, "bailing_moe_v2": QkNorm.HEAD}
    with pytest.raises(UnsupportedError, match="not modelled"):
        read({"model_type": "bailing_moe", **small, "norm_head": True})


def test_granite_4_mixes_by_attention_or_state_spaces() -> None:
    core = {"model_type": "granitemoehybrid", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "vocab_size": 99, "intermediate_size": 32, "mamba_n_heads": 16}  # fmt: skip
    scanned = read({**core, "layer_types": ["mamba", "attention"]}).layers
    assert [(layer.attention is None, layer.state_space is None) for layer in scanned] == [
        (True, False),
        (False, True),
    ]
    state = scanned[0].state_space
    assert state is not None
    assert (state.heads, state.head_dim, state.groups, state.conv_width) == (16, 8, 1, 128 + 2 * 256)
    assert read(core).attentions == ()
    older = read({**core, "layers_block_type": ["attention"] * 2, "num_local_experts": 4, "num_experts_per_tok": 2,
                  "intermediate_size": 32, "shared_intermediate_size": 16})  # fmt: skip
    moe = older.layers[0].moe
    assert moe is not None
    assert (moe.experts, moe.shared_ffn) == (4, 16)


def test_values_as_wide_as_the_hidden_size() -> None:
    layer = read({"model_type": "minicpm3", "hidden_size": 2560, "num_attention_heads": 40, "num_hidden_layers": 2,
                  "vocab_size": 99, "intermediate_size": 64}).layers[0]  # fmt: skip
    attention = layer.attention
    assert (attention.kind, attention.v_head_dim, attention.head_dim) == (AttentionKind.MLA, 64, 96)


def test_jais_is_ungated() -> None:
    mlp = read({"model_type": "jais2", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1,
                "vocab_size": 99, "intermediate_size": 32}).layers[0].mlp  # fmt: skip
    assert mlp is not None
    assert (mlp.gated, mlp.bias, mlp.activation) == (False, True, Activation.RELU2)


@pytest.mark.parametrize(
    ("model_type", "said"),
    [("jetmoe", "experts"), ("glm5_next", "pull request 7522"), ("qwen4_exp", "n-grams"),
     ("step3_vl", "MFA"), ("inkling2", "convolutions"), ("dory", "nGPT"),
     ("inkling2_loop", "several times over"), ("omniasr_ctc", "speech"), ("wavtokenizer", "speech")],
)  # fmt: skip
def test_new_kinds_are_refused_with_their_reason(model_type: str, said: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        read({"model_type": model_type, "hidden_size": 64})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "total"),
    [("exaone", 7_818_448_896), ("sarvam_moe", 32_152_648_064), ("sarvam_mla", 106_031_763_456),
     ("lara_mini", 7_281_684_672), ("apertus1p5_text", 8_091_086_912), ("hy_v4_vl_text", 769_907_389_085)],
)  # fmt: skip
def test_defaults_of_transformers_5_24_to_the_last_parameter(model_type: str, total: int) -> None:
    """Of each family's configuration without a field, on the library's meta device."""
    assert model_parameters(read({"model_type": model_type})).total == total


def test_sarvams_active_parameters_are_those_published() -> None:
    """2.4 and 10.3 billion (prateeksinghphd.in/sarvam-ai.html, apxml.com/models/sarvam-105b); both leave out the
    tables of the vocabulary."""
    tables = 2 * 262144 * 4096
    active = [
        model_parameters(read({"model_type": f"sarvam_{kind}"})).active - tables for kind in ("moe", "mla")
    ]
    assert [printed(one, "1.0") for one in active] == ["2.4", "10.3"]


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        (
            {"model_type": "apertus1p5_text", "output_vocab_size": 131072},
            UnsupportedError,
            "output_vocab_size",
        ),
        (
            {"model_type": "apertus1p5", "text_config": {"output_vocab_size": 9}},
            UnsupportedError,
            "output_vocab",
        ),
        ({"model_type": "sarvam_moe", "use_bias": True}, UnsupportedError, "use_bias"),
        (
            {"model_type": "sarvam_moe", "num_experts": 8, "n_routed_experts": 16},
            FileInputError,
            "another name",
        ),
        ({"model_type": "exaone", "num_layers": 8, "num_hidden_layers": 16}, FileInputError, "another name"),
        ({"model_type": "lara_mini", "layer_types": ["conv"] * 34}, FileInputError, "layer_types"),
    ],
)
def test_what_new_families_say_otherwise(fields: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error) as caught:
        read(fields)
    assert said in str(caught.value)


def test_lara_slides_attends_and_scans_in_a_period_of_five() -> None:
    layers = read({"model_type": "lara_mini", "num_hidden_layers": 6}).layers
    assert [y.attention.window if y.attention else "net" for y in layers] == [
        "net",
        512,
        "net",
        None,
        512,
        "net",
    ]


def test_infinity_as_python_writes_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "nemotron_h", "time_step_limit": [0.0, Infinity]}')
    assert load_model(str(file)).num_layers == 4


def test_gpt_neo_slides_where_attention_types_say() -> None:
    neo = {"model_type": "gpt_neo", "hidden_size": 64, "num_heads": 4, "num_layers": 3, "vocab_size": 99}
    model = read({**neo, "attention_types": [[["global", "local"], 1], [["global"], 1]]})
    assert [layer.attention.window for layer in model.layers if layer.attention] == [None, 256, None]
    for types in ([[["global", "local"], 1]], [[["global", "other"], 1], [["global"], 1]], [3]):
        with pytest.raises(FileInputError, match="attention_types"):
            read({**neo, "attention_types": types})


def test_command_a_with_experts_attends_beside_them() -> None:
    small = {"model_type": "cohere2_moe", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
             "vocab_size": 99, "intermediate_size": 8, "num_shared_experts": 2, "first_k_dense_replace": 1}  # fmt: skip
    layers = read(small).layers
    assert all(layer.parallel and layer.norms == 1 for layer in layers)
    assert [layer.moe is not None for layer in layers] == [False] + [True] * 5
    assert [a.window for a in (layer.attention for layer in layers) if a] == [
        None,
        4096,
        4096,
        4096,
        None,
        4096,
    ]
    assert layers[1].moe is not None
    assert layers[1].moe.shared_ffn == 16


K2_HORIZON = {
    "model_type": "k2_horizon", "hidden_size": 1536, "intermediate_size": 5120, "num_hidden_layers": 28,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 64256,
    "layernorm_num_groups": 4, "num_experts": 0, "mova_num_experts": 0, "attention_gate_func": None,
    "query_key_norm": False,
}  # fmt: skip


def test_k2_horizon_counts_as_a_llama() -> None:
    """Of IFM/K2-Horizon-0.9B's dimensions; a norm of groups has as many weights as one of the whole width."""
    layer = 1536 * (32 + 2 * 8) * 64 + 32 * 64 * 1536 + 3 * 1536 * 5120 + 2 * 1536
    assert model_parameters(read(K2_HORIZON)).total == 28 * layer + 2 * 64256 * 1536 + 1536
    slides = read({**K2_HORIZON, "use_sliding_window": True, "sliding_window": 512})
    assert [layer.attention.window for layer in slides.layers if layer.attention] == [512] * 28


@pytest.mark.parametrize(
    "other",
    [
        {"num_experts": 128},
        {"mova_num_experts": 3},
        {"attention_gate_func": "silu"},
        {"query_key_norm": True},
    ],
)
def test_k2_horizon_with_experts_of_values_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="planner reads the dense models"):
        read({**K2_HORIZON, **other})
