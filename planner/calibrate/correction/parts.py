"""Which parts of a step may a calibration move? Numbers of a stack that move together, and what a step depends on them.

A part is a physical quantity that differs between machines of one kind: how fast kernels run, what is exposed of
collectives, what the host needs. Left out: how far they move (`shrinkage.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.spec.precision import RECIPES, Dtype
from planner.spec.rule import Problem

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """`fields`: numbers of a stack as section.field; `width`: how far it is expected to differ [log]."""

    name: str
    meaning: str
    fields: tuple[str, ...]
    width: float


NARROW: Final = "narrow_gemm"
# widths by judgement, with the rows of benchmarks/calibration.py in sight
PARTS: Final = (
    Part("gemm", "time of GEMMs", ("compute.gemm",), 0.1),
    Part(NARROW, "time of fp8 and fp4 GEMMs, relative to that of all", (), 0.15),
    Part("attention", "time of attention kernels", ("compute.attention",), 0.2),
    Part("memory_bound", "time of memory-bound kernels", ("compute.memory_bound",), 0.2),
    Part("layer_collectives", "exposed time of tensor and expert parallelism",
         ("communication.tp_exposed", "communication.tp_exposed_nodes", "communication.ep_exposed"), 0.3),
    Part("step_collectives", "time of data parallelism and between stages",
         ("communication.p2p_exposed", "communication.dp_time"), 0.3),
    Part("host", "CPU time to launch a layer",
         ("host.layer_floor", "host.layer_floor_tp", "host.moe_layer_floor"), 0.4),
    Part("overhead", "time of a step outside its layers", ("host.step_overhead", "host.tensor_update"), 1.0),
)  # fmt: skip
COMMON: Final = 0.05  # how far all parts are expected to differ together [log]
NORMAL_80: Final = 1.2816  # widths of a normal distribution that hold 80 %
SMALLEST: Final = 0.002  # a factor within 0.2 % of 1 is left alone
STEP: Final = 0.1  # [log] of the central difference


def prior_of(band: float | None = None) -> Array:
    """Covariance of the parts' log factors where a stack differs (p, p); `band`: in which 80 % of steps are expected on
    a device that nobody measured, all parts alike."""
    own = np.array([part.width for part in PARTS])
    common = COMMON if band is None else max(math.log1p(band) / NORMAL_80, COMMON)
    return np.diag(own**2) + common**2


def narrow_formats(problems: Iterable[Problem]) -> tuple[str, ...]:
    """Formats below 16 bits of the problems' matrix products."""
    formats = {RECIPES[problem.job.precision].gemm for problem in problems}
    return tuple(sorted(str(dtype) for dtype in formats if dtype in (Dtype.FP8, Dtype.FP4)))


def multiply_of(log_factors: Sequence[float] | Array, narrow: Sequence[str]) -> dict[str, float]:
    """Factors of a stack's numbers, those that hardly move left out; `narrow`: formats that were measured."""
    found: dict[str, float] = {}
    for part, log_factor in zip(PARTS, log_factors, strict=True):
        factor = math.exp(float(log_factor))
        if abs(factor - 1) >= SMALLEST:
            fields = tuple(f"compute.gemm.{name}" for name in narrow) if part.name == NARROW else part.fields
            found |= dict.fromkeys(fields, round(factor, 4))
    return found
