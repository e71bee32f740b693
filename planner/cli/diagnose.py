"""What does `planner diagnose` do? Holds a run's log against the prediction, and says what explains the difference.

Left out: causes and their likelihood (`calibrate/`), and how it looks (`report/diagnosis.py`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.ask.question import Question
from planner.ask.readers import SHARE
from planner.cli.options import JsonOption
from planner.cli.output import say, say_json
from planner.errors import InputError
from planner.units import format_capacity, format_time

if TYPE_CHECKING:
    from planner.calibrate.correction.estimate import Observation
    from planner.calibrate.diagnosis.hypotheses import Evidence
    from planner.calibrate.logs.lines import LogFacts

EPILOG = (
    "Logs are text of axolotl, composer, DeepSpeed, fms-fsdp, InternEvo, Levanter, litgpt, LLaMA-Factory, llm.c, "
    "MaxText, Megatron-LM, Megatron-Bridge, ms-swift, nanochat, nanoGPT, nanotron, NeMo, NeMo Automodel, NeMo-RL, "
    "OLMo-core, PaddleNLP, torchtitan, torchtune, transformers and verl, or trainer_state.json, train_results.json, "
    "lines of JSON, CSV of wandb, TensorBoard and MLflow, in UTF-8 or UTF-16, packed by gzip, bzip2 or xz or not."
    "\n\n\b\nExamples:\n"
    "  planner diagnose llama-3-8b '4x8 h100 400G-ib' --stack torchtitan-2024 --seq-len 8192 \\\n"
    "    --run train.log:tp=1,zero=3,global_batch=32 --run one_node.log:gpus=8,global_batch=8,tp=1,zero=3\n"
    "  planner diagnose mixtral-8x7b '2x8 h100 400G-ib' --seq-len 2048 --global-batch 128 \\\n"
    "    --set tp=2 --set ep=8 --tflops 130\n"
    "  planner diagnose llama-3-70b dgx-h100 --gpus 16 --global-batch 64 --run oom.log:tp=8"
)


def diagnose(
    asked: Question,
    run: Annotated[
        list[str] | None,
        typer.Option(
            "--run",
            metavar="LOG[:AXIS=V,...]",
            help="A log, or a step time, with its own axes; further runs of the same machine help.",
        ),
    ] = None,
    measured: Annotated[
        str | None, typer.Option(metavar="TIME", help="Step time instead of a log, such as '4.3 s'.")
    ] = None,
    tflops: Annotated[
        float | None, typer.Option(help="Model TFLOP/s per device as reported, where no step time is known.")
    ] = None,
    mfu: Annotated[str | None, typer.Option(metavar="%", help="MFU as reported, such as 20%.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Explain a slow run or an out-of-memory failure. Says what to measure and what to change."""
    from planner.calibrate.diagnosis.contradiction import contradiction, counted_otherwise
    from planner.calibrate.diagnosis.diagnose import diagnose as find
    from planner.calibrate.own_runs import is_time, parse_run
    from planner.report import words
    from planner.report.diagnosis import diagnosis_document, diagnosis_facts

    if measured is not None and not is_time(parse_run(measured)[0]):
        hint = "write it like '4.3 s' or '9300 tokens/s/GPU'; --run takes a log"
        raise InputError("--measured must be a step time or a throughput", repr(measured), hint)
    texts = [*(run or ()), *([measured] if measured else ())]
    if not texts and tflops is None:
        given = "nothing" if mfu is None else "--mfu alone"
        raise InputError("something measured must be given", given, "give --run, --measured or --tflops")
    _check_axes(asked, texts)
    evidence, marks, notes = _evidence(asked, texts, tflops, mfu)
    code = _tell_memory(asked, texts, as_json, alone=not evidence)
    if not evidence:
        return code
    contradicted = [contradiction(part) for part in evidence]
    notes += words.texts(note for part in evidence if (note := counted_otherwise(part)))
    evidence = [
        replace(part, mfu=None, flops=None) if wrong else part
        for part, wrong in zip(evidence, contradicted, strict=True)
    ]
    found = find(evidence, marks)
    if found.beyond:
        notes.append(
            f"as described, the run needs {format_capacity(found.beyond)} more than a device has, and yet it ran: "
            "something that saves memory is not named, such as --set recompute=full, zero=... or pp=..."
        )
    if as_json:
        say_json(diagnosis_facts(found, contradicted))
    else:
        say(diagnosis_document(found, notes, contradicted))
    return 0


def _check_axes(asked: Question, texts: list[str]) -> None:
    """Refuse an axis of --set that every run has another value of, so that none is of it. Raises `InputError`."""
    from planner.calibrate.own_runs import parse_run, request_of
    from planner.spec.config import value_text

    of_runs = [request_of(asked, parse_run(text)[1]).restrict for text in texts]
    for axis, values in asked.restrict.items():
        if of_runs and all(own[axis] != values for own in of_runs):
            given, own = (value_text(axis, found[axis][0]) for found in (asked.restrict, of_runs[0]))
            must = f"{axis} of --set must be that of a run which does not state its own"
            raise InputError(must, f"--set {axis}={given} and {axis}={own} in {texts[0]}", "leave one out")


