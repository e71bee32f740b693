"""Which layers do mixtures have some of whose layers are dense? Qwen, GLM-4.5, Sarvam, Llama 4, ERNIE, Hunyuan, Ling,
Flint.

transformers 5.23 holds those that it has; Ling and Ring (bailing_moe) are read from inclusionAI's own
modeling_bailing_moe_v2.py, the first DeepSeek-MoE from its own. Left out: latent attention (`latent.py`), and
multi-token-prediction modules but for GLM-4.5's.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import QkNorm
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.mixtures import (
    NUMBERED,
    PUBLISHED_EXPERTS,
    ROUTED,
    blocks_of,
    leading_dense,
    mixed_layers,
    qwen_experts,
    read_moe,
    shared_and_routed,
    sparse_from,
    sparse_layers,
    with_groups,
    with_prediction,
)
from planner.spec.hf.parts import (
    gated_mlp,
    grouped_attention,
    read_core,
    refuse_unread,
    rotary_model,
    sliding_pattern,
    stated_window,
    window_period,
    windows_per_layer,
    with_window,
)
from planner.spec.layer import Layer, Mlp, Moe, NormKind
from planner.spec.model import ModelSpec


def read_qwen2_moe(f: ConfigFields, name: str) -> ModelSpec:
    """Qwen 1.5/2 MoE: routed experts beside one gated shared expert."""
    core = read_core(f)
    attention = grouped_attention(f, core, qkv_bias=f.boolean("qkv_bias", True), kv_heads=16)
    moe = qwen_experts(f, 60, 4, shared=5632, shared_gate=True)
    windows = _qwen2_moe_windows(f, core.num_layers)
    layers = mixed_layers(f, attention, moe, windows, sparse_layers(f, core.num_layers))
    return rotary_model(f, name, core, layers, max_position=32768)


def _qwen2_moe_windows(f: ConfigFields, num_layers: int) -> list[int | None]:
    """Unlike dense Qwen 2, even layers *below* `max_window_layers` slide."""
    if not f.boolean("use_sliding_window", False):
        return [None] * num_layers
    window = f.integer("sliding_window", default=4096)
    last = f.integer("max_window_layers", default=28, least=0)
    return windows_per_layer(f, num_layers, window, [i % 2 == 0 and i < last for i in range(num_layers)])


def read_qwen3_moe(f: ConfigFields, name: str) -> ModelSpec:
    """Qwen 3 MoE: per-head norms of q and k; head_dim is hidden / heads unless given; one window for all."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=4)
    moe = qwen_experts(f, 128, 8)
    window = f.integer("sliding_window", default=4096) if f.boolean("use_sliding_window", False) else None
    windows = [window] * core.num_layers
    layers = mixed_layers(f, attention, moe, windows, sparse_layers(f, core.num_layers))
    return rotary_model(f, name, core, layers, max_position=32768)


def read_glm4_moe(f: ConfigFields, name: str, with_mtp: bool) -> ModelSpec:
    """GLM-4.5: leading dense layers, shared experts, optional per-head norms of q and k; o has no bias."""
    core = read_core(f)
    qk_norm = QkNorm.HEAD if f.boolean("use_qk_norm", False) else QkNorm.NONE
    attention = grouped_attention(
        f, core, qkv_bias=f.boolean("attention_bias", False), qk_norm=qk_norm, kv_heads=8
    )
    shared = f.integer("n_shared_experts", default=1, least=0)
    moe = read_moe(
        f,
        experts=("n_routed_experts", "num_local_experts"),
        expert_ffn="moe_intermediate_size",
        default=(128, 8),
        shared_ffn=shared * f.integer("moe_intermediate_size"),
    )
    moe = with_groups(f, moe)
    dense = f.integer("first_k_dense_replace", default=1, least=0)
    sparse = [i >= dense for i in range(core.num_layers)]
    layers = mixed_layers(f, attention, moe, [None] * core.num_layers, sparse)
    return with_prediction(f, rotary_model(f, name, core, layers, max_position=131072), with_mtp)


def read_sarvam_moe(f: ConfigFields, name: str) -> ModelSpec:
    """Sarvam 30B: GLM-4.5's layers, with norms of q and k, in its publisher's spelling or the library's. No prediction
    modules are published. Raises `UnsupportedError` for biases behind attention too, which the library has not."""
    refuse_unread(f, "use_bias")
    f = f.renamed({**PUBLISHED_EXPERTS, "attention_bias": "use_qkv_bias"}).with_defaults(
        vocab_size=262144, hidden_size=4096, num_hidden_layers=19, intermediate_size=8192, num_attention_heads=64,
        num_key_value_heads=4, head_dim=64, moe_intermediate_size=1024, num_experts_per_tok=6, use_qk_norm=True,
    )  # fmt: skip
    return read_glm4_moe(f, name, with_mtp=False)


def read_llama4(f: ConfigFields, name: str) -> ModelSpec:
    """Llama 4 text tower: a shared expert, MoE every `interleave_moe_layer_step`, 3 chunked layers in 4.

    The norm of q and k has no weights.
    """
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", kv_heads=8, head_dim=128)
    moe = read_moe(f, experts=("num_local_experts",), default=(16, 1))
    moe = replace(moe, shared_ffn=moe.expert_ffn)
    windows = _llama4_windows(f, core.num_layers)
    step = f.integer("interleave_moe_layer_step", default=1)
    stated = f.integers("moe_layers")
    sparse_layers = set(range(step - 1, core.num_layers, step) if stated is None else stated)
    mlp = Mlp(f.integer("intermediate_size_mlp", default=16384), True, False, moe.activation)
    layers = tuple(
        Layer(
            replace(attention, window=window, chunked=window is not None),
            *((None, moe) if i in sparse_layers else (mlp, None)),
        )
        for i, window in enumerate(windows)
    )
    return rotary_model(f, name, core, layers, max_position=131072)


