"""The command line: which verb was asked for, with what, and how does its answer leave the process?

Exit codes: 0 found, 1 well-formed but illegal or nothing fits, 2 malformed input. The result goes to stdout,
progress and errors to stderr. Heavy imports wait inside the verbs, so that --help is quick. Left out: any
knowledge of models, clusters or plans.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner import __version__
from planner.cli_check import EPILOG as CHECK_EPILOG
from planner.cli_check import check
from planner.cli_export import EPILOG as EXPORT_EPILOG
from planner.cli_export import export
from planner.cli_trace import EPILOG as TRACE_EPILOG
from planner.cli_trace import trace
from planner.cli_validate import EPILOG as VALIDATE_EPILOG
from planner.cli_validate import validate
from planner.errors import InputError, PlannerError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.cli_campaign import Answer
    from planner.plan import Request
    from planner.spec.planfile import Plan

INTERRUPTED, BROKEN_PIPE = 130, 141  # what a shell reports for a process ended by SIGINT, SIGPIPE
LARGEST_COUNT = 10**9  # of tokens or sequences; above it a figure is a slip of the keyboard
_LONGEST_LINE, _MOST_LINES = 600, 20  # of an error message: one screen, whatever a file holds

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: quicker, and examples stay as written
    context_settings={"help_option_names": ["-h", "--help"]},
    help="How should this model be trained on this cluster? The fastest parallel configuration that fits, "
    "with its reasons and error bars.",
)


def _answers(verb: Callable[..., int]) -> Callable[..., None]:
    """Turn a verb's result, or its error, into the exit code of the process."""

    @functools.wraps(verb)
    def run(*args: Any, **options: Any) -> None:
        try:
            code = verb(*args, **options)
            sys.stdout.flush()
        except PlannerError as error:
            _complain(str(error))
            code = error.exit_code
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing to flush at exit
            code = BROKEN_PIPE
        except OSError as error:  # a full disk behind stdout, say
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _complain(f"the answer must be writable\n  given: {error.strerror or error}")
            code = InputError.exit_code
        raise SystemExit(code)

    return run


def _complain(message: str) -> None:
    """An error on stderr, at most a screen of it."""
    from planner.report.text import prose, terminal

    lines = [_shortened(line) for line in message.splitlines()]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], "..."]
    terminal(stderr=True).print(prose("error: ", "bold red") + prose("\n".join(lines)), soft_wrap=True)


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "..."


def _say(document: RenderableType) -> None:
    """Print a document to stdout."""
    from planner.report.text import render, terminal

    sys.stdout.write(render(document, terminal()))


