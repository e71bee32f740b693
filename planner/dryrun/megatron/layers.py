"""Which modules of Megatron-Core's local specification are exchanged, and for what?

Linear layers, MLP, routers, dispatchers, latent attention and residual branches are the package's own, as its local
specification has them (megatron/core/models/gpt/gpt_layer_specs.py `get_gpt_decoder_block_spec`, without Transformer
Engine). Its core of attention writes scores out and takes no latent attention, its norms refuse sequence parallelism,
and its grouped experts write out gradients of all their weights: in their place are a flash kernel, fused norms, and
the package's TEGroupedMLP on linear layers that allocate as Transformer Engine's do.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.dryrun.megatron.core import experts, gpt_layer_specs, layers
from planner.dryrun.megatron.kernels import Flash, Grouped, Norm
from planner.errors import UnsupportedError


class FlashAttention(torch.nn.Module):  # type: ignore[misc]  # torch is not checked
    """The core of attention by a kernel that keeps no scores."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()

    def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        """(s, b, heads, d), (s, b, groups, d), (s, b, groups, e) give (s, b, heads x e).

        As Transformer Engine copies what has no layout that its kernels know, such as values that lie beside queries
        and keys which were turned since (pytorch/attention/dot_product_attention/utils.py `get_qkv_layout`).
        """
        if _steps(key) != _steps(value):
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        return Flash.apply(query, key, value).flatten(2)


def _steps(tensor: Any) -> tuple[float, ...]:
    """Strides, over the width of a head."""
    return tuple(stride / tensor.shape[-1] for stride in tensor.stride()[:-1])


class GroupedLinear(torch.nn.Module):  # type: ignore[misc]  # torch is not checked
    """A linear layer for each expert, run as one; `split`: which of its sides expert-tensor ranks share."""

    split = ""

    def __init__(
        self, num_gemms: int, inputs: int, outputs: int, *, config: Any, bias: bool, pg_collection: Any, **_: Any
    ) -> None:  # fmt: skip
        super().__init__()
        if bias:
            raise UnsupportedError(
                "a dry run of Megatron needs experts without biases", "experts with biases"
            )
        self.adds = config.gradient_accumulation_fusion
        ranks = pg_collection.expt_tp.size()
        outputs, inputs = (
            (outputs // ranks, inputs) if self.split == "outputs" else (outputs, inputs // ranks)
        )
        for number in range(num_gemms):
            weight = torch.nn.Parameter(torch.empty(outputs, inputs, dtype=config.params_dtype))
            weight.allreduce = config.expert_model_parallel_size == 1
            self.register_parameter(f"weight{number}", weight)

    def forward(self, rows: Any, counts: Any) -> tuple[Any, None]:
        return Grouped.apply(rows, self.adds, *self.parameters()), None


class ColumnGroupedLinear(GroupedLinear):
    """Each rank has part of what it puts out."""

    split = "outputs"


class RowGroupedLinear(GroupedLinear):
    """Each rank has part of what it takes."""

    split = "inputs"


class DuplicatedLinear(torch.nn.Module):  # type: ignore[misc]  # torch is not checked
    """A linear layer that every tensor-parallel rank has whole, as Transformer Engine's of latent attention are."""

    def __init__(self, inputs: int, outputs: int, *, config: Any, **_: Any) -> None:
        super().__init__()
        self.adds = config.gradient_accumulation_fusion
        self.weight = torch.nn.Parameter(torch.empty(outputs, inputs, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, rows: Any) -> tuple[Any, None]:
        """Product, and no bias beside it."""
        product = layers.linear_with_grad_accumulation_and_async_allreduce
        return product(rows, self.weight, None, self.adds, False, False), None


class RmsNorm(torch.nn.Module):  # type: ignore[misc]  # torch is not checked
    """The norm by the root of the mean square."""

    def __init__(self, width: int, dtype: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(width, dtype=dtype))

    def forward(self, rows: Any) -> Any:
        return Norm.apply(rows, self.weight)


class AnyNorm:
    """The norm of a configuration; its gradients are added up over tensor-parallel ranks where each has its part of a
    sequence."""

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        if config.normalization == "RMSNorm":
            norm = RmsNorm(hidden_size, config.params_dtype)
        else:
            norm = torch.nn.LayerNorm(hidden_size, eps, dtype=config.params_dtype)
        for one in norm.parameters():
            one.sequence_parallel = config.sequence_parallel
        return norm


def block_spec(config: Any, chunk: int | None) -> Any:
    """The specification of the layers of this rank's chunk."""
    spec = gpt_layer_specs.get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization, vp_stage=chunk
    )
    spec.layer_norm = AnyNorm
    for layer in {id(one): one for one in spec.layer_specs}.values():
        parts = layer.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = AnyNorm
        attention = parts.self_attention.submodules
        attention.core_attention = FlashAttention
        for name in ("linear_q_down_proj", "linear_kv_down_proj"):
            if hasattr(attention, name):
                setattr(attention, name, DuplicatedLinear)
        for name in ("q_layernorm", "k_layernorm", "kv_layernorm"):
            if getattr(attention, name, gpt_layer_specs.IdentityOp) is not gpt_layer_specs.IdentityOp:
                setattr(attention, name, AnyNorm)
        if hasattr(parts.mlp.submodules, "experts"):
            linear = gpt_layer_specs.MLPSubmodules(
                linear_fc1=ColumnGroupedLinear, linear_fc2=RowGroupedLinear
            )
            parts.mlp.submodules.experts = gpt_layer_specs.ModuleSpec(
                module=experts.TEGroupedMLP, submodules=linear
            )
    return spec
