"""Are runs of transformers asked about as they ran, and judged by what they measured?"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.device_runs import errors, judged, question_of, section
from benchmarks.published_data import beside, published
from planner.answer.estimate import make_estimate
from planner.ask.request import resolve
from planner.spec.config import Recompute
from planner.spec.stack.kinds import AttentionKernel
from planner.units import GIB


def rows() -> list[dict[str, str]]:
    with published("device/transformers_one_gpu.csv").open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_every_setting_of_a_run_is_asked_about(tmp_path: Path) -> None:
    for row in rows():
        request = question_of(row, beside("device/configs"), tmp_path)
        problem, _ = resolve(request)
        stack, model, job = problem.stack, problem.model, problem.job
        wide = row["weights"].startswith("fp32")
        assert (stack.engine.master, stack.engine.gradient) == ((4.0, 4.0) if wide else (0.0, 2.0))
        assert stack.engine.pure_bf16 is not wide
        assert (stack.kernels.attention is AttentionKernel.EAGER) == (row["attention"] == "eager")
        assert stack.kernels.code.single == (row["compile"] == "False")
        assert (stack.engine.optimizer_transient > 0) == (row["adamw"] == "foreach")
        assert (stack.host.expert_launch > 0) == (row["experts"] == "eager")
        assert (request.restrict.get("recompute") == (int(Recompute.FULL),)) == (
            row["checkpointing"] == "True"
        )
        assert job.lora_rank == (int(float(row["lora_rank"])) if row["lora_rank"] else None)
        assert job.global_batch == int(row["micro_batch"]) * int(row["grad_accumulation"])
        assert (job.seq_len, problem.cluster.num_devices) == (int(row["seq_len"]), 1)
        assert not row["layers"] or model.num_layers == int(float(row["layers"]))


def test_a_prediction_reads_nothing_that_was_measured(tmp_path: Path) -> None:
    measured = ("step_s", "peak_allocated_gib", "peak_reserved_gib", "oom")
    (tmp_path / "as").mkdir()
    (tmp_path / "other").mkdir()
    for row in rows()[:6]:
        found = judged(row, beside("device/configs"), tmp_path / "as")
        other = judged(
            row | dict.fromkeys(measured[:3], "7.0") | {"oom": "False"},
            beside("device/configs"),
            tmp_path / "other",
        )
        assert (found.step, found.allocated, found.reserved, found.verdict) == (
            other.step, other.allocated, other.reserved, other.verdict
        )  # fmt: skip


def test_what_is_reserved_leaves_out_what_lies_outside_the_allocator(tmp_path: Path) -> None:
    row = rows()[0]
    (choice,) = make_estimate(question_of(row, beside("device/configs"), tmp_path)).choices
    (tmp_path / "again").mkdir()
    outside = choice.memory.peak - judged(row, beside("device/configs"), tmp_path / "again").reserved
    assert outside == pytest.approx(float(row["outside_allocator_gib"]) * GIB, rel=0.05)


def test_failures_count_in_verdicts_alone(tmp_path: Path) -> None:
    chosen = [row for row in rows() if row["oom"] == "True"][:2] + rows()[:4]
    found = [judged(row, beside("device/configs"), tmp_path) for row in chosen]
    assert len(errors(found, "step", "measured_step")) == sum(row["oom"] == "False" for row in chosen)
    assert " of 2 recorded failures" in section(found, "transformers-2026")
