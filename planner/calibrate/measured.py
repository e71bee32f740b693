"""What was measured of a run?

Left out: how a file states it (`run_table.py`), and TFLOP/s, which follow a convention each (`flops_rate.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """What one run measured, None where nobody says."""

    step_time: float | None  # [s]
    peak_memory: float | None  # of the stack's own counter [bytes]; none of a run that ran out of memory
    oom: bool = False  # it ran out of memory
    failed: bool = False  # it failed otherwise, or without saying of what

    @property
    def ran(self) -> bool:
        """Whether the run finished a step."""
        return not (self.oom or self.failed) and (self.step_time is not None or self.peak_memory is not None)
