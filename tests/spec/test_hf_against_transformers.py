"""Random configurations of every family, counted by planner and by the transformers library on its meta device."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from planner.cost.flops import model_flops
from planner.cost.params import model_parameters
from planner.errors import UnsupportedError
from planner.spec.hf import read_hf_config
from planner.spec.hf.families import families, family, refused
from planner.spec.hf.wrappers import wrappers

CONFIGS_PER_FAMILY = 12
Fields = dict[str, Any]


def release() -> tuple[int, ...]:
    """Major and minor number of the transformers library; the newest that planner knows where none is installed."""
    if importlib.util.find_spec("transformers") is None:
        return (5, 24)
    return tuple(int(part) for part in importlib.metadata.version("transformers").split(".")[:2])


OLDER = release() < (5, 24)


class Draw:
    """A seeded source of small, legal dimensions."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one_of(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def flag(self) -> bool:
        return bool(self.rng.integers(2))

    def maybe(self, **fields: Any) -> Fields:
        """Each field with even odds: left out, the library's default must hold."""
        return {name: value for name, value in fields.items() if self.flag()}

    def transformer(
        self, kv: bool = True, head_dim: bool = True, heads: tuple[int, ...] = (4, 6, 8)
    ) -> Fields:
        a = self.one_of(*heads)
        fields = {
            "num_attention_heads": a,
            "hidden_size": a * self.one_of(8, 16, 24),
            "num_hidden_layers": self.one_of(1, 2, 5, 8),
            "vocab_size": self.one_of(64, 99, 128),
            "intermediate_size": self.one_of(32, 40, 56),
            **self.maybe(tie_word_embeddings=self.flag()),
        }
        if kv:
            fields["num_key_value_heads"] = self.one_of(*[k for k in (1, 2, 3, 4, 6, 8) if a % k == 0])
        if head_dim:
            fields |= self.maybe(head_dim=self.one_of(4, 16, 32))
        return fields

    def experts(self, count: str, width: str | None, top_k: str = "num_experts_per_tok") -> Fields:
        n = self.one_of(2, 4, 8)
        fields = {count: n, top_k: self.one_of(1, 2)}
        return fields | ({width: self.one_of(16, 24)} if width else {})


def llama(d: Draw) -> Fields:
    fields = d.transformer() | d.maybe(attention_bias=d.flag(), mlp_bias=d.flag())
    if d.flag():
        del fields["num_key_value_heads"]
    return fields


def mistral(d: Draw) -> Fields:
    return d.transformer() | d.maybe(sliding_window=d.one_of(None, 16))


def mixtral(d: Draw) -> Fields:
    return d.transformer() | d.experts("num_local_experts", None) | d.maybe(sliding_window=16)


def qwen2(d: Draw) -> Fields:
    fields = d.transformer(head_dim=False) | d.maybe(max_window_layers=d.one_of(0, 2))
    return fields | ({"use_sliding_window": True, "sliding_window": 16} if d.flag() else {})


def qwen3(d: Draw) -> Fields:
    return qwen2(d) | d.maybe(attention_bias=d.flag(), head_dim=16)


def sparse_steps(d: Draw, layers: int) -> Fields:
    return d.maybe(decoder_sparse_step=d.one_of(1, 2, 3), mlp_only_layers=d.one_of([], [0], [layers - 1]))


def qwen2_moe(d: Draw) -> Fields:
    fields = qwen2(d) | d.experts("num_experts", "moe_intermediate_size") | d.maybe(qkv_bias=d.flag())
    fields |= d.maybe(shared_expert_intermediate_size=d.one_of(16, 48))
    return fields | sparse_steps(d, fields["num_hidden_layers"])


def qwen3_moe(d: Draw) -> Fields:
    fields = d.transformer() | d.experts("num_experts", "moe_intermediate_size")
    return fields | d.maybe(attention_bias=d.flag()) | sparse_steps(d, fields["num_hidden_layers"])


def gemma2(d: Draw) -> Fields:
    fields = d.transformer() | d.maybe(attention_bias=d.flag(), sliding_window=16)
    kinds = ["full_attention", "sliding_attention"]
    return fields | d.maybe(layer_types=[d.one_of(*kinds) for _ in range(fields["num_hidden_layers"])])


def gemma3(d: Draw) -> Fields:
    return d.transformer() | d.maybe(
        attention_bias=d.flag(), sliding_window=16, sliding_window_pattern=d.one_of(2, 3)
    )


def phi3(d: Draw) -> Fields:
    return d.transformer(head_dim=False) | d.maybe(sliding_window=16)


def phimoe(d: Draw) -> Fields:
    fields = d.transformer(head_dim=False) | d.experts("num_local_experts", None)
    return fields | d.maybe(attention_bias=d.flag(), lm_head_bias=d.flag())


def olmo2(d: Draw) -> Fields:
    return d.transformer(head_dim=False) | d.maybe(attention_bias=d.flag())


def olmoe(d: Draw) -> Fields:
    return olmo2(d) | d.experts("num_experts", None)


def starcoder2(d: Draw) -> Fields:
    return d.transformer(head_dim=False) | d.maybe(use_bias=d.flag(), sliding_window=16)


def cohere(d: Draw) -> Fields:
    return d.transformer(head_dim=False) | d.maybe(attention_bias=d.flag(), use_qk_norm=d.flag())


def nemotron(d: Draw) -> Fields:
    return d.transformer() | d.maybe(attention_bias=d.flag(), mlp_bias=d.flag())


def published_names(d: Draw, fields: Fields, names: Fields) -> Fields:
    """The fields in the library's spelling or in that of the published files: library's name -> theirs."""
    return fields if d.flag() else {names.get(name, name): value for name, value in fields.items()}


def exaone(d: Draw) -> Fields:
    names = {"num_hidden_layers": "num_layers", "hidden_act": "activation_function"}
    return published_names(d, biased(d) | d.maybe(hidden_act="gelu"), names)


def apertus1p5(d: Draw) -> Fields:
    fields = no_head_dim(d)
    return fields | d.maybe(output_vocab_size=fields["vocab_size"])


SARVAM = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}


def sarvam_moe(d: Draw) -> Fields:
    fields = glm4_moe(d)
    return published_names(d, fields, {**SARVAM, "attention_bias": "use_qkv_bias"})


def sarvam_mla(d: Draw) -> Fields:
    fields = published_names(d, latent(d) | d.maybe(q_lora_rank=None), SARVAM)
    return fields | d.maybe(
        head_dim=576, q_head_dim=192
    )  # as the published file, which the library leaves unread


def dbrx(d: Draw) -> Fields:
    heads = d.one_of(4, 8)
    ffn = d.experts("moe_num_experts", "ffn_hidden_size", "moe_top_k")
    return {
        "d_model": heads * 8,
        "n_heads": heads,
        "n_layers": d.one_of(1, 3),
        "vocab_size": 96,
        "attn_config": {"rope_theta": 10000.0} | d.maybe(kv_n_heads=d.one_of(1, 2, 4)),
        "ffn_config": ffn | {"hidden_size": heads * 8},
    }


def gpt_oss(d: Draw) -> Fields:
    fields = d.transformer(heads=(8, 16)) | d.experts("num_local_experts", None)
    return fields | d.maybe(attention_bias=d.flag(), sliding_window=16)


def glm4_moe(d: Draw) -> Fields:
    fields = d.transformer() | d.experts("n_routed_experts", "moe_intermediate_size")
    fields |= d.maybe(n_shared_experts=d.one_of(1, 2), first_k_dense_replace=d.one_of(0, 1, 3))
    return fields | d.maybe(use_qk_norm=d.flag(), attention_bias=d.flag())


