"""How are layers of gated delta nets written in Megatron-LM's arguments and read from them?

They stand in for the self-attention of a GPT's layers: --experimental-attention-variant gdn, and for which
--linear-attention-freq. Source: Megatron-LM megatron/training/arguments.py, core/transformer/transformer_config.py,
core/ssm/gated_delta_net, core/models/gpt/experimental_attention_variant_module_specs.py, main of 2026-08. Left out:
earlier releases; the second variant (gdn2); delta nets in a --hybrid-layer-pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from planner.errors import InputError
from planner.frameworks.megatron.given import Arguments, Option
from planner.frameworks.megatron.hybrid import OWN_LAYERS
from planner.frameworks.megatron.sparse import NAME as SPARSE
from planner.frameworks.megatron.sparse import VARIANT, is_sparse
from planner.frameworks.refuse import unstated
from planner.spec.mixers import DeltaNet
from planner.spec.model import ModelSpec

FREQUENCY: Final = "--linear-attention-freq"
NAMES: Final = ("gdn", "gated_delta_net")  # the second is an older spelling
CHUNK: Final = 64  # of GatedDeltaNet, which no argument changes
_refuse: Final = partial(unstated, f"Megatron-LM's {VARIANT}", OWN_LAYERS)


def check_delta_nets(model: ModelSpec) -> None:
    """Raise `UnsupportedError` for gated delta nets that the arguments cannot state."""
    nets = set(model.delta_nets)
    if model.mambas or len(nets) > 1:
        raise _refuse("delta nets that differ between layers, or beside Mamba-2", model.name)
    net = nets.pop()
    if net.chunk != CHUNK or net.conv_bias or net.bias:
        given = f"chunks of {net.chunk}, convolution bias {net.conv_bias}, projection bias {net.bias}"
        raise _refuse(f"delta nets with biases, or chunks of other than {CHUNK} tokens", given)


def delta_options(model: ModelSpec, pattern: Callable[[list[int]], str]) -> list[Option]:
    """Which layers are gated delta nets, and their dimensions; `pattern` writes a list of 0 and 1."""
    net = model.delta_nets[0]
    return [
        (VARIANT, NAMES[0]),
        (FREQUENCY, pattern([int(layer.state_space is not None) for layer in model.layers])),
        ("--linear-num-value-heads", str(net.heads)),
        ("--linear-value-head-dim", str(net.head_dim)),
        ("--linear-num-key-heads", str(net.groups)),
        ("--linear-key-head-dim", str(net.state)),
        ("--linear-conv-kernel-dim", str(net.conv)),
    ]


def notes(model: ModelSpec) -> list[str]:
    """What a launch of gated delta nets needs beside Megatron-LM."""
    return ["flash-linear-attention: its kernels must be installed"] if model.delta_nets else []


def delta_net_in(a: Arguments) -> DeltaNet | None:
    """The gated delta net that the arguments state; None without one. Raises `InputError`."""
    if not a.has(VARIANT):
        if a.has(FREQUENCY):
            raise InputError(f"{FREQUENCY} must come with {VARIANT}", "none", f"add {VARIANT} {NAMES[0]}")
        return None
    variant = a.word(VARIANT, "")
    if is_sparse(a):
        return None
    if variant not in NAMES:
        must = f"{VARIANT} must be {NAMES[0]} or {SPARSE}: planner reads no other sparse or linear attention"
        raise InputError(must, variant, "describe the model by a config.json, if planner knows it")
    return DeltaNet(
        heads=a.positive("--linear-num-value-heads", 32),
        head_dim=a.positive("--linear-value-head-dim", 128),
        state=a.positive("--linear-key-head-dim", 128),
        groups=a.positive("--linear-num-key-heads", 16),
        conv=a.positive("--linear-conv-kernel-dim", 4),
    )


def delta_layers_in(a: Arguments, layers: int, pattern: Callable[[str, int], list[int]]) -> list[bool]:
    """Which layers are gated delta nets: all but every N-th, or a list. Raises `InputError`."""
    if not a.has(VARIANT) or is_sparse(a):
        return [False] * layers
    text = a.word(FREQUENCY, "").strip("\"' ")
    if not text:
        raise InputError(f"{VARIANT} must come with {FREQUENCY}", "none", f"add {FREQUENCY} 4")
    if text.isdecimal():
        every = a.positive(FREQUENCY, 4)
        return [(i + 1) % every > 0 for i in range(layers)]
    return [bool(flag) for flag in pattern(text, layers)]
