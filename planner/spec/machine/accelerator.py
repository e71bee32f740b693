"""What can one accelerator do: how fast it computes, what it holds, what it is linked with?

`AcceleratorSpec` is the file, `Accelerator` the inner form with plain numbers. Left out: sustained clocks and
kernel efficiencies, which belong to a stack, and integer formats, which no training recipe uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isclose, prod
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from planner.errors import UnitError, UnsupportedError
from planner.spec.machine.architecture import Architecture as Architecture
from planner.spec.machine.torus import Torus
from planner.spec.precision import RECIPES, Dtype, Precision
from planner.units import parse_quantity


class LinkKind(StrEnum):
    """A technology that joins devices, inside a node or across nodes."""

    NVLINK = "nvlink"
    XGMI = "xgmi"
    PCIE = "pcie"
    ICI = "ici"
    NEURONLINK = "neuronlink"
    UPI = "upi"
    INFINIBAND = "infiniband"
    ROCE = "roce"
    EFA = "efa"
    ETHERNET = "ethernet"
    OMNIPATH = "omnipath"
    SLINGSHOT = "slingshot"


# generations with narrow products that lack a recipe's scales; those of CDNA4 in 4 bits are MXFP4's, one for 32 values
_WITHOUT_SCALES: Final = {
    Precision.FP8_MX: (
        Architecture.ADA,
        Architecture.HOPPER,
        Architecture.CDNA3,
        Architecture.TPU,
        Architecture.TRAINIUM,
    ),
    Precision.FP8_BLOCKWISE: (Architecture.ADA, Architecture.TPU, Architecture.TRAINIUM),
    Precision.NVFP4: (Architecture.CDNA4,),
}


class HostProcessor(StrEnum):
    """A processor that drives a device, where it is known and not the usual x86."""

    GRACE = "grace"


def quantity(kind: str) -> BeforeValidator:
    """A pydantic validator that reads a string with a unit of `kind` and wants it above 0."""

    def read(given: Any) -> float:
        try:
            value = parse_quantity(given, kind)
        except UnitError as error:
            raise ValueError(f"{error.must}; {error.hint}") from error
        if value <= 0:
            raise ValueError(f"a {kind} must be above 0")
        return value

    return BeforeValidator(read)


Capacity = Annotated[float, quantity("capacity")]
Bandwidth = Annotated[float, quantity("bandwidth")]
Compute = Annotated[float, quantity("compute")]
Latency = Annotated[float, quantity("time")]
Power = Annotated[float, quantity("power")]
Price = Annotated[float, quantity("price")]
Count = Annotated[int, Field(strict=True, gt=0, le=10_000_000)]
Text = Annotated[str, Field(strict=True, min_length=1)]


class FileModel(BaseModel):
    """A part of a YAML file: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TorusSpec(FileModel):
    """Links to the neighbours alone. `shape`: devices along each axis of the largest slice, `links`: of one link along
    each; `ring`, `cubes`, `slices`: see `spec.machine.torus.Torus`."""

    shape: tuple[Count, ...] = Field(min_length=1, max_length=4)
    links: tuple[Bandwidth, ...]
    ring: Count
    cubes: bool = False
    slices: tuple[tuple[Count, ...], ...] = ()

    @model_validator(mode="after")
    def _a_link_an_axis(self) -> TorusSpec:
        if len(self.links) != len(self.shape):
            raise ValueError(f"links must be one for each of {len(self.shape)} axes, given {len(self.links)}")
        if any(len(shape) != len(self.shape) for shape in self.slices):
            raise ValueError(f"slices must be shapes of {len(self.shape)} axes, given {list(self.slices)}")
        return self

    def torus(self) -> Torus:
        """The inner form."""
        slices = tuple(tuple(sorted(shape)) for shape in self.slices)
        return Torus(self.shape, self.links, self.ring, self.cubes, slices)


class ScaleUpLinkSpec(FileModel):
    """The fast links of one device. `domain`: devices that reach each other over them, where that is usual.

    `pair_bandwidth`: what one pair gets, where links go point to point (a mesh) instead of through a switch; `torus`:
    where they go to neighbours alone, the links whose sum `bandwidth` is and which join the devices of a `domain`.
    """

    kind: LinkKind
    bandwidth: Bandwidth
    domain: Count
    pair_bandwidth: Bandwidth | None = None
    torus: TorusSpec | None = None

    @model_validator(mode="after")
    def _torus_is_whole(self) -> ScaleUpLinkSpec:
        if self.torus is not None:
            check_torus(self.torus.torus(), self.domain, self.bandwidth)
        return self


