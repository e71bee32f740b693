"""Which rules do several frameworks share? Conditions on one axis, and on what may be recomputed.

Each framework calls these with its name and the place where it enforces them. Left out: rules of one framework.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.spec.config import OFFLOAD_OPTIMIZER, RECOMPUTE_MODULES, Mask, Recompute
from planner.spec.rule import Columns, Problem, Rule

FILLED_CHUNKS: Final = "chunks-filled"  # a rule by which a framework refuses chunks that hold nothing


def every_row(columns: Columns, legal: bool = True) -> Mask:
    """The same for all rows."""
    return np.full(len(next(iter(columns.values()))), legal)


def recompute_bits(*names: str) -> int:
    """The `recompute_modules` of names."""
    return sum(1 << RECOMPUTE_MODULES.index(name) for name in set(names))


def recomputes(columns: Columns, *names: str) -> Mask:
    """Does selective recomputation name one of these modules?"""
    named = (columns["recompute_modules"] & recompute_bits(*names)) > 0
    return np.asarray(named & (columns["recompute"] == Recompute.SELECTIVE))


def only(axis: str, values: tuple[int, ...], title: str, source: str) -> Rule:
    """An axis that has one of these values."""
    listed = " or ".join(map(str, values))
    return Rule(
        f"{axis.replace('_', '-')}-expressible", (axis,), lambda c, p: np.isin(c[axis], values),
        f"{title} can express {axis}={listed} only", f"set {axis}={values[0]}", source, told=(axis,),
    )  # fmt: skip


def only_modelled(axis: str, values: tuple[int, ...], title: str, source: str) -> Rule:
    """An axis of which planner models these values alone, where the framework has more."""
    listed = " or ".join(map(str, values))
    return Rule(
        f"{axis.replace('_', '-')}-modelled", (axis,), lambda c, p: np.isin(c[axis], values),
        f"planner models {axis}={listed} of {title} alone", f"set {axis}={values[0]}", source, told=(axis,),
        unmodelled=True,
    )  # fmt: skip


def own_exchange(title: str, source: str) -> Rule:
    """Context parallelism that exchanges in the one way that files leave it; in place of the generic rule."""
    return Rule(
        "cp-kind-supported", ("cp", "cp_kind"), lambda c, p: (c["cp"] == 1) | (c["cp_kind"] == 0),
        f"context parallelism of {title} exchanges in its own way alone, which files don't choose",
        "leave cp_kind out", source, told=("cp_kind",),
    )  # fmt: skip


def whole_recompute(title: str, source: str) -> Rule:
    """Full recomputation of all layers or of none."""

    def legal(columns: Columns, problem: Problem) -> Mask:
        most = -(-problem.model.num_layers // columns["pp"])
        return (columns["recompute"] != Recompute.FULL) | (columns["recompute_layers"] >= most)

    return Rule(
        "recompute-partial", ("pp", "recompute", "recompute_layers"), legal,
        f"{title} recomputes all layers or none",
        "recompute all layers", source, told=("recompute_layers",),
    )  # fmt: skip


def no_selective(title: str, source: str) -> Rule:
    """No recomputation of some modules."""
    return Rule(
        "recompute-selective", ("recompute",), lambda c, p: c["recompute"] != Recompute.SELECTIVE,
        f"{title} does not recompute single modules", "set recompute=none or full", source,
    )  # fmt: skip


def shards_or_hosts(source: str) -> Rule:
    """ZeRO on one rank, where it shards nothing, if the optimizer is on the host, which takes ZeRO on any number of
    ranks; in place of the generic rule."""

    def legal(columns: Columns, problem: Problem) -> Mask:
        hosted = (columns["offload"] & OFFLOAD_OPTIMIZER) > 0
        shards = columns["dp"] * columns["cp"] > 1
        return np.where(hosted, columns["zero"] > 0, (columns["zero"] == 0) | shards)

    return Rule(
        "zero-replicas", ("dp", "cp", "zero", "offload"), legal,
        "ZeRO shards over dp x cp, which must be above 1 unless the optimizer is in CPU memory, which needs zero "
        "above 0",
        "set zero=0 and offload=none, or zero=1 and offload=optimizer", source, told=("dp", "cp", "zero", "offload"),
    )  # fmt: skip


def whole_kv_heads(source: str) -> Rule:
    """Key/value heads that are dealt out, never copied; in place of the generic rule."""

    def legal(columns: Columns, problem: Problem) -> Mask:
        legal = every_row(columns)
        for attention in problem.model.attentions:
            legal &= attention.kv_heads % columns["tp"] == 0
        return legal

    return Rule(
        "kv-heads-tp", ("tp",), legal,
        "tp must divide the key/value heads, {kv}", "choose a tp that divides them", source,
        lambda p: {"kv": min((a.kv_heads for a in p.model.attentions), default=0)}, told=("tp",),
    )  # fmt: skip


def whole_scans(title: str) -> Rule:
    """State spaces and delta nets of transformers, whose scans see whole sequences of a whole layer."""

    return Rule(
        "state-space-whole", ("tp", "cp", "pp"),
        lambda c, p: ((c["tp"] == 1) & (c["cp"] == 1) & (c["pp"] == 1)) | (not p.model.state_spaces),
        f"{title} runs transformers' layers of state spaces and delta nets undivided: tp, cp and pp must be 1",
        "set tp=1, cp=1 and pp=1; Megatron's stacks divide state spaces and gated delta nets",
        "transformers 5.23 models/{bamba,granitemoehybrid,mamba2,nemotron_h,qwen3_next}/modeling_*.py",
        told=("tp", "cp", "pp"),
    )  # fmt: skip


def no_idle_experts(title: str) -> Rule:
    """No experts that compute nothing, whose input projections transformers keeps and trains all the same."""

    def unused(problem: Problem) -> int:
        model = problem.model
        routed = (layer.moe for layer in model.layers if layer.moe is not None)
        return sum(moe.zero_experts * 2 * moe.expert_ffn * model.hidden for moe in routed)

    return Rule(
        "experts-compute", (), lambda c, p: every_row(c, not unused(p)),
        f"{title} runs transformers, which gives experts that compute nothing input projections: {{unused}} parameters "
        "more than {model} has, which planner does not count",
        "choose another stack: planner costs the model there, and writes no files for it",
        "transformers 5.23 models/longcat_flash/modeling_longcat_flash.py LongcatFlashExperts: total_experts",
        lambda p: {"model": p.model.name, "unused": f"{unused(p):,}"}, unmodelled=True,
    )  # fmt: skip


def no_scans(title: str, source: str, modelled: tuple[str, ...] = ()) -> Rule:
    """No model with mixers in place of attention but `modelled`; where those are none, no gated attention either."""

    def lacking(problem: Problem) -> str:
        found = [name for name in problem.model.mixer_titles if name not in modelled]
        gated = ["gated attention"] if problem.model.gates_attention and not modelled else []
        return " or ".join([*found, *gated])

    return Rule(
        "state-space-layers", (), lambda c, p: every_row(c, not lacking(p)),
        f"{title} has no language model with {{lacking}}, which {{model}} has",
        "choose a stack of DeepSpeed or FSDP; of such layers Megatron's stacks run state spaces, gated delta nets and "
        "gated attention alone",
        source, lambda p: {"model": p.model.name, "lacking": lacking(p)},
    )  # fmt: skip
