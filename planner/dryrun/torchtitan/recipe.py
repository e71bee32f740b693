"""Which of torchtitan's steps is run? Its own settings, as its launch files state them, of one rank.

Left out: how they follow from a configuration (`frameworks/torchtitan`), and how the step runs
(`step.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from planner.catalog.stack_options import SEPARATOR
from planner.dialect import option
from planner.dryrun.asked import Asked
from planner.dryrun.refused import (
    Refused,
    leave_out,
    other_optimizer,
    other_precision,
    refuse,
    stack_without,
    uneven_texts,
)
from planner.errors import UnsupportedError
from planner.frameworks.framework import Launch
from planner.frameworks.torchtitan.names import CLI, chunks_loss, compiles
from planner.frameworks.torchtitan.options import recompute_mode
from planner.frameworks.torchtitan.settings import settings_of
from planner.spec.attention import AttentionKind, QkNorm
from planner.spec.layer import Activation, Layer, NormKind
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision

EAGER: Final = "torchtitan-2026-eager"
_ANY_MODEL: Final = "transformers-2026"


@dataclass(frozen=True)
class TitanRecipe:
    """One rank's training step of a model that torchtitan builds, in torchtitan's words.

    `settings`: of its sections training and parallelism. `checkpointing`: none, selective or full. `chunks_loss`: is
    the head run with the loss, in parts of the sequence? `pipeline_rank`: of the rank that is run. `folds`: are
    micro-batches in flight that are like others written down without being run?
    """

    model: ModelSpec
    settings: Mapping[str, Mapping[str, Any]]
    checkpointing: str
    chunks_loss: bool
    ranks: int
    pipeline_rank: int = 0
    folds: bool = True

    @property
    def training(self) -> Mapping[str, Any]:
        """The section of batches and number formats."""
        return self.settings["training"]

    @property
    def parallelism(self) -> Mapping[str, Any]:
        """The section of degrees."""
        return self.settings["parallelism"]

    @property
    def stages(self) -> int:
        """Ranks of the pipeline."""
        return int(self.parallelism["pipeline_parallel_degree"])

    @property
    def micro_batch(self) -> int:
        """Sequences that run at once."""
        whole = self.training["local_batch_size"]
        return int(self.parallelism["pipeline_parallel_microbatch_size"] if self.stages > 1 else whole)

    @property
    def seq_len(self) -> int:
        """Tokens of a sequence."""
        return int(self.training["seq_len"])

    @property
    def num_microbatches(self) -> int:
        """Of one step and data-parallel rank."""
        parts = self.parallelism
        shares = parts["data_parallel_replicate_degree"] * parts["data_parallel_shard_degree"]
        return int(self.training["global_batch_size"]) // (shares * self.micro_batch)

    def sized(self, micro_batch: int, seq_len: int) -> TitanRecipe:
        """The same with other micro-batches and sequences, as many of them as before."""
        training = dict(self.training) | {"seq_len": seq_len}
        parallelism = dict(self.parallelism)
        for name in ("local_batch_size", "global_batch_size"):
            training[name] = training[name] // self.micro_batch * micro_batch
        if self.stages > 1:
            parallelism["pipeline_parallel_microbatch_size"] = micro_batch
        return replace(self, settings={"training": training, "parallelism": parallelism})

    @property
    def rank(self) -> int:
        """Number of the rank that is run: the first of its stage."""
        return self.pipeline_rank * (self.ranks // self.stages)

    def roles(self) -> tuple[tuple[int, TitanRecipe], ...]:
        """Ranks that differ, by number: the first stage's, the last one's, and of those between the one that has most
        micro-batches in flight, which is the first of them."""
        stages = sorted({0, min(1, self.stages - 1), self.stages - 1})
        each = (replace(self, pipeline_rank=stage) for stage in stages)
        return tuple((one.rank, one) for one in each)


def titan_recipe(asked: Asked) -> TitanRecipe:
    """What torchtitan runs of a configuration. Raises `UnsupportedError` for what is not run."""
    if asked.estimate is None:
        must = "a dry run of torchtitan needs a model that planner can read"
        raise UnsupportedError(must, asked.name, f"{option('stack', _ANY_MODEL)} runs it")
    return launched_recipe(asked.launch())


def launched_recipe(launch: Launch) -> TitanRecipe:
    """The same of what its files would be written from. Raises `UnsupportedError`."""
    _check(launch)
    settings = settings_of(launch, CLI)
    return TitanRecipe(
        model=launch.model,
        settings={name: settings[name] for name in ("training", "parallelism")},
        checkpointing=recompute_mode(launch),
        chunks_loss=chunks_loss(launch),
        ranks=launch.devices,
    )


def _check(launch: Launch) -> None:
    """Refuse by name what is not run. Raises `UnsupportedError`."""
    config, job = launch.config, launch.job
    stack = launch.stack.name if launch.stack is not None else ""
    compiled = compiles(launch)
    options = stack.split(SEPARATOR)[1:]
    refused = [
        Refused(f"the stack {stack}, which compiles its layers", compiled, option("stack", EAGER)),
        Refused(
            f"the options {', '.join(options)}",
            bool(options),
            option("stack", EAGER) if compiled else stack_without(stack, options),
        ),
        Refused(f"context parallelism of {config.cp}", config.cp > 1, option("set", "cp=1")),
        other_optimizer(job),
        other_precision(job, Precision.BF16),
        Refused("LoRA", job.lora_rank is not None, leave_out("lora_rank")),
        Refused("offload", bool(config.offload), option("set", "offload=none")),
        Refused("CUDA graphs", bool(config.cuda_graph_impl), option("set", "cuda_graph_impl=none")),
        uneven_texts(job),
        Refused(
            f"the schedule {launch.schedule.label}, which splits the backward pass",
            launch.schedule.label in ("zb-h1", "zb-v", "dualpipev"),
            option("set", "schedule=1f1b"),
        ),
        Refused(
            f"the model {launch.model.name}, which is none of these",
            family_of(launch.model) is None,
            f"{option('stack', _ANY_MODEL)} runs it",
        ),
    ]
    must = (
        "a dry run of torchtitan runs its Llama 3, Qwen 3 and DeepSeek-V3, eager, under FSDP2, tensor, expert and "
        "pipeline parallelism: AdamW in bf16"
    )
    refuse(must, refused)


def family_of(model: ModelSpec) -> str | None:
    """Which of torchtitan's models has these dimensions, by the name of its module; None: none."""
    plain = model.norm_kind is NormKind.RMS and model.final_norm and not model.position_rows
    whole = plain and not model.head_bias and not model.mtp_layers and model.embedding_width == model.hidden
    families = {_family(layer) for layer in model.layers}
    if not whole or len(families) != 1:
        return None
    family = families.pop()
    expected = sorted(model.layers, key=lambda layer: layer.moe is not None)
    return family if family != "deepseek_v3" or expected == list(model.layers) else None


def _family(layer: Layer) -> str | None:
    attention, part = layer.attention, layer.mlp or layer.moe
    if attention is None or part is None or layer.norms != 2 or layer.parallel or layer.then is not None:
        return None
    odd = attention.qkv_bias or attention.out_bias or attention.window is not None or attention.sinks
    if (
        odd
        or attention.output_gate
        or attention.indexer is not None
        or part.activation is not Activation.SILU
    ):
        return None
    if not part.gated or (layer.moe is not None and (layer.moe.shared_gate or layer.moe.router_bias)):
        return None
    if attention.kind is AttentionKind.MLA:
        return "deepseek_v3"
    if attention.qk_norm is QkNorm.HEAD and (layer.moe is None or not layer.moe.shared_ffn):
        return "qwen3"
    return "llama3" if attention.qk_norm is QkNorm.NONE and layer.moe is None else None
