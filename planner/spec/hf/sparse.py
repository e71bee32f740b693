"""Which layers have models whose queries see what an indexer chose? DeepSeek-V3.2, GLM-5, Hunyuan 4, dots 3,
Mistral Large 4, MiniMax-M3.

DeepSeek-V3's layers with single keys (arXiv 2512.02556, section 2.1), grouped queries with blocks of keys (arXiv
2606.13392). Left out: what the indexer rotates and how its scores are scaled, balance-correction buffers, clamped
activations, and prediction modules of MiniMax-M3, of which no weights are published.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.spec.attention import Attention, QkNorm
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.latent import latent_attention
from planner.spec.hf.mixed_heads import stated_for_layer
from planner.spec.hf.mixtures import ROUTED, blocks_of, read_moe, shared_and_routed, sparse_from
from planner.spec.hf.parts import Core, grouped_attention, read_core, refuse_unread, rotary_model
from planner.spec.indexer import Indexer
from planner.spec.layer import Activation, Layer, Mlp
from planner.spec.model import ModelSpec
from planner.spec.residual import HyperConnections

_FULL, _SHARED = "full", "shared"


def read_deepseek_v32(f: ConfigFields, name: str, with_mtp: bool) -> ModelSpec:
    """DeepSeek-V3.2 and V3.2-Exp: an indexer in every layer."""
    return _sparse(f, name, with_mtp, [_FULL] * read_core(f).num_layers, q_rank=1536, index_heads=64)


def read_glm_moe_dsa(f: ConfigFields, name: str, with_mtp: bool) -> ModelSpec:
    """GLM-5, whose layers from 5.2 on share what one in four of them chooses (arXiv 2603.12201)."""
    kinds = _indexer_types(f, read_core(f).num_layers)
    return _sparse(f, name, with_mtp, kinds, q_rank=2048, index_heads=32)


def read_hy_v4(f: ConfigFields, name: str) -> ModelSpec:
    """Hunyuan 4: GLM-5's attention with sinks and a gate, between residual streams to which a branch adds and of which
    it mixes none. Published weights hold prediction modules that the library has not."""
    return _hy_v4(f, name, q_rank=1536, index_heads=16)


def read_hy_v4_vl(f: ConfigFields, name: str) -> ModelSpec:
    """The text model of Hunyuan 4 with sight, which is the larger one."""
    return _hy_v4(f, name, q_rank=2048, index_heads=32)


def _hy_v4(f: ConfigFields, name: str, q_rank: int, index_heads: int) -> ModelSpec:
    streams = HyperConnections(f.integer("hc_mult", default=4, least=2), mixed=False)
    kinds = _indexer_types(f, read_core(f).num_layers, every=4)
    model = _sparse(f, name, False, kinds, q_rank=q_rank, index_heads=index_heads, dense=1)
    layers = tuple(
        replace(y, attention=replace(y.attention, sinks=True, output_gate=True), residual=streams)
        for y in model.layers
        if y.attention is not None
    )
    return replace(model, layers=layers)


def _indexer_types(f: ConfigFields, layers: int, every: int = 1) -> list[str]:
    """For every layer whether it has an indexer: listed, a pattern of F and S, or `every` so many layers."""
    allowed = (_FULL, _SHARED)
    listed = f.words("indexer_types", allowed)
    pattern = f.values.get("index_topk_pattern")
    if listed is None and isinstance(pattern, str):
        if set(pattern) - {"F", "S"}:
            raise f.error(
                "index_topk_pattern", "must be made of F and S", pattern, "write a letter for every layer"
            )
        listed = [_FULL if letter == "F" else _SHARED for letter in pattern]
    elif listed is None and pattern is not None:
        listed = f.words("index_topk_pattern", allowed)
    if listed is None:
        every = max(f.optional_integer("index_topk_freq", least=0) or every, 1)
        offset = f.optional_integer("index_skip_topk_offset", least=0)
        offset = 2 if offset is None else offset
        listed = [_SHARED if max(i - offset + 1, 0) % every else _FULL for i in range(layers)]
    f.one_per_layer("indexer_types", listed, layers)
    if listed[0] == _SHARED:
        raise f.error(
            "indexer_types", "must start with a layer of its own indexer", _SHARED, "write full first"
        )
    return listed


def _sparse(
    f: ConfigFields,
    name: str,
    with_mtp: bool,
    kinds: list[str],
    q_rank: int,
    index_heads: int,
    dense: int = 3,
) -> ModelSpec:
    core = read_core(f)
    if "q_lora_rank" in f.values:
        f.integer("q_lora_rank")  # the indexer reads compressed queries
    attention = latent_attention(f, default_q_rank=q_rank)
    indexer = Indexer(
        heads=f.integer("index_n_heads", default=index_heads),
        head_dim=f.integer("index_head_dim", default=128),
        top_k=f.integer("index_topk", default=2048),
    )
    of_kind: dict[str, Attention] = {
        _FULL: replace(attention, indexer=indexer),
        _SHARED: replace(attention, indexer=replace(indexer, shared=True)),
    }
    moe = shared_and_routed(f, ROUTED, experts=256, top_k=8, shared=1)
    sparse = sparse_from(f, core.num_layers, f.integer("first_k_dense_replace", default=dense, least=0))
    blocks = zip(kinds, blocks_of(f, moe, sparse), strict=True)
    layers = tuple(Layer(of_kind[kind], *block) for kind, block in blocks)
    model = rotary_model(f, name, core, layers, max_position=f.integer("max_position_embeddings"))
    if not with_mtp:
        return model
    modules = f.integer("num_nextn_predict_layers", default=1, least=0)
    # a prediction module chooses for itself (Megatron-Core, transformer/multi_token_prediction.py: numbered from 1)
    block = (replace(model.layers[-1], attention=of_kind[_FULL]),) if modules else ()
    return replace(model, mtp_layers=modules, mtp_block=block, assumed=tuple(f.assumed))


_SLIDING, _DENSE, _INDEXED = "sliding_attention", "full_attention", "indexed_attention"
# of layers with a window, where nothing is said of them (transformers 5.23 configuration_dots3_note.py)
_WINDOWED = {
    "num_attention_heads": 64, "q_lora_rank": 1024, "kv_lora_rank": 1024, "qk_nope_head_dim": 192, "v_head_dim": 128,
}  # fmt: skip


def read_dots3(f: ConfigFields, name: str) -> ModelSpec:
    """dots 3: an indexer in the first two layers and one in four, in the others latent attention to a window with heads
    and ranks of its own; a gate of every head, a norm of the rotated key. Constants scale the latents."""
    core = read_core(f)
    indexer = Indexer(
        f.integer("index_n_heads", default=64), f.integer("index_head_dim", default=128),
        f.integer("index_topk", default=2048),
    )  # fmt: skip
    kinds = _dots3_kinds(f, core.num_layers)
    window = f.integer("sliding_window", "sliding_window_size", default=512) if _SLIDING in kinds else None
    attentions = [
        replace(
            latent_attention(_dots3_heads(f, i, kind), default_q_rank=1024), head_gate=True, rotated_norm=True,
            window=window if kind == _SLIDING else None, indexer=indexer if kind == _INDEXED else None,
        )
        for i, kind in enumerate(kinds)
    ]  # fmt: skip
    before = f.optional_integer("moe_shared_expert_intermediate_size")
    width = before or f.integer("shared_experts_intermediate_size", default=1536)
    shared = f.integer("n_shared_experts", default=1)
    moe = replace(shared_and_routed(f, ROUTED, experts=256, top_k=8, shared=1), shared_ffn=shared * width)
    blocks = blocks_of(f, moe, _dots3_sparse(f, core.num_layers))
    layers = tuple(Layer(a, *block) for a, block in zip(attentions, blocks, strict=True))
    return rotary_model(f, name, core, layers, max_position=524288)


def _dots3_kinds(f: ConfigFields, layers: int) -> list[str]:
    """The attention of every layer. Files that name no layers' own dimensions call indexed ones full."""
    indexed = f.boolean("use_dsa", True) if f.given("use_dsa") else "per_layer_config" not in f.values or None
    other = _DENSE if indexed is False else _INDEXED
    listed = f.words("layer_types", (_SLIDING, _DENSE, _INDEXED))
    if listed is None:
        slides = f.boolean("use_sliding_window", True)
        return [_SLIDING if slides and i > 1 and i % 4 != 1 else other for i in range(layers)]
    f.one_per_layer("layer_types", listed, layers)
    return [kind if kind == _SLIDING or indexed is None else other for kind in listed]


