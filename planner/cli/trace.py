"""What does `planner trace` do? Times the pipeline of a plan pass by pass, and writes a Chrome trace.

Left out: how events are laid out (`report/trace.py`), and configurations that no plan holds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import FASTEST, CalibrationOption, ChoiceOption, ClusterOption, PlanArgument
from planner.cli.output import check_output
from planner.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.chunks import ChunkTimes
    from planner.cost.table import CostDetail
    from planner.report.trace import MemoryLevels, TracedStep
    from planner.schedule.actions import ActionTable
    from planner.schedule.generate import NamedSchedule
    from planner.spec.config import ParallelConfig, Schedule
    from planner.spec.planfile import Choice, Plan

_AFTER = (
    "dp_comm",
    "optimizer",
    "host_transfer",
    "step_overhead",
    "memory_pressure",
    "stragglers",
    "own_runs",
)  # parts of a step after its pipeline
_GRID, _ROUNDS = 17, 5  # hops tried at once, and how often the interval is narrowed
EPILOG = "\b\nExample:\n  planner trace plan.json -o trace.json"

OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Trace to write; - prints it.")
]
ScheduleOption = Annotated[
    str | None,
    typer.Option("--schedule", metavar="NAME", help="Trace the same configuration under another schedule."),
]
RanksOption = Annotated[
    str | None,
    typer.Option("--ranks", metavar="A-B,C,...", help="Pipeline ranks to draw (default: all that fit)."),
]


def trace(
    plan: PlanArgument,
    output: OutputOption,
    choice: ChoiceOption = FASTEST,
    schedule: ScheduleOption = None,
    ranks: RanksOption = None,
    cluster: ClusterOption = None,
    calibration: CalibrationOption = None,
) -> int:
    """Write one step as a Chrome/Perfetto trace. Every pass of every pipeline rank, messages and memory."""
    from planner.report.trace import trace_document, trace_text
    from planner.spec.load_plan import load_plan
    from planner.spec.save import save_text

    to_stdout = str(output) == "-"
    written = None if to_stdout else output
    check_output(written, plan, cluster, calibration)
    made = load_plan(plan)
    check_output(written, made)
    step = traced_step(made, made.index(choice), schedule, cluster, calibration)
    drawn = None if ranks is None else parse_ranks(ranks, step.timeline.table.ranks)
    document = trace_document(step, drawn)
    text = trace_text(document)
    if to_stdout:
        sys.stdout.write(text)
        return 0
    save_text(text, output)
    for key in ("configuration", "schedule", "note"):
        if key in document["otherData"]:
            sys.stderr.write(f"{key}: {document['otherData'][key]}\n")
    sys.stderr.write(
        f"{len(document['traceEvents']):,} events written to {output}; open it in ui.perfetto.dev\n"
    )
    return 0


def parse_ranks(text: str, ranks: int) -> list[int]:
    """The ranks that "0-3,15" names. Raises `InputError`."""
    hint = f"write ranks from 0 to {ranks - 1} like --ranks 0-1,{ranks - 1}"
    named: set[int] = set()
    for part in text.split(","):
        ends = part.strip().split("-")
        if len(ends) > 2 or not all(end.strip().isdecimal() and len(end.strip()) < 9 for end in ends):
            raise InputError("--ranks must name pipeline ranks", repr(text), hint)
        low, high = int(ends[0]), int(ends[-1])
        if not low <= high < ranks:
            raise InputError(f"--ranks must lie below {ranks}, in rising order", part.strip(), hint)
        named |= set(range(low, high + 1))
    return sorted(named)


def traced_step(
    plan: Plan, index: int, schedule: str | None, cluster: str | None, calibration: Path | None = None
) -> TracedStep:
    """The step of the plan's `index`-th configuration, timed pass by pass. Raises `PlannerError`."""
    from planner.ask.planned import check_same, planned_problem
    from planner.ask.request import cost_model
    from planner.cost.chunks import kept_by_chunk
    from planner.cost.simulated import evaluate_exactly, simulator_of
    from planner.report.trace import TracedStep
    from planner.schedule.generate import canonical_name, named_schedule
    from planner.schedule.simulate import simulate
    from planner.spec.config import ConfigTable, Schedule

    choice = plan.choice(index)
    config = choice.config.parallel()
    model = cost_model(planned_problem(plan, choice, cluster, calibration))
    if choice.split is not None:
        model = model.with_split(choice.split.layers_per_chunk)
    rows = ConfigTable.of([config])
    simulator = simulator_of(model)
    cost = evaluate_exactly(model, rows, simulator)
    assert cost.detail is not None, "costed with keep_terms"
    check_same(choice, float(cost.step_time[0]))
    time = {name: float(values[0]) for name, values in cost.detail.time.items()}
    chunks = simulator.chunk_times(config)
    own = simulator.order(config, chunks.stage_times())
    hop = exposed_hop(own, chunks, sum(v for name, v in time.items() if name not in _AFTER))
    table = own if schedule is None else _order(config, schedule, chunks)
    timeline = simulate(table, chunks.stage_times((hop,)))
    name = schedule or canonical_name(Schedule(config.schedule))
    traced = Schedule(config.schedule) if schedule is None else named_schedule(schedule).schedule
    waste = model.problem.stack.overhead.fragmentation
    return TracedStep(
        timeline=timeline,
        chunks=chunks,
        hop=hop,
        head=float(model.layers.edges(rows).head[0]),
        once={part: time[part] for part in _AFTER},
        memory=_levels(
            cost.detail, config, traced, kept_by_chunk(model.layers, config, chunks.layers), waste
        ),
        facts=_facts(
            plan,
            choice,
            name,
            timeline.makespan,
            time,
            hop,
            chunks,
            bool(table.joined.any()) and not chunks.hidden.any(),
        ),
    )


