"""Which measured rates hold for the links of this machine?

Reads `links.yaml`, which benchmarks/fit_links.py derives, and `links_published.yaml`. A machine without rows
of its own takes those of its nearest kin: same accelerator, else same architecture (not over PCIe), else same kind of
link; `LinkRates.kin` says so. A host that reaches far less than the others of its kind is nobody's. Left out: nominal
bandwidths, which are in the cluster specification.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

import yaml
from pydantic import BaseModel, ConfigDict

from planner.errors import UnknownNameError
from planner.spec.machine.links import FabricRates, LinkRates, OperationRates

_SAFE_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C: ten times as fast on 850 lines
LINKS_FILE: Final = Path(__file__).with_name("links.yaml")
PUBLISHED_FILE: Final = Path(__file__).with_name("links_published.yaml")
_STAND_INS: Final = ("roce", "upi", "none")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OperationEntry(_Model):
    """`OperationRates` in the file: seconds and fractions."""

    base: float
    hop: float
    ranks: tuple[float, ...]
    fraction: tuple[float, ...]
    ramp: tuple[float, ...]

    def rates(self) -> OperationRates:
        return OperationRates(self.base, self.hop, self.ranks, self.fraction, self.ramp)


class ScaleUpEntry(_Model):
    """The scale-up link of one accelerator. `outlier`: of one host that others are unlike, whatever its devices:
    kept to be judged by its own rows (benchmarks/kernel_checks.py), no question gets it."""

    accelerator: str
    architecture: str
    kind: str
    all_reduce: OperationEntry
    all_gather: OperationEntry
    reduce_scatter: OperationEntry
    all_to_all: OperationEntry
    dispatch: OperationEntry
    p2p: OperationEntry
    switch_floor: float
    source: str
    note: str = ""
    measured: bool
    unverified: bool = False
    outlier: bool = False


class FabricEntry(_Model):
    """One kind of fabric, for one accelerator, or (empty) for those of one architecture, or for all."""

    kind: str
    accelerator: str = ""
    architecture: str = ""
    latency: float
    flush: bool = False
    ordered: bool = True
    fraction: float
    switch_chunk: float
    ramp: float
    saturation: float
    message: float
    all_to_all_fraction: float
    p2p_base: float
    p2p_fraction: float
    p2p_ramp: float
    rendezvous: float = 0.0
    message_ramp: float = 0.0
    message_saturation: float = 0.0
    source: str
    note: str = ""
    measured: bool
    unverified: bool = False

    def rates(self) -> FabricRates:
        return FabricRates(**self.model_dump(include={field.name for field in fields(FabricRates)}))


class LinksFile(_Model):
    """`links.yaml` or `links_published.yaml`; entries of one kind stand in order of preference as kin. The published
    one alone has the others: fabrics, and what links are called -> the kind of the entries that hold for them."""

    scale_up: tuple[ScaleUpEntry, ...]
    fabric: tuple[FabricEntry, ...] = ()
    scale_up_kinds: Mapping[str, str] = {}
    fabric_kinds: Mapping[str, str] = {}


@functools.cache
def read_links_file(path: Path) -> LinksFile:
    """One table."""
    return LinksFile.model_validate(yaml.load(path.read_text(encoding="utf-8"), Loader=_SAFE_LOADER))


def load_link_rates(
    accelerator_name: str, architecture: str, scale_up_kind: str, fabric_kind: str
) -> LinkRates:
    """Rates of a machine, from `links.yaml` or from its nearest kin there.

    Raises `UnknownNameError` for a kind of link that is not known.
    """
    published, fitted = read_links_file(PUBLISHED_FILE), read_links_file(LINKS_FILE)
    file = published.model_copy(update={"scale_up": published.scale_up + fitted.scale_up})
    return combine(*choose(file, accelerator_name, architecture, scale_up_kind, fabric_kind))


def choose(
    file: LinksFile, accelerator_name: str, architecture: str, scale_up_kind: str, fabric_kind: str
) -> tuple[ScaleUpEntry, FabricEntry, str]:
    """The entries nearest to a machine, and what they stand in for ("" when they are its own)."""
    kind = _known("scale-up link", scale_up_kind, file.scale_up_kinds)
    same_kind = [entry for entry in file.scale_up if entry.kind == kind and not entry.outlier]
    name, arch = _folded(accelerator_name), architecture.lower()
    own = [entry for entry in same_kind if _same_device(name, _folded(entry.accelerator))]
    # over PCIe a host decides, not its devices' generation: what three of four measured ones reach stands first
    similar = [entry for entry in same_kind if entry.architecture == arch and kind != "pcie"]
    scale_up = (own or similar or same_kind)[0]
    kin = []
    if not own or _leading_word(scale_up_kind) in _STAND_INS:
        kin.append(f"{scale_up.accelerator} {scale_up.kind} for {accelerator_name} {scale_up_kind}")
    fabric_name = _known("fabric", fabric_kind, file.fabric_kinds)
    fabric = fabric_of([entry for entry in file.fabric if entry.kind == fabric_name], accelerator_name, arch)
    if fabric.architecture not in ("", arch):
        kin.append(f"{fabric.kind} of {fabric.architecture} for that of {arch}")
    return scale_up, fabric, "; ".join(kin)


def fabric_of(entries: Sequence[FabricEntry], accelerator: str, architecture: str) -> FabricEntry:
    """The entry of a device, of its architecture or for all; the first where there is none. Of several hosts of one
    architecture (p5 and p5en of Hopper) each has its own network cards."""
    own = [e for e in entries if e.accelerator and _same_device(_folded(accelerator), _folded(e.accelerator))]
    similar = [e for e in entries if not e.accelerator and e.architecture == architecture]
    return (*own, *similar, *entries)[0]


def combine(scale_up: ScaleUpEntry, fabric: FabricEntry, kin: str) -> LinkRates:
    """One machine from its two links."""
    notes = [text for text in (scale_up.note, fabric.note) if text]
    return LinkRates(
        all_reduce=scale_up.all_reduce.rates(),
        all_gather=scale_up.all_gather.rates(),
        reduce_scatter=scale_up.reduce_scatter.rates(),
        all_to_all=scale_up.all_to_all.rates(),
        dispatch=scale_up.dispatch.rates(),
        p2p=scale_up.p2p.rates(),
        switch_floor=scale_up.switch_floor,
        fabric=fabric.rates(),
        source=f"{scale_up.source}; {fabric.source}",
        note="; ".join(notes),
        measured=scale_up.measured and fabric.measured and not kin,
        kin=kin,
        nvlink=scale_up.kind != "pcie",
    )


def _same_device(name: str, entry: str) -> bool:
    return bool(name) and (name.startswith(entry) or entry.startswith(name))


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("nvidia", "").replace("amd ", ""))


def _leading_word(kind: str) -> str:
    match = re.match(r"[a-z]+", re.sub(r"[ _-]", "", kind.lower()))
    return match.group(0) if match else ""


def _known(what: str, given: str, table: Mapping[str, str]) -> str:
    word = _leading_word(given)
    if word not in table:
        raise UnknownNameError(what, given, table)
    return table[word]
