"""Which configurations can MaxText not launch, on TPUs and GPUs?

Weights are sharded by the rules of its mesh (`mesh.py`); a pipeline is one SPMD program, in which all stages are alike.
On other devices, for which its stack stands in for what XLA compiles, these rules say nothing. Left out: what a job or
a model breaks under any configuration, which `settings.py` refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from planner.dialect import option
from planner.frameworks.maxtext.mesh import axis_columns, fills_slices
from planner.frameworks.maxtext.names import ELSEWHERE, NOT_ACCUMULATED, QUANTIZATION, TITLE, Repeated
from planner.frameworks.rulebook import every_row, no_scans, only, whole_kv_heads, whole_recompute
from planner.spec.attention import AttentionKind
from planner.spec.config import Mask, Recompute, Schedule, recomputed_modules
from planner.spec.job import Optimizer
from planner.spec.machine.accelerator import Architecture
from planner.spec.rule import Columns, Problem, Rule

BLOCK: Final = 128  # positions of a block of Splash attention, at least
_ADAM: Final = (Optimizer.ADAMW, Optimizer.ADAMW_BF16)


def is_tpu(problem: Problem) -> bool:
    """Is it on TPUs, not GPUs?"""
    return problem.cluster.accelerator.architecture is Architecture.TPU


def _experts_mesh(columns: Columns, problem: Problem) -> Mask:
    if not problem.model.is_moe:
        return every_row(columns)
    return (columns["etp"] == columns["tp"]) & (columns["dp"] % columns["ep"] == 0)


def _groups(columns: Columns, problem: Problem) -> Mask:
    """Groups made of whole fsdp, context and expert axes, whose copies are the data axis."""
    hsdp, inner = columns["hsdp"].astype(np.int64), columns["cp"].astype(np.int64) * columns["ep"]
    ranks = columns["dp"].astype(np.int64) * columns["cp"]
    whole = (hsdp % inner == 0) & (ranks % np.maximum(hsdp, 1) == 0)
    return (hsdp == 0) | ((columns["zero"] == 3) & whole)


def _widths(problem: Problem) -> int:
    """Greatest common divisor of what weights are sharded along: the width, and latents of queries and keys."""
    latent = [a for a in problem.model.attentions if a.kind is AttentionKind.MLA]
    widths = [problem.model.hidden, *(n for a in latent for n in (a.q_lora_rank, a.kv_lora_rank) if n)]
    return int(np.gcd.reduce(widths))


def _divided(columns: Columns, problem: Problem) -> Mask:
    axes = axis_columns(columns)
    return np.asarray(_widths(problem) % (axes["fsdp"] * axes["context"] * axes["expert"]) == 0)


def _even(columns: Columns, problem: Problem) -> Mask:
    chunks = columns["pp"].astype(np.int64) * columns["vpp"]
    alike = len(problem.model.layer_kinds) == 1
    return (columns["pp"] == 1) | ((problem.model.num_layers % chunks == 0) & alike)


def _lists(columns: Columns, problem: Problem) -> Mask:
    named = np.isin(columns["recompute_modules"], list(Repeated.of(problem.model).lists))
    return (columns["recompute"] == Recompute.FULL) | ((columns["recompute"] == Recompute.SELECTIVE) & named)


def _said_lists(problem: Problem) -> str:
    return ", ".join("+".join(recomputed_modules(mask)) for mask in Repeated.of(problem.model).lists)


def _sequence(columns: Columns, problem: Problem) -> Mask:
    """Both halves of a rank's share, and on TPUs whole blocks of its attention."""
    cp, length = columns["cp"].astype(np.int64), problem.job.seq_len
    halves = (cp == 1) | (length % (2 * cp) == 0)
    return halves & ((length % (BLOCK * cp) == 0) | (not is_tpu(problem)))


def _slices(columns: Columns, problem: Problem) -> Mask:
    return fills_slices(columns, min(problem.cluster.scale_up_domain, problem.cluster.num_devices))


def _where_it_runs(rule: Rule) -> Rule:
    """The rule on devices that MaxText runs on."""
    legal: Callable[[Columns, Problem], Mask] = rule.legal

    def there(columns: Columns, problem: Problem) -> Mask:
        if problem.cluster.accelerator.architecture in ELSEWHERE:
            return every_row(columns)
        return np.asarray(legal(columns, problem), dtype=np.bool_)

    return replace(rule, legal=there)


