"""What is worth saying about the best plan of one size of one cluster? Shared by comparison and sizing.

Left out: layout, which is in `comparison_text` and `sizing_text`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from planner.answer.outcome import best_of, days_ends, limits, limits_sentence, run_days, why_nothing
from planner.catalog.stack_options import SEPARATOR
from planner.dialect import option
from planner.report.facts import count, days, price_sentence
from planner.report.words import text_of, texts
from planner.spec.findings import Finding
from planner.spec.planfile import Choice, Plan, Run

Facts = dict[str, Any]


def outcome_facts(plan: Plan) -> Facts:
    """The best plan of one size as plain data, in planner's inner units."""
    best = best_of(plan)
    cluster = plan.subject.cluster
    facts: Facts = {
        "verdict": str(plan.verdict),
        "gpus": cluster.devices,
        "nodes": -(-cluster.devices // cluster.devices_per_node),
        "accelerator": cluster.accelerator,
        "global_batch": plan.subject.job.global_batch,
    }
    if best is None:
        return facts | {"reason": why_nothing(plan)}
    run = best.run
    low, high = days_ends(best) if run else (None, None)
    return facts | {
        "configuration": best.config.text,
        "step_time": best.step_time,
        "step_time_low": best.step_time_low,
        "step_time_high": best.step_time_high,
        "tokens_per_second_per_device": best.tokens_per_second_per_device,
        "mfu": best.mfu,
        "memory_peak": best.memory.peak,
        "memory_headroom": best.memory.limit - best.memory.peak,
        "memory_verdict": str(best.memory.verdict),
        "limits": dict(limits(best)),
        "time": dict(best.time),
        "days": run_days(run) if run else None,
        "days_low": low,
        "days_high": high,
        "run": run.model_dump(mode="json") if run else None,
        "stack": plan.subject.stack.name,
        "calibration_level": str(plan.confidence.level),
        "band": plan.confidence.band,
        "search_seconds": plan.search.seconds,
    }


def band_of_days(choice: Choice) -> str:
    """Days of the run with their interval."""
    if choice.run is None:
        return ""
    low, high = days_ends(choice)
    return f"{days(run_days(choice.run))} ({days(low)} to {days(high)})"


def money(amount: float | None) -> str:
    """Dollars in three digits; empty where not known."""
    return "" if amount is None else f"${count(amount)}"


def cost_of(run: Run) -> str:
    """Dollars of a run, and whether at a list price; empty where not known."""
    listed = " at list price" if run.list_price else ""
    return f"{money(run.cost)}{listed}" if run.cost is not None else ""


def routing_of(choice: Choice) -> tuple[Finding, ...]:
    """What its busiest expert-parallel rank costs it, if anything."""
    return tuple(one for one in choice.why if one.code == "busiest_rank")


def choice_lines(choice: Choice, noun: str) -> list[str]:
    """The configuration and the stack's options it has, what binds, what uneven routing costs it, and what the run's
    money rests on. `noun`: what a device is called."""
    run = choice.run
    options = [choice.stack] if SEPARATOR in choice.stack else []
    lines = [
        choice.config.text,
        *options,
        f"the step is {limits_sentence(choice)}",
        *texts(routing_of(choice)),
    ]
    if run and run.batch is not None:
        lines.append(text_of(run.batch))
    if run and run.price_per_device_hour is not None:
        lines.append(price_sentence(run, noun))
    elif run:
        lines.append(
            f"no price known: {option('assume', 'price=2.50 $/h')} (or purchase_price, to own) sets one"
        )
    if run and run.power_source:
        lines.append(f"{run.power_per_device:,.0f} W per {noun}, {run.power_source}")
    return lines


def shared_assumptions(plans: Iterable[Plan]) -> tuple[Finding, ...]:
    """What the plans assumed, each once, in order."""
    return tuple(dict.fromkeys(line for plan in plans for line in plan.assumptions))
