"""How far off is a kernel's time when its row, its whole shape or its whole device is left out of the tables?

GEMMs: a random tenth of the rows, a tenth of the weight shapes (every token count of an n x k), every extent that has
neighbours on both sides, and the device itself, for which then the roofline stands. Attention: the rows whose batch x
heads is not on the grid, every span, every row count, other head widths. Errors are of time, at burst clocks. Left
out: other sources' timings and backward passes, which are in kernel_checks.py.
"""

from __future__ import annotations

import csv
import gzip
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernel_estimates import pooled_residual
from benchmarks.kernel_measurements import (
    DEVICES,
    ROWS,
    AttentionCells,
    GemmGrid,
    attention_grid,
    read_rows,
    roofline,
)
from planner.cost.device.kernels import extent_efficiency, interpolate
from planner.spec.machine.rates import FloatArray

Mask = NDArray[np.bool_]
FEWEST_FLOPS = 1e10  # smaller GEMMs are launches
FOLDS = 10


def filled(values: FloatArray, left_out: Mask, axes: Sequence[FloatArray]) -> FloatArray:
    """`values` with the cells left out taken from what is left: linear along each axis, mean of the axes.

    An axis counts where a line has cells on both sides of the hole. NaN where none has.
    """
    total, count = np.zeros(values.shape), np.zeros(values.shape)
    for axis, grid in enumerate(axes):
        lines, holes = np.moveaxis(values, axis, -1), np.moveaxis(left_out, axis, -1)
        sums, counts = np.moveaxis(total, axis, -1), np.moveaxis(count, axis, -1)
        for at in itertools.product(*map(range, lines.shape[:-1])):
            known = np.flatnonzero(~holes[at])
            if not holes[at].any() or len(known) < 2:
                continue
            hole = np.flatnonzero(holes[at])
            hole = hole[(hole > known[0]) & (hole < known[-1])]
            sums[at][hole] += np.interp(grid[hole], grid[known], lines[at][known])
            counts[at][hole] += 1
    return np.where(
        left_out, np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0), values
    )


def gemm_errors(grid: GemmGrid, masks: Iterator[Mask]) -> tuple[FloatArray, FloatArray]:
    """Relative errors of the time and FLOPs of the rows left out, over all masks."""
    m, n, k = grid.mesh()
    law = extent_efficiency(m, n, k)
    errors, sizes = [], []
    for mask in masks:
        guess = filled(grid.values / law, mask, grid.axes) * law
        use = mask & (2 * m * n * k > FEWEST_FLOPS) & ~np.isnan(guess)
        errors.append(np.abs(grid.values[use] / guess[use] - 1))
        sizes.append((2 * m * n * k)[use])
    return np.concatenate(errors), np.concatenate(sizes)


def random_rows(grid: GemmGrid) -> Iterator[Mask]:
    """Each row once, a tenth at a time."""
    fold = np.random.default_rng(0).integers(0, FOLDS, grid.values.shape)
    return (fold == i for i in range(FOLDS))


def weight_shapes(grid: GemmGrid) -> Iterator[Mask]:
    """Each n x k once with all its token counts, a tenth at a time."""
    fold = np.random.default_rng(0).integers(0, FOLDS, grid.values.shape[1:])
    return (np.broadcast_to(fold == i, grid.values.shape) for i in range(FOLDS))


def extents(grid: GemmGrid) -> Iterator[Mask]:
    """Every token count, output and input extent whose neighbours are at most four times apart."""
    for axis, nodes in enumerate(grid.axes):
        for plane in range(1, len(nodes) - 1):
            if nodes[plane + 1] - nodes[plane - 1] < 2.01:
                mask = np.zeros(grid.values.shape, dtype=bool)
                mask[(slice(None),) * axis + (plane,)] = True
                yield mask


def device_errors(gpu: str, grids: dict[str, dict[str, GemmGrid]], known_best: bool) -> FloatArray:
    """Errors of the bf16 roofline for a device of which nothing was measured, or (`known_best`) one best shape.

    `grids`: of best repeats, the statistic that all devices have.
    """
    own, others = grids[gpu]["bf16"], [grids[name]["bf16"] for name in DEVICES if name != gpu]
    plateau = float(np.median([grid.plateau() for grid in others]))
    if known_best:
        share = float(np.median([grid.plateau() / grid.values.max() for grid in others]))
        plateau = share * float(own.values.max())
    m, n, k = own.mesh()
    guess = roofline(plateau, DEVICES[gpu][1], m, n, k) * pooled_residual(grids, gpu)
    return np.asarray(np.abs(own.values / guess - 1)[2 * m * n * k > FEWEST_FLOPS])


