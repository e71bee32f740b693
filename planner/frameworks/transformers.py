"""What does training by transformers alone accept, whoever launches it? Its rules; it has no launch files of its own.

Left out: what Accelerate can be told, which launches it (`accelerate/`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.frameworks.rulebook import whole_recompute
from planner.spec.rule import Rule
from planner.spec.stack.losses import Linear

TITLE: Final = "transformers"
_CHECKPOINTING: Final = "transformers 5.17 modeling_utils.py gradient_checkpointing_enable: every layer"

RULES: Final[tuple[Rule, ...]] = (
    whole_recompute(TITLE, _CHECKPOINTING),
    Rule(
        "tp-sharded", ("tp", "zero"), lambda c, p: (c["tp"] == 1) | np.isin(c["zero"], (2, 3)),
        "layers divided over ranks must be sharded too (zero 2 or 3, with 2 or more data-parallel ranks): DDP and the "
        "fused and foreach updates of AdamW take no DTensors beside other tensors",
        "set zero=3, or tp=1",
        "accelerate 1.15.0 parallelism_config.py: tp_size with dp_replicate_size alone; transformers 5.17 "
        "distributed/tensor_parallel.py: norms stay tensors; torch distributed/tensor/_dispatch.py: mixed operands",
        told=("tp", "zero"),
    ),
    Rule(
        "tp-whole-loss", ("tp",),
        lambda c, p: (c["tp"] == 1) | (not isinstance(p.stack.kernels.loss, Linear)),
        "a loss that multiplies by the head part by part must have the head whole: Liger's takes no DTensors",
        "set tp=1, or leave +use-liger-kernel out",
        "linkedin/Liger-Kernel ead96b6 ops/fused_linear_cross_entropy.py, products with out= of tensors and DTensors: "
        "torch distributed/tensor/_dispatch.py, mixed operands",
        told=("tp",),
    ),
)  # fmt: skip