def check_torus(torus: Torus, domain: int, bandwidth: float) -> None:
    """Raise `ValueError` unless a torus has the devices of its domain, and links that sum up to the bandwidth."""
    if prod(torus.shape) != domain:
        raise ValueError(f"torus must hold the domain's {domain} devices, given {torus.described}")
    if not isclose(torus.bandwidth, bandwidth):
        raise ValueError(
            f"torus.links must sum up to bandwidth in both directions of every axis, {bandwidth / 1e9:g} GB/s, "
            f"given {torus.bandwidth / 1e9:g} GB/s"
        )


class TypicalNodeSpec(FileModel):
    """The node this device usually comes in. `injection`: bytes/s per node where a fabric differs from it."""

    accelerators: Count
    nics: Count
    nic_bandwidth: Bandwidth
    fabric: LinkKind
    power: Power | None = None
    injection: dict[LinkKind, Bandwidth] = Field(default_factory=dict)


class BorrowedKernelsSpec(FileModel):
    """Whose kernel tables hold for a device that has none.

    `sustained`: its products under load over those of a short burst in that table [1] (None: as the other's); `source`:
    where that is from; `timed`: somebody timed products on the device itself, or on the same chip at as much power.
    """

    like: Text
    sustained: float | None = Field(default=None, gt=0, le=2, allow_inf_nan=False)
    timed: Annotated[bool, Field(strict=True)] = False
    source: Text


class AcceleratorSpec(FileModel):
    """One file of `catalog/accelerators`. Bandwidths per direction per device, peaks dense.

    `nominal_memory`: what it is sold with, `memory`: what the driver gives to a program. `kernels`: of a device without
    tables of its own."""

    name: Text
    aliases: tuple[Text, ...] = ()
    description: Text
    vendor: Text
    architecture: Architecture
    compute_capability: Annotated[str, Field(pattern=r"^\d{1,2}\.\d$")] | None = None
    nominal_memory: Capacity
    memory: Capacity
    memory_bandwidth: Bandwidth
    peak: dict[Dtype, Compute] = Field(min_length=1)
    compute_units: Count
    l2: Capacity | None = None
    scale_up: ScaleUpLinkSpec
    pcie_bandwidth: Bandwidth
    host_bandwidth: Bandwidth | None = None
    host_memory_shared: Annotated[bool, Field(strict=True)] = False
    host: HostProcessor | None = None
    integrated_nics: bool = False
    tdp: Power | None = None
    node: TypicalNodeSpec
    kernels: BorrowedKernelsSpec | None = None
    source: tuple[Text, ...] = Field(min_length=1)
    unverified: tuple[Text, ...] = ()
    notes: str = ""

    @model_validator(mode="after")
    def _unverified_names_a_field(self) -> AcceleratorSpec:
        for path in self.unverified:
            if path.split(".")[0] not in type(self).model_fields:
                raise ValueError(f"unverified must name fields of this file, given {path!r}")
        return self


@dataclass(frozen=True)
class TypicalNode:
    """The node a device usually comes in; used only where a question leaves it open, and said as assumed."""

    accelerators: int
    nics: int
    nic_bandwidth: float
    fabric: LinkKind
    power: float | None = None
    injection: tuple[tuple[LinkKind, float], ...] = ()

    def injection_bandwidth(self, fabric: LinkKind | None = None) -> float:
        """Bytes/s per direction that all NICs of the node send together [bytes/s]."""
        return dict(self.injection).get(fabric or self.fabric, self.nics * self.nic_bandwidth)


@dataclass(frozen=True)
class BorrowedKernels:
    """Whose kernel tables hold for a device that has none: see `BorrowedKernelsSpec`."""

    like: str
    sustained: float | None
    timed: bool
    source: str


