"""Which layers of a model are equal, and what is the same model with fewer of them?

Layers are held against each other as the library builds them: classes, shapes of weights, and numbers and names that
modules have. Left out: what runs, which is held against a second record (`repeated.py`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Final

import torch
import transformers
from transformers.initialization import no_init_weights

from planner.dryrun.periods import PERIODS, Stretch, longest_stretch

WORTH: Final = 3 * PERIODS  # periods from which two short records take less than the whole
_NUMBERS: Final = (
    "layer_idx",
    "layer_id",
    "layer_index",
    "layer_number",
    "idx",
    "index",
)  # of the layer itself


@dataclass(frozen=True)
class Shortened:
    """Layers that are equal in `periods`, and configurations with as many of them as are run."""

    stretch: Stretch
    periods: int
    config: Any
    """With `PERIODS` of them."""
    shorter: Any
    """With one less."""


def shortened(config: Any) -> Shortened | None:
    """The same model with few layers; None where that says nothing of the whole, or saves little."""
    count = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    if not isinstance(count, int) or count < WORTH:
        return None
    found = _layers_of(config, count)
    if found is None:
        return None
    name, signs = found
    first, length, periods = longest_stretch(signs)
    if periods < WORTH:
        return None
    stretch, configs = Stretch(name, first, length), []
    for kept in (PERIODS, PERIODS - 1):
        begin, end = first + kept * length, first + periods * length
        short = _without(config, count, begin, end)
        if short is None or _layers_of(short, count - end + begin) != (name, signs[:begin] + signs[end:]):
            return None
        configs.append(short)
    return Shortened(stretch, periods, *configs)


def _layers_of(config: Any, count: int) -> tuple[str, list[Any]] | None:
    """The name of the model's only list of so many modules, and what each is; None where there is none, or several."""
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
    return name, [_sign(layer) for layer in layers]


def _sign(layer: Any) -> Any:
    return tuple(
        (
            name, type(module).__qualname__,
            tuple((key, tuple(one.shape)) for key, one in module._parameters.items() if one is not None),
            tuple((key, tuple(one.shape)) for key, one in module._buffers.items() if one is not None),
            tuple(
                (key, value) for key, value in sorted(vars(module).items())
                if isinstance(value, (bool, int, float, str)) and key not in _NUMBERS
            ),
        )
        for name, module in layer.named_modules()
    )  # fmt: skip


def _without(config: Any, count: int, begin: int, end: int) -> Any:
    """A configuration without a range of its layers, also in lists that name each; None where that is no
    configuration."""
    short = copy.deepcopy(config)
    text = short.get_text_config(decoder=True)
    for name, value in list(vars(text).items()):
        if isinstance(value, (list, tuple, str)) and len(value) == count:
            kept = "".join if isinstance(value, str) else type(value)
            setattr(text, name, kept([*value[:begin], *value[end:]]))
    try:
        text.num_hidden_layers = count - end + begin
    except Exception:  # each class checks its fields in its own way
        return None
    return short
