"""torchtitan: 0.2.2 with a TOML file, 0.3.0 with command-line options.

Source: torchtitan 0.2.2 and 0.3.0 from PyPI (config, distributed/pipeline_parallel.py, distributed/parallel_dims.py).
Uneven splits: first and last stage lighter by a number of layers; in 0.2.2 also an explicit list of modules.
Models are those torchtitan ships. Left out: Python configurations, and main after 0.3.0, which renamed the batch
options.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from planner.errors import FileInputError, InputError
from planner.frameworks.fields import Settings, flatten, load_settings, option_words
from planner.frameworks.framework import Files, Framework, Launch, ParsedConfig
from planner.frameworks.known import known_as
from planner.frameworks.layout import ChunkLayers
from planner.frameworks.options import check_options, table_source, unknown_options
from planner.frameworks.refuse import require, require_axis, require_whole_recompute
from planner.frameworks.rulebook import only, whole_recompute
from planner.frameworks.scripts import README, launch_files, readme
from planner.frameworks.shell import options_of, script_words
from planner.spec.config import Mask, Recompute, Schedule
from planner.spec.job import Optimizer
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.rule import Columns, Problem, Rule
from planner.spec.stack import CrossEntropy, Dispatcher

TITLE: Final = "torchtitan"
TOML, CLI = "0.2.2", "0.3.0"
CONFIG: Final = "config.toml"
PLANNED: Final = "planned_config.py"  # 0.3.0 takes a list of modules per stage from Python only
IMAGE: Final = "nvcr.io/nvidia/pytorch:25.09-py3"
# its name -> the schedule, and whether ranks hold several stages (torch 2.13 get_schedule_class)
SCHEDULES: Final = {
    "1F1B": (Schedule.ONE_F_ONE_B, False),
    "Interleaved1F1B": (Schedule.INTERLEAVED, True),
    "GPipe": (Schedule.GPIPE, False),
    "LoopedBFS": (Schedule.GPIPE, True),
    "InterleavedZeroBubble": (Schedule.ZB_H1, True),
    "ZBVZeroBubble": (Schedule.ZB_V, True),
    "DualPipeV": (Schedule.DUALPIPE_V, True),
}
NAME_OF: Final = {kind: name for name, kind in SCHEDULES.items()}
# catalog name -> (model, flavour of 0.2.2, configuration of 0.3.0)
MODELS: Final = {
    "llama-3-8b": ("llama3", "8B", "llama3_8b"),
    "llama-3.1-8b": ("llama3", "8B", "llama3_8b"),
    "llama-3.1-70b": ("llama3", "70B", "llama3_70b"),
    "llama-3-70b": ("llama3", "70B", "llama3_70b"),
    "llama-3.1-405b": ("llama3", "405B", "llama3_405b"),
    "qwen3-0.6b": ("qwen3", "0.6B", "qwen3_0_6b"),
    "qwen3-1.7b": ("qwen3", "1.7B", "qwen3_1_7b"),
    "qwen3-4b": ("qwen3", "4B", ""),
    "qwen3-8b": ("qwen3", "8B", ""),
    "qwen3-14b": ("qwen3", "14B", "qwen3_14b"),
    "qwen3-32b": ("qwen3", "32B", "qwen3_32b"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B", "qwen3_30b_a3b"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B", ""),
    "deepseek-v2-lite": ("deepseek_v3", "16B", "deepseek_v3_16b"),
    "deepseek-v3": ("deepseek_v3", "671B", "deepseek_v3_671b"),
    "gpt-oss-20b": ("gpt_oss", "", "gpt_oss_20b"),
    "gpt-oss-120b": ("gpt_oss", "", "gpt_oss_120b"),
}
TRIAL_STEPS: Final = 50


def _sequence(columns: Columns, problem: Problem) -> Mask:
    tp, cp = columns["tp"].astype(np.int64), columns["cp"]
    parts = np.where(columns["tp"] > 1, tp, 1) * np.where(columns["cp"] > 1, 2 * cp, 1)
    return problem.job.seq_len % parts == 0


def _tied(columns: Columns, problem: Problem) -> Mask:
    return (columns["pp"] == 1) | (not problem.model.tied_embeddings)


def _replicated(columns: Columns, problem: Problem) -> Mask:
    alone = columns["tp"].astype(np.int64) * columns["pp"] == 1
    return (columns["zero"] != 0) | ((columns["cp"] == 1) & ((columns["dp"] == 1) | alone))


def _zero_one(columns: Columns, problem: Problem) -> Mask:
    return columns["zero"] != 1


def _kv_heads(columns: Columns, problem: Problem) -> Mask:
    legal = np.ones(len(columns["tp"]), dtype=np.bool_)
    for layer in problem.model.layer_kinds:
        legal &= layer.attention.kv_heads % columns["tp"] == 0
    return legal


def _microbatches(columns: Columns, problem: Problem) -> Mask:
    """torch's 1F1B refuses fewer than stages, GPipe does not; the looped ones only warn."""
    enough = columns["num_microbatches"] >= columns["pp"]
    return (columns["pp"] == 1) | enough | (columns["schedule"] == Schedule.GPIPE)


