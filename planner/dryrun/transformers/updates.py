"""Which optimizer does a recipe mean, as the Trainer makes it? `optimizer_of`.

Source: transformers 5.17 trainer_optimizer.py. It has no Muon: that is torch.optim.Muon for matrices of layers, and
fused AdamW for all else, as its documentation says. Left out: learning rates, which change no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from transformers.optimization import Adafactor

from planner.dialect import option
from planner.dryrun.transformers.bitsandbytes_updates import BlockwiseAdam
from planner.dryrun.transformers.recipe import Recipe, Sharding, Update
from planner.errors import UnsupportedError

_RATE: Final = 1e-5
# each ends a real step so, too: with bitsandbytes 0.50.2, and transformers 5.24
_PLAIN_STATES: Final[Mapping[Update, str]] = {
    Update.ADAMW_8BIT: "its kernels take plain tensors, and the scales of its states are such beside sharded weights",
    Update.ADEMAMIX: "its kernels take plain tensors, and its averages are such beside sharded weights",
    Update.ADAFACTOR: "its averages over rows and columns are plain tensors, added to what is sharded",
}


def check_update(recipe: Recipe) -> None:
    """Raises `UnsupportedError` for an optimizer that fails on weights that FSDP2 shards, on a device as well."""
    why = _PLAIN_STATES.get(recipe.update)
    if why is not None and recipe.sharding is not Sharding.NONE:
        must = f"{recipe.update} cannot update what FSDP2 shards: {why}"
        other = (
            f"{option('set', 'zero=0')}, or another optimizer" if recipe.tensor == 1 else "another optimizer"
        )
        raise UnsupportedError(must, "ZeRO stage 2 or 3", other)


def optimizer_of(update: Update, model: Any) -> Any:
    """The optimizer of what is trained of a model, which DDP may lie around."""
    model = getattr(model, "module", model)
    trained = [one for one in model.parameters() if one.requires_grad]
    return _MADE[update](trained, model)


class _Several:
    """Optimizers that share the parameters of a model."""

    def __init__(self, *optimizers: Any) -> None:
        self._optimizers = optimizers

    @property
    def state(self) -> dict[Any, Any]:
        return {key: state for one in self._optimizers for key, state in one.state.items()}

    def step(self) -> None:
        for one in self._optimizers:
            one.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self._optimizers:
            one.zero_grad(set_to_none=set_to_none)


def _embeddings(model: Any) -> list[Any]:
    return [one.weight for one in model.modules() if isinstance(one, torch.nn.Embedding)]


def _muon(trained: list[Any], model: Any) -> Any:
    head = model.get_output_embeddings()
    outer = {id(one) for one in [*_embeddings(model), *(() if head is None else head.parameters())]}
    matrices = [one for one in trained if one.dim() == 2 and id(one) not in outer]
    others = [one for one in trained if one.dim() != 2 or id(one) in outer]
    made = [torch.optim.Muon(matrices, lr=_RATE)] if matrices else []
    return _Several(*made, *([torch.optim.AdamW(others, lr=_RATE, fused=True)] if others else []))


# foreach is what PyTorch takes of itself on CUDA
_MADE: Final[Mapping[Update, Callable[[list[Any], Any], Any]]] = {
    Update.ADAMW_FUSED: lambda trained, _: torch.optim.AdamW(trained, lr=_RATE, fused=True),
    Update.ADAMW_FOREACH: lambda trained, _: torch.optim.AdamW(trained, lr=_RATE, foreach=True),
    Update.ADAMW_8BIT: lambda trained, model: BlockwiseAdam(trained, 8, wide=_embeddings(model)),
    Update.ADEMAMIX: lambda trained, _: BlockwiseAdam(trained, 32, slow=True),
    Update.SGD: lambda trained, _: torch.optim.SGD(trained, lr=_RATE, foreach=True),
    Update.SGD_MOMENTUM: lambda trained, _: torch.optim.SGD(trained, lr=_RATE, momentum=0.9, foreach=True),
    Update.ADAFACTOR: lambda trained, _: Adafactor(
        trained, lr=_RATE, scale_parameter=False, relative_step=False
    ),
    Update.MUON: _muon,
}
