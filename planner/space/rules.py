"""Which configurations can no framework run, and which does the stack's framework refuse?

Each rule is one function that masks a table and explains one row. Frameworks' own rules live in
`planner.frameworks`; those here follow from arithmetic or from the limits that a stack's file states.
Left out: pipelines (`pipeline_rules.py`), state spaces and sparse attention (`mixer_rules.py`), and memory, which is
a cost, not a rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from planner.space.axes import one_of_so_many, stack_modules
from planner.space.mixer_rules import INDEXER_RULES, SCAN_RULES
from planner.space.pipeline_rules import ARITHMETIC, SCHEDULE_RULES, STACK, STAGE_RULES
from planner.spec.config import OFFLOAD_LABELS, RECOMPUTE_MODULES, CudaGraphs, Mask, Recompute
from planner.spec.rule import Columns, Problem, Rule
from planner.spec.stack import Stack
from planner.spec.stack.kinds import ContextExchange, Dispatcher, KeyValueHeads


def _offload_supported(columns: Columns, problem: Problem) -> Mask:
    offload, limits = columns["offload"], problem.stack.limits
    legal = np.ones(len(offload), dtype=np.bool_)
    if offload.any():
        legal = np.isin(offload, limits.offload) & (((offload & 2) == 0) | (columns["zero"] == 3))
        if not problem.stack.engine.hosts_activations_with_pp:
            legal &= ((offload & 4) == 0) | (columns["pp"] == 1)
    return legal


def _graphs_supported(columns: Columns, problem: Problem) -> Mask:
    allowed = [CudaGraphs[name.upper()] for name in problem.stack.limits.cuda_graphs]
    return np.isin(columns["cuda_graph_impl"], allowed)


def _graph_modules(columns: Columns, problem: Problem) -> Mask:
    """Modules are of layers: of no graph and of one iteration's there are none."""
    by_layer = np.isin(columns["cuda_graph_impl"], (CudaGraphs.LOCAL, CudaGraphs.TRANSFORMER_ENGINE))
    return by_layer | (columns["cuda_graph_modules"] == 0)


def _heads(problem: Problem) -> int:
    return math.gcd(*(attention.heads for attention in problem.model.attentions))


def _kv_heads(problem: Problem) -> int:
    return math.gcd(*(attention.kv_heads for attention in problem.model.attentions))


def _dense_ffn(problem: Problem) -> int:
    widths = [layer.mlp.ffn for layer in problem.model.blocks if layer.mlp]
    widths += [layer.moe.shared_ffn for layer in problem.model.blocks if layer.moe and layer.moe.shared_ffn]
    return math.gcd(*widths) if widths else 0


def _experts(problem: Problem) -> int:
    counts = [layer.moe.experts for layer in problem.model.blocks if layer.moe]
    return math.gcd(*counts) if counts else 1


def _deals_experts(problem: Problem) -> bool:
    return problem.stack.communication.dispatcher is not Dispatcher.NONE


def _expert_ffn(problem: Problem) -> int:
    widths = [layer.moe.expert_ffn for layer in problem.model.blocks if layer.moe]
    return math.gcd(*widths) if widths else 0


def _world(columns: Columns, problem: Problem) -> Mask:
    product = columns["tp"].astype(np.int64) * columns["cp"] * columns["pp"] * columns["dp"]
    return product == problem.cluster.num_devices


def _batch(columns: Columns, problem: Problem) -> Mask:
    ranks = columns["dp"].astype(np.int64) * columns["micro_batch"]
    return problem.job.global_batch % ranks == 0


def _kv_heads_tp(columns: Columns, problem: Problem) -> Mask:
    kv, tp = _kv_heads(problem), columns["tp"]
    whole: Mask = kv % tp == 0
    if not problem.model.attentions:
        return whole
    refused = problem.stack.communication.key_value_heads is KeyValueHeads.REFUSED
    return whole if refused else whole | (tp % kv == 0)


