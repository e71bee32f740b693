"""Which layers do mixtures have with experts in every layer? Mixtral, Phi, OLMoE, gpt-oss, DBRX, MiniMax-M2, Granite.

Left out: latent attention (`latent.py`), and multi-token-prediction modules.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import QkNorm
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.mixtures import ROUTED, qwen_experts, read_moe, shared_and_routed
from planner.spec.hf.parts import (
    Core,
    grouped_attention,
    read_core,
    refuse_unread,
    repeat_with_windows,
    rotary_model,
    sliding_pattern,
    windows_per_layer,
)
from planner.spec.layer import Activation, Layer, NormKind
from planner.spec.model import ModelSpec


def read_gpt_oss(f: ConfigFields, name: str) -> ModelSpec:
    """gpt-oss: biases everywhere, attention sinks, every other layer sliding, first one included."""
    core = read_core(f)
    attention = grouped_attention(
        f,
        core,
        qkv_bias=f.boolean("attention_bias", True),
        out_bias=f.boolean("attention_bias", True),
        kv_heads=8,
        head_dim=64,
    )
    attention = replace(attention, sinks=True)
    moe = read_moe(f, experts=("num_local_experts", "num_experts"), default=(128, 4), bias=True)
    moe = replace(moe, clamped=True)
    window = f.integer("sliding_window", default=128)
    pattern = [i % 2 == 0 for i in range(core.num_layers)]
    windows = windows_per_layer(f, core.num_layers, window, pattern)
    layers = repeat_with_windows(Layer(attention, None, moe), windows)
    return rotary_model(f, name, core, layers, max_position=131072)


def read_dbrx(f: ConfigFields, name: str) -> ModelSpec:
    """DBRX: nested `attn_config` and `ffn_config`, layer norms without bias."""
    hidden = f.integer("d_model", "hidden_size")
    core = Core(hidden, f.layer_count("n_layers", "num_hidden_layers"), f.integer("vocab_size"))
    heads = f.integer("n_heads", "num_attention_heads")
    f.divides("n_heads", heads, "d_model", hidden)
    inner, ffn = f.section("attn_config"), f.section("ffn_config")
    kv_heads = inner.integer("kv_n_heads", default=1)
    inner.divides("kv_n_heads", kv_heads, "n_heads", heads)
    width = ffn.optional_integer("hidden_size") or hidden
    if width != hidden:
        raise ffn.error("hidden_size", f"must equal d_model, {hidden}", width, "correct one of the two")
    renamed = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    attention = grouped_attention(ConfigFields(renamed, f.file, "attn_config."), core)
    moe = read_moe(
        ffn, experts=("moe_num_experts",), top_k=("moe_top_k",), expert_ffn="ffn_hidden_size", default=(4, 1)
    )
    moe = replace(moe, activation=ffn.section("ffn_act_fn").activation("name", default=Activation.SILU))
    layers = (Layer(attention, None, moe),) * core.num_layers
    f = ConfigFields(
        {**f.values, "max_position_embeddings": f.values.get("max_seq_len")}, f.file, "", f.assumed
    )
    return rotary_model(f, name, core, layers, max_position=2048, norm_kind=NormKind.LAYER)


def read_hunyuan_moe(f: ConfigFields, name: str) -> ModelSpec:
    """Hunyuan MoE: per-head norms of q and k, one shared expert as wide as a routed one."""
    refuse_unread(f, "use_cla", "use_mla")
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", qk_norm=QkNorm.HEAD)
    values = dict(f.values)
    for field in ("moe_topk", "num_experts", "moe_intermediate_size", "num_shared_expert"):
        if isinstance(values.get(field), list):
            if not values[field] or any(value != values[field][0] for value in values[field]):
                raise f.error(
                    field, "must be the same for every layer", values[field], "not modelled per layer"
                )
            values[field] = values[field][0]
    moe = read_moe(
        replace(f, values=values),
        experts=("num_experts",),
        top_k=("moe_topk", "num_experts_per_tok"),
        default=(1, 1),
        shared_ffn=f.integer("intermediate_size"),
    )
    return rotary_model(f, name, core, Layer(attention, None, moe), max_position=2048)


def read_solar_open(f: ConfigFields, name: str) -> ModelSpec:
    """Solar Open: GQA, a shared expert, experts in every layer."""
    core = read_core(f)
    attention = grouped_attention(
        f, core, qkv_bias=f.boolean("attention_bias", False), kv_heads=8, head_dim=128
    )
    moe = shared_and_routed(f, ROUTED, experts=128, top_k=8, shared=1)
    return rotary_model(f, name, core, Layer(attention, None, moe), max_position=131072)


def read_aria(f: ConfigFields, name: str) -> ModelSpec:
    """Aria's text model: Llama's attention, shared experts as wide as the routed ones."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    moe = read_moe(f, experts=("moe_num_experts",), top_k=("moe_topk",), default=(8, 2))
    shared = f.integer("moe_num_shared_experts", default=2) * moe.expert_ffn
    return rotary_model(
        f, name, core, Layer(attention, None, replace(moe, shared_ffn=shared)), max_position=2048
    )


def read_kolibri1(f: ConfigFields, name: str) -> ModelSpec:
    """Kolibri 1: four sliding layers in five, per-head norms of q and k, norms on both sides, a shared expert."""
    core = read_core(f)
    attention = grouped_attention(f, core, qk_norm=QkNorm.HEAD, kv_heads=4, head_dim=128)
    moe = qwen_experts(f, 384, 6, shared=512)
    windows = sliding_pattern(f, core.num_layers, window=513, period=5)
    layers = repeat_with_windows(Layer(attention, None, moe, norms=4), windows)
    return rotary_model(f, name, core, layers, max_position=262144)
