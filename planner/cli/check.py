"""What does `planner check` do? Reads a launcher's own files: legal, does it fit, how fast, what would be better?

Left out: reading the files (`planner/frameworks/`) and finding something better (`planner/answer/plan.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.ask.question import EstimateQuestion, Question
from planner.cli.files import (
    as_the_framework_allows,
    config_among,
    config_of,
    placed,
    problem_of,
    read_files,
    readable,
    recognize,
    require_launch,
)
from planner.cli.options import JsonOption, Shown
from planner.cli.output import say, say_json
from planner.dialect import in_words, option
from planner.dryrun.extra import Run, runner_for
from planner.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from planner.dryrun.question import DryRun
    from planner.frameworks.framework import Framework, ParsedConfig
    from planner.spec.config import ParallelConfig
    from planner.spec.findings import Finding
    from planner.spec.model import ModelSpec
    from planner.spec.planfile import Choice
    from planner.spec.rule import Problem, Violation

EPILOG = "\b\nExample:\n  planner check launch.sh --cluster dgx-h100 --gpus 256"

FilesArgument = Annotated[
    list[Path], typer.Argument(metavar="FILES", help="Arguments, script, JSON, TOML or YAML.")
]
SUBJECT = {  # the files say the rest, and count where they say otherwise
    "model": Shown(False, text="Model, where the files don't describe it."),
    "cluster": Shown(False, True, text='Cluster name, YAML file, or "64x8 h100 400G-ib".'),
    "gpus": Shown(text="Devices (default: what the files say)."),
    "stack": Shown(text="Training software (default: the framework's newest)."),
    "seq_len": Shown(text="Tokens in a sequence, where the files don't say."),
    "global_batch": Shown(text="Sequences per step, or tokens (16Mtok), where the files don't say."),
    "set": Shown(text="Settings that something better must have; repeatable."),
}


def check(
    files: FilesArgument, asked: Annotated[EstimateQuestion, SUBJECT], as_json: JsonOption = False
) -> int:
    """Check launch files: legality, memory, speed. Says what would be faster as well."""
    run = runner_for(asked.dryrun, asked.alloc_conf)
    texts, not_read = read_files(files)
    answer = check_files(texts, asked, config_among(files), run)
    answer["notes"] = [*not_read, *answer["notes"]]
    if as_json:
        say_json(answer)
    else:
        from planner.report.checked import checked_document

        say(checked_document(answer), whole_lines=True)
    return 0 if answer["legal"] and answer["verdict"] != "does_not_fit" else 1


def _sequences(batch: str | int | None, seq_len: int | None) -> int | None:
    """A global batch in sequences, which may be given in tokens. Raises `InputError`."""
    from planner.space.batch import global_batch_of, in_tokens

    if batch is None:
        return None
    text = str(batch)
    if seq_len is None and in_tokens(text):
        hint = f"add {option('seq_len', '8k')}, say"
        raise InputError("a batch in tokens needs the length of its sequences", text, hint)
    return global_batch_of(text, seq_len or 1, 1)[0]


def check_files(
    files: Mapping[str, str], asked: Question, config_file: str | None = None, run: Run | None = None
) -> dict[str, Any]:
    """Everything `planner check` says, as plain values. Raises `PlannerError`.

    `config_file`: the model's config.json beside the files, which counts where they don't describe the model. `run`:
    what runs the configuration dry, whose answer is told too.
    """
    from planner.ask.request import check_request
    from planner.frameworks.shell.debugging import debugging_notes
    from planner.frameworks.shell.script import unclear_said
    from planner.space.framework_rules import all_rules_for
    from planner.space.legality import explain_config
    from planner.spec.config import AXES, named_value
    from planner.spec.stack.kinds import ContextExchange

    check_request(asked)
    files, said = readable(files)
    framework = recognize(files)
    parsed = placed(framework.parse(files), asked.cluster, asked.gpus)
    require_launch(files, parsed, asked)
    said += [note for note in unclear_said(files) if note not in parsed.notes] + debugging_notes(files)
    batch = _sequences(asked.global_batch, parsed.seq_len or asked.seq_len)
    for found, given, what in (
        (parsed.seq_len, asked.seq_len, f"a sequence length of {{:,}}, {option('seq_len')} says {{:,}}"),
        (parsed.global_batch, batch, f"a global batch of {{:,}}, {option('global_batch')} says {{:,}}"),
    ):
        if found and given and found != given:
            said.append(f"the files state {what.format(found, given)}: the files count")
    parsed = replace(
        parsed, seq_len=parsed.seq_len or asked.seq_len, global_batch=parsed.global_batch or batch
    )
    if not asked.model and parsed.model is None and config_file is not None:
        asked = replace(asked, model=config_file)
    of_job: list[Finding] = []
    problem, assumed = problem_of(parsed, framework, asked, of_job)
    config = config_of(parsed, problem)
    stated = parsed.layers if config.pp > 1 else ()
    own = as_the_framework_allows(problem, framework, stated)
    judge = Judge(problem, asked, of_job)
    broken = explain_config(config, own, all_rules_for(problem.stack.framework))
    broken += parsed.violations
    if stated and sum(stated) != problem.model.num_layers:
        broken = (*broken, _other_layers(stated, problem.model.num_layers))
    broken += _other_exchange(config, problem.model, parsed)
    _require_modelled(broken, config.describe(problem.context_kinds[0]))
    if config.zero not in problem.stack.limits.zero and not broken:
        assumed.append(
            f"ZeRO {config.zero} was not measured on stack {problem.stack.name}; its times are a guess"
        )
    if config.cp > 1 and problem.stack.communication.cp_exchange is ContextExchange.NONE and not broken:
        assumed.append(
            f"context parallelism was not measured on stack {problem.stack.name}; its times are a guess"
        )
    layers, over = config.recompute_layers, config.recompute_layers % config.vpp
    if over and layers < -(-problem.model.num_layers // config.pp) and not broken:
        assumed.append(
            f"of {layers} layers that a rank recomputes {layers - over} are modelled, as many in each of {config.vpp} "
            "virtual stages"
        )
    refused, told = framework.starts_on(parsed, config, problem)
    answer: dict[str, Any] = {
        "framework": framework.name,
        "version": parsed.version,
        "releases": list(parsed.releases or (parsed.version,)),
        "config": config.describe(problem.context_kinds[0]),
        "axes": {axis: named_value(axis, getattr(config, axis)) for axis in sorted(AXES)},
        "devices": problem.cluster.num_devices,
        "legal": not (broken or refused or parsed.unknown),
        "violations": [{"rule": b.rule, "reason": b.reason, "hint": b.hint} for b in (*broken, *refused)],
        "unknown_options": list(parsed.unknown),
        "notes": [in_words(note) for note in (*said, *told, *parsed.notes, *assumed, *_full_length(problem))],
        "verdict": "not_costed",
        "better": None,
    }
    if not broken:
        choice = judge.cost(config, stated)
        answer |= _figures(choice) | (_run_dry(choice, asked, problem, config, stated, run) if run else {})
    hidden = _overlapping(problem)
    best = (judge if hidden is problem else Judge(hidden, asked)).best()
    if best is not None:
        answer["better"] = _better(judge.problem, hidden, best, config, framework, parsed, answer, files)
    return answer


def _run_dry(
    choice: Choice,
    asked: Question,
    problem: Problem,
    config: ParallelConfig,
    stated: tuple[int, ...],
    run: Run,
) -> dict[str, Any]:
    """What a dry run of the files' configuration says beside the prediction."""
    from planner.dryrun.confirm import agreement, question_about
    from planner.report.words import dumped

    def ran() -> DryRun:
        if not asked.model:
            must = "a dry run needs the model's config.json, beside the files or named"
            raise InputError(must, "none", option("model", "config.json"))
        devices, stack = problem.cluster.num_devices, problem.stack.name
        return run(question_about(asked, config, problem.job, devices, stack, stated))

    return {"dryrun": dumped([agreement(choice, ran)])[0]}


