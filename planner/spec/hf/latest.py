"""Which layers have the families of 2025 and 2026 that are variants of older ones? Hunyuan 3, Mistral 4, Ling, ...

transformers 5.23 holds those that it has; Ling and Ring (bailing_moe) are read from inclusionAI's own
modeling_bailing_moe_v2.py, DeepSeek-MoE, InternLM 2 and MiMo from theirs. Left out: multi-token-prediction modules,
rotary variants, and multipliers, which cost nothing that is counted.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import Attention, QkNorm
from planner.spec.hf.deepseek import latent_attention
from planner.spec.hf.dense import (
    gated_mlp,
    grouped_attention,
    plain_mlp,
    read_core,
    rotary_model,
    windows_per_layer,
)
from planner.spec.hf.experts import (
    NUMBERED,
    ROUTED,
    blocks_of,
    mixed_layers,
    read_moe,
    shared_and_routed,
    sparse_from,
)
from planner.spec.hf.fields import ConfigFields
from planner.spec.layer import Activation, Layer, Moe, NormKind
from planner.spec.model import ModelSpec


def _leading_dense(
    f: ConfigFields, count: int, attention: Attention, moe: Moe, every: int = 1
) -> tuple[Layer, ...]:
    """Dense layers up to `first_k_dense_replace`, then experts in one of `every` layers."""
    dense = f.integer("first_k_dense_replace", default=0, least=0)
    sparse = [i >= dense and i % every == 0 for i in range(count)]
    return mixed_layers(f, attention, moe, [None] * count, sparse)


def read_hy_v3(f: ConfigFields, name: str) -> ModelSpec:
    """Hunyuan 3: per-head norms of q and k, one leading dense layer, shared experts."""
    core = read_core(f)
    bias, mlp_bias = f.boolean("attention_bias", False), f.boolean("mlp_bias", False)
    attention = grouped_attention(
        f, core, qkv_bias=bias, out_bias=bias, qk_norm=QkNorm.HEAD, kv_heads=8, head_dim=128
    )
    moe = shared_and_routed(f, NUMBERED, experts=192, top_k=8, shared=1)
    sparse = sparse_from(f, core.num_layers, f.integer("first_k_dense_replace", default=1, least=0))
    blocks = blocks_of(f, replace(moe, shared_bias=mlp_bias), sparse, bias=mlp_bias)
    layers = tuple(Layer(attention, *block) for block in blocks)
    return rotary_model(f, name, core, layers, max_position=131072)


def read_mistral4(f: ConfigFields, name: str) -> ModelSpec:
    """Mistral 4: DeepSeek-V3's latent attention and experts, none of the layers dense."""
    f = f.with_defaults(kv_lora_rank=256, qk_nope_head_dim=64)
    core = read_core(f)
    attention = latent_attention(f, default_q_rank=1024)
    moe = shared_and_routed(f, ROUTED, experts=128, top_k=4, shared=1)
    layers = _leading_dense(f, core.num_layers, attention, moe)
    return rotary_model(f, name, core, layers, max_position=1048576)


def read_youtu(f: ConfigFields, name: str) -> ModelSpec:
    """Youtu-LLM: latent attention in a dense model with tied embeddings."""
    core = read_core(f)
    layer = Layer(latent_attention(f, default_q_rank=1536), gated_mlp(f), None)
    return rotary_model(f, name, core, layer, tied=True, max_position=131072)


