"""Which layers do hybrids of attention and delta nets have? Qwen3-Next, Qwen 3.5, Lara, OLMo Hybrid, Kimi, Ling 3.

Left out: bounds of decays, partial rotations, norms that keep their scale as its distance from 1, the range of write
strengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.spec.attention import Attention, QkNorm
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.latent import latent_attention
from planner.spec.hf.mixtures import Block, qwen_experts, read_moe, sparse_from, sparse_layers, with_groups
from planner.spec.hf.parts import gated_mlp, grouped_attention, read_core, rotary_model
from planner.spec.layer import Layer, Moe
from planner.spec.mixers import DeltaNet
from planner.spec.model import ModelSpec
from planner.spec.residual import AttentionResiduals

_TYPES = ("full_attention", "linear_attention")


def read_qwen3_next(f: ConfigFields, name: str, with_mtp: bool) -> ModelSpec:
    """Qwen3-Next: three gated delta nets to one gated attention, routed experts beside a gated shared one."""
    core = read_core(f)
    sparse = sparse_layers(f, core.num_layers)
    mlp = None if all(sparse) else gated_mlp(f)
    moe = qwen_experts(f, 512, 10, shared=512, shared_gate=True)
    blocks = [(None, moe) if routed else (mlp, None) for routed in sparse]
    model = _qwen(f, name, blocks, kv_heads=2)
    modules = f.integer("num_nextn_predict_layers", default=1, least=0) if with_mtp else 0
    return replace(model, mtp_layers=modules, assumed=tuple(f.assumed))


def read_qwen3_5(f: ConfigFields, name: str, with_mtp: bool) -> ModelSpec:
    """Qwen 3.5's dense text models: Qwen3-Next's mixers before plain gated MLPs."""
    blocks = [(gated_mlp(f), None)] * read_core(f).num_layers
    return _with_mtp(f, _qwen(f, name, blocks, kv_heads=4), with_mtp)


def read_qwen3_5_moe(f: ConfigFields, name: str, with_mtp: bool) -> ModelSpec:
    """Qwen 3.5's mixtures of experts, every layer of which routes."""
    blocks = [(None, qwen_experts(f, 256, 8, shared=512, shared_gate=True))] * read_core(f).num_layers
    return _with_mtp(f, _qwen(f, name, blocks, kv_heads=2), with_mtp)


def _with_mtp(f: ConfigFields, model: ModelSpec, with_mtp: bool) -> ModelSpec:
    modules = f.integer("mtp_num_hidden_layers", default=1, least=0) if with_mtp else 0
    return replace(model, mtp_layers=modules, assumed=tuple(f.assumed))


def _qwen(f: ConfigFields, name: str, blocks: Sequence[Block], kv_heads: int) -> ModelSpec:
    """Layers of delta nets and of attention whose output is gated, before the given blocks."""
    core = read_core(f)
    if f.values.get("attn_output_gate", True) is not True:
        raise f.refused(
            f"attn_output_gate must be true, as transformers builds {f.values.get('model_type')}",
            repr(f.values["attn_output_gate"]),
            "leave it out",
        )
    attention = grouped_attention(
        f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=kv_heads, head_dim=256
    )
    every = f.integer("full_attention_interval", default=4)
    kinds = _kinds(f, [_TYPES[(i + 1) % every > 0] for i in range(core.num_layers)])
    layers = _dealt(kinds, replace(attention, output_gate=True), _qwen_net(f, heads=32, groups=16), blocks)
    return rotary_model(f, name, core, layers, max_position=32768)


def _qwen_net(f: ConfigFields, heads: int, groups: int) -> DeltaNet:
    return DeltaNet(
        heads=f.integer("linear_num_value_heads", default=heads),
        head_dim=f.integer("linear_value_head_dim", default=128),
        state=f.integer("linear_key_head_dim", default=128),
        groups=f.integer("linear_num_key_heads", default=groups),
        conv=f.integer("linear_conv_kernel_dim", default=4),
    )


_PERIOD = ("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention")


def read_lara_mini(f: ConfigFields, name: str) -> ModelSpec:
    """Lara 4 Mini: of five layers two delta nets, two that attend to a window and one that attends to all without
    positions; experts beside a shared one in each, none gated."""
    core = read_core(f)
    attention = grouped_attention(
        f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=4, head_dim=128
    )
    net = _qwen_net(f, heads=16, groups=8)
    slides = replace(attention, window=f.integer("sliding_window", default=512))
    moe = qwen_experts(f, 128, 4, shared=512)
    of_kind = {
        "full_attention": Layer(attention, None, moe), "sliding_attention": Layer(slides, None, moe),
        "linear_attention": Layer(None, None, moe, state_space=net),
    }  # fmt: skip
    default = [_PERIOD[i % len(_PERIOD)] for i in range(core.num_layers)]
    layers = tuple(of_kind[kind] for kind in _kinds(f, default, tuple(of_kind)))
    return rotary_model(f, name, core, layers, tied=True, max_position=131072)


