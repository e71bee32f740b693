"""Which layers do models have whose attention differs from layer to layer in its heads? Gemma 4, Step 3.5, Laguna,
MiMo-V2.

Left out: soft-capped logits, clamped activations, two rotary bases and scalars of layers that are not trained, which
cost nothing that is counted.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.mixtures import blocks_of, check_chosen, qwen_experts, read_moe, sparse_from, with_groups
from planner.spec.hf.parts import grouped_attention, read_core, rotary_model
from planner.spec.layer import Activation, Layer, Mlp, Moe
from planner.spec.model import ModelSpec

_SLIDING, _FULL = "sliding_attention", "full_attention"


def typed_layers(f: ConfigFields, default: list[str], *extra: str) -> list[str]:
    """`layer_types`, one for every layer, or the family's default."""
    types = f.words("layer_types", (_FULL, _SLIDING, *extra)) or default
    f.one_per_layer("layer_types", types, len(default))
    return types


def with_heads(attention: Attention, heads: int, kv_heads: int, head_dim: int) -> Attention:
    """The same attention with other heads, values as wide as keys. Raises `InputError`."""
    kind = AttentionKind.MHA if heads == kv_heads else AttentionKind.GQA
    return replace(
        attention, kind=kind, heads=heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim
    )


def stated_for_layer(f: ConfigFields, index: int, allowed: tuple[str, ...]) -> ConfigFields:
    """What `per_layer_config` overrides in a layer; the library pads numbers of layers with zeros.

    Raises `FileInputError` for an override of anything but the `allowed`, and for a key that is no number of a layer.
    """
    every = f.section("per_layer_config")
    for key in every.values:
        if not key.isdecimal():
            raise every.error(key, "must be the number of a layer, from 0", key, "correct the key")
    stated = every.section(next((key for key in every.values if int(key) == index), str(index)))
    for name in stated.values:
        if name not in allowed:
            must = "must be a number of heads or their width"
            raise stated.error(
                name, must, stated.values[name], f"leave it out; read are {', '.join(allowed)}"
            )
    return stated


def per_layer(f: ConfigFields, attention: Attention, index: int) -> Attention:
    """The attention of a layer as `per_layer_config` overrides its heads. Raises `FileInputError`."""
    stated = stated_for_layer(f, index, ("num_attention_heads", "num_key_value_heads", "head_dim"))
    kv_heads = stated.optional_integer("num_key_value_heads") or attention.kv_heads
    heads = stated.optional_integer("num_attention_heads") or attention.heads
    stated.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    return with_heads(attention, heads, kv_heads, stated.optional_integer("head_dim") or attention.head_dim)


def read_gemma4(f: ConfigFields, name: str) -> ModelSpec:
    """Gemma 4: five sliding layers, then one with wider heads that sees everything and may take its values from the
    projection of its keys; four norms a layer, and a norm of values without weights.

    With experts (26B-A4B), the MLP is a shared one beside them behind norms of its own. E2B and E4B give every layer an
    input of its own, and their last layers borrow keys and values.
    """
    unified = f.values.get("model_type") == "gemma4_unified_text"
    side, side_rows = _side_inputs(f, unified)
    core = read_core(f)
    sliding = replace(
        grouped_attention(f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=4, head_dim=256),
        value_norm=True,
    )
    types = typed_layers(f, [_FULL if i % 6 == 5 else _SLIDING for i in range(core.num_layers)])
    types = [*types[:-1], _FULL]  # the library sets the last one so
    window = f.integer("sliding_window", default=1024 if unified else 512)
    sides = {_SLIDING: replace(sliding, window=window), _FULL: _global_attention(f, sliding)}
    attentions = [sides[kind] for kind in types]
    if "per_layer_config" in f.values:  # null: no layer differs
        tied = f.boolean("attention_k_eq_v", False)
        sides[_FULL] = replace(sliding, tied_values=tied)
        attentions = [per_layer(f, sides[kind], i) for i, kind in enumerate(types)]
    mlp, moe = _gemma4_block(f)
    wide = f.boolean("use_double_wide_mlp", False) if f.given("num_kv_shared_layers") else False
    layers = tuple(
        Layer(
            attention,
            *(_twice_as_wide(mlp, moe) if wide and attention.borrows_kv else (mlp, moe)),
            norms=(4 if moe is None else 7) + (side > 0),
            side=side,
        )
        for attention in shared_keys(f, attentions, types)
    )
    model = rotary_model(f, name, core, layers, tied=True, max_position=262144 if unified else 131072)
    return replace(model, side_vocab=side_rows, wide_norms=True)


