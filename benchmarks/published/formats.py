"""In which number formats, and with which optimizer, did a published row train?

Texts are searched for words, so that a remark beside them does no harm; what is more than a name is said to be read so.
Raises `UnsupportedError` where no word is known. Left out: what a recipe keeps in 16 bits (`recipes.py`).
"""

from __future__ import annotations

import re
from typing import Final

from benchmarks.published.cells import affirmed, same_words, spaced, stated
from planner.errors import UnsupportedError
from planner.spec.job import Optimizer
from planner.spec.machine.accelerator import Accelerator
from planner.spec.precision import Dtype, Precision

_EIGHT_BITS: Final = r"fp ?8|float ?8|\be[45]m[23]\b"
# of an 8-bit recipe, how it scales; the first word found; without one, delayed
_SCALES: Final = (
    (r"mx ?fp ?8|\bmx\b", Precision.FP8_MX),
    (r"block|sub ?channel|\bsc\b", Precision.FP8_BLOCKWISE),
    (r"current|tensor ?wise|row ?wise|dynamic|\bcs\b", Precision.FP8_CS),
    ("", Precision.FP8),
)
# the first word found of a wider recipe, narrower formats before those of master weights
_WIDER: Final = (
    (r"bf ?16|bfloat ?16", Precision.BF16),
    (r"fp ?16|float ?16|\bhalf\b", Precision.FP16),
    (r"tf ?32|fp ?32|float ?32", Precision.FP32),
)
_MIXED: Final = r"mixed|\bamp\b|\bo[12]\b"  # of no format
_ALSO: Final = (
    "bfloat16",
    "float16",
    "half",
    "float32",
    "tf32",
    "amp_bf16",
    "amp_fp8",
    "mxfp8",
    "fp4",
    "fp8_delayed",
)
# the first word found, and in what it stands for the named optimizer: itself, its moments, or the nearest that is known
_ITSELF, _MOMENTS, _NEAREST = "", "which keeps as many moments", "the nearest by what it keeps"
_UNREAD = "what else it says is not modelled"
_OPTIMIZERS: Final = (
    (r"ademamix(?!.*8.?bit)", Optimizer.ADEMAMIX, _ITSELF),
    (r"(?:adam|adamw).*8.?bit|8.?bit.*adam", Optimizer.ADAMW_8BIT, _ITSELF),
    (r"8.?bit", Optimizer.ADAMW_8BIT, _NEAREST),
    (r"lamb", Optimizer.ADAMW, _MOMENTS),
    (r"adam.*(bf16|precision-aware)|adam_bf16", Optimizer.ADAMW_BF16, _ITSELF),
    (r"adafactor", Optimizer.ADAFACTOR, _ITSELF),
    (r"muon", Optimizer.MUON, _ITSELF),
    (r"cpu ?_?adam|adam.*(?:fp8|(?<!\d)[124].?bit|cpu|offload)", Optimizer.ADAMW, _UNREAD),
    (r"adam", Optimizer.ADAMW, _ITSELF),
    (r"sophia|adabelief|prodigy", Optimizer.ADAMW, _MOMENTS),
    (r"soap|shampoo|galore", Optimizer.ADAMW, _NEAREST),
    (r"\badan\b", Optimizer.ADEMAMIX, _MOMENTS),
    (r"lion|signum|\blars\b|adagrad|rmsprop", Optimizer.SGD_MOMENTUM, _MOMENTS),
    (r"\bcame\b|novograd|\bdion\b", Optimizer.SGD_MOMENTUM, _NEAREST),
    (r"momentum|nesterov", Optimizer.SGD_MOMENTUM, _ITSELF),
    (r"sgd", Optimizer.SGD, _ITSELF),
)


def precision_in(text: str, accelerator: Accelerator, assumed: list[str]) -> Precision:
    """The recipe; not stated: bf16, or fp16 on a device without bf16, which computes a stated bf16 so, too."""
    formats = [dtype for dtype, _ in accelerator.peak]
    usual = Precision.BF16 if Dtype.BF16 in formats else Precision.FP16
    words = spaced(affirmed(text))
    if stated(text) in ("", "none"):
        assumed.append(f"precision not stated: {usual}")
        return usual
    found = _recipe(words)
    if found is None and re.search(_MIXED, words):
        assumed.append(f"precision {text!r} names no format: {usual}")
        return usual
    if found is None:
        known = ", ".join(Precision)
        raise UnsupportedError("precision must be a known recipe", repr(text), f"one of {known}")
    if found is Precision.BF16 and Dtype.BF16 not in formats and Dtype.FP16 in formats:
        assumed.append(f"{accelerator.name} does not multiply in bf16: fp16")
        return Precision.FP16
    if not any(same_words(text, name) for name in (found, *_ALSO)):
        assumed.append(f"precision {text!r}: {found}")
    return found


def _recipe(words: str) -> Precision | None:
    if re.search(r"nv ?fp ?4|\bfp ?4\b", words):
        return Precision.NVFP4
    if re.search(_EIGHT_BITS, words):
        return next(recipe for pattern, recipe in _SCALES if re.search(pattern, words))
    return next((recipe for pattern, recipe in _WIDER if re.search(pattern, words)), None)


def optimizer_in(text: str, assumed: list[str]) -> Optimizer:
    """The optimizer, or the one that is nearest by its states; not stated: AdamW."""
    lower = stated(text)
    if lower in ("", "none"):
        assumed.append("optimizer not stated: adamw")
        return Optimizer.ADAMW
    for pattern, optimizer, said in _OPTIMIZERS:
        if re.search(pattern, lower):
            if said:
                assumed.append(f"optimizer {text}: modelled as {optimizer}, {said}")
            return optimizer
    raise UnsupportedError("the optimizer must be known", repr(text), "one of " + ", ".join(Optimizer))
