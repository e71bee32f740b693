"""What is the cost of one kind of layer, for every way in which its micro-batch can be cut?

Left out: how it is found (`layer.py`, `captured/layers.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost.device.graphs import LayerGraphs

Array = NDArray[np.float64]

TIME_TERMS = ("gemm", "attention", "indexer", "memory_bound", "tp_comm", "cp_comm", "ep_comm")

COMMUNICATION = ("tp_comm", "cp_comm", "ep_comm")
_PROPORTIONAL = (
    "host",
    "forward_time",
    "again_full",
    "kept",
    "kept_full",
    "working",
    "working_full",
    "ahead",
)

# fields of `LayerCost` that blocks of a layer add to
_ADDED = (
    "host",
    "again",
    "again_full",
    "time",
    "time_full",
    "forward_time",
    "weight_gradient",
    "hidden",
    "due",
    "kept",
)


@dataclass(frozen=True)
class LayerCost:
    """One kind of layer, one value per key.

    `forward`, `backward`: exposed device seconds by term of `TIME_TERMS`. `host`: launch floor of forward and
    backward [s]. `again`: seconds to recompute the key's modules, `again_full` the whole layer.
    `time`, `time_full`: forward and backward including recomputation and the host's floor, `forward_time` its
    forward share [s]. `weight_gradient`: seconds of the weight gradients, a part of backward: where the host's launches
    take longer than the device, as large a share of theirs as of the device's.
    `hidden`: seconds of `time` that an overlapped pair of two micro-batches saves. `due`: bytes held from the input
    gradient to a weight gradient that runs apart. `kept`, `kept_full`: bytes held from forward to backward.
    `working`: bytes alive only while the layer's own backward runs, beside what is kept; `working_full` when the
    layer was recomputed. `ahead`: bytes alive while its forward runs, of which it keeps its input alone. `graphs`:
    memory of its CUDA graphs, None where no key captures any.
    """

    forward: dict[str, Array]
    backward: dict[str, Array]
    host: Array
    again: Array
    again_full: Array
    time: Array
    time_full: Array
    forward_time: Array
    weight_gradient: Array
    hidden: Array
    due: Array
    kept: Array
    kept_full: Array
    working: Array
    working_full: Array
    ahead: Array
    graphs: LayerGraphs | None = None

    @classmethod
    def joined(cls, costs: Sequence[LayerCost]) -> LayerCost:
        """Those of several tables, one behind the other, without graphs."""

        def column(values: Sequence[Any]) -> Any:
            if isinstance(values[0], dict):
                return {term: np.concatenate([one[term] for one in values]) for term in values[0]}
            return np.concatenate(values)

        names = [one.name for one in fields(cls) if one.name != "graphs"]
        return cls(**{name: column([getattr(one, name) for one in costs]) for name in names})

    def take(self, rows: NDArray[np.intp]) -> LayerCost:
        """Those of some rows, without graphs."""

        def column(values: Any) -> Any:
            return (
                {term: of[rows] for term, of in values.items()} if isinstance(values, dict) else values[rows]
            )

        names = [one.name for one in fields(self) if one.name != "graphs"]
        return LayerCost(**{name: column(getattr(self, name)) for name in names})

    @property
    def sent(self) -> tuple[Array, Array]:
        """Seconds of messages that a forward and a backward pass do not hide."""
        ahead, behind = (sum(of[term] for term in COMMUNICATION) for of in (self.forward, self.backward))
        return np.asarray(ahead), np.asarray(behind)

    def sending_as(self, other: LayerCost) -> LayerCost:
        """The same with the messages of `other` among its terms; its times have them already."""
        forward, backward = (
            of | {term: like[term] for term in COMMUNICATION}
            for of, like in ((self.forward, other.forward), (self.backward, other.backward))
        )
        return replace(self, forward=forward, backward=backward)

    def in_proportion(self, known: LayerCost, formula: LayerCost) -> LayerCost:
        """Costs of a layer that is cut, as much above or below what formulas say as `known` ones of the whole layer are
        above or below its `formula`; messages are as they are."""
        sent = sum(self.sent)

        def ratio(name: str) -> Array:
            one, other = (np.asarray(getattr(of, name), dtype=np.float64) for of in (known, formula))
            return np.divide(one, other, out=np.ones_like(other), where=other > 0)

        changed: dict[str, Any] = {name: ratio(name) * getattr(self, name) for name in _PROPORTIONAL}
        for name in ("time", "time_full"):
            changed[name] = ratio(name) * (getattr(self, name) - sent) + sent
        slower = ratio("time")
        changed["weight_gradient"] = slower * self.weight_gradient
        for side in ("forward", "backward"):
            of = getattr(self, side)
            changed[side] = {
                term: seconds if term in COMMUNICATION else slower * seconds for term, seconds in of.items()
            }
        return replace(self, **changed, graphs=None)

    def but(self, rows: NDArray[np.intp], other: LayerCost) -> LayerCost:
        """The same but for `rows` of it, whose costs are those of `other` in order; graphs stay."""

        def put(column: Any, values: Any) -> Any:
            if isinstance(column, dict):
                return {term: put(column[term], values[term]) for term in column}
            changed = np.array(column, dtype=np.float64)
            changed[rows] = values
            return changed

        names = [one.name for one in fields(self) if one.name != "graphs"]
        changed = {name: put(getattr(self, name), getattr(other, name)) for name in names}
        return LayerCost(**changed, graphs=self.graphs)


def chained(first: LayerCost, then: LayerCost) -> LayerCost:
    """The cost of a layer of two blocks: of both, except that the second one's tensors are gone when the first runs
    backward, and that one that is recomputed keeps its own input alone and makes all of both again."""
    total: dict[str, Any] = {name: getattr(first, name) + getattr(then, name) for name in _ADDED}
    for side in ("forward", "backward"):
        ahead, behind = getattr(first, side), getattr(then, side)
        total[side] = {term: ahead[term] + behind[term] for term in ahead}
    remade = first.working_full - first.working
    return LayerCost(
        **total,
        kept_full=first.kept_full,
        working=np.maximum(then.working, first.working - then.kept),
        working_full=np.maximum(first.working_full, remade + then.working_full + then.kept_full),
        ahead=np.maximum(first.ahead, first.kept_full + then.ahead),
    )
