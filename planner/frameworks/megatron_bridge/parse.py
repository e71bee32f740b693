"""What does a script that runs Megatron-Bridge with a recipe and overrides say?

Source: see `planner.frameworks.megatron_bridge`. Left out: what recipes compute, which notes name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from planner.catalog.stack_options import (
    ALL_GATHERED,
    DOUBLE_BUFFER,
    DP_SERIAL,
    DROPOUT,
    EXPERTS_OVERLAPPED,
    FLOAT8_SWIGLU,
    FP32_GRADIENTS,
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
    parse_layout,
    recomputed_note,
)
from planner.frameworks.megatron.arguments import CONTEXT_KINDS, is_plain
from planner.frameworks.megatron.connections import CONNECTIONS, require_several
from planner.frameworks.megatron.muon import MUON, TP_MODE
from planner.frameworks.megatron.states import (
    STRATEGIES,
)
from planner.frameworks.megatron_bridge.graphs import OPTIMIZER_GRAPH, graphs_said
from planner.frameworks.megatron_bridge.recipes import (
    LAYOUTS_COMPUTED,
    MUON_RECIPES,
    recipe_named,
    recipe_settings,
)
from planner.frameworks.megatron_bridge.scripts import devices_of, overrides_in
from planner.frameworks.options import unknown_options
from planner.frameworks.shell.environment import value_of
from planner.spec.config import (
    MEGATRON_MODULES,
    OFFLOAD_ACTIVATIONS,
    OFFLOAD_OPTIMIZER,
    ContextKind,
    Recompute,
    Schedule,
)
from planner.spec.job import Optimizer
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.stack.kinds import CrossEntropy, Dispatcher, StateEngine

LAYOUT: Final = "model.pipeline_model_parallel_layout"
FLOAT8_INPUT: Final = "model.activation_func_fp8_input_store"
OPTIMIZER: Final = "optimizer.optimizer"
SHARED_OVERLAP: Final = "model.moe_shared_expert_overlap"
VERSION: Final = "0.7.0"
# names in MIXED_PRECISION_RECIPES, training/mixed_precision.py
PRECISIONS: Final = {
    Precision.BF16: "bf16_mixed",
    Precision.FP16: "fp16_mixed",
    Precision.FP8: "bf16_with_fp8_delayed_scaling_mixed",
    Precision.FP8_CS: "bf16_with_fp8_current_scaling_mixed",
    Precision.FP8_MX: "bf16_with_mxfp8_mixed",
    Precision.FP8_BLOCKWISE: "bf16_with_fp8_subchannel_scaling_mixed",
    Precision.NVFP4: "bf16_with_nvfp4_mixed",
}
# the type of its moments, which some recipes have narrower than others
MOMENTS: Final = {Optimizer.ADAMW: "torch.float32", Optimizer.ADAMW_BF16: "torch.bfloat16"}
FP8_RECIPES: Final = (Precision.FP8, Precision.FP8_CS, Precision.FP8_MX, Precision.FP8_BLOCKWISE)
# what --no-bias-swiglu-fusion switches off (megatron/training/argument_utils.py:317, main d98e8a64)
FUSED_ACTIVATION: Final = "model.bias_activation_fusion"
# None has them in the type of the weights that compute (core/distributed/distributed_data_parallel_config.py)
MAIN_GRADIENTS: Final = "ddp.megatron_fsdp_main_grads_dtype"
# layers at either end that a recipe keeps in bf16 (first_last_layers_bf16, one each); none in others
BF16_LAYERS: Final = {Precision.FP8_CS: (1, 1)}
NARROW_RECIPES: Final = (*FP8_RECIPES, Precision.NVFP4)
# of these, the recipes that set fp8_param_gather or fp4_param_gather
PARAM_GATHER: Final = (*FP8_RECIPES[:3], Precision.NVFP4)


def parse(files: Mapping[str, str]) -> ParsedConfig:
    """What a script with a recipe and overrides says. Raises `InputError`."""
    overrides, recipe, notes = overrides_in(files)
    devices = devices_of(files)
    if not recipe and not any(name.startswith("model.") for name in overrides):
        must = "a Megatron-Bridge script must name a recipe or override fields, model.tensor_model_parallel_size=8"
        raise InputError(must, ", ".join(files))
    name = recipe_named(recipe)
    fields = {**recipe_settings(name), **overrides}
    if name is None:
        notes.append(
            f"what {recipe or 'the recipe'} sets is not known: degrees that the script does not override are taken as 1"
        )
    if "peft" in recipe or any(field.startswith("peft") for field in overrides):
        notes.append("adapters (peft): all weights are counted as trained, not the adapters alone")
    notes += [
        f"{field}, which the recipe computes, is not read" for field in fields if fields[field] == "computed"
    ]
    known = {field: value for field, value in fields.items() if value not in (None, "null", "computed")}
    s = Settings(known, next(iter(files)))
    predicts = s.count("model.mtp_num_layers", 0, least=0) > 0
    model = load_model(name, with_mtp=predicts) if name is not None else None
    layers = model.num_layers if model else 0
    tp, pp, vpp = (
        s.count(f"model.{axis}_model_parallel_size", 1) for axis in ("tensor", "pipeline", "virtual_pipeline")
    )
    (chunks, violations), dealt = _chunks(s, fields, name, layers, (pp, vpp), LAYOUT in overrides)
    notes += dealt
    strategy = s.text("ddp.data_parallel_sharding_strategy", "optim_grads_params")
    zero, fsdp = int(s.flag("ddp.use_distributed_optimizer")), s.flag("ddp.use_megatron_fsdp")
    if fsdp:
        zero = STRATEGIES.index(strategy) if strategy in STRATEGIES else 3
    connections = value_of(CONNECTIONS, "\n".join(files.values()))
    if fsdp:
        require_several("ddp.use_megatron_fsdp", connections)
    recomputed, of_blocks = _recomputation(s, layers, chunks, (pp, vpp))
    notes += of_blocks
    notes += _shared_experts(s, model)
    notes += _muon_notes(s, name)
    if s.text(OPTIMIZER, "adam") == MUON[1]:  # deals matrices to ranks without the distributed optimizer
        zero = 1
    axes = {
        "tp": tp, "pp": pp, "vpp": vpp, "cp": s.count("model.context_parallel_size", 1),
        "ep": s.count("model.expert_model_parallel_size", 1),
        "etp": s.count("model.expert_tensor_parallel_size", 1),
        "micro_batch": s.count("train.micro_batch_size", 1), "sp": int(s.flag("model.sequence_parallel")),
        "zero": zero, "offload": _offload(s),
        "schedule": int(Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B),
        **recomputed,
        **_context_kind(s),
        **graphs_said(s),
    }  # fmt: skip
    said = s.text("mixed_precision", "bf16_mixed")
    precision = next((p for p, text in PRECISIONS.items() if text == said), None)
    return ParsedConfig(
        framework="megatron-bridge",
        version=VERSION,
        axes=axes,
        devices=devices,
        seq_len=s.count("model.seq_length", 1) if s.has("model.seq_length") else None,
        global_batch=s.count("train.global_batch_size", 1) if s.has("train.global_batch_size") else None,
        precision=precision,
        optimizer=_optimizer(s),
        model=model,
        layers=chunks,
        violations=violations,
        # datasets of recipes for fine-tuning have settings of their own, which cost no step anything
        unknown=unknown_options(
            "megatron-bridge", VERSION, [f for f in overrides if name or not f.startswith("dataset.")]
        ),
        notes=tuple(notes),
        cross_entropy=_cross_entropy(s),
        dispatcher=_dispatcher(s),
        engine=StateEngine.MEGATRON_FSDP if fsdp else None,
        stack_options=_stack_options(s, fsdp, precision, _reduces_alone(s, model, precision)),
        stack_settings=(
            *capacity_said(lambda name: s.number("model." + name), s.flag("model." + STASH)),
            *padding_said(s.number("model." + PADDED_TO), s.flag("model." + PADS)),
        ),
        param_gather=precision in PARAM_GATHER if precision in NARROW_RECIPES else None,
        bf16_layers=BF16_LAYERS.get(precision, (0, 0)) if precision else (0, 0),
        connections=connections,
        state_copies=s.count("ddp.num_distributed_optimizer_instances", 1) if zero else 1,
        window_exchanges={"mistral": ContextKind.A2A},  # 067f987 models/mistral/mistral_bridge.py
    )


def _chunks(
    s: Settings,
    fields: Mapping[str, Any],
    name: str | None,
    layers: int,
    pipeline: tuple[int, int],
    own: bool,
) -> tuple[Dealt, list[str]]:
    """Layers of every chunk, where they are said, and a note where the recipe `name` computes them; `pipeline`: pp and
    vpp; `own`: is the layout the script's own?"""
    pp, vpp = pipeline
    if layout := s.text(LAYOUT, ""):
        return (tuple(stage.count("t") for stage in parse_layout(layout)), ()), []
    if LAYOUT not in fields or pp == 1:
        return ((), ()), []
    if name in LAYOUTS_COMPUTED and not own:
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
        notes = recomputed_note("model.recompute_num_layers", each, chunks, pp) if block else ()
    if kind == "selective":
        names = s.text("model.recompute_modules", "[core_attn]").strip("[]").split(",")
        modules = sum(1 << MEGATRON_MODULES.index(n) for n in set(names) if n in MEGATRON_MODULES)
    level = {"full": Recompute.FULL, "selective": Recompute.SELECTIVE}.get(kind, Recompute.NONE)
    return {"recompute": int(level), "recompute_layers": count, "recompute_modules": modules}, notes