def _schedule_stages(columns: Columns, problem: Problem) -> Mask:
    return (columns["schedule"] != Schedule.ZB_H1) | (columns["vpp"] > 1)


def _sequence_parallel(columns: Columns, problem: Problem) -> Mask:
    return (columns["sp"] == 1) == (columns["tp"] > 1)


RULES: Final[tuple[Rule, ...]] = (
    whole_recompute(TITLE, "torchtitan distributed/activation_checkpoint.py"),
    only("etp", (1,), TITLE, "torchtitan 0.3.0 config/configs.py has no expert_tensor_parallel_degree"),
    Rule(
        "sp-with-tp", ("tp", "sp"), _sequence_parallel,
        "tensor parallelism runs with sequence parallelism; tp={tp} sp={sp}", "set sp=1",
        "torchtitan 0.2.2 models/llama3/infra/parallelize.py apply_tp",
    ),
    Rule(
        "kv-heads-tp", ("tp",), _kv_heads,
        "tp must divide the key/value heads, {kv}; tp={tp}", "choose a tp that divides them",
        "torchtitan models: rowwise and colwise plans; pytorch/torchtitan#2577",
        lambda p: {"kv": min(layer.attention.kv_heads for layer in p.model.layer_kinds)},
    ),
    Rule(
        "sequence-cp", ("tp", "cp"), _sequence,
        "tp x 2 cp must divide the sequence length, {seq}; tp={tp} cp={cp}",
        "choose a smaller tp or cp", "torchtitan distributed/parallel_dims.py seq_len_divisor",
        lambda p: {"seq": p.job.seq_len},
    ),
    Rule(
        "tied-pp", ("pp",), _tied, "tied embeddings cannot be split over a pipeline; pp={pp}", "set pp=1",
        "torchtitan models/qwen3 (enable_weight_tying with pp)",
    ),
    Rule(
        "replicated-alone", ("tp", "cp", "pp", "dp", "zero"), _replicated,
        "replicated data parallelism (zero=0) must be the only kind; tp={tp} cp={cp} pp={pp} dp={dp}",
        "choose zero=2 or 3", "torchtitan 0.2.2 models/llama3/infra/parallelize.py apply_ddp",
    ),
    Rule(
        "no-zero-1", ("zero",), _zero_one, "FSDP2 shards gradients with the states: zero must not be 1; zero={zero}",
        "choose zero=2 or 3", "torchtitan parallelism.fsdp_reshard_after_forward",
    ),
    Rule(
        "zb-h1-vpp", ("vpp", "schedule"), _schedule_stages,
        "zb-h1 is InterleavedZeroBubble, which needs two or more stages per rank; vpp={vpp}", "set vpp=2",
        "torchtitan 0.3.0 distributed/pipeline_parallel.py: multi-stage schedules",
    ),
    Rule(
        "microbatches-pp", ("pp", "schedule", "num_microbatches"), _microbatches,
        "there must be at least as many micro-batches as stages; pp={pp} micro-batches={num_microbatches}",
        "choose a smaller micro-batch", "torchtitan distributed/pipeline_parallel.py; pytorch/torchtitan#775",
    ),
)  # fmt: skip


