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
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from planner.calibrate.published.cells import (
    Row,
    context_kind_in,
    count_in,
    expert_tp_in,
    optimizer_in,
    precision_in,
    recompute_in,
    schedule_in,
    sequence_parallel_in,
    sharding_in,
)
from planner.calibrate.published.graphs import graphs_in
from planner.calibrate.published.recipes import (
    ADAPTERS,
    Narrowed,
    bf16_layers_of,
    bridge_recipe,
    released_model,
    torch_recipe,
    unfound_graphs,
    with_routing_groups,
)
from planner.calibrate.published.sharded_stacks import with_stage
from planner.calibrate.published.stack_of import (
    BF16_MOMENTS,
    KIN_BAND_FACTOR,
    LAYERS_OFFLOADED,
    NO_PREDICTION,
    OFFLOAD,
    apply_switches,
    stack_of,
)
from planner.catalog.load_stacks import DEFAULT_STACK, load_stack
from planner.errors import FileInputError, PlannerError, UnsupportedError, sort_of
from planner.spec.config import ParallelConfig, Recompute
from planner.spec.description import spec_from_description
from planner.spec.job import AdapterTargets, Job, Optimizer
from planner.spec.machine.accelerator import Accelerator
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.device_kernels import with_device_kernels
from planner.spec.machine.load_cluster import build_cluster, load_accelerator, parse_fabric
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.stack.kinds import PipelineSplit

INPUT_COLUMNS: Final = (
    "source", "model", "gpu", "gpus", "gpus_per_node", "nvlink_domain", "internode", "seq_len", "global_batch",
    "micro_batch", "tp", "cp", "pp", "vpp", "ep", "etp", "dp", "dp_sharding", "sequence_parallel", "recompute",
    "schedule", "precision", "optimizer", "framework", "extras",
)  # fmt: skip

_OTHER_NAMES: Final = {"tokens_per_second_per_gpu": "tokens_per_s_per_gpu"}
_LORA_RANK: Final = re.compile(r"\b(?:lora[ _-]?)?(?:rank|dim|r)[ =:]+(\d+)", re.IGNORECASE)
_FROZEN_BITS: Final = ((4, r"\bqlora\b|\bnf4\b|4-?bit"), (8, r"8-?bit base|int8 base"), (32, r"fp32 base"))
# devices, and ranks of tensor groups in a pipeline, up to which nanotron's host runs ahead of them
NANOTRON_AHEAD: Final = 256
NANOTRON_AHEAD_TP: Final = 16
_PACKED: Final = re.compile(r"\bpacked\b", re.IGNORECASE)
# tokens of a text of SQuAD with its question, which such rows pack; from memory. 512 make a step 0.3 % longer.
PACKED_TEXT: Final = 256.0
LORA_RANK: Final = 16  # where a row states none; published peaks and times hardly depend on it
_MICROBATCHES_IN_TEXT: Final = re.compile(
    r"(?:grad(?:ient)?_accum\w*|micro-?batches|\bga)[ =:]+(\d+)", re.IGNORECASE
)