def _vocabulary_tp(columns: Columns, problem: Problem) -> Mask:
    if problem.stack.engine.pads_vocabulary:
        return np.ones(len(columns["tp"]), dtype=np.bool_)
    return problem.model.vocab % columns["tp"] == 0


def _sequence_cp(columns: Columns, problem: Problem) -> Mask:
    cp = columns["cp"].astype(np.int64)
    return (cp == 1) | (problem.job.seq_len % (2 * cp) == 0)


def _sequence_sp(columns: Columns, problem: Problem) -> Mask:
    parts = columns["tp"].astype(np.int64) * columns["cp"]
    return (columns["sp"] == 0) | (problem.job.seq_len % parts == 0)


def _expert_grid(columns: Columns, problem: Problem) -> Mask:
    dense = columns["tp"].astype(np.int64) * columns["cp"] * columns["dp"]
    return dense % (columns["ep"].astype(np.int64) * columns["etp"]) == 0


def _zero_supported(columns: Columns, problem: Problem) -> Mask:
    allowed = np.isin(columns["zero"], problem.stack.limits.zero)
    return allowed & ((columns["pp"] == 1) | np.isin(columns["zero"], problem.stack.zero_with_pp))


def _hybrid_groups(columns: Columns, problem: Problem) -> Mask:
    """As many whole copies as there are groups, each with all the parts of a sequence."""
    if not columns["hsdp"].any():
        return np.ones(len(columns["hsdp"]), dtype=np.bool_)
    group = np.maximum(columns["hsdp"], 1)
    whole = (columns["dp"].astype(np.int64) * columns["cp"]) % group == 0
    return (columns["hsdp"] == 0) | (whole & (group % columns["cp"] == 0))


