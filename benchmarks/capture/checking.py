"""Do lists hold for a run of other sizes? Every shape and every byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from benchmarks.capture.naming import EMPTY, NotListedError, Run, shown
from planner.catalog.load_operations import Tables
from planner.cost.captured.operation import Phase
from planner.errors import PlannerError
from planner.spec.listed import Lists, Values

WAYS: Final = ("options", "adapters", "recomputed", "tensor")


def count_wrong(
    document: dict[str, Any],
    forms: Iterable[str],
    run: Callable[[str, dict[str, Any]], Run | None],
    told: Callable[[str], None],
) -> int:
    """How many lists of a file do not hold for a run of today's software; those are told. `run`: of a form in a
    variant as the file names it, none where it is not asked for."""
    tables, wrong, held = Tables.read(document), 0, 0
    known = document["forms"]
    asked = [form for form in forms if form in known]
    for form, of in ((one, way) for one in asked for way in known[one]["variants"]):
        try:
            found = run(form, of)
            if found is not None:
                check(tables.lists(of), found)
                held += 1
        except (NotListedError, PlannerError) as error:
            way = " ".join(f"{key}={of[key]}" for key in WAYS if key in of)
            told(f"{known[form]['model']} {way}: {error}")
            wrong += 1
    told(f"{held} lists hold, {wrong} do not")
    return wrong


def check(lists: Lists, run: Run) -> None:
    """Hold lists against a third run, of the sizes that the model itself has. Raises `NotListedError`."""
    found = {(one.where, one.phase): one for one in run.parts}
    stand = shown(run)
    for (where, phase), part in found.items():
        layer = run.model.layers[where] if where is not None and where >= 0 else None
        both = (
            lists.layers[run.form(layer)]
            if layer is not None
            else lists.before
            if where == -1
            else lists.behind
        )
        one = both.forward if phase is Phase.FORWARD else both.backward
        values = Values(lists.expressions, run.sizes(layer))
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
