"""How long do the GEMMs, the attention and the memory-bound operations of a step take on one device?

Measured efficiencies (`spec/machine/rates.py`) interpolated in shape; every function takes floats or numpy columns.
Left out: host launch gaps (the step model has its own floor) and the slowdown under overlapped communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from planner.errors import UnsupportedError
from planner.spec.machine.rates import FloatArray, GemmKey, GemmTable, KernelRates
from planner.spec.precision import RECIPES, Dtype, Precision

Quantity = Any  # a float or a float64 column: the same text serves both
BACKWARD_FLOPS_RATIO = 2.5  # five matrix products in the backward pass against two (arXiv:2307.08691)
TILE_OVERHEAD = 128.0  # extent of m or n that one tile pads at worst
GROUPED_STREAMS = 4.0  # of Transformer Engine's grouped linear, from memory: unverified
# Share of the traffic to an fp32 gradient buffer that the product does not hide: a tile is added when it is done.
# SimuMax's weight gradients over its forward products of the same extents, against 8 bytes an element over the
# bandwidth: 0.45 on B200 (2,048 to 65,536 tokens), 0.63 on A100 (4,096 to 33,024).
EXPOSED_ACCUMULATION = 0.5
# Time of a 16-bit product whose rows hold no multiple of so many elements, over that of one whose rows do: kernels that
# load 16 bytes at once refuse them. Odd rows: three times in Netflix's heads (Scaling LLM post-training at Netflix,
# technology blog, 13 February 2026), 2.9 on A100 in the heads of vTrain's profiles (50257 columns against 25128), which
# give 2.1 for rows of 4 and of 2 elements (12564, 6282); those are rows on which planner is judged, too.
MISALIGNED = ((8.0, 2.0), (2.0, 3.0))
# Share of the fp32 peak that products of PyTorch in fp32 reach, of any extents: it keeps to fp32 where nobody allows
# TF32, and arithmetic takes fourteen times as long there as on an H100's tensor cores, so that filling and draining
# tiles does not show. Unverified: none was timed alone.
FP32_SHARE = 0.8
K_OVERHEAD = 140.0  # length of k that filling and draining a tile's pipeline costs; see `extent_efficiency`

_INPUT_BYTES = {
    Dtype.FP32: 4.0,
    Dtype.TF32: 4.0,
    Dtype.FP16: 2.0,
    Dtype.BF16: 2.0,
    Dtype.FP8: 1.0,
    Dtype.FP4: 0.5625,
}
_OUTPUT_BYTES = {Dtype.FP32: 4.0, Dtype.TF32: 4.0}


@dataclass(frozen=True)
class Roofline:
    """What bounds a kernel: the dense `peak` of its format [FLOP/s], the `bandwidth` of the memory [bytes/s], and
    `rates`, what kernels reach of both."""

    peak: float
    bandwidth: float
    rates: KernelRates


def interpolate(axes: Sequence[FloatArray], values: FloatArray, points: Sequence[Quantity]) -> FloatArray:
    """Multilinear interpolation in a table, held at its edge outside [unit of `values`].

    `axes[i]` rises; `values` has one dimension per axis; `points[i]` is a float or a column. A point on a
    node returns the node.
    """
    columns = np.broadcast_arrays(*[np.asarray(p, dtype=np.float64) for p in points])
    stride = values.size
    first: Any = 0  # the low corner of every point's cell in the flat table
    corners: list[int] = [0]  # offsets of the others, the last axis varying fastest
    shares: list[FloatArray] = []
    for axis, x in zip(axes, columns, strict=True):
        stride //= len(axis)
        if len(axis) > 1:
            low = np.minimum(np.maximum(axis.searchsorted(x, side="right") - 1, 0), len(axis) - 2)
            start = axis[low]
            share = (x - start) / (axis[low + 1] - start)
            shares.append(np.minimum(np.maximum(share, 0.0), 1.0))
            first = first + low * stride
            corners = [offset + step for offset in corners for step in (0, stride)]
    flat = values.ravel()
    found = [flat[first + offset] for offset in corners]
    for share in reversed(shares):
        left = 1.0 - share
        found = [left * low + share * high for low, high in zip(found[::2], found[1::2], strict=True)]
    return np.asarray(found[0])


def extent_efficiency(m: Quantity, n: Quantity, k: Quantity) -> Quantity:
    """Share of a GEMM's time that short extents leave for wanted FLOPs [fraction].

    m / (m + 128) n / (n + 128) k / (k + 140): part of a tile is padding, a short k does not fill the pipeline.
    The 140 from the A100 and H100 tables, where GEMMs of m, n >= 4096 reach at k = 512 0.81 and 0.78 of their
    efficiency at k = 8192. The smooth form of tile and wave quantisation (benchmarks/kernel_measurements.py), whose
    steps the libraries' choice among many tiles blunts: as a prior under the measured residuals the steps raise the
    error on left-out shapes by a quarter, this lowers it by 3 %.
    """
    return m / (m + TILE_OVERHEAD) * (n / (n + TILE_OVERHEAD)) * (k / (k + K_OVERHEAD))


def gemm_table(dtype: GemmKey, rates: KernelRates) -> GemmTable:
    """The table of a number format, or of a recipe: its own, else that of its number format.

    Raises UnsupportedError if the accelerator has none.
    """
    found = rates.gemm.get(dtype) or rates.gemm.get(_number_format(dtype))
    if found is None:
        raise UnsupportedError(
            "the accelerator must have GEMM rates for the number format",
            f"{dtype} on {rates.accelerator}",
            "use one of " + ", ".join(sorted(rates.gemm)),
        )
    return found


def gemm_efficiency(m: Quantity, n: Quantity, k: Quantity, dtype: GemmKey, rates: KernelRates) -> Quantity:
    """Fraction of the dense peak that a forward GEMM reaches [fraction].

    `extent_efficiency` times a residual that is trilinear in log2(m), log2(n), log2(k) and held at the grid's
    edge: on a node of the table the measured value, below the grid the falling law, above it the plateau. Its
    error on shapes left out of the tables is printed by benchmarks/kernel_checks.py. Of fp32 there is no table: see
    `FP32_SHARE`.
    """
    table = gemm_table(dtype, rates)
    if _number_format(dtype) is Dtype.FP32:
        return np.full(np.broadcast_shapes(np.shape(m), np.shape(n), np.shape(k)), FP32_SHARE)[()]
    found = interpolate(table.axes, _residual(table), (np.log2(m), np.log2(n), np.log2(k)))
    tops = (np.exp2(axis[-1]) for axis in table.axes)
    return found * extent_efficiency(*(np.minimum(x, top) for x, top in zip((m, n, k), tops, strict=True)))


@lru_cache(maxsize=64)
def _residual(table: GemmTable) -> FloatArray:
    """What `extent_efficiency` leaves of a table's efficiencies, on its grid [1]."""
    return table.efficiency / extent_efficiency(*np.ix_(*(np.exp2(axis) for axis in table.axes)))


