"""Which messages does tensor parallelism send in a layer and in an update of whole matrices, and what hides them?

Left out: the vocabulary-parallel embedding and loss, gathers of shards behind a pipeline's boundary (`pipeline.py`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.cut import LayerShape
from planner.cost.messages.message import HiddenBy, Message
from planner.cost.messages.sizes import (
    gathered_width,
    indexer_bytes,
    stream_bytes,
    tensor_parallel_regions,
    whole_qkv_bytes,
)
from planner.cost.network.collectives import CollectiveKind
from planner.cost.network.traffic import group_links
from planner.spec.layer import Layer
from planner.spec.machine.links import LinkRates
from planner.spec.precision import RECIPES
from planner.spec.rule import Problem

Array = NDArray[np.float64]


def tensor_messages(problem: Problem, rates: LinkRates, layer: Layer, x: LayerShape) -> tuple[Message, ...]:
    """An all-gather and a reduce-scatter around attention and around the MLP (with experts only around their shared
    part), all-reduces without sequence parallelism (Korthikanti 2022, arXiv 2205.05198, section 4.2.2), in either pass.

    Products hide them but for the stack's exposed share, which is above 1 where they take longer than the link model
    says. Whole queries, keys and values are gathered in one pass and scattered in the other, half of both in either,
    under nothing (`whole_qkv_bytes`); so are an indexer's inputs gathered and its targets summed (`indexer_bytes`).
    """
    if not np.any(x.t > 1):
        return ()
    hidden, width = float(problem.model.hidden), RECIPES[problem.job.precision].activation_bytes
    comm, regions = problem.stack.communication, tensor_parallel_regions(layer)
    group, sharded, many = group_links(1.0, x.t, problem.cluster), x.sequence_split > 1, x.t > 1
    exposed = np.where(x.t > group.local, comm.tp_exposed_nodes, comm.tp_exposed)
    gather, scatter, reduce = (
        Message("tp", kind, "hidden_states", stream_bytes(x.tokens, hidden, width), group, rates)
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)
    )
    again = replace(gather, what="inputs_gathered_again", hidden_by=HiddenBy.UNCOUNTED)
    own = regions * sharded
    again = again.called(0.0, own * gathers_inputs_again(problem))
    gather = replace(gather, size=stream_bytes(x.tokens, hidden, gathered_width(problem)))
    found = [
        replace(
            one.called(calls, calls),
            hidden_by=HiddenBy.PRODUCTS,
            factor=np.maximum(exposed, 1.0),
            least=np.minimum(exposed, 1.0),
        )
        for one, calls in ((gather, own), (scatter, own), (reduce, regions * (~sharded & many)))
    ]
    found.append(again)
    bare = replace(gather, hidden_by=HiddenBy.NOTHING)
    if comm.gathers_qkv and layer.attention is not None:
        whole = whole_qkv_bytes(problem, layer, x.tokens, x.t, width)
        half = np.where(np.asarray(whole) > 0, 0.5, 0.0)
        qkv = replace(bare, what="queries_keys_values", size=whole).called(half, half)
        found += [qkv, replace(qkv, kind=CollectiveKind.REDUCE_SCATTER)]
    if layer.attention is not None and layer.attention.indexer is not None:
        inputs, targets = indexer_bytes(layer.attention, hidden, x.tokens, width)
        found.append(replace(bare, what="inputs_of_indexers", size=inputs).called(sharded, 0.0))
        sums = replace(bare, what="targets_of_indexers", kind=CollectiveKind.ALL_REDUCE, size=targets)
        found.append(sums.called(0.0, many))
    return tuple(found)


def momentum_message(
    problem: Problem, rates: LinkRates, elements: float, ranks: Array, expert: bool
) -> Message:
    """The gather of the fp32 momentum of a matrix of so many elements that `ranks` divide (n,), by the optimizer that
    works on whole matrices (`cost/muon.py`), under nothing."""
    group = group_links(1.0, ranks, problem.cluster)
    message = Message(
        "etp" if expert else "tp", CollectiveKind.ALL_GATHER, "momentum_of_matrices", 4.0 * elements, group, rates,
        term="optimizer",
    )  # fmt: skip
    return message.called(0.0, ranks > 1)


def gathers_inputs_again(problem: Problem) -> bool:
    """Are column-parallel inputs kept as shards and gathered a second time for their weight gradients?

    Megatron-Core does (tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication.backward; Korthikanti
    et al. 2022, arXiv 2205.05198, section 4.2.2), and nanotron; autograd of torch keeps the gathered input. The gather
    runs under the product of the input gradient: the cost takes it as hidden, the bytes cross the links all the same.
    """
    return problem.stack.engine.gathers_inputs_again and not problem.stack.kernels.code.keeps_gathered
