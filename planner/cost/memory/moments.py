"""What does every stage hold at the moments of a step, by engine of the states?

A step is a small set of moments, each a sum of named terms. Between the moments memory is monotone: kept activations
fall and reduced gradients grow layer by layer, so that the ends of a backward pass suffice. Left out: what a row keeps
and recomputes of its layers, which `memory/peak.py` adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.memory.state_bytes import StateBytes
from planner.cost.memory.units import fsdp_units
from planner.spec.stack import Stack
from planner.spec.stack.kinds import StateEngine, StaysGathered
from planner.spec.stack.memory import States

Array = NDArray[np.float64]

PHASES: Final = (
    "after_init", "forward", "loss", "head_backward", "backward", "layer_reduction", "layer_backward", "backward_end",
    "gradient_reduction", "optimizer", "parameter_gather",
)  # fmt: skip
AT_LOSS: Final = (
    "loss",
    "head_backward",
)  # of the phases, those at which a micro-batch leaves the last layer


@dataclass(frozen=True)
class MemoryInputs:
    """What the peak is made of, before recomputation. (n, C) unless said; C classes of stages.

    `dense`, `expert`: parameters on a rank; `outer`: those outside the layers (embedding, final norm, head) among
    them, `head` the head's. `unit` (n,): parameters of the widest layer. `layers`: layers of a stage. `alive`:
    stages of the class (0: padding). `in_flight`: micro-batches. `due`: bytes kept for weight gradients that run
    apart (None: none do). `head_inputs`, `head_kept`, `head_transient`,
    `logit_gradient`: bytes of head and loss, zero but on the last stage. `boundary`: of
    sent and received activations that a stage keeps of micro-batches in flight, `stage_buffers` of all of a step.
    `adapters`: weights, gradients and states of LoRA adapters. `stream` (n,): a layer's input [bytes].
    `gather_buffers` (n,): of gathered inputs, made once. `deferred`: blocks the allocator cannot reuse yet [bytes].
    `states`, `expert_states` (n,): bytes per parameter. `zero`, `shards`, `expert_shards` (n,): ZeRO stage and ranks
    that share states. `accumulates`: whether gradients exist when most micro-batches are in flight (1.0).
    `waits_whole` (n,): whether sharded gradients and gathered weights stay whole until the last backward pass (1.0).
    `reduces_last` (n,): whether gradients do, and weights are freed as ever.
    `reduces_aside` (n,): whether gradients are reduced beside compute.
    `weight_bytes` (n,): of a gathered parameter. `largest_tensor` (n,): parameters of the largest single one.
    `communicators` (n,): bytes of a rank's process groups. `head_excess`: parameters whose gradient a rank holds beyond
    its own.
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
    head_excess: Array
    unit: Array
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
    largest_tensor: Array
    communicators: Array
    update_bytes: float = 0.0
    trained: float = 1.0
    due: Array | None = None
    narrow: tuple[Array, Array | None] | None = None
    narrow_gathered: Array | None = None
    holds_head: NDArray[np.bool_] | bool = False
    beside: Array | float = 0.0
    matrix_bytes: Array | float = 0.0


@dataclass(frozen=True)
class Moment:
    """One moment of a phase: named constant terms (n, C), the micro-batches (n, C) whose activations are kept (None:
    none), and whether a layer is at work in its backward pass."""

    phase: str
    terms: dict[str, Array]
    kept: Array | None = None
    works: bool = False

    @cached_property
    def fixed(self) -> Array:
        """Everything that recomputation does not change."""
        first, *others = self.terms.values()
        return sum(others, first)


def _per_class(dense: Array, expert: Array, dense_bytes: Array, expert_bytes: Array) -> Array:
    return dense * dense_bytes[:, None] + expert * expert_bytes[:, None]


def _static_terms(x: MemoryInputs, stack: Stack) -> dict[str, Array]:
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


