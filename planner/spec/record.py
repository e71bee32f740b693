"""What is a part of a file that planner writes?

Left out: the parts (`findings.py`, `subject.py`, `planfile.py`).
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A part of a plan file: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
