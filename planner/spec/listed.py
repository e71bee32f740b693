"""What does software run of a model, as lists of operations that were read off the software?

One list for each kind of layer and pass, and for what lies before and behind the layers, in symbols: the same lists
serve every size of a model's form. Left out: how they are captured (`benchmarks/capture_operations.py`), and what they
cost (`cost/captured/`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any, Final, NamedTuple

from planner.spec.config import Recompute
from planner.spec.kernel_space import masked_space, padded_width
from planner.spec.layer import Layer
from planner.spec.machine.host import HostRates
from planner.spec.model import ModelSpec

Sizes = Mapping[str, float]
"""By symbol: how many."""

RUN_BY: Final = ("transformers", "torchtitan", "torch")  # whose releases say what was run
WIDTHS: Final = (64, 128, 10**9)  # of heads that memory-efficient attention tells apart
HALF: Final = 2  # bytes of a number in 16 bits
_CHOICE: Final = re.compile(
    r"^(?!classifier|summary).*(act|activation|activation_function|drop\w*|router_logits)$"
)
RANK: Final = "r"  # symbols, of `sizes_of`
EXPERT_WIDTH: Final = "g"
DERIVED: Final = ("m", "i", "j", "U", "Y", "S")  # symbols of sizes that follow from others
MOST_ALIKE: Final = 2  # numbers from here on make no other list


class Product(NamedTuple):
    """`factor` times symbols, each as often as it stands there."""

    factor: float
    symbols: tuple[str, ...]

    def of(self, sizes: Sizes) -> float:
        """Its value."""
        return self.factor * prod(sizes[symbol] for symbol in self.symbols)


Expression = tuple[Product, ...]
"""A sum."""


class Values(dict[int, float]):
    """What expressions come to for some sizes, by number, each worked out when it is asked for."""

    def __init__(self, expressions: Sequence[Expression], sizes: Sizes) -> None:
        super().__init__()
        self.expressions, self.sizes = expressions, sizes

    def __missing__(self, number: int) -> float:
        found = self[number] = sum(term.of(self.sizes) for term in self.expressions[number])
        return found


class ListedShape(NamedTuple):
    """A tensor: the numbers of the expressions of its dimensions, and its number format."""

    dims: tuple[int, ...]
    dtype: str


class ListedOperation(NamedTuple):
    """An operation of PyTorch as `cost.captured.operation.Operation` has it, in symbols; `views`, `modules`,
    `by_autograd`: what the host does before it."""

    name: str
    taken: tuple[ListedShape, ...]
    given: tuple[ListedShape, ...]
    flags: tuple[bool, ...]
    alike: bool
    views: int
    modules: int
    by_autograd: bool


class Change(NamedTuple):
    """Memory behind the operation before it: `size`, the number of an expression [bytes], comes or goes (-1); `cast`:
    does it hold weights as autocast has them in another format, which sharded ones need not?"""

    size: int
    sign: int
    cast: bool = False


@dataclass(frozen=True)
class ListedPass:
    """`operations`: numbers of the list's own, in order; `changes`: of memory, in order, without gradients that stay
    for the update; `born`: of gradients that stay, before how many of the changes the first of them comes, as many as
    there are where none does."""

    operations: tuple[int, ...]
    changes: tuple[Change, ...]
    born: int


@dataclass(frozen=True)
class Both:
    """The two passes of a part of a model."""

    forward: ListedPass
    backward: ListedPass


@dataclass(frozen=True)
class Lists:
    """Of one form of a model in one variant: what stands before all layers, each kind of layer by its form, and what
    stands behind them."""

    expressions: tuple[Expression, ...]
    operations: tuple[ListedOperation, ...]
    before: Both
    layers: Mapping[str, Both]
    behind: Both


class Variant(NamedTuple):
    """What lists are of: `options` of the stack that change what runs; `adapters`: are they alone trained;
    `recompute`: what of layers is run again; `tensor`: do several ranks divide layers by tensor parallelism?"""

    options: frozenset[str] = frozenset()
    adapters: bool = False
    recompute: Recompute = Recompute.NONE
    tensor: bool = False


ByRecompute = Mapping[Recompute, Lists]
"""Lists of one variant, by what of layers is run again: of nothing and of all at least."""


@dataclass(frozen=True)
class Listed:
    """Lists of one form of a model by variant; `idle`: options that change nothing of them, `unsharded`: that change
    nothing where weights are sharded, which are then gathered in the format of products; `host`: of the host that
    issues operations; `software`: releases that were run, by name."""

    variants: Mapping[Variant, Lists]
    idle: frozenset[str]
    unsharded: frozenset[str]
    host: HostRates
    software: Mapping[str, str]

    @property
    def releases(self) -> str:
        """The software that was run, in words."""
        return " under ".join(f"{name} {self.software[name]}" for name in RUN_BY if name in self.software)

    @cached_property
    def adapts_experts(self) -> bool:
        """Are there adapters as wide as experts? Where peft has those it adapts routers as well
        (utils/transformers_weight_conversion.py, `_MOE_TARGET_MODULE_MAPPING`)."""
        wide, ranked = self._numbers(EXPERT_WIDTH), self._numbers(RANK)
        return any(wide.intersection(dims) and ranked.intersection(dims) for dims, _ in self._shapes)

    @cached_property
    def widens_adapters(self) -> bool:
        """Are there adapters in fp32?"""
        ranked = self._numbers(RANK)
        return any(dtype == "float32" and ranked.intersection(dims) for dims, dtype in self._shapes)

    def _numbers(self, symbol: str) -> set[int]:
        """Of expressions that have a symbol."""
        tables = next(iter(self.variants.values()))
        return {
            number
            for number, terms in enumerate(tables.expressions)
            if any(symbol in one.symbols for one in terms)
        }

    @property
    def _shapes(self) -> Iterator[ListedShape]:
        """Of all tensors that operations take or give."""
        tables = next(iter(self.variants.values()))
        return (shape for one in tables.operations for shape in (*one.taken, *one.given))

    def casts(self, options: frozenset[str]) -> bool:
        """Are weights copied in the format of products where they are not sharded?"""
        return bool(options & self.unsharded)

    def of(
        self, options: frozenset[str], adapters: bool, sharded: bool, tensor: bool = False
    ) -> ByRecompute | None:
        """Those of a variant; None where any of what they must have was not captured."""
        asked = options - self.idle - (self.unsharded if sharded else frozenset())
        every = {way: Variant(asked, adapters, way, tensor) for way in Recompute}
        found = {way: self.variants[one] for way, one in every.items() if one in self.variants}
        return found if {Recompute.NONE, Recompute.FULL} <= set(found) else None


def form(value: Any) -> str:
    """What of a layer or a model decides which operations run, without sizes: fields that are not as they are by
    default, of numbers whether they are 0, 1 or more."""
    if is_dataclass(value):
        told = [
            f"{one.name}={form(getattr(value, one.name))}"
            for one in fields(value)
            if one.repr and getattr(value, one.name) not in (one.default, None, 0, False, "", ())
        ]
        return f"{type(value).__name__}({', '.join(told)})"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    return str(min(value, MOST_ALIKE))


def layer_form(layer: Layer, seq_len: int) -> str:
    """The form of a layer at a length of sequences [tokens]: a window longer than they are is none (transformers
    masking_utils.py, `_ignore_causal_mask_sdpa`). Kernels that mask one need work space by the width of heads, in
    classes."""
    found = _at_length(layer, seq_len)
    windowed = [one.attention for one in found.blocks if one.attention is not None and one.attention.window]
    widths = (next(most for most in WIDTHS if one.head_dim <= most) for one in windowed)
    return " ".join([form(found), *(f"heads to {most}" for most in widths)])


def _at_length(layer: Layer, seq_len: int) -> Layer:
    a, then = layer.attention, layer.then and _at_length(layer.then, seq_len)
    if a is not None and a.window is not None and a.window > seq_len:
        a = replace(a, window=None)
    return replace(layer, attention=a, then=then)


def model_form(model: ModelSpec, seq_len: int, family: str) -> str:
    """The same of a model: of what lies outside the layers, and of each kind of layer; `family`: which software runs
    by code of its own."""
    outside = (
        model.tied_embeddings, model.position_rows > 0, model.embedding_width != model.hidden,
        model.embedding_norm, model.final_norm, model.norm_kind.value, model.norm_bias, model.head_bias,
        model.mtp_layers, model.side_vocab > 0,
    )  # fmt: skip
    kinds = sorted({layer_form(layer, seq_len) for layer in model.layer_kinds})
    return f"{family} {outside} " + "; ".join(kinds)


def choices(config: Mapping[str, Any]) -> dict[str, str | bool]:
    """What of a configuration's fields decides which kernels run, but no size and no layer: activations by name
    (`gelu_new` is eight operations, `gelu_pytorch_tanh` one), whether there is dropout, and whether routers are trained
    by a loss of their own."""
    return {
        name: one if isinstance(one, str) else one > 0
        for name, one in config.items()
        if _CHOICE.search(name) and isinstance(one, (str, int, float))
    }


def fixed_sizes(runs: Sequence[Sizes]) -> dict[str, float]:
    """Sizes that are the same in all runs of a form: its lists hold for no others. Left out: 1, which a form tells, and
    what follows from others."""
    alike = {one: size for one, size in runs[0].items() if all(of[one] == size for of in runs)}
    return {one: size for one, size in alike.items() if size > 1 and one not in DERIVED}


# What may hold of sizes by the way in which a configuration gives them; lists captured where it did hold nowhere else.
RELATIONS: Final[Mapping[str, Callable[[Sizes], bool]]] = {
    "h = a*d": lambda sizes: sizes["h"] == sizes.get("a", 0) * sizes.get("d", 0),
    "f = 4*h": lambda sizes: sizes.get("f", 0) == 4 * sizes["h"],
}


def sizes_of(
    model: ModelSpec, layer: Layer | None, micro_batch: int, seq_len: int, rank: int = 0, tensor: int = 1
) -> Sizes:
    """Every symbol's value for one kind of layer, or for what lies outside of them: the first of each that has it.

    b: texts, s: tokens of one, x: and one more; h: width of the residual stream, o: of the embedding; v: vocabulary;
    n: rows of positions; a, k: heads, and those of keys; m: heads of a key; d, u: widths of queries and of values;
    i: of heads as kernels pad them; j: bytes of masked attention's sums (`kernel_space`); q, l, p: ranks of queries and
    keys, and the width that is rotated, U: that is not; y, z: d and k of the last attention whose d is another; w:
    window; f: width of the MLP; e, t: experts, and those of a token, B, K: their groups, and those of a token; g, c:
    width of an expert, and of the shared ones; r: rank of adapters; A, D: heads of state spaces and their width, N, G:
    width of a state and groups, T: taps, C: tokens of a chunk.

    Of `tensor` ranks that divide layers what is one's own: v, a, k, f, c; Y: how many they are; S: tokens of a text
    that they divide.
    """
    own = [block for kind in (model.layer_kinds if layer is None else (layer,)) for block in kind.blocks]
    found: dict[str, float] = {
        "b": micro_batch, "s": seq_len, "x": seq_len + 1, "h": model.hidden, "v": model.vocab / tensor, "r": rank,
        "n": model.position_rows, "o": model.embedding_width,
    }  # fmt: skip
    for block in own:
        a, moe = block.attention, block.moe
        if a is not None:
            heads = a.heads / tensor
            for name, value in (
                ("a", heads), ("k", a.kv_heads / tensor), ("d", a.head_dim), ("u", a.v_head_dim),
                ("q", a.q_lora_rank), ("l", a.kv_lora_rank), ("p", a.qk_rope_dim), ("w", a.window or 0),
                ("U", a.head_dim - a.qk_rope_dim if a.qk_rope_dim else 0), ("m", a.heads / a.kv_heads),
                ("i", padded_width(a.head_dim)),
                ("j", masked_space(micro_batch, a.heads, seq_len, seq_len, (a.head_dim, a.v_head_dim), HALF) / tensor),
            ):  # fmt: skip
                found.setdefault(name, value)
            if a.head_dim != found["d"]:
                found |= {"y": a.head_dim, "z": a.kv_heads}
        if (state := block.state_space) is not None:
            for name, value in (
                ("A", state.heads), ("D", state.head_dim), ("N", state.state), ("G", state.groups), ("T", state.conv),
                ("C", state.chunk),
            ):  # fmt: skip
                found.setdefault(name, value)
        if block.mlp is not None:
            found.setdefault("f", block.mlp.ffn / tensor)
        if moe is not None:
            for name, value in (
                ("e", moe.experts),
                ("t", moe.top_k),
                ("g", moe.expert_ffn),
                ("c", moe.shared_ffn / tensor),
                ("B", moe.groups),
                ("K", moe.top_groups),
            ):
                found.setdefault(name, value)
    return {**found, "Y": tensor, "S": seq_len / tensor}
