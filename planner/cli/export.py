"""What does `planner export` do? Reads a plan, writes the files that launch one of its configurations.

Left out: how a framework writes them (`planner/frameworks/`).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from planner.cli.options import FASTEST, ChoiceOption, PlanArgument
from planner.cli.output import check_output
from planner.dryrun.extra import Run, runner_for
from planner.errors import NoConfigurationError, UnsupportedError

if TYPE_CHECKING:
    from planner.frameworks.framework import Framework, Launch
    from planner.spec.machine.torus import Torus
    from planner.spec.model import ModelSpec
    from planner.spec.planfile import Choice, Plan
    from planner.spec.rule import Problem
    from planner.spec.stack import Stack

_LAUNCHERS: Final = {"transformers": "accelerate"}  # the one that starts scripts of what has none of its own
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="FRAMEWORK",
        help="megatron, megatron-bridge, deepspeed, torchtitan, accelerate, nanotron or maxtext (default: that of the "
        "plan's stack).",
    ),
]
FolderOption = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write into.")]
ReleaseOption = Annotated[
    str | None,
    typer.Option("--framework-version", help="Release to write for (default: a recent stable one)."),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
UnfitOption = Annotated[bool, typer.Option("--unfit", help="Write a configuration that does not fit, too.")]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="The plan's cluster, where its name does not say it: for TPUs, and another framework than planned.",
    ),
]
StackOption = Annotated[
    str | None, typer.Option("--stack", metavar="FILE", help="The plan's stack, where it is a file of yours.")
]
DryrunOption = Annotated[
    bool,
    typer.Option(
        "--dryrun",
        help="Confirm the configuration by running its training step without a device (needs PyTorch and "
        "transformers).",
    ),
]
AllocConfOption = Annotated[
    str,
    typer.Option(
        "--alloc-conf", help="PYTORCH_CUDA_ALLOC_CONF of the dry run, such as expandable_segments:True."
    ),
]
EPILOG = "\b\nExample:\n  planner export plan.json -o launch"


def export(
    plan: PlanArgument,
    output: FolderOption,
    to: ToOption = None,
    choice: ChoiceOption = FASTEST,
    framework_version: ReleaseOption = None,
    force: ForceOption = False,
    unfit: UnfitOption = False,
    cluster: ClusterOption = None,
    stack: StackOption = None,
    dryrun: DryrunOption = False,
    alloc_conf: AllocConfOption = "",
) -> int:
    """Write launch files for a plan. Arguments, torchrun, Slurm and Kubernetes scripts."""
    run = runner_for(dryrun, alloc_conf)
    from planner.frameworks import framework
    from planner.frameworks.write import write_files
    from planner.spec.load_plan import load_plan
    from planner.spec.planfile import RECOMMENDED

    made = load_plan(plan)
    index = made.index(choice)
    _require_fit(made.choice(index), unfit)
    chosen = framework(to or _planned_framework(made, index))
    version = chosen.version(framework_version)
    files = _rendered(made, chosen, index, version, cluster, stack)
    if run is not None:
        made = _run_dry(made, index, run, cluster)
        files = _rendered(made, chosen, index, version, cluster, stack)
    for name in files:  # with --force, a file that is read
        check_output(output / name if (output / name).exists() else None, plan, cluster, stack, made)
    for path in write_files(files, output, force):
        sys.stdout.write(f"{path}\n")
    sys.stderr.write(f"written for {chosen.title} {version}; start with README.md\n")
    if made.recommended and choice == FASTEST:
        sys.stderr.write(f"the plan recommends #{made.recommended + 1} instead: --choice {RECOMMENDED}\n")
    if (said := made.choice(index).dryrun) is not None:
        sys.stderr.write(f"{said}\n")
    if others := sorted(path.name for path in output.iterdir() if path.name not in files):
        listed = ", ".join(others[:5]) + ", ..." * (len(others) > 5)
        sys.stderr.write(
            f"{output} also holds {listed}, not of this export: planner check of it reads them too\n"
        )
    return 0


def _require_fit(choice: Choice, unfit: bool) -> None:
    """Refuse launch files of a configuration that does not fit, where they are not asked for all the same."""
    from planner.spec.verdict import MemoryVerdict
    from planner.units import format_capacity

    memory = choice.memory
    if memory.verdict is MemoryVerdict.DOES_NOT_FIT and not unfit:
        given = f"{format_capacity(memory.peak)} of {format_capacity(memory.limit)}: {choice.config.text}"
        hint = "plan one that fits, or add --unfit to write these files all the same"
        raise NoConfigurationError("launch files are of a configuration that fits", given, hint)


def render_plan(
    path: Path,
    to: str,
    choice: int,
    release: str | None,
    cluster: str | None = None,
    stack: str | None = None,
) -> dict[str, str]:
    """The files of one configuration of a plan by name. Raises `PlannerError`."""
    from planner.frameworks import framework
    from planner.spec.load_plan import load_plan

    chosen = framework(to)
    version = chosen.version(release)
    return _rendered(load_plan(path), chosen, choice, version, cluster, stack)


def _rendered(
    plan: Plan, chosen: Framework, choice: int, version: str, cluster: str | None, stack: str | None
) -> dict[str, str]:
    from planner.ask.planned import planned_model
    from planner.frameworks.framework import launch_of

    plan.choice(choice)  # a plan without one is told so, whatever else is wrong
    model = planned_model(plan)
    launch = launch_of(plan, choice, model, _own_stack(plan, choice, model, stack), _torus(plan, cluster))
    return chosen.render(_taken(launch, plan, choice, chosen, cluster), version)


def _run_dry(plan: Plan, index: int, run: Run, cluster: str | None) -> Plan:
    """The plan with what a dry run says of one of its choices."""
    from planner.cli.output import progress
    from planner.dryrun.confirm import run_choice
    from planner.report.words import worded

    choice = plan.choice(index)
    with progress("running the step"):
        said = worded((run_choice(plan, choice, run, cluster),))[0]
    ran = choice.model_copy(update={"dryrun": said})
    return plan.model_copy(update={"choices": (*plan.choices[:index], ran, *plan.choices[index + 1 :])})


def _planned_framework(plan: Plan, index: int) -> str:
    """The framework of the stack that a choice of a plan is for, or what starts it. Raises `PlannerError`."""
    from planner.errors import InputError
    from planner.frameworks import framework_of_stack

    choice = plan.choice(index)
    named = plan.framework_of(choice)
    if named in _LAUNCHERS:
        return _LAUNCHERS[named]
    if (found := framework_of_stack(named)) is None:
        must = f"--to must name a launcher: the plan's stack, {choice.stack}, is of none"
        raise InputError(must, named, "planner export plan.json --to FRAMEWORK -o DIR")
    return found.name


def _own_stack(plan: Plan, index: int, model: ModelSpec, stack: str | None) -> Stack | None:
    """The stack of a choice of a plan from its file. Raises `PlannerError`."""
    from planner.catalog.load_stacks import load_stack
    from planner.errors import InputError
    from planner.spec.machine.device_kernels import with_wide_heads

    if stack is None:
        return None
    found, own = load_stack(stack), plan.choice(index).stack
    if found.name != own:
        must = f"--stack must be the stack of the plan, {own}"
        raise InputError(must, found.name, "leave it out, or plan with it")
    return with_wide_heads(found, model)


def _torus(plan: Plan, cluster: str | None) -> Torus | None:
    """The slice of a plan's cluster, where its devices are linked to their neighbours alone. Raises `PlannerError`."""
    from planner.ask.planned import planned_machine
    from planner.spec.machine.load_cluster import load_accelerator

    if load_accelerator(plan.subject.cluster.accelerator).torus is None:
        return None  # no file depends on the links, so that they need not be read
    return planned_machine(plan, cluster).tiers[0].torus


