"""What does the dry run of one configuration say? `make_dryrun`.

Left out: what each framework runs of a question (`software.py`), and how a step runs, which needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Final

import numpy as np

from planner.answer.estimate import asked_config, make_estimate
from planner.ask.option import Group, as_written, options_of
from planner.ask.question import DryrunQuestion, Question
from planner.ask.request import DEFAULT_SEQ_LEN, resolve
from planner.catalog.cluster_rates import rates_of
from planner.catalog.load_host import load_host_rates
from planner.cost.captured.kernels import Device
from planner.cost.network.communicators import communicator_bytes
from planner.dialect import option
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.asked import AnyRecipe, Asked
from planner.dryrun.most import largest_that_fits
from planner.dryrun.outcome import RankMemory, memory_of
from planner.dryrun.recording import Recording
from planner.dryrun.refused import leave_out
from planner.dryrun.software import SOFTWARE, TRANSFORMERS, Record, Software, quiet
from planner.dryrun.timing.messages import Wires
from planner.dryrun.timing.step import RankTime, time_of
from planner.dryrun.transformers.asked import STACK
from planner.dryrun.transformers.methods import alone_known
from planner.errors import FileInputError, InputError, PlannerError, UnsupportedError
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.findings import Finding, finding
from planner.spec.load_loads import zipf_exponent
from planner.spec.load_model import hf_fields, load_model
from planner.spec.machine.accelerator import HostProcessor
from planner.spec.machine.host import HostRates
from planner.spec.planfile import Plan
from planner.spec.rule import Problem

STAND_IN: Final = "llama-3.2-1b"
LENGTHS: Final = 256  # tokens by which sequences are tried
SHORT_LENGTHS: Final = 32  # the same below the first of these, at most
MOST_TOKENS: Final = 2**22
MOST_SEQUENCES: Final = 2**14


@dataclass(frozen=True)
class DryRun:
    """What one configuration does to its devices, by running its software's own step.

    `estimated_peak`: what `planner estimate` says of the same, none for a model that it has no reader for and for
    options that it does not know, `unestimated` [bytes].
    """

    model: str
    accelerator: str
    devices: int
    configuration: str
    stack: str
    software: Mapping[str, str]
    """Packages that were run, and their versions."""
    ranks: tuple[RankMemory, ...]
    estimated_peak: float | None
    unestimated: tuple[str, ...]
    largest_micro_batch: int | None
    """That runs at this sequence length, 0 where none does; None where it was not sought."""
    longest_sequence: int | None
    """That runs at this micro-batch: the one that is asked, or longer in steps of `LENGTHS` tokens."""
    assumptions: tuple[Finding, ...]
    times: tuple[RankTime, ...] = ()
    """Of the same ranks; empty where part of the step runs on the host or on other stages of a pipeline."""

    @property
    def fits(self) -> bool:
        """Does every rank's step run?"""
        return self.worst.out_of_memory is None

    @property
    def worst(self) -> RankMemory:
        """The rank that needs most."""
        return max(self.ranks, key=lambda one: one.reserved_peak)

    @property
    def slowest(self) -> RankTime | None:
        """The times of the rank whose step takes longest; None where none are told."""
        return max(self.times, key=lambda one: one.step, default=None)


def make_dryrun(
    asked: Question, settings: AllocatorSettings, largest: bool = False, longest: bool = False
) -> DryRun:
    """The dry run of one named configuration; with the `largest` micro-batch and the `longest` sequence that run.

    Raises `InputError` for an illegal configuration or a missing package, `UnsupportedError` for what cannot be run.
    """
    _check_of_a_step(asked)
    named = asked.model
    name, fields = hf_fields(named)
    unsaid: tuple[Finding, ...] = ()
    if asked.stack is None:
        asked, unsaid = replace(asked, stack=STACK), (finding("default_stack", stack=STACK),)
    asked, estimate, positions = _known(asked, fields)
    problem, assumed = resolve(asked, {"tp": (1,), "cp": (1,), "pp": (1,), **asked.restrict})
    config, _, defaults = asked_config(asked, problem)
    alone = alone_known(asked)
    software = _software_of(problem, alone)
    recipe = software.recipe(Asked(asked, problem, config, estimate, name, fields))
    limit = allocator_limit(problem, config, asked)
    device = int(problem.cluster.accelerator.memory)
    run = _Runs(software.recorder(), capability_of(problem), settings, limit, device, positions)
    try:
        recorded = run.recorded(recipe)
    except PlannerError as error:
        error.hint = error.hint or _what_helps(named, estimate)
        raise
    ranks = tuple(memory_of(one, settings, limit, rank, device) for rank, one in recorded)
    runs = all(one.out_of_memory is None for one in ranks)
    idle = (finding("collection_needs_fraction"),) if settings.collects_nothing else ()
    return DryRun(
        model=name,
        accelerator=problem.cluster.accelerator.name,
        devices=problem.cluster.num_devices,
        configuration=config.describe(problem.context_kinds[0]),
        stack=problem.stack.name,
        software=software.versions(),
        ranks=ranks,
        times=_times(problem, config, recipe, recorded),
        estimated_peak=None if estimate is None else estimate.choices[0].memory.peak,
        unestimated=alone,
        largest_micro_batch=run.largest_micro_batch(recipe) if largest else None,
        longest_sequence=run.longest_sequence(recipe, runs) if longest else None,
        assumptions=(*unsaid, *idle, *assumed, *software.assumptions, *defaults),
    )