def llama4(d: Draw) -> Fields:
    fields = d.transformer() | d.experts("num_local_experts", None) | d.maybe(attention_bias=d.flag())
    fields |= d.maybe(intermediate_size_mlp=48, interleave_moe_layer_step=d.one_of(1, 2, 3))
    return fields | d.maybe(no_rope_layer_interval=d.one_of(2, 3), attention_chunk_size=16)


def latent(d: Draw) -> Fields:
    ranks = {"kv_lora_rank": d.one_of(8, 16), "q_lora_rank": d.one_of(None, 12)}
    dims = {"qk_nope_head_dim": d.one_of(8, 16), "qk_rope_head_dim": 8, "v_head_dim": d.one_of(8, 24)}
    fields = d.transformer(kv=False, head_dim=False) | ranks | dims
    fields["num_key_value_heads"] = fields["num_attention_heads"]
    fields |= d.experts("n_routed_experts", "moe_intermediate_size")
    fields |= d.maybe(n_shared_experts=d.one_of(1, 2), first_k_dense_replace=d.one_of(0, 1, 3))
    return fields | d.maybe(attention_bias=d.flag())


def deepseek_v2(d: Draw) -> Fields:
    return latent(d) | d.maybe(mlp_bias=d.flag())


def deepseek_v3(d: Draw) -> Fields:
    return latent(d) | {"n_group": 1, "topk_group": 1}


def deepseek_v32(d: Draw) -> Fields:
    fields = latent(d) | {"q_lora_rank": 12, "n_group": 1, "topk_group": 1}
    indexer = {
        "index_n_heads": d.one_of(2, 4),
        "index_head_dim": d.one_of(16, 24),
        "index_topk": d.one_of(4, 64),
    }
    types = [d.one_of("dense", "sparse") for _ in range(fields["num_hidden_layers"])]
    return fields | d.maybe(**indexer, mlp_layer_types=types)


def deepseek_v4(d: Draw) -> Fields:
    fields = d.transformer(kv=False, head_dim=False, heads=(4, 8)) | {
        "head_dim": d.one_of(16, 32),
        "q_lora_rank": d.one_of(12, 20),
        "o_groups": d.one_of(2, 4),
        "o_lora_rank": d.one_of(8, 12),
        "hc_mult": d.one_of(2, 4),
        "index_n_heads": d.one_of(2, 4),
        "index_head_dim": d.one_of(16, 24),
    }
    del fields["intermediate_size"]
    layers = fields["num_hidden_layers"]
    fields |= d.experts("n_routed_experts", "moe_intermediate_size")
    fields |= d.maybe(sliding_window=16, mlp_bias=d.flag(), index_topk=8, compress_rate_csa=d.one_of(4, 8))
    if d.flag():
        return fields | d.maybe(compress_ratios=[d.one_of(0, 4, 128) for _ in range(layers)])
    kinds = ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")
    return fields | d.maybe(layer_types=[d.one_of(*kinds) for _ in range(layers)])


def glm_moe_dsa(d: Draw) -> Fields:
    fields = deepseek_v32(d)
    types = ["full", *(d.one_of("full", "shared") for _ in range(fields["num_hidden_layers"] - 1))]
    ways = (
        {"indexer_types": types},
        {"index_topk_pattern": "".join(kind[0].upper() for kind in types)},
        d.maybe(index_topk_freq=d.one_of(1, 2, 4), index_skip_topk_offset=d.one_of(1, 2, 3)),
    )
    return fields | d.one_of(*ways)


def hy_v4(d: Draw) -> Fields:
    fields = deepseek_v32(d) | d.maybe(hc_mult=d.one_of(2, 3))
    types = ["full", *(d.one_of("full", "shared") for _ in range(fields["num_hidden_layers"] - 1))]
    fields.pop("first_k_dense_replace", None)
    return fields | d.maybe(indexer_types=types)


def hy_v4_vl(d: Draw) -> Fields:
    return hy_v4(d) | {"qk_rope_head_dim": 64}  # which sections of its rotation, by default, must fill


def dots3(d: Draw) -> Fields:
    fields = deepseek_v32(d) | d.maybe(shared_experts_intermediate_size=24, sliding_window=16)
    layers = fields["num_hidden_layers"]
    types = [d.one_of("sliding_attention", "full_attention", "indexed_attention") for _ in range(layers)]
    own = {"num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 20, "qk_nope_head_dim": 12,
           "qk_rope_head_dim": 4, "head_dim": 16}  # fmt: skip
    fields |= d.maybe(layer_types=types, moe_layer_freq=d.one_of(1, 2, [1] * layers), n_shared_experts=2)
    if "layer_types" in fields and d.flag():
        sliding = [i for i, kind in enumerate(types) if kind == "sliding_attention"]
        return fields | {"per_layer_config": {str(i): own for i in sliding}}
    swa = {"swa_qk_nope_head_dim": 24, "swa_head_dim": 32, "swa_kv_lora_rank": 20}
    return fields | d.maybe(use_sliding_window=d.flag(), use_dsa=d.flag()) | d.one_of({}, swa)


def mistral_large4(d: Draw) -> Fields:
    fields = glm_moe_dsa(d) | d.maybe(no_rope_layer_interval=d.one_of(2, 3))
    fields.pop("q_lora_rank")
    sources: list[int] = []
    for i in range(fields["num_hidden_layers"]):
        sources.append(d.one_of(i, *(j for j in range(i) if sources[j] == j)))
    return fields | d.maybe(kv_source_layers=sources)


def gpt2(d: Draw) -> Fields:
    heads = d.one_of(2, 4)
    fields = {"n_embd": heads * 8, "n_head": heads, "n_layer": d.one_of(1, 3), "vocab_size": 96}
    return fields | d.maybe(n_positions=32, n_inner=40, tie_word_embeddings=d.flag())


def gpt_neox(d: Draw) -> Fields:
    fields = d.transformer(kv=False, head_dim=False)
    return fields | d.maybe(attention_bias=d.flag(), use_parallel_residual=d.flag())


def opt(d: Draw) -> Fields:
    fields = d.transformer(kv=False, head_dim=False)
    fields["ffn_dim"] = fields.pop("intermediate_size")
    fields["word_embed_proj_dim"] = d.one_of(fields["hidden_size"], 16)
    options = d.maybe(
        enable_bias=d.flag(), layer_norm_elementwise_affine=d.flag(), max_position_embeddings=64
    )
    return fields | options | d.maybe(do_layer_norm_before=d.flag())


def bloom(d: Draw) -> Fields:
    heads = d.one_of(2, 4)
    return {"hidden_size": heads * 8, "n_head": heads, "n_layer": d.one_of(1, 3), "vocab_size": 96}


def falcon(d: Draw) -> Fields:
    fields = d.transformer(kv=False, head_dim=False)
    del fields["intermediate_size"]
    fields |= d.maybe(bias=d.flag(), multi_query=d.flag(), parallel_attn=d.flag(), alibi=d.flag())
    fields |= d.maybe(ffn_hidden_size=40)
    if d.flag():
        fields |= {"new_decoder_architecture": True, "num_kv_heads": 2}
        fields |= d.maybe(num_ln_in_parallel_attn=d.one_of(1, 2))
    return fields


def layer_types(d: Draw, fields: Fields) -> Fields:
    kinds = ["full_attention", "sliding_attention"]
    return d.maybe(layer_types=[d.one_of(*kinds) for _ in range(fields["num_hidden_layers"])])


