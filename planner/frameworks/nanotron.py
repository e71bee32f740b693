"""nanotron 0.4: run_train.py with one YAML file.

Source: huggingface/nanotron at 2411b022 (2026-04), src/nanotron/config and parallel/context.py. Layers are dealt to
stages by nanotron itself. Expert parallelism above 1 is never written: the product of the degrees must be the
world size without it, yet the ranks are reshaped with it. Left out: data other than made-up tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from planner.errors import FileInputError, InputError
from planner.frameworks.details import left_out, unwritten_rotation
from planner.frameworks.fields import Settings, dump_yaml, flatten, load_settings, option_words
from planner.frameworks.framework import Files, Framework, Launch, ParsedConfig
from planner.frameworks.options import check_options, table_source, unknown_options
from planner.frameworks.refuse import (
    require,
    require_axis,
    require_masters,
    require_whole_recompute,
    uncaptured,
)
from planner.frameworks.rulebook import (
    no_scans,
    no_selective,
    only,
    own_exchange,
    whole_kv_heads,
    whole_recompute,
)
from planner.frameworks.scripts import HERE, IMAGE, README, job_name, launch_files, readme, started_on_nodes
from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.config import Recompute, Schedule
from planner.spec.hf.families import facts_of
from planner.spec.job import Optimizer
from planner.spec.layer import Activation, Layer, Mlp, NormKind
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.rule import Rule

TITLE: Final = "nanotron"
CONFIG: Final = "config.yaml"
ENGINES: Final = {Schedule.ONE_F_ONE_B: "1f1b", Schedule.GPIPE: "afab"}
DTYPES: Final = {Precision.BF16: "bfloat16", Precision.FP16: "float16", Precision.FP32: "float32"}
# of LlamaConfig and Qwen2Config (config/models_config.py), where a file leaves a size out
DEFAULTS: Final = {
    "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048, "num_attention_heads": 32,
    "num_hidden_layers": 32, "vocab_size": 32000,
}  # fmt: skip
# settings that the table does not go into: those of evaluation, which cost no step anything, and a plain dictionary
_FREE: Final = ("lighteval.", "model.model_config.rope_scaling.")


RULES: Final[tuple[Rule, ...]] = (
    no_scans(TITLE, "nanotron models/"),
    only("etp", (1,), TITLE, "nanotron config/parallelism_config.py ParallelismArgs"),
    only("vpp", (1,), TITLE, "nanotron parallel/pipeline_parallel/engine.py"),
    only("zero", (0, 1), TITLE, "nanotron config/config.py OptimizerArgs.zero_stage"),
    whole_recompute(TITLE, "nanotron config/parallelism_config.py recompute_layer"),
    no_selective(TITLE, "nanotron config/parallelism_config.py recompute_layer"),
    Rule(
        "nanotron-ep", ("ep",), lambda c, p: c["ep"] == 1,
        "expert parallelism must be 1", "set ep=1",
        "nanotron parallel/context.py ParallelContext (the ranks cannot be reshaped)", told=("ep",),
    ),
    own_exchange(TITLE, "nanotron nn/ring_attention.py"),
    whole_kv_heads("nanotron config/config.py Config.__post_init__"),
    Rule(
        "schedule-supported", ("schedule",),
        lambda c, p: np.isin(c["schedule"], [int(schedule) for schedule in ENGINES]),
        "the pipeline schedule must be 1F1B or GPipe", "choose one of these",
        "nanotron parallel/pipeline_parallel/engine.py", told=("schedule",),
    ),
)  # fmt: skip


def _require_known(launch: Launch) -> None:
    """Raise `UnsupportedError` for what nanotron cannot run."""
    config, job = launch.config, launch.job
    for axis, allowed in (("ep", (1,)), ("vpp", (1,)), ("zero", (0, 1)), ("hsdp", (0,))):
        require_axis(launch, TITLE, axis, allowed)
    require_whole_recompute(launch, TITLE)
    require_masters(launch, TITLE)
    require(config.recompute != Recompute.SELECTIVE, TITLE, "selective recomputation", "recompute=selective")
    require(launch.schedule in ENGINES, TITLE, "this pipeline schedule", launch.schedule.name.lower())
    require(job.precision in DTYPES, TITLE, "this precision", job.precision)
    require(job.optimizer is Optimizer.ADAMW, TITLE, "this optimizer", job.optimizer)


def settings_of(launch: Launch) -> dict[str, Any]:
    """The YAML file as settings. Raises `UnsupportedError`."""
    _require_known(launch)
    config, job = launch.config, launch.job
    return {
        "general": {
            "project": "planner",
            "run": job_name(launch),
            "seed": 42,
            "ignore_sanity_checks": True,
        },
        "checkpoints": {"checkpoint_interval": 1000, "checkpoints_path": "checkpoints"},
        "data_stages": [
            {
                "name": "Made-up tokens",
                "start_training_step": 1,
                "data": {"dataset": None, "num_loading_workers": 1, "seed": 42},
            }
        ],
        "logging": {"iteration_step_info_interval": 1, "log_level": "info", "log_level_replica": "info"},
        "model": {
            "ddp_bucket_cap_mb": 25,
            "dtype": DTYPES[job.precision],
            "init_method": {"std": 0.025},
            "make_vocab_size_divisible_by": 1,
            "model_config": _model_config(launch),
        },
        "optimizer": _optimizer(config.zero, launch.steps),
        "parallelism": {
            "dp": config.dp,
            "pp": config.pp,
            "tp": config.tp,
            "context_parallel_size": config.cp,
            "expert_parallel_size": 1,
            "pp_engine": ENGINES[launch.schedule],
            "recompute_layer": config.recompute == Recompute.FULL,
            "tp_linear_async_communication": bool(config.sp),
            "tp_mode": "REDUCE_SCATTER" if config.sp else "ALL_REDUCE",
        },
        "tokenizer": {"tokenizer_name_or_path": None},
        "tokens": {
            "batch_accumulation_per_replica": config.num_microbatches,
            "micro_batch_size": config.micro_batch,
            "sequence_length": job.seq_len,
            "train_steps": launch.steps,
            "val_check_interval": -1,
        },
    }


def _optimizer(zero: int, steps: int) -> dict[str, Any]:
    return {
        "accumulate_grad_in_fp32": True,
        "clip_grad": 1.0,
        "learning_rate_scheduler": {
            "learning_rate": 3e-4,
            "lr_decay_style": "cosine",
            "lr_warmup_steps": min(2, steps),
            "lr_warmup_style": "linear",
            "min_decay_lr": 3e-5,
        },
        "optimizer_factory": {
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "adam_eps": 1e-8,
            "name": "adamW",
            "torch_adam_is_fused": True,
        },
        "weight_decay": 0.1,
        "zero_stage": zero,
    }


def _model_config(launch: Launch) -> dict[str, Any]:
    model, details = launch.model, launch.details
    traits = facts_of(model.family).traits
    require(not traits, TITLE, f"what {model.family} computes", traits)
    require(details.rotary_fraction == 1.0, TITLE, "a partial rotation", details.rotary_fraction)
    plain = not (model.state_spaces or model.gates_attention)
    require(plain, TITLE, "layers of state spaces, delta nets or gated attention", model.name)
    require(len(model.layer_kinds) == 1, TITLE, "layers that differ", model.name)
    layer = model.layers[0]
    attention, mlp = layer.attention, layer.mlp
    assert attention is not None, "required above"
    if mlp is None:
        require(False, TITLE, "experts (its expert layers cannot be run in parallel)", model.name)
    assert mlp is not None, "required above"
    plain = (
        attention.kind is not AttentionKind.MLA
        and attention.qk_norm is QkNorm.NONE
        and not attention.sinks
        and layer.norms == 2
        and not layer.parallel
        and model.norm_kind is NormKind.RMS
        and mlp.gated
        and mlp.activation is Activation.SILU
        and not (mlp.bias or model.position_rows or model.head_bias)
    )
    require(plain, TITLE, "models other than the Llama and Qwen 2 families", model.name)
    fits = attention.head_dim * attention.heads == model.hidden
    require(fits, TITLE, "heads whose width is not hidden / heads", attention.head_dim)
    qwen = attention.qkv_bias or attention.window is not None or launch.config.cp > 1
    fields: dict[str, Any] = {
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": mlp.ffn,
        "is_qwen2_config" if qwen else "is_llama_config": True,
        "max_position_embeddings": max(model.max_position, launch.job.seq_len),
        "num_attention_heads": attention.heads,
        "num_hidden_layers": model.num_layers,
        "num_key_value_heads": attention.kv_heads,
        "rms_norm_eps": details.norm_eps or 1e-5,
        "rope_theta": details.rope_theta or 10000.0,
        "tie_word_embeddings": model.tied_embeddings,
        "vocab_size": model.vocab,
    }
    if qwen:
        fields["attention_bias"] = attention.qkv_bias
        if attention.window is not None:
            fields["sliding_window_size"] = attention.window
        if launch.config.cp > 1:
            fields["_attn_implementation"] = "llama3_ring_attention"
            fields["ring_attn_heads_k_stride"] = 1
        elif attention.window is not None:
            fields["_attn_implementation"] = "flash_attention_2"
    return fields


def render(launch: Launch, version: str) -> Files:
    """config.yaml, launch.sh, what starts it, and a README."""
    settings = settings_of(launch)
    check_options("nanotron", version, option_words(settings))
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    prelude = (
        "# A checkout of nanotron; in its container it is where you put it.\n"
        f"NANOTRON_PATH=${{NANOTRON_PATH:-/opt/nanotron}}\n{HERE}"
    )
    program = f'"$NANOTRON_PATH/run_train.py" --config-file "$HERE/{CONFIG}"'
    extra = {CONFIG: dump_yaml(settings)}
    files = launch_files(launch, environment, {}, program, IMAGE, extra, prelude)
    run = [f"{started_on_nodes(launch, 'NANOTRON_PATH')}."]
    missing = [
        "how layers are assigned to pipeline ranks: nanotron assigns them by its own cost rule",
        "data: made-up tokens; name your dataset in data_stages",
        *left_out(launch.model),
        *unwritten_rotation(launch.details, {}),
        *uncaptured(launch, TITLE),
    ]
    return {**files, README: readme(launch, TITLE, version, table_source("nanotron", version), run, missing)}


def parse(files: Mapping[str, str]) -> ParsedConfig:
    """What a nanotron YAML says. Raises `FileInputError` naming the setting."""
    name = next((file for file, text in files.items() if recognizes(file, text)), None)
    if name is None:
        raise InputError(
            "a nanotron YAML must have a section parallelism with dp, pp and tp", ", ".join(files)
        )
    repeated: list[str] = []  # config/config.py get_config_from_file: SafeLoader keeps the last
    document = load_settings(files[name], name, repeated)
    s = Settings(document, name)
    schedule = _schedule(s)
    tp, pp, dp, cp = (
        s.count(f"parallelism.{axis}", 1) for axis in ("tp", "pp", "dp", "context_parallel_size")
    )
    micro, accumulated = (
        s.count("tokens.micro_batch_size", 1),
        s.count("tokens.batch_accumulation_per_replica", 1),
    )
    layers = s.count("model.model_config.num_hidden_layers", DEFAULTS["num_hidden_layers"])
    full = s.flag("parallelism.recompute_layer")
    axes = {
        "tp": tp, "pp": pp, "dp": dp, "cp": cp, "vpp": 1, "etp": 1,
        "ep": s.count("parallelism.expert_parallel_size", 1),
        "micro_batch": micro, "num_microbatches": accumulated,
        "sp": int(tp > 1 and s.text("parallelism.tp_mode", "ALL_REDUCE").upper() == "REDUCE_SCATTER"),
        "zero": s.count("optimizer.zero_stage", 0, least=0), "schedule": int(schedule),
        "recompute": int(Recompute.FULL if full else Recompute.NONE),
        "recompute_layers": -(-layers // pp) if full else 0,
    }  # fmt: skip
    dtype = s.text("model.dtype", "bfloat16")
    return ParsedConfig(
        framework="nanotron",
        version=NANOTRON_VERSION,
        axes=axes,
        devices=tp * pp * dp * cp,
        seq_len=s.count("tokens.sequence_length", 1) if s.has("tokens.sequence_length") else None,
        global_batch=dp * micro * accumulated,
        precision=next((kind for kind, text in DTYPES.items() if text == dtype), None),
        model=_parsed_model(s),
        optimizer=Optimizer.SGD if s.text("optimizer.optimizer_factory.name", "adamW") == "sgd" else None,
        notes=tuple(f"{key} is given twice: nanotron takes the last" for key in dict.fromkeys(repeated)),
        unknown=unknown_options(
            "nanotron", NANOTRON_VERSION, [n for n in flatten(document) if not n.startswith(_FREE)]
        ),
    )


def _schedule(s: Settings) -> Schedule:
    """The pipeline engine, all forward passes first where none is said. Raises `FileInputError`."""
    engine = s.text("parallelism.pp_engine", "afab")
    for kind, text in ENGINES.items():
        if text == engine:
            return kind
    must = "must be one of " + ", ".join(ENGINES.values())
    raise FileInputError(s.file, must, repr(engine)[:80], field="parallelism.pp_engine")


def _parsed_model(s: Settings) -> ModelSpec | None:
    """The Llama or Qwen 2 that the file describes; None where it is another, or has experts."""
    prefix = "model.model_config."
    experts = any(name.startswith((prefix + "moe_config.", prefix + "moe_num")) for name in s.values)
    other = any(s.flag(prefix + name) for name in ("is_starcoder2_config", "is_mamba_config"))
    if not any(name.startswith(prefix) for name in s.values) or experts or other:
        return None

    def size(name: str) -> int:
        return s.count(prefix + name, DEFAULTS[name])

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    kv_heads = s.count(prefix + "num_key_value_heads", heads)
    width = max(hidden // heads, 1)
    window = s.count(prefix + "sliding_window_size", 1) if s.has(prefix + "sliding_window_size") else None
    attention = Attention(
        AttentionKind.MHA if heads == kv_heads else AttentionKind.GQA, heads, kv_heads, width, width,
        qkv_bias=s.flag(prefix + "attention_bias"), window=window,
    )  # fmt: skip
    mlp = Mlp(size("intermediate_size"), True, False, Activation.SILU)
    return ModelSpec(
        name="from a nanotron file",
        family="llama",
        hidden=hidden,
        vocab=size("vocab_size"),
        layers=(Layer(attention, mlp, None),) * size("num_hidden_layers"),
        tied_embeddings=s.flag(prefix + "tie_word_embeddings"),
        max_position=size("max_position_embeddings"),
        source="nanotron configuration",
    )


def recognizes(name: str, text: str) -> bool:
    """A YAML file with nanotron's parallelism section."""
    return (
        name.endswith((".yaml", ".yml"))
        and "parallelism:" in text
        and ("pp_engine" in text or "model_config" in text)
    )


NANOTRON_VERSION: Final = "0.4-2411b022"
NANOTRON: Final = Framework(
    name="nanotron",
    title=TITLE,
    versions=(NANOTRON_VERSION,),
    default_version=NANOTRON_VERSION,
    rules=RULES,
    schedules=tuple(ENGINES),
    zero_stages=(0, 1),
    splits="",
    dense_order=("tp", "cp", "dp", "pp"),
    expert_order=(),
    render=render,
    parse=parse,
    recognizes=recognizes,
)
