"""Which layers do Llama and its relatives have? Rotary attention, gated MLP, one or more norms.

Left out: rotary variants, logit soft-capping and residual scaling, which cost nothing that is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.spec.attention import Attention, AttentionKind, QkNorm
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
    f.divides("num_attention_heads", heads, "hidden_size", hidden)
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
        norm_kind=norm_kind,
        norm_bias=any(layer.norm_bias for layer in layers),
        norm_weight=all(layer.norm_weight for layer in layers),
        head_bias=head_bias,
        wide_norms=wide_norms,
        max_position=f.integer("max_position_embeddings", "model_max_length", default=max_position),
        source=f.file,
        assumed=tuple(f.assumed),
    )


def gated_mlp(f: ConfigFields, *, bias: bool = False, activation: Activation = Activation.SILU) -> Mlp:
    found = f.activation("hidden_act", "hidden_activation", default=activation)
    return Mlp(f.integer("intermediate_size"), True, bias, found)


def plain_mlp(f: ConfigFields, activation: Activation, *, bias: bool = False) -> Mlp:
    """An MLP of two matrices."""
    found = f.activation("hidden_act", default=activation)
    return Mlp(f.integer("intermediate_size"), False, bias, found)


def read_llama(f: ConfigFields, name: str) -> ModelSpec:
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    layer = Layer(attention, gated_mlp(f, bias=f.boolean("mlp_bias", False)), None)
    return rotary_model(f, name, core, layer, max_position=2048)


def read_mistral(f: ConfigFields, name: str) -> ModelSpec:
    """Mistral: every layer slides over `sliding_window` (null: full; left out: 4096 in the library)."""
    core = read_core(f)
    attention = grouped_attention(f, core, kv_heads=8)
    window = f.optional_integer("sliding_window")
    if "sliding_window" not in f.values:
        window = 4096
        f.assume("sliding_window", window)
    layer = Layer(with_window(attention, window), gated_mlp(f), None)
    return rotary_model(f, name, core, layer, max_position=131072)


def qwen_windows(f: ConfigFields, num_layers: int) -> list[int | None]:
    """Layers from `max_window_layers` on slide, if `use_sliding_window` says so."""
    if not f.boolean("use_sliding_window", False):
        return [None] * num_layers
    window = f.integer("sliding_window", default=4096)
    first = f.integer("max_window_layers", default=28, least=0)
    return windows_per_layer(f, num_layers, window, [i >= first for i in range(num_layers)])


def read_qwen2(f: ConfigFields, name: str) -> ModelSpec:
    """Qwen 2: biases on q, k and v, none on the output projection."""
    core = read_core(f)
    attention = grouped_attention(f, core, qkv_bias=True, kv_heads=32)
    layer = Layer(attention, gated_mlp(f), None)
    layers = repeat_with_windows(layer, qwen_windows(f, core.num_layers))
    return rotary_model(f, name, core, layers, max_position=32768)


def read_qwen3(f: ConfigFields, name: str) -> ModelSpec:
    """Qwen 3: per-head norms of q and k, head_dim 128 unless given."""
    core = read_core(f)
    attention = grouped_attention(
        f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=32, head_dim=128
    )
    layer = Layer(attention, gated_mlp(f), None)
    layers = repeat_with_windows(layer, qwen_windows(f, core.num_layers))
    return rotary_model(f, name, core, layers, max_position=32768)


def read_phi3(f: ConfigFields, name: str) -> ModelSpec:
    """Phi-3: fused projections, which change no count."""
    core = read_core(f)
    window = f.optional_integer("sliding_window")
    layer = Layer(with_window(grouped_attention(f, core), window), gated_mlp(f), None)
    return rotary_model(f, name, core, layer, max_position=4096)


def read_olmo2(f: ConfigFields, name: str) -> ModelSpec:
    """OLMo 2: norms after attention and after the MLP, and full-width norms of q and k."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", qk_norm=QkNorm.FULL)
    layer = Layer(attention, gated_mlp(f), None)
    return rotary_model(f, name, core, layer, max_position=2048)


