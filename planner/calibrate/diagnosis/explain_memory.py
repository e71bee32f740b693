"""Why did a device or a host run out of memory? The predicted breakdown beside what the message or the log reports.

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
from planner.cost.table import CostDetail
from planner.solve.moves import Move, memory_moves
from planner.space.framework_rules import all_rules_for
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.findings import Finding, finding
from planner.spec.rule import Problem
from planner.units import GIB

HEADROOM: Final = 0.05
FRAGMENTED: Final = 0.08  # of the capacity: reserved and unused above it is more than rounding
OUTSIDE: Final = 2.0 * GIB  # beyond the predicted bytes outside the allocator: something else is there
_ANOTHER: Final = 0.1  # relative: capacities of one device, as tools and data sheets count
SAME: Final = 0.03  # relative: a request that is a known tensor
_OF_HOST: Final = ("host_ran_out", "ended_by_signal")
EXPANDABLE: Final = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@dataclass(frozen=True)
class MemoryStory:
    """`terms`: predicted parts at the peak [bytes]; `predicted` of the device, `outside` the allocator, `capacity`;
    `reported`: lines of name and bytes; `reasons`: what it was, the surest first; `moves`: changes that fit;
    `elsewhere`: whether what ran out is the host's memory or another process's, which none of them changes."""

    terms: dict[str, float]
    phase: str
    rank: int
    predicted: float
    outside: float
    capacity: float
    reported: tuple[tuple[str, float], ...]
    reasons: tuple[Finding, ...]
    first_aid: Finding | None
    moves: tuple[Move, ...]
    elsewhere: bool = False


def explain(facts: LogFacts, problem: Problem, config: ParallelConfig) -> MemoryStory:
    """What the memory of a run was, and what would make it fit."""
    model = CostModel(problem, *rates_of(problem.cluster))
    cost = model.evaluate(ConfigTable.of([config]), keep_terms=True)
    assert cost.detail is not None, "costed with keep_terms"
    oom = max(facts.ooms, key=lambda message: message.program or message.allocated or 0.0, default=None)
    phase, stage, rank = PHASES[int(cost.phase[0])], int(cost.detail.stage_class[0]), int(cost.stage[0])
    predicted = float(cost.device_memory[0])
    if oom is not None and oom.rank is not None and oom.rank < problem.cluster.num_devices:
        rank = (
            oom.rank * config.pp // problem.cluster.num_devices
        )  # stages are the outermost dimension of ranks
        stage = _class_of(cost.detail, rank)
        memory = cost.detail.memory
        phase = max(memory, key=lambda one: float(sum(value[0, stage] for value in memory[one].values())))
        predicted += float(cost.detail.by_class[0, stage]) - float(cost.detail.by_class[0].max())
    terms = {name: float(value[0, stage]) for name, value in cost.detail.memory[phase].items()}
    outside = float(cost.detail.outside[0])
    capacity = problem.cluster.accelerator.memory
    reported = _reported(facts, oom)
    inside = predicted - outside
    reasons, aid = _reasons(facts, oom, problem, config, inside, outside, capacity)
    if oom is None and facts.lost:
        reasons, aid = _of_others(facts, problem, inside, outside, capacity)
    # no change of what the run holds on the device mends the host's memory, or another process
    room = min(capacity, oom.total) if oom is not None and oom.total else capacity
    fits = predicted <= room * (1 - HEADROOM) and aid is not None and aid.code == "end_other_process"
    elsewhere = fits or (bool(reasons) and reasons[0].code in _OF_HOST)
    # what the run needed beyond its prediction, a change must save as well
    beyond = max(_needed(oom) - inside, 0.0) if oom is not None else 0.0
    limit, rules = room * (1 - HEADROOM) - beyond, all_rules_for(problem.stack.framework)
    tried = () if elsewhere else memory_moves(model, config, rules, limit)
    moves = tuple(move for move in tried if move.fits)
    moves = tuple(sorted(moves, key=lambda move: (move.slower is None, move.slower or 0.0)))
    return MemoryStory(
        {name: value for name, value in terms.items() if value}, phase, rank, predicted, outside, capacity, reported,
        reasons, aid, moves, elsewhere,
    )  # fmt: skip


def _class_of(detail: CostDetail, rank: int) -> int:
    """The class that holds a pipeline rank."""
    classes, row = detail.classes, int(detail.class_row[0])
    members = classes.members[row] if classes.members else ()
    return next((index for index, of in enumerate(members) if rank in of), int(detail.stage_class[0]))


def _needed(oom: OutOfMemory) -> float:
    """What the run needed at least inside the allocator [bytes]; 0 where its message does not say."""
    return oom.program or (oom.allocated + oom.tried if oom.allocated is not None else 0.0)


def _reported(facts: LogFacts, oom: OutOfMemory | None) -> tuple[tuple[str, float], ...]:
    lines: list[tuple[str, float | None]] = []
    if oom is not None:
        lines = [
            ("needed_by_the_program", oom.program), ("tried_to_allocate", None if oom.program else oom.tried),
            ("capacity", oom.total), ("free", oom.free),
            ("in_use_by_the_process", oom.in_use), ("allocated_by_pytorch", oom.allocated),
            ("reserved_by_pytorch", oom.reserved), ("reserved_but_unallocated", oom.unallocated),
            ("in_pools_of_cuda_graphs", oom.private), ("in_use_by_other_processes", oom.others),
        ]  # fmt: skip
    for name in ("allocated", "reserved", "device"):
        values = [value for line in facts.memory if (value := getattr(line, name)) is not None]
        if values:
            lines.append((f"largest_{name}_as_logged", max(values)))
    return tuple((name, value) for name, value in lines if value is not None)


def _reasons(
    facts: LogFacts, oom: OutOfMemory | None, problem: Problem, config: ParallelConfig, inside: float,
    outside: float, capacity: float,
) -> tuple[tuple[Finding, ...], Finding | None]:  # fmt: skip
    found: list[Finding] = []
    aid: Finding | None = None
    if oom is None:
        return _of_lines(facts, inside, problem), aid
    room = oom.total or capacity
    if abs(room / capacity - 1) > _ANOTHER:
        found.append(finding("another_device", seen=room, named=capacity))
    if oom.others is not None and oom.others > 0.5 * GIB:
        found.append(finding("other_process", size=oom.others))
        monitor = problem.cluster.accelerator.architecture.words.monitor
        aid = finding("end_other_process", monitor=monitor)
    # growing segments bring what lies idle to the request, and no more
    idle = (oom.unallocated or 0.0) + (oom.free or 0.0)
    if oom.unallocated is not None and oom.unallocated > FRAGMENTED * room and idle >= oom.tried:
        more = oom.unallocated > oom.tried
        found.append(finding("fragmentation", size=oom.unallocated, more_than_asked=more))
        aid = aid or finding("set_growing_segments", setting=EXPANDABLE)
    if oom.in_use is not None and oom.reserved is not None:
        beside = oom.in_use - oom.reserved
        if beside > outside + OUTSIDE:
            found.append(finding("outside_pytorch", size=beside, expected=outside))
    needed = _needed(oom)
    error = problem.stack.overhead.error
    if oom.program is not None and needed > inside * (1 + error):
        found.append(finding("program_needs_more", needed=needed, predicted=inside))
    if oom.allocated is not None and needed > inside * (1 + error):
        found.append(finding("needs_more_inside", needed=needed, predicted=inside))
    if inside + outside > room * (1 - error):
        found.append(
            finding("too_large_as_predicted", needed=inside + outside, room=room)
            if inside + outside > room
            else finding("too_near_as_predicted", needed=inside + outside, room=room, error=error)
        )
        if inside + outside > room * (1 + error):
            found.insert(0, found.pop())  # whatever else is wrong, it would not have fitted
    if oom.program is None and (tensor := _tensor(oom.tried, problem, config)):
        found.append(tensor)
    if not found:
        found.append(finding("expected_to_fit", needed=inside + outside, room=room))
    return tuple(found), aid


def _of_others(
    facts: LogFacts, problem: Problem, inside: float, outside: float, capacity: float
) -> tuple[tuple[Finding, ...], Finding]:
    """What messages of memory outside the allocator mean: a device that it left too little of, or the host's memory.

    A library's message comes first, as the launcher ends the other processes of such a run."""
    libraries = dict.fromkeys(lost.of for lost in facts.lost if lost.of not in ("host", "signal"))
    if libraries:
        found = [finding("no_room_outside", libraries=tuple(libraries), expected=outside)]
        error = problem.stack.overhead.error
        needed = inside + outside
        if needed > capacity:
            found.append(finding("too_large_as_predicted", needed=needed, room=capacity))
        elif needed > capacity * (1 - error):
            found.append(finding("too_near_as_predicted", needed=needed, room=capacity, error=error))
        share = max(1 - (outside + OUTSIDE) / capacity, 0.0)
        return tuple(found), finding("keep_room_outside", room=outside + OUTSIDE, share=share)
    certain = [lost for lost in facts.lost if lost.of == "host"]
    if not certain:
        return (finding("ended_by_signal"),), finding("look_at_host")
    size = max((lost.size for lost in certain if lost.size), default=None)
    held = {} if size is None else {"size": size}
    return (finding("host_ran_out", **held),), finding("need_less_of_host")


