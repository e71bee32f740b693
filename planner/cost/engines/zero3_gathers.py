"""In how many messages does DeepSpeed's ZeRO-3 gather weights and scatter gradients, and how often?

Source: DeepSpeed 0.19.8 runtime/zero/partitioned_param_coordinator.py (fetch_sub_module, __params_to_release) and
stage3.py (reduce_independent_p_g_buckets_and_remove_grads). A module is gathered when it is due, or ahead of that by
the module before. Left out: that the first prefetches of a pass put small modules together until
`stage3_max_live_parameters` are held, from where on each gathers what the last one freed; persistent parameters
that an update changed, under 0.01 % of a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.cost.adapters import linear_layers
from planner.cost.operations.lists import layer_gemms
from planner.cost.operations.operation import Shard
from planner.spec.layer import Layer
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.stack.engines import DeepSpeed

Array = NDArray[np.float64]


class Module(NamedTuple):
    """Parameters of a linear layer on ranks that tensor parallelism divides (k,), how many in a row, an expert's?"""

    size: Array
    repeats: int
    expert: bool
    used: float = 1.0  # of its weights, on average by a token


@dataclass(frozen=True)
class Fetches:
    """Of one micro-batch, per distinct sharding (k,).

    `gather`: all weights once [s]; `scatter`: all gradients [s]; `shares` (2, k, J): of `gather`, and of the products
    under which it is prefetched; first those of modules so small that several are fetched ahead. `again`: gathers for
    the backward pass over `gather`; `third`: what gathers more where all layers are recomputed.
    """

    gather: Array
    scatter: Array
    shares: Array
    again: Array
    third: Array

    def take(self, rows: NDArray[np.intp]) -> Fetches:
        """Those of some shardings, in an order of their own."""
        return Fetches(
            self.gather[rows], self.scatter[rows], self.shares[:, rows], self.again[rows], self.third[rows]
        )


def module_settings(stack: Stack) -> DeepSpeed | None:
    """Settings of an engine whose stage 3 gathers one linear layer after the other; None for others."""
    return stack.engine if isinstance(stack.engine, DeepSpeed) else None


def modules_of(layer: Layer, problem: Problem, t: Array) -> list[Module]:
    """Linear layers of one layer in order of execution, those that stay gathered left out; experts one by one."""
    found, settings = [], module_settings(problem.stack)
    assert settings is not None, "its modules are gathered one by one"
    for gemm in layer_gemms(layer, problem.model.hidden):
        for wide in gemm.outputs(not gemm.expert and linear_layers(gemm, problem.stack) == 1):
            if wide * gemm.in_features >= settings.persistent_elements:
                size = wide * gemm.in_features / (1.0 if gemm.shard is Shard.NONE or gemm.expert else t)
                used = gemm.rows_per_token / gemm.groups
                found.append(Module(size * np.ones(len(t)), gemm.groups, gemm.expert, used))
    return found


def released(modules: list[Module], reuse: float) -> list[Array]:
    """Where a module's weights are freed between a layer's recomputation and its backward pass [0 or 1].

    They are where `reuse` parameters (stage3_max_reuse_distance) are used in between: those behind it in the layer,
    in either pass.
    """
    behind: Array | float = 0.0
    found = []
    for module in reversed(modules):
        found.append((2.0 * (behind + (module.repeats - 1) / 2 * module.size) >= reuse).astype(float))
        behind = behind + module.repeats * module.size
    return found[::-1]


def prefetch_blocked(modules: list[Module], live: float, prefetched: float = math.inf) -> list[Array]:
    """Where a module's weights wait until it is due: the one before holds `live` parameters by itself
    (stage3_max_live_parameters), so that nothing is prefetched under it, or the most `prefetched` are none
    (stage3_prefetch_bucket_size) [0 or 1]."""
    before = [*modules[-1:], *modules[:-1]]
    return [((module.size >= live) | (prefetched <= 0)).astype(float) for module in before]


def computed_meanwhile(modules: list[Module], late: list[Array]) -> list[Array]:
    """Weights that are used while a module's own are prefetched, a measure of the time of products: those of the
    module before, of which `late` ones let none be prefetched [parameters]."""
    before = [
        one if one.repeats > 1 else last
        for one, last in zip(modules, [*modules[-1:], *modules[:-1]], strict=True)
    ]
    return [
        (1.0 - waits) * last.repeats * last.used * last.size for last, waits in zip(before, late, strict=True)
    ]


def turning_share(parameters: Array, reuse: float, recomputed: bool) -> Array:
    """Share of the weights still gathered from the forward pass when a backward pass asks for them [1].

    The last `reuse` parameters used: each counts there and back, under recomputation once more.
    """
    return np.minimum(reuse / (3.0 if recomputed else 2.0) / np.maximum(parameters, 1.0), 1.0)


def reductions(parameters: Array, modules: Array, bucket: float) -> Array:
    """Reduce-scatters of a backward pass: one per full bucket of `bucket` elements, or module larger than it [1]."""
    return np.clip(parameters / max(bucket, 1.0), 1.0, np.maximum(modules, 1.0))
