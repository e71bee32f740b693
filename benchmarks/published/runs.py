"""Which problem and configuration does a row of published runs describe?

A row becomes (Problem, ParallelConfig) and a list of what had to be assumed. Only the columns of `INPUT_COLUMNS`
are ever looked at: nothing measured, no notes, no reference. Left out: rows without a sequence length or batch, models
that planner refuses, adapters (LoRA); these raise `UnsupportedError`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.published.cells import (
    Row,
    context_kind_in,
    count_in,
    number_in,
    sequence_parallel_in,
    stated,
)
from benchmarks.published.degrees import Degrees, Found, degrees_in, expert_tp_in, options
from benchmarks.published.descriptions import described_model
from benchmarks.published.fabrics import parse_fabric
from benchmarks.published.formats import precision_in
from benchmarks.published.graphs import graphs_in
from benchmarks.published.jobs import Batches, batches_in, job_in, micro_batches_open
from benchmarks.published.machines import timed_products
from benchmarks.published.offloads import with_offload
from benchmarks.published.recipes import (
    Narrowed,
    bridge_recipe,
    imbalance_in,
    released_model,
    unfound_graphs,
    with_routing_groups,
)
from benchmarks.published.recomputation import recompute_in
from benchmarks.published.releases import needs_of
from benchmarks.published.schedules import schedule_in
from benchmarks.published.sharded_stacks import with_muon, with_stage
from benchmarks.published.sharding import Ranks, sharding_in
from benchmarks.published.splits import libai_split
from benchmarks.published.stack_of import KIN_BAND_FACTOR, stack_of
from benchmarks.published.switches import LAYERS_OFFLOADED, NO_PREDICTION, apply_switches
from benchmarks.published.undecided import fastest_that_fits, first_that_fits, fits
from planner.calibrate import predict
from planner.catalog.load_stacks import load_stack
from planner.errors import FileInputError, UnsupportedError, sort_of
from planner.spec.config import ParallelConfig, Recompute
from planner.spec.findings import Finding
from planner.spec.job import Optimizer
from planner.spec.machine.accelerator import Accelerator
from planner.spec.machine.build_cluster import assemble_cluster
from planner.spec.machine.cluster import Cluster, LinkKind
from planner.spec.machine.device_kernels import with_device_kernels
from planner.spec.machine.load_cluster import load_accelerator
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.stack.engines import Nanotron
from planner.spec.stack.kinds import PipelineSplit

INPUT_COLUMNS: Final = (
    "source", "model", "gpu", "gpus", "gpus_per_node", "nvlink_domain", "internode", "seq_len", "global_batch",
    "micro_batch", "tp", "cp", "pp", "vpp", "ep", "etp", "dp", "dp_sharding", "sequence_parallel", "recompute",
    "schedule", "precision", "optimizer", "framework", "extras",
)  # fmt: skip

_COUNTS: Final = ("gpus", "seq_len", "global_batch", "micro_batch")  # which may be written in thousands, "4k"
_SEE: Final = "see benchmarks/published/README.md"
_OTHER_NAMES: Final = {"tokens_per_second_per_gpu": "tokens_per_s_per_gpu"}
# devices, and ranks of tensor groups in a pipeline, up to which nanotron's host runs ahead of them
NANOTRON_AHEAD: Final = 256
NANOTRON_AHEAD_TP: Final = 16


@dataclass(frozen=True)
class Run(predict.Run):
    """A row as a question."""

    kin: str = ""  # the framework its stack stands in for; empty: itself
    fallback: ParallelConfig | None = (
        None  # the most frugal configuration that the row allows; None: leaves nothing
    )
    offloads: bool = False  # the row keeps memory on the host beyond what is costed
    layers_offloaded: int = 0  # layers whose activations it keeps there

    @property
    def calibration_level(self) -> str:
        """As of any run; L0 where another framework's stack stands in."""
        return "L0" if self.kin else super().calibration_level


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a runs file, every value stripped. Raises `FileInputError`."""
    try:
        return _rows(path)
    except csv.Error as error:
        raise FileInputError(str(path), "must be a valid CSV file", str(error)) from None


def _rows(path: Path) -> list[dict[str, str]]:
    rows = csv.DictReader(io.StringIO(_read_text(path), newline=""))
    needed = {"model", "gpu", "gpus"}
    header = [_OTHER_NAMES.get(name.strip(), name.strip()) for name in rows.fieldnames or ()]
    if missing := needed - set(header):
        must = f"must have the columns {', '.join(sorted(needed))}"
        raise FileInputError(str(path), must, f"no {', '.join(sorted(missing))}", _SEE)
    if twice := [name for name in header if name and header.count(name) > 1]:
        raise FileInputError(str(path), "must have each column once", f"{twice[0]} twice", "leave one out")
    rows.fieldnames = header
    return [
        {k: (v or "").strip() for k, v in row.items() if isinstance(k, str) and not isinstance(v, list)}
        for row in rows
    ]


def read_models(path: Path) -> dict[str, Any]:
    """The descriptions of a models file, by key. Raises `FileInputError`."""
    try:
        models = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise FileInputError(str(path), "must be valid JSON", str(error), _SEE) from None
    if not isinstance(models, dict):
        must = "must map model keys to descriptions"
        raise FileInputError(str(path), must, sort_of(models), _SEE)
    return models


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileInputError(str(path), "the file must exist", hint="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileInputError(str(path), "must be a readable UTF-8 text file", str(error)) from None


@dataclass(frozen=True)
class _Posed:
    """A row of which everything is read but the division of work. `said`: what that already assumed."""

    cells: Row
    model: ModelSpec
    cluster: Cluster
    said: tuple[str, ...]


@dataclass
class RunReader:
    """Rows to runs; equal models, clusters, jobs and stacks become one `Problem` object."""

    models: Mapping[str, Any]
    _specs: dict[str, ModelSpec] = field(default_factory=dict)
    _clusters: dict[tuple[Any, ...], tuple[Cluster, tuple[str, ...]]] = field(default_factory=dict)
    _stacks: dict[tuple[str, str], tuple[Stack, tuple[str, ...]]] = field(default_factory=dict)
    _problems: dict[tuple[Any, ...], Problem] = field(default_factory=dict)
    _evened: dict[int, Stack] = field(default_factory=dict)
    _staged: dict[tuple[int, int, str, Optimizer], tuple[Stack, tuple[str, ...]]] = field(
        default_factory=dict
    )
    _narrowed: Narrowed = field(default_factory=dict)
    _polled: dict[int, Stack] = field(default_factory=dict)
    _placed: dict[tuple[int, str, str, Precision], Stack] = field(default_factory=dict)

    def read(self, row: Row) -> Run:
        """The question of one row. Raises `PlannerError` where it cannot be asked."""
        cells = {name: str(row.get(name) or "").strip() for name in INPUT_COLUMNS}
        said = [
            f"{name} {cells[name]!r}: {count_in(cells, name)}"
            for name in _COUNTS
            if "k" in cells[name].lower()
        ]
        model = self._model(cells["model"])
        cluster = self._cluster(cells, said)
        posed = _Posed(cells, model, cluster, tuple(said))
        return self._batched(posed, self._found(posed))

    def _found(self, posed: _Posed) -> Found:
        """The degrees of a row: those that are left open as in a plan, where they cannot all be 1."""
        gpus = posed.cluster.num_devices
        found = degrees_in(posed.cells, gpus, posed.model.is_moe)
        if not found.open or (found.whole and fits(self._run(posed, found))):
            return found
        for with_cp in (False, True):
            ways = options(found, posed.cells, posed.model, gpus, posed.cluster.tiers[0].size, with_cp)
            runs = [
                (made, self._run(posed, replace(found, degrees=made), micro))
                for made in ways
                for micro in micro_batches_open(posed.cells, made) or (None,)
            ]
            if (best := fastest_that_fits([run for _, run in runs])) is not None:
                taken = next(made for made, run in runs if run is best)
                return found.planned(taken)
        return found

    def _batched(self, posed: _Posed, found: Found) -> Run:
        """The run with those degrees; of micro-batches that the row leaves open, the largest that fits."""
        sizes = micro_batches_open(posed.cells, found.degrees)
        if len(sizes) < 2:
            return self._run(posed, found)
        return first_that_fits([self._run(posed, found, micro) for micro in sizes])

    def _run(self, posed: _Posed, found: Found, micro_batch: int | None = None) -> Run:
        """The run with those degrees, of micro-batches of that size where the row states none."""
        cells, model, cluster, degrees = dict(posed.cells), posed.model, posed.cluster, found.degrees
        assumed = [*posed.said]
        choice = stack_of(cells["framework"], cells["source"], cluster.accelerator.architecture)
        choice = choice.running(needs_of(cells, model, degrees))
        assumed += choice.assumed
        if choice.sharding and not stated(cells["dp_sharding"]):
            cells["dp_sharding"] = choice.sharding
            assumed.append(f"dp_sharding not stated: {choice.sharding}, as {cells['framework']} has it")
        stack = self._stack(choice.name, bool(choice.kin), cells, assumed)
        assumed += found.said(cluster.num_devices)
        stack = self._polling(stack, cluster.num_devices, degrees)
        precision = precision_in(cells["precision"], cluster.accelerator, [])
        cluster.accelerator.require(precision)
        stack = self._on_machine(stack, model, cluster.accelerator, precision)
        if degrees.ep > 1 and not model.is_moe:
            assumed.append(f"ep {degrees.ep} for a model without experts: 1")
            degrees = replace(degrees, ep=1)
        batches = batches_in(cells, degrees, assumed, micro_batch)
        job = job_in(cells, batches.global_batch, cluster.accelerator, stack, assumed)
        uneven = imbalance_in(cells, model, self._hf_id(cells["model"]), stack, assumed)
        job = replace(job, expert_imbalance=uneven)
        config = _config(cells, model, stack, degrees, batches, cluster, assumed)
        config, offloads = with_offload(cells, stack, config, assumed)
        stack = self._sharded(stack, config.zero, choice.kin, job.optimizer, assumed)
        stack = self._even(stack, config, model.num_layers, cells)
        key = (id(model), id(cluster), job, id(stack))
        # sums of profiles reduce and update the embedding and the logits' matrix each (vTrain, src/predictor.py)
        untied = replace(model, tied_embeddings=model.tied_embeddings and not stack.engine.composed)
        problem = self._problems.setdefault(key, Problem(untied, cluster, job, stack))
        if model.mtp_layers:
            assumed = [what for what in assumed if what != NO_PREDICTION]
        assumed += [f"model: {_field_said(what)}" for what in model.assumed]
        fallback = None
        if not stated(cells["recompute"]) and config.recompute != Recompute.FULL:
            most = -(-model.num_layers // config.pp)
            fallback = replace(config, recompute=Recompute.FULL, recompute_layers=most, recompute_modules=0)
        told = tuple(dict.fromkeys(assumed))
        layers = LAYERS_OFFLOADED.search(cells["extras"])
        offloaded = int(layers[1]) if layers else 0
        return Run(
            problem, config, choice.name, told, kin=choice.kin, fallback=fallback, offloads=offloads,
            layers_offloaded=offloaded,
        )  # fmt: skip

    def _sharded(self, stack: Stack, zero: int, kin: str, optimizer: Optimizer, assumed: list[str]) -> Stack:
        """The stack as it runs that ZeRO stage and that optimizer."""
        key = (id(stack), zero, kin, optimizer)
        if key not in self._staged:
            staged, said = with_stage(stack, zero, kin)
            dealing, more = with_muon(staged, optimizer, kin)
            self._staged[key] = dealing, (*said, *more)
        staged, said = self._staged[key]
        assumed += said
        return staged

    def _even(self, stack: Stack, config: ParallelConfig, layers: int, cells: Row) -> Stack:
        """The stack with Megatron's default split, equal stages, where they come out even and no layout is stated;
        LiBai's has its own.

        It is Megatron-DeepSpeed's too (megatron/model/gpt_model.py GPTModelPipe: partition_method type:transformer).
        """
        own = libai_split(layers, config.pp) if "libai" in cells["framework"].lower() else None
        if own is not None and config.vpp == 1:
            return stack.model_copy(update={"split": own})
        megatron = stack.framework in ("megatron", "megatron-deepspeed")
        even = layers % (config.pp * config.vpp) == 0
        if config.pp == 1 or (even and "layout" in cells["extras"]):
            return stack
        if megatron and even and stack.split is PipelineSplit.BALANCED:
            return self._with_split(stack, PipelineSplit.EVEN)
        if not even and stack.split is PipelineSplit.EVEN:  # which what it stands in for has not
            return self._with_split(stack, PipelineSplit.BALANCED)
        return stack

    def _with_split(self, stack: Stack, split: PipelineSplit) -> Stack:
        if id(stack) not in self._evened:
            self._evened[id(stack)] = stack.model_copy(update={"split": split})
        return self._evened[id(stack)]

    def _model(self, key: str) -> ModelSpec:
        if key not in self._specs:
            if key not in self.models:
                raise UnsupportedError("the model must be described in the models file", repr(key))
            fields = self.models[key]
            if not isinstance(fields, Mapping) or not fields.get("layers"):
                self._specs[key] = released_model(key, self._hf_id(key))
            else:
                self._specs[key] = with_routing_groups(described_model(fields, key), self._hf_id(key))
        return self._specs[key]

    def _hf_id(self, key: str) -> str:
        """The release that a model's description names, "" for none."""
        fields = self.models[key]
        return str(fields.get("hf_id") or "") if isinstance(fields, Mapping) else ""

    def _cluster(self, cells: Row, assumed: list[str]) -> Cluster:
        chip = load_accelerator(cells["gpu"])
        gpus = count_in(cells, "gpus")
        if gpus is None:
            raise UnsupportedError("a row must state how many GPUs ran", "gpus is empty")
        products = timed_products(cells["source"], chip.name)
        key = (
            chip.name,
            gpus,
            products,
            *(cells[name] for name in ("gpus_per_node", "nvlink_domain", "internode")),
        )
        if key not in self._clusters:
            said: list[str] = []
            built = replace(cluster_figures(cells, chip, gpus, said).build(), products=products)
            if products != 1.0:
                said.append(f"products run at {products:g} of the catalog's rate, as this source timed them")
            self._clusters[key] = (built, tuple(said))
        cluster, said_before = self._clusters[key]
        assumed += said_before
        return cluster

    def _stack(self, name: str, kin: bool, cells: Row, assumed: list[str]) -> Stack:
        text = switch_text(cells)
        key = (name + "~" * kin, text)
        if key not in self._stacks:
            stack, said = apply_switches(load_stack(name), text)
            if kin:
                bands = {"band": stack.band, "band_moe": stack.band_moe}
                wider = {k: min(2.0, v * KIN_BAND_FACTOR) for k, v in bands.items() if v is not None}
                stack = stack.model_copy(update=wider)
            same = next((s for s, _ in self._stacks.values() if s == stack), stack)
            self._stacks[key] = same, said
        stack, said = self._stacks[key]
        assumed += said
        return bridge_recipe(stack, cells, self._narrowed)

    def _on_machine(self, stack: Stack, model: ModelSpec, chip: Accelerator, precision: Precision) -> Stack:
        """The stack with the attention kernel that it has for this model on this device."""
        key = (id(stack), model.name, chip.name, precision)
        if key not in self._placed:
            self._placed[key] = with_device_kernels(stack, model, chip, precision)
        return self._placed[key]

    def _polling(self, stack: Stack, devices: int, degrees: Degrees) -> Stack:
        """nanotron on more than 256 devices, and with tensor groups over four nodes in a pipeline: 9 of 10 published
        runs of the former, 46 of 47 of the latter on fewer, are of the release whose host polls its messages (p2p.py of
        branch nouamane/bench2; their steps take its 0.26 s a message), so that no outputs wait for the communication
        stream."""
        wide = degrees.tp > NANOTRON_AHEAD_TP and degrees.pp > 1
        if not isinstance(stack.engine, Nanotron) or not (devices > NANOTRON_AHEAD or wide):
            return stack
        if id(stack) not in self._polled:
            engine = stack.engine.model_copy(update={"deferred_bytes": 0.0})
            self._polled[id(stack)] = stack.model_copy(update={"engine": engine})
        return self._polled[id(stack)]


