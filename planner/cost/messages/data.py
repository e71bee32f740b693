"""Which messages does data parallelism send of a stage's gradients and weights?

Left out: how often in a step, and what stays in sight (`data_parallel.py`); norms of gradients, logged losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.device.updates import trained_tensors
from planner.cost.engines.zero3_gathers import Module
from planner.cost.memory.state_bytes import shard_groups
from planner.cost.messages.message import HiddenBy, Message
from planner.cost.network.collectives import CollectiveKind
from planner.cost.network.traffic import group_links
from planner.spec.config import ConfigTable
from planner.spec.machine.links import LinkRates
from planner.spec.rule import Problem

Array = NDArray[np.float64]
Pair = tuple[Array, Array]  # of dense and of expert parameters


@dataclass(frozen=True)
class StageLoad:
    """What data parallelism carries of a stage, (k,) each. `trained`: parameters that have gradients [1]; `gathered`:
    weights as an all-gather sends them, `again` of these once more for the backward pass under ZeRO 3 [bytes]; `units`:
    layers, embedding and head, taken as equally large [1]; `padding`: what is sent of sharded ones over these [1]."""

    trained: Pair
    gathered: Pair
    again: Pair
    units: Array
    padding: Pair


@dataclass(frozen=True)
class DataMessages:
    """Of a stage once: gradients reduced to shards (ZeRO 1 to 3) or whole (ZeRO 0), and weights gathered."""

    scatter: tuple[Message, ...]
    reduce: tuple[Message, ...]
    gather: tuple[Message, ...]


def data_messages(
    problem: Problem, rates: LinkRates, keys: ConfigTable, copies: Array, load: StageLoad
) -> DataMessages:
    """Those of distinct shardings, of whose stages a rank holds so many `copies` (k,).

    Hybrid sharding gathers and scatters within groups of consecutive ranks, then all-reduces every shard over the
    groups (Zhao 2023, arXiv 2304.11277, section 3.2.2).
    """
    states, cluster = problem.stack.engine, problem.cluster
    t, c, d, e, et = (keys[axis].astype(float) for axis in ("tp", "cp", "dp", "ep", "etp"))
    gradient, bucket = states.sent_gradient, states.reduced_elements
    replicas, expert_replicas = copies * d * c, copies * t * c * d / (e * et)
    shared = shard_groups(keys["hsdp"].astype(float), replicas, expert_replicas)
    sides = (("dp", t, replicas, shared[0]), ("edp", e * et, expert_replicas, shared[1]))
    loads = list(zip(load.trained, load.gathered, load.again, load.padding, sides, strict=True))
    lora = problem.job.lora_rank is not None  # adapters are not padded
    scatter, reduce, gather = list[Message](), list[Message](), list[Message]()
    for size, whole, part, padding, (axis, inner, ranks, shards) in (
        loads if problem.model.is_moe else loads[:1]
    ):
        everyone, inside = (group_links(inner, group, cluster) for group in (ranks, shards))
        sent = np.where(size > 0, np.maximum(load.units, 1.0), 1.0) if states.unit_messages else 1.0
        if states.owners_broadcast:  # of no more ranks than there are tensors
            tensors = sum(trained_tensors(problem))
            sent = np.where(size > 0, np.clip(tensors / keys["pp"], 1.0, ranks), 1.0)
        filled = np.maximum(size / bucket, 1.0) if bucket else 1.0  # all-reduced bucket by bucket
        padded = gradient * size * (1.0 if lora else padding)
        own = Message(
            axis, CollectiveKind.REDUCE_SCATTER, "gradients", padded / sent, inside, rates, 0.0, sent,
            HiddenBy.STAGE, least=0.0, factor=problem.stack.communication.dp_time,
        )  # fmt: skip
        scatter.append(own)
        of_all = replace(own, kind=CollectiveKind.ALL_REDUCE, links=everyone)
        reduce.append(replace(of_all, size=gradient * size / filled, backward=filled))
        kind = CollectiveKind.BROADCAST if states.owners_broadcast else CollectiveKind.ALL_GATHER
        once_more = np.divide(part, whole, out=np.ones_like(whole), where=whole > 0)
        gather.append(
            replace(
                own,
                kind=kind,
                what="weights",
                size=padding * whole / sent,
                forward=sent,
                backward=sent * once_more,
            )
        )
        if (shards < ranks).any():
            across = group_links(inner * shards, ranks / shards, cluster)
            each, what = padded / shards / sent, "gradients_across_hsdp_replicas"
            scatter.append(replace(of_all, size=each, what=what, links=across))
    return DataMessages(tuple(scatter), tuple(reduce), tuple(gather))


def module_messages(
    problem: Problem, rates: LinkRates, keys: ConfigTable, copies: Array, modules: Sequence[Module], width: Array
) -> tuple[Message, ...]:  # fmt: skip
    """Gathers of the weights of `modules`, of `width` bytes a parameter (k,): in one pass through those of a layer
    (`cost.engines.zero3_gathers`)."""
    t, c, d, e, et = (keys[axis].astype(float) for axis in ("tp", "cp", "dp", "ep", "etp"))
    experts, cluster = e * et, problem.cluster
    dense = Message(
        "dp", CollectiveKind.ALL_GATHER, "weights", width, group_links(t, copies * d * c, cluster), rates,
        hidden_by=HiddenBy.STAGE, least=0.0, factor=problem.stack.communication.dp_time,
    )  # fmt: skip
    expert = replace(dense, axis="edp", links=group_links(experts, copies * t * c * d / experts, cluster))
    found = []
    for one in modules:
        calls = one.repeats / (e if one.expert else np.ones_like(e))
        message = expert if one.expert else dense
        found.append(replace(message, size=width * one.size, forward=calls, backward=calls))
    return tuple(found)


def bucket_message(
    problem: Problem, rates: LinkRates, keys: ConfigTable, copies: Array, trained: Array, calls: Array
) -> Message:
    """Reductions of so many trained parameters, of dense and expert ones in one bucket, in so many calls (k,)."""
    t, c, d = (keys[axis].astype(float) for axis in ("tp", "cp", "dp"))
    group = group_links(t, copies * d * c, problem.cluster)
    size = problem.stack.engine.sent_gradient * trained / calls
    return Message(
        "dp", CollectiveKind.REDUCE_SCATTER, "gradients", size, group, rates, 0.0, calls, HiddenBy.STAGE,
        least=0.0, factor=problem.stack.communication.dp_time,
    )  # fmt: skip


def embedding_message(problem: Problem, rates: LinkRates, keys: ConfigTable, copied: Array) -> Message:
    """The all-reduce between the first and the last stage that keeps two copies of an embedding of `copied` parameters
    alike (k,), of whole gradients in the width in which they are kept, behind all other reductions (Megatron-LM d98e8a6
    core/distributed/finalize_model_grads.py, `_allreduce_word_embedding_grads`; DeepSpeed runtime/pipe/module.py,
    allreduce_tied_weight_gradients)."""
    trained = copied * (problem.job.lora_rank is None)
    width = keys["tp"].astype(float) * keys["cp"] * keys["dp"]
    group = group_links(np.maximum((keys["pp"] - 1) * width, 1.0), np.full(len(keys), 2.0), problem.cluster)
    return Message(
        "pp", CollectiveKind.ALL_REDUCE, "gradients_of_the_replicated_embedding",
        problem.stack.engine.gradient * trained, group, rates,
        factor=problem.stack.communication.dp_time, term="dp_comm",
    ).called(0.0, trained > 0)  # fmt: skip
