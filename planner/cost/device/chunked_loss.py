"""What does a loss cost that never holds all logits: how many parts of them, which bytes beside the head's products?

Every part is a product of few rows, read from the same tables as any other, and gives the head's weight a gradient of
its own, which is added to that of the parts before it. Left out: Liger's wait for the device, one a micro-batch.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.spec.stack.kinds import CrossEntropy
from planner.spec.stack.time import Kernels

Array = NDArray[np.float64]
Quantity = Any  # a float or a float64 column

# Liger's kernel reads a part of the logits twice, for the softmax's sum and for the gradient, which it writes over them
# (linkedin/Liger-Kernel@ead96b6 ops/cross_entropy.py liger_cross_entropy_kernel).
LINEAR_PASSES: Final = 3.0
# Of every part: three products, its loss, a copy of the input's gradient, a cast of the weight's and its sum.
LINEAR_LAUNCHES: Final = 7.0
FP32: Final = 4.0


def is_chunked(kernels: Kernels) -> bool:
    """Is the loss computed on one part of the logits after the other?"""
    return kernels.cross_entropy in (CrossEntropy.CHUNKED, CrossEntropy.LINEAR)


def loss_parts(kernels: Kernels, tokens: Array, vocabulary: Quantity, hidden: int) -> Array:
    """Parts of a micro-batch of `tokens` on a rank that has so much of the vocabulary [1].

    Liger's have a power of two of rows, whose logits are about as large as all hidden states: rows =
    2^ceil(log2(T / ceil(V / h))), parts = T / rows (linkedin/Liger-Kernel@ead96b6 ops/fused_linear_cross_entropy.py).
    """
    if not is_chunked(kernels):
        return np.ones_like(tokens)
    if kernels.cross_entropy is CrossEntropy.CHUNKED:
        return np.full_like(tokens, float(kernels.loss_chunks))
    rows = np.exp2(np.ceil(np.log2(np.ceil(tokens / np.ceil(vocabulary / hidden)))))
    return np.asarray(np.ceil(tokens / rows))


def sum_bytes(kernels: Kernels, activation_bytes: float, gradient_bytes: float) -> float:
    """Device memory moved to add a part's gradient of the head's weight to the others' [bytes/weight].

    Liger casts the part's to fp32 and adds that to a sum in the weight's width a: read a, write 4; read a and 4, write
    a. Before v0.6.2 the product itself added: 2 a. PyTorch and XLA read it, and read and write a sum in the width that
    is reduced (pytorch fsdp/_fully_shard/_fsdp_param.py accumulate_unsharded_grad_if_needed; maxtext
    utils/vocabulary_tiling.py _bwd_scan_body).
    """
    if kernels.cross_entropy is not CrossEntropy.LINEAR:
        return activation_bytes + 2.0 * gradient_bytes
    return 2.0 * activation_bytes if kernels.loss_adds_in_product else 3.0 * activation_bytes + 2.0 * FP32


def gradient_temporaries(kernels: Kernels, activation_bytes: float) -> float:
    """Held at a part's end by Liger's loss beside the logits: the sum of gradients of the head's weight, and unless the
    product adds to it the part's own, and that in fp32 [bytes/weight]; the latter two are 3,072 MiB for 131,072 x 4,096
    (linkedin/Liger-Kernel#1239)."""
    return activation_bytes if kernels.loss_adds_in_product else 2.0 * activation_bytes + FP32
