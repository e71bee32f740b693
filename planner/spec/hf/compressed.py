"""Which layers has DeepSeek-V4? Attention to a window and compressed keys, several residual streams, experts.

As transformers 5.23 builds them (models/deepseek_v4); modules of multi-token prediction, which the library has not, as
Megatron-Bridge does (models/deepseek/deepseek_v4_bridge.py). Left out: which experts the first layers take from a fixed
table, which is no parameter; rotations; clipped activations.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.mixtures import read_moe
from planner.spec.hf.parts import read_core, rotary_model
from planner.spec.indexer import Compression, Indexer
from planner.spec.layer import Layer, Moe
from planner.spec.model import ModelSpec
from planner.spec.residual import HyperConnections

_SLIDING, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
# of the files as published, which list numbers
_RATIOS = {0: _SLIDING, 4: _SPARSE, 128: _HEAVY}


def read_deepseek_v4(f: ConfigFields, name: str, with_mtp: bool) -> ModelSpec:
    """DeepSeek-V4: every layer routes; layers compress keys 4 times and choose among them, 128 times, or not at all.

    The layer of a prediction module attends to the window alone, unless the list of layers goes on to it.
    """
    core = read_core(f)
    attention = _shared_key(f)
    index = Indexer(
        heads=f.integer("index_n_heads", default=64),
        head_dim=f.integer("index_head_dim", default=128),
        top_k=f.integer("index_topk", default=512),
    )
    rates = _rates(f)
    of_kind = {
        _SLIDING: attention,
        _SPARSE: replace(attention, compression=Compression(rates[_SPARSE], overlap=True), indexer=index),
        _HEAVY: replace(attention, compression=Compression(rates[_HEAVY])),
    }
    streams, moe = HyperConnections(f.integer("hc_mult", default=4, least=2)), _experts(f)
    kinds = _kinds(f, core.num_layers)
    layers = [Layer(of_kind[kind], None, moe, residual=streams) for kind in kinds]
    model = rotary_model(f, name, core, tuple(layers[: core.num_layers]), max_position=1048576)
    if not with_mtp:
        return model
    modules = f.integer("num_nextn_predict_layers", default=1, least=0)
    behind = set(layers[core.num_layers : core.num_layers + modules])
    if len(behind) > 1:
        raise f.error("compress_ratios", "must be the same for all MTP modules", modules, "plan one module")
    block = (*behind,) or (Layer(of_kind[_SLIDING], None, moe, residual=streams),)
    return replace(model, mtp_layers=modules, mtp_block=block if modules else (), assumed=tuple(f.assumed))


def _shared_key(f: ConfigFields) -> Attention:
    """Attention to the window alone: one key for all heads, which is the value too."""
    heads, width = f.integer("num_attention_heads"), f.integer("head_dim", default=512)
    f.integer("num_key_value_heads", default=1, most=1)
    groups = f.integer("o_groups", default=8)
    f.divides("o_groups", groups, "num_attention_heads", heads)
    return Attention(
        AttentionKind.MHA if heads == 1 else AttentionKind.GQA, heads, 1, width, width,
        q_lora_rank=f.integer("q_lora_rank", default=1024), qk_norm=QkNorm.KEY, sinks=True, tied_values=True,
        window=f.integer("sliding_window", default=128), compression=Compression(0),
        out_groups=groups, out_rank=f.integer("o_lora_rank", default=1024),
    )  # fmt: skip


def _experts(f: ConfigFields) -> Moe:
    width = f.integer("moe_intermediate_size")
    f.integer("n_shared_experts", default=1, most=1)  # the library builds one, whatever the number
    moe = read_moe(
        f,
        experts=("n_routed_experts", "num_local_experts"),
        expert_ffn="moe_intermediate_size",
        default=(256, 6),
        shared_ffn=width,
    )
    return replace(moe, shared_bias=f.boolean("mlp_bias", False))


def _rates(f: ConfigFields) -> dict[str, int]:
    """Tokens for which one key stands, by kind of layer."""
    stated = f.section("compress_rates")
    old = {_SPARSE: "compress_rate_csa", _HEAVY: "compress_rate_hca"}
    defaults = {_SPARSE: 4, _HEAVY: 128}
    return {
        kind: f.optional_integer(old[kind]) or stated.integer(kind, default=rate)
        for kind, rate in defaults.items()
    }


def _kinds(f: ConfigFields, layers: int) -> list[str]:
    """The attention of every layer: listed, by published ratios, or 128 twice and then 4 and 128 in turn.

    Lists may go on to the prediction modules.
    """
    f.words("mlp_layer_types", ("hash_moe", "moe"))
    listed = f.words("layer_types", (_SLIDING, _SPARSE, _HEAVY))
    ratios = f.integers("compress_ratios") if listed is None else None
    if ratios is not None:
        unknown = sorted(set(ratios) - set(_RATIOS))
        if unknown:
            must = f"must hold only {', '.join(map(str, _RATIOS))}"
            raise f.error("compress_ratios", must, unknown[0], "this attention is not modelled")
        listed = [_RATIOS[ratio] for ratio in ratios]
    if listed is None:
        return [_HEAVY if i < 2 or i % 2 == 0 else _SPARSE for i in range(layers)]
    if len(listed) < layers:
        field = "layer_types" if ratios is None else "compress_ratios"
        raise f.error(field, "must name one type per layer", len(listed), f"list {layers} types")
    return listed
