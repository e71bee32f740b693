"""Which messages does a rank of one configuration send in a step: along which axis, how large, how often?

Sizes and counts are those from which the step's terms are made, one configuration and stage at a time, and of gathers
that run under products, which no term counts. Left out: what else no term counts: norms of gradients, logged losses,
the vocabulary-parallel embedding and loss, checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from planner.cost.exposed import chosen_groups, dispatch_share, gathered_token_bytes, shards_reached
from planner.cost.fetches import Module, fetches_modules, modules_of, released, turning_share
from planner.cost.memory.state_bytes import shard_groups, weights_sharded
from planner.cost.model import CostModel
from planner.cost.network.collectives import (
    CollectiveKind,
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    dispatch_time,
    moved_bytes,
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
from planner.cost.network.traffic import GroupLinks
from planner.cost.operations.state_space import cut_of, exchanged_bytes
from planner.cost.selective import OPERATIONS
from planner.spec.attention import Attention
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ContextKind, ParallelConfig
from planner.spec.layer import Layer
from planner.spec.machine.links import LinkRates
from planner.spec.mixers import StateSpace
from planner.spec.stack.kinds import Dispatcher, StateEngine, StaysGathered

_MOE: Final = 1 << RECOMPUTE_MODULES.index("moe")


@dataclass(frozen=True)
class Exchange:
    """One kind of message of an axis: tp, cp, ep, etp, pp, dp (gradients and weights over dp x cp) or edp.

    `size`: the buffer, as `network.collectives.moved_bytes` takes it [bytes]; of a fused dispatch, a rank's tokens.
    `calls`: how often in a step [1]. `sent`: bytes that a rank sends in a call [bytes].
    """

    axis: str
    kind: CollectiveKind
    what: str
    size: float
    calls: float
    sent: float
    # fused dispatch: experts per token, experts, groups of them that are chosen first, ranks that share an expert
    experts: tuple[float, float, tuple[float, float], float] | None = None
    hidden: bool = False  # under compute as a rule: no term of the step counts it
    part: tuple[float, float] | None = None  # of the axis's groups: ranks, and how far apart they are

    @property
    def sent_per_step(self) -> float:
        """Bytes that a rank sends in a step [bytes]."""
        return self.sent * self.calls


@dataclass(frozen=True)
class StageLoad:
    """What a pipeline stage holds. `layers`, `recomputed`: by kind of layer [1]; `dense`, `expert`: parameters of a
    rank that are trained [1]; `first`, `last`: is it the first, the last stage? `gathered`: bytes of its dense and
    expert weights as an all-gather sends them, `stays` of these gathered until the backward pass [bytes]."""

    layers: tuple[float, ...]
    recomputed: tuple[float, ...]
    dense: float
    expert: float
    first: bool
    last: bool
    gathered: tuple[float, float]
    stays: tuple[float, float]
    copied: float


def stage_load(model: CostModel, config: ParallelConfig, stage: int) -> StageLoad:
    """What stage `stage` of a configuration holds, as the cost deals layers."""
    table = ConfigTable.of([config])
    prepared = model.prepare(table)
    classes, shards = prepared.classes, prepared.shards
    pipeline, key = int(classes.of_row[0]), int(shards.of_row[0])
    of_stage = next(j for j, ranks in enumerate(classes.members[pipeline]) if stage in ranks)
    depth = classes.leading.shape[2]
    again = classes.leading[pipeline, of_stage, min(config.recompute_layers, depth - 1)]
    lora = model.problem.job.lora_rank is not None
    of_rank = (shards.dense[key, of_stage], shards.expert[key, of_stage])
    dense, expert, outer = (part[[key]] for part in (shards.dense, shards.expert, shards.outer))
    wide = (shards.wide[0][[key]], shards.wide[1][[key]])
    gathered = model.shards.gathered_bytes(table, dense, expert, outer, wide)
    held = classes.copies[[pipeline], None] * classes.layers[[pipeline]].sum(axis=2)
    stays = model.shards.staying_bytes(gathered, outer, shards.head[[key]], held)
    return StageLoad(
        tuple(float(n) for n in classes.layers[pipeline, of_stage]),
        tuple(float(n) for n in again),
        float(shards.adapters[key, of_stage] if lora else of_rank[0]),
        0.0 if lora else float(of_rank[1]),
        stage == 0,
        stage == config.pp - 1,
        (float(gathered[0][0, of_stage]), float(gathered[1][0, of_stage])),
        (float(stays[0][0, of_stage]), float(stays[1][0, of_stage])),
        float(model.shards.copied_embedding(np.array([float(config.tp)]))[0]) * bool(shards.copied[key] > 0),
    )


def exchanges(model: CostModel, config: ParallelConfig, stage: int) -> tuple[Exchange, ...]:
    """Everything that a rank of pipeline stage `stage` sends in a step; axes of degree 1 send nothing."""
    load = stage_load(model, config, stage)
    found: list[Exchange] = []
    for kind, layer in enumerate(model.problem.model.layer_kinds):
        if load.layers[kind]:
            passes = config.num_microbatches * load.layers[kind]
            again = config.num_microbatches * load.recomputed[kind]
            found += _of_layer(model, config, layer, passes, again)
    found += _of_pipeline(model, config, load)
    found += _of_data_parallel(model, config, load)
    return _merged(found)


def _merged(found: list[Exchange]) -> tuple[Exchange, ...]:
    """Messages of equal kind and size counted together, in the order of their first."""
    calls: dict[tuple[object, ...], Exchange] = {}
    for e in found:
        key = (e.axis, e.kind, e.what, e.size)
        before = calls[key].calls if key in calls else 0.0
        calls[key] = replace(e, calls=before + e.calls)
    return tuple(e for e in calls.values() if e.calls > 0 and e.sent > 0)


def _collective(
    axis: str, kind: CollectiveKind, what: str, size: float, ranks: float, calls: float
) -> Exchange:
    return Exchange(axis, kind, what, size, calls, float(moved_bytes(kind, size, ranks)))


def _of_layer(
    model: CostModel, config: ParallelConfig, layer: Layer, passes: float, again: float
) -> Iterator[Exchange]:
    """Messages of the layers of one kind: `passes` forward and backward passes, `again` repeated forward ones."""
    if layer.then is not None:
        for block in layer.blocks:
            yield from _of_layer(model, config, block, passes, again)
        return
    hidden, width = float(model.problem.model.hidden), model.layers.recipe.activation_bytes
    tokens = model.problem.job.timed_tokens(config.micro_batch) / config.cp
    if config.tp > 1:
        calls = tensor_parallel_regions(layer) * (2 * passes + again)
        size = float(stream_bytes(tokens, hidden, width))
        narrow = float(stream_bytes(tokens, hidden, gathered_width(model.problem)))
        kinds = ((CollectiveKind.ALL_GATHER, narrow), (CollectiveKind.REDUCE_SCATTER, size))
        for kind, sent in kinds if config.sp else ((CollectiveKind.ALL_REDUCE, size),):
            yield _collective("tp", kind, "hidden_states", sent, config.tp, calls)
        if config.sp and config.recompute_modules & OPERATIONS:  # what a reduce-scatter returned is kept
            twice = tensor_parallel_regions(layer) * passes
            yield _collective("tp", CollectiveKind.ALL_GATHER, "hidden_states", narrow, config.tp, twice)
        if config.sp and gathers_inputs_again(model):
            regathered = tensor_parallel_regions(layer) * passes
            what = "inputs_gathered_again"
            found = _collective("tp", CollectiveKind.ALL_GATHER, what, size, config.tp, regathered)
            yield replace(found, hidden=True)
        qkv = float(whole_qkv_bytes(model.problem, layer, tokens, config.tp, width))
        what = "queries_keys_values"
        yield _collective("tp", CollectiveKind.ALL_GATHER, what, qkv, config.tp, passes + again)
        yield _collective("tp", CollectiveKind.REDUCE_SCATTER, what, qkv, config.tp, passes)
        if layer.attention is not None:
            inputs, targets = indexer_bytes(layer.attention, hidden, tokens, width)
            kind, calls = CollectiveKind.ALL_GATHER, (passes + again) * config.sp
            yield _collective("tp", kind, "inputs_of_indexers", float(inputs), config.tp, calls)
            kind, what = CollectiveKind.ALL_REDUCE, "targets_of_indexers"
            yield _collective("tp", kind, what, float(targets), config.tp, passes)
    if config.cp > 1:
        if layer.attention is not None:
            yield from _of_context(model, config, layer.attention, passes, again)
        if layer.state_space is not None:
            yield from _of_scan(config, layer.state_space, tokens, width, 2 * passes + again)
    if layer.moe is not None:
        yield from _of_experts(model, config, layer, passes, again)


def gathers_inputs_again(model: CostModel) -> bool:
    """Are column-parallel inputs kept as shards and gathered a second time for their weight gradients?

    Megatron-Core does (tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication.backward; Korthikanti
    et al. 2022, arXiv 2205.05198, section 4.2.2), and nanotron; autograd of torch keeps the gathered input. The gather
    runs under the product of the input gradient: the cost takes it as hidden, the bytes cross the links all the same.
    """
    stack = model.problem.stack
    kept = stack.states.engine in (StateEngine.CONTIGUOUS, StateEngine.MEGATRON_FSDP)
    return kept and not stack.kernels.saves_gathered_input


def _of_context(
    model: CostModel, config: ParallelConfig, attention: Attention, passes: float, again: float
) -> Iterator[Exchange]:
    comm, width = model.problem.stack.communication, model.layers.recipe.activation_bytes
    tokens = model.problem.job.timed_tokens(config.micro_batch) / config.cp
    kv_split = float(min(config.tp, attention.kv_heads))
    kv = float(key_value_bytes(attention, tokens, float(config.tp), kv_split, width))
    forward, what = passes + again, "keys_and_values"
    kind = int(context_kinds(model.problem, np.array(config.cp_kind)))
    if attention.sparse:
        whole, what = config.cp * kv, what if attention.chooses_blocks else "latent_keys"
        yield _collective("cp", CollectiveKind.ALL_GATHER, what, whole, config.cp, forward)
        yield _collective("cp", CollectiveKind.REDUCE_SCATTER, "their_gradients", whole, config.cp, passes)
        return
    if kind == ContextKind.P2P and gathers_in_ring(comm):
        kv = float(query_output_bytes(attention, tokens, float(config.tp), width))
        yield _collective("cp", CollectiveKind.ALL_GATHER, what, config.cp * kv, config.cp, forward + passes)
        size = FP32 / width * kv
        yield Exchange("cp", CollectiveKind.P2P, f"{what}_gradients", size, config.cp * passes, size)
    elif kind == ContextKind.P2P:
        steps = config.cp - 1
        yield Exchange("cp", CollectiveKind.P2P, what, kv, steps * forward, kv)
        yield Exchange("cp", CollectiveKind.P2P, f"{what}_gradients", 2 * kv, steps * passes, 2 * kv)
    elif kind == ContextKind.ALL_GATHER:
        whole = config.cp * kv
        gathers = forward + passes
        yield _collective("cp", CollectiveKind.ALL_GATHER, what, whole, config.cp, gathers)
        yield _collective("cp", CollectiveKind.REDUCE_SCATTER, "their_gradients", whole, config.cp, passes)
    else:
        q_out = float(query_output_bytes(attention, tokens, float(config.tp), width))
        calls = forward + passes
        for size, name in ((q_out, "queries_and_outputs"), (kv, what)):
            yield _collective("cp", CollectiveKind.ALL_TO_ALL, name, size, config.cp, calls)


def _of_scan(
    config: ParallelConfig, s: StateSpace, tokens: float, width: float, calls: float
) -> Iterator[Exchange]:
    """The two all-to-all of a state space; its backward pass has the same two."""
    sizes = exchanged_bytes(s, cut_of(s, tokens, float(config.tp), float(config.cp)), width)
    for size, what in zip(sizes, ("scan_inputs", "scan_outputs"), strict=True):
        yield _collective("cp", CollectiveKind.ALL_TO_ALL, what, float(size), config.cp, calls)


def _of_experts(
    model: CostModel, config: ParallelConfig, layer: Layer, passes: float, again: float
) -> Iterator[Exchange]:
    assert layer.moe is not None
    if config.recompute_modules & _MOE:
        again = passes
    sent, width = float(layer.moe.width(model.problem.model.hidden)), model.layers.recipe.activation_bytes
    tokens = model.problem.job.timed_tokens(config.micro_batch) / config.cp / config.tp
    tokens *= model.problem.stack.kernels.expert_padding or 1.0
    size, calls = float(stream_bytes(tokens, sent, width)), 2 * passes + again
    top_k, experts = float(layer.moe.mean_k), float(layer.moe.experts)
    shards = float(shards_reached(model.problem.stack, config.etp))
    if config.ep * shards > 1:
        comm, kind = model.problem.stack.communication, CollectiveKind.ALL_TO_ALL
        axis, ranks = "ep" if config.ep > 1 else "etp", config.ep * shards
        narrow = dispatch_share(comm, width)
        ways = [("token_dispatch_and_combine", 1.0, 2 * calls)]
        if narrow != 1.0:
            ways = [("tokens_to_experts", narrow, calls), ("results_back", 1.0, calls)]
        chosen = chosen_groups(layer.moe)
        reached = float(remote_copies(top_k, ranks, experts, chosen, shards))
        if comm.dispatcher is Dispatcher.ALL_GATHER:
            ways = []
            gathered = gathered_token_bytes(layer.moe, model.problem.model.hidden, width) * tokens * ranks
            for kind, what, one in (
                (CollectiveKind.ALL_GATHER, "tokens_to_all_experts", gathered),
                (CollectiveKind.REDUCE_SCATTER, "sums_of_experts", size * ranks),
            ):
                whole = _collective(axis, kind, what, one, ranks, calls)
                yield replace(whole, part=(ranks, 1.0)) if shards > 1 else whole
        for what, share, count in ways:
            one = share * size
            if comm.dispatcher is Dispatcher.ALL_TO_ALL:
                yield _collective("ep", kind, what, one * top_k, config.ep, count)
            else:
                of_token = (top_k, experts, chosen, shards)
                sent_over = Exchange(axis, kind, what, one, count, one * reached, of_token)
                yield replace(sent_over, part=(ranks, 1.0)) if shards > 1 else sent_over
    if config.etp > shards:
        rows = size * top_k * config.etp
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
            yield _collective("etp", kind, "tokens_of_an_expert", rows, config.etp, calls)


def boundary_bytes(model: CostModel, config: ParallelConfig) -> float:
    """A message between pipeline stages: the hidden states of a micro-batch, a shard of them under sp [bytes]."""
    tokens = model.problem.job.timed_tokens(config.micro_batch) / config.cp
    hidden = float(model.problem.model.hidden * model.problem.model.passed_streams)
    whole = stream_bytes(tokens, hidden, model.layers.recipe.activation_bytes)
    scatters = model.problem.stack.communication.p2p_scatters
    return float(whole) / (config.tp if config.sp or scatters else 1)


def _of_pipeline(model: CostModel, config: ParallelConfig, load: StageLoad) -> Iterator[Exchange]:
    if config.pp == 1:
        return
    size, m = boundary_bytes(model, config), config.num_microbatches
    ahead, back = (config.vpp - load.last) * m, (config.vpp - load.first) * m
    yield Exchange("pp", CollectiveKind.P2P, "hidden_states", size, ahead, size)
    yield Exchange("pp", CollectiveKind.P2P, "their_gradients", size, back, size)


def _of_data_parallel(model: CostModel, config: ParallelConfig, load: StageLoad) -> Iterator[Exchange]:
    """Gradients and weights; in every micro-batch where the cost counts them so (`pipeline.step`)."""
    comm, job = model.problem.stack.communication, model.problem.job
    replicas = config.dp * config.cp
    states, m = model.problem.stack.states, config.num_microbatches
    once = bool(states.accumulates_whole(np.array(config.pp), np.array(config.zero)))
    each = config.zero >= (2 if comm.reduce_per_microbatch else 3) and not once
    last = bool(states.reduces_last(np.array(config.zero), np.array(m)))
    calls = float(m if each else 1)
    gathers = again = calls if config.zero else 0.0
    again *= config.zero >= 3
    if config.zero >= 3 and fetches_modules(states):
        yield from _of_modules(model, config, load)
        gathers = again = 0.0
    if comm.gathers_after_step and config.zero < 3:
        gathers = float(config.zero > 0)
    if once and config.zero >= 3:
        gathers, again = 1.0, m
    calls = 1.0 if last else calls
    if job.lora_rank is not None and not weights_sharded(np.array(config.zero), states.engine):
        gathers = again = 0.0
    apart = config.ep * config.etp
    expert_replicas = config.tp * replicas // apart
    # FSDP's: a message for every layer, the embedding and the head
    units = max(sum(load.layers) + load.first + load.last, 1.0) if comm.unit_messages else 1.0
    begins, ends = float(load.first), float(load.last)
    stays = {
        StaysGathered.NOTHING: 0.0, StaysGathered.HEAD: ends, StaysGathered.ROOT: begins + ends,
        StaysGathered.LAST_LAYER: begins + 2 * ends,
    }  # fmt: skip
    staying = stays[states.stays_gathered] if comm.unit_messages else 0.0
    sizes = (np.array(float(number)) for number in (config.hsdp, replicas, expert_replicas))
    shared = [int(ranks) for ranks in shard_groups(*sizes)]
    sides = (
        ("dp", replicas, config.tp, shared[0], load.dense, load.gathered[0], load.stays[0], staying),
        ("edp", expert_replicas, apart, shared[1], load.expert, load.gathered[1], load.stays[1], 0.0),
    )
    for axis, ranks, stride, share, parameters, weights, kept_bytes, kept in sides:
        gradients = comm.gradient_bytes * parameters
        if ranks > 1 and not config.zero:
            yield _collective(axis, CollectiveKind.ALL_REDUCE, "gradients", gradients, ranks, calls)
        elif ranks > 1 and comm.reduces_whole and config.zero < 3:
            yield _collective(axis, CollectiveKind.ALL_REDUCE, "gradients", gradients, ranks, calls)
            if share > 1:
                part = (float(share), float(stride)) if share < ranks else None
                gather = _collective(axis, CollectiveKind.ALL_GATHER, "weights", weights, share, gathers)
                yield replace(gather, part=part)
        elif ranks > 1:
            messages = units * gathers + (units - kept) * again
            size = (gathers * weights + again * (weights - kept_bytes)) / max(messages, 1.0)
            sent = (gradients / units, units * calls), (size, messages)
            yield from _of_shards(axis, (ranks, stride, share), *sent)
    if load.copied and (load.first or load.last):  # between the first and the last stage
        whole, between = states.gradient * load.copied, float((config.pp - 1) * config.tp * replicas)
        both = _collective(
            "dp", CollectiveKind.ALL_REDUCE, "gradients_of_the_replicated_embedding", whole, 2, 1
        )
        yield replace(both, part=(2.0, between))


def _of_modules(model: CostModel, config: ParallelConfig, load: StageLoad) -> Iterator[Exchange]:
    """Weights that ZeRO 3 gathers module by module: forward, again for the backward pass, and a third time what
    recomputation frees (`cost.fetches`)."""
    problem, states = model.problem, model.problem.stack.states
    t, replicas = np.array([float(config.tp)]), config.dp * config.cp
    held: list[tuple[Module, float, float]] = []  # how many, and of them those that recomputation frees
    for kind, count, again in zip(problem.model.layer_kinds, load.layers, load.recomputed, strict=True):
        modules = modules_of(kind, problem, t)
        freed = released(modules, states.reuse_distance)
        held += [(one, count, again * float(np.max(gone))) for one, gone in zip(modules, freed, strict=True)]
    ends = zip((load.first, load.last), model.shards.outer_modules(t), strict=True)
    held += [(Module(size, 1, False), float(holds), 0.0) for holds, size in ends]
    total = sum(count * one.repeats * one.size for one, count, _ in held)
    width = sum(load.gathered) / float(np.sum(total))
    turned = float(turning_share(np.asarray(total), states.reuse_distance, sum(load.recomputed) > 0)[0])
    for module, count, again in held:
        passes = config.num_microbatches * module.repeats * (count * (2.0 - turned) + again)
        axis, ranks = "dp", replicas
        if module.expert:
            apart = config.ep * config.etp
            axis, ranks, passes = "edp", config.tp * replicas // apart, passes / config.ep
        if ranks > 1:
            size = width * float(module.size[0])
            yield _collective(axis, CollectiveKind.ALL_GATHER, "weights", size, ranks, passes)


def _of_shards(
    axis: str, groups: tuple[int, int, int], gradients: tuple[float, float], weights: tuple[float, float]
) -> Iterator[Exchange]:
    """Of `groups`: ranks, how far apart, and how many of them share a shard, which is then reduced over the others;
    bytes and calls of what is scattered and gathered."""
    ranks, stride, share = groups
    part = (float(share), float(stride)) if share < ranks else None
    if share > 1:
        scatter = _collective(
            axis, CollectiveKind.REDUCE_SCATTER, "gradients", gradients[0], share, gradients[1]
        )
        gather = _collective(axis, CollectiveKind.ALL_GATHER, "weights", weights[0], share, weights[1])
        yield from (replace(each, part=part) for each in (scatter, gather))
    if share < ranks:
        size, copies = gradients[0] / share, ranks // share
        reduce = _collective(
            axis, CollectiveKind.ALL_REDUCE, "gradients_across_hsdp_replicas", size, copies, gradients[1]
        )
        yield replace(reduce, part=(float(copies), float(stride * share)))


def link_time(exchange: Exchange, group: GroupLinks, rates: LinkRates) -> float:
    """Seconds that one call of an exchange takes on its links, nothing hidden [s]."""
    if exchange.kind is CollectiveKind.P2P:
        return float(neighbour_time(exchange.size, group, rates))
    if exchange.experts is not None:
        top_k, experts, chosen, shards = exchange.experts
        seconds = dispatch_time(exchange.size, top_k, experts, group, rates, chosen, shards=shards)
        return float(seconds)
    of_kind = {
        CollectiveKind.ALL_GATHER: all_gather_time,
        CollectiveKind.REDUCE_SCATTER: reduce_scatter_time,
        CollectiveKind.ALL_REDUCE: all_reduce_time,
        CollectiveKind.ALL_TO_ALL: all_to_all_time,
    }
    return float(of_kind[exchange.kind](exchange.size, group, rates))
