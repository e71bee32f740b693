"""How many parameters has every stage of a pipeline on a rank, and how long do their collectives take?

Once per distinct (tp, cp, pp, vpp, dp, ep, etp, hsdp). Left out: bytes per parameter, which the ZeRO stage decides, and
what of a collective stays exposed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost.adapters import linear_layers
from planner.cost.device.updates import buckets_of, pieces, trained_tensors
from planner.cost.edges import padded_vocabulary
from planner.cost.engines.zero3_gathers import (
    Fetches,
    Module,
    computed_meanwhile,
    module_settings,
    modules_of,
    prefetch_blocked,
    reductions,
    released,
    turning_share,
)
from planner.cost.memory.state_bytes import shard_groups
from planner.cost.messages.data import (
    StageLoad,
    bucket_message,
    data_messages,
    embedding_message,
    module_messages,
)
from planner.cost.messages.exposure import pass_seconds
from planner.cost.network.communicators import communicator_bytes
from planner.cost.operations.lists import layer_gemms
from planner.cost.operations.operation import Shard
from planner.cost.padded_shards import PaddedShards
from planner.cost.params import layer_parameters, outer_parameters
from planner.cost.params_fp8 import narrow_weights
from planner.cost.pipeline.stages import StageClasses, largest, sum_over_kinds
from planner.spec.config import OFFLOAD_OPTIMIZER, ConfigTable, distinct
from planner.spec.job import FROZEN_BYTES
from planner.spec.layer import Layer
from planner.spec.machine.links import LinkRates
from planner.spec.precision import RECIPES
from planner.spec.residual import RESIDUALS
from planner.spec.rule import Problem
from planner.spec.stack.kinds import StaysGathered

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class StageParameters:
    """Per (tp, cp, pp, vpp, dp, ep, etp, hsdp) (k,): parameters by stage class."""

    of_row: Index
    dense: Array  # (k, C)
    expert: Array  # (k, C)
    outer: Array  # (k, C) parameters outside the layers
    # (k, C) dense and expert ones of layers kept in 16 bits by an 8- or 4-bit recipe
    wide: tuple[Array, Array]
    copied_dense: Array  # (k, C) of dense ones, the copy of the embedding that goes with the head
    padding: tuple[
        Array, Array
    ]  # (k,) padded over own dense and expert parameters where these are sharded [1]


@dataclass(frozen=True)
class Shards(StageParameters):
    """The same, and their collectives."""

    most_dense: Array  # (k,) of the heaviest stage
    most_expert: Array  # (k,)
    scatter: Array  # (k,) seconds, ZeRO 1 to 3
    reduce: Array  # (k,) seconds, ZeRO 0
    gather: Array  # (k,)
    again: Array  # (k,) of it, what ZeRO 3 gathers once more for the backward pass [1]
    widest: Array  # (k,) parameters of the largest layer
    widest_padded: Array  # (k,) the same with the padding of its shards
    head: Array  # (k, C) the head's among them
    adapters: Array  # (k, C) parameters of LoRA adapters
    frozen: tuple[
        Array, Array
    ]  # (k,) bytes of dense and of expert weights beside them, 0 where all are trained
    buckets: Array
    step_elements: Array  # (k,) of temporaries of an update, one parameter after the other
    communicators: Array  # (k,) bytes
    copied: Array  # (k,) seconds in which the two copies of an embedding sum their gradients
    tensors: Array  # (k,) trained ones of a mean stage
    pieces: Array  # (k,) of them, those of which a rank updates a part where their states are sharded
    fetches: Fetches | None = None  # of ZeRO 3 where modules are gathered one by one

    def take(self, rows: Index) -> Shards:
        """Some of the shardings, in an order of their own, each for a row of its own."""
        taken: dict[str, Any] = {
            field.name: (tuple(part[rows] for part in value) if isinstance(value, tuple) else value[rows])
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None and field.name not in ("of_row", "fetches")
        }
        fetches = None if self.fetches is None else self.fetches.take(rows)
        return replace(self, **taken, of_row=np.arange(len(rows)), fetches=fetches)


@dataclass(frozen=True)
class _Holdings:
    """What the ranks of the distinct shardings (k,) of a table hold: `of_row`: the sharding of every row; `stage`: the
    pipeline of each, of whose stages a rank has `copies` (k,); `counts`: layers of every kind (K, k, C), `begins`,
    `ends`: first and last stages (k, C); `of_kind`: dense and expert parameters of a layer (K, k)."""

    keys: ConfigTable
    of_row: Index
    stage: Index
    copies: Array
    counts: Array
    begins: Array
    ends: Array
    of_kind: tuple[Array, Array]


def mean_units(classes: StageClasses, pipelines: Index) -> Array:
    """Layers, embedding and head of a mean stage, whatever the split deals to each (k,) [1]."""
    held = classes.layers[pipelines].sum(axis=2) + classes.first[pipelines] + classes.last[pipelines]
    count = classes.count[pipelines]
    return np.asarray(classes.copies[pipelines] * (count * held).sum(axis=1) / count.sum(axis=1))


class ShardModel:
    """Parameters by stage and their collectives for tables of candidates of one problem."""

    def __init__(self, problem: Problem, links: LinkRates) -> None:
        self.problem, self.links = problem, links
        self.kinds = problem.model.layer_kinds
        self.parameters = [layer_parameters(kind, problem.model.hidden) for kind in self.kinds]
        self.narrow, self.padded = narrow_weights(problem), PaddedShards(problem)

    def stage_parameters(self, table: ConfigTable, classes: StageClasses) -> StageParameters:
        """Parameters of the distinct shardings of a table."""
        return self._stage_parameters(self._holdings(table, classes))

    def _holdings(self, table: ConfigTable, classes: StageClasses) -> _Holdings:
        first, of_row = self._distinct(table, classes)
        keys, stage = table.take(first), classes.of_row[first]
        copies, counts = classes.copies[stage], np.moveaxis(classes.layers[stage], 2, 0)
        begins, ends = (copies[:, None] * end[stage] for end in (classes.first, classes.last))
        of_kind = self.parameters_by_kind(*(keys[axis].astype(float) for axis in ("tp", "ep", "etp")))
        return _Holdings(keys, of_row, stage, copies, copies[:, None] * counts, begins, ends, of_kind)

    def _stage_parameters(self, held: _Holdings) -> StageParameters:
        counts, t = held.counts, held.keys["tp"].astype(float)
        in_layers, expert = (sum_over_kinds(counts, each) for each in held.of_kind)
        dense = in_layers + held.begins * self._first_stage_parameters(t)[:, None]
        dense += held.ends * self._last_stage_parameters(t)[:, None]
        copied = (held.ends - np.minimum(held.begins, held.ends)) * self.copied_embedding(t)[:, None]
        dense += copied
        kept = [kind.wide for kind in self.kinds]
        of_wide = (
            sum_over_kinds(counts[kept], each[kept]) if any(kept) else 0 * dense for each in held.of_kind
        )
        wide = next(of_wide), next(of_wide)
        padding = self.padding(held.keys, held.copies)
        return StageParameters(held.of_row, dense, expert, dense - in_layers, wide, copied, padding)

    def padding(self, keys: ConfigTable, copies: Array) -> tuple[Array, Array]:
        """`StageParameters.padding` of distinct shardings, of whose stages a rank holds so many `copies` (k,)."""
        t, c, d, e, et = (keys[axis].astype(float) for axis in ("tp", "cp", "dp", "ep", "etp"))
        replicas, expert_replicas = copies * d * c, copies * t * c * d / (e * et)
        groups = shard_groups(keys["hsdp"].astype(float), replicas, expert_replicas)
        return self.padded.of(t, e, groups)

    def communicators(self, table: ConfigTable, classes: StageClasses) -> Array:
        """What all communicators of every row of a table take (n,) [bytes]."""
        first, inverse = self._distinct(table, classes)
        return self._communicators(table.take(first), classes.copies[classes.of_row[first]])[inverse]

    def _communicators(self, keys: ConfigTable, copies: Array) -> Array:
        """The same of distinct shardings, of whose stages a rank holds so many `copies` (k,)."""
        replicas = copies * keys["dp"].astype(float) * keys["cp"]
        dispatcher = self.problem.stack.communication.dispatcher
        opened = communicator_bytes(keys, replicas, self.problem.cluster, dispatcher)
        return sum(opened.values(), np.zeros(len(keys)))

    def _distinct(self, table: ConfigTable, classes: StageClasses) -> tuple[Index, Index]:
        """The first rows of the distinct shardings of a table, and the sharding of each row."""
        columns = [
            classes.of_row.astype(np.int32),
            *(table[axis] for axis in ("tp", "cp", "dp", "ep", "etp", "hsdp")),
        ]
        if self.narrow is not None:  # an optimizer on the host decides the width of gathered weights
            columns.append(table["offload"] & OFFLOAD_OPTIMIZER)
        return distinct(*columns)

    def shards(self, table: ConfigTable, classes: StageClasses) -> Shards:
        """Parameters and collectives of the distinct shardings of a table."""
        held = self._holdings(table, classes)
        own, keys, copies, counts = self._stage_parameters(held), held.keys, held.copies, held.counts
        dense, expert, outer, wide = own.dense, own.expert, own.outer, own.wide
        t, e, et = (keys[axis].astype(float) for axis in ("tp", "ep", "etp"))
        adapters = sum_over_kinds(counts, self._adapters_by_kind(t, e * et))
        lora = self.problem.job.lora_rank is not None
        heaviest, experts = largest(adapters if lora else dense), largest(expert * (not lora))
        sent = self.gathered_bytes(keys, dense, expert, outer, wide)
        gathered = largest(sent[0]), largest(sent[1])
        frozen = gathered[0] * lora, gathered[1] * lora
        head = held.ends * self._head_parameters(t)[:, None]
        stays = self.staying_bytes(sent, outer, head, counts.sum(axis=0))
        units = mean_units(classes, held.stage)
        repeated = largest(sent[0] - stays[0]), largest(sent[1] - stays[1])
        load = StageLoad((heaviest, experts), gathered, repeated, units, own.padding)
        scatter, reduce, gather, again, buckets = self._collectives(keys, copies, load)
        widest = np.max(sum(held.of_kind), axis=0)
        padded = np.max(sum(n * of for n, of in zip(own.padding, held.of_kind, strict=True)), axis=0)
        fetches = self._fetches(
            keys, copies, (counts, held.begins, held.ends), (dense, expert), sent, heaviest + experts
        )
        return Shards(
            held.of_row, dense, expert, outer, wide, own.copied_dense, own.padding, heaviest, experts, scatter, reduce,
            gather, again, widest, padded, head, adapters, frozen, buckets, self._step_elements(t, e * et),
            self._communicators(keys, copies), self.copies_summed(keys, largest(own.copied_dense)),
            *self._tensors(keys, copies, held.of_kind), fetches,
        )  # fmt: skip

    def gathered_bytes(
        self, keys: ConfigTable, dense: Array, expert: Array, outer: Array, wide: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """What all-gathers send of dense and of expert weights of every stage class where states are sharded: (n, C)
        each [bytes].

        `outer`, `wide`: of these those outside the layers, and those of layers kept in 16 bits. Weights frozen in fewer
        than 16 bits travel packed (torchao NF4Tensor.fsdp_pre_all_gather; Transformers' bnb_4bit_quant_storage with
        FSDP and ZeRO-3)."""
        half = RECIPES[self.problem.job.precision].activation_bytes
        if self.problem.job.lora_rank is not None:
            return self.frozen_bytes(dense, expert, outer)
        if self.narrow is None:
            return half * dense, half * expert
        primary = self.narrow.primary(np.ones(len(keys)), keys["offload"])
        width = np.where(primary, self.narrow.gathered, half)[:, None]
        of_dense = width * (dense - outer - wide[0]) + half * (outer + wide[0])
        return of_dense, width * (expert - wide[1]) + half * wide[1]

    def staying_bytes(
        self, sent: tuple[Array, Array], outer: Array, head: Array, layers: Array
    ) -> tuple[Array, Array]:
        """Of dense and expert weights that all-gathers `sent`, what stays gathered until the backward pass (n, C) each
        [bytes]; `outer`, `head`: parameters outside the layers and the head's among them, `layers`: how many a stage
        has (`StaysGathered`)."""
        half, kept = RECIPES[self.problem.job.precision].activation_bytes, 0.0 * outer
        stage = self.problem.stack.engine.keeps_gathered
        if stage is StaysGathered.NOTHING:
            return kept, kept
        if stage is StaysGathered.HEAD:
            return half * head, kept
        last = np.where(head > 0, stage is StaysGathered.LAST_LAYER, 0.0) / np.maximum(layers, 1.0)
        return half * outer + last * (sent[0] - half * outer), last * sent[1]

    def frozen_bytes(self, dense: Array, expert: Array, outer: Array) -> tuple[Array, Array]:
        """Bytes of frozen dense and expert weights of which `outer` lie outside the layers, in 16 bits."""
        job = self.problem.job
        half = RECIPES[job.precision].activation_bytes
        width = min(half, FROZEN_BYTES[job.frozen_bits]) if job.frozen_bits < 16 else half
        return width * (dense - outer) + half * outer, width * expert

    def _collectives(
        self, keys: ConfigTable, copies: Array, load: StageLoad
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Seconds of reduce-scatter, of all-reduce and of all-gather of what stages carry, the share of those of the
        gather in which it is repeated, and buckets."""
        sent, number = data_messages(self.problem, self.links, keys, copies, load), len(keys)
        scatter, reduce = (pass_seconds(part, number).total[1] for part in (sent.scatter, sent.reduce))
        gather, repeated = pass_seconds(sent.gather, number).total
        states, trained = self.problem.stack.engine, load.trained[0] + load.trained[1]
        buckets = states.sent_gradient * trained / states.bucket_bytes if states.bucket_bytes else 0 * trained
        share = np.divide(repeated, gather, out=np.ones_like(gather), where=gather > 0)
        return scatter, reduce, gather, share, buckets

    def _tensors(self, keys: ConfigTable, copies: Array, of_kind: tuple[Array, Array]) -> tuple[Array, Array]:
        """Trained tensors of a rank, and those of which it updates a part, of a mean stage (k,) [1]."""
        model, comm = self.problem.model, self.problem.stack.communication
        t, c, d, e, et, p = (keys[axis].astype(float) for axis in ("tp", "cp", "dp", "ep", "etp", "pp"))
        replicas, expert_replicas = copies * d * c, copies * t * c * d / (e * et)
        groups = shard_groups(keys["hsdp"].astype(float), replicas, expert_replicas)
        kinds = np.bincount(model.layer_kind_of, minlength=len(self.kinds)).astype(float)
        outer = self._first_stage_parameters(t) + self._last_stage_parameters(t)
        parameters = [kinds @ of_kind[0] + outer, kinds @ of_kind[1]]
        chunks = np.maximum(keys["vpp"].astype(float), 1.0) * copies
        expert, dense = trained_tensors(self.problem)
        whole, part = np.zeros(len(t)), np.zeros(len(t))
        for number, size, ranks in zip((dense + 0.0 * e, expert / e), parameters, groups, strict=True):
            held, mean = copies * number / p, copies * size / p
            buckets = buckets_of(mean, copies * d, chunks, comm.dp_overlap > 0)
            whole, part = whole + held, part + pieces(held, ranks, buckets)
        return whole, part

    def _fetches(
        self, keys: ConfigTable, copies: Array, held: tuple[Array, Array, Array], whole: tuple[Array, Array],
        sent: tuple[Array, Array], reduced: Array,
    ) -> Fetches | None:  # fmt: skip
        """ZeRO 3 module by module. `held`: layers by kind (K, k, C), first and last stages (k, C); `whole`, `sent`:
        dense and expert weights (k, C), in parameters and in bytes; `reduced`: parameters with gradients (k,)."""
        states = module_settings(self.problem.stack)
        if states is None:
            return None
        t, number = keys["tp"].astype(float), len(keys)
        counts, *ends = held
        total = largest(whole[0] + whole[1])
        width = (sent[0] + sent[1]).sum(axis=1) / np.maximum((whole[0] + whole[1]).sum(axis=1), 1.0)

        def gathered(*modules: Module) -> list[Array]:
            messages = module_messages(self.problem, self.links, keys, copies, modules, width)
            return [pass_seconds((one,), number).total[0] for one in messages]

        sums = np.zeros((3, *whole[0].shape))  # seconds of all and of released modules; modules
        pooled, apart = np.zeros((2, number)), list[Array]()  # seconds, and weights used meanwhile
        for kind, layers in zip(self.kinds, counts, strict=True):
            modules = modules_of(kind, self.problem, t)
            late = prefetch_blocked(modules, states.live_parameters, states.prefetch_elements)
            freed = released(modules, states.reuse_distance)
            meanwhile = computed_meanwhile(modules, late)
            of_modules = zip(modules, gathered(*modules), meanwhile, freed, strict=True)
            for module, seconds, under, gone in of_modules:
                one = np.broadcast_to(module.repeats + 0.0 * seconds, seconds.shape)
                sums += np.array([layers * value[:, None] for value in (seconds, gone * seconds, one)])
                both = np.array([seconds, under]) * layers.sum(axis=1)
                ahead = module.size < states.prefetch_elements  # then several are fetched ahead
                pooled = pooled + both * ahead
                apart.append(both * ~ahead)
        for stages, size in zip(ends, self.outer_modules(t), strict=True):
            (seconds,) = gathered(Module(size, 1, False))
            sums[0] += stages * seconds[:, None]
            sums[2] += stages
            pooled[0] += stages.sum(axis=1) * seconds
        gather, third, modules_held = (largest(each) for each in sums)
        parts = np.moveaxis(np.array([pooled, *apart]), 0, 2)  # (2, k, J)
        shares = parts / np.maximum(parts.sum(axis=2, keepdims=True), 1e-30)
        shares[..., 0] += 1.0 - shares.sum(axis=2)  # of a model without modules
        turned = (turning_share(total, states.reuse_distance, again) for again in (False, True))
        plain, recomputed = turned
        calls = reductions(reduced, modules_held, states.bucket_elements)
        buckets = bucket_message(self.problem, self.links, keys, copies, reduced, calls)
        scatter = pass_seconds((buckets,), number).total[1]
        some = np.maximum(gather, 1e-30)
        return Fetches(gather, scatter, shares, 1 - plain, third / some + plain - recomputed)

    def with_heaviest(
        self, shards: Shards, stem: ConfigTable, classes: StageClasses, heaviest: Array
    ) -> Shards:
        """Of one `stem`, the first of `shards` and `classes`: the least of every split whose heaviest stages hold so
        many dense and expert parameters, and gather so many of them again where some stay gathered, (n, 2 or 4), as
        shards of n copies of it. Of adapters, the mean; weights that are gathered in several widths count with the
        narrowest."""
        number = len(heaviest)
        same = np.zeros(number, dtype=np.intp)
        keys, stage = stem.take(same), classes.of_row[same]
        dense, expert = heaviest[:, 0], heaviest[:, 1]
        width = np.full(number, RECIPES[self.problem.job.precision].activation_bytes)
        if self.narrow is not None:
            primary = self.narrow.primary(np.ones(number), keys["offload"])
            width = np.where(primary, np.minimum(width, self.narrow.gathered), width)
        sizes, gathered = (dense, expert), (width * dense, width * expert)
        again = width * heaviest[:, -2], width * heaviest[:, -1]
        frozen = shards.frozen[0][same], shards.frozen[1][same]
        if self.problem.job.lora_rank is not None:
            frozen = gathered = self.frozen_bytes(dense, expert, np.zeros(number))
            again = gathered if heaviest.shape[1] == 2 else (np.zeros(number), np.zeros(number))
            count = classes.count[stage]
            sizes = (shards.adapters[same] * count).sum(axis=1) / count.sum(axis=1), np.zeros(number)
        copies, units = classes.copies[stage], mean_units(classes, stage)
        load = StageLoad(sizes, gathered, again, units, (shards.padding[0][same], shards.padding[1][same]))
        scatter, reduce, gather, share, buckets = self._collectives(keys, copies, load)
        return replace(
            shards.take(same), most_dense=sizes[0], most_expert=sizes[1], scatter=scatter, reduce=reduce,
            gather=gather, again=share, buckets=buckets, frozen=frozen,
        )  # fmt: skip

    def parameters_by_kind(self, t: Array, e: Array, et: Array) -> tuple[Array, Array]:
        """Parameters of one layer of each kind on a rank: (K, k) dense, (K, k) expert."""
        dense, expert = [], []
        for kind, count in zip(self.kinds, self.parameters, strict=True):
            divided = count.column_row + count.kv + count.shared
            dense.append(divided / t + count.replicated + count.router)
            held = self._copies(kind) / e
            expert.append((count.expert / et + count.expert_replicated) * held)
        return np.array(dense), np.array(expert)

    def _copies(self, kind: Layer) -> float:
        """How often an expert is held on average where some are replicated [1]."""
        replicas = self.problem.job.expert_replicas
        return replicas / kind.moe.experts if replicas and kind.moe else 1.0

    def _adapters_by_kind(self, t: Array, experts: Array) -> Array:
        """Parameters of LoRA adapters of one layer of each kind on a rank (K, k): r (in + out) of each dense linear
        layer, the side that tensor parallelism divides divided; of each expert that `experts` ranks share, whose two
        first layers are one of twice the rank (peft utils/transformers_weight_conversion.py, `PeftConcatenate`)."""
        found = []
        for kind in self.kinds:
            total = np.zeros(len(t))
            for gemm in layer_gemms(kind, self.problem.model.hidden):
                if not self.problem.adapts(gemm.name, gemm.expert):
                    continue
                rank = float(self.problem.job.lora_rank or 0) * np.ones_like(t)
                if gemm.expert:
                    rank *= gemm.groups * gemm.linear / experts
                wide, narrow = float(gemm.out_features + gemm.kv_out_features), float(gemm.in_features)
                total = total + rank * (wide / np.where(gemm.shard is Shard.COLUMN, t, 1.0))
                each = linear_layers(gemm, self.problem.stack)
                total = total + each * rank * (narrow / np.where(gemm.shard is Shard.ROW, t, 1.0))
            found.append(total)
        return np.array(found)

    def _step_elements(self, t: Array, experts: Array) -> Array:
        """Elements of temporaries of an update that takes one parameter after the other, on a rank; `experts`: ranks
        that divide those of experts [1].

        Largest over parameters, in the order in which modules hold them, of (k - 1) n_i + n_(i-1), k being the stack's
        `tensors_in_turn`: torch 2.13 optim/adamw.py (adam.py _single_tensor_adam) with k = 3 has the root of the second
        moment and what is made of it, and the denominator of the parameter before is not dropped until its name is
        taken. Sizes: embedding, then of every layer a norm before each half and matrices one by one (q, k, v, gate and
        up apart, all experts of a rank in one tensor), norm, head.
        """
        model, copies = self.problem.model, self.problem.stack.engine.tensors_in_turn
        if not copies:
            return np.zeros_like(t)
        norm, head = np.full_like(t, float(model.hidden)), self._head_parameters(t)
        sizes = [head * model.embedding_width / model.hidden]
        for gemm in (gemm for kind in self.kinds for gemm in layer_gemms(kind, model.hidden)):
            if gemm.shard is Shard.COLUMN and not gemm.name.startswith("shared"):
                sizes.append(norm)
            divided = (
                experts if gemm.expert else t if gemm.shard in (Shard.COLUMN, Shard.ROW) else np.ones_like(t)
            )
            whole = float(gemm.groups * gemm.in_features) / divided
            sizes += [whole * each for each in gemm.outputs()]
        sizes += [np.full_like(t, float(model.side_vocab * model.side_width)) / t, norm]
        sizes += [] if model.tied_embeddings else [head]
        pairs = zip(sizes, [np.zeros_like(t), *sizes[:-1]], strict=True)
        return np.maximum.reduce([(copies - 1.0) * size + before for size, before in pairs])

    def _first_stage_parameters(self, t: Array) -> Array:
        model = self.problem.model
        padding = padded_vocabulary(self.problem, t) / model.vocab
        outer = outer_parameters(model)
        return outer["embedding"] * padding / t + outer["position"]

    def copied_embedding(self, t: Array) -> Array:
        """Parameters of the embedding that the stage of the head holds once more where it is another one's: as the tied
        head, or to embed what prediction modules read (Megatron-LM d98e8a6 models/gpt/gpt_model.py, `mtp_process`)."""
        model = self.problem.model
        held = model.tied_embeddings or model.mtp_layers > 0
        return held * padded_vocabulary(self.problem, t) * float(model.embedding_width) / t

    def copies_summed(self, keys: ConfigTable, copied: Array) -> Array:
        """Seconds in which two copies of an embedding are kept alike (`messages.data.embedding_message`)."""
        sent = embedding_message(self.problem, self.links, keys, copied)
        return pass_seconds((sent,), len(keys)).total[1]

    def outer_modules(self, t: Array) -> tuple[Array, Array]:
        """Parameters of the embedding and of the head, which are gathered apart even where they are one."""
        return self._first_stage_parameters(t), self._head_parameters(t)

    def _head_parameters(self, t: Array) -> Array:
        """Parameters of the matrix that makes logits, tied or not."""
        return padded_vocabulary(self.problem, t) * float(self.problem.model.hidden) / t

    def _last_stage_parameters(self, t: Array) -> Array:
        model, outer = self.problem.model, outer_parameters(self.problem.model)
        padding = padded_vocabulary(self.problem, t) / model.vocab
        # the projection is dealt by columns (Megatron-LM d98e8a6 core/transformer/multi_token_prediction.py, eh_proj)
        projections = model.mtp_layers * 2.0 * model.hidden**2
        return (
            outer["head"] * padding / t
            + sum(outer[kind] for kind in {"final_norm", "mtp", *(residual.kind for residual in RESIDUALS)})
            - projections * (1.0 - 1.0 / t)
        )
