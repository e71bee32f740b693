"""How many parameters has the model, by kind, by layer, and by how parallelism divides them?

Exact to the last parameter: sums over the lists of operations (`operations/`). Left out: buffers (balance-correction
biases, rotary tables), and padding of the vocabulary, which is a choice of the framework.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from planner.cost.operations import experts
from planner.cost.operations.lists import model_operations
from planner.cost.operations.operation import NO_PARAMETERS, Weights
from planner.spec.layer import Layer
from planner.spec.model import ModelSpec

KINDS = (
    "embedding",
    "position",
    "attention",
    "indexer",
    "state_space",
    "delta_net",
    "lightning_attention",
    "short_convolution",
    "mlp",
    "experts",
    "shared_experts",
    "router",
    "layer_inputs",
    "residual_streams",
    "attention_residuals",
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


def embedding_parameters(model: ModelSpec) -> int:
    """Token embedding, the widening projection of OPT-350m and tables of layers' own inputs included [parameters]."""
    projected = model.embedding_width != model.hidden
    own = (model.side_vocab + model.hidden) * model.side_width
    return (
        model.vocab * model.embedding_width + (model.embedding_width * model.hidden if projected else 0) + own
    )


def position_parameters(model: ModelSpec) -> int:
    """Learned position table [parameters]."""
    return model.position_rows * model.hidden


def rotation_parameters(model: ModelSpec) -> int:
    """Factors of the frequencies with which pairs of channels turn, one set for all layers (transformers 5.24
    models/mistral_large4/modeling_mistral_large4.py MistralLarge4TextRotaryEmbedding.alpha) [parameters].

    Counted on the first stage; every later one holds them once more, 32 numbers of Mistral Large 4.
    """
    return model.rotary_scales


def head_parameters(model: ModelSpec) -> int:
    """Output projection [parameters]; its weight is 0 where it is tied to the embedding."""
    projected = model.embedding_width != model.hidden
    weight = 0 if model.tied_embeddings else model.vocab * model.embedding_width
    narrowing = model.hidden * model.embedding_width if projected else 0
    return weight + narrowing + (model.vocab if model.head_bias else 0)


def outer_norm_parameters(model: ModelSpec) -> int:
    """The norm before the head, the one after the embedding and that of layers' own inputs, where they exist
    [parameters]."""
    scale = model.hidden * (1 + model.norm_bias) if model.norm_weight else 0
    return scale * (model.final_norm + model.embedding_norm) + max(layer.side for layer in model.layer_kinds)


def last_stream_parameters(model: ModelSpec) -> int:
    """What sums the residual streams up before the head: a projection, its biases, a scale [parameters]."""
    n = model.streams
    return n * (n * model.hidden + 1) + 1 if n > 1 else 0


def last_residual_parameters(model: ModelSpec) -> int:
    """The query and the norm of keys with which attention residuals make what the head reads [parameters]."""
    return 2 * model.hidden * model.attends_to_residuals


def mtp_parameters(model: ModelSpec) -> int:
    """Multi-token-prediction modules without the shared embedding and head [parameters].

    Each: its layers, a projection 2 hidden -> hidden, three norms (of the previous hidden state, of the next token's
    embedding, before the head). Liu et al. 2024, arXiv 2412.19437, section 2.2. Of residual streams each also has what
    sums them up (Megatron-Bridge models/deepseek/deepseek_v4_bridge.py: hc_head of a prediction layer).
    """
    scale = model.hidden * (1 + model.norm_bias) if model.norm_weight else 0
    layers = sum(n * layer_parameters(model.layer_kinds[k], model.hidden).total for k, n in model.mtp_kinds)
    return layers + model.mtp_layers * (2 * model.hidden**2 + 3 * scale + last_stream_parameters(model))


def inactive_parameters(layer: Layer, hidden: int) -> int:
    """Routed-expert parameters that one token does not meet, a mean with experts that compute nothing [parameters]."""
    return sum(
        experts.inactive_parameters(block.moe, hidden) for block in layer.blocks if block.moe is not None
    )


def model_parameters(model: ModelSpec) -> ModelParameters:
    """All parameters of the model: total, active per token, by kind [parameters]."""
    by_kind = dict.fromkeys(KINDS, 0)
    by_kind["embedding"] = embedding_parameters(model)
    by_kind["position"] = position_parameters(model) + rotation_parameters(model)
    by_kind["final_norm"] = outer_norm_parameters(model)
    by_kind["head"] = head_parameters(model)
    by_kind["mtp"] = mtp_parameters(model)
    by_kind["residual_streams"] = last_stream_parameters(model)
    by_kind["attention_residuals"] = last_residual_parameters(model)
    inactive = 0
    for index, count in Counter(model.layer_kind_of).items():
        inactive += count * inactive_parameters(model.layer_kinds[index], model.hidden)
        for op in model_operations(model.layer_kinds[index], model.hidden):
            if op.kind:
                by_kind[op.kind] += count * op.weights.total
    inactive += sum(n * inactive_parameters(model.layer_kinds[k], model.hidden) for k, n in model.mtp_kinds)
    total = sum(by_kind.values())
    return ModelParameters(total=total, active=total - inactive, by_kind=by_kind)
