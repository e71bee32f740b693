"""Megatron-Bridge 0.7.0 (and NeMo on top of it): a recipe with overrides.

Source: NVIDIA-NeMo/Megatron-Bridge at 067f987 (2026-08), scripts/training/run_recipe.py, recipes/, training/config.py.
A recipe brings the model; everything the plan decides is overridden by dotted fields of its ConfigContainer, whose
model fields are TransformerConfig's. Models are those with a pre-training recipe. Left out: datasets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from planner.catalog.stack_options import (
    DOUBLE_BUFFER,
    DP_SERIAL,
    DROPOUT,
    FLOAT8_SWIGLU,
    FP32_GRADIENTS,
    FUSED_EXPERTS,
    UNFUSED_ATTENTION,
    UNFUSED_SWIGLU,
    UPDATE_GRAPH,
)
from planner.errors import FileInputError, InputError
from planner.frameworks.fields import Settings
from planner.frameworks.framework import Files, Framework, Launch, ParsedConfig
from planner.frameworks.fused_experts import (
    INTERLEAVE,
    PADDED_TO,
    PADS,
    STASH,
    capacity_fields,
    capacity_said,
    fuses_experts,
    padding_fields,
    padding_said,
)
from planner.frameworks.known import known_as
from planner.frameworks.layout import (
    ChunkLayers,
    ends_stated,
    is_even,
    parse_layout,
    recomputed_note,
    write_layout,
)
from planner.frameworks.megatron import MEGATRON
from planner.frameworks.megatron.architecture import normed_queries
from planner.frameworks.megatron.arguments import (
    ATTENTION,
    CONTEXT_KINDS,
    SCHEDULES,
    environment,
    fused_dispatcher,
    fuses_loss,
    overlaps_experts,
    overlaps_gradients,
    overlaps_tensor_parallel,
    reduces_in_bf16,
    unlike_stack,
)
from planner.frameworks.megatron.states import (
    STRATEGIES,
    keeps_narrow_parameters,
    megatron_stack,
    uses_fsdp,
)
from planner.frameworks.megatron_bridge.graphs import OPTIMIZER_GRAPH, graph_fields, graphs_said
from planner.frameworks.megatron_bridge.recipes import (
    LAYOUTS_COMPUTED,
    RECIPES,
    WITHOUT_OVERLAP,
    recipe_named,
    recipe_settings,
)
from planner.frameworks.megatron_bridge.scripts import devices_of, overrides_in
from planner.frameworks.options import check_options, table_source, unknown_options
from planner.frameworks.refuse import require, require_masters
from planner.frameworks.scripts import README, launch_files, readme
from planner.spec.config import MEGATRON_MODULES, ContextKind, Recompute, Schedule
from planner.spec.job import Optimizer
from planner.spec.load_model import load_model
from planner.spec.precision import Precision
from planner.spec.stack.kinds import CrossEntropy, Dispatcher, StateEngine

TITLE: Final = "Megatron-Bridge"
LAYOUT: Final = "model.pipeline_model_parallel_layout"
FLOAT8_INPUT: Final = "model.activation_func_fp8_input_store"
VERSION: Final = "0.7.0"
IMAGE: Final = "nvcr.io/nvidia/nemo:25.11"
TRIAL_STEPS: Final = 50
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


def overrides_of(launch: Launch, recipe: str) -> dict[str, Any]:
    """Dotted fields of the ConfigContainer. Raises `UnsupportedError`."""
    config, job, model = launch.config, launch.job, launch.model
    require(launch.schedule in SCHEDULES, TITLE, "this pipeline schedule", launch.schedule.name.lower())
    require_masters(launch, TITLE)
    require(job.precision in PRECISIONS, TITLE, "this precision", job.precision)
    require(job.optimizer in MOMENTS, TITLE, "this optimizer", job.optimizer)
    wide = job.optimizer is Optimizer.ADAMW
    require(
        wide or config.zero >= 1, TITLE, "narrow moments without the distributed optimizer", job.optimizer
    )
    require(not config.offload, TITLE, "offloading", config.offload)
    require(not config.hsdp, TITLE, "shard groups below dp x cp", config.hsdp)
    steps = TRIAL_STEPS if job.tokens is None else max(int(-(-job.tokens // job.tokens_per_step)), 1)
    fields: dict[str, Any] = {
        "model.tensor_model_parallel_size": config.tp,
        "model.pipeline_model_parallel_size": config.pp,
        "model.virtual_pipeline_model_parallel_size": config.vpp if config.vpp > 1 else None,
        "model.context_parallel_size": config.cp,
        "model.sequence_parallel": bool(config.sp),
        LAYOUT: _layout(launch),
        "model.num_layers_in_first_pipeline_stage": None,
        "model.num_layers_in_last_pipeline_stage": None,
        "model.account_for_embedding_in_pipeline_split": False,
        "model.account_for_loss_in_pipeline_split": False,
        "model.seq_length": job.seq_len,
        "dataset.seq_length": job.seq_len,
        "mixed_precision": PRECISIONS[job.precision],
        "optimizer.optimizer": "adam",  # Kimi K2's recipe has Muon
        "optimizer.use_precision_aware_optimizer": not wide,
        "optimizer.main_grads_dtype": "torch.float32",
        "optimizer.exp_avg_dtype": MOMENTS[job.optimizer],
        "optimizer.exp_avg_sq_dtype": MOMENTS[job.optimizer],
        "train.global_batch_size": job.global_batch,
        "train.micro_batch_size": config.micro_batch,
        "train.train_iters": steps,
        "logger.log_interval": 1,
        **_sharding(launch),
        **_recompute(launch),
        **_kernels(launch),
        **_overlap(launch, recipe),
        **graph_fields(launch, TITLE),
    }
    if config.cp > 1:
        fields["model.cp_comm_type"] = CONTEXT_KINDS[model.context_kind(ContextKind(config.cp_kind))]
    if model.is_moe:
        fields["model.expert_model_parallel_size"] = config.ep
        fields["model.expert_tensor_parallel_size"] = config.etp
        dispatcher = fused_dispatcher(launch)
        fields["model.moe_token_dispatcher_type"] = "flex" if dispatcher else "alltoall"
        if dispatcher:
            fields["model.moe_flex_dispatcher_backend"] = str(dispatcher)
        sized = capacity_fields(launch) if dispatcher else padding_fields(launch)
        fields |= {"model." + name: value for name, value in sized.items()}
        fields["model.moe_grouped_gemm"] = fields["model.moe_permute_fusion"] = True
        fused = fuses_experts(launch)
        fields["model.use_transformer_engine_op_fuser"] = fused
        fields["model.moe_mlp_glu_interleave_size"] = INTERLEAVE if fused else None
    predicts = "model.mtp_num_layers" in recipe_settings(recipe_named(recipe))
    if predicts or model.mtp_layers or model.has_latent_attention or model.delta_nets:
        fields["model.mtp_num_layers"] = model.mtp_layers or None
    return fields


def _overlap(launch: Launch, recipe: str) -> dict[str, Any]:
    """What runs under compute. A recipe's section comm_overlap, where it has one, overwrites model and ddp at setup."""
    zero = launch.config.zero
    gradients = launch.config.dp * launch.config.cp > 1 and overlaps_gradients(launch)
    under = overlaps_tensor_parallel(launch)
    fields: dict[str, Any] = {
        "ddp.overlap_grad_reduce": gradients,
        "ddp.overlap_param_gather": zero >= 1 and gradients,
    }
    if recipe in WITHOUT_OVERLAP:
        return fields | {"model.tp_comm_overlap": under}
    fields |= {
        "comm_overlap.tp_comm_overlap": under,
        "comm_overlap.overlap_grad_reduce": gradients,
        "comm_overlap.overlap_param_gather": zero >= 1 and gradients,
    }
    if launch.model.is_moe:
        experts = overlaps_experts(launch)
        fields["comm_overlap.overlap_moe_expert_parallel_comm"] = experts
        # each refuses the other
        fields["model.moe_shared_expert_overlap" if experts else "comm_overlap.delay_wgrad_compute"] = False
    return fields