def biased(d: Draw) -> Fields:
    return d.transformer() | d.maybe(attention_bias=d.flag(), mlp_bias=d.flag())


def no_head_dim(d: Draw) -> Fields:
    return d.transformer(head_dim=False) | d.maybe(attention_bias=d.flag())


def sliding(d: Draw) -> Fields:
    fields = d.transformer(head_dim=False) | d.maybe(sliding_window=d.one_of(16, 32))
    return fields | layer_types(d, fields)


def exaone4(d: Draw) -> Fields:
    return sliding(d) | d.maybe(sliding_window_pattern=d.one_of(2, 3))


def cohere2(d: Draw) -> Fields:
    return sliding(d) | d.maybe(attention_bias=d.flag(), sliding_window_pattern=d.one_of(2, 3))


def cohere_compass(d: Draw) -> Fields:
    turns = {"rope_type": "default", "rope_theta": 1e4}
    turned = {"full_attention": turns, "sliding_attention": turns}
    return sliding(d) | d.maybe(attention_bias=d.flag()) | {"rope_parameters": turned}


def headed(d: Draw) -> Fields:
    """The library divides by a head_dim that is left out."""
    fields = d.transformer(head_dim=False) | d.maybe(attention_bias=d.flag())
    return fields | {"head_dim": d.one_of(16, 32)}


def ministral(d: Draw) -> Fields:
    fields = d.transformer(head_dim=False) | {"head_dim": 16}
    return fields | d.one_of({}, {"sliding_window": None}, {"sliding_window": 16}, layer_types(d, fields))


def ministral3(d: Draw) -> Fields:
    return d.transformer() | d.maybe(sliding_window=16)


def smollm3(d: Draw) -> Fields:
    fields = no_head_dim(d) | d.maybe(mlp_bias=d.flag(), no_rope_layer_interval=d.one_of(2, 3))
    return fields | ({"use_sliding_window": True, "sliding_window": 16} if d.flag() else {})


def seed_oss(d: Draw) -> Fields:
    return biased(d) | d.maybe(attention_out_bias=d.flag())


def helium(d: Draw) -> Fields:
    heads = d.one_of(4, 8)
    fields = biased(d) | {"num_attention_heads": heads, "num_key_value_heads": d.one_of(2, heads)}
    return fields | {"head_dim": 16, "hidden_size": heads * 16}


def ernie(d: Draw) -> Fields:
    return d.transformer() | d.maybe(use_bias=d.flag())


def phi(d: Draw) -> Fields:
    return d.transformer(head_dim=False)


def stablelm(d: Draw) -> Fields:
    return d.transformer(head_dim=False) | d.maybe(use_qkv_bias=d.flag(), use_parallel_residual=d.flag())


def gptj(d: Draw) -> Fields:
    heads = d.one_of(4, 8)
    fields = {"n_embd": heads * 8, "n_head": heads, "n_layer": d.one_of(1, 3), "vocab_size": 96}
    return fields | {"rotary_dim": 4} | d.maybe(n_inner=40)


def openai_gpt(d: Draw) -> Fields:
    fields = gpt2(d) | d.maybe(afn=d.one_of("gelu", "relu"))
    return {name: value for name, value in fields.items() if name != "n_inner"}


def ctrl(d: Draw) -> Fields:
    heads = d.one_of(2, 4)
    fields = {"n_embd": heads * 8, "n_head": heads, "n_layer": d.one_of(1, 3), "vocab_size": 96}
    return fields | {"dff": d.one_of(24, 40)} | d.maybe(tie_word_embeddings=d.flag())


def xglm(d: Draw) -> Fields:
    heads = d.one_of(2, 4)
    fields = {"d_model": heads * 8, "attention_heads": heads, "num_layers": d.one_of(1, 3), "vocab_size": 96}
    return fields | {"ffn_dim": d.one_of(24, 40)} | d.maybe(tie_word_embeddings=d.flag())


def beam(d: Draw) -> Fields:
    fields = d.transformer() | {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_group": 2,
    }
    fields |= {"topk_group": d.one_of(1, 2)}
    fields |= d.maybe(sliding_window=16, final_logit_softcapping=None) | layer_types(d, fields)
    return fields | mlp_types(d, fields) | {"head_dim": 16}


def gpt_neox_japanese(d: Draw) -> Fields:
    fields = d.transformer(kv=False, head_dim=False) | d.maybe(intermediate_multiple_size=d.one_of(2, 3))
    return {name: value for name, value in fields.items() if name != "intermediate_size"}


def biogpt(d: Draw) -> Fields:
    return d.transformer(kv=False, head_dim=False) | d.maybe(max_position_embeddings=64)


def gpt_bigcode(d: Draw) -> Fields:
    return gpt2(d) | d.maybe(multi_query=d.flag())


def mpt(d: Draw) -> Fields:
    heads = d.one_of(2, 4)
    return {"d_model": heads * 8, "n_heads": heads, "n_layers": d.one_of(1, 3), "vocab_size": 96}


def shared(d: Draw) -> Fields:
    fields = d.transformer() | d.experts("n_routed_experts", "moe_intermediate_size")
    return fields | d.maybe(n_shared_experts=d.one_of(1, 2))


def dots1(d: Draw) -> Fields:
    fields = no_head_dim(d) | d.experts("n_routed_experts", "moe_intermediate_size")
    fields |= {"n_shared_experts": d.one_of(1, 2), "first_k_dense_replace": d.one_of(0, 1, 3)}
    return fields | d.maybe(sliding_window=16, max_window_layers=d.one_of(0, 2))


def ernie_moe(d: Draw) -> Fields:
    fields = d.transformer(head_dim=False) | d.experts("moe_num_experts", "moe_intermediate_size", "moe_k")
    fields |= d.maybe(
        use_bias=d.flag(), moe_num_shared_experts=d.one_of(1, 2), moe_layer_interval=d.one_of(1, 2)
    )
    return fields | d.maybe(moe_layer_start_index=d.one_of(0, 2), moe_layer_end_index=d.one_of(-1, 3))


def minimax_m2(d: Draw) -> Fields:
    return d.transformer() | d.experts("num_local_experts", None)


def minimax_m3(d: Draw) -> Fields:
    """In the library's spelling or in that of the published files."""
    fields = d.transformer() | d.experts("num_local_experts", None) | {"dense_intermediate_size": 72}
    fields |= d.maybe(shared_intermediate_size=24)
    layers, heads = fields["num_hidden_layers"], fields["num_key_value_heads"]
    chooses, routes = ([int(d.flag()) for _ in range(layers)] for _ in range(2))
    if d.flag():
        sizes = {"index_n_heads": heads, "index_head_dim": d.one_of(8, 16), "index_block_size": 4}
        kinds = ["minimax_m3_sparse" if one else "full_attention" for one in chooses]
        return fields | sizes | d.maybe(layer_types=kinds) | mlp_types(d, fields)
    published = {"sparse_num_index_heads": heads, "sparse_index_dim": d.one_of(8, 16), "sparse_block_size": 4}
    return fields | {
        "moe_layer_freq": routes,
        "sparse_attention_config": published | {"sparse_attention_freq": chooses},
    }


def hunyuan_moe(d: Draw) -> Fields:
    return headed(d) | d.experts("num_experts", None, "moe_topk")


def granitemoe(d: Draw) -> Fields:
    return no_head_dim(d) | d.experts("num_local_experts", None)