def _full_length(problem: Problem) -> tuple[str, ...]:
    """What is taken of the data where nothing is said, which launch files don't hold."""
    if problem.job.mean_length is not None:
        return ()
    return (
        f"every sequence is taken as one document of {problem.job.seq_len:,} tokens; packed or shorter ones take less, "
        f"which {option('mean_len')} says",
    )


def _overlapping(problem: Problem) -> Problem:
    """The problem with collectives that the files run alone hidden as far as the stack hides them, and tokens sent to
    their experts as it sends them: what is better may ask for that. A calibrated stack stays as it was measured."""
    from planner.catalog.load_options import OPTIONS
    from planner.catalog.load_stacks import load_stack
    from planner.catalog.stack_options import ALL_GATHERED, DP_SERIAL, GATHER_SERIAL, SEPARATOR, TP_SERIAL

    stack = problem.stack
    alone = (DP_SERIAL, GATHER_SERIAL, TP_SERIAL, ALL_GATHERED)
    base, *named = stack.name.split(SEPARATOR)
    serial = {option.name: option.fields for option in OPTIONS if option.name in alone}
    found = [section for name in named if name in serial for section in serial[name].items()]
    if not found or stack.calibration:
        return problem
    own, shown = load_stack(base), dict[str, Any]()
    for section, fields in found:
        of_own = {field: getattr(getattr(own, section), field) for field in fields}
        shown[section] = shown.get(section, getattr(stack, section)).model_copy(update=of_own)
    return replace(problem, stack=stack.model_copy(update=shown))


