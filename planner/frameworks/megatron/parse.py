"""What do Megatron-LM arguments say? The reverse of `arguments.py`, for a script or a list of arguments.

Defaults are those of megatron/training/arguments.py (main of 2026-08). Left out: arguments that change neither
time, memory nor legality.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from planner.errors import InputError
from planner.frameworks.framework import ParsedConfig
from planner.frameworks.fused_experts import PADDED_TO, capacity_said, padding_said
from planner.frameworks.layout import (
    ChunkLayers,
    Dealt,
    ends_stated,
    not_dealt,
    parse_layout,
    recomputed_note,
)
from planner.frameworks.megatron.accepted import accept, accept_words
from planner.frameworks.megatron.architecture import NORMS_FULL_QUERIES
from planner.frameworks.megatron.arguments import CONTEXT_KINDS, PRECISIONS
from planner.frameworks.megatron.connections import CONNECTIONS
from planner.frameworks.megatron.foreign import notes_on, program_of_ones_own, require_gpt
from planner.frameworks.megatron.given import Arguments
from planner.frameworks.megatron.graphs import accept_graphs, graph_axes
from planner.frameworks.megatron.heterogeneous import OPTION as LAYERS_FILE
from planner.frameworks.megatron.hybrid import pattern_in
from planner.frameworks.megatron.muon import MUON, accept_muon
from planner.frameworks.megatron.parse_model import model_of, vocabulary_notes, vocabulary_of
from planner.frameworks.megatron.sparse import accept_sparse, is_sparse, kernel_options
from planner.frameworks.megatron.stated import stated_in
from planner.frameworks.megatron.states import (
    STRATEGIES,
    accept_fsdp,
    accept_narrow_parameters,
    bf16_layers,
    drops_out,
    keeps_scores,
    narrow_parameters,
    stack_options,
    strategy,
)
from planner.frameworks.options import option_table, table_releases, unknown_options
from planner.frameworks.rulebook import recompute_bits
from planner.frameworks.shell.environment import value_of
from planner.frameworks.shell.script import Script, product, slurm_devices
from planner.spec.config import (
    MEGATRON_MODULES,
    OFFLOAD_ACTIVATIONS,
    OFFLOAD_OPTIMIZER,
    ContextKind,
    Recompute,
    Schedule,
)
from planner.spec.job import Optimizer
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.stack.engines import EngineKind
from planner.spec.stack.kinds import Dispatcher
from planner.spec.stack.losses import Compiled, InPlace

VERSION: Final = "main-2026-08"
_NO_VOCABULARY: Final = (
    "the vocabulary: planner does not read tokenizers; add --vocab-size N to the arguments"
)
_RANK_ORDER: Final = (
    "ranks are taken as numbered tp, cp, dp, pp; --use-tp-pp-dp-mapping, pp before dp, is not modelled"
)
_NO_LAYERS: Final = f"its layers: {LAYERS_FILE} names a file of them, which planner does not read"
_CAPACITY: Final = "--" + PADDED_TO.replace("_", "-")
_QUERY_NORM: Final = (
    "Megatron-LM from 0.19 on puts a second norm before the queries here, which 0.18.2 leaves out"
)


def parse(files: Mapping[str, str]) -> ParsedConfig:
    """What the arguments in one or several scripts say. Raises `InputError` naming the option."""
    arguments, options, variables, text, preset, said, adapters = stated_in(files)
    names = set(arguments.values)
    parts = pattern_in(arguments)
    if parts:
        arguments.values["--num-layers"] = [str(sum(map(len, parts)))]  # the pattern overrules it
    script = Script().follow(text)
    require_gpt(script.words, names)
    full_queries = _normed_full_queries(arguments)
    complete = (
        release for release in table_releases("megatron") if names <= option_table("megatron", release).keys()
    )
    releases = tuple(name for name in complete if not (full_queries and name in NORMS_FULL_QUERIES))
    version = releases[-1] if releases else VERSION
    accept(arguments, version)
    accept_narrow_parameters(arguments)
    connections = _connections(variables, text, preset)
    accept_fsdp(arguments, connections)
    accept_graphs(arguments, variables)
    accept_muon(arguments)
    accept_sparse(arguments)
    axes, (layers, violations) = _axes(arguments)
    devices = slurm_devices(text) or _devices(options, variables)
    alone = devices == axes["tp"] * axes["pp"]
    gathers, uncosted = narrow_parameters(arguments)
    pads = arguments.has("--moe-pad-expert-input-to-capacity")
    described = arguments.has("--num-layers") and arguments.has("--hidden-size")
    differ = arguments.has(LAYERS_FILE)
    model = model_of(arguments) if described and not differ else None
    vocabulary = vocabulary_of(arguments)
    unknown = unknown_options("megatron", version, sorted(names))
    program = program_of_ones_own(script.words)
    if not program and not preset:
        accept_words(arguments, version)
    strange = ", ".join(option.split()[0] for option in unknown)
    more = [f"not Megatron-LM's, taken for {program}'s own: {strange}"] if program and unknown else []
    return ParsedConfig(
        framework="megatron",
        version=version,
        releases=releases,
        axes=axes,
        devices=devices,
        seq_len=arguments.positive("--seq-length", 1) if arguments.has("--seq-length") else None,
        global_batch=arguments.positive("--global-batch-size", 1)
        if arguments.has("--global-batch-size")
        else None,
        precision=_precision(arguments),
        model=None if model is None or vocabulary is None else replace(model, vocab=vocabulary),
        missing=_missing(model, vocabulary, differ, preset),
        notes=(
            *said,
            *vocabulary_notes(arguments),
            *([_RANK_ORDER] * arguments.has("--use-tp-pp-dp-mapping")),
            *_recomputed_notes(arguments, layers, axes["pp"]),
            *uncosted,
            *([_QUERY_NORM] if full_queries else []),
            *_kernel_notes(arguments),
            *more,
            *notes_on(names - {_CAPACITY} if pads else names, script.sourced, [*files, *script.scripts]),
        ),
        layers=layers,
        violations=violations,
        unknown=() if program else unknown,
        optimizer=_optimizer(arguments),
        loss=_loss(arguments),
        dispatcher=_dispatcher(arguments),
        param_gather=gathers,
        bf16_layers=bf16_layers(arguments),
        adapters=adapters,
        balanced=arguments.has("--moe-router-force-load-balancing")
        or arguments.has("--moe-router-enable-expert-bias"),
        connections=connections,
        state_copies=arguments.positive("--num-distributed-optimizer-instances", 1) if axes["zero"] else 1,
        engine=EngineKind.MEGATRON_FSDP if arguments.has("--use-megatron-fsdp") else None,
        stack_options=(*stack_options(arguments, alone), *kernel_options(arguments)),
        stack_settings=(
            *capacity_said(
                lambda name: arguments.number("--" + name.replace("_", "-"), 0.0),
                arguments.has("--moe-paged-stash"),
            ),
            *padding_said(arguments.number(_CAPACITY, 0.0), pads),
        ),
    )


def _connections(variables: Mapping[str, str], text: str, preset: bool) -> str | None:
    """What the files set of hardware queues; Primus, whose launcher sets them, is not known by its presets."""
    said = value_of(CONNECTIONS, text)
    if said == "" and CONNECTIONS in variables:  # of a YAML's own
        said = variables[CONNECTIONS]
    return None if preset and not said else said


def _missing(model: ModelSpec | None, vocabulary: int | None, differ: bool, presets: bool) -> str:
    """What of the model the arguments leave out."""
    if differ:
        return _NO_LAYERS
    if model is None or vocabulary is not None:
        return ""
    return (
        _NO_VOCABULARY.replace("--vocab-size N to the arguments", "vocab_size: N to the overrides")
        if presets
        else _NO_VOCABULARY
    )


def _kernel_notes(a: Arguments) -> list[str]:
    """What arguments that are absent, or stand at their defaults, leave slower or larger than it is costed."""
    said = []
    if drops_out(a):
        how = "its masks and passes are modelled"
        if not keeps_scores(a) and a.number("--attention-dropout", 0.1) > 0:
            how += ", --attention-dropout inside a fused kernel is not"
        said.append(f"--hidden-dropout is not 0 (0.1 unless stated): {how}")
    elif a.number("--hidden-dropout", 0.1) > 0:
        said.append("--hidden-dropout is not 0 and --attention-dropout is: masks and passes are not modelled")
    if isinstance(_loss(a), InPlace):
        said.append(
            "--cross-entropy-fusion-impl te: Megatron-LM from core_v0.18.2 on refuses it, for stability"
        )
    moments = a.word("--exp-avg-dtype", "fp32")
    if moments not in ("fp32", "bf16"):
        copies = ", of which Transformer Engine makes fp32 copies, all at once, in an update"
        said.append(f"--exp-avg-dtype {moments}: moments are counted in fp32{copies}")
    share = a.number("--optimizer-offload-fraction", 1.0)
    if a.has("--optimizer-cpu-offload") and share < 1:
        said.append(f"--optimizer-offload-fraction {share:g}: all optimizer states are counted in CPU memory")
    if a.has("--num-experts"):
        if a.has("--moe-shared-expert-overlap") and a.has("--moe-shared-expert-intermediate-size"):
            said.append(
                "--moe-shared-expert-overlap: shared experts beside the dispatch of tokens are modelled before it"
            )
        if not a.has("--moe-grouped-gemm"):
            said.append("without --moe-grouped-gemm experts run one after the other: modelled as grouped")
    return said


def _loss(a: Arguments) -> InPlace | Compiled | None:
    """The fused loss that the options ask for, Megatron-LM's own unless it is to be Transformer Engine's."""
    if not a.has("--cross-entropy-loss-fusion"):
        return None
    engine = a.word("--cross-entropy-fusion-impl", "native") == "te"
    return InPlace() if engine else Compiled()


def _dispatcher(a: Arguments) -> Dispatcher | None:
    """The backend of the flex dispatcher, DeepEP where none is named; None where tokens are exchanged by NCCL."""
    if a.word("--moe-token-dispatcher-type", "allgather") != "flex":
        return None
    backend = a.word("--moe-flex-dispatcher-backend", "deepep")
    return next((kind for kind in (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP) if kind == backend), None)


def _normed_full_queries(a: Arguments) -> bool:
    """Is it latent attention with a norm of keys and values, and queries that no latent dimension compresses?"""
    latent = a.has("--multi-latent-attention") and a.has("--qk-layernorm")
    return latent and not a.count("--q-lora-rank", 0)


def _devices(options: list[tuple[str, ...]], variables: Mapping[str, str]) -> int | None:
    words = {name.replace("_", "-"): values for name, *values in options}
    nodes = (words.get("--nnodes") or [variables.get("NNODES", variables.get("NUM_NODES", ""))])[0]
    each = (words.get("--nproc-per-node") or [variables.get("GPUS_PER_NODE", "")])[0]
    if not nodes and "--nproc-per-node" in words:
        nodes = "1"  # what torchrun takes
    return product(nodes, each)


def _axes(a: Arguments) -> tuple[dict[str, int], Dealt]:
    tp, pp = a.positive("--tensor-model-parallel-size", 1), a.positive("--pipeline-model-parallel-size", 1)
    vpp, dealt = _pipeline(a, pp)
    group = a.positive("--microbatch-group-size-per-virtual-pipeline-stage", pp)
    if vpp > 1 and group != pp:
        must = "--microbatch-group-size-per-virtual-pipeline-stage must be the pipeline size: planner models no other"
        raise InputError(must, f"{group}, pp {pp}", "leave it out")
    recompute, recomputed, modules = _recompute(a, pp, vpp)
    axes = {
        "tp": tp,
        "pp": pp,
        "cp": a.positive("--context-parallel-size", 1),
        "vpp": vpp,
        "ep": a.positive("--expert-model-parallel-size", 1),
        "etp": a.positive("--expert-tensor-parallel-size", tp if a.has("--num-experts") else 1),
        "micro_batch": a.positive("--micro-batch-size", 1),
        "sp": int(a.has("--sequence-parallel") and tp > 1),
        "zero": _zero(a),
        "offload": _offload(a),
        "recompute": int(recompute),
        "recompute_layers": recomputed,
        "recompute_modules": modules,
        "cp_kind": _context_kind(a),
        "schedule": int(Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B),
        **graph_axes(a),
    }
    return axes, dealt


def _context_kind(a: Arguments) -> int:
    """Where attention is sparse underscores don't count (core/transformer/transformer_config.py)."""
    name = a.word("--cp-comm-type", "p2p")
    if is_sparse(a) and name.replace("_", "").lower() == "allgather":
        return int(ContextKind.ALL_GATHER)
    for kind, text in CONTEXT_KINDS.items():
        if text == name:
            return int(kind)
    raise InputError(
        "--cp-comm-type must be one that planner models", name, "one of: " + ", ".join(CONTEXT_KINDS.values())
    )


