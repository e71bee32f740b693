"""What multi-token-prediction modules add to the last stage, by hand: layers, heads, losses, what they share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.model import CostModel
from planner.cost.table import CostDetail
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.stack.losses import PASSES_BYTES
from tests.problems import costs, dense_model, problem

HIDDEN, VOCAB, TOKENS = 2048, 32000, 4096
ROW = ParallelConfig(tp=2, sp=1, pp=2, dp=2, micro_batch=1, num_microbatches=8, zero=1)


def model_of(modules: int) -> CostModel:
    spec = replace(dense_model(8, HIDDEN, vocab=VOCAB), mtp_layers=modules)
    return costs(problem(spec, "1x8 h100", stack="megatron-2026", global_batch=16))


def detail_of(modules: int) -> CostDetail:
    detail = model_of(modules).evaluate(ConfigTable.of([ROW]), keep_terms=True).detail
    assert detail is not None
    return detail


def test_a_layer_a_projection_and_norms_are_held_more_and_the_embedding_once() -> None:
    plain, more = (float(detail_of(n).memory["optimizer"]["weights"][0].sum()) for n in (0, 2))
    layer = (2 * HIDDEN**2 + 2 * HIDDEN * 1024 + 3 * HIDDEN * 7168) / 2 + 2 * HIDDEN
    embedding = VOCAB * HIDDEN / 2
    each = layer + 2 * HIDDEN**2 / 2 + 3 * HIDDEN
    assert more - plain == pytest.approx(2 * (2 * each + embedding))


def test_every_module_has_a_loss_of_its_own() -> None:
    """24 bytes a logit of half the vocabulary, and 8 a value of half the stream for its embedding."""
    keys = ConfigTable.of([ROW])
    found = [model_of(n).layers.edges(keys) for n in (0, 1, 2)]
    loss = [float((edge.head - edge.head_gemm)[0]) for edge in found]
    assert found[2].head_gemm[0] - found[1].head_gemm[0] == pytest.approx(
        found[1].head_gemm[0] - found[0].head_gemm[0]
    )
    rates = model_of(0).layers.rates
    moved = PASSES_BYTES * TOKENS * VOCAB / 2 + 8 * 2 * TOKENS * HIDDEN / 2
    least = moved / rates.bandwidth * rates.problem.stack.compute.memory_bound
    assert loss[2] - loss[1] >= 0.99 * least
    assert loss[1] - loss[0] >= 0.99 * least
