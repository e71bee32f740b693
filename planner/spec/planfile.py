"""What is in a plan? The answer to one question, as a file that reports, launch files and other tools read.

Numbers are in planner's inner units (seconds, bytes, FLOP, FLOP/s, fractions of 1); every field says which.
Readable twins ("41.2 GiB") belong to the report. Left out: how a plan is found, and how it is drawn.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from planner import __version__
from planner.dialect import option
from planner.errors import InputError, NoConfigurationError
from planner.spec.config import SCHEDULE_LABELS, Schedule
from planner.spec.findings import Finding, Findings, Said
from planner.spec.planned_config import PlannedConfig
from planner.spec.record import Record
from planner.spec.subject import Subject
from planner.spec.tried import Held, StackStanding, TurnedOn
from planner.spec.verdict import MemoryRoom, MemoryVerdict

SCHEMA_VERSION: Final = 2
EMPTY_CHUNKS: Final = 4  # of a pipeline at most: embedding, loss and what nanotron deals to no rank
RECOMMENDED: Final = "recommended"  # names a plan's choice beside its index
OWNED: Final = "owned hardware"  # the source of a price
CLOSED_GAP: Final = 1e-4  # of the step time: what is no more apart is as fast
_SUM_TOLERANCE: Final = 1e-6  # share of a total that rounding may lose when its terms are added up


class Verdict(StrEnum):
    """How the question ended. The first is a success; the others are results, not errors."""

    FOUND = "found"
    NOTHING_FITS = "nothing_fits"
    NOTHING_LEGAL = "nothing_legal"
    DOES_NOT_FIT = "does_not_fit"
    ILLEGAL = "illegal"


class CalibrationLevel(StrEnum):
    """What a prediction was calibrated on."""

    L0 = "L0"  # data sheets only
    L1 = "L1"  # public runs of the same stack
    L2 = "L2"  # a GEMM or NCCL probe of the user's cluster
    L3 = "L3"  # one measured step


class Objective(StrEnum):
    """What the best configuration has least of; ties by step time, then by memory, then by the order of the space. Of
    headroom it is the fastest within `solve.pareto.NEAR_MOST_ROOM` of the most. Step time and headroom choose a
    configuration of the devices asked for; the others choose how many of them to use as well."""

    STEP_TIME = "step_time"
    HEADROOM = "headroom"
    COST = "cost"
    ENERGY = "energy"
    GPUS = "gpus"


CHOOSES_SIZE: Final = (Objective.COST, Objective.ENERGY, Objective.GPUS)


class Ending(StrEnum):
    """Why a search ended. Only the first proves its answer."""

    COMPLETE = "complete"
    TIME_LIMIT = "time limit"
    INTERRUPTED = "interrupted"


class StageMemory(Record):
    """The peak of one pipeline rank, or of several equal ones."""

    stages: str = Field(description='pipeline ranks, as "0" or "1-14"')
    layers: int = Field(ge=0, description="layers that each of these ranks holds [1]")
    peak: float = Field(ge=0, description="largest memory over the phases of a step [bytes]")
    phase: str = Field(description="the phase in which the peak occurs")
    terms: dict[str, float] = Field(default_factory=dict, description="part -> bytes in that phase [bytes]")


class Memory(Record):
    """Peak memory of the device that needs most: the binding stage in its binding phase."""

    peak: float = Field(
        ge=0,
        description="what the device must hold at once, the sum of `terms`: free blocks that PyTorch returns when "
        "memory is short are left out [bytes]",
    )
    stage: int = Field(ge=0, description="the binding pipeline rank [1]")
    stages: int = Field(ge=1, description="pipeline ranks [1]")
    phase: str = Field(description="the binding phase of a step")
    capacity: float | None = Field(None, gt=0, description="what the device has; not in older files [bytes]")
    limit: float = Field(gt=0, description="what may be used: capacity less the headroom asked for [bytes]")
    error: float | None = Field(
        None, ge=0, lt=1, description="of the memory model on runs it never saw; not in older files [1]"
    )
    verdict: MemoryVerdict = Field(
        description="fits, borderline or does_not_fit, as spec.verdict.MemoryRoom has it; and on its host"
    )
    logged: float = Field(
        ge=0, description="the peak that this stack's log line shows; may exceed `peak` [bytes]"
    )
    terms: dict[str, float] = Field(description="part -> bytes, of the binding stage and phase [bytes]")
    per_stage: tuple[StageMemory, ...] = ()
    host: dict[str, float] = Field(
        default_factory=dict, description="part -> host memory that a node needs for it [bytes]"
    )
    host_limit: float | None = Field(
        None, gt=0, description="what a node's host has; none where the cluster does not say it [bytes]"
    )

    @property
    def free(self) -> float:
        """What of `limit` the peak leaves; negative where it leaves none [bytes]."""
        return self.limit - self.peak

    @property
    def kept_back(self) -> float:
        """What of the device lies beyond `limit`; 0 where the capacity is not known [bytes]."""
        return 0.0 if self.capacity is None else self.capacity - self.limit

    @property
    def host_short(self) -> float:
        """Host memory that a node has too little of; 0 where it is not known [bytes]."""
        return 0.0 if self.host_limit is None else max(sum(self.host.values()) - self.host_limit, 0.0)

    @property
    def host_values(self) -> dict[str, float]:
        """What takes host memory of a node, by the names that findings have for it [bytes]."""
        return {f"host_{name.replace(' ', '_')}": size for name, size in self.host.items()}

    @model_validator(mode="after")
    def _terms_add_up(self) -> Self:
        _check_sum("memory.terms", self.terms, "memory.peak", self.peak)
        return self

    @model_validator(mode="after")
    def _verdict_follows(self) -> Self:
        if self.capacity is None or self.error is None:
            return self
        said = MemoryRoom(self.capacity, self.limit, self.error).verdict(self.peak)
        if self.verdict is not (MemoryVerdict.DOES_NOT_FIT if self.host_short else said):
            raise ValueError(f"memory.verdict must follow from peak, limit and error: {said}")
        return self


class Run(Record):
    """What the whole run takes: `steps`, `days`, `gpu_hours` without interruptions, all others with them."""

    steps: float = Field(gt=0, description="optimizer steps [1]")
    days: float = Field(gt=0, description="wall-clock time without an interruption [days]")
    gpu_hours: float = Field(gt=0, description="device-hours without an interruption [h]")
    price_per_device_hour: float | None = Field(None, ge=0, description="price of a device [US dollars/h]")
    cost: float | None = Field(None, ge=0, description="price of the run: of `held_gpu_hours` [US dollars]")
    price_source: str = Field("", description="where the price comes from")
    list_price: bool = Field(False, description="the price is a list price, for want of the cluster's own")
    market_price_low: float | None = Field(
        None, ge=0, description="beside a list price, the least that others ask [US dollars/h]"
    )
    market_price_high: float | None = Field(None, ge=0, description="the most [US dollars/h]")
    market_date: str = Field("", description="when they asked it")
    tokens: float | None = Field(
        None,
        gt=0,
        description="trained: those stated, and more where the batch costs some for the same loss [1]",
    )
    tokens_least: float | None = Field(
        None, gt=0, description="at the largest critical batch that a fit gives [1]"
    )
    tokens_most: float | None = Field(None, gt=0, description="at the least [1]")
    batch: Finding | None = Field(None, description="where the batch lies beside the critical one")
    goodput: float | None = Field(None, gt=0, le=1, description="share of the wall clock that counts [1]")
    lost: dict[str, float] = Field(default_factory=dict, description="what takes the rest of it [1]")
    effective_days: float | None = Field(
        None, gt=0, description="wall-clock time, interruptions included [days]"
    )
    held_gpu_hours: float | None = Field(
        None, gt=0, description="device-hours held, interruptions and spare nodes included [h]"
    )
    spare_nodes: int = Field(0, ge=0, description="nodes held beside the job [1]")
    spare_nodes_needed: int | None = Field(
        None, ge=0, description="spares that are all in repair 1 % of the time at most [1]"
    )
    time_between_stops: float | None = Field(None, gt=0, description="mean time between interruptions [s]")
    time_between_stops_low: float | None = Field(
        None, gt=0, description="at the largest rates that sources give [s]"
    )
    time_between_stops_high: float | None = Field(None, gt=0, description="at the least [s]")
    restart_time: float | None = Field(
        None, ge=0, description="from an interruption to the first new step [s]"
    )
    checkpoint_interval: float | None = Field(None, gt=0, description="training between checkpoints [s]")
    checkpoint_stall: float | None = Field(None, ge=0, description="training waits for a checkpoint [s]")
    checkpoint_write: float | None = Field(None, ge=0, description="until a checkpoint is in storage [s]")
    checkpoint_size: float | None = Field(None, gt=0, description="full state [bytes]")
    weights_size: float | None = Field(None, gt=0, description="weights alone [bytes]")
    storage: float | None = Field(None, gt=0, description="checkpoints kept at the end of the run [bytes]")
    power_per_device: float | None = Field(None, gt=0, description="average draw, share of the node [W]")
    power_source: str = Field("", description="where the power comes from")
    energy: float | None = Field(
        None, gt=0, description="energy of the run, the site's overhead included [J]"
    )
    emissions: float | None = Field(None, ge=0, description="carbon dioxide, location-based [kg]")
    owned_price_per_device_hour: float | None = Field(
        None, ge=0, description="what an hour of one's own device costs [US dollars/h]"
    )
    break_even: float | None = Field(
        None, gt=0, description="use after which owning is cheaper than renting; absent: never [s]"
    )

    @model_validator(mode="after")
    def _shares_add_up(self) -> Self:
        if self.goodput is not None:
            _check_sum("run.lost and run.goodput", {"goodput": self.goodput, **self.lost}, "1", 1.0)
        return self


class SplitFacts(Record):
    """How the layers of a configuration were dealt to its pipeline."""

    layers_per_chunk: tuple[int, ...] = Field(description="layers of every virtual stage, in order [1]")
    own_step_time: float | None = Field(
        None, gt=0, description="of the stack's own split, absent where that does not fit [s]"
    )
    even_step_time: float | None = Field(
        None, gt=0, description="of the split as even as it goes, absent where there is none [s]"
    )
    bound: float = Field(ge=0, description="step time that no split of this configuration beats [s]")
    gap: float = Field(ge=0, le=1, description="(step time - bound) / step time; 0: proven best [1]")
    note: Findings = Field((), description="what the framework could not be told, if that would be faster")
    stated: bool = Field(False, description="given by the user, not solved: nothing is proven")


class Choice(Record):
    """One configuration with everything predicted about it."""

    config: PlannedConfig
    stack: str = Field("", description="training software with its options; a plan fills in its subject's")
    step_time: float = Field(gt=0, description="time of one optimizer step, the sum of `time` [s]")
    step_time_low: float = Field(gt=0, description="lower end of the earned band [s]")
    step_time_high: float = Field(gt=0, description="upper end of the earned band [s]")
    tokens_per_second_per_device: float = Field(gt=0, description="throughput [tokens/s/device]")
    flops_per_device: float = Field(gt=0, description="model FLOP/s under `mfu_convention` [FLOP/s/device]")
    mfu: float = Field(gt=0, description="`flops_per_device` over `peak_flops` [1]")
    mfu_convention: Said = Field(description="which FLOPs are counted")
    peak_flops: float = Field(gt=0, description="dense peak of the device in the job's format [FLOP/s]")
    time: dict[str, float] = Field(description="exposed part -> seconds of one step [s]")
    memory: Memory
    layers_per_stage: tuple[int, ...] = Field((), description="layers of each pipeline rank [1]")
    layout: str = Field("", description="how layers are assigned to pipeline ranks, if not evenly")
    split: SplitFacts | None = Field(None, description="absent where the split was not solved")
    run: Run | None = None
    why: tuple[Said, ...] = Field((), description="what was decided by what")
    dryrun: Finding | None = Field(
        None, description="what a dry run of it says; absent where none was asked for"
    )

    @model_validator(mode="after")
    def _terms_add_up(self) -> Self:
        _check_sum("time", self.time, "step_time", self.step_time)
        return self

    @model_validator(mode="after")
    def _every_stage_has_its_layers(self) -> Self:
        pp, chunks = self.config.pp, self.config.pp * self.config.vpp
        if self.layers_per_stage and len(self.layers_per_stage) != pp:
            raise ValueError(f"layers_per_stage must have pp = {pp} parts, not {len(self.layers_per_stage)}")
        dealt = self.split.layers_per_chunk if self.split is not None else ()
        if self.split is not None and len(dealt) != chunks:
            raise ValueError(f"split.layers_per_chunk must have pp x vpp = {chunks} parts, not {len(dealt)}")
        return self


class BrokenRule(Record):
    """One rule that the named configuration breaks."""

    rule: str
    reason: str
    hint: str


class RemovedBy(Record):
    """How many candidates a rule removed."""

    rule: str
    candidates: int = Field(ge=0, description="candidates that this rule was the first to remove [1]")


class Certificate(Record):
    """What is proven about the best configuration: every other candidate was removed by a rule, by memory, by a lower
    bound of its step time, or was costed."""

    objective: Objective
    compared: Findings = Field(description="what the candidates were compared by")
    candidates: int = Field(ge=0, description="the whole space asked about [1]")
    by_rule: int = Field(ge=0, description="removed because a rule forbids them [1]")
    by_memory: int = Field(ge=0, description="removed because they do not fit, by a bound or evaluated [1]")
    by_bound: int = Field(ge=0, description="not evaluated: no bound of theirs beats the answer [1]")
    costed: int = Field(ge=0, description="memory and time computed by the cost model's equations [1]")
    solved: int = Field(ge=0, description="evaluated again with their pipelines simulated [1]")
    splits_solved: int = Field(0, ge=0, description="of these, those whose split a solver decided [1]")
    split_bound: float | None = Field(
        None, description="step time that no split of the simulated ones beats [s]"
    )
    outside: int = Field(
        0, ge=0, description="configurations whose layouts, but for the stack's own, nobody looked at [1]"
    )
    outside_bound: float | None = Field(None, description="step time that no layout of these beats [s]")
    best: float | None = Field(None, description="what the best has of the objective, in inner units")
    bound: float | None = Field(None, description="what no candidate can beat, in the same unit")
    gap: float | None = Field(None, ge=0, description="(best - bound) / best; 0: proven best [1]")
    ending: Ending = Ending.COMPLETE
    seconds: float = Field(ge=0, description="time from the question to the proof [s]")
    held: tuple[Held, ...] = Field((), description="what the program, not the user, holds fixed")


class ParetoPoint(Record):
    """A configuration that no other is both as fast and as small as."""

    config: PlannedConfig
    step_time_s: float = Field(gt=0, description="time of one optimizer step [s]")
    peak_mem_gib: float = Field(gt=0, description="memory of the device that needs most [GiB]")
    headroom_gib: float = Field(ge=0, description="what of the usable memory it leaves [GiB]")
    memory_verdict: MemoryVerdict | None = Field(
        None, description="as of a choice: points may be borderline; not in older files"
    )


class Search(Record):
    """How many candidates there were, and what became of them."""

    candidates: int = Field(ge=0, description="the whole space asked about [1]")
    removed: tuple[RemovedBy, ...] = ()
    undealt: int = Field(
        0,
        ge=0,
        description="candidates of degrees whose later axes no one dealt: a bound of their time excludes them [1]",
    )
    undealt_by_memory: int = Field(0, ge=0, description="the same, as their states alone do not fit [1]")
    legal: int = Field(ge=0, description="of the others, candidates that no rule removed [1]")
    too_large: int = Field(ge=0, description="evaluated candidates whose memory does not fit [1]")
    costed: int = Field(
        ge=0,
        description="legal candidates whose memory and time were computed; a bound excludes the rest [1]",
    )
    seconds: float = Field(ge=0, description="time the search took [s]")
    restricted: dict[str, tuple[int | str, ...]] = Field(
        default_factory=dict, description="axis -> values allowed, as --set takes them"
    )
    once: tuple[str, ...] = Field(
        (),
        description="axes in which alone choices do not differ where there are enough others: of those that differ in "
        "vpp the fastest is listed, of those that differ in cuda_graph_impl and tie the framework's default",
    )
    members: tuple[str, ...] = Field(
        (), description="stacks, each with one set of its options, whose candidates these are"
    )
    without: tuple[str, ...] = Field((), description="options and axes that the user left out by name")
    turned_on: tuple[TurnedOn, ...] = Field((), description="options of the best that nobody named")
    as_named: float | None = Field(
        None, gt=0, description="step time of the best without any of `turned_on`, if there is one [s]"
    )
    stacks: tuple[StackStanding, ...] = Field((), description="where several were named, the fastest first")
    certificate: Certificate | None = Field(
        None, description="what is proven; absent of one named configuration"
    )


class Confidence(Record):
    """How far to trust the step time, and why."""

    level: CalibrationLevel
    band: float = Field(ge=0, description="80 % of errors on runs never seen lie within +- this [1]")
    explanation: Findings = Field(description="why")


class Concern(StrEnum):
    """In what a configuration is more, or other, than published runs are (`planner/answer/recommend.py`)."""

    KINDS = "kinds_of_parallelism"  # beside data parallelism: of tp, cp, ep and pp those above 1
    WIDE_TENSOR = "tensor_parallelism_beyond_fast_links"
    SHORT_CONTEXT = "context_parallelism_of_short_sequences"
    ODD_DEGREE = "degrees_that_are_no_powers_of_two"  # of tp, cp and ep
    UNEVEN_LAYERS = "stages_of_different_depth"
    SCHEDULE = "another_schedule_than_1f1b"  # interleaved 1F1B is one of them
    OFFLOAD = "states_or_activations_in_host_memory"
    GRAPHS = "other_cuda_graphs_than_the_frameworks_own"


class Reason(Record):
    """A concern in which the fastest and the recommended configuration differ."""

    concern: Concern
    fastest: float = Field(ge=0, description="how often the fastest has it [1]")
    recommended: float = Field(ge=0, description="how often the recommended one has it [1]")


class Trade(Record):
    """What the recommended configuration costs and brings against the fastest."""

    slower: float = Field(ge=0, description="its step time over the fastest's, less 1 [1]")
    more_free: float = Field(description="device memory that it leaves beyond what the fastest does [bytes]")
    reasons: tuple[Reason, ...] = Field((), description="in what it is nearer to published runs")


class NearestRun(Record):
    """A published run near to what is asked: what it measured, and what planner predicts for its configuration."""

    model: str = Field(description="its model, as the collection calls it")
    same_model: bool = Field(description="the one asked about; else one of its kind and size")
    accelerator: str
    devices: int = Field(ge=1, description="devices [1]")
    seq_len: int = Field(ge=1, description="tokens in a sequence [1]")
    global_batch: int = Field(ge=1, description="sequences in a step [1]")
    precision: str
    software: str = Field(description="the training software, as its publisher calls it")
    config: PlannedConfig
    step_time: float = Field(gt=0, description="as measured [s]")
    tokens_per_second_per_device: float = Field(gt=0, description="as measured [tokens/s/device]")
    predicted_step_time: float = Field(gt=0, description="by the shipped numbers [s]")
    predicted_tokens_per_second_per_device: float = Field(
        gt=0, description="by the shipped numbers [tokens/s/device]"
    )
    link: str = Field(description="where it is published")


class Plan(Record):
    """The answer to one question: the best configurations, or why there is none."""

    schema_version: Literal[2] = SCHEMA_VERSION
    planner_version: str = __version__
    verdict: Verdict
    headline: Findings = Field(
        description="the answer, with a gap of its proof; a second one names the recommended configuration "
        "where that is another"
    )
    asked: dict[str, Any] = Field(
        default_factory=dict,
        description="the question: what was said of the options of `planner.ask.question`, by name, as these read it; "
        "absent in older files",
    )
    subject: Subject
    choices: tuple[Choice, ...] = Field((), description="best first; of an estimate, the one asked about")
    violations: tuple[BrokenRule, ...] = Field((), description="rules an illegal configuration breaks")
    nearest: Choice | None = Field(
        None, description="the nearest legal (or fitting) configuration, evaluated"
    )
    nearest_config: PlannedConfig | None = Field(None, description="the same where it was not evaluated")
    smallest_change: Findings = Field(
        (), description="what would make it legal, make it fit, or make it faster"
    )
    search: Search
    pareto: tuple[ParetoPoint, ...] = Field(
        (), description="step time against memory: the front of all that fit, fastest first"
    )
    recommended: int | None = Field(
        None,
        ge=0,
        description="index of the choice to take: of those as fast as a prediction can tell the one with more memory "
        "free and nearer to published runs; 0: the fastest; absent where nothing was found, and in older files [1]",
    )
    trade: Trade | None = Field(
        None, description="what that costs and brings; absent where it is the fastest"
    )
    nearest_run: NearestRun | None = Field(None, description="absent where no published run is near")
    notes: tuple[Said, ...] = Field((), description="what the head of the answer says of the question")
    assumptions: tuple[Said, ...] = ()
    not_modelled: tuple[Said, ...] = ()
    confidence: Confidence
    headroom: float = Field(ge=0, lt=1, description="share of the capacity kept back [1]")

    @property
    def found(self) -> bool:
        """Is there a configuration to run?"""
        return self.verdict is Verdict.FOUND

    def index(self, which: str) -> int:
        """The place of a configuration that is named by it, "0" for the first, or as "recommended". Raises
        `InputError`."""
        if which == RECOMMENDED:
            return self.recommended or 0
        if not (which.isascii() and which.isdigit() and len(which) < 9):
            must = f"{option('choice')} must be a number from 0, or {RECOMMENDED}"
            raise InputError(must, which, "0 is the fastest one")
        if self.choices and int(which) >= len(self.choices):
            must = f"{option('choice')} must be from 0 to {len(self.choices) - 1}, the configurations of this plan"
            raise InputError(must, which, "0 is the fastest one")
        return int(which)

    def __repr__(self) -> str:
        return f"<Plan, {self.verdict}: {self}>"

    def __str__(self) -> str:
        return "\n".join(one.text for one in self.headline)

    def choice(self, index: int) -> Choice:
        """The `index`-th configuration, from 0. Raises `NoConfigurationError` where there is none, `InputError`."""
        if not self.choices:
            must = "the plan must hold a configuration"
            hint = "planner explain PLAN.json says why it holds none"
            raise NoConfigurationError(must, str(self), hint)
        if not 0 <= index < len(self.choices):
            must = f"the choice must be from 0 to {len(self.choices) - 1}, the configurations of this plan"
            raise InputError(must, str(index), "0 is the best one")
        return self.choices[index]

    def to_dataframe(self) -> Any:
        """The configurations as a pandas data frame, best first, with the columns of `spec.rows`."""
        from planner.spec.rows import data_frame, plan_rows

        return data_frame(plan_rows(self))

    def framework_of(self, choice: Choice) -> str:
        """The framework of the stack that a choice is for."""
        base = choice.stack.partition("+")[0]
        others = {standing.name.partition("+")[0]: standing.framework for standing in self.search.stacks}
        return others.get(base, self.subject.stack.framework)

    @field_validator("choices", "nearest")
    @classmethod
    def _of_a_stack(cls, value: Any, info: ValidationInfo) -> Any:
        """Choices of files that name no stack are of the subject's."""
        subject = info.data.get("subject")
        if value is None or subject is None:
            return value
        if isinstance(value, Choice):
            return value if value.stack else value.model_copy(update={"stack": subject.stack.name})
        return tuple(c if c.stack else c.model_copy(update={"stack": subject.stack.name}) for c in value)

    @model_validator(mode="after")
    def _found_means_a_choice(self) -> Self:
        if self.found and not self.choices:
            raise ValueError("a plan with the verdict 'found' must hold a choice")
        if self.recommended is not None and self.recommended >= len(self.choices):
            raise ValueError(f"recommended must be the index of a choice: {self.recommended}")
        for config in (choice.config for choice in self.choices if self.found):
            if config.tp * config.cp * config.pp * config.dp != self.subject.cluster.devices:
                degrees = f"{config.tp} x {config.cp} x {config.pp} x {config.dp}"
                devices = self.subject.cluster.devices
                raise ValueError(
                    f"tp x cp x pp x dp of a choice must be the devices of the cluster: {degrees} is not {devices}"
                )
            if config.pp * config.vpp > self.subject.model.layers + EMPTY_CHUNKS:
                raise ValueError(
                    f"pp x vpp of a choice must not exceed the layers of the model: {config.text}"
                )
            if config.tp * config.cp * config.dp % (config.ep * config.etp):
                raise ValueError(f"ep x etp of a choice must divide tp x cp x dp: {config.text}")
            if not Schedule(SCHEDULE_LABELS.index(config.schedule)).runs_chunks(config.vpp):
                raise ValueError(f"vpp of a choice must be one that its schedule runs: {config.text}")
            if config.dp * config.micro_batch * config.num_microbatches > self.subject.job.global_batch:
                raise ValueError(f"dp x micro-batch x micro-batches must not exceed the batch: {config.text}")
        return self


def _check_sum(terms_name: str, terms: dict[str, float], total_name: str, total: float) -> None:
    added = sum(terms.values())
    if abs(added - total) > _SUM_TOLERANCE * max(abs(total), abs(added)):
        raise ValueError(f"{terms_name} must add up to {total_name}, {total!r}; they add up to {added!r}")