def misaligned_slowdown(n: Quantity, k: Quantity) -> Quantity:
    """Factor on the time of a 16-bit product of n outputs and k inputs, and of its gradients [1].

    Their rows in memory hold n or k elements, and all three products meet both. Of an uneven cut whole elements count.
    One output alone is a product with a vector, bound by reading the inputs. See `MISALIGNED`; NVIDIA's guide on matrix
    multiplication (DU-09799-001, section 2.2) asks for rows of whole 16 bytes. Validity: cuBLAS; compilers that pad
    inside do not slow down.
    """
    factor: Quantity = 1.0
    for elements, slowdown in MISALIGNED:
        uneven = ((np.floor(n) % elements > 0) & (np.floor(n) > 1)) | (np.floor(k) % elements > 0)
        factor = np.where(uneven, slowdown, factor)
    return factor


def gemm_time(
    m: Quantity,
    n: Quantity,
    k: Quantity,
    dtype: GemmKey,
    roofline: Roofline,
    output_bytes: float | None = None,
) -> Quantity:
    """Time of one forward GEMM: m tokens, n outputs, k inputs [s].

    max(2 m k (n / efficiency - q) / peak, bytes / (bandwidth x memory_efficiency)); each operand moves once. The
    product alone: q outputs stand for quantising the input, which tables of 8 and 4 bits hold; at the peak at most.
    `roofline`: its peak that of `dtype`. `output_bytes`: traffic of one output element, for products
    that add to what is there, a share `EXPOSED_ACCUMULATION` of which lengthens the product; else it is written
    once in the format's own width. Source: roofline (Williams 2009, doi:10.1145/1498765.1498785) with measured
    efficiencies. Validity: one kernel; launches are the step model's.
    """
    m, n, k = (np.asarray(x, dtype=np.float64) for x in (m, n, k))
    rates, bandwidth = roofline.rates, roofline.bandwidth
    outputs = n / gemm_efficiency(m, n, k, dtype, rates) - gemm_table(dtype, rates).quantising_outputs
    compute = 2.0 * m * k * np.maximum(outputs, n) / roofline.peak
    form = _number_format(dtype)
    exposed = 0.0
    if output_bytes is None:
        output_bytes = _OUTPUT_BYTES.get(form, 2.0)
    else:
        exposed = EXPOSED_ACCUMULATION * memory_bound_time(output_bytes * m * n, bandwidth, rates)
    moved = (m * k + n * k) * _INPUT_BYTES[form] + m * n * output_bytes
    return np.maximum(compute + exposed, memory_bound_time(moved, bandwidth, rates))[()]


