"""What does a step that XLA compiles hold, all of whose buffers it has placed before the step starts?

Read off XLA's buffer assignments of MaxText's training step for TPUs (`benchmarks/xla_memory.py`, which compiles it on
a CPU). Left out: gaps between the buffers (1 to 3 % of the temporaries), and what the compiler gives up when a program
would exceed the device (rematerialisation).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.engines.engine import Engine
from planner.cost.memory.moments import (
    MemoryInputs,
    Moment,
    behind,
    gradients_kept,
    static_terms,
    update_temporaries,
)
from planner.spec.stack.engines import Xla

Array = NDArray[np.float64]


class XlaEngine(Engine[Xla]):
    """One program for all layers, a loop over them.

    Casts of sharded fp32 weights to 16 bits do not depend on the layer at work and leave the loop: copies of all
    shards are there from its start to its end (openxla/xla xla/service/while_loop_invariant_code_motion.h). A
    layer's weights are gathered in the loop's body. Gradients of all layers are carried by the backward loop, so
    that they are there from its start; those of the accumulated micro-batches beside them (MaxText
    utils/gradient_accumulation.py accumulate_gradient). Nothing waits for the gradient of the head's weight, which
    is scheduled behind the loop: the logits' gradient and the head's input stay until then.
    """

    def moments(self, x: MemoryInputs, every: bool) -> list[Moment]:
        static, kept, sharded = static_terms(x, self.stack), gradients_kept(x), x.zero[:, None] >= 3
        shards = x.dense / x.shards[:, None] + x.expert / x.expert_shards[:, None]
        cast = sharded & (self.states.master_bytes(x.weight_bytes) > 0)
        copies = x.trained * np.where(cast, x.weight_bytes * shards, 0.0) + static.get(
            "narrow_weight_copies", 0.0
        )
        always, earlier = {**static, "narrow_weight_copies": copies}, x.accumulates * kept
        of_layers = kept - x.outer * x.states.gradients[:, None]
        width = x.weight_bytes if x.narrow_gathered is None else x.narrow_gathered
        layer = np.where(sharded, width * x.unit[:, None], 0.0) + np.zeros_like(kept)
        head = np.where(sharded, x.weight_bytes * x.head, 0.0)
        logits = x.head_inputs + x.logit_gradient
        less, layers = behind(x, 1.0), np.maximum(x.layers, 1.0)

        def moment(
            phase: str, held: Array, gathered: Array, gradients: Array, logits: Array | float = 0.0,
            works: bool = False,
        ) -> Moment:  # fmt: skip
            terms = {"gathered_parameters": gathered, "gradients": gradients, "logits": logits + 0.0 * kept}
            return Moment(phase, {**always, **terms}, held, works)

        most = x.head_inputs + x.head_kept + x.head_transient
        update = {"gradients": kept, "optimizer_temporaries": update_temporaries(x, self.states)}
        binding = [
            moment("loss", x.in_flight, head, earlier, most),
            moment("backward", x.in_flight, layer, earlier + of_layers, logits, works=True),
            moment("gradient_reduction", behind(x, layers), head, earlier + kept, logits),
            Moment("optimizer", {**static, **update}),
        ]
        if not every:
            return binding
        return [
            *binding,
            Moment("after_init", static),
            moment("forward", x.in_flight, layer, earlier),
            moment("head_backward", x.in_flight, head, earlier, logits),
            moment("layer_backward", less, layer, earlier + of_layers, logits, works=True),
        ]