def flex_olmo(d: Draw) -> Fields:
    return no_head_dim(d) | d.experts("num_experts", None)


def glm4_moe_lite(d: Draw) -> Fields:
    fields = latent(d)
    fields.pop("first_k_dense_replace", None)
    layers = fields["num_hidden_layers"]
    return fields | d.maybe(mlp_layer_types=[d.one_of("dense", "sparse") for _ in range(layers)])


def exaone_moe(d: Draw) -> Fields:
    fields = exaone4(d) | d.experts("num_experts", "moe_intermediate_size")
    return fields | d.maybe(num_shared_experts=d.one_of(1, 2), first_k_dense_replace=d.one_of(0, 2))


def hy_v3(d: Draw) -> Fields:
    fields = d.transformer() | d.experts("num_experts", "moe_intermediate_size")
    fields |= d.maybe(num_shared_experts=d.one_of(1, 2), attention_bias=d.flag(), mlp_bias=d.flag())
    return fields | mlp_types(d, fields)


def mlp_types(d: Draw, fields: Fields) -> Fields:
    return d.maybe(mlp_layer_types=[d.one_of("dense", "sparse") for _ in range(fields["num_hidden_layers"])])


def dense_latent(d: Draw) -> Fields:
    fields = {name: value for name, value in latent(d).items() if "expert" not in name}
    return {name: value for name, value in fields.items() if not name.startswith(("first_k", "moe_"))}


def gemma4_unified(d: Draw) -> Fields:
    fields = d.transformer() | d.maybe(attention_bias=d.flag(), sliding_window=16, num_kv_shared_layers=0)
    fields |= d.maybe(global_head_dim=24, attention_k_eq_v=d.flag()) | layer_types(d, fields)
    kv = fields["num_key_value_heads"]
    fields |= d.maybe(num_global_key_value_heads=d.one_of(*[k for k in (1, 2) if kv % k == 0]))
    return fields | d.maybe(use_bidirectional_attention="vision")