def stages_of(num_layers: int, stages: int, first_less: int, last_less: int) -> ChunkLayers:
    """Layers of every stage as torchtitan deals them: evenly with the ends' weight counted, extras first."""
    weighed = num_layers + first_less + last_less
    counts = [weighed // stages + (i < weighed % stages) for i in range(stages)]
    counts[0] -= first_less
    counts[-1] -= last_less
    return tuple(counts)


def end_weights(chunks: ChunkLayers) -> tuple[int, int] | None:
    """(first, last) stage weights that make torchtitan deal these layers, the smallest; None where none do."""
    total, stages = sum(chunks), len(chunks)
    if stages == 1:
        return (0, 0)
    most = (total // stages + 1) * 2
    for first in range(min(most, 12)):
        for last in range(min(most, 12)):
            fits = max(first, last) <= (total + first + last) // stages
            if fits and stages_of(total, stages, first, last) == chunks:
                return (first, last)
    return None


def settings_of(launch: Launch, version: str) -> dict[str, dict[str, Any]]:
    """Sections of settings, with the names both releases share. Raises `UnsupportedError`."""
    config, job = launch.config, launch.job
    _check(launch, version)
    # With a pipeline all micro-batches of a step are one local batch; without, gradients accumulate.
    local = config.micro_batch * (config.num_microbatches if config.pp > 1 else 1)
    shards = config.hsdp or config.dp * config.cp
    shard = 1 if config.zero == 0 else max(shards // config.cp, 1)
    steps = TRIAL_STEPS if job.tokens is None else max(int(-(-job.tokens // job.tokens_per_step)), 1)
    training = {
        "local_batch_size": local,
        "global_batch_size": job.global_batch,
        "seq_len": job.seq_len,
        "steps": steps,
        "mixed_precision_param": "float32" if job.precision is Precision.FP32 else "bfloat16",
    }
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": config.dp // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if config.zero == 3 else "never",
        "tensor_parallel_degree": config.tp,
        "context_parallel_degree": config.cp,
        "pipeline_parallel_degree": config.pp,
    }
    if launch.model.is_moe:
        parallelism["expert_parallel_degree"] = config.ep
        if version == TOML:
            parallelism["expert_tensor_parallel_degree"] = config.etp
            if _uses_deepep(launch):
                parallelism["expert_parallel_comm_backend"] = "deepep"
    if config.pp > 1:
        parallelism |= _pipeline(launch, version)
    return {"training": training, "parallelism": parallelism, "metrics": {"log_freq": 1}}


def _check(launch: Launch, version: str) -> None:
    config, job = launch.config, launch.job
    require_axis(launch, TITLE, "zero", (0, 2, 3) if config.dp * config.cp > 1 else (0, 1, 2, 3))
    require_whole_recompute(launch, TITLE)
    require(_kind(launch) in NAME_OF, TITLE, "this pipeline schedule", launch.schedule.label)
    overlapped = version == TOML and launch.schedule is Schedule.DUALPIPE_V and config.ep > 1
    recomputes = config.recompute != Recompute.NONE
    require(
        not (overlapped and recomputes),
        f"{TITLE} {version}",
        "DualPipeV with experts and recomputation",
        f"ep={config.ep}",
    )
    require(bool(config.sp) == (config.tp > 1), TITLE, "tp without sequence parallelism", f"sp={config.sp}")
    allowed = (
        Precision.BF16,
        Precision.FP32,
        *((Precision.FP8, Precision.FP8_CS) if version == TOML else ()),
    )
    require(job.precision in allowed, f"{TITLE} {version}", "this precision by options", job.precision)
    require(job.optimizer is Optimizer.ADAMW, TITLE, "this optimizer", job.optimizer)
    require(config.etp == 1 or version == TOML, f"{TITLE} {version}", "etp above 1", config.etp)
    require(not launch.model.mtp_layers, TITLE, "multi-token prediction by options", launch.model.mtp_layers)
    if config.hsdp:
        whole = config.hsdp % config.cp == 0 and (config.dp * config.cp) % config.hsdp == 0
        require(whole, TITLE, "shard groups that do not divide dp x cp", f"hsdp={config.hsdp}")


def _kind(launch: Launch) -> tuple[Schedule, bool]:
    return launch.schedule, launch.config.vpp > 1


def _pipeline(launch: Launch, version: str) -> dict[str, Any]:
    config, chunks = launch.config, launch.chunks
    settings: dict[str, Any] = {
        "pipeline_parallel_schedule": NAME_OF[_kind(launch)],
        "pipeline_parallel_microbatch_size": config.micro_batch,
    }
    weights = end_weights(chunks)
    if weights is None:
        return settings | {"module_fqns_per_model_part": _modules(chunks, version)}
    weighed = launch.model.num_layers + sum(weights)
    each = -(-weighed // len(chunks))
    settings |= {
        "pipeline_parallel_first_stage_less_layers": weights[0],
        "pipeline_parallel_last_stage_less_layers": weights[1],
    }
    if -(-weighed // each) == len(chunks):
        return settings | {"pipeline_parallel_layers_per_stage": each}
    if config.vpp <= 2:
        return settings  # what torchtitan takes where nothing is said
    return settings | {"module_fqns_per_model_part": _modules(chunks, version)}


def _modules(chunks: ChunkLayers, version: str) -> list[list[str]]:
    """Module names of every stage."""
    ends = np.cumsum(chunks).tolist()
    parts = [
        [f"layers.{i}" for i in range(end - count, end)] for end, count in zip(ends, chunks, strict=True)
    ]
    parts[0] = ["tok_embeddings", *parts[0]]
    parts[-1] = [*parts[-1], "norm", "output" if version == TOML else "lm_head"]
    return parts


def _recompute(launch: Launch) -> str:
    return {Recompute.NONE: "none", Recompute.SELECTIVE: "selective", Recompute.FULL: "full"}[
        Recompute(launch.config.recompute)
    ]


def render(launch: Launch, version: str) -> Files:
    """launch.sh with options (0.3.0) or a TOML file (0.2.2), what starts it, and a README."""
    name = known_as(
        launch.model, [m for m, (_, a, b) in MODELS.items() if (a if version == TOML else b)], TITLE
    )
    family, flavour, function = MODELS[name]
    sections = settings_of(launch, version)
    prelude = "# the tokenizer's folder\nHF_ASSETS_PATH=${HF_ASSETS_PATH:-./assets/hf/" + _assets(name) + "}"
    environment = {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
    }
    source = table_source("torchtitan", version)
    run = [f"`NODE_RANK=0 MASTER_ADDR=host0 bash launch.sh` on every one of {launch.nodes} nodes."]
    missing = [
        "data: the dataset is torchtitan's c4_test; name your own",
        "the tokenizer: set HF_ASSETS_PATH",
    ]
    if launch.config.zero == 2:
        missing.append("ZeRO 2 is written as FSDP2 that keeps the gathered weights until the backward pass")
    missing += _unlike_stack(launch, version)
    end = readme(launch, TITLE, version, source, run, missing)
    if version == TOML:
        toml = _toml_sections(launch, family, flavour, sections)
        check_options("torchtitan", version, option_words(toml))
        prelude += '\nHERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)'
        program = (
            f'-m torchtitan.train --job.config_file "$HERE/{CONFIG}" --model.hf_assets_path "$HF_ASSETS_PATH"'
        )
        files = launch_files(launch, environment, {}, program, IMAGE, {CONFIG: dump_toml(toml)}, prelude)
        return {**files, README: end}
    extra: dict[str, str] = {}
    modules = sections["parallelism"].pop("module_fqns_per_model_part", None)
    if modules is not None:
        extra[PLANNED] = _planned(family, function, modules)
        family, function = PLANNED.removesuffix(".py"), "planned"
        prelude += '\nHERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)'
        prelude += '\nexport PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"'
    options = _cli_options(launch, family, function, sections)
    check_options("torchtitan", version, [o for o in options if o[0].startswith("--")])
    program = '-m torchtitan.train --hf_assets_path "$HF_ASSETS_PATH"'
    files = launch_files(launch, environment, {"TITAN": options}, program, IMAGE, extra, prelude)
    return {**files, README: end}


def compiles(launch: Launch) -> bool:
    """Does the plan's stack run under torch.compile, which is what fuses norms and activations here?"""
    stack = launch.stack_of("torchtitan")
    return stack is not None and stack.kernels.fused_norm and stack.kernels.fused_activation


def _uses_deepep(launch: Launch) -> bool:
    stack = launch.stack
    return stack is not None and stack.communication.dispatcher is Dispatcher.DEEPEP and launch.config.ep > 1


def _unlike_stack(launch: Launch, version: str) -> list[str]:
    """What the plan's stack counts on and these files do not bring, or the other way round."""
    stack, said = launch.stack_of("torchtitan"), []
    if stack is None:
        said.append("kernels of the plan's stack, which is none that ships for torchtitan: defaults are used")
    elif version == CLI and stack.kernels.cross_entropy is not CrossEntropy.CHUNKED:
        said.append(
            "the shipped configuration takes the loss in chunks: less memory at the loss than predicted"
        )
    if version == CLI and _uses_deepep(launch):
        said.append("DeepEP, which is chosen in Python: tokens go by all-to-all, slower than predicted")
    return said


def _planned(family: str, function: str, modules: list[list[str]]) -> str:
    lines = "\n".join(f"    {part!r}," for part in modules).replace("'", '"')
    return (
        '"""The shipped configuration with the plan\'s split of modules over pipeline stages."""\n\n'
        f"from torchtitan.models.{family}.config_registry import {function}\n\n"
        f"MODULES = [\n{lines}\n]\n\n\n"
        f"def planned():\n    config = {function}()\n"
        "    config.parallelism.module_fqns_per_model_part = MODULES\n    return config\n"
    )


def _assets(name: str) -> str:
    return "".join(letter for letter in name if letter.isalnum() or letter in ".-")


def _toml_sections(
    launch: Launch, family: str, flavour: str, sections: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    toml: dict[str, dict[str, Any]] = {
        "model": {"name": family, "flavor": flavour},
        **{name: dict(section) for name, section in sections.items()},
        "activation_checkpoint": {"mode": _recompute(launch)},
        "optimizer": {"name": "AdamW", "lr": 3e-4},
        "lr_scheduler": {"warmup_steps": min(2, sections["training"]["steps"])},
    }
    toml["training"]["dataset"] = "c4_test"
    if compiles(launch):
        toml["compile"] = {"enable": True, "components": ["model", "loss"]}
    if launch.config.recompute == Recompute.SELECTIVE:
        toml["activation_checkpoint"]["selective_ac_option"] = "op"
    if launch.job.precision in (Precision.FP8, Precision.FP8_CS):
        toml["model"]["converters"] = ["quantize.linear.float8"]
    return toml


def _cli_options(
    launch: Launch, family: str, function: str, sections: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, ...]]:
    options: list[tuple[str, ...]] = [("--module", family), ("--config", function)]
    for section, values in sections.items():
        options += [(f"--{section}.{name}", str(value)) for name, value in values.items()]
    if compiles(launch):  # a list is an option for every item
        options += [
            ("--compile.enable",),
            ("--compile.components", "model"),
            ("--compile.components", "loss"),
        ]
    options.append(("--dataloader.dataset", "c4_test"))
    if launch.config.pp > 1 or launch.config.ep > 1:
        options.append(("--training.disable_cuda_graphs",))
    return [*options, (f"activation-checkpoint:{_recompute(launch)}",)]


def dump_toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections of plain values as a TOML document."""
    lines: list[str] = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {_toml_value(value)}" for name, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    text = str(value)
    assert all(c.isprintable() and c not in '"\\' for c in text), f"{text!r} needs no escapes"
    return f'"{text}"'


def parse(files: Mapping[str, str]) -> ParsedConfig:
    """What a TOML file (0.2.2) or options (0.3.0) say. Raises `FileInputError` or `InputError`."""
    toml = next((name for name in files if name.endswith(".toml")), None)
    devices = _devices(files)
    if toml is not None:
        document = load_settings(files[toml], toml)
        return _parsed(
            Settings(document, toml), TOML, devices, unknown_options("torchtitan", TOML, flatten(document))
        )
    words: dict[str, Any] = {}
    names: list[str] = []
    for text in files.values():
        for option, *values in options_of(text)[0]:
            if "." in option or option in ("--module", "--config"):
                names.append(option)
                words[option[2:].replace("-", "_")] = values[0] if values else "true"
        kinds = [w for w in script_words(text)[0] if w.startswith("activation-checkpoint:")]
        for kind in kinds:
            words["activation_checkpoint.mode"] = kind.partition(":")[2]
    for name, text in files.items():
        if name.endswith(PLANNED):
            words |= _read_planned(text, name)
    if not words:
        must = "torchtitan options or a TOML file must be given (--module, --config, --parallelism...)"
        raise InputError(must, ", ".join(files))
    unknown = unknown_options("torchtitan", CLI, [n for n in names if not n.startswith("--job")])
    return _parsed(Settings(words, next(iter(files))), CLI, devices, unknown)


def _read_planned(text: str, name: str) -> dict[str, Any]:
    """The shipped configuration and the modules of every stage that a planned configuration names."""
    base = re.search(r"^from torchtitan\.models\.\w+\.config_registry import (\w+)$", text, re.MULTILINE)
    listed = re.search(r"^MODULES = (\[.*?^\])$", text, re.MULTILINE | re.DOTALL)
    if base is None or listed is None:
        raise FileInputError(name, "must be as the export writes it", "something else")
    try:
        return {"config": base[1], "parallelism.module_fqns_per_model_part": ast.literal_eval(listed[1])}
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise FileInputError(name, "MODULES must be a list of lists", str(error)) from None


def _devices(files: Mapping[str, str]) -> int | None:
    for text in files.values():
        options, variables = options_of(text) if "torchrun" in text else ([], {})
        words = {name: values for name, *values in options}
        nodes = (words.get("--nnodes") or [variables.get("NNODES", "")])[0]
        each = (
            words.get("--nproc-per-node") or words.get("--nproc_per_node") or [variables.get("NGPU", "")]
        )[0]
        nodes = nodes or "1"  # what torchrun takes
        if nodes.isdigit() and each.isdigit():
            return int(nodes) * int(each)
    return None


def _parsed(s: Settings, version: str, devices: int | None, unknown: tuple[str, ...]) -> ParsedConfig:
    def degree(name: str, default: int = 1) -> int:
        return s.count(f"parallelism.{name}", default, least=-1)

    tp, cp, pp = (degree(f"{kind}_parallel_degree") for kind in ("tensor", "context", "pipeline"))
    replicate, shard = degree("data_parallel_replicate_degree"), degree("data_parallel_shard_degree", -1)
    if shard < 1 and devices:
        shard = max(devices // (tp * cp * pp * replicate), 1)
    known = shard >= 1
    if not known and (pp > 1 or replicate > 1):
        must = "data_parallel_shard_degree must be a number where there are pipelines or replicas"
        raise InputError(must, "-1", "write the number, or give the torchrun script too")
    model = _model(s, version)
    dp = replicate * shard if known else 1
    schedule, looped = _schedule(s)
    chunks = _chunks(s, model, pp, looped)
    local = s.count("training.local_batch_size", 8 if version == TOML else 1)
    micro = s.count("parallelism.pipeline_parallel_microbatch_size", 1) if pp > 1 else local
    batch: int | None = s.count("training.global_batch_size", -1, least=-1)
    if batch is None or batch < 1:
        batch = local * dp if known else None
    reshard = s.text("parallelism.fsdp_reshard_after_forward", "default")
    always = reshard == "always" or (reshard == "default" and pp == 1)
    sharded = shard * cp > 1 or not known
    mode = s.text("activation_checkpoint.mode", "selective")
    recompute = {"full": Recompute.FULL, "selective": Recompute.SELECTIVE}.get(mode, Recompute.NONE)
    axes = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "vpp": max(len(chunks) // pp, 1) if chunks else 1,
        "ep": degree("expert_parallel_degree"), "etp": degree("expert_tensor_parallel_degree"),
        "micro_batch": micro, "num_microbatches": max((batch or 1) // (dp * micro), 1), "sp": int(tp > 1),
        "zero": (3 if always else 2) if sharded else 0,
        "hsdp": shard * cp if sharded and replicate > 1 else 0,
        "recompute": int(recompute), "schedule": int(schedule),
        "recompute_layers": -(-model.num_layers // pp) if model and recompute == Recompute.FULL else 0,
    }  # fmt: skip
    if not known:  # all devices that are left; the cluster says how many
        axes = {axis: value for axis, value in axes.items() if axis not in ("dp", "num_microbatches")}
    fp8 = "float8" in s.text("model.converters", "")
    fp32 = s.text("training.mixed_precision_param", "bfloat16") == "float32"
    return ParsedConfig(
        framework="torchtitan",
        version=version,
        axes=axes,
        devices=tp * cp * pp * dp if known else None,
        seq_len=s.count("training.seq_len", 1) if s.has("training.seq_len") else None,
        global_batch=batch,
        precision=Precision.FP8 if fp8 else Precision.FP32 if fp32 else Precision.BF16,
        model=model,
        layers=chunks,
        unknown=unknown,
    )


def _model(s: Settings, version: str) -> ModelSpec | None:
    for name, (family, flavour, function) in MODELS.items():
        mine = (s.text("model.name", ""), s.text("model.flavor", "")) == (family, flavour)
        if (mine and flavour) if version == TOML else (function and s.text("config", "") == function):
            return load_model(name)
    return None


def _schedule(s: Settings) -> tuple[Schedule, bool]:
    """The schedule and whether ranks hold several stages. Raises `FileInputError` for a name torch does not have."""
    text = s.text("parallelism.pipeline_parallel_schedule", "1F1B")
    known = {name.lower(): kind for name, kind in SCHEDULES.items()}
    if text.lower() not in known:
        must = "must be one of " + ", ".join(SCHEDULES)
        raise FileInputError(s.file, must, repr(text)[:80], field="parallelism.pipeline_parallel_schedule")
    return known[text.lower()]


def _chunks(s: Settings, model: ModelSpec | None, pp: int, looped: bool) -> ChunkLayers:
    parts = s.values.get("parallelism.module_fqns_per_model_part")
    if isinstance(parts, list):
        return tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)
    if model is None or pp == 1:
        return ()
    first = s.count("parallelism.pipeline_parallel_first_stage_less_layers", 1, least=0)
    last = s.count("parallelism.pipeline_parallel_last_stage_less_layers", 1, least=0)
    stages = pp * (2 if looped else 1)
    if s.has("parallelism.pipeline_parallel_layers_per_stage"):
        each = s.count("parallelism.pipeline_parallel_layers_per_stage", 1)
        stages = -(-(model.num_layers + first + last) // each)
        if stages % pp:
            must = "the stages that layers per stage give must be divisible by the pipeline degree"
            raise InputError(must, f"{stages} stages, pp {pp}", "change pipeline_parallel_layers_per_stage")
    return stages_of(model.num_layers, stages, first, last)


def recognizes(name: str, text: str) -> bool:
    """A torchtitan TOML file, or a script with its options."""
    return name.endswith(".toml") or "torchtitan" in text or "--parallelism." in text


TORCHTITAN: Final = Framework(
    name="torchtitan",
    title=TITLE,
    versions=(TOML, CLI),
    default_version=CLI,
    rules=RULES,
    schedules=tuple(dict.fromkeys(kind for kind, _ in SCHEDULES.values())),
    zero_stages=(0, 2, 3),
    splits="fewer layers in the first and last stage; in 0.2.2 also a list of modules",
    dense_order=("tp", "cp", "dp", "pp"),
    expert_order=("ep", "edp", "pp"),
    render=render,
    parse=parse,
    recognizes=recognizes,
    stacks=("torchtitan",),
)