def _dots3_heads(f: ConfigFields, index: int, kind: str) -> ConfigFields:
    """The fields as a layer sees them: its own of `per_layer_config`, else with a window those that start in swa."""
    widths = (*_WINDOWED, "qk_rope_head_dim")
    own: dict[str, Any] = {}
    if f.values.get("per_layer_config") is not None:
        own = stated_for_layer(f, index, (*widths, "num_key_value_heads", "head_dim")).values
    elif kind == _SLIDING:
        own = {field: f.integer(f"swa_{field}", default=value) for field, value in _WINDOWED.items()}
        whole = f.integer("swa_head_dim", default=256)
        own["qk_rope_head_dim"] = f.integer("swa_qk_rope_head_dim", default=whole - own["qk_nope_head_dim"])
    seen = replace(f, values={**f.values, **{field: own[field] for field in widths if field in own}})
    if "q_lora_rank" in seen.values:
        seen.integer("q_lora_rank")  # queries of full rank the library refuses
    return seen


def _dots3_sparse(f: ConfigFields, layers: int) -> list[bool]:
    """Which layers hold experts: `moe_layer_freq` lists them, or numbers every how many do."""
    dense, every = f.integer("first_k_dense_replace", default=1, least=0), f.values.get("moe_layer_freq")
    listed = sparse_from(f, layers, dense)
    if f.given("mlp_layer_types") or every is None:
        return listed
    if not isinstance(every, list):
        step = f.integer("moe_layer_freq")
        return [routed and i % step == 0 for i, routed in enumerate(listed)]
    frequencies = f.integers("moe_layer_freq") or []
    f.one_per_layer("moe_layer_freq", frequencies, layers)
    return [routed and frequencies[i] > 0 for i, routed in enumerate(listed)]


