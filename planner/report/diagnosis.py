"""How does a diagnosis look in a terminal? Verdict, causes by probability, what to measure, what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType

from planner.calibrate.diagnosis.contradiction import Contradiction
from planner.calibrate.diagnosis.diagnose import Diagnosis, Suspect, best_change
from planner.calibrate.diagnosis.explain_memory import MemoryStory, cheapest
from planner.dialect import option
from planner.report.facts import precise_time, speedup
from planner.report.text import bullets, labelled, listing, prose, section
from planner.report.words import dumped, text_of, texts
from planner.report.words.causes import CauseWords, cause_words
from planner.spec.terms import term_name
from planner.units import format_capacity, format_time

SHOWN = 6  # causes
_SURE, _LIKELY = 0.75, 0.3
_TIE = 0.8  # of the likeliest cause's probability: a cause above it is named beside it


def diagnosis_facts(found: Diagnosis, contradicted: Sequence[Contradiction | None] = ()) -> dict[str, Any]:
    """The diagnosis as plain data, in planner's inner units."""
    pays = best_change(found)
    return {
        "contradictions": [
            {
                "run": run,
                "step_time_s": wrong.seconds,
                "mfu_of_step_time": wrong.shown,
                "mfu_given": wrong.given,
                "step_time_of_mfu_s": wrong.seconds / wrong.ratio,
            }
            for run, wrong in enumerate(contradicted)
            if wrong is not None
        ],
        "measured_s": found.measured,
        "predicted_s": found.predicted,
        "gap": found.gap,
        "band": found.band,
        "faster_than_band": found.too_fast,
        "memory_beyond_device_bytes": found.beyond,
        "causes": [
            {
                "cause": f.cause.name
                if f.cause
                else "not_as_described"
                if found.too_fast
                else "as_predicted",
                "title": _words(found, f).title if f.cause else _without_cause(found),
                "probability": f.probability,
                "seconds": f.seconds,
                "share": f.share,
                "severity": _severity(found, f),
                "log_says": list(f.marked),
                "test": _words(found, f).test if f.cause else "",
                "cure": _words(found, f).cure if f.cause else "",
            }
            for f in found.findings
        ],
        "two_causes": {
            "probability": found.two,
            "likeliest": [cause.name for cause in found.together] if found.together else None,
        },
        "pays_most": pays.cause.name if pays is not None and pays.cause is not None else None,
    }


def diagnosis_document(
    found: Diagnosis, notes: list[str], contradicted: Sequence[Contradiction | None] = ()
) -> RenderableType:
    """What contradicts itself first, then the verdict."""
    top = found.findings[0]
    blocks = [block for wrong in contradicted if wrong is not None for block in _contradiction(wrong)]
    by = "by the step time alone: " if blocks else ""
    blocks.append(prose(by + _headline(found), "bold green" if _all_well(found) else "bold yellow"))
    rows = [
        ("measured", precise_time(found.measured), _rate(found, found.measured)),
        ("predicted", precise_time(found.predicted), _rate(found, found.predicted)),
    ]
    blocks.append(labelled(rows))
    if found.too_fast:
        blocks.append(section("Check", bullets(_described(found))))
    lines = [
        (_named(found, f) if f.cause else _without_cause(found),
         f"{f.probability:.0%}", format_time(f.seconds) if f.seconds else "-", f"{f.share:.0%}")
        for f in found.findings[:SHOWN]
    ]  # fmt: skip
    if len(lines) > 1:
        table = listing(("cause", "probable", "takes", "of step"), lines)
        blocks.append(section("What would explain it", table))
    blocks += [prose(text) for text in _together(found)]
    said = [f"the log says {word}" for f in found.findings[:SHOWN] for word in f.marked]
    if said:
        blocks.append(bullets(said))
    if not _all_well(found) and any(f.cause is not None for f in found.findings):
        blocks.append(section("Measure next", prose(_next(found))))
    pays = best_change(found)
    if pays is not None and pays.cause is not None and found.gap > 0:
        gain = min(pays.seconds, found.measured - found.predicted)
        text = f"{_words(found, pays).cure} (up to {format_time(gain)} a step, {gain / found.measured:.0%})"
        blocks.append(section("Pays most", prose(text)))
    elif top.cause is not None:
        blocks.append(section("To do", prose(_words(found, top).cure)))
    if notes:
        blocks.append(section("Notes", bullets(notes)))
    return Group(*blocks)


