"""What does one size of one cluster achieve, and what limits it? Shared by comparing clusters and sizing one.

Left out: which clusters or sizes to look at (`compare.py`, `size.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.answer.interval import COMMUNICATION
from planner.ask.request import DEFAULT_SEQ_LEN, Request
from planner.space.batch import (
    DEFAULT_BATCH_TOKENS,
    TOKENS,
    global_batch_of,
    in_tokens,
    rounded_batch,
    shards_of,
)
from planner.spec.findings import Finding, finding
from planner.spec.load_model import load_model
from planner.spec.planfile import Choice, Ending, Plan, Run, Verdict
from planner.spec.terms import term_name
from planner.spec.verdict import MemoryVerdict
from planner.units import parse_count

# term of the step -> what it is a sign of, for terms that are not useful computation
BINDS: Mapping[str, str] = {
    **dict.fromkeys(COMMUNICATION, "bandwidth"),
    "pipeline_bubble": "bubble",
    "host_bound": "host",
    "step_overhead": "host",
    "stragglers": "stragglers",
    "recompute": "memory",
}
COMPUTE = "compute"


def hold_batch(request: Request, sizes: Sequence[int] = ()) -> tuple[Request, Finding]:
    """The request with its global batch in sequences, the same at every size, and that it is held.

    A batch in tokens, or none, is one that divides well over all `sizes` [devices]; without these it is a multiple of
    an eighth to a quarter of its power of two, which most sizes divide.
    """
    text = request.global_batch
    seq_len = request.seq_len
    if seq_len is None:
        model = load_model(request.model, with_mtp=request.mtp)
        seq_len = min(model.max_position or DEFAULT_SEQ_LEN, DEFAULT_SEQ_LEN)
    if text is not None and not in_tokens(text):
        batch, _ = global_batch_of(text, max(seq_len, 1), 1)
        return replace(request, global_batch=str(batch)), finding("held_batch", batch=batch)
    tokens = (
        DEFAULT_BATCH_TOKENS
        if text is None
        else parse_count(text.strip()[: -len(TOKENS)], "the global batch")
    )
    wanted = max(tokens / max(seq_len, 1), 1.0)
    if sizes:
        shards = (shards_of(request.restrict, devices) for devices in sizes) if text is None else ()
        batch, _ = rounded_batch(wanted, sizes, math.lcm(*shards))
    else:
        unit = max(2 ** int(math.log2(wanted)) // 4, 1)
        batch = max(round(wanted / unit), 1) * unit
    held = finding("held_batch", batch=batch, seq_len=seq_len, asked=text, sizes=sorted(set(sizes)))
    return replace(request, global_batch=str(batch)), held


def best_of(plan: Plan) -> Choice | None:
    """The fastest configuration that fits, if there is one."""
    return plan.choices[0] if plan.verdict is Verdict.FOUND else None


def check_whole(plan: Plan) -> None:
    """Raise `KeyboardInterrupt` where Ctrl-C ended the search: one of many answers must not be half of one."""
    certificate = plan.search.certificate
    if certificate is not None and certificate.ending is Ending.INTERRUPTED:
        raise KeyboardInterrupt


def why_nothing(plan: Plan) -> tuple[Finding, ...]:
    """Why there is no configuration to run, and what would help."""
    if plan.verdict is Verdict.NOTHING_LEGAL:
        return finding("no_legal_split", devices=plan.subject.cluster.devices), *plan.smallest_change
    return finding("nothing_fits"), *plan.smallest_change


def run_days(run: Run) -> float:
    """Days of a run, its stops included where they are known."""
    return run.effective_days if run.effective_days is not None else run.days


def days_ends(choice: Choice) -> tuple[float, float]:
    """Between which days a run ends in four of five cases, its stops included.

    What a step's time and the run's tokens, by the fits of its critical batch, may be off have nothing to do with each
    other: their squares add, in logs.
    """
    run = choice.run
    assert run is not None, "of runs alone"
    fewer = more = 1.0
    if run.tokens and run.tokens_least and run.tokens_most:
        fewer, more = run.tokens / run.tokens_least, run.tokens_most / run.tokens
    sooner = math.hypot(math.log(choice.step_time / choice.step_time_low), math.log(fewer))
    later = math.hypot(math.log(choice.step_time_high / choice.step_time), math.log(more))
    return run_days(run) * math.exp(-sooner), run_days(run) * math.exp(later)


def limits(choice: Choice, smallest: float = 0.03) -> tuple[tuple[str, float], ...]:
    """What the step goes to: computing first, then the terms of at least `smallest` of it, as (term, share)."""
    others = {name: value / choice.step_time for name, value in choice.time.items() if name in BINDS}
    compute = 1 - sum(others.values())
    worth = sorted((item for item in others.items() if item[1] >= smallest), key=lambda item: -item[1])
    return ((COMPUTE, compute), *worth)


def limits_sentence(choice: Choice) -> str:
    """What binds, in words."""
    shown = [f"{term_name(name)} {100 * share:.0f} %" for name, share in limits(choice)[:3]]
    tight = choice.memory.verdict is MemoryVerdict.BORDERLINE
    return ", ".join(shown) + (", memory is tight" if tight else "")
