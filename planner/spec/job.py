"""What is to be trained on the model: sequence length, batch, number formats, optimizer, tokens.

Left out: data order, learning rate and everything else that changes neither time nor memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planner.errors import InputError
from planner.spec.precision import Precision


class Optimizer(StrEnum):
    """An optimizer, with the format of its moments where it has several."""

    ADAMW = "adamw"
    ADAMW_BF16 = "adamw-bf16"
    ADAMW_8BIT = "adamw-8bit"
    SGD = "sgd"
    SGD_MOMENTUM = "sgd-momentum"
    ADAFACTOR = "adafactor"
    MUON = "muon"


@dataclass(frozen=True)
class OptimizerCost:
    """What one parameter costs an optimizer.

    `moment_bytes`: optimizer state beside the fp32 master weight [bytes/parameter].
    `step_bytes`: memory traffic of one update: gradient read, master and moments read and written,
    low-precision weight written [bytes/parameter].
    """

    moment_bytes: float
    step_bytes: float


# AdamW: two fp32 moments (Kingma 2014). bf16 moments: Megatron-LM --exp-avg-dtype. 8-bit: Dettmers 2021,
# arXiv 2110.02861, one byte a moment plus fp32 absmax per 256 values (2 x 4/256 = 0.03). Adafactor: factored
# second moment, no first (Shazeer 2018, arXiv 1804.04235): a row and a column per matrix, below 0.01 bytes.
# Muon: one fp32 momentum (Jordan 2024); its Newton-Schulz matrix products are not in step_bytes.
OPTIMIZERS: dict[Optimizer, OptimizerCost] = {
    Optimizer.ADAMW: OptimizerCost(8.0, 4 + 2 * (4 + 8) + 2),
    Optimizer.ADAMW_BF16: OptimizerCost(4.0, 4 + 2 * (4 + 4) + 2),
    Optimizer.ADAMW_8BIT: OptimizerCost(2.03, 4 + 2 * (4 + 2.03) + 2),
    Optimizer.SGD: OptimizerCost(0.0, 4 + 2 * 4 + 2),
    Optimizer.SGD_MOMENTUM: OptimizerCost(4.0, 4 + 2 * (4 + 4) + 2),
    Optimizer.ADAFACTOR: OptimizerCost(0.01, 4 + 2 * 4 + 2),
    Optimizer.MUON: OptimizerCost(4.0, 4 + 2 * (4 + 4) + 2),
}


@dataclass(frozen=True)
class Job:
    """One training job. `global_batch` counts sequences; `tokens` is the whole run's, if known."""

    seq_len: int
    global_batch: int
    precision: Precision = Precision.BF16
    optimizer: Optimizer = Optimizer.ADAMW
    tokens: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("seq-len", self.seq_len), ("global-batch", self.global_batch)):
            if value < 1:
                raise InputError(f"{name} must be a whole number, 1 or more", str(value))
        if self.tokens is not None and not self.tokens > 0:
            raise InputError("tokens must be above 0", str(self.tokens))

    @property
    def tokens_per_step(self) -> float:
        """Tokens in one optimizer step."""
        return float(self.seq_len) * float(self.global_batch)
