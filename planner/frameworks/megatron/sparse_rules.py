"""Which configurations does Megatron-LM refuse of attention to chosen keys, or fall back from to scores of all pairs?

Mirrored from megatron/core/transformer/transformer_config.py (T), absorbed_mla.py (A), dsa.py and
dsa_cudnn_kernels.py (C) of core/transformer/experimental_attention_variant, main of 2026-08. DeepSeek-V4 runs on the
dev branch alone, as Megatron-Bridge 067f987 examples/models/deepseek_v4/README.md describes it. Attention to chosen
blocks of keys no branch has: rules are those of kernels for training with it (flash-msa 0.1.1 flash_msa/flash_msa.py,
MiniMax-AI/MSA@806faf8 training/msa_v1/attention/interface.py).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.frameworks.rulebook import every_row, recomputes
from planner.spec.config import ContextKind, Mask, Recompute
from planner.spec.machine.accelerator import Architecture
from planner.spec.precision import RECIPES, Dtype, Precision
from planner.spec.rule import Columns, Problem, Rule
from planner.spec.stack.kinds import SparseKernel

_VARIANT: Final = "Megatron-LM core/transformer/experimental_attention_variant"
_WIDE: Final = (Precision.FP16, Precision.FP32)
_FUSED: Final = (SparseKernel.CUDNN, SparseKernel.TILELANG)
# Value width of the kernels, and that of keys: of latent attention, and of DeepSeek-V4 or without positions.
LATENT: Final = (512, 576)
SHARED: Final = (512, 512)
# Keys of a block, which are as wide, and blocks of a query at most.
BLOCK: Final = 128
MOST_BLOCKS: Final = 32


def _with_indexers(columns: Columns, problem: Problem, legal: Mask) -> Mask:
    return legal | (not problem.model.gathers_keys)


def _fused(problem: Problem) -> bool:
    return problem.stack.kernels.sparse_attention in _FUSED


def _device(columns: Columns, problem: Problem) -> Mask:
    new = problem.cluster.accelerator.instructions in (Architecture.HOPPER, Architecture.BLACKWELL)
    return every_row(columns, new or not (_fused(problem) and problem.model.gathers_keys))


def _gathered(columns: Columns, problem: Problem) -> Mask:
    """The default kind stands for the only one that there is."""
    legal = (columns["cp"] == 1) | (columns["cp_kind"] != ContextKind.A2A)
    return _with_indexers(columns, problem, legal)


def _heads(columns: Columns, problem: Problem) -> Mask:
    """Heads of a rank that the fused kernels take: a divisor or a multiple of a tile (C _flash_mla_head_padding)."""
    legal = every_row(columns)
    if not _fused(problem):
        return legal
    blackwell = problem.cluster.accelerator.instructions is Architecture.BLACKWELL
    tile = 128 if blackwell else 64
    for a in problem.model.attentions:
        if a.sparse and not a.chooses_blocks:
            local = np.maximum(a.heads // columns["tp"], 1)
            legal &= (local % tile == 0) | (tile % local == 0)
            key = SHARED if a.compression is not None or not a.qk_rope_dim else LATENT
            legal &= (a.latent_value, a.latent_dim) == key
    return legal


def _blocks(columns: Columns, problem: Problem) -> Mask:
    """Heads 128 wide, blocks of 128 keys, and whole groups of heads with the indexer's head that chooses for them."""
    legal = every_row(columns)
    for a in problem.model.attentions:
        if a.indexer is not None and a.chooses_blocks:
            legal &= a.indexer.heads % columns["tp"] == 0
            if _fused(problem):
                widths = {a.head_dim, a.v_head_dim, a.indexer.head_dim, a.indexer.block}
                legal &= (widths == {BLOCK}) & (a.indexer.top_k <= MOST_BLOCKS * BLOCK)
    return legal


def _recomputed(columns: Columns, problem: Problem) -> Mask:
    narrow = RECIPES[problem.job.precision].gemm in (Dtype.FP8, Dtype.FP4)
    legal = ~recomputes(columns, "mla_up_proj") | (not narrow)
    return legal | (not problem.model.indexers) | problem.model.compresses_keys


