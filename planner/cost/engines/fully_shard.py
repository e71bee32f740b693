"""What do ranks under PyTorch's `fully_shard` hold at the moments of a step, and what does it gather and reduce?

Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py. Left out: padding of
shards outside the layers; layers of a model whose units differ, for which the widest stands; and, of layers by lists of
operations, gradients that a layer at work has made, as the outer unit is not gathered then as it is counted here (of
GLM-4.5-Air on 8 ranks 4.1 and 2.3 GiB at the peak of 116).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.engines.engine import Engine
from planner.cost.levels import Layers
from planner.cost.memory.moments import (
    WEIGHT_GRADIENT,
    MemoryInputs,
    Moment,
    behind,
    gradients_kept,
    static_terms,
    update_temporaries,
)
from planner.cost.params_fp8 import narrow_weights
from planner.schedule.formulas import in_flight
from planner.spec.config import ConfigTable, Schedule
from planner.spec.job import FROZEN_BYTES, Job, Optimizer
from planner.spec.precision import RECIPES
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.stack.engines import FullyShard
from planner.spec.stack.kinds import StaysGathered, TorchPipelining
from planner.spec.stack.losses import Chunked

Array = NDArray[np.float64]
Index = NDArray[np.intp]

RECEIVED: Final = 2.0  # bytes of a value in buffers between stages


@dataclass(frozen=True)
class _Units:
    """Bytes of what `fully_shard` gathers and reduces at once, (n, C).

    `weights`, `gradients`, `scatter`, `shard`: one layer gathered (with the padding of its shards, as are `scatter` and
    `all_weights`), its gradient, its reduce-scatter buffer, and what
    remains once reduced; `outer_*`: embedding, norm and head together, `outer_unreduced` beside the buffer: their
    gradients, or what becomes of the buffer and the last parameter's gradient, which a loop over them still names
    (_fsdp_collectives.py foreach_reduce); without the head where its loss is made part by part, behind the last of
    which it is reduced (torchtitan 0.3.0 components/loss.py ChunkedLossWrapper). `all_weights`: the whole model.
    `head_gradient`: the gradient that exists from the first step of the backward pass to the last. `last_buffer`: of
    the last all-gather of a forward pass, which stays until the next one is waited for.
    """

    weights: Array
    gradients: Array
    scatter: Array
    shard: Array
    outer_weights: Array
    outer_gradients: Array
    outer_shard: Array
    outer_scatter: Array
    outer_unreduced: Array
    all_weights: Array
    head_gradient: Array
    last_buffer: Array


def _units(x: MemoryInputs, stack: Stack, states: FullyShard, grown: Array, fresh: Array) -> _Units:
    total, sharded = x.dense + x.expert, x.zero[:, None] >= 2
    w, g = x.weight_bytes, x.trained * WEIGHT_GRADIENT
    inner = w if x.narrow_gathered is None else x.narrow_gathered
    outer, layers = x.outer, total - x.outer
    padded = (x.dense - outer) * x.padding[0][:, None] + x.expert * x.padding[1][:, None]
    whole = inner * padded + w * outer
    of_outer = np.where(sharded, padded + outer, total)
    of_outer = 1.0 / np.where(total > 0, of_outer, np.inf)
    unit, padded_unit = np.minimum(x.unit[:, None], layers), np.minimum(x.padded_unit[:, None], padded)
    outer_shard = grown * outer * of_outer
    reduced = np.where(sharded, x.trained * states.gradient, 0.0)
    kept_head = np.where(sharded, g, fresh * x.trained * states.gradient) * x.head
    late, last_weight = outer, np.where(x.head > 0, x.head, x.outer)
    if isinstance(stack.kernels.loss, Chunked):  # reduced behind its last part
        alone = sharded & (x.waits_whole[:, None] == 0)
        own = fresh * grown * x.head * of_outer
        kept_head = np.where(alone, own, kept_head)
        late = outer - np.where(alone, x.head, 0.0)
        last_weight = np.where(alone, late, last_weight)
    part = gradients_kept(x) * outer * of_outer
    last = inner * padded_unit
    if states.stays_gathered is StaysGathered.HEAD:
        last = np.where(x.head > 0, w * x.head, last)
    return _Units(
        weights=inner * padded_unit, gradients=g * unit, scatter=reduced * padded_unit,
        shard=(grown - outer_shard) / np.maximum(x.layers, 1.0),
        outer_weights=w * outer,
        outer_gradients=g * outer, outer_scatter=reduced * late, outer_shard=outer_shard,
        outer_unreduced=np.maximum(g * late, part + g * last_weight),
        all_weights=whole, head_gradient=kept_head,
        last_buffer=last if states.gather_copies else np.zeros_like(total),
    )  # fmt: skip


class _Step:
    """What a rank's phases of a step hold: the inputs, the units, and the sums more than one phase needs, (n, C)."""

    def __init__(self, x: MemoryInputs, stack: Stack, states: FullyShard):
        self.x, self.states = x, states
        self.zero, self.waits = x.zero[:, None], x.waits_whole[:, None] > 0
        self.static, self.kept, self.fresh = static_terms(x, stack), gradients_kept(x), 1.0 - x.accumulates
        whole = x.trained * states.sent_gradient * (x.dense + x.expert)
        self.last = x.reduces_last[:, None] & ~self.waits
        self.grown = np.where(self.waits | self.last, whole, self.kept)
        self.u = u = _units(x, stack, states, self.grown, self.fresh)
        self.before, self.none = (1.0 - self.fresh) * self.grown, np.zeros_like(x.dense)
        self.layers, self.deep, self.sharded = np.maximum(x.layers, 1.0), x.layers >= 2, self.zero >= 2
        self.stream = x.stream[:, None] + self.none
        self.held, self.less = x.in_flight, behind(x, 1.0)
        self.ahead = np.where(self.deep, u.weights, 0.0)
        self.two = u.weights + self.ahead + u.outer_weights
        self.stays = {
            StaysGathered.HEAD: x.weight_bytes * x.head, StaysGathered.ROOT: u.outer_weights,
            StaysGathered.LAST_LAYER: u.outer_weights + u.weights * (x.head > 0),
        }.get(self.states.stays_gathered, self.none)  # fmt: skip
        in_head = self.stays if self.states.stays_gathered is StaysGathered.HEAD else u.outer_weights
        self.in_head = np.maximum(self.stays, in_head)
        self.excess = x.trained * self.states.gradient * (x.whole_embedding - x.embedding_part)

    def moment(
        self, phase: str, kept: Array | None, at_3: Array, at_2: Array, gradients: Array,
        buffers: Array | None = None, works: bool = False, behind_layers: bool = False, **more: Array,
    ) -> Moment:  # fmt: skip
        """A moment with the weights gathered at stage 3 and at stage 2, the gradients and the reduction's buffers."""
        held = {
            "gathered_parameters": np.where(self.zero >= 3, at_3, np.where(self.sharded, at_2, 0.0)),
            "gradients": gradients,
        }
        if self.x.due is not None and kept is not None:
            held["weight_gradients_due"] = self.x.due
        buffers = self.none if buffers is None else np.where(self.sharded, buffers, 0.0)
        terms = {**self.static, **held, "reduction_buffers": buffers, **more}
        return Moment(phase, terms, kept, works, behind_layers)

    def forward(self) -> list[Moment]:
        """The forward pass through the layers and the head, and the loss."""
        x, u, before, fully = self.x, self.u, self.before, self.u.all_weights
        again_2 = np.where(self.waits, self.fresh, 1.0)  # whether stage 2 gathers in this forward pass
        # a step's first layer is gathered while the outer unit's buffer is there
        first_gather = np.where(u.last_buffer > 0, 2 * u.outer_weights + 2 * u.weights, self.none)
        logits = x.head_inputs + x.head_kept + x.head_transient
        return [
            self.moment("forward", self.less, u.weights + u.outer_weights + 2 * u.weights,
                        fully + 2 * u.weights * again_2, before, working_set=self.stream),
            self.moment("forward", None, first_gather, first_gather, before, working_set=self.stream),
            self.moment("forward", self.held, self.in_head + u.last_buffer, fully + u.last_buffer * again_2,
                        before, behind_layers=True, logits=x.head_forward + self.none),
            self.moment("loss", self.held, self.stays, fully, before, logits=logits),
        ]  # fmt: skip

    def backward(self) -> list[Moment]:
        """The backward pass through the head and the layers, each layer's gradients reduced behind it."""
        x, u, waits, none = self.x, self.u, self.waits, self.none
        head, fully = self.before + u.head_gradient, u.all_weights
        nothing_stays = self.states.stays_gathered is StaysGathered.NOTHING
        again = 2 * u.outer_weights if nothing_stays else self.stays
        gone, stay = np.where(waits, none, u.weights), np.where(waits, u.weights, none)
        scatter, first = u.scatter * ~waits, self.fresh * np.where(waits, u.shard, none)
        deep_3 = (self.zero >= 3) & self.deep
        # layers whose backward is over at the end
        done = np.where(deep_3, self.layers - 2, self.layers - 1)
        # stage 3: the next layer's buffer beside its parameters, when the one before has been reduced
        next_layer = np.where(
            deep_3 & ~waits & (u.last_buffer > 0), self.fresh * u.shard + u.weights - u.gradients, 0.0
        )
        return [
            self.moment("head_backward", self.held, again, fully, self.before,
                        logits=x.head_inputs + x.logit_gradient),
            self.moment("head_backward", self.held, self.in_head, fully, head, logits=x.norm_gradient + none),
            self.moment("backward", self.held, self.two, fully, head, works=True),
            self.moment("layer_reduction", self.less, self.ahead + u.outer_weights + stay, fully - gone,
                        head + np.where(self.sharded, u.gradients, 0.0) + first,
                        scatter + np.maximum(next_layer, 0.0), working_set=self.stream),
            self.moment("layer_backward", self.less, np.where(x.layers >= 3, self.two, self.two - self.ahead) + stay,
                        fully - gone, head + np.where(self.deep, self.fresh * u.shard, 0.0),
                        np.where(self.deep, scatter, 0.0), works=True),
            self.moment("backward_end", behind(x, done), np.where(waits, fully, self.two),
                        np.where(waits, fully, u.weights + u.outer_weights),
                        head + self.fresh * done * u.shard, np.where(done >= 1, scatter, 0.0), works=True),
        ]  # fmt: skip

    def end(self) -> list[Moment]:
        """The outer unit's reduction and the update."""
        x, u, waits, none = self.x, self.u, self.waits, self.none
        ended = np.where(
            self.sharded & ~waits, self.before + self.fresh * (self.grown - u.outer_shard),
            self.grown + self.excess * ~waits,
        )  # fmt: skip
        ended = np.where(self.last, self.kept, ended)  # all but the outer unit's are reduced and sharded
        buffers = np.where(waits, np.maximum(u.scatter, u.outer_scatter), u.outer_unreduced + u.outer_scatter)
        ends, whole = np.where(waits, none, behind(x, self.layers)), u.all_weights * waits
        # the embedding's backward: its gradient, on tp ranks whole beside its own part, and those of its unit
        apart = x.head * (self.states.stays_gathered is StaysGathered.HEAD)
        gathered = np.where(waits, u.all_weights, u.outer_weights - x.weight_bytes * apart)
        gradient = u.outer_gradients + x.trained * WEIGHT_GRADIENT * (x.whole_embedding - apart)
        return [
            self.moment("gradient_reduction", ends, whole, whole, ended, buffers),
            self.moment("gradient_reduction", ends, gathered, gathered,
                        ended + np.where(self.sharded, gradient, 0.0), u.scatter * ~waits, working_set=self.stream),
            self.moment("optimizer", None, none, none, self.kept + np.where(self.sharded, 0.0, self.excess),
                        optimizer_temporaries=update_temporaries(x, self.states)),
        ]  # fmt: skip

    def after_init(self) -> Moment:
        """Before the first step."""
        return self.moment("after_init", None, self.none, self.none, self.none)


