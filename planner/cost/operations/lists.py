"""Which operations does a layer run, in order? Of every kind of block its own module makes the list.

A new kind of block is a dataclass in `spec/` that names its module here. Left out: the embedding and the head, which
stand outside layers (`embedding_and_loss.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType

from planner.cost.operations import experts, mlp, norms, own_input, residual, sparse, sparse_blocks
from planner.cost.operations.operation import Gemm, Operation, Run, with_something
from planner.spec.attention import Attention
from planner.spec.layer import Layer
from planner.spec.mixers import StateSpace
from planner.spec.residual import Residual


@cache
def _module(name: str) -> ModuleType:
    return import_module(f"planner.cost.operations.{name}")


def scan_of(s: StateSpace) -> ModuleType:
    """The module of a mixer in attention's place: `operations`, `seconds` between the projections, `flops`."""
    return _module(s.kind)


def attention_of(a: Attention) -> ModuleType:
    """The module of a kind of attention: `operations`."""
    return _module(a.block)


def residual_of(r: Residual) -> ModuleType:
    """The module of a way of adding to the stream: `operations` of a layer, `outer` ones and what they keep."""
    return _module(r.block)


def gathering_of(a: Attention) -> ModuleType:
    """The module of the kernels that gather keys for sparse attention."""
    return sparse_blocks if a.chooses_blocks else sparse


def layer_operations(layer: Layer, run: Run) -> tuple[Operation, ...]:
    """Operations of a layer in order of execution, as a stack runs them; those of both blocks where it has two."""
    if layer.then is not None:
        return tuple(op for block in layer.blocks for op in layer_operations(block, run))
    a, s, constants = layer.attention, layer.state_space, layer.multiplied
    found = [*residual.operations(layer, run)]
    if layer.residual is not None:
        found += residual_of(layer.residual).operations(layer.residual, layer, run)
    found += norms.operations(layer, run)
    if s is not None:
        found += scan_of(s).operations(s, run, layer.mixes_twice)
        if constants:
            found += residual.multiplied(
                run, 2.0, lambda x: s.in_width + 0.0 * x.t, residual.MULTIPLIED_LAUNCHES
            )
    if a is not None:
        found += attention_of(a).operations(a, run)
        if constants:
            keys = a.rotated_kv_heads * a.head_dim
            found += residual.multiplied(run, 2.0, lambda x: keys / x.kv_split, residual.MULTIPLIED_LAUNCHES)
    behind: tuple[Operation, ...] = ()
    if layer.mlp is not None:
        behind = mlp.operations(layer.mlp, run, constants)
    if layer.moe is not None:
        behind = experts.operations(layer.moe, run)
    found += [replace(op, second=True) for op in behind]
    if layer.side:
        found += own_input.operations(layer.side, run)
    return with_something(found)


@lru_cache(maxsize=512)
def model_operations(layer: Layer, hidden: int) -> tuple[Operation, ...]:
    """The same as far as the model alone decides: products, parameters, FLOPs."""
    return layer_operations(layer, Run(hidden))


@lru_cache(maxsize=512)
def layer_gemms(layer: Layer, hidden: int) -> tuple[Gemm, ...]:
    """The matrix products of one layer in order of execution; q, k, v fused, gate and up fused."""
    return tuple(op.product for op in model_operations(layer, hidden) if op.product is not None)
