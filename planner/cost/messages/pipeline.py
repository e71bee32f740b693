"""Which messages do the stages of a pipeline send each other?

Left out: which of them lie on the critical path of a step (`cost/levels.py`, `cost/chunks.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.messages.message import Message
from planner.cost.messages.sizes import stream_bytes
from planner.cost.network.collectives import CollectiveKind
from planner.cost.network.traffic import BoundaryLinks, GroupLinks, group_links
from planner.spec.config import ConfigTable
from planner.spec.machine.links import LinkRates
from planner.spec.precision import RECIPES
from planner.spec.rule import Problem

Array = NDArray[np.float64]


def boundary_messages(
    problem: Problem, rates: LinkRates, keys: ConfigTable, boundaries: BoundaryLinks
) -> tuple[Message, ...]:
    """A send from one stage to the next, by the outermost tier of links that it crosses (0: inside the scale-up
    domain), of pipelines with such `boundaries`: the hidden states of a micro-batch, a shard of them under sequence
    parallelism or where ranks scatter what they send; its gradient goes the other way."""
    t, c, d, p = (keys[axis].astype(float) for axis in ("tp", "cp", "dp", "pp"))
    tiers, width = problem.cluster.tiers, t * c * d
    scatters = problem.stack.engine.scatters_shares
    size = boundary_bytes(problem, keys) / (t if scatters else np.where(keys["sp"] > 0, t, 1.0))
    among = np.clip(width * p, 2.0, tiers[0].size)  # ranks of a domain that send at once
    found = []
    for tier, bandwidth in enumerate(boundaries.bandwidth):
        group = GroupLinks(2.0, 1.0 if tier else among, tiers[0].hop_bandwidth, bandwidth, bandwidth)
        found.append(Message("pp", CollectiveKind.P2P, "hidden_states", size, group, rates))
    return tuple(found)


def boundary_bytes(problem: Problem, keys: ConfigTable) -> Array:
    """What the ranks of tensor parallelism together send to the next stage of a micro-batch (n,) [bytes]."""
    batch, model = keys["micro_batch"].astype(float), problem.model
    tokens = batch * problem.job.timed_length(batch) / keys["cp"]
    act = RECIPES[problem.job.precision].activation_bytes
    return np.asarray(stream_bytes(tokens, float(model.hidden * model.passed_streams), act))


def gathers_behind_boundary(problem: Problem, rates: LinkRates, keys: ConfigTable) -> tuple[Message, ...]:
    """The tp ranks of a stage put together a message that each received a share of, where they scatter what they send
    (Narayanan 2021, arXiv 2104.04473, section 4.1); under sequence parallelism the next layer does."""
    if not problem.stack.engine.scatters_shares:
        return ()
    group = group_links(1.0, keys["tp"].astype(float), problem.cluster)
    scattered = (keys["sp"] == 0) & (keys["pp"] > 1)
    whole, what = boundary_bytes(problem, keys), "received_hidden_states"
    message = Message("tp", CollectiveKind.ALL_GATHER, what, whole, group, rates, term="pp_comm")
    return (message.called(scattered, scattered),)
