"""How are CUDA graphs written in fields of Megatron-Bridge's ConfigContainer and read from them?

Source: NVIDIA-NeMo/Megatron-Bridge at 067f987, src/megatron/bridge/utils/cuda_graph.py, training/config.py. Left out:
which captures are refused (`megatron/graph_rules.py`).
"""

from __future__ import annotations

from typing import Any, Final

from planner.errors import FileInputError
from planner.frameworks.fields import Settings
from planner.frameworks.framework import Launch
from planner.frameworks.megatron.graphs import captures_update
from planner.frameworks.refuse import require
from planner.spec.config import (
    CUDA_GRAPH_MODULES,
    WHOLE_LAYER,
    CudaGraphs,
    captured_modules,
    module_mask,
)

OPTIMIZER_GRAPH: Final = "optimizer.optimizer_cuda_graph"


def graph_fields(launch: Launch, title: str) -> dict[str, Any]:
    """CUDA graphs, said even where there are none, since recipes differ; its own graphs of layers Bridge refuses
    (utils/cuda_graph.py validate_cuda_graph_configuration). Raises `UnsupportedError`."""
    graphs = CudaGraphs(launch.config.cuda_graph_impl)
    require(graphs is not CudaGraphs.LOCAL, title, "graphs of layers by", graphs.label)
    fields: dict[str, Any] = {"model.cuda_graph_impl": graphs.label}
    if captures_update(launch):
        fields[OPTIMIZER_GRAPH] = True
    if graphs is CudaGraphs.NONE:
        return fields
    fields |= {
        "model.cuda_graph_scope": None,
        "model.cuda_graph_modules": list(captured_modules(launch.config.cuda_graph_modules)),
        "model.use_te_rng_tracker": True,
        "rng.te_rng_tracker": True,
    }
    if graphs is CudaGraphs.FULL_ITERATION:
        fields |= {"rerun_state_machine.check_for_nan_in_loss": False, "ddp.check_for_nan_in_grad": False}
    return fields


def graphs_said(s: Settings) -> dict[str, int]:
    """What a recipe and overrides say of CUDA graphs. Raises `FileInputError`."""
    impl = s.text("model.cuda_graph_impl", "none")
    words = s.text("model.cuda_graph_modules", s.text("model.cuda_graph_scope", "")).strip("[]\"'")
    names = [name.strip(" '\"") for name in words.split(",") if name.strip(" '\"")]
    if "full_iteration" in names and impl == "local":
        impl, names = CudaGraphs.FULL_ITERATION.label, []
    if impl.upper() not in CudaGraphs.__members__:
        must = "must be one of " + ", ".join(graphs.label for graphs in CudaGraphs)
        raise FileInputError(s.file, must, impl[:80], field=s.name("model.cuda_graph_impl"))
    if impl == CudaGraphs.NONE.label:
        return {}
    if impl == CudaGraphs.LOCAL.label:  # utils/cuda_graph.py validate_cuda_graph_configuration
        must = "must be transformer_engine for graphs of layers, or of the full_iteration"
        raise FileInputError(s.file, must, impl, field=s.name("model.cuda_graph_impl"))
    named = [name for name in names if name != WHOLE_LAYER]
    if unknown := [name for name in named if name not in CUDA_GRAPH_MODULES]:
        must = "must be among " + ", ".join(CUDA_GRAPH_MODULES)
        raise FileInputError(s.file, must, ", ".join(unknown)[:80], field=s.name("model.cuda_graph_modules"))
    return {"cuda_graph_impl": int(CudaGraphs[impl.upper()]), "cuda_graph_modules": module_mask(named)}
