"""What does a script that runs Megatron-Bridge with a recipe and overrides say?

Source: see `planner.frameworks.megatron_bridge`. Left out: what recipes compute, which notes name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from planner.catalog.stack_options import (
    ALL_GATHERED,
    DOUBLE_BUFFER,
    DROPOUT,
    EXPERTS_OVERLAPPED,
    FLOAT8_SWIGLU,
    FUSED_EXPERTS,
    TP_SERIAL,
    UNFUSED_ATTENTION,
    UNFUSED_SWIGLU,
    UPDATE_GRAPH,
)
from planner.errors import FileInputError, InputError
from planner.frameworks.fields import Settings
from planner.frameworks.framework import ParsedConfig
from planner.frameworks.fused_experts import (
    PADDED_TO,
    PADS,
    STASH,
    capacity_said,
    padding_said,
)
from planner.frameworks.layout import (
    ChunkLayers,
    Dealt,
    ends_stated,
    not_dealt,
    parse_layout,
    recomputed_note,
)
from planner.frameworks.megatron.arguments import CONTEXT_KINDS, is_plain
from planner.frameworks.megatron.connections import CONNECTIONS, require_several
from planner.frameworks.megatron_bridge import precision, sharding
from planner.frameworks.megatron_bridge.graphs import OPTIMIZER_GRAPH, graphs_said
from planner.frameworks.megatron_bridge.model import PATTERN, chunks_of, model_of
from planner.frameworks.megatron_bridge.names import newest_refuses, read_as, releases_of, unknown_names
from planner.frameworks.megatron_bridge.notes import muon_notes, recipe_notes, shared_experts
from planner.frameworks.megatron_bridge.precision import Mixed
from planner.frameworks.megatron_bridge.recipes import NAMES, RELEASES, Recipe, recipe_of
from planner.frameworks.megatron_bridge.scripts import devices_of, overrides_in
from planner.frameworks.megatron_bridge.unread import not_read, remade
from planner.frameworks.rulebook import recompute_bits
from planner.frameworks.shell.environment import value_of
from planner.spec.config import (
    MEGATRON_MODULES,
    ContextKind,
    Recompute,
    Schedule,
)
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.stack.engines import EngineKind
from planner.spec.stack.kinds import Dispatcher
from planner.spec.stack.losses import Compiled, InPlace

LAYOUT: Final = "model.pipeline_model_parallel_layout"
FLOAT8_INPUT: Final = "model.activation_func_fp8_input_store"
# what --no-bias-swiglu-fusion switches off (megatron/training/argument_utils.py:317, main d98e8a64)
FUSED_ACTIVATION: Final = "model.bias_activation_fusion"
_DIVIDED: Final = re.compile(r"\bmodel\.(?:transformer\.)?tensor_model_parallel_size")
FUSIONS: Final = (
    "native",
    "te",
)  # of the loss (megatron/core/model_parallel_config.py cross_entropy_fusion_impl)


def parse(files: Mapping[str, str]) -> ParsedConfig:
    """What a script with a recipe and overrides says. Raises `InputError`."""
    given, called, notes = overrides_in(files)
    overrides = {read_as(name): value for name, value in given.items()}
    file, devices = next(iter(files)), devices_of(files)
    if not called and not any(name.startswith("model.") for name in overrides):
        must = "a Megatron-Bridge script must name a recipe or override fields, model.tensor_model_parallel_size=8"
        raise InputError(must, ", ".join(files))
    recipe = recipe_of(called)
    # datasets of recipes for fine-tuning have settings of their own, which cost no step anything
    stated = [name for name in given if recipe.known or not name.startswith("dataset.")]
    releases = releases_of(stated, called)
    version = releases[-1] if releases else RELEASES[-1]
    newest = newest_refuses(stated, called) if releases else []
    recipe = recipe_of(called, version)
    fields = {**recipe.settings, **overrides}
    notes += recipe_notes(recipe, called, overrides, fields)
    # the precision is read apart: `precision.py`
    known = {field: value for field, value in fields.items() if value not in (None, "null", "computed")}
    named = {read_as(name): name for name in given}
    s = Settings({field: value for field, value in known.items() if field != precision.SECTION}, file, named)
    section = _has_section(recipe, overrides, file)
    mixed, formats, spelled = _mixed(overrides, recipe, called, s)
    tp, pp, vpp = (
        s.count(f"model.{axis}_model_parallel_size", 1) for axis in ("tensor", "pipeline", "virtual_pipeline")
    )
    model, of_model = model_of(s, recipe.model, tp)
    missing = remade(s, overrides, model) if model else ""
    layers = model.num_layers if model else 0
    (chunks, violations), dealt = _chunks(s, fields, recipe.model, layers, (pp, vpp), LAYOUT in overrides)
    fsdp, connections = sharding.uses_fsdp(s), value_of(CONNECTIONS, "\n".join(files.values()))
    if fsdp:
        require_several("ddp.use_megatron_fsdp", connections)
    recomputed, of_blocks = _recomputation(s, layers, chunks, (pp, vpp))
    optimizer = sharding.optimizer_of(s)
    notes += [
        *of_model, *dealt, *of_blocks, *shared_experts(s, model, section), *muon_notes(s, recipe.model),
        *sharding.notes(s, layers), *sharding.overruled(s, overrides, formats, section),
        *not_read(s, overrides), *newest,
    ]  # fmt: skip
    zero = sharding.zero_stage(s)
    axes = {
        "tp": tp, "pp": pp, "vpp": vpp, "cp": s.count("model.context_parallel_size", 1),
        "ep": s.count("model.expert_model_parallel_size", 1),
        "etp": s.count("model.expert_tensor_parallel_size", 1),
        "micro_batch": s.count("train.micro_batch_size", 1), "sp": int(s.flag("model.sequence_parallel")),
        "zero": zero, "offload": sharding.offloaded(s),
        "schedule": int(Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B),
        **recomputed,
        **_context_kind(s),
        **graphs_said(s),
    }  # fmt: skip
    return ParsedConfig(
        framework="megatron-bridge",
        version=version,
        releases=releases,
        axes=axes,
        devices=devices,
        seq_len=_length(s),
        global_batch=s.count("train.global_batch_size", 1) if s.has("train.global_batch_size") else None,
        precision=mixed.precision,
        optimizer=optimizer,
        model=None if missing else model,
        named="" if recipe.model else called,
        missing=missing,
        layers=chunks,
        violations=violations,
        unknown=unknown_names(stated, called, version),
        notes=tuple(notes),
        loss=_loss(s, recipe),
        dispatcher=_dispatcher(s),
        engine=EngineKind.MEGATRON_FSDP if fsdp else None,
        stack_options=_stack_options(s, model, mixed, spelled, section),
        stack_settings=(
            *capacity_said(lambda name: s.number("model." + name), s.flag("model." + STASH)),
            *padding_said(s.number("model." + PADDED_TO), s.flag("model." + PADS)),
            *sharding.settings(s),
        ),
        param_gather=mixed.gathers,
        bf16_layers=mixed.ends,
        balanced=s.flag("model.moe_router_force_load_balancing")
        or s.flag("model.moe_router_enable_expert_bias"),
        connections=connections,
        state_copies=s.count("ddp.num_distributed_optimizer_instances", 1) if zero else 1,
        window_exchanges={"mistral": ContextKind.A2A},  # 067f987 models/mistral/mistral_bridge.py
    )


def _has_section(recipe: Recipe, overrides: Mapping[str, Any], file: str) -> bool:
    """Has the configuration a section comm_overlap? Raises `FileInputError` where fields of none are overridden, which
    Hydra refuses."""
    stated = [name for name in overrides if name.startswith("comm_overlap.")]
    given = overrides.get("comm_overlap")
    if given in (None, "null") and (stated and recipe.known) and (given or not recipe.overlaps):
        must = "must not be overridden: the recipe's comm_overlap is None, which has no fields"
        how = "override fields of model and ddp"
        raise FileInputError(file, must, overrides[stated[0]], how, field=stated[0])
    if given is not None:
        return given != "null"
    return recipe.overlaps or bool(stated)


def _mixed(
    overrides: Mapping[str, Any], recipe: Recipe, called: str, s: Settings
) -> tuple[Mixed, dict[str, Any], bool]:
    """The mixed precision, its fields as far as they are known, and whether the width of gradients is."""
    fields = precision.fields_stated(overrides, recipe, s.file)
    if fields is None and overrides.get(precision.SECTION) == "null":  # what the other sections say counts
        half = Precision.FP16 if s.flag("model.fp16") else Precision.BF16
        wide = s.flag("ddp." + precision.GRADIENTS, recipe.known)
        return Mixed(half if s.flag("model.bf16", True) else Precision.FP32, wide, None, (0, 0)), {}, True
    if fields is not None and (recipe.known or precision.SECTION in overrides):
        return precision.mixed_of(fields, s.file), fields, True
    like = precision.PRECISIONS[precision.named_like(called) or Precision.BF16]
    found = precision.mixed_of({**precision.NAMED[like], **(fields or {})}, s.file)
    return found, {}, f"{precision.SECTION}.{precision.GRADIENTS}" in overrides


def _length(s: Settings) -> int | None:
    """Tokens of a sequence: the dataset's, to which the model is set (scripts/training/recipe_runner.py
    sync_model_dataset_sequence_length)."""
    found = next((name for name in ("dataset.seq_length", "model.seq_length") if s.has(name)), None)
    return s.count(found, 1) if found else None


def _chunks(
    s: Settings,
    fields: Mapping[str, Any],
    name: str,
    layers: int,
    pipeline: tuple[int, int],
    own: bool,
) -> tuple[Dealt, list[str]]:
    """Layers of every chunk, where they are said, and a note where the recipe `name` computes them; `pipeline`: pp and
    vpp; `own`: is the layout the script's own?"""
    pp, vpp = pipeline
    if parts := chunks_of(s):
        if len(parts) == pp:
            return (parts, ()), []
        must = f"{PATTERN} must have a part for every pipeline rank"
        return not_dealt(must, f"{len(parts)} parts, pp {pp}", "change the pattern"), []
    if layout := s.text(LAYOUT, ""):
        return (tuple(stage.count("t") for stage in parse_layout(layout)), ()), []
    if LAYOUT not in fields or pp == 1:
        return ((), ()), []
    if name in NAMES.layouts_computed and not own:
        return ((), ()), [
            "the recipe computes how layers are assigned to pipeline ranks: taken as the stack assigns them"
        ]
    return (_dealt(s, layers, pp, vpp) if layers else ((), ())), []