def switch_text(cells: Row) -> str:
    """The free text of a row in which a stack's switches are set."""
    return " | ".join(cells.get(name) or "" for name in ("extras", "recompute", "precision"))


@dataclass(frozen=True)
class ClusterFigures:
    """What a row says of its machine; None: as the accelerator's typical node has it."""

    chip: Accelerator
    gpus: int
    per_node: int
    domain: int | None  # devices of a scale-up domain
    kind: LinkKind | None = None
    injection: float | None = None  # of a node [bytes/s]

    def build(self) -> Cluster:
        """The cluster. Raises `InputError`."""
        return assemble_cluster(self.chip, self.gpus, self.per_node, self.domain, self.kind, self.injection)


def cluster_figures(cells: Row, chip: Accelerator, gpus: int, assumed: list[str]) -> ClusterFigures:
    """Nodes, scale-up domain and fabric of a row. Raises `UnsupportedError`."""
    node = chip.typical_node
    per_node = count_in(cells, "gpus_per_node")
    if per_node is None:
        per_node = node.accelerators if node else 8
        assumed.append(f"{per_node} devices per node")
    if gpus > per_node and gpus % per_node:
        whole = math.gcd(gpus, per_node)
        assumed.append(f"{gpus} devices are no whole nodes of {per_node}: nodes of {whole}")
        per_node = whole
    domain = _domain(cells)
    if domain is not None and max(domain, per_node) % min(domain, per_node):
        assumed.append(f"a scale-up domain of {domain} does not fit nodes of {per_node}: {per_node}")
        domain = per_node
    if gpus <= max(per_node, domain or 0):  # no fabric is crossed
        return ClusterFigures(chip, gpus, per_node, domain)
    kind, injection, note = parse_fabric(cells["internode"], chip, per_node)
    if note:
        assumed.append(note)
    return ClusterFigures(chip, gpus, per_node, domain, kind, injection)