def _say_json(facts: object) -> None:
    import json

    sys.stdout.write(json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _progress(what: str) -> AbstractContextManager[object]:
    """A spinner on stderr, on a terminal only."""
    if not sys.stderr.isatty():
        return nullcontext()
    from planner.report.text import terminal

    return terminal(stderr=True).status(what)


def parse_headroom(text: str) -> float:
    """The fraction that "5%" stands for. Raises `InputError`."""
    number = text.strip().removesuffix("%").strip()
    try:
        fraction = float(number) / 100
    except ValueError:
        fraction = -1.0
    if not text.strip().endswith("%") or not 0 <= fraction < 1:
        raise InputError("headroom must be a percentage from 0% to below 100%", text, "write it like 5%")
    return fraction


def _check_count(option: str, value: int | None) -> None:
    if value is not None and not 0 < value <= LARGEST_COUNT:
        must = f"--{option} must be a whole number from 1 to {LARGEST_COUNT:,}"
        raise InputError(must, str(value), f"write it like --{option} 4096")


def _request(
    model: str,
    cluster: str,
    gpus: int | None,
    seq_len: int | None,
    global_batch: str | None,
    precision: str | None,
    optimizer: str,
    stack: str | None,
    tokens: str | None,
    settings: list[str],
    headroom: str,
    mtp: bool,
    assume: list[str] | None = None,
) -> Request:
    from planner.plan import Request
    from planner.space.restriction import parse_restriction
    from planner.units import parse_count

    _check_count("seq-len", seq_len)
    return Request(
        model=model,
        cluster=cluster,
        gpus=gpus,
        seq_len=seq_len,
        global_batch=global_batch,
        precision=precision,
        optimizer=optimizer,
        stack=stack,
        tokens=parse_count(tokens, "tokens") if tokens is not None else None,
        restrict=parse_restriction(settings),
        headroom=parse_headroom(headroom),
        with_mtp=mtp,
        assume=tuple(assume or ()),
    )


def _deliver(plan: Plan, as_json: bool, output: Path | None) -> int:
    """Print the plan, write it where asked, and say with the exit code whether something was found."""
    from planner.report.text import plan_document
    from planner.spec.load_plan import plan_json, save_plan

    if output is not None:
        save_plan(plan, output)
        print(f"plan written to {output}", file=sys.stderr)
    if as_json:
        sys.stdout.write(plan_json(plan))
    else:
        _say(plan_document(plan))
    return 0 if plan.found else 1


ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Catalog name, Hugging Face id, config.json or its folder.")
]
ClusterArgument = Annotated[
    str, typer.Argument(metavar="CLUSTER", help='Cluster name, YAML file, or "64x8 h100 400G-ib".')
]
GpusOption = Annotated[int | None, typer.Option(help="Devices to use (default: the whole cluster).")]
SeqLenOption = Annotated[
    int | None, typer.Option(help="Tokens in a sequence (default: the model's context, at most 8192).")
]
BatchOption = Annotated[
    str | None,
    typer.Option(help="Sequences per step, or tokens as 16Mtok (default: about 4M tokens)."),
]
PrecisionOption = Annotated[str | None, typer.Option(help="Number formats of the training.")]
OptimizerOption = Annotated[str, typer.Option(help="Optimizer.")]
StackOption = Annotated[
    str | None, typer.Option(help="Training software (default: the newest Megatron); see planner stacks.")
]
TokensOption = Annotated[
    str | None, typer.Option(help="Tokens of the whole run, such as 15.6T: adds days, money and energy.")
]
AssumeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--assume",
        metavar="KEY=VALUE",
        help="Change an assumption about the whole run, such as pue=1.3; repeatable.",
    ),
]
HeadroomOption = Annotated[str, typer.Option(help="Share of each device's memory to keep free.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="AXIS=V[,V...]", help="Allow only these values of an axis; repeatable."),
]
MtpOption = Annotated[bool, typer.Option("--mtp", help="Train multi-token-prediction modules along.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Also write the plan to this file.")
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"planner {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="\b\nExample:\n  planner plan llama-3.1-405b h100-sxm-roce --gpus 16384 \\\n"
    "    --seq-len 8192 --global-batch 2048 --tokens 15.6T"
)
@_answers
def plan(
    model: ModelArgument,
    cluster: ClusterArgument,
    gpus: GpusOption = None,
    seq_len: SeqLenOption = None,
    global_batch: BatchOption = None,
    precision: PrecisionOption = None,
    optimizer: OptimizerOption = "adamw",
    stack: StackOption = None,
    tokens: TokensOption = None,
    objective: Annotated[str, typer.Option(help="What to minimise.")] = "step_time",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="AXIS=V[,V...]", help="Allow only these values of an axis; repeatable."
        ),
    ] = None,
    headroom: HeadroomOption = "5%",
    top: Annotated[int, typer.Option(min=1, help="How many configurations to show.")] = 10,
    mtp: MtpOption = False,
    assume: AssumeOption = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> int:
    """Find the fastest configuration that fits, and say why it is."""
    from dataclasses import replace

    request = _request(
        model, cluster, gpus, seq_len, global_batch, precision, optimizer, stack, tokens, settings or [],
        headroom, mtp, assume,
    )  # fmt: skip
    _check_output(output)
    from planner.plan import make_plan

    with _progress("searching"):
        found = make_plan(replace(request, objective=objective, top=top))
    return _deliver(found, as_json, output)


@app.command(
    epilog='\b\nExample:\n  planner estimate Qwen/Qwen3-30B-A3B "4x8 h100 400G-ib" --set tp=1 --set ep=8'
)
@_answers
def estimate(
    model: ModelArgument,
    cluster: ClusterArgument,
    gpus: GpusOption = None,
    seq_len: SeqLenOption = None,
    global_batch: BatchOption = None,
    precision: PrecisionOption = None,
    optimizer: OptimizerOption = "adamw",
    stack: StackOption = None,
    tokens: TokensOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="AXIS=V", help="Value of an axis, such as tp=8; repeatable."),
    ] = None,
    headroom: HeadroomOption = "5%",
    mtp: MtpOption = False,
    assume: AssumeOption = None,
    lora_rank: Annotated[
        int | None, typer.Option(help="Train LoRA adapters of this rank on a frozen model.")
    ] = None,
    frozen_bits: Annotated[int, typer.Option(help="Bits of a frozen weight: 16, 8 or 4.")] = 16,
    memory: Annotated[
        bool, typer.Option("--memory", help="Show what takes the memory, by pipeline rank, phase and part.")
    ] = False,
    stage: Annotated[int | None, typer.Option(help="With --memory: this pipeline rank alone.")] = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> int:
    """Predict time and memory of one named configuration, or say which rule it breaks."""
    from dataclasses import replace

    request = _request(
        model, cluster, gpus, seq_len, global_batch, precision, optimizer, stack, tokens, settings or [],
        headroom, mtp, assume,
    )  # fmt: skip
    request = replace(request, lora_rank=lora_rank, frozen_bits=frozen_bits)
    _check_output(output)
    from planner.plan import make_estimate

    with _progress("estimating"):
        found = make_estimate(request)
    if not (memory and found.choices):
        return _deliver(found, as_json, output)
    from planner.cli_memory import explain_memory
    from planner.spec.load_plan import save_plan

    if output is not None:
        save_plan(found, output)
    with _progress("explaining memory"):
        answer = explain_memory(request, found, stage)
    return _tell(answer, as_json)


