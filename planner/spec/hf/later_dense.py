"""Which layers do the dense families have that came after Llama 2? Each a Llama but for what its reader says.

Left out: rotary variants, multipliers of embeddings, residuals and logits, which cost nothing that is counted.
"""

from __future__ import annotations

from dataclasses import replace

from planner.errors import UnsupportedError
from planner.spec.attention import QkNorm
from planner.spec.hf.dense import (
    gated_mlp,
    grouped_attention,
    plain_mlp,
    read_core,
    repeat_with_windows,
    rotary_model,
    windows_per_layer,
    with_window,
)
from planner.spec.hf.fields import ConfigFields
from planner.spec.layer import Activation, Layer, NormKind
from planner.spec.model import ModelSpec


def sliding_pattern(f: ConfigFields, num_layers: int, *, window: int | None, period: int) -> list[int | None]:
    """Windows where all layers but every `period`-th slide; `sliding_window: null` lets all see everything."""
    if "sliding_window" not in f.values and window is not None:
        f.assume("sliding_window", window)
    else:
        window = f.optional_integer("sliding_window")
    pattern = [window is not None and (i + 1) % period != 0 for i in range(num_layers)]
    return windows_per_layer(f, num_layers, window, pattern)


def refuse_unread(f: ConfigFields, *switches: str) -> None:
    """Raise `UnsupportedError` for a switch of a family's own code that is on and that the library does not know."""
    for name in switches:
        if f.values.get(name):
            must = f"{f.file}: {f.prefix}{name} is not modelled for {f.values.get('model_type')}"
            raise UnsupportedError(
                must, f"{name}={f.values[name]!r}", "set it to false if the model was built so"
            )


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


def read_olmo(f: ConfigFields, name: str) -> ModelSpec:
    """OLMo: layer norms without weights."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    layer = Layer(attention, gated_mlp(f), None, norm_weight=False)
    return rotary_model(f, name, core, layer, max_position=2048, norm_kind=NormKind.LAYER)


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


def read_cwm(f: ConfigFields, name: str) -> ModelSpec:
    """CWM: the first of every four layers sees everything, the others slide."""
    core = read_core(f)
    attention = grouped_attention(f, core, kv_heads=8, head_dim=128)
    window = 8192 if "sliding_window" not in f.values else f.optional_integer("sliding_window")
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


def read_ministral3(f: ConfigFields, name: str) -> ModelSpec:
    """Ministral 3: head_dim 128, no window unless stated."""
    core = read_core(f)
    attention = grouped_attention(f, core, kv_heads=8, head_dim=128)
    layer = Layer(with_window(attention, f.optional_integer("sliding_window")), gated_mlp(f), None)
    return rotary_model(f, name, core, layer, max_position=262144)


def read_glm(f: ConfigFields, name: str) -> ModelSpec:
    """GLM-4 9B: biases on q, k and v."""
    return _read_glm(f, name, norms=2)


def read_glm4(f: ConfigFields, name: str) -> ModelSpec:
    """GLM-4-0414: GLM with norms before and after attention and MLP."""
    return _read_glm(f, name, norms=4)


def _read_glm(f: ConfigFields, name: str, norms: int) -> ModelSpec:
    core = read_core(f)
    bias = f.boolean("attention_bias", True)
    attention = grouped_attention(f, core, qkv_bias=bias, kv_heads=2, head_dim=128)
    layer = Layer(attention, gated_mlp(f), None, norms=norms)
    return rotary_model(f, name, core, layer, max_position=131072)


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


def read_seed_oss(f: ConfigFields, name: str) -> ModelSpec:
    """Seed-OSS: biases on q, k and v, a switch of its own for the output's."""
    core = read_core(f)
    attention = grouped_attention(
        f,
        core,
        qkv_bias=f.boolean("attention_bias", True),
        out_bias=f.boolean("attention_out_bias", False),
        kv_heads=8,
        head_dim=128,
    )
    layer = Layer(attention, gated_mlp(f, bias=f.boolean("mlp_bias", False)), None)
    return rotary_model(f, name, core, layer, max_position=524288)


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
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", qk_norm=QkNorm.HEAD)
    layer = Layer(attention, gated_mlp(f), None)
    return rotary_model(f, name, core, layer, max_position=2048)


def read_ernie(f: ConfigFields, name: str) -> ModelSpec:
    """ERNIE 4.5 dense: one switch for all biases."""
    core = read_core(f)
    bias = f.boolean("use_bias", False)
    attention = grouped_attention(f, core, qkv_bias=bias, out_bias=bias, kv_heads=2, head_dim=128)
    layer = Layer(attention, gated_mlp(f, bias=bias), None)
    return rotary_model(f, name, core, layer, tied=True, max_position=131072)


def read_arcee(f: ConfigFields, name: str) -> ModelSpec:
    """Arcee AFM: plain MLP with squared ReLU."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    mlp = replace(plain_mlp(f, Activation.RELU2), bias=f.boolean("mlp_bias", False))
    return rotary_model(f, name, core, Layer(attention, mlp, None), max_position=4096)


def read_apertus(f: ConfigFields, name: str) -> ModelSpec:
    """Apertus: per-head norms of q and k, plain MLP with xIELU, whose two shape scalars are trained."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", qk_norm=QkNorm.HEAD)
    layer = Layer(attention, plain_mlp(f, Activation.XIELU), None)
    return rotary_model(f, name, core, layer, max_position=65536)


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
