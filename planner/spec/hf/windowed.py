"""Which layers do families have that let some layers see a window and others everything? Gemma 2 and 3, OLMo 3,
EXAONE 4, Command R7B, CWM, SmolLM 3, Granite with windows, Muse Glimmer.

Left out: those whose layers differ in their heads too (`mixed_heads.py`), and mixtures with dense layers.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import QkNorm
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.mixtures import read_moe
from planner.spec.hf.parts import (
    Core,
    gated_mlp,
    grouped_attention,
    read_core,
    repeat_with_windows,
    rotary_model,
    sliding_pattern,
    stated_window,
    window_period,
    windows_per_layer,
)
from planner.spec.layer import Activation, Layer, Mlp, NormKind
from planner.spec.model import ModelSpec


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


def read_vaultgemma(f: ConfigFields, name: str) -> ModelSpec:
    """VaultGemma: Gemma 2 without norms behind attention and MLP."""
    model = read_gemma2(f, name)
    return replace(model, layers=tuple(replace(layer, norms=2) for layer in model.layers))


def read_olmo3(f: ConfigFields, name: str) -> ModelSpec:
    """OLMo 3: OLMo 2 with three sliding layers in four."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", qk_norm=QkNorm.FULL)
    windows = sliding_pattern(f, core.num_layers, window=4096, period=4)
    layers = repeat_with_windows(Layer(attention, gated_mlp(f), None), windows)
    return rotary_model(f, name, core, layers, max_position=2048)


def read_exaone4(f: ConfigFields, name: str) -> ModelSpec:
    """EXAONE 4: norms after attention and MLP, per-head norms of q and k, three sliding layers in four."""
    core = read_core(f)
    attention = grouped_attention(f, core, qk_norm=QkNorm.HEAD, kv_heads=32)
    windows = sliding_pattern(f, core.num_layers, window=4096, period=window_period(f, 4))
    layers = repeat_with_windows(Layer(attention, gated_mlp(f), None), windows)
    return rotary_model(f, name, core, layers, max_position=2048)


def read_cohere2(f: ConfigFields, name: str) -> ModelSpec:
    """Command R7B, Command A: attention beside MLP after one norm, three sliding layers in four."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    period = f.optional_integer("sliding_window_pattern") or 4
    windows = sliding_pattern(f, core.num_layers, window=4096, period=period)
    layers = repeat_with_windows(Layer(attention, gated_mlp(f), None, norms=1, parallel=True), windows)
    return rotary_model(f, name, core, layers, tied=True, max_position=8192, norm_kind=NormKind.LAYER)


def read_cohere_compass(f: ConfigFields, name: str) -> ModelSpec:
    """North Micro: Command R7B's layers, all of which see everything unless `layer_types` says otherwise."""
    if f.given("layer_types") is None:
        every = ["full_attention"] * read_core(f).num_layers
        f = replace(f, values={**f.values, "layer_types": every})
    return read_cohere2(f, name)


def read_cwm(f: ConfigFields, name: str) -> ModelSpec:
    """CWM: the first of every four layers sees everything, the others slide."""
    core = read_core(f)
    attention = grouped_attention(f, core, kv_heads=8, head_dim=128)
    window = stated_window(f, 8192)
    pattern = [i % 4 != 0 for i in range(core.num_layers)]
    windows = windows_per_layer(f, core.num_layers, window, pattern)
    layers = repeat_with_windows(
        Layer(attention, gated_mlp(f, bias=f.boolean("mlp_bias", False)), None), windows
    )
    return rotary_model(f, name, core, layers, max_position=131072)


def read_ministral(f: ConfigFields, name: str) -> ModelSpec:
    """Ministral 2410: every layer slides unless `layer_types` says otherwise."""
    core = read_core(f)
    attention = grouped_attention(f, core, kv_heads=8)
    windows = sliding_pattern(f, core.num_layers, window=4096, period=core.num_layers + 1)
    layers = repeat_with_windows(Layer(attention, gated_mlp(f), None), windows)
    return rotary_model(f, name, core, layers, max_position=131072)


def read_smollm3(f: ConfigFields, name: str) -> ModelSpec:
    """SmolLM 3: rotary positions left out of every fourth layer, which alone may slide."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", kv_heads=4)
    layer = Layer(attention, gated_mlp(f, bias=f.boolean("mlp_bias", False)), None)
    window = f.optional_integer("sliding_window") if f.boolean("use_sliding_window", False) else None
    interval = f.integer("no_rope_layer_interval", default=4)
    rotary = f.integers("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(core.num_layers)]
    f.one_per_layer("no_rope_layers", rotary, core.num_layers)
    windows = windows_per_layer(f, core.num_layers, window, [window is not None and not r for r in rotary])
    return rotary_model(f, name, core, repeat_with_windows(layer, windows), tied=True, max_position=32768)


def read_granite_swa(f: ConfigFields, name: str) -> ModelSpec:
    """Granite with windows: sinks in every layer, three sliding layers behind one that sees everything."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", kv_heads=4)
    layer = Layer(replace(attention, sinks=True), gated_mlp(f, bias=f.boolean("mlp_bias", False)), None)
    layers = repeat_with_windows(layer, _granite_windows(f, core.num_layers))
    return rotary_model(f, name, core, layers, tied=True, max_position=8192)


def _granite_windows(f: ConfigFields, num_layers: int) -> list[int | None]:
    """The first of every four layers sees everything."""
    slides = [i % 4 > 0 for i in range(num_layers)]
    return windows_per_layer(f, num_layers, stated_window(f, 128), slides)


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


def read_muse_glimmer(f: ConfigFields, name: str) -> ModelSpec:
    """Muse Glimmer: gated attention that slides in all but every fourth layer, counted from the last; norms on both
    sides. Raises `UnsupportedError` for biases, which its gate has not."""
    core = read_core(f)
    if f.boolean("attention_bias", False):
        raise f.refused(
            "attention must have no biases beside a gate without one", "attention_bias=true", "leave it out"
        )
    attention = replace(grouped_attention(f, core, kv_heads=2, head_dim=128), output_gate=True)
    window = stated_window(f, 2048)
    slides = [(core.num_layers - 1 - i) % 4 > 0 for i in range(core.num_layers)]
    activation = f.activation("hidden_activation", default=Activation.SILU)
    layer = Layer(attention, Mlp(f.integer("intermediate_size"), True, False, activation), None, norms=4)
    layers = repeat_with_windows(layer, windows_per_layer(f, core.num_layers, window, slides))
    return rotary_model(f, name, core, layers, max_position=131072)
