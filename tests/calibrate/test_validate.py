"""Is a row of a table the question that `planner estimate` answers, and is what was measured compared with it?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import planner
from planner.calibrate.run_questions import QuestionReader
from planner.calibrate.run_table import read_run_table
from planner.calibrate.tables import text_table, total_lines
from planner.calibrate.validate import validate_table
from tests.calibrate.tables import ROW, written

KEYS = {
    "row", "status", "reason", "legal", "step_time_s", "tokens_per_s_per_gpu", "peak_mem_gib", "verdict", "stack",
    "calibration_level", "band", "assumed", "step_time_low_s", "step_time_high_s",
}  # fmt: skip
MODEL = """
layers: 16
hidden: 2048
ffn: 8192
heads: 16
kv_heads: 8
vocab: 32000
gated_mlp: true
"""
MIXTURE = {
    "model": "qwen3-30b-a3b",
    "gpus": "64",
    "cluster": "8x8 h100 400G-ib",
    "global_batch": "512",
    "tp": "1",
}


def rows_of(folder: Path, *rows: dict[str, str]) -> list[dict[str, Any]]:
    return validate_table(written(folder, *rows)).document()["rows"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tp": "1", "zero": "3", "stack": "torchtitan-2024+no-compile"},
        {"cp": "2", "recompute": "full", "recompute_layers": "8", "seq_len": "32768"},
        {"tp": "", "pp": "4", "layout": "8,8,8,8"},
        {"tp": "", "pp": "4", "vpp": "2", "layout": "3,4,4,4,4,4,4,5"},
        {**MIXTURE, "ep": "8", "precision": "fp8_cs", "bf16_layers": "1,1", "stack": "megatron-2026"},
        {**MIXTURE, "ep": "4", "expert_loads": "zipf:0.5", "stack": "megatron-2026+deepep"},
        {"tp": "1", "lora_rank": "16", "frozen_bits": "4", "lora_targets": "attention"},
        {"mean_len": "1024", "packed": "true", "stack": "megatron-2026"},
        {"stack": "", "precision": "", "optimizer": "adamw-8bit"},
        {"tp": "1", "recompute_modules": "core_attn+mlp", "recompute": "selective", "stack": "megatron-2026"},
    ],
    ids=lambda changes: " ".join(f"{k}={v}" for k, v in changes.items()) or "plain",
)
def test_a_row_is_what_an_estimate_answers(tmp_path: Path, changes: dict[str, str]) -> None:
    row = {**ROW, **changes}
    (found,) = rows_of(tmp_path, row)
    assert found["status"] == "ok", found["reason"]
    axes = ("tp", "pp", "cp", "vpp", "ep", "micro_batch", "zero", "recompute", "recompute_layers",
            "recompute_modules", "layout")  # fmt: skip
    whole = {"lora_rank", "frozen_bits"}
    options = {
        name: int(row[name]) if name in whole else float(row[name]) if name == "mean_len" else row[name]
        for name in ("precision", "optimizer", "stack", "bf16_layers", "expert_loads", "lora_rank", "frozen_bits",
                     "lora_targets", "mean_len")
        if row.get(name)
    }  # fmt: skip
    asked = planner.estimate(
        row["model"], row["cluster"], gpus=int(row["gpus"]), seq_len=int(row["seq_len"]),
        global_batch=int(row["global_batch"]), packed=bool(row.get("packed")),
        set={a: row[a] if not row[a].isdigit() else int(row[a]) for a in axes if row.get(a)}, **options,
    )  # fmt: skip
    (choice,) = asked.choices
    assert found["step_time_s"] == pytest.approx(choice.step_time, rel=1e-9)
    assert found["peak_mem_gib"] * 2**30 == pytest.approx(choice.memory.logged, rel=1e-9)
    assert found["tokens_per_s_per_gpu"] == pytest.approx(choice.tokens_per_second_per_device, rel=1e-9)
    assert found["stack"] == choice.stack
    assert found["band"] == pytest.approx(asked.confidence.band)
    assert found["step_time_high_s"] == pytest.approx(choice.step_time_high)
    assert set(found) == KEYS


def test_files_lie_beside_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.yaml").write_text(MODEL)
    (tmp_path / "ours.yaml").write_text(
        "extends: megatron-2024\nname: ours\ndescription: d\nreleased: 2024-06\nsource: s\ncompute: {attention: 3.0}\n"
    )
    monkeypatch.chdir(Path(__file__).parent)
    small = {**ROW, "model": "models/small.yaml"}
    own, ours, none = rows_of(
        tmp_path, small, {**small, "stack": "ours.yaml"}, {**small, "model": "models/none.yaml"}
    )
    assert (own["status"], own["reason"]) == ("ok", "")
    assert (ours["stack"], ours["calibration_level"]) == ("ours", "L0")
    assert none["status"] == "unsupported"
    assert "models/none.yaml" in none["reason"]


def test_a_row_that_cannot_be_answered_costs_no_other_its_answer(tmp_path: Path) -> None:
    table = written(
        tmp_path, {**ROW, "model": "nobody"}, {**ROW, "tp": "3"}, {**ROW, "dp": "2"}, {**ROW, "micro_batch": "3"},
        {**ROW, "pp": "8", "tp": "1", "gpus": "8", "ep": "2"}, {**ROW, "precision": "nvfp4"}, ROW,
    )  # fmt: skip
    validation = validate_table(table)
    assert [row["status"] for row in validation.rows] == ["unsupported", *["ok"] * 4, "unsupported", "ok"]
    assert [row["legal"] for row in validation.rows] == [None, *[False] * 4, None, True]
    for row, said in zip(
        validation.rows, ("nobody", "tp", "4 of 8 devices", "micro_batch 3", "ep 2", "fp4"), strict=False
    ):
        assert said in row["reason"]
        assert row["step_time_s"] is None
        assert row["step_time_low_s"] is None
    text = text_table(validation.summary, total_lines(validation.summary))
    assert "7 rows: 5 ok, 2 unsupported" in text
    assert "rows without figures:" in text


def test_equal_questions_are_one_problem(tmp_path: Path) -> None:
    rows = read_run_table(written(tmp_path, ROW, {**ROW, "tp": "4"}, {**ROW, "seq_len": "4096"}))
    reader = QuestionReader(tmp_path)
    first, second, other = (reader.read(row).problem for row in rows)
    assert first is second
    assert other is not first


def test_what_was_measured_is_compared(tmp_path: Path) -> None:
    rate = {**ROW, "step_time_s": "", "tokens_per_s_per_gpu": str(8192 * 64 / 8 / 7.5)}
    flops = {**ROW, "step_time_s": "", "tflops_per_gpu": "400", "flops_kind": "causal_half"}
    memory = {**ROW, "step_time_s": "", "peak_mem_gib": "60"}
    failed = {**ROW, "tp": "1", "step_time_s": "", "peak_mem_gib": "79", "outcome": "oom"}
    validation = validate_table(written(tmp_path, ROW, rate, flops, memory, failed))
    summary = validation.summary
    assert [w["measured_s"] for w in summary["worst"]].count(7.5) >= 1
    assert summary["sources"]["mine"]["step_time_dense"]["rows"] == 3
    assert summary["memory"]["rows"] == 1, "what was allocated when memory ran out is no peak"
    assert summary["oom"]["failures"] == 1
    assert any("400 TFLOP/s per GPU at" in said for said in validation.rows[2]["assumed"])
    first, second = (row["step_time_s"] for row in validation.rows[:2])
    assert first == second


def test_predictions_read_nothing_measured(tmp_path: Path) -> None:
    stated = {
        **ROW,
        "notes": "OOM with tp=8",
        "outcome": "oom",
        "source_ref": "megatron",
        "peak_mem_gib": "3",
    }
    measured, bare = rows_of(tmp_path, stated, {k: v for k, v in ROW.items() if k != "step_time_s"})
    assert measured | {"row": 1} == bare


def test_tflops_of_adapters_give_no_step_time(tmp_path: Path) -> None:
    row = {
        **ROW,
        "step_time_s": "",
        "tp": "1",
        "lora_rank": "16",
        "tflops_per_gpu": "400",
        "flops_kind": "palm",
    }
    validation = validate_table(written(tmp_path, row))
    assert [list(rows) for rows in validation.summary["unread_flops"].values()] == [[0]]
    assert "gives no step time" in text_table(validation.summary, total_lines(validation.summary))
