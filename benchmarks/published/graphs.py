"""Which CUDA graphs does the free text of a published row name?

Texts are written by Megatron-Bridge's names ("cuda_graph_impl=transformer_engine; cuda_graph_scope=moe_router") or in
words ("TE CUDA graph moe_router+moe_preprocess"). Left out: Mamba layers, of which planner knows none.
"""

from __future__ import annotations

import re
from typing import Final

from benchmarks.published.words import Word
from planner.spec.config import CUDA_GRAPH_MODULES, FIXED_SHAPES, CudaGraphs, captured_modules, module_mask
from planner.spec.model import ModelSpec
from planner.spec.stack import Stack

GRAPHS: Final = Word(r"(?<!optimizer )(?<!optimizer[_-])cuda[ _-]?graphs?\b")
_NO_GRAPHS: Final = ("none", "off", "false")


def graphs_in(text: str, model: ModelSpec, stack: Stack, assumed: list[str]) -> tuple[int, int]:
    """`cuda_graph_impl` and `cuda_graph_modules` of a row.

    A scope without an implementation that captures says nothing: recipes state it beside impl=none. "on" is
    enable_cuda_graph of Megatron-Core 0.14, its own graphs of whole layers; experts dropped tokens there
    (Megatron-Bridge v0.1.0rc4, scripts/performance/utils/helpers.py set_cuda_graph_overrides, run_script.py).
    """
    lower = text.lower()
    stated = re.search(r"cuda_graph_impl=(\w+)", lower)
    words = GRAPHS.search(lower)
    if (stated is None and words is None) or (stated is not None and stated[1] in _NO_GRAPHS):
        return 0, 0
    scope = re.search(r"cuda_graph_(?:scope|modules)=([^;|]*)", lower)
    named = scope[1] if scope else "" if stated or not words else re.split("[;|]", lower[words.end() :])[0]
    if "full_iteration" in lower or stack.framework == "torchtitan":
        return _said(CudaGraphs.FULL_ITERATION, 0, assumed)
    mask = module_mask([name for name in CUDA_GRAPH_MODULES if re.search(rf"\b{name}\b", named)])
    own = stated is not None and stated[1] in ("on", "local")
    impl = CudaGraphs.LOCAL if own else CudaGraphs.TRANSFORMER_ENGINE
    if not mask and model.is_moe and not own:
        mask = module_mask(FIXED_SHAPES)
        assumed.append("captured modules not stated: those of fixed shapes")
    return _said(impl, mask, assumed)


def _said(impl: CudaGraphs, mask: int, assumed: list[str]) -> tuple[int, int]:
    what = "+".join(captured_modules(mask)) or "whole layers"
    of = "the full iteration" if impl is CudaGraphs.FULL_ITERATION else f"{what} ({impl.label})"
    assumed.append(f"CUDA graphs of {of}")
    return int(impl), mask
