"""How much of what an axis sends is in sight: which seconds of a step do its messages add on one stage?

The step's terms are of the slowest stage; here they are of the stage whose messages are counted. Left out: which
pipeline messages wait for which, so that a rank's are in sight as far as those of the whole pipeline are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from planner.cost.layer_cost import COMMUNICATION, TIME_TERMS
from planner.cost.levels import layer_level
from planner.cost.messages.message import SentMessage
from planner.cost.model import CostModel
from planner.solve.place import Placement
from planner.solve.step_messages import StepMessages
from planner.spec.config import Schedule


def with_exposed(model: CostModel, placement: Placement, time: Mapping[str, float]) -> Placement:
    """The placement with the exposed seconds of every axis that sends. `time`: terms of the step [s].

    A term of several axes is shared by their busy seconds.
    """
    messages = StepMessages.of(model, placement.config)
    exposed = layer_terms(messages, placement.stage)
    busy = busy_by_term(one for axis in placement.axes for one in axis.exchanges)
    for term in ("pp_comm", "optimizer"):
        exposed[term] = min(time.get(term, 0.0), busy[term])
    whole = time.get("dp_comm", 0.0)  # of the heaviest stages, with copies beside their messages
    exposed["dp_comm"] = busy["dp_comm"] * whole / (max(heaviest_data_parallel(messages), whole) or 1.0)
    axes = []
    for axis in placement.axes:
        own = busy_by_term(axis.exchanges)
        seen = sum(exposed[term] * seconds / busy[term] for term, seconds in own.items() if seconds)
        axes.append(replace(axis, exposed=seen) if axis.busy else axis)
    return replace(placement, axes=tuple(axes))


def busy_by_term(messages: Iterable[SentMessage]) -> Counter[str]:
    """Seconds of links by the term of the step that counts them [s]."""
    found: Counter[str] = Counter()
    for one in messages:
        found[one.term] += one.busy  # type: ignore[assignment]
    return found


def layer_terms(messages: StepMessages, stage: int) -> dict[str, float]:
    """Exposed seconds of a stage's layers in a step, by term, without what is repeated."""
    config, level = messages.config, layer_level(messages.model.layers, messages.keys)
    number = messages.layers(stage)
    found = {name: float(number @ level.terms[:, TIME_TERMS.index(name), 0]) for name in COMMUNICATION}
    if config.schedule in (Schedule.DUALPIPE, Schedule.DUALPIPE_V):  # their pairs hide exchanges of tokens
        hidden = float(number @ level.saved[:, 0])
        found["ep_comm"] = max(found["ep_comm"] - hidden, 0.0)
    return {name: config.num_microbatches * seconds for name, seconds in found.items()}


def heaviest_data_parallel(messages: StepMessages) -> float:
    """Busy seconds of gradients and weights where each axis has its heaviest stage, as the step's term counts them."""
    found: Counter[str] = Counter()
    for stage in messages.stages:
        of_axis: Counter[str] = Counter()
        for one in messages.of_stage(stage):
            if one.term == "dp_comm":
                of_axis[one.axis] += one.busy  # type: ignore[assignment]
        found |= of_axis  # the larger of each
    return float(sum(found.values()))
