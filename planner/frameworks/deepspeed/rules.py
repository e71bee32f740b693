"""Which configurations does DeepSpeed refuse beyond the rules of no framework in particular?

Each names the file of deepspeed 0.19.8 that it mirrors. Left out: what `planner.space.rules` holds.
"""

from __future__ import annotations

from typing import Final

from planner.frameworks.deepspeed.names import TITLE
from planner.frameworks.rulebook import (
    every_row,
    no_idle_experts,
    no_selective,
    only,
    only_modelled,
    shards_or_hosts,
    whole_kv_heads,
    whole_recompute,
    whole_scans,
)
from planner.spec.config import OFFLOAD_ACTIVATIONS, Mask, Schedule
from planner.spec.rule import Columns, Problem, Rule


def _ulysses(columns: Columns, problem: Problem) -> Mask:
    cp, legal = columns["cp"], every_row(columns)
    for attention in problem.model.attentions:
        heads, kv = attention.heads, attention.kv_heads
        legal &= (heads % cp == 0) & ((kv % cp == 0) | (cp % kv == 0))
    return legal


RULES: Final[tuple[Rule, ...]] = (
    only("sp", (0,), TITLE, "DeepSpeed runtime/tensor_parallel (AutoTP has no sequence parallelism)"),
    only_modelled("ep", (1,), TITLE, "planner: AutoEP is not written"),
    only_modelled("etp", (1,), TITLE, "planner: AutoEP is not written"),
    whole_recompute(TITLE, "transformers gradient_checkpointing_enable; DeepSpeed PipelineModule"),
    no_selective(TITLE, "transformers gradient_checkpointing_enable; DeepSpeed PipelineModule"),
    shards_or_hosts(
        "DeepSpeed runtime/zero/stage_1_and_2.py (ZeRO-Offload of one device), runtime/engine.py "
        "_do_optimizer_sanity_check (stage 0 makes no ZeRO optimizer)"
    ),
    Rule(
        "pipeline-offload", ("pp", "offload"), lambda c, p: (c["pp"] == 1) | (c["offload"] == 0),
        "a pipeline keeps everything on its devices", "set pp=1, or offload=none",
        "planner: what a pipeline keeps in CPU memory is not written", told=("pp", "offload"),
    ),
    Rule(
        "offload-activations", ("offload",), lambda c, p: (c["offload"] & OFFLOAD_ACTIVATIONS) == 0,
        "activations go to CPU memory only from layers that deepspeed.checkpointing recomputes "
        "(activation_checkpointing.cpu_checkpointing), and transformers recomputes by torch.utils.checkpoint",
        "set offload=none, optimizer or optimizer+params, and recompute=full",
        "DeepSpeed runtime/activation_checkpointing/checkpointing.py CheckpointFunction; transformers "
        "modeling_utils.py gradient_checkpointing_enable", told=("offload",),
    ),
    Rule(
        "pipeline-flat", ("tp", "cp", "pp"), lambda c, p: (c["pp"] == 1) | (c["tp"] * c["cp"] == 1),
        "a pipeline of plain DeepSpeed runs without tp and cp",
        "set pp=1, or tp=1 and cp=1 (Megatron-DeepSpeed runs both, but its arguments are not written)",
        "DeepSpeed runtime/pipe/module.py (tp needs a topology and layers of one's own)", told=("tp", "cp", "pp"),
    ),
    Rule(
        "pipeline-zero", ("pp", "zero"), lambda c, p: (c["pp"] == 1) | (c["zero"] <= 1),
        "a pipeline shards optimizer states at most (zero 0 or 1)", "set zero=1",
        "DeepSpeed runtime/pipe/engine.py PipelineEngine.__init__", told=("pp", "zero"),
    ),
    Rule(
        "pure-bf16-zero", ("zero", "dp", "cp"),  # one rank is as ZeRO
        lambda c, p: (c["zero"] > 0) | (c["dp"] * c["cp"] == 1) | (not p.stack.engine.pure_bf16),
        "full bf16 training needs ZeRO 1, 2 or 3", "set zero=1",
        "DeepSpeed runtime/config.py DeepSpeedConfig._do_error_check", told=("zero",),
    ),
    whole_kv_heads("DeepSpeed runtime/engine.py _apply_autotp_partitioning"),
    Rule(
        "ulysses-heads", ("cp",), _ulysses,
        "cp must divide the {heads} attention heads, and divide the {kv} key/value heads or they it",
        "choose a cp that does", "DeepSpeed runtime/sequence_parallel/ulysses_sp.py UlyssesSPAttentionHF",
        lambda p: {
            "heads": min((a.heads for a in p.model.attentions), default=0),
            "kv": min((a.kv_heads for a in p.model.attentions), default=0),
        }, told=("cp",),
    ),
    Rule(
        "autotp-ulysses", ("tp", "cp"), lambda c, p: (c["tp"] == 1) | (c["cp"] == 1),
        "AutoTP and Ulysses take the same neighbouring ranks, so one of tp and cp must be 1",
        "set tp=1 or cp=1",
        "DeepSpeed utils/groups.py _init_tp_mesh_device, runtime/sequence_parallel/parallel_state_sp.py "
        "initialize_sequence_parallel", told=("tp", "cp"),
    ),
    whole_scans(TITLE),
    no_idle_experts(TITLE),
    Rule(
        "schedule-supported", ("vpp", "schedule"),
        lambda c, p: (c["schedule"] == Schedule.ONE_F_ONE_B) & (c["vpp"] == 1),
        "the pipeline schedule must be 1F1B without virtual stages", "set vpp=1",
        "DeepSpeed runtime/pipe/schedule.py TrainSchedule", told=("vpp",),
    ),
)  # fmt: skip
