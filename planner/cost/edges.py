"""How long do the embedding and the head with its loss take, and what do they keep?

One value per distinct key of `LayerModel.columns`. Left out: messages of a vocabulary split over tensor-parallel ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.cut import LayerShape
from planner.cost.device.products import ProductModel, key_groups
from planner.cost.flops import outer_gemms
from planner.cost.host import HostModel
from planner.cost.network.overlap import soft_maximum
from planner.cost.operations.embedding_and_loss import (
    HeadActivations,
    head_activations,
    loss_bytes,
    side_bytes,
)
from planner.spec.config import ConfigTable, CudaGraphs
from planner.spec.rule import Problem
from planner.spec.stack.losses import Eager

Array = NDArray[np.float64]

# Launches of the embedding, in units of a layer's: vTrain's toy models give 0.3 at tp 2 to 8, see `spec.stack.losses`.
EMBEDDING_LAUNCHES = 0.3


@dataclass(frozen=True)
class EdgeCost:
    """Embedding and head with loss. `embedding`, `head`: forward and backward seconds; `head_gemm`: the share in
    matrix products; `memory`: bytes that head and loss keep and need; `stream`: bytes of a layer's input."""

    embedding: Array
    head: Array
    head_gemm: Array
    memory: HeadActivations
    stream: Array

    def in_proportion(self, known: EdgeCost, formula: EdgeCost, cut: NDArray[np.bool_]) -> EdgeCost:
        """Those `known` of a whole model, but of keys that `cut` it these, as much above or below what formulas say as
        the whole model's are above or below its `formula`."""

        def scaled(own: Array, one: Array, other: Array) -> Array:
            return np.asarray(own * np.divide(one, other, out=np.ones_like(own), where=other > 0))

        most, usual = (of.memory.inputs + of.memory.kept + of.memory.transient for of in (known, formula))
        memory = HeadActivations(
            *(
                np.where(
                    cut, scaled(getattr(self.memory, one.name), most, usual), getattr(known.memory, one.name)
                )
                for one in fields(HeadActivations)
            )
        )
        seconds = {
            name: np.where(
                cut, scaled(*(getattr(of, name) for of in (self, known, formula))), getattr(known, name)
            )
            for name in ("embedding", "head", "head_gemm")
        }
        return replace(self, **seconds, memory=memory)


def padded_vocabulary(problem: Problem, t: Array) -> Array:
    """Vocabulary rounded up to the stack's multiple times t (--make-vocab-size-divisible-by of Megatron-LM, nanotron's
    make_vocab_size_divisible_by) [1]."""
    multiple = problem.stack.engine.pads_vocabulary
    if not multiple:
        return np.full(np.shape(t), float(problem.model.vocab))
    return np.ceil(problem.model.vocab / (multiple * t)) * multiple * t


class EdgeModel:
    """Binds a problem, its products and its host; evaluates both ends of the model for a table of distinct keys."""

    def __init__(self, problem: Problem, products: ProductModel, host: HostModel) -> None:
        self.problem, self.products, self.host, self.rates = problem, products, host, products.rates

    def cost(self, keys: ConfigTable, x: LayerShape, longest: LayerShape) -> EdgeCost:
        """Of both ends; `x`: the cut of a micro-batch as computed, `longest`: as memory must hold it."""
        problem, model, act = self.problem, self.problem.model, self.rates.recipe.activation_bytes
        vocabulary = padded_vocabulary(problem, x.t)
        loss = problem.stack.kernels.loss
        parts = loss.parts(x.tokens, vocabulary / x.t, model.hidden)
        products = self._products(keys, x, vocabulary, parts)
        table, logits = self._passes(x, vocabulary, parts)
        host, softness = self.host.dense(x.t), problem.stack.engine.launch_softness
        host = np.where(keys["cuda_graph_impl"] == CudaGraphs.FULL_ITERATION, 0.0, host)
        launches = loss.launches(parts) * (1 + model.mtp_layers)
        trained = problem.job.lora_rank is None
        return EdgeCost(
            embedding=soft_maximum(table, EMBEDDING_LAUNCHES * host, softness),
            head=soft_maximum(products + logits, launches * host, softness),
            head_gemm=products,
            memory=head_activations(
                vocabulary, model, longest, problem.stack.kernels, self.rates.recipe, trained
            ),
            stream=act * longest.tokens * model.hidden * model.passed_streams / longest.sequence_split,
        )

    def _products(self, keys: ConfigTable, x: LayerShape, vocabulary: Array, parts: Array) -> Array:
        """The head's products, in `parts`, and those of the embedding's own inputs, forward and backward [s]."""
        total, groups = np.zeros(len(keys)), key_groups(keys)
        ahead = self.problem.stack.kernels.loss.forward_products
        part = replace(x, tokens=x.tokens / parts)
        for gemm in outer_gemms(self.problem.model):
            head = gemm.name == "head"
            outputs = vocabulary / x.t if head else None
            seconds = self.products.gemm(gemm, part if head else x, groups, narrow=False, outputs=outputs)
            times, made = (parts, ahead * parts) if head else (1.0, 1.0)
            total = total + made * seconds.forward
            total = total + times * seconds.input_gradient + times * seconds.weight_gradient
        return total

    def _passes(self, x: LayerShape, vocabulary: Array, parts: Array) -> tuple[Array, Array]:
        """Memory passes of the embedding, and of the losses, forward and backward [s]; every prediction module has a
        loss and embeds its tokens. A loss in `parts` adds up gradients of the head's weight, where that is trained."""
        model = self.problem.model
        kernels = self.problem.stack.kernels
        act = self.rates.recipe.activation_bytes
        factor = self.problem.stack.compute.memory_bound
        single = kernels.code.single and isinstance(kernels.loss, Eager)
        multiplied = any(layer.multiplied for layer in model.layer_kinds)
        per_logit = (
            loss_bytes(act, multiplied, model.capped_logits) if single else kernels.loss.passes_bytes(act)
        )
        # whole logits are gathered, then laid together (read and written once)
        each = per_logit + 2.0 * act * (x.t > 1) if kernels.loss.whole else per_logit / x.t
        logits = each * x.tokens * vocabulary
        if self.problem.job.lora_rank is None:
            width = kernels.loss.sum_bytes(act, self.problem.stack.engine.sent_gradient)
            logits = logits + width * parts * vocabulary / x.t * model.hidden
        stream = act * x.tokens * model.hidden / x.sequence_split
        own = x.tokens * model.side_width
        read = 8.0 * (stream + act * own) + (side_bytes(act) if single else 12.0 * act) * own
        losses = (1 + model.mtp_layers) * logits + 8.0 * model.mtp_layers * stream
        table, loss = (factor * self.rates.moving(moved) for moved in (read, losses))
        return table, loss