class FullyShardEngine(Engine[FullyShard]):
    """FSDP1, FSDP2 and DDP."""

    def reduction_buffer(self, zero: Array) -> Array | float:
        """PyTorch's DDP sums copies of the gradients, in buckets that stay (torch nn/parallel/distributed.py
        gradient_as_bucket_view=False)."""
        return (zero == 0) * self.states.gradient

    def gradients_follow(
        self, optimizer: NDArray[np.bool_], parameters: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """FSDP's CPU offload takes everything."""
        return optimizer & parameters

    def moments(self, x: MemoryInputs, every: bool) -> list[Moment]:
        """Moments under fully_shard (ZeRO 2 and 3), or with plain gradients (0, 1).

        Stage 3 gathers two layers at once, the one at work and the next, and the outer unit when the backward pass
        starts, unless it stayed; copying a gathered buffer into parameters holds both for a moment. FSDP2 frees the
        buffer of an all-gather when the next one is waited for (wait_for_unshard, comm_ctx.all_gather_state), so that
        the last one of a forward pass is there beside the parameters when the head runs. From the second layer of the
        backward pass on a reduce-scatter is in flight. The outer unit is reduced last. Gradients of earlier
        micro-batches are there throughout (`accumulates`).

        tp ranks that divide the embedding each make its whole gradient (torch
        distributed/tensor/_ops/_embedding_ops.py: a partial sum), which fully_shard sums over them before it reduces;
        without it stays whole for the update.

        `waits_whole`: stage 2 keeps all weights gathered; stage 3 frees a layer's after its forward pass, and none
        after its backward pass, so that both hold all of them when it ends. Gradients pile up unsharded in the type in
        which they are reduced, unit by unit once the last one is over (torch 2.6 and 2.13
        distributed/pipelining/stage.py backward_maybe_with_nosync, perform_reduce_grad;
        fsdp/_fully_shard/_fsdp_param.py to_accumulated_grad_if_needed). `reduces_last`: gradients pile up so too,
        weights are freed, and units are reduced in the last backward pass (fsdp/_fully_shard/_fsdp_param_group.py
        post_backward, fsdp/_runtime_utils.py _post_backward_hook). Left out: torch 2.13 keeps weights of 3 chunks of a
        rank and gathers others again (schedules.py _add_unshard_reshard): with more it needs less.
        """
        step = _Step(x, self.stack, self.states)
        moments = [*step.forward(), *step.backward(), *step.end()]
        return [*moments, step.after_init()] if every else moments

    def stage_buffers(
        self, table: ConfigTable, layers: Layers, l_row: Index, ends: tuple[Array, Array], in_flight: Array
    ) -> Array:
        """What torch.distributed.pipelining keeps between stages beyond a layer's own input (n, C) [bytes].

        With m micro-batches and v chunks, m (2 v) buffers of received activations and gradients, but none of
        activations on the first and of gradients on the last stage; outputs of chunks in flight, or of all where they
        are kept to the end of the step, of the last stage then the logits; less what the layers count: the inputs of
        chunks in flight. torch 2.13 and 2.6 distributed/pipelining/stage.py _prepare_forward_infra,
        _prepare_backward_infra, forward_one_chunk.
        """
        if self.states.pipelining is None:
            return np.zeros_like(in_flight)
        (first, last), keeps = ends, self.states.pipelining is TorchPipelining.TORCH_2_6
        v, m = (table[axis].astype(float)[:, None] for axis in ("vpp", "num_microbatches"))
        received = RECEIVED * m * (2.0 * v - first - last)
        sent = (v - last) * (m if keeps else in_flight)
        width = layers.stream[l_row] / np.maximum(layers.hidden[l_row], 1.0)
        hidden = layers.hidden[l_row][:, None] * (
            received + width[:, None] * (sent - in_flight * (v - first))
        )
        logits = last * m * layers.head_memory.logits[l_row][:, None] if keeps else 0.0
        return np.maximum(hidden + logits, 0.0) * (table["pp"] > 1)[:, None]

    def gradients_wait(self, table: ConfigTable, in_flight: Array) -> NDArray[np.bool_]:
        """Or at the fixed addresses that a graph writes (torchtitan 0.3.0 trainer.py
        zero_grad(set_to_none=disable_cuda_graphs))."""
        fixed = table["cuda_graph_impl"] > 0
        return super().gradients_wait(table, in_flight) | fixed[:, None]

    def idle_gathers(self, x: MemoryInputs) -> Array | float:
        """FSDP2 gathers on a stream of its own, whose blocks nothing else can use: the outer unit's and the next
        layer's, which is asked for before the former is free (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py
        foreach_all_gather)."""
        idle = (1.0 - x.accumulates) * gradients_kept(x)
        if self.states.gather_copies:
            width = x.weight_bytes if x.narrow_gathered is None else x.narrow_gathered
            pool = x.weight_bytes * x.outer + width * x.padded_unit[:, None]
            idle = idle + np.where(x.zero[:, None] >= 2, pool, 0.0)
        return np.asarray(idle)

    def whole_at_work(self, problem: Problem, table: ConfigTable) -> tuple[Array, NDArray[np.bool_]] | None:
        """Gathered weights and gradients of earlier micro-batches, which pile up whole where they are reduced once; of
        those none where all are in flight."""
        p, v, m, zero = (table[axis] for axis in ("pp", "vpp", "num_microbatches", "zero"))
        looped = (table["schedule"] <= Schedule.INTERLEAVED) | (table["schedule"] == Schedule.ZB_H1)
        most = np.where(looped, in_flight(0.0, *(of.astype(float) for of in (p, v, m))), np.minimum(2 * p, m))
        earlier = (m > most) & (table["schedule"] != Schedule.GPIPE)
        piled = self.states.accumulates_whole(p, zero) | self.states.reduces_last(zero, m)
        job = problem.job
        trained, width = float(job.lora_rank is None), RECIPES[job.precision].weight_bytes
        if job.lora_rank is not None:
            width = min(width, FROZEN_BYTES[job.frozen_bits])
        if narrow_weights(problem) is not None:  # gathered in several widths
            width = 0.0
        wire = self.states.sent_gradient
        gradients = np.where(piled & earlier, trained * wire, 0.0)
        return gradients + np.where(zero == 2, width, 0.0), earlier & ~piled

    def update_bytes(self, job: Job) -> float:
        """8-bit AdamW updates one parameter after the other, without torch's foreach kernels (torchao optim/adam.py
        step, bitsandbytes optim/optimizer.py step)."""
        return 0.0 if job.optimizer is Optimizer.ADAMW_8BIT else self.states.optimizer_transient

    def copied_to_host(self, weight_bytes: float) -> float:
        """Gradients go out in every micro-batch, and weights are taken in where they are gathered."""
        return 0.0

    def sums_on_host(self, microbatches: Array, reduces_last: NDArray[np.bool_]) -> Array:
        return np.where(reduces_last, 0.0, microbatches - 1.0)

    def collectives(self, table: ConfigTable, again: Array) -> tuple[Array, Array]:
        """Stage 2 gathers for the forward pass alone; what waits whole is reduced, and gathered, once."""
        zero, m = table["zero"], table["num_microbatches"].astype(float)
        once = self.states.accumulates_whole(table["pp"], zero)
        last = once | self.states.reduces_last(zero, table["num_microbatches"])
        reductions, gathers = super().collectives(table, again)
        gathers = np.where(zero == 2, m, gathers)
        gathers = np.where(once & (zero >= 3), again * m + 1.0, gathers)
        return np.where(last, 1.0, reductions), gathers
