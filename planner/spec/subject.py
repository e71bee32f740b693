"""What was a plan asked about? Model, cluster, job and stack as a plan file holds them.

Left out: the answer (`planfile.py`).
"""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from typing import Any, Final, Self

from pydantic import Field

from planner.errors import UnknownNameError
from planner.spec.job import AdapterTargets, Job, Optimizer, length_in_words
from planner.spec.machine.cluster import Cluster
from planner.spec.precision import Precision
from planner.spec.record import Record

LARGEST: Final = 2**30  # of counts: columns of candidates hold 32-bit numbers


class ModelFacts(Record):
    """The model the plan is for."""

    name: str
    family: str
    source: str = Field(description="catalog name or file the model was read from")
    params_total: int = Field(description="parameters, all experts counted [1]")
    params_active: int = Field(description="parameters one token passes through [1]")
    layers: int = Field(description="transformer layers [1]")
    described: dict[str, Any] = Field(
        default_factory=dict,
        description="fields of the file it was read from; empty for the catalog's models",
    )


class TierFacts(Record):
    """One level of links."""

    name: str
    kind: str
    devices: int = Field(ge=1, description="accelerators in one domain of it [1]")
    bandwidth: float = Field(
        gt=0, description="per direction and device when all send beyond the level below at once [bytes/s]"
    )


class ClusterFacts(Record):
    """The cluster the plan is for."""

    name: str
    accelerator: str
    devices: int = Field(ge=1, le=LARGEST, description="accelerators used [1]")
    devices_per_node: int = Field(ge=1, le=LARGEST, description="accelerators of one host [1]")
    scale_up_domain: int = Field(
        ge=1, le=LARGEST, description="accelerators joined by the fast fabric (NVLink) [1]"
    )
    memory_per_device: float = Field(gt=0, description="capacity of one accelerator [bytes]")
    source: str
    tiers: tuple[TierFacts, ...] = Field((), description="levels of links, innermost first")
    unverified: tuple[str, ...] = Field((), description="quantities that come unverified (no source)")
    described: dict[str, Any] = Field(
        default_factory=dict, description="keys of the user's own file; empty for shipped ones and shorthands"
    )

    @classmethod
    def of(cls, cluster: Cluster) -> Self:
        """The record of a cluster."""
        return cls(
            name=cluster.name,
            accelerator=cluster.accelerator.name,
            devices=cluster.num_devices,
            devices_per_node=cluster.devices_per_node,
            scale_up_domain=cluster.scale_up_domain,
            memory_per_device=cluster.accelerator.memory,
            source=cluster.source,
            tiers=tuple(
                TierFacts(name=t.name, kind=t.kind, devices=t.size, bandwidth=t.bandwidth)
                for t in cluster.tiers
            ),
            unverified=cluster.unverified,
            described=dict(cluster.described),
        )


class JobFacts(Record):
    """What is trained."""

    seq_len: int = Field(
        ge=1, le=LARGEST, description="tokens in a sequence, in the longest where `mean_length` is stated [1]"
    )
    global_batch: int = Field(ge=1, le=LARGEST, description="sequences in one optimizer step [1]")
    precision: str
    optimizer: str
    tokens: float | None = Field(None, gt=0, description="tokens of the whole run, if known [1]")
    tokens_per_step: float = Field(gt=0, description="tokens in one optimizer step [1]")
    lora_rank: int | None = Field(
        None, ge=1, le=LARGEST, description="of adapters on a frozen model; absent: full training"
    )
    frozen_bits: int = Field(16, description="of a frozen weight [bits]")
    lora_targets: str = Field("all-linear", description="linear layers with adapters")
    mean_length: float | None = Field(None, ge=1, description="tokens of a sequence on average [1]")
    packed: bool = Field(False, description="several sequences put end to end into one of `seq_len`")
    expert_imbalance: float | tuple[tuple[int, float], ...] = Field(
        1.0, description="tokens of the busiest rank over the mean, at (expert-parallel degree, factor) [1]"
    )
    expert_replicas: int = Field(
        0, ge=0, le=LARGEST, description="of all experts of a layer in all; 0: each once [1]"
    )
    bf16_layers: tuple[int, int] = Field(
        (0, 0),
        description="at the start and at the end of the model, kept in bf16 by an 8- or 4-bit recipe [1]",
    )
    critical_batch: float | None = Field(
        None, gt=0, description="stated: beyond it a batch takes more tokens to the same loss [1]"
    )
    batch_schedule: tuple[tuple[int, float], ...] = Field(
        (), description="smaller batches at the start: (sequences, tokens of the run at which it ends) [1]"
    )
    checkpoint_staged: bool = Field(
        True, description="checkpoints wait in host memory on their way to storage, training does not"
    )

    @classmethod
    def of(cls, job: Job) -> Self:
        """The record of a job."""
        held = {field.name: getattr(job, field.name) for field in fields(job)}
        return cls(**held, tokens_per_step=job.tokens_per_step)

    def lengths(self, unit: str = " tokens") -> str:
        """How long the sequences are, in words."""
        return length_in_words(self.seq_len, self.mean_length, self.packed, unit)

    def job(self) -> Job:
        """The job this record describes. Raises `InputError`."""
        held = {field.name: getattr(self, field.name) for field in fields(Job)}
        for name, kinds in _NAMED.items():
            try:
                held[name] = kinds(held[name])
            except ValueError:
                what = name.replace("_", " ")
                raise UnknownNameError(what, held[name], [str(kind) for kind in kinds]) from None
        return Job(**held)


_NAMED: Final[dict[str, type[StrEnum]]] = {
    "precision": Precision, "optimizer": Optimizer, "lora_targets": AdapterTargets,
}  # fmt: skip


class StackFacts(Record):
    """The training software the prediction is for."""

    name: str
    framework: str
    released: str
    description: str


class Subject(Record):
    """What was asked about."""

    model: ModelFacts
    cluster: ClusterFacts
    job: JobFacts
    stack: StackFacts
