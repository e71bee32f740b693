"""Which messages does a rank of one configuration send in a step: along which axis, how large, how often?

The messages of the cost (`cost/messages`) for a table of one configuration, one stage at a time. Left out: what no term
of a step counts, but for gathers that run under products: norms of gradients, logged losses, the vocabulary-parallel
embedding and loss, checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.engines.zero3_gathers import Module, module_settings, modules_of, released, turning_share
from planner.cost.engines.zero3_gathers import reductions as reductions_of
from planner.cost.messages.context import context_messages
from planner.cost.messages.data import (
    StageLoad,
    bucket_message,
    data_messages,
    embedding_message,
    module_messages,
)
from planner.cost.messages.data_parallel import rounds
from planner.cost.messages.experts import expert_messages
from planner.cost.messages.message import HiddenBy, Message, SentMessage, merged
from planner.cost.messages.pipeline import boundary_messages, gathers_behind_boundary
from planner.cost.messages.tensor import momentum_message, tensor_messages
from planner.cost.model import CostModel
from planner.cost.network.collectives import CollectiveKind
from planner.cost.network.traffic import boundary_tier, pipeline_links
from planner.cost.pipeline.stages import largest
from planner.cost.prepared import PreparedCosts
from planner.cost.selective import OPERATIONS
from planner.cost.shards import mean_units
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ParallelConfig
from planner.spec.layer import Layer
from planner.spec.stack.engines import DeepSpeed

Array = NDArray[np.float64]

_MOE: Final = 1 << RECOMPUTE_MODULES.index("moe")


def step_messages(model: CostModel, config: ParallelConfig, stage: int) -> tuple[SentMessage, ...]:
    """Everything that a rank of pipeline stage `stage` sends in a step; axes of degree 1 send nothing."""
    return StepMessages.of(model, config).of_stage(stage)


@dataclass(frozen=True)
class StepMessages:
    """Those of one configuration. `prepared`: its costs, of the only row of a table."""

    model: CostModel
    config: ParallelConfig
    prepared: PreparedCosts

    @classmethod
    def of(cls, model: CostModel, config: ParallelConfig) -> StepMessages:
        """The messages of a configuration, as the cost deals layers."""
        return cls(model, config, model.prepare(ConfigTable.of([config])))

    def of_stage(self, stage: int) -> tuple[SentMessage, ...]:
        """Everything that a rank of pipeline stage `stage` sends in a step; axes of degree 1 send nothing."""
        found: list[SentMessage] = []
        m, layers = self.config.num_microbatches, self.layers(stage)
        for kind, layer in enumerate(self.model.problem.model.layer_kinds):
            if layers[kind]:
                again = m * float(self._recomputed(stage)[kind])
                found += self._of_layer(layer, m * float(layers[kind]), again)
        found += self._of_pipeline(stage)
        found += self._of_data_parallel(stage)
        found += self._of_update(stage)
        return merged(found)

    def layers(self, stage: int) -> Array:
        """Layers of a stage by kind (K,) [1]."""
        return np.asarray(self.prepared.classes.layers[0, self.class_of(stage)])

    def class_of(self, stage: int) -> int:
        """The class of stages that it is in."""
        members = self.prepared.classes.members[0]
        return next(j for j, ranks in enumerate(members) if stage in ranks)

    @property
    def stages(self) -> tuple[int, ...]:
        """One stage of every class."""
        return tuple(ranks[0] for ranks in self.prepared.classes.members[0] if ranks)

    @property
    def keys(self) -> ConfigTable:
        """The table of one."""
        return self.prepared.stems

    def _recomputed(self, stage: int) -> Array:
        """Recomputed layers of a stage by kind (K,) [1]."""
        leading = self.prepared.classes.leading[0, self.class_of(stage)]
        return np.asarray(leading[min(self.config.recompute_layers, len(leading) - 1)])

    def _of_layer(self, layer: Layer, passes: float, again: float) -> Iterator[SentMessage]:
        """Messages of layers of one kind: `passes` forward and backward passes, `again` repeated forward ones."""
        if layer.then is not None:
            for block in layer.blocks:
                yield from self._of_layer(block, passes, again)
            return
        problem, rates, keys = self.model.problem, self.model.links, self.keys
        x, modules = self.model.layers.shape(keys, layer), self.config.recompute_modules
        for one in tensor_messages(problem, rates, layer, x):
            # what a reduce-scatter returned is kept
            kept = one.kind is not CollectiveKind.ALL_GATHER or one.hidden_by is not HiddenBy.PRODUCTS
            operations = 0.0 if kept or not modules & OPERATIONS else passes
            yield one.times(passes + again + operations, passes)
        for one in context_messages(problem, rates, layer, x, keys["cp_kind"]):
            yield one.times(passes + again, passes)
        for one in expert_messages(problem, rates, layer, x):
            yield one.times(passes + (passes if modules & _MOE else again), passes)

    def _of_pipeline(self, stage: int) -> Iterator[SentMessage]:
        c = self.config
        if c.pp == 1:
            return
        m = c.num_microbatches
        one = self.boundary(stage)
        ahead, back = (c.vpp - (stage == c.pp - 1)) * m, (c.vpp - (stage == 0)) * m
        yield one.times(ahead, 0.0)
        yield replace(one, what="their_gradients").times(0.0, back)
        # a stage gathers what it receives: activations but for the first chunk, gradients but for the last
        for gather in gathers_behind_boundary(self.model.problem, self.model.links, self.keys):
            yield gather.times(back, ahead)

    def boundary(self, stage: int) -> Message:
        """What a stage sends the next, the last what it sends the one before."""
        c = self.config
        problem, width = self.model.problem, c.tp * c.cp * c.dp
        tier = boundary_tier(min(stage, c.pp - 2), width, problem.cluster)
        links = pipeline_links(float(width), float(c.pp), problem.cluster)
        return boundary_messages(problem, self.model.links, self.keys, links)[tier]

    def _of_data_parallel(self, stage: int) -> Iterator[SentMessage]:
        """Gradients and weights; in every micro-batch where the cost counts them so (`rounds`)."""
        problem, rates, keys = self.model.problem, self.model.links, self.keys
        batch = self.prepared.by_stem.batch(keys, slice(0, 1), memory=False)
        often, longer = rounds(batch.data), float(batch.longer[0])
        reductions, gathers, regathers = (
            float(number[0]) for number in (often.reductions, often.gathers, often.regathers)
        )
        copies, load = self.prepared.classes.copies[:1], self._load(stage)
        modules = module_settings(problem.stack) if self.config.zero >= 3 else None
        if modules is not None:
            yield from self._of_modules(stage, load, modules, reductions)
        else:
            sent = data_messages(problem, rates, keys, copies, load)
            whole = bool(problem.stack.engine.reduces_whole(batch.data.zero)[0])
            for one in sent.reduce if whole else sent.scatter:
                yield replace(one, factor=longer * one.factor).times(0.0, reductions)
            for one in sent.gather:
                yield replace(one, factor=longer * one.factor).times(gathers, regathers)
        if self.prepared.shards.copied[0] > 0 and stage in (0, self.config.pp - 1):
            copied = self.model.shards.copied_embedding(keys["tp"].astype(float))
            yield embedding_message(problem, rates, keys, copied).times(0.0, 1.0)

    def _of_update(self, stage: int) -> Iterator[SentMessage]:
        """Momentum of whole matrices, of which a mean rank updates its part (`cost.muon`)."""
        muon, classes, keys = self.model.layers.muon, self.prepared.classes, self.keys
        if muon is None:
            return
        t, c, d, e, et = (keys[axis].astype(float) for axis in ("tp", "cp", "dp", "ep", "etp"))
        replicas = classes.copies[:1] * c * d
        for kind, count in zip(muon.kinds, classes.copies[0] * self.layers(stage), strict=True):
            for one in (matrix for matrix in kind if matrix.divided):
                held, ranks = (count / e, t * replicas / (e * et)) if one.expert else (count, replicas)
                shared = ranks if self.config.zero else 1.0
                sent = momentum_message(
                    self.model.problem, self.model.links, one.elements, et if one.expert else t, one.expert
                )
                yield sent.times(0.0, float(np.asarray(one.count * held / shared).item()))

    def _load(self, stage: int) -> StageLoad:
        """What a stage holds, of which the cost has the heaviest."""
        prepared, of_stage = self.prepared, self.class_of(stage)
        shards, classes, model = prepared.shards, prepared.classes, self.model.shards
        held = classes.copies[:1, None] * classes.layers[:1].sum(axis=2)
        sent = model.gathered_bytes(self.keys, shards.dense, shards.expert, shards.outer, shards.wide)
        stays = model.staying_bytes(sent, shards.outer, shards.head, held)
        trained = shards.dense, shards.expert
        if self.model.problem.job.lora_rank is not None:
            trained = shards.adapters, 0.0 * shards.expert
        repeated = sent[0] - stays[0], sent[1] - stays[1]
        of_trained, of_sent, of_repeated = (
            (part[0][:, of_stage], part[1][:, of_stage]) for part in (trained, sent, repeated)
        )
        units = mean_units(classes, classes.of_row[:1])
        return StageLoad(of_trained, of_sent, of_repeated, units, shards.padding)

    def _of_modules(
        self, stage: int, load: StageLoad, settings: DeepSpeed, reductions: float
    ) -> Iterator[SentMessage]:
        """Weights that ZeRO 3 gathers module by module, forward, again for the backward pass, and a third time what
        recomputation frees, and gradients in buckets (`cost.engines.zero3_gathers`)."""
        problem, rates, keys = self.model.problem, self.model.links, self.keys
        shards, copies = self.prepared.shards, self.prepared.classes.copies[:1]
        reuse, whole = settings.reuse_distance, shards.dense + shards.expert
        sent = self.model.shards.gathered_bytes(keys, shards.dense, shards.expert, shards.outer, shards.wide)
        width = (sent[0] + sent[1]).sum(axis=1) / whole.sum(axis=1)
        plain, recomputed = (float(turning_share(largest(whole), reuse, again)[0]) for again in (False, True))
        repeated = float(self._recomputed(stage).sum() / max(self.layers(stage).sum(), 1.0))
        turned = (1.0 - repeated) * plain + repeated * recomputed
        held = self._modules(stage, reuse)
        messages = module_messages(problem, rates, keys, copies, [one for one, _, _ in held], width)
        number = self.config.num_microbatches * float(copies[0])
        for one, (_, count, freed) in zip(messages, held, strict=True):
            yield one.times(number * count, number * (count * (1.0 - turned) + freed))
        trained = load.trained[0] + load.trained[1]
        modules = np.array([sum(count * one.repeats for one, count, _ in held)])
        calls = reductions_of(trained, modules, settings.bucket_elements)
        yield bucket_message(problem, rates, keys, copies, trained, calls).times(0.0, reductions)

    def _modules(self, stage: int, reuse: float) -> list[tuple[Module, float, float]]:
        """Modules of a stage that are gathered one by one, how many, and of them those that recomputation frees."""
        problem, classes, of_stage = self.model.problem, self.prepared.classes, self.class_of(stage)
        t, held = self.keys["tp"].astype(float), list[tuple[Module, float, float]]()
        counts = zip(problem.model.layer_kinds, self.layers(stage), self._recomputed(stage), strict=True)
        for kind, count, again in counts:
            modules = modules_of(kind, problem, t)
            freed = released(modules, reuse)
            held += [
                (one, float(count), float(again * gone[0])) for one, gone in zip(modules, freed, strict=True)
            ]
        ends = zip((classes.first, classes.last), self.model.shards.outer_modules(t), strict=True)
        return held + [(Module(size, 1, False), float(of[0, of_stage]), 0.0) for of, size in ends]
