"""What must stand at the head of an answer: its best configuration, what to take instead, and a proof's gap.

Left out: everything that a report says below it.
"""

from __future__ import annotations

from typing import Any, Final

from planner.answer.recommend import Pick
from planner.spec.findings import Finding, finding
from planner.spec.job import Job
from planner.spec.planfile import Certificate, Choice, Ending, Plan, Search, Verdict

GAP_SAID: Final = 1e-3  # of the step: a larger gap stands in the headline


def headline(
    verdict: Verdict, search: Search, job: Job, best: Choice | None, named: str, other_chunks: bool
) -> Finding:
    """The first of it. `named`: the configuration of an estimate; `other_chunks`: are there layouts that the stack's
    own split does not have?"""
    axes = list(search.restricted)
    pinned = [",".join(map(str, held)) for held in search.restricted.values()]
    if verdict is Verdict.NOTHING_LEGAL:
        return finding(
            "none_legal", candidates=search.candidates, axes=axes, pinned=pinned, other_chunks=other_chunks
        )
    if verdict is Verdict.NOTHING_FITS:
        return finding("none_fits", candidates=search.legal, axes=axes, pinned=pinned)
    if best is None:
        return finding("not_legal", configuration=named)
    memory, run = best.memory, best.run
    short: dict[str, Any] = {}
    if memory.host_short:
        short = {"host_over": memory.host_short, "host_limit": memory.host_limit, **memory.host_values}
    return finding(
        "best", configuration=best.config.text, step_time=best.step_time, step_time_low=best.step_time_low,
        step_time_high=best.step_time_high, tokens_per_second_per_device=best.tokens_per_second_per_device,
        mfu=best.mfu, verdict=str(memory.verdict), rank=memory.stage, free=memory.free, limit=memory.limit,
        kept_back=memory.kept_back or None, lora_rank=job.lora_rank,
        frozen_bits=None if job.lora_rank is None else job.frozen_bits,
        days=(run.effective_days or run.days) if run else None, **short,
    )  # fmt: skip


def gap_values(certificate: Certificate | None) -> dict[str, float | str]:
    """The gap of a proof where it is large enough to matter, or unknown, and what ended the search before it."""
    if certificate is None or certificate.best is None:
        return {}
    if certificate.gap is not None and certificate.gap <= GAP_SAID:
        return {}
    gap = {} if certificate.gap is None else {"gap": certificate.gap}
    ending = {} if certificate.ending is Ending.COMPLETE else {"ending": str(certificate.ending)}
    return {**gap, **ending}


def recommended(plan: Plan, pick: Pick) -> Plan:
    """The plan with what to take of it, which stands second at its head where it is not the fastest."""
    if not plan.found:
        return plan
    more: tuple[Finding, ...] = ()
    if pick.trade is not None:
        trade, taken = pick.trade, pick.choices[pick.index]
        nearer = [str(reason.concern) for reason in trade.reasons if reason.recommended < reason.fastest]
        more = (
            finding(
                "recommended", place=pick.index + 1, configuration=taken.config.text, slower=trade.slower,
                more_free=trade.more_free, nearer=nearer,
            ),
        )  # fmt: skip
    update = {"headline": (*plan.headline, *more), "recommended": pick.index, "trade": pick.trade}
    return plan.model_copy(update=update)


def with_gap(plan: Plan) -> Plan:
    """The plan, all of it searched, whose head says a gap of its proof."""
    if not plan.found:
        return plan
    first, *more = plan.headline
    first = first.model_copy(update={"values": {**first.values, **gap_values(plan.search.certificate)}})
    return plan.model_copy(update={"headline": (first, *more)})
