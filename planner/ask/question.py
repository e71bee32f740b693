"""Which options has a question? Each declared once, with its type, reader, default, help and place on the page.

Derived from here: options of the command line (`cli.options`), keywords of Python (`api`), keys of a sweep
(`load_sweep`), fields of the page (`cli.serve`), what a plan file keeps of its question (`option.as_written`), and the
tables of docs/options.md. An option more is a field more. Left out: what is made of the values (`request.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import EnumType
from os import PathLike
from typing import Any, Final

from planner.ask import readers as read
from planner.ask.option import Asked, Group, Label, Option, option
from planner.dialect import option as said

Name = str | PathLike[str]  # of a catalog, or a path
Names = str | Sequence[str]
Values = int | str | Sequence[int | str]
MOST_EFFORT: Final = 1000


def _listed(module: str, name: str) -> Callable[[], Iterable[Any]]:
    """What a function lists, or the members of an enumeration, of a module that is loaded when it is asked for."""

    def names() -> Any:
        from importlib import import_module

        found = getattr(import_module(f"planner.{module}"), name)
        return [*found] if isinstance(found, EnumType) else found()

    return names


# fmt: off
def model_named() -> Option[Any, str]:
    """The model, which every question has."""
    return Option(
        read.NAME, Group.SUBJECT,
        "Catalog name or listed Hugging Face ID (see planner model), config.json, its folder, or a YAML description.",
        default="", required=True, metavar="MODEL", names=_listed("spec.load_model", "catalog_models"),
        label=Label(wide=True, first=True))


def cluster_named() -> Option[Any, str]:
    """The cluster, of a question about one."""
    return Option(
        read.NAME, Group.SUBJECT,
        'Cluster, device, cloud machine, YAML file, or shorthand such as "64x8 h100 400G-ib" (64 nodes x 8, 400 Gbit/s '
        'per GPU) or "2x RTX 4090".',
        default="", required=True, metavar="CLUSTER", names=_listed("spec.machine.load_cluster", "names_of_clusters"),
        label=Label(wide=True, first=True))


def run_dry(text: str) -> Option[bool, bool]:
    """Whether the training step is run without a device, of a question about configurations."""
    return option(read.SWITCH, Group.SEARCH, f"{text} (needs PyTorch and transformers).", default=False)


def allocator_settings() -> Option[str, str]:
    """How PyTorch's allocator is set up, of a question whose step may be run without a device."""
    return option(
        read.TEXT, Group.MEMORY,
        "PYTORCH_CUDA_ALLOC_CONF of the run, such as expandable_segments:True; of a dry run alone.", default="")


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class Options(Asked):
    """What every question may say of the job, the software, the settings left open and the run."""

    seq_len: Option[int | str, int | None] = option(
        read.LENGTH, Group.JOB, "Tokens in a sequence, 8k for 8192 (default: the model's context, at most 8192).",
        unit="tokens", label=Label("sequence", "8192", first=True))
    global_batch: Option[int | str, str | None] = option(
        read.BATCH, Group.JOB, "Sequences per step, or tokens with the suffix tok: 16Mtok (default: about 4M tokens).",
        unit="sequences", label=Label("batch", "4Mtok", first=True))
    precision: Option[str, str | None] = option(
        read.TEXT, Group.JOB,
        "Number formats: bf16 (default), fp16, fp32, fp8, fp8_cs, fp8_mx, fp8_blockwise or nvfp4.",
        names=_listed("spec.precision", "Precision"), label=Label(empty="as usual", first=True))
    optimizer: Option[str, str] = option(
        read.TEXT, Group.JOB,
        "Optimizer: adamw, adamw-bf16, adamw-8bit, ademamix, sgd, sgd-momentum, adafactor or muon.",
        default="adamw", names=_listed("spec.job", "Optimizer"))
    mean_len: Option[float | str, float | None] = option(
        read.MEAN_LENGTH, Group.JOB,
        f"Mean sequence length; {said('seq_len')} is then the maximum, padded per micro-batch.",
        unit="tokens", label=Label("mean length"))
    packed: Option[bool, bool] = option(
        read.SWITCH, Group.JOB,
        f"Pack sequences of {said('mean_len')} into ones of {said('seq_len')}, without padding.", default=False)
    mtp: Option[bool, bool] = option(
        read.SWITCH, Group.JOB, "Also train the multi-token-prediction (MTP) modules.", default=False,
        label=Label("MTP"))
    lora_rank: Option[int, int | None] = option(
        read.whole(0, 10**12, "16"), Group.METHOD, "Train LoRA adapters of this rank on a frozen model.",
        label=Label("LoRA rank"))
    lora_targets: Option[str, str | None] = option(
        read.TEXT, Group.METHOD, "Layers with adapters: all-linear (default), attention or qkv.",
        names=_listed("spec.job", "AdapterTargets"), label=Label("LoRA targets"))
    frozen_bits: Option[int, int] = option(
        read.whole(example="4"), Group.METHOD, "Bits of a frozen weight: 32, 16, 8 or 4.", default=16, unit="bits")
    stack: Option[Name, str | None] = option(
        read.NAME, Group.STACK,
        "Training software (default: megatron-2026), options after a +; see planner stacks NAME. Of a family, as "
        "torchtitan, the newest is taken. Several with commas between, or any, are searched and compared. On TPUs and "
        "Trainium the default is maxtext-2024.",
        names=_listed("catalog.several_stacks", "names_to_ask_for"),
        label=Label("software", "megatron-2026", True, True))
    bf16_layers: Option[str | tuple[int, int], tuple[int, int] | None] = option(
        read.PAIR, Group.STACK, "Layers at either end that an 8- or 4-bit recipe keeps in bf16 (default: none).",
        unit="layers", label=Label("bf16 layers", "1,1"))
    set: Option[Mapping[str, Values] | Names | read.Settings, read.Settings] = option(
        read.SETTINGS, Group.SETTINGS,
        "Fix or restrict settings: tp, cp, pp, dp, sp, ep, etp, vpp, schedule, micro_batch, zero, hsdp, recompute, "
        "recompute_layers, recompute_modules, offload, cp_kind, cuda_graph_impl or cuda_graph_modules, or one layout; "
        "repeatable.",
        default=read.Settings(), label=Label("only", "tp=8 pp=4,8", True, True))
    without: Option[Names, tuple[str, ...]] = option(
        read.LEFT_OUT, Group.SETTINGS,
        "Leave out of the search: an option of the stack such as deepep, cuda-graphs, offload, pipelines, or all that "
        "nobody named; repeatable.",
        default=(), names=_listed("space.without", "known_names"), label=Label(empty="deepep", first=True))
    headroom: Option[float | str, float] = option(
        read.SHARE, Group.MEMORY, "Share of each device's memory to keep back.", default=0.05)
    min_free: Option[str, float | None] = option(
        read.CAPACITY, Group.MEMORY,
        f"Memory to keep back on every device, such as 4GiB, where {said('headroom')} is less.",
        unit="bytes", label=Label("min free", "4 GiB"))
    tokens: Option[float | str, float | None] = option(
        read.TOKENS, Group.RUN, "Tokens of the whole run, such as 15.6T: adds days, cost and energy.", unit="tokens",
        label=Label(empty="of the run", first=True))
    critical_batch: Option[float | str, float | None] = option(
        read.STEP_TOKENS, Group.RUN,
        "Batch that takes twice the fewest tokens to a loss, such as 8Mtok (default: by published fits); with "
        f"{said('tokens')}, larger ones take more.", unit="tokens", label=Label("critical batch", "8Mtok"))
    batch_schedule: Option[Names, tuple[tuple[str, float], ...]] = option(
        read.BATCH_STAGES, Group.RUN,
        "Smaller batches at the start of the run, each with the tokens at which it ends: 4Mtok:252M,8Mtok:2.87T.",
        default=(), label=Label("batch schedule", "4Mtok:252M"))
    assume: Option[Mapping[str, str | float] | Names, tuple[str, ...]] = option(
        read.ASSUMED, Group.RUN, "Change an assumption about the whole run, such as pue=1.3; repeatable.", default=(),
        label=Label(empty="pue=1.3; price=2.50 $/h", wide=True))
    calibration: Option[Name, str | None] = option(
        read.FILE, Group.MEASURED, "Corrections by planner calibrate, for this cluster.")
    expert_loads: Option[Name, str | None] = option(
        read.NAME, Group.MEASURED,
        "How unevenly experts get tokens: balanced, zipf:A (falling by index) or a file of loads (default: as training "
        "balances them). The busiest rank sets time and memory.",
        metavar="balanced|zipf:A|FILE", label=Label("expert loads", "zipf:0.6"))
    expert_replicas: Option[int, int | None] = option(
        read.whole(0, 10**12), Group.MEASURED,
        f"With {said('expert_loads')}: total expert replicas per layer, placed as evenly as can be (default: one per "
        "expert, placed by index).",
        unit="experts")  # the model knows how many at least and at most

    @property
    def restrict(self) -> Mapping[str, tuple[int, ...]]:
        """Axis -> values that `set` leaves to it, in codes."""
        return self.set.axes

    @property
    def layout(self) -> str:
        """Of an estimate: layers of every (virtual) stage, "Et*3|t*4|tttL" or "3,4,3"; "" for none."""
        return self.set.layout


