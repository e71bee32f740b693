"""Which model do Megatron-LM arguments describe? Layers, attention, experts and vocabulary.

Defaults are those of megatron/training/arguments.py (main of 2026-08). Left out: everything that is not the model
(`parse.py`).
"""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import partial
from typing import Final

from planner.errors import InputError
from planner.frameworks.megatron.delta import delta_layers_in, delta_net_in
from planner.frameworks.megatron.given import Arguments
from planner.frameworks.megatron.hybrid import layers_in, pattern_in, prediction_in, state_space_in
from planner.frameworks.megatron.sparse import indexer_in, sharing_in
from planner.frameworks.shell.script import whole
from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.dimensions import MOST_LAYERS
from planner.spec.layer import Activation, Layer, Mlp, Moe, NormKind
from planner.spec.load_model import catalog_name_at, load_model
from planner.spec.model import ModelSpec

# Tokenizers whose vocabulary is fixed: GPT-2's byte pairs (openai/gpt-2 encoder.json), Llama 2's (its tokenizer.model).
_TOKENIZERS: Final = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}


def model_of(a: Arguments) -> ModelSpec:
    layers, hidden = a.positive("--num-layers", 1, MOST_LAYERS), a.positive("--hidden-size", 1)
    gated = a.has("--swiglu") or a.has("--quick-geglu")
    bias = not a.has("--disable-bias-linear")
    default_ffn = int(4 * hidden * 2 / 3 / 64) * 64 if a.has("--swiglu") else 4 * hidden
    ffn = a.positive("--ffn-hidden-size", default_ffn)
    activation = (
        Activation.RELU2 if a.has("--squared-relu") else Activation.SILU if gated else Activation.GELU_TANH
    )
    layer_norm = a.word("--normalization", "LayerNorm") == "LayerNorm"
    learned = a.word("--position-embedding-type", "learned_absolute") == "learned_absolute"
    stated = a.has("--max-position-embeddings")
    positions = a.positive("--max-position-embeddings", 1) if stated else a.count("--seq-length", 0)
    parts = "".join(pattern_in(a))
    windows = _windows(a, layers)
    moe = _moe(a, gated, bias, ffn, activation) if a.has("--num-experts") else None
    sparse = pattern(a.word("--moe-layer-freq", "1"), layers) if moe is not None else [0] * layers
    mlp = Mlp(ffn, gated, bias, activation)
    block: tuple[Layer, ...] = ()
    modules = a.count("--mtp-num-layers", 0)
    if parts:
        behind, modules = prediction_in(a)
        attention = partial(_attention, a, hidden, bias, windows[0])
        both = layers_in(parts + behind, state_space_in(a, hidden), attention, mlp, moe, layer_norm)
        layers_of, block = both[: len(parts)], both[len(parts) :]
    else:
        net, delta = delta_net_in(a), delta_layers_in(a, layers, pattern)
        layers_of = tuple(
            Layer(
                None if mixes else _attention(a, hidden, bias, window, takes),
                None if experts else mlp,
                moe if experts else None,
                norm_bias=layer_norm,
                state_space=net if mixes else None,
            )
            for experts, window, mixes, takes in zip(
                sparse, windows, delta, sharing_in(a, layers), strict=True
            )
        )
        block = _prediction(layers_of) if modules else ()
    return ModelSpec(
        name="from Megatron-LM arguments",
        family="gpt_oss" if a.has("--quick-geglu") else "megatron",
        hidden=hidden,
        vocab=1,  # filled in by `parse`
        layers=layers_of,
        tied_embeddings=not a.has("--untie-embeddings-and-output-weights"),
        position_rows=positions if learned else 0,
        norm_kind=NormKind.LAYER if layer_norm else NormKind.RMS,
        norm_bias=layer_norm,
        max_position=positions,
        mtp_layers=modules,
        mtp_block=block,
        source="Megatron-LM arguments",
    )


def vocabulary_of(a: Arguments) -> int | None:
    """The vocabulary that arguments state or that their tokenizer has; None where it must be asked for."""
    for name in ("--vocab-size", "--padded-vocab-size"):
        if a.has(name):
            return a.positive(name, 1)
    kind = _tokenizer(a)
    if kind in _TOKENIZERS:
        return _TOKENIZERS[kind]
    known = catalog_name_at(a.word("--tokenizer-model", ""))
    return None if known is None else load_model(known).vocab


def vocabulary_notes(a: Arguments) -> tuple[str, ...]:
    """Where a vocabulary comes from that no argument states."""
    stated = a.has("--vocab-size") or a.has("--padded-vocab-size")
    vocabulary = None if stated else vocabulary_of(a)
    if vocabulary is None:
        return ()
    source = _tokenizer(a)
    if source not in _TOKENIZERS:
        source = a.word("--tokenizer-model", "")
    return (f"vocabulary of {vocabulary:,}, that of {source}; --vocab-size states another",)


