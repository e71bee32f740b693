"""What do ranks under `fully_shard` hold at the moments of a step?

Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py. Left out: padding of
shards, and layers of a model whose units differ, for which the widest stands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.memory.moments import (
    MemoryInputs,
    Moment,
    behind,
    gradients_kept,
    static_terms,
    update_temporaries,
)
from planner.spec.stack import Stack
from planner.spec.stack.kinds import StaysGathered

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Units:
    """Bytes of what `fully_shard` gathers and reduces at once, (n, C).

    `weights`, `gradients`, `scatter`, `shard`: one layer gathered, its gradient, its reduce-scatter buffer, and what
    remains once reduced, or, of a model in one unit, unreduced until the end; `outer_*`: embedding, norm and head
    together, `outer_unreduced` beside the buffer: their gradients, or what becomes of the buffer and the last
    parameter's gradient, which a loop over them still names (_fsdp_collectives.py foreach_reduce). `all_weights`: the
    whole model gathered.
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


def _units(x: MemoryInputs, stack: Stack, grown: Array, fresh: Array) -> _Units:
    states = stack.states
    total, sharded = x.dense + x.expert, x.zero[:, None] >= 2
    w, g = x.weight_bytes, x.trained * states.unit_gradient
    inner = w if x.narrow_gathered is None else x.narrow_gathered
    whole = inner * (total - x.outer) + w * x.outer
    outer = total if states.one_unit else x.outer
    unit = np.zeros_like(total) if states.one_unit else np.minimum(x.unit[:, None], total - x.outer)
    outer_shard = grown * np.divide(outer, total, out=np.zeros_like(total), where=total > 0)
    reduced = np.where(sharded, x.trained * states.gradient, 0.0)
    kept_head = np.where(sharded, g, fresh * x.trained * states.gradient)
    grew = np.where(sharded & states.one_unit, g * (total - x.outer), grown - outer_shard)
    part = gradients_kept(x) * np.divide(outer, total, out=np.zeros_like(total), where=total > 0)
    last = whole if states.one_unit else inner * unit
    if states.stays_gathered is StaysGathered.HEAD and not states.one_unit:
        last = np.where(x.head > 0, w * x.head, last)
    return _Units(
        weights=inner * unit, gradients=g * unit, scatter=reduced * unit,
        shard=grew / np.maximum(x.layers, 1.0),
        outer_weights=whole if states.one_unit else w * outer,
        outer_gradients=g * outer, outer_scatter=reduced * outer, outer_shard=outer_shard,
        outer_unreduced=np.maximum(g * outer, part + g * np.where(x.head > 0, x.head, x.outer)),
        all_weights=whole, head_gradient=kept_head * x.head,
        last_buffer=last if stack.communication.gather_copies else np.zeros_like(total),
    )  # fmt: skip


