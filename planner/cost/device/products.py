"""How long do the matrix products of a layer take, and quantising what they read?

One value per distinct key (how a micro-batch is cut). Left out: communication (`cost/messages`), launches by the
host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.cost.cut import LayerShape
from planner.cost.device.kernels import (
    gemm_backward_time,
    gemm_time,
    grouped_gemm_backward_time,
    grouped_gemm_time,
    misaligned_slowdown,
)
from planner.cost.device.quantise import OPERANDS
from planner.cost.device.rates import HALF, DeviceRates
from planner.cost.device.torchao import CASTS, ROW_RATE, Casts, cast_bytes, operands
from planner.cost.messages.sizes import gathered_width
from planner.cost.operations.operation import Gemm, Shard
from planner.cost.params_fp8 import gathers_float8
from planner.spec.config import ConfigTable, distinct
from planner.spec.machine.accelerator import Architecture
from planner.spec.precision import Dtype, Precision
from planner.spec.rule import Problem
from planner.spec.stack.kinds import Float8Scales

Array = NDArray[np.float64]


class Products(NamedTuple):
    """Seconds of a matrix product and of its two gradients."""

    forward: Array
    input_gradient: Array
    weight_gradient: Array


@dataclass(frozen=True)
class Groups:
    """Keys that share the shapes of their products: (first rows, inverse) of dense and of expert products; `attention`:
    those of dense ones that share the kind of context parallelism, too."""

    dense: tuple[NDArray[np.intp], NDArray[np.intp]]
    expert: tuple[NDArray[np.intp], NDArray[np.intp]]
    attention: tuple[NDArray[np.intp], NDArray[np.intp]]


def key_groups(keys: ConfigTable) -> Groups:
    """Number the distinct (tp, cp, micro-batch, sp), the same with the kind of context parallelism, and (tp, cp,
    micro-batch, ep, etp) of a table."""
    cut = (keys["tp"], keys["cp"], keys["micro_batch"])
    dense, expert = (*cut, keys["sp"]), (*cut, keys["ep"], keys["etp"])
    return Groups(distinct(*dense), distinct(*expert), distinct(*dense, keys["cp_kind"]))


def gemm_extents(gemm: Gemm, x: LayerShape, rows: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
    """Tokens, outputs, inputs and number of one device's share of a product, for these rows of `x` [1].

    Of an expert product the tokens are those of all `number` groups together.
    """
    x = x.take(rows)
    k, n = gemm.local(x)
    if gemm.expert:
        return x.routed_tokens * gemm.rows_per_token * x.et, n, k, gemm.groups / x.e
    m = x.tokens / (x.sequence_split if gemm.shard is Shard.NONE else 1.0)
    return m, n, k, np.ones(len(rows))


def casts_of(problem: Problem) -> Casts | None:
    """What torchao moves around the products of a problem; None where it is not torchao that casts."""
    kernels = problem.stack.kernels
    if kernels.float8_scales is None or problem.job.precision is not Precision.FP8_CS:
        return None
    casts = CASTS[kernels.float8_scales, kernels.code.fused_norm]  # torch.compile fuses both
    return casts.gathered() if gathers_float8(problem) else casts


# Over other products of its stacks on Blackwell: torch._grouped_mm in bf16 takes 1.36 times the products of the tables
# on B200 (1.18 to 1.66; 20 forward and backward passes that torchao's prototype/moe_training/README.md has had since
# 0.13) and 1.15 on H100 (1.10 to 1.20; torchao pull requests 2490, 2756), over the 1.1 of all; its mxfp8 takes 0.87 to
# 1.2 there (the same README). It has a kernel there since PyTorch 2.9 (pytorch/pytorch#156202), none on compute
# capability 12 (#184334).
TORCH_GROUPED: Final = 1.2
_TORCH_GROUPED_FROM: Final = "2025-10"


class ProductModel:
    """Device seconds of products, for a table of distinct keys."""

    def __init__(self, rates: DeviceRates) -> None:
        self.rates, self.casts = rates, casts_of(rates.problem)

    def table_of(self, gemm: Gemm, narrow: bool = True) -> Dtype | Precision:
        """The table that a product's rate is read from; see `gemm`."""
        return (
            self.rates.gemm_key if narrow and not gemm.wide else self.rates.table_key(self.rates.wide_dtype())
        )

    def gemm(
        self, gemm: Gemm, x: LayerShape, groups: Groups, narrow: bool = True, outputs: Array | None = None
    ) -> Products:
        """Seconds of one product for every key, evaluated once per distinct shape.

        `narrow`: in the recipe's format; else in that of `wide_dtype`, as the head, the router and layers that the job
        keeps so are. `outputs`: of a device's share where it is padded.
        """
        first, inverse = groups.expert if gemm.expert else groups.dense
        m, n, k, local = gemm_extents(gemm, x, first)
        n = n if outputs is None else outputs[first]
        narrow = narrow and not gemm.wide
        key = self.table_of(gemm, narrow)
        peak = self.rates.gemm_peak if narrow else self.rates.wide_peak
        roofline = self.rates.roofline(peak)
        form = self.rates.recipe.gemm if narrow else self.rates.wide_dtype()
        factor = self.rates.device_factor * self.rates.problem.stack.compute.gemm_factor(form)
        if form in HALF and self.rates.meets_rows():
            factor = factor * misaligned_slowdown(n, k)
        states = self.rates.problem.stack.engine
        traffic = 2.0 * states.gradient if states.fused_weight_gradient else None
        if gemm.expert:
            factor = factor * self._grouped_factor(form)
            forward = grouped_gemm_time(m, n, k, local, key, roofline)
            dgrad, wgrad = grouped_gemm_backward_time(m, n, k, local, key, roofline, traffic)
        else:
            forward = gemm_time(m, n, k, key, roofline)
            dgrad, wgrad = gemm_backward_time(m, n, k, key, roofline, traffic)
        if self.rates.problem.job.lora_rank is not None or gemm.frozen:  # frozen weights have no gradient
            wgrad = np.zeros_like(wgrad)
        if gemm.detached:
            dgrad = np.zeros_like(dgrad)
        forward, dgrad, wgrad = factor * forward, factor * dgrad, factor * wgrad
        if narrow and self.rates.problem.job.precision in OPERANDS:
            if self.casts is not None and self._multiplies_rows_slowly():
                forward = forward / ROW_RATE
            ahead, back = self._quantising(gemm, x.sequence_split[first], m, n, k, local)
            forward, dgrad = forward + ahead, dgrad + back
        return Products(*(seconds[inverse] for seconds in (forward, dgrad, wgrad)))

    def _grouped_factor(self, form: Dtype) -> float:
        """Time of a grouped product of this format over that of the stack's others [1]."""
        stack, device = self.rates.problem.stack, self.rates.problem.cluster.accelerator
        has = stack.released >= _TORCH_GROUPED_FROM and device.instructions is Architecture.BLACKWELL
        # experts that are launched one by one run one after the other, in products that are not grouped
        own = stack.engine.groups_by_torch and not stack.host.expert_launch and form in HALF
        return stack.compute.grouped_gemm * (TORCH_GROUPED if has and own else 1.0)

    def _multiplies_rows_slowly(self) -> bool:
        """Do products whose operands have a scale a row run slower than those of one a tensor? On Hopper."""
        rows = self.rates.problem.stack.kernels.float8_scales is Float8Scales.ROW
        return rows and self.rates.problem.cluster.accelerator.architecture is Architecture.HOPPER

    def _quantising(
        self, gemm: Gemm, split: Array, m: Array, n: Array, k: Array, local: Array
    ) -> tuple[Array, Array]:
        """Seconds of quantising a product's input, forward, and the gradient of its output, backward.

        Under sequence parallelism the ranks gather the input of a product split by columns, and the gradient of the
        output of one split by rows. The kernels do nothing but move bytes: no factor of the stack.
        """
        if self.casts is not None:
            narrow = gathered_width(self.rates.problem) < self.rates.recipe.activation_bytes
            values = operands(gemm, (m * k, m * n, local * n * k), split, narrow)
            ahead, back = cast_bytes(self.casts, values, self.rates.problem.job.lora_rank is None)
            return self.rates.moving(ahead), self.rates.moving(back)
        operand = OPERANDS[self.rates.problem.job.precision]
        architecture = self.rates.problem.cluster.accelerator.architecture
        trained = self.rates.problem.job.lora_rank is None
        gathers = (gemm.shard is Shard.COLUMN, gemm.shard is Shard.ROW)
        each = [
            operand.bytes_moved(split if gathered and not gemm.expert else np.ones_like(split), architecture, trained)
            for gathered in gathers
        ]  # fmt: skip
        moved = each[0] * m * k, each[1] * m * n
        if self.rates.fuses_experts and gemm.expert:  # the product of the other one writes them narrow
            moved = moved[0] * (gemm.shard is Shard.COLUMN), moved[1] * (gemm.shard is Shard.ROW)
        return self.rates.moving(moved[0]), self.rates.moving(moved[1])