def _update_temporaries(x: MemoryInputs, states: States) -> Array:
    """Temporaries of the optimizer's step: so many bytes per updated parameter, or copies of one tensor at a time."""
    sharded = x.zero[:, None] >= 1
    local = x.dense / np.where(sharded, x.shards[:, None], 1.0)
    local = local + x.expert / np.where(sharded, x.expert_shards[:, None], 1.0)
    largest = x.largest_tensor / np.where(x.zero >= 1, x.shards, 1.0)
    width = states.master or x.weight_bytes
    here = (x.states.optimizer > 0)[:, None]  # an update on the host needs nothing on the device
    tensors = states.step_tensors * width * largest + x.matrix_bytes
    return np.where(here, x.update_bytes * local + tensors[:, None], 0.0)


def _behind(x: MemoryInputs, done: Array | float) -> Array:
    """Micro-batches in flight once `done` layers are through the backward pass of one of them (n, C) [1].

    in flight - done / layers; where less than one is on the device, as most wait on the host, others take the place of
    what is freed while any are left.
    """
    layers = np.maximum(x.layers, 1.0)
    return np.asarray(np.maximum(x.in_flight - done / layers, np.clip(1.0 - done / layers, 0.0, x.in_flight)))


def _contiguous_moments(x: MemoryInputs, stack: Stack, every: bool) -> list[Moment]:
    """Moments where weights and gradients are there from start to end; unless `every`, those that can bind."""
    states = stack.states
    always = _static_terms(x, stack)
    always["gradients"] = gradients_kept(x)
    if states.engine is StateEngine.DEEPSPEED:
        always.update(_deepspeed_buffers(x, states))
    else:
        width = x.weight_bytes if x.narrow_gathered is None else x.narrow_gathered
        unit = states.prefetch_layers * width * x.unit[:, None]
        always["gathered_parameters"] = np.where(x.zero[:, None] >= 3, unit, 0.0) * np.ones_like(x.dense)
    update = always
    if x.due is not None:
        always = {**always, "weight_gradients_due": x.due}
    logits = x.head_inputs + x.head_kept + x.head_transient
    head = x.head_inputs + x.logit_gradient
    # the head's weight gradient is a tensor of its own before it is added to the buffer
    weight_gradient = x.trained * states.unit_gradient * x.head
    layers = np.maximum(x.layers, 1.0)
    unreduced = x.trained * states.late_gradient
    late = {"late_gradients": unreduced * (x.dense + x.expert)} if unreduced else {}
    end = [Moment("backward_end", {**always, **late}, _behind(x, layers - 1.0), works=True)]
    binding = [
        Moment("loss", {**always, "logits": logits}, x.in_flight),
        Moment("head_backward", {**always, "logits": head, "head_gradient": weight_gradient}, x.in_flight),
        Moment("backward", always, x.in_flight, works=True),
        *(end if late else []),
        Moment("optimizer", {**update, "optimizer_temporaries": _update_temporaries(x, states)}),
    ]
    if states.gather_copy:
        copies = ((x.zero >= 1) & (x.zero <= 2) & (x.shards > 1))[:, None] * states.gather_copy
        binding.append(Moment("parameter_gather", {**update, "gathered_copy": copies * (x.dense + x.expert)}))
    if not every:
        return binding
    less = _behind(x, 1.0)
    return [
        *binding,
        Moment("after_init", update),
        Moment("forward", always, x.in_flight),
        Moment("layer_reduction", always, less),
        Moment("layer_backward", always, less, works=True),
        *([] if late else end),
        Moment("gradient_reduction", {**always, **late}, _behind(x, layers)),
    ]