def _of_lines(facts: LogFacts, inside: float, problem: Problem) -> tuple[Finding, ...]:
    reserved = problem.stack.overhead.logs_reserved
    values = [v for line in facts.memory if (v := line.reserved if reserved else line.allocated) is not None]
    if not values:
        values = [v for line in facts.memory if (v := line.allocated or line.reserved) is not None]
    if not values:
        return (finding("log_without_memory"),)
    off = inside / max(values) - 1
    agrees = abs(off) <= problem.stack.overhead.error
    return (finding("predicted_against_log", predicted=inside, off=off, agrees=agrees),)


def _tensor(tried: float, problem: Problem, config: ParallelConfig) -> Finding | None:
    """Which tensor the failed request looks like; none where none of the large ones is as large."""
    tokens = config.micro_batch * problem.job.seq_len / config.cp
    for name, values in (
        ("logits", problem.model.vocab / config.tp), ("logits_not_split", problem.model.vocab),
        ("scores", problem.job.seq_len / config.cp * _heads(problem) / config.tp),
    ):  # fmt: skip
        for bits, size in ((16, 2.0), (32, 4.0)):
            if abs(tried / (size * tokens * values) - 1) < SAME:
                return finding("failed_request", bits=bits, tensor=name)
    return None


def _heads(problem: Problem) -> int:
    """Of the first layer that has attention; of a model without any, 1."""
    return next((a.heads for a in problem.model.attentions), 1)


def cheapest(moves: Sequence[Move]) -> Move | None:
    """The move that fits and slows the step least."""
    return next(iter(moves), None)
