"""What can a framework not express? One sentence form for all of them."""

from __future__ import annotations

from planner.errors import UnsupportedError
from planner.frameworks.framework import Launch
from planner.spec.config import CudaGraphs, Recompute, offload_text


def require(holds: bool, framework: str, what: str, given: object) -> None:
    """Raise `UnsupportedError` unless the framework can express it."""
    if not holds:
        must = f"{framework} must be able to express {what}"
        raise UnsupportedError(
            must, str(given), "choose another configuration of the plan, or another framework"
        )


def unstated(where: str, instead: str, what: str, given: object) -> UnsupportedError:
    """The error for what the arguments `where` cannot state; `instead`: what to do."""
    return UnsupportedError(f"{where} must be able to state {what}", str(given), instead)


def require_axis(launch: Launch, framework: str, axis: str, allowed: tuple[int, ...]) -> None:
    """Raise `UnsupportedError` unless an axis has one of these values."""
    value = getattr(launch.config, axis)
    require(
        value in allowed, framework, f"{axis} other than {', '.join(map(str, allowed))}", f"{axis}={value}"
    )


def require_whole_recompute(launch: Launch, framework: str, offload: int = 0) -> None:
    """Raise `UnsupportedError` where only some layers are fully recomputed, or more than `offload` is on the host."""
    config = launch.config
    most = -(-launch.model.num_layers // config.pp)
    partial = config.recompute == Recompute.FULL and config.recompute_layers < most
    require(not partial, framework, "full recomputation of some layers only", config.recompute_layers)
    require(
        not config.offload & ~offload, framework, "this offloading", f"offload={offload_text(config.offload)}"
    )


def is_pure_bf16(launch: Launch) -> bool:
    """Does the plan's stack keep weights, gradients and moments in bf16, without fp32 masters?"""
    return launch.stack is not None and launch.stack.engine.pure_bf16


def require_masters(launch: Launch, framework: str) -> None:
    """Raise `UnsupportedError` where the plan counts on training without fp32 masters."""
    given = launch.stack.name if launch.stack is not None else ""
    require(not is_pure_bf16(launch), framework, "full bf16 training, without fp32 masters", given)


def uncaptured(launch: Launch, framework: str) -> list[str]:
    """What the prediction counts on of CUDA graphs that the framework does not capture."""
    graphs = CudaGraphs(launch.config.cuda_graph_impl)
    return [f"CUDA graphs that the plan counts on: {framework} captures none"] if graphs else []
