"""What do Liger's kernels hold and ask for, and which layers do they take the place of?

They are written in Triton, which runs on a device alone, so that a stand-in has their operands and results: norms that
keep their input and a number a row, gated activations that keep both inputs and write gradients over them, rotation in
place, and a loss that makes logits part by part and gradients at once. Source: liger-kernel 0.8.5 ops/rms_norm.py,
swiglu.py, geglu.py, rope.py, fused_linear_cross_entropy.py; transformers/monkey_patch.py, model/*.py (`lce_forward`),
which the Trainer applies to a model (`use_liger_kernel`). Left out: mixtures and other families, which are refused; the
product of gradients with that of the loss, which changes no bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MethodType, SimpleNamespace
from typing import Any, Final

import torch

from planner.catalog.stack_options import LIGER_FAMILIES
from planner.dryrun.transformers.stand_in import stand_in
from planner.errors import UnsupportedError

PROCESSORS: Final = 132  # of a device, each with sums of a norm's gradients: of H100; others have 108 to 148
_HALVES: Final = (torch.bfloat16, torch.float16)
_ROTATE: Final = "apply_rotary_pos_emb"

_norm = stand_in(
    "liger_rms_norm(Tensor x, Tensor weight) -> (Tensor, Tensor)",
    lambda x, weight: (torch.empty_like(x), torch.empty(x.shape[0], dtype=torch.float32)),
)
_norm_backward = stand_in(
    "liger_rms_norm_backward(Tensor gradient, Tensor(a!) result, Tensor x, Tensor weight, Tensor rows, "
    "Tensor(b!)? sums) -> ()"
)
_gated = stand_in("liger_gated(Tensor gate, Tensor up) -> Tensor", lambda gate, up: torch.empty_like(gate))
_gated_backward = stand_in("liger_gated_backward(Tensor gradient, Tensor(a!) gate, Tensor(b!) up) -> ()")
_rotate = stand_in("liger_rope(Tensor(a!) query, Tensor(b!) key, Tensor cos, Tensor sin) -> ()")
_loss_of = stand_in("liger_cross_entropy(Tensor(a!) logits, Tensor labels, Tensor(b!) loss) -> ()")
_add_product = stand_in("liger_addmm(Tensor(a!) sums, Tensor left, Tensor right) -> ()")


@dataclass(frozen=True)
class Layers:
    """What is replaced of a family: norms of a layer that write their gradient in place of the result's, and others
    that do not; the last norm; the MLP; the rotation."""

    in_place: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    apart: tuple[str, ...] = ()
    last_in_place: bool = True
    mlp: str = "gate_proj up_proj"
    rotates: bool = True


_LLAMA: Final = Layers()
_AROUND: Final = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
)  # fmt: skip
_BEHIND: Final = ("post_attention_layernorm", "post_feedforward_layernorm")
_QUERIES: Final = ("self_attn.q_norm", "self_attn.k_norm")
_OLMO: Final = Layers((), _BEHIND)
_GLM: Final = (
    "input_layernorm",
    "post_attention_layernorm",
    "post_self_attn_layernorm",
    "post_mlp_layernorm",
)
FAMILIES: Final[Mapping[str, Layers]] = {
    **dict.fromkeys(("llama", "mistral", "ministral", "qwen2", "smollm3", "gemma"), _LLAMA),
    "qwen3": replace(_LLAMA, in_place=_LLAMA.in_place + _QUERIES),
    "phi3": replace(_LLAMA, mlp="gate_up_proj"),
    "gemma2": Layers((), _AROUND, last_in_place=False),
    "gemma3_text": Layers((), _AROUND + _QUERIES, last_in_place=False),
    "olmo2": _OLMO,
    "olmo3": _OLMO,
    "exaone4": Layers((), _BEHIND + _QUERIES, last_in_place=False),
    "glm4": Layers((), _GLM, last_in_place=False, mlp="gate_up_proj", rotates=False),
}


def with_liger(model: Any, undone: ExitStack, loss: bool) -> None:
    """Have a model run Liger's kernels until `undone` is closed, that of the `loss` too. Raises `UnsupportedError`."""
    family = model.config.model_type
    if family not in LIGER_FAMILIES:  # of which it has no layers
        return
    if family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedError(
            f"a dry run has Liger's layers of {known}", family, "leave +use-liger-kernel out"
        )
    layers, base = FAMILIES[family], getattr(model, model.base_model_prefix)
    _bind(base.norm, _norm_forward(layers.last_in_place))
    for layer in base.layers:
        for name in (*layers.in_place, *layers.apart):
            _bind(layer.get_submodule(name), _norm_forward(name in layers.in_place))
        _bind(layer.mlp, _apart if layers.mlp == "gate_proj up_proj" else _together)
    if loss:
        _bind(model, _with_loss)
    if layers.rotates:
        module = sys.modules[type(model).__module__]
        undone.callback(setattr, module, _ROTATE, getattr(module, _ROTATE))
        setattr(module, _ROTATE, _rotated)


def _bind(module: Any, forward: Callable[..., Any]) -> None:
    module.forward = MethodType(forward, module)


