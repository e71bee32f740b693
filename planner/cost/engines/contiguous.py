"""What do ranks hold where weights and gradients are there from start to end, as in Megatron's engine?

Left out: weights that are gathered in part (ZeRO 3), for which two layers stand.
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.cost.engines.engine import Engine
from planner.cost.memory.moments import (
    WEIGHT_GRADIENT,
    MemoryInputs,
    Moment,
    behind,
    gradients_kept,
    static_terms,
    update_temporaries,
)
from planner.spec.job import Job, Optimizer
from planner.spec.stack.engines import Megatron2022, States

Array = NDArray[np.float64]
Settings = TypeVar("Settings", bound=States)

GATHERED_LAYERS: Final = 2.0  # alive at once under ZeRO 3: the one at work and the next


class LastingEngine(Engine[Settings]):
    """Weights and gradients from start to end."""

    def buffers(self, x: MemoryInputs) -> dict[str, Array]:
        """What is gathered and reduced at once, throughout [bytes]."""
        width = x.weight_bytes if x.narrow_gathered is None else x.narrow_gathered
        unit = GATHERED_LAYERS * width * x.unit[:, None]
        return {"gathered_parameters": np.where(x.zero[:, None] >= 3, unit, 0.0) * np.ones_like(x.dense)}

    def late_gradients(self, x: MemoryInputs) -> dict[str, Array]:
        """What grows through a micro-batch's backward pass and is freed after it, where anything does [bytes]."""
        return {}

    def gathered_copies(self, x: MemoryInputs) -> Array | None:
        """Copies of parameters while updated shards are gathered, if there are any (n, C) [bytes]."""
        return None

    def moments(self, x: MemoryInputs, every: bool) -> list[Moment]:
        always = {**static_terms(x, self.stack), "gradients": gradients_kept(x), **self.buffers(x)}
        update = always
        if x.due is not None:
            always = {**always, "weight_gradients_due": x.due}
        logits = x.head_inputs + x.head_kept + x.head_transient
        head = x.head_inputs + x.logit_gradient
        # the head's weight gradient is a tensor of its own before it is added to the buffer
        weight_gradient = x.trained * WEIGHT_GRADIENT * x.head
        layers, late, copies = np.maximum(x.layers, 1.0), self.late_gradients(x), self.gathered_copies(x)
        end = [Moment("backward_end", {**always, **late}, behind(x, layers - 1.0), works=True)]
        binding = [
            Moment("loss", {**always, "logits": logits}, x.in_flight),
            Moment(
                "head_backward", {**always, "logits": head, "head_gradient": weight_gradient}, x.in_flight
            ),
            Moment("backward", always, x.in_flight, works=True),
            *(end if late else []),
            Moment("optimizer", {**update, "optimizer_temporaries": update_temporaries(x, self.states)}),
        ]
        if copies is not None:
            binding.append(Moment("parameter_gather", {**update, "gathered_copy": copies}))
        if not every:
            return binding
        less = behind(x, 1.0)
        return [
            *binding,
            Moment("after_init", update),
            Moment("forward", always, x.in_flight),
            Moment("layer_reduction", always, less),
            Moment("layer_backward", always, less, works=True),
            *([] if late else end),
            Moment("gradient_reduction", {**always, **late}, behind(x, layers)),
        ]


class BufferedEngine(LastingEngine[Settings]):
    """Megatron's optimizers, and those that reduce as it does."""

    def update_bytes(self, job: Job) -> float:
        return megatron_update_bytes(self.states, job)


class Megatron2022Engine(BufferedEngine[Megatron2022]):
    """Megatron's of 2021 and 2022, and Megatron-DeepSpeed's."""

    @property
    def second_gradient(self) -> float:
        return self.states.gradient_accumulator


def megatron_update_bytes(states: States, job: Job) -> float:
    """Megatron copies 16-bit gradients to fp32 (distrib_optimizer.py, _copy_model_grads_to_main_grads; Megatron-FSDP
    too, param_and_grad_buffer.py update_main_grads) unless its optimizer takes them as they are, as the one that keeps
    moments in 16 bits does (use_precision_aware_optimizer) [bytes/parameter]."""
    return 0.0 if job.optimizer is Optimizer.ADAMW_BF16 else states.optimizer_transient
