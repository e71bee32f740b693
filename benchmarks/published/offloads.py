"""What does a published row keep on the host: optimizer, parameters, activations?

Optimizers and parameters are costed where the row's stack can keep them there; else, and for activations of no stated
number of layers, what does not fit without it is borderline. Left out: NVMe, costed as host memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.published.cells import Row
from benchmarks.published.words import Word
from planner.spec.config import OFFLOAD_OPTIMIZER, OFFLOAD_PARAMETERS, ParallelConfig, offload_text
from planner.spec.stack import Stack

_BOTH: Final = OFFLOAD_OPTIMIZER | OFFLOAD_PARAMETERS
_PLACE: Final = r"(?:[ _-](?:states?|cpu|host|nvme))*"
OPTIMIZER: Final = Word(
    rf"zero[ _-]?offload|optimizer{_PLACE}[ _-]offload|offload\w*[ _-](?:of )?(?:the )?optimizer|cpu[ _-]optimizer"
)
_KEPT: Final = (
    (OPTIMIZER, OFFLOAD_OPTIMIZER),
    (
        Word(rf"param(?:eter)?s?{_PLACE}[ _-]offload|offload\w*[ _-](?:of )?(?:the )?(?:param|weight)"),
        OFFLOAD_PARAMETERS,
    ),
    (Word(r"zero[ _-]?infinity"), _BOTH),
)  # fmt: skip
_CPU_ADAM: Final = Word(r"cpu[ _-]?adam|adam\w*[ _(-]+cpu")
_ACTIVATIONS: Final = Word(
    rf"activations?{_PLACE}[ _-]offload|offload\w*[ _-](?:of )?(?:the )?activation|cpu_checkpointing"
)
# "cpu_offload=True": what it is follows from the software, FSDP's CPUOffload and DeepSpeed's of before stage 3
_UNNAMED: Final = Word(r"(?:cpu|host)[ _-]offload(?:ing)?(?![\w-])")
_UNNAMED_IN: Final = {"fsdp": _BOTH, "torchtitan": _BOTH, "deepspeed": OFFLOAD_OPTIMIZER}
_NVME: Final = Word(r"nvme|\bssd\b")


def with_offload(
    cells: Row, stack: Stack, config: ParallelConfig, assumed: list[str]
) -> tuple[ParallelConfig, bool]:
    """The configuration with what the row keeps on the host, and whether it keeps more there than is costed."""
    text = f"{cells['extras']} | {cells['recompute']}"
    asked = 0
    for word, bits in _KEPT:
        asked |= bits if word.asked(text) else 0
    asked |= OFFLOAD_OPTIMIZER if _CPU_ADAM.asked(f"{cells['optimizer']} | {text}") else 0
    activations = bool(_ACTIVATIONS.asked(text))
    unnamed = not asked and not activations and bool(_UNNAMED.asked(text))
    asked = _UNNAMED_IN.get(stack.framework, 0) if unnamed else asked
    # as asked; with all that the software can only move together; the optimizer alone
    tried = (asked, asked | _BOTH, asked & OFFLOAD_OPTIMIZER)
    kept = next((bits for bits in tried if asked and _possible(bits, stack, config.zero)), 0)
    if kept:
        on_disk = ", NVMe as memory" if _NVME.asked(text) else ""
        assumed.append(f"in CPU memory: {offload_text(kept)}{on_disk}")
    beyond = activations or bool(asked & ~kept) or (unnamed and not asked)
    if beyond:
        assumed.append("offload to the host is not modelled: what does not fit without it is borderline")
    return (replace(config, offload=config.offload | kept) if kept else config), beyond


def _possible(bits: int, stack: Stack, zero: int) -> bool:
    """Can the stack keep that on the host? Parameters of full sharding alone."""
    return bool(bits) and bits in stack.limits.offload and (not bits & OFFLOAD_PARAMETERS or zero >= 3)