def _software_of(problem: Problem, alone: tuple[str, ...]) -> Software:
    """What runs a problem's stack; `alone`: what a dry run alone knows of it. Raises `UnsupportedError`."""
    framework = problem.stack.framework
    if framework not in SOFTWARE:
        must = f"a dry run runs the software of {', '.join(SOFTWARE)}"
        raise UnsupportedError(must, f"the stack {problem.stack.name}", option("stack", STACK))
    if framework != TRANSFORMERS and alone:
        must = f"{', '.join(map(option, alone))} need{'s' * (len(alone) == 1)} a step of transformers"
        raise UnsupportedError(must, problem.stack.name, option("stack", STACK))
    return SOFTWARE[framework]


def _check_of_a_step(asked: Question) -> None:
    """Raise `InputError` for what says nothing of a step, `UnsupportedError` for what no dry run knows."""
    said = as_written(asked)
    if isinstance(asked, DryrunQuestion):
        for name, one in options_of(Question).items():
            if one.group is Group.RUN and name in said:
                must = f"{option(name)} says something of a whole run, and a dry run is of one step"
                given = ", ".join(said[name]) if isinstance(said[name], list) else said[name]
                raise InputError(
                    must, option(name, given), f"leave it out: planner estimate takes {option(name)}"
                )
    uneven = asked.expert_loads is not None and zipf_exponent(asked.expert_loads) != 0
    for name, there in (("expert_loads", uneven), ("expert_replicas", asked.expert_replicas is not None)):
        if there:
            given = option(name, said[name])
            raise UnsupportedError(
                "a dry run is of tokens that are dealt evenly to experts", given, leave_out(name)
            )


def _what_helps(model: str, estimate: Plan | None) -> str:
    """What to do where a framework does not take or run a model, and has no hint of its own."""
    try:
        load_model(model)
    except FileInputError as error:
        if error.field not in ("", "model_type"):
            return f"{error.must}, given {error.given}" if error.given else error.must
    except PlannerError:
        pass
    if estimate is not None:
        return "planner estimate tells its memory without running it"
    return "hold its fields against the config.json that the model was published with"


def _known(asked: Question, fields: Mapping[str, Any]) -> tuple[Question, Plan | None, int]:
    """The question as planner can read it, its estimate, and rows of learned positions.

    Of a model that planner has no reader for, everything but the model: it takes the place of one that it has, which
    one device runs as it runs any. What a dry run alone knows has no estimate. Raises `InputError` for an illegal
    configuration.
    """
    try:
        model = load_model(asked.model)
    except (InputError, UnsupportedError):  # of its fields: the file has been read
        if asked.mtp:
            raise InputError(
                f"{option('mtp')} needs a model that planner can read", asked.model, leave_out("mtp")
            ) from None
        longest = fields.get("max_position_embeddings")
        usual = min(longest, DEFAULT_SEQ_LEN) if isinstance(longest, int) else DEFAULT_SEQ_LEN
        asked = replace(asked, model=STAND_IN, seq_len=asked.seq_len or usual)
        _legal_estimate(asked)
        return asked, None, 0
    estimate = _legal_estimate(asked)
    return asked, None if alone_known(asked) else estimate, model.position_rows


def _legal_estimate(asked: Question) -> Plan:
    """The estimate of a configuration. Raises `InputError` for an illegal one."""
    estimate = make_estimate(asked)
    if estimate.violations:
        broken = estimate.violations[0]
        raise InputError(f"a dry run needs a legal configuration: {broken.reason}", hint=broken.hint)
    return estimate


