"""What do transformers' models run? Lists of operations in symbols, for every form of a model in the catalog.

    python -m benchmarks.capture_operations [--families qwen3,llama] [--check [--every]] [--out FOLDER]

Each form is run twice on fake tensors, with few layers and sizes that are products of different primes; a number that
both runs have in one place is written as the product of symbols that gives both. Needs the extra `dryrun`. Left out:
forms whose two runs do not do the same, and numbers that no symbols give, which are told.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from importlib.metadata import version
from itertools import combinations_with_replacement, product
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

import planner
from planner.catalog.load_operations import FOLDER, Tables
from planner.catalog.stack_options import (
    AUTOCAST,
    EAGER_ATTENTION,
    FOREACH,
    LIGER,
    LIGER_FAMILIES,
    NO_SYNC,
)
from planner.cost.captured.operation import Operation, Phase, Shape
from planner.dryrun.allocator.trace import Kind
from planner.dryrun.recording import Holds, Recording
from planner.dryrun.transformers.model import config_of
from planner.dryrun.transformers.recipe import Adapters, Checkpointing, Recipe, Weights
from planner.dryrun.transformers.step import passes_of
from planner.errors import PlannerError
from planner.spec.layer import Layer
from planner.spec.listed import (
    RELATIONS,
    Both,
    Change,
    Expression,
    ListedOperation,
    ListedPass,
    ListedShape,
    Lists,
    Product,
    layer_form,
    model_form,
    sizes_of,
)
from planner.spec.load_model import catalog_models, load_model
from planner.spec.model import ModelSpec

CATALOG: Final = Path(planner.__file__).parent / "catalog" / "models"
CAPABILITY: Final = (9, 0)
# Sizes of the two runs. Their ratios share no prime in a circle, so that no product of some is as one of others.
RANKS: Final = (8 * 71, 8 * 73)  # of adapters
MICRO_BATCHES: Final = (7, 11)
LENGTHS: Final = (128 * 5, 128 * 17)  # whole rows of blocks
MOST_SYMBOLS: Final = 5  # of a product
FINEST: Final = 64  # parts of a whole that factors are counted in
WINDOW: Final = "window"
BEYOND: Final = (128 * 1031, 128 * 1033)  # windows that no sequence leaves
HEAD_DIM: Final = "head_dim"
# of heads, in the classes that memory-efficient attention tells apart
WIDTHS: Final = ((8 * 5, 8 * 8), (8 * 11, 8 * 13), (8 * 19, 8 * 29))
FIELDS: Final[Mapping[str, tuple[tuple[int, int], tuple[str, ...]]]] = {
    "hidden": ((6 * 8 * 137, 15 * 8 * 151), ("hidden_size", "n_embd", "d_model")),
    "ffn": ((8 * 211, 8 * 223), (
        "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "intermediate_size_mlp",
    )),
    "heads": ((3 * 2, 5 * 3), ("num_attention_heads", "n_head", "n_heads")),
    "kv_heads": ((3, 5), ("num_key_value_heads", "num_kv_heads")),
    HEAD_DIM: (WIDTHS[1], ("head_dim",)),
    "vocab": ((8 * 39989, 8 * 40009), ("vocab_size",)),
    "expert_ffn": ((8 * 59, 8 * 61), ("moe_intermediate_size",)),
    "experts": ((19, 23), ("num_experts", "n_routed_experts", "num_local_experts")),
    "top_k": ((2, 7), ("num_experts_per_tok",)),
    "shared_ffn": ((8 * 41, 8 * 43), ("shared_expert_intermediate_size",)),
    "q_rank": ((8 * 29, 8 * 31), ("q_lora_rank",)),
    "kv_rank": ((8 * 17, 8 * 19), ("kv_lora_rank",)),
    WINDOW: ((8 * 47, 8 * 53), ("sliding_window",)),
    "positions": ((8 * 257, 8 * 263), ("n_positions", "max_position_embeddings")),
}  # fmt: skip
PROJECTED: Final = "word_embed_proj_dim"
LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers")
OF_EACH: Final = ("layer_types", "mlp_layer_types")
FEWEST: Final = 3
MOST: Final = 14
STACK: Final = "transformers-2026"
IDLE: Final = (FOREACH, NO_SYNC)  # options that change nothing of the passes
UNSHARDED: Final = (AUTOCAST,)  # that change nothing where weights are sharded (FSDP2's MixedPrecisionPolicy)
Variant = tuple[tuple[str, ...], bool, bool]
"""Options of the stack, whether adapters alone are trained, and whether layers are run again."""
VARIANTS: Final[tuple[Variant, ...]] = tuple(
    (options, adapters, again)
    for options, adapters in (
        ((), False), ((AUTOCAST,), False), ((), True), ((EAGER_ATTENTION,), False),
        ((AUTOCAST, EAGER_ATTENTION), False), ((LIGER,), False), ((LIGER,), True), ((AUTOCAST, LIGER), False),
    )
    for again in (False, True)
)  # fmt: skip


class NotListedError(Exception):
    """A form that cannot be written as a list, and why."""


def sized(config: Mapping[str, Any], way: int, layers: int, beyond: bool) -> dict[str, Any]:
    """A configuration with the sizes of one of the two runs; `beyond`: its windows are as long as sequences."""
    found = dict(config)
    own = dict(FIELDS) | {HEAD_DIM: (WIDTHS[width_class(read_model(config))], FIELDS[HEAD_DIM][1])}
    for sizes, names in own.values():
        for name in names:
            if isinstance(found.get(name), int) and found[name] != 1:
                found[name] = sizes[way]
    for name in FIELDS["experts"][1]:
        if found.get("n_group") and isinstance(found.get(name), int):
            found[name] *= found["n_group"]
    heads = next((found[name] for name in FIELDS["heads"][1] if found.get(name)), None)
    same = [config.get(FIELDS[of][1][0]) for of in ("heads", "kv_heads")]
    if same[0] is not None and same[0] == same[1]:
        found["num_key_value_heads"] = heads
    if config.get("head_dim") is None and heads and "qk_nope_head_dim" not in config:
        width = own[HEAD_DIM][0][way] * heads
        for name in FIELDS["hidden"][1]:
            if found.get(name) is not None:
                found[name] = width
    if config.get(PROJECTED) and config[PROJECTED] == config.get(
        "hidden_size"
    ):  # no projection of the embedding
        found[PROJECTED] = found.get("hidden_size")
    return short(found, layers, beyond, way)


def width_class(model: ModelSpec) -> int:
    """Which of `WIDTHS` a model's heads belong to."""
    widest = max((one.head_dim for one in model.attentions), default=0)
    return sum(widest > most for most in (64, 128))


