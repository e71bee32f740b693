"""The command line: which verb was asked for, with what?

Exit codes: 0 found, 1 well-formed but illegal or nothing fits, 2 malformed input. The result goes to stdout,
progress and errors to stderr. The verb that is asked for is loaded alone, and heavy imports wait inside the verbs. Left
out: options that verbs share (`cli.options`), how an answer leaves the process (`cli.output`), any knowledge of
models, clusters or plans.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from planner import __version__
from planner.ask.question import ComparisonQuestion, EstimateQuestion, Request, SizeQuestion
from planner.cli.options import AnswerOption, AssumeOption, JsonOption, OutputOption, Shown, takes_question
from planner.cli.output import answers, check_output, progress, say, say_json, tell, unwritable, updates
from planner.dryrun.extra import runner_for
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.spec.planfile import Plan


def _deliver(plan: Plan, as_json: bool, output: Path | None) -> int:
    """Print the plan, write it where asked, and say with the exit code whether something was found."""
    from planner.report.words import worded
    from planner.spec.load_plan import plan_json, save_plan

    plan = worded(plan)
    if output is not None:
        save_plan(plan, output)
        print(f"plan written to {output}", file=sys.stderr)
    if as_json:
        sys.stdout.write(plan_json(plan))
    else:
        from planner.report.text import plan_document

        say(plan_document(plan))
    return 0 if plan.found else 1


def _version(wanted: bool) -> None:
    if wanted:
        print(f"planner {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


PLAN_EPILOG = (
    "\b\nExample:\n  planner plan llama-3.1-405b h100-sxm-roce --gpus 16384 \\\n"
    "    --seq-len 8192 --global-batch 2048 --tokens 15.6T"
)


def plan(asked: Request, as_json: JsonOption = False, output: OutputOption = None) -> int:
    """Find the fastest configuration that fits. Says why it is, and how sure that is."""
    from dataclasses import replace

    check_output(output, asked)
    from planner.answer.plan import make_plan
    from planner.spec.planfile import CHOOSES_SIZE

    answer = make_plan
    if asked.objective in CHOOSES_SIZE:
        from planner.answer.objective import plan_with_size as answer
    asked = replace(asked, front=as_json or output is not None)  # the text does not show the front
    run = runner_for(asked.dryrun, asked.alloc_conf)
    with progress("searching"):
        found = answer(asked)
    if run is not None:
        from planner.dryrun.confirm import confirmed

        with progress("running the step"):
            found = confirmed(found, run)
    return _deliver(found, as_json, output)


CLUSTER_OF_PLAN = Shown(
    required=False, text="As for plan; left out where MODEL is a plan file.", metavar="[CLUSTER]"
)
ESTIMATE_EPILOG = (
    '\b\nExample:\n  planner estimate Qwen/Qwen3-30B-A3B "4x8 h100 400G-ib" --set tp=1 --set ep=8\n'
    "  planner estimate plan.json --choice 1 --cluster dgx-b200"
)


def estimate(
    asked: Annotated[EstimateQuestion, {"cluster": CLUSTER_OF_PLAN}],
    choice: Annotated[
        int | None, typer.Option(min=0, help="Index of the configuration: 0 is #1 of the plan's table.")
    ] = None,
    other: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="Re-evaluate the plan's configuration on this cluster; a different --gpus changes dp.",
        ),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Show what takes the memory, by pipeline rank, phase and part.")
    ] = False,
    stage: Annotated[int | None, typer.Option(help="With --memory: this pipeline rank alone.")] = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> int:
    """Estimate step time and memory of one configuration. Says which rule it breaks where it is not legal."""
    if stage is not None and not memory:
        raise InputError("--stage belongs to --memory", f"--stage {stage}", "add --memory")
    check_output(output, asked)
    from planner.cli.estimate import estimated

    run = runner_for(asked.dryrun, asked.alloc_conf)
    with progress("estimating"):
        found, problem, assumed = estimated(asked, choice, other)
    check_output(output, asked, found, other)
    if run is not None:
        from planner.dryrun.confirm import beside

        with progress("running the step"):
            found = beside(found, run, other)
    if problem is None or not (memory and found.choices):
        return _deliver(found, as_json, output)
    from planner.cli.memory import explain_memory
    from planner.report.words import worded
    from planner.spec.load_plan import save_plan

    found = worded(found)
    if output is not None:
        save_plan(found, output)
    with progress("explaining memory"):
        answer = explain_memory(problem, assumed, found, stage)
    return tell(answer, as_json)


COMPARE_EPILOG = (
    "\b\nExample:\n  planner compare llama-3.1-70b --clusters dgx-h100,aws-p5,dgx-b200 \\\n"
    "    --gpus 1024 --tokens 15T --objective cost --assume 'aws-p5:price=3 $/h'"
)


def compare(asked: ComparisonQuestion, as_json: JsonOption = False, output: AnswerOption = None) -> int:
    """Compare the best plan on several clusters. Shows time, cost, energy and what limits each."""
    check_output(output, asked)
    from planner.cli import campaign

    with progress("comparing") as spinner:
        answer = campaign.compare(asked, updates(spinner))
    return tell(answer, as_json, output)


SIZE_EPILOG = "\b\nExample:\n  planner size llama-3.1-70b dgx-h100 --tokens 15T --days 60"


def size(asked: SizeQuestion, as_json: JsonOption = False, output: AnswerOption = None) -> int:
    """Choose the number of GPUs. The fewest that fit or end in time, or the fastest within a budget."""
    check_output(output, asked)
    from planner.cli import campaign

    with progress("sizing") as spinner:
        answer = campaign.size(asked, updates(spinner))
    return tell(answer, as_json, output)


ASSUMPTIONS_EPILOG = "\b\nExample:\n  planner assumptions --assume pue=1.3"


def assumptions(assume: AssumeOption = None, as_json: JsonOption = False) -> int:
    """List run-level assumptions and their sources. Failures, checkpoints, power and prices."""
    from planner.ask.readers import ASSUMED
    from planner.cli import campaign

    return tell(campaign.assumptions(ASSUMED.read(assume or (), "assume")), as_json)


SCHEDULE_EPILOG = (
    "\b\nExample:\n  planner schedule --schedule zb-h1 --pp 4 --microbatches 8 --f 1 --b 1.2 --w 0.8"
)


def schedule(
    schedule: Annotated[
        str, typer.Option(help="Name: 1f1b, interleaved, gpipe, zb-h1, dualpipe, v-half ...")
    ],
    pp: Annotated[int, typer.Option(help="Pipeline ranks.")],
    microbatches: Annotated[int, typer.Option(help="Micro-batches of a step.")],
    vpp: Annotated[
        int | None, typer.Option(help="Stages per rank (default: what the schedule needs).")
    ] = None,
    f: Annotated[str, typer.Option("--f", help="Forward time; one number, or one per stage: 1,1,1.3")] = "1",
    b: Annotated[str, typer.Option("--b", help="Input-gradient time.")] = "1",
    w: Annotated[str, typer.Option("--w", help="Weight-gradient time.")] = "1",
    comm: Annotated[str, typer.Option(help="Time of a hop between ranks.")] = "0",
    fb: Annotated[
        str | None, typer.Option("--fb", help="Time of an overlapped forward and backward.")
    ] = None,
    group_size: Annotated[int | None, typer.Option(help="Interleaved: micro-batches in a group.")] = None,
    memory_limit: Annotated[
        int | None, typer.Option(help="zb-auto, v-half, v-min: most chunks a rank may hold.")
    ] = None,
    moe_overlap: Annotated[
        bool,
        typer.Option("--moe-overlap", help="Interleaved: Megatron's extra warm-up forward (MoE overlap)."),
    ] = False,
    svg: Annotated[Path | None, typer.Option(help="Also draw the schedule into this SVG file.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Simulate and draw a pipeline schedule. Its exact time, and the chunks that each rank holds in flight."""
    from planner.cli import schedule as schedules

    question = schedules.ScheduleQuestion(
        schedule, pp, microbatches, vpp, f, b, w, comm, fb, group_size, memory_limit, moe_overlap
    )
    with progress(f"simulating {pp:,} ranks, {microbatches:,} micro-batches"):
        answer = schedules.answer_schedule(question)
    if svg is not None:
        schedules.write_svg(answer, svg)
    if as_json:
        say_json(schedules.schedule_facts(answer))
    else:
        from planner.report.text import terminal

        say(schedules.schedule_document(answer, terminal().width))
    return 0