def _twice_as_wide(mlp: Mlp | None, moe: Moe | None) -> tuple[Mlp | None, Moe | None]:
    """With an MLP of twice the width, which beside experts is a shared one."""
    wider = None if mlp is None else replace(mlp, ffn=2 * mlp.ffn)
    return wider, None if moe is None else replace(moe, shared_ffn=2 * moe.shared_ffn)


def _side_inputs(f: ConfigFields, unified: bool) -> tuple[int, int]:
    """Width of every layer's own input, and rows of its table."""
    if f.values.get("use_bidirectional_attention") == "all":
        raise f.refused(
            "bidirectional attention is not modelled",
            "use_bidirectional_attention=all",
            "plan the causal language model",
        )
    width = 0 if unified else f.integer("hidden_size_per_layer_input", default=256, least=0)
    return width, f.integer("vocab_size_per_layer_input", default=262144) if width else 0


def shared_keys(
    f: ConfigFields, attentions: list[Attention], types: list[str], default: int = 0
) -> list[Attention]:
    """The last `num_kv_shared_layers` borrow keys and values of the last layer of their type before them."""
    first = len(types) - f.integer("num_kv_shared_layers", default=default, least=0)
    if first == len(types):
        return attentions
    lenders = {kind: i for i, kind in enumerate(types[: max(first, 0)])}
    if set(types) - set(lenders):
        must = "must leave a layer of every type that has keys and values of its own"
        raise f.error("num_kv_shared_layers", must, len(types) - first, "lower it")
    return [
        replace(attention, borrows_kv=i >= first, lends_kv=i in lenders.values())
        for i, attention in enumerate(attentions)
    ]


def _global_attention(f: ConfigFields, sliding: Attention) -> Attention:
    """Of the layers that see everything."""
    tied = f.boolean("attention_k_eq_v", False)
    stated = f.optional_integer("num_global_key_value_heads") if tied else None
    kv_heads = stated or sliding.kv_heads
    f.divides("num_global_key_value_heads", kv_heads, "num_attention_heads", sliding.heads)
    wide = with_heads(sliding, sliding.heads, kv_heads, f.integer("global_head_dim", default=512))
    return replace(wide, tied_values=tied)


def _gemma4_block(f: ConfigFields) -> tuple[Mlp | None, Moe | None]:
    ffn = f.integer("intermediate_size")
    activation = f.activation("hidden_activation", default=Activation.GELU_TANH)
    if not f.boolean("enable_moe_block", False):
        return Mlp(ffn, True, False, activation), None
    experts, top_k = f.integer("num_experts"), f.integer("top_k_experts")
    check_chosen(f, "top_k_experts", top_k, experts)
    width = f.integer("moe_intermediate_size")
    shared = Moe(
        experts, top_k, width, True, False, ffn, False, False, activation=activation, router_scale=True
    )
    return None, shared


def _gated(f: ConfigFields, attention: Attention) -> Attention:
    """With the gate that `gating` names: a value for every head, or one for every output."""
    gating = f.values.get("gating", True)
    if gating in (True, "per-head"):
        return replace(attention, head_gate=True)
    if gating != "per-element":
        raise f.error("gating", "must be true, per-head or per-element", gating, "correct it")
    if attention.qkv_bias:
        raise f.refused(
            "attention must have no biases beside a gate of every output without one",
            "attention_bias=true, gating=per-element",
            "leave one of them out",
        )
    return replace(attention, output_gate=True)


def _expert_layers(
    f: ConfigFields, attentions: list[Attention], sparse: list[bool], moe: Moe, bias: bool = False
) -> tuple[Layer, ...]:
    blocks = zip(attentions, blocks_of(f, moe, sparse, bias=bias), strict=True)
    return tuple(Layer(attention, *block) for attention, block in blocks)


