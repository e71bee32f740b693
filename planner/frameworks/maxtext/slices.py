"""Does a mesh lie on the slices that there are: as many devices, whole axes of their torus, the devices it is for?

JAX lays the axes of a slice over whole axes of its torus, and divides one of these only where
allow_split_physical_axes says so (jax 0.10.2 mesh_utils.create_device_mesh, which utils/maxtext_utils.py
create_device_mesh calls with that setting, false in configs/base.yml). Left out: twisted tori, sub-slices, and TPUs
before v4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Final

from planner.frameworks.maxtext.mesh import REST
from planner.frameworks.maxtext.names import ELSEWHERE, Hardware
from planner.spec.machine.accelerator import Architecture
from planner.spec.machine.load_cluster import load_accelerator
from planner.spec.machine.torus import Torus
from planner.spec.rule import Problem, Violation

SPLIT: Final = "allow_split_physical_axes"
# axes of the mesh as JAX assigns them, the last of mesh_axes (configs/base.yml) first
ASSIGNED: Final = (
    "expert", "tensor_sequence", "tensor", "context", "fsdp_transpose", "fsdp", "pipeline", "data",
)  # fmt: skip
# small slices that JAX orders as rings, whatever the axes (mesh_utils.device_kind_handler_dict)
_TRAYS: Final = ((2, 2), (2, 4), (2, 2, 2))
_RINGS: Final = {"tpu-v5e": _TRAYS, "tpu-v6e": _TRAYS, "tpu-v5p": ((2, 2, 2),)}
Said = tuple[tuple[Violation, ...], tuple[str, ...]]


def split_axis(sizes: Iterable[tuple[str, int]], shape: tuple[int, ...]) -> str | None:
    """The first axis that is no product of whole axes of the torus that are left, None where all are.

    1. Axes are assigned one after the other, each to as many whole axes of the torus as have its size together;
    2. none is taken back: 4, 2, 2 on 4 x 2 x 2 gives both axes of 2 to the first.
    Source: jax 0.10.2 mesh_utils._create_device_mesh_for_nd_torus.
    """
    left = list(shape)
    for name, size in sizes:
        if size == 1:
            continue
        taken = next(
            (
                chosen
                for count in range(len(left), 0, -1)
                for chosen in combinations(range(len(left)), count)
                if prod(left[i] for i in chosen) == size
            ),
            None,
        )
        if taken is None:
            return name
        left = [0 if i in taken else length for i, length in enumerate(left)]
    return None


def split_on(sizes: Mapping[str, int], accelerator: str, torus: Torus) -> str | None:
    """The axis of a slice's mesh for which an axis of its torus must be divided."""
    lengths = tuple(sorted(length for length in torus.shape if length > 1))
    if lengths in _RINGS.get(accelerator, ()):
        return None
    return split_axis([(axis, sizes.get(axis, 1)) for axis in ASSIGNED], torus.shape)


def is_usual(slice_: Torus, accelerator: str, devices: int) -> bool:
    """Is it the slice of so many devices that is lent where no shape is asked for?"""
    whole = load_accelerator(accelerator).torus
    lent = whole.holding(devices) if whole is not None else None
    return lent is not None and sorted(lent.shape) == sorted(slice_.shape)


@dataclass(frozen=True)
class Stated:
    """What files say of the devices they are for: sizes of the mesh's own axes in a slice, how many slices (0 where
    that is left open), whether axes of a torus may be divided, `hardware`, and whether checkpoints are written."""

    ici: Mapping[str, int]
    slices: int
    split: bool
    hardware: str
    checkpoints: bool

    def on(self, problem: Problem) -> Said:
        """What MaxText's start refuses of them on a cluster, and notes."""
        if problem.cluster.accelerator.architecture in ELSEWHERE:
            return (), ()
        refused, notes = _drives(self, problem)
        cluster = problem.cluster
        whole = min(cluster.scale_up_domain, cluster.num_devices)
        known = prod(size for size in self.ici.values() if size != REST)
        sizes = {axis: whole // known if size == REST else size for axis, size in self.ici.items()}
        devices, torus = prod(sizes.values()), cluster.tiers[0].torus
        if devices != whole:
            others = devices < whole and self.slices > 1 and devices * self.slices == cluster.num_devices
            part = torus.holding(devices) if torus is not None else None
            if not others or (torus is not None and part is None):
                return (*refused, _of_another_size(sizes, devices, whole)), notes
            said = (
                f"the files are for {self.slices} slices of {devices} devices, and are costed on {whole} that are "
                "joined: domain of a cluster file says how many a slice has"
            )
            notes = (*notes, said)
            torus = part
        if torus is None:
            return refused, notes
        split = split_on(sizes, cluster.accelerator.name, torus)
        if split is not None and not self.split:
            return (*refused, _divides(split, sizes[split], torus)), notes
        if split is None and self.split:
            notes = (
                *notes,
                f"{SPLIT} changes nothing: every axis lies on whole axes of the slice, {torus.described}",
            )
        return refused, notes


def _of_another_size(sizes: Mapping[str, int], devices: int, whole: int) -> Violation:
    said = " ".join(f"ici_{axis}_parallelism={size}" for axis, size in sizes.items() if size != 1) or "all 1"
    return Violation(
        "slice-size",
        f"the ici_ axes must be the devices of a slice (an NVLink domain of GPUs), {whole}: their product is "
        f"{devices}; {said}",
        "set one ici_ axis to -1, or name the cluster whose slices the files are for and their number by a dcn_ axis",
    )


def _divides(axis: str, size: int, torus: Torus) -> Violation:
    return Violation(
        "whole-torus-axes",
        f"ici_{axis}_parallelism must be a product of whole axes of the slice, {torus.described}, that no axis of more "
        f"traffic takes, unless {SPLIT} is true; it is {size}",
        f"set {SPLIT}: true",
    )


def _drives(stated: Stated, problem: Problem) -> Said:
    """How hosts find one another is what `hardware` says (utils/max_utils.py maybe_initialize_jax_distributed_system):
    JAX itself takes the devices that there are."""
    tpus = problem.cluster.accelerator.architecture is Architecture.TPU
    right = (Hardware.TPU,) if tpus else (Hardware.GPU, "gpu_multiprocess")
    if stated.hardware in right:
        return (), ()
    name, hint = problem.cluster.accelerator.name, f"set hardware: {right[0]}"
    reason = f"hardware must be {' or '.join(right)} on {name}; it is {stated.hardware}"
    if tpus or stated.hardware != Hardware.TPU or problem.cluster.num_nodes == 1:
        return (), (f"{reason}, by which MaxText chooses how hosts meet and which kernels run: {hint}",)
    if stated.checkpoints:
        why = "no coordinator's address is read (JAX_COORDINATOR_IP): hosts meet under a scheduler that JAX knows alone"
        return (), (f"{reason}, with which {why}; {hint}",)
    why = "hosts never meet: without checkpoints TPUs need no coordinator, and each host of GPUs would train alone"
    return (Violation("hardware", f"{reason}, with which {why}", hint),), ()