def read_mistral_large4(f: ConfigFields, name: str) -> ModelSpec:
    """Mistral Large 4: queries of full rank, scaled by their position; one layer in four rotates nothing, the others
    by frequencies whose factors are trained (a buffer before transformers 5.24); layers may take an earlier one's
    latent keys (`kv_source_layers`) and what an indexer chose for one before them."""
    f.values = {**f.values, "q_lora_rank": None}  # the library builds none, whatever the file says
    core = read_core(f)
    attention = replace(latent_attention(f, default_q_rank=None), scaled=True, qkv_bias=False)
    down_bias = f.boolean("attention_bias", False)
    indexer = Indexer(
        f.integer("index_n_heads", default=32), f.integer("index_head_dim", default=128),
        f.integer("index_topk", default=2048), scaled=True,
    )  # fmt: skip
    sources, rotates = _kv_sources(f, core.num_layers), _rotating(f, core.num_layers)
    lenders = {source for i, source in enumerate(sources) if source != i}
    moe = shared_and_routed(f, ROUTED, experts=128, top_k=4, shared=1)
    sparse = sparse_from(f, core.num_layers, f.integer("first_k_dense_replace", default=1, least=0))
    kinds = zip(_indexer_types(f, core.num_layers), blocks_of(f, moe, sparse), strict=True)
    layers = tuple(
        Layer(
            replace(
                attention, indexer=replace(indexer, shared=kind == _SHARED), borrows_kv=sources[i] != i,
                lends_kv=i in lenders, qk_rope_dim=attention.qk_rope_dim * rotates[i],
                qkv_bias=down_bias and sources[i] == i,
            ),
            *block,
        )
        for i, (kind, block) in enumerate(kinds)
    )  # fmt: skip
    model = rotary_model(f, name, core, layers, max_position=1048576)
    # one for each pair that turns, in whichever layer
    return replace(model, rotary_scales=attention.qk_rope_dim // 2)


def _kv_sources(f: ConfigFields, layers: int) -> list[int]:
    """For every layer the one that makes its latent keys: itself, unless the file names one before it."""
    sources = f.integers("kv_source_layers")
    if sources is None:
        return list(range(layers))
    f.one_per_layer("kv_source_layers", sources, layers)
    for i, source in enumerate(sources):
        if source > i or sources[source] != source:
            must = "must name for every layer itself or one before it that makes its own keys"
            raise f.error("kv_source_layers", must, f"{source} for layer {i}", "correct the list")
    return sources


def _rotating(f: ConfigFields, layers: int) -> list[int]:
    """1 where a layer rotates a part of queries and keys, 0 where none."""
    listed, every = f.integers("no_rope_layers"), f.integer("no_rope_layer_interval", default=4)
    if listed is None:
        return [int((i + 1) % every != 0) for i in range(layers)]
    if len(listed) < layers:
        raise f.error(
            "no_rope_layers", "must have one entry per layer", len(listed), f"list {layers} entries"
        )
    return [int(one != 0) for one in listed[:layers]]


def read_minimax_m3(f: ConfigFields, name: str) -> ModelSpec:
    """MiniMax-M3: per-head norms of q and k, clamped quick GELU, a shared expert; the library builds one, whatever the
    files say, and takes every layer to attend to all keys where nothing is said of it."""
    core = read_core(f)
    refuse_unread(f, "attention_output_gate")
    attention = grouped_attention(f, core, qk_norm=QkNorm.HEAD, kv_heads=4, head_dim=128)
    chooses = _choosing_layers(f, core)
    kinds = {False: attention, True: attention}
    if any(chooses):
        kinds[True] = replace(attention, indexer=_block_indexer(f))
    moe = read_moe(
        replace(f, values={**f.values, "hidden_act": "quick_gelu"}),
        experts=("num_local_experts", "num_experts"),
        default=(128, 4),
        shared_ffn=f.integer("shared_intermediate_size", default=3072),
    )
    moe = replace(moe, clamped=True)
    mlp = Mlp(f.integer("dense_intermediate_size"), True, False, Activation.QUICK_GELU)
    frequencies = f.integers("moe_layer_freq") if f.given("mlp_layer_types") is None else None
    if frequencies is not None:
        f.one_per_layer("moe_layer_freq", frequencies, core.num_layers)
    routed = list(map(bool, frequencies)) if frequencies else sparse_from(f, core.num_layers, 0)
    blocks = [(None, moe) if sparse else (mlp, None) for sparse in routed]
    layers = tuple(Layer(kinds[sparse], *block) for sparse, block in zip(chooses, blocks, strict=True))
    return rotary_model(f, name, core, layers, max_position=524288)


_BLOCKS = "minimax_m3_sparse"


def _choosing_layers(f: ConfigFields, core: Core) -> list[bool]:
    """Which layers have an indexer: by `layer_types`, or as the published files list it."""
    listed = f.words("layer_types", ("full_attention", _BLOCKS))
    if listed is not None:
        f.one_per_layer("layer_types", listed, core.num_layers)
        return [kind == _BLOCKS for kind in listed]
    published = f.section("sparse_attention_config")
    chooses = published.integers("sparse_attention_freq")
    if chooses is None:
        f.assume("layer_types", "full_attention")
        return [False] * core.num_layers
    published.one_per_layer("sparse_attention_freq", chooses, core.num_layers)
    silent = published.integers("sparse_disable_index_value")
    if silent is not None and any(on and not off for on, off in zip(chooses, silent, strict=False)):
        raise published.error(
            "sparse_disable_index_value", "must be 1 where a layer chooses: values of the indexer are not modelled",
            silent, "plan a model without them",
        )  # fmt: skip
    return [bool(one) for one in chooses]


def _block_indexer(f: ConfigFields) -> Indexer:
    """Sizes in the published files' section, which the library lets stand before its own fields."""
    s = f.section("sparse_attention_config")
    own = {
        "index_n_heads": ("sparse_num_index_heads", 4), "index_head_dim": ("sparse_index_dim", 128),
        "index_block_size": ("sparse_block_size", 128), "index_topk_blocks": ("sparse_topk_blocks", 16),
        "index_local_blocks": ("sparse_local_block", 1),
    }  # fmt: skip
    heads, width, block, blocks, local = (
        s.integer(published) if s.given(published) else f.integer(name, default=default)
        for name, (published, default) in own.items()
    )
    if local > blocks:
        raise f.error(
            "index_local_blocks", f"must be at most index_topk_blocks, {blocks}", local, "correct one"
        )
    if s.values.get("sparse_init_block"):
        must = "must be 0: first blocks that are always seen are not modelled"
        raise s.error("sparse_init_block", must, s.values["sparse_init_block"], "plan a model without them")
    return Indexer(heads, width, top_k=blocks * block, block=block)