def read_minicpm3(f: ConfigFields, name: str) -> ModelSpec:
    """MiniCPM 3: latent attention in a dense model; value heads share the hidden size where no width is given."""
    core = read_core(f)
    width = max(core.hidden // f.integer("num_attention_heads"), 1)
    f = f.with_defaults(v_head_dim=width, kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=32)
    attention = latent_attention(f, default_q_rank=768)
    layer = Layer(attention, gated_mlp(f, bias=f.boolean("mlp_bias", False)), None)
    return rotary_model(f, name, core, layer, tied=True, max_position=32768)


def read_internlm2(f: ConfigFields, name: str) -> ModelSpec:
    """InternLM 2: a Llama whose fused query, key and value and output share one switch for biases."""
    core = read_core(f)
    attention = grouped_attention(f, core, qkv_bias=f.boolean("bias", True), out_bias=f.boolean("bias", True))
    layer = Layer(attention, gated_mlp(f), None)
    return rotary_model(f, name, core, layer, max_position=2048)


def read_internlm3(f: ConfigFields, name: str) -> ModelSpec:
    """InternLM 3: a Llama with heads of 128 and two key/value heads; `bias` is another name of `mlp_bias`."""
    core = read_core(f)
    bias = f.boolean("qkv_bias" if "qkv_bias" in f.values else "attention_bias", False)
    mlp_bias = f.boolean("bias" if "bias" in f.values else "mlp_bias", False)
    attention = grouped_attention(f, core, qkv_bias=bias, out_bias=bias, kv_heads=2, head_dim=128)
    layer = Layer(attention, gated_mlp(f, bias=mlp_bias), None)
    return rotary_model(f, name, core, layer, max_position=32768)


def read_iquestcoder(f: ConfigFields, name: str) -> ModelSpec:
    """IQuest-Coder: a Llama with other defaults."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", kv_heads=8, head_dim=128)
    layer = Layer(attention, gated_mlp(f, bias=f.boolean("mlp_bias", False)), None)
    return rotary_model(f, name, core, layer, max_position=131072)


def read_jais2(f: ConfigFields, name: str) -> ModelSpec:
    """Jais 2: layer norms and an ungated squared ReLU, everything with biases."""
    core = read_core(f)
    attention = grouped_attention(
        f, core, qkv_bias=f.boolean("attention_bias", True), out_bias=f.boolean("attention_bias", True)
    )
    mlp = replace(plain_mlp(f, Activation.RELU2), bias=f.boolean("mlp_bias", True))
    layer = Layer(attention, mlp, None, norm_bias=True)
    return rotary_model(f, name, core, layer, max_position=8192, norm_kind=NormKind.LAYER)


def read_mellum(f: ConfigFields, name: str) -> ModelSpec:
    """Mellum 2: Qwen 3's experts, dense and sliding layers as they are listed."""
    core = read_core(f)
    attention = grouped_attention(
        f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=4, head_dim=128
    )
    moe = read_moe(
        f, experts=("num_experts", "num_local_experts"), expert_ffn="moe_intermediate_size", default=(64, 8)
    )
    window = f.optional_integer("sliding_window") if "sliding_window" in f.values else 1024
    windows = windows_per_layer(f, core.num_layers, window, [False] * core.num_layers)
    layers = mixed_layers(f, attention, moe, windows, sparse_from(f, core.num_layers, 0))
    return rotary_model(f, name, core, layers, max_position=131072)


def read_granitemoeshared(f: ConfigFields, name: str) -> ModelSpec:
    """Granite 3 MoE with a shared expert beside the routed ones."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    moe = read_moe(
        f,
        experts=("num_local_experts", "num_experts"),
        default=(8, 2),
        shared_ffn=f.integer("shared_intermediate_size", default=0, least=0),
    )
    return rotary_model(f, name, core, Layer(attention, None, moe), max_position=2048)


def read_bailing_moe(f: ConfigFields, name: str) -> ModelSpec:
    """Ling and Ring: leading dense layers, shared and routed experts; from 2.0 on per-head norms of q and k."""
    core = read_core(f)
    if f.values.get("norm_head"):
        raise f.refused("a head whose rows are normed is not modelled", "norm_head", "set it to false")
    second = f.values.get("model_type") == "bailing_moe_v2" or "use_qk_norm" in f.values
    norm = QkNorm.HEAD if f.boolean("use_qk_norm", second) else QkNorm.NONE
    attention = grouped_attention(
        f,
        core,
        qkv_bias=f.boolean("use_qkv_bias", False),
        out_bias=f.boolean("use_bias", False),
        qk_norm=norm,
    )
    moe = shared_and_routed(f, NUMBERED, experts=256, top_k=8, shared=0)
    layers = _leading_dense(f, core.num_layers, attention, moe)
    return rotary_model(f, name, core, layers, max_position=32768)


def read_deepseek_moe(f: ConfigFields, name: str) -> ModelSpec:
    """DeepSeek-MoE (the first): plain attention, leading dense layers, shared and routed experts."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    f.integer("n_routed_experts"), f.integer("num_experts_per_tok")  # must be stated
    moe = shared_and_routed(f, ROUTED, experts=1, top_k=1, shared=0)
    layers = _leading_dense(f, core.num_layers, attention, moe, f.integer("moe_layer_freq", default=1))
    return rotary_model(f, name, core, layers, max_position=2048)


def read_afmoe(f: ConfigFields, name: str) -> ModelSpec:
    """AFMoE (Trinity): gated attention that slides in all but every fourth layer, norms on both sides, leading dense
    layers. Raises `UnsupportedError` for biases, which its gate has not."""
    core = read_core(f)
    if f.boolean("attention_bias", False):
        raise f.refused(
            "attention must have no biases beside a gate without one", "attention_bias=true", "leave it out"
        )
    attention = grouped_attention(f, core, qk_norm=QkNorm.HEAD, head_dim=128)
    every = f.integer("global_attn_every_n_layers", default=4)
    slides = [(i + 1) % every > 0 for i in range(core.num_layers)]
    windows = windows_per_layer(f, core.num_layers, f.integer("sliding_window", default=1024), slides)
    moe = shared_and_routed(f, NUMBERED, experts=64, top_k=6, shared=2)
    dense = f.integer("num_dense_layers", default=1, least=0)
    gated = replace(attention, output_gate=True)
    layers = mixed_layers(f, gated, moe, windows, [i >= dense for i in range(core.num_layers)])
    layers = tuple(replace(layer, norms=4) for layer in layers)
    return rotary_model(f, name, core, layers, max_position=16384)
