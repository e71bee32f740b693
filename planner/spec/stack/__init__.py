"""How does this training software run a configuration? A handful of physically meaningful, bounded numbers.

A stack is a framework at a release with its kernels. The same configuration runs up to 2x apart on
different stacks, so every prediction names one. Its numbers come from a YAML file with sources; those
marked `fitted` were found by `benchmarks/fit_stacks.py` on public runs, never per model or per row.
Left out: anything that belongs to the hardware (kernel tables, link rates) or to the configuration.
"""

from __future__ import annotations

import math
from typing import Annotated, Final

from pydantic import Field, field_validator

from planner.spec.config import RECOMPUTE_MODULES, SCHEDULE_LABELS, CudaGraphs, Schedule
from planner.spec.own_run import OwnRun
from planner.spec.precision import Precision
from planner.spec.stack.engines import Contiguous, Engine
from planner.spec.stack.kinds import PipelineSplit, RecomputedLayers
from planner.spec.stack.memory import Overhead
from planner.spec.stack.section import Section
from planner.spec.stack.time import Communication, Compute, Host, Kernels

SEPARATOR: Final = "+"  # of a stack's name and its options
# A band where the stack was not fitted, on other devices or kinds of models, over the one where it was.
UNLIKE_BAND = 1.5
# Within this lie the errors that 80 % of machines of strangers have in common: see `elsewhere`.
PUBLISHER_BAND = 0.15
_TORCH_GROUPED_FROM = "2025-10"  # PyTorch 2.9 (pytorch/pytorch#156202; the month from memory)
BAND_DEVICES = 64.0
WIDEST_BAND = 2.0
ZeroStage = Annotated[int, Field(ge=0, le=3)]


def elsewhere(band: float) -> float:
    """The band of a step time on a cluster whose owner published nothing, from the band of publishers' groups [1].

    A stack's band is the 80 % quantile of errors on families of models left out, other families of whose publisher were
    seen. A stranger's machine, settings and way of timing move all of its errors together. How far is not known of one
    stack, which one to three publishers ran, so that the fitted stacks share it: the root of the mean square, over
    publishers, of their median log errors with all their rows hidden from the fit, times the 90 % quantile of Student's
    t for as many publishers (`publisher_spread`, benchmarks/cross_validate.py --hide: eight). With it 80 % of the steps
    of 94 others lie within their intervals, publishers weighing the same (`python -m benchmarks.rounds`).
    """
    return min(math.expm1(math.hypot(math.log1p(band), PUBLISHER_BAND)), WIDEST_BAND)


class Limits(Section):
    """What the framework accepts, as far as a mask needs it."""

    zero: tuple[ZeroStage, ...] = Field((0, 1), min_length=1)
    hybrid_sharding: tuple[ZeroStage, ...] = Field(
        (), description="of these, the stages that can be sharded within groups of ranks (HSDP)"
    )
    offload: tuple[Annotated[int, Field(ge=0, le=7)], ...] = Field(
        (0,), min_length=1, description="bit masks of what may live in CPU memory"
    )
    cuda_graphs: tuple[str, ...] = Field(
        ("none",),
        min_length=1,
        description="what may capture CUDA graphs, as spec.config.CudaGraphs names it, first what does unasked",
    )
    sequence_parallel: tuple[Annotated[int, Field(ge=0, le=1)], ...] = Field((0, 1), min_length=1)
    schedules: tuple[str, ...] = Field(
        ("1f1b", "interleaved"),
        description="pipeline schedules, as spec.config.SCHEDULE_LABELS names them; none: there are no pipelines",
    )
    recomputed_layers: RecomputedLayers = Field(
        RecomputedLayers.ANY, strict=False, description="which numbers of fully recomputed layers run"
    )
    recompute: tuple[str, ...] = Field(
        ("core_attn",),
        description="what selective recomputation repeats: the stack's own selection, joined by +, and behind it what "
        "can be recomputed one by one, this among it",
    )
    no_recipes: tuple[Precision, ...] = Field(
        (), description="precisions that this release came before, or whose library it does not have"
    )

    @property
    def interleaving(self) -> bool:
        """Does a schedule run several chunks a rank?"""
        return any(Schedule(SCHEDULE_LABELS.index(name)).runs_chunks(2) for name in self.schedules)

    @property
    def selective_recompute(self) -> tuple[str, ...]:
        """The stack's own selection."""
        return tuple(self.recompute[0].split("+")) if self.recompute else ()

    @property
    def recompute_modules(self) -> tuple[str, ...]:
        """Modules that can be recomputed one by one."""
        return tuple(name for name in self.recompute if "+" not in name) if self.recompute[1:] else ()

    @property
    def cuda_graphs_tried(self) -> tuple[str, ...]:
        """What of CUDA graphs a search tries where nothing is asked for."""
        return self.cuda_graphs if self.own_graphs else self.cuda_graphs[:1]

    @property
    def partial_full_recompute(self) -> bool:
        """May a part of the layers be recomputed?"""
        return self.recomputed_layers is not RecomputedLayers.ALL

    @property
    def recompute_every(self) -> bool:
        """Are partly recomputed layers those at equal distances alone, one of so many?"""
        return self.recomputed_layers is RecomputedLayers.EVERY

    @property
    def own_graphs(self) -> CudaGraphs:
        """What the framework captures by itself."""
        return CudaGraphs[self.cuda_graphs[0].upper()]

    @field_validator("cuda_graphs")
    @classmethod
    def _captures(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = [graphs.label for graphs in CudaGraphs]
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"CUDA graphs must be among {', '.join(known)}: {', '.join(unknown)}")
        return names

    @field_validator("schedules")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in names if name not in SCHEDULE_LABELS]
        if unknown:
            raise ValueError(f"schedules must be among {', '.join(SCHEDULE_LABELS)}: {', '.join(unknown)}")
        return names

    @field_validator("recompute")
    @classmethod
    def _recomputed(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for one in names for name in one.split("+") if name not in RECOMPUTE_MODULES]
        if unknown:
            raise ValueError(f"modules must be among {', '.join(RECOMPUTE_MODULES)}: {', '.join(unknown)}")
        return names