def _taken(launch: Launch, plan: Plan, index: int, target: Framework, cluster: str | None) -> Launch:
    """The launch in the words of another framework than the plan's, whose rules must not forbid it, as `planner check`
    would. Raises `UnsupportedError`."""
    from planner.ask.planned import planned_problem
    from planner.catalog.load_stacks import load_stack
    from planner.cli.files import as_the_framework_allows, newest_stack
    from planner.frameworks import framework_of_stack
    from planner.space.framework_rules import all_rules_for
    from planner.space.legality import explain_config
    from planner.spec.machine.compiled_devices import runs_on

    choice = plan.choice(index)
    planned = framework_of_stack(plan.framework_of(choice))
    if planned is not None and planned.rules is target.rules:
        return launch
    engine = target.shards_all_by if launch.config.zero >= 2 else None
    stack = load_stack(newest_stack(target, engine))
    problem = replace(planned_problem(plan, choice, cluster), stack=stack)
    if not runs_on(stack, problem.cluster.accelerator):
        must = f"{target.title} must run on the plan's devices, for which steps are compiled"
        raise UnsupportedError(must, plan.subject.cluster.accelerator, "leave out --to, or plan for GPUs")
    kind = choice.config.cp_comm_type
    config = replace(launch.config, cp_kind=_exchange(kind, problem))
    problem = as_the_framework_allows(problem, target, launch.chunks if config.pp > 1 else ())
    rules = all_rules_for(stack.framework)
    broken = explain_config(config, problem, rules)
    if broken:
        # what the job breaks under any configuration comes first: planning for that stack would not help
        of_job = [each for each in broken if each.rule in {rule.id for rule in rules if not rule.needs}]
        first = (of_job or broken)[0]
        must = f"{target.title} must take the configuration (rule {first.rule}): {first.reason}"
        elsewhere = "" if of_job else f"; or plan for it: planner plan ... --stack {stack.name}"
        hint = first.hint + elsewhere
        raise UnsupportedError(must, f"{config.describe()}, planned for {choice.stack}", hint)
    if kind is not None and kind not in {own.label for own in problem.context_kinds}:
        kinds = " or ".join(own.label for own in problem.context_kinds)
        must = f"{target.title} must exchange keys and values as planned, by {kind}; it does so by {kinds}"
        hint = f"plan for it: planner plan ... --stack {stack.name}"
        raise UnsupportedError(must, config.describe(), hint)
    return replace(launch, config=config)


def _exchange(planned: str | None, problem: Problem) -> int:
    """The `cp_kind` of what the plan's context parallelism exchanges by, under the problem's stack: 0 where that does
    so unasked, or not at all."""
    return next((int(kind) for kind in problem.context_kinds[1:] if kind.label == planned), 0)
