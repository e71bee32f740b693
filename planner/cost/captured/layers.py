"""What do layers, embedding and head cost where lists of their operations were captured?

A micro-batch on one device, or on one that shards states alone. Left out: cuts of a layer (tensor, context, expert and
pipeline parallelism), texts of several lengths and frozen weights in fewer bits, for which no lists are captured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.captured.kernels import Device
from planner.cost.captured.passes import BothCosts, ListedCosts, PassCost
from planner.cost.captured.update import update_seconds
from planner.cost.edges import EdgeCost
from planner.cost.layer_cost import TIME_TERMS, LayerCost
from planner.spec.config import ConfigTable
from planner.spec.job import Optimizer
from planner.spec.layer import Layer
from planner.spec.listed import Lists, layer_form, sizes_of
from planner.spec.machine.host import HostRates
from planner.spec.machine.rates import KernelRates
from planner.spec.rule import Problem

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
HALF, FULL = 2, 4  # bytes of a value
CUTS = ("tp", "cp", "pp", "ep", "etp")  # axes that divide a layer, or the model
SHARDED = 2  # ZeRO stage from which on weights are gathered


def undivided(keys: ConfigTable) -> ConfigTable:
    """Keys whose layers are not cut, recomputed by module or captured."""
    one, none = np.ones(len(keys), dtype=np.int32), np.zeros(len(keys), dtype=np.int32)
    whole = dict.fromkeys(CUTS, one) | dict.fromkeys(("sp", "recompute_modules", "cuda_graph_impl"), none)
    return ConfigTable({**keys.columns, **whole})


def listed_layers(problem: Problem, kernels: KernelRates, slowdown: float) -> ListedLayers | None:
    """Those of a problem; None where no lists hold for it. `slowdown`: of its hosts [1]."""
    whole, sharded = problem.lists(), problem.lists(sharded=True)
    if problem.listed is None or whole is None or sharded is None:
        return None
    device = Device(problem.cluster.accelerator, kernels)
    return ListedLayers(problem, (whole, sharded), device, problem.listed.host.slower(slowdown))


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
    """Binds a problem to pairs of lists, of whole and of sharded weights, each without and with recomputation of whole
    layers."""

    def __init__(
        self, problem: Problem, lists: tuple[tuple[Lists, Lists], tuple[Lists, Lists]], device: Device, host: HostRates
    ) -> None:  # fmt: skip
        self.problem, self.lists, self.device, self.host = problem, lists, device, host
        self._known: dict[tuple[Layer | None, int, bool, bool], BothCosts | _Ends] = {}

    def applies(self, keys: ConfigTable) -> Mask:
        """Which keys the lists are of."""
        whole = np.ones(len(keys), dtype=np.bool_)
        for axis in CUTS:
            whole &= keys[axis] == 1
        return whole & (keys["recompute_modules"] == 0) & (keys["cuda_graph_impl"] == 0)

    def layer(self, layer: Layer, keys: ConfigTable) -> LayerCost:
        """The cost of one kind of layer that is not cut, whatever the keys cut."""
        return LayerCost.joined([self._of_layer(layer, b, sharded) for b, sharded in self._sizes(keys)])

    def update(self, formula: Array, parameters: Array) -> Array:
        """Seconds of the update of a rank's trained parameters (n,) [s]."""
        job, states = self.problem.job, self.problem.stack.engine
        if job.optimizer is not Optimizer.ADAMW:
            return formula
        width = FULL if self.problem.casts_listed else HALF
        return update_seconds(parameters, width, not states.optimizer_transient, self.device)

    def edges(self, formula: EdgeCost, keys: ConfigTable) -> EdgeCost:
        """The same of embedding and head; `formula`: what is left where their loss is not listed."""
        ends = [self._ends(b, sharded) for b, sharded in self._sizes(keys)]

        found = replace(formula, embedding=np.array([one.before.seconds for one in ends]))
        if not self.lists[False][False].behind.forward.operations:
            return found  # a loss whose parts are as many as sizes say
        memory, none = formula.memory, np.zeros(len(keys))
        return replace(
            found,
            head=np.array([one.behind.seconds for one in ends]),
            head_gemm=np.array([one.products for one in ends]),
            memory=replace(
                memory, inputs=none, kept=none,
                gradient=none,
                transient=np.array([one.without_gradient for one in ends]),
                forward=np.array([one.before.forward.net + one.behind.forward.peak for one in ends]),
                norm_gradient=np.array([one.with_gradient for one in ends]),
            ),
        )  # fmt: skip

    def _sizes(self, keys: ConfigTable) -> list[tuple[int, bool]]:
        """Micro-batches, and whether weights are sharded."""
        return list(zip(keys["micro_batch"].tolist(), (keys["zero"] >= SHARDED).tolist(), strict=True))

    def _of_layer(self, layer: Layer, micro_batch: int, sharded: bool) -> LayerCost:
        plain, again = (self._both(layer, micro_batch, sharded, way) for way in (False, True))
        ends = self._ends(micro_batch, sharded)
        one = np.ones(1)

        def terms(passed: PassCost) -> dict[str, Array]:
            return {term: passed.device.get(term, 0.0) * one for term in TIME_TERMS}

        repeated = again.busy - plain.busy
        return LayerCost(
            forward=terms(plain.forward), backward=terms(plain.backward),
            host=plain.host * one,
            again=0.0 * one, again_full=repeated * one, time=plain.seconds * one,
            time_full=again.seconds * one,
            forward_time=plain.forward.seconds * one, weight_gradient=0.0 * one, hidden=0.0 * one, due=0.0 * one,
            kept=plain.forward.net * one, kept_full=self._kept_again(layer, micro_batch, sharded) * one,
            working=(plain.backward.peak + ends.kept) * one, working_full=(again.backward.peak + ends.kept) * one,
            ahead=again.forward.peak * one,
        )  # fmt: skip

    def _kept_again(self, layer: Layer, micro_batch: int, sharded: bool) -> float:
        """Bytes that a layer keeps which is run again.

        Copies of its weights are there until the forward pass is over: of those of all layers, what the most that head
        and loss need grows by counts.
        """
        net = self._both(layer, micro_batch, sharded, again=True).forward.net
        lists = self.lists[sharded][True]
        costs = self._costs(lists, layer, micro_batch)
        copies = costs.copies(lists.layers[layer_form(layer, self.problem.job.seq_len)])
        bare = net - copies
        if not copies:
            return bare
        ends, layers = self._ends(micro_batch, sharded), self.problem.model.num_layers
        most = ends.without_gradient
        beside = ends.before.forward.net + ends.behind.forward.peak + layers * copies
        return bare + max(beside - most, 0.0) / layers

    def _both(self, layer: Layer, micro_batch: int, sharded: bool, again: bool) -> BothCosts:
        key = layer, micro_batch, sharded, again
        if key not in self._known:
            lists = self.lists[sharded][again]
            own = lists.layers[layer_form(layer, self.problem.job.seq_len)]
            self._known[key] = self._costs(lists, layer, micro_batch).both(own)
        found = self._known[key]
        assert isinstance(found, BothCosts)
        return found

    def _ends(self, micro_batch: int, sharded: bool) -> _Ends:
        key = None, micro_batch, sharded, False
        if key not in self._known:
            lists = self.lists[sharded][False]
            costs = self._costs(lists, None, micro_batch)
            stream = float(HALF) * micro_batch * self.problem.job.seq_len * self.problem.model.hidden
            self._known[key] = _Ends(costs.both(lists.before), costs.both(lists.behind), stream)
        found = self._known[key]
        assert isinstance(found, _Ends)
        return found

    def _costs(self, lists: Lists, layer: Layer | None, micro_batch: int) -> ListedCosts:
        job = self.problem.job
        sizes = sizes_of(self.problem.model, layer, micro_batch, job.seq_len, job.lora_rank or 0)
        return ListedCosts(lists, sizes, self.device, self.host)
