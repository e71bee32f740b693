"""What does every training framework answer? Its versions, rules, options, rank order, and files both ways.

A framework is a value: plain functions gathered in a `Framework`. `Launch` is what all of them render from,
`ParsedConfig` what all of them read back. Left out: how a configuration is found or costed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from planner.catalog.load_stacks import is_shipped, load_stack
from planner.dialect import option
from planner.errors import InputError, UnknownNameError, UnsupportedError
from planner.frameworks.details import Details, read_details
from planner.frameworks.layout import ChunkLayers, chunk_layers
from planner.spec.config import ContextKind, ParallelConfig, Schedule
from planner.spec.dimensions import MOST_LAYERS
from planner.spec.job import Job, Optimizer
from planner.spec.machine.device_kernels import with_wide_heads
from planner.spec.machine.torus import Torus
from planner.spec.model import ModelSpec
from planner.spec.planfile import Choice, Plan
from planner.spec.planned_config import MOST
from planner.spec.precision import Precision
from planner.spec.rule import Problem, Rule, Violation, context_kinds_of
from planner.spec.stack import Stack
from planner.spec.stack.engines import EngineKind
from planner.spec.stack.kinds import Dispatcher
from planner.spec.stack.losses import AnyLoss

if TYPE_CHECKING:
    from planner.frameworks.adapters import Adapters

Files = dict[str, str]
# of a launch whose plan names no number of tokens; enough to compare its log with the prediction
TRIAL_STEPS: Final = 50


@dataclass(frozen=True)
class Expected:
    """What planner predicts, to compare with the first log lines [s], [tokens/s/device], [bytes].

    `stack`: name of the stack that it holds for, which may be of another framework than the files. `dryrun`: what a dry
    run says of it, in words; empty where there was none.
    """

    step_time: float
    step_time_low: float
    step_time_high: float
    tokens_per_second_per_device: float
    peak_memory: float
    logged_memory: float
    memory_limit: float
    stack: str = ""
    dryrun: str = ""


@dataclass(frozen=True)
class Launch:
    """One configuration to be launched, with everything its files need.

    `chunks`: layers of every pipeline chunk in pipeline order (chunk i lies on rank i mod pp).
    `stack`: what the prediction relies on; None where it is not known. `domain`: devices that the fast links join, of
    NVLink or a slice of TPUs; 0: those of a node. `torus`: that slice, where its devices are linked to their neighbours
    alone.
    """

    model: ModelSpec
    details: Details
    config: ParallelConfig
    job: Job
    devices: int
    devices_per_node: int
    accelerator: str
    chunks: ChunkLayers
    stack: Stack | None = None
    pad_vocabulary: int = 128
    expected: Expected | None = None
    domain: int = 0
    torus: Torus | None = None

    @property
    def nodes(self) -> int:
        """Hosts in use."""
        return -(-self.devices // self.devices_per_node)

    @property
    def devices_per_host(self) -> int:
        """Processes started on each host."""
        return min(self.devices, self.devices_per_node)

    @property
    def steps(self) -> int:
        """Optimizer steps of the run."""
        if self.job.tokens is None:
            return TRIAL_STEPS
        return max(int(-(-self.job.tokens // self.job.tokens_per_step)), 1)

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.config.schedule)

    @property
    def exchange(self) -> ContextKind:
        """What context parallelism exchanges by unasked."""
        kinds = self.model.context_kinds if self.stack is None else context_kinds_of(self.model, self.stack)
        return kinds[0]

    def stack_of(self, framework: str) -> Stack | None:
        """The stack where it is one of this framework, so that its kernels have names there."""
        return self.stack if self.stack is not None and self.stack.framework == framework else None


@dataclass(frozen=True)
class StackSetting:
    """A setting of the files that is a number of the stacks whose `section` has this field: `field` is `value` times
    the model's width to the power `power`, or both of two numbers."""

    name: str
    section: str
    field: str
    value: float | tuple[float, float]
    power: int = 0