def _evidence(
    asked: Question, texts: list[str], tflops: float | None, mfu: str | None
) -> tuple[list[Evidence], frozenset[str], list[str]]:
    """What every run shows, what logs repeat of their options, and what was assumed."""
    from planner.calibrate.diagnosis.hypotheses import Evidence, logged_convention, model_flops
    from planner.calibrate.logs.arguments import read_marks, slow_timers
    from planner.calibrate.own_runs import observe, parse_run
    from planner.cost.mfu import MfuConvention

    share = None if mfu is None else SHARE.read(mfu, "--mfu")
    if share == 0:
        raise InputError("--mfu must be above 0%", str(mfu), "write it like 20%")
    if tflops is not None and not 1e-3 <= tflops < 1e5:
        raise InputError("--tflops must be from 0.001 to below 100,000, of one device", f"{tflops:g}")
    if texts and None not in (tflops, mfu):
        must = "beside a step time one rate must be given, --tflops or --mfu"
        raise InputError(must, f"--tflops {tflops:g} --mfu {mfu}", "leave one out")
    found: list[Evidence] = []
    marks: frozenset[str] = frozenset()
    notes: list[str] = []
    for text in texts:
        source, _ = parse_run(text)
        facts = _log(source)
        if facts is not None:
            marks |= read_marks(Path(source))
            if not facts.steps:
                continue
        try:
            seen, said = observe(asked, text)
        except InputError as error:
            if facts is None or not (facts.ooms or facts.lost):
                raise
            notes.append(f"{error.must}; {error.given}")  # its message of memory is explained all the same
            continue
        notes += [line for line in said if line not in notes]
        if facts is not None:
            marks |= slow_timers(facts, seen.seconds)
            notes += _contradicting(facts, seen)
        found.append(Evidence(seen, *_logged(facts, seen.problem.stack.overhead.logs_reserved)))
    if not texts and tflops is not None:
        seen, said = observe(asked, "1 s")
        seconds = model_flops(seen) / (tflops * 1e12)
        found.append(Evidence(replace(seen, seconds=seconds)))
        notes += list(said)
        half = logged_convention(seen.problem.stack) is MfuConvention.CAUSAL_HALF
        counted = "causal attention counted at half" if half else "causal attention counted in full"
        notes.append(
            f"{tflops:g} TFLOP/s per device mean {seconds:.4g} s a step, counting {counted} as logs of "
            f"{seen.problem.stack.name} do"
        )
    for evidence in found:
        _check_possible(evidence.seen, tflops)
    if share is not None and found:
        found[0] = replace(found[0], mfu=share, flops=None)
    elif tflops is not None and texts and found:
        found[0] = replace(found[0], flops=tflops * 1e12)
    return found, marks, notes


def _check_possible(seen: Observation, tflops: float | None) -> None:
    """Refuse what is above the device's peak with only the half of attention that is computed counted."""
    from planner.calibrate.diagnosis.hypotheses import model_flops, peak_of
    from planner.cost.mfu import MfuConvention

    peak, computed = peak_of(seen), model_flops(seen, MfuConvention.CAUSAL_HALF)
    if computed / seen.seconds > peak:
        least = format_time(computed / peak)
        must = f"a step of this configuration must take at least {least}, all devices at their peak"
        hint = "check the job, the devices and the number; with --tflops, that it is of one device"
        raise InputError(must, format_time(seen.seconds), hint)
    most = peak * model_flops(seen) / computed
    if tflops is not None and tflops * 1e12 > most:
        must = f"--tflops must be at most {most / 1e12:.0f}, the device's peak"
        raise InputError(must, f"{tflops:g}", "give TFLOP/s of one device")


def _log(source: str) -> LogFacts | None:
    from planner.calibrate.logs.lines import read_log
    from planner.calibrate.own_runs import is_time

    return None if is_time(source) else read_log(Path(source))


def _logged(facts: LogFacts | None, reserved: bool) -> tuple[float | None, float | None, float | None]:
    """Peak memory of the stack's counter, MFU and FLOP rate per device that a log reports."""
    if facts is None or not facts.steps:
        return None, None, None
    values = [v for line in facts.memory if (v := line.reserved if reserved else line.allocated) is not None]
    last = facts.steps[-1]
    flops = last.flops * 1e12 if last.flops else None
    return max(values, default=None), None if flops else last.mfu, flops


def _contradicting(facts: LogFacts, seen: Observation) -> list[str]:
    """What there is to say where a log's MFU is not that of its FLOP rate."""
    from planner.calibrate.diagnosis.hypotheses import peak_of
    from planner.report.words import texts
    from planner.spec.findings import finding

    last = facts.steps[-1] if facts.steps else None
    if last is None or not last.flops or not last.mfu:
        return []
    flops = last.flops * 1e12
    meant = flops / peak_of(seen)
    if 0.9 < last.mfu / meant < 1.1:
        return []
    name = Path(facts.name).name
    return list(texts([finding("mfu_contradicts_flops", log=name, mfu=last.mfu, flops=flops, meant=meant)]))


def _tell_memory(asked: Question, texts: list[str], as_json: bool, alone: bool) -> int:
    """Explain the memory of logs that ran out of it, or say nothing of time."""
    from planner.calibrate.diagnosis.explain_memory import explain
    from planner.calibrate.own_runs import configured, parse_run
    from planner.report.diagnosis import memory_story_document, memory_story_facts
    from planner.report.words import worded

    told = False
    for text in texts:
        facts = _log(parse_run(text)[0])
        if facts is None or not (facts.ooms or facts.lost or not facts.steps):
            continue
        problem, config, _ = configured(asked, text, facts)
        story = worded(explain(facts, problem, config))
        if not as_json:
            say(memory_story_document(story))
        elif alone:
            say_json(memory_story_facts(story))
        told = True
    if alone and not told:
        raise InputError(
            "something measured must be given", "nothing in these logs", "give --run or --measured"
        )
    return 0
