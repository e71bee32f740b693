"""What is to be trained on the model: sequence length, batch, number formats, optimizer, tokens.

Left out: data order, learning rate and everything else that changes neither time nor memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Final

import numpy as np

from planner.dialect import option
from planner.errors import InputError
from planner.spec.config import FloatColumn
from planner.spec.precision import RECIPES, Dtype, Precision


class Optimizer(StrEnum):
    """An optimizer, with the format of its moments where it has several."""

    ADAMW = "adamw"
    ADAMW_BF16 = "adamw-bf16"
    ADAMW_8BIT = "adamw-8bit"
    ADEMAMIX = "ademamix"
    SGD = "sgd"
    SGD_MOMENTUM = "sgd-momentum"
    ADAFACTOR = "adafactor"
    MUON = "muon"


class AdapterTargets(StrEnum):
    """Which linear layers carry LoRA adapters: every dense one (peft's "all-linear"), all of attention's, or the
    query, key and value projection alone (`target_modules = ["linear_qkv"]` of NeMo's performance recipes)."""

    ALL_LINEAR = "all-linear"
    ATTENTION = "attention"
    QKV = "qkv"

    def adapts(self, product: str) -> bool:
        """Whether a product of a layer, as `cost/operations` names it, has an adapter."""
        if product == "router":
            return False
        if self is AdapterTargets.ALL_LINEAR:
            return True
        return product in ATTENTION_INPUTS or (
            self is AdapterTargets.ATTENTION and product == "attention_out"
        )


LARGEST_RANK: Final = 65_536  # of adapters; above a width it is that of full training
ATTENTION_INPUTS: Final = ("qkv", "q", "q_a", "q_b", "kv_a", "kv_b")


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
# AdEMAMix: Adam's two and a slow average of gradients (Pagliardini 2024, arXiv 2409.03137).
# Muon: one fp32 momentum (Jordan 2024), of matrices; unfused: gradient read, momentum updated, decayed and updated
# master, orthogonalised update read, 16-bit weight made of the master. `cost/muon.py` has its products and the rest.
OPTIMIZERS: dict[Optimizer, OptimizerCost] = {
    Optimizer.ADAMW: OptimizerCost(8.0, 4 + 2 * (4 + 8) + 2),
    Optimizer.ADAMW_BF16: OptimizerCost(4.0, 4 + 2 * (4 + 4) + 2),
    Optimizer.ADAMW_8BIT: OptimizerCost(2.03, 4 + 2 * (4 + 2.03) + 2),
    Optimizer.ADEMAMIX: OptimizerCost(12.0, 4 + 2 * (4 + 12) + 2),
    Optimizer.SGD: OptimizerCost(0.0, 4 + 2 * 4 + 2),
    Optimizer.SGD_MOMENTUM: OptimizerCost(4.0, 4 + 2 * (4 + 4) + 2),
    Optimizer.ADAFACTOR: OptimizerCost(0.01, 4 + 2 * 4 + 2),
    Optimizer.MUON: OptimizerCost(4.0, 4 + 8 + 2 * 8 + 4 + 4 + 2),
}
NEWTON_SCHULZ_STEPS: Final = 5  # iterations of Muon's update (Jordan 2024; Megatron-LM --muon-num-ns-steps)


# Bytes of a frozen weight. NF4 with double quantisation: 4 bits and 0.127 of constants (Dettmers 2023, arXiv
# 2305.14314, section 3); 8 bits: one byte and a fp16 scale per row, below 0.001. 32 bits: a model loaded in fp32 whose
# shards FSDP casts before it gathers them (PrimeIntellect-ai/prime-rl src/prime_rl/trainer/model.py).
FROZEN_BYTES: dict[int, float] = {32: 4.0, 16: 2.0, 8: 1.0, 4: 4.127 / 8}


def length_in_words(longest: int, mean: float | None, packed: bool, unit: str = " tokens") -> str:
    """Tokens of a job's sequences, which are as long as the longest only where nothing says that they differ."""
    if mean is None or mean == longest:
        return f"{longest:,}{unit}"
    if packed:
        return f"{longest:,}{unit} (packed, documents of {mean:,g} on average)"
    return f"at most {longest:,}{unit} ({mean:,g} on average)"


@dataclass(frozen=True)
class Job:
    """One training job. `global_batch` counts sequences; `tokens` is the whole run's, if known.

    `lora_rank`: adapters of this rank on the dense linear layers of `lora_targets`, the model itself frozen in
    `frozen_bits` (32 or 16, or 8 and 4 quantised; embeddings and head stay in 16). None: all parameters are trained.

    `mean_length`: tokens of a sequence on average, `seq_len` being the longest (None: all are as long). `packed`:
    several are put end to end into one of `seq_len` tokens; otherwise those of a micro-batch are padded to the longest
    among them.

    `expert_imbalance`: tokens of the rank whose experts get most over the mean, at every expert-parallel degree above
    1, or as pairs (degree, factor) where it depends on the degree. `expert_replicas`: replicas of all experts of a
    layer in all, where some are held more than once (0: each once).

    `bf16_layers`: layers at the start and at the end of the model that an 8- or 4-bit recipe keeps in bf16 (Megatron-LM
    --first-last-layers-bf16); modules of multi-token prediction are taken to be as the last layer is.

    `checkpoint_staged`: a checkpoint is copied to the memory of hosts and written from there while training goes on.

    `critical_batch`: as somebody measured it [tokens]. `batch_schedule`: rising batches below the global one at the
    start, (sequences, tokens of the run at which it ends).
    """

    seq_len: int
    global_batch: int
    precision: Precision = Precision.BF16
    optimizer: Optimizer = Optimizer.ADAMW
    tokens: float | None = None
    lora_rank: int | None = None
    frozen_bits: int = 16
    expert_imbalance: float | tuple[tuple[int, float], ...] = 1.0
    expert_replicas: int = 0
    lora_targets: AdapterTargets = AdapterTargets.ALL_LINEAR
    mean_length: float | None = None
    packed: bool = False
    bf16_layers: tuple[int, int] = (0, 0)
    checkpoint_staged: bool = True
    critical_batch: float | None = None
    batch_schedule: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if self.lora_rank is not None and not 1 <= self.lora_rank <= LARGEST_RANK:
            must = f"{option('lora_rank')} must be a whole number from 1 to {LARGEST_RANK:,}"
            raise InputError(must, str(self.lora_rank))
        if self.frozen_bits not in FROZEN_BYTES:
            known = ", ".join(map(str, sorted(FROZEN_BYTES)))
            raise InputError(f"{option('frozen_bits')} must be one of {known}", str(self.frozen_bits))
        if self.lora_rank is None and self.frozen_bits != 16:
            must = f"{option('frozen_bits')} needs frozen weights"
            raise InputError(must, str(self.frozen_bits), f"add {option('lora_rank', '16')}, say")
        if self.mean_length is not None and not 1 <= self.mean_length <= self.seq_len:
            must = f"the mean length must be from 1 to the longest, {self.seq_len}"
            raise InputError(must, f"{self.mean_length:g}", f"{option('seq_len')} is the longest sequence")
        if self.packed and self.mean_length is None:
            raise InputError(
                "packed sequences need a mean length", "none", f"add {option('mean_len', '512')}, say"
            )
        self._check_bf16_layers()
        factors = self.expert_imbalance
        for value in [factors] if isinstance(factors, float | int) else [value for _, value in factors]:
            if not value >= 1.0 - 1e-9:
                raise InputError(
                    "the busiest rank has at least the mean: expert imbalance 1 or more", str(value)
                )
        for name, count in (("seq_len", self.seq_len), ("global_batch", self.global_batch)):
            if count < 1:
                raise InputError(f"{option(name)} must be a whole number, 1 or more", str(count))
        if self.tokens is not None and not self.tokens > 0:
            raise InputError("tokens must be above 0", str(self.tokens))
        self._check_batches()

    def _check_batches(self) -> None:
        if self.critical_batch is not None and not self.critical_batch > 0:
            raise InputError("a critical batch must be above 0 tokens", str(self.critical_batch))
        ends = [0.0, *(end for _, end in self.batch_schedule)]
        batches = [0, *(batch for batch, _ in self.batch_schedule), self.global_batch]
        if any(a >= b for rising in (ends, batches) for a, b in pairwise(rising)):
            must = f"{option('batch_schedule')} must be rising batches below the global one, each with a later end"
            stages = [f"{batch:,} sequences up to {end:.4g} tokens" for batch, end in self.batch_schedule]
            given = f"{', '.join(stages)}; {self.global_batch:,} sequences to the end"
            raise InputError(must, given, f"{option('global_batch', '16Mtok')} names the last one")
        if self.tokens is not None and ends[-1] >= self.tokens:
            must = f"{option('batch_schedule')} must end before the run"
            hint = "leave the last batch out: it is the global batch"
            raise InputError(must, f"{ends[-1]:g} of {self.tokens:g} tokens", hint)

    def _check_bf16_layers(self) -> None:
        first, last = self.bf16_layers
        if first < 0 or last < 0:
            raise InputError("layers kept in bf16 must be 0 or more at either end", f"{first} and {last}")
        if not (first or last):
            return
        if RECIPES[self.precision].gemm not in (Dtype.FP8, Dtype.FP4):
            must = "layers kept in bf16 need an 8- or 4-bit recipe for the others"
            raise InputError(must, str(self.precision), f"choose {option('precision', 'fp8_cs')}, say")
        if self.precision is Precision.FP8:  # Megatron-LM core/transformer/transformer_config.py
            must = "delayed scaling does not support first or last layers in bf16"
            raise InputError(must, str(self.precision), f"choose {option('precision', 'fp8_cs')}, say")

    def imbalance(self, ep: FloatColumn) -> FloatColumn:
        """Tokens of the busiest rank over the mean at each expert-parallel degree [1]; 1 where there is one rank."""
        if isinstance(self.expert_imbalance, float | int):
            return np.where(ep > 1, float(self.expert_imbalance), 1.0)
        factor = np.ones(len(ep))
        for degree, value in self.expert_imbalance:
            factor = np.where(ep == degree, value, factor)
        return factor

    def adapts(self, product: str) -> bool:
        """Whether a product of a layer, as `cost/operations` names it, has something to train."""
        return self.lora_rank is None or self.lora_targets.adapts(product)

    def with_length(self, longest: int) -> Job:
        """The same job on sequences of at most so many tokens."""
        mean = None if self.mean_length is None else min(self.mean_length, float(longest))
        return replace(self, seq_len=longest, mean_length=mean)

    def with_batch(self, sequences: int) -> Job:
        """The same job with another global batch, and what it has before that of smaller ones."""
        smaller = tuple((batch, end) for batch, end in self.batch_schedule if batch < sequences)
        return replace(self, global_batch=sequences, batch_schedule=smaller)

    @property
    def early_batches(self) -> tuple[int, ...]:
        """The batches before the global one [sequences]; none where nothing says how long the run is."""
        return () if self.tokens is None else tuple(batch for batch, _ in self.batch_schedule)

    def lengths(self, unit: str = " tokens") -> str:
        """How long the sequences are, in words."""
        return length_in_words(self.seq_len, self.mean_length, self.packed, unit)

    @property
    def useful_length(self) -> float:
        """Tokens of a sequence that are no padding [tokens]; a packed sequence is full."""
        return float(self.seq_len if self.mean_length is None or self.packed else self.mean_length)

    @property
    def attended_length(self) -> float:
        """Tokens of the text that a token can attend to [tokens]: packed texts do not see each other."""
        return float(self.seq_len if self.mean_length is None else self.mean_length)

    def timed_length(self, micro_batch: FloatColumn) -> FloatColumn:
        """Tokens of a sequence as it is computed, on average over micro-batches [tokens]; memory needs `seq_len`.

        Padded to the longest of b: mean x (1 + 1/2 + ... + 1/b), lengths being exponential, at most the longest. A
        spread that is narrower pads less.
        """
        if self.mean_length is None or self.packed:
            return np.full(np.shape(micro_batch), float(self.seq_len))
        b = np.asarray(micro_batch, dtype=np.float64)
        longest_of = np.where(b > 1, np.log(b) + np.euler_gamma + 1 / (2 * b) - 1 / (12 * b * b), 1.0)
        return np.minimum(self.mean_length * longest_of, float(self.seq_len))

    def timed_tokens(self, micro_batch: float) -> float:
        """Tokens of a micro-batch as it is computed, on average, padding included [tokens]."""
        return micro_batch * float(self.timed_length(np.array(micro_batch)))

    @property
    def tokens_per_step(self) -> float:
        """Tokens in one optimizer step, padding not counted."""
        return self.useful_length * float(self.global_batch)
