"""What does `planner schedule` answer? From the words of the command line to a timed schedule and its facts.

Left out: orders and times (planner/schedule) and the drawing (planner/report/timeline.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from planner.errors import InputError
from planner.report.timeline import timeline_svg, timeline_text
from planner.schedule.actions import ActionTable
from planner.schedule.formulas import default_limit
from planner.schedule.generate import NamedSchedule, action_table, default_chunks, named_schedule
from planner.schedule.memory_limited import memory_limited_table
from planner.schedule.simulate import StageTimes, Timeline, simulate, stage_times
from planner.spec.config import FOLDED_SCHEDULES, Schedule
from planner.spec.save import save_text

SHORTEST, LONGEST = 1e-12, 1e12  # of a pass, in the user's unit: no sum of them overflows


@dataclass(frozen=True)
class ScheduleQuestion:
    """The options of the verb, times still as written: one number, or one per stage with commas between."""

    schedule: str
    pp: int
    microbatches: int
    vpp: int | None = None
    f: str = "1"
    b: str = "1"
    w: str = "1"
    comm: str = "0"
    fb: str | None = None
    group_size: int | None = None
    memory_limit: int | None = None
    expert_overlap: bool = False


@dataclass(frozen=True)
class ScheduleAnswer:
    """A timed schedule, the question, and what is worth knowing beside the figures."""

    question: ScheduleQuestion
    timeline: Timeline
    chunks: int
    memory_limit: int | None
    notes: tuple[str, ...]


def answer_schedule(question: ScheduleQuestion) -> ScheduleAnswer:
    """Find the order, time it, and gather notes. Raises `InputError` for anything that does not fit."""
    named = named_schedule(question.schedule)
    vpp = default_chunks(named.schedule) if question.vpp is None and not named.adaptive else question.vpp
    if named.adaptive and vpp is None:
        vpp = 1 if named.schedule is Schedule.ZB_H2 else 2
    assert vpp is not None
    for option, value in (("pp", question.pp), ("vpp", vpp), ("microbatches", question.microbatches)):
        if not 1 <= value <= 2**20:
            raise InputError(f"--{option} must be a whole number from 1 to {2**20:,}", str(value))
    if question.group_size is not None and question.group_size < 1:
        raise InputError("--group-size must be 1 micro-batch or more", str(question.group_size))
    stages = question.pp * (1 if named.schedule is Schedule.DUALPIPE else vpp)
    times = _times(question, stages)
    if question.expert_overlap and named.schedule is not Schedule.INTERLEAVED:
        must = "--moe-overlap belongs to the interleaved schedule"
        raise InputError(must, question.schedule, "leave it out, or use --schedule interleaved")
    limit = None
    if named.adaptive:
        limit = question.memory_limit or default_limit(named.schedule, question.pp)
        table = _adaptive(question, named, vpp, times)
    else:
        if question.memory_limit is not None:
            must = "--memory-limit belongs to schedules whose order is searched for"
            raise InputError(must, question.schedule, "leave it out, or use zb-auto, v-half or v-min")
        table = action_table(
            named.schedule, question.pp, question.microbatches, vpp, question.group_size, named.in_rounds,
            question.expert_overlap,
        )  # fmt: skip
    timeline = simulate(table, times)
    return ScheduleAnswer(question, timeline, vpp, limit, tuple(_notes(question, named, timeline)))


def _adaptive(question: ScheduleQuestion, named: NamedSchedule, vpp: int, times: StageTimes) -> ActionTable:
    if question.group_size is not None:
        must = "--group-size belongs to the interleaved schedule"
        raise InputError(must, question.schedule, "leave it out")
    if question.memory_limit is not None and question.memory_limit < 1:
        raise InputError("--memory-limit must be 1 chunk or more", str(question.memory_limit))
    if named.schedule in FOLDED_SCHEDULES and vpp != 2:
        raise InputError(f"{question.schedule} must have two stages per rank", f"--vpp {vpp}", "use --vpp 2")
    return memory_limited_table(
        named.schedule, question.pp, question.microbatches, times, question.memory_limit, vpp
    )


def _times(question: ScheduleQuestion, stages: int) -> StageTimes:
    return stage_times(
        stages,
        _numbers("f", question.f),
        _numbers("b", question.b),
        _numbers("w", question.w),
        _numbers("comm", question.comm),
        None if question.fb is None else _numbers("fb", question.fb),
    )


def _numbers(option: str, text: str) -> float | list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        must = f"--{option} must be a number, or one per stage"
        raise InputError(must, repr(text), f"write it like --{option} 1.5 or --{option} 1,1,1.2") from None
    for number in numbers:
        if abs(number) > LONGEST or 0 < number < SHORTEST:
            must = f"--{option} must be 0, or from {SHORTEST:g} to {LONGEST:g}"
            raise InputError(must, f"{number:g}", "use a smaller or larger unit")
    return numbers[0] if len(numbers) == 1 else numbers


def _notes(question: ScheduleQuestion, named: NamedSchedule, timeline: Timeline) -> list[str]:
    notes = []
    group = question.group_size or question.pp
    if named.schedule is Schedule.INTERLEAVED and not named.in_rounds and question.microbatches < group:
        notes.append("Megatron-LM refuses fewer micro-batches than the micro-batch group size")
    if question.fb is not None and not timeline.table.joined.any():
        notes.append("--fb has no effect: this schedule has no overlapped pairs")
    if question.fb is None and timeline.table.joined.any():
        notes.append("overlapped pairs take the sum of their halves; give --fb for what overlap gains")
    return notes


def schedule_facts(answer: ScheduleAnswer) -> dict[str, Any]:
    """The answer as JSON values. Times in the unit they were given in; chunks count stages of a rank."""
    timeline, question = answer.timeline, answer.question
    busiest = float(timeline.busy.max())
    return {
        "schedule": question.schedule,
        "order": timeline.table.name,
        "pp": question.pp,
        "vpp": answer.chunks,
        "microbatches": question.microbatches,
        "makespan": timeline.makespan,
        "bubble": timeline.bubble,
        "bubble_over_busy": timeline.bubble / busiest,
        "bubble_fraction": timeline.bubble / timeline.makespan,
        "longest_rank_span": timeline.longest_span,
        "busy": timeline.busy.tolist(),
        "idle": timeline.idle.tolist(),
        "peak_in_flight": timeline.in_flight.until_weight.tolist(),
        "peak_in_flight_until_input_gradient": timeline.in_flight.until_input.tolist(),
        "peak_pending_weight_gradients": timeline.in_flight.pending_weight.tolist(),
        "memory_limit": answer.memory_limit,
        "notes": list(answer.notes),
    }


def schedule_document(answer: ScheduleAnswer, width: int) -> RenderableType:
    """The answer for a terminal: the drawing, then the figures."""
    timeline = answer.timeline
    held, until_input = timeline.in_flight.until_weight, timeline.in_flight.until_input
    share = timeline.bubble / timeline.makespan
    lines = [
        f"makespan {timeline.makespan:.6g}, bubble {timeline.bubble:.6g} ({share:.1%} of it)",
        f"peak chunks in flight per rank: {_counts(held.tolist())}",
    ]
    if until_input.tolist() != held.tolist():
        lines.append(f"  of these until the input gradient: {_counts(until_input.tolist())}")
    lines.append(
        "F forward, B backward, W weight gradient, number: micro-batch, # several, · idle" + _case(answer)
    )
    lines.extend(f"note: {note}" for note in answer.notes)
    drawing = timeline_text(timeline, width)
    return Group(drawing, Text(), *(Text(line) for line in lines))


def _case(answer: ScheduleAnswer) -> str:
    several = answer.chunks > 1 or answer.timeline.table.name == "dualpipe"
    return "; lower case: later stages of the rank" if several else ""


def _counts(counts: list[int]) -> str:
    if len(set(counts)) == 1:
        return f"{counts[0]} on all"
    return " ".join(map(str, counts)) if len(counts) <= 32 else f"{min(counts)} to {max(counts)}"


def write_svg(answer: ScheduleAnswer, path: Path) -> None:
    """Write the drawing. Raises `FileInputError`."""
    question = answer.question
    title = (
        f"{question.schedule}: {question.pp} ranks, {question.microbatches} micro-batches, "
        f"makespan {answer.timeline.makespan:.6g}, bubble {answer.timeline.bubble:.6g}"
    )
    save_text(timeline_svg(answer.timeline, title), path)