def _shared_experts(s: Settings, model: ModelSpec | None) -> list[str]:
    """A note where shared experts run beside the dispatch of tokens. Raises `InputError` where that is refused
    (training/comm_overlap.py; Megatron-Core transformer_config.py __post_init__)."""
    shared = model is not None and any(layer.moe and layer.moe.shared_ffn for layer in model.blocks)
    if not (s.flag(SHARED_OVERLAP) and shared):
        return []
    if _overlaps_experts(s):
        must = f"{SHARED_OVERLAP} must be false with overlap_moe_expert_parallel_comm"
        raise InputError(must, "true, the recipe's unless the script sets it", f"add {SHARED_OVERLAP}=false")
    selective = s.text("model.recompute_granularity", "") == "selective"
    if selective and "shared_experts" in s.text("model.recompute_modules", ""):
        must = f"{SHARED_OVERLAP} must be false where shared_experts are recomputed"
        raise InputError(must, "true, the recipe's unless the script sets it", f"add {SHARED_OVERLAP}=false")
    return [f"{SHARED_OVERLAP}: shared experts beside the dispatch of tokens are modelled before it"]


def _muon_notes(s: Settings, name: str | None) -> list[str]:
    """What of Muon is costed otherwise. Raises `InputError` for what planner costs in no way."""
    said = s.text(OPTIMIZER, "")
    if not said and name in MUON_RECIPES:
        return [
            f"the recipe's optimizer is Muon, counted as AdamW: {OPTIMIZER}=muon in the script says which it is"
        ]
    if said not in MUON:
        return []
    # Megatron-Core's default, and that of the recipes' function
    mode = s.text("optimizer.muon_tp_mode", "blockwise" if name in MUON_RECIPES else TP_MODE)
    if mode != TP_MODE and s.count("model.tensor_model_parallel_size", 1) > 1:
        must = f"optimizer.muon_tp_mode must be {TP_MODE}: planner costs no other"
        raise InputError(
            must, f"{mode}, the default unless it is set", f"add optimizer.muon_tp_mode={TP_MODE}"
        )
    if said == MUON[1]:
        return ["dist_muon: every rank all-reduces all gradients, which are modelled as scattered"]
    return []


