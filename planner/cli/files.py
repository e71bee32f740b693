"""What job do a launcher's own files state: model, cluster, job, stack and configuration, completed by assumptions?

Left out: reading the files (`planner/frameworks/`) and the verdict on them (`cli.check`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from planner.ask.option import as_written, options_of
from planner.ask.question import Question
from planner.dialect import on_command_line, option
from planner.errors import FileInputError, InputError, field_must

if TYPE_CHECKING:
    from planner.frameworks.framework import Framework, ParsedConfig
    from planner.spec.config import ParallelConfig
    from planner.spec.findings import Finding
    from planner.spec.model import ModelSpec
    from planner.spec.rule import Problem
    from planner.spec.stack import Stack
    from planner.spec.stack.engines import AnyEngine, EngineKind

_LARGEST = 2_000_000  # bytes of a file
_LARGEST_BESIDE = 10**15  # of one that is passed over
MODEL_CONFIG = "config.json"  # the model's, not the launcher's
_MUST = "the files must be those of a framework that planner reads: "
_STARTED = "the number of processes that the files start,"
_HOW = "give the script or settings file that is launched"


def read_files(paths: list[Path]) -> tuple[dict[str, str], list[str]]:
    """The text of every file, scripts with the arguments that another one calls them with, and a note on each file of
    a folder that holds no text.

    Raises `FileInputError`.
    """
    from planner.frameworks.shell.script_calls import with_arguments

    texts: dict[str, str] = {}
    others: list[FileInputError] = []
    for path in paths:
        for file in _files_of(path):
            if file.is_dir() or file.name in ("README.md", "kubernetes.yaml", "train.py", MODEL_CONFIG):
                continue
            text = _text_of(file)
            if isinstance(text, str):
                texts[str(file)] = text
            elif path.is_dir():
                others.append(text)
            else:
                raise text
    if not texts and others:
        raise others[0]
    if not texts:
        given = ", ".join(map(str, paths))
        hint = f"name a script or settings file; README.md, kubernetes.yaml, train.py and {MODEL_CONFIG} are not read"
        raise InputError("a file that says how to launch must be given", given, hint)
    return with_arguments(texts), [f"{error.file} is no text and is not read" for error in others]


def _files_of(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError as error:
        raise FileInputError(str(path), "must be a readable folder", str(error)) from None


def _text_of(file: Path) -> str | FileInputError:
    """What a file says, or that it is no text, which its caller may pass over."""
    from planner.spec.load_file import check_file, decoded, read_bytes, unreadable

    check_file(file, _LARGEST_BESIDE, missing=f"check the path; {_HOW}")
    try:
        with file.open("rb") as opened:
            data = b"\0" in opened.read(8192)
    except OSError as error:
        raise unreadable(str(file), error) from None
    if data:  # beside a script, of any size
        return FileInputError(str(file), "must be a readable UTF-8 text file", "zero bytes")
    content = read_bytes(file, _LARGEST)
    try:
        return decoded(content, str(file)).replace("\r", "\n")
    except FileInputError as error:
        return error


def config_among(paths: list[Path]) -> str | None:
    """The model's config.json among the files or in their folders."""
    named = [path / MODEL_CONFIG if path.is_dir() else path for path in paths]
    return next((str(path) for path in named if path.name == MODEL_CONFIG and path.is_file()), None)


def recognize(files: Mapping[str, str]) -> Framework:
    """The framework whose files these are. Raises `InputError`."""
    from planner.frameworks import framework, framework_names

    # Settings files say most about themselves, recipes more than plain arguments.
    order = ("maxtext", "nanotron", "accelerate", "deepspeed", "torchtitan", "megatron-bridge", "megatron")
    for name in (*order, *(n for n in framework_names() if n not in order)):
        candidate = framework(name)
        if any(candidate.recognizes(file, text) for file, text in files.items()):
            return candidate
    raise InputError(_MUST + ", ".join(framework_names()), ", ".join(files), _HOW)