# module of each verb and name of its examples there, in the order of --help
_VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "plan": ("program", "PLAN_EPILOG"),
    "estimate": ("program", "ESTIMATE_EPILOG"),
    "dryrun": ("dryrun", "EPILOG"),
    "model": ("listings", "MODEL_EPILOG"),
    "clusters": ("listings", "CLUSTERS_EPILOG"),
    "stacks": ("listings", "STACKS_EPILOG"),
    "compare": ("program", "COMPARE_EPILOG"),
    "size": ("program", "SIZE_EPILOG"),
    "assumptions": ("program", "ASSUMPTIONS_EPILOG"),
    "schedule": ("program", "SCHEDULE_EPILOG"),
    "calibrate": ("calibrate", "EPILOG"),
    "check": ("check", "EPILOG"),
    "diagnose": ("diagnose", "EPILOG"),
    "explain": ("explain", "EPILOG"),
    "export": ("export", "EPILOG"),
    "probe": ("probe", "EPILOG"),
    "report": ("report", "EPILOG"),
    "serve": ("serve", "EPILOG"),
    "sweep": ("sweep", "EPILOG"),
    "trace": ("trace", "EPILOG"),
    "validate": ("validate", "EPILOG"),
}


@cache
def command_line(verb: str = "") -> typer.Typer:
    """The command line with one verb, or with all where it has none of that name."""
    app = typer.Typer(
        add_completion=True,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: quicker, and examples stay as written
        context_settings={"help_option_names": ["-h", "--help"]},
        help="How should this model be trained on this cluster? The fastest parallel configuration that fits, "
        "with its reasons and error bars.",
    )
    app.callback()(_root)
    for name in [verb] if verb in _VERBS else _VERBS:
        module, epilog = _VERBS[name]
        found = vars(import_module(f"planner.cli.{module}"))
        app.command(name, epilog=found[epilog])(answers(takes_question(found[name])))
    return app


def main() -> None:
    """The `planner` command."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as with >&-
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(
                errors="replace"
            )  # a terminal that cannot show a character is no reason to fail
    try:
        command_line("".join(sys.argv[1:2]))(prog_name="planner")
    except OSError as error:  # behind --help, which no verb prints
        raise SystemExit(unwritable(error)) from None
