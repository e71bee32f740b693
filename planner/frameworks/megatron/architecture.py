"""How is an architecture written in Megatron-LM's arguments, and which architectures can be?

Source: Megatron-LM megatron/training/arguments.py and core/transformer/transformer_config.py, main of 2026-08.
An architecture that these arguments cannot state is refused by the field that stands in the way. Left out:
everything that training changes (learning rate, data).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from planner.errors import UnsupportedError
from planner.frameworks.details import Details
from planner.frameworks.megatron.delta import check_delta_nets, delta_options
from planner.frameworks.megatron.given import Option
from planner.frameworks.megatron.heterogeneous import (
    check_heterogeneous,
    heterogeneous_options,
    is_heterogeneous,
)
from planner.frameworks.megatron.hybrid import check_hybrid, check_hybrid_release, hybrid_options
from planner.frameworks.megatron.sparse import UNFUSED_ROTATION, check_sparse, check_sparse_release
from planner.frameworks.options import option_table
from planner.frameworks.refuse import unstated
from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.hf.families import facts_of
from planner.spec.layer import Activation, Moe, NormKind
from planner.spec.model import ModelSpec

DEFAULT_ROPE, DEFAULT_EPS = 10000, 1e-5
# Releases whose --qk-layernorm, which the norm of latent keys and values needs, also puts a second norm before queries
# that no latent dimension compresses (core/transformer/mla_qk_norm_config.py _resolve_mla_qk_layernorm, from 0.19 on).
# No option parts the two; Megatron-Bridge issue 5261 and pull request 5262 leave it out in a class of their own.
NORMS_FULL_QUERIES: Final = frozenset({"main-2026-08"})
# Families whose norms keep the learned scale as its distance from 1.
_M3: Final = ("minimax_m3", "minimax_m3_vl_text")
CENTRED: Final = frozenset({"nemotron", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", *_M3})
# gpt-oss: gate clamped at 7 and the linear half shifted by 1 (openai/gpt-oss, gpt_oss/torch/model.py); MiniMax-M3 alike
# (Megatron-Bridge 970f50b models/minimax_m3/minimax_m3_bridge.py).
_GPT_OSS: Final[tuple[Option, ...]] = (
    ("--quick-geglu",),
    ("--glu-linear-offset", "1.0"),
    ("--activation-func-clamp-value", "7.0"),
)
_refuse: Final = partial(
    unstated, "Megatron-LM's arguments", "choose another framework or a model it can state"
)


def model_options(
    model: ModelSpec, details: Details, seq_len: int, pad_vocabulary: int, version: str
) -> list[Option]:
    """The architecture as options of a release. Raises `UnsupportedError`."""
    _check(model)
    if model.position_rows and seq_len > model.position_rows:
        raise _refuse(f"sequences longer than the {model.position_rows} learned positions", seq_len)
    attention = next(iter(model.attentions), None)
    dense = next((layer.mlp for layer in model.layer_kinds if layer.mlp), None)
    moe = next((layer.moe for layer in model.layer_kinds if layer.moe), None)
    width = dense.ffn if dense is not None else (moe.expert_ffn if moe is not None else 4 * model.hidden)
    hybrid = bool(model.mambas)  # its pattern says how many layers there are
    options: list[Option] = [
        *(hybrid_options(model) if hybrid else [("--num-layers", str(model.num_layers))]),
        ("--hidden-size", str(model.hidden)),
        ("--ffn-hidden-size", str(width)),
        *([] if attention is None else [("--num-attention-heads", str(attention.heads))]),
        ("--seq-length", str(seq_len)),
        ("--max-position-embeddings", str(max(model.position_rows or model.max_position, seq_len))),
        *([("--position-embedding-type", "none")] if hybrid else _positions(model, details, version)),
        *_attention(attention, details),
        *(delta_options(model, _pattern) if model.delta_nets else []),
        *_norm(model, details),
        *_activation(model),
        *_biases(model),
        *_windows(model),
        *(heterogeneous_options(details) if is_heterogeneous(model) else []),
    ]
    if not model.tied_embeddings:
        options.append(("--untie-embeddings-and-output-weights",))
    if attention is not None and attention.qk_norm is QkNorm.HEAD:
        options.append(("--qk-layernorm",))
    if attention is not None and attention.sinks:
        options.append(("--softmax-type", "learnable"))
    if moe is not None:
        options += _moe(model, moe, details)
    if model.mtp_layers and not hybrid:
        options.append(("--mtp-num-layers", str(model.mtp_layers)))
    options += [
        ("--vocab-size", str(model.vocab)),
        ("--make-vocab-size-divisible-by", str(pad_vocabulary)),
    ]
    return options


def has_full_queries(model: ModelSpec) -> bool:
    """Latent attention whose queries come from the hidden state at once, as in DeepSeek-V2-Lite and Moonlight?"""
    return any(a.kind is AttentionKind.MLA and not a.q_lora_rank for a in model.attentions)


def normed_queries(model: ModelSpec) -> list[str]:
    """What a release of `NORMS_FULL_QUERIES` builds that the model does not have, in words."""
    if not has_full_queries(model):
        return []
    more = f"{model.hidden:,} parameters more a layer"
    return [f"queries without a norm: Megatron-LM from 0.19 on puts one before those of full rank, {more}"]


def check_release(model: ModelSpec, version: str) -> None:
    """Raise `UnsupportedError` for a model that a release builds otherwise than it is."""
    check_hybrid_release(model, version)
    check_sparse_release(model, version)
    if version in NORMS_FULL_QUERIES and has_full_queries(model):
        must = (
            f"Megatron-LM {version} must build latent attention without q_lora_rank as {model.name} has it, but its "
            "--qk-layernorm adds a norm to the queries"
        )
        raise UnsupportedError(must, "no option that leaves it out", "choose --framework-version 0.18.2")


def _check(model: ModelSpec) -> None:
    differ = is_heterogeneous(model)
    if (traits := facts_of(model.family).traits) and not differ:
        raise _refuse(f"what {model.family} computes", traits)
    if model.embedding_width != model.hidden or model.embedding_norm or model.head_bias:
        raise _refuse("an embedding projection, an embedding norm or a head bias", model.name)
    if not (model.norm_weight and model.final_norm):
        raise _refuse("norms without weights, or no final norm", model.name)
    if model.delta_nets:
        check_delta_nets(model)
    elif model.mambas:
        check_hybrid(model)
    if model.indexers:
        check_sparse(model)
    if differ:
        check_heterogeneous(model)
    for layer in model.layer_kinds:
        if layer.parallel:
            raise _refuse("attention and MLP in parallel", model.name)
        if layer.norms != 2 and not (model.mambas or differ):
            raise _refuse("another number of norms a layer than 2", layer.norms)
        if layer.sublayers != 2 and not (model.mambas or differ):
            raise _refuse("layers of attention or an MLP alone without state spaces", model.name)
        if model.norm_kind is NormKind.LAYER and not layer.norm_bias:
            raise _refuse("layer norms without a bias", model.name)
    for attention in model.attentions:
        if attention.chunked:
            raise _refuse("chunked attention", model.name)
        if attention.qk_norm is QkNorm.FULL or attention.qk_norm_bias:
            raise _refuse("a norm over all query heads, or one with a bias", attention.qk_norm)
        if _differs(attention, model.attentions[0]):
            raise _refuse("attention that differs between layers by more than its window", model.name)
    moes = {layer.moe for layer in model.layer_kinds if layer.moe}
    mlps = {layer.mlp for layer in model.layer_kinds if layer.mlp}
    if len(moes) > 1 or (len(mlps) > 1 and not differ):
        raise _refuse("layers of different widths", model.name)


def _differs(one: Attention, other: Attention) -> bool:
    """Do two attentions differ in anything but their window and their indexer?"""
    return replace(one, window=None, indexer=None) != replace(other, window=None, indexer=None)


def states_yarn(model: ModelSpec, details: Details, version: str) -> bool:
    """Do options of this release state the model's YaRN outside latent attention, field by field?

    main of 2026-08: training/argument_utils.py _apply_yarn_config_from_args; not with multi-token prediction
    (training/arguments.py). No option takes an attention factor other than the one that follows from the rest.
    """
    scaling = details.rope_scaling or {}
    return (
        details.rope_kind == "yarn"
        and bool(scaling.get("factor") and scaling.get("original_max_position_embeddings"))
        and not scaling.get("attention_factor")
        and not model.has_latent_attention
        and not model.mtp_layers
        and "--yarn-original-max-position-embeddings" in option_table("megatron", version)
    )


def _yarn(scaling: Mapping[str, Any]) -> list[Option]:
    """YaRN as options; what the configuration leaves out is as in transformers, modeling_rope_utils.py."""
    options: list[Option] = [
        ("--rotary-scaling-factor", str(float(scaling["factor"]))),
        ("--yarn-original-max-position-embeddings", str(int(scaling["original_max_position_embeddings"]))),
        ("--yarn-beta-fast", str(float(scaling.get("beta_fast") or 32))),
        ("--yarn-beta-slow", str(float(scaling.get("beta_slow") or 1))),
        (f"--{'' if scaling.get('truncate', True) else 'no-'}yarn-correction-range-round-to-int",),
    ]
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        options += [
            ("--mscale", str(float(scaling["mscale"]))),
            ("--mscale-all-dim", str(float(scaling["mscale_all_dim"]))),
        ]
    return options


def _positions(model: ModelSpec, details: Details, version: str) -> list[Option]:
    if model.position_rows:
        return [("--position-embedding-type", "learned_absolute")]
    base, yarn = details.rope_theta or DEFAULT_ROPE, states_yarn(model, details, version)
    options: list[Option] = [
        ("--position-embedding-type", "yarn" if yarn else "rope"),
        ("--rotary-base", str(int(base))),
    ]
    if yarn:
        options += _yarn(details.rope_scaling or {})
    if details.rotary_fraction != 1.0:
        options.append(("--rotary-percent", str(details.rotary_fraction)))
    factor = (details.rope_scaling or {}).get("factor")
    if details.rope_kind == "llama3" and factor:
        options += [("--use-rope-scaling",), ("--rope-scaling-factor", str(float(factor)))]
    return options


def written_rotations(model: ModelSpec, details: Details, version: str) -> dict[str, dict[str, float]]:
    """Kinds of rope_scaling that options of a release state, and what Megatron-LM takes for the rest of their fields.

    core/models/common/embeddings/rotary_pos_embedding.py _apply_scaling, core/transformer/transformer_config.py
    MLATransformerConfig.
    """
    if model.has_latent_attention:
        return {"yarn": {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}}
    known: dict[str, dict[str, float]] = {
        "llama3": {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
    }
    return known | {"yarn": {}} if states_yarn(model, details, version) else known


def _attention(attention: Attention | None, details: Details) -> list[Option]:
    if attention is None:
        return []
    return _latent(attention, details) if attention.kind is AttentionKind.MLA else _grouped(attention)


def _grouped(attention: Attention) -> list[Option]:
    if attention.head_dim != attention.v_head_dim:
        raise _refuse("value heads of another width without latent attention", attention.v_head_dim)
    options: list[Option] = [("--kv-channels", str(attention.head_dim))]
    if attention.kv_heads != attention.heads:
        options += [("--group-query-attention",), ("--num-query-groups", str(attention.kv_heads))]
    if attention.output_gate:
        options.append(("--attention-output-gate",))
    return options


def rotates_unfused(attention: Attention, details: Details) -> bool:
    """Is it latent attention whose rotation no kernel fuses? Fusion works with YaRN alone, not beside sparse attention
    (core/transformer/transformer_config.py)."""
    yarn = details.rope_kind == "yarn"
    return attention.kind is AttentionKind.MLA and (not yarn or attention.indexer is not None)


def _latent(attention: Attention, details: Details) -> list[Option]:
    scaling, yarn = details.rope_scaling or {}, details.rope_kind == "yarn"
    options: list[Option] = [
        ("--multi-latent-attention",),
        ("--kv-lora-rank", str(attention.kv_lora_rank)),
        ("--qk-head-dim", str(attention.qk_nope_dim)),
        ("--qk-pos-emb-head-dim", str(attention.qk_rope_dim)),
        ("--v-head-dim", str(attention.v_head_dim)),
        ("--qk-layernorm",),
        ("--rope-type", "yarn" if yarn else "rope"),
    ]
    if attention.q_lora_rank:
        options.insert(1, ("--q-lora-rank", str(attention.q_lora_rank)))
    if rotates_unfused(attention, details) and attention.indexer is None:  # which says so itself
        options.append((UNFUSED_ROTATION,))
    if yarn:
        options += [
            ("--rotary-scaling-factor", str(float(scaling.get("factor", 1.0)))),
            ("--mscale", str(float(scaling.get("mscale", 1.0)))),
            ("--mscale-all-dim", str(float(scaling.get("mscale_all_dim", 0.0)))),
        ]
    return options


def _norm(model: ModelSpec, details: Details) -> list[Option]:
    kind = "RMSNorm" if model.norm_kind is NormKind.RMS else "LayerNorm"
    options: list[Option] = [
        ("--normalization", kind),
        ("--norm-epsilon", repr(details.norm_eps or DEFAULT_EPS)),
    ]
    if model.family in CENTRED:
        options.append(("--apply-layernorm-1p",))
    return options


def _activation(model: ModelSpec) -> list[Option]:
    blocks = {
        (block.gated, block.activation)
        for layer in model.layer_kinds
        if (block := layer.mlp or layer.moe) is not None
    }
    if not blocks:  # mixers alone
        return []
    if len(blocks) != 1:
        raise _refuse("different activations in different layers", sorted(map(str, blocks)))
    gated, activation = next(iter(blocks))
    if model.family in ("gpt_oss", *_M3):
        return list(_GPT_OSS)
    if gated and activation is Activation.SILU:
        return [("--swiglu",)]
    if not gated and activation is Activation.RELU2:
        return [("--squared-relu",)]
    if not gated and activation in (Activation.GELU, Activation.GELU_TANH):
        return []
    raise _refuse("this activation", f"{'gated ' if gated else ''}{activation}")


def _biases(model: ModelSpec) -> list[Option]:
    """As the first layer of each sort has them; state spaces have none."""
    block = next((layer for layer in model.layers if layer.mlp or layer.moe), None)
    bias = block is not None and bool(block.mlp.bias if block.mlp else block.moe and block.moe.expert_bias)
    qkv, out = next(((a.qkv_bias, a.out_bias) for a in model.attentions), (False, False))
    if qkv and out and bias and not model.state_spaces:
        return []
    if out or bias:
        raise _refuse("biases in some of the linear layers only", f"qkv {qkv}, out {out}, mlp {bias}")
    return [("--disable-bias-linear",), *([("--add-qkv-bias",)] if qkv else [])]


def _windows(model: ModelSpec) -> list[Option]:
    windows = [layer.attention.window for layer in model.layers if layer.attention is not None]
    sizes = {window for window in windows if window is not None}
    if not sizes:
        return []
    if len(sizes) > 1:
        raise _refuse("sliding windows of several sizes", sorted(sizes))
    # Megatron counts the tokens to the left of a query, transformers counts the query too.
    options: list[Option] = [("--window-size", f"{sizes.pop() - 1},0")]
    if None in windows:
        options.append(("--window-attn-skip-freq", _pattern([int(window is not None) for window in windows])))
    return options


def _pattern(flags: list[int]) -> str:
    """A list of 0 and 1 as Megatron-LM reads it, with runs and the shortest period written short."""
    for period in range(1, len(flags) // 2 + 1):
        if len(flags) % period == 0 and flags == flags[:period] * (len(flags) // period) and period < 8:
            return f"({flags[:period]})*{len(flags) // period}".replace(" ", "")
    runs: list[list[int]] = []
    for flag in flags:
        if runs and runs[-1][0] == flag:
            runs[-1][1] += 1
        else:
            runs.append([flag, 1])
    return "(" + "+".join(f"[{flag}]*{count}" for flag, count in runs) + ")"


def _moe(model: ModelSpec, moe: Moe, details: Details) -> list[Option]:
    sparse = [int(layer.moe is not None) for layer in model.layers]
    options: list[Option] = [
        ("--num-experts", str(moe.experts)),
        ("--moe-ffn-hidden-size", str(moe.expert_ffn)),
        ("--moe-router-topk", str(moe.top_k)),
        ("--moe-router-dtype", "fp32"),
        ("--moe-grouped-gemm",),
    ]
    if not all(sparse) and not model.mambas:
        options.append(("--moe-layer-freq", _pattern(sparse)))
    if moe.shared_ffn:
        options.append(("--moe-shared-expert-intermediate-size", str(moe.shared_ffn)))
    if moe.shared_gate:
        options.append(("--moe-shared-expert-gate",))
    if moe.latent:
        options.append(("--moe-latent-size", str(moe.latent)))
    if moe.groups > 1:
        options += [
            ("--moe-router-num-groups", str(moe.groups)),
            ("--moe-router-group-topk", str(moe.top_groups)),
        ]
    if details.router_sigmoid:
        options += [
            ("--moe-router-score-function", "sigmoid"),
            ("--moe-router-enable-expert-bias",),
            ("--moe-router-bias-update-rate", "1e-3"),
            ("--moe-router-load-balancing-type", "seq_aux_loss"),
            ("--moe-aux-loss-coeff", "1e-4"),
        ]
    else:
        options += [("--moe-router-load-balancing-type", "aux_loss"), ("--moe-aux-loss-coeff", "1e-3")]
        if not details.normalize_topk or moe.top_k == 1:
            options.append(("--moe-router-pre-softmax",))
    if details.routed_scaling is not None and details.routed_scaling != 1.0:
        options.append(("--moe-router-topk-scaling-factor", repr(details.routed_scaling)))
    return options
