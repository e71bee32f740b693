"""What is a rule? One named legality condition that masks a table of candidates and explains one of them.

Rules are shared by the frameworks (what their launcher accepts) and the space (what no framework can do).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from planner.spec.config import CODED, ContextKind, IntColumn, Mask, value_text
from planner.spec.job import AdapterTargets, Job, Optimizer
from planner.spec.listed import ByRecompute, Listed
from planner.spec.machine.cluster import Cluster
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.stack import Stack
from planner.spec.stack.kinds import ContextExchange

Columns = Mapping[str, IntColumn]
WHOLE_WEIGHTS: Final = 16  # bits
AMPERE: Final = 8  # major compute capability of the first devices with flash attention in bf16
# Widths of heads that PyTorch's flash attention takes (aten/native/transformers/cuda/sdp_utils.cpp).
FLASH_STEP, FLASH_WIDTH = 8, 256

_OF_A_STACK: Final = {
    ContextExchange.GATHERED_RING: ContextKind.P2P,
    ContextExchange.GATHER: ContextKind.ALL_GATHER,
    ContextExchange.ALL_TO_ALL: ContextKind.A2A,
}


def context_kinds_of(model: ModelSpec, stack: Stack) -> tuple[ContextKind, ...]:
    """What context parallelism of a model on a stack can exchange by, what it does unasked first."""
    exchange = stack.communication.cp_exchange
    return (_OF_A_STACK[exchange],) if exchange in _OF_A_STACK else model.context_kinds


@dataclass(frozen=True)
class Problem:
    """What is given: the subject of every question planner answers. The job says which of the model's layers are
    `wide`. `listed`: what the stack's software runs of the model, where it was read off."""

    model: ModelSpec
    cluster: Cluster
    job: Job
    stack: Stack
    listed: Listed | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.model.with_wide_ends(*self.job.bf16_layers))

    def lists(self, sharded: bool = False, tensor: bool = False) -> ByRecompute | None:
        """Lists of operations of the job's variant, where weights are `sharded` or not and ranks divide layers or not;
        None where they do not hold: for texts of several lengths, other precisions, frozen weights in
        fewer bits, adapters of other layers, heads that no flash kernel takes, and devices whose kernels PyTorch
        chooses otherwise none are captured."""
        job, chip = self.job, self.cluster.accelerator
        alike = job.mean_length is None and not job.packed and job.frozen_bits == WHOLE_WEIGHTS
        usual = chip.architecture.is_nvidia and chip.compute_major >= AMPERE
        usual &= all(
            a.head_dim % FLASH_STEP == 0 and a.head_dim <= FLASH_WIDTH for a in self.model.attentions
        )
        if job.lora_rank is not None:
            usual &= job.lora_targets is AdapterTargets.ALL_LINEAR
        half = job.precision in (Precision.BF16, Precision.FP16)
        if self.listed is None or not (alike and usual and half):
            return None
        return self.listed.of(self.stack.options, job.lora_rank is not None, sharded, tensor)

    def adapts(self, product: str, expert: bool) -> bool:
        """Has a product of a layer, as `cost/operations` names it, an adapter? Of an `expert` or a router where lists
        have it."""
        if not (expert or product == "router"):
            return self.job.adapts(product)
        return self.listed is not None and self.lists() is not None and self.listed.adapts_experts

    @property
    def widens_adapters(self) -> bool:
        """Are adapters and their states in fp32 where those of a whole model are in bf16? As lists have them (peft
        tuners/tuners_utils.py, `cast_adapter_dtype`)."""
        wide = self.listed is not None and self.listed.widens_adapters
        return wide and self.job.lora_rank is not None and self.stack.engine.pure_bf16

    @property
    def casts_listed(self) -> bool:
        """Do lists of operations hold the copies of weights that autocast makes?"""
        return self.listed is not None and self.lists() is not None and self.listed.casts(self.stack.options)

    @property
    def offloads(self) -> tuple[int, ...]:
        """What the stack can keep in the memory of hosts, `OFFLOAD_LABELS`; nothing where that is the devices'."""
        shared = self.cluster.accelerator.host_memory_shared
        return (0,) if shared else tuple(self.stack.limits.offload)

    @property
    def context_kinds(self) -> tuple[ContextKind, ...]:
        """What context parallelism can exchange by, what it does where p2p or nothing is asked for first."""
        return context_kinds_of(self.model, self.stack)

    @property
    def deals_matrices(self) -> bool:
        """Does the optimizer update whole matrices? Megatron-Core's Muon, and one on shards; others' are not costed."""
        megatron = self.stack.framework == "megatron" and self.stack.engine.deals_matrices
        costed = megatron or self.stack.engine.shards_matrices
        return costed and self.job.optimizer is Optimizer.MUON and self.job.lora_rank is None


