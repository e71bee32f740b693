"""Which configurations does Megatron-LM refuse beyond the rules of no framework in particular?

Mirrored from megatron/core/transformer/transformer_config.py (T), megatron/training/arguments.py (A) and
megatron/core/pipeline_parallel/schedules.py, main of 2026-08. Left out: what `planner.space.rules` holds, and
conditions between options that the export never writes.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.catalog.stack_options import EXPERTS_OVERLAPPED
from planner.dialect import option
from planner.frameworks.fused_dispatch import DISPATCH_RULES
from planner.frameworks.fused_experts import FUSED_EXPERT_RULES
from planner.frameworks.megatron.graph_rules import GRAPH_RULES
from planner.frameworks.megatron.heterogeneous import HETEROGENEOUS_RULES
from planner.frameworks.megatron.muon import MUON_RULES, has_expert_biases
from planner.frameworks.megatron.sparse_rules import SPARSE_RULES
from planner.frameworks.megatron.states import fsdp_of
from planner.frameworks.rulebook import every_row, no_scans, recompute_bits, recomputes, shards_or_hosts
from planner.spec.attention import AttentionKind
from planner.spec.config import (
    OFFLOAD_ACTIVATIONS,
    ContextKind,
    IntColumn,
    Mask,
    Recompute,
    Schedule,
)
from planner.spec.precision import RECIPES, Dtype, Precision
from planner.spec.rule import Columns, Problem, Rule
from planner.spec.stack.kinds import ContextExchange, Dispatcher

# Transformer Engine refuses fp8 GEMMs whose tokens are no multiple of 8, or whose width is none of 16
# (transformer_engine/pytorch/utils.py assert_dim_for_fp8_exec).
FP8_WIDTH: Final = 16
_PACKED_KINDS: Final = {
    ContextExchange.RING_2_10: (ContextKind.P2P,),
    ContextExchange.RING_2_17: (ContextKind.P2P, ContextKind.A2A),
}
MOE_CHECKED: Final = "2025"  # from this year on stacks are of releases that raise at the first step


def _packed_kinds(problem: Problem) -> tuple[ContextKind, ...]:
    """What packed texts can be exchanged by."""
    return _PACKED_KINDS.get(problem.stack.communication.cp_exchange, tuple(ContextKind))


def _moe_sp(columns: Columns, problem: Problem) -> Mask:
    if not problem.model.is_moe or problem.stack.released < MOE_CHECKED:
        return every_row(columns)
    return (columns["tp"] == 1) | (columns["sp"] == 1)


def _context_kinds(columns: Columns, problem: Problem) -> IntColumn:
    """What the model exchanges by where a row asks for `cp_kind`."""
    p2p = problem.model.context_kind(ContextKind.P2P)
    return np.where(columns["cp_kind"] == ContextKind.P2P, p2p, columns["cp_kind"]).astype(np.int32)


def _heads_a2a(columns: Columns, problem: Problem) -> Mask:
    heads = min((a.kv_heads for a in problem.model.attentions), default=0)
    local = np.maximum(heads // columns["tp"], 1)
    a2a = _context_kinds(columns, problem) == ContextKind.A2A
    return ~a2a | (columns["cp"] == 1) | (local % columns["cp"] == 0)


def _packed_context(columns: Columns, problem: Problem) -> Mask:
    """Behind indexers Megatron-Core gathers keys itself."""
    ways = _packed_kinds(problem)
    if not problem.job.packed or any(a.sparse for a in problem.model.attentions):
        return every_row(columns)
    return (columns["cp"] == 1) | np.isin(_context_kinds(columns, problem), [int(kind) for kind in ways])


def _cp_attention(columns: Columns, problem: Problem) -> Mask:
    """Ranks exchange keys and values between blocks of a flash kernel; unfused attention has no blocks."""
    kernels = problem.stack.kernels
    return (columns["cp"] == 1) | all(kernels.attention_of(a).is_flash for a in problem.model.attentions)


def _qkv(columns: Columns, problem: Problem) -> Mask:
    """The one product of queries, keys and values is dealt by columns, also where tp exceeds the key/value heads."""
    legal, tp = every_row(columns), columns["tp"].astype(np.int64)
    for a in problem.model.attentions:
        if a.kind is not AttentionKind.MLA:
            legal &= (a.heads * a.head_dim + a.kv_width) % tp == 0
    return legal


def _uses_fp8(problem: Problem) -> bool:
    return RECIPES[problem.job.precision].gemm in (Dtype.FP8, Dtype.FP4)


def _bf16_layers(columns: Columns, problem: Problem) -> Mask:
    """Recipes of 4 bits are not looked at."""
    most = max(problem.job.bf16_layers)
    if not most or RECIPES[problem.job.precision].gemm is not Dtype.FP8:
        return every_row(columns)
    return problem.model.num_layers // columns["pp"] >= most


def _fp8_width(columns: Columns, problem: Problem) -> Mask:
    legal, tp = every_row(columns), columns["tp"].astype(np.int64)
    if not _uses_fp8(problem):
        return legal
    for layer in problem.model.blocks:
        if layer.attention is not None:
            width = layer.attention.heads * layer.attention.v_head_dim
            legal &= (width // tp) % FP8_WIDTH == 0
        if layer.state_space is not None:
            legal &= layer.state_space.in_width % FP8_WIDTH == 0
            legal &= (layer.state_space.in_width // tp) % FP8_WIDTH == 0
            legal &= (layer.state_space.inner // tp) % FP8_WIDTH == 0
        if layer.mlp is not None:
            legal &= (layer.mlp.ffn // tp) % FP8_WIDTH == 0
    return legal


def _fp8_expert_width(columns: Columns, problem: Problem) -> Mask:
    legal = every_row(columns)
    if _uses_fp8(problem):
        for layer in problem.model.blocks:
            if layer.moe is not None:
                legal &= (layer.moe.expert_ffn // columns["etp"]) % FP8_WIDTH == 0
    return legal


def _modules(columns: Columns, problem: Problem) -> Mask:
    """moe_act, moe and shared_experts need experts, mla_up_proj needs latent attention."""
    kinds = problem.model.blocks
    absent: set[str] = set()
    if not problem.model.is_moe:
        absent |= {"moe_act", "moe", "shared_experts"}
    if not any(layer.moe and layer.moe.shared_ffn for layer in kinds):
        absent.add("shared_experts")
    if not problem.model.expands_queries:
        absent.add("mla_up_proj")
    if not problem.model.attentions:
        absent.add("core_attn")
    return ~recomputes(columns, *absent)


def _experts_beside(columns: Columns, problem: Problem) -> Mask:
    """Exchanges of tokens run beside another micro-batch's layers, taken apart: of a pipeline with virtual stages, and
    with no layer, nor its experts, to be done again."""
    beside = problem.stack.communication.ep_overlap > 0
    stages = (columns["pp"] == 1) | (columns["vpp"] > 1)
    again = columns["recompute_modules"] & recompute_bits("moe") > 0
    few = problem.model.mtp_layers <= 1
    possible = stages & (columns["recompute"] != Recompute.FULL) & ~again & few
    return (columns["ep"] == 1) | possible | (not beside)


def _exchanges_beside(columns: Columns, problem: Problem) -> Mask:
    """What runs beside another micro-batch's layers is an all-to-all, NCCL's or a fused one, of 16-bit tokens."""
    beside, dispatcher = (
        problem.stack.communication.ep_overlap > 0,
        problem.stack.communication.dispatcher,
    )
    possible = dispatcher is not Dispatcher.ALL_GATHER and problem.job.precision is not Precision.FP32
    return (columns["ep"] == 1) | (possible or not beside)


def _expert_groups(columns: Columns, problem: Problem) -> Mask:
    """Copies of the optimizer's states divide the ranks that hold the same experts, too."""
    if not problem.model.is_moe or not columns["hsdp"].any():
        return every_row(columns)
    replicas = columns["dp"].astype(np.int64) * columns["cp"]
    copies = np.maximum(replicas // np.maximum(columns["hsdp"], 1), 1)
    apart = np.maximum(columns["ep"].astype(np.int64) * columns["etp"], 1)
    return (columns["hsdp"] == 0) | (replicas * columns["tp"] // apart % copies == 0)


def _fsdp_pipeline(columns: Columns, problem: Problem) -> Mask:
    """Of its stack every stage is Megatron-FSDP's, of others those that only it shards."""
    fsdp = (columns["zero"] >= 2) | (fsdp_of(problem.stack) is not None)
    return ~fsdp | (columns["vpp"] == 1)


RULES: Final[tuple[Rule, ...]] = (
    *GRAPH_RULES,
    *HETEROGENEOUS_RULES,
    *SPARSE_RULES,
    *DISPATCH_RULES,
    *FUSED_EXPERT_RULES,
    *MUON_RULES,
    shards_or_hosts("Megatron-LM training/arguments.py validate_args (--optimizer-cpu-offload)"),
    Rule(
        "offload-recompute", ("recompute", "offload"),
        lambda c, p: ((c["offload"] & OFFLOAD_ACTIVATIONS) == 0) | (c["recompute"] == Recompute.NONE),
        "activations in CPU memory exclude recomputation",
        "set recompute=none, or leave activations on the device",
        "Megatron-LM core/transformer/transformer_config.py __post_init__ (cpu_offloading)", told=("offload",),
    ),
    Rule(
        "hsdp-experts", ("tp", "cp", "dp", "ep", "etp", "hsdp"), _expert_groups,
        "dp x cp / hsdp copies of the optimizer's states must divide the ranks with the same experts, "
        "tp x cp x dp / (ep x etp)",
        "choose a larger hsdp, 0 for all of dp x cp, or a smaller ep",
        "Megatron-LM core/parallel_state.py initialize_model_parallel (partial DistOpt shard factor)",
        told=("tp", "cp", "dp", "ep", "etp", "hsdp"),
    ),
    Rule(
        "moe-bias-etp", ("etp",), lambda c, p: (c["etp"] == 1) | (not has_expert_biases(p.model)),
        "experts with biases need etp=1", "set etp=1",
        "Megatron-LM core/transformer/transformer_config.py __post_init__", told=("etp",),
    ),
    Rule(
        "ep-overlap", ("pp", "vpp", "ep", "recompute", "recompute_modules"), _experts_beside,
        "expert all-to-all under another micro-batch needs virtual stages in a pipeline, one MTP layer at most, and "
        "neither full recomputation nor that of moe",
        "set ep=1 or meet these, or leave +" + EXPERTS_OVERLAPPED + " out",
        "Megatron-LM core/transformer/transformer_config.py __post_init__ (overlap_moe_expert_parallel_comm)",
        told=("pp", "vpp", "recompute", "recompute_modules"),
    ),
    Rule(
        "ep-overlap-exchange", ("ep",), _exchanges_beside,
        "expert exchanges under another micro-batch are all-to-alls of bf16 or fp16 models; the dispatcher is "
        "{dispatcher}, the precision {precision}",
        "set ep=1, or leave +" + EXPERTS_OVERLAPPED + " or the dispatcher out",
        "Megatron-LM core/transformer/transformer_config.py __post_init__ (overlap_moe_expert_parallel_comm)",
        lambda p: {"dispatcher": p.stack.communication.dispatcher, "precision": p.job.precision},
    ),
    Rule(
        "qkv-tp", ("tp",), _qkv,
        "tp must divide the outputs of queries, keys and values together", "choose another tp",
        "Megatron-LM core/transformer/attention.py SelfAttention, core/tensor_parallel/layers.py ColumnParallelLinear",
        told=("tp",),
    ),
    Rule(
        "cp-attention", ("cp",), _cp_attention,
        "context parallelism needs flash or cuDNN-fused attention, which the stack lacks for this model, "
        "device and precision", "set cp=1",
        "Transformer Engine pytorch/attention/dot_product_attention/utils.py get_attention_backend", told=("cp",),
    ),
    Rule(
        "cp-a2a-heads", ("tp", "cp", "cp_kind"), _heads_a2a,
        "all-to-all context parallelism splits key/value heads: cp must divide the {kv} heads over tp",
        "use another kind of context parallelism", "Transformer Engine attention, cp_comm_type a2a",
        lambda p: {"kv": min((a.kv_heads for a in p.model.attentions), default=0)}, told=("tp", "cp"),
    ),
    Rule(
        "moe-sp", ("tp", "sp"), _moe_sp,
        "MoE layers with tp above 1 need sequence parallelism",
        "set sp=1", "Megatron-LM MoELayer.forward (raised at the first step)", told=("tp", "sp"),
    ),
    Rule(
        "cp-packed", ("cp", "cp_kind"), _packed_context,
        "packed documents are exchanged by {ways} in the stack's Transformer Engine",
        f"ask for one of these ({option('set', 'cp_kind=...')}), set cp=1, or take a newer stack",
        "Transformer Engine pytorch/attention/dot_product_attention/context_parallel.py: all-to-all from 2.11 on "
        "(a75da0c), all-gather from 2.18 on (7010118)",
        lambda p: {"ways": " or ".join(k.label for k in _packed_kinds(p))},
        told=("cp", "cp_kind"),
    ),
    Rule(
        "fp8-width-tp", ("tp",), _fp8_width,
        "8- and 4-bit linear layers need widths that are multiples of 16 on every rank",
        "choose a smaller tp", "Transformer Engine pytorch/utils.py assert_dim_for_fp8_exec", told=("tp",),
    ),
    Rule(
        "fp8-width-etp", ("etp",), _fp8_expert_width,
        "8- and 4-bit experts need widths that are multiples of 16 on every rank",
        "choose a smaller etp", "Transformer Engine pytorch/utils.py assert_dim_for_fp8_exec", told=("etp",),
    ),
    Rule(
        "bf16-layers-pp", ("pp",), _bf16_layers,
        "layers kept in bf16 at either end of an fp8 model, {first} and {last}, must be no more than the layers of a "
        "pipeline stage", "choose a smaller pp",
        "Megatron-LM core/transformer/transformer_config.py __post_init__",
        lambda p: {"first": p.job.bf16_layers[0], "last": p.job.bf16_layers[1]}, told=("pp",),
    ),
    Rule(
        "recompute-modules", ("recompute", "recompute_modules"), _modules,
        "recomputed modules must be ones that the model has", "name other modules",
        "Megatron-LM core/transformer/transformer_config.py __post_init__",
    ),
    Rule(
        "recompute-delayed", ("recompute", "recompute_modules"),
        lambda c, p: ~recomputes(c, "moe_act", "layernorm") | (p.job.precision is not Precision.FP8),
        "with fp8 of delayed scaling moe_act and layernorm must not be recomputed",
        f"name other modules, or plan with {option('precision', 'fp8_cs')}",
        "Megatron-LM core/transformer/transformer_config.py __post_init__",
    ),
    no_scans(
        "Megatron-LM",
        "Megatron-LM core/ssm, main of 2026-08; Megatron-Bridge models/kimi/kimi_k3_layers.py, Kimi K3's",
        ("state spaces", "gated delta nets", "Kimi Delta Attention with a whole gate"),
    ),
    Rule(
        "schedule-supported", ("schedule",),
        lambda c, p: np.isin(c["schedule"], (int(Schedule.ONE_F_ONE_B), int(Schedule.INTERLEAVED))),
        "the pipeline schedule must be 1F1B or interleaved 1F1B", "choose one of these",
        "Megatron-LM core/pipeline_parallel/schedules.py get_forward_backward_func", told=("schedule",),
    ),
    Rule(
        "mtp-positions", ("tp",), lambda c, p: every_row(c, not (p.model.mtp_layers and p.model.position_rows)),
        "multi-token prediction needs rotary positions, the model learns them", f"plan without {option('mtp')}",
        "Megatron-LM training/arguments.py validate_args",
    ),
    Rule(
        "fsdp-vpp", ("vpp", "zero"), _fsdp_pipeline,
        "Megatron-FSDP (zero 2 and 3, and every stage of its stack) is written without virtual stages", "set vpp=1",
        "planner: no run of both is known", told=("zero", "vpp"),
    ),
)  # fmt: skip
