"""What does Muon's update take, in seconds and bytes, where ranks share the work on whole matrices?

Megatron-Core's (NVIDIA/Megatron-LM@d98e8a6 core/optimizer/emerging_optimizers.py TensorParallelMuon,
layer_wise_optimizer.py _compute_per_buffer_param_layout, which pads every rank's part of a bucket to the longest), with
five iterations and whole matrices under tensor parallelism (--muon-tp-mode duplicated). Or Moonlight's (arXiv
2502.16982, section 2.3; from memory), which shards as ZeRO 1 does and gathers one matrix at a time: no part is longer;
its gather of gradients, at most a quarter of what Adam exchanges, and matrices that two shards cut are left out.
Left out: projections of prediction modules, SYRK kernels, the host's launches (some 30 a matrix, which may bind where a
rank updates many small experts), and that a virtual stage is dealt bucket by bucket, which lengthens buffers further.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.device.kernels import gemm_time, misaligned_slowdown
from planner.cost.device.rates import HALF, DeviceRates
from planner.cost.memory.state_bytes import StateBytes
from planner.cost.messages.exposure import pass_seconds
from planner.cost.messages.tensor import momentum_message
from planner.cost.operations.lists import layer_gemms
from planner.cost.operations.operation import Gemm, Shard
from planner.spec.config import ConfigTable
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
    """`count` weights of a layer, each dealt as one and orthogonalised in blocks of so many `rows` x `columns`."""

    rows: tuple[float, ...]
    columns: float
    shard: Shard
    expert: bool
    count: float = 1.0

    @property
    def elements(self) -> float:
        """Of one of them, on all ranks [1]."""
        return sum(self.rows) * self.columns

    @property
    def divided(self) -> bool:
        """Does tensor parallelism divide it?"""
        return self.shard in (Shard.COLUMN, Shard.ROW)


def matrices_of(layer: Layer, hidden: int) -> tuple[Matrix, ...]:
    """The matrices of a layer as Megatron-Core holds them: gate and up fused, queries, keys and values taken apart
    (--muon-no-split-qkv is not given)."""
    return tuple(_of(gemm, layer) for gemm in layer_gemms(layer, hidden) if not gemm.frozen)


def _of(gemm: Gemm, layer: Layer) -> Matrix:
    outputs = [float(gemm.out_features)]
    if gemm.kv_out_features:
        gates = {block.attention.gate_width for block in layer.blocks if block.attention is not None}
        gate = float(max(gates, default=0))
        outputs = [gemm.out_features - gate, gate, gemm.kv_out_features / 2.0, gemm.kv_out_features / 2.0]
    rows = tuple(rows for rows in outputs if rows)
    return Matrix(rows, float(gemm.in_features), gemm.shard, gemm.expert, float(gemm.groups))


@dataclass(frozen=True)
class WholeMatrices:
    """`seconds` (n,) of the slowest rank. `padding` (n, C), dense and expert: elements by which buffers of weights and
    gradients exceed the parameters, where every rank's part is as long as the longest. `temporaries` (n,): while the
    largest matrix is orthogonalised [bytes]. `sharded` (n,): are matrices dealt to ranks?"""

    seconds: Array
    padding: tuple[Array, Array]
    temporaries: Array
    sharded: NDArray[np.bool_]

    def beside(self, outer: Array, states: tuple[StateBytes, StateBytes], shared: Array) -> Array:
        """Bytes beyond those of parameters with one momentum each (n, C): padded buffers of weights and gradients, the
        states of the longest part, of every virtual stage one rank's, and the second moment of the parameters `outer`
        to the layers, which Adam updates. Norms and biases of layers, below 1e-4 of a model, are taken to have one as
        well. `shared` (n,): ranks that share states."""
        padded = [
            part * (state.weights + state.gradients + state.optimizer)[:, None]
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
        self.flat = self.problem.stack.engine.shards_matrices
        self.kinds = [matrices_of(kind, model.hidden) for kind in model.layer_kinds]
        self.seconds = {matrix: self.products(matrix) for kind in self.kinds for matrix in kind}

    def products(self, matrix: Matrix) -> float:
        """Seconds of orthogonalising the whole of one weight, in 16 bits whatever the recipe [s]."""
        form = self.rates.wide_dtype()
        key, roofline = self.rates.table_key(form), self.rates.roofline(self.rates.wide_peak)
        factor = self.rates.device_factor * self.problem.stack.compute.gemm_factor(form)
        one = 0.0
        for short, long in (sorted((rows, matrix.columns)) for rows in matrix.rows):
            for m, n, k in ((short, short, long), (short, short, short), (short, long, short)):
                slower = misaligned_slowdown(n, k) if form in HALF and self.rates.meets_rows() else 1.0
                one += float(slower * gemm_time(m, n, k, key, roofline))
        return NEWTON_SCHULZ_STEPS * factor * one + float(
            self.rates.moving(np.array(PASS_BYTES * matrix.elements))
        )

    def update(
        self, keys: ConfigTable, layers: Array, ranks: tuple[Array, Array], sharded: NDArray[np.bool_]
    ) -> WholeMatrices:
        """What stages take that hold `layers` (n, C, K) of each kind. `ranks` (n,): that share dense and expert
        parameters, where they are `sharded`; matrices of every virtual stage are dealt apart."""
        t, e, et = (keys[axis].astype(float) for axis in ("tp", "ep", "etp"))
        chunks = np.where(sharded & (not self.flat), keys["vpp"].astype(float), 1.0)[:, None]
        each = layers / chunks[..., None]
        dense, experts = (np.where(sharded, of, 1.0) for of in ranks)
        parts = (
            self._dealt(False, each, t, dense),
            self._dealt(True, each / e[:, None, None], et, experts),
        )
        seconds = chunks * (parts[0][0] + parts[1][0])
        padding = chunks * parts[0][1], chunks * parts[1][1]
        alone = ~(sharded & self.flat)
        return WholeMatrices(seconds.max(axis=1), padding, self._temporaries(t, et, alone), sharded)

    def _dealt(self, expert: bool, layers: Array, t: Array, ranks: Array) -> tuple[Array, Array]:
        """Seconds and padding (n, C) of dense or of expert matrices of so many layers, which t ranks divide and `ranks`
        deal among themselves."""
        chosen = [(k, m) for k, kind in enumerate(self.kinds) for m in kind if m.expert is expert]
        if not chosen:
            return np.zeros(layers.shape[:2]), np.zeros(layers.shape[:2])
        chosen.sort(key=lambda pair: -self.seconds[pair[1]])
        number = np.array([layers[..., k] * matrix.count for k, matrix in chosen])
        each = np.array([self.seconds[matrix] + self._gathered(matrix, t) for _, matrix in chosen])
        size = np.array([matrix.elements / np.where(matrix.divided, t, 1.0) for _, matrix in chosen])
        order = np.argsort([-matrix.elements for _, matrix in chosen], kind="stable")
        longest = largest_part(number[order], size[order], ranks)
        padding = ranks[:, None] * longest - (number * size[..., None]).sum(axis=0)
        return largest_part(number, each, ranks), np.maximum(padding, 0.0) * (not self.flat)

    def _gathered(self, matrix: Matrix, t: Array) -> Array:
        """Seconds in which ranks gather the fp32 momentum of a matrix that they divide (n,) [s]."""
        if not matrix.divided:
            return np.zeros(len(t))
        sent = momentum_message(self.problem, self.links, matrix.elements, t, matrix.expert)
        return pass_seconds((sent,), len(t)).total[1]

    def _temporaries(self, t: Array, et: Array, alone: NDArray[np.bool_]) -> Array:
        """Bytes beside states while the largest matrix of the model is orthogonalised (n,), by ranks that hold it
        `alone`, or but for tensor parallelism [bytes]."""
        most = np.zeros(len(t))
        for matrix in (matrix for kind in self.kinds for matrix in kind):
            gathered = ((et if matrix.expert else t) > 1) & matrix.divided
            width = np.where(gathered | ~alone, GATHERED_BYTES, ALONE_BYTES)
            most = np.maximum(most, width * max(matrix.rows) * matrix.columns)
        return most
