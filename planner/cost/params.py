"""How many parameters has the model, by kind, by layer, and by how parallelism divides them?

Exact to the last parameter: sums over the lists of operations (`operations/`). Left out: buffers (balance-correction
biases, rotary tables), and padding of the vocabulary, which is a choice of the framework.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from planner.cost.operations import embedding_and_loss, experts
from planner.cost.operations.lists import model_operations
from planner.cost.operations.operation import NO_PARAMETERS, Weights
from planner.spec.layer import Layer
from planner.spec.mixers import MIXERS
from planner.spec.model import ModelSpec
from planner.spec.residual import RESIDUALS

KINDS = (
    "embedding",
    "position",
    "attention",
    "indexer",
    *(mixer.kind for mixer in MIXERS),
    "mlp",
    "experts",
    "shared_experts",
    "router",
    "layer_inputs",
    *dict.fromkeys(residual.kind for residual in RESIDUALS),
    "norms",
    "final_norm",
    "head",
    "mtp",
)


@dataclass(frozen=True)
class ModelParameters:
    """`total`: trained parameters, tied ones once. `active`: met by one token. `by_kind`: keys `KINDS`."""

    total: int
    active: int
    by_kind: dict[str, int] = field(hash=False)


def layer_parameters(layer: Layer, hidden: int) -> Weights:
    """Parameters of one layer by how tensor and expert parallelism divide them [parameters].

    Norms as wide as all heads (QkNorm.FULL) are counted as replicated.
    """
    return sum((op.weights for op in model_operations(layer, hidden)), NO_PARAMETERS)


def outer_parameters(model: ModelSpec) -> Counter[str]:
    """Parameters outside the layers, by kind [parameters]."""
    found: Counter[str] = Counter()
    for op in embedding_and_loss.operations(model):
        found[op.kind] += op.weights.total
    return found


def inactive_parameters(layer: Layer, hidden: int) -> int:
    """Routed-expert parameters that one token does not meet, a mean with experts that compute nothing [parameters]."""
    return sum(
        experts.inactive_parameters(block.moe, hidden) for block in layer.blocks if block.moe is not None
    )


def model_parameters(model: ModelSpec) -> ModelParameters:
    """All parameters of the model: total, active per token, by kind [parameters]."""
    by_kind, inactive = dict.fromkeys(KINDS, 0) | outer_parameters(model), 0
    for counts, kind in ((Counter(model.layer_kind_of), ""), (dict(model.mtp_kinds), "mtp")):
        for index, count in counts.items():
            inactive += count * inactive_parameters(model.layer_kinds[index], model.hidden)
            for op in model_operations(model.layer_kinds[index], model.hidden):
                if op.kind:
                    by_kind[kind or op.kind] += count * op.weights.total
    total = sum(by_kind.values())
    return ModelParameters(total=total, active=total - inactive, by_kind=by_kind)
