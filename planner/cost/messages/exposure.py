"""How long do messages take, and what of it does computation not hide?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.messages.message import HiddenBy, Message

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class PassSeconds:
    """What messages take in a forward and in a backward pass, of these those in sight at `least` (n,) each [s]."""

    total: tuple[Array, Array]
    least: tuple[Array, Array]

    def take(self, rows: Index) -> PassSeconds:
        """Those of some keys."""
        (ahead, back), (least_ahead, least_back) = self.total, self.least
        return PassSeconds((ahead[rows], back[rows]), (least_ahead[rows], least_back[rows]))

    def exposed(self, cover: tuple[Array, Array]) -> tuple[Array, Array]:
        """Seconds of either pass that `cover` of it does not hide: max(total - cover, least) [s]."""
        ahead, back = (
            np.maximum(total - under, least)
            for total, least, under in zip(self.total, self.least, cover, strict=True)
        )
        return ahead, back


def pass_seconds(messages: Iterable[Message], number: int) -> PassSeconds:
    """The sums over messages of `number` keys, but for those that no term counts."""
    total, least = [np.zeros(number)] * 2, [np.zeros(number)] * 2
    for one in messages:
        if one.hidden_by is HiddenBy.UNCOUNTED or not (np.any(one.forward) or np.any(one.backward)):
            continue
        ahead = one.forward * one.seconds
        back = ahead if one.backward is one.forward else one.backward * one.seconds
        total = [total[0] + ahead, total[1] + back]
        least = [least[0] + one.least * ahead, least[1] + one.least * back]
    return PassSeconds((total[0], total[1]), (least[0], least[1]))