@dataclass(frozen=True)
class ParsedConfig:
    """What a launcher's files say. Axes they don't state are absent from `axes`.

    `model`: the architecture, where they state all of it, or one that planner ships is `named` by a word of theirs,
    which may name one that it does not.
    `layers`: of every pipeline chunk, where stated; `violations`: what the program refuses of them.
    `unknown`: options that the framework's release does not have. `notes`: what was read but is not modelled, or
    what was taken where they are silent. `missing`: what keeps the model from being known, if it is nearly so.
    `loss`, `dispatcher`: where they ask for one by name. `param_gather`: whether an fp8 or fp4 recipe
    gathers linear weights in 8 or 4 bits (and, but for FSDP2, keeps them so); None where the files cannot say.
    `engine`: which holds parameters and gradients, where it is none that the framework's newest stack has.
    `stack_options`: of `catalog.stack_options`, by name; `usual_options`: what the framework does where neither the
    files nor the user, who may name a stack, say. `stack_settings`: numbers of the stack. `bf16_layers`: as
    `Job` has them. `stack`: the shipped one that they run on, where it is not the framework's newest.
    `window_exchanges`: what context parallelism exchanges by in families of models with windows, where nothing says.
    `recompute_every`: of how many layers of a pipeline rank one is recomputed, where full recomputation is stated so.
    `adapters`: what is trained beside a frozen model; None where all weights are. `placed(devices, domain)`: what they
    say on so many devices, of which so many are joined by the fast links, where they leave that to the cluster.
    `starts`: what their start refuses on a problem's devices, and notes, where that is known of them.
    `state_copies`: of what ZeRO shards, where the devices that share one depend on how many there are.
    `releases`: all that have every option stated, oldest first, where several were looked at.
    `balanced`: do they force routing to balance, or balance it by a bias?
    `connections`: CUDA_DEVICE_MAX_CONNECTIONS as they set it, "" where they don't, None where that is not known.
    """

    framework: str
    version: str
    axes: Mapping[str, int]
    releases: tuple[str, ...] = ()
    devices: int | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    precision: Precision | None = None
    model: ModelSpec | None = None
    named: str = ""
    layers: tuple[int, ...] = ()
    violations: tuple[Violation, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    optimizer: Optimizer | None = None
    missing: str = ""
    loss: AnyLoss | None = None
    dispatcher: Dispatcher | None = None
    param_gather: bool | None = None
    bf16_layers: tuple[int, int] = (0, 0)
    engine: EngineKind | None = None
    stack_options: tuple[str, ...] = ()
    usual_options: tuple[str, ...] = ()
    stack_settings: tuple[StackSetting, ...] = ()
    stack: str = ""
    recompute_every: int = 1
    window_exchanges: Mapping[str, ContextKind] = field(default_factory=dict)
    adapters: Adapters | None = None
    balanced: bool = False
    connections: str | None = None
    state_copies: int = 1
    starts: Callable[[Problem], tuple[tuple[Violation, ...], tuple[str, ...]]] | None = None
    placed: Callable[[int, int], ParsedConfig] | None = None

    def __post_init__(self) -> None:
        """Refuse what no table of configurations holds, products of what the files say too. Raises `InputError`."""
        said = {
            "devices": self.devices,
            "seq_len": self.seq_len,
            "global_batch": self.global_batch,
            **self.axes,
        }
        for name, value in said.items():
            if value is not None and value > MOST:
                raise InputError(f"{name} of the files must be at most {MOST:,}", str(value)[:40])
        if (vpp := self.axes.get("vpp", 1)) > MOST_LAYERS:
            raise InputError(f"vpp of the files must be at most {MOST_LAYERS:,}", str(vpp))


RankOrder = tuple[str, ...]


def _as_stated(
    parsed: ParsedConfig, config: ParallelConfig, problem: Problem
) -> tuple[tuple[Violation, ...], tuple[str, ...]]:
    return ((), ()) if parsed.starts is None else parsed.starts(problem)


@dataclass(frozen=True)
class Framework:
    """One training framework.

    `versions`: releases whose option tables ship with planner, oldest first.
    `rules`: beyond those of `planner.space.rules`, or in their place where the id is the same.
    `schedules`: pipeline schedules it can run. `splits`: how an uneven split is written ("" where it cannot be).
    `dense_order`, `expert_order`: axes of the rank grids, fastest first; empty where there is no such grid.
    `render(launch, version)`: its files by name; raises `UnsupportedError` naming what cannot be expressed.
    `parse(files)`: what its files say. `recognizes(name, text)`: whether a file is one of its own.
    `split_options`: options of a script that state a pipeline's split, of which a script has some and `render` writes
    others. `require_recipe`: raises `UnsupportedError` for a precision that none of its releases has under another
    name. `shards_all_by`: what holds gradients and weights where they are sharded, if that is not what its newest stack
    has. `usual_zero`: how far it shards where nothing is said.
    `starts_on`: what its start refuses on the problem's devices of what files say beside a configuration, and notes.
    `restated(files, launch)`: settings by dotted name that state a launch in each of a user's files, under "" what none
    of them states; None where they are those of the files that `render` writes.
    `balances`: does it keep experts balanced by a bias, whatever the model?
    """

    name: str
    title: str
    versions: tuple[str, ...]
    default_version: str
    rules: tuple[Rule, ...]
    schedules: tuple[Schedule, ...]
    zero_stages: tuple[int, ...]
    splits: str
    dense_order: RankOrder
    expert_order: RankOrder
    render: Callable[[Launch, str], Files]
    parse: Callable[[Mapping[str, str]], ParsedConfig]
    recognizes: Callable[[str, str], bool]
    split_options: tuple[str, ...] = ()
    require_recipe: Callable[[Precision], None] = lambda precision: None
    shards_all_by: EngineKind | None = None
    usual_zero: int = 1
    starts_on: Callable[
        [ParsedConfig, ParallelConfig, Problem], tuple[tuple[Violation, ...], tuple[str, ...]]
    ] = _as_stated
    restated: Callable[[Mapping[str, str], Launch], dict[str, dict[str, Any]]] | None = None
    balances: bool = False

    @property
    def stacks(self) -> tuple[str, ...]:
        """The `framework` of stack files that it stands for."""
        from planner.frameworks import stacks_of

        return stacks_of(self.name)

    def version(self, wanted: str | None) -> str:
        """The release to write for. Raises `UnknownNameError`."""
        if wanted is None:
            return self.default_version
        if wanted not in self.versions:
            raise UnknownNameError(f"release of {self.title}", wanted, self.versions)
        return wanted


def launch_of(
    plan: Plan, index: int, model: ModelSpec, stack: Stack | None = None, torus: Torus | None = None
) -> Launch:
    """The `index`-th configuration (from 0) of a plan, ready to be rendered; `stack`: the plan's, where it is none that
    planner ships; `torus`: of the plan's cluster, of which a plan keeps no links.

    Raises `InputError`; `NoConfigurationError`; `UnsupportedError` for a job that no framework's files state.
    """
    choice, subject = plan.choice(index), plan.subject
    config = choice.config.parallel()
    job = subject.job.job()
    _check_expressible(job)
    product = config.tp * config.cp * config.pp * config.dp
    if product != subject.cluster.devices:
        must = "tp x cp x pp x dp of a plan must be its number of devices"
        raise InputError(must, f"{product} and {subject.cluster.devices}", "make the plan again")
    if config.dp * config.micro_batch * config.num_microbatches != job.global_batch:
        must = "dp x micro-batch x micro-batches of a plan must be its global batch"
        given = f"{config.dp} x {config.micro_batch} x {config.num_microbatches} and {job.global_batch}"
        raise InputError(must, given, "make the plan again")
    return Launch(
        model=model,
        details=read_details(model),
        config=config,
        job=job,
        devices=subject.cluster.devices,
        devices_per_node=subject.cluster.devices_per_node,
        accelerator=subject.cluster.accelerator,
        chunks=chunk_layers(model.num_layers, config.pp, config.vpp, choice.layers_per_stage, choice.layout),
        expected=_expected(choice),
        stack=stack or _stack(choice.stack, model),
        domain=subject.cluster.scale_up_domain,
        torus=torus,
    )


def launch_in(
    problem: Problem, config: ParallelConfig, chunks: ChunkLayers = (), choice: Choice | None = None
) -> Launch:
    """A configuration of a problem, ready to be rendered: layers of its chunks as stated, else as a plan's `choice`
    deals them, else evenly. Raises `InputError`."""
    model, cluster = problem.model, problem.cluster
    dealt = ((), "") if choice is None else (choice.layers_per_stage, choice.layout)
    return Launch(
        model=model,
        details=read_details(model),
        config=config,
        job=problem.job,
        devices=cluster.num_devices,
        devices_per_node=cluster.devices_per_node,
        accelerator=cluster.accelerator.name,
        chunks=chunks or chunk_layers(model.num_layers, config.pp, config.vpp, *dealt),
        stack=problem.stack,
        domain=cluster.scale_up_domain,
        torus=cluster.tiers[0].torus,
    )


def _stack(name: str, model: ModelSpec) -> Stack:
    """The shipped stack of that name; a plan keeps the name alone. Raises `InputError`."""
    if not is_shipped(name):
        must = "the stack of the plan must be one that planner ships, or its file must be named"
        raise InputError(must, name, "planner export ... --stack FILE.yaml, or make the plan again")
    return with_wide_heads(load_stack(name), model)


def _expected(choice: Choice) -> Expected:
    return Expected(
        choice.step_time,
        choice.step_time_low,
        choice.step_time_high,
        choice.tokens_per_second_per_device,
        choice.memory.peak,
        choice.memory.logged,
        choice.memory.limit,
        choice.stack,
        "" if choice.dryrun is None else " ".join(choice.dryrun.text.split()),
    )


def _check_expressible(job: Job) -> None:
    """Raise `UnsupportedError` for what no framework's files state and what memory depends on."""
    if job.lora_rank is not None:
        raise UnsupportedError(
            "a job to export must train all weights: the files of no framework state adapters here, and without "
            "them the job needs more memory than the plan says",
            f"LoRA of rank {job.lora_rank}",
            f"write the plan's degrees into the framework's own LoRA recipe, or plan without {option('lora_rank')}",
        )
    if job.expert_replicas:
        raise UnsupportedError(
            "a job to export must hold every expert once: the files of no framework state replicas here, and without "
            "them the busiest rank needs more memory than the plan says",
            f"{job.expert_replicas} replicas",
            f"plan without {option('expert_replicas')}",
        )