@dataclass(frozen=True)
class Accelerator:
    """One device. Bandwidths in bytes/s per direction, `memory` what the driver exposes [bytes].

    `pair_bandwidth`: what one pair of devices gets inside the scale-up domain (None: all of it, a switch). `torus`: the
    largest slice of devices that are linked to their neighbours alone.
    `host_bandwidth`: to the memory of its host where that is not on PCIe, a device's share of a link that several have
    (None: PCIe's). `host_memory_shared`: its memory is its host's, so that nothing leaves it for there. `host`: the
    processor that launches its kernels (None: x86). `integrated_nics`: the network ports sit on the chip, so that PCIe
    does not limit them.
    """

    name: str
    vendor: str
    architecture: Architecture
    memory: float
    memory_bandwidth: float
    peak: tuple[tuple[Dtype, float], ...]
    scale_up_bandwidth: float
    pcie_bandwidth: float
    tdp: float | None
    compute_capability: str | None
    compute_units: int
    l2: float | None
    unverified: tuple[str, ...] = ()
    source: str = ""
    scale_up_kind: LinkKind = LinkKind.NVLINK
    scale_up_domain: int = 8
    pair_bandwidth: float | None = None
    torus: Torus | None = None
    host_bandwidth: float | None = None
    host_memory_shared: bool = False
    host: HostProcessor | None = None
    integrated_nics: bool = False
    typical_node: TypicalNode | None = None
    kernels: BorrowedKernels | None = None

    @property
    def noun(self) -> str:
        """What people call one such device; an s makes it many."""
        return self.architecture.words.noun

    @property
    def instructions(self) -> Architecture:
        """The generation whose products attention issues: Ampere's on workstation Blackwell, of compute capability 12,
        which has neither Hopper's nor the tensor memory of Blackwell in data centres (NVIDIA cuBLASDx, performance
        guide: tcgen05 is the path of 10.0, 10.3 and 11.0, not of 12)."""
        return Architecture.AMPERE if self.compute_major == 12 else self.architecture

    @property
    def compute_major(self) -> int:
        """The first number of the compute capability; 0 of devices that have none."""
        return int((self.compute_capability or "0").partition(".")[0])

    def peak_flops(self, dtype: Dtype) -> float:
        """Dense peak rate in `dtype` [FLOP/s]. Raises `UnsupportedError` where the format is missing.

        What may run as TF32 runs in FP32 where there is no TF32 (PyTorch, `allow_tf32`).
        """
        rates = dict(self.peak)
        if dtype is Dtype.TF32 and dtype not in rates:
            dtype = Dtype.FP32
        if dtype in rates:
            return rates[dtype]
        has = ", ".join(str(known) for known, _ in self.peak)
        raise UnsupportedError(
            f"{self.name} must compute in {dtype}",
            f"its peak in {dtype} is not known; known are {has}",
            "choose a precision with one of these formats, or another accelerator",
        )

    def require(self, precision: Precision) -> None:
        """Raise `UnsupportedError` for a recipe whose products the device does not have, or not with its scales.

        Source: TransformerEngine transformer_engine/pytorch/quantization.py _compute_mxfp8_support and
        _compute_fp8_block_scaling_support; of AMD's, AMD-AGI/Primus-Turbo primus_turbo/pytorch/core/low_precision.py.
        """
        self.peak_flops(RECIPES[precision].gemm)
        if self.architecture in _WITHOUT_SCALES.get(precision, ()):
            bits = 4 if RECIPES[precision].gemm is Dtype.FP4 else 8
            must = f"{self.name} must multiply with scales of {precision}"
            given = f"its generation, {self.architecture}, has {bits}-bit GEMMs without them"
            raise UnsupportedError(must, given, "choose another precision, as fp8_cs, or another accelerator")


def accelerator_from_spec(spec: AcceleratorSpec) -> Accelerator:
    """The inner form of a file."""
    node = spec.node
    return Accelerator(
        name=spec.name,
        vendor=spec.vendor,
        architecture=spec.architecture,
        memory=spec.memory,
        memory_bandwidth=spec.memory_bandwidth,
        peak=tuple(spec.peak.items()),
        scale_up_bandwidth=spec.scale_up.bandwidth,
        pcie_bandwidth=spec.pcie_bandwidth,
        host_bandwidth=spec.host_bandwidth,
        host_memory_shared=spec.host_memory_shared,
        host=spec.host,
        tdp=spec.tdp,
        compute_capability=spec.compute_capability,
        compute_units=spec.compute_units,
        l2=spec.l2,
        unverified=spec.unverified,
        source="; ".join(spec.source),
        scale_up_kind=spec.scale_up.kind,
        scale_up_domain=spec.scale_up.domain,
        pair_bandwidth=spec.scale_up.pair_bandwidth,
        torus=spec.scale_up.torus.torus() if spec.scale_up.torus else None,
        integrated_nics=spec.integrated_nics,
        typical_node=TypicalNode(
            node.accelerators,
            node.nics,
            node.nic_bandwidth,
            node.fabric,
            node.power,
            tuple(node.injection.items()),
        ),
        kernels=BorrowedKernels(**spec.kernels.model_dump()) if spec.kernels else None,
    )
