"""Do lists hold for a run of other sizes? Every shape and every byte."""

from __future__ import annotations

from benchmarks.capture.naming import EMPTY, NotListedError, Run, shown
from planner.cost.captured.operation import Phase
from planner.spec.listed import Lists, Values


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