def torch_moments(x: MemoryInputs, stack: Stack, every: bool) -> list[Moment]:
    """Moments under fully_shard (ZeRO 2 and 3), or with plain gradients (0, 1).

    Stage 3 gathers two layers at once, the one at work and the next, and the outer unit when the backward pass starts,
    unless it stayed; copying a gathered buffer into parameters holds both for a moment. FSDP2 frees the buffer of an
    all-gather when the next one is waited for (wait_for_unshard, comm_ctx.all_gather_state), so that the last one of a
    forward pass is there beside the parameters when the head runs. From the second layer of the backward pass on a
    reduce-scatter is in flight. The outer unit is reduced last. Gradients of earlier micro-batches are there throughout
    (`accumulates`).

    tp ranks that divide the embedding each make its whole gradient (torch distributed/tensor/_ops/_embedding_ops.py:
    a partial sum), which fully_shard sums over them before it reduces; without it stays whole for the update.

    `waits_whole`: stage 2 keeps all weights gathered; stage 3 frees a layer's after its forward pass, and none after
    its backward pass, so that both hold all of them when it ends. Gradients pile up unsharded in the type in which they
    are reduced, unit by unit once the last one is over (torch 2.6 and 2.13 distributed/pipelining/stage.py
    backward_maybe_with_nosync, perform_reduce_grad; fsdp/_fully_shard/_fsdp_param.py to_accumulated_grad_if_needed).
    `reduces_last`: gradients pile up so too, weights are freed, and units are reduced in the last backward pass
    (fsdp/_fully_shard/_fsdp_param_group.py post_backward, fsdp/_runtime_utils.py _post_backward_hook).
    Left out: torch 2.13 keeps weights of 3 chunks of a rank and gathers others again (schedules.py
    _add_unshard_reshard): with more it needs less.
    """
    states, zero, waits = stack.states, x.zero[:, None], x.waits_whole[:, None] > 0
    static, kept, fresh = static_terms(x, stack), gradients_kept(x), 1.0 - x.accumulates
    whole = x.trained * stack.communication.gradient_bytes * (x.dense + x.expert)
    last = x.reduces_last[:, None] & ~waits
    grown = np.where(waits | last, whole, kept)
    u, before, none = _units(x, stack, grown, fresh), (1.0 - fresh) * grown, np.zeros_like(x.dense)
    layers, deep, sharded = np.maximum(x.layers, 1.0), x.layers >= 2, zero >= 2
    stream = x.stream[:, None] + none

    def moment(
        phase: str, kept: Array | None, at_3: Array, at_2: Array, gradients: Array, buffers: Array = none,
        works: bool = False, behind_layers: bool = False, **more: Array,
    ) -> Moment:  # fmt: skip
        gathered = np.where(zero >= 3, at_3, np.where(zero >= 2, at_2, 0.0))
        held = {"gathered_parameters": gathered, "gradients": gradients}
        if x.due is not None and kept is not None:
            held["weight_gradients_due"] = x.due
        return Moment(
            phase,
            {**static, **held, "reduction_buffers": np.where(sharded, buffers, 0.0), **more},
            kept, works, behind_layers,
        )  # fmt: skip

    ahead, held, less = np.where(deep, u.weights, 0.0), x.in_flight, behind(x, 1.0)
    two = u.weights + ahead + u.outer_weights
    done = np.where((zero >= 3) & deep, layers - 2, layers - 1)  # layers whose backward is over at the end
    head, fully = before + u.head_gradient, u.all_weights
    gone, stay = np.where(waits, none, u.weights), np.where(waits, u.weights, none)
    scatter, first = u.scatter * ~waits, fresh * np.where(waits, u.shard, none)
    stays = {
        StaysGathered.HEAD: x.weight_bytes * x.head, StaysGathered.ROOT: u.outer_weights,
        StaysGathered.LAST_LAYER: u.outer_weights + u.weights * (x.head > 0),
    }.get(states.stays_gathered, none)  # fmt: skip
    again = 2 * u.outer_weights if states.stays_gathered is StaysGathered.NOTHING else stays
    logits = x.head_inputs + x.head_kept + x.head_transient
    excess = x.trained * states.gradient * (x.whole_embedding - x.embedding_part)
    ended = np.where(sharded & ~waits, before + fresh * (grown - u.outer_shard), grown + excess * ~waits)
    ended = np.where(last, kept, ended)  # all but the outer unit's are reduced and sharded
    buffers = np.where(waits, np.maximum(u.scatter, u.outer_scatter), u.outer_unreduced + u.outer_scatter)
    again_2 = np.where(waits, fresh, 1.0)  # whether stage 2 gathers in this forward pass
    # of units the backward pass, which holds as many and a layer's gradients, needs more than a layer's forward
    beside, at_work = (
        (u.last_buffer, np.maximum(stream, np.asarray(x.layer_forward)[..., None]))
        if states.one_unit else (none, stream)
    )  # fmt: skip
    # a step's first layer is gathered while the outer unit's buffer is there
    first_gather = np.where(u.last_buffer > 0, 2 * u.outer_weights + 2 * u.weights, none)
    # stage 3: the next layer's buffer beside its parameters, when the one before has been reduced
    next_layer = (
        np.where((zero >= 3) & deep & (u.last_buffer > 0), fresh * u.shard + u.weights - u.gradients, 0.0)
        * ~waits
    )
    ends = np.where(waits, none, behind(x, layers))
    # the embedding's backward: its gradient, on tp ranks whole beside its own part, and those of its unit
    apart = x.head * (states.stays_gathered is StaysGathered.HEAD)
    embedding = (
        np.where(waits, fully, u.outer_weights - x.weight_bytes * apart),
        u.outer_gradients + x.trained * states.unit_gradient * (x.whole_embedding - apart),
    )
    in_head = u.outer_weights if states.stays_gathered is not StaysGathered.HEAD else stays
    moments = [
        moment("forward", less, u.weights + u.outer_weights + 2 * u.weights + beside,
               fully + (2 * u.weights + beside) * again_2, before, working_set=at_work),
        moment("forward", None, first_gather, first_gather, before, working_set=stream),
        moment("forward", held, np.maximum(stays, in_head) + u.last_buffer, fully + u.last_buffer * again_2,
               before, behind_layers=True, logits=x.head_forward + none),
        moment("loss", held, stays, fully, before, logits=logits),
        moment("head_backward", held, again, fully, before, logits=x.head_inputs + x.logit_gradient),
        moment("head_backward", held, np.maximum(stays, in_head), fully, head,
               logits=x.norm_gradient + none),
        moment("backward", held, two, fully, head, works=True),
        moment("layer_reduction", less, ahead + u.outer_weights + stay, fully - gone,
               head + np.where(sharded, u.gradients, 0.0) + first, scatter + np.maximum(next_layer, 0.0),
               working_set=stream),
        moment("layer_backward", less, np.where(x.layers >= 3, two, two - ahead) + stay, fully - gone,
               head + np.where(deep, fresh * u.shard, 0.0), np.where(deep, scatter, 0.0), works=True),
        moment("backward_end", behind(x, done), np.where(waits, fully, two),
               np.where(waits, fully, u.weights + u.outer_weights),
               head + fresh * done * u.shard, np.where(done >= 1, scatter, 0.0), works=True),
        moment("gradient_reduction", ends, fully * waits, fully * waits,
               ended, buffers),
        moment("gradient_reduction", ends, embedding[0], embedding[0],
               ended + np.where(sharded, embedding[1], 0.0), scatter, working_set=stream),
        moment("optimizer", None, none, none, kept + np.where(sharded, 0.0, excess),
               optimizer_temporaries=update_temporaries(x, states)),
    ]  # fmt: skip
    return [*moments, moment("after_init", None, none, none, none)] if every else moments
