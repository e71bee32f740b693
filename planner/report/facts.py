"""What is worth saying about a plan? Figures and sentences, computed from the plan alone.

Every report (terminal, page) draws the same facts. Left out: layout, colour and width, and anything that
would need the cost model again: a report never computes what the plan does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from planner.answer.headline import gap_values
from planner.dialect import option
from planner.report.options_text import changed_options, stack_letters
from planner.report.words import text_of, texts
from planner.report.words.headline import gap_said
from planner.report.words.memory import lack_of, tightest
from planner.spec.config import WHOLE_LAYER, Schedule, selective_text
from planner.spec.machine.cluster import LinkKind
from planner.spec.machine.load_cluster import noun_of
from planner.spec.planfile import (
    CLOSED_GAP,
    OWNED,
    Choice,
    Memory,
    Plan,
    Run,
    StageMemory,
)
from planner.spec.planned_config import PlannedConfig
from planner.spec.subject import ClusterFacts, JobFacts
from planner.spec.terms import term_name
from planner.spec.verdict import MemoryVerdict
from planner.units import (
    GIB,
    LONG,
    format_capacity,
    format_compute,
    format_count,
    format_energy,
)

# A difference between two configurations that is smaller than this share of the step is not worth a line.
WORTH_SAYING = 0.002  # share of a step
_MOST_STAGES = 8
_A_MULTIPLE = 1.5

MEMORY_WORDS: Mapping[MemoryVerdict, str] = {
    MemoryVerdict.FITS: "fits",
    MemoryVerdict.BORDERLINE: "borderline",
    MemoryVerdict.DOES_NOT_FIT: "does not fit",
}

# axis -> the heading of its column, in the order users name them
_AXIS_WORDS: Mapping[str, str] = {
    "tp": "tp",
    "cp": "cp",
    "cp_kind": "cp by",
    "pp": "pp",
    "dp": "dp",
    "vpp": "vpp",
    "schedule": "schedule",
    "ep": "ep",
    "etp": "etp",
    "micro_batch": "mbs",
    "zero": "zero",
    "hsdp": "hsdp",
    "sp": "sp",
    "recompute": "recompute",
    "offload": "offload",
    "cuda_graph_impl": "graphs",
    "cuda_graph_modules": "captured",
}


@dataclass(frozen=True)
class Figure:
    """One figure of the answer: what it is, its value, and what to know to read it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Part:
    """One term of a sum and its share of the total."""

    name: str
    amount: float
    share: float


@dataclass(frozen=True)
class Grid:
    """Configurations as a table: columns only for the axes that differ, the rest said once. `legend`: stacks by letter,
    where they differ."""

    common: str
    axes: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    legend: tuple[str, ...] = ()


def headline_lines(plan: Plan) -> list[str]:
    """The answer in a line, and in a second one what to take instead."""
    return "\n".join(texts(plan.headline)).split("\n")  # older files have both in one text


def head_lines(plan: Plan) -> tuple[str, ...]:
    """What stands in the headline beside the figures of the best: what to take instead, and a proof's gap."""
    _, *more = headline_lines(plan)
    gap = gap_said(gap_values(plan.search.certificate)) if plan.found else ""
    return (*more, *([gap] if gap else []))


def subject_lines(plan: Plan) -> tuple[str, ...]:
    """What was asked about, in a few short lines."""
    model, cluster = plan.subject.model, plan.subject.cluster
    job, stack = plan.subject.job, plan.subject.stack
    size = f"{count(model.params_total)} parameters"
    if model.params_active != model.params_total:
        size += f", {count(model.params_active)} active"
    return (
        f"{model.name}: {size}, {model.layers} layer{'' if model.layers == 1 else 's'}",
        f"{_devices(cluster)} of {cluster.name}, {format_capacity(cluster.memory_per_device)} each",
        f"{job.global_batch:,} sequence{'' if job.global_batch == 1 else 's'} of {job.lengths()} per step "
        f"({count(job.tokens_per_step)} tokens), "
        f"{job.precision}{_bf16_ends(job)}, {job.optimizer}"
        + (f", {count(job.tokens)} tokens in all" if job.tokens else ""),
        f"{stack.name} ({stack.framework}, {stack.released})",
        *texts(plan.notes),
    )


def _bf16_ends(job: JobFacts) -> str:
    first, last = job.bf16_layers
    ends = [f"{count} {end}" for count, end in ((first, "first"), (last, "last")) if count]
    return f" ({' and '.join(ends)} layer{'s' * (first + last > 1)} in bf16)" if ends else ""


