"""Do published rows in the columns of `planner validate` ask the same as in free text?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.published.runs import read_models, read_rows
from benchmarks.published.validate import predict_rows
from benchmarks.published_data import published
from benchmarks.strict_table import TABLE, Converted, converted, write
from planner.calibrate.run_table import read_run_table
from planner.calibrate.validate import validate_table
from tests.benchmarks.rows import MODELS, ROW

NAMED = {**ROW, "source_ref": "a page", "notes": "", "extras": ""}


def check_same(
    found: Converted, rows: Sequence[dict[str, str]], models: Mapping[str, Any], folder: Path
) -> None:
    """Hold what the strict reader predicts, from the files alone, against what free text is read as."""
    write(folder, list(found.kept.values()), found.files)
    strict = validate_table(folder / TABLE).rows
    free = predict_rows([rows[index] for index in found.kept], models)
    for name in ("step_time_s", "peak_mem_gib"):
        assert [row[name] for row in strict] == pytest.approx([row[name] for row in free], rel=1e-9)


def test_a_row_becomes_options_and_files(tmp_path: Path) -> None:
    experts = {"model": "moe", "tp": "1", "pp": "1", "dp": "64", "ep": "8"}
    rows = [
        {**NAMED, "step_time_s": "10", "notes": "a remark"},
        {**NAMED, "internode": "IB 8x200G", "precision": "fp8", "tp": "8.0", "dp": "4.0", "notes": "OOM"},
        {**NAMED, **experts, "extras": "deepep; no communication overlap", "recompute": "full"},
        {**NAMED, "nvlink_domain": "4", "tokens_per_s_per_gpu": "1000"},
        {**NAMED, "framework": "nanotron", "tp": "1", "pp": "64", "dp": "1"},
        {**NAMED, "gpu": "h900"},
    ]  # fmt: skip
    found = converted(rows, MODELS)
    assert list(found.kept) == [0, 1, 2, 3]
    assert sum(found.reasons.values()) == 2
    first, second, third, fourth = found.kept.values()
    assert (first["cluster"], first["model"]) == ("8x8 h100-sxm-80g 400G-ib", "models/small.yaml")
    assert (first["step_time_s"], first["recompute"], first["zero"], first["sp"]) == (
        "10.0",
        "none",
        "1",
        "1",
    )
    assert (second["cluster"], second["outcome"]) == ("8x8 h100-sxm-80g 200G-ib", "oom")
    assert (third["stack"].startswith("stacks/"), third["recompute_layers"]) == (True, "4")
    assert fourth["cluster"].startswith("clusters/")
    check_same(found, rows, MODELS, tmp_path)
    assert [set(row.cells) for row in read_run_table(tmp_path / TABLE)] == [
        set(c) for c in found.kept.values()
    ]


def test_rows_that_convert_are_predicted_as_in_free_text(tmp_path: Path) -> None:
    rows = read_rows(published("measured/runs.csv"))[::15]
    models = read_models(published("measured/models.json"))
    found = converted(rows, models)
    assert len(found.kept) + sum(found.reasons.values()) == len(rows)
    others = sum(row["source"] != "vtrain_single" for row in rows)  # sums of profiles, which nothing runs
    assert len(found.kept) > 0.85 * others
    check_same(found, rows, models, tmp_path)
