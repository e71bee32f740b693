"""Which layers do mixture-of-experts models have? Mixtral, Qwen, Phi, OLMoE, DBRX, gpt-oss, GLM, Llama 4.

Left out: DeepSeek and kin, whose latent attention has a module of its own; auxiliary losses and capacities.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import Attention, QkNorm
from planner.spec.hf.dense import (
    Core,
    gated_mlp,
    grouped_attention,
    read_core,
    repeat_with_windows,
    rotary_model,
    windows_per_layer,
    with_window,
)
from planner.spec.hf.fields import ConfigFields
from planner.spec.layer import Activation, Layer, Mlp, Moe, NormKind
from planner.spec.model import ModelSpec

Block = tuple[Mlp | None, Moe | None]
# fields of the numbers of routed and shared experts
ROUTED = ("n_routed_experts", "n_shared_experts")
NUMBERED = ("num_experts", "num_shared_experts")


def read_moe(
    f: ConfigFields,
    *,
    experts: tuple[str, ...],
    top_k: tuple[str, ...] = ("num_experts_per_tok",),
    expert_ffn: str = "intermediate_size",
    default: tuple[int, int],
    shared_ffn: int = 0,
    shared_gate: bool = False,
    bias: bool = False,
) -> Moe:
    """A mixture from its field names; `default`: experts, and chosen ones, of which more than experts are refused."""
    count = f.integer(*experts, default=default[0])
    if others := [other for other in experts if f.values.get(other) not in (None, count)]:
        must = f"must be what {f.given(*experts)} is, another name of it"
        raise f.error(others[0], must, f"{f.values[others[0]]} and {count}", "leave one of the two out")
    chosen = f.integer(*top_k, default=default[1])
    if chosen > count:
        name = f.given(*top_k) or top_k[0]
        raise f.error(
            name, f"must be at most the number of experts, {count}", chosen, "correct one of the two"
        )
    return Moe(
        experts=count,
        top_k=chosen,
        expert_ffn=f.integer(expert_ffn),
        gated=True,
        expert_bias=bias,
        shared_ffn=shared_ffn,
        shared_gate=shared_gate,
        router_bias=bias,
        activation=f.activation("hidden_act", default=Activation.SILU),
    )


def shared_and_routed(
    f: ConfigFields, names: tuple[str, str], *, experts: int, top_k: int, shared: int
) -> Moe:
    """Routed experts of `moe_intermediate_size` and as wide shared ones, `names` of their numbers; a null number of
    shared ones means none."""
    width, (routed, beside) = f.integer("moe_intermediate_size"), names
    stated_null = beside in f.values and f.values[beside] is None
    count = 0 if stated_null else f.integer(beside, default=shared, least=0)
    moe = read_moe(
        f,
        experts=(routed, "num_local_experts"),
        expert_ffn="moe_intermediate_size",
        default=(experts, top_k),
        shared_ffn=count * width,
    )
    return with_groups(f, moe)


def sparse_from(f: ConfigFields, num_layers: int, dense: int) -> list[bool]:
    """Which layers hold experts: those that `mlp_layer_types` calls sparse, else all from the `dense`-th on."""
    types = f.words("mlp_layer_types", ("dense", "sparse"))
    if types is None:
        return [i >= dense for i in range(num_layers)]
    f.one_per_layer("mlp_layer_types", types, num_layers)
    return [kind == "sparse" for kind in types]


def blocks_of(f: ConfigFields, moe: Moe, sparse: list[bool], *, bias: bool = False) -> list[Block]:
    """Behind the attention of every layer: experts or an MLP, whose width is needed only where a layer has one."""
    mlp = None if all(sparse) else gated_mlp(f, bias=bias)
    return [(None, moe) if routed else (mlp, None) for routed in sparse]


def with_prediction(f: ConfigFields, model: ModelSpec, with_mtp: bool) -> ModelSpec:
    """The model with its modules of multi-token prediction, where they are asked for."""
    if not with_mtp:
        return model
    return replace(model, mtp_layers=f.integer("num_nextn_predict_layers", default=1, least=0))


def read_mixtral(f: ConfigFields, name: str) -> ModelSpec:
    core = read_core(f)
    attention = with_window(grouped_attention(f, core, kv_heads=8), f.optional_integer("sliding_window"))
    moe = read_moe(f, experts=("num_local_experts", "num_experts"), default=(8, 2))
    return rotary_model(f, name, core, Layer(attention, None, moe), max_position=131072)


def read_phimoe(f: ConfigFields, name: str) -> ModelSpec:
    """Phi-3.5-MoE: layer norms with bias, optional biases of attention and of the head."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", kv_heads=8)
    attention = with_window(attention, f.optional_integer("sliding_window"))
    moe = read_moe(f, experts=("num_local_experts", "num_experts"), default=(16, 2))
    head_bias = f.boolean("lm_head_bias", False)
    return rotary_model(
        f,
        name,
        core,
        Layer(attention, None, moe, norm_bias=True),
        max_position=131072,
        norm_kind=NormKind.LAYER,
        head_bias=head_bias,
    )


