"""What do layers, embedding and head cost where lists of their operations were captured?

A micro-batch on one device, on one that shards states alone, or on ranks that divide layers by tensor parallelism where
that was captured. Left out: other cuts of a layer (context, expert and pipeline parallelism), texts of several lengths
and frozen weights in fewer bits, for which no lists are captured; how long messages take, which are not the lists'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.cost.captured.kernels import Device
from planner.cost.captured.passes import BothCosts, ListedCosts, PassCost
from planner.cost.captured.update import update_seconds
from planner.cost.edges import EdgeCost
from planner.cost.layer_cost import TIME_TERMS, LayerCost
from planner.cost.operations.embedding_and_loss import HeadActivations
from planner.cost.selective import OPERATIONS, by_operations
from planner.spec.config import ConfigTable, Recompute
from planner.spec.job import Optimizer
from planner.spec.layer import Layer
from planner.spec.listed import ByRecompute, Lists, layer_form, sizes_of
from planner.spec.machine.host import HostRates
from planner.spec.machine.rates import KernelRates
from planner.spec.rule import Problem

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
HALF, FULL = 2, 4  # bytes of a value
CUTS = ("tp", "cp", "pp", "ep", "etp")  # axes that divide a layer, or the model
SHARDED = 2  # ZeRO stage from which on weights are gathered
_OF_KEY = (*CUTS, "recompute_modules", "cuda_graph_impl")  # on which it depends whether lists are of a key


def listed_layers(problem: Problem, kernels: KernelRates, slowdown: float) -> ListedLayers | None:
    """Those of a problem; None where no lists hold for it. `slowdown`: of its hosts [1]."""
    ways = [(sharded, tensor) for tensor in (False, True) for sharded in (False, True)]
    found = {way: lists for way in ways if (lists := problem.lists(*way)) is not None}
    if problem.listed is None or not {(False, False), (True, False)} <= set(found):
        return None
    device = Device(problem.cluster.accelerator, kernels)
    return ListedLayers(problem, found, device, problem.listed.host.slower(slowdown))


class _Size(NamedTuple):
    """Of a micro-batch: texts, whether weights are `sharded`, and ranks that divide layers."""

    micro_batch: int
    sharded: bool
    tensor: int


@dataclass(frozen=True)
class _Ends:
    """Of what lies before and behind the layers, and the gradient of their stream [bytes]."""

    before: BothCosts
    behind: BothCosts
    stream: float

    @property
    def products(self) -> float:
        """Seconds of the head's products."""
        return sum(one.device.get("gemm", 0.0) for one in (self.behind.forward, self.behind.backward))

    @property
    def kept(self) -> float:
        """Bytes that are there while layers run backward, beside what layers keep."""
        net = self.behind.forward.net + self.behind.backward.net
        return self.before.forward.net + (net or self.stream)

    @property
    def without_gradient(self) -> float:
        """The most bytes of head and loss before the head's weight has its gradient."""
        forward, backward = self.behind.forward, self.behind.backward
        return self.before.forward.net + max(forward.peak, forward.net + backward.early)

    @property
    def with_gradient(self) -> float:
        """The same from then on, without it."""
        return self.before.forward.net + max(self.behind.forward.net + self.behind.backward.late, 0.0)