def _order(config: ParallelConfig, schedule: str | None, chunks: ChunkTimes) -> ActionTable:
    """The order of the passes: the configuration's own, or that of another schedule over its chunks."""
    from planner.schedule.generate import NamedSchedule, action_table, named_schedule
    from planner.schedule.memory_limited import memory_limited_table
    from planner.spec.config import Schedule

    p, m, v = config.pp, config.num_microbatches, config.vpp
    named = NamedSchedule(Schedule(config.schedule)) if schedule is None else named_schedule(schedule)
    try:
        if named.adaptive:
            _check_adaptive(named, v)
            return memory_limited_table(named.schedule, p, m, chunks.stage_times(), None, v)
        return action_table(named.schedule, p, m, v, in_rounds=named.in_rounds)
    except InputError as error:
        if schedule is None:
            raise
        given = f"{error.given}, in {config.describe()} with {m} micro-batches"
        hint = "trace a plan of another shape: planner plan or estimate with --set pp=, --set vpp=, --global-batch"
        raise InputError(error.must, given, hint) from None


def _check_adaptive(named: NamedSchedule, v: int) -> None:
    from planner.spec.config import FOLDED_SCHEDULES

    if named.schedule in FOLDED_SCHEDULES and v != 2:
        raise InputError("this schedule must have two stages per rank", f"vpp {v}")


def exposed_hop(table: ActionTable, chunks: ChunkTimes, pipeline: float) -> float:
    """The message time at which the simulated pipeline takes `pipeline` seconds, as in the plan [s].

    A plan counts the part of a message that compute does not hide, and 1F1B's messages by a closed form. The makespan
    is convex and piecewise linear in the hop, so narrowing an interval and a straight line inside it suffice.
    """
    import numpy as np

    from planner.schedule.graph import dependency_graph
    from planner.schedule.simulate import makespans

    if len(chunks.forward) == 1 or chunks.hop <= 0:
        return 0.0
    graph = dependency_graph(table)
    low, high = 0.0, chunks.hop

    def at(hops: Any) -> Any:
        return makespans(graph, chunks.stage_times(tuple(float(h) for h in hops)))

    while at([high])[0] < pipeline:
        low, high = high, 2 * high
    grid, took = np.array([low, high]), at([low, high])
    if took[0] >= pipeline:
        return 0.0
    for _ in range(_ROUNDS):
        grid = np.linspace(grid[0], grid[-1], _GRID)
        took = at(grid)
        i = int(np.searchsorted(took, pipeline))
        i = min(max(i, 1), len(grid) - 1)
        grid, took = grid[i - 1 : i + 1], took[i - 1 : i + 1]
    return float(np.interp(pipeline, took, grid))