def _check_output(output: Path | None) -> None:
    """Refuse a target that cannot be written before any work is done."""
    if output is not None:
        from planner.spec.load_plan import check_plan_target

        check_plan_target(output)


@app.command(epilog="\b\nExample:\n  planner model deepseek-ai/DeepSeek-V3 --seq-len 4096 --json")
@_answers
def model(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Name, id or config.json; none lists the catalog."),
    ] = None,
    seq_len: SeqLenOption = None,
    batch: Annotated[int, typer.Option(help="Sequences the FLOPs are counted for.")] = 1,
    mtp: MtpOption = False,
    as_json: JsonOption = False,
) -> int:
    """Count a model's parameters and FLOPs, or list the models that planner ships."""
    _check_count("seq-len", seq_len)
    _check_count("batch", batch)
    from planner.report.listings import catalog_facts, model_facts
    from planner.report.listings_text import catalog_document, model_document
    from planner.spec.load_model import load_model

    if model is None:
        models = catalog_facts()
        _say_json({"models": models}) if as_json else _say(catalog_document(models))
    else:
        facts = model_facts(load_model(model, mtp), seq_len, batch)
        _say_json(facts) if as_json else _say(model_document(facts))
    return 0


@app.command(epilog="\b\nExample:\n  planner clusters dgx-h100 --gpus 64")
@_answers
def clusters(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[CLUSTER]", help="Name, YAML file or shorthand; none lists all."),
    ] = None,
    gpus: GpusOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show a cluster with its links, sources and unverified numbers, or list those that planner ships."""
    from planner.report.listings import named_cluster, shipped_clusters
    from planner.report.listings_text import cluster_document, clusters_document

    if name is None:
        every = shipped_clusters()
        _say_json({"clusters": every}) if as_json else _say(clusters_document(every))
    else:
        facts = named_cluster(name, gpus)
        _say_json(facts) if as_json else _say(cluster_document(facts))
    return 0


@app.command(epilog="\b\nExample:\n  planner stacks megatron-2026")
@_answers
def stacks(
    name: Annotated[
        str | None, typer.Argument(metavar="[STACK]", help="Name or YAML file; none lists all.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Show the numbers of a training stack, or list those that planner ships."""
    from planner.catalog.load_stacks import load_stack
    from planner.report.listings import shipped_stacks, stack_facts
    from planner.report.listings_text import stack_document, stacks_document

    if name is None:
        every = shipped_stacks()
        _say_json({"stacks": every}) if as_json else _say(stacks_document(every))
    else:
        facts = stack_facts(load_stack(name))
        _say_json(facts) if as_json else _say(stack_document(facts))
    return 0


def _tell(answer: Answer, as_json: bool) -> int:
    """Print an answer as a document or as facts, and say with the exit code whether something was found."""
    _say_json(answer.facts) if as_json else _say(answer.document)
    return 0 if answer.found else 1


def _updates(spinner: object) -> Callable[[str], object]:
    """What changes the text of a spinner; nothing where there is none."""
    update: Callable[[str], object] = getattr(spinner, "update", lambda text: None)
    return update


