"""What does a published row say of recomputation: of which modules, or of how many layers?

Texts are searched for words, shares and counts; what is more than a name is said to be read so. Left out: what a stack
recomputes beside it.
"""

from __future__ import annotations

import re
from typing import Final

from benchmarks.published.cells import Row, affirmed, quantity, stated
from planner.spec.config import RECOMPUTE_MODULES, Recompute
from planner.spec.model import ModelSpec
from planner.spec.stack import Stack

_ON: Final = ("true", "yes", "y", "on")
_NONE: Final = r"(?:(?:ac|recompute)\W+)?(?:none|n|false|off|disabled|never)\b"
_DENIAL: Final = r"(?:no|not|without)\b"
_CHOSEN: Final = r"selective|full|block|layers?\b"  # what may follow on the denial of something else
_EVERY: Final = re.compile(r"every (?:(second|other|third)|(\d+)(?:st|nd|rd|th)?) layer")
_ORDINALS: Final = {"second": 2, "other": 2, "third": 3}
_PART: Final = re.compile(r"(\d+)\s*(?:/|(?:out )?of)\s*(\d+)")
_PERCENT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_COUNT: Final = re.compile(r"\b(?:full|block|layers)\W*(\d+)(?:\.0)?(?![\d./%])|\b(\d+) layers")
_ALL: Final = r"\bfull|\ball\b|every layer|uniform|\bblock|checkpointing|\bremat\b|\bac\b"
_GROUPED: Final = "uniform"  # Megatron's method of all layers, whose number is of the layers of a group
_PLAIN: Final = re.compile(r"full(?:\s*[:=]\s*\d+)?")
_NOT_ALL: Final = r"selective|\bsac\b|minimal|partial|module|only"
_APART: Final = re.compile(
    r"selective[ :=_-]*(?:layers?[ :=_-]*(\d+)?|(\d+))"
)  # torchtitan's selective_ac_option
_MODULES: Final = {
    "core_attn": "core[ _-]?att(?:n|ention)",
    "layernorm": "(?:(?:layer|rms)[ _-]?)?norms?",
    "moe": "moe(?![ _-]?act)",
}


def recompute_in(
    cells: Row, model: ModelSpec, stack: Stack, pp: int, assumed: list[str]
) -> tuple[Recompute, int, int]:
    """Kind, layers per pipeline rank, modules as a bit mask, from text such as "full:5" or "selective:moe_act+mlp"."""
    text = cells["recompute"]
    lower, most = stated(text), -(-model.num_layers // pp)
    if not lower and stack.name.startswith("maxtext"):
        assumed.append("recomputation not stated: full, the default of MaxText's remat_policy")
        return Recompute.FULL, most, 0
    if not lower:
        assumed.append("recomputation not stated: none")
        return Recompute.NONE, 0, 0
    layers = layers_in(lower, most)
    if layers == 0:
        return Recompute.NONE, 0, 0
    if layers is not None:
        if not _PLAIN.fullmatch(lower):
            assumed.append(f"recomputation {text!r}: full, of {layers} layers a pipeline rank")
        return Recompute.FULL, layers, 0
    return _selective(cells, stack, most, assumed)


def layers_in(text: str, most: int) -> int | None:
    """Layers of `most` that a text in lower case recomputes whole; None where it names something else."""
    value, words = quantity(text), affirmed(text)
    if value is not None:
        return most if value == 1 else _part_of(most, value) if 0 < value < 1 else min(int(value), most)
    if re.match(_NONE, text) or (re.match(_DENIAL, text) and not re.search(_CHOSEN, words)):
        return 0
    if (share := _share_in(words)) is not None:
        return _part_of(most, share)
    if (count := _COUNT.search(words)) and _GROUPED not in words:
        return min(int(count[1] or count[2]), most)
    chosen = re.search(_NOT_ALL, words) or modules_in(words)
    every = text in _ON or (re.search(_ALL, words) and (not chosen or words.startswith("full")))
    return most if every else None


def _share_in(words: str) -> float | None:
    if every := _EVERY.search(words):
        return 1 / max(_ORDINALS.get(every[1]) or int(every[2] or 1), 1)
    if (part := _PART.search(words)) and int(part[2]) > 0:
        return int(part[1]) / int(part[2])
    if percent := _PERCENT.search(words):
        return float(percent[1]) / 100
    return 0.5 if re.search(r"\bhalf\b", words) else None


def _part_of(most: int, share: float) -> int:
    """So many layers, one at least where there are any."""
    return max(1, min(most, round(most * share))) if share > 0 else 0


def modules_in(text: str) -> tuple[str, ...]:
    """Modules that a text in lower case names."""
    return tuple(
        name
        for name in RECOMPUTE_MODULES
        if re.search(
            rf"(?<![a-z0-9_])(?:{_MODULES.get(name, name.replace('_', '[ _-]?'))})(?![a-z0-9_])", text
        )
    )


def _selective(cells: Row, stack: Stack, most: int, assumed: list[str]) -> tuple[Recompute, int, int]:
    """Of modules, or of layers at equal distances; what no word tells is what the stack calls selective."""
    text, lower = cells["recompute"], affirmed(cells["recompute"])
    if modules := modules_in(lower):
        return Recompute.SELECTIVE, 0, _bits(modules)
    if "minimal" in lower:  # MaxText: everything saved but attention
        assumed.append(f"recomputation {text!r}: the attention core")
        return Recompute.SELECTIVE, 0, _bits(("core_attn",))
    apart = _APART.search(lower)
    layers_apart = stack.framework == "fsdp" or "selective layer" in cells["extras"].lower()
    if apart or (stack.framework in ("torchtitan", "fsdp") and layers_apart):
        step = max(int(apart[1] or apart[2] or 2) if apart else 2, 1)
        assumed.append(f"recomputation {text!r}: every {'second layer' if step == 2 else f'layer of {step}'}")
        return Recompute.FULL, max(1, most // step), 0
    assumed.append(f"recomputation {text!r}: {'+'.join(stack.limits.selective_recompute)}")
    return Recompute.SELECTIVE, 0, _bits(stack.limits.selective_recompute)


def _bits(names: tuple[str, ...]) -> int:
    return sum(1 << RECOMPUTE_MODULES.index(name) for name in names)