def _pipeline(a: Arguments, pp: int) -> tuple[int, Dealt]:
    """Virtual stages per rank, 1 where they are not clear, and the layers of every chunk."""
    total = a.count("--num-layers", 0)
    parts = pattern_in(a)
    if len(parts) > 1:
        if len(parts) % pp:
            must = "the parts of --hybrid-layer-pattern must be divisible by the pipeline size"
            return 1, not_dealt(must, f"{len(parts)} parts, pp {pp}", "change the pattern")
        return len(parts) // pp, (tuple(map(len, parts)), ())
    layout = a.word("--pipeline-model-parallel-layout", "")
    if layout:
        stages = parse_layout(layout)
        if len(stages) % pp:
            must = "the stages of --pipeline-model-parallel-layout must be divisible by the pipeline size"
            return 1, not_dealt(must, f"{len(stages)} stages, pp {pp}", "change the layout")
        return len(stages) // pp, (tuple(stage.count("t") for stage in stages), ())
    vpp = a.positive("--num-virtual-stages-per-pipeline-rank", 1)
    if a.has("--num-layers-per-virtual-pipeline-stage"):
        each = a.positive("--num-layers-per-virtual-pipeline-stage", 1)
        if total % pp or (total // pp) % each:
            must = "layers must be divisible by pp, and layers per stage by those per virtual stage"
            given = f"{total} layers, pp {pp}, {each} per virtual stage"
            return 1, not_dealt(must, given, "use --pipeline-model-parallel-layout, or other degrees")
        vpp = total // pp // each
    return vpp, _dealt(a, total, pp, vpp)


def _dealt(a: Arguments, total: int, pp: int, vpp: int) -> Dealt:
    """Layers of every chunk without a layout; empty where there is no pipeline, or the arguments state no layers."""
    if pp == 1 or not total:
        return (), ()
    names = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
    first, last = (a.positive(name, 1) if a.has(name) else None for name in names)
    embedding, loss = (
        int(a.has(f"--account-for-{what}-in-pipeline-split")) for what in ("embedding", "loss")
    )
    return ends_stated(total, pp, vpp, (first, last), (embedding, loss))


def _offload(a: Arguments) -> int:
    """What lies on the host, as bits of `offload`; a part of it counts as all of it."""
    bits = OFFLOAD_OPTIMIZER if a.has("--optimizer-cpu-offload") else 0
    return bits | (OFFLOAD_ACTIVATIONS if a.count("--cpu-offloading-num-layers", 0) else 0)


def _zero(a: Arguments) -> int:
    if a.has("--use-megatron-fsdp"):
        return STRATEGIES.index(strategy(a)) if strategy(a) in STRATEGIES else 3
    if a.has("--use-torch-fsdp2"):
        return 3
    return int(a.has("--use-distributed-optimizer") or a.word("--optimizer", "adam") == MUON[1])


def _recompute(a: Arguments, pp: int, vpp: int) -> tuple[Recompute, int, int]:
    kind = a.word("--recompute-granularity", "selective" if a.has("--recompute-activations") else "")
    total = a.count("--num-layers", 0)
    # the older name, which transformer_config.py adds to the modules
    layers_of_experts = ["moe"] * a.has("--moe-layer-recompute")
    if kind == "selective" or layers_of_experts:
        names = [*(a.values.get("--recompute-modules") or ["core_attn"]), *layers_of_experts]
        unknown = [name for name in names if name not in MEGATRON_MODULES]
        if unknown:
            must = "--recompute-modules must be ones that planner models"
            raise InputError(must, ", ".join(unknown), "one of: " + ", ".join(MEGATRON_MODULES))
        return Recompute.SELECTIVE, 0, recompute_bits(*names)
    if kind == "full":
        most = -(-total // pp)
        block = a.word("--recompute-method", "uniform") == "block"
        return Recompute.FULL, min(a.positive("--recompute-num-layers", 1) * vpp, most) if block else most, 0
    return Recompute.NONE, 0, 0


def _recomputed_notes(a: Arguments, layers: ChunkLayers, pp: int) -> tuple[str, ...]:
    full = a.word("--recompute-granularity", "") == "full"
    if not full or a.word("--recompute-method", "uniform") != "block":
        return ()
    option = "--recompute-num-layers"
    return recomputed_note(option, a.positive(option, 1), layers, pp)


def _precision(a: Arguments) -> Precision:
    if a.has("--fp4-format"):
        return Precision.NVFP4
    if a.has("--fp8-format"):
        recipe = a.word("--fp8-recipe", "delayed")
        for precision, options in PRECISIONS.items():
            if ("--fp8-recipe", recipe) in options:
                return precision
        raise InputError("--fp8-recipe must be one that planner models", recipe)
    return Precision.BF16 if a.has("--bf16") else Precision.FP16 if a.has("--fp16") else Precision.FP32


def _optimizer(a: Arguments) -> Optimizer:
    name = a.word("--optimizer", "adam")
    if name == "sgd":
        return Optimizer.SGD if a.number("--sgd-momentum", 0.9) == 0 else Optimizer.SGD_MOMENTUM
    if name in MUON:
        return Optimizer.MUON
    return Optimizer.ADAMW_BF16 if a.word("--exp-avg-dtype", "fp32") == "bf16" else Optimizer.ADAMW
