"""Tables of runs in the columns that `planner validate` reads."""

from __future__ import annotations

import csv
from pathlib import Path

ROW = {
    "source": "mine", "model": "llama-3.1-8b", "cluster": "1x8 h100", "gpus": "8", "seq_len": "8192",
    "global_batch": "64", "precision": "bf16", "stack": "megatron-2024", "tp": "2", "micro_batch": "1", "zero": "1",
    "recompute": "none", "step_time_s": "7.5",
}  # fmt: skip


def written(folder: Path, *rows: dict[str, str], name: str = "runs.csv") -> Path:
    """A file of those rows, with every column that one of them states."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    path = folder / name
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns, restval="")
        table.writeheader()
        table.writerows(rows)
    return path