def _recompute_partial(columns: Columns, problem: Problem) -> Mask:
    most, count = -(-problem.model.num_layers // columns["pp"]), columns["recompute_layers"]
    partial, limits = (columns["recompute"] == Recompute.FULL) & (count < most), problem.stack.limits
    if limits.recompute_every:
        return ~partial | one_of_so_many(most, count)
    return ~partial if not limits.partial_full_recompute else np.ones_like(partial)


def _recompute_modules(columns: Columns, problem: Problem) -> Mask:
    """The stack's own selection, or any of the modules that it takes one by one."""
    free = problem.stack.limits.recompute_modules
    mask = sum(1 << bit for bit, name in enumerate(RECOMPUTE_MODULES) if name not in free)
    modules = columns["recompute_modules"]
    own = modules == stack_modules(problem)
    return (columns["recompute"] != Recompute.SELECTIVE) | own | (modules & mask == 0)


def _recompute_layers(columns: Columns, problem: Problem) -> Mask:
    most = -(-problem.model.num_layers // columns["pp"])
    full = columns["recompute"] == Recompute.FULL
    layers = columns["recompute_layers"]
    return np.where(full, (layers >= 1) & (layers <= most), layers == 0)


def _recompute_vpp(columns: Columns, problem: Problem) -> Mask:
    most = -(-problem.model.num_layers // columns["pp"])
    layers, by_rank = columns["recompute_layers"], problem.stack.limits.recompute_every
    return (
        (columns["recompute"] != Recompute.FULL) | (layers % columns["vpp"] == 0) | (layers >= most) | by_rank
    )


def _either(values: Sequence[int]) -> str:
    return " or ".join(map(str, values))


def _zero_stages(stack: Stack) -> str:
    """The ZeRO stages of a stack, and with a pipeline those where they are others."""
    alone, with_pp = _either(stack.limits.zero), _either(stack.zero_with_pp)
    return alone if with_pp == alone else f"{alone} ({with_pp} with a pipeline)"


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "world-size", ("tp", "cp", "pp", "dp"), _world,
        "tp x cp x pp x dp must be the number of devices, {devices}",
        "choose degrees whose product divides the device count", ARITHMETIC,
        lambda p: {"devices": p.cluster.num_devices}, told=("tp", "cp", "pp", "dp"),
    ),
    Rule(
        "heads-tp", ("tp",), lambda c, p: _heads(p) % c["tp"] == 0,
        "tp must divide the attention heads, {heads}",
        "choose a tp that divides the heads", "Megatron-LM TransformerConfig.__post_init__",
        lambda p: {"heads": _heads(p)}, told=("tp",),
    ),
    Rule(
        "kv-heads-tp", ("tp",), _kv_heads_tp,
        "tp must divide the key/value heads, {kv}, or be a multiple of them where the stack copies heads",
        "choose a tp that divides the key/value heads",
        "Megatron-LM TransformerConfig.__post_init__; torchtitan refuses tp above the key/value heads",
        lambda p: {"kv": _kv_heads(p)}, told=("tp",),
    ),
    *SCAN_RULES,
    Rule(
        "ffn-tp", ("tp",), lambda c, p: _dense_ffn(p) % c["tp"] == 0,
        "tp must divide the feed-forward widths (greatest common divisor {ffn})",
        "choose a tp that divides the width", "Megatron-LM divide() in the parallel linear layers",
        lambda p: {"ffn": _dense_ffn(p)}, told=("tp",),
    ),
    Rule(
        "vocabulary-tp", ("tp",), _vocabulary_tp,
        "tp must divide the vocabulary, {vocab}, which this stack does not pad",
        "choose a tp that divides the vocabulary", "torchtitan does not pad",
        lambda p: {"vocab": p.model.vocab}, told=("tp",),
    ),
    Rule(
        "sequence-cp", ("cp",), _sequence_cp,
        "2 x cp must divide the sequence length, {seq}",
        "choose a smaller cp or a longer sequence", "Megatron-LM validate_args; torchtitan",
        lambda p: {"seq": p.job.seq_len}, told=("cp",),
    ),
    Rule(
        "cp-supported", ("cp",),
        lambda c, p: (c["cp"] == 1) | (p.stack.communication.cp_exchange is not ContextExchange.NONE),
        "the stack runs no context parallelism", "set cp=1 or choose another stack", STACK, told=("cp",),
    ),
    Rule(
        "pp-supported", ("pp",), lambda c, p: (c["pp"] == 1) | bool(p.stack.limits.schedules),
        "the stack runs no pipelines", "set pp=1 or choose another stack", STACK, told=("pp",),
    ),
    Rule(
        "batch-dp", ("dp",), lambda c, p: p.job.global_batch % c["dp"] == 0,
        "dp must divide the global batch, {batch} sequences",
        "change the global batch, or raise tp, pp or cp to lower dp", "Megatron-LM num_microbatches_calculator",
        lambda p: {"batch": p.job.global_batch}, told=("dp",),
    ),
    Rule(
        "shared-between-layers-pp", ("pp",), lambda c, p: (c["pp"] == 1) | (not p.model.shares_between_layers),
        "pp must be 1 for {model}: stages would pass on keys and values that layers share, and layers' own inputs, "
        "which no framework does", "set pp=1",
        "transformers 5.23 models/gemma4/modeling_gemma4.py: no pipeline plan for what layers share",
        lambda p: {"model": p.model.name}, told=("pp",),
    ),
    Rule(
        "attention-residuals-vpp", ("vpp",), lambda c, p: (c["vpp"] == 1) | (not p.model.attends_to_residuals),
        "vpp must be 1 for {model}: its stages pass on sums of earlier layers, which no framework interleaves",
        "set vpp=1", "Megatron-Bridge models/kimi/kimi_k3_layers.py KimiK3TransformerLayer (stage_starts)",
        lambda p: {"model": p.model.name}, told=("vpp",),
    ),
    *STAGE_RULES,
    *INDEXER_RULES,
    Rule(
        "experts-ep", ("ep",), lambda c, p: (_experts(p) % c["ep"] == 0) & ((c["ep"] == 1) | _deals_experts(p)),
        "ep must divide the experts{experts}{limit}",
        "choose an ep that divides the experts, 1 for a dense model", "Megatron-LM validate_args",
        lambda p: {
            "experts": f", {_experts(p)}" if p.model.is_moe else " and be 1 without any",
            "limit": " and be 1 on this stack, which deals none to ranks" * (not _deals_experts(p)),
        }, told=("ep",),
    ),
    Rule(
        "expert-ffn-etp", ("etp",),
        lambda c, p: (c["etp"] == 1) | ((_expert_ffn(p) % c["etp"] == 0) & p.model.is_moe),
        "etp must divide the expert width, {ffn}",
        "choose an etp that divides the width, 1 for a dense model", "Megatron-LM grouped linear layers",
        lambda p: {"ffn": _expert_ffn(p)}, told=("etp",),
    ),
    Rule(
        "expert-grid", ("tp", "cp", "dp", "ep", "etp"), _expert_grid,
        "ep x etp must divide tp x cp x dp",
        "lower ep or pp", "Megatron-LM parallel_state.initialize_model_parallel", told=("ep", "etp", "tp", "cp", "dp"),
    ),
    Rule(
        "sp-tp", ("tp", "sp"), lambda c, p: (c["sp"] == 0) | (c["tp"] > 1),
        "sequence parallelism needs tp above 1", "set sp=0", "Megatron-LM TransformerConfig", told=("tp",),
    ),
    Rule(
        "sp-supported", ("tp", "sp"),
        lambda c, p: np.isin(c["sp"], p.stack.limits.sequence_parallel) | (c["tp"] == 1),
        "the stack runs sequence parallelism only as {allowed}",
        "use the other setting", STACK, lambda p: {"allowed": _either(p.stack.limits.sequence_parallel)},
        told=("sp", "tp"),
    ),
    Rule(
        "sequence-sp", ("tp", "cp", "sp"), _sequence_sp,
        "tp x cp must divide the sequence length, {seq}, with sequence parallelism",
        "set sp=0 or change the sequence length", ARITHMETIC, lambda p: {"seq": p.job.seq_len}, told=("tp", "cp"),
    ),
    Rule(
        "batch", ("dp", "micro_batch"), _batch,
        "dp x micro-batch must divide the global batch, {batch} sequences",
        "change the micro-batch or the global batch", "Megatron-LM num_microbatches_calculator",
        lambda p: {"batch": p.job.global_batch}, told=("dp", "micro_batch"),
    ),
    *SCHEDULE_RULES,
    Rule(
        "zero-supported", ("pp", "zero"), _zero_supported,
        "the stack shards as ZeRO {zeros}",
        "choose one of these", STACK, lambda p: {"zeros": _zero_stages(p.stack)}, told=("zero", "pp"),
    ),
    Rule(
        "offload-supported", ("pp", "zero", "offload"), _offload_supported,
        "the stack can keep in CPU memory: {kinds}; parameters only with zero=3{with_pp}",
        "choose one of these", STACK,
        lambda p: {
            "kinds": ", ".join(name for name, bits in OFFLOAD_LABELS.items() if bits in p.stack.limits.offload),
            "with_pp": ", activations only with pp=1" * (
                not p.stack.engine.hosts_activations_with_pp and any(bits & 4 for bits in p.stack.limits.offload)
            ),
        }, told=("offload", "pp", "zero"),
    ),
    Rule(
        "offload-apart", ("offload",),
        lambda c, p: (c["offload"] == 0) | (not p.cluster.accelerator.host_memory_shared),
        "the memory of {accelerator} is its host's, so that what is offloaded leaves nothing free",
        "set offload=none", "data sheets of NVIDIA GB10 and AMD MI300A: one memory for host and device",
        lambda p: {"accelerator": p.cluster.accelerator.name}, told=("offload",),
    ),
    Rule(
        "cp-kind-supported", ("cp", "cp_kind"),
        lambda c, p: (c["cp"] == 1) | np.isin(c["cp_kind"], (0, *p.context_kinds)),
        "context parallelism of the stack and the model exchanges by {kinds}",
        "choose one of these", STACK,
        lambda p: {"kinds": " or ".join(kind.label for kind in p.context_kinds)}, told=("cp_kind",),
    ),
    Rule(
        "cuda-graphs-supported", ("cuda_graph_impl",), _graphs_supported,
        "CUDA graphs of the stack are one of: {kinds}", "choose one of these", STACK,
        lambda p: {"kinds": ", ".join(p.stack.limits.cuda_graphs)}, told=("cuda_graph_impl",),
    ),
    Rule(
        "cuda-graph-modules", ("cuda_graph_impl", "cuda_graph_modules"), _graph_modules,
        "modules are captured by graphs of layers, local or transformer_engine",
        "set cuda_graph_impl=transformer_engine, or leave the modules out",
        "Megatron-LM training/arguments.py validate_args", told=("cuda_graph_impl", "cuda_graph_modules"),
    ),
    Rule(
        "zero-replicas", ("dp", "cp", "zero"), lambda c, p: (c["zero"] == 0) | (c["dp"] * c["cp"] > 1),
        "ZeRO shards over dp x cp, which must be above 1",
        "set zero=0", ARITHMETIC, told=("dp", "cp", "zero"),
    ),
    Rule(
        "hsdp-supported", ("zero", "hsdp"),
        lambda c, p: (c["hsdp"] == 0) | np.isin(c["zero"], p.stack.limits.hybrid_sharding),
        "the stack shards within groups of ranks as ZeRO {zeros}",
        "set hsdp=0 or another zero", STACK,
        lambda p: {"zeros": _either(p.stack.limits.hybrid_sharding) or "of no stage"}, told=("zero", "hsdp"),
    ),
    Rule(
        "hsdp-groups", ("dp", "cp", "hsdp"), _hybrid_groups,
        "the ranks that share a shard must divide dp x cp and be a multiple of cp",
        "choose another hsdp, 0 for all of dp x cp",
        "Megatron-LM core/parallel_state.py; torchtitan data_parallel_replicate_degree", told=("hsdp", "dp", "cp"),
    ),
    Rule(
        "recompute-layers", ("pp", "recompute", "recompute_layers"), _recompute_layers,
        "full recomputation covers 1 to layers / pp layers of a stage ({layers} layers), other kinds none",
        "name at most as many layers as a stage has", ARITHMETIC, lambda p: {"layers": p.model.num_layers},
        told=("recompute", "recompute_layers", "pp"),
    ),
    Rule(
        "recompute-vpp", ("pp", "vpp", "recompute", "recompute_layers"), _recompute_vpp,
        "recomputed layers are counted per virtual stage: vpp must divide them",
        "choose a multiple of vpp", "Megatron-LM --recompute-num-layers", told=("recompute_layers", "vpp"),
    ),
    Rule(
        "recompute-selective", ("recompute",),
        lambda c, p: (c["recompute"] != Recompute.SELECTIVE) | bool(p.stack.limits.selective_recompute),
        "the stack does not recompute single modules", "set recompute=none or full", STACK,
    ),
    Rule(
        "recompute-modules-supported", ("recompute", "recompute_modules"), _recompute_modules,
        "the stack recomputes {own}",
        "leave recompute_modules out, or choose another stack", STACK,
        lambda p: {
            "own": "any of " + ", ".join(p.stack.limits.recompute_modules)
            if p.stack.limits.recompute_modules
            else " and ".join(p.stack.limits.selective_recompute) + " alone",
        }, told=("recompute_modules",),
    ),
    Rule(
        "recompute-partial", ("pp", "recompute", "recompute_layers"), _recompute_partial,
        "the stack recomputes {own}",
        "recompute all layers", STACK,
        lambda p: {
            "own": "all layers, one of so many, or none" if p.stack.limits.recompute_every else "all layers or none"
        }, told=("recompute_layers",),
    ),
)  # fmt: skip
