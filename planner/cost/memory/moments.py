"""What does every stage hold at the moments of a step?

A step is a small set of moments, each a sum of named terms. Between the moments memory is monotone: kept activations
fall and reduced gradients grow layer by layer, so that the ends of a backward pass suffice. Left out: which moments
there are, which each engine says (`cost/engines/`), and what a row keeps and recomputes of its layers, which
`memory/peak.py` adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.memory.state_bytes import StateBytes
from planner.spec.stack import Stack
from planner.spec.stack.engines import States

Array = NDArray[np.float64]

PHASES: Final = (
    "after_init", "forward", "loss", "head_backward", "backward", "layer_reduction", "layer_backward",
    "backward_end", "gradient_reduction", "optimizer", "parameter_gather",
)  # fmt: skip
AT_LOSS: Final = (
    "loss",
    "head_backward",
)  # of the phases, those at which a micro-batch leaves the last layer
WEIGHT_GRADIENT: Final = 2.0  # bytes of a weight's gradient before it is reduced, or added to a buffer


@dataclass(frozen=True)
class MemoryInputs:
    """What the peak is made of, before recomputation. (n, C) unless said; C classes of stages.

    `dense`, `expert`: parameters on a rank; `outer`: those outside the layers (embedding, final norm, head) among
    them, `head` the head's. `unit`, `padded_unit` (n,): parameters of the widest layer,
    without and with the padding of its shards; `padding` (n,) each: padded over own parameters, dense and expert ones.
    `layers`: layers of a stage. `alive`: stages of the class (0: padding). `in_flight`: micro-batches. `due`: bytes
    kept for weight gradients that run apart (None: none do). `head_inputs`, `head_kept`, `head_transient`,
    `logit_gradient`: bytes of head and loss, zero but on the last stage; `head_forward` when the head's forward ends,
    `norm_gradient` when its weight has its gradient.
    `layer_forward` (n,): alive while the widest layer's forward runs, all that it keeps left out. `boundary`: of
    sent and received activations that a stage keeps of micro-batches in flight, `stage_buffers` of all of a step.
    `adapters`: weights, gradients and states of LoRA adapters. `stream` (n,): a layer's input [bytes].
    `gather_buffers` (n,): of gathered inputs, made once. `deferred`: blocks the allocator cannot reuse yet [bytes].
    `states`, `expert_states` (n,): bytes per parameter. `zero`, `shards`, `expert_shards` (n,): ZeRO stage and ranks
    that share states, fewer where shards are padded. `accumulates`: whether gradients exist when most micro-batches are
    in flight (1.0).
    `waits_whole` (n,): whether sharded gradients and gathered weights stay whole until the last backward pass (1.0).
    `reduces_last` (n,): whether gradients do, and weights are freed as ever.
    `reduces_aside` (n,): whether gradients are reduced beside compute.
    `weight_bytes` (n,): of a gathered parameter. `step_elements` (n,): of temporaries of an update that goes
    tensor by tensor, before it is sharded.
    `communicators` (n,): bytes of a rank's process groups. `whole_embedding`: parameters of an
    embedding whose whole gradient a rank makes of its `embedding_part`.
    `update_bytes`: of temporaries per updated parameter. `trained`: 0 where weights are frozen and have no gradient.
    `narrow`: what weights take beyond `states`, whether they are in 8 bits or left in 16 of a frozen model in fewer,
    and copies in 8 bits (None: there are none); `narrow_gathered` (n, C): bytes of one in a gathered layer.
    `holds_head`: classes of stages that hold the head. `beside` (n, C): what an optimizer that updates whole matrices
    takes beyond `states`, `matrix_bytes` (n,): of temporaries of its largest one.
    """

    dense: Array
    expert: Array
    outer: Array
    head: Array
    unit: Array
    padded_unit: Array
    padding: tuple[Array, Array]
    layers: Array
    alive: Array
    in_flight: Array
    head_inputs: Array
    head_kept: Array
    head_transient: Array
    logit_gradient: Array
    boundary: Array
    stage_buffers: Array
    adapters: Array
    stream: Array
    gather_buffers: Array
    deferred: Array
    states: StateBytes
    expert_states: StateBytes
    zero: Array
    shards: Array
    expert_shards: Array
    accumulates: Array
    waits_whole: Array
    reduces_last: NDArray[np.bool_]
    reduces_aside: NDArray[np.bool_]
    weight_bytes: float
    step_elements: Array
    communicators: Array
    update_bytes: float = 0.0
    trained: float = 1.0
    due: Array | None = None
    narrow: tuple[Array, Array | None] | None = None
    narrow_gathered: Array | None = None
    holds_head: NDArray[np.bool_] | bool = False
    beside: Array | float = 0.0
    matrix_bytes: Array | float = 0.0
    head_forward: Array | float = 0.0
    norm_gradient: Array | float = 0.0
    whole_embedding: Array | float = 0.0
    embedding_part: Array | float = 0.0
    layer_forward: Array | float = 0.0


@dataclass(frozen=True, eq=False)
class Moment:
    """One moment of a phase, which may have several: named constant terms (n, C), the micro-batches (n, C) whose
    activations are kept (None: none), whether a layer is at work in its backward pass, and whether a micro-batch is
    behind the last layer though the phase is not one of the loss."""

    phase: str
    terms: dict[str, Array]
    kept: Array | None = None
    works: bool = False
    behind_layers: bool = False

    @cached_property
    def fixed(self) -> Array:
        """Everything that recomputation does not change."""
        first, *others = self.terms.values()
        return sum(others, first)

    @property
    def at_loss(self) -> bool:
        """Whether a micro-batch leaves the last layer here."""
        return self.behind_layers or self.phase in AT_LOSS


def _per_class(dense: Array, expert: Array, dense_bytes: Array, expert_bytes: Array) -> Array:
    return dense * dense_bytes[:, None] + expert * expert_bytes[:, None]


def static_terms(x: MemoryInputs, stack: Stack) -> dict[str, Array]:
    """Terms that every moment holds."""
    beyond, copies = x.narrow or (0.0, None)
    return {
        "weights": _per_class(x.dense, x.expert, x.states.weights, x.expert_states.weights) + beyond,
        **({} if copies is None else {"narrow_weight_copies": copies}),
        "optimizer": _per_class(x.dense, x.expert, x.states.optimizer, x.expert_states.optimizer) + x.beside,
        "dp_buffers": _per_class(x.dense, x.expert, x.states.buffers, x.expert_states.buffers),
        "workspace": stack.overhead.workspace + x.gather_buffers[:, None] + np.zeros_like(x.dense),
        "pipeline_buffers": x.boundary + x.stage_buffers,
        "adapters": x.adapters,
    }


def gradients_kept(x: MemoryInputs) -> Array:
    """Gradients as they are kept for the update."""
    return _per_class(x.dense, x.expert, x.states.gradients, x.expert_states.gradients)


def update_temporaries(x: MemoryInputs, states: States) -> Array:
    """Temporaries of the optimizer's step: so many bytes per updated parameter, or of one tensor after the other."""
    sharded = x.zero[:, None] >= 1
    local = x.dense / np.where(sharded, x.shards[:, None], 1.0)
    local = local + x.expert / np.where(sharded, x.expert_shards[:, None], 1.0)
    step = x.step_elements / np.where(x.zero >= 1, x.shards, 1.0)
    width = states.master or x.weight_bytes
    here = (x.states.optimizer > 0)[:, None]  # an update on the host needs nothing on the device
    tensors = width * step + x.matrix_bytes
    return np.where(here, x.update_bytes * local + tensors[:, None], 0.0)


def behind(x: MemoryInputs, done: Array | float) -> Array:
    """Micro-batches in flight once `done` layers are through the backward pass of one of them (n, C) [1].

    in flight - done / layers; where less than one is on the device, as most wait on the host, others take the place of
    what is freed while any are left.
    """
    layers = np.maximum(x.layers, 1.0)
    return np.asarray(np.maximum(x.in_flight - done / layers, np.clip(1.0 - done / layers, 0.0, x.in_flight)))
