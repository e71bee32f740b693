"""What does a layer of Hugging Face transformers move and launch, run as single operations of PyTorch?

Each operation is a kernel of its own that reads its inputs and writes its output: counted in the source
(models/llama/modeling_llama.py LlamaRMSNorm, apply_rotary_pos_emb, LlamaMLP, LlamaDecoderLayer; the same arithmetic in
4.31 of 2023 and 5.23 of 2026; loss/loss_utils.py ForCausalLMLoss) and checked against what PyTorch dispatches
(tests/cost/test_eager.py). A pass reads or writes a tensor once. Left out: statistics of a value a token, rotary
tables, dropout. Experts run in a loop, as in 4.x (models/mixtral/modeling_mixtral.py MixtralSparseMoeBlock); 5.x has
grouped products. Left out of it: waiting for the number of an expert's tokens, sorting of indices.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.spec.attention import AttentionKind, QkNorm
from planner.spec.layer import Layer, Moe, NormKind
from planner.spec.model import ModelSpec

Array = NDArray[np.float64]

# RMS norm of x. Forward in fp32: square (read, write), mean (read), times the inverse root (read, write); in the width
# of activations, times the weight (read, write). Backward in fp32: times the root and times x (read, write; read, read,
# write), its sum (read), the mean's spread out (write), gradient of the square (read, write: 2 x, then times 2; read,
# read, write), sum of both (read, read, write); in the width of activations, times the weight, and the weight's own:
# product and sum. Around all of it casts from and to the width of activations.
NORM_WIDE_PASSES: Final = (5.0, 17.0)
NORM_PASSES: Final = (2.0, 2.0)
NORM_WEIGHT_PASSES: Final = 4.0
# torch.nn.functional.layer_norm is one kernel, and two backward: gradients of x and of the weights.
LAYER_NORM_PASSES: Final = (2.0, 5.0)
# Rotation of queries or keys. Forward: times the cosine 2, negation of a half 1, cat 2, times the sine 2, sum 3.
# Backward: two products 4, negation 1, two halves written into zeros 4, sums 3 and 3, a copy in the order of the
# product 2.
ROTARY_PASSES: Final = (10.0, 17.0)
# Gate's activation 2 and product 3; backward two products 3 and 3, the activation 3. Without a gate one kernel.
ACTIVATION_PASSES: Final = {True: (5.0, 9.0), False: (2.0, 3.0)}
SUM_PASSES: Final = 3.0
# Rows of an expert: gathered 2, weighed 2, added to the output 3; backward gathered 2, weighed 2, the weight's gradient
# product and sum 4, the gate's and the input's summed 3, written back 1. And of the whole stream, in the backward pass
# of every expert: zeros 1, copied with its rows put in 2, added to the others' 3.
ROW_PASSES: Final = (7.0, 12.0)
STREAM_PASSES_PER_EXPERT: Final = 6.0
# Operations of one expert, forward and backward, three products and six among them.
EXPERT_LAUNCHES: Final = 10 + 20
# Launches of a Llama layer, forward and backward: two norms of 8 and 16, two rotations of 5 and 10, activation 2 and 3,
# sums 2 and 5, products 7 and 14, attention 1 and 3.
LAUNCHES: Final = (38, 77)
# Constants of muP multiply one tensor after another, 2 passes each, forward and backward: inputs of attention and of
# the state space, keys, the state space's projections, both outputs; the gate and the MLP's output (models/falcon_h1/
# modeling_falcon_h1.py). What both mixers write is summed before the residual.
MULTIPLIED_PASSES: Final = 2.0
MULTIPLIED_LAUNCHES: Final = 8.0


class Moved(NamedTuple):
    """Bytes that a module's kernels read and write, forward and backward."""

    forward: Array
    backward: Array


def norm_bytes(kind: NormKind, width: float, trained: bool, wide: bool = False) -> tuple[float, float]:
    """Bytes per normed value, forward and backward, of activations `width` bytes wide; 36 and 92 in 16 bits.

    `wide`: the weight is multiplied in fp32 (models/gemma3/modeling_gemma3.py Gemma3RMSNorm); 40 and 104.
    """
    if kind is not NormKind.RMS:
        return LAYER_NORM_PASSES[0] * width, LAYER_NORM_PASSES[1] * width
    casts = 2.0 * (width + 4.0) if width < 4.0 else 0.0
    weighed = 4.0 if wide else width
    weight = NORM_WEIGHT_PASSES * weighed if trained else 0.0
    ahead, back = (4.0 * w + weighed * p + casts for w, p in zip(NORM_WIDE_PASSES, NORM_PASSES, strict=True))
    return ahead, back + weight


