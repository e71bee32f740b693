"""What does a profile of `planner probe` say of a device? Its schema, and the corrections that follow from it.

Each measured time is held against what planner predicts for the same operation on the same device; the median of a
kind is its factor, shrunk towards 1 where few were measured. Left out: measuring (`probe.py`).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.calibrate.logs.nccl_tests import SMALLEST_SIZE, LinkTest
from planner.catalog.loader import load_kernel_rates
from planner.cost.device.kernels import (
    Roofline,
    attention_time,
    gemm_time,
    grouped_gemm_time,
    memory_bound_time,
)
from planner.cost.device.rates import HALF
from planner.cost.network.collectives import CollectiveKind
from planner.errors import FileInputError, InputError, PlannerError, field_given, field_must
from planner.spec.load_file import read_text
from planner.spec.machine.accelerator import Accelerator
from planner.spec.machine.architecture import Architecture
from planner.spec.machine.rates import KernelRates
from planner.spec.overlay import Overlay
from planner.spec.precision import Dtype

LARGEST_FILE: Final = 20_000_000
FEW: Final = 2.0  # measurements that the shipped table weighs as much as
# Time of the grouped kernel that a probe runs, torch._grouped_mm in 16 bits, over that of the tables, where it has one:
# 20 forward and backward passes on B200 (1.18 to 1.66; torchao, prototype/moe_training/README.md since 0.13) and 4
# forward ones on H100 (1.10 to 1.20; its pull requests 2490 and 2756)
TORCH_GROUPED: Final = {Architecture.BLACKWELL: 1.36, Architecture.HOPPER: 1.15}
ATTENTION_EXTENTS: Final = ("batch", "seq_q", "seq_kv", "heads", "kv_heads", "d_qk", "d_v")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Device(_Record):
    """What was measured on. `memory` [bytes], `clock` [MHz] while it worked, None where it cannot be read."""

    kind: Literal["cuda", "rocm", "cpu"]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    memory: Positive
    units: int | None = None
    clock: Positive | None = None
    largest_clock: Positive | None = None


class Measurement(_Record):
    """One timed operation. `shape`: its extents by name; `seconds`: the median, `spread` its relative interquartile
    range; `peak_memory` [bytes] of what allocates; `skipped`: why there is no time."""

    kind: Literal["gemm", "grouped_gemm", "attention", "attention_backward", "memory_bound", "launch", "layer",
                  "collective"]  # fmt: skip
    name: str
    dtype: str
    shape: dict[str, int]
    seconds: Positive | None = None
    spread: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    repeats: Annotated[int, Field(ge=0)] = 0
    clock: Positive | None = None
    peak_memory: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    skipped: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """What makes a measurement the same as another."""
        return (self.kind, self.name, self.dtype, *sorted(self.shape.items()))


class Profile(_Record):
    """A probe's file. `hosts`: processes on each node, in the order of their ranks."""

    schema_version: Literal[1] = 1
    date: str
    device: Device
    versions: dict[str, str]
    hosts: tuple[int, ...] = (1,)
    measurements: tuple[Measurement, ...] = ()


def read_profile(path: Path) -> Profile:
    """The profile in a file. Raises `FileInputError` naming the field."""
    hint = "write one with: planner probe -o profile.json"
    try:
        document = json.loads(read_text(path, LARGEST_FILE, missing=hint))
    except (ValueError, RecursionError) as error:
        raise FileInputError(str(path), "must be a JSON file", str(error)[:200], hint) from None
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        given = field_given(first)
        raise FileInputError(str(path), field_must(first), given, hint, field=field) from None


def expected(measured: Measurement, accelerator: Accelerator, rates: KernelRates) -> float | None:
    """What planner predicts for an operation [s]; None for kinds that have no equation of their own."""
    shape, bandwidth = measured.shape, accelerator.memory_bandwidth
    try:
        dtype = Dtype(measured.dtype)
        roofline = Roofline(accelerator.peak_flops(dtype), bandwidth, rates)
    except (ValueError, PlannerError):
        return None
    try:
        if measured.kind == "gemm":
            extents = (float(shape["m"]), float(shape["n"]), float(shape["k"]))
            return float(gemm_time(*extents, dtype, roofline))
        if measured.kind == "grouped_gemm":
            extents = (float(shape["rows"]), float(shape["n"]), float(shape["k"]))
            usual = float(grouped_gemm_time(*extents, float(shape["groups"]), dtype, roofline))
            return usual * (TORCH_GROUPED.get(accelerator.instructions, 1.0) if dtype in HALF else 1.0)
        if measured.kind in ("attention", "attention_backward"):
            batch, seq_q, seq_kv, heads, kv_heads, d_qk, d_v = (float(shape[n]) for n in ATTENTION_EXTENTS)
            both = attention_time(batch, seq_q, seq_kv, heads, kv_heads, d_qk, d_v, 1.0, roofline)
            return float(both[1] if measured.kind == "attention_backward" else both[0])
        if measured.kind == "memory_bound":
            return float(memory_bound_time(float(shape["bytes"]), bandwidth, rates))
    except (KeyError, PlannerError):  # an extent is missing, or no rate of the format is known
        return None
    return None


def kind_factors(profile: Profile, accelerator: Accelerator) -> dict[str, tuple[float, int]]:
    """Measured over predicted time by kind, the median of its operations, and how many there are."""
    rates = load_kernel_rates(accelerator.name)
    ratios: dict[str, list[float]] = defaultdict(list)
    for measured in profile.measurements:
        usual = expected(measured, accelerator, rates) if measured.seconds else None
        if usual:
            kind = "attention" if measured.kind.startswith("attention") else measured.kind
            name = f"gemm.{measured.dtype}" if kind == "gemm" else kind
            ratios[name].append(float(measured.seconds or 0) / usual)
    return {kind: (float(np.median(values)), len(values)) for kind, values in ratios.items()}