def _kinds(f: ConfigFields, default: list[str], allowed: tuple[str, ...] = _TYPES) -> list[str]:
    """The mixer of every layer: from `layer_types` where given."""
    types = f.words("layer_types", allowed)
    if types is None:
        return default
    f.one_per_layer("layer_types", types, len(default))
    return types


def _dealt(
    kinds: list[str], attention: Attention, net: DeltaNet, blocks: Sequence[Block]
) -> tuple[Layer, ...]:
    return tuple(
        Layer(attention, mlp, moe) if kind == "full_attention" else Layer(None, mlp, moe, state_space=net)
        for kind, (mlp, moe) in zip(kinds, blocks, strict=True)
    )


def read_olmo_hybrid(f: ConfigFields, name: str) -> ModelSpec:
    """OLMo Hybrid: gated delta nets after a norm, OLMo 2's attention before one; every fourth layer attends."""
    core = read_core(f)
    attention = grouped_attention(f, core, switch="attention_bias", qk_norm=QkNorm.FULL)
    default = [_TYPES[i % 4 != 3] for i in range(core.num_layers)]
    if _TYPES[0] not in default:
        default[-1] = _TYPES[0]
    kinds = _kinds(f, default)
    if len(set(kinds)) < 2:
        raise f.error("layer_types", "must name both types", kinds[0], "list full and linear attention")
    keys = f.integer("linear_num_key_heads", default=attention.heads)
    width = f.integer("linear_key_head_dim", default=int(0.75 * core.hidden / keys))
    net = DeltaNet(
        heads=f.integer("linear_num_value_heads", default=attention.heads),
        head_dim=f.integer("linear_value_head_dim", default=2 * width),
        state=width,
        groups=keys,
        conv=f.integer("linear_conv_kernel_dim", default=4),
    )
    layers = _dealt(kinds, attention, net, [(gated_mlp(f), None)] * core.num_layers)
    return rotary_model(f, name, core, layers, max_position=65536)


K3 = "kimi_k3"  # whose text model calls itself Kimi Linear's


