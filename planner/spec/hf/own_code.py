"""Which layers have families that were published with code of their own and never entered the library? Qwen, Baichuan,
ChatGLM 2 and 3, GLM-4 9B, MiniCPM, XVERSE, K2 Horizon.

Read from their modeling files as vLLM and SGLang (Apache-2.0) implement them; totals equal the published ones to the
last parameter where these are printed. Left out: rotary variants, ALiBi, multipliers, logarithmic scaling of queries.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.mixtures import read_moe
from planner.spec.hf.parts import gated_mlp, grouped_attention, read_core, rotary_model, with_window
from planner.spec.layer import Activation, Layer, Mlp, NormKind
from planner.spec.model import ModelSpec


def read_qwen(f: ConfigFields, name: str) -> ModelSpec:
    """Qwen (the first): biases of q, k and v; `intermediate_size` counts both input projections of the MLP."""
    core = read_core(f)
    heads = f.integer("num_attention_heads", "n_head")
    width = f.integer("kv_channels", default=128)
    if heads * width != core.hidden:
        given = f"{heads} x {width} and {core.hidden}"
        raise f.error(
            "kv_channels", "times num_attention_heads must be hidden_size", given, "correct one of them"
        )
    stated = {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": width}
    bias = not f.boolean("no_bias", True)
    attention = grouped_attention(
        replace(f, values={**f.values, **stated}), core, qkv_bias=True, out_bias=bias
    )
    both = f.integer("intermediate_size", "ffn_hidden_size")
    f.divides("both input projections", 2, "intermediate_size", both)
    layer = Layer(attention, Mlp(both // 2, True, bias, Activation.SILU), None)
    positions = f.integer("max_position_embeddings", "seq_length", default=8192)
    return rotary_model(f, name, core, layer, max_position=positions)


def read_baichuan(f: ConfigFields, name: str) -> ModelSpec:
    """Baichuan 1 and 2: a Llama with MHA; the second norms the rows of its head, which its file does not say."""
    core = read_core(f)
    layer = Layer(grouped_attention(f, core), gated_mlp(f), None)
    f.assume(
        "rows of the head", "not normed", "Baichuan 2 norms them, one pass over the head's weights a step"
    )
    return rotary_model(f, name, core, layer, max_position=4096)


def read_k2_horizon(f: ConfigFields, name: str) -> ModelSpec:
    """K2 Horizon's dense models: a Llama whose norms work on groups of channels. Raises `UnsupportedError` for its
    mixtures, whose values are projected by experts (MoVA) behind a gate, and for norms of queries and keys."""
    for field in ("num_experts", "mova_num_experts", "attention_gate_func", "query_key_norm"):
        if f.values.get(field):
            raise f.refused(
                "of K2 Horizon planner reads the dense models: experts that project values, gates and norms of every "
                "head are not modelled",
                f"{field} = {f.values[field]!r}",
                "plan one of its dense models",
            )
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", kv_heads=8, head_dim=64)
    window = f.optional_integer("sliding_window") if f.boolean("use_sliding_window", False) else None
    mlp = gated_mlp(f, bias=f.boolean("mlp_bias", False))
    layer = Layer(with_window(attention, window), mlp, None)
    return rotary_model(f, name, core, layer, max_position=131072)


_CHATGLM_NAMES = {
    "num_hidden_layers": "num_layers",
    "vocab_size": "padded_vocab_size",
    "intermediate_size": "ffn_hidden_size",
    "head_dim": "kv_channels",
    "max_position_embeddings": "seq_length",
}


def read_chatglm(f: ConfigFields, name: str) -> ModelSpec:
    """ChatGLM 2 and 3, and GLM-4 9B before it entered the library. Raises `UnsupportedError` for ChatGLM-6B."""
    if f.given("inner_hidden_size", "position_encoding_2d"):
        raise f.refused(
            "prompts whose tokens all see one another are not modelled",
            "position_encoding_2d (ChatGLM-6B)",
            "plan ChatGLM 2 or later",
        )
    stated = {new: f.values[old] for new, old in _CHATGLM_NAMES.items() if f.given(old)}
    few = f.boolean("multi_query_attention", False)
    kv_heads = f.integer("multi_query_group_num", default=1) if few else f.integer("num_attention_heads")
    f = replace(f, values={**f.values, **stated, "num_key_value_heads": kv_heads})
    core, every = read_core(f), f.boolean("add_bias_linear", False)
    attention = grouped_attention(
        f, core, qkv_bias=every or f.boolean("add_qkv_bias", False), out_bias=every, head_dim=128
    )
    rms = f.boolean("rmsnorm", True)
    layer = Layer(
        attention, Mlp(f.integer("intermediate_size"), True, every, Activation.SILU), None, norm_bias=not rms
    )
    model = rotary_model(
        f, name, core, layer, max_position=2048, norm_kind=NormKind.RMS if rms else NormKind.LAYER
    )
    return replace(model, final_norm=f.boolean("post_layer_norm", True))


def read_minicpm(f: ConfigFields, name: str) -> ModelSpec:
    """MiniCPM 1, 2 and 4: a Llama with tied embeddings and multipliers, or Mixtral's experts where `num_experts` is
    above 0. Raises `UnsupportedError` for attention to chosen blocks of keys."""
    core = read_core(f)
    if f.values.get("sparse_config"):
        raise f.refused(
            "attention to chosen blocks of keys (InfLLM v2) is not modelled",
            "sparse_config",
            "leave it out to plan the dense attention that the model has below dense_len tokens",
        )
    attention = grouped_attention(f, core, switch="attention_bias")
    if f.values.get("num_experts"):
        moe = read_moe(f, experts=("num_experts",), default=(8, 2))
        layer = Layer(attention, None, moe)
    else:
        layer = Layer(attention, gated_mlp(f), None)
    return rotary_model(f, name, core, layer, tied=True, max_position=2048)


def read_xverse(f: ConfigFields, name: str) -> ModelSpec:
    """XVERSE: a Llama; its mixtures have routed and shared experts of `intermediate_size` in every layer."""
    core = read_core(f)
    attention = grouped_attention(f, core)
    if f.values.get("num_experts"):
        shared = f.optional_integer("num_shared_experts", least=0) or 0
        moe = read_moe(
            f,
            experts=("num_experts",),
            top_k=("moe_top_k",),
            default=(64, 6),
            shared_ffn=shared * f.integer("intermediate_size"),
        )
        layer = Layer(attention, None, moe)
    else:
        layer = Layer(attention, gated_mlp(f), None)
    return rotary_model(f, name, core, layer, max_position=8192)
