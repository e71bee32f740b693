"""Which configurations can state spaces, delta rules and sparse attention not run?

Left out: attention over all keys (`rules.py`).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from planner.dialect import option
from planner.spec.config import Mask
from planner.spec.rule import Columns, Problem, Rule


def _scan_heads(problem: Problem) -> int:
    """0 where no layer has a state space; everything divides it."""
    return math.gcd(*(state.heads for state in problem.model.state_spaces))


def _scan_groups(problem: Problem) -> int:
    return math.gcd(*(state.groups for state in problem.model.state_spaces))


def _scan_words(problem: Problem) -> dict[str, object]:
    """Heads and groups of state spaces, in the words of their kind."""
    delta = bool(problem.model.delta_nets)
    return {
        "heads": _scan_heads(problem),
        "groups": _scan_groups(problem),
        "mixers": " and ".join(problem.model.mixer_titles),
        "shared": "heads of keys" if delta else "groups",
        "else_copied": "" if delta else ", or they it",
    }


def _scan_cp(columns: Columns, problem: Problem) -> Mask:
    """Heads are dealt over tp x cp; groups too, or each of Mamba-2 is copied to several ranks of cp."""
    tp, cp = columns["tp"], columns["cp"]
    if not problem.model.state_spaces:
        return np.ones(len(tp), dtype=np.bool_)
    groups = np.maximum(_scan_groups(problem) // tp, 1)
    dealt = (groups % cp == 0) | (not problem.model.delta_nets) & (cp % groups == 0)
    return (cp == 1) | ((_scan_heads(problem) % (tp.astype(np.int64) * cp) == 0) & dealt)


def _indexer_kernels(columns: Columns, problem: Problem) -> Mask:
    able = problem.stack.kernels.sparse_attention is not None
    return np.full(len(next(iter(columns.values()))), able or not problem.model.gathers_keys)


def _indexer_trained(columns: Columns, problem: Problem) -> Mask:
    adapted = problem.job.lora_rank is not None
    return np.full(len(next(iter(columns.values()))), not (adapted and problem.model.gathers_keys))


SCAN_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "state-space-tp", ("tp",), lambda c, p: (_scan_heads(p) % c["tp"] == 0) & (_scan_groups(p) % c["tp"] == 0),
        "tp must divide the {heads} heads and the {groups} {shared} of {mixers}",
        "choose a tp that divides both",
        "Megatron-Core ssm/mamba_mixer.py MambaMixer.__init__, transformer/transformer_config.py",
        _scan_words, told=("tp",),
    ),
    Rule(
        "state-space-cp", ("tp", "cp"), _scan_cp,
        "tp x cp must divide the {heads} heads of {mixers}, and cp the {groups} {shared} over tp{else_copied}",
        "choose a smaller cp",
        "Megatron-Core ssm/mamba_context_parallel.py MambaContextParallel.__init__, transformer/transformer_config.py",
        _scan_words, told=("tp", "cp"),
    ),
)  # fmt: skip

INDEXER_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "indexer-kernels", (), _indexer_kernels,
        "the stack must have kernels of sparse attention, with which {model} gathers the keys of every query; "
        "{stack} has none",
        f"choose {option('stack', 'megatron-2026')}", "Megatron-LM main of 2026-08, --dsa-kernel-backend",
        lambda p: {"model": p.model.name, "stack": p.stack.name},
    ),
    Rule(
        "indexer-lora", (), _indexer_trained,
        "adapters beside sparse attention are not modelled; LoRA of rank {rank}", f"plan without {option('lora_rank')}",
        "planner: no run of both is known", lambda p: {"rank": p.job.lora_rank},
    ),
)  # fmt: skip
