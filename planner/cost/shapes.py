"""How far are the matrix products and the attention of a configuration from shapes that were measured?

Distances are in factors of two: 0 on a measured shape. Left out: operations that only move bytes, whose rate has no
shape, and the gradients' products, which have the same extents in another order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.device.kernels import attended_pairs, attention_points, gemm_table, shape_distance
from planner.cost.device.products import gemm_extents
from planner.cost.flops import layer_counts, outer_gemms
from planner.cost.layer import LayerModel
from planner.cost.operations.lists import layer_gemms
from planner.spec.config import ConfigTable, ParallelConfig

NEGLIGIBLE = 0.01  # share of the FLOPs below which a product's own distance is not told


@dataclass(frozen=True)
class ShapeDistance:
    """`mean`, `most`: distance of the matrix products to the nearest measured ones, weighed by FLOPs, and the largest
    of any that matters. `outside`: share of the FLOPs beyond the measured range [1]. `attention`: distance of the
    attention beyond its range, the largest of any layer [log2 units]."""

    mean: float
    most: float
    outside: float
    attention: float


def shape_distance_of(config: ParallelConfig, layers: LayerModel) -> ShapeDistance:
    """The distances of one configuration, forward."""
    model, rates = layers.problem.model, layers.kernels
    keys, row = ConfigTable.of([config]), np.array([0])
    counts = layer_counts(model)
    kinds = [(layer, count, layer_gemms(layer, model.hidden), not layer.wide) for layer, count in counts]
    work, near, beyond = [], [], []
    attention = 0.0
    for layer, count, gemms, narrow in (*kinds, (None, 1, outer_gemms(model), False)):
        x = layers.shape(keys, layer)
        for gemm in gemms:
            m, n, k, groups = (float(value[0]) for value in gemm_extents(gemm, x, row))
            table = gemm_table(layers.products.table_of(gemm, narrow), rates)
            found = shape_distance(table.axes, (m / groups, n, k))
            work.append(count * m * n * k)
            near.append(float(found[0]))
            beyond.append(float(found[1]))
        if layer is not None and layer.attention is not None and not layer.attention.sparse:
            a, seq = layer.attention, layers.problem.job.attended_length
            pairs = attended_pairs(seq, seq, True, float(a.window) if a.window else np.inf)
            heads = float(config.micro_batch * a.heads / (config.tp * config.cp))
            points = attention_points(heads, seq, pairs, float(a.head_dim + a.v_head_dim) / 2)
            attention = max(attention, float(shape_distance(rates.attention.axes, points)[1]))
    share, distance = np.array(work) / sum(work), np.array(near)
    return ShapeDistance(
        mean=float(share @ distance),
        most=float(distance[share > NEGLIGIBLE].max()),
        outside=float(share[np.array(beyond) > 1e-9].sum()),
        attention=attention,
    )