def _norm_forward(in_place: bool) -> Callable[..., Any]:
    return lambda module, x: _Norm.apply(x, module.weight, in_place)


class _Norm(torch.autograd.Function):  # type: ignore[misc]  # torch is not checked
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, in_place: bool) -> Any:
        rows = x.contiguous().view(-1, x.shape[-1])
        result, scales = _norm(rows, weight)
        ctx.save_for_backward(rows, weight, scales)
        ctx.in_place = in_place
        return result.view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, scales = ctx.saved_tensors
        gradient = gradient.contiguous()
        sums = torch.empty(PROCESSORS, x.shape[-1]) if ctx.needs_input_grad[1] else None
        result = gradient if ctx.in_place else torch.zeros_like(gradient)
        _norm_backward(gradient, result, x, weight, scales, sums)
        return result, None if sums is None else sums.sum(dim=0).to(weight.dtype), None


def _apart(module: Any, x: Any) -> Any:
    return module.down_proj(_Gated.apply(module.gate_proj(x), module.up_proj(x)))


def _together(module: Any, x: Any) -> Any:
    gate, up = module.gate_up_proj(x).chunk(2, dim=-1)
    return module.down_proj(_Gated.apply(gate, up))


class _Gated(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any) -> Any:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        return _gated(gate, up)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        gate, up = ctx.saved_tensors
        _gated_backward(gradient.contiguous(), gate, up)
        return gate, up


def _rotated(q: Any, k: Any, cos: Any, sin: Any, *_: Any, **__: Any) -> Any:
    return _Rotation.apply(q, k, cos, sin)


class _Rotation(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, cos: Any, sin: Any) -> Any:
        ctx.save_for_backward(cos, sin)
        return _in_place(query, key, cos, sin)

    @staticmethod
    def backward(ctx: Any, query: Any, key: Any) -> Any:
        return *_in_place(query, key, *ctx.saved_tensors), None, None


def _in_place(query: Any, key: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    """(batch, heads, length, width), which lie length by length."""
    query, key = query.transpose(1, 2).contiguous(), key.transpose(1, 2).contiguous()
    _rotate(query, key, cos, sin)
    return query.transpose(1, 2), key.transpose(1, 2)


def _with_loss(model: Any, input_ids: Any = None, labels: Any = None, **given: Any) -> Any:
    """The forward pass of the model with the loss, and without logits (`lce_forward`)."""
    hidden = getattr(model, model.base_model_prefix)(input_ids=input_ids, **given)[0]
    shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    head = model.get_output_embeddings().weight
    return SimpleNamespace(loss=_Loss.apply(hidden.view(-1, hidden.shape[-1]), head, shifted.view(-1)))


class _Loss(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, labels: Any) -> Any:
        loss, ctx.trains = _LossInParts(x, weight, labels).run(), weight.requires_grad
        ctx.save_for_backward(*loss[1:])
        return loss[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        of_input, *of_weight = ctx.saved_tensors
        return of_input, of_weight[0] if of_weight else None, None


@dataclass(frozen=True)
class _LossInParts:
    """Logits of some tokens at once: as many as take the room of the input (tokens, width)."""

    x: Any
    weight: Any
    labels: Any

    def run(self) -> list[Any]:
        """The loss, the input's gradient, and where it is trained the weight's."""
        tokens, part = len(self.x), self._tokens_at_once()
        gradients = [torch.zeros_like(self.x)]
        if self.weight.requires_grad:
            gradients.append(torch.zeros_like(self.weight))
        loss = torch.zeros(tokens, dtype=torch.float32)
        (self.labels != -100).sum()
        room = torch.empty(part, len(self.weight), dtype=self.x.dtype) if self._writes_into() else None
        for start in range(0, tokens, part):
            self._run_part(slice(start, min(start + part, tokens)), room, loss, gradients)
        del room
        return [loss.sum(), *gradients]

    def _tokens_at_once(self) -> int:
        tokens, width = self.x.shape
        parts = -(-len(self.weight) // width)
        return min(1 << (-(-tokens // parts) - 1).bit_length(), tokens)

    def _writes_into(self) -> bool:
        """Do products need no cast, so that they write into what is there?"""
        alike = self.x.dtype == self.weight.dtype
        return alike and (
            not torch.is_autocast_enabled("cpu") or self.x.dtype == torch.get_autocast_dtype("cpu")
        )

    def _run_part(self, part: slice, room: Any, loss: Any, gradients: list[Any]) -> None:
        x = self.x[part]
        if room is None:
            logits = x @ self.weight.t()
        else:
            logits = torch.mm(x, self.weight.t(), out=room[: len(x)])
        _loss_of(logits, self.labels[part], loss[part])
        if room is None:
            gradients[0][part] = logits @ self.weight
        else:
            torch.mm(logits, self.weight, out=gradients[0][part])
        for sums in gradients[1:]:
            if logits.dtype in _HALVES:
                _add_product(sums, logits.t(), x.to(logits.dtype))
            else:
                sums += torch.mm(logits.t(), x).float()