@dataclass(frozen=True)
class _Runs:
    """Dry runs on one device: `limit` is what its allocator can have of all that the `device` has [bytes]; `positions`:
    learned ones of the model, 0 where there are none."""

    record: Record
    capability: tuple[int, int]
    settings: AllocatorSettings
    limit: int
    device: int
    positions: int

    def recorded(self, recipe: AnyRecipe) -> tuple[tuple[int, Recording], ...]:
        """Ranks that differ, by number."""
        with quiet():
            return tuple((rank, self.record(one, self.capability)) for rank, one in recipe.roles())

    def largest_micro_batch(self, recipe: AnyRecipe) -> int:
        def peak(number: int) -> tuple[bool, float]:
            return self._peak(recipe.sized(number, recipe.seq_len))

        return largest_that_fits(peak, recipe.micro_batch, self._allowed, MOST_SEQUENCES)

    def longest_sequence(self, recipe: AnyRecipe, runs: bool) -> int:
        """In steps of `LENGTHS` tokens, below the first in shorter ones that ranks can split as they split what is
        asked; no less than that where it `runs`."""
        most = self.positions or MOST_TOKENS
        found = self._longest(recipe, LENGTHS, most // LENGTHS)
        if not found and not runs:
            step = gcd(recipe.seq_len, SHORT_LENGTHS)
            found = self._longest(recipe, step, min(LENGTHS - 1, most) // step)
        return max(found, recipe.seq_len if runs else 0)

    def _longest(self, recipe: AnyRecipe, step: int, most: int) -> int:
        def peak(number: int) -> tuple[bool, float]:
            return self._peak(recipe.sized(recipe.micro_batch, number * step))

        return step * largest_that_fits(peak, recipe.seq_len // step, self._allowed, most)

    @property
    def _allowed(self) -> int:
        return self.settings.allowed(self.limit, self.device)

    def _peak(self, recipe: AnyRecipe) -> tuple[bool, float]:
        """Of all ranks that differ."""
        ran = self.recorded(recipe)
        each = [memory_of(one, self.settings, self.limit, rank, self.device) for rank, one in ran]
        return all(one.out_of_memory is None for one in each), max(one.reserved_peak for one in each)


def _times(
    problem: Problem, config: ParallelConfig, recipe: AnyRecipe, recorded: Sequence[tuple[int, Recording]]
) -> tuple[RankTime, ...]:
    """None of stages of a pipeline, of states on the host, of software that is not timed, and of messages whose time is
    not known."""
    kernels, links = rates_of(problem.cluster)
    device, wires, host = (
        Device(problem.cluster.accelerator, kernels),
        Wires(problem.cluster, links),
        _host(problem),
    )
    sent = (
        one.message for _, recording in recorded for one in recording.operations if one.message is not None
    )
    timed = SOFTWARE[problem.stack.framework].timed and config.pp == 1 and not config.offload
    if not timed or not all(map(wires.knows, sent)):
        return ()
    return tuple(time_of(one, device, host, recipe.num_microbatches, wires) for _, one in recorded)


def _host(problem: Problem) -> HostRates:
    """What issues operations: the stack's factor is of the processors that are not x86."""
    grace = problem.cluster.accelerator.host is HostProcessor.GRACE
    return load_host_rates().slower(problem.stack.host.grace if grace else 1.0)


def allocator_limit(problem: Problem, config: ParallelConfig, asked: Question) -> int:
    """What the allocator of a device can have: its memory less the driver's, what communicators hold outside it, and
    what the question keeps back; 0 where that is all [bytes]."""
    memory, table = problem.cluster.accelerator.memory, ConfigTable.of([config])
    replicas, dispatcher = np.array([config.dp * config.cp], float), problem.stack.communication.dispatcher
    opened = communicator_bytes(table, replicas, problem.cluster, dispatcher)
    outside = problem.stack.overhead.context + sum(float(one[0]) for one in opened.values())
    # of a question for a dry run alone the default is none, of others it is for what an estimate cannot know
    said = isinstance(asked, DryrunQuestion) or "headroom" in as_written(asked)
    kept = max(memory * asked.headroom if said else 0.0, asked.min_free or 0.0)
    return max(int(memory - outside - kept), 0)


def capability_of(problem: Problem) -> tuple[int, int]:
    """The compute capability of a problem's devices."""
    major, _, minor = (problem.cluster.accelerator.compute_capability or "0.0").partition(".")
    return int(major), int(minor)
