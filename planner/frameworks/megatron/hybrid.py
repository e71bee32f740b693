"""How are layers of state spaces, attention, MLPs and experts written in Megatron-LM's arguments and read from them?

One letter a layer in --hybrid-layer-pattern, with | between the chunks of a pipeline: M a Mamba-2 mixer, * attention,
- an MLP, E experts. Source: Megatron-LM megatron/training/arguments.py, core/models/hybrid/hybrid_layer_allocation.py,
core/ssm/mamba_mixer.py, pretrain_hybrid.py, main of 2026-08. Left out: earlier releases, whose parser was not at hand;
gated delta nets (G), sparse attention (D), latent attention (+), multi-token prediction (/).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from planner.errors import InputError, UnsupportedError
from planner.frameworks.layout import ChunkLayers
from planner.frameworks.megatron.given import Arguments
from planner.spec.model import MOST_LAYERS, Attention, Layer, Mlp, ModelSpec, Moe, StateSpace

Option = tuple[str, ...]

PROGRAM: Final = "pretrain_hybrid.py"
RELEASES: Final = ("main-2026-08",)
SPEC: Final = ("--spec", "megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
PATTERNS: Final = ("--hybrid-layer-pattern", "--hybrid-override-pattern")
CONV, CHUNK = 4, 128  # of MambaMixer, which no argument changes
_UNKNOWN: Final = {
    "G": "gated delta nets", "D": "sparse attention", "+": "latent attention",
    "/": "multi-token prediction of a hybrid",
}  # fmt: skip


def letter_of(layer: Layer) -> str:
    """The letter of a layer that computes one thing."""
    if layer.state_space is not None:
        return "M"
    return "*" if layer.attention is not None else "-" if layer.mlp is not None else "E"


def check_hybrid(model: ModelSpec) -> None:
    """Raise `UnsupportedError` for a hybrid that the arguments cannot state."""
    for layer in model.layer_kinds:
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
    if model.mtp_layers:
        raise _refuse("multi-token prediction of a hybrid as planned", model.mtp_layers)


def _refuse(what: str, given: object) -> UnsupportedError:
    must = f"Megatron-LM's --hybrid-layer-pattern must be able to state {what}"
    return UnsupportedError(
        must, str(given), "choose DeepSpeed or Accelerate, which run transformers' own layers"
    )


def check_hybrid_release(model: ModelSpec, version: str) -> None:
    """Raise `UnsupportedError` for a release whose hybrids, of Mamba-2 or delta nets, planner does not write."""
    if model.state_spaces and version not in RELEASES:
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
    """Every layer's letter in pipeline order, with | between chunks."""
    letters, parts, start = [letter_of(layer) for layer in model.layers], [], 0
    for count in chunks:
        parts.append("".join(letters[start : start + count]))
        start += count
    return [(PATTERNS[0], "|".join(parts))]


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
    given = [name for name in PATTERNS if a.has(name)]
    if not given:
        return ()
    if len(given) > 1:
        raise InputError(
            f"{PATTERNS[0]} and {PATTERNS[1]} exclude each other", "both", f"leave {PATTERNS[1]} out"
        )
    text = a.word(given[0], "").strip("\"'")
    for letter, what in _UNKNOWN.items():
        if letter in text:
            must = f"{given[0]} must be made of M, *, -, E and |, the layers that planner models"
            raise InputError(must, f"{letter} in {text[:80]}: {what}", "plan a model without it")
    letters = text.replace("|", "")
    if not letters or not set(letters) <= set("M*-E") or len(letters) > MOST_LAYERS:
        raise InputError(
            f"{given[0]} must be 1 to {MOST_LAYERS} of M, *, -, E and |", text[:80], "write it like M-M*-"
        )
    if "M" not in letters:
        must = f"{given[0]} must have a Mamba layer: planner reads attention and MLPs as layers of GPT alone"
        raise InputError(must, text[:80], "leave it out and state --num-layers")
    return tuple(text.split("|"))


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
