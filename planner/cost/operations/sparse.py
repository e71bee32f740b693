"""What does attention over one key for all heads do between its projections: seconds, bytes it keeps and needs?

Of DeepSeek Sparse Attention the indexer's scores of every key before a query, the choice of the best, attention to them
over MLA's one latent key, and the indexer's loss, as Megatron-Core runs them (main of 2026-08,
core/transformer/experimental_attention_variant:
dsa.py, dsa_cudnn_kernels.py, dsa_tilelang_kernels.py, absorbed_mla.py). Its kernels precompute gradients of the loss
ahead, here they are counted behind, where recomputation does not repeat them either: a first pass that keeps nothing
has no loss. DeepSeek-V4's attention to a window and compressed keys is taken to run on the same kernels, over its one
key, though on Megatron-LM's dev branch it has some of its own.

Left out: blocks of keys (`sparse_blocks.py`), projections of queries and keys (`latent.py`, `compressed.py`), the
Hadamard rotation, launches, and what ranks exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from planner.cost.cut import LayerShape
from planner.cost.device.kernels import FP32_SHARE
from planner.cost.operations import pairs
from planner.cost.operations.operation import (
    Amount,
    Gemm,
    Operation,
    Run,
    Shard,
    Weights,
    gemm_flops,
    product,
)
from planner.spec.attention import Attention
from planner.spec.indexer import Indexer, IndexerLoss
from planner.spec.machine.accelerator import Accelerator, Architecture
from planner.spec.precision import Dtype
from planner.spec.stack.kinds import SparseKernel

Quantity = Any  # a float or a float64 column: the same text serves both

# Query heads that a rank's kernels work on at least, the rest zeros (FlashMLA's sparse prefill, cuDNN's score
# recomputation), and share of the 16-bit peak that the forward kernel reaches with so many: 0.56 to 0.64 on H100 and
# H200, 0.25 to 0.28 with 64 heads on B200, over 1,024 to 16,384 queries of 2,048 keys each (ai-dynamo/
# aiconfigurator@095f58a systems/data/*/sparse_attention/sglang/0.5.14/glm5_dsa_attn_module_perf.parquet, kernel
# flash_mla_sparse_fwd). FlashMLA's README has 640 TFLOP/s on H800 and 1,450 on B200 at best, 0.65 of the peak.
HEADS: Final = {Architecture.HOPPER: 64.0, Architecture.BLACKWELL: 128.0}
FORWARD_SHARE: Final = {Architecture.HOPPER: 0.59, Architecture.BLACKWELL: 0.52}
# Of cuDNN's backward kernel: 370 of 989 TFLOP/s on H200 with 64 and with 128 heads and up to 8,192 keys, 637 to 793 of
# 2,500 on GB200 (NVIDIA/cudnn-frontend@07b111f benchmark/dsa/results); its heads are padded to 64 on either.
BACKWARD_HEADS: Final = 64.0
BACKWARD_SHARE: Final = {Architecture.HOPPER: 0.375, Architecture.BLACKWELL: 0.29}
# Of TileLang's: about 100 TFLOP/s on H800, 115 on H200 (tile-ai/tilelang@00a1cee examples/deepseek_v32/README.md, from
# which Megatron-Core's was adapted), taken on Blackwell too. It attends again first, and pads heads to 16. Its forward
# kernel, of which that page times a faster one (600), is taken to be as fast as FlashMLA.
TILELANG_BACKWARD_SHARE: Final = 0.1
TILELANG_HEADS: Final = 16.0
# Share of the 16-bit peak that scoring in 16 bits reaches; unverified. In 8 bits DeepGEMM's kernel reaches 0.44 to 0.48
# of the 8-bit peak of H100 and H200 (the same folder, glm5_mqa_logits_module_perf.parquet), 0.9 of the 16-bit one.
SCORE_SHARE: Final = 0.6
# Share of the bandwidth at which scores are read to choose the best: SGLang's kernel of one pass over 32,768 keys and
# more reaches 0.27 to 0.55 on H100 and H200 (glm5_topk_module_perf.parquet). torch.topk is taken to read six times.
TOP_K_SHARE: Final = 0.4
TORCH_TOP_K_SHARE: Final = TOP_K_SHARE / 6
# Bytes an fp32 score of one head and pair of the indexer is moved by PyTorch: made, rectified, weighed, summed up
# (dsa_cudnn_kernels.py _compute_indexer_scores_chunk_with_global_rows; dsa.py _compute_index_scores).
SCORE_PASSES: Final = 32.0
# Of attention's by PyTorch's fallback (dsa.py _unfused_absorbed_dsa_fn, dsa_masking.py masked_softmax): made, scaled,
# masked three times, its largest subtracted, exponent, divided, in 16 bits; backward twice as many.
DENSE_PASSES: Final = 86.0
# Kept of it: the exponent and the quotient in fp32, three masks, 16-bit weights; alive backward: gradients of the
# three in fp32.
DENSE_KEPT: Final = 13.0
DENSE_WORKING: Final = 12.0
# Of every chosen or scored pair of the loss, in fp32: targets, log-probabilities, their sums and differences.
LOSS_PASSES: Final = 80.0
# fp32 scores are made in parts of so many bytes, and choosing takes as much again (_INDEXER_SCORE_CHUNK_MAX_BYTES,
# _TOPK_WRAPPER_MAX_SCRATCH_BYTES); TileLang's in parts of so many queries (fused_indexer_block_size).
SCORE_CHUNK: Final = 2.0**30
SCORE_ROWS: Final = 8192.0
FP32: Final = 4.0


@dataclass(frozen=True)
class Sight:
    """What a rank's queries see, one value per key. `queries`: of the rank; `keys`: before the last query of a
    sequence; `gathered`: of all its sequences; `scored`: those of `keys` that an indexer scores; `chosen`, `causal`,
    `taught`: pairs attended, scored with a key before the query, and of the loss; `heads`: of the rank.
    `local`: 1 where a rank holds whole sequences, or packed ones, so that
    kernels score in 16 bits."""

    queries: Quantity
    keys: Quantity
    gathered: Quantity
    scored: Quantity
    chosen: Quantity
    causal: Quantity
    taught: Quantity
    heads: Quantity
    local: Quantity


def sight_of(a: Attention, batch: Quantity, seq: Quantity, t: Quantity, c: Quantity, packed: bool) -> Sight:
    """The share of one of t x c ranks: heads dealt over t, queries evenly over c, keys gathered from all of c."""
    each, keys = batch / c, seq + pairs.compressed_keys(a, seq)
    return Sight(
        queries=each * seq,
        keys=keys,
        gathered=batch * keys,
        scored=pairs.scored_keys(a, seq),
        chosen=each * pairs.seen_pairs(a, seq),
        causal=each * pairs.scored_pairs(a, seq),
        taught=each * pairs.taught_pairs(a, seq),
        heads=a.heads / t,
        local=np.where(np.asarray(c) > 1, float(packed), 1.0),
    )


def whole_sight(a: Attention, x: LayerShape) -> Sight:
    """The same of the whole sequences that memory must hold."""
    return sight_of(a, x.tokens * x.c / x.seq_kv, x.seq_kv, x.t, x.c, packed=False)


def kernel_of(run: Run) -> SparseKernel:
    """The stack's kernels."""
    return run.kernels.sparse_attention or SparseKernel.NONE


