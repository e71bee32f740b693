"""Predictions of published rows, their statistics, and what they may not read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.accuracy import main
from benchmarks.published.measured import group_of, measurement_of
from benchmarks.published.runs import INPUT_COLUMNS, read_models, read_rows
from benchmarks.published.summary import markdown_table, mean_with_nanotron_apart, published_lines
from benchmarks.published.validate import predict_rows, validate_rows
from benchmarks.published_data import published
from benchmarks.results_file import section_of, with_section
from planner.calibrate.tables import text_table
from tests.benchmarks.rows import MODELS, ROW

KEYS = {
    "row", "status", "reason", "legal", "step_time_s", "tokens_per_s_per_gpu", "peak_mem_gib", "verdict", "stack",
    "calibration_level", "step_time_low_s", "step_time_high_s",
}  # fmt: skip


def test_a_row_is_answered_with_all_keys() -> None:
    row = {**ROW, "step_time_s": "10", "peak_mem_gib": "40"}
    output = validate_rows([row], MODELS).document()["rows"][0]
    assert set(output) >= KEYS
    assert (output["status"], output["legal"]) == ("ok", True)
    assert 0 < output["step_time_low_s"] < output["step_time_s"] < output["step_time_high_s"]
    tokens = 8192 * 128 / output["step_time_s"] / 64
    assert output["tokens_per_s_per_gpu"] == pytest.approx(tokens)
    assert output["verdict"] in ("fits", "borderline", "does_not_fit")


def test_rows_keep_their_order_and_none_raises() -> None:
    rows = [ROW, {**ROW, "model": "nobody"}, {**ROW, "tp": "8", "dp": "4"}, {}, {**ROW, "gpu": "h900"}]
    outputs = predict_rows(rows, MODELS)
    assert [output["row"] for output in outputs] == [0, 1, 2, 3, 4]
    assert [output["status"] for output in outputs] == [
        "ok",
        "unsupported",
        "ok",
        "unsupported",
        "unsupported",
    ]
    assert all(output["reason"] for output in outputs if output["status"] != "ok")


@pytest.mark.parametrize(
    ("gpu", "precision"),
    [("a100_sxm_80g", "fp8"), ("mi250x", "fp8"), ("h100_sxm_80g", "nvfp4"), ("mi355x", "nvfp4")],
)
def test_a_format_that_the_device_lacks_costs_no_file_its_rows(gpu: str, precision: str) -> None:
    """Of a source that no stack was fitted on, whose band asks the cost model."""
    new = {**ROW, "source": "somebody_2031"}
    lacking, other = predict_rows([{**new, "gpu": gpu, "precision": precision}, new], MODELS)
    assert (lacking["status"], lacking["band"]) == ("unsupported", None)
    assert precision.removeprefix("nv") in lacking["reason"]
    assert (other["status"], other["band"] is not None) == ("ok", True)


def test_a_band_that_cannot_be_told_leaves_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> float:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr("benchmarks.published.validate.band_of_row", broken)
    monkeypatch.setattr("benchmarks.published.validate.step_of_rate", broken)
    validation = validate_rows([{**ROW, "tflops_per_gpu": "400"}], MODELS)
    assert validation.rows[0]["step_time_s"] > 0
    assert validation.rows[0]["band"] is None


def test_an_impossible_pipeline_is_answered_with_its_rule() -> None:
    row = {**ROW, "framework": "nanotron", "tp": "1", "pp": "64", "dp": "1"}
    output = predict_rows([row], MODELS)[0]
    assert (output["status"], output["legal"], output["verdict"]) == ("ok", False, "does_not_fit")
    assert output["step_time_s"] is None
    assert output["reason"].startswith("stages-filled")


@pytest.mark.parametrize(
    ("framework", "sharding"),
    [
        ("PyTorch FSDP", "zero3"),
        ("DeepSpeed", "zero1"),
        ("Composer", "zero3"),
        ("transformers + accelerate", "zero3"),
        ("GPT-NeoX", "zero1"),
        ("Megatron-LM (2022)", "zero1"),
    ],
)
def test_experts_dealt_on_a_stack_that_deals_none_are_answered(framework: str, sharding: str) -> None:
    """Of such runs only that ep divides the experts is asked."""
    row = {
        **ROW,
        "model": "moe",
        "tp": "1",
        "pp": "1",
        "dp": "64",
        "framework": framework,
        "dp_sharding": sharding,
    }
    dealt, three = predict_rows([{**row, "ep": "8"}, {**row, "ep": "3"}], MODELS)
    assert dealt["legal"]
    assert dealt["step_time_s"] > 0
    assert any("deals no experts over ep=8" in said for said in dealt["assumed"])
    assert not three["legal"]
    assert "ep must divide the experts" in three["reason"]


def test_rows_that_break_a_rule_are_counted_apart_with_their_reason() -> None:
    """One answered, one that breaks a rule and failed, as that says, and two that break it and ran."""
    broken = {**ROW, "framework": "nanotron", "tp": "1", "pp": "64", "dp": "1"}
    failed, ran = {**broken, "notes": "FAILED crashed"}, {**broken, "step_time_s": "10"}
    validation = validate_rows([{**ROW, "step_time_s": "10"}, failed, ran, ran], MODELS)
    summary = validation.summary
    assert summary["status"] == {"ok": 4}
    assert summary["illegal"] == {"rows": 3, "failed": 1, "ran": 2}
    assert summary["answered"] == 2
    table = text_table(summary, published_lines(summary))
    assert "4 rows: 4 ok" in table
    assert "3 of " in table.split("rows without figures:")[1]
    assert "stages-filled" in table


def test_an_internal_error_becomes_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr("planner.calibrate.predict.evaluated", broken)
    output = predict_rows([ROW], MODELS)[0]
    assert output["status"] == "failed"
    assert "broken" in output["reason"]


def test_measured_step_time_and_failures() -> None:
    row = {"global_batch": "128", "seq_len": "8192", "gpus": "64", "tokens_per_s_per_gpu": "1024"}
    assert measurement_of(row).step_time == 16
    assert measurement_of({**row, "step_time_s": "3"}).step_time == 3
    assert measurement_of({"notes": "OOM; x", "peak_mem_gib": "58"}).oom
    assert measurement_of({"notes": "OOM; x", "peak_mem_gib": "58"}).peak_memory is None, (
        "allocated when it failed"
    )
    failed = measurement_of({"notes": "FAILED crashed/oom (source does not distinguish)"})
    assert (failed.failed, failed.told_apart, failed.ran) == (True, False, False)
    assert group_of({"source": "u", "framework": "nanotron", "gpus": "256"}) == "u (above 128 GPUs)"


def test_the_tail_of_the_nanotron_sweep_stands_apart() -> None:
    def source(median: float, p90: float, rows: int = 9) -> dict[str, object]:
        return {"judged": True, "time": {"rows": rows, "median": median, "p90": p90, "bias": 0.0}}

    sources = {"a": source(0.02, 0.1), "ultrascale_playbook": source(0.04, 0.6), "few": source(0.9, 0.9, 4)}
    means = mean_with_nanotron_apart(sources, "time")
    assert means is not None
    assert (means["sources"], means["median"], means["p90"], means["p90_nanotron"]) == (2, 0.03, 0.1, 0.6)


def test_out_of_memory_counts_borderline_half() -> None:
    rows = [{**ROW, "step_time_s": "10"}, {**ROW, "tp": "1", "pp": "1", "dp": "64", "dp_sharding": "none",
            "sequence_parallel": "", "micro_batch": "2", "notes": "OOM"}]  # fmt: skip
    oom = validate_rows(rows, MODELS).summary["oom"]
    assert oom == {"failures": 1, "ran": 1, "precision": 1.0, "recall": 1.0, "false_fits": 0.0}


def test_tables_and_results_file() -> None:
    rows = [{**ROW, "micro_batch": m, "step_time_s": t} for m, t in zip("124", ("10", "9", "8"), strict=True)]
    summary = validate_rows(rows * 2, MODELS).summary
    assert "bench_24.11" in text_table(summary, published_lines(summary))
    begin, end, table = (
        "<!-- accuracy:begin -->",
        "<!-- accuracy:end -->",
        markdown_table(summary, "2026-01-01"),
    )
    for old in ("", "old\n"):
        text = with_section(f"before\n{begin}\n{old}{end}\nafter\n", "accuracy", table)
        assert text == f"before\n{begin}\n{table}\n{end}\nafter\n"
        assert section_of(text, "accuracy") == table
    with pytest.raises(ValueError, match="speed:begin"):
        with_section(text, "speed", table)


def test_command_writes_json_and_refuses_bad_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, models, out = tmp_path / "runs.csv", tmp_path / "models.json", tmp_path / "out.json"
    runs.write_text(",".join(ROW) + "\n" + ",".join(ROW.values()) + "\n")
    models.write_text(json.dumps(MODELS))
    assert main([str(runs), str(models), "--json", str(out)]) == 0
    assert json.loads(out.read_text())["summary"]["rows"] == 1
    assert main([str(tmp_path / "none.csv"), str(models)]) == 2
    assert "none.csv" in capsys.readouterr().err


def test_predictions_read_nothing_measured() -> None:
    rows = read_rows(published("measured/runs.csv"))[::9]
    models = read_models(published("measured/models.json"))
    hidden = [name for name in rows[0] if name not in INPUT_COLUMNS]
    assert {"source_ref", "split", "notes", "step_time_s", "mfu", "peak_mem_gib"} <= set(hidden)
    other = [{**row, **{name: rows[i - 1][name] for name in hidden}} for i, row in enumerate(rows)]
    blank = [{**row, **dict.fromkeys(hidden, "")} for row in rows]
    expected = predict_rows(rows, models)
    assert predict_rows(other, models) == expected
    assert predict_rows(blank, models) == expected


@pytest.mark.slow
def test_published_runs_are_answered_within_the_error_band() -> None:
    rows, models = read_rows(published("measured/runs.csv")), read_models(published("measured/models.json"))
    validation = validate_rows(rows, models)
    status = validation.summary["status"]
    assert status.get("failed", 0) == 0
    assert validation.summary["answered"] >= 0.97 * validation.summary["rows"]
    assert validation.summary["headline_dense"]["median"] <= 0.20


def test_experts_on_more_ranks_than_there_are_are_answered() -> None:
    """Published rows that state expert parallelism over ranks of other pipeline stages."""
    cells = {"tp": "1", "cp": "1", "pp": "8", "dp": "3", "ep": "4", "gpus": "24", "global_batch": "96"}
    mixture = {"moe": {"experts": 8, "top_k": 2, "expert_ffn": 2048}}
    models = {**MODELS, "experts": {**next(iter(MODELS.values())), **mixture}}
    (found,) = predict_rows([{**ROW, **cells, "model": "experts", "micro_batch": "1"}], models)
    assert found["status"] == "ok", found["reason"]
