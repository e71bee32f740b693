"""What is a tiny configuration of a model type that transformers knows? Its own class, with small numbers.

Sizes are given by the name of a field, so that lists that have an entry for each layer are made by the class itself.
`OF_TYPE` has what single types need beside: fields whose default no model can be built with, and sizes that must agree
with others. Left out: what pretrained models of a type look like (`planner/catalog/`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any, Final

FEWEST, MOST = 2, 8  # layers
VOCABULARY: Final = 512
_SIZES: Final[tuple[tuple[int, tuple[str, ...]], ...]] = (
    (VOCABULARY, ("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size")),
    (64, (
        "hidden_size", "d_model", "n_embd", "emb_dim", "embedding_size", "input_embedding_size",
        "output_embedding_size", "backbone_hidden_size", "lru_width", "router_hidden_size",
    )),
    (128, (
        "intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "dim_ff", "dff", "d_inner",
        "ffn_hidden_size", "feed_forward_size", "intermediate_size_mlp", "dense_intermediate_size",
    )),
    (32, (
        "moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size",
        "moe_shared_expert_intermediate_size", "shared_intermediate_size", "q_lora_rank", "kv_lora_rank", "o_lora_rank",
        "hc_lowrank",
    )),
    (4, (
        "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
        "num_encoder_attention_heads", "num_decoder_attention_heads", "attention_heads", "index_n_heads",
        "linear_num_heads", "linear_num_value_heads", "swa_num_attention_heads",
    )),
    (2, (
        "num_key_value_heads", "swa_num_key_value_heads", "linear_num_key_heads", "num_experts_per_tok", "moe_topk",
        "moe_k", "n_shared_experts",
    )),
    (16, (
        "head_dim", "swa_head_dim", "linear_head_dim", "linear_key_head_dim", "linear_value_head_dim", "index_head_dim",
        "kv_channels", "dim_head", "v_head_dim", "qk_nope_head_dim", "attention_head_size", "mamba_head_dim",
        "hidden_size_per_layer_input", "laurel_rank", "mamba_d_state", "state_size", "ssm_state_size",
        "query_pre_attn_scalar", "sliding_window", "sliding_window_size", "chunk_size", "mamba_chunk_size",
        "attention_chunk_size", "attention_window_size", "window_size", "index_topk", "local_attention",
    )),
    (8, (
        "num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "qk_rope_head_dim", "rotary_dim",
    )),
    (1, (
        "first_k_dense_replace", "num_dense_layers", "n_group", "topk_group", "n_groups", "mamba_n_groups",
        "zero_expert_num",
    )),
)  # fmt: skip
_COUNTS: Final = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_encoder_layers",
    "num_decoder_layers", "num_blocks",
)  # fmt: skip
_TINY: Final = {name: size for size, names in _SIZES for name in names}
_ROPE: Final = {"rope_type": "default", "rope_theta": 10000.0}
_PATCHES: Final = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
_ASSISTANT: Final = {
    "model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": FEWEST,
    "head_dim": 16, "global_head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
    "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "num_kv_shared_layers": FEWEST,
}  # fmt: skip
_INDEXER: Final = {
    "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 32,
    "indexer_compress_ratio": 4,
}  # fmt: skip
_MUSIC: Final = {
    "text_encoder": {"model_type": "t5"},
    "audio_encoder": {"model_type": "encodec"},
    "decoder": {},
}
OF_TYPE: Final[Mapping[str, Mapping[str, Any]]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {
        "vocab_size": 260, "encoder_hash_byte_group_vocab": 500, "patcher_config": _PATCHES | {"vocab_size": 260},
        "encoder_config": _PATCHES | {"vocab_size": 260, "hidden_size_global": 64},
        "decoder_config": _PATCHES | {"vocab_size": 260, "hidden_size_global": 64}, "global_config": _PATCHES,
    },
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": _ROPE | {"mrope_section": [3, 3, 2]}}, "num_key_value_heads": 2,
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}, "ffn_config": {"moe_num_experts": 8},
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
    },
    "gemma4_assistant": {"text_config": _ASSISTANT, "backbone_hidden_size": 64},
    "gemma4_text": {"global_head_dim": 16},
    "gemma4_unified_assistant": {"text_config": _ASSISTANT, "backbone_hidden_size": 64},
    "gemma4_unified_text": {"global_head_dim": 16},
    "got_ocr2": {"text_config": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": FEWEST, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": VOCABULARY,
    }},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "num_experts": 8, "moe_topk": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"head_dim": 8},  # of its rotary part
    "mamba2": {"num_heads": 8},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "musicgen": _MUSIC,
    "musicgen_melody": _MUSIC,
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "is_decoder": True, "attn_layers": ["local", "lsh"], "axial_pos_shape": [4, 8], "axial_pos_embds_dim": [16, 48],
        "max_position_embeddings": 32, "local_attn_chunk_length": 16, "lsh_attn_chunk_length": 16,
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 5},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4},
}  # fmt: skip


def tiny_fields(kind: str, fewest: int = FEWEST) -> dict[str, Any]:
    """The fields of the `config.json` of a tiny model with so many layers at least, `model_type` among them."""
    from transformers import CONFIG_MAPPING

    own = deepcopy(OF_TYPE.get(kind, {}))
    return {"model_type": kind} | _merged(_small(CONFIG_MAPPING[kind], own, fewest), own)


def _small(config: Any, own: Mapping[str, Any], fewest: int) -> dict[str, Any]:
    """Small values of the fields of a class of configurations, and of those inside it, beside its `own`."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    found = dict[str, Any]()
    for name, default in defaults.items():
        if isinstance(default, int) and name in _TINY:
            found[name] = min(default, _TINY[name]) or default
        elif name.endswith("_token_id") and isinstance(default, int):
            found[name] = min(default, 3)
    heads = defaults.get("num_attention_heads")
    if heads is not None and defaults.get("num_key_value_heads") == heads:
        found["num_key_value_heads"] = found["num_attention_heads"]
    for name, inside in config.sub_configs.items():
        if dataclasses.is_dataclass(inside):
            found[name] = _small(inside, own.get(name, {}), fewest)
    counts = [name for name in _COUNTS if isinstance(defaults.get(name), int)]
    return found | dict.fromkeys(counts, _layers(config, counts, found | dict(own), fewest))


def _layers(config: Any, counts: list[str], fields: Mapping[str, Any], fewest: int) -> int:
    """The fewest layers that have every kind of layer that a class has by default."""
    try:
        kinds = _kinds(config())
    except Exception:  # some classes have no defaults
        return fewest
    most = fewest + MOST - FEWEST
    for number in range(fewest, most):
        with suppress(Exception):  # as some numbers break rules of a class
            if kinds <= _kinds(config(**deepcopy(dict(fields) | dict.fromkeys(counts, number)))):
                return number
    return most


def _kinds(config: Any) -> set[tuple[str, str]]:
    """Kinds of layers, by the lists of a configuration that name one for each layer."""
    lists = {
        name: value for name, value in vars(config).items() if name.endswith(("layer_types", "block_type"))
    }
    return {(name, kind) for name, value in lists.items() for kind in value or ()}


def _merged(fields: dict[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with others in place of them, also of configurations inside."""
    inside = {
        name: _merged(fields.get(name, {}), value)
        for name, value in others.items()
        if isinstance(value, dict)
    }
    return fields | dict(others) | inside