def read_olmoe(f: ConfigFields, name: str) -> ModelSpec:
    """OLMoE: full-width norms of q and k, norms before attention and MLP."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", qk_norm=QkNorm.FULL)
    moe = read_moe(f, experts=("num_experts", "num_local_experts"), default=(64, 8))
    return rotary_model(f, name, core, Layer(attention, None, moe), max_position=4096)


def sparse_layers(f: ConfigFields, num_layers: int) -> list[bool]:
    """Qwen's rule: every `decoder_sparse_step`-th layer, counted from one, unless in `mlp_only_layers`."""
    step = f.integer("decoder_sparse_step", default=1)
    dense = set(f.integers("mlp_only_layers") or [])
    return [i not in dense and (i + 1) % step == 0 for i in range(num_layers)]


def mixed_layers(
    f: ConfigFields, attention: Attention, moe: Moe, windows: list[int | None], sparse: list[bool]
) -> tuple[Layer, ...]:
    """Sparse and dense layers; the dense width is needed only where a dense layer exists."""
    blocks = zip(windows, blocks_of(f, moe, sparse), strict=True)
    return tuple(Layer(with_window(attention, window), *block) for window, block in blocks)


def read_qwen2_moe(f: ConfigFields, name: str) -> ModelSpec:
    """Qwen 1.5/2 MoE: routed experts beside one gated shared expert."""
    core = read_core(f)
    attention = grouped_attention(f, core, qkv_bias=f.boolean("qkv_bias", True), kv_heads=16)
    moe = read_moe(
        f,
        experts=("num_experts", "num_local_experts"),
        expert_ffn="moe_intermediate_size",
        default=(60, 4),
        shared_ffn=f.integer("shared_expert_intermediate_size", default=5632),
        shared_gate=True,
    )
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
    moe = read_moe(
        f, experts=("num_experts", "num_local_experts"), expert_ffn="moe_intermediate_size", default=(128, 8)
    )
    window = f.integer("sliding_window", default=4096) if f.boolean("use_sliding_window", False) else None
    windows = [window] * core.num_layers
    layers = mixed_layers(f, attention, moe, windows, sparse_layers(f, core.num_layers))
    return rotary_model(f, name, core, layers, max_position=32768)


def read_gpt_oss(f: ConfigFields, name: str) -> ModelSpec:
    """gpt-oss: biases everywhere, attention sinks, every other layer sliding, first one included."""
    core = read_core(f)
    attention = grouped_attention(
        f,
        core,
        qkv_bias=f.boolean("attention_bias", True),
        out_bias=f.boolean("attention_bias", True),
        kv_heads=8,
        head_dim=64,
    )
    attention = replace(attention, sinks=True)
    moe = read_moe(f, experts=("num_local_experts", "num_experts"), default=(128, 4), bias=True)
    window = f.integer("sliding_window", default=128)
    pattern = [i % 2 == 0 for i in range(core.num_layers)]
    windows = windows_per_layer(f, core.num_layers, window, pattern)
    layers = repeat_with_windows(Layer(attention, None, moe), windows)
    return rotary_model(f, name, core, layers, max_position=131072)


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


def with_groups(f: ConfigFields, moe: Moe) -> Moe:
    """Group-limited routing, where there is more than one group."""
    name = f.given("n_group", "num_expert_group") or "n_group"
    groups = f.optional_integer(name) or 1
    if groups == 1:
        return moe
    experts = f.given("n_routed_experts", "num_local_experts", "num_experts") or "n_routed_experts"
    f.divides(name, groups, experts, moe.experts)
    top_groups = f.integer("topk_group")
    if top_groups > groups:
        raise f.error("topk_group", f"must be at most {name}, {groups}", top_groups, "correct one of the two")
    return replace(moe, groups=groups, top_groups=top_groups)


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


def read_dbrx(f: ConfigFields, name: str) -> ModelSpec:
    """DBRX: nested `attn_config` and `ffn_config`, layer norms without bias."""
    hidden = f.integer("d_model", "hidden_size")
    core = Core(hidden, f.layer_count("n_layers", "num_hidden_layers"), f.integer("vocab_size"))
    heads = f.integer("n_heads", "num_attention_heads")
    f.divides("n_heads", heads, "d_model", hidden)
    inner, ffn = f.section("attn_config"), f.section("ffn_config")
    kv_heads = inner.integer("kv_n_heads", default=1)
    inner.divides("kv_n_heads", kv_heads, "n_heads", heads)
    width = ffn.optional_integer("hidden_size") or hidden
    if width != hidden:
        raise ffn.error("hidden_size", f"must equal d_model, {hidden}", width, "correct one of the two")
    renamed = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    attention = grouped_attention(ConfigFields(renamed, f.file, "attn_config."), core)
    moe = read_moe(
        ffn, experts=("moe_num_experts",), top_k=("moe_top_k",), expert_ffn="ffn_hidden_size", default=(4, 1)
    )
    moe = replace(moe, activation=ffn.section("ffn_act_fn").activation("name", default=Activation.SILU))
    layers = (Layer(attention, None, moe),) * core.num_layers
    f = ConfigFields(
        {**f.values, "max_position_embeddings": f.values.get("max_seq_len")}, f.file, "", f.assumed
    )
    return rotary_model(f, name, core, layers, max_position=2048, norm_kind=NormKind.LAYER)