def _overlaps_experts(s: Settings) -> bool:
    sections = ("comm_overlap", "model")
    return any(s.flag(f"{section}.overlap_moe_expert_parallel_comm") for section in sections)


def _reduces_alone(s: Settings, model: ModelSpec | None, precision: Precision | None) -> bool:
    """Do tensor-parallel collectives run alone where measured recipes run them under products?"""
    recipe = s.flag("model.sequence_parallel") and s.count("model.tensor_model_parallel_size", 1) > 1
    if not recipe or model is None or not is_plain(model, precision or Precision.BF16):
        return False
    return not any(s.flag(f"{section}.tp_comm_overlap") for section in ("comm_overlap", "model"))


def _stack_options(s: Settings, fsdp: bool, precision: Precision | None, alone: bool) -> tuple[str, ...]:
    """Options of the stack that the fields set."""
    fused = precision is Precision.FP8_MX and s.flag("model.use_transformer_engine_op_fuser")
    doubled = fsdp and s.flag("ddp.fsdp_double_buffer")
    narrow = s.flag(FLOAT8_INPUT)
    wide = fsdp and s.text(MAIN_GRADIENTS, "").removeprefix("torch.") in ("float32", "fp32")
    unfused = s.text("model.attention_backend", "auto") in ("unfused", "local")
    drops = s.text("model.hidden_dropout", "0") not in ("0", "0.0")
    apart = not s.flag(FUSED_ACTIVATION, True)
    captured = not fsdp and s.flag(OPTIMIZER_GRAPH)
    overlapped = _overlaps_experts(s) and not fsdp and s.count("model.expert_model_parallel_size", 1) > 1
    serial = not fsdp and not s.flag("ddp.overlap_grad_reduce", True)
    ranks = s.count("model.expert_model_parallel_size", 1) * s.count("model.expert_tensor_parallel_size", 1)
    gathered = s.text("model.moe_token_dispatcher_type", "") == "allgather" and ranks > 1
    kernels = (
        *[ALL_GATHERED] * gathered,
        *[DP_SERIAL] * serial,
        *[TP_SERIAL] * (alone and not fsdp),
        *[UPDATE_GRAPH] * captured,
        *[EXPERTS_OVERLAPPED] * overlapped,
        *[FUSED_EXPERTS] * fused,
        *[UNFUSED_ATTENTION] * unfused,
        *[DROPOUT] * drops,
        *[UNFUSED_SWIGLU] * apart,
    )
    return (*[DOUBLE_BUFFER] * doubled, *[FP32_GRADIENTS] * wide, *kernels, *[FLOAT8_SWIGLU] * narrow)