def _recomputation(
    s: Settings, layers: int, chunks: ChunkLayers, pipeline: tuple[int, int]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """The axes of recomputation and a note where a block means other layers than it seems; `pipeline`: pp and vpp."""
    pp, vpp = pipeline
    kind, count, modules = s.text("model.recompute_granularity", ""), 0, 0
    notes: tuple[str, ...] = ()
    if kind == "full":
        most = -(-layers // pp)
        block = s.text("model.recompute_method", "uniform") == "block"
        each = s.count("model.recompute_num_layers", 1)
        count = min(each * vpp, most) if block else most
        notes = recomputed_note(s.name("model.recompute_num_layers"), each, chunks, pp) if block else ()
    if kind == "selective":
        words = s.text("model.recompute_modules", "[core_attn]").strip("[]").split(",")
        names = {word.strip(" '\"") for word in words} - {""}
        if unknown := sorted(names - set(MEGATRON_MODULES)):
            must = "must be modules that planner models: " + ", ".join(MEGATRON_MODULES)
            raise FileInputError(
                s.file, must, ", ".join(unknown)[:80], field=s.name("model.recompute_modules")
            )
        modules = recompute_bits(*names)
    level = {"full": Recompute.FULL, "selective": Recompute.SELECTIVE}.get(kind, Recompute.NONE)
    return {"recompute": int(level), "recompute_layers": count, "recompute_modules": modules}, notes


def _reduces_alone(s: Settings, model: ModelSpec | None, mixed: Mixed, section: bool) -> bool:
    """Do tensor-parallel collectives run alone where measured recipes run them under products?"""
    recipe = s.flag("model.sequence_parallel") and s.count("model.tensor_model_parallel_size", 1) > 1
    if not recipe or model is None or not is_plain(model, mixed.precision):
        return False
    return not sharding.overlaps(s, "tp_comm_overlap", section)


def _stack_options(
    s: Settings, model: ModelSpec | None, mixed: Mixed, spelled: bool, section: bool
) -> tuple[str, ...]:
    """Options of the stack that the fields set; `spelled`: is the width of gradients known?"""
    fsdp = sharding.uses_fsdp(s)
    narrow = mixed.precision is Precision.FP8_MX
    fused = narrow and s.flag("model.use_transformer_engine_op_fuser")
    alone = not fsdp and _reduces_alone(s, model, mixed, section)
    unfused = s.text("model.attention_backend", "auto") in ("unfused", "local")
    drops = s.text("model.hidden_dropout", "0") not in ("0", "0.0")
    captured = not fsdp and s.flag(OPTIMIZER_GRAPH)
    ranks = s.count("model.expert_model_parallel_size", 1)
    beside = not fsdp and ranks > 1 and sharding.overlaps(s, "overlap_moe_expert_parallel_comm", section)
    ranks *= s.count("model.expert_tensor_parallel_size", 1)
    gathered = s.text("model.moe_token_dispatcher_type", "") == "allgather" and ranks > 1
    return (
        *[DOUBLE_BUFFER] * (fsdp and s.flag("ddp.fsdp_double_buffer")),
        *sharding.options(s, mixed if spelled else None, section),
        *[ALL_GATHERED] * gathered,
        *[TP_SERIAL] * alone,
        *[UPDATE_GRAPH] * captured,
        *[EXPERTS_OVERLAPPED] * beside,
        *[FUSED_EXPERTS] * fused,
        *[UNFUSED_ATTENTION] * unfused,
        *[DROPOUT] * drops,
        *[UNFUSED_SWIGLU] * (not s.flag(FUSED_ACTIVATION, True)),
        *[FLOAT8_SWIGLU] * s.flag(FLOAT8_INPUT),
    )


def _loss(s: Settings, recipe: Recipe) -> InPlace | Compiled | None:
    """The fused loss that a file asks for, as providers do unasked (models/gpt_provider.py): Megatron-LM's own unless
    it names another; of a recipe that is not known Transformer Engine's, as most set it. Raises `FileInputError`."""
    if not s.flag("model.cross_entropy_loss_fusion", recipe.known):
        return None
    kind = s.text("model.cross_entropy_fusion_impl", "native" if recipe.known else "te")
    if kind not in FUSIONS:
        must = "must be one of " + ", ".join(FUSIONS)
        raise FileInputError(s.file, must, kind[:40], field=s.name("model.cross_entropy_fusion_impl"))
    return InPlace() if kind == "te" else Compiled()


def _dispatcher(s: Settings) -> Dispatcher | None:
    """The backend of the flex dispatcher, DeepEP where none is named; None where tokens are exchanged by NCCL."""
    if s.text("model.moe_token_dispatcher_type", "") != "flex":
        return None
    backend = s.text("model.moe_flex_dispatcher_backend", Dispatcher.DEEPEP)
    return next((kind for kind in (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP) if kind == backend), None)


def _context_kind(s: Settings) -> dict[str, int]:
    """How context parallelism exchanges, where that is said: the provider of a model with windows, or with indexers,
    sets its own (models/mistral/mistral_bridge.py, models/glm_moe_dsa/glm5_bridge.py). A recipe names a kind where it
    has none to exchange too."""
    name = s.text("model.cp_comm_type", "")
    if s.count("model.context_parallel_size", 1) == 1 or not name:
        return {}
    for kind, text in CONTEXT_KINDS.items():
        if text == name:
            return {"cp_kind": int(kind)}
    must = "must be one that planner models: " + ", ".join(CONTEXT_KINDS.values())
    raise FileInputError(s.file, must, name[:40], field=s.name("model.cp_comm_type"))


def _dealt(s: Settings, layers: int, pp: int, vpp: int) -> Dealt:
    """Layers of every chunk where no layout names them."""
    names = [f"model.num_layers_in_{end}_pipeline_stage" for end in ("first", "last")]
    first, last = (s.count(name, 1) if s.has(name) else None for name in names)
    counted = [int(s.flag(f"model.account_for_{end}_in_pipeline_split")) for end in ("embedding", "loss")]
    return ends_stated(layers, pp, vpp, (first, last), (counted[0], counted[1]))


def recognizes(name: str, text: str) -> bool:
    """A script that runs a recipe or overrides its fields."""
    return "run_recipe.py" in text or _DIVIDED.search(text) is not None
