"""Which values can every axis take, as a function of the degrees chosen first?

Left out: which combinations of them are legal (`rules.py`) and how they are expanded (`enumerate.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.dialect import option
from planner.errors import InputError
from planner.space.recomputations import Recomputations, module_lists
from planner.space.without import OpenedAxis, is_left_out
from planner.spec.config import (
    CUDA_GRAPH_MODULES,
    RECOMPUTE_MODULES,
    SCHEDULE_LABELS,
    ContextKind,
    CudaGraphs,
    Mask,
    ParallelConfig,
    Recompute,
    Schedule,
    default_schedule,
    module_mask,
)
from planner.spec.rule import Problem
from planner.spec.stack.kinds import ContextExchange

Restriction = Mapping[str, tuple[int, ...]]
Domain = tuple[tuple[int, ...], ...]  # values of the axis (or pair of axes) as tuples

RESTRICTABLE: Final = (
    "tp", "cp", "pp", "dp", "sp", "ep", "etp", "vpp", "schedule", "micro_batch", "zero", "recompute",
    "recompute_layers", "recompute_modules", "offload", "cuda_graph_impl", "cuda_graph_modules", "hsdp", "cp_kind",
)  # fmt: skip
LARGEST_DEGREE: Final = 2**20
# of axes that are codes or masks, from 0
_HIGHEST: Final = {
    "sp": 1, "zero": 3, "recompute": 2, "recompute_modules": 2 ** len(RECOMPUTE_MODULES) - 1,
    "schedule": len(Schedule) - 1, "offload": 7, "cuda_graph_impl": len(CudaGraphs) - 1,
    "cuda_graph_modules": 2 ** len(CUDA_GRAPH_MODULES) - 1, "cp_kind": max(ContextKind),
}  # fmt: skip


def divisors(number: int) -> tuple[int, ...]:
    """Divisors of `number` >= 1, ascending."""
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*low, *(number // d for d in low)}))


def check_restriction(restrict: Restriction) -> None:
    """Raise `InputError` where an axis is unknown or a value cannot be a degree."""
    for axis, values in restrict.items():
        if axis not in RESTRICTABLE:
            raise InputError(f"{option('set')} names an axis", axis, "axes: " + ", ".join(RESTRICTABLE))
        lowest, highest = degree_range(axis)
        for value in values:
            if not lowest <= value <= highest:
                raise InputError(f"{axis} must be a whole number from {lowest} to {highest:,}", str(value))


def degree_range(axis: str) -> tuple[int, int]:
    """The least and the largest value of an axis."""
    return int(axis not in (*_HIGHEST, "recompute_layers", "hsdp")), _HIGHEST.get(axis, LARGEST_DEGREE)


class Axes:
    """The values of every axis as a function of the degrees chosen first.

    `without`: axes that a search opens by itself and that are left as the stack has them.
    """

    def __init__(self, problem: Problem, restrict: Restriction, without: Sequence[str] = ()) -> None:
        model, limits = problem.model, problem.stack.limits
        self.restrict = restrict
        self.layers = model.num_layers
        self.batch = problem.job.global_batch
        self.moe = model.is_moe
        experts = [layer.moe.experts for layer in model.blocks if layer.moe]
        self.partial = problem.stack.limits.partial_full_recompute
        self.schedules = [Schedule(SCHEDULE_LABELS.index(name)) for name in problem.stack.limits.schedules]
        self.own_modules, self.modules = stack_modules(problem), modules_tried(problem)
        self._recomputations: dict[tuple[int, int], Recomputations] = {}
        graphs = (
            limits.cuda_graphs_tried if is_left_out(OpenedAxis.CUDA_GRAPHS, without) else limits.cuda_graphs
        )
        self.graphs = sorted(int(CudaGraphs[name.upper()]) for name in graphs)
        self.captured = captured_modules_tried(problem) if len(graphs) > 1 else (0,)
        self.offloads = (0,) if is_left_out(OpenedAxis.OFFLOAD, without) else problem.offloads
        self.pipelines = problem.stack.pipelines_tried or not is_left_out(OpenedAxis.PIPELINES, without)
        alone = problem.stack.communication.cp_exchange is ContextExchange.NONE
        kinds = problem.context_kinds[: 1 if alone else None]
        self.exchanges = [int(kind) for kind in kinds]
        self.weight_groups = 3 in problem.stack.limits.hybrid_sharding
        self.ep_values = divisors(int(np.gcd.reduce(experts))) if experts else (1,)

    def _restricted(self, axis: str, values: Sequence[int]) -> Domain:
        return tuple((v,) for v in self.restrict.get(axis, tuple(values)))

    def sp(self, tp: int) -> Domain:
        return self._restricted("sp", (0, 1) if tp > 1 else (0,))

    def ep(self, tp: int) -> Domain:
        return self._restricted("ep", self.ep_values)

    def etp(self, tp: int) -> Domain:
        return self._restricted("etp", divisors(tp) if self.moe else (1,))

    def vpp(self, pp: int) -> Domain:
        return self._restricted("vpp", range(1, max(1, (self.layers + 2) // pp) + 1) if pp > 1 else (1,))

    def schedule(self, vpp: int) -> Domain:
        """Never empty: chunks that no schedule of the stack runs are counted where a rule removes them."""
        fitting = [int(schedule) for schedule in self.schedules if schedule.runs_chunks(vpp)]
        return self._restricted("schedule", fitting or (int(default_schedule(vpp)),))

    def micro_batch(self, dp: int) -> Domain:
        share = self.batch // dp
        return self._restricted("micro_batch", divisors(share) if share else (1,))

    def zero(self, tp: int) -> Domain:
        return self._restricted("zero", (0, 1, 2, 3))

    def offload(self, tp: int) -> Domain:
        return self._restricted("offload", self.offloads)

    def hsdp(self, ranks: int) -> Domain:
        """All of the ranks that data and context parallelism make share every shard; where weights are sharded, which
        every pass gathers, groups of them are tried too. A group of all of them is 0, also where it is asked for."""
        groups = divisors(ranks)[1:-1] if self.weight_groups else ()
        asked = self.restrict.get("hsdp", (0, *groups))
        return tuple((group,) for group in dict.fromkeys(0 if group == ranks else group for group in asked))

    def cp_kind(self, cp: int) -> Domain:
        """Every exchange that the framework knows, its own as 0; each once."""
        asked = self.restrict.get("cp_kind", (0, *self.exchanges[1:])) if cp > 1 else (0,)
        twice = self.exchanges[0] and self.exchanges[0] in asked
        return tuple((kind,) for kind in asked if kind or not twice)

    def cuda_graph_impl(self, tp: int) -> Domain:
        return self._restricted("cuda_graph_impl", self.graphs)

    def cuda_graph_modules(self, tp: int) -> Domain:
        """Whole layers, and all modules of a fixed shape; other lists if asked for."""
        return self._restricted("cuda_graph_modules", self.captured)

    def recomputations(self, pp: int, vpp: int) -> Recomputations:
        """Leaves: nothing, lists of modules, whole layers, in this order."""
        known = self._recomputations.get((pp, vpp))
        if known is None:
            ways = [(int(Recompute.NONE), 0, 0)] if self._recomputes(Recompute.NONE) else []
            if self._recomputes(Recompute.SELECTIVE) and (self.modules or "recompute" in self.restrict):
                asked = self.restrict.get("recompute_modules", self.modules or (self.own_modules,))
                ways += [(int(Recompute.SELECTIVE), mask, 0) for mask in asked]
            ways += [(int(Recompute.FULL), 0, count) for count in self.full_layers(pp, vpp)]
            known = self._recomputations[pp, vpp] = Recomputations.of(ways)
        return known

    def _recomputes(self, kind: Recompute) -> bool:
        """Do the pins of `recompute` and `recompute_layers` leave this kind?"""
        counts = self.restrict.get("recompute_layers", (0, 1))
        possible = any(counts) if kind is Recompute.FULL else 0 in counts
        return possible and kind in self.restrict.get("recompute", tuple(Recompute))

    def full_layers(self, pp: int, vpp: int) -> tuple[int, ...]:
        """Numbers of layers to recompute whole: the multiples of vpp up to the largest stage, and all of it.

        A pinned number above that means all of it.
        """
        if not self._recomputes(Recompute.FULL):
            return ()
        most, wanted = -(-self.layers // pp), self.restrict.get("recompute_layers")
        if wanted is not None:
            return tuple(sorted({min(count, most) for count in wanted if count > 0}))
        if "recompute" in self.restrict or not self.partial:
            return (most,)
        return tuple(sorted({*range(vpp, most, vpp), most}))


def captured_modules_tried(problem: Problem) -> tuple[int, ...]:
    """The lists of modules that graphs of layers are tried with, as masks: none, which means whole layers, and what has
    a fixed shape in layers whose experts drop no tokens."""
    layers = problem.model.blocks
    if not any(layer.moe for layer in layers):
        return (0,)
    mixes = bool(problem.model.attentions or problem.model.delta_nets)
    has = {
        "attn": mixes,
        "moe_router": True,
        "moe_preprocess": True,
        "mlp": any(layer.mlp for layer in layers),
    }
    has["mamba"] = bool(problem.model.mambas)
    return 0, module_mask(name for name, present in has.items() if present)


def recompute_choices(problem: Problem, restrict: Restriction, config: ParallelConfig) -> tuple[int, ...]:
    """The numbers of fully recomputed layers with which the configuration is in the space."""
    if config.recompute == Recompute.SELECTIVE:
        return (0,)
    ways = Axes(problem, restrict).recomputations(config.pp, config.vpp)
    some = ways.layers[ways.kind != Recompute.SELECTIVE]
    if problem.stack.limits.recompute_every:
        some = some[(some == 0) | one_of_so_many(-(-problem.model.num_layers // config.pp), some)]
    return tuple(some.tolist())


def one_of_so_many(most: NDArray[np.int32] | int, count: NDArray[np.int32]) -> Mask:
    """Whether of `most` layers one of every k are `count`, for some k."""
    return np.asarray(most // (most // np.clip(count, 1, most)) == count)


def stack_modules(problem: Problem) -> int:
    """Bit mask of what the stack recomputes when asked to recompute selectively."""
    names = problem.stack.limits.selective_recompute
    return sum(1 << RECOMPUTE_MODULES.index(name) for name in names)


def modules_tried(problem: Problem) -> tuple[int, ...]:
    """The lists of modules that a search tries, as masks: the stack's own selection, where a layer has any of it, and
    every list of those that the stack recomputes one by one and a layer has. Attention that keeps no scores frees
    little when it is recomputed (`core_attn`), and is tried in the stack's own selection alone."""
    limits, present, kernels = problem.stack.limits, present_modules(problem), problem.stack.kernels
    own = (stack_modules(problem),) if present & set(limits.selective_recompute) else ()
    if all(kernels.attention_of(attention).tiled for attention in problem.model.attentions):
        present.discard("core_attn")
    lists = module_lists(name for name in limits.recompute_modules if name in present)
    return tuple(dict.fromkeys((*own, *lists)))


def present_modules(problem: Problem) -> set[str]:
    """What any layer has that can be recomputed. A mixture of experts has no dense `mlp`."""
    kinds = problem.model.blocks
    present = {"core_attn", "op"} if problem.model.attentions else {"op"}
    if any(layer.state_space is None or layer.sublayers > 1 for layer in kinds):
        present.add("layernorm")
    if any(layer.mlp for layer in kinds):
        present.add("mlp")
    if any(layer.moe for layer in kinds):
        present |= {"moe", "moe_act"}
    if any(layer.moe and layer.moe.shared_ffn for layer in kinds):
        present.add("shared_experts")
    if problem.model.expands_queries:
        present.add("mla_up_proj")
    return present