def _require_modelled(broken: Sequence[Violation], given: str) -> None:
    """Raise `UnsupportedError` where all that a configuration breaks is what planner does not model: the framework
    refuses nothing of it, and no verdict is known. `given`: the configuration in words."""
    if broken and all(one.unmodelled for one in broken):
        how = f"no verdict on these files: {broken[0].hint} to be told one"
        raise UnsupportedError(broken[0].must, given, how)


def _other_layers(stated: tuple[int, ...], layers: int) -> Violation:
    from planner.spec.rule import Violation

    reason = f"the pipeline holds {sum(stated)} layers, the model has {layers}"
    return Violation("layers-stated", reason, "change the split or the number of layers")


def _other_exchange(config: ParallelConfig, model: ModelSpec, parsed: ParsedConfig) -> tuple[Violation, ...]:
    """The ring that the files ask for and the model's attention does not take (of others a rule says so); where they
    leave the exchange open it is the one that it takes."""
    from planner.spec.config import ContextKind
    from planner.spec.rule import Violation

    taken = model.context_kinds[0]
    if config.cp == 1 or parsed.axes.get("cp_kind") != ContextKind.P2P or taken is ContextKind.P2P:
        return ()
    must = "cp with sliding windows needs all-gather or all-to-all, with attention sinks all-to-all; p2p"
    return (Violation("cp-kind", must, f"set the exchange to {taken.name.lower()}"),)


