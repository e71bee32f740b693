"""Why did a device run out of memory? The predicted breakdown beside what the message or the log reports.

Left out: traces of the allocator, which say which tensor it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from planner.calibrate.logs.lines import LogFacts
from planner.calibrate.logs.memory_messages import OutOfMemory
from planner.catalog.cluster_rates import rates_of
from planner.cost.memory.moments import PHASES
from planner.cost.model import CostModel
from planner.solve.moves import Move, memory_moves
from planner.space.framework_rules import all_rules_for
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.rule import Problem
from planner.units import GIB, format_capacity

HEADROOM: Final = 0.05
FRAGMENTED: Final = 0.08  # of the capacity: reserved and unused above it is more than rounding
OUTSIDE: Final = 2.0 * GIB  # beyond the predicted bytes outside the allocator: something else is there
SAME: Final = 0.03  # relative: a request that is a known tensor
EXPANDABLE: Final = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@dataclass(frozen=True)
class MemoryStory:
    """`terms`: predicted parts at the peak [bytes]; `predicted` of the device, `outside` the allocator, `capacity`;
    `reported`: lines of name and bytes; `reasons`: what it was, the surest first; `moves`: changes that fit."""

    terms: dict[str, float]
    phase: str
    rank: int
    predicted: float
    outside: float
    capacity: float
    reported: tuple[tuple[str, float], ...]
    reasons: tuple[str, ...]
    first_aid: str
    moves: tuple[Move, ...]


def explain(facts: LogFacts, problem: Problem, config: ParallelConfig) -> MemoryStory:
    """What the memory of a run was, and what would make it fit."""
    model = CostModel(problem, *rates_of(problem.cluster))
    cost = model.evaluate(ConfigTable.of([config]), keep_terms=True)
    assert cost.detail is not None, "costed with keep_terms"
    phase, stage = PHASES[int(cost.phase[0])], int(cost.detail.stage_class[0])
    terms = {name: float(value[0, stage]) for name, value in cost.detail.memory[phase].items()}
    outside, predicted = float(cost.detail.outside[0]), float(cost.device_memory[0])
    capacity = problem.cluster.accelerator.memory
    oom = max(facts.ooms, key=lambda message: message.program or message.allocated or 0.0, default=None)
    reported = _reported(facts, oom)
    inside = predicted - outside
    reasons, aid = _reasons(facts, oom, problem, config, inside, outside, capacity)
    limit, rules = capacity * (1 - HEADROOM), all_rules_for(problem.stack.framework)
    moves = tuple(move for move in memory_moves(model, config, rules, limit) if move.fits)
    moves = tuple(sorted(moves, key=lambda move: (move.slower is None, move.slower or 0.0)))
    return MemoryStory(
        {name: value for name, value in terms.items() if value}, phase, int(cost.stage[0]), predicted, outside,
        capacity, reported, reasons, aid, moves,
    )  # fmt: skip


def _reported(facts: LogFacts, oom: OutOfMemory | None) -> tuple[tuple[str, float], ...]:
    lines: list[tuple[str, float | None]] = []
    if oom is not None:
        lines = [
            ("needed by the program", oom.program), ("tried to allocate", None if oom.program else oom.tried),
            ("capacity", oom.total), ("free", oom.free),
            ("in use by the process", oom.in_use), ("allocated by PyTorch", oom.allocated),
            ("reserved by PyTorch", oom.reserved), ("reserved but unallocated", oom.unallocated),
            ("in pools of CUDA graphs", oom.private), ("in use by other processes", oom.others),
        ]  # fmt: skip
    for name in ("allocated", "reserved", "device"):
        values = [value for line in facts.memory if (value := getattr(line, name)) is not None]
        if values:
            lines.append((f"largest {name} as logged", max(values)))
    return tuple((name, value) for name, value in lines if value is not None)


def _reasons(
    facts: LogFacts, oom: OutOfMemory | None, problem: Problem, config: ParallelConfig, inside: float,
    outside: float, capacity: float,
) -> tuple[tuple[str, ...], str]:  # fmt: skip
    found: list[str] = []
    aid = ""
    if oom is None:
        return _of_lines(facts, inside, problem), aid
    room = oom.total or capacity
    if oom.others is not None and oom.others > 0.5 * GIB:
        found.append(f"another process holds {format_capacity(oom.others)} of the device")
        aid = f"end the other process ({problem.cluster.accelerator.architecture.words.monitor} lists it)"
    if oom.unallocated is not None and oom.unallocated > FRAGMENTED * room:
        found.append(
            f"fragmentation: {format_capacity(oom.unallocated)} are reserved but unallocated"
            + (", more than was asked for" if oom.unallocated > oom.tried else "")
        )
        aid = aid or EXPANDABLE
    if oom.in_use is not None and oom.reserved is not None:
        beside = oom.in_use - oom.reserved
        if beside > outside + OUTSIDE:
            found.append(
                f"{format_capacity(beside)} lie outside PyTorch, {format_capacity(outside)} were expected: "
                "communicators, contexts of other libraries, CUDA graphs"
            )
    needed = oom.program or (oom.allocated or 0.0) + oom.tried
    error = problem.stack.overhead.error
    if oom.program is not None and needed > inside * (1 + error):
        found.append(
            f"the program needs {format_capacity(needed)}, {format_capacity(inside)} predicted: a term is missing, "
            "or it keeps more than the stack does (attention without its kernel, another remat_policy, weights not "
            "sharded)"
        )
    if oom.allocated is not None and needed > inside * (1 + error):
        found.append(
            f"at least {format_capacity(needed)} were needed inside PyTorch, {format_capacity(inside)} predicted: a "
            "term is missing, or the run keeps more than the stack does (unfused loss or norms, no recomputation)"
        )
    if inside + outside > room * (1 - error):
        found.append(
            f"the configuration needs {format_capacity(inside + outside)} of {format_capacity(room)}, as predicted: "
            "fewer bytes must be kept, see below"
        )
        if inside + outside > room * (1 + error):
            found.insert(0, found.pop())  # whatever else is wrong, it would not have fitted
    if oom.program is None and (tensor := _tensor(oom.tried, problem, config)):
        found.append(tensor)
    if not found:
        short = inside + outside
        found.append(
            f"planner expects {format_capacity(short)} of {format_capacity(room)}: check that the run has the "
            "configuration given (batch, recomputation, sharding), and which step failed; the first allocates states"
        )
    return tuple(found), aid


def _of_lines(facts: LogFacts, inside: float, problem: Problem) -> tuple[str, ...]:
    reserved = problem.stack.overhead.logs_reserved
    values = [v for line in facts.memory if (v := line.reserved if reserved else line.allocated) is not None]
    if not values:
        values = [v for line in facts.memory if (v := line.allocated or line.reserved) is not None]
    if not values:
        return ("the log says nothing about memory",)
    off = inside / max(values) - 1
    kind = "agrees with" if abs(off) <= problem.stack.overhead.error else "differs from"
    return (
        f"the prediction inside PyTorch, {format_capacity(inside)}, {kind} the largest logged value by {off:+.1%}",
    )


def _tensor(tried: float, problem: Problem, config: ParallelConfig) -> str:
    """Which tensor the failed request looks like; empty where none of the large ones is as large."""
    tokens = config.micro_batch * problem.job.seq_len / config.cp
    for name, values in (
        ("logits", problem.model.vocab / config.tp), ("logits not split over tp", problem.model.vocab),
        ("scores of unfused attention", problem.job.seq_len / config.cp * _heads(problem) / config.tp),
    ):  # fmt: skip
        for bits, size in ((16, 2.0), (32, 4.0)):
            if abs(tried / (size * tokens * values) - 1) < SAME:
                return f"the failed request is as large as {bits}-bit {name}"
    return ""


def _heads(problem: Problem) -> int:
    """Of the first layer that has attention; of a model without any, 1."""
    return next((a.heads for a in problem.model.attentions), 1)


def cheapest(moves: Sequence[Move]) -> Move | None:
    """The move that fits and slows the step least."""
    return next(iter(moves), None)