def _tokenizer(a: Arguments) -> str:
    """The kind of tokenizer; with a file of merges that of GPT-2 is pretrain_gpt.py's default (its args_defaults)."""
    return a.word("--tokenizer-type", "GPT2BPETokenizer" if a.has("--merge-file") else "")


def _prediction(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layer of a prediction module where the last one takes another's choice of keys: it chooses for itself
    (transformer/multi_token_prediction.py numbers it from 1)."""
    own = layers[-1].attention
    if own is None or own.indexer is None or not own.indexer.shared:
        return ()
    return (replace(layers[-1], attention=replace(own, indexer=replace(own.indexer, shared=False))),)


def _attention(a: Arguments, hidden: int, bias: bool, window: int | None, takes: bool = False) -> Attention:
    heads = a.positive("--num-attention-heads", 1)
    sinks = a.word("--softmax-type", "vanilla") == "learnable"
    if a.has("--multi-latent-attention"):
        nope, rope = a.positive("--qk-head-dim", 128), a.positive("--qk-pos-emb-head-dim", 64)
        return Attention(
            AttentionKind.MLA, heads, heads, nope + rope, a.positive("--v-head-dim", 128),
            q_lora_rank=a.count("--q-lora-rank", 0), kv_lora_rank=a.positive("--kv-lora-rank", 32),
            qk_rope_dim=rope, qkv_bias=bias, out_bias=bias, window=window, sinks=sinks, indexer=indexer_in(a, takes),
        )  # fmt: skip
    kv_heads = a.positive("--num-query-groups", 1) if a.has("--group-query-attention") else heads
    width = a.positive("--kv-channels", max(hidden // heads, 1))
    return Attention(
        AttentionKind.MHA if kv_heads == heads else AttentionKind.GQA, heads, kv_heads, width, width,
        qkv_bias=bias or a.has("--add-qkv-bias"), out_bias=bias,
        qk_norm=QkNorm.HEAD if a.has("--qk-layernorm") else QkNorm.NONE, sinks=sinks, window=window,
        output_gate=a.has("--attention-output-gate"),
    )  # fmt: skip


def _windows(a: Arguments, layers: int) -> list[int | None]:
    if not a.has("--window-size"):
        return [None] * layers
    text = a.word("--window-size", "").strip("()").split(",")[0]
    if whole(text.strip().removeprefix("-")) is None:
        raise InputError("--window-size must be two whole numbers", text, "write it like 127,0")
    size = int(text) + 1
    frequency = a.word("--window-attn-skip-freq", "")
    if not frequency:
        return [size] * layers
    if every := whole(frequency):
        return [None if (i + 1) % every == 0 else size for i in range(layers)]
    return [size if flag else None for flag in pattern(frequency, layers)]


def _moe(a: Arguments, gated: bool, bias: bool, ffn: int, activation: Activation) -> Moe:
    return Moe(
        a.positive("--num-experts", 1),
        a.positive("--moe-router-topk", 2),
        a.positive("--moe-ffn-hidden-size", ffn),
        gated,
        expert_bias=bias,
        shared_ffn=a.count("--moe-shared-expert-intermediate-size", 0),
        shared_gate=a.has("--moe-shared-expert-gate"),
        router_bias=bias,
        groups=a.count("--moe-router-num-groups", 0),
        top_groups=a.count("--moe-router-group-topk", 0),
        activation=activation,
        latent=a.count("--moe-latent-size", 0),
        clamped=a.has("--activation-func-clamp-value"),
    )


def pattern(text: str, layers: int) -> list[int]:
    """A list of 0 and 1, one a layer: N for every N-th layer, or an expression such as ([0]*3+[1]*58)."""
    if every := whole(text.strip()):
        return [int(i % every == 0) for i in range(layers)]
    try:
        flags = _evaluate(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        flags = None
    if not isinstance(flags, list) or len(flags) != layers or not set(flags) <= {0, 1}:
        must = f"a pattern of layers must give 0 or 1 for each of {layers} layers"
        raise InputError(must, text[:80], "write it like ([0]*3+[1]*58)")
    return flags


def _evaluate(node: ast.expr) -> list[int] | int:
    """Lists of small numbers, their sums and multiples; nothing else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and 0 <= node.value <= 10_000:
        return int(node.value)
    if isinstance(node, ast.List):
        return [value for item in node.elts if isinstance(value := _evaluate(item), int)]
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left), _evaluate(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            if len(left) * right > 100_000:
                raise ValueError("too long")
            return left * right
    raise ValueError("not a pattern")
