"""How does a stack compute its loss: what does it keep of the logits, need, move and launch? A variant for each way.

Left out: the head's products and the seconds of what is moved (`cost/edges.py`), the norm before the head.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from planner.spec.stack.kinds import CrossEntropy
from planner.spec.stack.section import Section, of_a_kind

Array = NDArray[np.float64]
Quantity = Any  # a float or a float64 column

FP32: Final = 4.0
# Copies of the logits alive at the peak of PyTorch's loss, in its backward pass (measured in fp32: 12 bytes a logit).
COPIES: Final = 3.0
# Logits cast to fp32 (read 2, write 4), maximum and sum of exponents (read 4 + 4), gradient (read 4, write 4), cast
# back (write 2), forward and backward [bytes per logit].
PASSES_BYTES: Final = 24.0
# Liger's kernel reads a part of the logits twice, for the softmax's sum and for the gradient, which it writes over them
# (linkedin/Liger-Kernel@ead96b6 ops/cross_entropy.py liger_cross_entropy_kernel).
LINEAR_PASSES: Final = 3.0
# Of every part: three products, its loss, a copy of the input's gradient, a cast of the weight's and its sum; and those
# of a layer, forward and backward, in the same count.
LINEAR_LAUNCHES, LAYER_LAUNCHES = 7.0, 116.0


class Logits(NamedTuple):
    """What a rank's loss works on at a time. `held`: logits in the width of activations, `act` bytes each, `values` of
    them; `stream`: the head's input; `beside`: what else is alive [bytes]; `weights`: of the head that are trained;
    `split`: ranks that share the vocabulary [1]."""

    held: Array
    values: Array
    stream: Array
    beside: Array
    weights: Array
    split: Array
    act: float


class Loss(Section):
    """What every way has. `whole`: whether every tp rank holds the logits of the whole vocabulary. `of_layer`: kernels
    of head and loss over those of a layer [1]; vTrain's toy models, whose times are exact sums, give 1.0 at tp 2 to 8.
    """

    whole: ClassVar[bool] = False
    of_layer: ClassVar[float] = 1.0

    kept_logits: float = Field(
        0.0, ge=0, le=16, description="bytes per logit that every tp rank holds beside"
    )

    def parts(self, tokens: Array, vocabulary: Quantity, hidden: int) -> Array:
        """Parts of a micro-batch of `tokens`, one after the other, on a rank that has so much of the vocabulary [1]."""
        return np.ones_like(tokens)

    @property
    def forward_products(self) -> float:
        """How often the head's forward product runs [1]."""
        return 1.0

    def launches(self, parts: Array) -> Array:
        """Launches of head and loss, in units of a layer's [1]."""
        return np.full_like(parts, self.of_layer)

    def passes_bytes(self, act: float) -> float:
        """Moved forward and backward, of activations `act` bytes wide [bytes per logit]."""
        return PASSES_BYTES

    def sum_bytes(self, act: float, gradient: float) -> float:
        """Moved to add a part's gradient of the head's weight to the others', which are reduced in so many bytes
        [bytes per weight]."""
        return 0.0

    def held(self, x: Logits) -> tuple[Array, Array, Array]:
        """Kept until the backward pass, above it at the loss's peak, and when the head's own backward pass starts
        [bytes]."""
        raise NotImplementedError


def _unfused(x: Logits, wide: Array, peak: float | Array) -> tuple[Array, Array, Array]:
    """On all logits at once, `wide` bytes of them: keeps log-probabilities, peaks at `peak` times as much."""
    return wide, (peak - 1) * wide + x.beside, x.held


class Eager(Loss):
    """By PyTorch's operations on logits that every tp rank gathers whole. `peak`: copies alive at most, and blocks of
    their size that something small keeps from them."""

    whole: ClassVar[bool] = True

    kind: Literal[CrossEntropy.EAGER] = CrossEntropy.EAGER
    logit_bytes: float = Field(FP32, ge=2, le=4, description="bytes per logit that it works on")
    peak: float = Field(COPIES, ge=1, le=6, description="copies of the logits alive at its peak")

    def held(self, x: Logits) -> tuple[Array, Array, Array]:
        return _unfused(x, self.logit_bytes * x.values, self.peak)


class VocabParallel(Loss):
    """In fp32 on logits that tp ranks split; on those of a rank alone PyTorch's own at most."""

    kind: Literal[CrossEntropy.VOCAB_PARALLEL] = CrossEntropy.VOCAB_PARALLEL
    peak: float = Field(COPIES, ge=1, le=6, description="copies of the logits alive at its peak")

    def held(self, x: Logits) -> tuple[Array, Array, Array]:
        return _unfused(x, FP32 * x.values, np.where(x.split > 1, self.peak, min(self.peak, COPIES)))