def readable(files: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The files less those of launchers that planner does not read, and a note on each of these.

    Raises `InputError` where nothing else is given, or only what another launcher's script takes in: variables.
    """
    from planner.frameworks import framework_names
    from planner.frameworks.not_read import not_read
    from planner.frameworks.shell.script import holds_variables

    foreign = not_read(files)
    kept = {name: text for name, text in files.items() if name not in foreign}
    scripts = any(launcher.script for launcher in foreign.values())
    parts = scripts and all(holds_variables(name, text) for name, text in kept.items())
    if foreign and (not kept or parts):
        name, launcher = next(iter(foreign.items()))
        given = f"{name}, a file of {launcher.title}"
        given += f"; {', '.join(kept)} runs nothing by itself" if kept else ""
        raise InputError(_MUST + ", ".join(framework_names()), given, launcher.instead)
    return kept, [
        f"{name}, a file of {launcher.title}, is not read: nothing that it sets counts"
        for name, launcher in foreign.items()
    ]


def require_launch(files: Mapping[str, str], parsed: ParsedConfig, asked: Question) -> None:
    """Raise `InputError` for variables alone that say nothing of the batch: what launches with them sets the rest."""
    from planner.frameworks.shell.script import holds_variables

    if parsed.global_batch or parsed.seq_len or asked.global_batch:
        return
    if all(holds_variables(name, text) for name, text in files.items()):
        must = "a file that runs a program, or states its batch, must be given: these only set variables"
        hint = f"name the script that takes them in too, or add {option('global_batch', '512')}"
        raise InputError(must, ", ".join(files), hint)


def placed(parsed: ParsedConfig, cluster: str, gpus: int | None) -> ParsedConfig:
    """What the files say on the cluster, where they leave axes to the devices that there are, or name a number that
    `gpus` goes before. Raises `InputError`."""
    from planner.spec.machine.load_cluster import load_cluster

    if parsed.placed is None or (parsed.devices is not None and gpus in (None, parsed.devices)):
        return parsed
    hardware = load_cluster(cluster, gpus)
    return replace(parsed.placed(hardware.num_devices, hardware.scale_up_domain), devices=parsed.devices)


def newest_stack(framework: Framework, engine: EngineKind | None = None) -> str:
    """The newest shipped stack of a framework, with this engine where one has it; the default where none is of it."""
    from planner.catalog.load_stacks import DEFAULT_STACK, load_stack, stack_families, stacks_to_plan

    every = [load_stack(name) for name in stacks_to_plan()]
    kin = [stack for stack in every if engine is not None and stack.engine.kind is engine]
    if kin:
        return max(kin, key=lambda stack: stack.released).name
    return next((stack_families()[family] for family in framework.stacks), DEFAULT_STACK)


def as_the_framework_allows(problem: Problem, framework: Framework, stated: tuple[int, ...]) -> Problem:
    """The problem with every ZeRO stage that the framework has and, on its newest stack, context parallelism as far as
    its own rules go, not only what the stack was measured with, and with the layers of every chunk where the files
    state them."""
    from planner.catalog.stack_options import SEPARATOR
    from planner.spec.stack.kinds import ContextExchange

    stack, stages, limits = problem.stack, framework.zero_stages, problem.stack.limits
    newest = stack.name.split(SEPARATOR)[0] == newest_stack(framework)
    limits, comm = limits.model_copy(update={"zero": stages, "hybrid_sharding": stages}), stack.communication
    if newest and comm.cp_exchange is ContextExchange.NONE:
        comm = comm.model_copy(update={"cp_exchange": ContextExchange.RING})
    update = {"limits": limits, "communication": comm, "split": stated or stack.split}
    return replace(problem, stack=stack.model_copy(update=update))


def problem_of(
    parsed: ParsedConfig, framework: Framework, asked: Question, assumed: list[Finding] | None = None
) -> tuple[Problem, list[str]]:
    """Model, cluster, job and stack that files are checked against, and what was assumed; what the files say of the job
    counts, and the question where they don't. `assumed` gets what is of the job. Raises `InputError`."""
    from planner.ask.request import batches_of_run, job_of, named_precision
    from planner.catalog.load_operations import posed
    from planner.catalog.load_overlay import load_overlay
    from planner.catalog.load_stacks import require_release, stack_to_plan
    from planner.report.words import texts
    from planner.spec.load_model import load_model, unknown_model
    from planner.spec.machine.device_kernels import missing_kernels, require_recipe
    from planner.spec.machine.load_cluster import load_cluster
    from planner.spec.machine.topology import said_of_host
    from planner.spec.precision import Precision

    model, gpus = asked.model or None, asked.gpus
    if asked.mtp and model is None:
        hint = f"add {option('model')}, or leave {option('mtp')} to the files"
        raise InputError(f"{option('mtp')} needs a model that is named", "none", hint)
    spec = load_model(model, asked.mtp) if model is not None else parsed.model
    how = f"name the model with {option('model', 'NAME')} or a config.json"
    if spec is None and parsed.named:
        raise unknown_model(parsed.named, f"The files name it: {how}")
    if spec is None:
        must = f"the model must be known: these files, read as {framework.title}'s, do not describe it"
        if parsed.missing:
            must, how = f"the model must be known, and is but for {parsed.missing}", f"or {how}"
        raise InputError(must, f"no {option('model')}", how)
    said: list[str] = []
    if model is None and parsed.named:
        said.append(f"the model is taken as {spec.name}, by {parsed.named}; {option('model')} names another")
    devices = gpus if gpus is not None else parsed.devices
    if gpus is not None and parsed.devices is not None and gpus != parsed.devices:
        said.append(f"the files start {parsed.devices} processes, {option('gpus')} says {gpus}")
    try:
        hardware = load_cluster(asked.cluster, devices)
    except InputError as error:
        if gpus is None and devices is not None:  # nobody gave --gpus
            error.say_in(
                lambda name, value: (
                    _STARTED if (name, value) == ("gpus", "") else on_command_line(name, value)
                )
            )
            error.hint = "; ".join(filter(None, (error.hint, f"{option('gpus', 'N')} goes before the files")))
        raise
    seq_len = parsed.seq_len
    if seq_len is None:
        seq_len = min(spec.max_position or 8192, 8192)
        said.append(f"the files don't state a sequence length; assumed {seq_len:,}")
    batch = parsed.global_batch
    if batch is None:
        shards = max(parsed.axes.get("dp", hardware.num_devices // _product(parsed)), 1)
        batch = parsed.axes.get("micro_batch", 1) * shards * parsed.axes.get("num_microbatches", 1)
        said.append(f"the files don't state a global batch; assumed {batch:,} sequences")
    overlay = load_overlay(asked.calibration) if asked.calibration is not None else None
    name = asked.stack if asked.stack is not None else (overlay.stack if overlay else "") or None
    newest = parsed.stack or newest_stack(framework, parsed.engine)
    if (adapters := parsed.adapters) is not None:
        said.append(
            f"adapters of rank {adapters.rank} ({adapters.targets}) beside weights frozen in {adapters.frozen_bits} "
            "bits are trained" + (", none on experts" if spec.is_moe else "")
        )
    asked = _as_stated(asked, parsed, said)
    precision = Precision.BF16 if asked.precision is None else named_precision(asked.precision)
    options = (*(parsed.usual_options if name is None else ()), *parsed.stack_options)
    software = stack_to_plan(newest if name is None else name)
    if name is not None:
        _require_own(software, framework, stack_to_plan(newest))
    software = _with_options(software, options, parsed, said)
    require_recipe(software, hardware.accelerator, precision)
    require_release(software, precision)
    assumed = [] if assumed is None else assumed
    job = job_of(asked, seq_len, batch, precision, spec, software, assumed)
    job = replace(job, **batches_of_run(asked, seq_len, hardware.num_devices))
    said += texts(assumed)
    software = _with_settings(software, parsed, spec, said)
    if name != software.name:
        said.append(f"stack {software.name}")
    if overlay is not None:
        software, hardware = overlay.of_stack(software), overlay.of_cluster(hardware)
        said.append(f"calibrated with {overlay.said}")
    software = _with_kernels(software, parsed, said)
    said += texts(missing_kernels(software, spec, hardware.accelerator, job.precision))
    said += texts(said_of_host(hardware))
    return posed(spec, hardware, job, software), said


def _as_stated(asked: Question, parsed: ParsedConfig, said: list[str]) -> Question:
    """The question with what the files state of the job, which counts."""
    adapters = parsed.adapters
    stated: dict[str, Any] = {
        "precision": parsed.precision, "optimizer": parsed.optimizer,
        "bf16_layers": parsed.bf16_layers if any(parsed.bf16_layers) else None,
    }  # fmt: skip
    if adapters is not None:
        stated["lora_rank"], stated["lora_targets"] = adapters.rank, adapters.targets
        stated["frozen_bits"] = adapters.frozen_bits
    stated = {name: value for name, value in stated.items() if value is not None}
    counted = replace(asked, **stated)
    if parsed.balanced and asked.expert_loads is None:
        from planner.spec.load_loads import BALANCED

        counted = replace(counted, expert_loads=BALANCED)
    given, found, known = as_written(asked), as_written(counted), options_of(Question)
    said += [
        f"the files state {name} {found.get(name, known[name].default)}, {option(name)} says {given[name]}: "
        "the files count"
        for name in stated
        if name in given and given[name] != found.get(name)
    ]
    return counted


def _require_own(stack: Stack, framework: Framework, newest: Stack) -> None:
    """Raise `InputError` for a stack of software whose launch files are others."""
    from planner.catalog.load_stacks import load_stack, stacks_to_plan
    from planner.frameworks import framework_of_stack

    of = {*framework.stacks, newest.framework}
    if stack.framework not in of and framework_of_stack(stack.framework) is not None:
        names = [name for name in stacks_to_plan() if load_stack(name).framework in of]
        must = f"the stack must be one that runs {framework.title} files: {', '.join(names)}"
        hint = f"leave {option('stack')} out, or name one of these"
        raise InputError(must, f"{stack.name}, of {stack.framework}", hint)


def _with_options(stack: Stack, options: Sequence[str], parsed: ParsedConfig, said: list[str]) -> Stack:
    """The stack with those of its options, and the dispatcher of the files, that change it. What they contradict of a
    stack that the user named does not count."""
    from planner.catalog.stack_options import SEPARATOR, options_for, with_options

    known = {one.name: one for one in options_for(stack)}
    for name in [*options, *([parsed.dispatcher] if parsed.dispatcher else [])]:
        changed = with_options(stack, [name]) if name in known else stack
        if changed.model_copy(update={"name": stack.name}) == stack:
            continue
        base, *named = changed.name.split(SEPARATOR)
        against = [other for other in named if other != name and known[other].same_fields(known[name])]
        said += [
            f"the files say {name}, {option('stack')} says {other}: the files count"
            for other in against
            if other not in options
        ]
        kept = SEPARATOR.join([base, *(other for other in named if other not in against)])
        stack = changed.model_copy(update={"name": kept})
    return stack


def _with_settings(stack: Stack, parsed: ParsedConfig, spec: ModelSpec, said: list[str]) -> Stack:
    """The stack with those of its numbers that the files set. Raises `InputError` for one that no stack can have."""
    from pydantic import TypeAdapter, ValidationError

    for one in parsed.stack_settings:
        section = getattr(stack, one.section)
        if (field := type(section).model_fields.get(one.field)) is None:  # of another engine
            continue
        own, value = getattr(section, one.field), one.value
        if not isinstance(value, tuple):
            value = type(own)(value * spec.hidden**one.power)
        if value != own:
            bounded: Any = Annotated[field.annotation, field]
            try:
                TypeAdapter(bounded).validate_python(value)
            except ValidationError as error:
                must = f"{one.name} {field_must(error.errors()[0])}"
                raise InputError(must, _shown(value), "correct it in the files") from None
            stack = stack.model_copy(update={one.section: section.model_copy(update={one.field: value})})
            said.append(f"modelled with {one.name} {_shown(value)}")
    return stack


def _shown(value: float | tuple[float, ...]) -> str:
    """A number of a stack, true or false, or several numbers, as a note has it."""
    if isinstance(value, tuple):
        return " and ".join(dict.fromkeys(map(_shown, value)))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,.0f}" if value == int(value) else f"{value:,}"


def _with_kernels(stack: Stack, parsed: ParsedConfig, said: list[str]) -> Stack:
    """The stack with the loss, the dispatcher and the width of weights that the files ask for."""
    from planner.spec.stack.losses import Chunked

    kernels, communication = stack.kernels, stack.communication
    loss = kernels.loss
    if parsed.loss is not None:
        stated = {name: getattr(parsed.loss, name) for name in parsed.loss.model_fields_set}
        loss = loss.model_copy(update=stated) if loss.kind is parsed.loss.kind else parsed.loss
    if loss != kernels.loss:
        number = f" in {loss.number} parts" if isinstance(loss, Chunked) else ""
        said.append(
            f"modelled with the loss {loss.kind}{number}, as the files ask; the stack was measured without"
        )
        kernels = kernels.model_copy(update={"loss": loss})
    if parsed.dispatcher not in (None, communication.dispatcher):
        said.append(
            f"modelled with dispatcher {parsed.dispatcher}, as the files ask; the stack was measured without"
        )
        communication = communication.model_copy(update={"dispatcher": parsed.dispatcher})
    engine = _with_narrow_weights(stack.engine, parsed, said)
    return stack.model_copy(update={"kernels": kernels, "communication": communication, "engine": engine})


def _with_narrow_weights(engine: AnyEngine, parsed: ParsedConfig, said: list[str]) -> AnyEngine:
    """The engine with linear weights of an fp8 or fp4 recipe kept as the files ask."""
    from planner.spec.job import Optimizer
    from planner.spec.precision import Precision

    asked, precision = parsed.param_gather, parsed.precision
    if asked is None or precision is None:
        return engine
    if engine.casts_wide_shards:
        if asked:
            said.append(
                "modelled with linear weights cast to float8 before they are gathered, as the files ask"
            )
        return engine.keeping_narrow(precision, asked)
    optimizer = parsed.optimizer or Optimizer.ADAMW
    if engine.states_narrow() and asked == engine.keeps_narrow(precision, optimizer):
        return engine
    bits = 4 if precision is Precision.NVFP4 else 8
    kept = f"in {bits} bits" if asked else f"in 16 bits with {bits}-bit copies beside them"
    said.append(f"modelled with linear weights {kept}, as the files ask; the stack was measured otherwise")
    return engine.keeping_narrow(precision, asked)


def _product(parsed: ParsedConfig) -> int:
    return max(parsed.axes.get("tp", 1) * parsed.axes.get("cp", 1) * parsed.axes.get("pp", 1), 1)


def config_of(parsed: ParsedConfig, problem: Problem) -> ParallelConfig:
    """The configuration the files say, completed by the devices and the batch."""
    from planner.space.axes import stack_modules
    from planner.spec.config import AXES, OFFLOAD_OPTIMIZER, ParallelConfig, Recompute

    config = ParallelConfig(**{axis: value for axis, value in parsed.axes.items() if axis in AXES})
    windows = any(attention.window is not None for attention in problem.model.attentions)
    if windows and config.cp > 1 and "cp_kind" not in parsed.axes:
        config = replace(
            config, cp_kind=int(parsed.window_exchanges.get(problem.model.family, config.cp_kind))
        )
    if "dp" not in parsed.axes:
        config = replace(config, dp=max(problem.cluster.num_devices // _product(parsed), 1))
    if "num_microbatches" not in parsed.axes:
        count = problem.job.global_batch // max(config.dp * config.micro_batch, 1)
        config = replace(config, num_microbatches=max(count, 1))
    elif "micro_batch" not in parsed.axes:
        config = replace(
            config, micro_batch=max(problem.job.global_batch // (config.dp * config.num_microbatches), 1)
        )
    if config.recompute == Recompute.FULL and not config.recompute_layers:
        layers = -(-problem.model.num_layers // config.pp) // parsed.recompute_every
        config = replace(config, recompute=config.recompute if layers else 0, recompute_layers=layers)
    if config.recompute == Recompute.SELECTIVE and not config.recompute_modules:
        config = replace(config, recompute_modules=stack_modules(problem))
    if config.zero and config.dp * config.cp == 1 and not config.offload & OFFLOAD_OPTIMIZER:
        config = replace(config, zero=0)  # nothing to shard over
    if parsed.state_copies > 1:
        config = replace(config, hsdp=max(config.dp * config.cp // parsed.state_copies, 1))
    if config.cp == 1 or config.cp_kind == problem.context_kinds[0]:
        config = replace(config, cp_kind=0)
    config = config.in_usual_words()
    return config if problem.model.is_moe else replace(config, etp=1)
