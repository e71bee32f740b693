"""How long does one layer take and what does it keep, for every way its micro-batch can be cut?

One value per distinct key (tp, sp, cp, ep, etp, micro-batch, recomputed modules), for one kind of layer, or for
the embedding and the head. Left out: what depends on the pipeline, data parallelism or the number of layers.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.adapters import AdapterModel
from planner.cost.captured.layers import listed_layers
from planner.cost.cut import LayerShape
from planner.cost.device.graphs import Capture, capture_of, layer_graphs
from planner.cost.device.mixing import MixingModel
from planner.cost.device.passes import PassModel
from planner.cost.device.products import Groups, ProductModel, key_groups
from planner.cost.device.rates import DeviceRates
from planner.cost.edges import EdgeCost, EdgeModel
from planner.cost.host import HostModel, gathered_by_hooks, has_hooks
from planner.cost.kept_tables import KeptTables
from planner.cost.layer_cost import TIME_TERMS, LayerCost, chained
from planner.cost.layer_memory import forward_bytes, layer_memory, layer_parts, weight_gradient_bytes
from planner.cost.messages.context import context_messages
from planner.cost.messages.experts import expert_messages
from planner.cost.messages.exposure import PassSeconds, pass_seconds
from planner.cost.messages.tensor import tensor_messages
from planner.cost.muon import MuonModel
from planner.cost.network.context import context_kinds
from planner.cost.network.overlap import paired_time, soft_maximum
from planner.cost.operations.lists import layer_operations
from planner.cost.operations.operation import Operation, Run
from planner.cost.selective import by_operations, kept_shares, repeated_time
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, IntColumn, distinct
from planner.spec.layer import Layer
from planner.spec.machine.links import LinkRates
from planner.spec.machine.rates import KernelRates
from planner.spec.precision import RECIPES, Precision, PrecisionRecipe
from planner.spec.rule import Problem

if TYPE_CHECKING:
    from planner.cost.levels import LayerColumns

Array = NDArray[np.float64]

RING_OVERLAP: Final = 0.8  # of attention's time, what hides the ring of context parallelism: a start value


@dataclass(frozen=True)
class _Passes:
    """A layer's passes on the device: seconds by term; of these the weight gradients, exposed tensor parallelism
    (forward, backward) and exposed exchanges with experts; forward of every module that can be recomputed, and of what
    recomputation by operations repeats ("op", where a key asks for it) [s]."""

    forward: dict[str, Array]
    backward: dict[str, Array]
    weight_gradient: Array
    tensor: tuple[Array, Array]
    exchanged: Array
    modules: dict[str, Array]

    def take(self, rows: NDArray[np.intp]) -> _Passes:
        """Those of some keys."""
        return _Passes(
            {term: seconds[rows] for term, seconds in self.forward.items()},
            {term: seconds[rows] for term, seconds in self.backward.items()},
            self.weight_gradient[rows],
            (self.tensor[0][rows], self.tensor[1][rows]),
            self.exchanged[rows],
            {name: seconds[rows] for name, seconds in self.modules.items()},
        )

    def recomputed(self, mask: IntColumn) -> Array:
        """Forward seconds of what each key's `recompute_modules` names."""
        total = np.zeros(len(mask))
        for bit, name in enumerate(RECOMPUTE_MODULES):
            if name in self.modules:
                total = total + np.where(mask & (1 << bit) > 0, self.modules[name], 0.0)
        return total


