"""Which layers have the mixtures of experts that came after DeepSeek-V3 and Qwen 3? And Granite's.

Left out: balance-correction buffers, which the optimizer does not train, and multi-token-prediction modules.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import QkNorm
from planner.spec.hf.deepseek import latent_attention
from planner.spec.hf.dense import gated_mlp, grouped_attention, read_core, rotary_model
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
from planner.spec.hf.later_dense import refuse_unread, sliding_pattern, window_period
from planner.spec.layer import Layer, Mlp, Moe
from planner.spec.model import ModelSpec


def read_dots1(f: ConfigFields, name: str) -> ModelSpec:
    """dots.llm1: per-head norms of q and k, shared experts; layers from `max_window_layers` on slide."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=32)
    f.integer("n_routed_experts")
    f.integer("num_experts_per_tok")
    moe = shared_and_routed(f, ROUTED, experts=1, top_k=1, shared=0)
    first = f.integer("max_window_layers", default=62, least=0)
    window = f.optional_integer("sliding_window") if "sliding_window" in f.values else 4096
    types = f.words("layer_types", ("full_attention", "sliding_attention"))
    if types is not None:
        f.one_per_layer("layer_types", types, core.num_layers)
    slides = [i >= first if types is None else types[i] != "full_attention" for i in range(core.num_layers)]
    windows = [window if slide else None for slide in slides]
    dense = f.integer("first_k_dense_replace", default=0, least=0)
    layers = mixed_layers(f, attention, moe, windows, [i >= dense for i in range(core.num_layers)])
    return rotary_model(f, name, core, layers, max_position=2048)


def read_ernie_moe(f: ConfigFields, name: str) -> ModelSpec:
    """ERNIE 4.5 MoE: experts between two layers at an interval, shared experts, one switch for all biases."""
    core = read_core(f)
    bias = f.boolean("use_bias", False)
    attention = grouped_attention(f, core, qkv_bias=bias, out_bias=bias, kv_heads=4)
    width = f.integer("moe_intermediate_size", default=1536)
    stated = {**f.values, "moe_intermediate_size": width}
    moe = read_moe(
        replace(f, values=stated),
        experts=("moe_num_experts",),
        top_k=("moe_k",),
        expert_ffn="moe_intermediate_size",
        default=(64, 6),
        shared_ffn=width * f.integer("moe_num_shared_experts", default=2, least=0),
    )
    moe = replace(moe, shared_bias=bias)
    first = f.integer("moe_layer_start_index", default=1, least=0)
    last = f.values.get("moe_layer_end_index")
    end = core.num_layers - 1 if last in (None, -1) else f.integer("moe_layer_end_index", least=0)
    every = f.integer("moe_layer_interval", default=1)
    sparse = [(i + 1) % every == 0 and first <= i <= end for i in range(core.num_layers)]
    layers = tuple(Layer(attention, *block) for block in blocks_of(f, moe, sparse, bias=bias))
    return rotary_model(f, name, core, layers, tied=True, max_position=131072, head_bias=bias)


def read_minimax_m2(f: ConfigFields, name: str) -> ModelSpec:
    """MiniMax-M2: full-width norms of q and k, experts in every layer, none shared."""
    core = read_core(f)
    attention = grouped_attention(f, core, qk_norm=QkNorm.FULL, kv_heads=8, head_dim=128)
    moe = read_moe(f, experts=("num_local_experts", "num_experts"), default=(256, 8))
    return rotary_model(f, name, core, Layer(attention, None, moe), max_position=196608)


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


