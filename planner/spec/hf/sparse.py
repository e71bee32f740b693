"""Which layers have models of DeepSeek Sparse Attention? DeepSeek-V3.2 and GLM-5.

DeepSeek-V3's layers, whose every query sees the keys that an indexer chose (arXiv 2512.02556, section 2.1). Left out:
what the indexer rotates and how its scores are scaled, and balance-correction buffers.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import Attention
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.latent import latent_attention
from planner.spec.hf.mixtures import ROUTED, blocks_of, shared_and_routed, sparse_from
from planner.spec.hf.parts import read_core, rotary_model
from planner.spec.indexer import Indexer
from planner.spec.layer import Layer
from planner.spec.model import ModelSpec

_FULL, _SHARED = "full", "shared"


def read_deepseek_v32(f: ConfigFields, name: str, with_mtp: bool) -> ModelSpec:
    """DeepSeek-V3.2 and V3.2-Exp: an indexer in every layer."""
    f = f.with_defaults(
        vocab_size=129280, hidden_size=7168, num_hidden_layers=61, intermediate_size=18432, num_attention_heads=128,
        moe_intermediate_size=2048, n_group=8, topk_group=4,
    )  # fmt: skip
    return _sparse(f, name, with_mtp, [_FULL] * read_core(f).num_layers, q_rank=1536, index_heads=64)


def read_glm_moe_dsa(f: ConfigFields, name: str, with_mtp: bool) -> ModelSpec:
    """GLM-5, whose layers from 5.2 on share what one in four of them chooses (arXiv 2603.12201)."""
    f = f.with_defaults(
        vocab_size=154880, hidden_size=6144, num_hidden_layers=78, intermediate_size=12288, num_attention_heads=64,
        moe_intermediate_size=2048, qk_nope_head_dim=192, v_head_dim=256,
    )  # fmt: skip
    kinds = _indexer_types(f, read_core(f).num_layers)
    return _sparse(f, name, with_mtp, kinds, q_rank=2048, index_heads=32)


def _indexer_types(f: ConfigFields, layers: int) -> list[str]:
    """For every layer whether it has an indexer: listed, a pattern of F and S, or every so many layers."""
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
        every = max(f.optional_integer("index_topk_freq", least=0) or 1, 1)
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
    f: ConfigFields, name: str, with_mtp: bool, kinds: list[str], q_rank: int, index_heads: int
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
    sparse = sparse_from(f, core.num_layers, f.integer("first_k_dense_replace", default=3, least=0))
    blocks = zip(kinds, blocks_of(f, moe, sparse), strict=True)
    layers = tuple(Layer(of_kind[kind], *block) for kind, block in blocks)
    model = rotary_model(f, name, core, layers, max_position=163840 if q_rank == 1536 else 202752)
    if not with_mtp:
        return model
    modules = f.integer("num_nextn_predict_layers", default=1, least=0)
    # a prediction module chooses for itself (Megatron-Core, transformer/multi_token_prediction.py: numbered from 1)
    block = (replace(model.layers[-1], attention=of_kind[_FULL]),) if modules else ()
    return replace(model, mtp_layers=modules, mtp_block=block, assumed=tuple(f.assumed))