def gemm_backward_time(
    m: Quantity,
    n: Quantity,
    k: Quantity,
    dtype: GemmKey,
    roofline: Roofline,
    gradient_traffic: float | None = None,
) -> tuple[Quantity, Quantity]:
    """Times of the input gradient and of the weight gradient of `gemm_time`'s GEMM [s].

    dgrad is a GEMM of (m, k, n), wgrad one of (n, k, m); each at the forward efficiency of those extents
    times the accelerator's `dgrad_ratio` or `wgrad_ratio` (NN and NT layouts). `gradient_traffic`: bytes that an
    element of the weight gradient moves, 8 where the product adds to an fp32 buffer: see `gemm_time`.
    """
    dgrad = gemm_time(m, k, n, dtype, roofline) / roofline.rates.dgrad_ratio
    wgrad = gemm_time(n, k, m, dtype, roofline, gradient_traffic) / roofline.rates.wgrad_ratio
    return dgrad, wgrad


def grouped_gemm_time(
    rows_total: Quantity, n: Quantity, k: Quantity, groups: Quantity, dtype: GemmKey, roofline: Roofline
) -> Quantity:
    """Time of one grouped forward GEMM: `rows_total` tokens over `groups` experts of n outputs, k inputs [s].

    The groups run one after the other, up to four at once where a single one leaves units idle (the streams
    of Transformer Engine's grouped linear): concurrent = clip(units / tiles of one group, 1, min(4, groups));
    groups / concurrent x gemm_time(rows_total / groups, concurrent x n, k) / grouped_gemm_ratio; one group is a plain
    product (TransformerEngine, common/gemm/cublaslt_gemm.cu, multi_stream_cublas_gemm: one call). Source: on
    SimuMax's grouped GEMMs (A100, B200: groups of 128 rows and more) both one group at a time and this fit
    better than one wide or one tall GEMM; four at once was chosen for narrow experts, where one at a time is up
    to twice as slow as aiconfigurator's fused MoE kernels. Validity: balanced groups; the imbalance factor
    belongs to the caller.
    """
    rows = np.asarray(rows_total, dtype=np.float64) / groups
    each = _grouped(rows, n, k, groups, dtype, roofline)
    return each / np.where(np.asarray(groups) > 1.0, roofline.rates.grouped_gemm_ratio, 1.0)


def grouped_gemm_backward_time(
    rows_total: Quantity,
    n: Quantity,
    k: Quantity,
    groups: Quantity,
    dtype: GemmKey,
    roofline: Roofline,
    gradient_traffic: float | None = None,
) -> tuple[Quantity, Quantity]:
    """Times of the input and of the weight gradient of `grouped_gemm_time`'s GEMM [s].

    The same model on (rows, k, n) and on (n, k, rows), divided by `grouped_gemm_ratio` and by
    `grouped_wgrad_ratio`: each expert's weight gradient has a short inner extent; those of one group are
    `gemm_backward_time`'s. `gradient_traffic` as there.
    """
    rows = np.asarray(rows_total, dtype=np.float64) / groups
    dgrad = _grouped(rows, k, n, groups, dtype, roofline)
    wgrad = _grouped(n, k, rows, groups, dtype, roofline, gradient_traffic)
    several, rates = np.asarray(groups) > 1.0, roofline.rates
    return (
        dgrad / np.where(several, rates.grouped_gemm_ratio, rates.dgrad_ratio),
        wgrad / np.where(several, rates.grouped_wgrad_ratio, rates.wgrad_ratio),
    )


def _grouped(
    m: Quantity,
    n: Quantity,
    k: Quantity,
    groups: Quantity,
    dtype: GemmKey,
    roofline: Roofline,
    output_bytes: float | None = None,
) -> Quantity:
    """Time of `groups` GEMMs of (m, n, k), side by side where units would idle [s]."""
    tiles = np.ceil(m / 128.0) * np.ceil(n / 128.0)
    concurrent = np.clip(roofline.rates.compute_units / tiles, 1.0, np.minimum(GROUPED_STREAMS, groups))
    each = gemm_time(m, n * concurrent, k, dtype, roofline, output_bytes)
    return groups / concurrent * each