def short(config: Mapping[str, Any], layers: int, beyond: bool, way: int = 0) -> dict[str, Any]:
    """A configuration with so many layers, its windows within the sequences of a run or `beyond` them."""
    found = dict(config)
    for name in FIELDS[WINDOW][1]:
        if isinstance(found.get(name), int):
            found[name] = (BEYOND if beyond else FIELDS[WINDOW][0])[way]
    for name in LAYERS:
        if name in found:
            found[name] = layers
    for name in OF_EACH:
        if found.get(name):
            found[name] = found[name][:layers]
    return found


def read_model(config: Mapping[str, Any]) -> ModelSpec:
    """As planner reads it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return load_model(folder)


def enough_layers(model: ModelSpec) -> int:
    """So few that every kind has one which is neither the first nor the last, as far as the model has."""
    kinds = model.layer_kind_of
    for count in range(FEWEST, min(model.num_layers, MOST) + 1):
        if set(kinds[1 : count - 1]) == set(kinds[1:-1]) and set(kinds[:count]) == set(kinds):
            return count
    return min(model.num_layers, MOST)


@dataclass(frozen=True)
class Run:
    """One of the two runs: what ran, and the sizes of all symbols by kind of layer, None outside of them."""

    recording: Recording
    model: ModelSpec
    sizes: Mapping[Layer | None, Mapping[str, float]]


def config_of_model(name: str) -> dict[str, Any]:
    """The configuration of a model of the catalog."""
    found: dict[str, Any] = json.loads((CATALOG / name / "config.json").read_text(encoding="utf-8"))
    return found


def software() -> dict[str, str]:
    """The releases that are run."""
    return {name: version(name).partition("+")[0] for name in ("torch", "transformers", "peft")}


def run_of(config: Mapping[str, Any], way: int, variant: Variant) -> Run:
    """Run a step of a form in one variant."""
    options, adapters, again = variant
    recipe = Recipe(
        config, "a form", MICRO_BATCHES[way], LENGTHS[way],
        weights=Weights.AMP_BF16 if AUTOCAST in options else Weights.BF16,
        attention="eager" if EAGER_ATTENTION in options else "sdpa", liger=LIGER in options,
        checkpointing=Checkpointing.NON_REENTRANT if again else Checkpointing.NONE,
        adapters=Adapters(RANKS[way]) if adapters else None,
    )  # fmt: skip
    recording = passes_of(recipe, config_of(recipe), CAPABILITY)
    model = read_model(config)
    rank = RANKS[way] if adapters else 0
    return Run(
        recording, model,
        {kind: sizes_of(model, kind, MICRO_BATCHES[way], LENGTHS[way], rank) for kind in (None, *model.layer_kinds)},
    )  # fmt: skip


@dataclass
class Part:
    """A stretch of a step: operations, and changes of memory by (bytes, sign, cast weights)."""

    where: int | None
    phase: Phase
    operations: list[Operation]
    changes: list[tuple[int, int, bool]]
    births: list[int]


_LAYER: Final = re.compile(r"^[^0-9]*?\.(\d+)(?=\.|$)")


def parts_of(run: Run) -> list[Part]:
    """The passes of a step, cut where it goes from one layer to another; `where`: the layer, -1 before all of
    them, None behind."""
    recording, count = run.recording, run.model.num_layers
    what, blocks = recording.trace.what, recording.trace.blocks
    size = {int(block): int(asked) for asked, block in zip(what, blocks, strict=True) if asked >= 0}
    begin = next(i for i, one in enumerate(recording.operations) if one.first >= recording.first_step)
    gone = set(blocks[what == Kind.FREE].tolist())  # what multiplies matrices keeps its workspace for good
    found: list[Part] = []
    where: int | None = -1
    phase = Phase.FORWARD
    for i, one in enumerate(recording.operations[begin:], begin):
        if one.phase is not phase:
            phase, where = one.phase, None
        at = _LAYER.search(one.module)
        if at is not None:
            where = int(at[1])
        elif one.module and phase is Phase.FORWARD and where == count - 1:
            where = None
        elif one.module and phase is Phase.BACKWARD and where == 0:
            where = -1
        if not found or (found[-1].where, found[-1].phase) != (where, phase):
            found.append(Part(where, phase, [], [], []))
        part = found[-1]
        part.operations.append(one)
        rest = recording.operations[i + 1 : i + 2]
        end = rest[0].first if rest else recording.end
        events = [e for e in range(one.first, end) if what[e] >= Kind.FREE]
        # blocks that come to their end together do so in any order
        for event in sorted(events, key=lambda e: (0, e) if what[e] >= 0 else (1, int(blocks[e]))):
            block = int(blocks[event])
            kind = recording.kinds.get(block)
            if kind is Holds.GRADIENTS:
                part.births += [len(part.changes)] if what[event] >= 0 else []
            elif kind is not Holds.WORKSPACE or block in gone:
                part.changes.append((size[block], 1 if what[event] >= 0 else -1, kind is Holds.CAST))
    return found


class Namer:
    """Writes pairs of numbers, one of each run, as expressions of symbols."""

    def __init__(self, sizes: Sequence[Mapping[str, float]]) -> None:
        symbols = [one for one in sizes[0] if all(of[one] for of in sizes) and sizes[0][one] != sizes[1][one]]
        self.products = [
            found for count in range(MOST_SYMBOLS + 1) for found in combinations_with_replacement(symbols, count)
            if all(times <= 2 for times in Counter(found).values())
        ]  # fmt: skip
        self.values = [
            np.array([prod(int(of[symbol]) for symbol in one) for one in self.products], dtype=object)
            for of in sizes
        ]
        self.known: dict[tuple[int, int], Expression] = {}
        self.few = [i for i, one in enumerate(self.products) if len(one) <= 3]

    def named(self, pair: tuple[int, int]) -> Expression:
        """The expression of a pair. Raises `NotListedError`."""
        if pair not in self.known:
            self.known[pair] = self._named(pair)
        return self.known[pair]

    def _named(self, pair: tuple[int, int]) -> Expression:
        found = self._product(pair)
        if found is not None:
            return (found,)
        for factor in (1, 2, 4, -1):
            for i in self.few:
                rest = tuple(n - factor * int(of[i]) for n, of in zip(pair, self.values, strict=True))
                if min(rest) > 0 and (other := self._product(rest)) is not None:
                    return other, Product(float(factor), self.products[i])
        raise NotListedError(f"{pair} is no sum of products of symbols")

    def _product(self, pair: Sequence[int]) -> Product | None:
        if not any(pair):
            return Product(0.0, ())
        fits = np.flatnonzero(pair[0] * self.values[1] == pair[1] * self.values[0])
        for i in fits:
            factor = Fraction(int(pair[0]), int(self.values[0][i]))
            if FINEST % factor.denominator == 0 and (len(self.products[i]) or factor.denominator == 1):
                return Product(float(factor), self.products[i])
        return None


@lru_cache(maxsize=16)
def namer_of(*sizes: tuple[tuple[str, float], ...]) -> Namer:
    """One for the sizes of two runs."""
    return Namer([dict(one) for one in sizes])


def listed_pass(parts: Sequence[Part], namer: Namer, table: Tables) -> ListedPass:
    """One part of a step, of both runs, in symbols."""
    first, second = parts
    if [one.name for one in first.operations] != [one.name for one in second.operations]:
        raise NotListedError("the two runs do not do the same")
    if [rest for _, *rest in first.changes] != [rest for _, *rest in second.changes]:
        raise NotListedError("the two runs do not keep the same")

    def shape(pair: tuple[Shape, Shape]) -> ListedShape:
        one, other = pair
        if len(one[0]) != len(other[0]):
            raise NotListedError("tensors of the two runs differ in dimensions")
        return ListedShape(
            tuple(table.expression(namer.named(dims)) for dims in zip(one[0], other[0], strict=True)), one[1]
        )

    operations = []
    for one, other in zip(first.operations, second.operations, strict=True):
        if (len(one.taken), len(one.given), one.flags) != (len(other.taken), len(other.given), other.flags):
            raise NotListedError(f"{one.name} differs between the two runs")
        operations.append(table.operation(ListedOperation(
            one.name, tuple(map(shape, zip(one.taken, other.taken, strict=True))),
            tuple(map(shape, zip(one.given, other.given, strict=True))), one.flags, one.alike and other.alike,
            one.host.views, one.host.modules, one.host.by_autograd,
        )))  # fmt: skip
    changes = tuple(
        Change(table.expression(namer.named((one, other))), sign, cast)
        for (one, sign, cast), (other, *_) in zip(first.changes, second.changes, strict=True)
    )
    return ListedPass(tuple(operations), changes, min(first.births, default=len(changes)))


def shown(model: ModelSpec) -> dict[int, Layer]:
    """The layers that stand for a form each, by number: of its most frequent kind one in the middle of those which are
    neither the first nor the last."""
    found: dict[str, tuple[int, Layer]] = {}
    number = Counter(model.layer_kind_of)
    for kind in sorted(number, key=lambda kind: number[kind]):
        alike = [i for i, own in enumerate(model.layer_kind_of) if own == kind]
        inner = [i for i in alike if 0 < i < model.num_layers - 1]
        layer = model.layer_kinds[kind]
        found[layer_form(layer, LENGTHS[0])] = (inner[len(inner) // 2] if inner else alike[0]), layer
    return dict(found.values())


def lists_of(runs: Sequence[Run], table: Tables, parted: bool) -> Lists:
    """Both runs of a form as lists; `parted`: is the loss made part by part? It is not listed then."""
    found = [parts_of(run) for run in runs]
    if [(one.where, one.phase) for one in found[0]] != [(one.where, one.phase) for one in found[1]]:
        raise NotListedError("the two runs go through their layers in different ways")
    pairs = {(one.where, one.phase): (one, other) for one, other in zip(*found, strict=True)}
    if len(pairs) != len(found[0]):
        raise NotListedError("a pass comes to a layer twice")
    model = runs[0].model

    def both(where: int | None, layers: Sequence[Layer | None]) -> Both:
        namer = namer_of(*(tuple(run.sizes[layer].items()) for run, layer in zip(runs, layers, strict=True)))
        forward, backward = (
            listed_pass(pairs[where, phase], namer, table) if (where, phase) in pairs else EMPTY
            for phase in (Phase.FORWARD, Phase.BACKWARD)
        )
        return Both(forward, backward)

    layers: dict[str, Both] = {}
    for at, layer in shown(model).items():
        layers[layer_form(layer, LENGTHS[0])] = both(at, [run.model.layers[at] for run in runs])
    # a loss part by part has as many parts as sizes say
    before, behind = (
        Both(EMPTY, EMPTY) if where is None and parted else both(where, (None, None)) for where in (-1, None)
    )
    return Lists(tuple(table.expressions), tuple(table.operations), before, layers, behind)


EMPTY: Final = ListedPass((), (), 0)


def check(lists: Lists, run: Run) -> None:
    """Hold lists against a third run, of the sizes that the model itself has. Raises `NotListedError`."""
    found = {(one.where, one.phase): one for one in parts_of(run)}
    stand = shown(run.model)
    for (where, phase), part in found.items():
        layer = run.model.layers[where] if where is not None and where >= 0 else None
        both = (
            lists.layers[layer_form(layer, LENGTHS[0])]
            if layer is not None
            else lists.before
            if where == -1
            else lists.behind
        )
        one = both.forward if phase is Phase.FORWARD else both.backward
        values = [sum(term.of(run.sizes[layer]) for term in terms) for terms in lists.expressions]
        if (where is None and both.forward is EMPTY) or not (where in (None, -1) or where in stand):
            continue  # what comes first or last in a pass may do more
        told = f"{phase} of layer {where}" if layer is not None else f"{phase} outside of layers"
        if [lists.operations[number].name for number in one.operations] != [
            own.name for own in part.operations
        ]:
            raise NotListedError(f"a third run does otherwise in the {told}")
        for number, own in zip(one.operations, part.operations, strict=True):
            each = lists.operations[number]
            for listed, shapes in ((each.taken, own.taken), (each.given, own.given)):
                if [tuple(values[dim] for dim in dims) for dims, _ in listed] != [dims for dims, _ in shapes]:
                    raise NotListedError(f"{own.name} of a third run has other sizes in the {told}")
        if [(values[size], *rest) for size, *rest in one.changes] != part.changes:
            raise NotListedError(f"a third run keeps otherwise in the {told}")


@dataclass(frozen=True)
class Form:
    """A model of the catalog that has a form, its configuration, and whether windows are `beyond` sequences."""

    name: str
    config: Mapping[str, Any]
    beyond: bool

    @property
    def layers(self) -> int:
        """As few of them as show all kinds."""
        return enough_layers(read_model(self.config))


def captured(one: Form, variant: Variant, table: Tables, checked: bool) -> Lists:
    """The lists of a form in one variant, held against a third run where they are `checked`. Raises
    `NotListedError`."""
    try:
        runs = [run_of(sized(one.config, way, one.layers, one.beyond), way, variant) for way in (0, 1)]
        lists = lists_of(runs, table, parted=LIGER in variant[0])
        whole = read_model(short(one.config, read_model(one.config).num_layers, one.beyond))
        if {layer_form(layer, LENGTHS[0]) for layer in whole.layer_kinds} - set(lists.layers):
            raise NotListedError(f"{one.layers} layers are not all kinds that it has")
        if checked:
            check(lists, run_of(short(one.config, one.layers, one.beyond), 0, variant))
        return lists
    except (PlannerError, NotImplementedError) as error:
        raise NotListedError(f"it does not run: {error}") from error


def forms_of(family: str) -> dict[str, Form]:
    """By form of a family's models in the catalog, with tied embeddings and without, the first that has it."""
    found: dict[str, Form] = {}
    for name in catalog_models():
        if load_model(name).family != family:
            continue
        for tied, beyond in product((False, True), (False, True)):
            config = config_of_model(name) | {"tie_word_embeddings": tied}
            model = read_model(short(config, load_model(name).num_layers, beyond))
            found.setdefault(model_form(model, LENGTHS[0]), Form(name, config, beyond))
    return found


