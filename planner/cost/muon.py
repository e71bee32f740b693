"""What does Muon's update take, in seconds and bytes, where a layer-wise distributed optimizer deals whole matrices?

Megatron-Core's (NVIDIA/Megatron-LM@d98e8a6 core/optimizer/emerging_optimizers.py TensorParallelMuon,
layer_wise_optimizer.py), with five iterations and whole matrices under tensor parallelism (--muon-tp-mode duplicated).
Left out: projections of prediction modules, SYRK kernels, and that buckets of a few layers are dealt one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.device.kernels import gemm_time, misaligned_slowdown
from planner.cost.device.rates import HALF, DeviceRates
from planner.cost.flops import Gemm, Shard, layer_gemms
from planner.cost.memory.state_bytes import StateBytes
from planner.cost.network.collectives import all_gather_time
from planner.cost.network.traffic import group_links
from planner.spec.job import NEWTON_SCHULZ_STEPS, OPTIMIZERS, Optimizer
from planner.spec.layer import Layer
from planner.spec.machine.links import LinkRates

Array = NDArray[np.float64]

# Of a whole matrix, beside its products: a norm read (4 bytes an element), divided by (8), to 16 bits (6) and back (6),
# and scaled twice (16), in fp32 (emerging_optimizers newton_schulz, Megatron's scaled_orthogonalize_fn).
PASS_BYTES = 40.0
# Temporaries of the largest matrix: under tensor parallelism gathered shards, their concatenation and the normalised
# matrix in fp32, and the one in 16 bits; else the result before and after it is scaled.
GATHERED_BYTES = 14.0
ALONE_BYTES = 8.0


@dataclass(frozen=True)
class Matrix:
    """`count` weight matrices of a layer, `rows` x `columns` each, that are orthogonalised one by one."""

    rows: float
    columns: float
    shard: Shard
    expert: bool
    count: float = 1.0

    @property
    def elements(self) -> float:
        """Of one of them, on all ranks [1]."""
        return self.rows * self.columns

    @property
    def divided(self) -> bool:
        """Does tensor parallelism divide it?"""
        return self.shard in (Shard.COLUMN, Shard.ROW)


def newton_schulz_flops(rows: float, columns: float, steps: int = NEWTON_SCHULZ_STEPS) -> float:
    """FLOP of the iterations that orthogonalise a matrix: steps (4 s^2 l + 2 s^3) of sides s <= l [FLOP].

    X X^T, its square, and their sum by X (Jordan 2024, kellerjordan.github.io/posts/muon; NVIDIA-NeMo/
    Emerging-Optimizers@fd77292 orthogonalized_optimizers/muon_utils.py newton_schulz_step).
    """
    short, long = min(rows, columns), max(rows, columns)
    return steps * (4.0 * short**2 * long + 2.0 * short**3)


def matrices_of(layer: Layer, hidden: int) -> tuple[Matrix, ...]:
    """The matrices of a layer as Megatron-Core holds them: gate and up fused, queries, keys and values taken apart
    (--muon-no-split-qkv is not given)."""
    found: list[Matrix] = []
    for gemm in layer_gemms(layer, hidden):
        if not gemm.frozen:
            found += _of(gemm, layer)
    return tuple(found)


def _of(gemm: Gemm, layer: Layer) -> list[Matrix]:
    outputs = [float(gemm.out_features)]
    if gemm.kv_out_features:
        gates = {block.attention.gate_width for block in layer.blocks if block.attention is not None}
        gate = float(max(gates, default=0))
        outputs = [gemm.out_features - gate, gate, gemm.kv_out_features / 2.0, gemm.kv_out_features / 2.0]
    return [
        Matrix(rows, float(gemm.in_features), gemm.shard, gemm.expert, float(gemm.groups))
        for rows in outputs
        if rows
    ]


@dataclass(frozen=True)
class WholeMatrices:
    """`seconds` (n,) of the slowest rank. `padding` (n, C), dense and expert: elements by which buffers of weights and
    gradients exceed the parameters, since every rank's part is as long as the longest. `temporaries` (n,): while the
    largest matrix is orthogonalised [bytes]. `sharded` (n,): are matrices dealt to ranks?"""

    seconds: Array
    padding: tuple[Array, Array]
    temporaries: Array
    sharded: NDArray[np.bool_]

    def beside(self, outer: Array, states: tuple[StateBytes, StateBytes], shared: Array) -> Array:
        """Bytes beyond those of parameters with one momentum each (n, C): padded buffers of weights and gradients, and
        the second moment of the parameters `outer` to the layers, which Adam updates. Norms and biases of layers, below
        1e-4 of a model, are taken to have one as well. `shared` (n,): ranks that share states."""
        padded = [
            part * (state.weights + state.gradients)[:, None]
            for part, state in zip(self.padding, states, strict=True)
        ]
        second = (
            (OPTIMIZERS[Optimizer.ADAMW].moment_bytes - OPTIMIZERS[Optimizer.MUON].moment_bytes)
            * outer
            / np.where(self.sharded, shared, 1.0)[:, None]
        )
        return np.asarray(padded[0] + padded[1] + second)

    def longer(self, parameters: Array) -> Array:
        """Buffers over the `parameters` (n,) that the heaviest stage has [1]."""
        return np.asarray(1.0 + (self.padding[0] + self.padding[1]).max(axis=1) / parameters)


def largest_part(number: Array, size: Array, ranks: Array) -> Array:
    """What the rank with most holds at least of matrices dealt whole, largest first (n, C) [as `size`].

    `number` (J, n, C) of kinds in falling `size` (J, n); `ranks` (n,). max(sum n w / N, ceil(sum_i<=j n_i / N) w_j):
    of the matrices no smaller than w_j some rank has that many (Graham 1969, doi:10.1137/0117039); a greedy deal, as
    the optimizer's, is at most 4/3 of it.
    """
    over = ranks[:, None]
    mean = (number * size[..., None]).sum(axis=0) / over
    held = np.ceil(np.cumsum(number, axis=0) / over - 1e-9) * size[..., None]
    return np.asarray(np.maximum(mean, np.where(number > 0, held, 0.0).max(axis=0)))


class MuonModel:
    """Binds a problem's kinds of layers to its rates."""

    def __init__(self, rates: DeviceRates, links: LinkRates) -> None:
        self.rates, self.links, self.problem = rates, links, rates.problem
        model = self.problem.model
        self.kinds = [matrices_of(kind, model.hidden) for kind in model.layer_kinds]
        self.seconds = {matrix: self.products(matrix) for kind in self.kinds for matrix in kind}

    def products(self, matrix: Matrix) -> float:
        """Seconds of orthogonalising one whole matrix, in 16 bits whatever the recipe [s]."""
        short, long = sorted((matrix.rows, matrix.columns))
        form = self.rates.wide_dtype()
        key, roofline = self.rates.table_key(form), self.rates.roofline(self.rates.wide_peak)
        factor = self.rates.device_factor * self.problem.stack.compute.gemm_factor(form)
        one = 0.0
        for m, n, k in ((short, short, long), (short, short, short), (short, long, short)):
            slower = misaligned_slowdown(n, k) if form in HALF and self.rates.meets_rows() else 1.0
            one += float(slower * gemm_time(m, n, k, key, roofline))
        return NEWTON_SCHULZ_STEPS * factor * one + float(
            self.rates.moving(np.array(PASS_BYTES * matrix.elements))
        )

    def update(
        self,
        layers: Array,
        ranks: tuple[Array, Array],
        cut: tuple[Array, Array],
        e: Array,
        sharded: NDArray[np.bool_],
    ) -> WholeMatrices:
        """Seconds and padding of stages that hold `layers` (n, C, K) of each kind. `ranks` (n,): that share dense and
        expert parameters, where they are `sharded`; `cut`: the ranks that divide dense and expert matrices."""
        seconds, padding = np.zeros(layers.shape[:2]), []
        for expert in (False, True):
            t, shared = cut[expert], np.where(sharded, ranks[expert], 1.0)
            chosen = [(k, m) for k, kind in enumerate(self.kinds) for m in kind if m.expert is expert]
            if not chosen:
                padding.append(np.zeros(layers.shape[:2]))
                continue
            chosen.sort(key=lambda pair: -self.seconds[pair[1]])
            number = np.array(
                [layers[..., k] * m.count / (e if expert else 1.0 + 0 * e)[:, None] for k, m in chosen]
            )
            each = np.array([self.seconds[m] + self._gathered(m, t) for _, m in chosen])
            seconds = seconds + largest_part(number, each, shared)
            held = np.array([m.elements / (t if m.divided else 1.0 + 0 * t) for _, m in chosen])
            order = np.argsort([-m.elements for _, m in chosen], kind="stable")
            most = largest_part(number[order], held[order], shared)
            whole = (number * held[..., None]).sum(axis=0)
            padding.append(np.maximum(most * shared[:, None] - whole, 0.0))
        largest = self._temporaries(*cut)
        return WholeMatrices(seconds.max(axis=1), (padding[0], padding[1]), largest, sharded)

    def _gathered(self, matrix: Matrix, t: Array) -> Array:
        """Seconds in which ranks gather the fp32 momentum of a matrix that they divide (n,) [s]."""
        if not matrix.divided:
            return np.zeros(len(t))
        group = group_links(1.0, t, self.problem.cluster)
        return np.where(t > 1, all_gather_time(np.asarray(4.0 * matrix.elements), group, self.links), 0.0)

    def _temporaries(self, t: Array, et: Array) -> Array:
        """Bytes beside states while the largest matrix of the model is orthogonalised (n,) [bytes]."""
        most = np.zeros(len(t))
        for matrix in (matrix for kind in self.kinds for matrix in kind):
            gathered = (et if matrix.expert else t) > 1
            width = np.where(gathered & matrix.divided, GATHERED_BYTES, ALONE_BYTES)
            most = np.maximum(most, width * matrix.elements)
        return most
