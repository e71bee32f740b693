"""How fast does one accelerator run the operations of a training step, as measured?

Plain tables: `catalog/loader.py` reads them, `cost/device/kernels.py` interpolates in them. Left out: what a
training stack adds on top (host launch gaps, unfused operations, slow kernels): it belongs to the stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.spec.precision import Dtype, Precision

FloatArray = NDArray[np.float64]
GemmKey = Dtype | Precision
# What kernels reach at most where power does not limit them [1]: RTX PRO 6000, the plateau of its tables over the best
# of PyTorch's squares (zzc0721/torch-performance-test-data@9d82827), 401 of 418 TFLOP/s. A card that adds fp32 at half
# rate has power to spare; the three large squares of one RTX 4090 that are known are 0.92 to 0.97 of its peak
# (tests/cost/device/test_kernels.py).
UNLIMITED_PLATEAU: Final = 0.96


def under_load(burst: FloatArray, plateau: float, fraction: float) -> FloatArray:
    """Efficiency of GEMMs under continuous load, from that of a short burst [fraction].

    burst x min(1, fraction x (2 / (1 + (burst / plateau)^4))^(1/4)): `fraction` at the plateau, more below it and
    less above, since the power limit takes most from the kernels that reach most. Fourth powers: of the forms tried,
    this one follows the sustained GEMMs of SimuMax (A100 PCIe, B200) and vidur (A100, H100) best; the spread around
    one factor per source falls from 2.8-6.5 to 1.8-5.8 % (all ten sets, benchmarks/kernel_checks.py).
    """
    return np.asarray(burst * np.minimum(fraction * (2.0 / (1.0 + (burst / plateau) ** 4)) ** 0.25, 1.0))


@dataclass(frozen=True, eq=False)
class GemmTable:
    """Forward GEMM of m tokens, n outputs, k inputs: the fraction of the dense peak over a grid of shapes.

    `log2_m`, `log2_n`, `log2_k`: grid axes, rising [log2 of a count]. `efficiency[i, j, l]`: fraction of
    the dense peak of its number format, at sustained clocks, TN layout. `measured`: False for a roofline
    estimate. `quantising_outputs`: what casting an input value to the narrow format takes, which the figures hold,
    as so many outputs of the product at its peak [1].
    """

    log2_m: FloatArray
    log2_n: FloatArray
    log2_k: FloatArray
    efficiency: FloatArray
    source: str
    measured: bool
    quantising_outputs: float = 0.0
    note: str = ""

    @property
    def axes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        return self.log2_m, self.log2_n, self.log2_k

    def scaled(self, ratio: float, note: str) -> GemmTable:
        """This table with every efficiency multiplied by `ratio`; `note` says why."""
        joined = "; ".join(part for part in (self.note, note) if part)
        return replace(self, efficiency=self.efficiency * ratio, note=joined)


@dataclass(frozen=True, eq=False)
class AttentionTable:
    """Fused attention, forward: the fraction of the dense bf16 peak over a grid of shapes.

    FLOPs are those of the pairs that attend (causal counts half of the square).
    `log2_span`: twice the mean number of keys per query: the length of a causal sequence.
    `log2_rows`: batch times query heads. `log2_head_dim`: mean of the query-key and value widths.
    `efficiency[i, j, l]` in that order, under continuous load. `backward_ratio[i, j]`: FLOP rate of
    the backward pass (2.5 times the forward FLOPs) over that of a forward pass of `backward_rows` times the
    rows, over `log2_span` and `log2_backward_head_dim`: its blocks of keys fill the device with fewer heads.
    """

    log2_span: FloatArray
    log2_rows: FloatArray
    log2_head_dim: FloatArray
    efficiency: FloatArray
    log2_backward_head_dim: FloatArray
    backward_ratio: FloatArray
    backward_rows: float
    source: str
    measured: bool
    note: str = ""

    @property
    def axes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        return self.log2_span, self.log2_rows, self.log2_head_dim


@dataclass(frozen=True)
class MovingRates:
    """How fast operations of PyTorch move bytes beside those of `memory_efficiency` (`cost.device.moved`).

    `apart`, `lists`, `fused`: fraction of the memory bandwidth by bytes of a value, 2 or 4; `cache_gain`: bandwidth
    where the L2 cache holds what is read, over the other [1].
    """

    apart: Mapping[int, float]
    lists: Mapping[int, float]
    fused: Mapping[int, float]
    cache_gain: float


@dataclass(frozen=True, eq=False)
class KernelRates:
    """What one accelerator's kernels reach.

    `gemm`: by number format; a recipe with a table of its own (fp8_blockwise) has its own key.
    `attention`: bf16 and fp16. `dgrad_ratio`, `wgrad_ratio`: efficiency of the input and weight
    gradient over a forward GEMM of the same extents. `grouped_gemm_ratio`, `grouped_wgrad_ratio`: of
    a grouped GEMM over the model of `cost.device.kernels.grouped_gemm_time`, forward and input gradient,
    and weight gradient. `memory_efficiency`: fraction of the HBM bandwidth that memory-bound kernels
    reach. `launch_latency`: shortest time of a kernel on the device [s]. `compute_units`: SMs or CUs.
    `sustained_fraction`: clock under continuous GEMM load over the clock of a short burst; already
    inside the tables. `kin`: the accelerator whose tables were borrowed, empty if its own.
    `timed`: somebody timed products on it, if not those of a table. `unverified`: figures that
    rest on no measurement. `sources`: per figure, where it is from.
    """

    accelerator: str
    gemm: Mapping[GemmKey, GemmTable]
    attention: AttentionTable
    dgrad_ratio: float
    wgrad_ratio: float
    grouped_gemm_ratio: float
    grouped_wgrad_ratio: float
    memory_efficiency: float
    launch_latency: float
    compute_units: int
    sustained_fraction: float
    moving: MovingRates
    kin: str = ""
    note: str = ""
    timed: bool = True
    unverified: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    def multiplying(self, rate: float, note: str) -> KernelRates:
        """These rates where products, not attention, run at `rate` of them [1]; `note` says why."""
        return replace(self, gemm={key: table.scaled(rate, note) for key, table in self.gemm.items()})

    @property
    def measured(self) -> bool:
        """Whether the bf16 table was measured on this accelerator itself."""
        return not self.kin and self.gemm[Dtype.BF16].measured
