"""What do ranks under Megatron-FSDP hold at the moments of a step, gathered and unreduced units above all?

A unit is a layer; embedding, final norm and head lie outside units. Source: Megatron-LM
core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py and param_and_grad_buffer.py, version 1. Left out: padding of
buffers, and layers of a model whose units differ, for which the widest stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.engines.contiguous import megatron_update_bytes
from planner.cost.engines.engine import Engine
from planner.cost.memory.moments import (
    MemoryInputs,
    Moment,
    behind,
    gradients_kept,
    static_terms,
    update_temporaries,
)
from planner.spec.job import Job
from planner.spec.stack.engines import MegatronFsdp

Array = NDArray[np.float64]

# Elements under way at once, as --suggested-communication-unit-size is not given: at least 1e9 (the line that says
# it caps them takes the larger), so that neither part falls with the number of ranks.
SMALLEST_CAPACITY: Final = 1e9


@dataclass(frozen=True)
class FsdpUnits:
    """Of a rank (n, C) [bytes]. `outside`: gathered weights outside units, kept from the first forward pass on.
    `gathered`: units gathered at once. `unreduced`: gradients not reduced yet when the backward pass has begun (the
    head's and a layer's), when the queue is full, at its last layer, and when the embedding's are ready.
    `queued`: layers whose backward pass is over when the queue is full."""

    outside: Array
    gathered: Array
    unreduced: tuple[Array, Array, Array, Array]
    queued: Array


def fsdp_units(
    parameters: tuple[Array, Array, Array, Array], layers: Array, zero: Array, states: MegatronFsdp,
    widths: tuple[Array | float, float],
) -> FsdpUnits:  # fmt: skip
    """Units of the strategies optim_grads_params (ZeRO 3) and optim_grads (2); nothing for those below.

    `parameters`: of all, outside units, of the head, of a unit (n, C). `widths`: bytes of a gathered weight in a unit
    and outside. Gathering goes ahead of the layer at work until half the capacity is under way (AllGatherPipeline);
    reductions are waited for when more than the capacity is queued (GradReducePipeline). With --fsdp-double-buffer two
    units are gathered and two reduced. Weights outside units are gathered at their first use and never released
    (preserve_non_fsdp_units); an unreduced gradient has the width of the main one.
    """
    total, outer, head, widest = parameters
    sharded, held = (zero >= 3)[:, None], (zero >= 2)[:, None]
    unit = np.maximum(np.minimum(widest, total - outer), 1.0)
    capacity = np.maximum(SMALLEST_CAPACITY, 2.0 * unit)
    ahead = np.minimum(np.ceil(capacity / 2.0 / unit), layers - 1.0)
    if states.double_buffer:
        ahead, capacity = np.minimum(1.0, layers - 1.0), head + unit
    ahead = np.maximum(ahead, 0.0)
    queued = np.clip(np.floor((capacity - head) / unit), 0.0, np.maximum(layers - 1.0, 0.0))
    most = np.minimum(head + layers * unit, capacity + unit)
    elements = (head + unit, head + (queued + 1.0) * unit, most, np.minimum(head + layers * unit, capacity))
    last = elements[3] + np.maximum(outer - head, 0.0)
    width = np.where(held, states.gradient, 0.0)
    return FsdpUnits(
        np.where(sharded, widths[1] * outer, 0.0),
        np.where(sharded, widths[0] * (1.0 + ahead) * unit, 0.0),
        (width * elements[0], width * elements[1], width * elements[2], width * last),
        queued,
    )


class MegatronFsdpEngine(Engine[MegatronFsdp]):
    """Layers are units; --data-parallel-sharding-strategy says what is sharded."""

    def moments(self, x: MemoryInputs, every: bool) -> list[Moment]:
        """Moments under Megatron-FSDP: sharded gradients throughout, layers gathered and reduced in queues."""
        layers, total, none = np.maximum(x.layers, 1.0), x.dense + x.expert, np.zeros_like(x.dense)
        width = x.weight_bytes if x.narrow_gathered is None else x.narrow_gathered
        of = (total, x.outer, x.head, x.unit[:, None] + none)
        u = fsdp_units(of, layers, x.zero, self.states, (width, x.weight_bytes))
        always = {**static_terms(x, self.stack), "gradients": gradients_kept(x)}
        first, full, last, end = (x.trained * part for part in u.unreduced)
        logits, held = x.head_inputs + x.head_kept + x.head_transient, x.in_flight

        def moment(
            phase: str,
            kept: Array | None,
            gathered: Array,
            buffers: Array = none,
            works: bool = False,
            **more: Array,
        ) -> Moment:
            of_units = {"gathered_parameters": u.outside + gathered, "reduction_buffers": buffers}
            return Moment(phase, {**always, **of_units, **more}, kept, works)

        moments = [
            moment("forward", behind(x, 1.0), u.gathered, working_set=x.stream[:, None] + none),
            moment("loss", held, none, logits=logits),
            moment("head_backward", held, none, first, logits=x.head_inputs + x.logit_gradient),
            moment("backward", held, u.gathered, first, works=True),
            moment("layer_backward", behind(x, u.queued), u.gathered, full, works=True),
            moment("backward_end", behind(x, layers - 1.0), u.gathered, last, works=True),
            moment("gradient_reduction", behind(x, layers), none, end),
            moment("optimizer", None, none, optimizer_temporaries=update_temporaries(x, self.states)),
        ]
        return [*moments, Moment("after_init", always)] if every else moments

    def update_bytes(self, job: Job) -> float:
        return megatron_update_bytes(self.states, job)