def gemma4(d: Draw) -> Fields:
    fields = (
        gemma4_unified(d)
        | {"hidden_size_per_layer_input": d.one_of(0, 8)}
        | d.maybe(vocab_size_per_layer_input=72)
    )
    if d.flag():
        layers = fields["num_hidden_layers"] = d.one_of(4, 6)
        fields["layer_types"] = ["sliding_attention", "full_attention"] * (layers // 2)
        fields |= {"num_kv_shared_layers": d.one_of(1, 2), **d.maybe(use_double_wide_mlp=d.flag())}
    routed = {"enable_moe_block": True} | d.experts("num_experts", "moe_intermediate_size", "top_k_experts")
    return fields | (routed if d.flag() else {})


def gemma3n(d: Draw) -> Fields:
    fields = d.transformer() | d.maybe(attention_bias=d.flag(), sliding_window=16, laurel_rank=d.one_of(4, 6))
    layers = fields["num_hidden_layers"] = d.one_of(5, 10)
    fields |= {"num_kv_shared_layers": d.one_of(0, layers - 5) if layers > 5 else 0, "head_dim": 16}
    fields |= d.maybe(altup_num_inputs=d.one_of(2, 3), vocab_size_per_layer_input=72)
    fields |= d.maybe(hidden_size_per_layer_input=8, activation_sparsity_pattern=[0.5] * layers)
    return fields | d.maybe(intermediate_size=[d.one_of(24, 32) for _ in range(layers)])


def laguna(d: Draw) -> Fields:
    fields = d.transformer() | d.experts("num_experts", "moe_intermediate_size") | d.maybe(sliding_window=16)
    several = [d.one_of(1, 2, 3) * fields["num_key_value_heads"] for _ in range(fields["num_hidden_layers"])]
    fields |= d.maybe(num_attention_heads_per_layer=several, shared_expert_intermediate_size=40)
    fields |= d.one_of(d.maybe(attention_bias=d.flag()), {"gating": d.one_of("per-head", "per-element")})
    return fields | layer_types(d, fields) | mlp_types(d, fields)


def step3p5(d: Draw) -> Fields:
    fields = d.transformer() | d.experts("n_routed_experts", "moe_intermediate_size") | {"sliding_window": 16}
    heads = {"num_attention_heads": 2 * fields["num_key_value_heads"]}
    fields |= d.one_of({}, {"num_sliding_attention_heads": 2 * heads["num_attention_heads"]},
                       {"attention_other_setting": heads})  # fmt: skip
    fields |= d.maybe(attention_bias=d.flag(), mlp_bias=d.flag(), share_expert_dim=40)
    fields |= layer_types(d, fields)
    return fields | d.one_of({}, mlp_types(d, fields), {"moe_layers_enum": d.one_of("0", "1,3", [0, 2])})


def windowed(d: Draw, fields: Fields) -> Fields:
    return fields | d.maybe(sliding_window=16) | layer_types(d, fields)


def granite_swa(d: Draw) -> Fields:
    return windowed(d, no_head_dim(d) | d.maybe(mlp_bias=d.flag()))


def granitemoe_swa(d: Draw) -> Fields:
    fields = no_head_dim(d) | d.experts("num_local_experts", None)
    return windowed(d, fields) | d.maybe(shared_intermediate_size=d.one_of(0, 24))


def cohere2_moe(d: Draw) -> Fields:
    fields = (
        d.transformer() | d.experts("num_experts", None) | d.maybe(attention_bias=d.flag(), rms_norm_eps=1e-6)
    )
    fields |= d.maybe(num_shared_experts=d.one_of(0, 2), prefix_dense_intermediate_size=24, sliding_window=16)
    fields |= d.maybe(sliding_window_pattern=2, prefix_dense_sliding_window_pattern=2)
    dense = d.one_of(0, min(2, fields["num_hidden_layers"]))
    return fields | d.one_of({"first_k_dense_replace": dense}, layer_types(d, fields) | mlp_types(d, fields))


def axk1(d: Draw) -> Fields:
    fields = {**latent(d), "q_lora_rank": 12, "n_routed_experts": 8, "num_experts_per_tok": 2}
    return fields | d.maybe(n_group=4, topk_group=2, moe_layer_freq=2)


def kolibri1(d: Draw) -> Fields:
    fields = d.transformer() | d.experts("num_experts", "moe_intermediate_size")
    fields.pop("intermediate_size")
    return windowed(d, fields) | d.maybe(shared_expert_intermediate_size=24)


def flint(d: Draw) -> Fields:
    fields = (
        d.transformer() | d.experts("num_experts", "moe_intermediate_size") | d.maybe(attention_bias=d.flag())
    )
    fields |= sparse_steps(d, fields["num_hidden_layers"]) | d.maybe(shared_expert_intermediate_size=24)
    return windowed(d, fields)


def gpt_neo(d: Draw) -> Fields:
    heads, periods = d.one_of(2, 4), d.one_of(1, 2)
    fields = {"hidden_size": heads * 8, "num_heads": heads, "num_layers": 3 * periods, "vocab_size": 96}
    fields |= {"attention_types": [[["global", "local", "local"], periods]]}
    return fields | d.maybe(intermediate_size=40, max_position_embeddings=64, tie_word_embeddings=d.flag())


def persimmon(d: Draw) -> Fields:
    return d.transformer(kv=False, head_dim=False) | d.maybe(qk_layernorm=d.flag())


def muse_glimmer(d: Draw) -> Fields:
    return windowed(d, d.transformer())


def vaultgemma(d: Draw) -> Fields:
    return windowed(d, d.transformer() | d.maybe(attention_bias=d.flag()))


def hyperclovax(d: Draw) -> Fields:
    return biased(d) | d.maybe(use_post_norm=d.flag())


def mimo_v2_flash(d: Draw) -> Fields:
    fields = d.transformer() | d.experts("n_routed_experts", "moe_intermediate_size")
    fields["num_key_value_heads"] = d.one_of(
        *[k for k in (1, 2) if fields["num_attention_heads"] % (2 * k) == 0]
    )
    fields |= d.maybe(v_head_dim=d.one_of(8, 24), attention_bias=d.flag(), sliding_window=16)
    return fields | layer_types(d, fields) | mlp_types(d, fields)


def minicpm3(d: Draw) -> Fields:
    fields = dense_latent(d) | d.maybe(mlp_bias=d.flag())
    if d.flag():
        del fields["v_head_dim"]
    return fields


def internlm3(d: Draw) -> Fields:
    bias = d.flag()
    return d.transformer() | d.one_of(
        {}, {"qkv_bias": bias, "bias": bias}, {"attention_bias": bias, "mlp_bias": bias}
    )


def mellum(d: Draw) -> Fields:
    fields = d.transformer() | d.experts("num_experts", "moe_intermediate_size") | d.maybe(sliding_window=16)
    return fields | layer_types(d, fields) | mlp_types(d, fields) | d.maybe(attention_bias=d.flag())


def granitemoeshared(d: Draw) -> Fields:
    return granitemoe(d) | d.maybe(shared_intermediate_size=d.one_of(24, 48))


def mamba(d: Draw, hidden: int) -> Fields:
    """As Bamba and Granite 4 state it."""
    fields = {
        "mamba_n_heads": 2 * hidden // 8,
        "mamba_n_groups": d.one_of(1, 2),
        "mamba_d_state": d.one_of(16, 32),
    }
    fields |= d.maybe(mamba_d_head=d.one_of("auto", 8), mamba_d_conv=d.one_of(2, 3), mamba_chunk_size=32)
    return fields | d.maybe(mamba_conv_bias=d.flag(), mamba_proj_bias=d.flag())


def falcon_h1(d: Draw) -> Fields:
    fields = d.transformer() | d.maybe(attention_bias=d.flag(), mlp_bias=d.flag(), mamba_d_state=32)
    fields |= {"mamba_n_heads": 4, "mamba_n_groups": d.one_of(1, 2), **d.maybe(mamba_rms_norm=d.flag())}
    fields |= {"mamba_d_ssm": d.one_of(16, 48)} if d.flag() else {"mamba_d_ssm": None, "mamba_expand": 2}
    return (
        fields
        | d.maybe(mamba_conv_bias=d.flag())
        | d.one_of({}, {"mamba_proj_bias": True, "projectors_bias": True})
    )


def granitemoehybrid(d: Draw) -> Fields:
    fields = no_head_dim(d) | {"num_local_experts": d.one_of(0, 4), "num_experts_per_tok": 2}
    layers = fields["num_hidden_layers"]
    kinds = [d.one_of("attention", "mamba", "full_attention", "linear_attention") for _ in range(layers)]
    fields |= mamba(d, fields["hidden_size"]) | d.maybe(layer_types=kinds)
    return fields | d.maybe(shared_intermediate_size=24)


def bamba(d: Draw) -> Fields:
    fields = d.transformer(head_dim=False) | mamba(d, 64)
    fields |= {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": d.one_of(1, 2, 4)}
    fields |= d.maybe(attention_bias=d.flag(), mlp_bias=d.flag())
    return fields | d.maybe(attn_layer_indices=d.one_of([], [0], [1, 2]))


def mamba2(d: Draw) -> Fields:
    fields = {"num_heads": d.one_of(8, 16), "head_dim": d.one_of(4, 8), "num_hidden_layers": d.one_of(1, 3)}
    fields |= {"hidden_size": fields["num_heads"] * fields["head_dim"] // 2, "vocab_size": d.one_of(64, 99)}
    fields |= d.maybe(state_size=16, n_groups=d.one_of(1, 2), conv_kernel=d.one_of(2, 4), chunk_size=32)
    return fields | d.maybe(use_bias=d.flag(), use_conv_bias=d.flag(), tie_word_embeddings=d.flag())


def mamba_1(d: Draw) -> Fields:
    fields = {
        "hidden_size": d.one_of(32, 40),
        "num_hidden_layers": d.one_of(1, 3),
        "vocab_size": d.one_of(64, 99),
    }
    fields |= d.maybe(
        state_size=d.one_of(4, 8), conv_kernel=d.one_of(2, 3), time_step_rank=d.one_of("auto", 5)
    )
    return fields | d.maybe(use_bias=d.flag(), use_conv_bias=d.flag(), expand=3, tie_word_embeddings=d.flag())


def jamba(d: Draw) -> Fields:
    fields = d.transformer(head_dim=False) | d.experts("num_experts", None) | {"num_hidden_layers": 8}
    fields |= d.one_of({}, {"attn_layer_period": 4, "attn_layer_offset": 1})
    fields |= d.one_of({}, {"expert_layer_period": 3, "expert_layer_offset": 2}, {"num_experts": 1})
    fields["num_experts_per_tok"] = min(fields["num_experts_per_tok"], fields["num_experts"])
    fields |= d.maybe(
        mamba_d_state=d.one_of(4, 8), mamba_d_conv=d.one_of(2, 3), mamba_dt_rank=d.one_of("auto", 5)
    )
    return fields | d.maybe(mamba_proj_bias=d.flag(), mamba_conv_bias=d.flag())


def nemotron_h(d: Draw) -> Fields:
    fields = {
        "num_attention_heads": 4,
        "num_key_value_heads": d.one_of(1, 2, 4),
        "hidden_size": d.one_of(32, 48),
    }
    fields |= {"vocab_size": d.one_of(64, 99), "n_routed_experts": d.one_of(2, 4)} | d.maybe(head_dim=16)
    fields |= {"mamba_num_heads": d.one_of(8, 16), "mamba_head_dim": d.one_of(4, 8), "intermediate_size": 40}
    fields |= d.maybe(
        ssm_state_size=16, n_groups=d.one_of(1, 2), conv_kernel=2, use_bias=d.flag(), mlp_bias=d.flag()
    )
    fields |= d.maybe(
        use_conv_bias=d.flag(),
        moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=48,
        moe_latent_size=20,
    )
    kinds = [d.one_of(*"M*-E") for _ in range(d.one_of(1, 4, 7))]
    if d.flag():
        return fields | d.maybe(hybrid_override_pattern="".join(kinds))
    names = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    return fields | {"layers_block_type": [names[kind] for kind in kinds]}


def delta_net(d: Draw, interval: bool = True) -> Fields:
    """Fields of gated delta nets, and which layers they are."""
    keys = d.one_of(1, 2, 4)
    fields = d.transformer(head_dim=True)
    fields |= {"linear_num_key_heads": keys, "linear_num_value_heads": keys * d.one_of(1, 2, 3)}
    fields |= {"linear_key_head_dim": d.one_of(8, 16), "linear_value_head_dim": d.one_of(8, 24)}
    fields |= d.maybe(linear_conv_kernel_dim=d.one_of(2, 3), attention_bias=d.flag())
    if interval:
        fields |= d.maybe(full_attention_interval=d.one_of(1, 2, 3))
    layers = fields["num_hidden_layers"]
    return fields | d.maybe(
        layer_types=[d.one_of("full_attention", "linear_attention") for _ in range(layers)]
    )


def lara_mini(d: Draw) -> Fields:
    fields = delta_net(d, interval=False) | d.experts("num_experts", "moe_intermediate_size")
    fields.pop("layer_types", None)
    fields |= d.maybe(shared_expert_intermediate_size=d.one_of(24, 40), sliding_window=16)
    kinds = ("full_attention", "sliding_attention", "linear_attention")
    return fields | d.maybe(layer_types=[d.one_of(*kinds) for _ in range(fields["num_hidden_layers"])])


def qwen3_next(d: Draw) -> Fields:
    fields = qwen3_5_moe(d) | d.maybe(decoder_sparse_step=d.one_of(1, 2))
    return fields | d.maybe(mlp_only_layers=d.one_of([], [0]))


def qwen3_5_moe(d: Draw) -> Fields:
    fields = delta_net(d) | d.experts("num_experts", "moe_intermediate_size")
    return fields | d.maybe(shared_expert_intermediate_size=d.one_of(24, 40))


def olmo_hybrid(d: Draw) -> Fields:
    fields = delta_net(d, interval=False)
    fields.pop("head_dim", None)
    fields |= {"num_hidden_layers": d.one_of(2, 5, 8)}
    fields.pop("layer_types", None)
    for name in ("linear_key_head_dim", "linear_value_head_dim"):
        if d.flag():
            del fields[name]
    if d.flag():
        fields["layer_types"] = ["full_attention", "linear_attention"] * (fields["num_hidden_layers"] // 2)
        fields["num_hidden_layers"] = len(fields["layer_types"])
    return fields


def kimi_linear(d: Draw) -> Fields:
    """In the published files' spelling or in the library's."""
    fields = latent(d) | d.experts("num_experts", "moe_intermediate_size", "num_experts_per_token")
    fields |= d.maybe(first_k_dense_replace=d.one_of(0, 2), num_shared_experts=d.one_of(1, 2))
    layers = fields["num_hidden_layers"]
    if d.flag():
        fields |= {"linear_num_heads": d.one_of(2, 3), "linear_head_dim": d.one_of(8, 24)}
        kinds = [d.one_of("full_attention", "linear_attention") for _ in range(layers)]
        return fields | d.maybe(layer_types=kinds, mlp_layer_types=["sparse"] * layers)
    attends = [i + 1 for i in range(layers) if d.flag()]
    nets = [i + 1 for i in range(layers) if i + 1 not in attends]
    linear = {
        "num_heads": d.one_of(2, 3),
        "head_dim": d.one_of(8, 24),
        "short_conv_kernel_size": d.one_of(2, 4),
    }
    return fields | {"linear_attn_config": linear | {"full_attn_layers": attends, "kda_layers": nets}}


def bailing_hybrid(d: Draw) -> Fields:
    fields = latent(d) | d.experts("num_experts", "moe_intermediate_size") | {"n_group": 1, "topk_group": 1}
    fields |= d.maybe(head_dim=d.one_of(8, 24), layer_group_size=d.one_of(2, 3), short_conv_kernel_size=3)
    kinds = [d.one_of("full_attention", "linear_attention") for _ in range(fields["num_hidden_layers"])]
    if OLDER:  # whose class has none
        fields.pop("q_lora_rank")
    return fields | d.maybe(layer_types=kinds)


def minimax(d: Draw) -> Fields:
    fields = d.transformer() | d.experts("num_local_experts", None) | d.maybe(block_size=d.one_of(8, 16))
    kinds = [d.one_of("full_attention", "linear_attention") for _ in range(fields["num_hidden_layers"])]
    return fields | d.maybe(layer_types=kinds)


def lfm2(d: Draw) -> Fields:
    fields = d.transformer(head_dim=False) | d.maybe(conv_bias=d.flag(), conv_L_cache=d.one_of(2, 4))
    fields |= d.maybe(block_auto_adjust_ff_dim=d.flag(), block_multiple_of=8, block_ffn_dim_multiplier=1.3)
    fields |= d.maybe(block_ff_dim=72, tie_embedding=d.flag())
    layers = range(fields["num_hidden_layers"])
    if d.flag():
        return fields | d.maybe(full_attn_idxs=[i for i in layers if d.flag()])
    return fields | {"layer_types": [d.one_of("full_attention", "conv") for _ in layers]}


def lfm2_moe(d: Draw) -> Fields:
    fields = d.transformer(head_dim=False) | d.experts("num_experts", "moe_intermediate_size")
    fields |= d.maybe(conv_bias=d.flag(), num_dense_layers=d.one_of(0, 3), tie_embedding=d.flag())
    return fields | {
        "layer_types": [d.one_of("full_attention", "conv") for _ in range(fields["num_hidden_layers"])]
    }


def lfm3(d: Draw) -> Fields:
    fields = d.transformer() | d.maybe(
        use_sandwich_norm=d.flag(), use_attention_gate=d.flag(), sliding_window=16
    )
    fields |= d.maybe(attention_bias=d.flag(), conv_bias=d.flag())
    kinds = ("full_attention", "sliding_attention", "conv")
    return fields | d.maybe(layer_types=[d.one_of(*kinds) for _ in range(fields["num_hidden_layers"])])


def longcat_flash(d: Draw) -> Fields:
    fields = latent(d) | d.experts("n_routed_experts", "expert_ffn_hidden_size", "moe_topk")
    layers, width = fields.pop("num_hidden_layers"), fields.pop("intermediate_size")
    fields |= {"q_lora_rank": 12}
    fields.pop("moe_intermediate_size")
    fields |= {"ffn_hidden_size": width, **d.maybe(zero_expert_num=d.one_of(0, 3))}
    fields["zero_expert_num"] = fields.get("zero_expert_num", 2)
    return fields | d.one_of({"num_layers": layers}, {"num_hidden_layers": 2 * layers})


def afmoe(d: Draw) -> Fields:
    fields = d.transformer() | d.experts("num_experts", "moe_intermediate_size")
    fields |= d.maybe(num_shared_experts=d.one_of(1, 2), num_dense_layers=d.one_of(0, 2), sliding_window=16)
    fields |= d.maybe(global_attn_every_n_layers=d.one_of(2, 3))
    return fields | layer_types(d, fields)


def aria(d: Draw) -> Fields:
    fields = no_head_dim(d) | d.experts("moe_num_experts", None, "moe_topk")
    return fields | d.maybe(moe_num_shared_experts=d.one_of(1, 2, 3))


FAMILIES: dict[str, Callable[[Draw], Fields]] = {
    "afmoe": afmoe,
    "apertus": no_head_dim,
    "apertus1p5_text": apertus1p5,
    "arcee": biased,
    "aria_text": aria,
    "axk1": axk1,
    "bailing_hybrid": bailing_hybrid,
    "bamba": bamba,
    "beam": beam,
    "biogpt": biogpt,
    "bloom": bloom,
    "codegen": gptj,
    "cohere": cohere,
    "cohere2": cohere2,
    "cohere2_moe": cohere2_moe,
    "cohere_compass_text": cohere_compass,
    "ctrl": ctrl,
    "cwm": sliding,
    "dbrx": dbrx,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "deepseek_v4": deepseek_v4,
    "dots1": dots1,
    "ernie4_5": ernie,
    "ernie4_5_moe": ernie_moe,
    "dots3_note_text": dots3,
    "exaone": exaone,
    "exaone4": exaone4,
    "exaone_moe": exaone_moe,
    "falcon": falcon,
    "falcon_h1": falcon_h1,
    "falcon_mamba": mamba_1,
    "flex_olmo": flex_olmo,
    "flint": flint,
    "gemma": headed,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gemma3n_text": gemma3n,
    "gemma4_text": gemma4,
    "gemma4_unified_text": gemma4_unified,
    "glm": headed,
    "glm4": headed,
    "glm4_moe": glm4_moe,
    "glm4_moe_lite": glm4_moe_lite,
    "glm_moe_dsa": glm_moe_dsa,
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "gpt_neox_japanese": gpt_neox_japanese,
    "gpt_oss": gpt_oss,
    "gptj": gptj,
    "granite": no_head_dim,
    "granite_swa": granite_swa,
    "granitemoe": granitemoe,
    "granitemoe_swa": granitemoe_swa,
    "granitemoehybrid": granitemoehybrid,
    "granitemoeshared": granitemoeshared,
    "helium": helium,
    "hunyuan_v1_dense": headed,
    "hunyuan_v1_moe": hunyuan_moe,
    "hy_v3": hy_v3,
    "hy_v4": hy_v4,
    "hy_v4_vl_text": hy_v4_vl,
    "hyperclovax": hyperclovax,
    "internlm3": internlm3,
    "iquestcoder": biased,
    "jais2": biased,
    "jamba": jamba,
    "kimi_linear": kimi_linear,
    "kolibri1": kolibri1,
    "laguna": laguna,
    "lara_mini": lara_mini,
    "lfm2": lfm2,
    "lfm2_moe": lfm2_moe,
    "lfm3": lfm3,
    "llama": llama,
    "longcat_flash": longcat_flash,
    "llama4_text": llama4,
    "mamba": mamba_1,
    "mamba2": mamba2,
    "mellum": mellum,
    "mimo_v2_flash": mimo_v2_flash,
    "minicpm3": minicpm3,
    "minimax": minimax,
    "minimax_m2": minimax_m2,
    "minimax_m3_vl_text": minimax_m3,
    "ministral": ministral,
    "ministral3": ministral3,
    "mistral": mistral,
    "mistral4": latent,
    "mistral_large4_text": mistral_large4,
    "mixtral": mixtral,
    "mpt": mpt,
    "muse_glimmer_text": muse_glimmer,
    "nanochat": no_head_dim,
    "nemotron": nemotron,
    "nemotron_h": nemotron_h,
    "olmo": no_head_dim,
    "olmo2": olmo2,
    "olmo3": sliding,
    "olmo_hybrid": olmo_hybrid,
    "olmoe": olmoe,
    "openai-gpt": openai_gpt,
    "opt": opt,
    "persimmon": persimmon,
    "phi": phi,
    "phi3": phi3,
    "phimoe": phimoe,
    "qwen2": qwen2,
    "qwen2_moe": qwen2_moe,
    "qwen3": qwen3,
    "qwen3_5_moe_text": qwen3_5_moe,
    "qwen3_5_text": delta_net,
    "qwen3_moe": qwen3_moe,
    "qwen3_next": qwen3_next,
    "sarvam_mla": sarvam_mla,
    "sarvam_moe": sarvam_moe,
    "seed_oss": seed_oss,
    "smollm3": smollm3,
    "solar_open": shared,
    "stablelm": stablelm,
    "starcoder2": starcoder2,
    "step3p5": step3p5,
    "vaultgemma": vaultgemma,
    "xglm": xglm,
    "youtu": dense_latent,
}
# read like another family, and not part of the library
READ_ALIKE = {
    *("Yi", "baichuan", "chatglm", "hunyuan", "internlm", "minicpm", "qwen", "xverse"),
    "bailing_moe",
    "bailing_moe_v2",
    "gpt-sw3",
    "deepseek",
    "internlm2",
    "nemotron-nas",
    "k2_horizon",
    "kimi_k2",
    "kimi_k3",
    "mimo",
    "mimo_v2",
    "minimax_m1",
    "minimax_m3",
    "minimax_text_01",
}

NEW_IN_5_24 = {name for name in families() if family(name).since} | {"hy_v4_vl_text"}

# in the library only with a vision tower
BESIDE_VISION = {
    "hy_v4_vl_text": "HYV4VL",
    "mistral_large4_text": "MistralLarge4",
    "muse_glimmer_text": "MuseGlimmer",
    "step3p5": "Step3p7",
}

_OUTSIDE = (
    (r"hc_head|altup_unembed", "residual_streams"),
    (r"lm_head|embed_out|project_out|output_projection", "head"),
    (r"embed_positions|positions_embed|wpe|rotary_emb\.alpha", "position"),
    (r"norm|ln_f", "final_norm"),
    (r"embed|wte|project_in|per_layer_model|altup_projections|transformer\.w\.", "embedding"),
)
_INSIDE = (
    (r"\.(mixer|mamba)\.(in_proj|conv1d|dt_|A_log|D$|norm|out_proj|x_proj|[bc]_layernorm)", "state_space"),
    (r"\.linear_attn\.", "delta_net"),
    (r"\.(attn|ffn)_hc\.|\.(altup|laurel)\.", "residual_streams"),
    (r"\.indexer\.", "indexer"),
    (r"\.\d+\.conv\.", "short_convolution"),
    (r"(norm|ln)[_0-9a-z]*(\.\d)?\.(weight|bias)$", "norms"),
    (r"\.per_layer_", "layer_inputs"),
    (r"shared_expert|shared_mlp|\.mlps\.0\.", "shared_experts"),
    (r"\.experts\.|latent_proj", "experts"),
    (r"\.gate\.(wg\.)?(weight|bias)|\.router\.", "router"),
    (r"attn\.|attention\.|self_attn\.sinks|mixer\.[qkvo]_proj", "attention"),
    (r"", "mlp"),
)


def kind_of(parameter: str, layer_types: list[str]) -> str:
    """planner's kind of a parameter of the library, from its name and, if mixers share one, its layer's type."""
    inside = re.search(r"\.(layers|h|blocks)\.(\d+)\.", parameter)
    if inside and ".self_attn." in parameter and layer_types[int(inside[2]) :][:1] == ["linear_attention"]:
        return (
            "lightning_attention"
            if re.search(r"qkv_proj|out_proj|output_gate|attn\.norm", parameter)
            else "delta_net"
        )
    rules = _INSIDE if inside else _OUTSIDE
    return next(kind for pattern, kind in rules if re.search(pattern, parameter))


def library_counts(config: Any) -> Counter[str]:
    import torch
    import transformers

    # by its name, since not every family is registered as a causal language model
    kind = getattr(transformers, type(config).__name__.removesuffix("Config") + "ForCausalLM", None)
    if config.model_type in BESIDE_VISION:
        around = {
            "vision_config": {"num_hidden_layers": 1},
            "tie_word_embeddings": config.tie_word_embeddings,
        }
        whole = BESIDE_VISION[config.model_type]
        config = getattr(transformers, f"{whole}Config")(text_config=config.to_dict(), **around)
        kind = getattr(transformers, f"{whole}ForConditionalGeneration")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config) if kind is None else kind(config)
    model.tie_weights()
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not re.search(r"vision|projector", name):
            counts[kind_of(name, getattr(config, "layer_types", None) or [])] += parameter.numel()
    counts += untrained_factors(model)
    if config.model_type in ("falcon_mamba", "jamba", "mamba"):
        counts["selective_scan"] = counts.pop("state_space")
    if "experts" not in counts and "shared_experts" in counts:  # Granite 4 calls its only MLP so
        counts["mlp"] = counts.pop("shared_experts")
    if (
        config.model_type == "longcat_flash"
    ):  # whose experts that compute nothing have unused input projections there
        unused = config.zero_expert_num * 2 * config.expert_ffn_hidden_size * config.hidden_size
        counts["experts"] -= unused * config.num_layers
    if getattr(config, "enable_moe_block", False):  # Gemma 4 the shared expert an MLP
        counts["shared_experts"] = counts.pop("mlp")
    return counts


def untrained_factors(model: Any) -> Counter[str]:
    """Factors of Mistral Large 4's frequencies, which are a buffer before 5.24 and trained from then on."""
    buffers = (b.numel() for name, b in model.named_buffers() if name.endswith("rotary_emb.alpha"))
    return Counter(position=sum(buffers)) if OLDER else Counter()


def windows_of(config: Any, layers: int) -> list[bool]:
    types = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if types is not None:
        whole = ("full_attention", "global", "indexed_attention", "hybrid", "minimax_m3_sparse")
        return [kind not in whole for kind in types]
    return [bool(getattr(config, "sliding_window", None))] * layers


def test_every_reader_is_compared() -> None:
    assert set(FAMILIES) | READ_ALIKE == {*families()}


NEEDS_LIBRARY = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None and not os.environ.get("CI"),
    reason="the transformers library is not installed, and this is not CI",
)


@pytest.mark.slow
@NEEDS_LIBRARY
def test_programs_know_which_families_the_library_builds() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    absent = {name for name in families() if not family(name).in_library or (OLDER and family(name).since)}
    assert {*families()} - {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} == absent


@pytest.mark.slow
@NEEDS_LIBRARY
def test_every_family_of_the_library_is_read_or_refused_with_a_reason() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    unread = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {*families(), *wrappers()}
    assert unread == {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} & {*refused()}
    for model_type in unread:
        with pytest.raises(UnsupportedError, match=r"not modelled|not read"):
            read_hf_config({"model_type": model_type}, "config.json", "m")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@NEEDS_LIBRARY
@pytest.mark.parametrize("family", FAMILIES)
def test_counts_equal_the_library(family: str) -> None:
    from transformers import AutoConfig

    if OLDER and family in NEW_IN_5_24:
        pytest.skip("transformers 5.24 is the first release that has the family")
    for seed in range(CONFIGS_PER_FAMILY):
        fields = FAMILIES[family](Draw(seed))
        config = AutoConfig.for_model(family, **fields, pad_token_id=0)
        spec = read_hf_config({"model_type": family, **fields}, "config.json", family)
        expected = library_counts(config)
        ours = Counter({kind: n for kind, n in model_parameters(spec).by_kind.items() if n})
        assert ours == expected, fields
        saved = json.loads(config.to_json_string(use_diff=False))  # what save_pretrained writes says the same
        again = read_hf_config({**saved, "model_type": family}, "config.json", family)
        assert model_parameters(again).total == sum(expected.values()), saved
        slides = windows_of(config, spec.num_layers)
        mixers = [kind == "linear_attention" for kind in getattr(config, "layer_types", None) or []]
        if spec.delta_nets:
            assert [layer.state_space is not None for layer in spec.layers] == mixers, fields
        attentions = [(layer.attention, slide) for layer, slide in zip(spec.layers, slides, strict=True)]
        assert all((a.window is not None) == slide for a, slide in attentions if a is not None), fields


# what the library cannot run small, or not alone; experts of which it computes more than are chosen
UNRUN = {"dbrx", "falcon", "longcat_flash", "mistral4", *BESIDE_VISION} | {"llama4_text", "phimoe"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@NEEDS_LIBRARY
@pytest.mark.parametrize("family", sorted({*FAMILIES} - UNRUN))
def test_forward_flops_equal_the_library(family: str) -> None:
    """To the last one. Left out: scans, whose kernels the library replaces by loops; indexers, which score a square."""
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    if OLDER and family in NEW_IN_5_24:
        pytest.skip("transformers 5.24 is the first release that has the family")
    batch, seq = 2, 24
    for seed in range(2):
        fields = FAMILIES[family](Draw(seed))
        spec = read_hf_config({"model_type": family, **fields}, "config.json", family)
        planned = model_flops(spec, batch, seq)
        if planned.forward_scan or planned.forward_indexer:
            continue
        config = transformers.AutoConfig.for_model(family, **fields, pad_token_id=0)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        if spec.is_moe:
            model.set_experts_implementation("eager")
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.randint(1, 20, (batch, seq)), use_cache=False)
        assert planned.forward_linear + planned.forward_attention == counter.get_total_flops(), fields


# wrappers that need a library of vision models, or cannot be built from so few dimensions
# their text model stands beside the rest of the fields
FLAT_WRAPPERS = {"phi4_multimodal"}
UNBUILT_WRAPPERS = {
    "audioflamingo3",
    "dots3_note",
    "fast_vlm",
    "gemma3n",
    "musicflamingo",
    "perception_lm",
    "qwen2_5_omni",
    "qwen3_omni_moe",
}
TOWER = {
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_experts": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320, "n_routed_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "kv_lora_rank": 16,
    "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
# what the library needs around the text model to build it
AROUND: dict[str, Fields] = {
    "apertus1p5": {
        "vision_config": {"codebook_size": 16}, "audio_config": {"codebook_size": 16},
        "image_token_offset": 8, "audio_token_offset": 24,
    },
    "aya_vision": {"vision_config": {"num_attention_heads": 16}},
    "granite4_vision": {"deepstack_layer_map": [], "downsample_rate": "1/2"},
    "granite_docling": {"vision_config": {"out_hidden_size": 64}},
    "ovis2": {"hidden_size": 64, "vocab_size": 320},
}  # fmt: skip
# what it needs in it
WITHIN: dict[str, Fields] = {
    "cohere_compass": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "exaone4_5": {"model_type": "exaone4"},
    "hy_v4_vl": {"qk_rope_head_dim": 64},
}


def in_library(wrapper: str) -> bool:
    if importlib.util.find_spec("transformers") is None:
        return True
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return wrapper in CONFIG_MAPPING_NAMES


def wrapped_count(wrapper: str, inside: Fields, outside: Fields) -> int:
    """Parameters of a wrapper's text model as the library builds it."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto as known

    config = transformers.AutoConfig.for_model(
        wrapper, text_config=dict(inside), **outside, **AROUND.get(wrapper, {})
    )
    maps = (
        known.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        known.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    )
    name = next(names[wrapper] for names in maps if wrapper in names)
    with torch.device("meta"):
        model = getattr(transformers, name if isinstance(name, str) else name[0])._from_config(config)
    model.tie_weights()
    text = re.compile(r"language_model|text_model|lm_head")
    trained = sum(p.numel() for n, p in model.named_parameters() if p.requires_grad and text.search(n))
    return trained + untrained_factors(model).total()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@NEEDS_LIBRARY
@pytest.mark.parametrize(
    "wrapper", [w for w in wrappers() if w not in UNBUILT_WRAPPERS | FLAT_WRAPPERS and in_library(w)]
)
def test_wrappers_equal_the_library(wrapper: str) -> None:
    """Where the wrapper states whether it ties, alone or against the text model."""
    text = TOWER | WITHIN.get(wrapper, {})
    for inner in ({}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}):
        for tied in (True, False):
            inside, outside = text | inner, {"tie_word_embeddings": tied}
            spec = read_hf_config(
                {"model_type": wrapper, "text_config": inside, **outside}, "config.json", "m"
            )
            expected = wrapped_count(wrapper, inside, outside)
            assert model_parameters(spec).total == expected, (inner, tied)
