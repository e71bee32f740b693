"""Which layers have families that are an older one with other norms, windows or defaults? Granite's with windows,
HyperCLOVA X, EXAONE 3, NanoChat, VaultGemma, Persimmon, Muse Glimmer, Command A+, A.X K1, Kolibri 1, Flint.

transformers 5.23 holds all but EXAONE 3, which is read from LG AI Research's own modeling_exaone.py. Left out: rotary
variants, multipliers and norms without weights inside attention, which cost nothing that is counted.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import QkNorm
from planner.spec.hf.deepseek import latent_attention
from planner.spec.hf.dense import (
    gated_mlp,
    grouped_attention,
    plain_mlp,
    read_core,
    read_gemma2,
    repeat_with_windows,
    rotary_model,
    windows_per_layer,
    with_window,
)
from planner.spec.hf.experts import (
    ROUTED,
    mixed_layers,
    read_moe,
    shared_and_routed,
    sparse_from,
    sparse_layers,
)
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.later_dense import sliding_pattern
from planner.spec.layer import Activation, Layer, Mlp, NormKind
from planner.spec.model import ModelSpec


def _granite_windows(f: ConfigFields, num_layers: int) -> list[int | None]:
    """The first of every four layers sees everything."""
    window = 128 if "sliding_window" not in f.values else f.optional_integer("sliding_window")
    return windows_per_layer(f, num_layers, window, [i % 4 > 0 for i in range(num_layers)])


def read_granite_swa(f: ConfigFields, name: str) -> ModelSpec:
    """Granite with windows: sinks in every layer, three sliding layers behind one that sees everything."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", kv_heads=4)
    layer = Layer(replace(attention, sinks=True), gated_mlp(f, bias=f.boolean("mlp_bias", False)), None)
    layers = repeat_with_windows(layer, _granite_windows(f, core.num_layers))
    return rotary_model(f, name, core, layers, tied=True, max_position=8192)


def read_granitemoe_swa(f: ConfigFields, name: str) -> ModelSpec:
    """The same with experts, and a shared one where `shared_intermediate_size` is above 0."""
    core = read_core(f)
    attention = replace(grouped_attention(f, core, switch="attention_bias"), sinks=True)
    moe = read_moe(
        f,
        experts=("num_local_experts", "num_experts"),
        default=(8, 2),
        shared_ffn=f.integer("shared_intermediate_size", default=0, least=0),
    )
    layers = repeat_with_windows(Layer(attention, None, moe), _granite_windows(f, core.num_layers))
    return rotary_model(f, name, core, layers, max_position=2048)


def read_hyperclovax(f: ConfigFields, name: str) -> ModelSpec:
    """HyperCLOVA X: Granite with norms on both sides unless `use_post_norm` is false."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    mlp = gated_mlp(f, bias=f.boolean("mlp_bias", False))
    layer = Layer(attention, mlp, None, norms=4 if f.boolean("use_post_norm", True) else 2)
    return rotary_model(f, name, core, layer, max_position=2048)


def read_exaone(f: ConfigFields, name: str) -> ModelSpec:
    """EXAONE 3, 3.5 and Deep: a Llama with GPT-2's names of fields."""
    renamed = {"num_hidden_layers": "num_layers", "hidden_act": "activation_function"}
    stated = {new: f.values[old] for new, old in renamed.items() if f.given(old) and not f.given(new)}
    f = replace(f, values={**f.values, **stated})
    core = read_core(f)
    layer = Layer(grouped_attention(f, core), gated_mlp(f), None)
    return rotary_model(f, name, core, layer, max_position=2048)


