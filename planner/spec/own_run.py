"""Which configuration did the user run, and how far did its step lie from the prediction?

A run speaks for configurations that differ from it in nothing but the number of replicas: they run the same kernels and
exchange the same messages within a replica. It speaks the less for others the more their micro-batches or virtual
stages differ in number, and not at all for other axes. Left out: what all runs say together (`calibrate/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from planner.spec.config import AXES, FloatColumn, IntColumn, ParallelConfig
from planner.spec.job import Job
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision

# how many whole layers are recomputed goes with the split, and all splits of a configuration share its factor
FREE: Final = ("dp", "recompute", "recompute_layers")
# How fast errors cease to be alike: e^-rate for each doubling. Virtual stages: 0.2 to 0.6 by maximum likelihood on the
# development rows, whichever publisher is left out. Micro-batches: 0.2 or less so, but with less than 1.5 calibration
# made the B200 runs of SimuMax worse by more than 0.3 points (benchmarks/calibration.py): long steps run slower there.
RATES: Final = {"vpp": 0.6, "num_microbatches": 1.5}
NEUTRAL: Final = {axis: int(getattr(ParallelConfig(), axis)) for axis in AXES if axis not in FREE}


class OwnRun(BaseModel):
    """One measured configuration. `axes`: the codes of its axes, those of `FREE` and the neutral ones left out;
    `factor`: its step over the predicted one, as far as the run is believed [1]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    layers: int = Field(ge=1)
    hidden: int = Field(ge=1)
    seq_len: int = Field(ge=1)
    precision: Precision
    lora_rank: int | None = None
    axes: dict[str, int]
    factor: Annotated[float, Field(gt=0.1, lt=10, allow_inf_nan=False)]

    @field_validator("axes")
    @classmethod
    def _known(cls, axes: dict[str, int]) -> dict[str, int]:
        unknown = set(axes) - set(NEUTRAL)
        if unknown:
            raise ValueError(f"axes must be among {', '.join(NEUTRAL)}, not {', '.join(sorted(unknown))}")
        if few := [axis for axis in RATES if axes.get(axis, 1) < 1]:
            raise ValueError(f"{', '.join(few)} must be 1 or more")
        return axes

    @classmethod
    def of(cls, model: ModelSpec, job: Job, config: ParallelConfig, factor: float) -> OwnRun:
        """The run of a configuration."""
        axes = {axis: int(value) for axis in NEUTRAL if (value := getattr(config, axis)) != NEUTRAL[axis]}
        return cls(
            model=model.name, layers=model.num_layers, hidden=model.hidden, seq_len=job.seq_len,
            precision=job.precision, lora_rank=job.lora_rank, axes=axes, factor=factor,
        )  # fmt: skip

    def all_axes(self) -> dict[str, int]:
        """The axes with those at their neutral value."""
        return {**NEUTRAL, **self.axes}

    def likeness(self, columns: Mapping[str, IntColumn]) -> FloatColumn:
        """How alike the errors of the run and of configurations are (n,), from 1 down to 0; of the axes given alone."""
        axes = self.all_axes()
        exact = [columns[axis] == axes[axis] for axis in axes if axis in columns and axis not in RATES]
        apart = [
            rate * np.abs(np.log2(columns[axis] / axes[axis]))
            for axis, rate in RATES.items()
            if axis in columns
        ]
        return np.where(np.all(exact, axis=0), np.exp(-np.sum(apart, axis=0)), 0.0)

    def of_job(self, model: ModelSpec, job: Job) -> bool:
        """Whether it trained this model in this way."""
        mine = (self.model, self.layers, self.hidden, self.seq_len, self.precision, self.lora_rank)
        return mine == (
            model.name, model.num_layers, model.hidden, job.seq_len, job.precision, job.lora_rank,
        )  # fmt: skip
