"""How many bytes does torchao's float8 move around a product, casting its operands?

Scales are dynamic: every input, weight and output gradient is read for its largest values and cast whenever a product
needs it, weights in every pass; torch.compile takes largest values and casts into the kernel before where it wrote that
one, too. Left out: all-reduces of largest values, tens of microseconds each; that kernels of torch.compile which write
along columns fall short of the memory's bandwidth (pytorch/pytorch#149982: a third of it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.operations.operation import Gemm, Shard
from planner.spec.stack.kinds import Float8Scales

Array = NDArray[np.float64]

# Rate of the product of rows' scales, a kernel of CUTLASS, over cuBLAS's with one scale a tensor, on H100 with fast
# accumulation, which forward products have: 0.9 to 1 for most shapes (pytorch/pytorch#147971). Backward products run
# cuBLAS's and are scaled afterwards (`Casts.rescaled`).
ROW_RATE: Final = 0.95


@dataclass(frozen=True)
class Casts:
    """Bytes moved a value of each operand. `input`, `weight`: ahead. `gradient`: of the output, for that of the input.
    `weight_columns`: for that of the input, too. `input_columns`, `gradient_columns`: for that of the weight.
    `rescaled`: a value of either gradient that a product writes."""

    input: float
    input_columns: float
    gradient: float
    gradient_columns: float
    weight: float
    weight_columns: float
    rescaled: float = 0.0
    fused: float = 0.0  # of `input` and `gradient`: a read that the kernel before saves

    def gathered(self) -> Casts:
        """The same of weights whose shards were cast before they were gathered: transposed alone, in one byte."""
        return replace(self, weight=0.0, weight_columns=2.0)


# Compiled: torchao 6243040 testing/float8/roofline_utils.py get_tensor_memory_traffic_ovhd_s (testing/training in
# 36027d8). With one scale a tensor: read for the largest value, read and written along rows and columns in one byte;
# weights a second time for the backward pass. With a scale a row: read and written, then copied in 16 bits along
# columns, read again and written; either gradient is written unscaled, read and written (float8/float8_ops.py
# addmm_float8_unwrapped, a kernel of its own: pytorch/ao#2184). Fused: benchmarks/float8/float8_roofline.py; a norm
# with its cast took no longer than the norm alone (pytorch/pytorch#111122).
# Eager: the operations of float8_utils.py tensor_to_amax and to_fp8_saturated and of float8_training_tensor.py
# _ToFloat8ConstrFunc, one by one: 33 bytes a cast, of which fp32 copies take 22.
CASTS: Final = {
    (Float8Scales.TENSOR, True): Casts(5, 1, 5, 1, 5, 3, fused=2),
    (Float8Scales.ROW, True): Casts(3, 5, 3, 5, 3, 7, rescaled=4, fused=2),
    (Float8Scales.TENSOR, False): Casts(33, 2, 33, 2, 33, 35),
    (Float8Scales.ROW, False): Casts(33, 35, 33, 35, 33, 35, rescaled=12),
}
TRANSPOSED: Final = 2.0  # of a gathered tensor in one byte, read and written
# Not written by a compiled kernel: what attention returns, rows gathered for experts; and the gradient of a layer's
# last product, since layers are compiled one by one (torchtitan models/llama3/infra/parallelize.py apply_compile).
INPUTS_FROM_ELSEWHERE: Final = ("attention_out", "expert_fc1")
GRADIENTS_FROM_ELSEWHERE: Final = ("mlp_fc2", "shared_fc2", "expert_fc2")


@dataclass(frozen=True)
class Operands:
    """Values of a product's input (m k), output (m n) and weights (n k, of all groups of experts) on a rank; over how
    many ranks its input, and the gradient of its output, are cast before they are gathered (1: none) [1]; and whether
    the kernel before can take a part of the casts."""

    inputs: Array
    outputs: Array
    weights: Array
    input_split: Array
    gradient_split: Array
    input_fused: NDArray[np.bool_]
    gradient_fused: NDArray[np.bool_]


def operands(gemm: Gemm, values: tuple[Array, Array, Array], split: Array, narrow: bool) -> Operands:
    """Those of a product under sequence parallelism over `split` ranks, which gather its input, or the gradient of its
    output, in one byte where `narrow`, else before the cast, which then has no kernel before it to join."""
    splits, fused = [], []
    for shard, elsewhere in ((Shard.COLUMN, INPUTS_FROM_ELSEWHERE), (Shard.ROW, GRADIENTS_FROM_ELSEWHERE)):
        gathered = gemm.shard is shard and not gemm.expert
        splits.append(split if gathered and narrow else np.ones_like(split))
        wide = gathered and not narrow
        fused.append(~((split > 1) & wide) & (gemm.name not in elsewhere))
    return Operands(*values, splits[0], splits[1], fused[0], fused[1])


def cast_bytes(casts: Casts, x: Operands, trained: bool = True) -> tuple[Array, Array]:
    """Bytes moved around a product in its forward and its backward pass [bytes]. `trained`: has its weight a
    gradient? Else no operand is needed along columns but the weight."""
    rows = casts.input - casts.fused * x.input_fused
    ahead = rows / x.input_split * x.inputs + casts.weight * x.weights
    rows = casts.gradient - casts.fused * x.gradient_fused
    back = rows / x.gradient_split * x.outputs + casts.weight_columns * x.weights + casts.rescaled * x.inputs
    if trained:
        columns = np.where(x.input_split > 1, TRANSPOSED, casts.input_columns)
        back = back + columns * x.inputs + casts.rescaled * x.weights
        back = back + np.where(x.gradient_split > 1, TRANSPOSED, casts.gradient_columns) * x.outputs
    return ahead, back