def _domain(cells: Row) -> int | None:
    """Devices of a scale-up domain; 1 where the row says that there is no such link."""
    if cells["nvlink_domain"].lower() in ("no", "false", "pcie") or number_in(cells, "nvlink_domain") == 0:
        return 1
    return count_in(cells, "nvlink_domain")


def _config(
    cells: Row,
    model: ModelSpec,
    stack: Stack,
    degrees: Degrees,
    batches: Batches,
    cluster: Cluster,
    assumed: list[str],
) -> ParallelConfig:
    tp, cp, pp, dp = degrees.tp, degrees.cp, degrees.pp, degrees.dp
    schedule, vpp = schedule_in(cells, model.num_layers, pp, assumed)
    ranks = Ranks(dp, cp, tp, cluster.tiers[0].size, cluster.devices_per_node)
    zero, hsdp = sharding_in(cells, stack, ranks, assumed)
    if zero >= 3 and stack.engine.accumulates_whole(np.array(pp), np.array(zero)):
        # torchtitan's policy unless "always" is asked for: `not pp_enabled`, distributed/fsdp.py
        zero = 2
        assumed.append("sharded weights under a pipeline stay gathered until the backward pass: ZeRO stage 2")
    kind, layers, modules = recompute_in(cells, model, stack, pp, assumed)
    said = switch_text(cells) + unfound_graphs(cells, model)
    graphs, captured = graphs_in(said, model, stack, assumed)
    return ParallelConfig(
        tp=tp, cp=cp, pp=pp, dp=dp, vpp=vpp, ep=degrees.ep,
        etp=expert_tp_in(cells, model, degrees, assumed),
        micro_batch=batches.micro_batch, num_microbatches=batches.number,
        sp=sequence_parallel_in(cells["sequence_parallel"], tp, stack, assumed),
        zero=zero, hsdp=hsdp, recompute=kind, recompute_layers=layers, recompute_modules=modules,
        cp_kind=context_kind_in(cells, stack), schedule=schedule, cuda_graph_impl=graphs, cuda_graph_modules=captured,
    )  # fmt: skip


def _field_said(found: Finding) -> str:
    """What was assumed of a field of a model, as the reader of its file has it."""
    field, *value = map(str, found.values.values() or [found.text])
    return " = ".join([field, *value[:1]]) + "".join(f" ({why})" for why in value[1:])