@dataclass(repr=False, eq=False)
class Question(Options):
    """A question about one model on one cluster."""

    model: Option[Name, str] = model_named()
    cluster: Option[Name, str] = cluster_named()
    gpus: Option[int, int | None] = option(
        read.whole(), Group.GOAL, "Devices to use (default: the whole cluster).",
        label=Label("GPUs", "all", first=True))


@dataclass(kw_only=True, repr=False, eq=False)
class EstimateQuestion(Question):
    """A question about one named configuration, with the option of that alone."""

    dryrun: Option[bool, bool] = run_dry("Also run the training step without a device, and say whether both agree")
    alloc_conf: Option[str, str] = allocator_settings()


@dataclass(kw_only=True, repr=False, eq=False)
class DryrunQuestion(Question):
    """A question for a dry run, with what it alone knows: no estimate is made of these."""

    stack: Option[Name, str | None] = option(
        read.NAME, Group.STACK,
        "Training software (default: transformers-2026), options after a +; see planner stacks NAME.",
        names=_listed("catalog.several_stacks", "names_to_ask_for"))
    headroom: Option[float | str, float] = option(
        read.SHARE, Group.MEMORY, "Share of each device's memory to keep back.", default=0.0)
    alloc_conf: Option[str, str] = allocator_settings()
    use_dora: Option[bool, bool] = option(
        read.SWITCH, Group.METHOD, "Weight-decomposed adapters (DoRA), as peft's LoraConfig has them.", default=False)
    lora_dropout: Option[float | str, float] = option(
        read.SHARE, Group.METHOD, "Share of what enters an adapter that is dropped.", default=0.0)
    method: Option[str, str] = option(
        read.TEXT, Group.METHOD,
        "What is trained for: sft, the next token (default); dpo or grpo, losses of trl with passes of the reference "
        "and old policy. With dpo each sequence of a batch is a pair of texts.",
        default="sft", names=lambda: ("sft", "dpo", "grpo"))
    completion_len: Option[int | str, int | None] = option(
        read.LENGTH, Group.METHOD,
        "Tokens of a text behind its prompt, with dpo and grpo (default: all but one, which takes most memory).",
        unit="tokens")
    beta: Option[float, float | None] = option(
        read.number(), Group.METHOD,
        "Weight of the divergence from the reference model (default: that of trl, 0.1 with dpo, none with grpo).")
    num_iterations: Option[int, int] = option(
        read.whole(example="2"), Group.METHOD,
        "With grpo, steps on the same completions; above 1 their old policy is run too.", default=1)
    largest: Option[bool, bool] = option(
        read.SWITCH, Group.SEARCH, "Also find the largest micro-batch that runs.", default=False)
    longest: Option[bool, bool] = option(
        read.SWITCH, Group.SEARCH, "Also find the longest sequence that runs.", default=False)
    use_reentrant: Option[bool, bool] = option(
        read.SWITCH, Group.METHOD, f"With {said('set', 'recompute=full')}: PyTorch's older way of checkpointing.",
        default=False)


