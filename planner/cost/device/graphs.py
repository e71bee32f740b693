"""What do CUDA graphs of a layer take off its host, and what do they keep on its device?

One value per distinct key. Physics alone: a captured kernel is not launched, a replay and the copy of an input are.
Left out: gaps between the kernels of a graph, which shrink too; what the driver keeps of every graph outside the
allocator; the router's probabilities in a pool. Sources: Megatron-LM core/transformer/cuda_graphs.py and
transformer_layer.py (_te_cuda_graph_capture, create_mcore_cudagraph_manager), core/full_cuda_graph.py, main of
2026-08; Transformer Engine pytorch/graph.py make_graphed_callables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.operations.operation import Operation
from planner.spec.config import CUDA_GRAPH_MODULES, RECOMPUTE_MODULES, ConfigTable, CudaGraphs

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

WHOLE_LAUNCHES: Final = {False: 12.0, True: 38.0}
# Of the 12 forward launches of a fused layer (norm, qkv, rotary of q and of k, attention, projection, add; norm, fc1,
# activation, fc2, add), those that a module's graph holds beside the mixer's (`mixer_launches`), and of the about 12
# more that experts add.
DENSE_LAUNCHES: Final = {"mlp": 5 / 12, "moe_router": 1 / 12}
ROUTED_LAUNCHES: Final = {"moe_router": 2 / 12, "moe_preprocess": 2 / 12}
# A replay and the copy of its input into the graph's own, of 12 launches forward and 24 backward.
REPLAY_LAUNCHES: Final = (2 / 12, 2 / 24)
# module that recomputation repeats -> modules whose graphs hold it, and the share of it in each
_RECOMPUTED_IN: Final = {
    "core_attn": {"attn": 1.0}, "mla_up_proj": {"attn": 1.0}, "mlp": {"mlp": 1.0}, "moe_act": {"moe": 1.0},
    "moe": {"moe": 1.0}, "shared_experts": {"moe_router": 1.0},
    "layernorm": {"attn": 0.5, "mlp": 0.5, "moe_router": 0.5}, "op": {},
}  # fmt: skip
_MIXERS: Final = {"attn": 1.0, "mamba": 1.0}  # a layer has one of them
# part of what a layer keeps -> modules whose graphs keep it, and the share of it in each
_KEPT_IN: Final = {
    "input": _MIXERS, "state_in": _MIXERS, "state_space": _MIXERS, "state_out": _MIXERS, "qkv": {"attn": 1.0},
    "mla_streams": {"attn": 1.0}, "mla_up_proj": {"attn": 1.0}, "core_attn": {"attn": 1.0},
    "attention_out": {"attn": 1.0},
    "layernorm": {"attn": 0.5, "mlp": 0.5, "moe_router": 0.5}, "dropout": {"attn": 0.5, "mlp": 0.5, "moe_router": 0.5},
    "residual": {"mlp": 1.0, "moe_router": 1.0}, "mlp": {"mlp": 1.0}, "moe": {"moe": 1.0}, "moe_act": {"moe": 1.0},
    "shared_experts": {"moe_router": 1.0},
}  # fmt: skip


@dataclass(frozen=True)
class Capture:
    """What is captured of one kind of layer, per key. `whole`: the full iteration. `module`: 1.0 where a graph holds a
    module of `CUDA_GRAPH_MODULES`. `graphs`: of a layer's forward pass, as many of its backward pass [1]."""

    whole: Mask
    module: dict[str, Array]
    graphs: Array

    def share(self, of: dict[str, float]) -> Array:
        """Sum of the shares of captured modules; 1 in a full iteration [1]."""
        part = sum((share * self.module[name] for name, share in of.items()), np.zeros(len(self.whole)))
        return np.where(self.whole, 1.0, part)


def dense_launches(ops: Iterable[Operation], single: bool) -> float:
    """Launches of a layer beside its experts, of those that a stack's floor counts for attention and an MLP [1].

    Those are 12, or `single`, operation by operation, 38, of which 24 are attention's.
    """
    return sum(op.launches for op in ops) / WHOLE_LAUNCHES[single]


def mixer_launches(ops: Iterable[Operation], single: bool) -> float:
    """The same of its attention or state space alone [1]."""
    return sum(op.launches for op in ops if op.graph in _MIXERS) / WHOLE_LAUNCHES[single]


def capture_of(ops: Iterable[Operation], keys: ConfigTable) -> Capture | None:
    """What every key captures of such a layer; None where no key captures anything.

    Transformer Engine's graph of a layer holds the captured modules, which follow one another. Megatron-Core's own has
    one for attention, and two for an expert layer's router and what follows the experts.
    """
    impl, mask = keys["cuda_graph_impl"], keys["cuda_graph_modules"]
    if not impl.any():
        return None
    each = np.isin(impl, (CudaGraphs.LOCAL, CudaGraphs.TRANSFORMER_ENGINE))
    all_of_it, whole = each & (mask == 0), impl == CudaGraphs.FULL_ITERATION
    module: dict[str, Array] = {}
    here = {op.graph for op in ops if op.graph}
    for bit, name in enumerate(CUDA_GRAPH_MODULES):
        named = each & (mask & (1 << bit) > 0)
        if name in ("moe_router", "moe_preprocess"):  # "moe" is all behind attention
            named = named | (each & (mask & (1 << CUDA_GRAPH_MODULES.index("moe")) > 0))
        module[name] = ((named | all_of_it | whole) & (name in here)).astype(float)
    some = np.maximum.reduce([module[name] for name in sorted(here)])
    apart = (impl == CudaGraphs.LOCAL) & (module["moe_router"] > 0) & (module["moe"] == 0)
    return Capture(
        whole, module, np.where(whole, 0.0, np.where(apart, module["attn"] + module["mamba"] + 2.0, some))
    )


