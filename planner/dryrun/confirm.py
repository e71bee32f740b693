"""Does a dry run bear out what was predicted? Of a plan it confirms what to take; of an estimate it stands beside it.

    plan        the recommended choice is run, and the fastest where that is another; where the recommended one is not
                confirmed, the first listed one that is becomes recommended
    estimate    both agree where their verdicts are equal, the estimate's allocated peak is off by no more than the
                error of its memory model, and a dry run's time, where it has one, lies in the estimate's interval

What a dry run refuses is said by name, and all else stays as it was. Left out: the words (`report/words`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from planner.ask.planned import planned_question
from planner.ask.question import Question
from planner.ask.readers import Settings
from planner.dryrun.extra import Run
from planner.dryrun.question import DryRun
from planner.errors import PlannerError
from planner.space.axes import RESTRICTABLE
from planner.spec.config import ParallelConfig
from planner.spec.findings import Finding, finding
from planner.spec.job import Job
from planner.spec.planfile import Choice, Memory, Plan, Trade, Verdict
from planner.spec.verdict import MemoryVerdict

_CONFIRMS: Final = "dryrun_confirms"  # codes of findings
_REFUSED: Final = "dryrun_refused"
_UNALLOCATED: Final = ("fragmentation", "outside_allocator")  # terms of memory that no tensor holds


def confirmed(plan: Plan, run: Run) -> Plan:
    """The plan with what dry runs say of it, and with what they confirm recommended."""
    if plan.verdict is Verdict.NOTHING_FITS and plan.nearest is not None:
        return _of_least_memory(plan, plan.nearest, run)
    if not plan.found:
        return plan
    pick = plan.recommended or 0
    found = {pick: run_choice(plan, plan.choices[pick], run)}
    taken: int | None = pick
    if found[pick].code != _REFUSED:
        for index in range(len(plan.choices)):
            confirms = any(one.code == _CONFIRMS for one in found.values())
            if index not in found and (index == 0 or not confirms):
                found[index] = run_choice(plan, plan.choices[index], run)
        taken = _taken(found, pick)
    choices = tuple(
        choice.model_copy(update={"dryrun": found.get(index)}) for index, choice in enumerate(plan.choices)
    )
    return _recommending(plan.model_copy(update={"choices": choices}), found, pick, taken)


def _of_least_memory(plan: Plan, nearest: Choice, run: Run) -> Plan:
    """A plan in which nothing fits, with what a dry run says of what needs least memory."""
    said = agreement(nearest, lambda: run(question_of(plan, nearest)))
    if said.code != _REFUSED:
        said = said.model_copy(update={"values": {"configuration": nearest.config.text, **said.values}})
    near = nearest.model_copy(update={"dryrun": said})
    return plan.model_copy(update={"nearest": near, "headline": (*plan.headline, said)})


def _taken(found: Mapping[int, Finding], pick: int) -> int | None:
    """The recommended one, else the first that is confirmed; None where none is."""
    return next((index for index in (pick, *sorted(found)) if found[index].code == _CONFIRMS), None)


def _recommending(plan: Plan, found: Mapping[int, Finding], pick: int, taken: int | None) -> Plan:
    """The plan whose head says what dry runs say, and which recommends the choice `taken`; None: as before."""
    shown = sorted({0, pick, pick if taken is None else taken} & found.keys())
    alone = shown == [0]
    said = [found[index] if alone else _placed(found[index], index) for index in shown]
    if taken is None and len(found) > 1:
        said.append(finding("dryrun_confirms_none", tried=len(found)))
    if taken in (None, pick):
        return plan.model_copy(update={"headline": (*plan.headline, *said)})
    assert taken is not None, "another one"
    head = [one for one in plan.headline if one.code != "recommended"]
    if taken == 0:
        return plan.model_copy(update={"headline": (*head, *said), "recommended": 0, "trade": None})
    fastest, choice = plan.choices[0], plan.choices[taken]
    trade = Trade(
        slower=max(choice.step_time / fastest.step_time - 1, 0.0),
        more_free=fastest.memory.peak - choice.memory.peak,
    )
    said.append(
        finding(
            "recommended_by_dryrun", place=taken + 1, configuration=choice.config.text, slower=trade.slower,
            more_free=trade.more_free,
        )
    )  # fmt: skip
    return plan.model_copy(update={"headline": (*head, *said), "recommended": taken, "trade": trade})


def _placed(found: Finding, index: int) -> Finding:
    return found.model_copy(update={"values": {"place": index + 1, **found.values}})


def run_choice(plan: Plan, choice: Choice, run: Run, cluster: str | None = None) -> Finding:
    """Whether a dry run confirms a choice of a plan, or why there is none. `cluster`: its words, where the plan's name
    does not say it."""
    try:
        ran = run(question_of(plan, choice, cluster))
    except PlannerError as error:
        return _refused(error)
    values = _peaks(ran)
    return (
        finding("dryrun_confirms", **values)
        if ran.worst.verdict is MemoryVerdict.FITS
        else finding("dryrun_refutes", verdict=str(ran.worst.verdict), **values)
    )


def beside(plan: Plan, run: Run, cluster: str | None = None) -> Plan:
    """An estimate with what a dry run of the same configuration says, and whether both agree. `cluster`: of an estimate
    of a plan elsewhere, where."""
    if not plan.choices:
        return plan
    choice = plan.choices[0]
    said = agreement(choice, lambda: run(question_of(plan, choice, cluster)))
    first = choice.model_copy(update={"dryrun": said})
    return plan.model_copy(update={"choices": (first, *plan.choices[1:]), "headline": (*plan.headline, said)})


def agreement(choice: Choice, run: Callable[[], DryRun]) -> Finding:
    """Whether a dry run agrees with what is predicted of the same configuration, or why there is none."""
    try:
        ran = run()
    except PlannerError as error:
        return _refused(error)
    memory, said = choice.memory, ran.worst.verdict
    estimated, step = allocated_of(memory), _step_time(ran)
    off, within = estimated / ran.worst.allocated_peak - 1, memory.error or 0.0
    values = {
        "verdict": str(said), **_peaks(ran), "estimated_verdict": str(memory.verdict), "estimated": estimated,
        "off": off, "error": within, "estimated_step_time": None if step is None else choice.step_time,
    }  # fmt: skip
    in_time = step is None or choice.step_time_low <= step <= choice.step_time_high
    if memory.verdict is said and abs(off) <= within and in_time:
        return finding("dryrun_agrees", **values)
    return finding("dryrun_disagrees", **values)


def allocated_of(memory: Memory) -> float:
    """What tensors hold at a predicted peak, as `torch.cuda.max_memory_allocated` counts it [bytes]."""
    return memory.peak - sum(memory.terms.get(name, 0.0) for name in _UNALLOCATED)


def _peaks(ran: DryRun) -> dict[str, Any]:
    worst = ran.worst
    return {
        "allocated": worst.allocated_peak, "reserved": worst.reserved_peak, "limit": worst.limit,
        "rank": worst.rank if len(ran.ranks) > 1 else None, "step_time": _step_time(ran),
    }  # fmt: skip


def _step_time(ran: DryRun) -> float | None:
    """Of the slowest rank [s]; None where it is not told."""
    return None if ran.slowest is None else ran.slowest.step


def _refused(error: PlannerError) -> Finding:
    return finding("dryrun_refused", must=error.must, given=error.given or None)


def question_of(plan: Plan, choice: Choice, cluster: str | None = None) -> Question:
    """The question that names one choice of a plan and leaves nothing open."""
    config = choice.config.parallel()
    chunks = choice.split.layers_per_chunk if choice.split is not None and config.pp > 1 else ()
    said = naming(config, plan.subject.job.job(), plan.subject.cluster.devices, choice.stack, chunks)
    return planned_question(plan, **said, **({} if cluster is None else {"cluster": cluster}))


def question_about(
    asked: Question, config: ParallelConfig, job: Job, devices: int, stack: str, chunks: tuple[int, ...] = ()
) -> Question:
    """A question about one configuration, whatever else `asked` leaves open."""
    return replace(asked, **naming(config, job, devices, stack, chunks))


def naming(
    config: ParallelConfig, job: Job, devices: int, stack: str, chunks: tuple[int, ...]
) -> dict[str, Any]:
    """Options of a question that name one configuration, its job and its software. `chunks`: layers of its virtual
    stages, where they are stated."""
    axes = {axis: (int(getattr(config, axis)),) for axis in RESTRICTABLE}
    if not config.cp_kind:  # what keys and values are exchanged by unasked
        del axes["cp_kind"]
    return {
        "gpus": devices,
        "stack": stack,
        "set": Settings(axes, ",".join(map(str, chunks))),
        "without": (),
        "seq_len": job.seq_len,
        "global_batch": str(job.global_batch),
        "precision": str(job.precision),
        "optimizer": str(job.optimizer),
        "mean_len": job.mean_length,
        "packed": job.packed,
        "lora_rank": job.lora_rank,
        "lora_targets": None if job.lora_rank is None else str(job.lora_targets),
        "frozen_bits": job.frozen_bits,
    }