def _devices(cluster: ClusterFacts) -> str:
    nodes = -(-cluster.devices // cluster.devices_per_node)
    if nodes == 1:
        return f"{cluster.devices:,} {cluster.accelerator}"
    text = f"{cluster.devices:,} {cluster.accelerator} ({nodes:,} x {cluster.devices_per_node}"
    if cluster.scale_up_domain > cluster.devices_per_node:
        domain = "slice" if cluster.tiers and cluster.tiers[0].kind == LinkKind.ICI else "scale-up domain"
        text += f", {cluster.scale_up_domain} in a {domain}"
    return text + ")"


def noun_in(plan: Plan) -> str:
    """What a device of the plan is called."""
    return noun_of([plan.subject.cluster.accelerator])


def key_figures(choice: Choice, noun: str) -> tuple[Figure, ...]:
    """The figures one decides by: time, throughput, MFU, memory, and the whole run if it is known.

    `noun`: what a device is called.
    """
    figures = [
        Figure(
            "step time",
            precise_time(choice.step_time),
            interval(precise_time(choice.step_time_low), precise_time(choice.step_time_high)),
        ),
        Figure("throughput", f"{choice.tokens_per_second_per_device:,.0f} tokens/s/{noun}"),
        Figure(
            "MFU",
            f"{100 * choice.mfu:.1f} %",
            f"{format_compute(choice.flops_per_device)} of {format_compute(choice.peak_flops)} dense: "
            f"{term_name(text_of(choice.mfu_convention))}",
        ),
        Figure("peak memory", f"{choice.memory.peak / GIB:.1f} GiB", memory_sentence(choice.memory)),
    ]
    return (*figures, *(_run_figures(choice, choice.run, noun) if choice.run else ()))


def _run_figures(choice: Choice, run: Run, noun: str) -> tuple[Figure, ...]:
    """Days, cost and energy of the whole run; goodput and checkpoints where the plan knows them."""
    from planner.answer.outcome import days_ends  # which loads the cost model

    if run.goodput is None or run.effective_days is None or run.held_gpu_hours is None:
        note = f"{run.steps:,.0f} steps without an interruption, {count(run.gpu_hours)} {noun}-hours"
        price = f" at ${run.price_per_device_hour:.2f} per {noun}-hour" if run.price_per_device_hour else ""
        money = f", ${count(run.cost)}{price}" if run.cost is not None else ""
        return (Figure("whole run", days(run.days), note + money),)
    low, high = map(days, days_ends(choice))
    held = f"{run.steps:,.0f} steps, {count(run.held_gpu_hours)} {noun}-hours"
    spares = f" with {run.spare_nodes} spare node{'s' * (run.spare_nodes > 1)}" if run.spare_nodes else ""
    figures = [
        Figure("whole run", days(run.effective_days), f"{interval(low, high)}: {held}{spares}"),
        Figure("goodput", f"{100 * run.goodput:.1f} %", goodput_sentence(run)),
    ]
    if run.batch is not None:
        figures.insert(1, Figure("tokens", count(run.tokens or 0.0), text_of(run.batch)))
    if run.checkpoint_size and run.checkpoint_interval and run.storage:
        size = (
            f"{format_capacity(run.checkpoint_size)} each, {format_capacity(run.storage)} stored at the end"
        )
        wait = f"; blocks training {precise_time(run.checkpoint_stall or 0.0)} each"
        figures.append(Figure("checkpoints", f"every {duration(run.checkpoint_interval)}", size + wait))
    if run.cost is not None and run.price_per_device_hour is not None:
        figures.append(Figure("cost", f"${count(run.cost)}", price_sentence(run, noun)))
    else:
        figures.append(Figure("cost", "not known", f"{option('assume', 'price=2.50 $/h')} sets a price"))
    if run.energy is not None and run.emissions is not None and run.power_per_device is not None:
        carbon = f"{tonnes(run.emissions)} CO2; {run.power_per_device:,.0f} W per {noun}"
        figures.append(Figure("energy", format_energy(run.energy), f"{carbon}, {run.power_source}"))
    return tuple(figures)


def goodput_sentence(run: Run) -> str:
    """How often the run is interrupted and what that costs."""
    lost = [f"{term_name(key)} {share:.1%}" for key, share in parts_of(run.lost)]
    often = f"interrupted every {duration(run.time_between_stops or 0.0)} on average"
    if run.time_between_stops_low and run.time_between_stops_high:
        ends = duration(run.time_between_stops_low), duration(run.time_between_stops_high)
        often += f" ({ends[0]} to {ends[1]} by the sources' rates)" if ends[0] != ends[1] else ""
    return f"{often}; time lost: " + ", ".join(lost) if lost else often


def parts_of(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    """Shares worth a mention, 0.05 % or more, largest first."""
    return sorted(((k, v) for k, v in shares.items() if v >= 0.0005), key=lambda item: -item[1])


def price_sentence(run: Run, noun: str) -> str:
    """What an hour of a device, called `noun`, costs, where that comes from, and when owning would be cheaper."""
    text = f"${run.price_per_device_hour:.2f} per {noun}-hour, {run.price_source}"
    if run.market_price_low is not None and run.market_price_high is not None:
        ends = f"${run.market_price_low:.2f} to ${run.market_price_high:.2f}"
        text += f"; others ask {ends} ({run.market_date}){_market_cost(run)}"
    if run.owned_price_per_device_hour is None or run.price_source == OWNED:
        return text
    own = f"{OWNED} ${run.owned_price_per_device_hour:.2f} per {noun}-hour"
    even = f"breaks even after {duration(run.break_even)} of use" if run.break_even else "never breaks even"
    return f"{text}; {own}, {even}"


def _market_cost(run: Run) -> str:
    """What the run costs at what others ask."""
    if run.cost is None or not run.price_per_device_hour:
        return ""
    ends = (run.market_price_low or 0.0, run.market_price_high or 0.0)
    low, high = (run.cost * end / run.price_per_device_hour for end in ends)
    return f": ${count(low)} to ${count(high)} for the run"


def tonnes(kilograms: float) -> str:
    """A mass, in kg below a tonne."""
    value, unit = (kilograms, "kg") if kilograms < 1000 else (kilograms / 1000, "t")
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def days_cell(number: float) -> str:
    """A number of days for a column of them: runs of some hours stay apart."""
    return f"{number:,.1f}" if number >= 10 else f"{number:.2f}" if number >= 0.1 else f"{number:.2g}"


def days(number: float) -> str:
    """A number of days, or a shorter unit below one."""
    return f"{number:,.1f} days" if number >= 1 else duration(number * 86400)


def duration(seconds: float) -> str:
    """A time a person plans with: years, days, hours, minutes or seconds."""
    for size, unit in ((365.25 * 86400, "years"), (86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.3g} s"


def interval(low: str, high: str) -> str:
    """The ends between which 8 of 10 runs lie, their unit said once where both have it."""
    number, _, unit = low.partition(" ")
    return f"80% interval {number if high.partition(' ')[2] == unit else low} to {high}"


def ends_in_percent(band: float) -> str:
    """The ends of step / (1 + band) to step x (1 + band), of the step."""
    return f"-{100 * band / (1 + band):.0f} to +{100 * band:.0f} %"


def memory_sentence(memory: Memory) -> str:
    """Does it fit, by how much, what is kept back, and where does it bind."""
    free, limit = memory.free, f"{memory.limit / GIB:.1f} GiB"
    size = f"{abs(free) / GIB:.1f} GiB"
    margin = f"{size} free of {limit} usable" if free >= 0 else f"{size} over the {limit} limit"
    margin += kept_back(memory)
    if memory.verdict is MemoryVerdict.BORDERLINE:
        margin = f"{'predicted ' if free < 0 else ''}{margin}, within the memory model's error"
    host = f"{lack_of(memory)}; " if memory.host_short else ""
    return f"{MEMORY_WORDS[memory.verdict]}: {host}{margin}; peak {tightest(memory.stage, memory.stages, memory.phase)}"


def kept_back(memory: Memory) -> str:
    """What of the device is not counted as free, and why, in parentheses; empty where nothing is."""
    if not memory.capacity or not memory.kept_back:
        return ""
    kept, share = (
        f"{memory.kept_back / GIB:.1f} of {memory.capacity / GIB:.1f} GiB",
        memory.kept_back / memory.capacity,
    )
    error = f" for the memory model's error, ±{memory.error:.0%}" if memory.error else ""
    return f" ({kept} kept back{error}: {option('headroom', f'{100 * share:.3g}%')})"


def logged_sentence(memory: Memory) -> str:
    """What the training log will show: less than the device holds, or more than it needs."""
    kept = (
        ", blocks included that PyTorch returns when memory is short" if memory.logged > memory.peak else ""
    )
    return f"this stack's own log would show {memory.logged / GIB:.1f} GiB{kept}"


def largest_stages(memory: Memory) -> tuple[tuple[StageMemory, ...], str]:
    """The stages that need most, in pipeline order, and what is said of the others."""
    stages = memory.per_stage
    kept = sorted(range(len(stages)), key=lambda i: (-stages[i].peak, i))[:_MOST_STAGES]
    hidden = len(stages) - len(kept)
    note = f"{hidden} more groups of pipeline ranks need less" if hidden else ""
    return tuple(stages[i] for i in sorted(kept)), note


def layers_sentence(choice: Choice) -> str:
    """Layers of each pipeline rank, equal neighbours joined; empty without a pipeline."""
    layers = choice.layers_per_stage
    if len(layers) < 2:
        return ""
    runs = [(number, len(list(group))) for number, group in groupby(layers)]
    text = ", ".join(f"{number} on {times} ranks" if times > 1 else str(number) for number, times in runs)
    if choice.config.schedule == Schedule.DUALPIPE.label:
        text += "; every layer on two ranks, one for either direction"
    return f"layers by pipeline rank: {text}" + (f" ({choice.layout})" if choice.layout else "")


def split_sentence(choice: Choice) -> str:
    """What solving the split brought, and whether a better one is possible; empty where it was not solved."""
    split = choice.split
    if split is None:
        return ""
    if split.stated:
        if split.own_step_time is None:
            return "layers as stated"
        return f"layers as stated; the stack's own split takes {precise_time(split.own_step_time)}"
    said = []
    if split.even_step_time is not None:
        gain = 1 - choice.step_time / split.even_step_time
        than = f"than the even split ({precise_time(split.even_step_time)})"
        said.append(f"{gain:.1%} faster {than}" if gain >= 0 else f"{-gain:.1%} slower {than}")
    if split.own_step_time is None:
        said.append("the stack's own does not fit")
    elif split.own_step_time > choice.step_time * (1 + 1e-9):
        said.append(f"{1 - choice.step_time / split.own_step_time:.1%} faster than the stack's own")
    said.append(
        "no split is faster" if split.gap <= CLOSED_GAP else f"at best {split.gap:.1%} more is possible"
    )
    return "split solved: " + ", ".join(said) + "".join(f"; {text}" for text in texts(split.note))


def precise_time(seconds: float) -> str:
    """A step time with four digits, a long one in hours or days as in the headline."""
    if seconds >= LONG:
        return aligned_time(seconds, seconds)
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1e3, "ms")
    decimals = 3 if value < 10 else 2 if value < 100 else 1 if value < 1000 else 0
    return f"{value:,.{decimals}f} {unit}"


def speedup(ratio: float, than: str = "", decimals: int = 1) -> str:
    """How much faster something is whose time is a `ratio`-th: by its rate, as a multiple where that is easier said."""
    if ratio >= _A_MULTIPLE:
        return f"{ratio:.3g} times as fast" + (f" as {than}" if than else "")
    return f"{ratio - 1:.{decimals}%} faster" + (f" than {than}" if than else "")


def against_first(choices: Sequence[Choice]) -> tuple[str, tuple[str, ...]]:
    """Head and cells of a column that compares step times with the first's: how much slower, or with a sign where
    some are faster."""
    shares = [round(100 * (choice.step_time / choices[0].step_time - 1), 1) + 0.0 for choice in choices]
    signed = min(shares) < 0
    cells = [f"{share:+.1f} %" if signed else f"{max(share, 0.0):.1f} %" for share in shares[1:]]
    return "vs #1" if signed else "slower", ("", *cells)


def aligned_time(seconds: float, largest: float) -> str:
    """A time in the unit of the largest of its column, with as many decimals as all others there."""
    if largest >= LONG:
        size, unit = (86400, "d") if largest >= 2 * 86400 else (3600, "h")
        return f"{seconds / size:,.2f} {unit}"
    return f"{seconds:,.3f} s" if largest >= 1 else f"{seconds * 1e3:,.1f} ms"


def count(number: float) -> str:
    """A large number as 405B."""
    return format_count(number).replace(" ", "")


def recompute_word(config: PlannedConfig) -> str:
    """What is recomputed, as a word."""
    again = config.recompute
    if again.kind == "full":
        return f"{again.layers} layers"
    return selective_text(config.parallel().recompute_modules) if again.kind == "selective" else "none"


def _axis_text(config: PlannedConfig, axis: str) -> str:
    return recompute_word(config) if axis == "recompute" else str(config.by_axis()[axis])


_USUAL_SCHEDULES: Final = (Schedule.ONE_F_ONE_B.label, Schedule.INTERLEAVED.label)


def _axes_of(configs: Sequence[PlannedConfig]) -> list[str]:
    """Axes worth showing: the schedule only where it does not follow from vpp."""
    usual = all(config.schedule in _USUAL_SCHEDULES for config in configs)
    return [axis for axis in _AXIS_WORDS if axis != "schedule" or not usual]


def configuration_grid(choices: Sequence[Choice]) -> Grid:
    """The configurations by axis; axes on which all agree are said once, neutral ones not at all."""
    configs = [choice.config for choice in choices]
    texts = {axis: [_axis_text(config, axis) for config in configs] for axis in _axes_of(configs)}
    letters, legend = stack_letters(choices)
    if letters:
        texts["stack"] = list(letters)
    if len(set(texts["cp_kind"])) > 1:  # in one column with the degree
        kinds = zip(texts["cp"], texts.pop("cp_kind"), strict=True)
        texts["cp"] = [f"{degree} {kind}" if degree != "1" else degree for degree, kind in kinds]
    differing = tuple(axis for axis, values in texts.items() if len(set(values)) > 1)
    rows = tuple(tuple(texts[axis][i] for axis in differing) for i in range(len(configs)))
    neutral = {
        "cp": "1",
        "cp_kind": "p2p",
        "vpp": "1",
        "ep": "1",
        "etp": "1",
        "sp": "0",
        "hsdp": "0",
        "recompute": "none",
        "offload": "none",
        "cuda_graph_impl": "none",
        "cuda_graph_modules": WHOLE_LAYER,
    }
    agreed = [
        f"{_AXIS_WORDS[axis]} {values[0]}"
        for axis, values in texts.items()
        if configs and axis not in differing and neutral.get(axis) != values[0]
    ]
    return Grid(", ".join(agreed), tuple(_AXIS_WORDS.get(axis, axis) for axis in differing), rows, legend)


def parts(terms: Mapping[str, float], smallest: float = 0.001) -> tuple[Part, ...]:
    """The terms of a sum, largest first; those below the share `smallest` are joined, or left out if tiny."""
    total = sum(terms.values())
    if total <= 0:
        return ()
    ordered = sorted(terms.items(), key=lambda item: (-item[1], item[0]))
    shown = [Part(term_name(k), v, v / total) for k, v in ordered if abs(v) >= smallest * total]
    rest = total - sum(part.amount for part in shown)
    if rest >= smallest / 2 * total:
        shown.append(Part("the rest", rest, rest / total))
    return tuple(shown)


def comparison(best: Choice, other: Choice, place: int) -> tuple[str, ...]:
    """Why `other` is slower than `best`: what differs, and the terms that make the difference."""
    changed = ", ".join(
        f"{_AXIS_WORDS[axis]} {_axis_text(best.config, axis)} -> {_axis_text(other.config, axis)}"
        for axis in _axes_of((best.config, other.config))
        if _axis_text(best.config, axis) != _axis_text(other.config, axis)
    )
    changed = ", ".join(filter(None, (changed, changed_options(best.stack, other.stack))))
    slower = other.step_time - best.step_time
    share = 100 * slower / best.step_time
    lines = [f"#{place} ({changed or 'same axes'}) takes {aligned_time(abs(slower), best.step_time)} "
             f"{'longer' if slower >= 0 else 'less'} ({share:+.2g} %)"]  # fmt: skip
    keys = sorted({*best.time, *other.time})
    gaps = {key: other.time.get(key, 0.0) - best.time.get(key, 0.0) for key in keys}
    worth = [key for key in keys if abs(gaps[key]) >= WORTH_SAYING * best.step_time]
    worth.sort(key=lambda key: -abs(gaps[key]))
    lines += [f"{term_name(key)} {_signed_time(gaps[key], best.step_time)}" for key in worth[:6]]
    return tuple(lines)


def _signed_time(seconds: float, step: float) -> str:
    return ("+" if seconds >= 0 else "-") + aligned_time(abs(seconds), step)