def read_nanochat(f: ConfigFields, name: str) -> ModelSpec:
    """NanoChat: plain MLP with squared ReLU, norms without weights, one of them behind the embedding."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    mlp = plain_mlp(f, Activation.RELU2)
    layer = Layer(attention, mlp, None, norm_weight=False)
    model = rotary_model(f, name, core, layer, max_position=2048)
    return replace(model, embedding_norm=True)


def read_vaultgemma(f: ConfigFields, name: str) -> ModelSpec:
    """VaultGemma: Gemma 2 without norms behind attention and MLP."""
    model = read_gemma2(f, name)
    return replace(model, layers=tuple(replace(layer, norms=2) for layer in model.layers))


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


def read_muse_glimmer(f: ConfigFields, name: str) -> ModelSpec:
    """Muse Glimmer: gated attention that slides in all but every fourth layer, counted from the last; norms on both
    sides. Raises `UnsupportedError` for biases, which its gate has not."""
    f = f.with_defaults(
        vocab_size=202048, hidden_size=6656, intermediate_size=19968, num_hidden_layers=52, num_attention_heads=32
    )  # fmt: skip
    core = read_core(f)
    if f.boolean("attention_bias", False):
        raise f.refused(
            "attention must have no biases beside a gate without one", "attention_bias=true", "leave it out"
        )
    attention = replace(grouped_attention(f, core, kv_heads=2, head_dim=128), output_gate=True)
    window = 2048 if "sliding_window" not in f.values else f.optional_integer("sliding_window")
    slides = [(core.num_layers - 1 - i) % 4 > 0 for i in range(core.num_layers)]
    activation = f.activation("hidden_activation", default=Activation.SILU)
    layer = Layer(attention, Mlp(f.integer("intermediate_size"), True, False, activation), None, norms=4)
    layers = repeat_with_windows(layer, windows_per_layer(f, core.num_layers, window, slides))
    return rotary_model(f, name, core, layers, max_position=131072)


def read_cohere2_moe(f: ConfigFields, name: str) -> ModelSpec:
    """Command A with experts: attention beside them after one norm, leading dense layers, three sliding layers in four;
    RMS norms where `rms_norm_eps` is given."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", head_dim=128)
    width = f.integer("intermediate_size")
    moe = read_moe(
        f,
        experts=("num_experts", "num_local_experts"),
        default=(8, 2),
        shared_ffn=width * f.integer("num_shared_experts", default=0, least=0),
    )
    dense = f.integer("first_k_dense_replace", default=0, least=0)
    sparse = sparse_from(f, core.num_layers, dense)
    mlp = replace(gated_mlp(f), ffn=f.optional_integer("prefix_dense_intermediate_size") or width)
    windows = _cohere_windows(f, core.num_layers, dense)
    layers = tuple(
        Layer(
            with_window(attention, window), None if routed else mlp, moe if routed else None, 1, parallel=True
        )
        for window, routed in zip(windows, sparse, strict=True)
    )
    kind = NormKind.RMS if f.values.get("rms_norm_eps") is not None else NormKind.LAYER
    return rotary_model(f, name, core, layers, tied=True, max_position=8192, norm_kind=kind)


def _cohere_windows(f: ConfigFields, num_layers: int, dense: int) -> list[int | None]:
    """Leading dense layers have a period of their own."""
    window = 4096 if "sliding_window" not in f.values else f.optional_integer("sliding_window")
    ahead = f.integer("prefix_dense_sliding_window_pattern", default=1)
    period = f.integer("sliding_window_pattern", default=4)
    slides = [(i + 1) % ahead > 0 for i in range(dense)]
    slides += [(i + 1) % period > 0 for i in range(num_layers - dense)]
    return windows_per_layer(f, num_layers, window, slides)


def read_axk1(f: ConfigFields, name: str) -> ModelSpec:
    """A.X K1: DeepSeek-V3 with a norm behind the experts too."""
    core = read_core(f)
    f = f.with_defaults(n_group=8, topk_group=4, moe_intermediate_size=2048)
    moe = shared_and_routed(f, ROUTED, experts=192, top_k=8, shared=1)
    dense = f.integer("first_k_dense_replace", default=1, least=0)
    every = f.integer("moe_layer_freq", default=1)
    sparse = sparse_from(f, core.num_layers, dense)
    if f.given("mlp_layer_types") is None:
        sparse = [routed and i % every == 0 for i, routed in enumerate(sparse)]
    attention = latent_attention(f, default_q_rank=1536)
    layers = mixed_layers(f, attention, moe, [None] * core.num_layers, sparse)
    layers = tuple(replace(layer, norms=2 if layer.moe is None else 3) for layer in layers)
    return rotary_model(f, name, core, layers, max_position=32768)


def read_kolibri1(f: ConfigFields, name: str) -> ModelSpec:
    """Kolibri 1: four sliding layers in five, per-head norms of q and k, norms on both sides, a shared expert."""
    core = read_core(f)
    attention = grouped_attention(f, core, qk_norm=QkNorm.HEAD, kv_heads=4, head_dim=128)
    moe = read_moe(
        f,
        experts=("num_experts", "num_local_experts"),
        expert_ffn="moe_intermediate_size",
        default=(384, 6),
        shared_ffn=f.integer("shared_expert_intermediate_size", default=512),
    )
    windows = sliding_pattern(f, core.num_layers, window=513, period=5)
    layers = repeat_with_windows(Layer(attention, None, moe, norms=4), windows)
    return rotary_model(f, name, core, layers, max_position=262144)


def read_flint(f: ConfigFields, name: str) -> ModelSpec:
    """Flint: Qwen 3 MoE with sinks, an ungated shared expert and windows; its first two layers are dense."""
    core = read_core(f)
    attention = grouped_attention(
        f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=4, head_dim=128
    )
    moe = read_moe(
        f,
        experts=("num_experts", "num_local_experts"),
        expert_ffn="moe_intermediate_size",
        default=(256, 6),
        shared_ffn=f.integer("shared_expert_intermediate_size", default=1024),
    )
    last = core.num_layers - 1
    slides = [not (i < 2 or i % 4 == 1 or i == last) for i in range(core.num_layers)]
    windows = windows_per_layer(f, core.num_layers, f.integer("sliding_window", default=513), slides)
    if f.values.get("mlp_only_layers") is None:
        f = replace(f, values={**f.values, "mlp_only_layers": [0, 1]})
    layers = mixed_layers(f, replace(attention, sinks=True), moe, windows, sparse_layers(f, core.num_layers))
    return rotary_model(f, name, core, layers, max_position=262144)