RULES: Final[tuple[Rule, ...]] = tuple(_where_it_runs(rule) for rule in (
    whole_kv_heads("MaxText layers/attentions.py _validate_kv_head_sharding"),
    no_scans(TITLE, "MaxText configs/types.py DecoderBlockType: Qwen3-Next's alone", ("gated delta nets",)),
    Rule(
        "tensor-axes", ("tp", "sp"), lambda c, p: (c["sp"] == 1) == (c["tp"] > 1),
        "tensor parallelism divides the residual stream too, as sequence parallelism does: "
        "sp must be 1 with tp above 1",
        "set sp=1", "MaxText configs/base.yml logical_axis_rules: activation_embed, activation_norm_length",
        told=("tp", "sp"),
    ),
    only("zero", (0, 1, 3), TITLE, "MaxText configs/types.py: fsdp axes, or shard_optimizer_over_data (ZeRO 1)"),
    Rule(
        "sharded-weights", ("cp", "ep", "zero"),
        lambda c, p: (c["zero"] == 3) | ((c["cp"] == 1) & (c["ep"] == 1)),
        "weights are sharded over the context and the expert axis of the mesh: zero must be 3 with cp or ep above 1",
        "set zero=3", "MaxText configs/base.yml logical_axis_rules: embed", told=("zero", "cp", "ep"),
    ),
    Rule(
        "shard-groups", ("dp", "cp", "ep", "zero", "hsdp"), _groups,
        "a shard group of weights (zero=3) must be whole fsdp, context and expert axes, a multiple of cp x ep",
        "set hsdp=0, or a multiple of cp x ep with zero=3",
        "MaxText configs/base.yml logical_axis_rules: embed, activation_batch", told=("hsdp", "cp", "ep", "zero"),
    ),
    Rule(
        "states-sharded", ("zero",), lambda c, p: (c["zero"] != 1) | (p.job.optimizer in _ADAM),
        "shard_optimizer_over_data looks for Adam's states: zero must not be 1 with {optimizer}",
        "set zero=3", "MaxText utils/sharding.py maybe_update_params_sharding_with_opt",
        lambda p: {"optimizer": p.job.optimizer}, told=("zero",),
    ),
    Rule(
        "width-shards", ("tp", "cp", "pp", "dp", "ep", "zero", "hsdp"), _divided,
        "the ranks of a shard group must divide the width that weights are sharded along, {width}",
        "set hsdp to a divisor of the width, or raise tp or pp",
        "jax.sharding.NamedSharding.shard_shape; MaxText configs/base.yml logical_axis_rules: embed, q_lora, kv_lora",
        lambda p: {"width": _widths(p)}, told=("hsdp", "dp", "cp"),
    ),
    Rule(
        "experts-mesh", ("tp", "dp", "ep", "etp"), _experts_mesh,
        "experts are dealt over an axis of data parallelism of their own and divided by tp: ep must divide dp, and etp "
        "be tp", "set etp=tp and an ep that divides dp",
        "MaxText configs/base.yml logical_axis_rules: exp, mlp_moe, activation_batch_moe",
        told=("ep", "dp", "etp", "tp"),
    ),
    Rule(
        "even-stages", ("pp", "vpp"), _even,
        "the stages of a pipeline are one program: pp x vpp must divide the layers, {layers}, and these be alike",
        "choose stages that divide the layers, pp=1 for layers that differ",
        "MaxText configs/types.py: num_layers_per_pipeline_stage x stages x repeats; layers/pipeline.py",
        lambda p: {"layers": p.model.num_layers}, told=("pp", "vpp"),
    ),
    Rule(
        "microbatches-pp", ("pp", "num_microbatches"),
        lambda c, p: (c["pp"] == 1) | (c["num_microbatches"] % c["pp"] == 0),
        "the stages must divide the micro-batches",
        "change the micro-batch or pp", "MaxText configs/types.py: num_pipeline_microbatches",
        told=("pp", "num_microbatches"),
    ),
    Rule(
        "schedule-supported", ("pp", "schedule"), lambda c, p: (c["pp"] == 1) | (c["schedule"] == Schedule.GPIPE),
        "all forward passes of a pipeline are before the backward ones, which JAX derives from them: the schedule must "
        "be gpipe", "set schedule=gpipe", "MaxText layers/pipeline.py", told=("schedule",),
    ),
    whole_recompute(TITLE, "MaxText layers/decoders.py: one remat_policy for all layers"),
    Rule(
        "recompute-lists", ("recompute", "recompute_modules"), _lists,
        "every remat_policy does norms again, some the attention core, MLPs and experts, or all: recompute_modules "
        "must be one of {lists}",
        "name one of these lists, or set recompute=full", "MaxText layers/decoders.py get_remat_policy",
        lambda p: {"lists": _said_lists(p)}, told=("recompute", "recompute_modules"),
    ),
    Rule(
        "fp8-accumulation", ("pp", "num_microbatches"),
        lambda c, p: (c["pp"] > 1) | (c["num_microbatches"] == 1)
        | (QUANTIZATION.get(p.job.precision) not in NOT_ACCUMULATED),
        "float8 by delayed scaling cannot accumulate gradients: there must be one micro-batch",
        f"raise the micro-batch, or choose {option('precision', 'fp8_cs')}",
        "MaxText configs/types.py: quantization with gradient_accumulation_steps", told=("num_microbatches",),
    ),
    Rule(
        "sequence-cp", ("cp",), _sequence,
        "2 x cp must divide the sequence length, {seq}, and on TPUs {block} x cp",
        "choose a smaller cp, or a length that it divides",
        "MaxText utils/max_utils.py reorder_sequence; jax splash_attention_mask_info.py: blocks of a shard",
        lambda p: {"seq": p.job.seq_len, "block": BLOCK}, told=("cp",),
    ),
    Rule(
        "windows-cp", ("cp",),
        lambda c, p: (c["cp"] == 1) | is_tpu(p) | all(a.window is None for a in p.model.attentions),
        "on GPUs attention to a window must see whole sequences", "set cp=1",
        "MaxText layers/attention_op.py cudnn_flash_attention", told=("cp",),
    ),
    Rule(
        "slices-filled", ("tp", "cp", "pp", "dp", "ep", "zero", "hsdp"), _slices,
        "every axis of the mesh must fill whole slices (NVLink domains of GPUs), of {domain} devices, or lie in one, "
        "tensor first, then context, expert, fsdp, data and pipeline",
        "choose degrees with the factors of a slice", "MaxText utils/maxtext_utils.py create_device_mesh",
        lambda p: {"domain": min(p.cluster.scale_up_domain, p.cluster.num_devices)},
        told=("tp", "cp", "ep", "hsdp", "dp"),
    ),
))  # fmt: skip