def attended_pairs(
    seq_q: Quantity, seq_kv: Quantity, causal: Quantity, window: Quantity = np.inf
) -> Quantity:
    """Query-key pairs that attend, of one head and sequence [pairs].

    Full: q kv. Causal (the last query sees the last key): q kv - q^2 / 2. A causal window of w keys removes
    the triangle beyond it: w (kv - w / 2) of the square case. The diagonal counts half, as in
    FlashAttention's plots.
    """
    reach = np.minimum(np.asarray(window, dtype=np.float64), seq_kv)
    full = seq_q * reach
    # queries whose window is cut by the start of the sequence see a growing prefix
    first = seq_kv - seq_q
    short = np.clip(reach - first, 0.0, seq_q)
    return np.where(causal, full - short * short / 2.0, full)


def attention_points(
    heads: Quantity, seq_q: Quantity, pairs: Quantity, width: Quantity
) -> tuple[Quantity, Quantity, Quantity]:
    """Where an attention lies in the table: span, rows and mean head width [1].

    The span is twice the mean keys per query, the rows are batch x `heads` scaled by seq_q / span: shorter query
    blocks fill fewer units.
    """
    span = 2.0 * pairs / seq_q
    return span, heads * (seq_q / span), width


def attention_time(
    batch: Quantity,
    seq_q: Quantity,
    seq_kv: Quantity,
    heads: Quantity,
    kv_heads: Quantity,
    d_qk: Quantity,
    d_v: Quantity,
    causal: Quantity,
    roofline: Roofline,
    window: Quantity = np.inf,
) -> tuple[Quantity, Quantity]:
    """Forward and backward time of fused attention in bf16 or fp16 [s].

    forward = max(2 batch heads pairs (d_qk + d_v) / (peak x efficiency), bytes / (bandwidth x
    memory_efficiency)); backward = 2.5 times the FLOPs at `backward_ratio` of the rate with `backward_rows`
    times the heads, twice the bytes. The efficiency is trilinear in the log2 of the span (twice the mean keys
    per query), of batch x heads (scaled by seq_q / span: shorter query blocks fill fewer units) and of the
    mean head width. Source: FlashAttention FLOP convention (arXiv:2307.08691). Validity: bf16 kernels of the
    FlashAttention kind; `window` only with `causal`.
    """
    table = roofline.rates.attention
    pairs = attended_pairs(seq_q, seq_kv, causal, window)
    span, filled_rows, mean_width = attention_points(batch * heads, seq_q, pairs, (d_qk + d_v) / 2.0)
    length, rows, width = np.log2(span), np.log2(filled_rows), np.log2(mean_width)
    # beyond the longest measured span a head has more blocks than there: so many more heads fill the device alike
    rows = rows + np.maximum(length - table.log2_span[-1], 0.0)
    # below the shortest measured span the kernel's fixed work dominates: the rate falls with the span
    peak_reached = roofline.peak * np.minimum(span / 2.0 ** table.log2_span[0], 1.0)
    work = 2.0 * batch * heads * pairs * (d_qk + d_v)
    forward = work / (peak_reached * interpolate(table.axes, table.efficiency, (length, rows, width)))
    filled = (length, rows + np.log2(table.backward_rows), width)
    ratio = interpolate(
        (table.log2_span, table.log2_backward_head_dim), table.backward_ratio, (length, width)
    )
    rate = peak_reached * ratio * interpolate(table.axes, table.efficiency, filled)
    moved = 2.0 * batch * (seq_q * heads + seq_kv * kv_heads) * (d_qk + d_v)
    io = memory_bound_time(moved, roofline.bandwidth, roofline.rates)
    return np.maximum(forward, io)[()], np.maximum(BACKWARD_FLOPS_RATIO * work / rate, 2.0 * io)[()]


def memory_bound_time(moved: Quantity, bandwidth: float, rates: KernelRates) -> Quantity:
    """Time of an operation that only moves `moved` bytes through HBM: bytes / (bandwidth x efficiency) [s]."""
    return moved / (bandwidth * rates.memory_efficiency)


def shape_distance(axes: Sequence[FloatArray], points: Sequence[Quantity]) -> tuple[Quantity, Quantity]:
    """How far a shape lies from the nearest measured one, and outside all of them, Euclidean [log2 units].

    `axes`: of a table's grid [log2]; `points`: extents [1]. Inside the grid the second is 0.
    """
    near: Quantity = 0.0
    outside: Quantity = 0.0
    for x, axis in zip(points, axes, strict=True):
        log = np.log2(np.asarray(x, dtype=np.float64))
        near = near + np.min(np.abs(log[..., None] - axis), axis=-1) ** 2
        outside = outside + np.maximum(np.maximum(axis[0] - log, log - axis[-1]), 0.0) ** 2
    return np.sqrt(near)[()], np.sqrt(outside)[()]


def _number_format(key: GemmKey) -> Dtype:
    """The number format of a table's key: a recipe's GEMMs run in one."""
    return RECIPES[key].gemm if isinstance(key, Precision) else key