def _levels(
    detail: CostDetail, config: ParallelConfig, schedule: Schedule, kept: NDArray[np.float64], waste: float
) -> MemoryLevels:
    """Bytes of every rank and chunk, as the plan counts them: `kept` by a micro-batch of every chunk; of a folded or
    mirrored model every chunk of a rank as much as the others.

    Where `schedule` puts chunks on other ranks than the plan, only activations are known; DualPipe's two copies of
    the model are the sum of two of the plan's ranks.
    """
    import numpy as np

    from planner.report.trace import MemoryLevels
    from planner.spec.config import Placement, Schedule, ranks_of_chunks

    p, v = config.pp, config.vpp
    own, other = Schedule(config.schedule).placement, schedule.placement
    class_of = {
        r: j for j, ranks in enumerate(detail.classes.members[int(detail.class_row[0])]) for r in ranks
    }
    classes = [class_of[rank] for rank in range(p)]
    left_out, fixed = ("activations", "fragmentation", "working_set", "weight_gradients_due"), {}
    for phase in ("backward", "loss", "head_backward", "optimizer"):
        terms = {name: value[0, classes] for name, value in detail.memory[phase].items()}
        rest = [value for name, value in terms.items() if name not in left_out]
        fixed[phase] = np.sum(rest, axis=0) + float(detail.outside[0])
    of_chunk = ranks_of_chunks(p, v, own)
    mean = (detail.kept[0, classes] / v)[of_chunk]
    chunk = (kept if own is Placement.LOOPED else mean) * (1.0 + waste)
    working = detail.memory["backward"]["working_set"][0, classes][of_chunk]
    held, optimizer = fixed["backward"], fixed["optimizer"]
    loss, head = (
        float(fixed[phase][of_chunk[-1]] - held[of_chunk[-1]]) for phase in ("loss", "head_backward")
    )
    if other is Placement.FOLDED and own is not other:
        none = np.zeros(p)
        return MemoryLevels("activations", none, chunk, np.zeros(p * v), 0.0, 0.0, none)
    if other is Placement.MIRRORED and own is not other:  # two copies of the model in opposite directions
        once = detail.memory["backward"]["workspace"][0, classes] + float(detail.outside[0])
        held, optimizer = (both + both[::-1] - once for both in (held, optimizer))
    return MemoryLevels("memory", held, chunk, working, loss, head, optimizer)


def _facts(
    plan: Plan, choice: Choice, schedule: str, makespan: float, time: dict[str, float], hop: float,
    chunks: ChunkTimes, pairs: bool,
) -> dict[str, Any]:  # fmt: skip
    """What the document says about itself."""
    facts = {
        "model": plan.subject.model.name,
        "cluster": f"{plan.subject.cluster.devices} devices of {plan.subject.cluster.name}",
        "stack": choice.stack,
        "configuration": choice.config.text,
        "schedule": schedule,
        "planned_step_time_s": choice.step_time,
        "pipeline_s": makespan,
        "step_s": makespan + sum(time[name] for name in _AFTER),
        "message_s": chunks.hop,
        "exposed_message_s": hop,
        "memory": MEMORY_COUNTS,
        "layers_of_chunks": list(chunks.layers),
    }
    notes = []
    if pairs:
        notes.append("overlapped pairs take the sum of their halves: no gain of overlap is assumed")
    if time["own_runs"] < 0:
        taken = -time["own_runs"]
        notes.append(
            f"passes as predicted: by your own runs the step ends {taken:.6g} s before the last of them"
        )
    return facts | ({"note": "; ".join(notes)} if notes else {})


MEMORY_COUNTS = (
    "model states, buffers and what lies outside the allocator, activations of the micro-batches in flight with "
    "fragmentation, a layer's working set during backward passes, logits during loss and its backward, temporaries "
    "of the optimizer. The chunks of a rank are counted as equal where the model is folded. Activations count from the "
    "start of the forward to the end of the backward, or of the weight gradient where that runs apart. Not drawn: the "
    "rise and fall within a pass, and reduction of gradients. Counters called activations count nothing else: their "
    "schedule places chunks on other ranks than the plan"
)
