"""Which options do the verbs share? Each written once; those that make a job, as one dataclass a verb takes whole.

Of a verb with a parameter `job: JobOptions` the command line has every field of it as an option (`takes_job`). Left
out: what the verbs do with them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from planner.errors import InputError, UnitError
from planner.units import parse_length

if TYPE_CHECKING:
    from planner.ask.request import Request

MOST_TOKENS = 1e18  # of a run; the largest are some 1e14
LARGEST_COUNT = 10**9  # of tokens or sequences; above it a figure is a slip of the keyboard


def complete_model(incomplete: str) -> list[str]:
    """Models that a shell may complete this to."""
    from planner.spec.load_model import catalog_models

    return [name for name in catalog_models() if name.startswith(incomplete)]


def complete_cluster(incomplete: str) -> list[str]:
    """Clusters that a shell may complete this to."""
    from planner.spec.machine.load_cluster import cluster_names

    return [name for name in cluster_names() if name.startswith(incomplete)]


def complete_stack(incomplete: str) -> list[str]:
    """Stacks, and families of them, that a shell may complete this to."""
    from planner.catalog.load_stacks import stack_families, stacks_to_plan

    return sorted(name for name in {*stacks_to_plan(), *stack_families()} if name.startswith(incomplete))


def complete_without(incomplete: str) -> list[str]:
    """What a shell may complete this to behind --without."""
    from planner.space.without import known_names

    return [name for name in known_names() if name.startswith(incomplete)]


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Catalog name or listed Hugging Face ID (see planner model), config.json, its folder, or a YAML "
        "description.",
        autocompletion=complete_model,
    ),
]
ClusterArgument = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER",
        help='Cluster name, YAML file, or shorthand such as "64x8 h100 400G-ib" (64 nodes x 8, 400 Gbit/s per GPU).',
        autocompletion=complete_cluster,
    ),
]


def whole_number(text: str) -> int:
    """A count as typed. Raises `typer.BadParameter`, which says what was given, as not every typer does."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"must be a whole number, such as 4096, given {text!r}") from None


def sequence_length(text: str) -> int:
    """Tokens in a sequence as typed. Raises `typer.BadParameter`."""
    try:
        return parse_length(text, "it")
    except UnitError:
        raise typer.BadParameter(f"must be a whole number, such as 4096 or 8k, given {text!r}") from None


GpusOption = Annotated[
    int | None,
    typer.Option(parser=whole_number, metavar="<int>", help="Devices to use (default: the whole cluster)."),
]
SeqLenOption = Annotated[
    int | None,
    typer.Option(
        parser=sequence_length,
        metavar="<int>",
        help="Tokens in a sequence, 8k for 8192 (default: the model's context, at most 8192).",
    ),
]
BatchOption = Annotated[
    str | None,
    typer.Option(
        help="Sequences per step, or tokens with the suffix tok: 16Mtok (default: about 4M tokens)."
    ),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help="Number formats: bf16 (default), fp16, fp32, fp8, fp8_cs, fp8_mx, fp8_blockwise or nvfp4."
    ),
]
OptimizerOption = Annotated[
    str,
    typer.Option(
        help="Optimizer: adamw, adamw-bf16, adamw-8bit, ademamix, sgd, sgd-momentum, adafactor or muon."
    ),
]
StackOption = Annotated[
    str | None,
    typer.Option(
        help="Training software (default: megatron-2026), options after a +; see planner stacks NAME. Of a family, as "
        "torchtitan, the newest is taken. Several with commas between, or any, are searched and compared. On TPUs and "
        "Trainium the default is maxtext-2024.",
        autocompletion=complete_stack,
    ),
]
WithoutOption = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="NAME",
        help="Leave out of the search: an option of the stack such as deepep, cuda-graphs, offload, pipelines, or all "
        "that nobody named; repeatable.",
        autocompletion=complete_without,
    ),
]
TokensOption = Annotated[
    str | None, typer.Option(help="Tokens of the whole run, such as 15.6T: adds days, cost and energy.")
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="AXIS=V[,V...]",
        help="Fix or restrict settings: tp, cp, pp, dp, sp, ep, etp, vpp, schedule, micro_batch, zero, hsdp, "
        "recompute, recompute_layers, recompute_modules, offload, cp_kind, cuda_graph_impl or "
        "cuda_graph_modules, or one layout; repeatable.",
    ),
]
FASTEST: Final = "0"
ChoiceOption = Annotated[
    str,
    typer.Option(
        "--choice",
        metavar="INDEX",
        help="Index of the configuration: 0 is #1 of the plan's table; or: recommended.",
    ),
]
HeadroomOption = Annotated[str, typer.Option(help="Share of each device's memory to keep back.")]
MtpOption = Annotated[
    bool, typer.Option("--mtp", help="Also train the multi-token-prediction (MTP) modules.")
]
AssumeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--assume",
        metavar="KEY=VALUE",
        help="Change an assumption about the whole run, such as pue=1.3; repeatable.",
    ),
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE", help="Corrections by planner calibrate, for this cluster."),
]
ExpertLoadsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|zipf:A",
        help="Tokens per expert, file or zipf:A (default: balanced); the busiest rank sets the step time.",
    ),
]
ExpertReplicasOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="With --expert-loads: total expert replicas per layer (default: one per expert)."
    ),
]
Bf16LayersOption = Annotated[
    str | None,
    typer.Option(
        metavar="FIRST,LAST",
        help="Layers at either end that an 8- or 4-bit recipe keeps in bf16 (default: none).",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Also write the plan to this file.")
]
AnswerOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Also write the answer to this JSON file.")
]