@app.command(
    epilog="\b\nExample:\n  planner compare llama-3.1-70b --clusters dgx-h100,aws-p5,dgx-b200 \\\n"
    "    --gpus 1024 --tokens 15T --objective cost --assume 'aws-p5:price=3 $/h'"
)
@_answers
def compare(
    model: ModelArgument,
    clusters: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B,...", help="Clusters, with commas between; repeatable."),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="N[,N...]", help="Devices of all, or of each (default: whole clusters)."),
    ] = None,
    seq_len: SeqLenOption = None,
    global_batch: BatchOption = None,
    precision: PrecisionOption = None,
    optimizer: OptimizerOption = "adamw",
    stack: StackOption = None,
    tokens: TokensOption = None,
    objective: Annotated[
        str, typer.Option(help="What to order by: step_time, days, cost or energy.")
    ] = "step_time",
    settings: SettingsOption = None,
    headroom: HeadroomOption = "5%",
    mtp: MtpOption = False,
    assume: AssumeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show the best plan of several clusters side by side: time, money, energy, what binds."""
    request = _request(
        model, "", None, seq_len, global_batch, precision, optimizer, stack, tokens, settings or [],
        headroom, mtp, assume,
    )  # fmt: skip
    from planner import cli_campaign

    with _progress("comparing") as spinner:
        answer = cli_campaign.compare(request, clusters or [], gpus, objective, _updates(spinner))
    return _tell(answer, as_json)


@app.command(epilog="\b\nExample:\n  planner size llama-3.1-70b dgx-h100 --tokens 15T --days 60")
@_answers
def size(
    model: ModelArgument,
    cluster: ClusterArgument,
    days: Annotated[str | None, typer.Option(metavar="D", help="Fewest GPUs that end within D days.")] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="$", help="Fastest within a budget, such as 5M.")
    ] = None,
    least: Annotated[bool, typer.Option("--min", help="Fewest GPUs that fit at all.")] = False,
    max_gpus: Annotated[
        int | None, typer.Option(help="Most GPUs to look at (default: all; 131,072 of a node type).")
    ] = None,
    spare_nodes: Annotated[
        str | None, typer.Option(metavar="N", help="Nodes held beside the job, or: enough.")
    ] = None,
    seq_len: SeqLenOption = None,
    global_batch: BatchOption = None,
    precision: PrecisionOption = None,
    optimizer: OptimizerOption = "adamw",
    stack: StackOption = None,
    tokens: TokensOption = None,
    settings: SettingsOption = None,
    headroom: HeadroomOption = "5%",
    mtp: MtpOption = False,
    assume: AssumeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say how many GPUs to take: the fewest that fit or end in time, or the fastest for a budget."""
    _check_count("max-gpus", max_gpus)
    request = _request(
        model, cluster, max_gpus, seq_len, global_batch, precision, optimizer, stack, tokens, settings or [],
        headroom, mtp, assume,
    )  # fmt: skip
    from planner import cli_campaign

    with _progress("sizing") as spinner:
        answer = cli_campaign.size(request, days, budget, least, spare_nodes, _updates(spinner))
    return _tell(answer, as_json)


@app.command(epilog="\b\nExample:\n  planner assumptions --assume pue=1.3")
@_answers
def assumptions(assume: AssumeOption = None, as_json: JsonOption = False) -> int:
    """List what is assumed about whole runs (failures, checkpoints, power, prices), with sources."""
    from planner import cli_campaign

    return _tell(cli_campaign.assumptions(assume or ()), as_json)


@app.command(
    epilog="\b\nExample:\n  planner schedule --schedule zb-h1 --pp 4 --microbatches 8 --f 1 --b 1.2 --w 0.8"
)
@_answers
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
        bool, typer.Option("--moe-overlap", help="Interleaved: one more warm-up forward, as Megatron's.")
    ] = False,
    svg: Annotated[Path | None, typer.Option(help="Also draw the schedule into this SVG file.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Time a pipeline schedule exactly, count what it holds in flight, and draw it."""
    from planner import cli_schedule

    question = cli_schedule.ScheduleQuestion(
        schedule, pp, microbatches, vpp, f, b, w, comm, fb, group_size, memory_limit, moe_overlap
    )
    answer = cli_schedule.answer_schedule(question)
    if svg is not None:
        cli_schedule.write_svg(answer, svg)
    if as_json:
        _say_json(cli_schedule.schedule_facts(answer))
    else:
        from planner.report.text import terminal

        _say(cli_schedule.schedule_document(answer, terminal().width))
    return 0


app.command(epilog=EXPORT_EPILOG)(_answers(export))
app.command(epilog=CHECK_EPILOG)(_answers(check))
app.command(epilog=TRACE_EPILOG)(_answers(trace))
app.command(epilog=VALIDATE_EPILOG)(_answers(validate))


def main() -> None:
    """The `planner` command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(
                errors="replace"
            )  # a terminal that cannot show a character is no reason to fail
    app(prog_name="planner")


if __name__ == "__main__":
    main()