class LayerModel:
    """Binds a problem and its measured rates; evaluates layers for a table of distinct keys."""

    def __init__(self, problem: Problem, kernels: KernelRates, links: LinkRates) -> None:
        self.problem, self.kernels, self.links = problem, kernels, links
        self.known: KeptTables[LayerColumns] = KeptTables()
        self.recomputed: tuple[int, ...] = ()  # layers of every rank, see `CostModel.with_split`
        self.rates = DeviceRates(problem, kernels)
        self.products, self.adapters = ProductModel(self.rates), AdapterModel(self.rates)
        self.mixing, self.passes = MixingModel(self.rates), PassModel(self.rates)
        self.host = HostModel(problem)
        self._ends = EdgeModel(problem, self.products, self.host)
        self.muon = MuonModel(self.rates, links) if problem.deals_matrices else None
        self.listed = listed_layers(problem, kernels, self.host.slowdown)
        self.recipe = self.rates.recipe
        self._lists: dict[tuple[Layer, PrecisionRecipe], tuple[Run, tuple[Operation, ...]]] = {}
        self.bandwidth = self.rates.bandwidth
        self.gemm_peak = self.rates.gemm_peak

    def shape(self, keys: ConfigTable, layer: Layer | None, longest: bool = False) -> LayerShape:
        """The cut of a micro-batch for every key; `layer` decides how key/value heads split.

        As computed on average, or the `longest`, which memory must hold.
        """
        job = self.problem.job
        t, c = keys["tp"].astype(float), keys["cp"].astype(float)
        batch = keys["micro_batch"].astype(float)
        tokens = batch * (float(job.seq_len) if longest else job.timed_length(batch)) / c
        kv_heads = float(layer.attention.kv_heads) if layer and layer.attention else 1.0
        split = np.where(keys["sp"] > 0, t, 1.0)
        et, padded = keys["etp"].astype(float), self.problem.stack.kernels.expert_padding
        return LayerShape(
            tokens=tokens,
            t=t,
            kv_split=np.minimum(t, kv_heads),
            sequence_split=split,
            expert_tokens=tokens / t,
            e=keys["ep"].astype(float),
            et=et,
            c=c,
            seq_kv=np.full(len(keys), float(job.seq_len)),
            imbalance=np.full(len(keys), padded) if padded else job.imbalance(keys["ep"].astype(float)),
            context=context_kinds(self.problem, keys["cp_kind"]),
        )

    def _longest(self, keys: ConfigTable, layer: Layer | None, x: LayerShape) -> LayerShape:
        """The cut that memory must hold: `x` itself where sequences have one length."""
        return x if self.problem.job.mean_length is None else self.shape(keys, layer, longest=True)

    def operations(self, layer: Layer, recipe: PrecisionRecipe) -> tuple[Run, tuple[Operation, ...]]:
        """How the stack runs a layer, whose linear layers are in a recipe, and its list of operations."""
        if (layer, recipe) not in self._lists:
            run = Run.of(self.problem, recipe, self.rates.fuses_experts)
            self._lists[layer, recipe] = run, layer_operations(layer, run)
        return self._lists[layer, recipe]

    @property
    def asks_zero(self) -> bool:
        """Does the cost of a layer depend on the ZeRO stage?"""
        return has_hooks(self.problem) or self.problem.casts_listed

    def columns(self, table: ConfigTable) -> list[IntColumn]:
        """The columns on which the cost of a layer, of the embedding and of the head depends."""
        axes = ("tp", "sp", "cp", "cp_kind", "ep", "etp", "micro_batch", "recompute_modules", "cuda_graph_impl",
                "cuda_graph_modules")  # fmt: skip
        gathers = [gathered_by_hooks(table, self.problem)] if has_hooks(self.problem) else []
        casts = [(table["zero"] < 2).astype(np.int32)] if self.problem.casts_listed else []
        return [*(table[axis] for axis in axes), (table["pp"] > 1).astype(np.int32), *gathers, *casts]

    def layer(self, layer: Layer, keys: ConfigTable) -> LayerCost:
        """Cost of one kind of layer for every key."""
        formula = self._by_formulas(layer, keys)
        if self.listed is None:
            return formula
        cut = np.flatnonzero(~self.listed.applies(keys))
        if not len(cut):
            return self.listed.layer(layer, keys, formula.sent).sending_as(formula)
        alone = self.listed.nearest(keys.take(cut))
        first, alike = distinct(*self.columns(alone))
        uncut = self._by_formulas(layer, alone.take(first)).take(alike)
        near = formula.but(cut, uncut)
        whole = self.listed.layer(layer, keys, near.sent).sending_as(near)
        found = whole.but(cut, formula.take(cut).in_proportion(whole.take(cut), uncut))
        return replace(found, graphs=formula.graphs)

    def _by_formulas(self, layer: Layer, keys: ConfigTable) -> LayerCost:
        if layer.then is not None:
            return chained(*(self._by_formulas(block, keys) for block in layer.blocks))
        x = self.shape(keys, layer)
        longest = self._longest(keys, layer, x)
        run, ops = self.operations(layer, RECIPES[Precision.BF16] if layer.wide else self.recipe)
        capture = capture_of(ops, keys)
        # keys that differ in what they recompute alone run the same passes
        first, of_passes = distinct(
            *(column for column in self.columns(keys) if column is not keys["recompute_modules"]),
            by_operations(keys).astype(np.int32),
        )
        alike = keys.take(first)
        passes = self._passes(layer, alike, x.take(first), key_groups(alike)).take(of_passes)
        times = self._with_host(layer, keys, x, passes, capture)
        parts = layer_parts(self.problem, run, ops, longest)
        held = layer_memory(self.problem, run, layer, ops, longest, keys, parts)
        return LayerCost(
            **times, **held._asdict(),
            due=weight_gradient_bytes(self.problem, run, ops, longest, held.kept),
            ahead=forward_bytes(run, ops, longest),
            graphs=None if capture is None
            else layer_graphs(capture, layer.sublayers, parts, keys, held.kept, held.working),
        )  # fmt: skip

    def dealt(self, problem: Problem, recomputed: tuple[int, ...]) -> LayerModel:
        """The same layers of a problem that differs in its split alone; `recomputed`: see `CostModel.with_split`."""
        other = copy(self)
        other.problem, other.recomputed = problem, recomputed
        return other

    def _passes(self, layer: Layer, keys: ConfigTable, x: LayerShape, groups: Groups) -> _Passes:
        """What the device does in both passes, and what of communication its computation does not hide [s]."""
        _, ops = self.operations(layer, self.recipe)
        gemms = [op.product for op in ops if op.product is not None]
        products = [
            self.adapters.with_adapter(
                self.products.gemm(gemm, x, groups, narrow=not layer.wide), gemm, x, groups
            )
            for gemm in gemms
        ]
        attention, indexer, context, tensor = self._attention(layer, x, keys, groups)
        scan = self.mixing.scan(layer, x, keys)
        memory, memory_behind = self.passes.memory_bound(ops, x)
        first, inverse = groups.expert
        sent = expert_messages(self.problem, self.links, layer, x.take(first))
        experts = pass_seconds(sent, len(first)).take(inverse)
        zero = np.zeros(len(keys))
        passes = sum(memory.values(), zero)
        moved = passes + scan[0], memory_behind + scan[1]
        weight_gradient = sum((g.weight_gradient for g in products), zero)
        linear = (
            sum((g.forward for g in products), zero),
            sum((g.input_gradient for g in products), zero) + weight_gradient,
        )
        exposed = tensor.exposed(linear)
        hides = self.problem.stack.communication.ep_overlap * (
            x.e > 1
        )  # shards of an expert alone are not overlapped
        mixed = attention[0] + indexer[0], attention[1] + indexer[1]
        computed = (hides * (linear[i] + mixed[i] + moved[i]) for i in (0, 1))
        exchanged = experts.exposed((next(computed), next(computed)))
        ahead = (linear[0], attention[0], indexer[0], moved[0], exposed[0], context[0], exchanged[0])
        back = (linear[1], attention[1], indexer[1], moved[1], exposed[1], context[1], exchanged[1])
        ahead_of = dict.fromkeys((gemm.name for gemm in gemms), zero)
        for gemm, seconds in zip(gemms, products, strict=True):
            ahead_of[gemm.name] = ahead_of[gemm.name] + seconds.forward
        modules = {"core_attn": mixed[0], "moe": experts.total[0]}
        for op in ops:
            of_op = ahead_of[op.name] if op.product is not None else memory.get(op.name, zero)
            for name, share in op.modules.items():
                modules[name] = modules.get(name, zero) + share * of_op
        if by_operations(keys).any():
            shares = kept_shares(self.problem, self.recipe, gemms, layer.wide)
            modules["op"] = repeated_time(shares, ahead_of, memory, scan[0], exposed[0])
        return _Passes(
            forward=dict(zip(TIME_TERMS, ahead, strict=True)),
            backward=dict(zip(TIME_TERMS, back, strict=True)),
            weight_gradient=weight_gradient,
            tensor=exposed,
            exchanged=exchanged[0] + exchanged[1],
            modules=modules,
        )

    def _with_host(
        self, layer: Layer, keys: ConfigTable, x: LayerShape, passes: _Passes, capture: Capture | None
    ) -> dict[str, Any]:
        """Times of a layer, of which the host's launches may take longer than the device: fields of `LayerCost`."""
        zero = np.zeros(len(keys))
        composed, softness = self.problem.stack.engine.composed, self.problem.stack.engine.launch_softness
        floor = self.host.floor(
            layer, self.operations(layer, self.recipe)[1], keys, self.mixing.softmax_is_eager(layer, x, keys)
        )
        ahead_host, behind_host, repeated = self.host.launches(layer, floor, capture, keys, x.c)
        again, again_full = passes.recomputed(keys["recompute_modules"]), sum(passes.forward.values(), zero)
        behind = sum(passes.backward.values(), zero)
        if composed:
            again = repeated = zero
        late = passes.tensor if composed else (zero, zero)  # what no launch hides
        forward_time = late[0] + soft_maximum(again_full - late[0], ahead_host, softness)
        on_device = behind - late[1] + again
        launched = soft_maximum(on_device, behind_host + repeated, softness)
        time = forward_time + late[1] + launched
        slower = np.divide(launched, on_device, out=np.ones_like(launched), where=on_device > 0)
        time_full = forward_time + soft_maximum(behind + again_full, behind_host + ahead_host, softness)
        again_full, time_full = (zero, time) if composed else (again_full, time_full)
        exchanged, comm = passes.exchanged, self.problem.stack.communication
        paired = paired_time(again_full + behind - exchanged, exchanged, comm.dispatcher.pair_share or 0.0)
        host = ahead_host + behind_host
        paired = soft_maximum(paired + again, host + repeated, softness)
        return {
            "forward": passes.forward, "backward": passes.backward,
            "weight_gradient": slower * passes.weight_gradient,
            "host": host, "again": again, "again_full": again_full,
            "time": time, "time_full": time_full, "forward_time": forward_time,
            "hidden": np.maximum(time - paired, 0.0) * (comm.dispatcher.pair_share is not None),
        }  # fmt: skip

    def _attention(
        self, layer: Layer, x: LayerShape, keys: ConfigTable, groups: Groups
    ) -> tuple[tuple[Array, Array], tuple[Array, Array], tuple[Array, Array], PassSeconds]:
        """Attention, its indexer and exposed context parallelism, forward and backward, and tensor parallelism for
        every key [s], evaluated once per distinct cut of attention."""
        first, inverse = groups.attention
        x, keys = x.take(first), keys.take(first)
        attention, indexer = self.mixing.attention(layer, x, keys), self.mixing.indexer(layer, x, keys)
        sent = context_messages(self.problem, self.links, layer, x, keys["cp_kind"])
        share = RING_OVERLAP * (x.c - 1) / x.c  # beside the ring's steps
        context = pass_seconds(sent, len(first)).exposed((share * attention[0], share * attention[1]))
        tensor = pass_seconds(tensor_messages(self.problem, self.links, layer, x), len(first))
        of_cut = (attention, indexer, context)
        attention, indexer, context = ((ahead[inverse], back[inverse]) for ahead, back in of_cut)
        return attention, indexer, context, tensor.take(inverse)

    def edges(self, keys: ConfigTable) -> EdgeCost:
        """Cost of the embedding, and of the head with the loss, for every key."""
        x = self.shape(keys, None)
        formula = self._ends.cost(keys, x, self._longest(keys, None, x))
        if self.listed is None:
            return formula
        whole = self.listed.edges(formula, keys)
        cut = ~self.listed.applies(keys)
        if not cut.any():
            return whole
        alone = self.listed.nearest(keys)
        y = self.shape(alone, None)
        uncut = self._ends.cost(alone, y, self._longest(alone, None, y))
        return formula.in_proportion(whole, uncut, cut)
