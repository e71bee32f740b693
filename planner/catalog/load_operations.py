"""What was captured of a stack's software? Reads `catalog/operations/STACK/FAMILY.json`, which
`benchmarks/capture_operations.py` and `capture_torchtitan.py` write.

Forms and variants of a family share tables of expressions, operations and passes. An expression is written as a sum of
products, such as `2*b*s + 8*x`; a pass as numbers: its operations, and its changes of memory, of which -1 - n takes
away what n brings; in brackets where it holds weights in another format.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from planner.catalog.load_host import load_host_rates
from planner.errors import InputError
from planner.spec.config import Recompute
from planner.spec.hf.wrappers import stated_fields
from planner.spec.job import Job
from planner.spec.listed import (
    RELATIONS,
    Both,
    Change,
    Expression,
    Listed,
    ListedOperation,
    ListedPass,
    ListedShape,
    Lists,
    Product,
    Variant,
    choices,
    model_form,
    sizes_of,
)
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.device_kernels import with_device_kernels
from planner.spec.model import ModelSpec
from planner.spec.rule import Problem
from planner.spec.stack import Stack

FOLDER: Final = Path(__file__).with_name("operations")
EVERY_FAMILY: Final = "models"  # the file of software that runs all families by the same code
RECOMPUTED: Final = {
    False: Recompute.NONE,
    "op": Recompute.SELECTIVE,
    True: Recompute.FULL,
}  # as files say it
SUM: Final = " + "
TIMES: Final = "*"
Plain = dict[str, Any]
Choices = tuple[tuple[str, str | bool], ...]


def posed(model: ModelSpec, cluster: Cluster, job: Job, stack: Stack) -> Problem:
    """A question of a stack as the devices run it, with what was read off its software."""
    runs = with_device_kernels(stack, model, cluster.accelerator, job.precision)
    return Problem(model, cluster, job, runs, operations_of(runs.base, model, job.seq_len))


def operations_of(stack: str, model: ModelSpec, seq_len: int) -> Listed | None:
    """Lists of what a stack runs of a model at a length of sequences [tokens]; None where none of its form were
    captured, or none with what its own file chooses."""
    chosen = choices(stated_fields(model.described)) if model.described else None
    return _operations_of(stack, model, seq_len, None if chosen is None else tuple(chosen.items()))


@lru_cache(maxsize=8)
def _operations_of(stack: str, model: ModelSpec, seq_len: int, chosen: Choices | None) -> Listed | None:
    """`chosen`: what a user's own file says of kernels; None of a model of the catalog."""
    families = (model.family, EVERY_FAMILY)
    files = ((family, FOLDER / stack / f"{family}.json") for family in families)
    family, file = next(((family, file) for family, file in files if file.exists()), ("", None))
    if file is None:
        return None
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        found = document["forms"].get(model_form(model, seq_len, family))
        return (
            None if found is None or not _holds(found, model, seq_len, chosen) else _listed(document, found)
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        must = f"{file.name} of {stack} must hold what was captured"
        raise InputError(must, f"{type(error).__name__}: {error}", "install planner again") from error


def _holds(form: Plain, model: ModelSpec, seq_len: int, chosen: Choices | None) -> bool:
    """Are lists of a form those of a model of it?"""
    sizes = sizes_of(model, None, 1, seq_len)
    alike = all(RELATIONS[name](sizes) for name in form["holds"])
    alike &= all(sizes.get(one) == size for one, size in form["fixed"].items())
    if chosen is None:
        return alike
    stated = dict(chosen)
    return alike and all(stated.get(name, default) == ran for name, (ran, default) in form["choices"].items())


def _listed(document: Plain, form: Plain) -> Listed:
    tables = Tables.read(document)
    variants = {
        Variant(
            frozenset(one["options"]),
            one["adapters"],
            RECOMPUTED[one["recomputed"]],
            one.get("tensor", False),
        ): tables.lists(one)
        for one in form["variants"]
    }
    idle, unsharded = (frozenset(document[name]) for name in ("idle", "unsharded"))
    return Listed(variants, idle, unsharded, load_host_rates(), document["software"])


def has_operations(stack: str) -> bool:
    """Was anything captured of a stack's software?"""
    return (FOLDER / stack).is_dir()


class Tables:
    """Expressions, operations and passes of a family, each once."""

    def __init__(self) -> None:
        self.expressions: dict[Expression, int] = {}
        self.operations: dict[ListedOperation, int] = {}
        self.passes: dict[ListedPass, int] = {}

    def expression(self, one: Expression) -> int:
        """Its number."""
        return self.expressions.setdefault(one, len(self.expressions))

    def operation(self, one: ListedOperation) -> int:
        """Its number."""
        return self.operations.setdefault(one, len(self.operations))

    @classmethod
    def read(cls, document: Plain) -> Tables:
        """Those of a file."""
        tables, formats = cls(), document["formats"]

        def shapes(numbers: list[list[int]]) -> tuple[ListedShape, ...]:
            return tuple(ListedShape(tuple(dims), formats[number]) for number, *dims in numbers)

        for text in document["expressions"]:
            tables.expression(_expression(text))
        for name, taken, given, flags, alike, views, modules, by in document["operations"]:
            tables.operation(
                ListedOperation(
                    name,
                    shapes(taken),
                    shapes(given),
                    tuple(map(bool, flags)),
                    bool(alike),
                    views,
                    modules,
                    bool(by),
                )
            )
        for operations, changes, born in document["passes"]:
            one = ListedPass(tuple(operations), tuple(map(_change, changes)), born)
            tables.passes.setdefault(one, len(tables.passes))
        return tables

    def lists(self, variant: Plain) -> Lists:
        """The lists of a variant, as `variant` wrote it."""
        passes = tuple(self.passes)

        def both(numbers: list[int]) -> Both:
            return Both(*(passes[number] for number in numbers))

        layers = {name: both(numbers) for name, numbers in variant["layers"].items()}
        return Lists(
            tuple(self.expressions),
            tuple(self.operations),
            both(variant["before"]),
            layers,
            both(variant["behind"]),
        )

    def variant(self, lists: Lists) -> Plain:
        """Lists as numbers of passes."""

        def both(one: Both) -> list[int]:
            return [self.passes.setdefault(each, len(self.passes)) for each in (one.forward, one.backward)]

        layers = {name: both(one) for name, one in lists.layers.items()}
        return {"before": both(lists.before), "layers": layers, "behind": both(lists.behind)}

    def written(self) -> Plain:
        """The tables as numbers and text."""
        formats: dict[str, int] = {}

        def shapes(some: tuple[ListedShape, ...]) -> list[list[int]]:
            return [[formats.setdefault(one.dtype, len(formats)), *one.dims] for one in some]

        operations = [
            [o.name, shapes(o.taken), shapes(o.given), [int(f) for f in o.flags], int(o.alike), o.views, o.modules,
             int(o.by_autograd)]
            for o in self.operations
        ]  # fmt: skip
        passes = [[list(one.operations), list(map(_written, one.changes)), one.born] for one in self.passes]
        return {
            "expressions": list(map(_text, self.expressions)), "formats": list(formats), "operations": operations,
            "passes": passes,
        }  # fmt: skip


def _expression(text: str) -> Expression:
    products = []
    for term in text.split(SUM):
        factor, *symbols = term.split(TIMES)
        products.append(Product(float(factor), tuple(symbols)))
    return tuple(products)


def _text(expression: Expression) -> str:
    return SUM.join(TIMES.join([f"{one.factor:g}", *one.symbols]) for one in expression)


def _change(written: int | list[int]) -> Change:
    cast = isinstance(written, list)
    n = written[0] if isinstance(written, list) else written
    return Change(-1 - n, -1, cast) if n < 0 else Change(n, 1, cast)


def _written(change: Change) -> int | list[int]:
    n = change.size if change.sign > 0 else -1 - change.size
    return [n] if change.cast else n