def holding(one: Form) -> list[str]:
    """Relations between sizes that hold in both runs of a form, so that its lists hold where they do alone."""
    models = [read_model(sized(one.config, way, one.layers, one.beyond)) for way in (0, 1)]
    sizes = [sizes_of(model, None, MICRO_BATCHES[0], LENGTHS[0]) for model in models]
    return [name for name, holds in RELATIONS.items() if all(map(holds, sizes))]


def captured_family(family: str, told: Callable[[str], None]) -> dict[str, Any]:
    """All forms of a family in all variants, as the shipped file has them; what cannot be listed is told."""
    forms, table = {}, Tables()
    idle = [*IDLE, *(() if family in LIGER_FAMILIES else (LIGER,))]
    known: dict[tuple[str, Variant], Lists] = {}  # by layers alone, which ties leave as they are
    for found, one in forms_of(family).items():
        variants, layers = [], found.split(") ", 1)[1]
        ends = dict[tuple[tuple[str, ...], bool], Lists]()
        for variant in VARIANTS:
            options, adapters, again = variant
            if LIGER in options and family not in LIGER_FAMILIES:
                continue
            twin = known.get((layers, variant))
            try:
                if twin is None or not again:
                    lists = captured(one, variant, table, twin is None)
                else:
                    lists = replace(
                        twin, before=ends[options, adapters].before, behind=ends[options, adapters].behind
                    )
            except (NotListedError, KeyError) as error:
                told(f"{one.name} {options} adapters={adapters} recomputed={again}: {error}")
                continue
            known.setdefault((layers, variant), lists)
            ends.setdefault((options, adapters), lists)
            keys = {"options": list(options), "adapters": adapters, "recomputed": again}
            variants.append(keys | table.variant(lists))
        if variants:
            forms[found] = {"model": one.name, "holds": holding(one), "variants": variants}
        told(f"{one.name}: {len(variants)} variants")
    return {
        "software": software(),
        "idle": idle,
        "unsharded": list(UNSHARDED),
        **table.written(),
        "forms": forms,
    }