@dataclass(frozen=True)
class JobOptions:
    """The options of every verb that predicts, in the order in which --help lists them."""

    seq_len: SeqLenOption = None
    global_batch: BatchOption = None
    precision: PrecisionOption = None
    optimizer: OptimizerOption = "adamw"
    stack: StackOption = None
    tokens: TokensOption = None
    settings: SettingsOption = None
    headroom: HeadroomOption = "5%"
    mtp: MtpOption = False
    assume: AssumeOption = None
    calibration: CalibrationOption = None
    expert_loads: ExpertLoadsOption = None
    expert_replicas: ExpertReplicasOption = None
    bf16_layers: Bf16LayersOption = None

    def request(self, model: str, cluster: str = "", gpus: int | None = None) -> Request:
        """The question these options ask. Raises `InputError`."""
        from planner.ask.request import Request
        from planner.space.restriction import parse_restriction, split_layout
        from planner.units import parse_count

        check_count("seq-len", self.seq_len)
        layout, settings = split_layout(self.settings or [])
        return Request(
            model=model,
            cluster=cluster,
            gpus=gpus,
            seq_len=self.seq_len,
            global_batch=self.global_batch,
            precision=self.precision,
            optimizer=self.optimizer,
            stack=self.stack,
            tokens=None if self.tokens is None else parse_count(self.tokens, "tokens", MOST_TOKENS),
            restrict=parse_restriction(settings),
            layout=layout,
            headroom=parse_headroom(self.headroom),
            with_mtp=self.mtp,
            assume=tuple(self.assume or ()),
            expert_loads=self.expert_loads,
            expert_replicas=self.expert_replicas,
            bf16_layers=self.bf16_layers,
            calibration=str(self.calibration) if self.calibration is not None else None,
        )


DEFAULT_JOB = JobOptions()
LoraRankOption = Annotated[
    int | None, typer.Option(help="Train LoRA adapters of this rank on a frozen model.")
]
FrozenBitsOption = Annotated[int, typer.Option(help="Bits of a frozen weight: 32, 16, 8 or 4.")]
LoraTargetsOption = Annotated[
    str | None,
    typer.Option(help="Layers with adapters: all-linear, attention or qkv.", show_default="all-linear"),
]
MeanLenOption = Annotated[
    float | None,
    typer.Option(help="Mean sequence length; --seq-len is then the maximum, padded per micro-batch."),
]
PackedOption = Annotated[
    bool,
    typer.Option("--packed", help="Pack sequences of --mean-len into ones of --seq-len, without padding."),
]


@dataclass(frozen=True)
class TuningOptions(JobOptions):
    """With adapters on a frozen model, sequences that are not all of one length, and what a search leaves out."""

    without: WithoutOption = None
    lora_rank: LoraRankOption = None
    frozen_bits: FrozenBitsOption = 16
    lora_targets: LoraTargetsOption = None
    mean_len: MeanLenOption = None
    packed: PackedOption = False

    def request(self, model: str, cluster: str = "", gpus: int | None = None) -> Request:
        """The question these options ask. Raises `InputError`."""
        if self.lora_targets is not None and self.lora_rank is None:
            raise InputError("--lora-targets needs adapters", self.lora_targets, "add --lora-rank 16, say")
        from planner.space.without import names_left_out

        asked = super().request(model, cluster, gpus)
        return replace(
            asked, without=names_left_out(self.without or ()), lora_rank=self.lora_rank,
            frozen_bits=self.frozen_bits, mean_len=self.mean_len,
            lora_targets=self.lora_targets or asked.lora_targets, packed=self.packed,
        )  # fmt: skip


DEFAULT_TUNING = TuningOptions()


def takes_job(verb: Callable[..., int]) -> Callable[..., int]:
    """Give a verb the fields of its parameter `job`, `JobOptions` or more, as options in its place, if it has one."""
    parameters = inspect.signature(verb).parameters
    if "job" not in parameters:
        return verb
    kind = type(parameters["job"].default)
    hints = get_type_hints(kind, include_extras=True)
    options = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in fields(kind)
    ]
    assert all(option.default is not MISSING for option in options), "an option has a default"
    given: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb, eval_str=True).parameters.values():
        keyword = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        given += options if parameter.name == "job" else [keyword]

    @functools.wraps(verb)
    def run(**values: Any) -> int:
        job = kind(**{option.name: values.pop(option.name) for option in options})
        return verb(job=job, **values)

    run.__signature__ = inspect.Signature(given, return_annotation=int)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in given} | {"return": int}
    return run


def parse_headroom(text: str, name: str = "headroom") -> float:
    """The fraction that "5%" or "0.05" stands for. Raises `InputError`."""
    number = text.strip().removesuffix("%").strip()
    try:
        fraction = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction < 1:
        raise InputError(f"{name} must be from 0% to below 100%", text, "write it like 5% or 0.05")
    return fraction


def check_count(option: str, value: int | None) -> None:
    """Refuse a count that is none. Raises `InputError`."""
    if value is not None and not 0 < value <= LARGEST_COUNT:
        must = f"--{option} must be a whole number from 1 to {LARGEST_COUNT:,}"
        raise InputError(must, str(value), f"write it like --{option} 4096")
