"""What is one operation of a layer, and how does a stack run it?

A block's list of operations is made once for a kind of layer; amounts are expressions of the cut, for one candidate or
a column of them. Left out: what lists are summed up to (`flops.py`, `params.py`, `mfu.py`, `layer_memory.py`,
`device/passes.py`, `device/graphs.py`), and messages (`network/messages.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.cost.cut import LayerShape
from planner.spec.job import Job
from planner.spec.layer import NormKind
from planner.spec.model import ModelSpec
from planner.spec.precision import RECIPES, Precision, PrecisionRecipe
from planner.spec.rule import Problem
from planner.spec.stack.kinds import Dispatcher
from planner.spec.stack.time import Kernels

Array = NDArray[np.float64]
Amount = Callable[[LayerShape], Array]
Quantity = TypeVar("Quantity", float, NDArray[np.float64])


class Shard(StrEnum):
    """Which side of a weight matrix tensor parallelism divides."""

    COLUMN = "column"  # out_features / tp
    ROW = "row"  # in_features / tp
    NONE = "none"  # the whole matrix on every rank
    REPEATED = "repeated"  # and every token, sequence parallelism or not


@dataclass(frozen=True)
class Gemm:
    """One matrix product of a layer: [tokens x rows_per_token, in_features] x [in_features, out_features].

    `kv_out_features`: further columns of a fused q, k, v product, divided by min(tp, kv_heads) instead of tp.
    `groups`: 1, or the number of experts, over which the rows spread. `rows_per_token`: top_k for routed
    experts. `expert`: divided by etp and ep instead of tp. `detached`: its input gets no gradient; `frozen`: nor
    does its weight, whatever the job trains. `wide`: in 16 bits under every recipe. `linear`: linear layers that it is
    where none are fused: q, k and v; gate and up.
    """

    name: str
    in_features: int
    out_features: int
    shard: Shard
    groups: int = 1
    rows_per_token: float = 1
    expert: bool = False
    kv_out_features: int = 0
    detached: bool = False
    frozen: bool = False
    wide: bool = False
    linear: int = 1

    def outputs(self, fused: bool = False) -> tuple[float, ...]:
        """Outputs of the linear layers that it is, in order of execution; of one where they are `fused` [1]."""
        if fused or self.linear == 1:
            return (self.out_features + self.kv_out_features,)
        if self.kv_out_features:
            return self.out_features, self.kv_out_features / 2, self.kv_out_features / 2
        return (self.out_features / self.linear,) * self.linear

    def local(self, x: LayerShape) -> tuple[Array, Array]:
        """Inputs and outputs of a rank's share [1]."""
        ranks = x.et if self.expert else x.t
        inputs = self.in_features / (ranks if self.shard is Shard.ROW else np.ones_like(ranks))
        outputs = self.out_features / (ranks if self.shard is Shard.COLUMN else 1.0)
        return inputs, outputs + self.kv_out_features / x.kv_split


def gemm_flops(gemm: Gemm, tokens: Quantity) -> Quantity:
    """Forward FLOPs of one product over `tokens` [FLOP].

    2 x tokens x rows_per_token x in x (out + kv_out), all ranks together.
    """
    weights = gemm.in_features * (gemm.out_features + gemm.kv_out_features)
    return 2 * tokens * gemm.rows_per_token * weights


@dataclass(frozen=True)
class Weights:
    """Parameters of an operation or a layer, in buckets by how they are divided over ranks.

    `column_row`: divided by tp. `kv`: k and v projections, divided by tp too: where tp exceeds the key/value heads,
    Megatron-Core (transformer/attention.py) keeps a part of a head and gathers the product. `replicated`: on every
    tensor-parallel rank (norms, biases of row-parallel layers, MLA down-projections, shared gate).
    `router`: replicated too. `expert`: all experts, divided by ep x etp. `expert_replicated`: biases of the
    experts' row-parallel layers, divided by ep only. `shared`: shared experts, divided by tp.
    """

    column_row: int = 0
    kv: int = 0
    replicated: int = 0
    router: int = 0
    expert: int = 0
    expert_replicated: int = 0
    shared: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, bucket) for bucket in _BUCKETS)

    def __add__(self, other: Weights) -> Weights:
        return Weights(*(getattr(self, bucket) + getattr(other, bucket) for bucket in _BUCKETS))


