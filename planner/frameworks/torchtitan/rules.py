"""Which configurations does torchtitan refuse beyond the rules of no framework in particular?

Each names the file of torchtitan 0.2.2 or 0.3.0 it mirrors. Left out: what `planner.space.rules` holds.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.dialect import option
from planner.frameworks.known import named_as
from planner.frameworks.rulebook import FILLED_CHUNKS, every_row, no_scans, whole_kv_heads
from planner.frameworks.torchtitan.names import FLEX_BLOCK, FLOAT8, MODELS, NO_RECIPES
from planner.spec.config import CudaGraphs, Mask, Recompute, Schedule
from planner.spec.rule import Columns, Problem, Rule
from planner.spec.stack.kinds import AttentionKernel
from planner.spec.stack.losses import Chunked


def _sequence(columns: Columns, problem: Problem) -> Mask:
    tp, cp = columns["tp"].astype(np.int64), columns["cp"]
    parts = np.where(columns["tp"] > 1, tp, 1) * np.where(columns["cp"] > 1, 2 * cp, 1)
    return problem.job.seq_len % parts == 0


def _replicated(columns: Columns, problem: Problem) -> Mask:
    alone = columns["tp"].astype(np.int64) * columns["pp"] == 1
    return (columns["zero"] != 0) | ((columns["cp"] == 1) & ((columns["dp"] == 1) | alone))


def _microbatches(columns: Columns, problem: Problem) -> Mask:
    """torch's 1F1B refuses fewer than stages, GPipe does not; the looped ones only warn."""
    enough = columns["num_microbatches"] >= columns["pp"]
    return (columns["pp"] == 1) | enough | (columns["schedule"] == Schedule.GPIPE)


