"""How many layers does each pipeline stage get?

Left out: splits that a solver finds, which replace these.
"""

from __future__ import annotations

import heapq
from typing import Final

from planner.spec.config import Placement
from planner.spec.model import ModelSpec
from planner.spec.stack.kinds import PipelineSplit

# How many layers less than the others the first and the last chunk of an interleaved pipeline may hold.
LAYERS_FEWER_FIRST: Final = 1
LAYERS_FEWER_LAST: Final = 3


def greedy_head(model: ModelSpec) -> float:
    """The head's cost in layers as nanotron counts it [1]: V h over 4 a d h + 3 f h of the first layer."""
    first = model.layers[0]
    ffn = first.mlp.ffn if first.mlp else (first.moe.top_k * first.moe.expert_ffn if first.moe else 0)
    attention = first.attention.heads * first.attention.head_dim if first.attention else 0
    return model.vocab / (4.0 * attention + 3.0 * ffn) if attention + ffn else 0.0


def split_evenly(num_layers: int, chunks: int) -> list[int]:
    """Layers of every chunk, all equal; `chunks` divides `num_layers`."""
    return [num_layers // chunks] * chunks


def split_balanced(num_layers: int, pp: int, vpp: int, embedding: float, head: float) -> list[int]:
    """Layers of every chunk in pipeline order, so that the pipeline is as fast as can be.

    One chunk a rank: each layer in turn goes to the rank with the least load (the later one of equals, since early
    ranks hold more activations). Several: see `_split_interleaved`. `embedding`, `head`: cost in layers [1]. Chunk
    i lies on rank i mod pp, as Megatron-LM numbers virtual stages. Every chunk holds a layer, but the first and the
    last of an interleaved pipeline, which can hold the embedding or the head alone.
    """
    if vpp > 1:
        return _split_interleaved(num_layers, pp, vpp, embedding, head)
    layers = [1] * pp
    load = [1.0] * pp
    load[0] += embedding
    load[-1] += head
    heap = [(load[rank], -rank) for rank in range(pp)]
    heapq.heapify(heap)
    for _ in range(num_layers - pp):
        cost, negative = heapq.heappop(heap)
        layers[-negative] += 1
        heapq.heappush(heap, (cost + 1.0, negative))
    return layers


def _split_interleaved(num_layers: int, pp: int, vpp: int, embedding: float, head: float) -> list[int]:
    """As `split_balanced`, for several chunks a rank.

    All ranks work on the same virtual stage at a time, so a step takes the sum over virtual stages of the slowest
    chunk in each: further layers go to whole virtual stages before they start another. Tried: 0 or 1 layer less in
    the first chunk, 0 to 3 less in the last; kept: the least sum, then the evenest.
    """
    best: tuple[float, float, list[int]] | None = None
    for first in range(LAYERS_FEWER_FIRST + 1):
        for last in range(LAYERS_FEWER_LAST + 1):
            layers = _dealt(num_layers + first + last, pp, vpp)
            layers[0] -= first
            layers[-1] -= last
            if min(layers) < 0 or min(layers[1:-1], default=1) < 1:
                continue
            cost = [float(count) for count in layers]
            cost[0] += embedding
            cost[-1] += head
            waves = sum(max(cost[wave * pp : (wave + 1) * pp]) for wave in range(vpp))
            rank = max(sum(cost[r::pp]) for r in range(pp))
            if best is None or (waves, rank) < best[:2]:
                best = (waves, rank, layers)
    if best is None:  # fewer layers than chunks between the first and the last
        raise ValueError(f"{num_layers} layers do not fill {pp} x {vpp} chunks")
    return best[2]


def _dealt(units: int, pp: int, vpp: int) -> list[int]:
    """Units in chunks of pp ranks: equal, the rest in whole virtual stages, late ones first, and then on middle ranks.

    Late chunks have the fewest micro-batches in flight. The last and the first hold the head and the embedding.
    """
    base, rest = divmod(units, pp * vpp)
    layers = [base] * (pp * vpp)
    waves = [*range(vpp - 2, 0, -1), vpp - 1, 0]
    for wave in waves[: rest // pp]:
        for rank in range(pp):
            layers[wave * pp + rank] += 1
    for rank in sorted(range(pp), key=lambda r: abs(r - (pp - 1) / 2))[: rest % pp]:
        layers[waves[rest // pp] * pp + rank] += 1
    return layers


def split_greedily(num_layers: int, pp: int, head: float) -> list[int]:
    """Layers of every stage as nanotron deals them: the rank advances once the cumulative cost reaches its share.

    `head`: `greedy_head`. Trailing ranks can come out empty, which fails at start. Source: nanotron
    src/nanotron/models/base.py, build_model, which compares with `>`; at an exact tie (its 1B model) published peaks
    are those of the rank that advanced.
    """
    share = (num_layers + head) / pp
    layers, done, rank = [0] * pp, 0.0, 0
    for _ in range(num_layers):
        layers[rank] += 1
        done += 1.0
        if done >= share * (rank + 1) and rank < pp - 1:
            rank += 1
    return layers


def deal_layers(
    num_layers: int,
    pp: int,
    vpp: int,
    split: PipelineSplit | tuple[int, ...],
    embedding: float,
    head: float,
    placement: Placement = Placement.LOOPED,
) -> list[int]:
    """Layers of every chunk in pipeline order under the stack's way to split, or a split that is given."""
    if isinstance(split, tuple):
        return list(split)
    if pp == 1:
        return [num_layers]
    if split is PipelineSplit.GREEDY and vpp == 1:
        return split_greedily(num_layers, pp, head)
    if split is PipelineSplit.EVEN and num_layers % (pp * vpp) == 0:
        return split_evenly(num_layers, pp * vpp)
    if placement is Placement.FOLDED:
        return split_folded(num_layers, pp, embedding, head)
    return split_balanced(num_layers, pp, vpp, embedding, head)


def split_folded(num_layers: int, pp: int, embedding: float, head: float) -> list[int]:
    """Layers of every chunk of a model folded over pp ranks, rank r holding chunks r and 2 pp - 1 - r.

    A rank's work is all that counts, so layers are dealt to ranks as `split_balanced` deals them, embedding and head
    both on the first; of an odd number the early chunk gets one more, of rank 0 the late one, which holds the head,
    fewer. Every chunk but the first and the last holds a layer.
    """
    layers = [0] + [2] * (pp - 1)
    load = [float(count) for count in layers]
    load[0] += embedding + head
    heap = [(load[rank], -rank) for rank in range(pp)]
    heapq.heapify(heap)
    if num_layers < sum(layers):
        raise ValueError(f"{num_layers} layers do not fill 2 x {pp} chunks")
    for _ in range(num_layers - sum(layers)):
        cost, negative = heapq.heappop(heap)
        layers[-negative] += 1
        heapq.heappush(heap, (cost + 1.0, negative))
    late = [count // 2 for count in layers]
    late[0] = min(max(round((layers[0] + embedding - head) / 2), 0), layers[0])
    early = [count - other for count, other in zip(layers, late, strict=True)]
    return [*early, *reversed(late)]
