"""Every rule: an example that breaks it, told with its values, and one that does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.space.legality import are_legal, explain_config
from planner.space.rules import RULES
from planner.spec.config import (
    AXES,
    SCHEDULE_LABELS,
    ConfigTable,
    ContextKind,
    ParallelConfig,
    Recompute,
    Schedule,
)
from planner.spec.machine.load_cluster import load_accelerator
from planner.spec.residual import AttentionResiduals
from planner.spec.rule import Problem
from planner.spec.stack import Limits, Stack
from planner.spec.stack.engines import Xla
from planner.spec.stack.kinds import ContextExchange, KeyValueHeads, PipelineSplit, RecomputedLayers
from tests.problems import (
    dense_model,
    hybrid_model,
    legal_table,
    moe_model,
    problem,
    random_rows,
    sparse_model,
)

DENSE = (
    problem()
)  # 8 layers, 16 heads, 8 key/value heads, ffn 7168, vocab 32000; 16 devices; 64 x 4096 tokens
MOE = problem(moe_model())  # 16 experts of width 1024
SPARSE = problem(sparse_model())
HYBRID = problem(hybrid_model("M-M-M-M-", groups=2))  # 64 heads in 2 groups
LEGAL = ParallelConfig(tp=2, pp=2, dp=4, micro_batch=2, num_microbatches=8, sp=1, zero=1)


def limited(name: str = "megatron-2026", **changes: object) -> Stack:
    stack = load_stack(name)
    return stack.model_copy(
        update={"limits": Limits.model_validate({**stack.limits.model_dump(), **changes})}
    )


def communicating(**changes: object) -> Stack:
    stack = load_stack("megatron-2026")
    return stack.model_copy(update={"communication": stack.communication.model_copy(update=changes)})


def on(stack: Stack, moe: bool = False) -> Problem:
    return replace(MOE if moe else DENSE, stack=stack)


GREEDY = replace(DENSE, stack=load_stack("nanotron-2024"))
EVEN = replace(DENSE, stack=load_stack("megatron-2026").model_copy(update={"split": PipelineSplit.EVEN}))
NO_COPIES = on(communicating(key_value_heads=KeyValueHeads.REFUSED))
UNPADDED = replace(
    on(load_stack("megatron-2026").model_copy(update={"engine": Xla()})),
    model=dense_model(vocab=32001),
)
ANY = on(limited(schedules=SCHEDULE_LABELS))
SHARED = replace(DENSE, cluster=replace(DENSE.cluster, accelerator=load_accelerator("gb10")))
FULL = {"recompute": int(Recompute.FULL)}

# rule -> (problem, what differs from the legal configuration, words of the explanation)
BROKEN: dict[str, tuple[Problem, dict[str, int], tuple[str, ...]]] = {
    "world-size": (DENSE, {"cp": 2}, ("16", "tp=2 cp=2 pp=2 dp=4")),
    "heads-tp": (DENSE, {"tp": 3}, ("16", "tp=3")),
    "kv-heads-tp": (NO_COPIES, {"tp": 16}, ("8", "tp=16")),
    "state-space-tp": (HYBRID, {"tp": 4}, ("64 heads", "2 groups", "tp=4")),
    "state-space-cp": (
        replace(HYBRID, model=hybrid_model("M-M-M-M-", heads=12, groups=6)),
        {"cp": 4},
        ("12", "cp=4"),
    ),
    "attention-residuals-vpp": (
        replace(
            DENSE,
            model=replace(
                DENSE.model, layers=(replace(DENSE.model.layers[0], residual=AttentionResiduals((1, 1))),) * 8
            ),
        ),
        {"pp": 2, "vpp": 2, "dp": 8},
        ("vpp=2",),
    ),
    "shared-between-layers-pp": (
        replace(
            DENSE,
            model=replace(DENSE.model, side_vocab=64, layers=(replace(DENSE.model.layers[0], side=8),) * 8),
        ),
        {"pp": 2},
        ("small-dense", "pp=2"),
    ),
    "ffn-tp": (DENSE, {"tp": 5}, ("7168", "tp=5")),
    "vocabulary-tp": (UNPADDED, {}, ("32001", "tp=2")),
    "sequence-cp": (replace(DENSE, job=replace(DENSE.job, seq_len=4100)), {"cp": 4}, ("4100", "cp=4")),
    "cp-supported": (
        on(communicating(cp_exchange=ContextExchange.NONE)),
        {"cp": 2},
        ("no context parallelism", "cp=2"),
    ),
    "pp-supported": (on(limited(schedules=())), {}, ("no pipelines", "pp=2")),
    "batch-dp": (replace(DENSE, job=replace(DENSE.job, global_batch=62)), {}, ("62", "dp=4")),
    "vpp-pp": (DENSE, {"pp": 1, "vpp": 2}, ("pp=1", "vpp=2")),
    "vpp-supported": (on(limited(schedules=("1f1b",))), {"vpp": 2}, ("vpp=2",)),
    "layers-pp": (EVEN, {"pp": 3}, ("8", "evenly", "pp=3 vpp=1")),
    "nearly-equal-chunks": (
        replace(DENSE, model=dense_model(14)),
        {"pp": 6, "vpp": 2},
        ("14 layers", "pp=6 vpp=2"),
    ),
    "stages-filled": (GREEDY, {"pp": 16}, ("8 layers", "pp=16")),
    "experts-ep": (MOE, {"ep": 3}, ("16", "ep=3")),
    "expert-ffn-etp": (MOE, {"etp": 3}, ("1024", "etp=3")),
    "expert-grid": (MOE, {"ep": 16}, ("ep=16", "etp=1", "tp=2", "dp=4")),
    "sp-tp": (DENSE, {"tp": 1}, ("tp=1",)),
    "sp-supported": (on(limited(sequence_parallel=(1,))), {"sp": 0}, ("only as 1;", "sp=0")),
    "sequence-sp": (
        replace(DENSE, job=replace(DENSE.job, seq_len=4098)),
        {"tp": 4},
        ("4098", "tp=4", "cp=1"),
    ),
    "batch": (DENSE, {"micro_batch": 3}, ("64", "dp=4", "micro_batch=3")),
    "interleaving-remainder": (DENSE, {"vpp": 2, "num_microbatches": 7}, ("pp=2", "micro-batches=7")),
    "schedule-supported": (DENSE, {"schedule": Schedule.ZB_H1}, ("1f1b, interleaved", "schedule=zb-h1")),
    "schedule-chunks": (ANY, {"schedule": Schedule.ZB_V}, ("schedule=zb-v", "pp=2 vpp=1")),
    "schedule-microbatches": (
        ANY,
        {"schedule": Schedule.DUALPIPE, "num_microbatches": 2},
        ("schedule=dualpipe", "pp=2", "micro-batches=2"),
    ),
    "offload-supported": (DENSE, {"offload": 3}, ("none, optimizer", "offload=optimizer+params")),
    "offload-apart": (SHARED, {"offload": 1}, ("memory of gb10 is its host's", "offload=optimizer")),
    "zero-supported": (DENSE, {"zero": 3}, ("ZeRO 0 or 1; zero=3", "pp=2")),
    "cp-kind-supported": (
        on(load_stack("torchtitan-2026")),
        {"cp": 2, "cp_kind": ContextKind.A2A},
        ("exchanges by all-gather;", "cp_kind=a2a"),
    ),
    "cuda-graphs-supported": (
        GREEDY,
        {"cuda_graph_impl": 2},
        ("one of: none;", "cuda_graph_impl=transformer_engine"),
    ),
    "cuda-graph-modules": (
        DENSE,
        {"cuda_graph_impl": 3, "cuda_graph_modules": 3},
        ("cuda_graph_impl=full_iteration", "cuda_graph_modules=attn+mlp"),
    ),
    "zero-replicas": (DENSE, {"pp": 8, "dp": 1}, ("dp=1", "cp=1", "zero=1")),
    "hsdp-supported": (GREEDY, {"hsdp": 2}, ("of no stage", "zero=1", "hsdp=2")),
    "hsdp-groups": (DENSE, {"hsdp": 3}, ("hsdp=3", "dp=4", "cp=1")),
    "recompute-layers": (DENSE, {**FULL, "recompute_layers": 5}, ("8 layers", "recompute_layers=5 pp=2")),
    "recompute-vpp": (
        DENSE,
        {"vpp": 2, **FULL, "recompute_layers": 3},
        ("recompute_layers=3", "vpp=2"),
    ),
    "recompute-selective": (
        on(limited(recompute=())),
        {"recompute": int(Recompute.SELECTIVE)},
        ("does not recompute single modules",),
    ),
    "recompute-modules-supported": (
        on(limited(recompute=("mlp",))),
        {"recompute": int(Recompute.SELECTIVE), "recompute_modules": 5},
        ("recomputes mlp alone", "recompute_modules=core_attn+layernorm"),
    ),
    "recompute-partial": (
        on(limited(recomputed_layers=RecomputedLayers.ALL)),
        {**FULL, "recompute_layers": 3},
        ("recompute_layers=3",),
    ),
    "indexer-kernels": (
        replace(SPARSE, stack=load_stack("megatron-2025")),
        {},
        ("small-sparse", "megatron-2025 has none"),
    ),
    "indexer-lora": (replace(SPARSE, job=replace(SPARSE.job, lora_rank=16)), {}, ("LoRA of rank 16",)),
}


def test_every_rule_has_an_example() -> None:
    assert set(BROKEN) == {rule.id for rule in RULES}


def test_stages_that_a_pipeline_forbids_are_told_apart() -> None:
    pipelined = replace(DENSE, stack=load_stack("deepspeed-2025"))
    found = explain_config(replace(LEGAL, zero=3), pipelined, RULES)
    (reason,) = [violation.reason for violation in found if violation.rule == "zero-supported"]
    assert "ZeRO 0 or 1 or 2 or 3 (0 or 1 with a pipeline)" in reason


def test_the_configuration_that_the_examples_change_is_legal() -> None:
    for subject in (DENSE, MOE, EVEN, NO_COPIES, GREEDY):
        assert explain_config(LEGAL, subject, RULES) == ()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named_with_its_values(name: str) -> None:
    subject, change, words = BROKEN[name]
    config = replace(LEGAL, **change)  # type: ignore[arg-type]
    found = {violation.rule: violation for violation in explain_config(config, subject, RULES)}
    assert name in found
    reason = found[name].reason
    for word in words:
        assert word in reason
    assert "{" not in reason
    assert found[name].hint


def test_what_follows_from_a_broken_rule_is_not_said_too() -> None:
    """A tp that divides nothing makes a dp that means nothing: rules about dp stay silent."""
    config = replace(LEGAL, tp=3, dp=2, micro_batch=5)
    found = {violation.rule for violation in explain_config(config, MOE, RULES)}
    assert {"world-size", "heads-tp"} <= found
    assert not found & {"batch-dp", "batch", "expert-grid", "zero-replicas"}
    odd = replace(DENSE, job=replace(DENSE.job, global_batch=62))
    assert {v.rule for v in explain_config(LEGAL, odd, RULES)} == {"batch-dp"}


def test_codes_are_said_as_names() -> None:
    config = replace(LEGAL, recompute=int(Recompute.SELECTIVE), recompute_layers=3)
    (broken,) = explain_config(config, DENSE, RULES)
    assert "recompute=selective" in broken.reason


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_needs_what_it_says(rule: object) -> None:
    from planner.spec.rule import Rule

    assert isinstance(rule, Rule)
    assert set(rule.needs) <= set(AXES)
    table = ConfigTable.of([LEGAL, replace(LEGAL, tp=3, vpp=2), replace(LEGAL, zero=3)])
    subject = BROKEN[rule.id][0]
    only = {
        axis: table[axis] for axis in rule.needs or ("tp",)
    }  # of no axis in particular: any tells the rows
    assert np.array_equal(rule.legal(only, subject), rule.legal(table.columns, subject))


def test_a_rule_judges_a_row_as_in_a_table() -> None:
    rows = random_rows(legal_table(MOE), 300, seed=1)
    broken = ConfigTable(
        {
            **rows.columns,
            "tp": np.roll(rows["tp"], 7),
            "zero": np.roll(rows["zero"], 3),
            "ep": rows["ep"][::-1],
        }
    )
    for rule in RULES:
        together = rule.legal(broken.columns, MOE)
        alone = [bool(rule.legal(broken.take(slice(i, i + 1)).columns, MOE)[0]) for i in range(len(broken))]
        assert together.tolist() == alone, rule.id
    few = broken.take(slice(None, None, 5))
    told = [not explain_config(few.row(i), MOE, RULES) for i in range(len(few))]
    assert are_legal(few, MOE, RULES).tolist() == told
    assert 0 < sum(told) < len(told)


def test_the_layers_may_be_uneven_unless_the_stack_deals_them_evenly() -> None:
    three = replace(LEGAL, pp=3, dp=2, tp=2)
    assert "layers-pp" not in {v.rule for v in explain_config(three, DENSE, RULES)}
    assert "layers-pp" in {v.rule for v in explain_config(three, EVEN, RULES)}


def test_tp_above_the_key_value_heads_copies_them() -> None:
    wide = ParallelConfig(tp=16, dp=1, micro_batch=1, num_microbatches=64, sp=1)
    assert explain_config(wide, DENSE, RULES) == ()


def test_a_dense_model_has_no_expert_degrees() -> None:
    (broken,) = explain_config(replace(LEGAL, ep=2), DENSE, RULES)
    assert (broken.rule, broken.reason) == (
        "experts-ep",
        "ep must divide the experts and be 1 without any; ep=2",
    )
    assert {v.rule for v in explain_config(replace(LEGAL, etp=2), DENSE, RULES)} == {"expert-ffn-etp"}
