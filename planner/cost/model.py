"""What does each candidate cost? Binds a problem to its measured rates and evaluates tables of candidates.

The evaluation has three levels, each on its distinct keys only: a layer (how a micro-batch is cut), a pipeline
(layers per stage and micro-batches), a row (sharding and recomputation). One text serves one candidate and a
million. Left out: pipelines of uneven stages that have no exact form, for which that of equal ones stands in;
`cost/simulated.py` simulates those of a short table, and `least_step_time` is what that never falls below.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.bounds import MEMORY_AXES, TIME_AXES, LateAxes, least_memory, least_of_cuts, least_step_time
from planner.cost.flops import outer_gemms
from planner.cost.layer import LayerModel
from planner.cost.levels import layer_level, pipeline_level
from planner.cost.operations.lists import layer_gemms
from planner.cost.operations.operation import gemm_flops
from planner.cost.pipeline.stages import StageClasses, stage_classes
from planner.cost.prepared import PreparedCosts
from planner.cost.shards import ShardModel
from planner.cost.table import CostTable, join
from planner.space.split import greedy_head
from planner.spec.config import ConfigTable, distinct
from planner.spec.machine.links import LinkRates
from planner.spec.machine.rates import KernelRates
from planner.spec.rule import Problem
from planner.spec.stack.kinds import PipelineSplit

Array = NDArray[np.float64]

CHUNK_ROWS = 16384


class CostModel:
    """Evaluates candidates of one problem. Pure: the same table gives the same bytes."""

    def __init__(self, problem: Problem, kernels: KernelRates, links: LinkRates) -> None:
        self.problem, self.kernels, self.links = problem, kernels, links
        self.layers = LayerModel(problem, kernels, links)
        self.shards = ShardModel(problem, links)
        model = problem.model
        self.kinds = model.layer_kinds
        linear = [sum(gemm_flops(g, 1.0) for g in layer_gemms(kind, model.hidden)) for kind in self.kinds]
        mean = float(np.mean([linear[kind] for kind in model.layer_kind_of]))
        behind = sum(count * linear[kind] for kind, count in model.mtp_kinds)
        head = next(gemm for gemm in outer_gemms(model) if gemm.name == "head")
        self.head_in_layers = (gemm_flops(head, 1.0) + behind) / mean
        if problem.stack.split is PipelineSplit.GREEDY:
            self.head_in_layers = greedy_head(model)
        self.embedding_in_layers = 0.05

    def with_split(self, chunks: tuple[int, ...], recomputed: tuple[int, ...] = ()) -> CostModel:
        """The same for layers dealt in one way: `chunks` of them in order, for pipelines of that many chunks.

        `recomputed`: layers that each rank recomputes, where not all recompute what the configuration says; it must
        then say the largest of them.
        """
        stack = self.problem.stack.model_copy(update={"split": chunks})
        other = copy(self)
        other.problem = replace(self.problem, stack=stack)
        other.layers = self.layers.dealt(other.problem, recomputed)
        return other

    def prepare(self, stems: ConfigTable) -> PreparedCosts:
        """Evaluate everything that does not depend on the number of fully recomputed layers."""
        classes = self._stage_classes(stems)
        layers = layer_level(self.layers, stems)
        pipelines = pipeline_level(self.layers, stems, layers, classes)
        shards = self.shards.shards(stems, classes)
        return PreparedCosts(self.layers, stems, classes, layers, pipelines, shards)

    def lower_bound(self, stems: ConfigTable) -> Array:
        """A step time that no completion of a stem beats, whatever it repeats (`cost.bounds.least_step_time`) [s]."""
        axes = (*TIME_AXES, "zero") if self.layers.asks_zero else TIME_AXES
        first, inverse = distinct(*(stems[axis] for axis in axes))
        keys = stems.take(first)
        keys = ConfigTable({**keys.columns, "recompute_modules": np.zeros_like(keys["recompute_modules"])})
        return least_step_time(self.layers, keys, self._stage_classes(keys))[inverse]

    def least_memory(self, stems: ConfigTable) -> Array:
        """Device memory that no completion of a stem needs less than (`cost.bounds.least_memory`) [bytes]."""
        first, inverse = distinct(*(stems[axis] for axis in MEMORY_AXES))
        keys = stems.take(first)
        return least_memory(self.shards, keys, self._stage_classes(keys))[inverse]

    def least_of_cuts(self, cuts: ConfigTable, late: LateAxes, limit: float = np.inf) -> tuple[Array, Array]:
        """Step time [s] and memory [bytes] that no completion of a cut beats (`cost.bounds.least_of_cuts`)."""
        return least_of_cuts(self.layers, self.shards, cuts, late, limit)

    def evaluate(self, table: ConfigTable, keep_terms: bool = False) -> CostTable:
        """Cost of every row of `table`; a row's cost does not depend on the other rows."""
        if not len(table):
            empty, none = np.zeros(0), np.zeros(0, dtype=np.intp)
            return CostTable(empty, empty, empty, none, none)
        prepared = self.prepare(table)
        step = len(table) if keep_terms else CHUNK_ROWS
        parts = []
        for start in range(0, len(table), step):
            part = slice(start, min(start + step, len(table)))
            rows = np.arange(part.stop - part.start)
            parts.append(prepared.evaluate(part, rows, table["recompute_layers"][part], keep_terms))
        return parts[0] if len(parts) == 1 else join(parts)

    def least_step_time(self, table: ConfigTable) -> Array:
        """What each row takes at least once its pipeline is simulated (`cost.simulated`), (n,) [s]."""
        if not len(table):
            return np.zeros(0)
        rows, every = np.arange(len(table)), slice(0, len(table))
        found = self.prepare(table).evaluate(every, rows, table["recompute_layers"], least=True).least
        assert found is not None, "it was asked for"
        return found

    def _stage_classes(self, table: ConfigTable) -> StageClasses:
        stack = self.problem.stack
        classes = stage_classes(
            table["pp"], table["vpp"], table["schedule"], self.problem.model.layer_kind_of, stack.split,
            self.embedding_in_layers, self.head_in_layers, self.layers.recomputed,
        ).padded(len(self.kinds))  # fmt: skip
        for kind, count in self.problem.model.mtp_kinds:
            classes.layers[:, :, kind] += count * classes.last
        return classes
