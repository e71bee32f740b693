"""How many values do ranks hold, gather and reduce of tensors that they divide by rows?

A tensor of E rows over N ranks is cut into N pieces of ceil(E/N) rows, the last ones padded: so much of it the busiest
rank keeps, states of the optimizer included, and all send (torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param.py
_init_sharded_param, init_all_gather_outputs; _fsdp_collectives.py foreach_reduce). All experts of a layer are one
tensor with a row for each (transformers 5.17 integrations/moe.py). Left out: norms and biases, of less than 1/1000 of a
layer; adapters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.cost.operations.lists import layer_gemms
from planner.cost.operations.operation import Shard
from planner.spec.rule import Problem

Array = NDArray[np.float64]


def padding(rows: Array, ranks: Array) -> Array:
    """A tensor's pieces together over itself: N ceil(E/N) / E of E `rows` over N `ranks` [1]."""
    return np.asarray(ranks * np.ceil(rows / ranks) / rows)


class _Tensors(NamedTuple):
    """The model's tensors of one kind: parameters, and rows on all ranks; whether tensor parallelism divides the rows
    (T, 1) each."""

    sizes: Array
    rows: Array
    by_rows: NDArray[np.bool_]


class PaddedShards:
    """Binds a problem; answers for columns of degrees."""

    def __init__(self, problem: Problem) -> None:
        model, engine = problem.model, problem.stack.engine
        self.by_rows, self.within = engine.shards_by_rows, engine.divides_within_experts
        counts = [*enumerate(np.bincount(model.layer_kind_of)), *model.mtp_kinds]
        dense, experts = list[tuple[float, float, bool]](), list[tuple[float, float, bool]]()
        for kind, count in counts:
            for gemm in layer_gemms(model.layer_kinds[kind], model.hidden):
                inputs = float(count * gemm.groups * gemm.in_features)
                if gemm.expert:
                    experts.append((inputs * sum(gemm.outputs()), gemm.groups, False))
                else:
                    column = gemm.shard is Shard.COLUMN
                    dense += [(inputs * out, gemm.groups * out, column) for out in gemm.outputs()]
        dense += [(float(model.vocab * model.embedding_width), float(model.vocab), True)]
        self.dense, self.experts = (
            _Tensors(*(np.array(column)[:, None] for column in zip(*some, strict=True))) if some else None
            for some in (dense, experts)
        )

    def of(self, t: Array, e: Array, groups: tuple[Array, Array]) -> tuple[Array, Array]:
        """Padded over own parameters of dense and of expert tensors (k,) [1], of which `groups` of ranks share those of
        a tensor- and of an expert-parallel rank.

        Experts of which a rank has fewer than share them can be divided within each (`divides_within_experts`)."""
        dense, experts, (shared, expert_shared) = self.dense, self.experts, groups
        whole = np.ones_like(t)
        if not self.by_rows or dense is None:
            return whole, whole
        more = padding(np.maximum(dense.rows / np.where(dense.by_rows, t, 1.0), 1.0), shared)
        padded = (dense.sizes * more).sum(axis=0) / dense.sizes.sum()
        if experts is None:
            return padded, whole
        rows = np.maximum(experts.rows / e, 1.0)
        more = padding(rows, expert_shared)
        if self.within:
            more = np.where(expert_shared > rows, 1.0, more)
        return padded, (experts.sizes * more).sum(axis=0) / experts.sizes.sum()
