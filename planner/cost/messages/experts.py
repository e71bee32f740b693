"""Which messages carry tokens to experts and back in a layer, and what hides them?

Here it is decided once what a fused dispatch reaches on which links. Left out: counts of tokens, exchanged first.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.cut import LayerShape
from planner.cost.messages.message import Dispatch, HiddenBy, Message
from planner.cost.messages.sizes import stream_bytes
from planner.cost.network.collectives import ANY_GROUP, DISPATCH_COPIES, CollectiveKind, remote_copies
from planner.cost.network.traffic import group_links
from planner.spec.layer import Layer, Moe
from planner.spec.machine.accelerator import LinkKind
from planner.spec.machine.links import LinkRates
from planner.spec.precision import RECIPES
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.stack.kinds import Dispatcher
from planner.spec.stack.time import Communication

Array = NDArray[np.float64]

# HybridEP's kernels on 8 to 36 ranks of an NVL72 domain against NCCL's all-to-all, and what a call takes beside them:
# its metadata, and one copy of what was received (deepseek-ai/DeepEP@94a9f8f docs/README_Hybrid-EP.md, kernel and call
# timed apart: 0.14 to 0.23 ms more on GB200 for 0.3 to 0.4 GB received).
HYBRIDEP_BANDWIDTH = 0.92
HYBRIDEP_BASE = 70e-6


def dispatch_share(comm: Communication, width: float) -> float:
    """Bytes of a token on its way to experts, over those on its way back, which are of `width` bytes a value [1]."""
    return (comm.dispatcher.sent_bytes or width) / width


def shards_reached(stack: Stack, et: ArrayLike) -> Array:
    """Ranks of an expert that a dispatch sends a token to itself, without an all-gather behind it [1].

    All with Megatron-Core's fused dispatchers, which send over etp x ep with the routing repeated for every shard
    (NVIDIA/Megatron-LM@d98e8a6 core/transformer/moe/token_dispatcher.py MoEFlexTokenDispatcher), and with its
    all-gather, over the same ranks. torchtitan's experts are cut over tp where there is no expert parallelism alone,
    and nothing is dispatched.
    """
    beyond = not stack.communication.dispatcher.exchanges_all
    whole = beyond and not stack.engine.divides_experts_over_tp
    return np.asarray(et, dtype=float) if whole else np.ones_like(np.asarray(et, dtype=float))


def gathered_token_bytes(moe: Moe, hidden: int, width: float) -> float:
    """Bytes of a token that a dispatch by all-gather sends: its hidden state, and for every expert its probability and
    a flag that it was chosen (NVIDIA/Megatron-LM@d98e8a6 core/transformer/moe/token_dispatcher.py
    MoEAllGatherTokenDispatcher.token_dispatch) [bytes]."""
    return width * moe.width(hidden) + (width + 1.0) * moe.experts


def chosen_groups(moe: Moe) -> tuple[float, float]:
    """How many groups of experts the router picks first, and of how many, as `remote_copies` takes it [1]."""
    return (float(moe.top_groups), float(moe.groups)) if moe.groups > 1 else ANY_GROUP


def expert_messages(problem: Problem, rates: LinkRates, layer: Layer, x: LayerShape) -> tuple[Message, ...]:
    """Dispatch and combine over e, and gathers of tokens over et; either pass has both, since the gradient of combine
    dispatches, that of dispatch combines. What other tokens compute hides them as far as the stack says.

    Plain all-to-all: K copies of every token, wherever they go. Fused dispatch (`_fused`): a token crosses once per
    node and once per rank that holds one of its experts, or a shard of one (`shards_reached`), and is gathered no more;
    routing within groups of experts limits the nodes. All-gather: every token goes to all ranks of the group, whatever
    they do with it, and a reduce-scatter brings the sums back, so that neither balance nor K counts.
    """
    moe = layer.moe
    if moe is None or not np.any(x.e * x.et > 1):
        return ()
    act, hidden = RECIPES[problem.job.precision].activation_bytes, problem.model.hidden
    comm, shards = problem.stack.communication, shards_reached(problem.stack, x.et)
    ranks, width = x.e * shards, float(moe.width(hidden))
    across = group_links(x.et / shards, ranks, problem.cluster)
    token_bytes = stream_bytes(x.routed_tokens, width, act)
    plain = Message(
        "ep" if np.any(x.e > 1) else "etp", CollectiveKind.ALL_TO_ALL, "", token_bytes * moe.mean_k, across, rates,
        hidden_by=HiddenBy.LAYER, least=0.0, factor=comm.ep_exposed,
    )  # fmt: skip
    if comm.dispatcher is Dispatcher.ALL_GATHER:
        sent = gathered_token_bytes(moe, hidden, act) * x.expert_tokens * ranks
        back = stream_bytes(x.expert_tokens, width, act) * ranks
        gather = replace(plain, kind=CollectiveKind.ALL_GATHER, what="tokens_to_all_experts", size=sent)
        scatter = replace(plain, kind=CollectiveKind.REDUCE_SCATTER, what="sums_of_experts", size=back)
        found = [gather, scatter]
    elif comm.dispatcher.fused:
        found = _fused(problem, moe, x, replace(plain, size=token_bytes), plain, shards)
    else:
        found = _two_ways(plain, dispatch_share(comm, act))
    if np.any(x.et > shards):
        rows = token_bytes * moe.mean_k * x.et / shards
        inside = group_links(1.0, x.et / shards, problem.cluster)
        gather = replace(plain, axis="etp", what="tokens_of_an_expert", size=rows, links=inside)
        found += [
            replace(gather, kind=kind) for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
        ]
    return tuple(found)


def _two_ways(message: Message, narrow: float) -> list[Message]:
    """Tokens to experts, in so large a share of their bytes, and results back."""
    if narrow == 1.0:
        return [replace(message, what="token_dispatch_and_combine").called(2.0, 2.0)]
    there = replace(message, what="tokens_to_experts", size=narrow * message.size)
    return [there, replace(message, what="results_back")]


def _fused(
    problem: Problem, moe: Moe, x: LayerShape, tokens: Message, plain: Message, shards: Array
) -> list[Message]:
    """Those of a fused dispatcher, of which `tokens` has the bytes of a rank's tokens.

    HybridEP's works inside a domain near the bandwidth of an all-to-all, with bulk copies by hardware (TMA), and copies
    what arrives. Over EFA, where kernels start no messages, either is taken as a `plain` all-to-all between nodes (with
    UCCL's and NVSHMEM's proxies 31 of 42 runs of AWS took longer than with NCCL, 1.14 times as long in the median:
    awslabs/awsome-distributed-ai@95b939cd 3.test_cases/megatron/megatron-bridge).
    """
    comm, act = problem.stack.communication, RECIPES[problem.job.precision].activation_bytes
    experts, chosen, narrow = float(moe.experts), chosen_groups(moe), dispatch_share(comm, act)
    sent = Dispatch(float(moe.mean_k), experts, chosen, shards, DISPATCH_COPIES)
    if comm.dispatcher is Dispatcher.HYBRIDEP:
        received = remote_copies(sent.top_k, x.e * shards, experts, chosen, shards)
        copied = 2.0 * received / problem.cluster.accelerator.memory_bandwidth
        sent = replace(sent, copies=np.inf, copied=copied)
        tokens = replace(tokens, rates=hybridep_rates(tokens.rates))
    found = _two_ways(replace(tokens, dispatch=sent), narrow)
    if problem.cluster.fabric is not LinkKind.EFA:
        return found
    alone = np.asarray(plain.links.nodes) <= 1
    return [
        one.called(one.forward * where, one.backward * where)
        for ways, where in ((found, alone), (_two_ways(plain, narrow), ~alone))
        for one in ways
    ]


def hybridep_rates(rates: LinkRates) -> LinkRates:
    """The links as HybridEP's kernels use them."""
    whole = rates.all_to_all
    fraction = tuple(HYBRIDEP_BANDWIDTH * reached for reached in whole.fraction)
    ramp = (0.0,) * len(whole.ramp)  # in the base
    return replace(rates, dispatch=replace(whole, base=HYBRIDEP_BASE, hop=0.0, fraction=fraction, ramp=ramp))
