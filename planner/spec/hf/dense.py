"""Which layers do families have whose layers are all alike? Each a Llama but for its row in `families.json`, or for
what its reader says.

Left out: norms without weights inside attention, which cost nothing that is counted.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import QkNorm
from planner.spec.hf.families import PlainLayers, Switch, family
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.mixtures import Block, read_moe
from planner.spec.hf.parts import (
    gated_mlp,
    grouped_attention,
    plain_mlp,
    read_core,
    refuse_unread,
    repeat_with_windows,
    rotary_model,
    windows_per_layer,
    with_window,
)
from planner.spec.layer import Activation, Layer, NormKind
from planner.spec.model import ModelSpec


def read_plain(f: ConfigFields, name: str) -> ModelSpec:
    """The families whose row has `layers`."""
    plain = family(f.values["model_type"]).layers
    assert plain is not None, "such a row names no other reader"
    core = read_core(f)
    bias = _is_on(f, plain.bias)
    attention = grouped_attention(
        f,
        core,
        qkv_bias=bias,
        out_bias=bias if plain.out_bias is None else _is_on(f, plain.out_bias),
        qk_norm=plain.qk_norm,
        kv_heads=plain.kv_heads,
        head_dim=plain.head_dim,
    )
    if plain.window:
        attention = with_window(attention, f.optional_integer("sliding_window"))
    layer = Layer(
        attention,
        *_plain_block(f, plain),
        norms=plain.norms,
        norm_bias=plain.norm_bias,
        norm_weight=plain.norm_weight,
    )
    return rotary_model(
        f,
        name,
        core,
        layer,
        tied=plain.tied,
        max_position=plain.max_position,
        norm_kind=plain.norm,
        head_bias=_is_on(f, plain.head_bias),
        embedding_norm=plain.embedding_norm,
    )


def _is_on(f: ConfigFields, switch: Switch) -> bool:
    return switch if isinstance(switch, bool) else f.boolean(*switch)


def _plain_block(f: ConfigFields, plain: PlainLayers) -> Block:
    if (own := plain.experts) is not None:
        shared = f.integer(own.shared, default=0, least=0) if own.shared else 0
        return None, read_moe(f, experts=own.names, default=(own.count, own.top_k), shared_ffn=shared)
    if plain.gated:
        return gated_mlp(f, bias=_is_on(f, plain.mlp_bias), activation=plain.activation), None
    mlp = plain_mlp(f, plain.activation)
    return replace(mlp, bias=_is_on(f, plain.mlp_bias)), None


def read_qwen3(f: ConfigFields, name: str) -> ModelSpec:
    """Qwen 3: per-head norms of q and k, head_dim 128 unless given."""
    core = read_core(f)
    attention = grouped_attention(
        f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=32, head_dim=128
    )
    layer = Layer(attention, gated_mlp(f), None)
    layers = repeat_with_windows(layer, qwen_windows(f, core.num_layers))
    return rotary_model(f, name, core, layers, max_position=32768)


def read_gemma(f: ConfigFields, name: str) -> ModelSpec:
    """Gemma: head_dim 256 and a gated GELU; its file's `hidden_act` holds, unlike in Gemma 2."""
    core = read_core(f)
    bias = f.boolean("attention_bias", False)
    if f.values.get("use_bidirectional_attention"):
        raise f.refused(
            "bidirectional attention is not modelled",
            "use_bidirectional_attention",
            "plan the causal language model",
        )
    attention = grouped_attention(f, core, qkv_bias=bias, out_bias=bias, kv_heads=16, head_dim=256, heads=16)
    layer = Layer(attention, gated_mlp(f, activation=Activation.GELU_TANH), None)
    return rotary_model(f, name, core, layer, tied=True, max_position=8192, wide_norms=True)


def read_cohere(f: ConfigFields, name: str) -> ModelSpec:
    """Command R: attention and MLP in parallel after one norm; R+ adds full-width norms of q and k."""
    core = read_core(f)
    bias = f.boolean("attention_bias", False)
    qk_norm = QkNorm.FULL if f.boolean("use_qk_norm", False) else QkNorm.NONE
    attention = grouped_attention(f, core, qkv_bias=bias, out_bias=bias, qk_norm=qk_norm)
    layer = Layer(attention, gated_mlp(f), None, norms=1, parallel=True)
    return rotary_model(f, name, core, layer, tied=True, max_position=8192, norm_kind=NormKind.LAYER)


def read_helium(f: ConfigFields, name: str) -> ModelSpec:
    """Helium: head_dim 128, no bias on the output projection."""
    core = read_core(f)
    attention = grouped_attention(
        f, core, qkv_bias=f.boolean("attention_bias", False), kv_heads=20, head_dim=128
    )
    if attention.heads * attention.head_dim != core.hidden:
        must = "must be hidden_size / num_attention_heads, since outputs are projected from the hidden width"
        raise f.error(
            "head_dim",
            must,
            f"{attention.heads} x {attention.head_dim}",
            "correct one of the three",
        )
    layer = Layer(attention, gated_mlp(f, bias=f.boolean("mlp_bias", False)), None)
    return rotary_model(f, name, core, layer, max_position=4096)