class Compiled(Loss):
    """The same in functions that a compiler fuses, with copies between them (Megatron-LM's native fusion): as many as
    PyTorch's. Of two peaks of NeMo (logs of NVIDIA/dgxc-benchmarking, llama3 8B) 10 and 14 bytes a logit are left for
    the loss, 12 counted."""

    kind: Literal[CrossEntropy.COMPILED] = CrossEntropy.COMPILED

    def held(self, x: Logits) -> tuple[Array, Array, Array]:
        return _unfused(x, FP32 * x.values, COPIES)


class Fused(Loss):
    """In place on logits in the width of activations: those and their gradient."""

    of_layer: ClassVar[float] = 0.5

    kind: Literal[CrossEntropy.FUSED] = CrossEntropy.FUSED

    def held(self, x: Logits) -> tuple[Array, Array, Array]:
        return x.held, x.held + x.beside, 2 * x.held


class Remade(Loss):
    """In functions that XLA fuses: logits in the width of activations, and their gradient beside them; exponents, which
    MaxText's derivative reads in fp32 (utils/max_utils.py _cross_entropy_with_logits_fwd), are made again where they
    are read. Of 8B's buffers on TPUs (`benchmarks/xla_memory.py`) 4 bytes a logit are there at the peak."""

    kind: Literal[CrossEntropy.REMADE] = CrossEntropy.REMADE

    def held(self, x: Logits) -> tuple[Array, Array, Array]:
        return x.held, x.held + x.beside, x.held


class Chunked(Loss):
    """PyTorch's or XLA's loss of one part of the logits after the other; keeps the gradient of the head's input. Every
    part is a product of few rows, and gives the head's weight a gradient of its own."""

    kind: Literal[CrossEntropy.CHUNKED] = CrossEntropy.CHUNKED
    number: int = Field(8, ge=1, description="parts of the logits")
    makes_again: bool = Field(False, description="the backward pass makes the logits again (MaxText)")

    def parts(self, tokens: Array, vocabulary: Quantity, hidden: int) -> Array:
        return np.full_like(tokens, float(self.number))

    @property
    def forward_products(self) -> float:
        return 1.0 + self.makes_again

    def sum_bytes(self, act: float, gradient: float) -> float:
        """Read it, read and write a sum in the width that is reduced (pytorch fsdp/_fully_shard/_fsdp_param.py
        accumulate_unsharded_grad_if_needed; maxtext utils/vocabulary_tiling.py _bwd_scan_body)."""
        return act + 2.0 * gradient

    def held(self, x: Logits) -> tuple[Array, Array, Array]:
        return x.stream, COPIES * FP32 * x.values + x.beside, x.held


class Linear(Loss):
    """Makes each part of the logits, about as large as the hidden states, differentiates it in place and forgets it
    (Liger's fused linear cross-entropy). Before 0.6.2 the product that makes a part's gradient of the head's weight
    added it to the sum. Left out: its wait for the device, one a micro-batch."""

    kind: Literal[CrossEntropy.LINEAR] = CrossEntropy.LINEAR
    adds_in_product: bool = Field(False, description="products add up gradients of the head's weight")

    def parts(self, tokens: Array, vocabulary: Quantity, hidden: int) -> Array:
        """Of a power of two of rows: rows = 2^ceil(log2(T / ceil(V / h))), parts = T / rows
        (linkedin/Liger-Kernel@ead96b6 ops/fused_linear_cross_entropy.py)."""
        rows = np.exp2(np.ceil(np.log2(np.ceil(tokens / np.ceil(vocabulary / hidden)))))
        return np.asarray(np.ceil(tokens / rows))

    def launches(self, parts: Array) -> Array:
        return LINEAR_LAUNCHES * parts / LAYER_LAUNCHES

    def passes_bytes(self, act: float) -> float:
        return LINEAR_PASSES * act

    def sum_bytes(self, act: float, gradient: float) -> float:
        """Casts the part's to fp32 and adds that to a sum in the weight's width a: read a, write 4; read a and 4, write
        a; 2 a where the product adds."""
        return 2.0 * act if self.adds_in_product else 3.0 * act + 2.0 * FP32

    def held(self, x: Logits) -> tuple[Array, Array, Array]:
        """At a part's end the sum of gradients of the head's weight, and unless the product adds to it the part's own,
        and that in fp32; the latter two are 3,072 MiB for 131,072 x 4,096 (linkedin/Liger-Kernel#1239)."""
        temporaries = x.act if self.adds_in_product else 2.0 * x.act + FP32
        return x.stream, x.held + temporaries * x.weights, x.stream


AnyLoss = Eager | VocabParallel | Compiled | Fused | Remade | Chunked | Linear
LOSSES: Final[dict[CrossEntropy, type[AnyLoss]]] = {
    kind.model_fields["kind"].default: kind for kind in get_args(AnyLoss)
}
OneLoss = Annotated[AnyLoss, Field(discriminator="kind"), of_a_kind(CrossEntropy)]
