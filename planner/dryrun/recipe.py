"""Which training step is run, of which model, as which software runs it? What a dry run needs to know, and no more.

Left out: what the step costs (`cost/`); how a question is read (`ask/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Weights(StrEnum):
    """How weights are held and products run."""

    BF16 = "bf16"
    FP16 = "fp16"
    AMP_BF16 = "fp32 under bf16 autocast"
    AMP_FP16 = "fp32 under fp16 autocast"

    @property
    def autocast(self) -> str | None:
        """The number format of products under autocast; None without."""
        return {Weights.AMP_BF16: "bfloat16", Weights.AMP_FP16: "float16"}.get(self)

    @property
    def held(self) -> str:
        """The number format that weights, gradients and moments are held in, as PyTorch calls it."""
        return {Weights.BF16: "bfloat16", Weights.FP16: "float16"}.get(self, "float32")


class Checkpointing(StrEnum):
    """What of the layers is run again in the backward pass, and by which of PyTorch's two ways."""

    NONE = "none"
    NON_REENTRANT = "use_reentrant=False"
    REENTRANT = "use_reentrant=True"


class Update(StrEnum):
    """The optimizer and how PyTorch runs it."""

    ADAMW_FUSED = "AdamW, fused"
    ADAMW_FOREACH = "AdamW, foreach"


@dataclass(frozen=True)
class Adapters:
    """LoRA by PEFT."""

    rank: int
    targets: tuple[str, ...] | str
    """Names of modules, or "all-linear"."""


@dataclass(frozen=True)
class Recipe:
    """One rank's training step of a Hugging Face model."""

    config: Mapping[str, Any]
    """The fields of its `config.json`."""
    name: str
    micro_batch: int
    seq_len: int
    num_microbatches: int = 1
    """Accumulated before the update."""
    weights: Weights = Weights.BF16
    attention: str = "sdpa"
    """`attn_implementation`: "eager", or "sdpa" where the model has it."""
    experts: str | None = None
    """`experts_implementation`: "grouped_mm" or "eager"; None: as transformers has it."""
    checkpointing: Checkpointing = Checkpointing.NONE
    update: Update = Update.ADAMW_FUSED
    adapters: Adapters | None = None
    compiled: bool = False
    """Is the model given to `torch.compile`, in its default mode?"""


MOST_MICROBATCHES: Final = (
    2  # run of those accumulated: the second finds gradients of the first, as all others do
)
