"""How many "model FLOPs" does a framework count for a token, behind its MFU or TFLOP/s?

Left out: what a step computes (`cost/flops.py`).
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from planner.cost.flops import layer_counts, model_counts, outer_gemms
from planner.cost.operations import pairs
from planner.cost.operations.lists import layer_gemms, scan_of
from planner.cost.operations.operation import Quantity, gemm_flops
from planner.cost.params import model_parameters, outer_parameters
from planner.spec.layer import Layer
from planner.spec.mixers import DeltaNet, StateSpace
from planner.spec.model import ModelSpec


class MfuConvention(StrEnum):
    """How a framework counts the "model FLOPs" behind its MFU or TFLOP/s figure."""

    FULL_SQUARE = "full_square"
    CAUSAL_HALF = "causal_half"
    PALM = "palm"
    TORCHTITAN = "torchtitan"
    NANOTRON = "nanotron"
    SIX_N = "6n"


def _megatron_linear(model: ModelSpec) -> float:
    """Forward FLOPs per token of Megatron's count: every weight product except router and shared gate."""
    skipped = ("router", "shared_gate")
    layers = sum(
        count * gemm_flops(op.product, 1)
        for ops, count in model_counts(model)
        for op in ops
        if op.product is not None and op.name not in skipped
    )
    return layers + sum(gemm_flops(gemm, 1) for gemm in outer_gemms(model))


def _attention_per_pair(model: ModelSpec) -> float:
    """Forward FLOPs of all layers' attention for one query and one key [FLOP]."""
    return sum(
        n * pairs.attention_flops(layer.attention, 1, 1)
        for layer, n in layer_counts(model)
        if layer.attention
    )


def _megatron_scan(model: ModelSpec) -> float:
    """Forward FLOPs per token of scans as Megatron-LM counts them [FLOP/token].

    Of a state space 7 heads head_dim state (megatron/training/training.py hybrid_flops, mamba_layer_flops): its
    convolution is not counted, and where it takes twice the hidden width for heads x head_dim, those are taken. Of a
    gated delta net 8 heads head_dim^2 and the convolution (transformer_flops). Of what it has not, all.
    """
    total = 0.0
    for layer, n in layer_counts(model):
        s = layer.state_space
        if isinstance(s, DeltaNet):
            total += n * (8.0 * s.inner * s.head_dim + 2.0 * s.conv * s.conv_width)
        elif type(s) is StateSpace:
            total += n * 7.0 * s.inner * s.state
        elif s is not None:
            total += n * float(scan_of(s).flops(s, 1))
    return total


def weight_gradient_flops_per_token(model: ModelSpec) -> float:
    """FLOPs of all weight gradients, a third of the linear part of the full square; LoRA skips them [FLOP/token]."""
    return _megatron_linear(model)


def full_square_flops_per_token(model: ModelSpec, seq: Quantity) -> Quantity:
    """Forward and backward FLOPs per token, attention over the full square [FLOP/token].

    3 x (2 x matrix parameters met + 2 s a (d_qk + d_v) L). Narayanan 2021, arXiv 2104.04473, appendix;
    `num_floating_point_operations` of Megatron-LM up to 2024, NeMo 24.07, Korthikanti 2022. Padding of the
    vocabulary, which those count, is not.
    """
    return 3 * (_megatron_linear(model) + _megatron_scan(model) + _attention_per_pair(model) * seq)


def _indexed_flops_per_token(layer: Layer, hidden: int, seq: Quantity) -> Quantity:
    """Forward and backward FLOPs per token of attention behind an indexer, less three times its projections, which
    `_megatron_linear` holds [FLOP/token]."""
    a = layer.attention
    assert a is not None
    projections = sum(gemm_flops(gemm, 1) for gemm in layer_gemms(layer, hidden) if gemm.detached)
    scores = pairs.indexer_flops(a, pairs.scored_pairs(a, seq) / seq)
    learning = pairs.indexer_backward_flops(a, projections * seq, seq) / seq
    core = 2 * a.heads * (a.latent_dim + a.latent_value) * pairs.seen_pairs(a, seq)
    return 3 * core / seq + scores + learning - 2 * projections


