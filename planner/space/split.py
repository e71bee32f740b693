"""How many layers does each pipeline stage get?

Left out: splits that a solver finds, which replace these.
"""

from __future__ import annotations

import heapq

from planner.spec.model import ModelSpec
from planner.spec.stack import PipelineSplit


def nanotron_head(model: ModelSpec) -> float:
    """The head's cost in layers as nanotron counts it [1]: V h over 4 a d h + 3 f h of the first layer."""
    first = model.layers[0]
    ffn = first.mlp.ffn if first.mlp else (first.moe.top_k * first.moe.expert_ffn if first.moe else 0)
    return model.vocab / (4.0 * first.attention.heads * first.attention.head_dim + 3.0 * ffn)


def split_evenly(num_layers: int, chunks: int) -> list[int]:
    """Layers of every chunk, all equal; `chunks` divides `num_layers`."""
    return [num_layers // chunks] * chunks


def split_balanced(num_layers: int, pp: int, vpp: int, embedding: float, head: float) -> list[int]:
    """Layers of every chunk in pipeline order, so that the heaviest rank is as light as can be.

    Every chunk gets one layer, then each further layer goes to the rank with the least load (the later one of
    equals, since early ranks hold more activations). `embedding`, `head`: cost in layers [1]. Chunk i lies on
    rank i mod pp, as Megatron-LM numbers virtual stages.
    """
    layers = [1] * (pp * vpp)
    load = [float(vpp)] * pp
    load[0] += embedding
    load[-1] += head
    heap = [(load[rank], -rank) for rank in range(pp)]
    heapq.heapify(heap)
    on_rank = [1] * pp
    for _ in range(num_layers - pp * vpp):
        cost, negative = heapq.heappop(heap)
        rank = -negative
        layers[(on_rank[rank] % vpp) * pp + rank] += 1
        on_rank[rank] += 1
        heapq.heappush(heap, (cost + 1.0, negative))
    return layers


def split_nanotron(num_layers: int, pp: int, head: float) -> list[int]:
    """Layers of every stage as nanotron deals them: the rank advances once the cumulative cost exceeds its share.

    `head`: `nanotron_head`. Trailing ranks can come out empty, which fails at start. Source: nanotron's pipeline
    blocks, src/nanotron/parallel/pipeline_parallel (read in a study of its runs).
    """
    share = (num_layers + head) / pp
    layers, done, rank = [0] * pp, 0.0, 0
    for _ in range(num_layers):
        layers[rank] += 1
        done += 1.0
        if done > share * (rank + 1) and rank < pp - 1:
            rank += 1
    return layers


def deal_layers(
    num_layers: int, pp: int, vpp: int, split: PipelineSplit, embedding: float, head: float
) -> list[int]:
    """Layers of every chunk in pipeline order under the stack's way to split."""
    if pp == 1:
        return [num_layers]
    if split is PipelineSplit.NANOTRON and vpp == 1:
        return split_nanotron(num_layers, pp, head)
    if split is PipelineSplit.EVEN and num_layers % (pp * vpp) == 0:
        return split_evenly(num_layers, pp * vpp)
    return split_balanced(num_layers, pp, vpp, embedding, head)
