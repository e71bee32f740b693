"""Which captures of CUDA graphs does Megatron-LM refuse, beyond what a stack lists?

Mirrored from megatron/core/transformer/transformer_config.py __post_init__ (T) and
megatron/core/transformer/moe/README.md (M), main of 2026-08.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.dialect import option
from planner.frameworks.fused_dispatch import padded_experts, static_experts
from planner.frameworks.rulebook import every_row, recomputes
from planner.spec.config import (
    CUDA_GRAPH_MODULES,
    OFFLOAD_ACTIVATIONS,
    CudaGraphs,
    IntColumn,
    Mask,
    Recompute,
)
from planner.spec.rule import Columns, Problem, Rule

_T: Final = "Megatron-LM core/transformer/transformer_config.py __post_init__"
_M: Final = "Megatron-LM core/transformer/moe/README.md, CUDA Graph"


def _names(columns: Columns, name: str) -> Mask:
    return np.asarray((columns["cuda_graph_modules"] >> CUDA_GRAPH_MODULES.index(name)) & 1 == 1)


def _by_layer(impl: IntColumn) -> Mask:
    return np.isin(impl, (CudaGraphs.LOCAL, CudaGraphs.TRANSFORMER_ENGINE))


def _modules_present(columns: Columns, problem: Problem) -> Mask:
    """A module that some layer has; what a router prepares goes with the router."""
    kinds = problem.model.layer_kinds
    legal = ~_names(columns, "moe_preprocess") | _names(columns, "moe_router")
    if not any(layer.moe for layer in kinds):
        legal &= ~_names(columns, "moe_router")
    for name, present in (
        ("mlp", any(layer.mlp for layer in kinds)),
        ("attn", bool(problem.model.attentions or problem.model.delta_nets)),
        ("mamba", bool(problem.model.mambas)),
    ):
        if not present:
            legal &= ~_names(columns, name)
    return legal


def _dropless(columns: Columns, problem: Problem) -> Mask:
    """Experts get as many tokens as are routed to them: other shapes in every step, which nothing captures unless they
    are received in a buffer of one size, or padded each to its capacity."""
    if padded_experts(problem):
        return np.asarray(~(_names(columns, "moe") & _names(columns, "moe_router")))
    legal = ~_names(columns, "moe")
    if problem.model.is_moe:
        by_layer = _by_layer(columns["cuda_graph_impl"])
        whole = columns["cuda_graph_impl"] == CudaGraphs.FULL_ITERATION
        legal &= ~whole | static_experts(columns, problem)
        legal &= ~by_layer | (columns["cuda_graph_modules"] > 0)
    return legal


def _recomputed_around(columns: Columns, problem: Problem) -> Mask:
    """A recomputed module lies in a graph or outside of it, and draws no random numbers in it."""
    impl = columns["cuda_graph_impl"]
    around = (
        (impl == CudaGraphs.TRANSFORMER_ENGINE) & _names(columns, "moe_router") & recomputes(columns, "moe")
    )
    whole = (impl == CudaGraphs.FULL_ITERATION) | (_by_layer(impl) & (columns["cuda_graph_modules"] == 0))
    drawn = (whole | _names(columns, "attn")) & recomputes(columns, "core_attn")
    drawn |= (whole | _names(columns, "mlp")) & recomputes(columns, "mlp")
    return ~around & ~(drawn & problem.stack.kernels.dropout)


def _overlapped(columns: Columns, problem: Problem) -> Mask:
    """Exchanges of tokens under another micro-batch's compute run a layer in parts, its dense MLP as one of them."""
    overlaps = problem.stack.communication.ep_overlap > 0
    graphs = columns["cuda_graph_impl"] == CudaGraphs.TRANSFORMER_ENGINE
    return ~(graphs & _names(columns, "mlp") & (columns["ep"] > 1) & overlaps)


def _lengths(columns: Columns, problem: Problem) -> Mask:
    """Texts packed into a sequence have other boundaries in every step; a dense MLP does not see them."""
    if problem.job.mean_length is None:
        return every_row(columns)
    blind = columns["cuda_graph_modules"] == 1 << CUDA_GRAPH_MODULES.index("mlp")
    return np.asarray((columns["cuda_graph_impl"] == CudaGraphs.NONE) | blind)


_GRAPHS: Final = ("cuda_graph_impl", "cuda_graph_modules")
GRAPH_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "cuda-graph-modules-present", ("cuda_graph_modules",), _modules_present,
        "captured modules must be ones that the model has (mlp: of dense layers), moe_preprocess with moe_router",
        "name other modules", _T, told=("cuda_graph_modules",),
    ),
    Rule(
        "cuda-graph-dropless", ("ep", "etp", "cuda_graph_impl", "cuda_graph_modules"), _dropless,
        "experts that drop no tokens have other shapes in every step and cannot be captured, and moe holds moe_router",
        "set cuda_graph_modules=attn+moe_router+moe_preprocess; the full iteration needs HybridEP with "
        f"moe_expert_rank_capacity_factor ({option('stack', '...+hybridep+moe-paged-stash')}), or in files of your own "
        "moe_expert_capacity_factor with moe_pad_expert_input_to_capacity", _M, told=_GRAPHS,
    ),
    Rule(
        "cuda-graph-recompute", ("cuda_graph_impl", "recompute", "recompute_layers"),
        lambda c, p: ~_by_layer(c["cuda_graph_impl"]) | (c["recompute"] != Recompute.FULL),
        "graphs of layers exclude full recomputation",
        "set recompute=selective or none, or capture the full iteration", _T, told=("cuda_graph_impl", "recompute"),
    ),
    Rule(
        "cuda-graph-recomputed-modules", ("cuda_graph_impl", "cuda_graph_modules", "recompute", "recompute_modules"),
        _recomputed_around,
        "a recomputed module must lie in a graph or outside, without dropout in it",
        "name other modules to capture or to recompute", _T, told=_GRAPHS,
    ),
    Rule(
        "cuda-graph-offload", ("cuda_graph_impl", "offload"),
        lambda c, p: ~_by_layer(c["cuda_graph_impl"]) | ((c["offload"] & OFFLOAD_ACTIVATIONS) == 0),
        "graphs of layers exclude activations in CPU memory",
        "set offload=none or cuda_graph_impl=none", _T, told=("cuda_graph_impl", "offload"),
    ),
    Rule(
        "cuda-graph-ep-overlap", ("cuda_graph_impl", "cuda_graph_modules", "ep"), _overlapped,
        "with expert exchanges under compute Transformer Engine's graphs exclude mlp",
        "leave mlp out", _T, told=_GRAPHS,
    ),
    Rule(
        "cuda-graph-lengths", ("cuda_graph_impl", "cuda_graph_modules"), _lengths,
        "graphs replay one shape: documents of several lengths leave the dense mlp alone to capture",
        "set cuda_graph_impl=none", "Megatron-Bridge 067f987 docs/training/cuda-graphs.md", told=_GRAPHS,
    ),
)  # fmt: skip