_BUCKETS: Final = tuple(bucket.name for bucket in fields(Weights))
NO_PARAMETERS = Weights()


@dataclass(frozen=True)
class Run:
    """How a stack runs the layers of a model, beside what the cut says; the defaults do for what does not depend on it.

    `hidden`: width of the stream. `recipe`: of the layer's linear layers. `norm_kind`, `wide_norms`, `rotated`: of the
    model: its norms, whether RMS norms multiply by their weights in fp32, whether queries and keys are rotated. `job`:
    what has gradients; None: everything. `dispatcher`: of tokens to experts. `fused_experts`: see
    `DeviceRates.fuses_experts`. `accumulates`: a weight's gradient is added to the buffer by the product that makes it.
    `gathers_qkv`: see `messages.whole_qkv_bytes`. `seq`: tokens of a sequence.
    """

    hidden: int
    kernels: Kernels = field(default_factory=Kernels)
    recipe: PrecisionRecipe = RECIPES[Precision.BF16]
    norm_kind: NormKind = NormKind.RMS
    wide_norms: bool = False
    rotated: bool = True
    job: Job | None = None
    dispatcher: Dispatcher = Dispatcher.ALL_TO_ALL
    fused_experts: bool = False
    accumulates: bool = False
    gathers_qkv: bool = False
    seq: float = 0.0

    @classmethod
    def of_model(cls, model: ModelSpec, kernels: Kernels, recipe: PrecisionRecipe, **more: Any) -> Run:
        """Of a model's layers; `more`: other fields."""
        return cls(
            model.hidden, kernels, recipe, model.norm_kind, model.wide_norms, model.position_rows == 0, **more
        )

    @classmethod
    def of(cls, problem: Problem, recipe: PrecisionRecipe, fused_experts: bool = False) -> Run:
        """Of a problem's layers, whose linear layers are in a recipe."""
        stack, comm = problem.stack, problem.stack.communication
        return cls.of_model(
            problem.model, stack.kernels, recipe, job=problem.job, dispatcher=comm.dispatcher,
            fused_experts=fused_experts, accumulates=stack.engine.fused_weight_gradient,
            gathers_qkv=comm.gathers_qkv, seq=problem.job.seq_len,
        )  # fmt: skip

    @property
    def act(self) -> float:
        """Bytes of an activation [bytes]."""
        return self.recipe.activation_bytes

    @property
    def saved(self) -> float:
        """Bytes per value of what a linear layer keeps of its input [bytes].

        Transformer Engine keeps one narrow copy, along the columns where scales go by block, with its scales
        (pytorch/module/linear.py _linear_forward_impl: update_usage of inputmat); padding of scales to 128 x 4 left
        out.
        """
        return self.recipe.operand_bytes if self.kernels.keeps_narrow_inputs else self.recipe.activation_bytes

    @property
    def trained(self) -> bool:
        """Have the model's own weights gradients?"""
        return self.job is None or self.job.lora_rank is None

    @property
    def weight_gradient(self) -> float:
        """Bytes of a weight's gradient as its product makes it, 0 where it makes none of its own [bytes]."""
        return self.recipe.weight_bytes if self.trained and not self.accumulates else 0.0

    def keeps_input(self, gemm: Gemm) -> bool:
        """Does a product keep its input, for its weight's gradient or an adapter's? Experts carry no adapters."""
        return self.trained or (not gemm.expert and self.job is not None and self.job.adapts(gemm.name))

    def single(self, fused: bool = False) -> bool:
        """Is an operation without a kernel of its own run as single operations of PyTorch?"""
        return self.kernels.code.single and not fused

    def launches(self, fused: float, single: float) -> float:
        """Kernels launched, as the stack has them fused or not [1]."""
        return single if self.kernels.code.single else fused

    def stream(self, x: LayerShape) -> Array:
        """Values of the residual stream on a rank [1]."""
        return x.tokens * self.hidden / x.sequence_split

    def gathered(self, x: LayerShape) -> Array:
        """The same as a linear layer keeps it of its input [1]."""
        return x.tokens * self.hidden if self.kernels.code.keeps_gathered else self.stream(x)


