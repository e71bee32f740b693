"""Which of torchtitan's models has the dimensions of a model? Its own configuration, made by its own builders.

Left out: how weights are drawn, which no dry run sees; rotary bases. Needs torchtitan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm

from planner.dryrun.torchtitan.recipe import family_of
from planner.spec.attention import Attention
from planner.spec.layer import Moe
from planner.spec.model import ModelSpec

_ATTENTION = "flex"
_DISPATCH = "standard"


def torchtitan_model(model: ModelSpec, seq_len: int) -> Any:
    """torchtitan's own `ModelSpec` of a model that is run on sequences of that length."""
    build = {"llama3": _llama3, "qwen3": _qwen3, "deepseek_v3": _deepseek}[family_of(model) or ""]
    return build(model, seq_len)


def _attention(model: ModelSpec) -> Attention:
    attention = model.layers[0].attention
    assert attention is not None, "checked"
    return attention


def _ends(model: ModelSpec) -> dict[str, Any]:
    """What every model has beside its layers."""
    width = model.hidden
    return {
        "dim": width,
        "vocab_size": model.vocab,
        "tok_embeddings": Embedding.Config(num_embeddings=model.vocab, embedding_dim=width),
        "norm": RMSNorm.Config(normalized_shape=width),
        "lm_head": Linear.Config(in_features=width, out_features=model.vocab),
    }


def _llama3(model: ModelSpec, seq_len: int) -> Any:
    from torchtitan.models import llama3

    attention, mlp = _attention(model), model.layers[0].mlp
    assert mlp is not None, "checked"
    layers = llama3._build_llama3_layers(
        n_layers=model.num_layers,
        dim=model.hidden,
        n_heads=attention.heads,
        n_kv_heads=attention.kv_heads,
        hidden_dim=mlp.ffn,
        rope=ComplexRoPE.Config(dim=attention.head_dim, max_seq_len=seq_len),
        attn_backend=_ATTENTION,
    )
    config = llama3.Llama3Model.Config(
        **_ends(model), layers=layers, enable_weight_tying=model.tied_embeddings
    )
    return replace(llama3.model_registry("debugmodel"), flavor=model.name, model=config)


def _qwen3(model: ModelSpec, seq_len: int) -> Any:
    from torchtitan.models import qwen3

    attention = _attention(model)
    said: dict[str, Any] = {
        "dim": model.hidden,
        "n_heads": attention.heads,
        "n_kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "attn_backend": _ATTENTION,
        "rope": CosSinRoPE.Config(dim=attention.head_dim, max_seq_len=seq_len),
    }
    layers = []
    for layer in model.layers:
        if layer.moe is None:
            assert layer.mlp is not None, "checked"
            layers += qwen3._build_qwen3_layers(n_layers=1, hidden_dim=layer.mlp.ffn, **said)
        else:
            layers += qwen3._build_qwen3_moe_layers(
                n_layers=1,
                moe_hidden_dim=layer.moe.expert_ffn,
                num_experts=layer.moe.experts,
                top_k=layer.moe.top_k,
                moe_comm_backend=_DISPATCH,
                **said,
            )
    config = qwen3.Qwen3Model.Config(**_ends(model), layers=layers, enable_weight_tying=model.tied_embeddings)
    return replace(qwen3.model_registry("debugmodel"), flavor=model.name, model=config)


def _deepseek(model: ModelSpec, seq_len: int) -> Any:
    from torchtitan.models import deepseek_v3

    attention = _attention(model)
    dense = [layer.mlp for layer in model.layers if layer.mlp is not None]
    mixed = [layer.moe for layer in model.layers if layer.moe is not None]
    layers = deepseek_v3._build_dsv3_layers(
        n_layers=model.num_layers,
        n_dense_layers=len(dense),
        dim=model.hidden,
        n_heads=attention.heads,
        q_lora_rank=attention.q_lora_rank,
        kv_lora_rank=attention.kv_lora_rank,
        qk_nope_head_dim=attention.head_dim - attention.qk_rope_dim,
        qk_rope_head_dim=attention.qk_rope_dim,
        v_head_dim=attention.v_head_dim,
        mscale=1.0,
        dense_hidden_dim=dense[0].ffn if dense else 0,
        **_experts(mixed[0] if mixed else None),
        attn_backend=_ATTENTION,
        moe_comm_backend=_DISPATCH,
        non_blocking_capacity_factor=None,
        rope=ComplexRoPE.Config(dim=attention.qk_rope_dim, max_seq_len=seq_len),
    )
    config = deepseek_v3.DeepSeekV3Model.Config(**_ends(model), layers=layers, mtp_layers=[])
    return replace(deepseek_v3.model_registry("debugmodel"), flavor=model.name, model=config)


def _experts(moe: Moe | None) -> dict[str, Any]:
    """As torchtitan's DeepSeek-V3 has them where they are chosen in groups, its DeepSeek-V2 where not."""
    if moe is None:
        return {
            "moe_hidden_dim": 0, "num_experts": 1, "num_shared_experts": 0, "router_top_k": 1,
            "router_score_func": "softmax",
        }  # fmt: skip
    grouped = bool(moe.groups)
    return {
        "moe_hidden_dim": moe.expert_ffn,
        "num_experts": moe.experts,
        "num_shared_experts": moe.shared_ffn // moe.expert_ffn,
        "router_top_k": moe.top_k,
        "router_score_func": "sigmoid" if grouped else "softmax",
        "router_num_expert_groups": moe.groups or None,
        "router_num_limited_groups": moe.top_groups or None,
        "router_route_norm": grouped,
        "router_route_scale": 2.5 if grouped else 1.0,
    }
