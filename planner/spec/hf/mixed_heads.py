"""Which layers do models have whose attention differs from layer to layer in its heads? Gemma 4.

Left out: soft-capped logits, two rotary bases and scalars of layers that are not trained, which cost nothing that is
counted.
"""

from __future__ import annotations

from dataclasses import replace

from planner.errors import UnsupportedError
from planner.spec.hf.dense import grouped_attention, read_core, rotary_model
from planner.spec.hf.fields import ConfigFields
from planner.spec.model import Activation, Attention, AttentionKind, Layer, Mlp, ModelSpec, Moe, QkNorm

_SLIDING, _FULL = "sliding_attention", "full_attention"
# families whose layers `per_layer_config` of transformers 5 may set apart
READS_PER_LAYER = ("gemma4_text", "gemma4_unified_text")


def typed_layers(f: ConfigFields, default: list[str], *extra: str) -> list[str]:
    """`layer_types`, one for every layer, or the family's default."""
    types = f.words("layer_types", (_FULL, _SLIDING, *extra)) or default
    if len(types) != len(default):
        raise f.error("layer_types", "must name one type per layer", len(types), f"list {len(default)} types")
    return types


def with_heads(attention: Attention, heads: int, kv_heads: int, head_dim: int) -> Attention:
    """The same attention with other heads, values as wide as keys. Raises `InputError`."""
    kind = AttentionKind.MHA if heads == kv_heads else AttentionKind.GQA
    return replace(
        attention, kind=kind, heads=heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim
    )


def per_layer(f: ConfigFields, attention: Attention, index: int) -> Attention:
    """The attention of a layer as `per_layer_config` overrides it.

    Raises `FileInputError` for an override of anything but heads.
    """
    stated = f.section("per_layer_config").section(str(index))
    for name in stated.values:
        if name not in ("num_attention_heads", "num_key_value_heads", "head_dim"):
            raise stated.error(
                name, "must be a number of heads or their width", stated.values[name], "leave it out"
            )
    kv_heads = stated.optional_integer("num_key_value_heads") or attention.kv_heads
    heads = stated.optional_integer("num_attention_heads") or attention.heads
    stated.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    return with_heads(attention, heads, kv_heads, stated.optional_integer("head_dim") or attention.head_dim)


def read_gemma4(f: ConfigFields, name: str) -> ModelSpec:
    """Gemma 4 (12B, 26B-A4B, 31B): five sliding layers, then one with wider heads that sees everything and may take its
    values from the projection of its keys; four norms a layer, and a norm of values without weights.

    With experts, the MLP is a shared one beside them behind norms of its own. Raises `UnsupportedError` for embeddings
    of every layer and shared keys and values (E2B, E4B).
    """
    unified = f.values.get("model_type") == "gemma4_unified_text"
    f = f.with_defaults(
        vocab_size=262144, hidden_size=2304, intermediate_size=9216, num_hidden_layers=30, num_attention_heads=8
    )  # fmt: skip
    _refuse_per_layer_inputs(f, unified)
    core = read_core(f)
    bias = f.boolean("attention_bias", False)
    sliding = replace(
        grouped_attention(
            f, core.hidden, qkv_bias=bias, out_bias=bias, qk_norm=QkNorm.HEAD, kv_heads=4, head_dim=256
        ),
        value_norm=True,
    )
    types = typed_layers(f, [_FULL if i % 6 == 5 else _SLIDING for i in range(core.num_layers)])
    types = [*types[:-1], _FULL]  # the library sets the last one so
    window = f.integer("sliding_window", default=1024 if unified else 512)
    sides = {_SLIDING: replace(sliding, window=window), _FULL: _global_attention(f, sliding)}
    attentions = [sides[kind] for kind in types]
    if f.given("per_layer_config"):
        tied = f.boolean("attention_k_eq_v", False)
        sides[_FULL] = replace(sliding, tied_values=tied)
        attentions = [per_layer(f, sides[kind], i) for i, kind in enumerate(types)]
    block = _gemma4_block(f)
    layers = tuple(Layer(attention, *block, norms=4 if block[1] is None else 7) for attention in attentions)
    return rotary_model(f, name, core, layers, tied=True, max_position=262144 if unified else 131072)


def _refuse_per_layer_inputs(f: ConfigFields, unified: bool) -> None:
    per_layer_width = 0 if unified else f.integer("hidden_size_per_layer_input", default=256, least=0)
    if per_layer_width or f.integer("num_kv_shared_layers", default=0, least=0):
        raise UnsupportedError(
            f"{f.file}: embeddings for every layer, and keys and values shared between layers, are not modelled",
            f"hidden_size_per_layer_input={per_layer_width}, "
            f"num_kv_shared_layers={f.values.get('num_kv_shared_layers', 0)}",
            "plan a Gemma 4 without them: 12B, 26B-A4B or 31B",
        )
    if f.values.get("use_bidirectional_attention") == "all":
        raise UnsupportedError(
            f"{f.file}: bidirectional attention is not modelled",
            "use_bidirectional_attention=all",
            "plan the causal language model",
        )


def _global_attention(f: ConfigFields, sliding: Attention) -> Attention:
    """Of the layers that see everything."""
    tied = f.boolean("attention_k_eq_v", False)
    stated = f.optional_integer("num_global_key_value_heads") if tied else None
    kv_heads = stated or sliding.kv_heads
    f.divides("num_global_key_value_heads", kv_heads, "num_attention_heads", sliding.heads)
    wide = with_heads(sliding, sliding.heads, kv_heads, f.integer("global_head_dim", default=512))
    return replace(wide, tied_values=tied)


def _gemma4_block(f: ConfigFields) -> tuple[Mlp | None, Moe | None]:
    ffn, activation = (
        f.integer("intermediate_size"),
        f.activation("hidden_activation", default=Activation.GELU_TANH),
    )
    if not f.boolean("enable_moe_block", False):
        return Mlp(ffn, True, False, activation), None
    experts, top_k = f.integer("num_experts"), f.integer("top_k_experts")
    if top_k > experts:
        must = f"must be at most the number of experts, {experts}"
        raise f.error("top_k_experts", must, top_k, "correct one of the two")
    width = f.integer("moe_intermediate_size")
    shared = Moe(
        experts, top_k, width, True, False, ffn, False, False, activation=activation, router_scale=True
    )
    return None, shared
