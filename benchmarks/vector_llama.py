"""The Llama of memory_vectors.csv: plain modules of PyTorch, sharded and split as a case says.

Left out: how its steps are recorded (`memory_vectors.py`). Needs PyTorch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

EPSILON = 1e-5
_THETA = 10_000.0


@dataclass(frozen=True)
class Case:
    """Options of a case, by their names."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv: int
    vocab: int
    seq: int
    mbs: int
    dp: int = 1
    tp: int = 1
    zero: int = 0
    head_dim: int = 0
    ac: str = "none"
    precision: str = "bf16"
    norm: str = "fused"
    swiglu: str = "eager"
    loss: str = "fp32"
    foreach: bool = False
    sp: bool = False
    wrap_root_only: bool = False

    @property
    def width(self) -> int:
        """Of a head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def mixed(self) -> bool:
        """Are masters and moments fp32 under bf16?"""
        return self.precision == "mixed"


def case_of(text: str) -> Case:
    """A case as its options are written: `--layers 4 --sp`. Raises `KeyError` for an option that is not known."""
    kinds = {one.name: str(one.type) for one in fields(Case)}
    found: dict[str, Any] = {}
    for option in text.split("--")[1:]:
        written, _, value = option.strip().partition(" ")
        name = written.replace("-", "_")
        kind, value = kinds[name], value.strip()
        found[name] = int(value) if kind == "int" else (value in ("", "1") if kind == "bool" else value)
    return Case(**found)


class EagerNorm(nn.Module):  # type: ignore[misc]  # torch is not checked
    """The norm of transformers' Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        """x: (batch, length, width)."""
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)
        return self.weight * x.to(dtype)


class _FusedSwiglu(torch.autograd.Function):  # type: ignore[misc]
    """Keeps its inputs alone."""

    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any) -> Any:
        ctx.save_for_backward(gate, up)
        return nn.functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, given: Any) -> Any:
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            gate, up = gate.detach().requires_grad_(), up.detach().requires_grad_()
            return torch.autograd.grad(nn.functional.silu(gate) * up, (gate, up), given)


def _norm(case: Case) -> Any:
    return EagerNorm(case.hidden) if case.norm == "hf" else nn.RMSNorm(case.hidden, eps=EPSILON)


class Attention(nn.Module):  # type: ignore[misc]
    """Grouped queries, rotary positions, PyTorch's attention."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.width = case.width
        self.wq = nn.Linear(case.hidden, case.heads * case.width, bias=False)
        self.wk = nn.Linear(case.hidden, case.kv * case.width, bias=False)
        self.wv = nn.Linear(case.hidden, case.kv * case.width, bias=False)
        self.wo = nn.Linear(case.heads * case.width, case.hidden, bias=False)

    def forward(self, x: Any, angles: Any) -> Any:
        """x: (batch, length, hidden); angles: cosines and sines, each (length, 1, width)."""
        query, key, value = (
            part(x).unflatten(-1, (-1, self.width)) for part in (self.wq, self.wk, self.wv)
        )  # (batch, length, heads, width)
        query, key = _turned(query, angles), _turned(key, angles)
        found = nn.functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return self.wo(found.transpose(1, 2).flatten(2))


def _turned(x: Any, angles: Any) -> Any:
    cosine, sine = angles
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Mlp(nn.Module):  # type: ignore[misc]
    """SwiGLU."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.fused = case.swiglu == "fused"
        self.w1 = nn.Linear(case.hidden, case.ffn, bias=False)
        self.w3 = nn.Linear(case.hidden, case.ffn, bias=False)
        self.w2 = nn.Linear(case.ffn, case.hidden, bias=False)

    def forward(self, x: Any) -> Any:
        """x: (batch, length, hidden)."""
        gate, up = self.w1(x), self.w3(x)
        return self.w2(_FusedSwiglu.apply(gate, up) if self.fused else nn.functional.silu(gate) * up)


