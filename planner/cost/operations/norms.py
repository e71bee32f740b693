"""What do the norms of a layer's stream cost?

Those of both branches are one operation. Run as single operations of PyTorch a norm is a run of kernels, each of which
reads its inputs and writes its output: counted in the source (transformers models/llama/modeling_llama.py LlamaRMSNorm;
the same arithmetic in 4.31 of 2023 and 5.23 of 2026) and checked against what PyTorch dispatches
(tests/cost/operations/test_single_operations.py). A pass reads or writes a tensor once. Left out: statistics of a value
a token in what is moved; norms inside attention, which are its own.
"""

from __future__ import annotations

from typing import Final

from planner.cost.operations.operation import Operation, Run, Weights
from planner.spec.job import ATTENTION_INPUTS
from planner.spec.layer import Layer, NormKind

STATISTIC_BYTES = 4.0
# Unfused RMSNorm in fp32: upcast, square and mean, scale, downcast, weight: passes over the stream in units of
# its 2-byte size, against one read and one write when fused.
NORM_PASSES = {True: 2.0, False: 12.0}
# RMS norm of x in single operations. Forward in fp32: square (read, write), mean (read), times the inverse root (read,
# write); in the width of activations, times the weight (read, write). Backward in fp32: times the root and times x
# (read, write; read, read, write), its sum (read), the mean's spread out (write), gradient of the square (read, write:
# 2 x, then times 2; read, read, write), sum of both (read, read, write); in the width of activations, times the weight,
# and the weight's own: product and sum. Around all of it casts from and to the width of activations.
NORM_WIDE_PASSES: Final = (5.0, 17.0)
NORM_NARROW_PASSES: Final = (2.0, 2.0)
NORM_WEIGHT_PASSES: Final = 4.0
# torch.nn.functional.layer_norm is one kernel, and two backward: gradients of x and of the weights.
LAYER_NORM_PASSES: Final = (2.0, 5.0)
# Copies of the fp32 stream alive in the backward pass of an RMS norm of single operations, beside the one it kept: the
# gradient of the normed stream, its part through the product, and of the square the factor, the gradient and their sum.
NORM_WORKING = 5.0


def norm_bytes(kind: NormKind, width: float, trained: bool, wide: bool = False) -> tuple[float, float]:
    """Bytes per normed value of single operations, forward and backward, of activations `width` bytes wide; 36 and 92
    in 16 bits.

    `wide`: the weight is multiplied in fp32 (models/gemma3/modeling_gemma3.py Gemma3RMSNorm); 40 and 104.
    """
    if kind is not NormKind.RMS:
        return LAYER_NORM_PASSES[0] * width, LAYER_NORM_PASSES[1] * width
    casts = 2.0 * (width + 4.0) if width < 4.0 else 0.0
    weighed = 4.0 if wide else width
    weight = NORM_WEIGHT_PASSES * weighed if trained else 0.0
    passes = zip(NORM_WIDE_PASSES, NORM_NARROW_PASSES, strict=True)
    ahead, back = (4.0 * w + weighed * p + casts for w, p in passes)
    return ahead, back + weight


def run_norm_bytes(run: Run) -> tuple[float, float]:
    """The same of the norms of a model, as it is run."""
    return norm_bytes(run.norm_kind, run.act, run.trained, run.wide_norms)


def eager_norm_bytes(run: Run) -> float:
    """Bytes per value that an RMS norm keeps beside its input, 0 where it is one kernel or keeps no more.

    transformers' keeps an fp32 copy, and what it multiplies by its weight, which stands for its input: in the width of
    activations, or in fp32.
    """
    if run.kernels.code.fused_norm or run.norm_kind is not NormKind.RMS:
        return 0.0
    wide = 4.0 - run.act if run.wide_norms and run.kernels.code.single else 0.0
    return run.kernels.code.norm_bytes + wide


def wide_norm_bytes(run: Run) -> float:
    """Bytes per value of the fp32 stream in which an RMS norm of single operations works, 0 where it is one kernel."""
    return 4.0 if eager_norm_bytes(run) > 0 else 0.0


def _unread_inputs(layer: Layer, run: Run) -> float:
    """Normed inputs of a layer's halves that it does not keep, because the weights that read them are frozen and have
    no adapter [1].

    Checked: 8B with adapters on q, k, v, all else equal, peaks 4.5 GiB below one with adapters everywhere as predicted
    (DGXC 25.02: 33.0 GiB, predicted 33.9).
    """
    if run.trained or run.job is None:
        return 0.0
    first = layer.attention is None or any(run.job.adapts(name) for name in ATTENTION_INPUTS)
    shared = layer.moe is not None and layer.moe.shared_ffn > 0 and run.job.adapts("shared_fc1")
    second = run.job.adapts("mlp_fc1") if layer.mlp is not None else layer.moe is None or shared
    return float(not (first or second)) if layer.parallel else float(not first) + float(not second)


def operations(layer: Layer, run: Run) -> tuple[Operation, ...]:
    """The norms of a layer of one block; keeps what the first products of both halves read."""
    norms, scan = max(layer.norms, 1), layer.state_space is not None
    scales = layer.norms * run.hidden * (1 + layer.norm_bias) if layer.norm_weight else 0
    # multiplied by different constants, the input of attention is not that of the state space
    normed = 1 if layer.parallel else layer.sublayers + (layer.mixes_twice and layer.multiplied)
    inputs = run.saved * (normed - scan - _unread_inputs(layer, run))
    wide = eager_norm_bytes(run) * norms
    ahead = run.act * NORM_PASSES[run.kernels.code.fused_norm]
    ahead, back = run_norm_bytes(run) if run.single(run.kernels.code.fused_norm) else (ahead, 2.0 * ahead)
    kept = {"layernorm": lambda x: inputs * run.gathered(x) + wide * run.stream(x)}
    if scan:  # no module that recomputation of norms reaches
        kept["state_in"] = lambda x: run.saved * run.gathered(x)
    # none before a state space is a norm that recomputation reaches (Megatron-Core, ssm/mamba_layer.py)
    reached = 1.0 - scan / layer.sublayers
    return (
        Operation(
            "layernorm", "norms", weights=Weights(replicated=scales), modules={"layernorm": reached},
            tensors=layer.norms * (1 + layer.norm_bias) * layer.norm_weight,
            moved=lambda x: norms * ahead * run.stream(x), moved_back=lambda x: norms * back * run.stream(x),
            kept=kept,
        ),
    )  # fmt: skip
