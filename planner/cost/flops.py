"""How many FLOPs does a step need: per matrix product, per model?

Sums over the lists of operations (`operations/`). A multiply-add is 2 FLOP. Left out: norms, activations, rotary
rotation and softmax, which are bound by bytes moved and belong to the time model; recomputation, which belongs to a
configuration; frameworks' own counts (`mfu.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from planner.cost.operations import embedding_and_loss
from planner.cost.operations.lists import model_operations
from planner.cost.operations.operation import Gemm, Operation, gemm_flops
from planner.spec.layer import Layer
from planner.spec.model import ModelSpec


def outer_gemms(model: ModelSpec) -> tuple[Gemm, ...]:
    """Products outside the layers."""
    return tuple(op.product for op in embedding_and_loss.operations(model) if op.product is not None)


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs of one forward and backward pass over a batch.

    `forward_linear`: all matrix products with weights, experts included, and those that mix residual streams.
    `forward_attention`: full square, windows and what an indexer chooses ignored. `forward_scan`: of state spaces
    alone. `forward_indexer`: scores of indexers over the full square. `backward`: 2 x forward (one product for the
    input's gradient, one for the weight's), on the full square; of indexers what their loss needs
    (`indexer_backward_flops`).
    """

    forward_linear: float
    forward_attention: float
    forward_scan: float
    forward_indexer: float
    backward: float

    def as_mapping(self) -> dict[str, float]:
        """The keys of `planner model --json`."""
        return {
            "flops_forward_linear": self.forward_linear,
            "flops_forward_attention": self.forward_attention,
            "flops_forward_scan": self.forward_scan,
            "flops_forward_indexer": self.forward_indexer,
            "flops_backward": self.backward,
        }


def layer_counts(model: ModelSpec) -> list[tuple[Layer, int]]:
    """Distinct layers of one block and how often each runs, multi-token-prediction modules included."""
    counts = Counter(model.layer_kind_of)
    counts.update(dict(model.mtp_kinds))
    kinds = ((model.layer_kinds[index], count) for index, count in sorted(counts.items()))
    return [(block, count) for layer, count in kinds for block in layer.blocks]


def model_flops(model: ModelSpec, batch: float, seq: float) -> ModelFlops:
    """FLOPs of one step over `batch` sequences of `seq` tokens, without recomputation [FLOP].

    Linear: 2 x tokens x active matrix parameters. Attention: 2 b s^2 a (d_qk + d_v) per layer. Agrees with
    counts made on the transformers implementations to the last FLOP. Integers in, integers out.
    """
    forward: dict[str, float] = dict.fromkeys(("linear", "core_attn", "scan", "indexer"), 0)
    backward: float = 0
    for ops, count in [(embedding_and_loss.operations(model), 1), *model_counts(model)]:
        for op in ops:
            if op.product is not None:
                ahead = count * gemm_flops(op.product, batch * seq)
                forward["linear"] += ahead
                backward += 0 if op.product.detached else 2 * ahead
            if op.flops is not None:
                ahead = count * op.flops(batch, seq)
                forward[op.name if op.name in forward else "linear"] += ahead
                backward += 2 * ahead if op.flops_back is None else count * op.flops_back(batch, seq)
    return ModelFlops(forward["linear"], forward["core_attn"], forward["scan"], forward["indexer"], backward)


def model_counts(model: ModelSpec) -> list[tuple[Sequence[Operation], int]]:
    """Operations of every distinct layer of one block, and how often each runs."""
    return [(model_operations(layer, model.hidden), count) for layer, count in layer_counts(model)]