def _offload(s: Settings) -> int:
    """The optimizer's states (training/optim.py), and activations of layers, on the host."""
    away = s.flag("model.cpu_offloading") and s.flag("model.cpu_offloading_activations", True)
    states = OFFLOAD_OPTIMIZER if s.flag("optimizer.optimizer_cpu_offload") else 0
    return states | (OFFLOAD_ACTIVATIONS if away else 0)


def _optimizer(s: Settings) -> Optimizer | None:
    """Muon, or AdamW with moments in bf16, where a precision-aware optimizer is given that type; None for fp32."""
    if s.text(OPTIMIZER, "adam") in MUON:
        return Optimizer.MUON
    narrow = s.text("optimizer.exp_avg_dtype", "").removeprefix("torch.") in ("bfloat16", "bf16")
    aware = s.flag("optimizer.use_precision_aware_optimizer")
    return Optimizer.ADAMW_BF16 if narrow and aware else None


def _cross_entropy(s: Settings) -> CrossEntropy | None:
    """The fused loss that a file asks for: Transformer Engine's, as recipes set it, unless it names another."""
    if not s.flag("model.cross_entropy_loss_fusion"):
        return None
    engine = s.text("model.cross_entropy_fusion_impl", "te") == "te"
    return CrossEntropy.FUSED if engine else CrossEntropy.COMPILED


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
    raise FileInputError(s.file, must, name[:40], field="model.cp_comm_type")


def _dealt(s: Settings, layers: int, pp: int, vpp: int) -> Dealt:
    """Layers of every chunk where no layout names them."""
    names = [f"model.num_layers_in_{end}_pipeline_stage" for end in ("first", "last")]
    first, last = (s.count(name, 1) if s.has(name) else None for name in names)
    counted = [int(s.flag(f"model.account_for_{end}_in_pipeline_split")) for end in ("embedding", "loss")]
    return ends_stated(layers, pp, vpp, (first, last), (counted[0], counted[1]))


def recognizes(name: str, text: str) -> bool:
    """A script that runs a recipe or overrides its fields."""
    return "run_recipe.py" in text or "model.tensor_model_parallel_size" in text