def read_kimi_linear(f: ConfigFields, name: str) -> ModelSpec:
    """Kimi Linear: Kimi Delta Attention, latent attention without positions every fourth layer, DeepSeek-V3's experts.

    Its files keep the delta nets' dimensions, and which layers they are, counted from 1, in `linear_attn_config`. Kimi
    K3's text model adds attention residuals over stretches of `attn_res_block_size` layers, gates of attention's
    output, and a width and a norm of its experts (Megatron-Bridge models/kimi/kimi_k3_layers.py, torchtitan 002c4cc
    models/kimi_k3).
    """
    core, linear = read_core(f), f.section("linear_attn_config")
    names = (("num_heads",) * 2, ("head_dim",) * 2, ("short_conv_kernel_size", "conv_kernel_dim"))
    heads, width, taps = (
        linear.integer(name) if linear.given(name) else f.integer(f"linear_{spelling}", default=default)
        for (name, spelling), default in zip(names, (32, 128, 4), strict=True)
    )
    whole = linear.values.get("use_full_rank_gate") is True
    net = DeltaNet(heads, width, width, heads, taps, channel_decay=True, gate_rank=width, whole_gate=whole)
    kinds = _kinds(f, _kimi_kinds(linear, core.num_layers))
    sparse = _kimi_experts(f, core.num_layers)
    latent = f.optional_integer("routed_expert_hidden_size") or 0
    normed = latent > 0 and f.values.get("latent_moe_use_norm") is True
    mlp, moe = None if all(sparse) else gated_mlp(f), replace(_kimi_moe(f), latent=latent, latent_norm=normed)
    blocks = [(None, moe) if routed else (mlp, None) for routed in sparse]
    gated = f.values.get("mla_use_output_gate") is True
    attention = replace(latent_attention(f, default_q_rank=None), output_gate=gated)
    layers, stretch = _dealt(kinds, attention, net, blocks), f.optional_integer("attn_res_block_size")
    if stretch is not None:
        sums = (AttentionResiduals((-(-i // stretch), i // stretch + 1)) for i in range(len(layers)))
        layers = tuple(replace(y, residual=own) for y, own in zip(layers, sums, strict=True))
    model = rotary_model(f, name, core, layers, max_position=1048576)
    family = K3 if whole or latent or gated or stretch else model.family
    return replace(
        model, family=family, tied_embeddings=False
    )  # the library ties none, whatever the file says


def read_bailing_hybrid(f: ConfigFields, name: str) -> ModelSpec:
    """Ling 3: Kimi Delta Attention whose decays and gates are projected whole; latent attention, with a gate of every
    head, ends each group of `layer_group_size` layers, its queries of low rank where `q_lora_rank` says so, as those of
    Ling 3 Tiny are, which the library's class has from 5.24 on. Modules of multi-token prediction are left out, as the
    library's model has none. Raises `UnsupportedError` for the generations before, of the same model_type."""
    _check_ling(f)
    groups = f.given("num_expert_group", "n_group") or "n_group"
    f = f.with_defaults(
        vocab_size=157184, hidden_size=2560, num_hidden_layers=42, intermediate_size=6144, moe_intermediate_size=768,
        num_attention_heads=32, topk_group=4, **{groups: 8},
    )  # fmt: skip
    core, heads = read_core(f), f.integer("linear_num_heads", "num_attention_heads")
    # where both are given, head_dim is the rotated width
    width = f.integer("linear_head_dim", "head_dim", default=128)
    taps = f.integer("linear_conv_kernel_dim", "short_conv_kernel_size", default=4)
    net = DeltaNet(heads, width, width, heads, taps, channel_decay=True)
    every = f.integer("layer_group_size", default=6)
    kinds = _kinds(f, [_TYPES[(i + 1) % every > 0] for i in range(core.num_layers)])
    sparse = _kimi_experts(f, core.num_layers, dense=2)
    mlp, moe = None if all(sparse) else gated_mlp(f), _kimi_moe(f, experts=512)
    blocks = [(None, moe) if routed else (mlp, None) for routed in sparse]
    latent = replace(latent_attention(f, default_q_rank=None), head_gate=True)
    model = rotary_model(f, name, core, _dealt(kinds, latent, net, blocks), max_position=262144)
    return replace(model, tied_embeddings=False)  # as Kimi Linear's


def _check_ling(f: ConfigFields) -> None:
    """Ling 2.5 and 2.6 have linear attention without convolutions in place of delta nets (vLLM's
    bailing_moe_linear.py); of Ling 3 whole decays and a gate of every head are published."""
    named = f.values.get("architectures") or ()
    convolved = f.given("short_conv_kernel_size", "linear_conv_kernel_dim")
    if "BailingMoeV2_5ForCausalLM" in named or (f.given("group_norm_size") and not convolved):
        raise f.refused(
            "of bailing_hybrid planner reads Ling 3; linear attention with norms and rotated queries and keys, beside "
            "latent attention, is not modelled",
            "Ling 2.5 or 2.6 (BailingMoeV2_5ForCausalLM)",
            "plan Ling 3, or MiniMax-Text-01 for lightning attention",
        )
    for field, wanted in (
        ("gated_attention_proj_granularity_type", "head_wise"),
        ("no_kda_lora", True),
        ("use_kda_lora", False),
        ("pregate_enabled", False),
    ):
        if f.values.get(field, wanted) not in (wanted, None):
            must = f"must be {wanted!r}, as in Ling 3 of its publisher: another is not modelled"
            raise f.error(field, must, f.values[field], "describe the model by hand")


def _kimi_kinds(linear: ConfigFields, layers: int) -> list[str]:
    """The mixer of every layer, from two lists that count from 1; by default every fourth after the first attends."""
    attends, nets = linear.integers("full_attn_layers"), linear.integers("kda_layers")
    if attends is None or nets is None:
        return [_TYPES[i % 4 > 0 or i == 0] for i in range(layers)]
    if sorted([*attends, *nets]) != list(range(1, layers + 1)):
        must = f"must name every layer from 1 to {layers} once, together with kda_layers"
        raise linear.error("full_attn_layers", must, attends, "correct one of the two")
    return [_TYPES[i + 1 in nets] for i in range(layers)]


def _kimi_experts(f: ConfigFields, layers: int, dense: int = 1) -> list[bool]:
    """Which layers route: as `mlp_layer_types` says, or all but the first `first_k_dense_replace`."""
    if not f.given("mlp_layer_types"):
        dense = f.integer("first_k_dense_replace", default=dense, least=0)
    return sparse_from(f, layers, dense)


def _kimi_moe(f: ConfigFields, experts: int = 256) -> Moe:
    shared = f.integer("num_shared_experts", "n_shared_experts", default=1, least=0)
    moe = read_moe(
        f,
        experts=("num_experts", "num_local_experts"),
        top_k=("num_experts_per_token", "num_experts_per_tok"),
        expert_ffn="moe_intermediate_size",
        default=(experts, 8),
        shared_ffn=shared * f.integer("moe_intermediate_size"),
    )
    return with_groups(f, moe)