_TOLD_AS: Final = {"num_microbatches": "micro-batches"}  # others by their own names


@dataclass(frozen=True)
class Rule:
    """A condition that a legal configuration meets.

    `needs`: the columns `legal` reads; the rule is applied as soon as they exist. None: the problem alone decides.
    `legal(columns, problem)`: True where the rule holds, one value per row; as a lambda of `c` and `p`.
    `must`: what must hold, as text with {axis} placeholders filled from the row and {fact} from `facts`.
    `hint`: what to do. `source`: where the rule is enforced or derived. `told`: whose values of the row are told
    behind what must hold. `unmodelled`: is it planner that lacks what the rule leaves out, which the framework runs?
    """

    id: str
    needs: tuple[str, ...]
    legal: Callable[[Columns, Problem], Mask]
    must: str
    hint: str
    source: str
    facts: Callable[[Problem], Mapping[str, object]] = lambda problem: {}
    told: tuple[str, ...] = ()
    unmodelled: bool = False

    @property
    def condition(self) -> str:
        """What must hold, of no row in particular: facts of the problem as <fact>."""
        given = re.sub(r"(?<=\w)(?:\{\w+\})+", "", self.must)  # ends of sentences that depend on the problem
        return re.sub(r"\{(\w+)[^}]*\}", r"<\1>", given)

    def holds(self, columns: Columns, problem: Problem) -> Mask:
        """Where the rule holds for every batch of the run. `columns`: micro-batches are those of the global batch."""
        held = self.legal(columns, problem)
        for earlier in self._earlier(columns, problem):
            held = held & self.legal(earlier, problem)
        return held

    def _earlier(self, columns: Columns, problem: Problem) -> Iterator[Columns]:
        """The columns as they are under the batches before the global one, where the rule is about micro-batches."""
        job = problem.job
        for batch in job.early_batches if "num_microbatches" in self.needs else ():
            number = columns["num_microbatches"].astype(np.int64) * batch // job.global_batch
            yield {**columns, "num_microbatches": number.astype(np.int32)}

    def explain(self, row: Mapping[str, int], problem: Problem) -> Violation:
        """Why this row breaks the rule, with its values."""
        named = {axis: value_text(axis, int(value)) for axis, value in row.items() if axis in CODED}
        values = {**row, **named, **self.facts(problem)}
        columns = {axis: np.array([value], dtype=np.int32) for axis, value in row.items()}
        broken = [one for one in self._earlier(columns, problem) if not self.legal(one, problem)[0]]
        if broken and self.legal(columns, problem)[0]:
            values["num_microbatches"] = int(broken[0]["num_microbatches"][0])
        must = self.must.format(**values)
        told = " ".join(f"{_TOLD_AS.get(name, name)}={values[name]}" for name in self.told)
        return Violation(self.id, f"{must}; {told}" if told else must, self.hint, must, self.unmodelled)


@dataclass(frozen=True)
class Violation:
    """One broken rule of one configuration. `must`: the reason without the configuration's values, where those stand
    apart in it. `unmodelled`: as the rule has it."""

    rule: str
    reason: str
    hint: str
    must: str = ""
    unmodelled: bool = False