class Calibration(Section):
    """The user's own measurements that correct a stack."""

    said: str
    level: str = Field(description="L2 or L3: probes, or steps")
    runs: tuple[OwnRun, ...] = ()
    links_alone: bool = Field(False, description="links were tested, kernels and steps were not")


class Stack(Section):
    """A training software stack."""

    name: str
    description: str
    framework: str
    released: str
    source: str
    fitted: tuple[str, ...] = Field((), description="which numbers were fitted; none: start values")
    fitted_on: str = Field("", description="on which runs, and by what")
    kin: str = Field("", description="the nearest stack, for what was not identified here")
    band: float = Field(
        0.3, gt=0, le=2, description="80 % of cross-validated step-time errors lie within this"
    )
    band_moe: float | None = Field(None, gt=0, le=2, description="the same of MoE models")
    band_widening: float = Field(
        0.0, ge=0, le=1, description="power of devices / 64 by which `band` grows, where the errors show it"
    )
    devices: tuple[str, ...] = Field((), description="accelerators of the runs behind `fitted`")
    calibration: Calibration | None = Field(
        None, description="the user's measurements behind it; absent: as shipped"
    )
    split: PipelineSplit | tuple[Annotated[int, Field(ge=0)], ...] = Field(
        PipelineSplit.BALANCED,
        description="how layers are assigned to pipeline ranks, or the layers of every chunk in order",
    )
    kernels: Kernels = Kernels()
    compute: Compute = Compute()
    host: Host = Host()
    communication: Communication = Communication()
    engine: Engine = Contiguous()
    overhead: Overhead = Overhead()
    limits: Limits = Limits()

    @property
    def base(self) -> str:
        """Its name without options."""
        return self.name.partition(SEPARATOR)[0]

    @property
    def options(self) -> frozenset[str]:
        """The options of its framework that are set by name."""
        return frozenset(self.name.split(SEPARATOR)[1:])

    @property
    def zero_with_pp(self) -> tuple[int, ...]:
        """The ZeRO stages that run with a pipeline."""
        return tuple(zero for zero in self.limits.zero if zero <= self.engine.most_sharded_with_pp)

    @property
    def pipelines_tried(self) -> bool:
        """Does a search try pipelines unasked? Not where there are none, or they need a program of one's own."""
        return bool(self.limits.schedules) and not self.engine.pipelines_programmed

    @property
    def groups_by_torch(self) -> bool:
        """Are products of experts torch._grouped_mm's, which PyTorch has for Blackwell since 2.9?"""
        return self.engine.groups_by_torch and self.released >= _TORCH_GROUPED_FROM

    @property
    def calibrated(self) -> bool:
        """Did the user measure kernels or steps? Links alone leave the error of a step as it is."""
        return self.calibration is not None and not self.calibration.links_alone

    @property
    def measured(self) -> tuple[OwnRun, ...]:
        """The user's own configurations, where it was calibrated."""
        return self.calibration.runs if self.calibration is not None else ()

    def for_precision(self, precision: Precision) -> Stack:
        """The stack with the gradients that it has in a precision."""
        engine = self.engine.for_precision(precision)
        return self if engine is self.engine else self.model_copy(update={"engine": engine})

    @property
    def _steps_measured(self) -> bool:
        return self.calibration is not None and self.calibration.level == "L3"

    def band_at(self, devices: float, moe: bool) -> float:
        """The band of a step time on so many devices [1]; never narrower for a mixture of experts."""
        band = self.band * (devices / BAND_DEVICES) ** self.band_widening
        wider = (self.band_moe or band * UNLIKE_BAND) if moe and not self._steps_measured else 0.0
        return float(min(max(band, wider), WIDEST_BAND))
