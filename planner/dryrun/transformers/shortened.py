"""Which layers of a model are equal, and what is the same model with fewer of them?

Layers are held against each other as the library builds them, by classes, shapes of weights, numbers and names of
modules, and by what lists of the configuration say of each. Left out: what runs, which is held against a second record
(`repeated.py`).
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any, Final

import torch
import transformers
from transformers.initialization import no_init_weights

from planner.dryrun.periods import PERIODS, Stretch, longest_stretch
from planner.dryrun.transformers.recipe import Recipe, Sharding, Update

_NUMBERS: Final = (
    "layer_idx",
    "layer_id",
    "layer_index",
    "layer_number",
    "idx",
    "index",
)  # of the layer itself
_OF_LAYERS: Final = re.compile("layer|idx|ind(ex|ices)")  # in names of lists of numbers
_NUMBERED: Final = re.compile(r"(^|\.)\d+(\.|$)")


@dataclass(frozen=True)
class Shortened:
    """Layers that are equal in `periods`, and configurations with as many of them as are run."""

    stretch: Stretch
    periods: int
    config: Any
    """With `PERIODS` of them."""
    shorter: Any
    """With one less."""


@dataclass(frozen=True)
class _Built:
    """A model's list of layers, what each of them is, and what else there is."""

    name: str
    layers: list[Any]
    rest: Any


def shortened(recipe: Recipe, config: Any) -> Shortened | None:
    """The same model with few layers; None where that says nothing of the whole, or saves less than half of them."""
    count = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    if _together(recipe) or not isinstance(count, int) or count < 2 * (2 * PERIODS - 1):
        return None
    whole = _built(config, count)
    if whole is None:
        return None
    first, length, periods = longest_stretch(whole.layers)
    if 2 * (2 * (count - periods * length) + (2 * PERIODS - 1) * length) > count:
        return None
    configs, rests = [], []
    for kept in (PERIODS, PERIODS - 1):
        begin, end = first + kept * length, first + periods * length
        short = _without(config, count, begin, end)
        built = None if short is None else _built(short, count - end + begin)
        if built is None or (built.name, built.layers) != (
            whole.name,
            whole.layers[:begin] + whole.layers[end:],
        ):
            return None
        configs.append(short)
        rests.append(built.rest)
    # tables that all layers share grow with their number
    return Shortened(Stretch(whole.name, first, length), periods, *configs) if rests[0] == rests[1] else None


def _together(recipe: Recipe) -> bool:
    """Is more done for all layers together than for one at a time, or for layers of some numbers? They are compiled so,
    share the buckets of DDP, and the steps of all weights are counted together."""
    buckets = recipe.ranks > 1 and recipe.sharding is Sharding.NONE
    targets = recipe.adapters.targets if recipe.adapters is not None else ()
    numbered = isinstance(targets, tuple) and any(map(_NUMBERED.search, targets))
    return recipe.compiled or buckets or numbered or recipe.update is Update.ADAMW_FOREACH


def _built(config: Any, count: int) -> _Built | None:
    """The model with its only list of so many modules; None where there is none, or several."""
    text = config.get_text_config(decoder=True)
    if any(map(_is_of_numbers, vars(text).items())):
        return None
    try:
        with torch.device("meta"), no_init_weights():
            model = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config))
    except Exception:  # as classes do of configurations that they do not know: the step itself says so
        return None
    lists = [
        (name, module) for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == count
    ]  # fmt: skip
    if len(lists) != 1:
        return None
    name, layers = lists[0]
    said = [tuple(repr(one[at]) for one in _of_each(text, count).values()) for at in range(count)]
    signs = [(_sign(layer), of_it) for layer, of_it in zip(layers, said, strict=True)]
    rest = [
        _own(where, one) for where, one in model.named_modules() if not f"{where}.".startswith(f"{name}.")
    ]
    return _Built(name, signs, rest)


def _sign(layer: Any) -> Any:
    return tuple(_own(name, module) for name, module in layer.named_modules())


def _own(name: str, module: Any) -> Any:
    """What a module is without those inside it."""
    return (
        name, type(module).__qualname__,
        tuple((key, tuple(one.shape)) for key, one in module._parameters.items() if one is not None),
        tuple((key, tuple(one.shape)) for key, one in module._buffers.items() if one is not None),
        tuple(
            (key, value) for key, value in sorted(vars(module).items())
            if isinstance(value, (bool, int, float, str)) and key not in _NUMBERS
        ),
    )  # fmt: skip


def _of_each(text: Any, count: int) -> dict[str, Any]:
    """What of a configuration says something of each layer: lists, and patterns with a letter for each."""
    return {
        name: value for name, value in vars(text).items()
        if (isinstance(value, (list, tuple)) and len(value) == count)
        or (isinstance(value, str) and len(value) == count and name.endswith("pattern"))
    }  # fmt: skip


def _is_of_numbers(field: tuple[str, Any]) -> bool:
    """Does a field name some layers by their numbers, in a list or as keys?"""
    name, value = field
    if not isinstance(value, (list, tuple, dict)) or not value or not _OF_LAYERS.search(name):
        return False
    return all(type(one) is int or str(one).isdecimal() for one in value) and len(set(value)) == len(value)


def _without(config: Any, count: int, begin: int, end: int) -> Any:
    """A configuration without a range of its layers, also in lists that name each; None where that is no
    configuration."""
    short = copy.deepcopy(config)
    text = short.get_text_config(decoder=True)
    try:
        for name, value in _of_each(text, count).items():
            kept = "".join if isinstance(value, str) else type(value)
            setattr(text, name, kept([*value[:begin], *value[end:]]))
        text.num_hidden_layers = count - end + begin
    except Exception:  # each class checks its fields in its own way
        return None
    return short
