"""What must stand at the head of an answer beside its best configuration? What to take instead, and a proof's gap.

Left out: the first line (`answerer.py`) and everything that a report says below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.answer.recommend import Pick
from planner.spec.planfile import CLOSED_GAP, Certificate, Concern, Ending, Plan, Reason, Trade
from planner.units import GIB, format_capacity, format_small

GAP_SAID: Final = 1e-3  # of the step: a larger gap stands in the headline
LITTLE: Final = 0.1 * GIB  # memory not worth a word
_ENDED_BY: Final = {Ending.TIME_LIMIT: "the time limit", Ending.INTERRUPTED: "an interrupt"}
# what the recommended one has less of, in words
_WORDS: Final[Mapping[Concern, str]] = {
    Concern.KINDS: "fewer kinds of parallelism",
    Concern.WIDE_TENSOR: "tensor parallelism within the fast links",
    Concern.SHORT_CONTEXT: "no context parallelism of short sequences",
    Concern.ODD_DEGREE: "degrees that are powers of two",
    Concern.UNEVEN_LAYERS: "stages of equal depth",
    Concern.SCHEDULE: "1F1B",
    Concern.OFFLOAD: "nothing in host memory",
    Concern.GRAPHS: "CUDA graphs left as the framework has them",
}


def ended_by(ending: Ending) -> str:
    """What ended a search before its proof, in words; empty where nothing did."""
    return _ENDED_BY.get(ending, "")


def gap_said(certificate: Certificate | None) -> str:
    """That something faster may exist, and how much; empty where a gap is too small to matter."""
    if certificate is None or certificate.best is None:
        return ""
    ended = f"ended by {ended_by(certificate.ending)}" if ended_by(certificate.ending) else ""
    if certificate.gap is None:
        return f"not proven: {ended}" if ended else ""
    if certificate.gap <= GAP_SAID:
        return ""
    return f"not proven: up to {certificate.gap:.1%} faster may exist" + (f" ({ended})" if ended else "")


def recommendation(pick: Pick) -> str:
    """What to take instead of the fastest, and why; empty where it is the fastest."""
    if pick.trade is None:
        return ""
    taken = pick.choices[pick.index]
    return f"recommended: #{pick.index + 1} {taken.config.text}, {trade_said(pick.trade)}"


def trade_said(trade: Trade) -> str:
    """What a trade costs and brings, in words."""
    parts = ["as fast" if trade.slower <= CLOSED_GAP else f"{format_small(trade.slower, '')} slower"]
    if abs(trade.more_free) >= LITTLE:
        size = format_capacity(abs(trade.more_free))
        parts.append(f"{size} {'more' if trade.more_free > 0 else 'less'} free")
    nearer = [_WORDS[reason.concern] for reason in trade.reasons if _nearer(reason)]
    return ", ".join(parts) + (f"; as others run it: {', '.join(nearer)}" if nearer else "")


def _nearer(reason: Reason) -> bool:
    return reason.recommended < reason.fastest


def recommended(plan: Plan, pick: Pick) -> Plan:
    """The plan with what to take of it, which its headline then says."""
    if not plan.found:
        return plan
    said = "\n".join(filter(None, (plan.headline, recommendation(pick))))
    return plan.model_copy(update={"headline": said, "recommended": pick.index, "trade": pick.trade})


def with_gap(plan: Plan) -> Plan:
    """The plan, all of it searched, whose headline says a gap of its proof."""
    gap = gap_said(plan.search.certificate)
    first, *more = plan.headline.split("\n")
    said = "\n".join([f"{first}, {gap}" if gap else first, *more])
    return plan.model_copy(update={"headline": said}) if plan.found else plan