def _layers(columns: Columns, problem: Problem) -> Mask:
    """0.2.2 also takes one layer of so many, which the generic rule holds to equal distances."""
    whole = columns["recompute_layers"] >= -(-problem.model.num_layers // columns["pp"])
    return (columns["recompute"] != Recompute.FULL) | whole | problem.stack.limits.recompute_every


def _experts(columns: Columns, problem: Problem) -> Mask:
    whole = (columns["ep"] > 1) | (not problem.model.is_moe)
    return columns["etp"] == np.where(whole, 1, columns["tp"])


def _loss_chunks(columns: Columns, problem: Problem) -> Mask:
    return problem.job.seq_len % (columns["cp"].astype(np.int64) * _parts(problem)) == 0


def _parts(problem: Problem) -> int:
    loss = problem.stack.kernels.loss
    return loss.number if isinstance(loss, Chunked) else 1


def _flex_blocks(columns: Columns, problem: Problem) -> Mask:
    """0.3.0 runs FlexAttention wherever cp is above 1; 0.2.2's dense models run scaled dot-product attention."""
    cp = columns["cp"].astype(np.int64)
    whole = problem.job.seq_len % (cp * FLEX_BLOCK) == 0
    return (cp == 1) | whole | (problem.stack.kernels.attention is not AttentionKernel.FLASH)


def _filled(columns: Columns, problem: Problem) -> Mask:
    """The first and the last stage hold the embedding and the head."""
    split = problem.stack.split
    return every_row(columns, not isinstance(split, tuple) or 0 not in split[1:-1])


def _expert_mesh(columns: Columns, problem: Problem) -> Mask:
    """Experts are dealt over the ranks of a shard group and of tp, never over replicas."""
    groups = np.where(columns["hsdp"] > 0, columns["hsdp"], columns["dp"] * columns["cp"])
    shards = np.where(columns["zero"] > 0, groups, columns["cp"])
    return np.asarray((shards.astype(np.int64) * columns["tp"]) % columns["ep"] == 0)


def _table(problem: Problem) -> int:
    """Positions of the model's RoPE table in 0.3.0 [tokens], which takes the loss in parts; 0 where the model is none
    of torchtitan's, or the release is an older one, which makes the table as long as the sequences."""
    shortest = min(shipped.longest for shipped in MODELS.values())
    if problem.job.seq_len <= shortest or not isinstance(problem.stack.kernels.loss, Chunked):
        return 0
    name = named_as(problem.model, MODELS)
    return MODELS[name].longest if name else 0


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "rope-table", (), lambda c, p: every_row(c, not _table(p) or p.job.seq_len <= _table(p)),
        "torchtitan 0.3.0 takes sequences no longer than its RoPE table of {model}, {table} tokens; given {seq}",
        f"choose shorter sequences, or {option('stack', 'torchtitan-2024')}: 0.2.2 makes the table as long as they are",
        "torchtitan 0.3.0 models/common/decoder.py update_from_config; max_seq_len in models/*/__init__.py",
        lambda p: {"model": p.model.name, "table": f"{_table(p):,}", "seq": f"{p.job.seq_len:,}"},
    ),
    Rule(
        "float8-recipe", ("tp",), lambda c, p: every_row(c, p.job.precision not in NO_RECIPES),
        "torchtitan's float8 (torchao) scales by what each tensor holds at the time: it has no {recipe}",
        f"choose {option('precision', FLOAT8)}",
        "torchao float8/config.py ScalingType, without delayed scaling since 0.10 (pytorch/ao#1680, #1753); torchtitan "
        "0.3.0 components/quantization",
        lambda p: {"recipe": f"{NO_RECIPES.get(p.job.precision, '')}, which {p.job.precision} is"},
    ),
    no_scans("torchtitan", "torchtitan 0.3.0 models/; its qwen3_5 comes with a vision encoder"),
    Rule(
        "cuda-graph-scope", ("pp", "ep", "cuda_graph_impl"),
        lambda c, p: (c["cuda_graph_impl"] == CudaGraphs.NONE) | ((c["pp"] * c["ep"] == 1) & (not p.model.is_moe)),
        "CUDA graphs are captured of dense models without a pipeline", "set cuda_graph_impl=none",
        "torchtitan 0.3.0 config/configs.py disable_cuda_graphs; its configurations of experts disable them",
        told=("pp", "ep", "cuda_graph_impl"),
    ),
    Rule(
        "recompute-whole", ("pp", "recompute", "recompute_layers"), _layers,
        "torchtitan 0.3.0 recomputes all layers or none",
        "recompute all layers, or plan for torchtitan-2024, which takes one of so many",
        "torchtitan distributed/activation_checkpoint.py", told=("recompute_layers",),
    ),
    Rule(
        "experts-tp", ("tp", "ep", "etp"), _experts,
        "experts are sharded over tp without expert parallelism, else whole: etp must be tp with ep=1, and 1 with more",
        "set etp=tp with ep=1, etp=1 with more",
        "torchtitan 0.3.0 config/configs.py has no expert_tensor_parallel_degree; its models built on a mesh",
        told=("tp", "ep", "etp"),
    ),
    Rule(
        "expert-mesh", ("tp", "cp", "dp", "ep", "zero", "hsdp"), _expert_mesh,
        "ep must divide the ranks of a shard group times tp: replicas hold whole experts",
        "set zero=3 or a smaller ep", "torchtitan 0.3.0 distributed/parallel_dims.py build_mesh, efsdp",
        told=("ep", "tp", "zero", "hsdp"),
    ),
    Rule(
        "sp-with-tp", ("tp", "sp"), lambda c, p: (c["sp"] == 1) == (c["tp"] > 1),
        "tensor parallelism runs with sequence parallelism", "set sp=1",
        "torchtitan 0.2.2 models/llama3/infra/parallelize.py apply_tp", told=("tp", "sp"),
    ),
    whole_kv_heads("torchtitan models: rowwise and colwise plans; pytorch/torchtitan#2577"),
    Rule(
        "sequence-cp", ("tp", "cp"), _sequence,
        "tp x 2 cp must divide the sequence length, {seq}",
        "choose a smaller tp or cp", "torchtitan distributed/parallel_dims.py seq_len_divisor",
        lambda p: {"seq": p.job.seq_len}, told=("tp", "cp"),
    ),
    Rule(
        "loss-chunks", ("cp",), _loss_chunks,
        "cp x the parts that the loss is taken in, {parts}, must divide the sequence length, {seq}",
        "choose a smaller cp", "torchtitan 0.3.0 components/loss.py ChunkedLossWrapper",
        lambda p: {"parts": _parts(p), "seq": p.job.seq_len}, told=("cp",),
    ),
    Rule(
        "flex-cp", ("cp",), _flex_blocks,
        "cp x the positions of an attention mask's block, {block}, must divide the sequence length, {seq}",
        "choose a smaller cp, or a sequence length that it divides",
        "torch 2.13 distributed/tensor/experimental/_context_parallel/_attention.py _create_cp_block_mask",
        lambda p: {"block": FLEX_BLOCK, "seq": p.job.seq_len}, told=("cp",),
    ),
    Rule(
        "tied-pp", ("pp",), lambda c, p: (c["pp"] == 1) | (not p.model.tied_embeddings),
        "tied embeddings cannot be split over a pipeline", "set pp=1",
        "torchtitan models/qwen3 (enable_weight_tying with pp)", told=("pp",),
    ),
    Rule(
        "replicated-alone", ("tp", "cp", "pp", "dp", "zero"), _replicated,
        "replicated data parallelism (zero=0) must be the only kind",
        "choose zero=2 or 3", "torchtitan 0.2.2 models/llama3/infra/parallelize.py apply_ddp",
        told=("tp", "cp", "pp", "dp"),
    ),
    Rule(
        FILLED_CHUNKS, ("pp", "vpp"), _filled,
        "every stage but the first and the last must hold a layer; given stages of {split} layers",
        "give every stage a layer",
        "torchtitan 0.2.2 components/optimizer.py OptimizersContainer: an optimizer for each "
        "part of a model, which torch makes of no empty list",
        lambda p: {"split": ", ".join(map(str, p.stack.split)) if isinstance(p.stack.split, tuple) else ""},
    ),
    Rule(
        "no-zero-1", ("zero",), lambda c, p: c["zero"] != 1,
        "FSDP2 shards gradients with the states: zero must not be 1",
        "choose zero=2 or 3", "torchtitan parallelism.fsdp_reshard_after_forward", told=("zero",),
    ),
    Rule(
        "zb-h1-vpp", ("vpp", "schedule"), lambda c, p: (c["schedule"] != Schedule.ZB_H1) | (c["vpp"] > 1),
        "zb-h1 is InterleavedZeroBubble, which needs two or more stages per rank", "set vpp=2",
        "torchtitan 0.3.0 distributed/pipeline_parallel.py: multi-stage schedules", told=("vpp",),
    ),
    Rule(
        "microbatches-pp", ("pp", "schedule", "num_microbatches"), _microbatches,
        "there must be at least as many micro-batches as stages",
        "choose a smaller micro-batch", "torchtitan distributed/pipeline_parallel.py; pytorch/torchtitan#775",
        told=("pp", "num_microbatches"),
    ),
)  # fmt: skip
