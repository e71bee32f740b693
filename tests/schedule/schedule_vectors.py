"""Rows of schedule_vectors.csv: makespans and in-flight counts of action lists from real implementations."""

from __future__ import annotations

from benchmarks.published_data import published_cases

ROWS = published_cases("oracles/schedule_vectors.csv")
RECORDED = [row for row in ROWS if row["schedule"].startswith("sail-")]  # orders searched for, not fixed
FIXED = [row for row in ROWS if row not in RECORDED]


def label(row: dict[str, str]) -> str:
    keys = ("schedule", "pp", "vpp", "microbatches", "b", "comm", "fb", "opts")
    return "-".join(row[key] for key in keys)
