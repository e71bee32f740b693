"""Which job does a published row state: length, batch, formats, optimizer, adapters, packing?

Raises `UnsupportedError` for a row without a sequence length or batch. Left out: how the work is divided.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from benchmarks.published.cells import Row, count_in
from benchmarks.published.degrees import Degrees
from benchmarks.published.formats import optimizer_in, precision_in
from benchmarks.published.recipes import ADAPTERS, BF16_MOMENTS, bf16_layers_of, torch_recipe
from benchmarks.published.words import Word
from planner.errors import UnsupportedError
from planner.space.axes import divisors
from planner.spec.job import AdapterTargets, Job, Optimizer
from planner.spec.machine.accelerator import Accelerator
from planner.spec.stack import Stack

_LORA_RANK: Final = re.compile(r"\b(?:lora[ _-]?)?(?:rank|dim|r)[ =:]+(\d+)", re.IGNORECASE)
_FROZEN_BITS: Final = ((4, r"\bqlora\b|\bnf4\b|4-?bit"), (8, r"8-?bit base|int8 base"), (32, r"fp32 base"))
_PACKED: Final = Word(r"\bpacked\b")
# tokens of a text of SQuAD with its question, which such rows pack; from memory. 512 make a step 0.3 % longer.
PACKED_TEXT: Final = 256.0
LORA_RANK: Final = 16  # where a row states none; published peaks and times hardly depend on it
_MICROBATCHES_IN_TEXT: Final = re.compile(
    r"(?:grad(?:ient)?_accum\w*|micro-?batches|\bga)[ =:]+(\d+)", re.IGNORECASE
)


@dataclass(frozen=True)
class Batches:
    """Sequences of a step and of a micro-batch, and how many micro-batches a rank runs."""

    global_batch: int
    micro_batch: int
    number: int


def batches_in(cells: Row, degrees: Degrees, assumed: list[str], micro_batch: int | None = None) -> Batches:
    """How a step's sequences are dealt; `micro_batch`: what is taken where the row states none, else 1."""
    batch, micro, dp = count_in(cells, "global_batch"), count_in(cells, "micro_batch"), degrees.dp
    count = _accumulated(cells)
    if batch is None and micro is not None and count:
        batch = micro * dp * count
        assumed.append(f"global_batch not stated: {batch} = micro-batch x dp x {count} accumulated")
    if batch is None:
        raise UnsupportedError("a row must state its global batch", "global_batch is empty")
    if micro is None:
        share = batch // dp
        stated = count and share and share % count == 0
        micro = share // count if stated else micro_batch or 1
        assumed.append(f"micro_batch not stated: {micro}{_why(micro, micro_batch, -(-batch // dp))}")
    number = -(-batch // (dp * micro))
    if number * dp * micro != batch:
        assumed.append(
            f"{batch} sequences do not divide into dp {dp} x micro-batch {micro}: {number} micro-batches"
        )
    return Batches(batch, micro, number)


def micro_batches_open(cells: Row, degrees: Degrees) -> list[int]:
    """Micro-batches that a row allows which states neither them nor their number, largest first: without a pipeline,
    what divides a rank's share. With one, small ones fill it."""
    batch = count_in(cells, "global_batch")
    if degrees.pp > 1 or batch is None or count_in(cells, "micro_batch") is not None or _accumulated(cells):
        return []
    share = -(-batch // degrees.dp)
    return list(reversed(divisors(share)))


def _accumulated(cells: Row) -> int:
    stated = _MICROBATCHES_IN_TEXT.search(cells["extras"])
    return int(stated[1]) if stated else 0


def _why(micro: int, taken: int | None, share: int) -> str:
    if taken is None or micro != taken:
        return ""
    if micro == share:
        return ", a rank's whole share"
    return f", of a rank's {share} " + (
        "the largest divisor that fits" if micro > 1 else "no larger divisor fits"
    )


def job_in(cells: Row, batch: int, chip: Accelerator, stack: Stack, assumed: list[str]) -> Job:
    seq_len = count_in(cells, "seq_len")
    if seq_len is None:
        raise UnsupportedError("a row must state its sequence length", "seq_len is empty")
    packed = bool(_PACKED.search(cells["extras"]))
    if packed:
        assumed.append(f"documents of {PACKED_TEXT:g} tokens on average packed into each sequence")
    return Job(
        seq_len,
        batch,
        torch_recipe(precision_in(cells["precision"], chip, assumed), cells, stack, assumed),
        _optimizer(cells, assumed),
        lora_rank=_lora_rank(cells, assumed),
        frozen_bits=_frozen_bits(cells),
        lora_targets=_lora_targets(cells),
        mean_length=min(PACKED_TEXT, float(seq_len)) if packed else None,
        packed=packed,
        bf16_layers=bf16_layers_of(cells),
    )


def _optimizer(cells: Row, assumed: list[str]) -> Optimizer:
    """The optimizer; Adam with moments in bf16 where the recipe of Megatron-Bridge has them so."""
    stated = optimizer_in(cells["optimizer"], assumed)
    recipe = "bridge" in cells["framework"].lower() and BF16_MOMENTS.search(cells["model"])
    if stated is not Optimizer.ADAMW or not recipe or ADAPTERS.search(cells["extras"]):
        return stated
    assumed.append("the recipe's moments in bf16")
    return Optimizer.ADAMW_BF16


def _lora_targets(cells: Row) -> AdapterTargets:
    """Where adapters sit: on q, k, v alone in the performance recipes of NeMo and Megatron-Bridge."""
    if re.search(r"nemo|megatron", cells["framework"], re.IGNORECASE) and ADAPTERS.search(cells["extras"]):
        return AdapterTargets.QKV
    return AdapterTargets.ALL_LINEAR


def _lora_rank(cells: Row, assumed: list[str]) -> int | None:
    """The rank of adapters; None where all parameters are trained."""
    if not ADAPTERS.search(cells["extras"]):
        return None
    stated = _LORA_RANK.search(cells["extras"])
    if stated is None:
        assumed.append(f"LoRA rank not stated: {LORA_RANK}")
    return int(stated[1]) if stated else LORA_RANK


def _frozen_bits(cells: Row) -> int:
    """Bits of frozen weights: 16 unless the text names a base in fp32 or a quantised one."""
    if not ADAPTERS.search(cells["extras"]):
        return 16
    return next((bits for bits, text in _FROZEN_BITS if re.search(text, cells["extras"], re.IGNORECASE)), 16)