@dataclass(frozen=True)
class Run:
    """A row as a question. `stack` is the stack's name, `kin` the framework it stands in for (empty: itself).

    `fallback`: the most frugal configuration that what the row leaves open allows; None if it leaves nothing.
    `offloads`: the row keeps part of its memory on the host, which is not modelled. `layers_offloaded`: layers whose
    activations it keeps there.
    """

    problem: Problem
    config: ParallelConfig
    stack: str
    kin: str
    assumed: tuple[str, ...]
    fallback: ParallelConfig | None = None
    offloads: bool = False
    layers_offloaded: int = 0

    @property
    def calibration_level(self) -> str:
        """A calibration's own; else L1 where the stack was fitted on public rows, L0 otherwise."""
        if self.problem.stack.calibration_level:
            return self.problem.stack.calibration_level
        return "L1" if self.problem.stack.fitted and not self.kin else "L0"


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
        raise FileInputError(str(path), must, f"no {', '.join(sorted(missing))}", "see docs/own_runs.md")
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
        raise FileInputError(str(path), "must be valid JSON", str(error), "see docs/own_runs.md") from None
    if not isinstance(models, dict):
        must = "must map model keys to descriptions"
        raise FileInputError(str(path), must, sort_of(models), "see docs/own_runs.md")
    return models


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileInputError(str(path), "the file must exist", hint="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileInputError(str(path), "must be a readable UTF-8 text file", str(error)) from None


@dataclass
class RunReader:
    """Rows to runs; equal models, clusters, jobs and stacks become one `Problem` object."""

    models: Mapping[str, Any]
    _specs: dict[str, ModelSpec] = field(default_factory=dict)
    _clusters: dict[tuple[Any, ...], tuple[Cluster, tuple[str, ...]]] = field(default_factory=dict)
    _stacks: dict[tuple[str, str], tuple[Stack, tuple[str, ...]]] = field(default_factory=dict)
    _problems: dict[tuple[Any, ...], Problem] = field(default_factory=dict)
    _evened: dict[int, Stack] = field(default_factory=dict)
    _staged: dict[tuple[int, int, str], tuple[Stack, tuple[str, ...]]] = field(default_factory=dict)
    _narrowed: Narrowed = field(default_factory=dict)
    _polled: dict[int, Stack] = field(default_factory=dict)
    _placed: dict[tuple[int, str, str, Precision], Stack] = field(default_factory=dict)

    def read(self, row: Row) -> Run:
        """The question of one row. Raises `PlannerError` where it cannot be asked."""
        cells = {name: str(row.get(name) or "").strip() for name in INPUT_COLUMNS}
        assumed: list[str] = []
        model = self._model(cells["model"])
        cluster = self._cluster(cells, assumed)
        choice = stack_of(
            cells["framework"], cells["source"], cluster.accelerator.architecture, DEFAULT_STACK
        ).running((count_in(cells, "ep") or 1) if model.is_moe else 1)
        assumed += choice.assumed
        stack = self._stack(choice.name, bool(choice.kin), cells, assumed)
        degrees = _degrees(cells, cluster.num_devices, assumed)
        stack = self._polling(stack, cluster.num_devices, degrees)
        precision = precision_in(cells["precision"], cluster.accelerator, [])
        stack = self._on_machine(stack, model, cluster.accelerator, precision)
        if degrees["ep"] > 1 and not model.is_moe:
            assumed.append(f"ep {degrees['ep']} for a model without experts: 1")
            degrees["ep"] = 1
        job, batches = _job(cells, degrees["dp"], cluster.accelerator, stack, assumed)
        config = _config(cells, model, stack, degrees, batches, cluster.tiers[0].size, assumed)
        stack = self._sharded(stack, config.zero, choice.kin, assumed)
        stack = self._even(stack, config, model.num_layers, cells)
        key = (id(model), id(cluster), job, id(stack))
        # sums of profiles reduce and update the embedding and the logits' matrix each (vTrain, src/predictor.py)
        untied = replace(model, tied_embeddings=model.tied_embeddings and not stack.composed)
        problem = self._problems.setdefault(key, Problem(untied, cluster, job, stack))
        if model.mtp_layers:
            assumed = [what for what in assumed if what != NO_PREDICTION]
        assumed += [f"model: {what}" for what in model.assumed]
        fallback = None
        if not cells["recompute"] and config.recompute != Recompute.FULL:
            most = -(-model.num_layers // config.pp)
            fallback = replace(config, recompute=Recompute.FULL, recompute_layers=most, recompute_modules=0)
        offloads = bool(OFFLOAD.search(cells["extras"]))
        told = tuple(dict.fromkeys(assumed))
        layers = LAYERS_OFFLOADED.search(cells["extras"])
        offloaded = int(layers[1]) if layers else 0
        return Run(problem, config, choice.name, choice.kin, told, fallback, offloads, offloaded)

    def _sharded(self, stack: Stack, zero: int, kin: str, assumed: list[str]) -> Stack:
        """The stack as it runs that ZeRO stage."""
        key = (id(stack), zero, kin)
        if key not in self._staged:
            self._staged[key] = with_stage(stack, zero, kin)
        staged, said = self._staged[key]
        assumed += said
        return staged

    def _even(self, stack: Stack, config: ParallelConfig, layers: int, cells: Row) -> Stack:
        """The stack with Megatron's default split, equal stages, where they come out even and no layout is stated.

        It is Megatron-DeepSpeed's too (megatron/model/gpt_model.py GPTModelPipe: partition_method type:transformer).
        """
        megatron = stack.framework in ("megatron", "megatron-deepspeed")
        balanced = megatron and stack.split is PipelineSplit.BALANCED
        if not balanced or config.pp == 1 or layers % (config.pp * config.vpp) or "layout" in cells["extras"]:
            return stack
        if id(stack) not in self._evened:
            self._evened[id(stack)] = stack.model_copy(update={"split": PipelineSplit.EVEN})
        return self._evened[id(stack)]

    def _model(self, key: str) -> ModelSpec:
        if key not in self._specs:
            if key not in self.models:
                raise UnsupportedError("the model must be described in the models file", repr(key))
            fields = self.models[key]
            if not isinstance(fields, Mapping) or not fields.get("layers"):
                given = fields.get("hf_id") if isinstance(fields, Mapping) else None
                self._specs[key] = released_model(key, str(given or ""))
            else:
                spec = spec_from_description(fields, key, ignore_unknown=True)
                self._specs[key] = with_routing_groups(spec, str(fields.get("hf_id") or ""))
        return self._specs[key]

    def _cluster(self, cells: Row, assumed: list[str]) -> Cluster:
        chip = load_accelerator(cells["gpu"])
        gpus = count_in(cells, "gpus")
        if gpus is None:
            raise UnsupportedError("a row must state how many GPUs ran", "gpus is empty")
        key = (chip.name, gpus, cells["gpus_per_node"], cells["nvlink_domain"], cells["internode"])
        if key not in self._clusters:
            said: list[str] = []
            self._clusters[key] = (_build(cells, chip, gpus, said), tuple(said))
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

    def _polling(self, stack: Stack, devices: int, degrees: dict[str, int]) -> Stack:
        """nanotron on more than 256 devices, and with tensor groups over four nodes in a pipeline: 9 of 10 published
        runs of the former, 46 of 47 of the latter on fewer, are of the release whose host polls its messages (p2p.py of
        branch nouamane/bench2; their steps take its 0.26 s a message), so that no outputs wait for the communication
        stream."""
        wide = degrees["tp"] > NANOTRON_AHEAD_TP and degrees["pp"] > 1
        if not stack.kernels.deferred_bytes or not (devices > NANOTRON_AHEAD or wide):
            return stack
        if id(stack) not in self._polled:
            kernels = stack.kernels.model_copy(update={"deferred_bytes": 0.0})
            self._polled[id(stack)] = stack.model_copy(update={"kernels": kernels})
        return self._polled[id(stack)]


def switch_text(cells: Row) -> str:
    """The free text of a row in which a stack's switches are set."""
    return f"{cells.get('extras') or ''} | {cells.get('recompute') or ''}"


def _build(cells: Row, chip: Accelerator, gpus: int, assumed: list[str]) -> Cluster:
    node = chip.typical_node
    per_node = count_in(cells, "gpus_per_node")
    if per_node is None:
        per_node = node.accelerators if node else 8
        assumed.append(f"{per_node} devices per node")
    if gpus > per_node and gpus % per_node:
        whole = math.gcd(gpus, per_node)
        assumed.append(f"{gpus} devices are no whole nodes of {per_node}: nodes of {whole}")
        per_node = whole
    domain = count_in(cells, "nvlink_domain")
    if domain is not None and max(domain, per_node) % min(domain, per_node):
        assumed.append(f"a scale-up domain of {domain} does not fit nodes of {per_node}: {per_node}")
        domain = per_node
    if gpus <= max(per_node, domain or 0):  # no fabric is crossed
        return build_cluster(chip, gpus, per_node, domain)
    kind, injection, note = parse_fabric(cells["internode"], chip, per_node)
    if note:
        assumed.append(note)
    return build_cluster(chip, gpus, per_node, domain, kind, injection)


def _degrees(cells: Row, gpus: int, assumed: list[str]) -> dict[str, int]:
    """tp, cp, pp, ep as stated (1 where not), dp from the device count."""
    degrees = {}
    for axis in ("tp", "cp", "pp", "ep"):
        value = count_in(cells, axis)
        if value is None and axis != "ep":
            assumed.append(f"{axis} not stated: 1")
        degrees[axis] = value or 1
    product = degrees["tp"] * degrees["cp"] * degrees["pp"]
    if gpus % product:
        raise UnsupportedError(
            "tp x cp x pp must divide the device count", f"{product} of {gpus} devices", "check the row"
        )
    stated = count_in(cells, "dp")
    degrees["dp"] = gpus // product
    if stated is not None and stated != degrees["dp"]:
        assumed.append(f"dp {stated} contradicts {gpus} devices: {degrees['dp']}")
    return degrees


def _job(
    cells: Row, dp: int, chip: Accelerator, stack: Stack, assumed: list[str]
) -> tuple[Job, tuple[int, int]]:
    """The job, and (micro-batch, number of micro-batches)."""
    seq_len = count_in(cells, "seq_len")
    if seq_len is None:
        raise UnsupportedError("a row must state its sequence length", "seq_len is empty")
    batch, micro = count_in(cells, "global_batch"), count_in(cells, "micro_batch")
    stated = _MICROBATCHES_IN_TEXT.search(cells["extras"])
    count = int(stated[1]) if stated else 0
    if batch is None and micro is not None and count:
        batch = micro * dp * count
        assumed.append(f"global_batch not stated: {batch} = micro-batch x dp x {count} accumulated")
    if batch is None:
        raise UnsupportedError("a row must state its global batch", "global_batch is empty")
    if micro is None:
        share = batch // dp
        micro = share // count if count and share and share % count == 0 else 1
        assumed.append(f"micro_batch not stated: {micro}")
    number = -(-batch // (dp * micro))
    if number * dp * micro != batch:
        assumed.append(
            f"{batch} sequences do not divide into dp {dp} x micro-batch {micro}: {number} micro-batches"
        )
    packed = bool(_PACKED.search(cells["extras"]))
    if packed:
        assumed.append(f"documents of {PACKED_TEXT:g} tokens on average packed into each sequence")
    job = Job(
        seq_len,
        batch,
        torch_recipe(precision_in(cells["precision"], chip, assumed), cells, stack, assumed),
        _optimizer(cells, assumed),
        lora_rank=_lora_rank(cells, assumed),
        frozen_bits=_frozen_bits(cells),
        lora_targets=_lora_targets(cells),
        mean_length=min(PACKED_TEXT, float(seq_len)) if packed else None,
        packed=packed,
        bf16_layers=bf16_layers_of(cells),
    )
    return job, (micro, number)


def _optimizer(cells: Row, assumed: list[str]) -> Optimizer:
    """The optimizer; Adam with moments in bf16 where the recipe of Megatron-Bridge has them so."""
    stated = optimizer_in(cells["optimizer"], assumed)
    recipe = "bridge" in cells["framework"].lower() and BF16_MOMENTS.search(cells["model"])
    if stated is not Optimizer.ADAMW or not recipe or ADAPTERS.search(cells["extras"]):
        return stated
    assumed.append("the recipe's moments in bf16")
    return Optimizer.ADAMW_BF16


def _lora_targets(cells: Row) -> AdapterTargets:
    """Where adapters sit: on q, k, v alone in the performance recipes of NeMo and Megatron-Bridge."""
    if re.search(r"nemo|megatron", cells["framework"], re.IGNORECASE) and ADAPTERS.search(cells["extras"]):
        return AdapterTargets.QKV
    return AdapterTargets.ALL_LINEAR


def _lora_rank(cells: Row, assumed: list[str]) -> int | None:
    """The rank of adapters; None where all parameters are trained."""
    if not ADAPTERS.search(cells["extras"]):
        return None
    stated = _LORA_RANK.search(cells["extras"])
    if stated is None:
        assumed.append(f"LoRA rank not stated: {LORA_RANK}")
    return int(stated[1]) if stated else LORA_RANK


def _frozen_bits(cells: Row) -> int:
    """Bits of frozen weights: 16 unless the text names a base in fp32 or a quantised one."""
    if not ADAPTERS.search(cells["extras"]):
        return 16
    return next((bits for bits, text in _FROZEN_BITS if re.search(text, cells["extras"], re.IGNORECASE)), 16)


def _config(
    cells: Row,
    model: ModelSpec,
    stack: Stack,
    degrees: dict[str, int],
    batches: tuple[int, int],
    domain: int,
    assumed: list[str],
) -> ParallelConfig:
    tp, cp, pp, dp = (degrees[axis] for axis in ("tp", "cp", "pp", "dp"))
    schedule, vpp = schedule_in(cells, model.num_layers, pp, assumed)
    zero, hsdp = sharding_in(cells["dp_sharding"], stack, dp * cp, domain, tp, assumed)
    if zero >= 3 and pp > 1 and stack.states.pipeline_accumulates_whole:
        # torchtitan's policy unless "always" is asked for: `not pp_enabled`, distributed/fsdp.py
        zero = 2
        assumed.append("sharded weights under a pipeline stay gathered until the backward pass: ZeRO stage 2")
    kind, layers, modules = recompute_in(cells, model, stack, pp, assumed)
    said = switch_text(cells) + unfound_graphs(cells, model)
    graphs, captured = graphs_in(said, model, stack, assumed)
    return ParallelConfig(
        tp=tp, cp=cp, pp=pp, dp=dp, vpp=vpp, ep=degrees["ep"],
        etp=expert_tp_in(cells, model, degrees, assumed),
        micro_batch=batches[0], num_microbatches=batches[1],
        sp=sequence_parallel_in(cells["sequence_parallel"], tp, stack, assumed),
        zero=zero, hsdp=hsdp, recompute=kind, recompute_layers=layers, recompute_modules=modules,
        cp_kind=context_kind_in(cells, stack), schedule=schedule, cuda_graph_impl=graphs, cuda_graph_modules=captured,
    )  # fmt: skip


def refusal(error: Exception) -> str:
    """Why a row is not answered, in one line."""
    text = str(error) if isinstance(error, PlannerError) else f"{type(error).__name__}: {error}"
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
