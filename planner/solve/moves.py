"""What would make a configuration fit, and what does each move cost?

Moves change one thing of a configuration: a degree, the micro-batch, sharding, recomputation, offload, or the
allocator's setting. All are costed by the same equations as the search, in one table. Left out: combinations, which the
search tries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.host_memory import on_host
from planner.cost.model import CostModel
from planner.cost.table import CostTable
from planner.space.axes import stack_modules
from planner.space.legality import explain_config
from planner.space.split import deal_layers
from planner.spec.config import (
    OFFLOAD_OPTIMIZER,
    ConfigTable,
    ParallelConfig,
    Recompute,
    Schedule,
    offload_text,
    ranks_of_chunks,
)
from planner.spec.findings import Finding, finding
from planner.spec.rule import Problem, Rule

EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
OFFLOADS = (1, 3, 4)  # optimizer states, these and parameters, activations
Changes = Iterator[tuple[Finding, ParallelConfig]]


@dataclass(frozen=True)
class Move:
    """One change. `saved`: bytes of device memory; `slower`: change of the step time [1]; `fits`: surely, on its host
    as well."""

    change: Finding
    config: ParallelConfig
    saved: float
    slower: float
    fits: bool


def memory_moves(
    model: CostModel, config: ParallelConfig, rules: Sequence[Rule], limit: float, dealt: CostModel | None = None
) -> tuple[Move, ...]:  # fmt: skip
    """Legal single changes that save memory, those that fit first, then by bytes saved.

    `dealt`: the model whose layers are dealt as a plan says; moves that keep the number of chunks keep that, those
    that change it are dealt by the stack.
    """
    problem, dealt = model.problem, dealt or model
    stages = _layers_of_ranks(dealt, config)
    start = dealt.evaluate(ConfigTable.of([config]), keep_terms=True)
    before, time = float(start.device_memory[0]), float(start.step_time[0])
    moves = [*_allocator_move(start, config, limit, bool(on_host(dealt, ConfigTable.of([config]))[0]))]
    for same, costs in ((True, dealt), (False, model)):
        tried = [
            (change, changed)
            for change, changed in _legal(_changes(config, problem, stages), config, costs.problem, rules)
            if ((changed.pp, changed.vpp) == (config.pp, config.vpp)) is same
        ]
        if not tried:
            continue
        table = ConfigTable.of([changed for _, changed in tried])
        cost = costs.evaluate(table)
        fits = (cost.device_memory <= limit) & on_host(costs, table)
        for row, (change, changed) in enumerate(tried):
            if (after := float(cost.device_memory[row])) < before:
                slower = float(cost.step_time[row]) / time - 1
                moves.append(Move(change, changed, before - after, slower, bool(fits[row])))
    return tuple(sorted(moves, key=lambda move: (not move.fits, -move.saved)))


def _allocator_move(start: CostTable, config: ParallelConfig, limit: float, hosted: bool) -> Iterator[Move]:
    """Segments that grow, where the stack's fragmentation is counted: all of that term, at no time.

    Blocks of other sizes extend a segment instead of leaving it unused (PyTorch docs/source/notes/cuda.rst,
    PYTORCH_CUDA_ALLOC_CONF; pytorch/pytorch#96995). nvidia-cosmos/cosmos-rl#388: 127 GB reserved become 97, 61 of them
    allocated; cp2k/cp2k#5672: 28 % of a process' peak less. What stays unused is not known, so that the term is the
    most that this saves. Exported launch files have the setting.
    """
    detail = start.detail
    assert detail is not None, "costed with keep_terms"
    wasted = np.array([terms.get("fragmentation", np.zeros(1)).max() for terms in detail.memory.values()])
    if not wasted.any():
        return
    without = [
        sum(value[0] for name, value in terms.items() if name != "fragmentation") + detail.outside[0]
        for terms in detail.memory.values()
    ]
    after = float(np.max(np.where(detail.classes.count[detail.class_row[0]] > 0, without, -np.inf)))
    saved = float(start.device_memory[0]) - after
    if saved > 0:
        setting = finding("growing_segments", setting=EXPANDABLE)
        yield Move(setting, config, saved, 0.0, hosted and after <= limit)


def _legal(
    changes: Iterable[tuple[Finding, ParallelConfig]],
    config: ParallelConfig,
    problem: Problem,
    rules: Sequence[Rule],
) -> Changes:
    """Changes that are legal, without CUDA graphs where these alone forbid one."""
    for change, changed in changes:
        launched = replace(changed, cuda_graph_impl=0, cuda_graph_modules=0)
        if not explain_config(changed, problem, rules):
            yield change, changed
        elif config.cuda_graph_impl and not explain_config(launched, problem, rules):
            yield change.model_copy(update={"values": {**change.values, "cuda_graphs": "none"}}), launched


def _layers_of_ranks(model: CostModel, config: ParallelConfig) -> set[int]:
    """The numbers of layers that pipeline ranks hold."""
    spec, placement = model.problem.model, Schedule(config.schedule).placement
    ends = (model.embedding_in_layers, model.head_in_layers)
    chunks = deal_layers(spec.num_layers, config.pp, config.vpp, model.problem.stack.split, *ends, placement)
    ranks = ranks_of_chunks(config.pp, config.vpp, placement)
    return {sum(n for n, r in zip(chunks, ranks, strict=True) if r == rank) for rank in range(config.pp)}


def _changes(config: ParallelConfig, problem: Problem, stages: set[int]) -> Changes:
    """Single changes that could save memory; `stages`: numbers of layers that pipeline ranks hold."""
    yield from _recomputations(config, problem, stages)
    if config.micro_batch > 1:
        half = config.micro_batch // 2
        yield finding("axes", micro_batch=half), _with_batches(replace(config, micro_batch=half), problem)
    for axis in ("tp", "pp", "cp"):
        if config.dp % 2 == 0:
            wider = replace(config, dp=config.dp // 2, **{axis: 2 * getattr(config, axis)})
            if axis == "tp" and 1 in problem.stack.limits.sequence_parallel:
                wider = replace(wider, sp=1)
            if axis == "pp" and wider.recompute_layers:
                wider = replace(wider, recompute_layers=-(-config.recompute_layers // 2))
            yield finding("axes", **{axis: getattr(wider, axis)}), _with_batches(wider, problem)
    if problem.model.is_moe:
        yield finding("axes", ep=2 * config.ep), replace(config, ep=2 * config.ep)
    zeros = problem.stack.zero_with_pp if config.pp > 1 else problem.stack.limits.zero
    for zero in zeros:
        if zero > config.zero:
            yield finding("axes", zero=zero), replace(config, zero=zero)
    for bits in OFFLOADS:
        if bits & ~config.offload:
            sharded = max(config.zero, int(bits & OFFLOAD_OPTIMIZER > 0))  # what hosts states is ZeRO
            hosted = finding("host_memory", offload=offload_text(bits))
            yield hosted, replace(config, offload=config.offload | bits, zero=sharded)
    if config.cuda_graph_impl:
        launched = replace(config, cuda_graph_impl=0, cuda_graph_modules=0)
        yield finding("axes", cuda_graphs="none"), launched


def _recomputations(config: ParallelConfig, problem: Problem, stages: set[int]) -> Changes:
    """`stages`: numbers of layers that pipeline ranks hold."""
    deep, least, most = -(-problem.model.num_layers // config.pp), min(stages), max(stages)
    if config.recompute == Recompute.NONE and (modules := stack_modules(problem)):
        chosen = replace(config, recompute=int(Recompute.SELECTIVE), recompute_modules=modules)
        yield finding("axes", recompute="selective"), chosen
    full = replace(config, recompute=int(Recompute.FULL), recompute_modules=0)
    if config.recompute_layers < deep:
        every = finding("recompute_layers", layers=deep, all=True, least_held=least, most_held=most)
        yield every, replace(full, recompute_layers=deep)
    half = config.vpp * max(1, deep // 2 // config.vpp)
    if config.recompute_layers < half < deep and problem.stack.limits.partial_full_recompute:
        some = finding("recompute_layers", layers=half, all=False, least_held=least, most_held=most)
        yield some, replace(full, recompute_layers=half)


def _with_batches(config: ParallelConfig, problem: Problem) -> ParallelConfig:
    """The configuration with as many micro-batches as its degrees leave."""
    number = max(problem.job.global_batch // (config.dp * config.micro_batch), 1)
    return replace(config, num_microbatches=number)


def largest_micro_batch(model: CostModel, config: ParallelConfig, rules: Sequence[Rule], limit: float) -> int:
    """The largest legal micro-batch that fits with everything else held; 0 if none does [sequences]."""
    share = max(model.problem.job.global_batch // config.dp, 1)
    sizes = (size for size in range(1, share + 1) if share % size == 0)
    rows = [replace(config, micro_batch=b, num_microbatches=share // b) for b in sizes]
    rows = [row for row in rows if not explain_config(row, model.problem, rules)]
    if not rows:
        return 0
    table = ConfigTable.of(rows)
    fits = (model.evaluate(table).device_memory <= limit) & on_host(model, table)
    return max((row.micro_batch for row, good in zip(rows, fits, strict=True) if good), default=0)


def sequence_step(config: ParallelConfig) -> int:
    """What longer sequences are tried in steps of: whole tiles of kernels, and parts for all ranks of tp and cp, two of
    them for each of cp [tokens]."""
    return math.lcm(128, config.tp * config.cp, 2 * config.cp)


def longest_sequence(
    problem: Problem, config: ParallelConfig, limit: float, model_of: Callable[[Problem], CostModel]
) -> int:
    """The longest sequence that fits, all else held, in steps of `sequence_step`; 0 if none does [tokens]."""
    step = sequence_step(config)

    def fits(steps: int) -> bool:
        asked = replace(problem, job=problem.job.with_length(steps * step))
        model, table = model_of(asked), ConfigTable.of([config])
        return bool(model.evaluate(table).device_memory[0] <= limit and on_host(model, table)[0])

    if not fits(1):
        return 0
    low, high = 1, 2
    while high * step <= 2**26 and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * step
