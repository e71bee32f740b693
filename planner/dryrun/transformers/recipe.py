"""Which training step is run, of which model, as which software runs it? What a dry run needs to know, and no more.

Left out: what the step costs (`cost/`); how a question is read (`ask/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self

from planner.spec.job import AdapterTargets


class Weights(StrEnum):
    """How weights are held and products run."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
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
    """The optimizer and how it is run."""

    ADAMW_FUSED = "AdamW, fused"
    ADAMW_FOREACH = "AdamW, foreach"
    ADAMW_8BIT = "AdamW, 8-bit, bitsandbytes"
    ADEMAMIX = "AdEMAMix, bitsandbytes"
    SGD = "SGD"
    SGD_MOMENTUM = "SGD with momentum"
    ADAFACTOR = "Adafactor"
    MUON = "Muon"


class Sharding(StrEnum):
    """What of the model's states is divided over data-parallel ranks, by FSDP2; nothing: DDP."""

    NONE = "none"
    GRADIENTS = "reshard_after_forward=False"
    WEIGHTS = "reshard_after_forward=True"


@dataclass(frozen=True)
class Adapters:
    """LoRA by PEFT."""

    rank: int
    targets: AdapterTargets | tuple[str, ...] = AdapterTargets.ALL_LINEAR
    """Which layers have one, or names of modules."""
    dropout: float = 0.0
    """Share of their input that is dropped [1]."""
    dora: bool = False
    frozen_bits: int = 16
    """Of the weights of linear layers that are not trained: 16, or 8 and 4 as bitsandbytes quantises them."""


@dataclass(frozen=True)
class Texts:
    """Texts of several lengths in a micro-batch; `mean` of them [tokens]."""

    mean: int
    packed: bool
    """Are they put end to end, or else padded to the longest?"""


class Method(StrEnum):
    """What is trained for, beside the next token."""

    DPO = "dpo"
    GRPO = "grpo"


@dataclass(frozen=True)
class Objective:
    """A loss of trl's; `beta`: of the divergence from the reference model. `num_iterations`: of GRPO, steps with the
    same completions. `completion`: tokens of a text behind its prompt; None: all but one."""

    method: Method
    beta: float
    num_iterations: int = 1
    completion: int | None = None

    def completed(self, length: int) -> int:
        """Tokens behind the prompt, of a text of so many."""
        return length - 1 if self.completion is None else min(self.completion, length - 1)


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
    """`attn_implementation`: "eager", "flash_attention_2", or "sdpa" where the model has it."""
    experts: str | None = None
    """`experts_implementation`: "grouped_mm" or "eager"; None: as transformers has it."""
    checkpointing: Checkpointing = Checkpointing.NONE
    update: Update = Update.ADAMW_FUSED
    adapters: Adapters | None = None
    texts: Texts | None = None
    """None: all sequences are of `seq_len`."""
    compiled: bool = False
    """Is the model given to `torch.compile`, in its default mode?"""
    liger: bool = False
    """`use_liger_kernel`."""
    objective: Objective | None = None
    """None: the next token."""
    sharding: Sharding = Sharding.NONE
    shards: int = 1
    """Ranks that hold one copy of the states between them."""
    replicas: int = 1
    """Such copies."""

    tensor: int = 1
    """Ranks that divide every layer between them."""
    accumulates_whole: bool = False
    """Are sharded gradients of accumulated micro-batches kept whole and summed over ranks behind the last one
    (`no_sync`)?"""

    @property
    def ranks(self) -> int:
        """All ranks of the step."""
        return self.shards * self.replicas * self.tensor

    def sized(self, micro_batch: int, seq_len: int) -> Self:
        """The same with other micro-batches and sequences."""
        return replace(self, micro_batch=micro_batch, seq_len=seq_len)

    def roles(self) -> tuple[tuple[int, Self], ...]:
        """Ranks that differ, by number: all run the same."""
        return ((0, self),)


MOST_MICROBATCHES: Final = (
    2  # run of those accumulated: the second finds gradients of the first, as all others do
)
