"""What did a published row measure? The only place that reads measured columns and notes.

Left out: MFU and TFLOPS, which follow each framework's own convention.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.published.cells import THOUSANDS, quantity
from planner.calibrate.measured import Measurement
from planner.units import GB, GIB

Row = Mapping[str, str]

# Papers whose measurements, not only settings, are quoted from memory: listed, not judged.
FROM_MEMORY: Final = ("korthikanti2022", "megascale_paper", "mt_nlg_530b")
# Above this many devices most nanotron runs are in a slow mode that nothing in the row announces.
NANOTRON_DEVICES: Final = 128
_EMPTY: Final = ("", "na", "n/a", "none", "null", "nan", "-")
_LEAST, _MOST = 1e-9, 1e15  # of any cell, in its unit


@dataclass(frozen=True)
class PublishedMeasurement(Measurement):
    """What a row measured. What a run had allocated when it ran out of memory is less than its peak, and none."""

    told_apart: bool = False  # a note explains that its failure was none of memory


def number_of(row: Row, name: str) -> float | None:
    """A cell above 0, commas between thousands left out; None for anything else."""
    try:
        value = float(THOUSANDS.sub("", row.get(name) or ""))
    except ValueError:
        return None
    return value if _LEAST < value < _MOST else None


def unread_cells(row: Row) -> tuple[str, ...]:
    """Columns whose cell is neither empty nor a number above 0, and so compared with nothing."""
    return tuple(
        name
        for name in ("step_time_s", "tokens_per_s_per_gpu", "peak_mem_gib")
        if (row.get(name) or "").strip().lower() not in _EMPTY and number_of(row, name) is None
    )


def measurement_of(row: Row) -> PublishedMeasurement:
    """The step time as published, else global batch x sequence length / (tokens/s per device x devices)."""
    step, rate = number_of(row, "step_time_s"), number_of(row, "tokens_per_s_per_gpu")
    batch, length, gpus = (quantity(row.get(name) or "") for name in ("global_batch", "seq_len", "gpus"))
    if step is None and rate is not None and batch and length and gpus:
        step = batch * length / (rate * gpus)
    peak, notes = number_of(row, "peak_mem_gib"), (row.get("notes") or "").strip()
    # Megatron-Bridge logs bytes / 1e9 (training/utils/train_utils.py, report_memory): published as printed
    unit = GB if "bridge" in (row.get("framework") or "").lower() else GIB
    crashed = notes.startswith("FAILED")
    told = crashed and not re.match(r"FAILED crashed/oom \(source does not distinguish\)\s*$", notes)
    oom = notes.startswith("OOM")
    return PublishedMeasurement(step, peak * unit if peak and not oom else None, oom, crashed, told)


def group_of(row: Row) -> str:
    """The source, with nanotron's large runs apart."""
    source = (row.get("source") or "").strip() or "no source"
    devices = number_of(row, "gpus") or 0
    if "nanotron" in (row.get("framework") or "").lower() and devices > NANOTRON_DEVICES:
        return f"{source} (above {NANOTRON_DEVICES} GPUs)"
    return source


def is_judged(group: str) -> bool:
    """Whether a group's measurements are good enough to hold planner against them."""
    return group not in FROM_MEMORY and not group.endswith(f"(above {NANOTRON_DEVICES} GPUs)")


def sweep_of(row: Row) -> tuple[str, ...]:
    """What the rows of one sweep share: everything but how the work is divided."""
    kernel = re.search(r"kernel=([^;]*)", row.get("extras") or "")
    names = ("source", "model", "gpu", "gpus", "seq_len", "global_batch", "precision")
    return (*((row.get(name) or "").strip() for name in names), kernel[1].strip() if kernel else "")
