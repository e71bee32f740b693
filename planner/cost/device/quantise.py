"""How many bytes does quantising the operands of 8- and 4-bit products move?

Bytes of one value; the times are `device/products.py`'s. Left out: quantising weights, once a step; norms that write 8
bits at once; attention in 8 bits. That tensor-parallel ranks gather the narrow tensor is left out too: with its bytes
halved, errors on groups left out of the fits grew (dense Megatron runs 4.4 to 4.9 %).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.spec.machine.accelerator import Architecture
from planner.spec.precision import RECIPES, Precision

Array = NDArray[np.float64]
WIDE_BYTES = 2.0


@dataclass(frozen=True)
class Operand:
    """One operand of a recipe. `stored`: bytes of a value with its share of the scales. `reads`: how often the wide
    tensor is read, twice where its largest value is found first. `by_block`: scales of blocks along rows, so that the
    copy along columns, which the weight gradient reads, is another one."""

    stored: float
    reads: float
    by_block: bool

    def shard_bytes(self, copied: bool) -> float:
        """Read the wide tensor, write it narrow, `copied` along rows and columns in one kernel [bytes]."""
        return WIDE_BYTES * self.reads + self.stored * (2.0 if copied else 1.0)

    def bytes_moved(self, split: Array, architecture: Architecture, trained: bool = True) -> Array:
        """Bytes moved for each value of an operand that `split` ranks hold in parts and gather narrow [bytes].

        One tensor-wide scale on Hopper and Ada: rows are gathered, then transposed; Blackwell's products read either
        layout. Scales by block: both copies are made of the parts and gathered. `trained`: the weight gradient needs
        the copy along columns. Source: TransformerEngine 0bd7f52 and 41f6cbf, docs/features/low_precision_training,
        performance_considerations.rst and fp8_current_scaling.rst.
        """
        if self.by_block:
            return self.shard_bytes(trained) / split
        transposed = trained and architecture is not Architecture.BLACKWELL
        behind = 2.0 * self.stored * transposed
        return np.where(split > 1, self.shard_bytes(False) / split + behind, self.shard_bytes(transposed))


def _operand(precision: Precision, reads: float, by_block: bool) -> Operand:
    return Operand(RECIPES[precision].operand_bytes, reads, by_block)


# NVFP4 scales by the tensor's largest value too.
OPERANDS = {
    Precision.FP8: _operand(Precision.FP8, 1.0, by_block=False),
    Precision.FP8_CS: _operand(Precision.FP8_CS, 2.0, by_block=False),
    Precision.FP8_MX: _operand(Precision.FP8_MX, 1.0, by_block=True),
    Precision.FP8_BLOCKWISE: _operand(Precision.FP8_BLOCKWISE, 1.0, by_block=True),
    Precision.NVFP4: _operand(Precision.NVFP4, 2.0, by_block=True),
}
