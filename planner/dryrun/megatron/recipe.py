"""Which step does a question about Megatron mean? The arguments that `planner export` writes for Megatron-LM.

Left out: what the arguments mean to Megatron-Core (`settings.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from planner.dialect import option
from planner.dryrun.asked import Asked
from planner.dryrun.refused import Refused, leave_out, other_optimizer, other_precision, refuse, uneven_texts
from planner.errors import UnsupportedError
from planner.frameworks.framework import Launch
from planner.frameworks.megatron.arguments import option_groups
from planner.frameworks.megatron.parse_model import pattern
from planner.spec.config import OFFLOAD_LABELS, CudaGraphs, ParallelConfig
from planner.spec.precision import Precision
from planner.spec.stack.kinds import AttentionKernel

RELEASE: Final = "0.16.1"  # of Megatron-Core, which is run
_GROUPS: Final = ("MODEL", "PARALLEL", "MEMORY", "KERNELS")
_FLASH: Final = (AttentionKernel.FLASH, AttentionKernel.FLASH_2, AttentionKernel.FLASH_TRITON)
_ANY_MODEL: Final = "transformers-2026"


@dataclass(frozen=True)
class MegatronRecipe:
    """A training step on a pipeline of Megatron-Core.

    `arguments`: of Megatron-LM, with their words. `chunks`: layers of every chunk, chunk i on rank i mod pp.
    `experts_in`: of each layer, 1 where it has experts and 0 elsewhere; empty where no layer has.
    """

    name: str
    arguments: Mapping[str, tuple[str, ...]]
    config: ParallelConfig
    chunks: tuple[int, ...]
    experts_in: tuple[int, ...]
    vocabulary: int
    """With the rows that make it divisible."""
    micro_batch: int
    seq_len: int
    num_microbatches: int
    rank: int = 0
    """Of the pipeline, which is run."""

    @property
    def first_device(self) -> int:
        """Number of the first device that holds the rank's layers."""
        return self.rank * (self.devices // self.config.pp)

    @property
    def devices(self) -> int:
        """How many there are in all."""
        return self.config.tp * self.config.cp * self.config.pp * self.config.dp

    def sized(self, micro_batch: int, seq_len: int) -> MegatronRecipe:
        """The same with other micro-batches and sequences."""
        return replace(self, micro_batch=micro_batch, seq_len=seq_len)

    def roles(self) -> tuple[tuple[int, MegatronRecipe], ...]:
        """Pipeline ranks that differ by more than in how many micro-batches are in flight, each as the first of its
        devices: of those that hold the same layers, the first, which has most."""
        pp, found = self.config.pp, dict[tuple[object, ...], int]()
        starts = [sum(self.chunks[:chunk]) for chunk in range(len(self.chunks))]
        for rank in range(pp):
            own = range(rank, len(self.chunks), pp)
            layers = tuple(
                self.experts_in[starts[chunk] : starts[chunk] + self.chunks[chunk]] or self.chunks[chunk]
                for chunk in own
            )
            found.setdefault((rank == 0, rank == pp - 1, layers), rank)
        each = (replace(self, rank=rank) for rank in found.values())
        return tuple((one.first_device, one) for one in each)

    @property
    def run_microbatches(self) -> int:
        """Of those of a step, how many are run: until the rank has had most in flight, and one more.

        1F1B has pp - rank in flight; interleaved, whose micro-batches come in groups of pp, less than those of two.
        Of those that are not run the reported losses are missing, some 1.5 KiB each on the last rank.
        """
        pp, vpp = self.config.pp, self.config.vpp
        return min(self.num_microbatches, 2 * pp if vpp > 1 else pp - self.rank + 1)


def megatron_recipe(asked: Asked) -> MegatronRecipe:
    """What Megatron-Core runs of a configuration. Raises `UnsupportedError` for what is not run."""
    if asked.estimate is None:
        must = "a dry run of Megatron needs a model that planner has a reader for"
        raise UnsupportedError(must, asked.name, f"{option('stack', _ANY_MODEL)} runs it")
    return launched_recipe(asked.launch())


def launched_recipe(launch: Launch) -> MegatronRecipe:
    """The same of what its files would be written from. Raises `UnsupportedError`."""
    _check(launch)
    groups = option_groups(launch, RELEASE)
    arguments = {words[0]: words[1:] for group in _GROUPS for words in groups[group]}
    multiple = launch.pad_vocabulary * launch.config.tp
    freq = arguments.get("--moe-layer-freq", ("1",))[0]
    return MegatronRecipe(
        name=launch.model.name,
        arguments=arguments,
        config=launch.config,
        chunks=launch.chunks,
        experts_in=tuple(pattern(freq, launch.model.num_layers)) if launch.model.is_moe else (),
        vocabulary=-(-launch.model.vocab // multiple) * multiple,
        micro_batch=launch.config.micro_batch,
        seq_len=launch.job.seq_len,
        num_microbatches=launch.config.num_microbatches,
    )


def _check(launch: Launch) -> None:
    """Refuse by name what is not run. Raises `UnsupportedError`."""
    stack = launch.stack
    assert stack is not None, "of a problem"
    newest = option("stack", "megatron")
    model, config, job, kernels = launch.model, launch.config, launch.job, stack.kernels
    other = f"{option('stack', _ANY_MODEL)} runs it"
    refused = [
        other_precision(job, Precision.BF16),
        other_optimizer(job),
        uneven_texts(job),
        Refused(f"context parallelism (cp={config.cp})", config.cp > 1, option("set", "cp=1")),
        Refused(f"zero={config.zero}, which is Megatron-FSDP", config.zero > 1, option("set", "zero=1")),
        Refused(
            f"offload ({'+'.join(k for k, v in OFFLOAD_LABELS.items() if v == config.offload)})", config.offload > 0,
            option("set", "offload=none"),
        ),
        Refused("CUDA graphs", config.cuda_graph_impl != CudaGraphs.NONE, option("set", "cuda_graph_impl=none")),
        Refused(
            f"attention of the stack {stack.name}, which writes scores out", kernels.attention not in _FLASH, newest),
        Refused("dropout", kernels.dropout, newest),
        Refused("LoRA", job.lora_rank is not None, leave_out("lora_rank")),
        Refused("copies of experts", bool(job.expert_replicas), leave_out("expert_replicas")),
        Refused("activations kept in 8 bits", kernels.kept_widths.narrow, newest),
        Refused("state spaces and delta nets", bool(model.state_spaces), other),
        Refused("sparse attention", bool(model.indexers) or model.gathers_keys, other),
        Refused("multi-token prediction", model.mtp_layers > 0, leave_out("mtp")),
    ]  # fmt: skip
    must = (
        f"a dry run of Megatron runs Megatron-Core {RELEASE}'s own layers: AdamW in bf16, attention by a flash "
        "kernel, tensor, pipeline, sequence and expert parallelism, the distributed optimizer"
    )
    refuse(must, refused)