def _layout(launch: Launch) -> str | None:
    even = launch.config.pp == 1 or (is_even(launch.chunks) and not launch.model.mtp_layers)
    return None if even else write_layout(launch.chunks, launch.model.mtp_layers)


def _kernels(launch: Launch) -> dict[str, Any]:
    """Kernels of the stack, said even where they are off, since recipes differ; attention stays the recipe's unless
    the stack is slower than the fastest there is."""
    stack = megatron_stack(launch)
    if stack is None:
        return {}
    fused = fuses_loss(stack)
    fields: dict[str, Any] = {"model.cross_entropy_loss_fusion": fused}
    if fused:
        fields["model.cross_entropy_fusion_impl"] = "te"
    if stack.kernels.rotates_texts:
        fields["model.apply_rope_fusion"] = False
    if stack.kernels.activation_input_bytes:
        fields[FLOAT8_INPUT] = True
    if not stack.kernels.fused_activation:
        fields[FUSED_ACTIVATION] = False
    if stack.kernels.dropout:
        fields |= {"model.hidden_dropout": 0.1, "model.attention_dropout": 0.1}
    attention = ATTENTION[stack.kernels.attention]
    return fields if attention == "auto" else fields | {"model.attention_backend": attention}


def _sharding(launch: Launch) -> dict[str, Any]:
    zero, stack = launch.config.zero, megatron_stack(launch)
    distributed = zero >= 1 or uses_fsdp(launch)
    fields: dict[str, Any] = {
        "ddp.use_distributed_optimizer": distributed,
        "optimizer.use_distributed_optimizer": distributed,
    }
    if uses_fsdp(launch):
        fields |= {
            "ddp.use_megatron_fsdp": True,
            "ddp.data_parallel_sharding_strategy": STRATEGIES[zero],
            "checkpoint.ckpt_format": "fsdp_dtensor",
        }
    if stack is not None and stack.states.engine is StateEngine.MEGATRON_FSDP:
        fields["ddp.fsdp_double_buffer"] = stack.states.double_buffer
        fields["model.init_model_with_meta_device"] = zero >= 1
        if stack.states.gradient == 4.0:
            fields[MAIN_GRADIENTS] = "torch.float32"
        fields["model.gradient_accumulation_fusion"] = stack.states.fused_weight_gradient
    return fields