def checked_family(family: str, every: bool, told: Callable[[str], None]) -> int:
    """How many lists of a shipped file do not hold for a run of today's software; those are told. Of no options, or of
    `every` one."""
    document = json.loads((FOLDER / STACK / f"{family}.json").read_text(encoding="utf-8"))
    tables, wrong, held = Tables.read(document), 0, 0
    for found, one in forms_of(family).items():
        for of in document["forms"].get(found, {"variants": ()})["variants"]:
            if of["options"] and not every:
                continue
            variant = tuple(of["options"]), of["adapters"], of["recomputed"]
            try:
                check(tables.lists(of), run_of(short(one.config, one.layers, one.beyond), 0, variant))
                held += 1
            except (NotListedError, PlannerError) as error:
                told(f"{one.name} {variant}: {error}")
                wrong += 1
    told(f"{family}: {held} lists hold, {wrong} do not")
    return wrong


def main() -> None:
    """Capture families, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", type=lambda text: text.split(","), help="default: all of the catalog")
    parser.add_argument(
        "--check", action="store_true", help="hold shipped lists against runs, and write nothing"
    )
    parser.add_argument("--every", action="store_true", help="with --check, also variants by options")
    parser.add_argument("--out", type=Path, default=FOLDER / STACK)
    given = parser.parse_args()
    gc.freeze()  # what is imported is not looked through again behind every run
    if given.check:
        shipped = given.families or sorted(file.stem for file in (FOLDER / STACK).glob("*.json"))
        sys.exit(sum(checked_family(family, given.every, print) for family in shipped) > 0)
    given.out.mkdir(parents=True, exist_ok=True)
    for family in given.families or sorted({load_model(name).family for name in catalog_models()}):
        began = time.process_time()
        found = captured_family(family, lambda text: print(f"  {text}", flush=True))
        count = sum(len(one["variants"]) for one in found["forms"].values())
        seconds = time.process_time() - began
        print(f"{family}: {len(found['forms'])} forms, {count} variants, {seconds:.0f} s", flush=True)
        if count:
            text = json.dumps(found, separators=(",", ":"))
            (given.out / f"{family}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