def read_hunyuan(f: ConfigFields, name: str) -> ModelSpec:
    """Hunyuan-Large (Tencent-Hunyuan/Tencent-Hunyuan-Large, models/modeling_hunyuan.py): a shared expert beside the
    routed ones; with `use_cla` all layers but every `cla_share_factor`-th borrow keys and values, as projected, of the
    last one before them that makes any."""
    core = read_core(f)
    bias = f.boolean("attention_bias", False)
    norm = QkNorm.HEAD if f.boolean("use_qk_norm", False) else QkNorm.NONE
    plain = replace(f, values={key: value for key, value in f.values.items() if key != "head_dim"})
    attention = grouped_attention(plain, core, qkv_bias=bias, out_bias=bias, qk_norm=norm)
    block: tuple[Mlp | None, Moe | None] = gated_mlp(f), None
    if f.integer("num_experts", default=1) > 1:
        shared = f.integer("num_shared_expert", default=1) if f.boolean("use_mixed_mlp_moe", False) else 0
        moe = read_moe(
            f,
            experts=("num_experts",),
            top_k=("moe_topk",),
            default=(1, 1),
            shared_ffn=shared * f.integer("intermediate_size"),
        )
        block = None, moe
    every = f.integer("cla_share_factor", default=1) if f.boolean("use_cla", False) else 1
    last = core.num_layers - 1
    layers = tuple(
        Layer(
            replace(
                attention,
                raw_keys=every > 1,
                borrows_kv=i % every > 0,
                lends_kv=every > 1 and i % every == 0 and i < last,
            ),
            *block,
        )
        for i in range(core.num_layers)
    )
    return rotary_model(f, name, core, layers, max_position=2048)


def read_granitemoe(f: ConfigFields, name: str) -> ModelSpec:
    """Granite 3 MoE: Mixtral's layers; multipliers change no count."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    moe = read_moe(f, experts=("num_local_experts", "num_experts"), default=(8, 2))
    return rotary_model(f, name, core, Layer(attention, None, moe), max_position=2048)


def read_flex_olmo(f: ConfigFields, name: str) -> ModelSpec:
    """FlexOlmo: OLMo 2's layers with experts."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", qk_norm=QkNorm.FULL)
    moe = read_moe(f, experts=("num_experts", "num_local_experts"), default=(7, 5))
    return rotary_model(f, name, core, Layer(attention, None, moe), max_position=4096)


def read_glm4_moe_lite(f: ConfigFields, name: str) -> ModelSpec:
    """GLM-4.7-Flash: latent attention, one leading dense layer, shared experts."""
    core = read_core(f)
    f = f.with_defaults(qk_nope_head_dim=192, v_head_dim=256)
    attention = latent_attention(f, default_q_rank=768)
    attention = replace(attention, out_bias=attention.qkv_bias)
    moe = shared_and_routed(f, ROUTED, experts=64, top_k=4, shared=1)
    sparse = sparse_from(f, core.num_layers, f.integer("first_k_dense_replace", default=1, least=0))
    layers = mixed_layers(f, attention, moe, [None] * core.num_layers, sparse)
    return rotary_model(f, name, core, layers, max_position=202752)


def read_solar_open(f: ConfigFields, name: str) -> ModelSpec:
    """Solar Open: GQA, a shared expert, experts in every layer."""
    core = read_core(f)
    attention = grouped_attention(
        f, core, qkv_bias=f.boolean("attention_bias", False), kv_heads=8, head_dim=128
    )
    moe = shared_and_routed(f, ROUTED, experts=128, top_k=8, shared=1)
    return rotary_model(f, name, core, Layer(attention, None, moe), max_position=131072)


def read_exaone_moe(f: ConfigFields, name: str) -> ModelSpec:
    """EXAONE MoE (K-EXAONE): EXAONE 4's attention, a leading dense layer, shared and routed experts."""
    core = read_core(f)
    attention = grouped_attention(f, core, qk_norm=QkNorm.HEAD, kv_heads=32)
    moe = shared_and_routed(f, NUMBERED, experts=64, top_k=8, shared=1)
    windows = sliding_pattern(f, core.num_layers, window=4096, period=window_period(f, 4))
    sparse = sparse_from(f, core.num_layers, f.integer("first_k_dense_replace", default=1, least=0))
    layers = mixed_layers(f, attention, moe, windows, sparse)
    return rotary_model(f, name, core, layers, max_position=2048)


def read_aria(f: ConfigFields, name: str) -> ModelSpec:
    """Aria's text model: Llama's attention, shared experts as wide as the routed ones."""
    f = f.with_defaults(intermediate_size=4096)
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    moe = read_moe(f, experts=("moe_num_experts",), top_k=("moe_topk",), default=(8, 2))
    shared = f.integer("moe_num_shared_experts", default=2) * moe.expert_ffn
    return rotary_model(
        f, name, core, Layer(attention, None, replace(moe, shared_ffn=shared)), max_position=2048
    )
