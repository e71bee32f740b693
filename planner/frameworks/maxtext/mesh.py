"""Which axes of MaxText's mesh are a configuration, and which part of each lies in a slice, which between slices?

Every axis is the product of an `ici_` size in a slice (of GPUs: an NVLink domain) and a `dcn_` size between them
(utils/maxtext_utils.py create_device_mesh). Weights are sharded over fsdp, context and expert, and over tensor; data
copies them; a batch is dealt over data, fsdp and expert (configs/base.yml logical_axis_rules). So data parallelism is
data x fsdp x expert, and a shard group fsdp x context x expert. Left out: meshes and rules of a user's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.dialect import option
from planner.errors import InputError
from planner.spec.config import Mask, ParallelConfig
from planner.spec.rule import Columns

# fastest first: the order in which planner numbers ranks, so that slices hold neighbours
ORDER: Final = ("tensor", "context", "expert", "fsdp", "data", "pipeline")
# axes of the mesh that mean the same to planner
ALIKE: Final = {"tensor": ("tensor", "tensor_sequence"), "fsdp": ("fsdp", "fsdp_transpose")}
# axes that planner does not model, and `sequence`, which is no axis of this release's mesh
UNKNOWN: Final = ("diloco", "sequence", "context_usp_ulysses", "context_autoregressive", "autoregressive")
REST: Final = -1  # the devices, or slices, that the other axes leave
UNSTATED: Final = {"ici_fsdp": REST, "dcn_data": REST}  # configs/base.yml; others are 1

Sizes = dict[str, int]
Whole = NDArray[np.int64]


def sizes_of(config: ParallelConfig) -> Sizes:
    """The axes of a configuration that the rules allow."""
    return {axis: int(size) for axis, size in axis_columns(config.__dict__).items()}


def axis_columns(c: Mapping[str, object] | Columns) -> dict[str, Whole]:
    """Sizes of the mesh's axes, fastest first, of every configuration; only where `is_mesh` holds they are whole."""
    tp, cp, pp, dp, ep, zero, hsdp = (
        np.asarray(c[name], dtype=np.int64) for name in ("tp", "cp", "pp", "dp", "ep", "zero", "hsdp")
    )
    group = np.where(zero == 3, np.where(hsdp > 0, hsdp, dp * cp), cp * ep)
    shards = np.maximum(group // np.maximum(cp * ep, 1), 1)
    copies = np.maximum(dp // np.maximum(ep * shards, 1), 1)
    return {"tensor": tp, "context": cp, "expert": ep, "fsdp": shards, "data": copies, "pipeline": pp}


def fills_slices(columns: Columns, domain: int) -> Mask:
    """Does every axis, in their order, fill whole slices of `domain` devices or lie in one?"""
    left = np.full(len(columns["tp"]), domain, dtype=np.int64)
    legal = np.ones(len(left), dtype=np.bool_)
    for size in axis_columns(columns).values():
        inside = left % size == 0
        legal &= inside | (size % left == 0)
        left = np.where(inside, left // size, 1)
    return legal


@dataclass(frozen=True)
class Mesh:
    """Sizes in a slice and between slices, by axis."""

    ici: Sizes
    dcn: Sizes

    @classmethod
    def of(cls, config: ParallelConfig, domain: int) -> Mesh | None:
        """The mesh of a configuration on slices of `domain` devices; None where an axis fills them in part."""
        ici, dcn, left = dict[str, int](), dict[str, int](), domain
        for axis, size in sizes_of(config).items():
            if left % size and size % left:
                return None
            ici[axis] = size if left % size == 0 else left
            dcn[axis] = size // ici[axis]
            left //= ici[axis]
        return cls(ici, dcn)

    def settings(self) -> Sizes:
        """Its sizes as settings, all of them, since some that are left out mean "the rest"."""
        return {
            f"{net}_{axis}_parallelism": sizes[axis]
            for net, sizes in (("ici", self.ici), ("dcn", self.dcn))
            for axis in reversed(ORDER)
        }

    @property
    def devices(self) -> int | None:
        """All devices; None where an axis takes the rest of them."""
        sizes = (*self.ici.values(), *self.dcn.values())
        return None if REST in sizes else prod(sizes)

    @property
    def sizes(self) -> Sizes:
        """Sizes of the axes in all, of a mesh that is filled."""
        return {axis: self.ici[axis] * self.dcn[axis] for axis in ORDER}

    def on(self, devices: int, domain: int) -> Mesh:
        """The mesh with the rest filled in, on so many devices in slices of `domain`. Raises `InputError`."""
        known = prod(size for size in self.ici.values() if size != REST)
        if REST not in self.ici.values():  # the files say how many a slice has
            domain = min(known, devices)
        slices = max(devices // max(domain, 1), 1)
        # of one slice MaxText does not look at the axes between slices
        return Mesh(_filled(self.ici, domain, "ici"), _filled(self.dcn, slices, "dcn"))


def _filled(sizes: Sizes, total: int, net: str) -> Sizes:
    if REST not in sizes.values():
        return sizes
    rest, over = divmod(total, prod(size for size in sizes.values() if size != REST))
    if over or not rest:
        what = "devices of a slice" if net == "ici" else "slices"
        must = f"the {net}_ axes that are stated must divide the {what}, {total}, one of them being the rest (-1)"
        given = ", ".join(f"{net}_{axis}_parallelism {size}" for axis, size in sizes.items() if size != 1)
        raise InputError(
            must, given, f"change an axis, or give the cluster and {option('gpus')} that the files are for"
        )
    return {axis: rest if size == REST else size for axis, size in sizes.items()}
