"""How much of what an axis sends is in sight: which seconds of a step do its messages add on one stage?

The step's terms are of the slowest stage; here they are of the stage whose messages are counted. Left out: which
pipeline messages wait for which, so that a rank's are in sight as far as those of the whole pipeline are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from planner.cost.exchanges import exchanges, stage_load
from planner.cost.layer import TIME_TERMS
from planner.cost.levels import layer_level
from planner.cost.model import CostModel
from planner.solve.place import Placement, messages_of, seconds_of
from planner.spec.config import ConfigTable, Schedule

# terms of the step that an axis is behind
TERM_OF: Final = {
    "tp": "tp_comm", "cp": "cp_comm", "ep": "ep_comm", "etp": "ep_comm", "pp": "pp_comm", "dp": "dp_comm",
    "dp_cp": "dp_comm", "edp": "dp_comm",
}  # fmt: skip
_OF_LAYERS: Final = ("tp_comm", "cp_comm", "ep_comm")


def with_exposed(model: CostModel, placement: Placement, time: Mapping[str, float]) -> Placement:
    """The placement with the exposed seconds of every axis that sends. `time`: terms of the step [s].

    A term of several axes is shared by their busy seconds. Where fitted factors make it longer than the bare links
    take, the links are busy as long.
    """
    stage = _layer_terms(model, placement)
    heaviest = _heaviest(model, placement)
    axes = []
    for axis in placement.axes:
        if not axis.busy:
            axes.append(axis)
            continue
        term = TERM_OF[axis.axis]
        if term in _OF_LAYERS:
            alike = sum(a.busy for a in placement.axes if TERM_OF[a.axis] == term)
            exposed = stage[term] * axis.busy / alike
        elif term == "dp_comm":
            exposed = time.get(term, 0.0) * axis.busy / heaviest
        else:
            exposed = min(time.get(term, 0.0), axis.busy)
        axes.append(replace(axis, exposed=exposed, busy=max(axis.busy, exposed)))
    return replace(placement, axes=tuple(axes))


def _layer_terms(model: CostModel, placement: Placement) -> dict[str, float]:
    """Exposed seconds of the stage's layers in a step, by term, without what is repeated."""
    config, load = placement.config, stage_load(model, placement.config, placement.stage)
    keys = ConfigTable.of([config])
    level = layer_level(model.layers, keys)
    number = np.array(load.layers, dtype=float)
    found = {name: float(number @ level.terms[:, TIME_TERMS.index(name), 0]) for name in _OF_LAYERS}
    if config.schedule in (Schedule.DUALPIPE, Schedule.DUALPIPE_V):  # their pairs hide exchanges of tokens
        hidden = float(number @ level.saved[:, 0])
        found["ep_comm"] = max(found["ep_comm"] - hidden, 0.0)
    return {name: config.num_microbatches * seconds for name, seconds in found.items()}


def _heaviest(model: CostModel, placement: Placement) -> float:
    """Busy seconds of gradients and weights where each axis has its heaviest stage, as the step's term counts them."""
    config = placement.config
    prepared = model.prepare(ConfigTable.of([config]))
    sent = [exchanges(model, config, ranks[0]) for ranks in prepared.classes.members[0] if ranks]
    total = 0.0
    for axis in placement.axes:
        if TERM_OF[axis.axis] == "dp_comm" and axis.busy:
            name = messages_of(axis.axis, placement.layout)
            own = ([e for e in stage if e.axis == name] for stage in sent)
            total += max(seconds_of(messages, axis.links, model) for messages in own)
    return total