def _deepspeed_buffers(x: MemoryInputs, states: States) -> dict[str, Array]:
    """What ZeRO-3 keeps gathered and the buckets of all stages: neither falls with the number of ranks [bytes].

    Gathered: min(P, max(live, unit + prefetch)) parameters, since they are released only beyond
    stage3_max_live_parameters; those below stage3_param_persistence_threshold (by default 1e5 elements: norms, under
    0.01 % of a model) stay gathered and are left out. Weights frozen in fewer bits count packed, in elements of 16 bits
    (bnb_4bit_quant_storage). Two buckets of gradients, one filled while the other is reduced;
    one in stages 1 and 2 without overlap_comm (stage_1_and_2.py setup_buckets), which pipelines never have.
    """
    local, zero = x.dense + x.expert, x.zero[:, None]
    packing = 1.0 if x.narrow_gathered is None else x.narrow_gathered / x.weight_bytes
    live = np.maximum(states.live_parameters, packing * x.unit[:, None] + states.prefetch_elements)
    gathered = np.minimum(packing * (local - x.outer) + x.outer, live)
    bucket = np.minimum(states.bucket_elements, local) * np.where(
        (zero < 3) & ~x.reduces_aside[:, None], 1.0, 2.0
    )
    return {
        "gathered_parameters": np.where(zero >= 3, x.weight_bytes * gathered, 0.0),
        "reduction_buffers": np.where(zero >= 1, x.trained * states.gradient * bucket, 0.0),
    }


@dataclass(frozen=True)
class _Units:
    """Bytes of what `fully_shard` gathers and reduces at once, (n, C).

    `weights`, `gradients`, `scatter`, `shard`: one layer gathered, its gradient, its reduce-scatter buffer, and what
    remains once reduced; `outer_*`: embedding, norm and head together. `all_weights`: the whole model gathered.
    `head_gradient`: the gradient that exists from the first step of the backward pass to the last.
    """

    weights: Array
    gradients: Array
    scatter: Array
    shard: Array
    outer_weights: Array
    outer_gradients: Array
    outer_shard: Array
    outer_scatter: Array
    all_weights: Array
    head_gradient: Array


def _units(x: MemoryInputs, states: States, grown: Array, fresh: Array) -> _Units:
    total, sharded = x.dense + x.expert, x.zero[:, None] >= 2
    w, g = x.weight_bytes, x.trained * states.unit_gradient
    inner = w if x.narrow_gathered is None else x.narrow_gathered
    whole = inner * (total - x.outer) + w * x.outer
    outer = total if states.one_unit else x.outer
    unit = np.zeros_like(total) if states.one_unit else np.minimum(x.unit[:, None], total - x.outer)
    outer_shard = grown * np.divide(outer, total, out=np.zeros_like(total), where=total > 0)
    reduced = np.where(sharded, x.trained * states.gradient, 0.0)
    kept_head = np.where(sharded, g, fresh * x.trained * states.gradient)
    return _Units(
        weights=inner * unit, gradients=g * unit, scatter=reduced * unit,
        shard=(grown - outer_shard) / np.maximum(x.layers, 1.0),
        outer_weights=whole if states.one_unit else w * outer,
        outer_gradients=g * outer, outer_scatter=reduced * outer, outer_shard=outer_shard,
        all_weights=whole, head_gradient=kept_head * (x.head + x.head_excess),
    )  # fmt: skip