class SecondHalf(NamedTuple):
    """What the second half of a layer works on: bytes of its input, of one of its inner tensors, and whether a gate
    multiplies two of those."""

    width: Amount
    inner: Amount
    gated: bool


@dataclass(frozen=True)
class Operation:
    """One operation of a layer, or several that nothing tells apart."""

    name: str
    kind: str = ""  # of the parameters it reads, of `params.KINDS`
    product: Gemm | None = None
    weights: Weights = NO_PARAMETERS
    tensors: int = 0  # that the weights are [1]
    # Of one that is no product with weights: forward FLOPs of (batch, sequence) over the full square, and backward
    # ones, twice as many if None [FLOP].
    flops: Callable[[Any, Any], Any] | None = None
    flops_back: Callable[[Any, Any], Any] | None = None
    modules: Mapping[str, float] = field(
        default_factory=dict
    )  # of RECOMPUTE_MODULES, and its share each repeats [1]
    graph: str = ""  # of CUDA_GRAPH_MODULES, whose graph can hold it
    # Read and written by kernels that do nothing else, forward, and backward, twice as many if None [bytes].
    moved: Amount | None = None
    moved_back: Amount | None = None
    kept: Mapping[str, Amount] = field(
        default_factory=dict
    )  # until backward, by the part that is freed [bytes]
    second: bool = False  # is it of the layer's second half?
    ahead: Amount | None = None  # alive in its forward pass, beside three streams [bytes]
    alive: Amount | None = None  # alive in its backward pass, beside what the layer keeps [bytes]
    alive_late: Amount | None = None  # the same when what the second half kept is gone [bytes]
    half: SecondHalf | None = None
    # Of attention: values of queries, of its output, and of keys and values, on a rank a token [1].
    mixing: Callable[[LayerShape], tuple[Array, Array, Array]] | None = None
    launches: float = 0.0  # kernels launched forward [1]


def product(
    gemm: Gemm, kind: str, bias: bool = False, more: Weights = NO_PARAMETERS, tensors: int = 0, **fields: Any
) -> Operation:
    """A product with a matrix of parameters, with a `bias` of its outputs; `more`: others that it reads, in so many
    `tensors`, `fields`: of `Operation`. A bias of outputs that ranks sum up is whole on each."""
    n, out = gemm.groups, gemm.out_features
    matrix, biases = n * gemm.in_features * out, n * out * bias
    if gemm.expert:
        row = gemm.shard is Shard.ROW
        weights = Weights(expert=matrix + biases * (not row), expert_replicated=biases * row)
    elif gemm.shard is Shard.COLUMN:
        weights = Weights(column_row=matrix + biases, kv=(gemm.in_features + bias) * gemm.kv_out_features)
    elif gemm.shard is Shard.ROW:
        weights = Weights(column_row=matrix, replicated=biases)
    else:
        weights = Weights(replicated=matrix + biases)
    return Operation(gemm.name, kind, gemm, weights + more, n * (1 + bias) + tensors, **fields)


def with_something(ops: Iterable[Operation]) -> tuple[Operation, ...]:
    """Operations without products of nothing."""
    gemms = ((op, op.product) for op in ops)
    return tuple(op for op, gemm in gemms if gemm is None or gemm.in_features * gemm.out_features)