def _recompute(launch: Launch) -> dict[str, Any]:
    config = launch.config
    kind = Recompute(config.recompute)
    names = [name for bit, name in enumerate(MEGATRON_MODULES) if config.recompute_modules >> bit & 1]
    if kind == Recompute.NONE:
        return {
            "model.recompute_granularity": None,
            "model.recompute_method": None,
            "model.recompute_num_layers": None,
        }
    if kind == Recompute.SELECTIVE:
        return {
            "model.recompute_granularity": "selective",
            "model.recompute_method": None,
            "model.recompute_num_layers": None,
            "model.recompute_modules": names,
        }
    whole = config.recompute_layers >= -(-launch.model.num_layers // config.pp)
    count = config.recompute_layers
    require(whole or count % config.vpp == 0, TITLE, "this number of recomputed layers", count)
    return {
        "model.recompute_granularity": "full",
        "model.recompute_method": "uniform" if whole else "block",
        "model.recompute_num_layers": 1 if whole else config.recompute_layers // config.vpp,
    }


def _word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(value) + "]"
    text = str(value)
    return f"'{text}'" if any(letter in text for letter in "|*(),") else text


def render(launch: Launch, version: str) -> Files:
    """launch.sh with a recipe and its overrides, what starts it, and a README."""
    name = known_as(launch.model, RECIPES, TITLE)
    fields = overrides_of(launch, RECIPES[name])
    words = [(field, _word(value)) for field, value in fields.items()]
    check_options("megatron-bridge", version, [(field, word.strip("'")) for field, word in words])
    groups: dict[str, list[tuple[str, ...]]] = {
        "RECIPE": [("--recipe", RECIPES[name]), ("--mode", "pretrain"), ("--dataset", "mock")],
        "OVERRIDE": [(f"{field}={word}",) for field, word in words],
    }
    prelude = (
        "# A checkout of Megatron-Bridge; in its container it is where you put it.\n"
        "BRIDGE_PATH=${BRIDGE_PATH:-/opt/Megatron-Bridge}"
    )
    program = '"$BRIDGE_PATH/scripts/training/run_recipe.py"'
    files = launch_files(launch, environment(launch), groups, program, IMAGE, prelude=prelude)
    run = [
        f"`BRIDGE_PATH=... NODE_RANK=0 MASTER_ADDR=host0 bash launch.sh` on every one of {launch.nodes} nodes."
    ]
    missing = [
        f"everything the plan does not decide stays as in {RECIPES[name]}",
        "data: the dataset is made up (--dataset mock)",
        *normed_queries(launch.model),
        *unlike_stack(launch),
    ]
    precision = launch.job.precision
    if precision in NARROW_RECIPES and keeps_narrow_parameters(launch) != (precision in PARAM_GATHER):
        bits = 4 if precision is Precision.NVFP4 else 8
        kept = f"in {bits} bits" if precision in PARAM_GATHER else f"in 16 bits with {bits}-bit copies"
        missing.append(
            f"linear weights: {PRECISIONS[precision]} keeps them {kept}, which the plan does not count on"
        )
    own = BF16_LAYERS.get(precision, (0, 0))
    if launch.job.bf16_layers != own:
        counted = "{} first and {} last layers".format(*launch.job.bf16_layers)
        missing.append(
            f"layers in bf16: {PRECISIONS[precision]} has {own[0]} first and {own[1]} last, the plan {counted}"
        )
    if reduces_in_bf16(launch):
        missing.append(
            "gradients kept and reduced in bf16: its mixed precision has them in fp32, 2 bytes more"
        )
    return {
        **files,
        README: readme(launch, TITLE, version, table_source("megatron-bridge", version), run, missing),
    }


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
    chunks: ChunkLayers = ()
    if layout := s.text(LAYOUT, ""):
        chunks = tuple(stage.count("t") for stage in parse_layout(layout))
    elif LAYOUT in fields and pp > 1 and name in LAYOUTS_COMPUTED and LAYOUT not in overrides:
        notes.append("the recipe computes how layers are dealt to stages: taken as the stack deals them")
    elif LAYOUT in fields and pp > 1 and layers:
        chunks = _dealt(s, layers, pp, vpp)
    strategy = s.text("ddp.data_parallel_sharding_strategy", "optim_grads_params")
    zero, fsdp = int(s.flag("ddp.use_distributed_optimizer")), s.flag("ddp.use_megatron_fsdp")
    if fsdp:
        zero = STRATEGIES.index(strategy) if strategy in STRATEGIES else 3
    recomputed, of_blocks = _recomputation(s, layers, chunks, (pp, vpp))
    notes += of_blocks
    axes = {
        "tp": tp, "pp": pp, "vpp": vpp, "cp": s.count("model.context_parallel_size", 1),
        "ep": s.count("model.expert_model_parallel_size", 1),
        "etp": s.count("model.expert_tensor_parallel_size", 1),
        "micro_batch": s.count("train.micro_batch_size", 1), "sp": int(s.flag("model.sequence_parallel")),
        "zero": zero, "schedule": int(Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B),
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
        # datasets of recipes for fine-tuning have settings of their own, which cost no step anything
        unknown=unknown_options(
            "megatron-bridge", VERSION, [f for f in overrides if name or not f.startswith("dataset.")]
        ),
        notes=tuple(notes),
        cross_entropy=CrossEntropy.FUSED if s.flag("model.cross_entropy_loss_fusion") else None,
        dispatcher=_dispatcher(s),
        engine=StateEngine.MEGATRON_FSDP if fsdp else None,
        stack_options=_stack_options(s, fsdp, precision),
        stack_settings=(
            *capacity_said(lambda name: s.number("model." + name), s.flag("model." + STASH)),
            *padding_said(s.number("model." + PADDED_TO), s.flag("model." + PADS)),
        ),
        param_gather=precision in PARAM_GATHER if precision in NARROW_RECIPES else None,
        bf16_layers=BF16_LAYERS.get(precision, (0, 0)) if precision else (0, 0),
        window_exchanges={"mistral": ContextKind.A2A},  # 067f987 models/mistral/mistral_bridge.py
    )


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


def _stack_options(s: Settings, fsdp: bool, precision: Precision | None) -> tuple[str, ...]:
    """Options of the stack that the fields set."""
    fused = precision is Precision.FP8_MX and s.flag("model.use_transformer_engine_op_fuser")
    doubled = fsdp and s.flag("ddp.fsdp_double_buffer")
    narrow = s.flag(FLOAT8_INPUT)
    wide = fsdp and s.text(MAIN_GRADIENTS, "").removeprefix("torch.") in ("float32", "fp32")
    unfused = s.text("model.attention_backend", "auto") in ("unfused", "local")
    drops = s.text("model.hidden_dropout", "0") not in ("0", "0.0")
    apart = not s.flag(FUSED_ACTIVATION, True)
    captured = not fsdp and s.flag(OPTIMIZER_GRAPH)
    serial = not fsdp and not s.flag("ddp.overlap_grad_reduce", True)
    kernels = (
        *[DP_SERIAL] * serial,
        *[UPDATE_GRAPH] * captured,
        *[FUSED_EXPERTS] * fused,
        *[UNFUSED_ATTENTION] * unfused,
        *[DROPOUT] * drops,
        *[UNFUSED_SWIGLU] * apart,
    )
    return (*[DOUBLE_BUFFER] * doubled, *[FP32_GRADIENTS] * wide, *kernels, *[FLOAT8_SWIGLU] * narrow)


def _optimizer(s: Settings) -> Optimizer | None:
    """AdamW with moments in bf16, where a precision-aware optimizer is given that type; None for fp32."""
    narrow = s.text("optimizer.exp_avg_dtype", "").removeprefix("torch.") in ("bfloat16", "bf16")
    aware = s.flag("optimizer.use_precision_aware_optimizer")
    return Optimizer.ADAMW_BF16 if narrow and aware else None


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


def _dealt(s: Settings, layers: int, pp: int, vpp: int) -> ChunkLayers:
    """Layers of every chunk where no layout names them."""
    names = [f"model.num_layers_in_{end}_pipeline_stage" for end in ("first", "last")]
    first, last = (s.count(name, 1) if s.has(name) else None for name in names)
    counted = [int(s.flag(f"model.account_for_{end}_in_pipeline_split")) for end in ("embedding", "loss")]
    return ends_stated(layers, pp, vpp, (first, last), (counted[0], counted[1]))


def recognizes(name: str, text: str) -> bool:
    """A script that runs a recipe or overrides its fields."""
    return "run_recipe.py" in text or "model.tensor_model_parallel_size" in text


MEGATRON_BRIDGE: Final = Framework(
    name="megatron-bridge",
    title=TITLE,
    versions=(VERSION,),
    default_version=VERSION,
    rules=MEGATRON.rules,
    schedules=SCHEDULES,
    zero_stages=MEGATRON.zero_stages,
    splits="model.pipeline_model_parallel_layout",
    dense_order=MEGATRON.dense_order,
    expert_order=MEGATRON.expert_order,
    render=render,
    parse=parse,
    recognizes=recognizes,
)
