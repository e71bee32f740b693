"""What does a program decide by the values of its tensors, where these are fake?

Numbers that follow from no data, such as positions, masks, angles and counts, are computed beside the fake ones, so
that a program asks them as it does on a device. What follows from weights or activations has no value: experts are
chosen evenly, whether all of it is as it should be is affirmed, and any other question about it is refused. Left out:
large tensors.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map_only

from planner.errors import UnsupportedError

# elements of a tensor whose values are computed: of whole numbers, and of others
LARGEST: Final = 2**23
LARGEST_REAL: Final = 2**20
_VALUE: Final = "_planner_value"
_ASKS: Final = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
_INDEX: Final = torch.ops.aten.index.Tensor
_SELECT: Final = torch.ops.aten.masked_select.default
_NONZERO: Final = torch.ops.aten.nonzero.default
_UNSET: Final = tuple(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in (
        ("empty", "memory_format"), ("empty_like", "default"), ("empty_strided", "default"), ("new_empty", "default"),
        ("new_empty_strided", "default"),
    )
)  # fmt: skip
_OVERWRITES: Final = (
    torch.ops.aten.fill_.Scalar,
    torch.ops.aten.fill_.Tensor,
    torch.ops.aten.zero_.default,
    torch.ops.aten.copy_.default,
)
_CHECKS: Final = (torch.ops.aten.all.default, torch.ops.aten.all.dim)
_CHOOSES: Final = (torch.ops.aten.topk.default, torch.ops.aten.argmax.default)


def give_value(fake: Any, value: Any) -> None:
    """Say what a fake tensor holds."""
    setattr(fake, _VALUE, value)


def forget_value(fake: Any) -> None:
    """Say that it is not known what a fake tensor holds."""
    if hasattr(fake, _VALUE):
        delattr(fake, _VALUE)


class Values:
    """Values of the small tensors of a run; `experts`: of a layer, 0 where there are none."""

    def __init__(self, experts: int) -> None:
        self.experts = experts
        self.reported = False  # are numbers without a value only reported?

    def answered(self, func: Any, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Whether an operation's result depends on values, and the result. Raises `UnsupportedError`."""
        if func in _ASKS:
            return True, self._number(args[0])
        if func is _NONZERO:
            return True, self._places(args[0])
        if func in (_INDEX, _SELECT) and (chosen := _chosen(func, args)) is not None:
            return True, chosen
        return False, None

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: list[Any]) -> None:
        """Compute what an operation gave or changed, where everything that it took has a value."""
        changes = func._schema.is_mutable
        if not changes and not (out and _is_followed(out[-1])):
            return
        if func in _UNSET:
            return
        if func in _OVERWRITES and _value(args[0]) is None and _is_followed(args[0]):  # whatever was there
            with unset_fake_temporarily():
                give_value(args[0], torch.empty(args[0].shape, dtype=args[0].dtype))
        taken = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if any(_value(one) is None for one in taken) or torch.Tag.nondeterministic_seeded in func.tags:
            for one in _changed(func, args) if changes else ():
                forget_value(one)
            if func in _CHOOSES and self.experts and args[0].shape[-1] == self.experts:
                self._deal(out[-1])
            if func in _CHECKS:
                with unset_fake_temporarily():
                    give_value(out[-1], torch.ones(out[-1].shape, dtype=torch.bool))
            return
        args, kwargs = tree_map_only(torch.Tensor, _value, (args, kwargs))
        with unset_fake_temporarily():
            values = func(*args, **kwargs)
        for one, value in zip(out, values if isinstance(values, (tuple, list)) else [values], strict=False):
            give_value(one, value)

    def _deal(self, chosen: Any) -> None:
        """Say which experts tokens choose: one after the other, so that all get equally many."""
        with unset_fake_temporarily():
            give_value(chosen, torch.arange(chosen.numel()).remainder(self.experts).view(chosen.shape))

    def _number(self, tensor: Any) -> Any:
        value = _value(tensor)
        if value is not None:
            with unset_fake_temporarily():
                return value.item()
        if tensor.dtype == torch.bool:
            return False  # as of losses that are not finite, and experts beyond the last
        if self.reported:
            return 1.0
        raise _unknown(f"a value in {str(tensor.dtype).removeprefix('torch.')} that the program reads")

    def _places(self, mask: Any) -> Any:
        """Where a mask is set: of experts that got tokens all, and of tokens an expert's even share."""
        value = _value(mask)
        with unset_fake_temporarily():
            if value is not None:
                places = value.nonzero()
            elif mask.dim() == 1 and self.experts <= mask.numel() <= self.experts + 1:  # one more for padding
                places = torch.arange(self.experts)[:, None]
            elif not self.experts:
                raise _unknown("how many places of a mask are set")
            else:
                places = None
        share = (mask.numel() // max(self.experts, 1), mask.dim())
        found = torch.empty(share if places is None else places.shape, dtype=torch.int64)
        if places is not None:
            give_value(found, places)
        return found


def _chosen(func: Any, args: tuple[Any, ...]) -> Any:
    """What a mask of known values chooses of a tensor's first dimensions; None where it is no such mask."""
    tensor, masks = args[0], [args[1]] if func is _SELECT else args[1]
    mask = masks[0] if len(masks) == 1 else None
    if mask is None or mask.dtype != torch.bool or (value := _value(mask)) is None:
        return None
    with unset_fake_temporarily():
        number = int(value.sum())
    rest = () if func is _SELECT else tensor.shape[mask.dim() :]
    return torch.empty((number, *rest), dtype=tensor.dtype)


def _unknown(what: str) -> UnsupportedError:
    return UnsupportedError(
        "a dry run needs a step whose shapes do not follow from activations", f"{what} follows from activations",
        "run a model or an implementation without it",
    )  # fmt: skip


class NoValues(Values):
    """Of a run that asks for none."""

    def __init__(self) -> None:
        super().__init__(0)

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: list[Any]) -> None:
        """Nothing is computed."""


def _value(tensor: Any) -> Any:
    """What a tensor holds; None where that is not known, also where other data was put in its place."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    value = getattr(tensor, _VALUE, None)
    return None if value is None or value.shape != tensor.shape else value


def _is_followed(tensor: Any) -> bool:
    """May the values of a tensor be computed? Few of what else than whole numbers has values: counts, and angles."""
    dtype = tensor.dtype
    return bool(tensor.numel() <= (LARGEST_REAL if dtype.is_floating_point or dtype.is_complex else LARGEST))


def _changed(func: Any, args: tuple[Any, ...]) -> list[Any]:
    """Tensors that an operation writes into."""
    written = (
        arg for arg, given in zip(args, func._schema.arguments, strict=False)
        if given.alias_info is not None and given.alias_info.is_write
    )  # fmt: skip
    return [one for one in tree_leaves(list(written)) if isinstance(one, torch.Tensor)]