def shrunk_factor(ratio: float, count: int) -> float:
    """A kind's factor: the ratio's logarithm, weighed against the shipped table's 1."""
    return math.exp(math.log(ratio) * count / (count + FEW))


def overlay_of(profile: Profile, accelerator: Accelerator, name: str, date: str) -> Overlay:
    """Corrections of compute that a profile speaks for. Raises `InputError` where it is of another device."""
    check_device(profile, accelerator)
    factors = kind_factors(profile, accelerator)
    if not factors:
        hint = "run planner probe on a node of the cluster, with a GPU build of torch"
        raise InputError("a profile must hold operations that planner predicts", "none", hint)
    multiply: dict[str, float] = {}
    for kind, (ratio, count) in sorted(factors.items()):
        path = {"attention": "compute.attention", "memory_bound": "compute.memory_bound"}.get(kind)
        if kind.startswith("gemm."):
            path = f"compute.{kind}"
        if path is not None:
            multiply[path] = round(shrunk_factor(ratio, count), 4)
    if "grouped_gemm" in factors:  # the stack counts it beside the factor of all products
        ratio, count = factors["grouped_gemm"]
        beside = multiply.get("compute.gemm.bf16", 1.0)
        multiply["compute.grouped_gemm"] = round(shrunk_factor(ratio, count) / beside, 4)
    versions = ", ".join(f"{key} {value}" for key, value in sorted(profile.versions.items()))
    told = f"profile of {profile.date} on {profile.device.name} ({versions})"
    return Overlay(
        name=name, date=date, level="L2", made_from=(told,), accelerator=accelerator.name, multiply=multiply
    )


def not_used(profile: Profile, accelerator: Accelerator) -> tuple[str, ...]:
    """What a profile holds and its overlay leaves alone, and why."""
    rates, said = load_kernel_rates(accelerator.name), []
    timed = [measured for measured in profile.measurements if measured.seconds]
    for measured in timed:
        if measured.kind == "launch":
            said.append(
                f"a launch takes {1e6 * (measured.seconds or 0):.1f} us here; not applied: the host's time for a layer "
                "was fitted to whole steps of each framework, for whose machines no launch time is published; "
                "--run of a small model tells it"
            )
        if measured.kind == "layer" and not measured.shape["recompute"]:
            share = layer_products(measured, accelerator, rates) / (measured.seconds or 1.0)
            said.append(
                f"of the probe's layer, which fuses nothing, GEMMs and attention are predicted to take {share:.0%}; "
                "not applied: a stack's fused kernels are not the probe's, and GEMMs and attention count already"
            )
    said += sorted(
        {
            f"{m.kind} {m.name} in {m.dtype} was not measured: {m.skipped}"
            for m in profile.measurements
            if m.skipped
        }
    )
    return tuple(said)


def layer_products(measured: Measurement, accelerator: Accelerator, rates: KernelRates) -> float:
    """Seconds that planner predicts for the products and the attention of the probe's layer, both passes."""
    s = measured.shape
    width, tokens = s["hidden"] // s["heads"], s["batch"] * s["tokens"]
    products = (
        (s["hidden"] + 2 * s["kv_heads"] * width, s["hidden"]), (s["hidden"], s["hidden"]),
        (2 * s["ffn"], s["hidden"]), (s["hidden"], s["ffn"]),
    )  # fmt: skip
    attention = {
        "batch": s["batch"], "seq_q": s["tokens"], "seq_kv": s["tokens"], "heads": s["heads"],
        "kv_heads": s["kv_heads"], "d_qk": width, "d_v": width,
    }  # fmt: skip
    parts = [(3.0, "gemm", {"m": tokens, "n": n, "k": k}) for n, k in products]  # forward and both gradients
    parts += [(1.0, "attention", attention), (1.0, "attention_backward", attention)]
    total = 0.0
    for times, kind, shape in parts:
        part = measured.model_copy(update={"kind": kind, "shape": shape})
        total += times * (expected(part, accelerator, rates) or 0.0)
    return total


def check_device(profile: Profile, accelerator: Accelerator) -> None:
    """Refuse a profile of another device. Raises `InputError`."""
    if profile.device.kind == "cpu":
        must = "a calibration needs a profile of the accelerator"
        raise InputError(must, "made on a CPU, where probes run for tests only", "run planner probe on a GPU")
    chip = accelerator.name.split("-")[0].lower()
    if chip not in "".join(profile.device.name.lower().split()):
        must = f"the profile must be of the cluster's device, {accelerator.name}"
        raise InputError(must, profile.device.name, "name the cluster that it was made on")


def link_tests(profile: Profile, file: str) -> list[LinkTest]:
    """The collectives of a profile as tables, one for each operation."""
    tables: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for measured in profile.measurements:
        if measured.kind == "collective" and measured.seconds and measured.shape["bytes"] >= SMALLEST_SIZE:
            tables[measured.name].append((float(measured.shape["bytes"]), measured.seconds))
    found = []
    for name, rows in sorted(tables.items()):
        rows.sort()
        sizes, times = (np.array(column) for column in zip(*rows, strict=True))
        kind = CollectiveKind(name)
        found.append(LinkTest(file, kind, profile.hosts, profile.device.name, sizes, times))
    return found
