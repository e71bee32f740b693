"""What does `planner estimate --memory` answer? Its body; options are in `cli`.

Left out: printing and exit codes; an illegal configuration, which is answered as without the option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.cli_campaign import Answer
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.cost.stages import StageClasses
    from planner.spec.config import ParallelConfig
    from planner.spec.planfile import Plan
    from planner.spec.rule import Problem


def explain_memory(problem: Problem, assumed: tuple[str, ...], plan: Plan, stage: int | None) -> Answer:
    """Memory of one legal configuration by pipeline rank, moment and term, and what would save some."""
    from planner.campaign.run import checkpoint_sizes
    from planner.cost.communicators import communicator_bytes
    from planner.cost.host_memory import host_need
    from planner.cost.model import CostModel
    from planner.report.memory import (
        MemoryReport,
        graph_pool_bound,
        memory_document,
        memory_facts,
        stage_terms,
    )
    from planner.request import cost_model
    from planner.solve.moves import largest_micro_batch, longest_sequence, memory_moves
    from planner.space.framework_rules import all_rules_for
    from planner.spec.config import ConfigTable
    from planner.spec.job import OPTIMIZERS
    from planner.spec.stack import StateEngine

    choice = plan.choices[0]
    config, limit, model = choice.config.parallel(), choice.memory.limit, cost_model(problem)
    if stage is not None and not 0 <= stage < config.pp:
        must = f"--stage must be a pipeline rank from 0 to {config.pp - 1}"
        raise InputError(must, str(stage), "leave it out for all of them")
    dealt = model.with_split(choice.split.layers_per_chunk) if choice.split else model
    rules = all_rules_for(problem.stack.framework)
    cost = dealt.evaluate(ConfigTable.of([config]), keep_terms=True)
    assert cost.detail is not None, "costed with keep_terms"
    overhead, states = problem.stack.overhead, problem.stack.states
    table = ConfigTable.of([config])
    copies = cost.detail.classes.copies[cost.detail.class_row]
    replicas = copies * (table["dp"] * table["cp"]).astype(float)
    opened = communicator_bytes(table, replicas, problem.cluster, problem.stack.communication.dispatcher)
    outside = {
        "cuda_context": overhead.context,
        **{f"communicators_{axis}": float(value[0]) for axis, value in opened.items() if value[0]},
    }
    moments = OPTIMIZERS[problem.job.optimizer].moment_bytes
    born = moments / (moments + states.master) if states.engine is StateEngine.TORCH else 0.0
    full, weights = checkpoint_sizes(problem)
    stages = stage_terms(cost, 0, outside, born)
    host = host_need(dealt, config)
    captured = problem.stack.framework == "megatron"
    report = MemoryReport(
        choice=choice,
        stages=stages,
        cuda_graphs=graph_pool_bound(
            stages, _inputs_of_layers(problem, config, cost.detail.classes, int(cost.detail.class_row[0]))
        )
        if captured
        else None,
        moves=memory_moves(model, config, rules, limit, dealt),
        micro_batch=largest_micro_batch(dealt, config, rules, limit),
        sequence=longest_sequence(
            dealt.problem, config, limit, lambda asked: CostModel(asked, model.kernels, model.links)
        ),
        checkpoint=full,
        weights=weights,
        host=float(host.states[0] + host.activations[0]),
        host_memory=problem.cluster.host_memory,
        staging=float(host.staging[0]),
        error=overhead.error,
        counter="reserved memory" if overhead.logs_reserved else "allocated memory",
        assumptions=assumed,
    )
    return Answer(plan.found, memory_facts(report, stage), memory_document(report, stage))


def _inputs_of_layers(
    problem: Problem, config: ParallelConfig, classes: StageClasses, pipeline: int
) -> list[float]:
    """Bytes of the inputs of all layers of the micro-batches in flight, of each class of stages by its earliest rank,
    and of two gradients: 1F1B and interleaved stages, each chunk by its own micro-batches."""
    from planner.schedule.held import interleaved_moments
    from planner.spec.precision import RECIPES

    width = RECIPES[problem.job.precision].activation_bytes * problem.model.hidden
    tokens = config.micro_batch * problem.job.seq_len / (config.cp * (config.tp if config.sp else 1))
    found = []
    for j, ranks in enumerate(classes.members[pipeline]):
        held = float(classes.layers[pipeline, j].sum()) * min(config.num_microbatches, config.pp - ranks[0])
        if config.vpp > 1:
            layers = [float(len(chunk)) for chunk in classes.chunks[pipeline][j]]
            layers[-1] += problem.model.mtp_layers * (config.pp - 1 in ranks)
            moments, _ = interleaved_moments(config.pp, config.vpp, config.num_microbatches, ranks[0])
            held = float((moments @ layers).max())
        found.append((ranks[0], width * tokens * (held + 2)))
    return [copies for _, copies in sorted(found)]