@dataclass(kw_only=True, repr=False, eq=False)
class SearchQuestion(Question):
    """A question for a search, with the options of a search alone."""

    objective: Option[str, str] = option(
        read.TEXT, Group.SEARCH,
        f"Minimize step_time; or cost, energy or gpus (may use fewer than {said('gpus')}); or maximize headroom.",
        default="step_time")
    time_limit: Option[float, float | None] = option(
        read.number(), Group.SEARCH,
        "Stop searching after this many seconds and report the best so far (finishing takes a few more).",
        unit="seconds")
    effort: Option[float, float] = option(
        read.number(most=MOST_EFFORT), Group.SEARCH,
        "Times as much work on pipeline layouts as by default: closes gaps of the proof.", default=1.0)
    borderline: Option[bool, bool] = option(
        read.SWITCH, Group.SEARCH, "Also accept borderline memory if at least 2 % faster.", default=False)
    top: Option[int, int] = option(
        read.whole(example="10"), Group.SEARCH, "How many configurations to show.", default=10)
    dryrun: Option[bool, bool] = run_dry(
        "Confirm what is recommended by running its training step without a device; recommend what it confirms")
    alloc_conf: Option[str, str] = allocator_settings()


@dataclass(kw_only=True, repr=False, eq=False)
class Request(SearchQuestion):
    """A question as planner itself asks it.

    `front`: also step time against memory; without it an answer comes sooner. `thorough`: else splits are solved with
    less effort and nothing is advised, for one of many answers. `seek_batch`: also advise on a batch that would make it
    faster, and on spare nodes. `options`: of the stack, beyond those named: what a search turned on.
    """

    front: bool = True
    thorough: bool = True
    seek_batch: bool = True
    options: tuple[str, ...] = ()