def index_operations(a: Attention, products: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """An indexer's products, and the scores that it makes of them and learns from."""

    def learning(batch: Quantity, seq: Quantity) -> Quantity:
        projections = sum(gemm_flops(op.product, seq) for op in products if op.product)
        return batch * pairs.indexer_backward_flops(a, projections, seq)

    scores = Operation(
        "indexer", flops=lambda batch, seq: pairs.indexer_flops(a, batch * seq * pairs.scored_keys(a, seq)),
        flops_back=learning,
    )  # fmt: skip
    return (*products, scores)


def indexer(a: Attention, run: Run) -> tuple[Operation, ...]:
    """An indexer of single keys, which no gradient of the model passes: products to queries, to the key, of compressed
    keys with their gates, and to a weight for every head; norms of the key, and biases of gates.

    Every tensor-parallel rank does them for all tokens and has them whole (Megatron-Core,
    experimental_attention_variant/dsa.py DSAIndexer.forward_before_topk gathers what sequence parallelism shards).
    """
    x, c, h = a.indexer, a.compression, run.hidden
    if x is None or x.shared:
        return ()
    keys = 1 if c is None else 2 * c.series
    more = (
        2 * x.head_dim + 2 * (h + x.heads) * x.scaled if c is None else x.head_dim * (c.series * c.rate + 1)
    )

    def projection(name: str, inputs: int, outputs: int, more: int = 0, tensors: int = 0) -> Operation:
        gemm = Gemm(name, inputs, outputs, Shard.REPEATED, detached=True, frozen=not x.trained)
        return product(gemm, "indexer", False, Weights(replicated=more), tensors)

    products = (
        projection("index_q", a.q_lora_rank or h, x.heads * x.head_dim),
        projection("index_k", h, keys * x.head_dim, more, 3 if c else 2 + 4 * x.scaled),
        projection("index_weights", h, x.heads),
    )
    return index_operations(a, products)


def held(a: Attention, run: Run) -> tuple[dict[str, Amount], Amount]:
    """What attention over one key keeps, by part, and has alive in its backward pass."""
    kernel = kernel_of(run)

    def part(name: str) -> Amount:
        def kept(x: LayerShape) -> Quantity:
            gathered = np.where(x.sequence_split > 1, x.tokens * (run.hidden + a.q_lora_rank), 0.0)
            return kept_parts(a, whole_sight(a, x), kernel, run.act, gathered)[name]

        return kept

    def alive(x: LayerShape) -> Quantity:
        return run.act * run.stream(x) + working_bytes(a, whole_sight(a, x), kernel, run.act)

    return {"mla_up_proj": part("mla_up_proj"), "core_attn": part("core_attn")}, alive


def padded(heads: Quantity, least: float) -> Quantity:
    """Heads that a kernel of whole tiles of heads works on [1]."""
    return np.ceil(heads / least) * least


@dataclass(frozen=True)
class Device:
    """What limits the kernels of one stack on one accelerator: peaks in 16 and 32 bits [FLOP/s], bandwidth [bytes/s],
    second-level cache [bytes]."""

    kernel: SparseKernel
    architecture: Architecture
    peak: float
    fp32: float
    bandwidth: float
    cache: float

    @classmethod
    def of(cls, kernel: SparseKernel, chip: Accelerator, peak: float, bandwidth: float) -> Device:
        """`peak`, `bandwidth`: as the rest of the cost takes them."""
        fp32 = dict(chip.peak).get(Dtype.FP32, peak / 16)
        return cls(kernel, chip.architecture, peak, fp32, bandwidth, chip.l2 or 0.0)

    @property
    def fused(self) -> bool:
        return self.kernel is not SparseKernel.NONE

    def share(self, of: dict[Architecture, float]) -> float:
        """A share by architecture; Hopper's where it has none."""
        return of.get(self.architecture, of[Architecture.HOPPER])

    @property
    def least_heads(self) -> float:
        return TILELANG_HEADS if self.kernel is SparseKernel.TILELANG else self.share(HEADS)


def core_flops(a: Attention, heads: Quantity, pairs: Quantity) -> tuple[Quantity, Quantity]:
    """FLOPs of attention to `pairs` queries and keys over the one key of all heads, forward and backward [FLOP].

    Forward 2 a (d + v), d the key's width, v the value's (of MLA r + d_rope and r); backward the scores again and four
    gradients, 2 a (3 d + 2 v).
    """
    latent, value = a.latent_dim, a.latent_value
    return 2.0 * heads * (latent + value) * pairs, 2.0 * heads * (3 * latent + 2 * value) * pairs


def core_time(a: Attention, see: Sight, on: Device) -> tuple[Quantity, Quantity]:
    """Forward and backward seconds of attention to the chosen keys [s].

    Backward adds fp32 gradients of a chosen key at every query: read and written, beside its key, in device memory as
    far as they do not fit the cache. With random choices the law is 1 to 3 % off cuDNN's kernel on H200 from 2,048 to
    32,768 keys (`BACKWARD_SHARE`), of which the last take 1.6 times as long.
    """
    if not on.fused:
        return dense_core_time(a, see, on)
    forward = core_flops(a, padded(see.heads, on.least_heads), see.chosen)[0]
    ahead = forward / (on.share(FORWARD_SHARE) * on.peak)
    tilelang = on.kernel is SparseKernel.TILELANG
    least = TILELANG_HEADS if tilelang else BACKWARD_HEADS
    share = TILELANG_BACKWARD_SHARE if tilelang else on.share(BACKWARD_SHARE)
    behind = core_flops(a, padded(see.heads, least), see.chosen)[1] / (share * on.peak)
    behind = behind + missed_bytes(a, see, on.cache) / on.bandwidth
    return ahead, behind + ahead if tilelang else behind


def missed_bytes(a: Attention, see: Sight, cache: float) -> Quantity:
    """Bytes of keys' fp32 gradients that the backward kernel moves past the cache [bytes].

    2 x 4 (r + d_rope) a pair, times the share of keys and gradients of a sequence that the cache does not hold.
    """
    held = see.keys * a.latent_dim * (FP32 + 2.0)
    return 2.0 * FP32 * a.latent_dim * see.chosen * np.maximum(1.0 - cache / held, 0.0)


def dense_core_time(a: Attention, see: Sight, on: Device) -> tuple[Quantity, Quantity]:
    """The same where PyTorch computes all scores, in fp32, masks all but the chosen, and multiplies in 16 bits [s]."""
    square = see.heads * see.queries * see.keys
    scores = 2.0 * a.latent_dim * square / (FP32_SHARE * on.fp32)
    values = 2.0 * a.latent_value * square / (SCORE_SHARE * on.peak)
    ahead = scores + values + DENSE_PASSES * square / on.bandwidth
    return ahead, 2.0 * ahead


def index_time(x: Indexer, see: Sight, on: Device) -> tuple[Quantity, Quantity]:
    """Seconds of scoring all keys and choosing the best, alike on every tensor-parallel rank, in 16 and in 32 bits [s].

    In 16 bits products of pairs with a key before the query, and fp32 scores of all pairs written. In 32 bits all
    pairs of a head are multiplied, and moved, one head after another.
    """
    square = see.queries * see.scored
    chooses_in_torch = on.kernel is not SparseKernel.CUDNN
    top_k = FP32 * see.causal / ((TORCH_TOP_K_SHARE if chooses_in_torch else TOP_K_SHARE) * on.bandwidth)
    narrow = 2.0 * x.heads * x.head_dim * see.causal / (SCORE_SHARE * on.peak)
    narrow = np.maximum(narrow, FP32 * square / on.bandwidth)
    wide = x.heads * square * (2.0 * x.head_dim / (FP32_SHARE * on.fp32) + SCORE_PASSES / on.bandwidth)
    return narrow + top_k, wide + top_k


def score_time(a: Attention, x: Indexer, see: Sight, on: Device) -> Quantity:
    """The same as the stack's kernels do it [s].

    PyTorch scores in 32 bits; so does the cuDNN backend for ranks of context parallelism whose texts are not packed.
    """
    narrow, wide = index_time(x, see, on)
    if on.kernel is SparseKernel.TILELANG:
        return narrow
    return np.where(on.fused * see.local > 0, narrow, wide)


def loss_time(a: Attention, x: Indexer, see: Sight, on: Device) -> Quantity:
    """Seconds of an indexer's loss and of its gradients with respect to queries, key and weights [s].

    Attention's weights over the pairs of the loss as the target, 2 a (r + d_rope) a pair; scores again and two
    gradients, 6 h_i d_i; passes in fp32. Over all pairs, or in PyTorch, everything is a whole square.
    """
    if not x.trained:
        return 0.0 * see.taught
    if not on.fused or x.loss is IndexerLoss.DENSE:
        square = see.queries * see.scored
        target = see.heads * (2.0 * a.latent_dim / (FP32_SHARE * on.fp32) + LOSS_PASSES / on.bandwidth)
        return 2.0 * square * target + 3.0 * index_time(x, see, on)[1]
    target = 2.0 * padded(see.heads, on.least_heads) * a.latent_dim * see.taught
    target = target / (on.share(FORWARD_SHARE) * on.peak)
    heads = max(float(x.heads), BACKWARD_HEADS)
    graded = 6.0 * heads * x.head_dim * see.taught / (on.share(BACKWARD_SHARE) * on.peak)
    return target + graded + LOSS_PASSES * see.taught / on.bandwidth


def absorbed_bytes(a: Attention, tokens: Quantity, t: Quantity, act: float) -> Quantity:
    """Bytes moved to bring queries to MLA's latent key and attention's outputs back from it, forward [bytes].

    A head's queries read and its products written, copied and joined with the rotated part; outputs read, written and
    copied (absorbed_mla.py qkv_up_proj_and_rope_apply, dsa.py _run_sparse_attention). What the products themselves
    compute is in `kv_b`.
    """
    r, latent = a.kv_lora_rank, a.latent_dim
    queries = a.qk_nope_dim + 3 * r + 2 * latent
    return act * tokens * a.heads / t * (queries + r + 3 * a.v_head_dim)


def compressed_bytes(a: Attention, tokens: Quantity, t: Quantity, act: float) -> Quantity:
    """Bytes moved beside the products of compressed attention, forward [bytes].

    What is compressed and its gates, with those of the indexer, read, rows of keys written; the rotation of the output
    undone, read and written (transformers 5.23 models/deepseek_v4/modeling_deepseek_v4.py).
    """
    assert a.compression is not None
    width = a.head_dim + (0 if a.indexer is None else a.indexer.head_dim)
    compressed = 2.0 * a.compression.series * width + width / max(a.compression.rate, 1)
    return act * tokens * (compressed * (a.compression.rate > 0) + 2.0 * a.heads * a.v_head_dim / t)


def kept_parts(
    a: Attention, see: Sight, kernel: SparseKernel, act: float, gathered: Quantity
) -> dict[str, Quantity]:
    """Bytes that sparse attention keeps for its backward pass, by part [bytes].

    `mla_up_proj`: queries before and after they are brought to the latent key, and that key of all ranks of context
    parallelism. `core_attn`: outputs over it, statistics, which keys were chosen, and gradients of the indexer's loss,
    or its queries and key; `gathered`: values that a rank of sequence parallelism gathers as the indexer's inputs.
    """
    x, rows = a.indexer, see.queries
    queries = act * rows * see.heads * (a.head_dim * (1 + a.scaled) + a.latent_dim)
    core = act * rows * see.heads * a.latent_value
    if kernel is SparseKernel.CUDNN:
        core = core + FP32 * rows * see.heads
    if kernel is SparseKernel.NONE:
        core = (
            core + (DENSE_KEPT * see.heads + FP32) * rows * see.keys + FP32 * rows * see.heads * a.latent_dim
        )
    if x is not None:
        core = core + 4.0 * rows * np.minimum(x.top_k, see.scored)
    if x is not None and x.trained:
        graded = rows * x.heads * (x.head_dim + 1) + see.gathered * see.scored / see.keys * x.head_dim
        core = core + act * (graded + gathered)
    return {"mla_up_proj": queries + act * see.gathered * a.latent_dim, "core_attn": core}


def working_bytes(a: Attention, see: Sight, kernel: SparseKernel, act: float) -> Quantity:
    """Bytes alive at the widest point of sparse attention's backward pass, beside what is kept [bytes].

    Gradients of outputs, queries and the key in fp32, and of padded heads copies of all; or while the loss is computed
    scores in parts, what choosing needs, and ten fp32 or 32-bit values a pair of the loss.
    """
    x = a.indexer
    latent, r = a.latent_dim, a.latent_value
    heads = see.heads
    if kernel is SparseKernel.CUDNN:
        copies = np.where(padded(heads, BACKWARD_HEADS) > heads, padded(heads, BACKWARD_HEADS), 0.0)
    else:
        copies = 0.0 * heads
    gradients = (
        act * see.queries * ((heads + copies) * (latent + r) + copies * r) + FP32 * see.gathered * latent
    )
    if kernel is SparseKernel.NONE:
        square, scored = see.queries * see.keys, see.queries * see.scored
        index = 0.0 if x is None else 3.0 * FP32 * x.heads * (not x.shared)
        return gradients + np.maximum(DENSE_WORKING * heads * square, index * scored)
    if x is None or x.shared:
        return gradients
    rows = np.minimum(see.queries, SCORE_ROWS)
    part = FP32 * rows * see.scored
    scores = 2.0 * (part if kernel is SparseKernel.TILELANG else np.minimum(part, SCORE_CHUNK))
    pairs = see.queries * np.minimum(x.top_k, see.scored)
    if x.loss is IndexerLoss.DENSE:
        pairs = see.queries * see.scored
    loss = 10.0 * FP32 * pairs if x.trained else 0.0 * pairs
    return np.maximum(gradients, scores + loss)