SPARSE_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "indexer-device", (), _device,
        "the {kernel} kernels of sparse attention run on Hopper and Blackwell, not on {device}",
        "name the stack with +dsa-kernel-backend=none, or choose another cluster",
        f"{_VARIANT}/dsa_cudnn_kernels.py, ops/tilelang_sparse_mla_fwd.py",
        lambda p: {"kernel": p.stack.kernels.sparse_attention, "device": p.cluster.accelerator.name},
    ),
    Rule(
        "indexer-sp", ("tp", "sp"),
        lambda c, p: _with_indexers(c, p, (c["tp"] == 1) | (c["sp"] > 0)) | p.model.chooses_blocks,
        "sparse attention with tp above 1 needs sequence parallelism", "set sp=1",
        f"{_VARIANT}/absorbed_mla.py AbsorbedMLASelfAttention", told=("tp", "sp"),
    ),
    Rule(
        "indexer-cp", ("tp", "cp", "cp_kind"), _gathered,
        "context parallelism of sparse attention gathers keys: cp_kind must be all-gather",
        "leave cp_kind out", "Megatron-LM core/transformer/transformer_config.py __post_init__", told=("cp_kind",),
    ),
    Rule(
        "indexer-heads", ("tp",), _heads,
        "fused sparse attention takes a key of {key} values, {value} of them the value, and on a rank a divisor "
        "or a multiple of {tile} heads; {model} has {heads} heads, tp={tp}",
        "choose another tp, or name the stack with +dsa-kernel-backend=none",
        f"{_VARIANT}/dsa_cudnn_kernels.py _flash_mla_head_padding, _supports_flash_mla_value_layout",
        lambda p: {
            "value": LATENT[0], "key": (SHARED if p.model.compresses_keys else LATENT)[1], "model": p.model.name,
            "tile": 128 if p.cluster.accelerator.instructions is Architecture.BLACKWELL else 64,
            "heads": next((a.heads for a in p.model.attentions), 0),
        },
    ),
    Rule(
        "indexer-blocks", ("tp",), _blocks,
        "attention to chosen blocks takes heads and an indexer {block} wide, at most {most} blocks of {block} keys, "
        "and a tp that divides the {heads} heads of the indexer",
        "choose another tp, or name the stack with +dsa-kernel-backend=none",
        "flash-msa 0.1.1 flash_msa/flash_msa.py _validate_inputs",
        lambda p: {
            "block": BLOCK, "most": MOST_BLOCKS,
            "heads": next((a.indexer.heads for a in p.model.attentions if a.indexer and a.chooses_blocks), 0),
        }, told=("tp",),
    ),
    Rule(
        "indexer-precision", (), lambda c, p: every_row(c, p.job.precision not in _WIDE or not p.model.gathers_keys),
        "sparse attention works on bf16 queries and keys; the precision is {precision}", "choose bf16 or fp8",
        f"{_VARIANT}/dsa.py rotate_activation, ops/tilelang_dsa.py",
        lambda p: {"precision": p.job.precision},
    ),
    Rule(
        "indexer-recompute", ("recompute", "recompute_modules"), _recomputed,
        "in 8 and 4 bits sparse attention does not recompute mla_up_proj", "leave mla_up_proj out",
        f"{_VARIANT}/absorbed_mla.py get_query_key_value_tensors",
    ),
    Rule(
        "indexer-graphs", ("cuda_graph_impl",),
        lambda c, p: (c["cuda_graph_impl"] == 0) | (not p.model.indexers) | p.model.compresses_keys,
        "no run of sparse attention in CUDA graphs is known: its backward pass counts valid rows on the CPU",
        "set cuda_graph_impl=none",
        f"{_VARIANT}/dsa_cudnn_kernels.py _run_sparse_attention_backward", told=("cuda_graph_impl",),
    ),
    Rule(
        # a stage that starts on no layer that chooses would need another's choice, and layouts are not bound so
        "indexer-stages", ("pp",), lambda c, p: (c["pp"] == 1) | (not any(x.shared for x in p.model.indexers)),
        "layers that share chosen keys must lie in one stage with the layer that chose them, which planner does not "
        "assign yet", "set pp=1",
        "Megatron-LM core/models/gpt/experimental_attention_variant_module_specs.py "
        "_validate_dsa_index_share_pipeline_split", told=("pp",), unmodelled=True,
    ),
    Rule(
        "compressed-keys-whole", ("tp", "cp"),
        lambda c, p: ((c["tp"] == 1) & (c["cp"] == 1)) | (not p.model.compresses_keys),
        "attention to compressed keys runs with tp=1 and cp=1 alone",
        "set tp=1 and cp=1; experts and stages divide the model",
        "Megatron-Bridge 067f987 examples/models/deepseek_v4/README.md, parallelism configurations", told=("tp", "cp"),
    ),
    Rule(
        # layers that are recomputed are chosen after the kind, so that both columns count
        "streams-recompute", ("recompute", "recompute_layers"),
        lambda c, p: ((c["recompute"] != Recompute.FULL) & (c["recompute_layers"] <= 0)) | (p.model.streams == 1),
        "Megatron-LM recomputes no whole layers with several residual streams",
        "set recompute=none or selective",
        "Megatron-LM core/transformer/transformer_config.py enable_mhc_connections", told=("recompute",),
    ),
)  # fmt: skip