def _contradiction(wrong: Contradiction) -> list[RenderableType]:
    """What cannot both be true of one run, and what may be behind it."""
    other = wrong.seconds / wrong.ratio
    headline = (
        f"the inputs contradict each other: a step of {precise_time(wrong.seconds)} is {_share(wrong.shown)} MFU, "
        f"and {_share(wrong.given)} was reported, which would be a step of {precise_time(other)}"
    )
    tokens = wrong.sequences * wrong.seq_len
    checks = [
        f"FLOPs: the step time is {_share(wrong.half)} MFU with causal attention counted at half, {_share(wrong.full)} "
        "in full",
        f"peak: {wrong.peak / 1e12:,.0f} TFLOP/s, dense, of the job's number format; peaks with sparsity, or of 8 bits "
        "for 16, are twice as high",
        f"tokens of a step: {wrong.sequences:,} sequences of {wrong.seq_len:,}, {tokens:,}; with "
        f"{wrong.ratio * tokens:,.0f} both would hold ({option('global_batch')}, {option('seq_len')})",
        *(
            [
                f"devices: {wrong.devices:,}; with {wrong.devices / wrong.ratio:,.1f} both hold ({option('gpus')})"
            ]
            if wrong.devices >= wrong.ratio
            else []
        ),
        "the time: of one optimizer step, not of a micro-batch or of several steps",
    ]
    return [prose(headline, "bold red"), section("Check first", bullets(checks)), prose("")]


def _share(share: float) -> str:
    return f"{share:.1%}" if share >= 0.01 else f"{100 * share:.2g}%"


def _all_well(found: Diagnosis) -> bool:
    """Is it more probable than all causes together that nothing is wrong?"""
    top = found.findings[0]
    return top.cause is None and top.probability > 0.5 and not found.too_fast


def _without_cause(found: Diagnosis) -> str:
    return "nothing: the run is not as described" if found.too_fast else "nothing: as predicted"


def _described(found: Diagnosis) -> list[str]:
    """What was described of a run that cannot be as fast, and the option that says otherwise."""
    problem, ratio = found.job.problem, found.predicted / found.measured
    job, devices, tokens = problem.job, problem.cluster.num_devices, round(problem.job.tokens_per_step)
    lines = [
        f"batch and sequence: {job.global_batch:,} of {job.seq_len:,} tokens a step ({option('global_batch')}, "
        f"{option('seq_len')}); as predicted with about {tokens / ratio:,.0f} tokens in place of {tokens:,}",
        "units and convention: a time is of one optimizer step, not of a micro-batch; a rate is of one device, its "
        "FLOPs counted as above",
        f"axes: {found.job.config.describe(problem.context_kinds[0])} ({option('set')}, or LOG:AXIS=V)",
        f"model and devices: {problem.model.name} on {devices:,} of {problem.cluster.name} in {job.precision} "
        f"({option('gpus')}, {option('precision')})",
    ]
    if ratio < (1 + found.band) ** 2:
        lines.append(f"or the prediction: of one run in ten it is more than {found.band:.0%} too long")
    return lines


def _headline(found: Diagnosis) -> str:
    top, gap = found.findings[0], found.gap
    if found.two < _LIKELY and not found.explains(top):  # a cause of less than half of the gap is none of it
        top = next(f for f in found.findings if f.cause is None or found.explains(f))
    how = f"{gap:.0%} slower than predicted" if gap > 0 else speedup(1 / (1 + gap), "predicted", 0)
    if found.too_fast:
        said = f"{how}, more than the prediction's error of {found.band:.0%} allows: "
        if top.cause is not None:
            said += f"{_named(found, top)}; else "
        return f"{said}check batch, sequence length, axes, model, units and convention"
    if _all_well(found):
        return f"the run is as fast as predicted ({how}, within the error of the prediction)"
    if top.cause is None:
        second = next((f for f in found.findings if f.cause is not None and found.explains(f)), None)
        other = f", else {_named(found, second)}" if second is not None else ""
        return f"{how}: perhaps the error of the prediction alone{other}"
    if top.cause.reported and gap > 0:  # which says nothing of the time
        slow = next((f for f in found.findings if f.cause is not None and not f.cause.reported), None)
        if slow is not None and slow.probability > _nothing(found):
            return f"{how}: perhaps {_named(found, slow)}; and {_named(found, top)}"
    others = (f for f in found.findings if f is not top and f.cause is not None)
    second = next((f for f in others if found.explains(f)), None)
    if second is not None and second.probability > _TIE * top.probability:
        sure = _sure(top.probability + second.probability)
        return f"{how}: {sure}either {_named(found, top)}; or {_named(found, second)}"
    return f"{how}: {_sure(top.probability)}{_named(found, top)}"


