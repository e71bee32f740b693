"""How are CUDA graphs written in Megatron-LM's arguments and read from them?

0.16.1 has --cuda-graph-scope, where the full iteration is a scope of implementation "local"; 0.18.2 and main have
--cuda-graph-modules, and full_iteration is an implementation. Source: megatron/training/arguments.py of the three,
core/transformer/cuda_graph_config.py. Left out: graphs of inference, and which captures are refused (`graph_rules.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.catalog.stack_options import UPDATE_GRAPH
from planner.errors import InputError, UnknownNameError, UnsupportedError
from planner.frameworks.framework import Launch
from planner.frameworks.megatron.given import Arguments, Option
from planner.spec.config import (
    CUDA_GRAPH_MODULES,
    OFFLOAD_OPTIMIZER,
    WHOLE_LAYER,
    CudaGraphs,
    captured_modules,
    module_mask,
)

FULL_ITERATION: Final = "full_iteration"
_SCOPED: Final = "0.16.1"
_INFERENCE: Final = "full_iteration_inference"


def captures_update(launch: Launch) -> bool:
    """Does the prediction count on a graph of the optimizer's step? An update by the host has none."""
    stack = launch.stack_of("megatron")
    return (
        stack is not None and stack.engine.captures_update and not launch.config.offload & OFFLOAD_OPTIMIZER
    )


def update_options(launch: Launch, version: str) -> list[Option]:
    """The option that captures the optimizer's step, where it is counted on. Raises `UnsupportedError`."""
    if not captures_update(launch):
        return []
    if version == _SCOPED:
        must = f"Megatron-LM must capture the optimizer's step, as +{UPDATE_GRAPH} says; it does from 0.18 on"
        raise UnsupportedError(must, version, "choose --framework-version 0.18.2")
    return [(f"--{UPDATE_GRAPH}",)]


def graph_options(launch: Launch, version: str) -> list[Option]:
    """Options of the launch's graphs; none where it has none. Raises `UnsupportedError`."""
    config, graphs = launch.config, CudaGraphs(launch.config.cuda_graph_impl)
    if not graphs:
        return []
    names = captured_modules(config.cuda_graph_modules)
    checks: list[Option] = (
        [("--no-check-for-nan-in-loss-and-grad",)] if graphs is CudaGraphs.FULL_ITERATION else []
    )
    if version != _SCOPED:
        modules: list[Option] = [("--cuda-graph-modules", *names)] if names else []
        return [("--cuda-graph-impl", graphs.label), *modules, *checks]
    if graphs is CudaGraphs.LOCAL and names:
        must = f"Megatron-LM {version} captures modules with transformer_engine alone"
        raise UnsupportedError(must, "cuda_graph_impl=local", "choose a later release or transformer_engine")
    own = graphs in (CudaGraphs.LOCAL, CudaGraphs.FULL_ITERATION)
    if own and config.ep > 1:
        must = f"Megatron-LM {version} captures its own graphs with expert parallelism for inference alone"
        raise UnsupportedError(must, f"ep={config.ep}", "choose a later release or transformer_engine")
    scope = [FULL_ITERATION] if graphs is CudaGraphs.FULL_ITERATION else list(names)
    scoped: list[Option] = [("--cuda-graph-scope", *scope)] if scope else []
    return [("--cuda-graph-impl", "local" if own else graphs.label), *scoped, *checks]


def accept_graphs(a: Arguments, variables: Mapping[str, str]) -> None:
    """Refuse the environment that validate_args refuses with Transformer Engine's graphs. Raises `InputError`."""
    captured = a.word("--cuda-graph-impl", "none") == CudaGraphs.TRANSFORMER_ENGINE.label
    expandable = "expandable_segments:True" in variables.get("PYTORCH_CUDA_ALLOC_CONF", "")
    if (
        captured | a.has("--external-cuda-graph")
        and expandable
        and variables.get("NCCL_GRAPH_REGISTER") != "0"
    ):
        must = "Transformer Engine's graphs with expandable segments must not register buffers with NCCL"
        raise InputError(
            must, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "export NCCL_GRAPH_REGISTER=0"
        )


def graph_axes(a: Arguments) -> dict[str, int]:
    """`cuda_graph_impl` and `cuda_graph_modules` of the arguments. Raises `InputError`.

    Reinforcement learning captures what generates alone unless told otherwise (megatron/rl/rl_utils.py
    megatron_rl_inference_mode).
    """
    learns = a.has("--perform-rl-step") or a.has("--langrl-env-config")
    if learns and not a.has("--rl-training-cuda-graphs"):
        return {}
    impl = a.word("--cuda-graph-impl", "none")
    for name, meant in (("--enable-cuda-graph", "local"), ("--external-cuda-graph", "transformer_engine")):
        if a.has(name):
            if impl != "none":
                raise InputError(f"{name} and --cuda-graph-impl exclude each other", "both", "leave one out")
            impl = meant
    words = [*a.values.get("--cuda-graph-modules", []), *a.values.get("--cuda-graph-scope", [])]
    if a.has("--cuda-graph-modules") and a.has("--cuda-graph-scope"):
        must = "--cuda-graph-modules and --cuda-graph-scope exclude each other"
        raise InputError(must, "both", "leave --cuda-graph-scope out")
    names = [name for word in words for name in word.split(",") if name]
    if FULL_ITERATION in names and impl in ("none", "local"):
        # 0.16.1 captures nothing with "none"; later releases take the scope for the implementation
        impl = impl if impl == "none" and a.has("--cuda-graph-scope") else FULL_ITERATION
        names.remove(FULL_ITERATION)
    if impl.upper() not in CudaGraphs.__members__:
        raise UnknownNameError("--cuda-graph-impl", impl, [graphs.label for graphs in CudaGraphs])
    graphs = CudaGraphs[impl.upper()]
    if graphs is CudaGraphs.FULL_ITERATION and not a.has("--no-check-for-nan-in-loss-and-grad"):
        must = "a graph of the full iteration excludes looking for NaN in loss and gradients"
        raise InputError(must, "looks for it", "add --no-check-for-nan-in-loss-and-grad")
    if graphs is CudaGraphs.NONE:
        return {}
    if WHOLE_LAYER in names and len(set(names)) > 1:  # cuda_graph_config.py normalize_cuda_graph_modules
        must = "full captures whole layers and excludes other modules to capture"
        raise InputError(must, " ".join(names)[:80], "leave it or them out")
    named = [name for name in names if name not in (WHOLE_LAYER, _INFERENCE)]
    if named and graphs is CudaGraphs.FULL_ITERATION:
        must = "modules to capture must be empty where the full iteration is captured"
        raise InputError(must, " ".join(named)[:80], "leave --cuda-graph-modules out")
    for name in named:
        if name not in CUDA_GRAPH_MODULES:
            raise UnknownNameError("--cuda-graph-modules", name, CUDA_GRAPH_MODULES)
    if graphs is CudaGraphs.LOCAL and {"moe_router", "moe_preprocess"} & set(named):
        named += ["moe_router", "moe_preprocess"]  # transformer_config.py sets both
    return {"cuda_graph_impl": int(graphs), "cuda_graph_modules": module_mask(named)}
