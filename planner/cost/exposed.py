"""How long is a layer's communication in sight, after what hides it: over tp, cp and ep?

One value per distinct key. Left out: pipeline messages (`cost/levels.py`) and data parallelism (`pipeline/step.py`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.cut import LayerShape
from planner.cost.network.collectives import (
    ANY_GROUP,
    DISPATCH_COPIES,
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    dispatch_time,
    neighbour_time,
    reduce_scatter_time,
    remote_copies,
)
from planner.cost.network.context import FP32, context_kinds, gathers_in_ring
from planner.cost.network.messages import (
    gathered_width,
    indexer_bytes,
    key_value_bytes,
    query_output_bytes,
    stream_bytes,
    tensor_parallel_regions,
    whole_qkv_bytes,
)
from planner.cost.network.traffic import GroupLinks, Quantity, group_links
from planner.cost.operations.state_space import cut_of, exchanged_bytes
from planner.spec.config import ConfigTable, ContextKind
from planner.spec.layer import Layer, Moe
from planner.spec.machine.accelerator import LinkKind
from planner.spec.machine.links import LinkRates
from planner.spec.precision import RECIPES
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.stack.kinds import Dispatcher, StateEngine
from planner.spec.stack.time import Communication

Array = NDArray[np.float64]

# HybridEP's kernels on 8 to 36 ranks of an NVL72 domain against NCCL's all-to-all, and what a call takes beside them:
# its metadata, and one copy of what was received (deepseek-ai/DeepEP@94a9f8f docs/README_Hybrid-EP.md, kernel and call
# timed apart: 0.14 to 0.23 ms more on GB200 for 0.3 to 0.4 GB received).
HYBRIDEP_BANDWIDTH = 0.92
HYBRIDEP_BASE = 70e-6


def dispatch_share(comm: Communication, width: float) -> float:
    """Bytes of a token on its way to experts, over those on its way back, which are of `width` bytes a value [1]."""
    return comm.dispatch_bytes / width if comm.dispatch_bytes else 1.0


def shards_reached(stack: Stack, et: ArrayLike) -> Array:
    """Ranks of an expert that a dispatch sends a token to itself, without an all-gather behind it [1].

    All with Megatron-Core's fused dispatchers, which send over etp x ep with the routing repeated for every shard
    (NVIDIA/Megatron-LM@d98e8a6 core/transformer/moe/token_dispatcher.py MoEFlexTokenDispatcher), and with its
    all-gather, over the same ranks. torchtitan's experts are cut over tp where there is no expert parallelism alone,
    and nothing is dispatched.
    """
    beyond = stack.communication.dispatcher is not Dispatcher.ALL_TO_ALL
    whole = beyond and stack.states.engine is not StateEngine.TORCH
    return np.asarray(et, dtype=float) if whole else np.ones_like(np.asarray(et, dtype=float))


def gathered_token_bytes(moe: Moe, hidden: int, width: float) -> float:
    """Bytes of a token that a dispatch by all-gather sends: its hidden state, and for every expert its probability and
    a flag that it was chosen (NVIDIA/Megatron-LM@d98e8a6 core/transformer/moe/token_dispatcher.py
    MoEAllGatherTokenDispatcher.token_dispatch) [bytes]."""
    return width * moe.width(hidden) + (width + 1.0) * moe.experts


def chosen_groups(moe: Moe) -> tuple[float, float]:
    """How many groups of experts the router picks first, and of how many, as `remote_copies` takes it [1]."""
    return (float(moe.top_groups), float(moe.groups)) if moe.groups > 1 else ANY_GROUP


class CommunicationModel:
    """Binds a problem to its link rates; exposed seconds of a layer's collectives for a table of distinct keys."""

    def __init__(self, problem: Problem, links: LinkRates) -> None:
        self.problem, self.links = problem, links
        self.recipe = RECIPES[problem.job.precision]

    def tensor_parallel(self, layer: Layer, x: LayerShape) -> tuple[Array, Array]:
        """Seconds of tensor parallelism in each pass, and how many of them are exposed at least: an all-gather and a
        reduce-scatter around attention and around the MLP (with experts only around their shared part), all-reduces
        without sequence parallelism (Korthikanti 2022, arXiv 2205.05198, section 4.2.2). `gathered_width`: what an
        all-gather sends of a value. Whole queries, keys and values are gathered in one pass and scattered in the other,
        half of both in either, under nothing (`whole_qkv_bytes`)."""
        group = group_links(1.0, x.t, self.problem.cluster)
        size = stream_bytes(x.tokens, self.problem.model.hidden, self.recipe.activation_bytes)
        narrow = stream_bytes(x.tokens, self.problem.model.hidden, gathered_width(self.problem))
        pair = np.where(
            x.sequence_split > 1,
            all_gather_time(narrow, group, self.links) + reduce_scatter_time(size, group, self.links),
            all_reduce_time(size, group, self.links),
        )
        regions = tensor_parallel_regions(layer)
        comm = self.problem.stack.communication
        exposed = np.where(x.t > group.local, comm.tp_exposed_nodes, comm.tp_exposed)
        qkv = whole_qkv_bytes(self.problem, layer, x.tokens, x.t, self.recipe.activation_bytes)
        apart = all_gather_time(qkv, group, self.links) + reduce_scatter_time(qkv, group, self.links)
        apart = np.where(np.asarray(qkv) > 0, apart / 2.0, 0.0)
        whole = regions * pair
        return whole + apart, exposed * whole + apart

    def indexer(self, layer: Layer, x: LayerShape) -> tuple[Array, Array]:
        """Forward and backward seconds that an indexer adds to tensor parallelism; nothing hides them."""
        a = layer.attention
        if a is None or a.indexer is None:
            return np.zeros(len(x.t)), np.zeros(len(x.t))
        group = group_links(1.0, x.t, self.problem.cluster)
        inputs, targets = indexer_bytes(a, self.problem.model.hidden, x.tokens, self.recipe.activation_bytes)
        ahead = np.where(x.sequence_split > 1, all_gather_time(np.asarray(inputs), group, self.links), 0.0)
        return ahead, np.where(x.t > 1, all_reduce_time(np.asarray(targets), group, self.links), 0.0)

    def context_parallel(
        self, layer: Layer, x: LayerShape, keys: ConfigTable, attention: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """Exposed forward and backward seconds of context parallelism.

        Ring: c - 1 steps that each pass on keys and values (backward also their gradients) while attention works
        on the last ones. All-gather: keys and values before attention, gradients reduce-scattered after.
        Behind an indexer the latent key is gathered once and kept, whatever the kind.
        torch's gathered ring: a gather, backward again, and fp32 gradients that go round (`network/context.py`).
        All-to-all: q, k, v before and the output after. State spaces have the all-to-all whatever the kind.
        """
        a, links = layer.attention, self.links
        scan = self._scan_context(layer, x)
        if a is None:
            return scan
        group = group_links(x.t, x.c, self.problem.cluster)
        act, comm = self.recipe.activation_bytes, self.problem.stack.communication
        kv = key_value_bytes(a, x.tokens, x.t, x.kv_split, act)
        step, step_back = neighbour_time(kv, group, links), neighbour_time(2 * kv, group, links)
        overlap = comm.cp_overlap
        ring = (x.c - 1) * np.maximum(step - overlap * attention[0] / x.c, 0.0)
        ring_back = (x.c - 1) * np.maximum(step_back - overlap * attention[1] / x.c, 0.0)
        gather, scatter = all_gather_time(kv * x.c, group, links), reduce_scatter_time(kv * x.c, group, links)
        q_out = query_output_bytes(a, x.tokens, x.t, act)
        exchange = all_to_all_time(q_out, group, links) + all_to_all_time(kv, group, links)
        if gathers_in_ring(comm):
            ring = np.asarray(all_gather_time(q_out * x.c, group, links))
            ring_back = ring + x.c * neighbour_time(FP32 / act * q_out, group, links)
        kind = context_kinds(self.problem, keys["cp_kind"])
        forward = np.select(
            [kind == ContextKind.P2P, kind == ContextKind.ALL_GATHER], [ring, gather], exchange
        )
        backward = np.select(
            [kind == ContextKind.P2P, kind == ContextKind.ALL_GATHER], [ring_back, gather + scatter], exchange
        )
        if a.sparse:
            forward, backward = np.asarray(gather), np.asarray(scatter)
        alone = x.c <= 1
        return scan[0] + np.where(alone, 0.0, forward), scan[1] + np.where(alone, 0.0, backward)

    def _scan_context(self, layer: Layer, x: LayerShape) -> tuple[Array, Array]:
        """Forward and backward seconds of the all-to-all into a scan and out of it, which nothing hides."""
        if layer.state_space is None:
            return np.zeros(len(x.t)), np.zeros(len(x.t))
        group = group_links(x.t, x.c, self.problem.cluster)
        sizes = exchanged_bytes(
            layer.state_space, cut_of(layer.state_space, x.tokens, x.t, x.c), self.recipe.activation_bytes
        )
        seconds = np.where(x.c > 1, sum(all_to_all_time(size, group, self.links) for size in sizes), 0.0)
        return seconds, seconds

    def expert_parallel(self, layer: Layer, x: LayerShape) -> Array:
        """Exposed forward seconds of dispatch and combine over e, and of gathering tokens over et.

        Plain all-to-all: K copies of every token, wherever they go. Fused dispatch (DeepEP): a token crosses once
        per node and once per rank that holds one of its experts, or a shard of one (`shards_reached`), and is gathered
        no more; routing within groups of experts limits the nodes.
        All-gather: every token goes to all ranks of the group, whatever they do with it, and a reduce-scatter brings
        the sums back, so that neither balance nor K counts.
        HybridEP likewise, inside a domain near the bandwidth of an all-to-all, with a copy of what arrives. Over EFA,
        where kernels start no messages, either is taken as a plain all-to-all between nodes (with UCCL's and NVSHMEM's
        proxies 31 of 42 runs of AWS took longer than with NCCL, 1.14 times as long in the median:
        awslabs/awsome-distributed-ai@95b939cd 3.test_cases/megatron/megatron-bridge). The backward pass has the same:
        the gradient of combine dispatches, that of dispatch combines.
        """
        moe = layer.moe
        if moe is None:
            return np.zeros(len(x.t))
        cluster, act = self.problem.cluster, self.recipe.activation_bytes
        shards = shards_reached(self.problem.stack, x.et)
        across = group_links(x.et / shards, x.e * shards, cluster)
        token_bytes = stream_bytes(x.routed_tokens, float(moe.width(self.problem.model.hidden)), act)
        comm = self.problem.stack.communication
        narrow = dispatch_share(comm, act)
        if comm.dispatcher is Dispatcher.ALL_GATHER:
            ranks = x.e * shards
            sent = gathered_token_bytes(moe, self.problem.model.hidden, act) * x.expert_tokens * ranks
            back = stream_bytes(x.expert_tokens, float(moe.width(self.problem.model.hidden)), act) * ranks
            both_ways = [
                all_gather_time(sent, across, self.links), reduce_scatter_time(back, across, self.links)
            ]  # fmt: skip
        elif comm.dispatcher.fused:
            hybrid = comm.dispatcher is Dispatcher.HYBRIDEP
            links = self._hybridep() if hybrid else self.links
            chosen = chosen_groups(moe)
            top_k, experts = float(moe.mean_k), float(moe.experts)
            copied: Array | float = 0.0
            copies = np.inf if hybrid else DISPATCH_COPIES  # HybridEP's are bulk copies by hardware (TMA)
            if hybrid:
                received = remote_copies(top_k, x.e * shards, experts, chosen, shards)
                copied = 2.0 * received / cluster.accelerator.memory_bandwidth
            both_ways = [
                dispatch_time(part * token_bytes, top_k, experts, across, links, chosen, copies, shards)
                + part * token_bytes * copied
                for part in (narrow, 1.0)
            ]
            if cluster.fabric is LinkKind.EFA:
                alone = np.asarray(across.nodes) <= 1
                plain = self._exchanged(token_bytes * moe.mean_k, across, narrow)
                both_ways = [np.where(alone, *ways) for ways in zip(both_ways, plain, strict=True)]
        else:
            both_ways = self._exchanged(token_bytes * moe.mean_k, across, narrow)
        dispatch, combine = both_ways
        inside = group_links(1.0, x.et / shards, cluster)
        rows = token_bytes * moe.mean_k * x.et / shards
        both = all_gather_time(rows, inside, self.links) + reduce_scatter_time(rows, inside, self.links)
        return np.asarray(comm.ep_exposed * (dispatch + combine + both))

    def _exchanged(self, sent: Quantity, across: GroupLinks, narrow: float) -> list[Quantity]:
        """NCCL's all-to-alls of so many bytes, the first with this share of them [s]."""
        return [all_to_all_time(part * sent, across, self.links) for part in (narrow, 1.0)]

    def _hybridep(self) -> LinkRates:
        """The links as HybridEP's kernels use them."""
        whole = self.links.all_to_all
        fraction = tuple(HYBRIDEP_BANDWIDTH * reached for reached in whole.fraction)
        ramp = (0.0,) * len(whole.ramp)  # in the base
        dispatch = replace(whole, base=HYBRIDEP_BASE, hop=0.0, fraction=fraction, ramp=ramp)
        return replace(self.links, dispatch=dispatch)