class ListedLayers:
    """Binds a problem to lists of whole and of sharded weights, of whole and of divided layers, each by what is run
    again."""

    def __init__(
        self, problem: Problem, lists: Mapping[tuple[bool, bool], ByRecompute], device: Device, host: HostRates
    ) -> None:  # fmt: skip
        self.problem, self.lists, self.device, self.host = problem, lists, device, host
        self._known: dict[tuple[Layer | None, _Size, Recompute], BothCosts | _Ends] = {}

    def nearest(self, keys: ConfigTable) -> ConfigTable:
        """Keys that lists are of, as near to these as there are."""
        divides, selects = (True, True) in self.lists, Recompute.SELECTIVE in self.lists[True, False]
        one, none = np.ones(len(keys), dtype=np.int32), np.zeros(len(keys), dtype=np.int32)
        whole = dict.fromkeys(CUTS, one) | dict.fromkeys(("sp", "recompute_modules", "cuda_graph_impl"), none)
        if divides:
            whole |= {axis: keys[axis] for axis in ("tp", "sp")}
        if selects:
            whole["recompute_modules"] = np.where(by_operations(keys), OPERATIONS, none)
        return ConfigTable({**keys.columns, **whole})

    def applies(self, keys: ConfigTable) -> Mask:
        """Which keys the lists are of."""
        near = self.nearest(keys)
        return np.logical_and.reduce([near[axis] == keys[axis] for axis in _OF_KEY])

    def layer(self, layer: Layer, keys: ConfigTable, sent: tuple[Array, Array]) -> LayerCost:
        """The cost of one kind of layer for the keys nearest to these, of whose forward and backward pass messages in
        sight take `sent` [s]; `terms` are without them."""
        repeats = by_operations(self.nearest(keys)).tolist()
        each = zip(self._sizes(keys), repeats, sent[0].tolist(), sent[1].tolist(), strict=True)
        known: dict[tuple[_Size, bool, float, float], int] = {}
        rows = np.array([known.setdefault(one, len(known)) for one in each], dtype=np.intp)
        return LayerCost.joined([self._of_layer(layer, *one) for one in known]).take(rows)

    def update(self, formula: Array, parameters: Array) -> Array:
        """Seconds of the update of a rank's trained parameters (n,) [s]."""
        job, states = self.problem.job, self.problem.stack.engine
        if job.optimizer is not Optimizer.ADAMW:
            return formula
        width = HALF if states.pure_bf16 and not self.problem.widens_adapters else FULL
        return update_seconds(parameters, width, not states.optimizer_transient, self.device)

    def edges(self, formula: EdgeCost, keys: ConfigTable) -> EdgeCost:
        """The same of embedding and head; `formula`: what is left where their loss is not listed."""
        ends = [self._ends(size) for size in self._sizes(keys)]
        found = replace(formula, embedding=np.array([one.before.seconds for one in ends]))
        behind = self.lists[False, False][Recompute.NONE].behind.forward
        if not behind.operations:
            return found  # a loss whose parts are as many as sizes say
        found = replace(
            found,
            head=np.array([one.behind.seconds for one in ends]),
            head_gemm=np.array([one.products for one in ends]),
        )
        memory, none = formula.memory, np.zeros(len(keys))
        if behind.born < len(behind.changes):
            return replace(
                found,
                memory=replace(memory, inputs=none, kept=none, transient=self._by_parts(ends, memory, keys)),
            )
        return replace(
            found,
            memory=replace(
                memory, inputs=none, kept=none,
                gradient=none,
                transient=np.array([one.without_gradient for one in ends]),
                forward=np.array([one.before.forward.net + one.behind.forward.peak for one in ends]),
                norm_gradient=np.array([one.with_gradient for one in ends]),
            ),
        )  # fmt: skip

    def _by_parts(self, ends: list[_Ends], memory: HeadActivations, keys: ConfigTable) -> Array:
        """The most bytes of head and loss where parts of the sequence give the head's weight gradients, within the
        forward pass: in the midst of them, or when their sum is laid into the buffer that is reduced beside it."""
        problem = self.problem
        weight = problem.model.vocab * problem.model.embedding_width / self.nearest(keys)["tp"]
        within = np.array([one.before.forward.net + one.behind.forward.peak for one in ends])
        after = np.array([one.before.forward.net + one.behind.forward.net for one in ends])
        reduced = np.where(keys["zero"] >= SHARDED, 2.0 * problem.stack.engine.gradient * weight, 0.0)
        return np.maximum(within, after + memory.logits + reduced)

    def _sizes(self, keys: ConfigTable) -> list[_Size]:
        columns = keys["micro_batch"], keys["zero"] >= SHARDED, self.nearest(keys)["tp"]
        return list(map(_Size, *(column.tolist() for column in columns)))

    def _of_layer(self, layer: Layer, size: _Size, repeats: bool, ahead: float, behind: float) -> LayerCost:
        """Of one key, which `repeats` a layer's operations or not; messages take so long `ahead` and `behind` [s]."""
        bare, full = (self._both(layer, size, way) for way in (Recompute.NONE, Recompute.FULL))
        plain = self._both(layer, size, Recompute.SELECTIVE) if repeats else bare
        ends = self._ends(size)
        one = np.ones(1)

        def terms(passed: PassCost) -> dict[str, Array]:
            return {term: passed.device.get(term, 0.0) * one for term in TIME_TERMS}

        def times(both: BothCosts) -> tuple[float, float, float]:
            """What is run again, both passes, and the forward one [s]."""
            sent = ahead * both.sent_again(bare)
            forward, backward = both.forward.sending(ahead), both.backward.sending(behind + sent)
            return both.busy - bare.busy + sent, forward + backward, forward

        again, time, forward_time = times(plain)
        again_full, time_full, _ = times(full)
        return LayerCost(
            forward=terms(bare.forward), backward=terms(bare.backward),
            host=plain.host * one,
            again=again * one, again_full=again_full * one, time=time * one, time_full=time_full * one,
            forward_time=forward_time * one, weight_gradient=0.0 * one, hidden=0.0 * one, due=0.0 * one,
            kept=plain.forward.net * one, kept_full=self._kept_again(layer, size) * one,
            working=(plain.backward.peak + ends.kept) * one, working_full=(full.backward.peak + ends.kept) * one,
            ahead=full.forward.peak * one,
        )  # fmt: skip

    def _kept_again(self, layer: Layer, size: _Size) -> float:
        """Bytes that a layer keeps which is run again.

        Copies of its weights are there until the forward pass is over: of those of all layers, what the most that head
        and loss need grows by counts.
        """
        net = self._both(layer, size, Recompute.FULL).forward.net
        lists = self._lists(size)[Recompute.FULL]
        costs = self._costs(lists, layer, size)
        copies = costs.copies(lists.layers[layer_form(layer, self.problem.job.seq_len)])
        bare = net - copies
        if not copies:
            return bare
        ends, layers = self._ends(size), self.problem.model.num_layers
        most = ends.without_gradient
        beside = ends.before.forward.net + ends.behind.forward.peak + layers * copies
        return bare + max(beside - most, 0.0) / layers

    def _lists(self, size: _Size) -> ByRecompute:
        return self.lists[size.sharded, size.tensor > 1]

    def _both(self, layer: Layer, size: _Size, recompute: Recompute) -> BothCosts:
        key = layer, size, recompute
        if key not in self._known:
            lists = self._lists(size)[recompute]
            own = lists.layers[layer_form(layer, self.problem.job.seq_len)]
            self._known[key] = self._costs(lists, layer, size).both(own)
        found = self._known[key]
        assert isinstance(found, BothCosts)
        return found

    def _ends(self, size: _Size) -> _Ends:
        key = None, size, Recompute.NONE
        if key not in self._known:
            lists = self._lists(size)[Recompute.NONE]
            costs = self._costs(lists, None, size)
            values = size.micro_batch * self.problem.job.seq_len * self.problem.model.hidden
            stream = float(HALF) * values / size.tensor
            self._known[key] = _Ends(costs.both(lists.before), costs.both(lists.behind), stream)
        found = self._known[key]
        assert isinstance(found, _Ends)
        return found

    def _costs(self, lists: Lists, layer: Layer | None, size: _Size) -> ListedCosts:
        job = self.problem.job
        rank = job.lora_rank or 0
        sizes = sizes_of(self.problem.model, layer, size.micro_batch, job.seq_len, rank, size.tensor)
        return ListedCosts(lists, sizes, self.device, self.host)
