"""Which layers do hybrids of attention and lightning attention or short convolutions have? MiniMax-Text-01, LFM2, LFM3.

Left out: multipliers of residuals, rotations of a part of each head, two rotary bases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.spec.attention import Attention, QkNorm
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.mixtures import Block, read_moe
from planner.spec.hf.parts import Core, grouped_attention, read_core, rotary_model, with_window
from planner.spec.layer import Activation, Layer, Mlp
from planner.spec.mixers import LightningAttention, ShortConvolution
from planner.spec.model import ModelSpec

_FULL, _LINEAR, _SLIDING, _CONV = "full_attention", "linear_attention", "sliding_attention", "conv"


def read_minimax(f: ConfigFields, name: str) -> ModelSpec:
    """MiniMax-Text-01 and M1: lightning attention, or attention where `layer_types` or `attn_type_list` says so, then
    Mixtral's experts."""
    core = read_core(f)
    if shared := f.values.get("shared_intermediate_size"):
        raise f.refused(
            f"shared_intermediate_size must be 0, as published and as transformers builds {name}",
            repr(shared),
            "leave it out",
        )
    attention = grouped_attention(f, core, kv_heads=8)
    attention = with_window(attention, f.optional_integer("sliding_window"))
    blocks = LightningAttention(
        attention.heads, attention.head_dim, attention.head_dim, attention.heads,
        chunk=f.integer("block_size", default=256),
    )  # fmt: skip
    moe = read_moe(f, experts=("num_local_experts", "num_experts"), default=(8, 2))
    whole, linear = Layer(attention, None, moe), Layer(None, None, moe, state_space=blocks)
    layers = tuple(whole if kind == _FULL else linear for kind in _minimax_kinds(f, core))
    return rotary_model(f, name, core, layers, max_position=131072)


def _minimax_kinds(f: ConfigFields, core: Core) -> list[str]:
    """The mixer of every layer, in either spelling (1 in `attn_type_list`: attention); by default in turn."""
    codes = f.integers("attn_type_list")
    kinds = f.words("layer_types", (_FULL, _LINEAR))
    if kinds is None and codes is not None:
        kinds = [_FULL if code else _LINEAR for code in codes]
    if kinds is None:
        kinds = [_LINEAR if i % 2 else _FULL for i in range(core.num_layers)]
        f.assume("layer_types", "full_attention and linear_attention in turn")
    return _one_each(f, kinds, core)


def _one_each(f: ConfigFields, kinds: list[str], core: Core) -> list[str]:
    f.one_per_layer("layer_types", kinds, core.num_layers)
    return kinds


def read_lfm2(f: ConfigFields, name: str) -> ModelSpec:
    """LFM2: gated short convolutions and, in a few layers, attention with normed heads; its MLP's width is adjusted."""
    core = read_core(f)
    kinds = f.words("layer_types", (_FULL, _CONV))
    if kinds is None:
        attends = f.integers("full_attn_idxs")
        kinds = [_FULL if attends is None or i in attends else _CONV for i in range(core.num_layers)]
    mlp = Mlp(_adjusted_width(f), True, False, Activation.SILU)
    layers = _mixed(f, core, kinds, [(mlp, None)] * core.num_layers)
    return _lfm(f, name, core, layers)


def read_lfm2_moe(f: ConfigFields, name: str) -> ModelSpec:
    """LFM2's mixtures of experts behind the first `num_dense_layers`."""
    core = read_core(f)
    kinds = f.words("layer_types", (_FULL, _CONV))
    if kinds is None:
        raise f.error(
            "layer_types", "must be given: the library has no default", None, "list one type per layer"
        )
    dense = f.integer("num_dense_layers", default=2, least=0)
    moe = read_moe(f, experts=("num_experts",), expert_ffn="moe_intermediate_size", default=(32, 4))
    mlp = Mlp(f.integer("intermediate_size"), True, False, Activation.SILU)
    blocks: list[Block] = [(mlp, None) if i < dense else (None, moe) for i in range(core.num_layers)]
    return _lfm(f, name, core, _mixed(f, core, kinds, blocks))


def read_lfm3(f: ConfigFields, name: str) -> ModelSpec:
    """LFM3: LFM2's convolutions over more tokens, attention with a gate of every head, norms on both sides."""
    core, bias = read_core(f), f.boolean("attention_bias", False)
    kinds = f.words("layer_types", (_FULL, _SLIDING, _CONV)) or [
        _FULL if i % 4 == 2 else _SLIDING if i and i % 4 == 0 else _CONV for i in range(core.num_layers)
    ]
    attention = grouped_attention(
        f, core, qkv_bias=bias, out_bias=bias, qk_norm=QkNorm.HEAD, kv_heads=4, head_dim=128
    )
    attention = replace(attention, head_gate=f.boolean("use_attention_gate", True))
    window = f.integer("sliding_window", default=256) if _SLIDING in kinds else None
    mlp = Mlp(f.integer("intermediate_size"), True, False, Activation.SILU)
    norms = 4 if f.boolean("use_sandwich_norm", True) else 2
    by_kind = {
        _FULL: Layer(attention, mlp, None, norms),
        _SLIDING: Layer(with_window(attention, window), mlp, None, norms),
        _CONV: Layer(None, mlp, None, norms, state_space=_convolution(f, core, 7)),
    }
    layers = tuple(by_kind[kind] for kind in _one_each(f, kinds, core))
    return _lfm(f, name, core, layers)


def _convolution(f: ConfigFields, core: Core, taps: int) -> ShortConvolution:
    bias = f.boolean("conv_bias", False)
    return ShortConvolution(
        1, core.hidden, 1, 1, f.integer("conv_L_cache", default=taps), conv_bias=bias, bias=bias
    )


def _mixed(f: ConfigFields, core: Core, kinds: list[str], blocks: Sequence[Block]) -> tuple[Layer, ...]:
    """LFM2's layers: attention with normed heads, or a convolution, before the given blocks."""
    attention: Attention = grouped_attention(f, core, qk_norm=QkNorm.HEAD, kv_heads=8)
    convolution = _convolution(f, core, 3)
    return tuple(
        Layer(attention, mlp, moe) if kind == _FULL else Layer(None, mlp, moe, state_space=convolution)
        for kind, (mlp, moe) in zip(_one_each(f, kinds, core), blocks, strict=True)
    )


def _adjusted_width(f: ConfigFields) -> int:
    """Two thirds of the stated width, times a factor, rounded up to a multiple (modeling_lfm2.py Lfm2MLP)."""
    width = f.integer("block_ff_dim", "intermediate_size", default=12288)
    if not f.boolean("block_auto_adjust_ff_dim", True):
        return width
    factor = f.values.get("block_ffn_dim_multiplier", 1.0)
    multiple = f.integer("block_multiple_of", default=256)
    width = int(2 * width / 3)
    if factor is None:
        return width
    if not isinstance(factor, int | float) or isinstance(factor, bool) or factor <= 0:
        raise f.error("block_ffn_dim_multiplier", "must be a number above 0", factor, "correct the value")
    return -(-int(factor * width) // multiple) * multiple


def _lfm(f: ConfigFields, name: str, core: Core, layers: tuple[Layer, ...]) -> ModelSpec:
    """Its files spell the tied embedding in two ways, of which the first counts."""
    if f.values.get("tie_embedding") is not None:
        f = replace(f, values={**f.values, "tie_word_embeddings": f.values["tie_embedding"]})
    return rotary_model(f, name, core, layers, tied=True, max_position=128000)
