"""How are layers of state spaces, attention, MLPs and experts written in Megatron-LM's arguments and read from them?

One letter a layer in --hybrid-layer-pattern, with | between the chunks of a pipeline: M a Mamba-2 mixer, * attention,
- an MLP, E experts; behind a / the layers of a multi-token-prediction module. Source: Megatron-LM
megatron/training/arguments.py, core/models/hybrid/hybrid_layer_allocation.py, core/ssm/mamba_mixer.py,
pretrain_hybrid.py, main of 2026-08. Left out: earlier releases, whose parser was not at hand; gated delta nets (G),
sparse attention (D), latent attention (+).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from planner.errors import InputError, UnsupportedError
from planner.frameworks.layout import ChunkLayers
from planner.frameworks.megatron.given import Arguments, Option
from planner.frameworks.refuse import unstated
from planner.spec.attention import Attention
from planner.spec.dimensions import MOST_LAYERS
from planner.spec.hf.families import facts_of
from planner.spec.layer import Layer, Mlp, Moe
from planner.spec.mixers import StateSpace
from planner.spec.model import ModelSpec

PROGRAM: Final = "pretrain_hybrid.py"
RELEASES: Final = ("main-2026-08",)
SPEC: Final = ("--spec", "megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
PATTERNS: Final = ("--hybrid-layer-pattern", "--hybrid-override-pattern")
MTP_PATTERN: Final = "--mtp-hybrid-override-pattern"  # of earlier scripts, with --mtp-num-layers
CONV, CHUNK = 4, 128  # of MambaMixer, which no argument changes
_UNKNOWN: Final = {
    "G": "gated delta nets", "D": "sparse attention", "+": "latent attention",
}  # fmt: skip
OWN_LAYERS: Final = "choose DeepSpeed or Accelerate, which run transformers' own layers"
_refuse: Final = partial(unstated, f"Megatron-LM's {PATTERNS[0]}", OWN_LAYERS)


def letter_of(layer: Layer) -> str:
    """The letter of a layer that computes one thing."""
    if layer.state_space is not None:
        return "M"
    return "*" if layer.attention is not None else "-" if layer.mlp is not None else "E"


def check_hybrid(model: ModelSpec) -> None:
    """Raise `UnsupportedError` for a hybrid that the arguments cannot state."""
    for layer in model.layer_kinds:
        if layer.mixes_twice:
            raise _refuse("attention and a state space side by side in a layer", model.name)
        if layer.sublayers > 1:
            raise _refuse("a state space and what follows it as one layer", "layers of two parts")
        if layer.norms != 1:
            raise _refuse("another number of norms than one a letter", layer.norms)
    if len(set(model.state_spaces)) > 1:
        raise _refuse("state spaces that differ between layers", model.name)
    state = model.state_spaces[0]
    if state.conv != CONV or not state.conv_bias or state.bias:
        given = f"{state.conv} taps, convolution bias {state.conv_bias}, projection bias {state.bias}"
        raise _refuse("a convolution of other than 4 taps with a bias, or biases of projections", given)


def check_hybrid_release(model: ModelSpec, version: str) -> None:
    """Raise `UnsupportedError` for a release whose hybrids, of Mamba-2 or delta nets, planner does not write; what no
    release can be told is refused elsewhere."""
    if model.state_spaces and not facts_of(model.family).traits and version not in RELEASES:
        must = f"Megatron-LM {version} must be one whose hybrids planner writes: {', '.join(RELEASES)}"
        raise UnsupportedError(must, model.name, f"choose --framework-version {RELEASES[-1]}")


def hybrid_options(model: ModelSpec) -> list[Option]:
    """Dimensions of the state spaces, and the specification of the layers. Without attention, its heads are theirs."""
    state = model.state_spaces[0]
    options: list[Option] = [
        SPEC,
        ("--mamba-num-heads", str(state.heads)),
        ("--mamba-head-dim", str(state.head_dim)),
        ("--mamba-num-groups", str(state.groups)),
        ("--mamba-state-dim", str(state.state)),
    ]
    if not model.attentions:  # must be stated, and divided by tp; no layer has any
        options += [("--num-attention-heads", str(state.heads)), ("--kv-channels", str(state.head_dim))]
    return options


def pattern_options(model: ModelSpec, chunks: ChunkLayers) -> list[Option]:
    """Every layer's letter in pipeline order, with | between chunks, then / and the letters of each module."""
    letters, parts, start = [letter_of(layer) for layer in model.layers], [], 0
    for count in chunks:
        parts.append("".join(letters[start : start + count]))
        start += count
    behind = "".join(letter_of(layer) for layer in model.mtp_block or model.layers[-1:])
    return [(PATTERNS[0], "|".join(parts) + f"/{behind}" * model.mtp_layers)]