def causal_half_flops_per_token(model: ModelSpec, seq: Quantity) -> Quantity:
    """Forward and backward FLOPs per token, attention counted half [FLOP/token].

    As the full square with s/2 in place of s, min(s, window)/2 in layers with a window. Behind an indexer the chosen
    pairs over MLA's latent key, all its scores, and its loss. Megatron-Bridge 25.09 and later,
    src/megatron/bridge/training/utils/flop_utils.py; Megatron-LM's own count (main of 2026-08, training/training.py)
    knows no indexer and takes its attention for dense.
    """
    total = 3 * (_megatron_linear(model) + _megatron_scan(model)) + 0 * seq
    for layer, count in layer_counts(model):
        if layer.attention is None:
            continue
        if layer.attention.sparse:
            total = total + count * _indexed_flops_per_token(layer, model.hidden, seq)
            continue
        window = layer.attention.window
        width = seq if window is None else np.minimum(window, seq)
        total = total + 3 * count * pairs.attention_flops(layer.attention, 1, 1) * width / 2
    return total


def palm_flops_per_token(model: ModelSpec, seq: Quantity) -> Quantity:
    """6 N + 12 L H Q T with N all active parameters [FLOP/token].

    Chowdhery 2022, arXiv 2204.02311, appendix B. H Q is heads x head_dim; with MLA the mean of both widths.
    """
    return 6 * model_parameters(model).active + 3 * _attention_per_pair(model) * seq


def torchtitan_flops_per_token(model: ModelSpec, seq: Quantity) -> Quantity:
    """6 (N - embedding) + 12 L H Q T [FLOP/token].

    torchtitan's `get_nparams_and_flops` (2024, 2025): the input table does not count, the head does.
    A tied table is one parameter there and is not counted at all.
    """
    outer = outer_parameters(model)
    return palm_flops_per_token(model, seq) - 6 * (outer["embedding"] + outer["position"])


def nanotron_flops_per_token(model: ModelSpec, seq: Quantity) -> Quantity:
    """Forward and backward FLOPs per token as nanotron counts its Llama [FLOP/token].

    `get_flops` in nanotron's src/nanotron/models/llama.py: the full square, three MLP matrices, the head. For
    gated models with head_dim = hidden / heads it is the full-square count; others are counted so too.
    """
    return full_square_flops_per_token(model, seq)


def six_n_flops_per_token(model: ModelSpec, seq: Quantity) -> Quantity:
    """6 x active parameters, attention ignored [FLOP/token]. Kaplan 2020, arXiv 2001.08361, section 2.1."""
    return 6 * model_parameters(model).active + 0 * seq


def mfu_flops_per_token(model: ModelSpec, seq: Quantity, convention: MfuConvention) -> Quantity:
    """Model FLOPs per trained token under a framework's own convention [FLOP/token]."""
    count = {
        MfuConvention.FULL_SQUARE: full_square_flops_per_token,
        MfuConvention.CAUSAL_HALF: causal_half_flops_per_token,
        MfuConvention.PALM: palm_flops_per_token,
        MfuConvention.TORCHTITAN: torchtitan_flops_per_token,
        MfuConvention.NANOTRON: nanotron_flops_per_token,
        MfuConvention.SIX_N: six_n_flops_per_token,
    }[convention]
    return count(model, seq)


def layers_forward_flops_per_token(model: ModelSpec, seq: Quantity, convention: MfuConvention) -> Quantity:
    """Forward FLOPs of all layers, what recomputing them wholly adds to hardware FLOPs [FLOP/token].

    A third of the model FLOPs less what stands outside the layers, which no framework recomputes: Narayanan 2021, arXiv
    2104.04473, equation 3, has 96 B s l h^2 (1 + s/6h + V/16lh), of which 24 B s l h^2 (1 + s/6h) are this. Of the
    conventions that count forward and backward as 1 to 2: the full square and half of it, without indexers.
    """
    outer = sum(gemm_flops(gemm, 1) for gemm in outer_gemms(model))
    return mfu_flops_per_token(model, seq, convention) / 3 - outer


def core_forward_flops_per_token(model: ModelSpec, seq: Quantity, convention: MfuConvention) -> Quantity:
    """Forward FLOPs of the attention cores, what recomputing them adds to hardware FLOPs [FLOP/token].

    What depends on the sequence in `layers_forward_flops_per_token`. Korthikanti 2022, arXiv 2205.05198, section 5.
    """
    return (mfu_flops_per_token(model, seq, convention) - mfu_flops_per_token(model, 0.0, convention)) / 3