class Block(nn.Module):  # type: ignore[misc]
    """A layer, run again in the backward pass where it is asked for."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.again = case.ac == "full"
        self.attention_norm, self.attention = _norm(case), Attention(case)
        self.mlp_norm, self.mlp = _norm(case), Mlp(case)

    def forward(self, x: Any, angles: Any) -> Any:
        """x: (batch, length, hidden)."""
        if self.again:
            return checkpoint(self._run, x, angles, use_reentrant=False)
        return self._run(x, angles)

    def _run(self, x: Any, angles: Any) -> Any:
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):  # type: ignore[misc]
    """Embedding, layers, norm and head."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.embedding = nn.Embedding(case.vocab, case.hidden)
        self.layers = nn.ModuleList(Block(case) for _ in range(case.layers))
        self.norm = _norm(case)
        self.head = nn.Linear(case.hidden, case.vocab, bias=False)

    def forward(self, tokens: Any, angles: Any) -> Any:
        """tokens: (batch, length)."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, angles)
        return self.head(self.norm(x))


def angles_of(case: Case) -> Any:
    """Cosines and sines of every position and dimension of a head: each (length, 1, width)."""
    steps = torch.arange(0, case.width, 2, dtype=torch.float32) / case.width
    turns = torch.outer(torch.arange(case.seq, dtype=torch.float32), torch.exp(-steps * math.log(_THETA)))
    whole = torch.cat((turns, turns), dim=-1)[:, None]
    return whole.cos().bfloat16(), whole.sin().bfloat16()


def split_over_tensor_ranks(model: Llama, mesh: Any, case: Case) -> None:
    """Tensor parallelism, with sequence parallelism where the case says so; logits are whole on every rank."""
    along = Shard(1) if case.sp else Replicate()
    parts: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=along),
        "head": ColwiseParallel(input_layouts=along, output_layouts=Replicate()),
    }
    if case.sp:
        parts["norm"] = SequenceParallel()
    parallelize_module(model, mesh, parts)
    each: dict[str, Any] = {
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
        **{f"mlp.{name}": ColwiseParallel() for name in ("w1", "w3")},
        **{name: RowwiseParallel(output_layouts=along) for name in ("attention.wo", "mlp.w2")},
    }
    if case.sp:
        each |= {
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
            ),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "attention_norm": SequenceParallel(),
            "mlp_norm": SequenceParallel(),
        }
    for layer in model.layers:
        parallelize_module(layer, mesh, each)


def shard(model: Llama, mesh: Any, case: Case) -> None:
    """FSDP2 of every block and the root, or of the root alone."""
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if case.mixed
        else MixedPrecisionPolicy()
    )
    said = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": case.zero == 3}
    for layer in () if case.wrap_root_only else model.layers:
        fully_shard(layer, **said)
    fully_shard(model, **said)


class Masters:
    """AdamW on copies of the parameters: whole ones (`zero` 0), or each rank's flat part of them (1)."""

    def __init__(self, case: Case, parameters: list[Any], ranks: int) -> None:
        self.parameters, self.ranks = parameters, ranks
        self.dtype = torch.float32 if case.mixed else torch.bfloat16
        self.masters = [self._part(one.detach()).to(self.dtype, copy=True) for one in parameters]
        self.optimizer = torch.optim.AdamW(self.masters, foreach=case.foreach)

    def step(self) -> None:
        """Gradients to the masters' format, their update, and the parameters from them."""
        for master, own in zip(self.masters, self.parameters, strict=True):
            master.grad = self._part(own.grad).to(self.dtype, copy=True)
        self.optimizer.step()
        with torch.no_grad():
            for master, own in zip(self.masters, self.parameters, strict=True):
                self._part(own).copy_(master)
        self.optimizer.zero_grad(set_to_none=True)

    def _part(self, tensor: Any) -> Any:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        return local.detach().flatten()[: -(-local.numel() // self.ranks)]