def read_gemma2(f: ConfigFields, name: str) -> ModelSpec:
    """Gemma 2: four norms a layer; even layers slide, odd ones see everything."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", kv_heads=4, head_dim=256)
    layer = Layer(attention, _gemma_mlp(f, 9216), None, norms=4)
    window = f.integer("sliding_window", default=4096)
    pattern = [i % 2 == 0 for i in range(core.num_layers)]
    layers = repeat_with_windows(layer, windows_per_layer(f, core.num_layers, window, pattern))
    return rotary_model(f, name, core, layers, tied=True, max_position=8192, wide_norms=True)


def read_gemma3(f: ConfigFields, name: str) -> ModelSpec:
    """Gemma 3 text tower: as Gemma 2, with per-head norms of q and k and one full layer in six.

    The published configurations of the vision models leave out heads and vocabulary, so these have defaults.
    """
    core = Core(
        f.integer("hidden_size"), f.layer_count("num_hidden_layers"), f.integer("vocab_size", default=262208)
    )
    attention = grouped_attention(
        f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=4, head_dim=256, heads=8
    )
    layer = Layer(attention, _gemma_mlp(f, 9216), None, norms=4)
    window = f.integer("sliding_window", default=4096)
    if f.values.get("use_bidirectional_attention"):
        raise f.refused(
            "bidirectional attention is not modelled",
            "use_bidirectional_attention",
            "plan the causal language model",
        )
    period = f.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    pattern = [bool((i + 1) % period) for i in range(core.num_layers)]
    layers = repeat_with_windows(layer, windows_per_layer(f, core.num_layers, window, pattern))
    return rotary_model(f, name, core, layers, tied=True, max_position=131072, wide_norms=True)


def _gemma_mlp(f: ConfigFields, ffn: int) -> Mlp:
    """Gemma reads `hidden_activation`; a stray `hidden_act` in its files has no effect."""
    activation = f.activation("hidden_activation", default=Activation.GELU_TANH)
    return Mlp(f.integer("intermediate_size", default=ffn), True, False, activation)


def read_starcoder2(f: ConfigFields, name: str) -> ModelSpec:
    """StarCoder 2: plain MLP with biases everywhere (`use_bias`), layer norms with bias."""
    core = read_core(f)
    bias = f.boolean("use_bias", True)
    attention = grouped_attention(f, core, qkv_bias=bias, out_bias=bias, kv_heads=2)
    attention = with_window(attention, f.optional_integer("sliding_window"))
    mlp = plain_mlp(f, Activation.GELU_TANH, bias=bias)
    layer = Layer(attention, mlp, None, norm_bias=True)
    return rotary_model(f, name, core, layer, tied=True, max_position=4096, norm_kind=NormKind.LAYER)


def read_cohere(f: ConfigFields, name: str) -> ModelSpec:
    """Command R: attention and MLP in parallel after one norm; R+ adds full-width norms of q and k."""
    core = read_core(f)
    bias = f.boolean("attention_bias", False)
    qk_norm = QkNorm.FULL if f.boolean("use_qk_norm", False) else QkNorm.NONE
    attention = grouped_attention(f, core, qkv_bias=bias, out_bias=bias, qk_norm=qk_norm)
    layer = Layer(attention, gated_mlp(f), None, norms=1, parallel=True)
    return rotary_model(f, name, core, layer, tied=True, max_position=8192, norm_kind=NormKind.LAYER)


def read_nemotron(f: ConfigFields, name: str) -> ModelSpec:
    """Nemotron-3/4: plain MLP with squared ReLU, layer norms with bias."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    mlp = replace(plain_mlp(f, Activation.RELU2), bias=f.boolean("mlp_bias", False))
    layer = Layer(attention, mlp, None, norm_bias=True)
    return rotary_model(f, name, core, layer, max_position=4096, norm_kind=NormKind.LAYER)