def _sure(probability: float) -> str:
    return "" if probability > _SURE else "probably " if probability > _LIKELY else "perhaps "


def _nothing(found: Diagnosis) -> float:
    return next(finding.probability for finding in found.findings if finding.cause is None)


def _words(found: Diagnosis, suspect: Suspect) -> CauseWords:
    assert suspect.cause is not None, "one finding alone is of nothing"
    return cause_words(suspect.cause.name, found.job.problem.cluster.accelerator.architecture)


def _severity(found: Diagnosis, suspect: Suspect) -> str:
    """How severe it is."""
    return _words(found, suspect).severity.format(suspect.severity) if suspect.cause else ""


def _named(found: Diagnosis, suspect: Suspect) -> str:
    severity = _severity(found, suspect)
    return _words(found, suspect).title + (f", {severity}" if severity else "")


def _together(found: Diagnosis) -> list[str]:
    """One line where two causes are likely."""
    if found.together is None or found.two < _LIKELY:
        return []
    architecture = found.job.problem.cluster.accelerator.architecture
    first, second = (cause_words(cause.name, architecture) for cause in found.together)
    return [f"{found.two:.0%} probable that it is two at once; likeliest: {first.title}, and {second.title}"]


def _rate(found: Diagnosis, seconds: float) -> str:
    flops = found.flops / seconds
    mfu = f"{flops / found.peak:.1%} MFU (dense peak, causal attention counted at half)"
    return f"{flops / 1e12:.0f} TFLOP/s per device, {mfu}"


def _next(found: Diagnosis) -> str:
    real = [f for f in found.findings if f.cause is not None]
    second = next((f for f in real[1:] if f.cause is not None and f.probability > 0.03), None)
    apart = f"; it tells this from: {_words(found, second).title}" if second is not None else ""
    return f"{_words(found, real[0]).test}{apart}"


def memory_story_facts(story: MemoryStory) -> dict[str, Any]:
    """The story as plain data [bytes]."""
    move = cheapest(story.moves)
    return {
        "predicted": story.predicted, "outside": story.outside, "capacity": story.capacity, "phase": story.phase,
        "rank": story.rank, "terms": story.terms, "reported": dict(story.reported), "reasons": dumped(story.reasons),
        "first_aid": story.first_aid and story.first_aid.model_dump(),
        "cheapest_move": move and {"change": move.change.model_dump(), "saved": move.saved, "slower": move.slower},
    }  # fmt: skip


def memory_story_document(story: MemoryStory) -> RenderableType:
    """Reasons first, then prediction beside report, then what fits."""
    blocks: list[RenderableType] = [prose(f"memory: {text_of(story.reasons[0])}", "bold yellow")]
    if story.reasons[1:]:
        blocks.append(bullets(texts(story.reasons[1:])))
    inside = sorted(story.terms.items(), key=lambda term: -term[1])
    rows = [(term_name(name), format_capacity(value)) for name, value in inside]
    if story.outside:
        rows.append(("outside PyTorch allocator", format_capacity(story.outside)))
    rows.append(("in all", format_capacity(story.predicted)))
    title = f"Predicted, pipeline rank {story.rank}, {story.phase} phase"
    blocks.append(section(title, listing(("part", "bytes"), rows)))
    if story.reported:
        reported = [(term_name(name), format_capacity(value)) for name, value in story.reported]
        blocks.append(section("Reported", listing(("", "bytes"), reported)))
    todo = [f"first: {text_of(story.first_aid)}"] if story.first_aid else []
    move = cheapest(story.moves)
    if move is not None:
        slower = "time of its copies not modelled" if move.slower is None else f"{move.slower:+.1%} step time"
        todo.append(
            f"cheapest change that fits: {text_of(move.change)} (saves {format_capacity(move.saved)}, {slower})"
        )
    elif not story.elsewhere:  # which no change of what a device holds mends
        todo.append("no single change fits: planner plan searches all of them")
    blocks.append(section("To do", bullets(todo)))
    return Group(*blocks)
