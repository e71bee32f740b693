"""CUDA graphs that texts of published rows name."""

from __future__ import annotations

import pytest

from benchmarks.published.graphs import graphs_in
from benchmarks.published.recipes import bridge_recipe, unfound_graphs
from planner.catalog.load_stacks import load_stack
from planner.spec.config import CudaGraphs, captured_modules
from tests.problems import dense_model, moe_model

ROUTED = ("moe_router", "moe_preprocess")


@pytest.mark.parametrize(
    ("text", "graphs", "modules"),
    [
        ("", CudaGraphs.NONE, ()),
        ("cuda_graph_impl=none; cuda_graph_scope=full_iteration; config v0.4.0", CudaGraphs.NONE, ()),
        ("no CUDA graphs", CudaGraphs.NONE, ()),
        ("CUDA graphs: none; moe_router", CudaGraphs.NONE, ()),
        ("CUDA graphs off, attn recomputed", CudaGraphs.NONE, ()),
        ("cuda_graph_impl=off", CudaGraphs.NONE, ()),
        ("cuda_graphs=False", CudaGraphs.NONE, ()),
        ("the optimizer CUDA graph", CudaGraphs.NONE, ()),
        ("cuda_graph_impl=full_iteration; moe_a2a_overlap=True", CudaGraphs.FULL_ITERATION, ()),
        ("cuda_graph_impl=local; cuda_graph_scope=full_iteration; x", CudaGraphs.FULL_ITERATION, ()),
        ("cuda_graph_impl=on; config qwen3", CudaGraphs.LOCAL, ()),
        (
            "cuda_graph_impl=transformer_engine; cuda_graph_scope=moe_router+moe_preprocess; moe_flex_dispatcher",
            CudaGraphs.TRANSFORMER_ENGINE,
            ROUTED,
        ),
        (
            "EP overlap off; TE CUDA graph moe_router+moe_preprocess; force balance",
            CudaGraphs.TRANSFORMER_ENGINE,
            ROUTED,
        ),
        ("HybridEP, TE CUDA graphs attn+mamba, mock data", CudaGraphs.TRANSFORMER_ENGINE, ("attn", "mamba")),
        ("cuda graphs", CudaGraphs.TRANSFORMER_ENGINE, ("attn", *ROUTED)),
    ],
)
def test_texts_of_rows(text: str, graphs: CudaGraphs, modules: tuple[str, ...]) -> None:
    said: list[str] = []
    impl, mask = graphs_in(text, moe_model(), load_stack("megatron-2026"), said)
    assert (CudaGraphs(impl), captured_modules(mask)) == (graphs, modules)
    assert bool(said) is bool(impl)


def test_what_is_not_said_of_dense_layers_and_of_torchtitan() -> None:
    dense, said = dense_model(), list[str]()
    whole = (int(CudaGraphs.TRANSFORMER_ENGINE), 0)
    assert graphs_in("cudagraphs on", dense, load_stack("megatron-2026"), said) == whole
    iteration = (int(CudaGraphs.FULL_ITERATION), 0)
    assert graphs_in("CUDA graphs", dense, load_stack("torchtitan-2026"), said) == iteration


UNFOUND = {
    "framework": "Megatron-Bridge/Megatron-Core", "source": "megatron_bridge_25.11", "gpu": "gb300",
    "extras": "no config with these degrees found at release tag",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "modules"),
    [
        ({}, ROUTED),
        ({"source": "megatron_bridge_25.09"}, ()),
        ({"gpu": "b300"}, ()),
        ({"framework": "NeMo 25.11"}, ()),
        ({"extras": ""}, ()),
        ({"extras": f"{UNFOUND['extras']}; recipe nemotronh/gb300/nemotronh.py"}, ()),
    ],
)
def test_rows_on_grace_whose_recipe_was_not_found(changed: dict[str, str], modules: tuple[str, ...]) -> None:
    model = moe_model()
    text = unfound_graphs({**UNFOUND, **changed}, model)
    _, mask = graphs_in(text, model, load_stack("megatron-2026"), [])
    assert captured_modules(mask) == modules
    assert unfound_graphs({**UNFOUND, **changed}, dense_model()) == ""


@pytest.mark.parametrize(
    ("extras", "framework", "fused"),
    [
        ("cuda_graph_impl=full_iteration; moe_a2a_overlap=True", "Megatron-Bridge", True),
        ("cuda_graph_impl=transformer_engine; cuda_graph_scope=attn", "Megatron-Bridge", False),
        ("cuda_graph_impl=full_iteration", "Megatron-LM", False),
    ],
)
def test_the_bridges_full_iteration_fuses_experts(extras: str, framework: str, fused: bool) -> None:
    cells = {
        "extras": extras,
        "framework": framework,
        "gpu": "gb200",
        "precision": "fp8_mx",
        "source": "",
        "model": "",
    }
    assert bridge_recipe(load_stack("megatron-2026"), cells, {}).kernels.fused_experts is fused
