"""Which messages does context parallelism send in a layer, and what hides them?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.cut import LayerShape
from planner.cost.messages.message import HiddenBy, Message
from planner.cost.messages.sizes import key_value_bytes, query_output_bytes
from planner.cost.network.collectives import CollectiveKind
from planner.cost.network.context import FP32, context_kinds, gathers_in_ring
from planner.cost.network.traffic import GroupLinks, group_links
from planner.cost.operations.state_space import cut_of, exchanged_bytes
from planner.spec.attention import Attention
from planner.spec.config import ContextKind
from planner.spec.layer import Layer
from planner.spec.machine.links import LinkRates
from planner.spec.precision import RECIPES
from planner.spec.rule import Problem

Array = NDArray[np.float64]


def context_messages(
    problem: Problem, rates: LinkRates, layer: Layer, x: LayerShape, asked: NDArray[np.int32]
) -> tuple[Message, ...]:
    """Keys, values and scans; `asked` (n,): the `ContextKind` that each row asks for.

    State spaces have two all-to-all in either pass whatever the kind: into the scan and out of it.
    """
    if not np.any(x.c > 1):
        return ()
    group = group_links(x.t, x.c, problem.cluster)
    found: list[Message] = []
    if (s := layer.state_space) is not None:
        act = RECIPES[problem.job.precision].activation_bytes
        sizes = exchanged_bytes(s, cut_of(s, x.tokens, x.t, x.c), act)
        for size, what in zip(sizes, ("scan_inputs", "scan_outputs"), strict=True):
            one = Message("cp", CollectiveKind.ALL_TO_ALL, what, size, group, rates)
            found.append(one.called(x.c > 1, x.c > 1))
    if layer.attention is not None:
        found += _of_attention(problem, rates, layer.attention, x, group, context_kinds(problem, asked))
    return tuple(found)


def _of_attention(
    problem: Problem, rates: LinkRates, a: Attention, x: LayerShape, group: GroupLinks,
    kinds: NDArray[np.int32],
) -> list[Message]:  # fmt: skip
    """Ring: c - 1 steps that each pass on keys and values (backward also their gradients) while attention works on the
    last ones. All-gather: keys and values before attention, gradients reduce-scattered after. Behind an indexer the
    latent key is gathered once and kept, whatever the kind. torch's gathered ring: a gather, backward again, and fp32
    gradients that go round (`network/context.py`). All-to-all: q, k, v before and the output after."""
    act, many, comm = RECIPES[problem.job.precision].activation_bytes, x.c > 1, problem.stack.communication
    kv, what = key_value_bytes(a, x.tokens, x.t, x.kv_split, act), "keys_and_values"
    gather = Message("cp", CollectiveKind.ALL_GATHER, what, kv * x.c, group, rates)
    gradients = replace(gather, kind=CollectiveKind.REDUCE_SCATTER, what="their_gradients")
    if a.sparse:
        latent = replace(gather, what=what if a.chooses_blocks else "latent_keys")
        return [latent.called(many, 0.0), gradients.called(0.0, many)]
    ring, gathered = many & (kinds == ContextKind.P2P), many & (kinds == ContextKind.ALL_GATHER)
    others, q_out = many & ~ring & ~gathered, query_output_bytes(a, x.tokens, x.t, act)
    found: list[Message] = []
    if ring.any() and gathers_in_ring(comm):
        back = replace(gather, kind=CollectiveKind.P2P, what=f"{what}_gradients", size=FP32 / act * q_out)
        found += [replace(gather, size=q_out * x.c).called(ring, ring), back.called(0.0, x.c * ring)]
    elif ring.any():
        steps = (x.c - 1) * ring
        step = replace(gather, kind=CollectiveKind.P2P, hidden_by=HiddenBy.ATTENTION, least=0.0)
        back = replace(step, what=f"{what}_gradients", size=2 * kv)
        found += [replace(step, size=kv).called(steps, 0.0), back.called(0.0, steps)]
    if gathered.any():
        found += [gather.called(gathered, gathered), gradients.called(0.0, gathered)]
    if others.any():
        exchange = replace(gather, kind=CollectiveKind.ALL_TO_ALL).called(others, others)
        found += [replace(exchange, size=q_out, what="queries_and_outputs"), replace(exchange, size=kv)]
    return found