def read_laguna(f: ConfigFields, name: str) -> ModelSpec:
    """Laguna: a softplus gate of every head, heads stated for every layer, a shared expert beside the routed ones."""
    core = read_core(f)
    attention = grouped_attention(
        f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=8, head_dim=128
    )
    attention = _gated(f, attention)
    heads = f.integers("num_attention_heads_per_layer") or [attention.heads] * core.num_layers
    f.one_per_layer("num_attention_heads_per_layer", heads, core.num_layers)
    types = typed_layers(f, [_FULL] * core.num_layers)
    window = f.integer("sliding_window", default=512)
    attentions = [
        replace(
            with_heads(attention, count, attention.kv_heads, attention.head_dim),
            window=window if kind == _SLIDING else None,
        )
        for count, kind in zip(heads, types, strict=True)
    ]
    moe = qwen_experts(f, 256, 8, shared=512)
    layers = _expert_layers(f, attentions, sparse_from(f, core.num_layers, 1), moe)
    return rotary_model(f, name, core, layers, max_position=131072)


def read_step3p5(f: ConfigFields, name: str) -> ModelSpec:
    """Step 3.5 and 3.7 Flash: a sigmoid gate of every head, more heads in sliding layers, a shared expert.

    Lists that go on to the prediction modules are cut to the layers.
    """
    core = read_core(f)
    f = replace(f, values={**f.values, **_without_mtp(f, core.num_layers)})
    if groups := f.optional_integer("num_attention_groups"):
        f.values["num_key_value_heads"] = groups
    bias, wide = f.boolean("attention_bias", False), f.boolean("mlp_bias", False)
    attention = grouped_attention(
        f, core, qkv_bias=bias, out_bias=bias, qk_norm=QkNorm.HEAD, kv_heads=8, head_dim=128
    )
    attention = _gated(f, attention)
    types = typed_layers(f, [_FULL] * core.num_layers)
    other = f.section("attention_other_setting").optional_integer("num_attention_heads")
    heads = f.optional_integer("num_sliding_attention_heads") or other or attention.heads
    f.divides("num_key_value_heads", attention.kv_heads, "num_sliding_attention_heads", heads)
    slides = replace(
        with_heads(attention, heads, attention.kv_heads, attention.head_dim),
        window=f.optional_integer("sliding_window"),
    )
    attentions = [slides if kind == _SLIDING else attention for kind in types]
    if f.given("per_layer_config"):
        base = {_SLIDING: replace(attention, window=slides.window), _FULL: attention}
        attentions = [per_layer(f, base[kind], i) for i, kind in enumerate(types)]
    moe = read_moe(
        f,
        experts=("n_routed_experts", "num_local_experts", "moe_num_experts"),
        top_k=("num_experts_per_tok", "moe_top_k"),
        expert_ffn="moe_intermediate_size",
        default=(288, 8),
        shared_ffn=f.integer("share_expert_dim", "share_expert_dims", default=1280),
    )
    layers = _expert_layers(
        f, attentions, _step_sparse(f, core.num_layers), replace(moe, shared_bias=wide), wide
    )
    return rotary_model(f, name, core, layers, max_position=128000)


def _without_mtp(f: ConfigFields, num_layers: int) -> dict[str, list[str]]:
    more = f.optional_integer("num_nextn_predict_layers", least=0) or 0
    lists = {name: f.values.get(name) for name in ("layer_types", "mlp_layer_types")}
    return {
        name: value[:num_layers]
        for name, value in lists.items()
        if more and isinstance(value, list) and len(value) == num_layers + more
    }


def _step_sparse(f: ConfigFields, num_layers: int) -> list[bool]:
    """Layers of `moe_layers_enum`, a list or a text with commas; all from the fourth on where nothing is said."""
    listed = f.values.get("moe_layers_enum")
    if f.given("mlp_layer_types") or listed is None:
        return sparse_from(f, num_layers, 3)
    items = listed.split(",") if isinstance(listed, str) else listed
    if not isinstance(items, list) or not all(str(item).strip().isdigit() for item in items):
        raise f.error("moe_layers_enum", "must be numbers of layers", listed, 'write "3,4,5"')
    return [i in {int(item) for item in items} for i in range(num_layers)]


