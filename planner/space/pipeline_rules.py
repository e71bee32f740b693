"""Which pipelines can no framework run, and which does the stack's framework refuse: stages, chunks, schedules?

Left out: every other axis (`rules.py`, which holds the table of all rules).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.dialect import option
from planner.space.split import LAYERS_FEWER_FIRST, LAYERS_FEWER_LAST, greedy_head, split_greedily
from planner.spec.config import FOLDED_SCHEDULES, SCHEDULE_LABELS, Mask, Schedule
from planner.spec.rule import Columns, Problem, Rule
from planner.spec.stack.kinds import PipelineSplit

ARITHMETIC: Final = "arithmetic"
STACK: Final = "the stack's file (limits)"
NANOTRON_EMPTY_RANKS: Final = 2


def _layers_pp(columns: Columns, problem: Problem) -> Mask:
    chunks = columns["pp"].astype(np.int64) * columns["vpp"]
    if problem.stack.split is PipelineSplit.GREEDY:  # its own rule decides: stages-filled
        return columns["vpp"] == 1
    if problem.stack.split is PipelineSplit.EVEN:
        return problem.model.num_layers % chunks == 0
    if isinstance(problem.stack.split, tuple):  # given layer by layer
        return (chunks == len(problem.stack.split)) & (sum(problem.stack.split) == problem.model.num_layers)
    # the first and the last chunk of an interleaved pipeline can hold the embedding or the head alone
    return chunks <= problem.model.num_layers + 2 * (columns["vpp"] > 1)


def _nearly_equal_chunks(columns: Columns, problem: Problem) -> Mask:
    chunks = columns["pp"].astype(np.int64) * columns["vpp"]
    fewer = range(LAYERS_FEWER_FIRST + LAYERS_FEWER_LAST + 1)
    equal = np.any([(problem.model.num_layers + less) % chunks == 0 for less in fewer], axis=0)
    return (columns["vpp"] == 1) | equal | isinstance(problem.stack.split, tuple)


def _stages_filled(columns: Columns, problem: Problem) -> Mask:
    """nanotron deals blocks greedily by cost: the norm, the head and the loss can fill two ranks after the layers."""
    if problem.stack.split is not PipelineSplit.GREEDY:
        return np.ones(len(columns["pp"]), dtype=np.bool_)
    model, head = problem.model, greedy_head(problem.model)
    degrees, inverse = np.unique(columns["pp"], return_inverse=True)
    filled = [
        split_greedily(model.num_layers, int(pp), head).count(0) <= NANOTRON_EMPTY_RANKS for pp in degrees
    ]
    return np.array(filled, dtype=np.bool_)[inverse]


def _vpp_supported(columns: Columns, problem: Problem) -> Mask:
    if problem.stack.limits.interleaving:
        return np.ones(len(columns["vpp"]), dtype=np.bool_)
    return columns["vpp"] == 1


def _interleaving_remainder(columns: Columns, problem: Problem) -> Mask:
    rounds = (columns["vpp"] > 1) & ~np.isin(columns["schedule"], (Schedule.GPIPE, *FOLDED_SCHEDULES))
    return ~rounds | (columns["num_microbatches"] % columns["pp"] == 0)


def _schedule_supported(columns: Columns, problem: Problem) -> Mask:
    allowed = [SCHEDULE_LABELS.index(name) for name in problem.stack.limits.schedules]
    usual = np.where(columns["vpp"] > 1, Schedule.INTERLEAVED, Schedule.ONE_F_ONE_B)
    # chunks that no schedule of the stack runs are for vpp-supported to refuse
    return np.isin(columns["schedule"], allowed) | (columns["schedule"] == usual)


def _schedule_chunks(columns: Columns, problem: Problem) -> Mask:
    schedule, v = columns["schedule"], columns["vpp"]
    fits = np.zeros(len(v), dtype=np.bool_)
    for kind in Schedule:
        one, two, more = (kind.runs_chunks(count) for count in (1, 2, 3))
        fits |= (schedule == kind) & np.where(v == 1, one, np.where(v == 2, two, more))
    return np.where(columns["pp"] > 1, fits, schedule == Schedule.ONE_F_ONE_B)


def _schedule_microbatches(columns: Columns, problem: Problem) -> Mask:
    schedule, p, m = columns["schedule"], columns["pp"], columns["num_microbatches"]
    dual = np.isin(schedule, (Schedule.DUALPIPE, Schedule.DUALPIPE_V))
    even = (p % 2 == 0) & (m % 2 == 0)
    split = np.isin(schedule, (Schedule.ZB_H1, Schedule.ZB_H2))
    enough = np.where(dual, m >= 2 * p, np.where(split, m >= p, schedule >= 0))
    return enough & ((schedule != Schedule.DUALPIPE) | even)


STAGE_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "vpp-pp", ("pp", "vpp"), lambda c, p: (c["vpp"] == 1) | (c["pp"] > 1),
        "virtual stages need a pipeline", "set vpp=1", "Megatron-LM validate_args", told=("pp", "vpp"),
    ),
    Rule(
        "vpp-supported", ("vpp",), _vpp_supported,
        "the stack has no interleaved schedule", "set vpp=1", STACK, told=("vpp",),
    ),
    Rule(
        "layers-pp", ("pp", "vpp"), _layers_pp,
        "the layers, {layers}, must fill every one of pp x vpp chunks{evenly}",
        "choose fewer stages", "Megatron-LM validate_args",
        lambda p: {
            "layers": p.model.num_layers,
            "evenly": " evenly" if p.stack.split is PipelineSplit.EVEN else "",
        }, told=("pp", "vpp"),
    ),
    Rule(
        "nearly-equal-chunks", ("pp", "vpp"), _nearly_equal_chunks,
        "an interleaved pipeline is looked at where its pp x vpp chunks can hold equally many of the {layers} layers, "
        "but for up to 4 fewer at its ends (single layers may then move between chunks)",
        "choose a vpp that divides the layers of a stage, since ranks wait at every change between unequal chunks, or "
        f"state the split: planner estimate {option('set', 'layout=')}",
        "arithmetic of the schedule (planner.schedule simulates it)", lambda p: {"layers": p.model.num_layers},
        told=("pp", "vpp"),
    ),
    Rule(
        "stages-filled", ("pp",), _stages_filled,
        "nanotron's split by cost must leave at most 2 pipeline ranks without a layer ({layers} layers)",
        "choose fewer stages", "nanotron's pipeline blocks",
        lambda p: {"layers": p.model.num_layers}, told=("pp",),
    ),
)  # fmt: skip
SCHEDULE_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "interleaving-remainder", ("pp", "vpp", "schedule", "num_microbatches"), _interleaving_remainder,
        "pp must divide the number of micro-batches when stages are interleaved",
        "change the micro-batch or set vpp=1", "Megatron-LM schedules, group size pp", told=("pp", "num_microbatches"),
    ),
    Rule(
        "schedule-supported", ("vpp", "schedule"), _schedule_supported,
        "the stack runs the pipeline schedules {names}", "choose one of these", STACK,
        lambda p: {"names": ", ".join(p.stack.limits.schedules)}, told=("schedule",),
    ),
    Rule(
        "schedule-chunks", ("pp", "vpp", "schedule"), _schedule_chunks,
        "1f1b, zb-h2 and dualpipe hold 1 chunk a rank, zb-v and dualpipev 2, interleaved 2 or more, and without a "
        "pipeline there is only 1f1b",
        "change vpp or the schedule", "the schedules' definitions (planner.schedule.generate)",
        told=("schedule", "pp", "vpp"),
    ),
    Rule(
        "schedule-microbatches", ("pp", "schedule", "num_microbatches"), _schedule_microbatches,
        "zb-h1 and zb-h2 need as many micro-batches as stages, dualpipe and dualpipev two per rank, dualpipe even "
        "numbers of both",
        "choose a smaller micro-batch, less dp or another schedule",
        "torch 2.13 distributed/pipelining/schedules.py ScheduleDualPipeV; deepseek-ai/DualPipe dualpipe.py step",
        told=("schedule", "pp", "num_microbatches"),
    ),
)  # fmt: skip
