"""What do an Accelerate YAML, the words of `accelerate launch` and a DeepSpeed file beside them say?

Source: accelerate 1.15.0 (commands/config/config_args.py, commands/launch.py). Left out: SageMaker, TPUs, Megatron-LM
under Accelerate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from planner.catalog.stack_options import NO_COMPILE, NO_SYNC, PURE_BF16
from planner.dialect import option
from planner.errors import InputError
from planner.frameworks.fields import Settings, flatten, load_settings
from planner.frameworks.framework import ParsedConfig
from planner.frameworks.options import option_table, unknown_options
from planner.frameworks.shell.script import COMMAND_END, Script, group_options, is_script, whole
from planner.frameworks.trainer import Pure, Trainer, devices_of, kernels_of, trainer_of, words_of
from planner.frameworks.trainer_yaml import is_trainer_yaml, names_deepspeed
from planner.frameworks.words import is_on
from planner.frameworks.zero_settings import with_full_names, zero_settings
from planner.spec.config import OFFLOAD_OPTIMIZER, OFFLOAD_PARAMETERS, Recompute
from planner.spec.precision import Precision
from planner.spec.stack.engines import EngineKind

VERSION: Final = "1.15.0"
PRECISIONS: Final = {
    Precision.BF16: "bf16",
    Precision.FP16: "fp16",
    Precision.FP32: "no",
    Precision.FP8: "fp8",
    Precision.FP8_CS: "fp8",
}
# recipe -> what runs it: Transformer Engine scales by a history (utils/transformer_engine.py DelayedScaling), torchao
# by the tensor at hand, one scale each (utils/ao.py, Float8LinearConfig as it comes)
FP8_BACKENDS: Final = {Precision.FP8: "TE", Precision.FP8_CS: "AO"}
# sharding strategies of FSDP 1, by name and number (torch.distributed.fsdp.ShardingStrategy) -> ZeRO stage
_STRATEGIES: Final = {
    "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2,
    "1": 3, "2": 2, "3": 0, "4": 3, "5": 2,
}  # fmt: skip

_SECTIONS: Final = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED"}  # -> the type whose they are
_LAUNCHED: Final = re.compile(r"\baccelerate(?:\s+|\.commands\.)launch\b")
# words of `accelerate launch` -> the setting (commands/launch.py launch_command_parser)
_TYPES: Final = {
    "use_fsdp": "FSDP",
    "use_deepspeed": "DEEPSPEED",
    "multi_gpu": "MULTI_GPU",
    "use_megatron_lm": "MEGATRON_LM",
}


def _settings_of(files: Mapping[str, str], words: dict[str, list[str]]) -> tuple[Settings, Mapping[str, Any]]:
    """Settings of the YAML and of the launcher's words, and the document alone. Raises `InputError`."""
    name = next(
        (
            file
            for file, text in files.items()
            if recognizes(file, text) and not (is_script(file) or is_trainer_yaml(file, text))
        ),
        None,
    )
    launched = _launch_words(files)
    if name is None and launched is None:
        launched = _trainer_words(files, words)
    if name is None and launched is None:
        raise InputError("an Accelerate YAML must name distributed_type and num_processes", ", ".join(files))
    document = _prefixed(load_settings(files[name], name)) if name is not None else {}
    if name is None:
        _require_no_other_file(launched or {})
    return Settings({**flatten(document), **(launched or {})}, name or next(iter(files))), document


