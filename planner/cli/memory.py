"""What does `planner estimate --memory` answer? Its body; options are in `cli`.

Left out: printing and exit codes; an illegal configuration, which is answered as without the option.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.cli.campaign import Answer
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.cost.model import CostModel
    from planner.report.memory import Captured
    from planner.spec.config import ParallelConfig
    from planner.spec.findings import Finding
    from planner.spec.planfile import Plan
    from planner.spec.rule import Problem, Rule


def explain_memory(problem: Problem, assumed: tuple[Finding, ...], plan: Plan, stage: int | None) -> Answer:
    """Memory of one legal configuration by pipeline rank, moment and term, and what would save some."""
    from planner.ask.request import cost_model
    from planner.campaign.run import checkpoint_sizes
    from planner.cost.host_memory import host_need
    from planner.cost.model import CostModel
    from planner.cost.network.communicators import communicator_bytes
    from planner.report.memory import (
        CONTEXT,
        RESERVED,
        MemoryReport,
        memory_document,
        memory_facts,
        stage_terms,
    )
    from planner.report.words import worded
    from planner.solve.moves import largest_micro_batch, longest_sequence, memory_moves, sequence_step
    from planner.space.framework_rules import all_rules_for
    from planner.spec.config import ConfigTable
    from planner.spec.verdict import MemoryRoom

    choice = plan.choices[0]
    config, model = choice.config.parallel(), cost_model(problem)
    limit = MemoryRoom.of(problem, plan.headroom).sure
    if stage is not None and not 0 <= stage < config.pp:
        must = f"--stage must be a pipeline rank from 0 to {config.pp - 1}"
        raise InputError(must, str(stage), "leave it out for all of them")
    dealt = model.with_split(choice.split.layers_per_chunk) if choice.split else model
    rules = all_rules_for(problem.stack.framework)
    cost = dealt.evaluate(ConfigTable.of([config]), keep_terms=True)
    assert cost.detail is not None, "costed with keep_terms"
    overhead = problem.stack.overhead
    table = ConfigTable.of([config])
    copies = cost.detail.classes.copies[cost.detail.class_row]
    replicas = copies * (table["dp"] * table["cp"]).astype(float)
    opened = communicator_bytes(table, replicas, problem.cluster, problem.stack.communication.dispatcher)
    outside = {
        CONTEXT: overhead.context,
        **{f"communicators_{axis}": float(value[0]) for axis, value in opened.items() if value[0]},
    }
    born = problem.stack.engine.born_in_update(problem.job.optimizer)
    full, weights = checkpoint_sizes(problem)
    stages = stage_terms(cost, 0, outside, born)
    host = host_need(dealt, config)
    found = MemoryReport(
        choice=choice,
        stages=stages,
        captured=_captured(dealt, config, rules),
        moves=memory_moves(model, config, rules, limit, dealt),
        micro_batch=largest_micro_batch(dealt, config, rules, limit),
        sequence=longest_sequence(
            dealt.problem, config, limit, lambda asked: CostModel(asked, model.kernels, model.links)
        ),
        sequence_step=sequence_step(config),
        checkpoint=full,
        weights=weights,
        host=float(host.states[0] + host.activations[0]),
        host_memory=problem.cluster.host_memory,
        staging=float(host.staging[0]),
        error=overhead.error,
        counter=RESERVED if overhead.logs_reserved else "allocated memory",
        assumptions=assumed,
        words=problem.cluster.accelerator.architecture.words,
    )
    report = worded(found)
    return Answer(plan.found, memory_facts(report, stage), memory_document(report, stage))


def _captured(model: CostModel, config: ParallelConfig, rules: Sequence[Rule]) -> Captured | None:
    """By how much the configuration's graphs raise its peak, or the widest legal ones would."""
    from planner.report.memory import Captured
    from planner.space.legality import explain_config
    from planner.spec.config import FIXED_SHAPES, ConfigTable, CudaGraphs, module_mask

    plain = replace(config, cuda_graph_impl=0, cuda_graph_modules=0)
    with_graphs = [config] if config.cuda_graph_impl else []
    if not with_graphs:
        shapes = module_mask(FIXED_SHAPES)
        for impl, modules in (
            (CudaGraphs.TRANSFORMER_ENGINE, 0), (CudaGraphs.TRANSFORMER_ENGINE, shapes), (CudaGraphs.FULL_ITERATION, 0),
        ):  # fmt: skip
            with_graphs.append(replace(config, cuda_graph_impl=int(impl), cuda_graph_modules=modules))
        with_graphs = [one for one in with_graphs if not explain_config(one, model.problem, rules)]
    if not with_graphs:
        return None
    chosen = with_graphs[0]
    peaks = model.evaluate(ConfigTable.of([plain, chosen])).device_memory
    name = next(part for part in chosen.describe().split() if part.startswith("graphs:"))
    return Captured(name.removeprefix("graphs:"), float(peaks[1] - peaks[0]), bool(config.cuda_graph_impl))
