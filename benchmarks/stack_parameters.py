"""Which numbers of a stack are fitted, in which bounds, around which start values?

Read by benchmarks/fit_stacks.py and benchmarks/cross_validate.py. Left out: memory, whose numbers
benchmarks/fit_memory.py handles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.spec.precision import Dtype
from planner.spec.stack import Stack

MAPS: Final = ("gemm", "accelerator")  # sections that are maps inside `compute`


@dataclass(frozen=True)
class Parameter:
    """One number of a stack. `log`: multiplicative. `sigma`: width of the prior around the start value, in log or
    in the number's own unit."""

    section: str
    name: str
    low: float
    high: float
    sigma: float = 0.3
    log: bool = True

    @property
    def key(self) -> Dtype | str:
        """Its key in a map of `compute`."""
        return Dtype(self.name) if self.section == "gemm" else self.name

    def centre(self, starts: dict[str, float]) -> float:
        """Of its prior."""
        return 1.0 if self.section == "accelerator" else starts[f"{self.section}.{self.name}"]

    def of(self, stack: Stack) -> float:
        """The number of a stack."""
        if self.section == "gemm":
            return stack.compute.gemm_factor(Dtype(self.name))
        if self.section == "accelerator":
            return stack.compute.accelerator.get(self.name, 1.0)
        return float(getattr(getattr(stack, self.section), self.name))

    def inner(self, value: float) -> float:
        """The coordinate in which the search moves."""
        return float(np.log(max(value, self.low))) if self.log else value

    def outer(self, x: float) -> float:
        """The bounded value of a coordinate."""
        return float(np.clip(np.exp(x) if self.log else x, self.low, self.high))


def _gemm(*names: str) -> tuple[Parameter, ...]:
    return tuple(Parameter("gemm", name, 0.6, 1.8, 0.15) for name in names)


def _accelerators(*names: str) -> tuple[Parameter, ...]:
    """Where a stack ran on several: pooled, each held close to 1."""
    return tuple(Parameter("accelerator", name, 0.75, 1.33, 0.05) for name in names)


_KERNELS: Final = (
    Parameter("compute", "attention", 0.5, 5.0, 0.4),
    Parameter("compute", "memory_bound", 0.6, 6.0, 0.4),
)
_LAYER_FLOORS: Final = (
    Parameter("host", "layer_floor", 1e-4, 1e-2, 0.5),
    Parameter("host", "layer_floor_tp", 1e-4, 1e-2, 0.5),
)
_FLOORS: Final = (*_LAYER_FLOORS, Parameter("host", "step_overhead", 1e-3, 2.0, 1.0))
_ONCE: Final = (
    Parameter("host", "step_overhead", 1e-3, 2.0, 0.5),
    Parameter("host", "tensor_update", 1e-5, 5e-4, 0.5),
)
_GRACE: Final = Parameter("host", "grace", 1.0, 4.0, 0.4)
_TENSOR: Final = Parameter("communication", "tp_exposed", 0.2, 2.5, 0.3)
_DATA: Final = (
    Parameter("communication", "dp_time", 0.5, 6.0, 0.4),
    Parameter("communication", "dp_overlap", 0.0, 1.0, 0.2, log=False),
)
_EXPERTS: Final = (
    Parameter("host", "moe_layer_floor", 1e-3, 5e-2, 0.5),
    Parameter("communication", "ep_exposed", 0.4, 2.5, 0.3),
)
_SHARDED: Final = Parameter("communication", "dp_overlap", 0.0, 1.0, 0.15, log=False)
PARAMETERS: Final[dict[str, tuple[Parameter, ...]]] = {
    "megatron-2024": (*_gemm("bf16", "fp8"), *_KERNELS, *_FLOORS, _TENSOR, *_DATA, *_EXPERTS),
    "megatron-2025": (
        *_gemm("bf16", "fp8"), *_KERNELS, *_FLOORS, _TENSOR, *_DATA, *_EXPERTS,
        *_accelerators("gb200", "h100-sxm-80g"),
    ),
    "megatron-2026": (
        *_gemm("bf16", "fp8", "fp4"), *_KERNELS, *_LAYER_FLOORS, _GRACE, *_ONCE,
        _TENSOR, *_DATA, *_EXPERTS,
        *_accelerators("b200", "b300", "gb200", "gb300", "h100-sxm-80g"),
    ),
    "megatron-deepspeed-2022": (
        *_gemm("fp16"), *_KERNELS, *_FLOORS, _TENSOR, _DATA[0],
    ),
    "vtrain-2024": (
        *_gemm("fp16"), *_KERNELS, *_FLOORS[:2], Parameter("engine", "softness", 1.2, 30, 0.5), _TENSOR, _DATA[0],
    ),
    "nanotron-2024": (
        *_gemm("bf16"), *_KERNELS, *_FLOORS, _TENSOR, *_DATA,
        Parameter("communication", "tp_exposed_nodes", 0.5, 5.0, 0.4),
        Parameter("communication", "p2p_exposed", 0.1, 3.0, 0.4),
        Parameter("engine", "bucket_latency", 2e-7, 1e-5, 0.4),
        Parameter("engine", "nodes_floor", 0.02, 5.0, 0.4),
        Parameter("engine", "pipeline_floor", 0.02, 5.0, 0.4),
    ),
    "llm-foundry-2023": (
        *_gemm("bf16", "fp8"), *_KERNELS, _FLOORS[0], _FLOORS[2], _SHARDED,
        *_accelerators("a100-sxm-40g", "a100-sxm-80g", "h100-sxm-80g"),
    ),
    "torchtitan-2024": (
        *_gemm("bf16", "fp8"), Parameter("compute", "attention", 0.6, 1.8, 0.15), _KERNELS[1],
        _FLOORS[0], _FLOORS[2], _TENSOR, _SHARDED,
        *_accelerators("a100-sxm-80g", "h100-sxm-96g-hbm2e-500w"),
    ),
    "fsdp1-2023": (*_gemm("bf16"), *_KERNELS, _SHARDED),
    "maxtext-2024": (*_gemm("bf16", "fp8"), *_KERNELS, _SHARDED),
    "aa-scaling-2023": (*_gemm("bf16"), *_KERNELS, *_FLOORS, _TENSOR, _DATA[0]),
}  # fmt: skip