def _torch_moments(x: MemoryInputs, stack: Stack, every: bool) -> list[Moment]:
    """Moments under fully_shard (ZeRO 2 and 3), or with plain gradients (0, 1).

    Stage 3 gathers two layers at once, the one at work and the next, and the outer unit when the backward pass starts,
    unless it stayed; copying a gathered buffer into parameters holds both for a moment. From the second layer of the
    backward pass on a reduce-scatter is in flight. The outer unit is reduced last. Gradients of earlier micro-batches
    are there throughout (`accumulates`).

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
    static, kept, fresh = _static_terms(x, stack), gradients_kept(x), 1.0 - x.accumulates
    whole = x.trained * stack.communication.gradient_bytes * (x.dense + x.expert)
    last = x.reduces_last[:, None] & ~waits
    grown = np.where(waits | last, whole, kept)
    u, before, none = _units(x, states, grown, fresh), (1.0 - fresh) * grown, np.zeros_like(x.dense)
    layers, deep, sharded = np.maximum(x.layers, 1.0), x.layers >= 2, zero >= 2
    stream = x.stream[:, None] + none

    def moment(
        phase: str, kept: Array | None, at_3: Array, at_2: Array, gradients: Array, buffers: Array = none,
        works: bool = False, **more: Array,
    ) -> Moment:  # fmt: skip
        gathered = np.where(zero >= 3, at_3, np.where(zero >= 2, at_2, 0.0))
        held = {"gathered_parameters": gathered, "gradients": gradients}
        if x.due is not None and kept is not None:
            held["weight_gradients_due"] = x.due
        return Moment(
            phase,
            {**static, **held, "reduction_buffers": np.where(sharded, buffers, 0.0), **more},
            kept,
            works,
        )

    ahead, held, less = np.where(deep, u.weights, 0.0), x.in_flight, _behind(x, 1.0)
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
    excess = x.trained * states.gradient * x.head_excess
    ended = np.where(sharded & ~waits, before + fresh * (grown - u.outer_shard), grown + excess * ~waits)
    ended = np.where(last, kept, ended)  # all but the outer unit's are reduced and sharded
    buffers = np.where(waits, np.maximum(u.scatter, u.outer_scatter), u.outer_gradients + u.outer_scatter)
    moments = [
        moment("forward", less, u.weights + u.outer_weights + 2 * u.weights,
               fully + 2 * u.weights * np.where(waits, fresh, 1.0), before, working_set=stream),
        moment("loss", held, stays, fully, before, logits=logits),
        moment("head_backward", held, again, fully, before, logits=x.head_inputs + x.logit_gradient),
        moment("backward", held, two, fully, head, works=True),
        moment("layer_reduction", less, ahead + u.outer_weights + stay, fully - gone,
               head + np.where(sharded, u.gradients, 0.0) + first, scatter, working_set=stream),
        moment("layer_backward", less, np.where(x.layers >= 3, two, two - ahead) + stay, fully - gone,
               head + np.where(deep, fresh * u.shard, 0.0), np.where(deep, scatter, 0.0), works=True),
        moment("backward_end", _behind(x, done), np.where(waits, fully, two),
               np.where(waits, fully, u.weights + u.outer_weights),
               head + fresh * done * u.shard, np.where(done >= 1, scatter, 0.0), works=True),
        moment("gradient_reduction", np.where(waits, none, _behind(x, layers)), fully * waits, fully * waits,
               ended, buffers),
        moment("optimizer", None, none, none, kept + excess, optimizer_temporaries=_update_temporaries(x, states)),
    ]  # fmt: skip
    return [*moments, moment("after_init", None, none, none, none)] if every else moments


def _megatron_fsdp_moments(x: MemoryInputs, stack: Stack, every: bool) -> list[Moment]:
    """Moments under Megatron-FSDP: sharded gradients throughout, layers gathered and reduced in queues."""
    layers, total, none = np.maximum(x.layers, 1.0), x.dense + x.expert, np.zeros_like(x.dense)
    width = x.weight_bytes if x.narrow_gathered is None else x.narrow_gathered
    of = (total, x.outer, x.head, x.unit[:, None] + none)
    u = fsdp_units(of, layers, x.zero, stack.states, (width, x.weight_bytes))
    always = {**_static_terms(x, stack), "gradients": gradients_kept(x)}
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
        moment("forward", _behind(x, 1.0), u.gathered, working_set=x.stream[:, None] + none),
        moment("loss", held, none, logits=logits),
        moment("head_backward", held, none, first, logits=x.head_inputs + x.logit_gradient),
        moment("backward", held, u.gathered, first, works=True),
        moment("layer_backward", _behind(x, u.queued), u.gathered, full, works=True),
        moment("backward_end", _behind(x, layers - 1.0), u.gathered, last, works=True),
        moment("gradient_reduction", _behind(x, layers), none, end),
        moment("optimizer", None, none, optimizer_temporaries=_update_temporaries(x, stack.states)),
    ]
    return [*moments, Moment("after_init", always)] if every else moments


_MOMENTS: Final = {StateEngine.TORCH: _torch_moments, StateEngine.MEGATRON_FSDP: _megatron_fsdp_moments}


def moments_of(x: MemoryInputs, stack: Stack, every: bool) -> list[Moment]:
    """The moments of a step at which memory can peak, or `every` one that a report names."""
    return _MOMENTS.get(stack.states.engine, _contiguous_moments)(x, stack, every)
