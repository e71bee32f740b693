"""Which operations does a layer run, in order? Of every kind of block its own module makes the list.

A new kind of block is a dataclass in `spec/` and a module here, named in `SCANS` or chosen in `attention_of`. Left out:
the embedding and the head, which stand outside layers (`embedding_and_loss.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import ModuleType
from typing import Final

from planner.cost.operations import (
    attention,
    compressed,
    delta_net,
    experts,
    latent,
    lightning,
    mlp,
    norms,
    own_input,
    residual,
    short_convolution,
    sparse,
    sparse_blocks,
    state_space,
)
from planner.cost.operations.operation import Gemm, Operation, Run, with_something
from planner.spec.attention import Attention, AttentionKind
from planner.spec.layer import Layer
from planner.spec.mixers import DeltaNet, LightningAttention, ShortConvolution, StateSpace

# Of mixers in attention's place: `operations`, seconds between the projections, FLOPs.
SCANS: Final[dict[type[StateSpace], ModuleType]] = {
    StateSpace: state_space,
    DeltaNet: delta_net,
    LightningAttention: lightning,
    ShortConvolution: short_convolution,
}


def attention_of(a: Attention) -> ModuleType:
    """The module of a kind of attention."""
    if a.compression is not None:
        return compressed
    return latent if a.kind is AttentionKind.MLA else attention


def gathering_of(a: Attention) -> ModuleType:
    """The module of the kernels that gather keys for sparse attention."""
    return sparse_blocks if a.chooses_blocks else sparse


def layer_operations(layer: Layer, run: Run) -> tuple[Operation, ...]:
    """Operations of a layer in order of execution, as a stack runs them; those of both blocks where it has two."""
    if layer.then is not None:
        return tuple(op for block in layer.blocks for op in layer_operations(block, run))
    a, s, constants = layer.attention, layer.state_space, layer.multiplied
    found = [*residual.operations(layer, run), *norms.operations(layer, run)]
    if s is not None:
        found += SCANS[type(s)].operations(s, run, layer.mixes_twice)
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
