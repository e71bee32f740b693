"""What do the readers of `config.json` share? Dimensions, attention, windows, MLPs, and the parts around the layers.

Left out: experts (`mixtures.py`), and rotary variants, logit soft-capping, multipliers of embeddings, residuals and
logits, which cost nothing that is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.errors import UnsupportedError
from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.hf.families import facts_of
from planner.spec.hf.fields import ConfigFields
from planner.spec.layer import Activation, Layer, Mlp, NormKind
from planner.spec.model import ModelSpec


@dataclass(frozen=True)
class Core:
    """What every configuration states one way or another."""

    hidden: int
    num_layers: int
    vocab: int


def read_core(f: ConfigFields) -> Core:
    hidden = f.integer("hidden_size", "n_embd", "d_model")
    return Core(hidden, f.layer_count("num_hidden_layers", "n_layer"), f.integer("vocab_size"))


def head_width(f: ConfigFields, hidden: int, heads: int, default: int | None = None) -> int:
    """`head_dim`, or the family's default, or hidden / heads, which must then come out even."""
    given = f.optional_integer("head_dim")
    if given is not None:
        return given
    if default is not None and "head_dim" not in f.values:
        f.assume("head_dim", default)
        return default
    if hidden % heads:
        must = "must be given where num_attention_heads does not divide hidden_size"
        both = f"hidden_size={hidden}, num_attention_heads={heads}"
        raise f.error("head_dim", must, both, "state it, or correct one of the two")
    return hidden // heads


def grouped_attention(
    f: ConfigFields,
    core: Core,
    *,
    switch: str = "",
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: QkNorm = QkNorm.NONE,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    heads: int | None = None,
) -> Attention:
    """MHA or GQA from the usual field names; `heads`, `kv_heads`, `head_dim` are the library's defaults. `switch`: the
    field that gives all four projections biases, off unless stated.

    A null is not a default: it means as many kv heads as heads, and head_dim = hidden / heads.
    """
    if switch:
        qkv_bias = out_bias = f.boolean(switch, False)
    q_heads = f.integer("num_attention_heads", default=heads)
    kv = f.optional_integer("num_key_value_heads")
    if kv is None:
        stated_null = "num_key_value_heads" in f.values
        kv = q_heads if kv_heads is None or stated_null else kv_heads
        f.assume("num_key_value_heads", kv)
        if q_heads % kv:
            must = f"must be given where the library's default, {kv}, does not divide num_attention_heads"
            raise f.error("num_key_value_heads", must, f"num_attention_heads={q_heads}", "state it")
    f.divides("num_key_value_heads", kv, "num_attention_heads", q_heads)
    width = head_width(f, core.hidden, q_heads, head_dim)
    kind = AttentionKind.MHA if kv == q_heads else AttentionKind.GQA
    return Attention(kind, q_heads, kv, width, width, qkv_bias=qkv_bias, out_bias=out_bias, qk_norm=qk_norm)


def with_window(attention: Attention, window: int | None) -> Attention:
    return replace(attention, window=window)


def stated_window(f: ConfigFields, default: int) -> int | None:
    """`sliding_window`, whose null lets every layer see everything; the family's default where it is left out."""
    return f.optional_integer("sliding_window") if "sliding_window" in f.values else default


def windows_per_layer(
    f: ConfigFields, num_layers: int, window: int | None, sliding: list[bool]
) -> list[int | None]:
    """The window of each layer: from `layer_types` where given, else from the family's pattern `sliding`."""
    types = f.words("layer_types", ("full_attention", "sliding_attention", "chunked_attention"))
    if types is not None:
        f.one_per_layer("layer_types", types, num_layers)
        sliding = [kind != "full_attention" for kind in types]
    return [window if slides else None for slides in sliding]


def repeat_with_windows(layer: Layer, windows: list[int | None]) -> tuple[Layer, ...]:
    assert layer.attention is not None, "windows are of attention"
    attention = layer.attention
    return tuple(replace(layer, attention=with_window(attention, window)) for window in windows)


def sliding_pattern(f: ConfigFields, num_layers: int, *, window: int | None, period: int) -> list[int | None]:
    """Windows where all layers but every `period`-th slide; `sliding_window: null` lets all see everything."""
    if "sliding_window" not in f.values and window is not None:
        f.assume("sliding_window", window)
    else:
        window = f.optional_integer("sliding_window")
    pattern = [window is not None and (i + 1) % period != 0 for i in range(num_layers)]
    return windows_per_layer(f, num_layers, window, pattern)


def window_period(f: ConfigFields, default: int) -> int:
    """Layers from one that sees everything to the next: a number, or letters as EXAONE 4 writes them ("LLLG")."""
    stated = f.values.get("sliding_window_pattern")
    if f.given("layer_types"):
        return default
    if not isinstance(stated, str):
        return f.optional_integer("sliding_window_pattern") or default
    if set(stated[:-1]) - {"L"} or stated[-1:] != "G":
        raise f.error(
            "sliding_window_pattern", "must be a number, or L's and then a G", stated, "state layer_types"
        )
    return len(stated)


def rotary_model(
    f: ConfigFields,
    name: str,
    core: Core,
    layers: Layer | tuple[Layer, ...],
    *,
    tied: bool = False,
    max_position: int,
    norm_kind: NormKind = NormKind.RMS,
    head_bias: bool = False,
    wide_norms: bool = False,
    embedding_norm: bool = False,
) -> ModelSpec:
    """The parts around the layers, the same for all these families; a single layer is repeated."""
    if isinstance(layers, Layer):
        layers = (layers,) * core.num_layers
    return ModelSpec(
        name=name,
        family=str(f.values.get("model_type")),
        hidden=core.hidden,
        vocab=core.vocab,
        layers=layers,
        tied_embeddings=f.boolean("tie_word_embeddings", tied),
        embedding_norm=embedding_norm,
        norm_kind=norm_kind,
        norm_bias=any(layer.norm_bias for layer in layers),
        norm_weight=all(layer.norm_weight for layer in layers),
        head_bias=head_bias,
        wide_norms=wide_norms,
        capped_logits=_caps_logits(f),
        max_position=f.integer("max_position_embeddings", "model_max_length", default=max_position),
        source=f.file,
        assumed=tuple(f.assumed),
    )


def _caps_logits(f: ConfigFields) -> bool:
    """Do logits pass a tanh between two constants?"""
    unsaid, name = facts_of(str(f.values.get("model_type"))).caps_logits, "final_logit_softcapping"
    return unsaid is not None and (f.given(name) is not None if name in f.values else unsaid)


def gated_mlp(f: ConfigFields, *, bias: bool = False, activation: Activation = Activation.SILU) -> Mlp:
    found = f.activation("hidden_act", "hidden_activation", default=activation)
    return Mlp(f.integer("intermediate_size"), True, bias, found)


def plain_mlp(f: ConfigFields, activation: Activation, *, bias: bool = False) -> Mlp:
    """An MLP of two matrices."""
    found = f.activation("hidden_act", default=activation)
    return Mlp(f.integer("intermediate_size"), False, bias, found)


def refuse_unread(f: ConfigFields, *switches: str) -> None:
    """Raise `UnsupportedError` for a switch of a family's own code that is on and that the library does not know."""
    for name in switches:
        if f.values.get(name):
            must = f"{f.file}: {f.prefix}{name} is not modelled for {f.values.get('model_type')}"
            raise UnsupportedError(
                must, f"{name}={f.values[name]!r}", "set it to false if the model was built so"
            )
