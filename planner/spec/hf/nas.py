"""Which layers has a Llama-Nemotron that was pruned by search (Super 49B, Ultra 253B)? Every layer its own.

As NVIDIA's own modeling_decilm.py has them, and Megatron-Core (core/transformer/heterogeneous/heterogeneous_config.py).
Left out: layers that compute nothing, which neither hold nor cost anything.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import Attention, AttentionKind
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.parts import grouped_attention, read_core, rotary_model
from planner.spec.layer import Activation, Layer, Mlp
from planner.spec.model import ModelSpec

_ROUNDED = 256  # widths of MLPs are rounded up to multiples of it


def read_nemotron_nas(f: ConfigFields, name: str) -> ModelSpec:
    """`block_configs`: attention and MLP of every layer, either of which may be missing (`no_op`).

    Raises `UnsupportedError` for layers replaced by one matrix, and for windows and sparsity inside blocks.
    """
    core = read_core(f)
    blocks = f.values.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != core.num_layers:
        given = len(blocks) if isinstance(blocks, list) else blocks
        raise f.error("block_configs", "must describe every layer", given, f"list {core.num_layers} blocks")
    bias, mlp_bias = f.boolean("attention_bias", False), f.boolean("mlp_bias", False)
    heads = f.integer("num_attention_heads")
    every = replace(f, values={**f.values, "num_key_value_heads": heads})  # null there; blocks say how many
    attention = grouped_attention(every, core, qkv_bias=bias, out_bias=bias)
    activation = f.activation("hidden_act", default=Activation.SILU)
    layers = []
    for i, block in enumerate(blocks):
        if not isinstance(block, dict):
            raise f.error(
                "block_configs", "must hold objects", block, 'write {"attention": {...}, "ffn": {...}}'
            )
        at = ConfigFields(block, f.file, f"{f.prefix}block_configs[{i}].", f.assumed)
        mixer = _attention(at.section("attention"), attention)
        width = _width(at.section("ffn"), core.hidden)
        mlp = Mlp(width, True, mlp_bias, activation) if width else None
        if mixer is not None or mlp is not None:
            layers.append(Layer(mixer, mlp, None, norms=int(mixer is not None) + int(mlp is not None)))
    if len(layers) < core.num_layers:
        f.assume("layers that compute nothing", core.num_layers - len(layers), "not counted among the layers")
    return rotary_model(f, name, core, tuple(layers), max_position=131072)


def _is_missing(f: ConfigFields) -> bool:
    """Is the block left out? Raises `UnsupportedError` for what takes its place, or changes it."""
    stated = [name for name, value in f.values.items() if value and name not in _READ]
    if f.values.get("replace_with_linear") or stated:
        what = stated[0] if stated else "replace_with_linear"
        raise f.refused(
            f"{f.prefix}{what} is not modelled",
            f"{what}={f.values[what]!r}",
            "plan a model whose blocks are attention, an MLP or nothing",
        )
    return f.values.get("no_op") is True


_READ = (
    "no_op",
    "replace_with_linear",
    "n_heads_in_group",
    "num_query_groups",
    "ffn_mult",
    "intermediate_size",
)


def _attention(f: ConfigFields, attention: Attention) -> Attention | None:
    if _is_missing(f):
        return None
    groups = f.optional_integer("num_query_groups")
    if groups is None:
        shared = f.integer("n_heads_in_group")
        f.divides("n_heads_in_group", shared, "num_attention_heads", attention.heads)
        groups = attention.heads // shared
    f.divides("num_query_groups", groups, "num_attention_heads", attention.heads)
    kind = AttentionKind.MHA if groups == attention.heads else AttentionKind.GQA
    return replace(attention, kind=kind, kv_heads=groups)


def _width(f: ConfigFields, hidden: int) -> int:
    """Width of the MLP: 2/3 x `ffn_mult` x hidden, rounded up; 0 without one."""
    if _is_missing(f):
        return 0
    stated = f.optional_integer("intermediate_size")
    if stated is not None:
        return stated
    ratio = f.values.get("ffn_mult")
    if not isinstance(ratio, int | float) or isinstance(ratio, bool) or not 0 < ratio < 1000:
        raise f.error("ffn_mult", "must be a number above 0", ratio, "state it, or no_op")
    return -(-int(2 * ratio * hidden / 3) // _ROUNDED) * _ROUNDED