@dataclass(repr=False, eq=False)
class ComparisonQuestion(Options):
    """A question about one model on several clusters."""

    model: Option[Name, str] = model_named()
    clusters: Option[Sequence[Name], tuple[str, ...]] = Option(
        read.NAMES, Group.GOAL, "Clusters, with commas between; repeatable.", default=(), required=True)
    _: KW_ONLY
    gpus: Option[int | Sequence[int], tuple[int, ...]] = option(
        read.COUNTS, Group.GOAL, "GPUs per cluster: one number for all, or one each (default: whole clusters).",
        default=())
    objective: Option[str, str] = option(
        read.TEXT, Group.SEARCH, "What to order by: step_time, days, cost or energy.", default="step_time")


@dataclass(repr=False, eq=False)
class SizeQuestion(Options):
    """A question about the size of a cluster."""

    model: Option[Name, str] = model_named()
    cluster: Option[Name, str] = cluster_named()
    _: KW_ONLY
    days: Option[float | str, float | None] = option(
        read.DAYS, Group.GOAL, "Fewest GPUs that end within D days.", unit="days")
    budget: Option[float | str, float | None] = option(
        read.DOLLARS, Group.GOAL, "Fastest within a budget, such as 5M.", unit="dollars")
    min: Option[bool, bool] = option(read.SWITCH, Group.GOAL, "Fewest GPUs that fit at all.", default=False)
    max_gpus: Option[int, int | None] = option(
        read.whole(), Group.GOAL, "Largest size to try (default: all; 131,072 of a node type).")
    spare_nodes: Option[int | str, str | None] = option(
        read.BATCH, Group.GOAL, "Spare nodes to reserve and pay for, or 'enough'.", metavar="N")