def parse(files: Mapping[str, str], started: int | None = None) -> ParsedConfig:
    """What an Accelerate YAML and the words of `accelerate launch` say; `started`: processes that the launcher is told
    to start, whatever num_processes says. Raises `FileInputError` naming the setting."""
    words = words_of(files)
    s, document = _settings_of(files, words)
    stated = s.count("num_processes", 1) if s.has("num_processes") else None
    devices = stated if started is None else started
    kind = _distributed_type(s)
    p = "parallelism_config.parallelism_config_"
    # which must make up the number of processes (parallelism_config.py _validate_accelerator)
    sized = any(s.has(f"{p}dp_{what}_size") for what in ("replicate", "shard"))
    tp, cp = s.count(p + "tp_size", 1), s.count(p + "cp_size", 1) * s.count(p + "sp_size", 1)
    ds, notes = Settings({}, ""), list[str]()
    if kind == "DEEPSPEED" and s.has("deepspeed_config.deepspeed_config_file"):
        ds, notes = _deepspeed_file(s.text("deepspeed_config.deepspeed_config_file", ""), files)
    zero, hsdp, offload = _states(s, ds, kind, devices, cp, stated)
    trainer = trainer_of(words)
    # of the sections only that of what runs counts (commands/launch.py _validate_launch_command, utils/launch.py)
    recomputes = kind == "FSDP" and s.flag("fsdp_config.fsdp_activation_checkpointing")
    full = recomputes or trainer.recompute or "recompute" in words
    notes += [
        f"Accelerate passes over {section}: distributed_type is {kind}, not {owner}"
        for section, owner in _SECTIONS.items()
        if kind != owner and document.get(section)
    ]
    axes = {
        "tp": tp, "cp": cp, "pp": 1, "vpp": 1, "ep": 1, "etp": 1, "sp": 0, "zero": zero, "hsdp": hsdp,
        "recompute": int(Recompute.FULL if full else Recompute.NONE), "offload": offload,
    }  # fmt: skip
    dp = None if devices is None else max(devices // (tp * cp), 1)
    axes |= {"dp": dp} if dp is not None else {}
    numbers = _numbers(words, trainer, s if kind == "DEEPSPEED" else Settings({}, ""), ds)
    axes |= {"num_microbatches": numbers["accumulate"]} if "accumulate" in numbers else {}
    batch = None
    if "micro-batch" in numbers:
        axes["micro_batch"] = numbers["micro-batch"]
        axes.setdefault("num_microbatches", 1)
        batch = None if dp is None else dp * axes["micro_batch"] * axes["num_microbatches"]
    precision, gathers, said = _precision(s, ds, kind, trainer)
    waits = kind == "FSDP" and axes.get("num_microbatches", 1) > 1 and not _syncs_each_batch(words)
    settings, costed = zero_settings(ds, zero) if kind == "DEEPSPEED" else ((), ())
    # the launcher refuses unknown names of the first level, and copies those below to where nothing asks for them
    strange = unknown_options("accelerate", VERSION, flatten(document))
    unknown = tuple(option for option in strange if "." not in option.split()[0])
    notes += [
        f"Accelerate passes over what it does not know: {option}"
        for option in strange
        if option not in unknown
    ]
    compiled = _compiles(s, words, numbers) if kind != "DEEPSPEED" else True
    if compiled is None:
        notes.append(
            "nothing here asks for torch.compile: the program is taken to do without, as Accelerate does; "
            f"{option('stack', 'fsdp1-2023')} is one with it"
        )
    # under mixed precision FSDP raises what is trained to fp32 (utils/fsdp_utils.py fsdp2_prepare_model; accelerator.py
    # prepare_model), DeepSpeed keeps masters
    kept = {"FSDP": (Pure.WITHOUT_AUTOCAST,), "DEEPSPEED": ()}
    pure = trainer.pure_bf16 in kept.get(kind, (Pure.UNDER_AUTOCAST, Pure.WITHOUT_AUTOCAST))
    unstated = "micro-batch and sequence length are the program's, not this file's"
    return ParsedConfig(
        framework="accelerate",
        version=VERSION,
        axes=axes,
        devices=devices,
        placed=None if stated is None or sized else lambda on, domain: parse(files, on),
        seq_len=numbers.get("seq-len"),
        global_batch=batch,
        precision=precision,
        model=trainer.model,
        named=trainer.named,
        optimizer=None if ds.has("optimizer.type") else trainer.optimizer,
        param_gather=gathers,
        adapters=trainer.adapters,
        unknown=unknown,
        engine=EngineKind.DEEPSPEED if kind == "DEEPSPEED" else None,
        usual_options=(NO_COMPILE,) * (compiled is None),
        stack_options=(
            *((PURE_BF16,) * pure),
            *((NO_SYNC,) * waits),
            *((NO_COMPILE,) * (compiled is False)),
            *kernels_of(words),
        ),
        stack_settings=settings,
        notes=(
            *notes,
            *said,
            *costed,
            *trainer.notes,
            *((unstated,) * (batch is None and len(numbers) < 2)),
        ),
    )


def _states(
    s: Settings, ds: Settings, kind: str, devices: int | None, cp: int, stated: int | None
) -> tuple[int, int, int]:
    """ZeRO stage, ranks of a shard and what lies on the host (`zero`, `hsdp`, `offload`), of FSDP or DeepSpeed."""
    if kind == "FSDP":
        away = s.flag("fsdp_config.fsdp_offload_params")
        return (*_sharding(s, devices, cp, stated), OFFLOAD_OPTIMIZER | OFFLOAD_PARAMETERS if away else 0)
    if kind == "DEEPSPEED":
        stage = s.count("deepspeed_config.zero_stage", 2, least=0)
        return ds.count("zero_optimization.stage", stage, least=0), 0, _deepspeed_offload(s, ds)
    return 0, 0, 0


def _compiles(s: Settings, words: Mapping[str, list[str]], numbers: Mapping[str, int]) -> bool | None:
    """Does the program compile its blocks, by its words or by Accelerate (transformers training_args.py torch_compile;
    accelerate accelerator.py prepare_model)? None where no word of it is known."""
    names = ("dynamo_config.dynamo_backend", "dynamo_config.backend", "dynamo_backend")
    backend = next((s.text(name, "").lower() for name in names if s.has(name)), "no")
    asked = any(name in words for name in ("compile", "torch_compile_backend", "torch_compile_mode"))
    if backend != "no" or asked or is_on(words, "torch_compile"):
        return True
    stated = any(name in words for name in ("per_device_train_batch_size", "micro_batch"))
    return False if stated and "micro-batch" in numbers else None


def _syncs_each_batch(words: Mapping[str, list[str]]) -> bool:
    """Is no_sync shut off (accelerate GradientAccumulationPlugin; transformers --accelerator_config)? FSDP holds whole
    gradients between micro-batches else (accelerate docs/source/concept_guides/gradient_synchronization.md)."""
    return "sync_each_batch" in words or any("sync_each_batch" in " ".join(said) for said in words.values())


def _numbers(words: Mapping[str, list[str]], trainer: Trainer, s: Settings, ds: Settings) -> dict[str, int]:
    """Sequence, micro-batch and accumulated steps, by the program's words, else the DeepSpeed file, else the YAML."""
    stated = {
        "seq-len": trainer.seq_len,
        "micro-batch": trainer.micro_batch or whole((words.get("micro_batch") or [""])[0]),
        "accumulate": trainer.accumulate or whole((words.get("accumulate") or [""])[0]),
    }
    numbers = {name: value for name, value in stated.items() if value}
    for key, settings, name in (
        ("micro-batch", ds, "train_micro_batch_size_per_gpu"),
        ("accumulate", ds, "gradient_accumulation_steps"),
        ("accumulate", s, "deepspeed_config.gradient_accumulation_steps"),
    ):
        if settings.has(name):
            numbers.setdefault(key, settings.count(name, 1))
    return numbers


def _precision(
    s: Settings, ds: Settings, kind: str, trainer: Trainer
) -> tuple[Precision | None, bool | None, list[str]]:
    """The recipe, whether FSDP2 casts weights before it gathers them, and what was taken of fp8. What a Trainer is told
    goes before the YAML (training_args.py sets ACCELERATE_MIXED_PRECISION)."""
    own = next((name for name, on in trainer.formats.items() if on), None)
    text = own or s.text("mixed_precision", "no").lower()
    if ds.flag("bf16.enabled") or ds.flag("fp16.enabled"):  # the DeepSpeed file's own counts
        text = "bf16" if ds.flag("bf16.enabled") else "fp16"
    if text != "fp8":
        return next((recipe for recipe, said in PRECISIONS.items() if said == text), None), None, []
    recipe, notes = _fp8_recipe(s, kind)
    return recipe, _gathers_float8(s, kind) if recipe is Precision.FP8_CS else None, notes


def _fp8_recipe(s: Settings, kind: str) -> tuple[Precision, list[str]]:
    """The fp8 recipe, by its backend, and what was taken where no file names one. Raises `InputError`.

    Accelerate then takes the first of torchao, Transformer Engine and MS-AMP that is installed, which no file says.
    torchao refuses the loading of weights by one rank under FSDP, which `accelerate launch` asks for unless told not
    to: where it is on, only Transformer Engine can have run (accelerator.py Accelerator.__init__; commands/launch.py).
    """
    backend = s.text("fp8_config.fp8_backend", s.text("fp8_config.backend", ""))
    if backend and backend not in ("AO", "TE", "MSAMP"):
        must = "the fp8 backend must be AO, TE or MSAMP in capitals (utils/dataclasses.py FP8BackendType)"
        raise InputError(must, backend[:40], "write fp8_backend: TE, say")
    if backend == "MSAMP":
        must = "planner models fp8 by torchao (AO) or Transformer Engine (TE)"
        raise InputError(must, "MSAMP, whose optimizer states are narrow too", "choose another backend")
    one_rank = kind == "FSDP" and s.flag("fsdp_config.fsdp_cpu_ram_efficient_loading", True)
    if backend == "AO" and one_rank:
        must = "torchao with FSDP2 needs fsdp_cpu_ram_efficient_loading: false"
        raise InputError(must, "true, or not stated", "set it to false")
    if backend:
        return next(recipe for recipe, name in FP8_BACKENDS.items() if name == backend), []
    rule = "no fp8 backend is named: Accelerate takes the first installed of torchao, Transformer Engine and MS-AMP; "
    if one_rank:
        why = "taken as Transformer Engine, as torchao is refused with fsdp_cpu_ram_efficient_loading"
        return Precision.FP8, [rule + why]
    return Precision.FP8_CS, [rule + "taken as torchao"]


def _gathers_float8(s: Settings, kind: str) -> bool:
    """Does FSDP2 cast linear weights before it gathers them? torchao's default under Accelerate
    (utils/dataclasses.py AORecipeKwargs)."""
    name = "enable_fsdp_float8_all_gather"
    asked = s.flag(f"fp8_config.fp8_{name}", s.flag(f"fp8_config.{name}", True))
    return kind == "FSDP" and asked


def _prefixed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with FSDP's settings under their full names, whose prefix a YAML may leave out."""
    said = dict(document)
    if isinstance(fsdp := said.get("fsdp_config"), dict):
        full = {
            name if str(name).startswith("fsdp") else f"fsdp_{name}": value for name, value in fsdp.items()
        }
        said["fsdp_config"] = full
    return said


def _launch_words(files: Mapping[str, str]) -> dict[str, Any] | None:
    """Settings that the words of `accelerate launch` state, which go before the YAML's; None where no file runs it."""
    places = {key.rpartition(".")[2]: key for key in option_table("accelerate", VERSION)}
    for file, text in files.items():
        if not is_script(file) or not _LAUNCHED.search(text):
            continue
        words = Script().follow(text).words
        start = next(
            (i for i, w in enumerate(words) if w in ("accelerate", "accelerate.commands.launch")), None
        )
        if start is None:  # only built in a variable that no command uses as it is
            return {}
        own = words[start:]
        ends = (i for i, word in enumerate(own) if i and (word == COMMAND_END or word.endswith(".py")))
        said: dict[str, Any] = {}
        for word, *values in group_options(own[: next(ends, len(own))]):
            name = word[2:].replace("-", "_")
            if name in _TYPES:
                said["distributed_type"] = _TYPES[name]
            elif values and "$" not in values[0]:
                said[places.get(name, name)] = values[0]
        return said
    return None


_FSDP: Final = "fsdp_config.fsdp_"
_OFFLOADS: Final = (f"{_FSDP}offload_params", f"{_FSDP}cpu_offload")


def _trainer_words(files: Mapping[str, str], words: Mapping[str, list[str]]) -> dict[str, Any] | None:
    """Settings that a Trainer under torchrun hands to Accelerate by itself; None where no script runs one."""
    if "per_device_train_batch_size" not in words:
        return None
    devices, parts = devices_of(files), " ".join(words.get("fsdp", [])).upper().split()
    said: dict[str, Any] = {"num_processes": devices} if devices is not None else {}
    if not parts or parts == ["FALSE"]:
        return said | {"distributed_type": "MULTI_GPU"}
    own = flatten(_prefixed({"fsdp_config": _fsdp_config(files, " ".join(words.get("fsdp_config", [])))}))
    # what --fsdp names yields to --fsdp_config (training_args.py _apply_legacy_fsdp_to_config); axolotl hands on
    # offload_params
    # (utils/trainer.py setup_fsdp_envs)
    strategy = next((part for part in parts if part in _STRATEGIES), "FULL_SHARD")
    stated = {f"{_FSDP}sharding_strategy", f"{_FSDP}reshard_after_forward"} & own.keys()
    away = next((own[name] for name in _OFFLOADS if name in own), "OFFLOAD" in parts)
    said |= {"distributed_type": "FSDP"} | ({} if stated else {f"{_FSDP}sharding_strategy": strategy})
    return said | own | {f"{_FSDP}offload_params": away}


def _fsdp_config(files: Mapping[str, str], stated: str) -> dict[str, Any]:
    """Settings of --fsdp_config: JSON itself (training_args.py _VALID_DICT_FIELDS), or a file that must be given."""
    if stated.startswith("{"):
        return load_settings(stated, "--fsdp_config")
    wanted = stated.split("/")[-1]
    given = next((file for file in files if wanted and file.split("/")[-1] == wanted), None)
    if wanted and given is None:
        must = "the file that --fsdp_config names must be given too"
        raise InputError(must, wanted, "name it beside the script")
    return load_settings(files[given], given) if given is not None else {}


def _require_no_other_file(launched: Mapping[str, Any]) -> None:
    """Raise `InputError` where the command takes its settings from a YAML that was not given."""
    if wanted := launched.get("config_file"):
        raise InputError(
            "the YAML that --config_file names must be given too", wanted, "name it beside the script"
        )


def _distributed_type(s: Settings) -> str:
    """What runs. Raises `InputError` for what planner does not read."""
    kind = s.text("distributed_type", "NO").upper()
    if kind not in ("NO", "FALSE", "MULTI_GPU", "FSDP", "DEEPSPEED", "TP"):
        must = "Accelerate's distributed_type must be one that planner reads: NO, MULTI_GPU, FSDP, DEEPSPEED"
        instead = "check the Megatron-LM arguments" if kind == "MEGATRON_LM" else "choose another"
        raise InputError(must, kind[:40], instead)
    return kind


def _sharding(s: Settings, devices: int | None, cp: int, stated: int | None) -> tuple[int, int]:
    """(ZeRO stage, devices that share one copy, 0 for all) of FSDP, of which the machines that the file states have
    their share of the `stated` ones. Raises `InputError`."""
    p = "parallelism_config.parallelism_config_"
    replicate, tp = s.count(p + "dp_replicate_size", 1), s.count(p + "tp_size", 1)
    strategy = s.text("fsdp_config.fsdp_sharding_strategy", "").upper().replace(" ", "")
    reshard = s.text("fsdp_config.fsdp_reshard_after_forward", "True").upper()
    # FSDP 1 took its strategies under either name
    named = strategy or (reshard if reshard in _STRATEGIES else "")
    zero = _STRATEGIES.get(named, 3 if reshard == "TRUE" else 2)
    hybrid = named.startswith(("HYBRID", "4", "5"))
    if devices is None and (hybrid or replicate > 1):
        must = "num_processes must be known where shards are replicated"
        raise InputError(must, "none in these files", "add num_processes to the YAML")
    if devices is None:
        return zero, 0
    if hybrid:
        return zero, (stated or devices) // s.count("num_machines", 1)
    return zero, max(devices // (tp * cp), 1) * cp // replicate if replicate > 1 else 0


def _deepspeed_offload(s: Settings, ds: Settings) -> int:
    """What lies on the host, by the DeepSpeed file or the YAML's own words, as bits of `offload`."""
    bits = 0
    for bit, what in ((OFFLOAD_OPTIMIZER, "optimizer"), (OFFLOAD_PARAMETERS, "param")):
        place = s.text(f"deepspeed_config.offload_{what}_device", "none").lower()
        place = ds.text(f"zero_optimization.offload_{what}.device", place).lower()
        bits |= bit if place not in ("none", "null") else 0
    return bits


def _deepspeed_file(wanted: str, files: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """The DeepSpeed settings that the YAML names, from the files given; a note where they were not."""
    plain = wanted.split("/")[-1]
    for file, text in files.items():
        if file.split("/")[-1] == plain:
            return Settings(with_full_names(load_settings(text, file)), file), []
    return Settings({}, plain), [
        f"{plain} was not given: its ZeRO stage is taken as 2; name it beside the YAML"
    ]


def recognizes(name: str, text: str) -> bool:
    """A YAML file that `accelerate config` could have written, or a script that runs `accelerate launch` or, under
    torchrun, Transformers' Trainer."""
    if is_script(name):
        alone = any(word in text for word in ("torchrun", "torch.distributed", "llamafactory-cli train"))
        trains = "--per_device_train_batch_size" in text and "--deepspeed" not in text
        return _LAUNCHED.search(text) is not None or (alone and trains)
    if is_trainer_yaml(name, text):
        return not names_deepspeed(name, text)
    return name.endswith((".yaml", ".yml")) and ("distributed_type:" in text or "fsdp_config:" in text)


def is_fsdp_2(name: str, text: str) -> bool:
    """Is it a YAML of Accelerate with settings of FSDP 2, whose words are others than those of FSDP 1, or with none?"""
    if is_trainer_yaml(name, text) or "distributed_type:" not in text:
        return False
    section = _prefixed(load_settings(text, name)).get("fsdp_config")
    return not section or str(section.get("fsdp_version")) == "2"
