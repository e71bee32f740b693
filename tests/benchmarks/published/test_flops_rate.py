"""Step times from TFLOP/s, each convention counted as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.published.runs import read_rows
from benchmarks.published.summary import published_lines
from benchmarks.published.validate import predict_rows, validate_rows, validation_answers
from planner.calibrate.tables import text_table
from tests.benchmarks.rows import MODELS, ROW

# "small" by hand: q and output 2 x 4096 x 4096, k and v 2 x 4096 x 1024, MLP 3 x 4096 x 14336, 32 layers, head
_LAYERS = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
_HEAD = 4096 * 128256
_SQUARE = 32 * 4 * 8192 * 4096  # forward FLOPs per token of attention over the full square
_NORMS = (2 * 32 + 1) * 4096
_TOKENS = 128 * 8192 / 64  # of a step on one device


def _step(kind: str, recompute: str = "none", **cells: str) -> float | None:
    row = {**ROW, "recompute": recompute, "tflops_per_gpu": "400", "flops_kind": kind, **cells}
    return validation_answers([row], MODELS)[0].measured.step_time


@pytest.mark.parametrize(
    ("kind", "flops"),
    [
        ("6n", 6 * (_LAYERS + 2 * _HEAD + _NORMS)),
        ("torchtitan", 6 * (_LAYERS + _HEAD + _NORMS) + 3 * _SQUARE),
        ("full_square", 6 * (_LAYERS + _HEAD) + 3 * _SQUARE),
        ("causal_half", 6 * (_LAYERS + _HEAD) + 1.5 * _SQUARE),
    ],
)
def test_model_flops_are_those_of_the_convention(kind: str, flops: float) -> None:
    assert _step(kind) == pytest.approx(flops * _TOKENS / 400e12, rel=1e-9)
    assert _step(kind, "full") == _step(kind), "recomputation is not among model FLOPs"


@pytest.mark.parametrize(
    ("recompute", "again"),
    [
        ("none", 0.0),
        ("full", 2 * _LAYERS + _SQUARE),
        ("full:4", _LAYERS / 2 + _SQUARE / 4),
        ("core_attn", _SQUARE),
    ],
)
def test_hardware_flops_count_what_is_recomputed(recompute: str, again: float) -> None:
    """Two stages of 16 layers: 4 of each are a quarter."""
    flops = 6 * (_LAYERS + _HEAD) + 3 * _SQUARE + again
    assert _step("hardware_full_square", recompute) == pytest.approx(flops * _TOKENS / 400e12, rel=1e-9)


def test_a_stated_step_or_rate_comes_first() -> None:
    assert _step("6n", step_time_s="10") == 10
    assert _step("6n", tokens_per_s_per_gpu="1638.4") == pytest.approx(10)


def test_tokens_a_second_are_read_by_either_name(tmp_path: Path) -> None:
    table, cells = tmp_path / "runs.csv", {**ROW, "tokens_per_second_per_gpu": "1638.4"}
    table.write_text("\n".join((",".join(cells), ",".join(cells.values()))))
    assert validation_answers(read_rows(table), MODELS)[0].measured.step_time == pytest.approx(10)


@pytest.mark.parametrize(
    ("kind", "cells", "said"),
    [
        ("", {}, "flops_kind"),
        ("model", {}, "flops_kind"),
        ("hardware", {}, "flops_kind"),
        ("hardware_causal_half", {"recompute": "mlp"}, "attention core"),
        ("full_square", {"extras": "LoRA rank 16"}, "adapters"),
    ],
)
def test_what_cannot_be_counted_is_named_and_not_compared(
    kind: str, cells: dict[str, str], said: str
) -> None:
    row = {**ROW, "tflops_per_gpu": "400", "flops_kind": kind, **cells}
    summary = validate_rows([row], MODELS).summary
    assert [list(rows) for rows in summary["unread_flops"].values()] == [[0]]
    told = text_table(summary, published_lines(summary))
    assert "tflops_per_gpu of 1 row gives no step time" in told
    assert said in next(iter(summary["unread_flops"]))
    assert summary["step_time_dense"] is None


def test_the_conversion_is_said_and_the_prediction_does_not_read_it() -> None:
    row = {**ROW, "tflops_per_gpu": "400", "flops_kind": "causal_half"}
    output = validate_rows([row], MODELS).document()["rows"][0]
    assert any("400 TFLOP/s per GPU at" in said and "causal_half" in said for said in output["assumed"])
    assert predict_rows([row], MODELS) == predict_rows([ROW], MODELS)