def notes(model: ModelSpec) -> list[str]:
    """What a launch of a hybrid is not told."""
    said = []
    if any(state.chunk != CHUNK for state in model.mambas):
        said.append(f"chunks of the scan: Megatron-LM's mixer has {CHUNK} tokens, which no argument changes")
    if model.mambas:
        said.append("mamba-ssm and causal-conv1d: their kernels must be installed")
    return said


def pattern_in(a: Arguments) -> tuple[str, ...]:
    """Letters of every pipeline chunk that the arguments state; empty without a pattern. Raises `InputError`."""
    name, text = _stated(a)
    if not name:
        return ()
    main = text.split("/")[0]
    letters = main.replace("|", "")
    _check_letters(name, letters, main)
    if "M" not in letters:
        must = f"{name} must have a Mamba layer: planner reads attention and MLPs as layers of GPT alone"
        raise InputError(must, text[:80], "leave it out and state --num-layers")
    return tuple(main.split("|"))


def prediction_in(a: Arguments) -> tuple[str, int]:
    """Letters of a multi-token-prediction module and how many there are; none without them. Raises `InputError`."""
    name, text = _stated(a)
    modules = text.split("/")[1:]
    if not modules and a.has(MTP_PATTERN) and (depth := a.count("--mtp-num-layers", 0)):
        name, modules = MTP_PATTERN, [a.word(MTP_PATTERN, "").strip("\"'")] * depth
    if not modules:
        return "", 0
    if len(set(modules)) > 1:
        must = f"{name} must have the same layers in every MTP module"
        raise InputError(must, text[:80], "repeat one behind every /")
    _check_letters(name, modules[0], modules[0])
    missing = set(modules[0]) - set("".join(pattern_in(a)))
    if missing:
        must = f"{name} must have MTP modules of layers that come before them too"
        raise InputError(
            must, f"{', '.join(sorted(missing))} alone in {modules[0]}", "plan a model without them"
        )
    return modules[0], len(modules)


def _stated(a: Arguments) -> tuple[str, str]:
    """The pattern's argument and text; empty without one."""
    given = [name for name in PATTERNS if a.has(name)]
    if len(given) > 1:
        raise InputError(
            f"{PATTERNS[0]} and {PATTERNS[1]} exclude each other", "both", f"leave {PATTERNS[1]} out"
        )
    return (given[0], a.word(given[0], "").strip("\"'")) if given else ("", "")


def _check_letters(name: str, letters: str, text: str) -> None:
    for letter, what in _UNKNOWN.items():
        if letter in letters:
            must = f"{name} must be made of M, *, -, E, | and /, the layers that planner models"
            raise InputError(must, f"{letter} in {text[:80]}: {what}", "plan a model without it")
    if not letters or not set(letters) <= set("M*-E") or len(letters) > MOST_LAYERS:
        must = f"{name} must be 1 to {MOST_LAYERS} of M, *, -, E, | and /"
        raise InputError(must, text[:80], "write it like M-M*-")


def state_space_in(a: Arguments, hidden: int) -> StateSpace:
    """The state space that the arguments state; heads of twice the hidden width where their number is left out."""
    width = a.positive("--mamba-head-dim", 64)
    heads = a.positive("--mamba-num-heads", max(2 * hidden // width, 1))
    state, groups = a.positive("--mamba-state-dim", 128), a.positive("--mamba-num-groups", 8)
    return StateSpace(heads, width, state, groups, CONV, CHUNK)


def layers_in(
    letters: str,
    state: StateSpace,
    attention: Callable[[], Attention],
    mlp: Mlp,
    moe: Moe | None,
    norm_bias: bool,
) -> tuple[Layer, ...]:
    """A layer for every letter. Raises `InputError`."""
    if "E" in letters and moe is None:
        raise InputError("a pattern with E must have --num-experts", "none", "add it")
    kinds = {
        "M": Layer(None, None, None, 1, norm_bias, state_space=state),
        "-": Layer(None, mlp, None, 1, norm_bias),
    }
    if "*" in letters:
        kinds["*"] = Layer(attention(), None, None, 1, norm_bias)
    if moe is not None:
        kinds["E"] = Layer(None, None, moe, 1, norm_bias)
    return tuple(kinds[letter] for letter in letters)