def _llama4_windows(f: ConfigFields, num_layers: int) -> list[int | None]:
    """Layers with rotary positions are chunked: all but every `no_rope_layer_interval`-th."""
    interval = f.integer("no_rope_layer_interval", default=4)
    rotary = f.integers("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(num_layers)]
    f.one_per_layer("no_rope_layers", rotary, num_layers)
    chunk: int | None = f.integer("attention_chunk_size", default=8192)
    return windows_per_layer(f, num_layers, chunk, [bool(r) for r in rotary])


def read_dots1(f: ConfigFields, name: str) -> ModelSpec:
    """dots.llm1: per-head norms of q and k, shared experts; layers from `max_window_layers` on slide."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=32)
    f.integer("n_routed_experts")
    f.integer("num_experts_per_tok")
    moe = shared_and_routed(f, ROUTED, experts=1, top_k=1, shared=0)
    first = f.integer("max_window_layers", default=62, least=0)
    window = stated_window(f, 4096)
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


def read_exaone_moe(f: ConfigFields, name: str) -> ModelSpec:
    """EXAONE MoE (K-EXAONE): EXAONE 4's attention, a leading dense layer, shared and routed experts."""
    core = read_core(f)
    attention = grouped_attention(f, core, qk_norm=QkNorm.HEAD, kv_heads=32)
    moe = shared_and_routed(f, NUMBERED, experts=64, top_k=8, shared=1)
    windows = sliding_pattern(f, core.num_layers, window=4096, period=window_period(f, 4))
    sparse = sparse_from(f, core.num_layers, f.integer("first_k_dense_replace", default=1, least=0))
    layers = mixed_layers(f, attention, moe, windows, sparse)
    return rotary_model(f, name, core, layers, max_position=2048)


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


def read_beam(f: ConfigFields, name: str) -> ModelSpec:
    """Beam 1: gated attention that slides in five of six layers, norms on both sides, three leading dense layers.
    Raises `UnsupportedError` for biases beside a gate that has one a head."""
    core = read_core(f)
    if f.boolean("attention_bias", False):
        raise f.refused(
            "attention must have no biases beside its gate's", "attention_bias=true", "leave it out"
        )
    attention = grouped_attention(f, core, qk_norm=QkNorm.HEAD, kv_heads=8, head_dim=128)
    attention = replace(attention, output_gate=True, gate_bias=True)
    moe = with_groups(f, qwen_experts(f, 256, 8))
    slides = [i % 6 < 5 and i < core.num_layers - 1 for i in range(core.num_layers)]
    windows = windows_per_layer(f, core.num_layers, stated_window(f, 512), slides)
    layers = mixed_layers(f, attention, moe, windows, sparse_from(f, core.num_layers, 3))
    layers = tuple(replace(layer, norms=4) for layer in layers)
    return rotary_model(f, name, core, layers, max_position=8192)


def read_mellum(f: ConfigFields, name: str) -> ModelSpec:
    """Mellum 2: Qwen 3's experts, dense and sliding layers as they are listed."""
    core = read_core(f)
    attention = grouped_attention(
        f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=4, head_dim=128
    )
    moe = qwen_experts(f, 64, 8)
    window = stated_window(f, 1024)
    windows = windows_per_layer(f, core.num_layers, window, [False] * core.num_layers)
    layers = mixed_layers(f, attention, moe, windows, sparse_from(f, core.num_layers, 0))
    return rotary_model(f, name, core, layers, max_position=131072)


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
    layers = leading_dense(f, core.num_layers, attention, moe)
    return rotary_model(f, name, core, layers, max_position=32768)


def read_deepseek_moe(f: ConfigFields, name: str) -> ModelSpec:
    """DeepSeek-MoE (the first): plain attention, leading dense layers, shared and routed experts."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias")
    f.integer("n_routed_experts"), f.integer("num_experts_per_tok")  # must be stated
    moe = shared_and_routed(f, ROUTED, experts=1, top_k=1, shared=0)
    layers = leading_dense(f, core.num_layers, attention, moe, f.integer("moe_layer_freq", default=1))
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
    window = stated_window(f, 4096)
    ahead = f.integer("prefix_dense_sliding_window_pattern", default=1)
    period = f.integer("sliding_window_pattern", default=4)
    slides = [(i + 1) % ahead > 0 for i in range(dense)]
    slides += [(i + 1) % period > 0 for i in range(num_layers - dense)]
    return windows_per_layer(f, num_layers, window, slides)


def read_flint(f: ConfigFields, name: str) -> ModelSpec:
    """Flint: Qwen 3 MoE with sinks, an ungated shared expert and windows; its first two layers are dense."""
    core = read_core(f)
    attention = grouped_attention(
        f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=4, head_dim=128
    )
    moe = qwen_experts(f, 256, 6, shared=1024)
    last = core.num_layers - 1
    slides = [not (i < 2 or i % 4 == 1 or i == last) for i in range(core.num_layers)]
    windows = windows_per_layer(f, core.num_layers, f.integer("sliding_window", default=513), slides)
    if f.values.get("mlp_only_layers") is None:
        f = replace(f, values={**f.values, "mlp_only_layers": [0, 1]})
    layers = mixed_layers(f, replace(attention, sinks=True), moe, windows, sparse_layers(f, core.num_layers))
    return rotary_model(f, name, core, layers, max_position=262144)