def prior_axes(parameters: Sequence[Parameter]) -> NDArray[np.float64]:
    """Of what the prior speaks: a row a parameter, over the coordinates of all.

    Each stands alone, but products in 8 and 4 bits, of which the ratio to those in bf16 is known.
    """
    axes = np.eye(len(parameters))
    names = [f"{p.section}.{p.name}" for p in parameters]
    for name in {"gemm.fp8", "gemm.fp4"} & set(names):
        axes[names.index(name), names.index("gemm.bf16")] = -1
    return axes


# Centres of the priors: start values from data sheets, published studies and defaults; see the stack files. Of
# accelerators 1. megatron-deepspeed-2022: products in fp16 as in vTrain's profiles of its layers (vtrain-2024), which
# together with links as they are (dp_time 1, not 1.5) took its multi-node rows from 5.8 to 4.3 % on groups left out.
# aa-scaling-2023: compute as in those profiles, which took its rows from 4.6 to 3.6 % and 3.0 to 3.1 %. Its dp_time was
# 2 before its code said that gradients are all-reduced whole, in fp32.
# gemm.fp8 of Megatron's: gemm.bf16 times 1.04 (Hopper), 0.78 (Blackwell), 0.90 (both), what 8-bit products under load
# take over 16-bit ones, each over its table without quantising (benchmarks/best_shapes.py); gemm.fp4 as gemm.fp8. The
# prior is one of that ratio (`prior_axes`).
# moe_layer_floor: a profile of Qwen3-30B on H100 counts 151 kernels a layer and micro-batch (Megatron-Bridge, skill on
# expert-parallel overlap), 115 more than a dense layer's 36, which take 2.0 to 3.8 ms where they are identified.
# host.grace: 2.6 in megatron-2025, from a measurement of August 2025 (TransformerEngine issue 2053), since when its
# modules spend less on the host (#2439, in 2.13); so megatron-2026 starts between that and 1, at their geometric mean,
# with a width that all but reaches either. 1 elsewhere, where no row ran on Grace.
# step_overhead of megatron-2026: SimuMax's rows hold six sweeps over the number of micro-batches alone. What of their
# step times does not grow with it, less collectives, bubble and update, is -12, 2, 14, 18, 5 and 24 ms, most where a
# rank updates most tensors. Step times fitted one by one tell this less well: where every micro-batch is predicted too
# fast, as there, a fixed time makes up for it in the short ones. tensor_update: about ten operations of PyTorch and the
# loops around them for every tensor, each some 10 us (the shortest launches, `expert_launch`).
# attention of torchtitan-2024: FlashAttention-2, which is timed as products are, so held as close (0.15). With the
# width of the others two rows of context parallelism over 4 and 8 ranks lift it to 1.3, and with it every plan without.
# gemm.bf16 of megatron-2026: that of megatron-2025, held to it within 5 %, for a release changes no products. Its dense
# rows in bf16 are one machine's, SimuMax's B200, whose products took a fifth longer than the tables (kernel_checks):
# with the width of the others every plan in bf16 would be some 6 % slower, on H100 as well.
# Megatron's dense layers start from what the rows of its kin say (2.3 and 2.5 ms of Megatron-DeepSpeed, 3.0 and 3.1 of
# vTrain's profiles), where almost none of its own rows waits for the host; an expert layer's 7 ms with them at the 9.5
# of a count of launches.
STARTS: Final[dict[str, dict[str, float]]] = {
    "megatron-2024": {
        "gemm.bf16": 0.9, "gemm.fp8": 0.93, "compute.attention": 1, "compute.memory_bound": 1,
        "host.layer_floor": 0.0026, "host.layer_floor_tp": 0.0028, "host.step_overhead": 0.05,
        "communication.tp_exposed": 0.92, "communication.dp_time": 1, "communication.dp_overlap": 0.8,
        "communication.ep_exposed": 1,
        "host.moe_layer_floor": 0.007,
    },
    "megatron-2025": {
        "gemm.bf16": 0.9, "gemm.fp8": 0.81, "compute.attention": 1, "compute.memory_bound": 1,
        "host.layer_floor": 0.0026, "host.layer_floor_tp": 0.0028, "host.step_overhead": 0.05,
        "communication.tp_exposed": 0.92, "communication.dp_time": 1, "communication.dp_overlap": 0.8,
        "communication.ep_exposed": 1,
        "host.moe_layer_floor": 0.007,
    },
    "megatron-2026": {
        "gemm.bf16": 0.957, "gemm.fp8": 0.757, "gemm.fp4": 0.757, "compute.attention": 1,
        "compute.memory_bound": 1, "host.layer_floor": 0.0026, "host.layer_floor_tp": 0.0028,
        "host.step_overhead": 0.01, "communication.tp_exposed": 0.92, "communication.dp_time": 1,
        "communication.dp_overlap": 0.8, "communication.ep_exposed": 1,
        "host.moe_layer_floor": 0.007, "host.grace": 1.6, "host.tensor_update": 0.0001,
    },
    "megatron-deepspeed-2022": {
        "gemm.fp16": 0.92, "compute.attention": 1.25, "compute.memory_bound": 1.2, "host.layer_floor": 0.0023,
        "host.layer_floor_tp": 0.0025, "host.step_overhead": 0.01, "communication.tp_exposed": 1,
        "communication.dp_time": 1,
    },
    "vtrain-2024": {
        "gemm.fp16": 1, "compute.attention": 1.25, "compute.memory_bound": 1.2, "host.layer_floor": 0.0031,
        "engine.softness": 6.6, "host.layer_floor_tp": 0.0031, "communication.tp_exposed": 1,
        "communication.dp_time": 1,
    },
    "nanotron-2024": {
        "gemm.bf16": 1.28, "compute.attention": 1, "compute.memory_bound": 1.7, "host.layer_floor": 0.0043,
        "host.layer_floor_tp": 0.0043, "host.step_overhead": 0.05, "communication.tp_exposed": 0.83,
        "communication.dp_time": 2, "communication.dp_overlap": 0.5,
        "communication.tp_exposed_nodes": 1.6, "communication.p2p_exposed": 1,
        "engine.bucket_latency": 2.1e-06, "engine.nodes_floor": 1.0,
        "engine.pipeline_floor": 0.7,
    },
    "llm-foundry-2023": {
        "gemm.bf16": 1.1, "gemm.fp8": 1.1, "compute.attention": 1, "compute.memory_bound": 1,
        "host.layer_floor": 0.001, "host.step_overhead": 0.05, "communication.dp_overlap": 0.95,
    },
    "torchtitan-2024": {
        "gemm.bf16": 1, "gemm.fp8": 1.1, "compute.attention": 1, "compute.memory_bound": 1,
        "host.layer_floor": 0.001, "host.step_overhead": 0.05, "communication.tp_exposed": 1,
        "communication.dp_overlap": 0.9,
    },
    "fsdp1-2023": {
        "gemm.bf16": 1.05, "compute.attention": 1.1, "compute.memory_bound": 1,
        "communication.dp_overlap": 0.9,
    },
    "maxtext-2024": {
        "gemm.bf16": 1, "gemm.fp8": 1, "compute.attention": 1, "compute.memory_bound": 1,
        "communication.dp_overlap": 0.9,
    },
    "aa-scaling-2023": {
        "gemm.bf16": 0.92, "compute.attention": 1.5, "compute.memory_bound": 1.5, "host.layer_floor": 0.002,
        "host.layer_floor_tp": 0.002, "host.step_overhead": 0.5, "communication.tp_exposed": 1.5,
        "communication.dp_time": 1,
    },
}  # fmt: skip
