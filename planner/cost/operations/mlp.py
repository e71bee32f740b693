"""What does a dense feed-forward block cost?

Gate and up are one product, as Megatron's models have them. Single operations of PyTorch are counted in transformers
(models/llama/modeling_llama.py LlamaMLP) as those of norms are (`norms.py`).
"""

from __future__ import annotations

from typing import Final

from planner.cost.cut import LayerShape
from planner.cost.operations.operation import Array, Gemm, Operation, Run, SecondHalf, Shard, Weights, product
from planner.cost.operations.residual import gradient_stream, multiplied, summed_gradients
from planner.spec.layer import Activation, Mlp
from planner.spec.stack.kinds import NarrowKept

# Gate's activation 2 and product 3 in single operations; backward two products 3 and 3, the activation 3. Without a
# gate one kernel.
ACTIVATION_PASSES: Final = {True: (5.0, 9.0), False: (2.0, 3.0)}
# Setting to 0 what lies below a quantile of a token's values. In single operations: mean 1, deviation 1, difference 2,
# ReLU 2; backward ReLU 3, the difference's gradient 3, the mean's 5, the deviation's 7, as PyTorch dispatches them
# (models/gemma3n/modeling_gemma3n.py Gemma3nTextMLP._gaussian_topk). Else, values read once more for their statistics,
# and backward with their gradients.
CUT_PASSES: Final = {True: (6.0, 18.0), False: (1.0, 2.0)}
CUT_LAUNCHES: Final = (1.0, 22.0)
# Forward launches of the second half of a layer: norm, fc1, activation, fc2, add; norm 8, activation 2, products 3, sum
# 1 in single operations.
LAUNCHES: Final = (5.0, 14.0)
FLOAT8: Final = 1.0  # bytes


def activation_passes(gated: bool, run: Run) -> tuple[float, float]:
    """Passes of an activation over its output, forward and backward, in one kernel or by single operations [1]."""
    if run.single(run.kernels.code.fused_activation):
        return ACTIVATION_PASSES[gated]
    ahead = (3.0 if gated else 2.0) + 2.0 * (gated and not run.kernels.code.fused_activation)
    return ahead, 2.0 * ahead


def activation_input(gated: bool, run: Run) -> float:
    """Bytes that an activation keeps of a value of its output: what it reads [bytes]."""
    return (2 if gated else 1) * (run.act if run.kernels.narrow_kept is NarrowKept.NOTHING else FLOAT8)


def second_input(run: Run, second: Gemm) -> float:
    """Bytes kept of a value that the activation gives, where it is not made again: the input of the `second` product
    [bytes]."""
    return run.saved * (run.keeps_input(second) and not run.kernels.code.keeps_by_name)


def kept_width(gated: bool, run: Run, second: Gemm) -> float:
    """Bytes kept of a value of the activation's output: fc1's output, the `second` product's input; 2 + 2, gated 4 + 2,
    eager SiLU 2 more, made again 2 less."""
    eager = run.act if gated and not run.kernels.code.fused_activation else 0.0
    return activation_input(gated, run) + second_input(run, second) + eager


def inner_gradients(gated: bool, run: Run) -> float:
    """Bytes of gradients of a value of the activation's output alive where its backward pass begins: of fc2's input and
    of fc1's output; fc2's own input, where it is kept, is free by then [bytes]."""
    return (3.0 if gated else 2.0) * run.act - run.saved * (not run.kernels.code.keeps_by_name)


def operations(mlp: Mlp, run: Run, multiplies: bool) -> tuple[Operation, ...]:
    """Both products and the activation between them; `multiplies`: constants of muP too."""
    ffn, h, act, inputs = mlp.ffn, run.hidden, run.act, 2 if mlp.gated else 1
    first = Gemm("mlp_fc1", h, inputs * ffn, Shard.COLUMN, linear=inputs)
    second = Gemm("mlp_fc2", ffn, h, Shard.ROW)
    passes, width = activation_passes(mlp.gated, run), kept_width(mlp.gated, run, second)
    alive = inner_gradients(mlp.gated, run)

    def inner(x: LayerShape) -> Array:
        return act * x.tokens * ffn / x.t

    scalars = 2 * (mlp.activation is Activation.XIELU)
    activation = Operation(
        "mlp_act", "mlp", weights=Weights(replicated=scalars), tensors=scalars, modules={"mlp": 1.0},
        graph="mlp", launches=run.launches(*LAUNCHES),
        moved=lambda x: passes[0] * inner(x), moved_back=lambda x: passes[1] * inner(x),
        kept={"mlp": lambda x: x.tokens * ffn * width / x.t},
        ahead=lambda x: inner(x) * (3.0 if mlp.gated else 2.0),
        alive=lambda x: gradient_stream(run, x) + ffn * (x.tokens * alive + run.weight_gradient * h) / x.t,
        half=SecondHalf(lambda x: act * x.tokens * h, inner, mlp.gated),
    )  # fmt: skip
    return (
        product(first, "mlp", mlp.bias, modules={"mlp": 1.0}),
        activation,
        *(_cut(mlp, run) if mlp.cut else ()),
        product(second, "mlp", mlp.bias, modules={"mlp": 1.0}),
        *summed_gradients(run, mlp.gated),
        *(multiplied(run, 1.0, lambda x: ffn / x.t) if multiplies else ()),
    )


def _cut(mlp: Mlp, run: Run) -> tuple[Operation, ...]:
    """What the gate has below a quantile set to 0, of which single operations keep what is left."""
    single = run.single(run.kernels.code.fused_activation)
    ahead, back = CUT_PASSES[single]

    def values(x: LayerShape) -> Array:
        return run.act * x.tokens * mlp.ffn / x.t

    cut = Operation(
        "mlp_cut", modules={"mlp": 1.0}, graph="mlp", launches=run.launches(*CUT_LAUNCHES),
        moved=lambda x: ahead * values(x), moved_back=lambda x: back * values(x),
        kept={"mlp": lambda x: single * values(x)},
    )  # fmt: skip
    return (cut,)
