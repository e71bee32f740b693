"""What do adapters, and weights frozen in 8 or 4 bits, add to the time of a layer's products?

An adapter runs beside its linear layer as single operations, in peft (tuners/lora/layer.py Linear.forward, without
dropout, its default), torchtune (modules/peft/lora.py), torchtitan (components/lora.py) and Megatron-Bridge
(peft/lora_layers.py, peft/utils.py): x A, times B, times alpha / rank, plus the layer's own output. Frozen weights in
few bits are dequantised to 16 before every product that reads them, forward, recomputed and of the input's gradient
(bitsandbytes autograd/_functions.py MatMul4Bit, torchao nf4_tensor.py LinearNF4). Left out: the copy that peft makes of
a 4-bit layer's output, casts of adapters kept in fp32, products of LLM.int8 in 8 bits, launches for every expert of a
quantised mixture, communication of adapters under tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.cut import LayerShape
from planner.cost.device.kernels import gemm_backward_time, gemm_time
from planner.cost.device.products import Groups, Products, gemm_extents
from planner.cost.device.rates import DeviceRates
from planner.cost.operations.operation import Gemm, Shard
from planner.spec.job import FROZEN_BYTES, Job
from planner.spec.stack import Stack

Array = NDArray[np.float64]

# 16-bit passes beside the adapter's products. Forward, over the output: scaling (read, write), sum (read, read, write).
# Backward: scaling of the output's gradient; the input's gradient added to the layer's own (read, read, write).
OUTPUT_PASSES: Final = (5.0, 2.0)
INPUT_PASSES: Final = (0.0, 3.0)
# Launches of an adapter, forward and backward: two products, scaling, sum; four products, scaling, sum.
ADAPTER_LAUNCHES: Final = 4 + 6
# Launches of dequantising: scales in 8 bits to fp32, plus their mean, weights (bitsandbytes functional.py
# dequantize_4bit of nested states); as many single operations of PyTorch in torchao's get_original_weight.
DEQUANTISE_LAUNCHES, EAGER_DEQUANTISE_LAUNCHES = 3, 14
# Bytes moved to dequantise a 4-bit weight: half a byte and the fp32 scale of 64 read, scales made of 8-bit ones (read
# 1, write 4, add the mean 8), 2 written. As single operations: shifts and masks to 8 bits, to 64-bit indices, looked
# up, scaled, interleaved (torchao 0.18 nf4_tensor.py get_original_weight, 66 bytes for two).
DEQUANTISE_BYTES: Final = 0.5 + (4 + 1 + 4 + 8) / 64 + 2.0
EAGER_DEQUANTISE_BYTES: Final = 33.0
# Weights that a compute unit dequantises in a second: bitsandbytes' kernel is bound by its instructions on A100 and
# H100. From its own inference benchmarks (bitsandbytes 95f9af3 benchmarking/README.md, v0.45.0, H100): with 8 sequences
# a token takes 70B in NF4 0.235 s and 32B 0.115 s, 0.046 and 0.022 s of which read the weights in bf16 at 90 % of the
# bandwidth; that leaves 68.5e9 and 31.2e9 weights at 3.3 to 3.7e11 a second on 132 units. On A100 another kernel is
# twice as fast (Qi 2026, arXiv 2604.02556, abstract), which is where its memory would bind.
DEQUANTISED_PER_UNIT: Final = 2.65e9


def linear_layers(gemm: Gemm, stack: Stack) -> int:
    """Linear layers of a product: q, k and v as well as gate and up are one in Megatron's models, else apart; those of
    experts are not."""
    return 1 if gemm.expert or stack.engine.fuses_inputs else gemm.linear


def adapter_launches(gemms: Iterable[Gemm], job: Job, stack: Stack) -> float:
    """Launches that adapters and dequantisings add to the products of a layer [1]."""
    if job.lora_rank is None:
        return 0.0
    each = EAGER_DEQUANTISE_LAUNCHES if stack.kernels.eager_dequantise else DEQUANTISE_LAUNCHES
    total = 0.0
    for gemm in gemms:
        if gemm.expert or gemm.name == "router":
            continue
        dequantised = 2.0 * each * (job.frozen_bits < 16)
        total += linear_layers(gemm, stack) * (dequantised + ADAPTER_LAUNCHES * job.adapts(gemm.name))
    return total


class AdapterModel:
    """Seconds that a job's adapters and frozen weights add to products, for a table of distinct keys."""

    def __init__(self, rates: DeviceRates) -> None:
        self.rates, self.job, self.stack = rates, rates.problem.job, rates.problem.stack

    def with_adapter(self, products: Products, gemm: Gemm, x: LayerShape, groups: Groups) -> Products:
        """A product with its adapter, if it has one, and with the dequantising of its weight."""
        if self.job.lora_rank is None or gemm.name == "router":
            return products
        first, inverse = groups.expert if gemm.expert else groups.dense
        m, n, k, local = gemm_extents(gemm, x, first)
        dequantising = self._dequantise(n * k * local)
        forward, dgrad, wgrad = dequantising, dequantising, np.zeros_like(m)
        if not gemm.expert and self.job.adapts(gemm.name):
            split, t = x.sequence_split[first], x.t[first]
            beside = self._adapter(gemm, (m, n, k), split, t, linear_layers(gemm, self.stack))
            forward = forward + beside.forward
            dgrad = dgrad + beside.input_gradient
            wgrad = beside.weight_gradient
        return Products(
            products.forward + forward[inverse],
            products.input_gradient + dgrad[inverse],
            products.weight_gradient + wgrad[inverse],
        )

    def _dequantise(self, weights: Array) -> Array:
        """Seconds to dequantise so many frozen weights of a device to 16 bits [s]."""
        bits, kernels = self.job.frozen_bits, self.rates.kernels
        if bits >= 16:
            return np.zeros_like(weights)
        eager = bits == 4 and self.stack.kernels.eager_dequantise
        fused = DEQUANTISE_BYTES if bits == 4 else FROZEN_BYTES[bits] + 2.0
        moved = weights * (EAGER_DEQUANTISE_BYTES if eager else fused)
        bound = 0.0 if bits == 8 or eager else weights / (DEQUANTISED_PER_UNIT * kernels.compute_units)
        return np.maximum(self.rates.moving(moved), bound)

    def _adapter(
        self, gemm: Gemm, extents: tuple[Array, Array, Array], split: Array, t: Array, layers: int
    ) -> Products:
        """Seconds of the adapters of a product of (m, n, k) that `layers` linear layers share [s].

        Down to the rank, k -> r, once a layer; up, r -> n. Outputs that tensor parallelism sums are made in parts and
        scaled as shards of the sequence, inputs that it gathers are summed as such (Megatron-Bridge peft/utils.py
        ParallelLinearAdapter). The kernels beside the products do nothing but move bytes: no factor of the stack.
        """
        device, (m, n, k) = self.rates, extents
        rank = np.full_like(m, float(self.job.lora_rank or 0))
        rates = device.table_key(device.wide_dtype()), device.roofline(device.wide_peak)
        factor = device.device_factor * self.stack.compute.gemm_factor(device.wide_dtype())
        outputs = n / np.where(gemm.shard is Shard.ROW, split, 1.0)
        inputs = layers * k / np.where(gemm.shard is Shard.COLUMN, split, 1.0)
        n = n / np.where(gemm.shard is Shard.ROW, t, 1.0)
        down, up = layers * gemm_time(m, rank, k, *rates), gemm_time(m, n, rank, *rates)
        down_back, up_back = gemm_backward_time(m, rank, k, *rates), gemm_backward_time(m, n, rank, *rates)
        width = device.recipe.activation_bytes * m
        ahead, back = (
            device.moving(width * (out * outputs + into * inputs))
            for out, into in zip(OUTPUT_PASSES, INPUT_PASSES, strict=True)
        )
        return Products(
            factor * (down + up) + ahead,
            factor * (layers * down_back[0] + up_back[0]) + back,
            factor * (layers * down_back[1] + up_back[1]),
        )
