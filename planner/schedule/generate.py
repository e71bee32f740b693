"""Which order does a named schedule run in? Names, what each schedule demands, and the table of its passes.

Left out: `v-half`, `v-min` and `zb-auto`, whose order depends on the times of the stages (memory_limited.py);
their names and demands are here with the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from planner.errors import InputError, UnknownNameError
from planner.schedule.actions import ActionTable
from planner.schedule.folded import dualpipe, dualpipe_v, zb_v
from planner.schedule.looped import gpipe, interleaved, one_f_one_b, zero_bubble
from planner.spec.config import FOLDED_SCHEDULES, Schedule

MOST_STAGES: Final = 4096  # four times the layers of the deepest model
MOST_PASSES: Final = 2**24  # of a table: a gigabyte while it is simulated


@dataclass(frozen=True)
class NamedSchedule:
    """What a name on the command line stands for.

    `in_rounds`: micro-batches go in groups of m // max(1, m // p), torch's rule, rather than Megatron's p.
    `adaptive`: the order is found for the times at hand, under a memory limit.
    """

    schedule: Schedule
    in_rounds: bool = False
    adaptive: bool = False


_LOOPED_ZERO_BUBBLE: Final = NamedSchedule(Schedule.ZB_H1, in_rounds=True)
_ADAPTIVE: Final = NamedSchedule(Schedule.ZB_H2, adaptive=True)
NAMES: Final[dict[str, NamedSchedule]] = {
    "1f1b": NamedSchedule(Schedule.ONE_F_ONE_B),
    "interleaved": NamedSchedule(Schedule.INTERLEAVED),
    "gpipe": NamedSchedule(Schedule.GPIPE),
    "zb-h1": _LOOPED_ZERO_BUBBLE,
    "zb-h2": NamedSchedule(Schedule.ZB_H2),
    "zb-v": NamedSchedule(Schedule.ZB_V),
    "v-half": NamedSchedule(Schedule.V_HALF, adaptive=True),
    "v-min": NamedSchedule(Schedule.V_MIN, adaptive=True),
    "zb-auto": _ADAPTIVE,
    "dualpipe": NamedSchedule(Schedule.DUALPIPE),
    "dualpipev": NamedSchedule(Schedule.DUALPIPE_V),
    # names that other projects use for the same orders
    "afab": NamedSchedule(Schedule.GPIPE),
    "loopedbfs": NamedSchedule(Schedule.GPIPE),
    "megatron-1f1b": NamedSchedule(Schedule.ONE_F_ONE_B),
    "megatron-interleaved": NamedSchedule(Schedule.INTERLEAVED),
    "interleaved1f1b": NamedSchedule(Schedule.INTERLEAVED, in_rounds=True),
    "interleavedzerobubble": _LOOPED_ZERO_BUBBLE,
    "zbh1": _LOOPED_ZERO_BUBBLE,
    "zbh2": NamedSchedule(Schedule.ZB_H2),
    "zbv": NamedSchedule(Schedule.ZB_V),
    "zbvzerobubble": NamedSchedule(Schedule.ZB_V),
    "sail-zb": _ADAPTIVE,
    "sail-zbv": NamedSchedule(Schedule.ZB_V, adaptive=True),
    "vhalf": NamedSchedule(Schedule.V_HALF, adaptive=True),
    "vmin": NamedSchedule(Schedule.V_MIN, adaptive=True),
    "sail-vhalf": NamedSchedule(Schedule.V_HALF, adaptive=True),
    "sail-vmin": NamedSchedule(Schedule.V_MIN, adaptive=True),
    "ds-dualpipe": NamedSchedule(Schedule.DUALPIPE),
    "ds-dualpipev": NamedSchedule(Schedule.DUALPIPE_V),
    "dualpipe-v": NamedSchedule(Schedule.DUALPIPE_V),
}
_ONE_CHUNK: Final = (Schedule.ONE_F_ONE_B, Schedule.ZB_H2, Schedule.DUALPIPE)


def named_schedule(name: str) -> NamedSchedule:
    """The schedule a name stands for, upper case and underscores allowed. Raises `UnknownNameError`."""
    folded = name.strip().lower().replace("_", "-")
    if folded not in NAMES:
        raise UnknownNameError("pipeline schedule", name, NAMES)
    return NAMES[folded]


def canonical_name(schedule: Schedule) -> str:
    """The name used inside planner."""
    return schedule.label


def default_chunks(schedule: Schedule) -> int:
    """Stages of the model that a rank holds where nothing is said: 2 where the model is folded or looped."""
    return 2 if schedule in FOLDED_SCHEDULES or schedule is Schedule.INTERLEAVED else 1


def action_table(
    schedule: Schedule,
    p: int,
    m: int,
    v: int | None = None,
    group: int | None = None,
    in_rounds: bool = False,
    expert_overlap: bool = False,
) -> ActionTable:
    """The order of a fixed schedule over p ranks of v stages each, for m micro-batches.

    `group` is Megatron's micro-batch group size (default p), `expert_overlap` its one more warm-up forward where
    expert communication is overlapped. Raises `InputError` where the schedule cannot run so.
    """
    v = default_chunks(schedule) if v is None else v
    check_shape(schedule, p, m, v)
    if group is not None and schedule is not Schedule.INTERLEAVED:
        must = "a micro-batch group size belongs to the interleaved schedule"
        raise InputError(must, canonical_name(schedule), "leave the group size out")
    match schedule:
        case Schedule.ONE_F_ONE_B:
            return one_f_one_b(p, m)
        case Schedule.GPIPE:
            return gpipe(p, v, m)
        case Schedule.INTERLEAVED:
            size = _round(p, m) if in_rounds and group is None else _checked_group(p, m, group or p)
            return interleaved(p, v, m, size, int(expert_overlap))
        case Schedule.ZB_H1:
            return zero_bubble("zb-h1", p, v, m, _round(p, m) if v > 1 else m, depth=1)
        case Schedule.ZB_H2:
            return zero_bubble("zb-h2", p, v, m, m, depth=2)
        case Schedule.ZB_V:
            return zb_v(p, m)
        case Schedule.DUALPIPE:
            return dualpipe(p, m)
        case Schedule.DUALPIPE_V:
            return dualpipe_v(p, m)
    must = f"the order of {canonical_name(schedule)} depends on the times of the stages"
    raise InputError(must, "no times", "use planner.schedule.memory_limited")


def check_shape(schedule: Schedule, p: int, m: int, v: int) -> None:
    """Refuse a number of ranks, chunks and micro-batches that the schedule has no order for."""
    name = canonical_name(schedule)
    for what, value in (("pipeline ranks", p), ("micro-batches", m), ("virtual stages per rank", v)):
        if value < 1:
            raise InputError(f"the number of {what} must be 1 or more", str(value))
    if p * v > MOST_STAGES:
        must = f"a pipeline must have at most {MOST_STAGES:,} stages"
        raise InputError(must, f"{p} ranks x {v} stages", "use fewer ranks")
    if 3 * p * v * m > MOST_PASSES:
        given = f"{p} ranks x {v} stages x {m} micro-batches"
        raise InputError(
            f"a schedule must have at most {MOST_PASSES // 3:,} forwards", given, "use fewer micro-batches"
        )
    if schedule in _ONE_CHUNK and v != 1:
        hint = "use interleaved" if schedule is Schedule.ONE_F_ONE_B else "leave --vpp out"
        raise InputError(f"{name} must have one stage per rank", f"vpp {v}", hint)
    if schedule in FOLDED_SCHEDULES and v != 2:
        raise InputError(f"{name} must have two stages per rank", f"vpp {v}", "use vpp 2")
    if schedule is Schedule.INTERLEAVED and (v < 2 or p < 2):
        must = "interleaved must have two or more stages per rank and two or more ranks"
        raise InputError(must, f"vpp {v}, {p} ranks", "use 1f1b")
    if schedule is Schedule.DUALPIPE and (p % 2 or m % 2):
        must = "dualpipe must have an even number of ranks and of micro-batches"
        raise InputError(must, f"{p} ranks, {m} micro-batches", "use even numbers, or dualpipev")
    if schedule in (Schedule.DUALPIPE, Schedule.DUALPIPE_V) and m < 2 * p:
        must = f"{name} must have at least two micro-batches per rank"
        raise InputError(must, f"{m} micro-batches for {p} ranks", f"use {2 * p} or more micro-batches")


def _checked_group(p: int, m: int, group: int) -> int:
    """Megatron's conditions on the group size (schedules.py, forward_backward_pipelining_with_interleaving).

    A single group smaller than p, which Megatron refuses too, still has a well-defined order.
    """
    if group < p:
        must = "the micro-batch group size must be at least the number of pipeline ranks"
        raise InputError(must, f"{group} for {p} ranks", f"use {p} or more")
    if m > group and 0 < m % group < p:
        must = "the last group of micro-batches must be empty or hold at least as many as there are ranks"
        given = f"{m} micro-batches in groups of {group} leave {m % group} for {p} ranks"
        raise InputError(must, given, f"use a multiple of {group} micro-batches")
    return group


def _round(p: int, m: int) -> int:
    rounds = max(1, m // p)
    if m % rounds:
        must = "the micro-batches must divide into rounds of equal size"
        raise InputError(
            must, f"{m} micro-batches in {rounds} rounds for {p} ranks", f"use a multiple of {p}"
        )
    return m // rounds