def read_hunyuan_dense(f: ConfigFields, name: str) -> ModelSpec:
    """Hunyuan dense: per-head norms of q and k."""
    refuse_unread(f, "use_cla", "use_mla")
    return read_plain(f, name)


def read_apertus1p5(f: ConfigFields, name: str) -> ModelSpec:
    """Apertus 1.5's text model: Apertus with tokens of images and sound in its vocabulary. Raises `UnsupportedError`
    for a head that was cut to the tokens of text."""
    rows, vocab = f.optional_integer("output_vocab_size"), f.integer("vocab_size")
    if rows not in (None, vocab):
        must = "output_vocab_size must be vocab_size: a head of fewer rows than the embedding is not modelled"
        raise f.refused(must, f"{rows} of {vocab}", "leave it out to plan a head as wide as the vocabulary")
    return read_plain(f, name)


def read_phi(f: ConfigFields, name: str) -> ModelSpec:
    """Phi-1 and 2: attention beside a plain MLP after one layer norm, biases everywhere, the head included."""
    core = read_core(f)
    if f.boolean("qk_layernorm", False):
        raise f.refused("qk_layernorm=true is not modelled", "qk_layernorm", "set it to false")
    attention = grouped_attention(f, core, qkv_bias=True, out_bias=True)
    mlp = plain_mlp(f, Activation.GELU_TANH, bias=True)
    layer = Layer(attention, mlp, None, norms=1, norm_bias=True, parallel=True)
    return rotary_model(f, name, core, layer, max_position=2048, norm_kind=NormKind.LAYER, head_bias=True)


def read_stablelm(f: ConfigFields, name: str) -> ModelSpec:
    """StableLM: layer norms with bias; where attention and MLP run in parallel, one norm a layer."""
    core = read_core(f)
    if f.boolean("qk_layernorm", False):
        raise f.refused("qk_layernorm=true is not modelled", "qk_layernorm", "set it to false")
    attention = grouped_attention(f, core, qkv_bias=f.boolean("use_qkv_bias", False), kv_heads=32)
    parallel = f.boolean("use_parallel_residual", False)
    layer = Layer(
        attention, gated_mlp(f), None, norms=1 if parallel else 2, norm_bias=True, parallel=parallel
    )
    return rotary_model(f, name, core, layer, max_position=4096, norm_kind=NormKind.LAYER)


def read_internlm3(f: ConfigFields, name: str) -> ModelSpec:
    """InternLM 3: a Llama with heads of 128 and two key/value heads; `bias` is another name of `mlp_bias`."""
    core = read_core(f)
    bias = f.boolean("qkv_bias" if "qkv_bias" in f.values else "attention_bias", False)
    mlp_bias = f.boolean("bias" if "bias" in f.values else "mlp_bias", False)
    attention = grouped_attention(f, core, qkv_bias=bias, out_bias=bias, kv_heads=2, head_dim=128)
    layer = Layer(attention, gated_mlp(f, bias=mlp_bias), None)
    return rotary_model(f, name, core, layer, max_position=32768)


def read_hyperclovax(f: ConfigFields, name: str) -> ModelSpec:
    """HyperCLOVA X: Granite with norms on both sides unless `use_post_norm` is false."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    mlp = gated_mlp(f, bias=f.boolean("mlp_bias", False))
    layer = Layer(attention, mlp, None, norms=4 if f.boolean("use_post_norm", True) else 2)
    return rotary_model(f, name, core, layer, max_position=2048)


def read_persimmon(f: ConfigFields, name: str) -> ModelSpec:
    """Persimmon: MHA with normed queries and keys, plain MLP with squared ReLU, biases and layer norms."""
    core = read_core(f)
    heads = f.integer("num_attention_heads")
    f.divides("num_attention_heads", heads, "hidden_size", core.hidden)
    own = ("head_dim", "num_key_value_heads")  # which the library does not read
    plain = replace(f, values={name: value for name, value in f.values.items() if name not in own})
    norm = QkNorm.HEAD if f.boolean("qk_layernorm", True) else QkNorm.NONE
    attention = grouped_attention(plain, core, qkv_bias=True, out_bias=True, qk_norm=norm)
    attention = replace(attention, qk_norm_bias=norm is QkNorm.HEAD)
    layer = Layer(attention, plain_mlp(f, Activation.RELU2, bias=True), None, norm_bias=True)
    return rotary_model(f, name, core, layer, max_position=16384, norm_kind=NormKind.LAYER)


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
