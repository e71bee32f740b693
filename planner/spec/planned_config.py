"""How does a plan file write a configuration? Degrees as numbers, everything else by name, and all of it in a line.

Left out: which configurations are legal (`space/`), and files of schema 1, which held codes (`schema_1.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from planner.spec.config import (
    AXES,
    CUDA_GRAPH_MODULES,
    OFFLOAD_LABELS,
    RECOMPUTE_MODULES,
    SCHEDULE_LABELS,
    ContextKind,
    CudaGraphs,
    ParallelConfig,
    Recompute,
    captured_modules,
    module_mask,
    named_value,
    recomputed_modules,
)
from planner.spec.record import Record

MOST: Final = 10**9  # of any axis; a column of a table holds 32 bits
_NUMBERS: Final = (
    "tp", "cp", "pp", "dp", "vpp", "ep", "etp", "micro_batch", "num_microbatches", "zero", "hsdp",
)  # fmt: skip
_PARTS: Final = ("optimizer", "params", "activations")  # what can be in host memory, in the order of its bits


class Recomputed(Record):
    """What the backward pass computes again."""

    kind: Literal["none", "selective", "full"] = "none"
    layers: int = Field(0, ge=0, le=MOST, description="of every pipeline rank; 0 unless full [1]")
    modules: tuple[str, ...] = Field((), description="of every layer, as --set recompute_modules names them")

    @model_validator(mode="after")
    def _modules_known(self) -> Self:
        if unknown := sorted(set(self.modules) - set(RECOMPUTE_MODULES)):
            raise ValueError(
                f"modules must be among {', '.join(RECOMPUTE_MODULES)}, not {', '.join(unknown)}"
            )
        return self


class Captured(Record):
    """What is replayed as CUDA graphs."""

    by: Literal["none", "local", "transformer_engine", "full_iteration"] = "none"
    modules: tuple[str, ...] = Field(
        (), description="of every layer, as --set cuda_graph_modules names them; none: whole layers"
    )

    @model_validator(mode="after")
    def _modules_known(self) -> Self:
        if unknown := sorted(set(self.modules) - set(CUDA_GRAPH_MODULES)):
            raise ValueError(
                f"modules must be among {', '.join(CUDA_GRAPH_MODULES)}, not {', '.join(unknown)}"
            )
        return self


class PlannedConfig(Record):
    """One configuration, every axis by name, and the same as a line of text."""

    tp: int = Field(ge=1, le=MOST, description="tensor-parallel degree [1]")
    cp: int = Field(ge=1, le=MOST, description="context-parallel degree [1]")
    pp: int = Field(ge=1, le=MOST, description="pipeline stages [1]")
    dp: int = Field(ge=1, le=MOST, description="data-parallel degree [1]")
    vpp: int = Field(ge=1, le=MOST, description="virtual stages (chunks) per pipeline rank [1]")
    ep: int = Field(ge=1, le=MOST, description="expert-parallel degree [1]")
    etp: int = Field(ge=1, le=MOST, description="tensor-parallel degree of the experts [1]")
    micro_batch: int = Field(ge=1, le=MOST, description="sequences in a micro-batch [1]")
    num_microbatches: int = Field(
        ge=1, le=MOST, description="micro-batches per step and data-parallel rank [1]"
    )
    sp: bool = Field(description="sequence parallelism")
    zero: int = Field(
        ge=0, le=3, description="sharded over dp x cp: 0 nothing, 1 states, 2 gradients, 3 weights"
    )
    hsdp: int = Field(ge=0, le=MOST, description="ranks that share one shard; 0: all of dp x cp [1]")
    recompute: Recomputed
    cp_kind: Literal["all-gather", "a2a"] | None = Field(
        None, description="what keys and values are exchanged by where it was asked for; else the stack's own"
    )
    cp_comm_type: Literal["p2p", "all-gather", "a2a"] | None = Field(
        None, description="what they are exchanged by, asked for or not; absent without context parallelism"
    )
    schedule: Literal[
        "1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe", "dualpipev"
    ] = Field(description="of the pipeline")
    offload: tuple[Literal["optimizer", "params", "activations"], ...] = Field(
        (), description="what is kept in host memory"
    )
    cuda_graphs: Captured
    text: str = Field(description="the configuration in one line")

    @classmethod
    def of(cls, config: ParallelConfig, own: ContextKind | None = None) -> Self:
        """The record of a configuration. `own`: what its problem's context parallelism exchanges by unasked."""
        taken = ContextKind(config.cp_kind) or own if config.cp > 1 else None
        return cls.model_validate(
            {axis: getattr(config, axis) for axis in _NUMBERS}
            | {
                "sp": bool(config.sp),
                "recompute": {
                    "kind": Recompute(config.recompute).name.lower(),
                    "layers": config.recompute_layers,
                    "modules": recomputed_modules(config.recompute_modules),
                },
                "cp_kind": ContextKind(config.cp_kind).label if config.cp_kind else None,
                "cp_comm_type": taken.label if taken is not None else None,
                "schedule": SCHEDULE_LABELS[config.schedule],
                "offload": tuple(part for bit, part in enumerate(_PARTS) if config.offload >> bit & 1),
                "cuda_graphs": {
                    "by": CudaGraphs(config.cuda_graph_impl).label,
                    "modules": captured_modules(config.cuda_graph_modules),
                },
                "text": config.describe(own or ContextKind.P2P),
            }
        )

    def parallel(self) -> ParallelConfig:
        """The configuration this record describes."""
        again, graphs = self.recompute, self.cuda_graphs
        kinds = {kind.label: int(kind) for kind in ContextKind}
        return ParallelConfig(
            **{axis: getattr(self, axis) for axis in _NUMBERS},
            sp=int(self.sp),
            recompute=int(Recompute[again.kind.upper()]),
            recompute_layers=again.layers,
            recompute_modules=sum(1 << RECOMPUTE_MODULES.index(name) for name in set(again.modules)),
            cp_kind=kinds[self.cp_kind] if self.cp_kind else 0,
            schedule=SCHEDULE_LABELS.index(self.schedule),
            offload=sum(OFFLOAD_LABELS[part] for part in set(self.offload)),
            cuda_graph_impl=int(CudaGraphs[graphs.by.upper()]),
            cuda_graph_modules=module_mask(graphs.modules),
        ).in_usual_words()

    def by_axis(self) -> dict[str, int | str]:
        """Every axis of `--set` with its value as `--set` takes it: numbers, and names for all that are none."""
        config = replace(self.parallel(), hsdp=self.hsdp)
        return {axis: named_value(axis, int(getattr(config, axis))) for axis in AXES}