def attention_errors(gpu: str, cells: AttentionCells) -> dict[str, FloatArray]:
    """Errors of the forward pass by what was left out, from a span of 512 on and 1e10 FLOP on."""
    axes, table = attention_grid(gpu, cells)
    rows = [(key, value) for key, found in cells.items() if key[1] not in ROWS for value in found]
    keys = np.array([key for key, _ in rows], dtype=float)
    guess = interpolate(axes, table, list(np.log2(keys).T))
    large = (2 * keys[:, 0] ** 2 * keys[:, 1] * keys[:, 2] > FEWEST_FLOPS) & (keys[:, 0] >= 512)
    errors = {"rows": np.abs(np.array([value for _, value in rows]) / guess - 1)[large]}
    mesh = np.meshgrid(*(np.exp2(axis) for axis in axes), indexing="ij")
    for axis, name in ((0, "span"), (1, "heads")):
        found = []
        for plane in range(1, len(axes[axis]) - 1):
            mask = np.zeros(table.shape, dtype=bool)
            mask[(slice(None),) * axis + (plane,)] = True
            rest = [np.delete(a, plane) if i == axis else a for i, a in enumerate(axes)]
            points = [np.log2(x[mask]) for x in mesh]
            near = interpolate(rest, np.delete(table, plane, axis), points)
            use = 2 * mesh[0][mask] ** 2 * mesh[1][mask] * mesh[2][mask] > FEWEST_FLOPS
            found.append(np.abs(table[mask] / near - 1)[use])
        errors[name] = np.concatenate(found)
    return errors


# whose table stands for a device of which nothing was measured: the best-known one of another generation
KIN = dict.fromkeys(DEVICES, "h100_sxm_80g") | dict.fromkeys(
    ("h100_sxm_80g", "h200_sxm", "l40s", "rtx_pro_6000_server"), "a100_sxm_80g"
)


def attention_device_errors(
    gpu: str, cells: dict[str, AttentionCells], grids: dict[str, dict[str, GemmGrid]]
) -> FloatArray:
    """Errors where a kin of another generation stands in, scaled by the plateaus of the GEMMs."""
    axes, table = attention_grid(gpu, cells[gpu])
    points = np.meshgrid(*axes, indexing="ij")
    scale = grids[gpu]["bf16"].plateau() / grids[KIN[gpu]]["bf16"].plateau()
    guess = scale * interpolate(*attention_grid(KIN[gpu], cells[KIN[gpu]]), points)
    large = 2.0 * np.exp2(2 * points[0] + points[1] + points[2]) > FEWEST_FLOPS
    return np.asarray(np.abs(table / guess - 1)[large])


def width_errors(gpu: str, data: Path, cells: AttentionCells) -> FloatArray:
    """Errors at head width 192, which no table holds; empty where the best kernel of that width is a fallback."""
    axes, table = attention_grid(gpu, cells)
    errors = []
    for row in read_rows(data / "attention_efficiency.csv.gz", "aiconfigurator"):
        if (
            row["gpu"] != gpu
            or row["head_dim_qk"] != "192"
            or "triton" in row["kernel"]
            or not row["efficiency"]
        ):
            continue
        span, heads = float(row["seq_len"]), float(row["batch"]) * float(row["heads"])
        if 2 * span**2 * heads * 192 > FEWEST_FLOPS:
            best = float(row["efficiency"]) * float(row["tflops_best"]) / float(row["tflops"])
            guess = float(interpolate(axes, table, (np.log2(span), np.log2(heads), np.log2(192.0))))
            errors.append(abs(best / guess - 1))
    return np.array(errors)


def latent_errors(gpu: str, data: Path, forward: Callable[[float, float, float], float]) -> FloatArray:
    """Errors of multi-head latent attention (192 and 128) from 2048 on against the fastest inference kernel.

    `forward`: seconds at burst clocks of batch, length and heads.
    """
    fastest: dict[tuple[float, float, float], float] = {}
    with gzip.open(data / "mla_aiconfigurator.csv.gz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            if row["gpu"] == gpu and row["kv_cache_dtype"] == "bfloat16" and int(row["isl"]) >= 2048:
                key = (float(row["batch_size"]), float(row["isl"]), float(row["num_heads"]))
                fastest[key] = min(fastest.get(key, np.inf), float(row["latency"]) / 1e3)
    return np.array([abs(forward(*key) / seconds - 1) for key, seconds in fastest.items()])