class Judge:
    """Costs configurations of one problem, and finds the best, as `planner.plan` does."""

    def __init__(self, problem: Problem, asked: Question, assumed: Sequence[Finding] = ()) -> None:
        from planner.answer.choices import Chooser
        from planner.ask.request import cost_model, kept_back
        from planner.catalog.load_campaign import load_assumptions
        from planner.cost.simulated import simulator_of

        self.problem, self.asked, self.assumed = problem, asked, assumed
        self.model, self.kept_back = cost_model(problem), kept_back(asked, problem)
        self.simulator = simulator_of(self.model)
        campaign = load_assumptions(asked.assume)
        self.chooser = Chooser(problem, self.model, self.simulator, self.kept_back, campaign)

    def cost(self, config: ParallelConfig, stated: tuple[int, ...] = ()) -> Choice:
        """Everything predicted about one legal configuration, its layers dealt as stated, else as the stack deals."""
        from planner.answer.choices import Chooser
        from planner.answer.routing import BusiestRank
        from planner.cost.simulated import simulator_of
        from planner.spec.config import ConfigTable

        chooser, table = self.chooser, ConfigTable.of([config])
        if stated:
            model = self.model.with_split(stated)
            chooser = Chooser(model.problem, model, simulator_of(model), self.kept_back, chooser.campaign)
        return BusiestRank(chooser.problem, self.assumed).noted(chooser.choices(table)[0])

    def best(self) -> Choice | None:
        """The fastest legal configuration that fits, None if there is none; a borderline one where no other does; one
        that offloads where nothing fits without."""
        offloads = self.problem.stack.limits.offload
        found = self._best(self.asked.restrict)
        if found is None and "offload" not in self.asked.restrict and len(offloads) > 1:
            found = self._best({**self.asked.restrict, "offload": offloads})
        return found

    def _best(self, restrict: Mapping[str, tuple[int, ...]]) -> Choice | None:
        from planner.solve.refine import FINALISTS, refine
        from planner.solve.search import SearchResult, search
        from planner.space.enumerate import enumerate_configs
        from planner.space.framework_rules import rules_for

        space = enumerate_configs(self.problem, rules_for(self.problem.stack), restrict)
        if not len(space):
            return None
        room = self.chooser.room
        allowed = room.sure

        def look(most: int) -> SearchResult:
            return search(self.model, space, allowed, most, name_smallest=False)

        first = look(FINALISTS)
        for more in room.tiers[1:]:
            if len(first.best):
                break
            allowed = more
            first = look(FINALISTS)
        found = refine(self.model, self.simulator, first, look)
        choices = self.chooser.choices(found.best)
        return choices[0] if choices else None


def _figures(choice: Choice) -> dict[str, Any]:
    from planner.report.outcome import routing_of
    from planner.report.words import dumped

    return {
        "verdict": str(choice.memory.verdict),
        "step_time_s": choice.step_time,
        "tokens_per_s_per_gpu": choice.tokens_per_second_per_device,
        "mfu": choice.mfu,
        "peak_memory_bytes": choice.memory.peak,
        "memory_limit_bytes": choice.memory.limit,
        "host_memory_bytes": sum(choice.memory.host.values()),
        "host_memory_limit_bytes": choice.memory.host_limit,
        "host_memory_short_bytes": choice.memory.host_short,
        "time": choice.time,
        "routing": dumped(routing_of(choice)),
    } | ({} if choice.run is None else {"days": choice.run.days, "cost_usd": choice.run.cost})


def _better(
    problem: Problem,
    hidden: Problem,
    best: Choice,
    config: ParallelConfig,
    framework: Framework,
    parsed: ParsedConfig,
    now: Mapping[str, Any],
    files: Mapping[str, str],
) -> dict[str, Any] | None:
    """The best configuration of the same job, found as `hidden`, and the change to the files in their own syntax, or
    by name where they are not of the kind that the export writes."""
    from planner.cli.changes import file_changes, setting_changes
    from planner.frameworks.framework import launch_in

    faster = now.get("step_time_s", float("inf")) / best.step_time - 1
    if now["verdict"] in ("fits", "borderline") and faster <= 0.005:
        return None
    other = best.config.parallel()
    launches = launch_in(problem, config, parsed.layers), launch_in(hidden, other, choice=best)
    lines, complete = file_changes(files, framework, parsed.version, *launches)
    changes = setting_changes(config, other, problem.context_kinds)
    if not complete:
        lines = ["change of settings:", *(f"  {change}" for change in changes), *lines]
    return {
        "config": best.config.text,
        "faster": None if faster == float("inf") else faster,
        **_figures(best),
        "settings": changes,
        "diff": lines,
    }
