"""What of a stack holds on devices for which XLA compiles a whole step to one program: TPUs and Trainium?

Left out: Neuron's and XLA's own flags, and stacks for such devices that are none of JAX's (torch/XLA, NeuronX
Distributed): their rows are answered as the nearest kin.
"""

from __future__ import annotations

from typing import Any, Final

from planner.dialect import option
from planner.errors import UnsupportedError
from planner.spec.findings import Finding, finding
from planner.spec.machine.accelerator import Accelerator
from planner.spec.stack import Stack

COMPILES: Final = ("maxtext",)  # frameworks whose steps XLA compiles
_NO_LAUNCHES: Final = {
    "layer_floor": 0.0, "layer_floor_tp": 0.0, "moe_layer_floor": 0.0, "expert_launch": 0.0,
    "tensor_update": 0.0,
}  # fmt: skip
# A stack's factors correct the tables of GPUs by runs on GPUs, of whose libraries these devices have none.
_NEUTRAL: Final = {"gemm": {}, "attention": 1.0, "memory_bound": 1.0, "grouped_gemm": 1.0, "accelerator": {}}
# XLA lays out a program's memory before it runs; its reports of what does not fit name 0.3 % or less of fragmentation
_PLANNED_MEMORY: Final = {"context": 0.0, "fragmentation": 0.0}
# weights sharded in a slice, copied to others: MaxText's defaults, ici_fsdp_parallelism under dcn_data_parallelism
_SLICES: Final = {"hybrid_sharding": (3,)}


def runs_on(stack: Stack, chip: Accelerator) -> bool:
    """Whether the stack's steps are compiled, on a device that needs them to be."""
    return stack.framework in COMPILES or not chip.architecture.is_compiled_for


def as_compiled(stack: Stack, chip: Accelerator) -> Stack:
    """The stack as its program runs on the device: no launches of layers, kernels at the rates of the device's tables,
    and no CUDA context, as `memory` is what XLA gives a program; so nothing of it is fitted. Raises `UnsupportedError`.

    A calibration's factors were measured on the device itself and stay.
    """
    if not runs_on(stack, chip):
        raise UnsupportedError(
            f"the stack must be one that is compiled for {chip.name}",
            f"{stack.name}, which launches kernels of GPUs",
            f"choose {option('stack', 'maxtext-2024')}, or a cluster of GPUs",
        )
    overhead = stack.overhead.model_copy(update=_PLANNED_MEMORY)
    host = stack.host.model_copy(update=_NO_LAUNCHES)
    limits = stack.limits.model_copy(update=_SLICES)
    changed: dict[str, Any] = {"overhead": overhead, "host": host, "limits": limits}
    if not stack.calibration:
        changed |= {"fitted": (), "fitted_on": ""}
        changed["compute"] = stack.compute.model_copy(update=_NEUTRAL)
    return stack.model_copy(update=changed)


def said_of_compiled(stack: Stack, chip: Accelerator) -> tuple[Finding, ...]:
    """What is assumed of a stack there, for the list of what is assumed."""
    elsewhere = not stack.calibration
    said = [finding("one_program", stack=stack.name, accelerator=chip.name, fitted_elsewhere=elsewhere)]
    if chip.torus is not None:
        said.append(finding("torus_links_all_used"))
    return tuple(said)
