"""What is one message of a training step, a collective or a send, and how long does it take?

A message is a column: one value per way to cut a micro-batch or to deal parameters to ranks. The step's terms, their
bounds, and what is told of one configuration are made of the same ones. Left out: contention with other axes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.network.collectives import (
    CollectiveKind,
    collective_time,
    dispatch_time,
    moved_bytes,
    remote_copies,
)
from planner.cost.network.traffic import GroupLinks, Quantity
from planner.spec.machine.links import LinkRates

Array = NDArray[np.float64]


# the term of a step's time that counts what an axis sends, where nothing else is said
TERM_OF: Final = {
    "tp": "tp_comm", "cp": "cp_comm", "ep": "ep_comm", "etp": "ep_comm", "pp": "pp_comm", "dp": "dp_comm",
    "edp": "dp_comm",
}  # fmt: skip


class HiddenBy(StrEnum):
    """What runs while a message does, and may hide it (`exposure.py`)."""

    NOTHING = "nothing"
    PRODUCTS = "products"  # those of its pass through the layer
    ATTENTION = "attention"  # to the keys that have arrived
    LAYER = "layer"  # its whole pass through the layer, of other tokens
    STAGE = "stage"  # passes of the stage
    UNCOUNTED = "uncounted"  # computation under which it disappears: no term of a step counts it


@dataclass(frozen=True)
class Dispatch:
    """What a fused dispatch of tokens to experts knows of them, see `collectives.dispatch_time`.

    `copied`: seconds in which a rank copies what it received, per byte of a rank's tokens [s/byte].
    """

    top_k: float
    experts: float
    chosen: tuple[float, float]
    shards: Quantity
    copies: float
    copied: Quantity = 0.0


@dataclass(frozen=True)
class Message:
    """One kind of message of an axis: tp, cp, ep, etp, pp, dp (gradients and weights over dp x cp) or edp (n,).

    `size`: the buffer, as `collectives.moved_bytes` takes it [bytes]; of a fused dispatch, a rank's tokens.
    `links`: those of its group; `rates`: what software reaches on them.
    `forward`, `backward`: calls in either pass of the layer, or of all that data parallelism sends of a stage once [1].
    `factor`: time over the link model [1]. `least`: share of it that is in sight whatever runs meanwhile [1].
    `term`: what counts it in a step's time.
    """

    axis: str
    kind: CollectiveKind
    what: str
    size: Quantity
    links: GroupLinks
    rates: LinkRates
    forward: Quantity = 1.0
    backward: Quantity = 1.0
    hidden_by: HiddenBy = HiddenBy.NOTHING
    least: Quantity = 1.0
    factor: Quantity = 1.0
    dispatch: Dispatch | None = None
    term: str = ""

    @cached_property
    def seconds(self) -> Quantity:
        """Of one call, whatever hides it; what has no bytes is not sent [s]."""
        if (d := self.dispatch) is None:
            one = collective_time(self.kind, self.size, self.links, self.rates)
            return np.where(np.asarray(self.size) > 0, self.factor * one, 0.0)
        sent = dispatch_time(
            self.size, d.top_k, d.experts, self.links, self.rates, d.chosen, d.copies, d.shards
        )
        return self.factor * (sent + self.size * d.copied)

    @property
    def sent(self) -> Quantity:
        """Bytes that a rank sends in a call [bytes]."""
        if (d := self.dispatch) is None:
            return moved_bytes(self.kind, self.size, self.links.ranks)
        return self.size * remote_copies(d.top_k, self.links.ranks, d.experts, d.chosen, d.shards)

    def called(self, forward: ArrayLike, backward: ArrayLike) -> Message:
        """The same so often in either pass; a mask calls once where it is true."""
        ahead = np.asarray(forward, dtype=float)
        back = ahead if backward is forward else np.asarray(backward, dtype=float)
        return replace(self, forward=ahead, backward=back)

    def times(self, forward: float, backward: float) -> SentMessage:
        """The only row of a column, in so many forward and backward passes of a step."""
        size, sent, seconds, ranks, ahead, back = (
            float(np.asarray(value).item())
            for value in (
                self.size, self.sent, self.seconds, self.links.ranks, self.forward, self.backward
            )
        )  # fmt: skip
        calls = ahead * forward, back * backward
        return SentMessage(
            self.axis, self.kind, self.what, size, *calls, sent, seconds, ranks, self.hidden_by,
            self.term or TERM_OF[self.axis],
        )  # fmt: skip


@dataclass(frozen=True)
class SentMessage:
    """A message of one configuration, over a step. `forward`, `backward`: calls in passes of either kind [1]; `sent`:
    bytes that a rank sends in a call [bytes]; `seconds`: of a call [s]; `ranks`: of its group [1]. The others as
    `Message` has them."""

    axis: str
    kind: CollectiveKind
    what: str
    size: float
    forward: float
    backward: float
    sent: float
    seconds: float
    ranks: float
    hidden_by: HiddenBy
    term: str

    @property
    def calls(self) -> float:
        """How often in a step [1]."""
        return self.forward + self.backward

    @property
    def sent_per_step(self) -> float:
        """Bytes that a rank sends in a step [bytes]."""
        return self.sent * self.calls

    @property
    def busy(self) -> float:
        """Seconds that its links work in a step for what a term of it counts [s]."""
        return 0.0 if self.hidden_by is HiddenBy.UNCOUNTED else self.seconds * self.calls


def merged(messages: Iterable[SentMessage]) -> tuple[SentMessage, ...]:
    """Messages of equal kind and size counted together, in the order of their first, but those that send nothing."""
    found: dict[tuple[object, ...], SentMessage] = {}
    for one in messages:
        key = (one.axis, one.kind, one.what, one.size, one.ranks)
        before = found.get(key, replace(one, forward=0.0, backward=0.0))
        forward, backward = before.forward + one.forward, before.backward + one.backward
        found[key] = replace(one, forward=forward, backward=backward)
    return tuple(one for one in found.values() if one.calls > 0 and one.sent > 0)