@dataclass(frozen=True)
class HostFloor:
    """Seconds of a layer's launches, one value per key: of the kernels that every layer has, of those that its experts
    add, of theirs one by one, and of a pipeline of tensor-parallel stages [s]. `launches`: `dense_launches`; `mixer`:
    `mixer_launches`."""

    dense: Array
    routed: Array
    experts: Array
    pipeline: Array
    launches: float = 1.0
    mixer: float = 7 / 12

    @property
    def total(self) -> Array:
        """Launched one by one."""
        return self.dense + self.pipeline + self.routed + self.experts

    def captured(self, capture: Capture | None) -> tuple[Array, Array]:
        """The same under graphs, were all of it of a forward or of a backward pass [s].

        dense (1 - captured) + routed (1 - captured) + experts (unless captured) + replays; a full iteration leaves 0.
        """
        if capture is None:
            return self.total, self.total
        experts, whole = capture.module["moe"], capture.whole
        routed = np.where(experts > 0, 1.0, capture.share(ROUTED_LAUNCHES))
        # of an expert layer, what follows its second norm among its first 12 launches is the experts' own
        of_dense = {**DENSE_LAUNCHES, "attn": self.mixer, "mamba": self.mixer, "moe": 4 / 12}
        left = self.dense * (1 - np.minimum(capture.share(of_dense) / self.launches, 1.0))
        left = left + np.where(whole, 0.0, self.pipeline) + self.routed * (1 - routed)
        left = left + self.experts * (1 - experts)
        forward, backward = (
            left + self.dense / self.launches * capture.graphs * replay for replay in REPLAY_LAUNCHES
        )
        return forward, backward


def relaunched(keys: ConfigTable, capture: Capture | None, shares: dict[str, float]) -> Array:
    """Share of a layer's forward launches that a key's recomputed modules repeat outside of graphs [1].

    `shares`: of a layer's launches by module.
    """
    total = np.zeros(len(keys))
    for bit, name in enumerate(RECOMPUTE_MODULES):
        left = 1.0 if capture is None else 1 - np.minimum(capture.share(_RECOMPUTED_IN[name]), 1.0)
        total = total + np.where(keys["recompute_modules"] & (1 << bit) > 0, shares[name] * left, 0.0)
    return np.minimum(total, 1.0)


@dataclass(frozen=True)
class LayerGraphs:
    """Memory of the graphs of one kind of layer, per key [bytes]. `kept`: of what a micro-batch keeps, in the pool.
    `working`: alive only in the backward pass, in the pool. `buffers`: copies of the stream that a micro-batch in
    flight holds beside what is kept. `gradients`: static gradients of a rank's graphs. `whole`: 1.0 in a full
    iteration, whose pool holds logits and the head's gradient too."""

    kept: Array
    working: Array
    buffers: Array
    gradients: Array
    whole: Array


def no_graphs(keys: int) -> LayerGraphs:
    """Of so many keys that capture none."""
    none = np.zeros(keys)
    return LayerGraphs(none, none, none, none, none)


def layer_graphs(
    capture: Capture, sublayers: int, parts: dict[str, Array], keys: ConfigTable, kept: Array, working: Array
) -> LayerGraphs:
    """Memory of a layer's graphs from the `parts` it keeps without recomputation.

    A graph's input has an address of its own, from which the layer keeps it: where the one before is a graph too, whose
    output stays until its backward pass, both are there. Elsewhere the output is what the next module keeps. Gradients
    of a graph's outputs are shared by all graphs (make_graphed_callables with _reuse_graph_input_output_buffers): the
    residual stream's and the experts' input's. Without the second half of a layer its pool works on gradients of what
    it keeps, as much again, or less where the layer's widest point is narrower: an estimate.
    """
    pooled = np.zeros(len(keys))
    for name, part in parts.items():
        norms = 2.0 / sublayers if name in ("layernorm", "dropout") else 1.0
        freed = np.zeros(len(keys))
        if name in RECOMPUTE_MODULES:
            freed = (keys["recompute_modules"] & (1 << RECOMPUTE_MODULES.index(name)) > 0).astype(float)
        pooled = pooled + part * (1 - freed) * np.minimum(norms * capture.share(_KEPT_IN.get(name, {})), 1.0)
    pooled = np.where(capture.whole, kept, np.minimum(pooled, kept))
    widest = np.maximum(capture.module["mlp"], capture.module["moe"]) > 0
    stream = parts["input"]
    mixer = np.maximum(capture.module["attn"], capture.module["mamba"]) > 0
    chained = mixer & widest & ~capture.whole
    return LayerGraphs(
        kept=pooled,
        working=np.where(widest | capture.whole, working, np.minimum(pooled, working)),
        buffers=np.where(chained, stream, 0.0),
        gradients=np.where(capture.graphs > 0, 2.0 * stream, 0.0),
        whole=capture.whole.astype(float),
    )