def read_mimo_v2_flash(f: ConfigFields, name: str) -> ModelSpec:
    """MiMo-V2-Flash: five sliding layers with sinks and twice the key/value heads to one that sees everything, values
    narrower than keys, no shared expert. Raises `FileInputError` for fields of its remote code that say otherwise."""
    core = read_core(f)
    bias = f.boolean("attention_bias", False)
    sees = grouped_attention(f, core, qkv_bias=bias, kv_heads=4, head_dim=192)
    pairs, width = 2 * sees.kv_heads, f.integer("v_head_dim", default=128)
    f.divides("twice num_key_value_heads", pairs, "num_attention_heads", sees.heads)
    before = f.optional_integer("sliding_window_size")
    window = f.integer("sliding_window", default=129) if before is None else before + 1
    slides = replace(with_heads(sees, sees.heads, pairs, sees.head_dim), sinks=True, window=window)
    default = [_FULL if i == 0 or i % 6 == 5 else _SLIDING for i in range(core.num_layers)]
    types = typed_layers(f, default)
    sparse = sparse_from(f, core.num_layers, 1)
    said = {
        "swa_num_attention_heads": sees.heads, "swa_num_key_value_heads": pairs, "swa_head_dim": sees.head_dim,
        "swa_v_head_dim": width, "add_full_attention_sink_bias": False, "add_swa_attention_sink_bias": True,
        "hybrid_layer_pattern": [int(kind == _SLIDING) for kind in types], "moe_layer_freq": [int(s) for s in sparse],
    }  # fmt: skip
    for field, value in said.items():
        if f.values.get(field, value) != value:
            raise f.error(field, f"must be {value}, as the library has it", f.values[field], "leave it out")
    sides = {_SLIDING: replace(slides, v_head_dim=width), _FULL: replace(sees, v_head_dim=width)}
    moe = read_moe(
        f,
        experts=("n_routed_experts", "num_local_experts"),
        expert_ffn="moe_intermediate_size",
        default=(256, 8),
    )
    layers = _expert_layers(f, [sides[kind] for kind in types], sparse, with_groups(f, moe))
    return rotary_model(f, name, core, layers, max_position=131072)


def read_mimo_v2(f: ConfigFields, name: str) -> ModelSpec:
    """MiMo-V2.5 and V2.6, Flash and Pro: as V2-Flash, with every kind of layer, head and sink stated; the defaults are
    those of PrimeIntellect-ai/prime-rl@5bc3e7a, configuration_mimo_v2.py. Left out: prediction modules, encoders of
    images and sound. Raises `FileInputError` where a layer's kind is not stated."""
    core = read_core(f)
    if f.values.get("n_shared_experts"):
        must = "must be left out: the published modeling code builds none"
        raise f.error("n_shared_experts", must, f.values["n_shared_experts"], "leave it out")
    bias = f.boolean("attention_bias", False)
    sees = replace(
        grouped_attention(f, core, qkv_bias=bias, kv_heads=4, head_dim=192),
        v_head_dim=f.integer("v_head_dim", default=128),
        sinks=f.boolean("add_full_attention_sink_bias", False),
    )
    heads = f.integer("swa_num_attention_heads", default=64), f.integer("swa_num_key_value_heads", default=8)
    slides = replace(
        with_heads(sees, *heads, f.integer("swa_head_dim", default=192)),
        v_head_dim=f.integer("swa_v_head_dim", default=128),
        sinks=f.boolean("add_swa_attention_sink_bias", True),
        window=f.integer("sliding_window", "sliding_window_size", default=128),
    )
    sliding, sparse = (
        _stated_kinds(f, field, core.num_layers) for field in ("hybrid_layer_pattern", "moe_layer_freq")
    )
    experts = ("n_routed_experts", "num_local_experts")
    moe = read_moe(f, experts=experts, expert_ffn="moe_intermediate_size", default=(256, 8))
    attentions = [slides if windowed else sees for windowed in sliding]
    layers = _expert_layers(f, attentions, sparse, with_groups(f, moe))
    return rotary_model(f, name, core, layers, max_position=1048576)


def _stated_kinds(f: ConfigFields, field: str, layers: int) -> list[bool]:
    """A list of 0 and 1, one for every layer. Raises `FileInputError`."""
    kinds = f.integers(field)
    if kinds is None or not set(kinds) <= {0, 1}:
        must = "must be given as a list of 0 and 1, one for every layer"
        raise f.error(field, must, f.values.get(field), "take it from the published file")
    f.one_per_layer(field, kinds, layers)
    return [kind == 1 for kind in kinds]
