"""What did the user's own cluster teach? A calibration file: corrections of a stack's and of a cluster's numbers.

Corrections are few and physical (compute efficiency, communication, host floors, step overhead, link rates); what was
measured, when and how well it holds stands beside them. Left out: how they are estimated (`calibrate/`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from planner.dialect import option
from planner.errors import InputError
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.links import LinkFactors
from planner.spec.own_run import OwnRun
from planner.spec.stack import Calibration, Stack

LONGEST_NAME: Final = 200  # characters
SECTIONS: Final = ("compute", "host", "communication", "engine", "overhead")
Factor = Annotated[float, Field(gt=0.01, lt=100, allow_inf_nan=False)]
LinkFactor = Annotated[float, Field(gt=1e-4, lt=100, allow_inf_nan=False)]  # of links that are broken


class LinkSection(BaseModel):
    """Factors on what `catalog/links.yaml` says of the machine's links [1]; see `LinkFactors`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scale_up_bandwidth: LinkFactor = 1.0
    scale_up_latency: LinkFactor = 1.0
    fabric_bandwidth: LinkFactor = 1.0
    fabric_latency: LinkFactor = 1.0

    def factors(self) -> LinkFactors:
        """The same as the inner form."""
        return LinkFactors(**self.model_dump())


class Overlay(BaseModel):
    """One calibration file.

    `level`: L2 rests on probes (kernels, links), L3 on measured steps. `made_from`: the measurements, in words.
    `stack`, `accelerator`: what it holds for; empty: any. `multiply`: "section.field" of a stack -> factor
    ("compute.gemm" covers every format); `values`: "section.field" -> its new value, with a unit where it has one.
    `runs`: configurations measured, each with what its step takes beyond the corrected prediction, for the same with
    other numbers of replicas. `band`: 80 % of step times are expected within this; none: the stack's own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    name: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    date: Annotated[str, BeforeValidator(str), Field(min_length=4, max_length=40)]  # YAML reads dates
    level: Literal["L2", "L3"]
    made_from: Annotated[tuple[str, ...], Field(min_length=1)]
    stack: str = ""
    accelerator: str = ""
    multiply: dict[str, Factor] = Field(default_factory=dict)
    values: dict[str, str | float] = Field(default_factory=dict)
    links: LinkSection = LinkSection()
    runs: tuple[OwnRun, ...] = ()
    band: Annotated[float, Field(gt=0, le=2)] | None = None

    @property
    def said(self) -> str:
        """Its name, date and measurements in a line."""
        return f"{self.name} ({self.date}): {'; '.join(self.made_from)}"

    def of_stack(self, stack: Stack) -> Stack:
        """The stack with this file's numbers in place of its own. Raises `InputError`."""
        if self.stack and self.stack != stack.name:
            must = f"the calibration {self.name} holds for the stack {self.stack}"
            raise InputError(
                must, stack.name, f"use {option('stack', self.stack)}, or calibrate {stack.name}"
            )
        for path, factor in self.multiply.items():
            stack = multiplied(stack, path, factor)
        for path, value in self.values.items():
            stack = _with_value(stack, path, value)
        update: dict[str, Any] = {
            "calibration": Calibration(
                said=self.said,
                level=self.level,
                runs=self.runs,
                links_alone=self.level == "L2" and not (self.multiply or self.values or self.runs),
            )
        }
        return stack.model_copy(
            update=update if self.band is None else {**update, "band": self.band, "band_widening": 0.0}
        )

    def of_cluster(self, cluster: Cluster) -> Cluster:
        """The cluster with its links as measured. Raises `InputError`."""
        if self.accelerator and self.accelerator != cluster.accelerator.name:
            must = f"the calibration {self.name} holds for {self.accelerator}"
            raise InputError(
                must, cluster.accelerator.name, f"leave {option('calibration')} out on other devices"
            )
        return replace(cluster, links=self.links.factors())


def multiplied(stack: Stack, path: str, factor: float) -> Stack:
    """The stack with one number, or one format of `compute.gemm`, times `factor`. Raises `InputError`."""
    section, _, field = path.partition(".")
    if section == "compute" and field.split(".")[0] == "gemm":
        return _gemm_multiplied(stack, path, factor)
    _check_path(stack, path, section, field)
    before = getattr(getattr(stack, section), field)
    if isinstance(before, bool) or not isinstance(before, int | float):
        raise InputError("only a number can be multiplied", path, "give it under `values`")
    return _replaced(stack, section, field, _bounded(stack, section, field, before * factor))


def _gemm_multiplied(stack: Stack, path: str, factor: float) -> Stack:
    _, _, dtype = path.partition(".")[2].partition(".")
    known = {str(name): value for name, value in stack.compute.gemm.items()} or {"bf16": 1.0}
    if dtype and dtype not in known:
        known[dtype] = stack.compute.gemm.get("bf16", 1.0)  # type: ignore[call-overload]
    changed = {n: v * factor if dtype in ("", n) else v for n, v in known.items()}
    section = type(stack.compute).model_validate({"gemm": changed})
    return _replaced(stack, "compute", "gemm", section.gemm)


def _with_value(stack: Stack, path: str, value: str | float) -> Stack:
    section, _, field = path.partition(".")
    _check_path(stack, path, section, field)
    try:
        read = type(getattr(stack, section)).model_validate({field: value})
    except ValidationError as error:
        raise InputError(f"{path}: {error.errors()[0]['msg']}", repr(value)) from None
    return _replaced(stack, section, field, getattr(read, field))


def _check_path(stack: Stack, path: str, section: str, field: str) -> None:
    if section not in SECTIONS or field not in type(getattr(stack, section)).model_fields:
        must = "a calibration must name numbers of a stack as section.field"
        raise InputError(must, repr(path), "planner stacks NAME lists them; sections: " + ", ".join(SECTIONS))


def _bounded(stack: Stack, section: str, field: str, value: float) -> float:
    """The value, kept within the bounds of the field."""
    low, high = -math.inf, math.inf
    for rule in type(getattr(stack, section)).model_fields[field].metadata:
        low, high = max(low, getattr(rule, "ge", low)), min(high, getattr(rule, "le", high))
    return min(max(value, low), high)


def _replaced(stack: Stack, section: str, field: str, value: object) -> Stack:
    part = getattr(stack, section).model_copy(update={field: value})
    return stack.model_copy(update={section: part})