def layer_bytes(
    layer: Layer, model: ModelSpec, stream: Array, tokens: Array, queries: Array | float, keys: Array | float,
    gates: Array | float, ffn: Array | float, width: float, trained: bool,
) -> dict[str, Moved]:  # fmt: skip
    """What the kernels of a layer move beside its products and attention, by module [bytes].

    `stream`, `tokens`: values of the residual stream and tokens on a rank; `queries`, `keys`, `gates` of attention's
    output, `ffn`: values a token of theirs on a rank; `width`: bytes of an activation; `trained`: have norms gradients
    of their weights? A gradient that comes from several products, and from the residual branch, is summed pair by pair.
    """
    norm = norm_bytes(model.norm_kind, width, trained, model.wide_norms)
    norms, branches = max(layer.norms, 1), layer.sublayers + (layer.side > 0)
    inputs = _summed_inputs(layer)
    moved = {
        "layernorm": Moved(norms * norm[0] * stream, norms * norm[1] * stream),
        "residual": Moved(
            SUM_PASSES * width * branches * stream, SUM_PASSES * width * (branches + inputs) * stream
        ),
    }
    if layer.attention is not None:
        rotated = float(model.position_rows == 0)
        normed = float(layer.attention.qk_norm is not QkNorm.NONE)
        each = [width * rotated * ROTARY_PASSES[i] + normed * norm[i] for i in (0, 1)]
        values = tokens * (queries + keys * (2 if layer.attention.value_norm else 1))
        gate = [width * passes for passes in ACTIVATION_PASSES[True]]
        # gradients of keys and values that a layer lends or borrows are summed
        lent = tokens * 2 * layer.attention.kv_heads * layer.attention.head_dim * layer.attention.borrows_kv
        ahead, back = (each[i] * values + gate[i] * tokens * gates for i in (0, 1))
        moved["qkv"] = Moved(ahead, back + SUM_PASSES * width * lent)
    if layer.mlp is not None:
        passes = ACTIVATION_PASSES[layer.mlp.gated]
        moved["mlp_act"] = Moved(width * passes[0] * tokens * ffn, width * passes[1] * tokens * ffn)
    if layer.side:
        moved["side"] = Moved(*(width * passes * tokens * layer.side for passes in ACTIVATION_PASSES[True]))
    if layer.mixes_twice:
        twice = SUM_PASSES * width * stream
        moved["residual"] = Moved(*(each + twice for each in moved["residual"]))
    if layer.multiplied:
        projected = 0.0 if layer.state_space is None else layer.state_space.in_width
        around = 2.0 * ((layer.attention is not None) + (layer.state_space is not None))
        around += layer.mlp is not None
        products = MULTIPLIED_PASSES * width * (around * stream + tokens * (keys + projected + ffn))
        moved["multiplied"] = Moved(products, products)
    return moved


def expert_bytes(
    moe: Moe, hidden: float, stream: Array, rows: Array, experts: Array, ffn: Array | float, width: float
) -> dict[str, Moved]:
    """The same of experts in a loop [bytes]. `rows`: copies of tokens that a rank's `experts` work on, `ffn`: values a
    row of theirs on a rank, `stream`: values of the residual stream on a rank."""
    passes = ACTIVATION_PASSES[moe.gated]
    ahead, back = (width * each * rows * hidden for each in ROW_PASSES)
    whole = STREAM_PASSES_PER_EXPERT * width * experts * stream
    return {
        "moe_permute": Moved(ahead, back + whole),
        "moe_act": Moved(width * passes[0] * rows * ffn, width * passes[1] * rows * ffn),
    }


def _summed_inputs(layer: Layer) -> float:
    """Sums of gradients of inputs that several products of a layer read: q, k and v; gate and up [1]."""
    summed = 0.0
    if layer.attention is not None:
        alone = layer.attention.kind is AttentionKind.MLA
        summed += 1.0 if alone else 0.0 if layer.attention.borrows_kv else 2.0
    if layer.mlp is not None and layer.mlp.gated:
        summed += 1.0
    return summed


def side_bytes(width: float) -> float:
    """Bytes per value that making layers' own inputs moves beside its product, forward and backward.

    The table's rows scaled; the projection scaled and normed; their sum, and it scaled (models/gemma4/
    modeling_gemma4.py project_per_layer_inputs); gradients of the slices that layers read laid into zeros and summed.
    """
    norm = norm_bytes(NormKind.RMS, width, True, wide=True)
    return sum(norm) + width * (2 * 3 * MULTIPLIED_PASSES + SUM_PASSES)


def loss_bytes(width: float, multiplied: bool = False) -> float:
    """Bytes per logit that an eager loss moves, forward and backward; 36 in 16 bits, and those of a constant's product.

    Logarithm of the softmax in fp32 (read, write), its gradient into zeros (write), back through the softmax (read,
    read, write), between a cast to fp32 and one back. Transformers before 4.45 also copies shifted logits of several
    sequences: 20 more.
    """
    product = 2.0 * MULTIPLIED_PASSES * width * multiplied
    return 24.0 + (2.0 * (width + 4.0) if width < 4.0 else 0.0) + product
