"""Which numbers do the charts of a page show? Rows of plain values, computed from an answer alone.

A row is a mapping from column to number or text; `label` is what a screen reader says of its mark. Left out: how a
chart is drawn (`charts`), and anything that would need the cost model again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from planner.report.facts import count, days, precise_time
from planner.solve.place import GROUPS, grids_of
from planner.spec.machine.load_cluster import noun_of
from planner.spec.planfile import Choice, Memory, Plan, Run
from planner.spec.subject import ClusterFacts
from planner.spec.terms import term_name
from planner.units import GIB, format_bandwidth

Row = dict[str, Any]

# what a term of the step is, for its colour
KINDS: Final[Mapping[str, str]] = {
    "gemm": "compute", "attention": "compute", "indexer": "compute", "memory_bound": "compute",
    "embedding_and_loss": "compute",
    "optimizer": "compute", "recompute": "recomputed",
    "tp_comm": "communication", "cp_comm": "communication", "ep_comm": "communication",
    "pp_comm": "communication", "dp_comm": "communication", "host_transfer": "communication",
    "pipeline_bubble": "waiting", "stragglers": "waiting", "host_bound": "waiting", "step_overhead": "waiting",
}  # fmt: skip
KIND_ORDER: Final = ("compute", "recomputed", "communication", "waiting", "other", "total")
SMALLEST = 0.002  # share of a total below which a term joins the rest
MOST_PARTS = 9  # parts of memory told apart by colour
MOST_CELLS = 1024  # of a map of the cluster
MOST_STAGES = 32


def waterfall_rows(time: Mapping[str, float], total: float) -> list[Row]:
    """The exposed terms of a step one after the other, largest first within their kind, and the whole [s]."""
    named = {name: value for name, value in time.items() if abs(value) >= SMALLEST * total}
    rest = total - sum(named.values())
    ordered = sorted(named.items(), key=lambda item: (KIND_ORDER.index(_kind(item[0])), -item[1]))
    if rest > SMALLEST / 2 * total:
        ordered.append(("the rest", rest))
    rows, start = list[Row](), 0.0
    for name, amount in ordered:
        rows.append(_bar(term_name(name), start, start + amount, _kind(name), total))
        start += amount
    rows.append(_bar("step", 0.0, total, "total", total))
    return rows


def _kind(name: str) -> str:
    return KINDS.get(name, "other")


def _bar(part: str, start: float, end: float, kind: str, total: float) -> Row:
    share = (end - start) / total
    said = f"{precise_time(end - start)}, {100 * share:.1f} %"
    return {"part": part, "start": start, "end": end, "amount": end - start, "share": share, "kind": kind,
            "said": said, "label": f"{part}: {said}"}  # fmt: skip


def memory_rows(memory: Memory) -> list[Row]:
    """Every part of the peak of every pipeline rank [bytes], the parts that are largest anywhere by name."""
    stages = [
        (stage.stages, stage.layers, stage.phase, stage.terms) for stage in memory.per_stage if stage.terms
    ]
    if not stages:
        stages = [(str(memory.stage), 0, memory.phase, memory.terms)]
    if len(stages) > MOST_STAGES:
        largest = sorted(stages, key=lambda stage: -sum(stage[3].values()))[:MOST_STAGES]
        stages = [stage for stage in stages if stage in largest]
    most: dict[str, float] = {}
    for *_, terms in stages:
        for name, amount in terms.items():
            most[name] = max(most.get(name, 0.0), amount)
    kept = sorted(most, key=lambda name: (-most[name], name))[:MOST_PARTS]
    rows = []
    for ranks, layers, phase, terms in stages:
        shown = {term_name(name): terms[name] for name in kept if terms.get(name)}
        rest = sum(terms.values()) - sum(shown.values())
        if rest > 0:
            shown["the rest"] = rest
        where = f"rank {ranks}" + (f" ({layers} layers)" if layers else "")
        for order, (part, amount) in enumerate(shown.items()):
            said = f"{amount / GIB:.2f} GiB"
            rows.append({"stage": where, "part": part, "amount": amount / GIB, "order": order,
                         "phase": term_name(phase), "said": said, "label": f"{where}, {part}: {said}"})  # fmt: skip
    return rows


def pareto_rows(plan: Plan) -> list[Row]:
    """Step time against free memory [s, GiB]: the front of all that fit, and the best choices beside it.

    `on_front`: no configuration is both faster and leaves more free; of files without a front, among the choices.
    """
    points = {
        point.config.text: (point.step_time_s, point.headroom_gib, True) for point in plan.pareto
    }  # fmt: skip
    most = -float("inf")
    for choice in sorted(plan.choices, key=lambda c: (c.step_time, -_free(c))):
        alone = not plan.pareto and _free(choice) > most
        most = max(most, _free(choice))
        points.setdefault(choice.config.text, (choice.step_time, _free(choice) / GIB, alone))
    best = plan.choices[0].config.text if plan.choices else ""
    rows = []
    for text, (step, free, on_front) in sorted(points.items(), key=lambda item: item[1]):
        said = f"{precise_time(step)}, {free:.1f} GiB free"
        rank = "the answer" if text == best else "on the front" if on_front else "behind it"
        rows.append({"configuration": text, "step": step, "free": free, "on_front": on_front, "best": text == best,
                     "rank": rank, "said": said, "label": f"{text}: {said}"})  # fmt: skip
    return rows


def _free(choice: Choice) -> float:
    return choice.memory.limit - choice.memory.peak


@dataclass(frozen=True)
class AxisSpan:
    """The groups of one axis: `size` ranks `stride` apart, `groups` of them, `links`: what their messages cross.
    `group`: its name in `solve.place`."""

    group: str
    axis: str
    size: int
    stride: int
    groups: int
    links: str
    what: str
    members: tuple[int, ...]


# group of `solve.place` -> what its ranks send each other
_WHAT: Final[Mapping[str, str]] = {
    "tp": "tensor parallel: activations of every layer",
    "cp": "context parallel: keys and values of every layer",
    "ep": "expert parallel: tokens to their experts and back",
    "etp": "tensor parallel experts: activations of every layer",
    "dp": "data parallel: gradients and weights once a step",
    "dp_cp": "data parallel: gradients and weights once a step",
    "edp": "data parallel of experts: their gradients and weights once a step",
    "pp": "pipeline: activations between stages",
}


def axis_spans(plan: Plan, choice: Choice) -> tuple[AxisSpan, ...]:
    """Where the groups of rank 0 lie, nearest first, as the stack's framework numbers its ranks."""
    model, config = plan.subject.model, choice.config
    with_experts = config.ep > 1 or model.params_active != model.params_total
    layout = grids_of(plan.framework_of(choice), with_experts, config)
    names = [name for name in GROUPS if layout.has(name)]
    if "dp_cp" in names:  # over which gradients go
        names.remove("dp")
    spans = []
    for name in names:
        groups = layout.groups(name)
        members = tuple(int(rank) for rank in groups[(groups == 0).any(axis=1)][0])
        if name != "edp" or config.ep > 1:
            spans.append(_span(name, members, len(groups), plan.subject.cluster))
    return tuple(sorted(spans, key=lambda span: (span.stride, span.size)))


def _span(group: str, members: tuple[int, ...], groups: int, cluster: ClusterFacts) -> AxisSpan:
    reach = members[-1] + 1
    tier = next((t for t in cluster.tiers if reach <= t.devices), None)
    if tier is not None:
        links = f"{tier.name} ({tier.kind}, {format_bandwidth(tier.bandwidth)} per device)"
    elif reach <= cluster.devices_per_node:
        links = "inside a node"
    elif reach <= cluster.scale_up_domain:
        links = "inside a scale-up domain"
    else:
        links = "between nodes"
    return AxisSpan(
        group, term_name(group), len(members), members[1] - members[0], groups, links, _WHAT[group], members
    )


def map_rows(spans: Sequence[AxisSpan], cluster: ClusterFacts) -> list[Row]:
    """Cells of the cluster and how many ranks of the group of rank 0 each holds, for every axis.

    A cell is a device; a node where there are too many devices; several nodes where there are too many of those.
    """
    per_cell, wide = cell_size(cluster)
    noun = noun_of([cluster.accelerator])
    cells = -(-cluster.devices // per_cell)
    rows = []
    for span in spans:
        held = dict.fromkeys(range(cells), 0)
        for rank in span.members:
            held[rank // per_cell] += 1
        for cell, number in held.items():
            first = cell * per_cell
            name = (
                f"{noun} {first}"
                if per_cell == 1
                else f"{noun}s {first:,} to {min(first + per_cell, cluster.devices) - 1:,}"
            )
            rows.append({"axis": span.axis, "x": cell % wide, "y": cell // wide, "members": number,
                         "cell": name, "label": f"{span.axis}, {name}: {number} of the group"})  # fmt: skip
    return rows


def cell_size(cluster: ClusterFacts) -> tuple[int, int]:
    """Devices of a cell of the map, and cells in a row of it."""
    per_node = cluster.devices_per_node
    if cluster.devices <= min(MOST_CELLS // 4, 32 * per_node):
        return 1, per_node if cluster.devices <= 8 * per_node else 4 * per_node
    nodes = -(-cluster.devices // per_node)
    together = -(-nodes // MOST_CELLS)
    cells = -(-nodes // together)
    return per_node * together, 16 if cells <= 64 else 32 if cells <= 512 else 64


def goodput_rows(run: Run) -> list[Row]:
    """What the wall clock goes to: steps that count, and what is lost to what [1]."""
    if run.goodput is None:
        return []
    shares = {"steps that count": run.goodput, **{term_name(k): v for k, v in run.lost.items()}}
    whole = run.effective_days or run.days
    return [
        {"part": part, "share": share, "order": i, "days": share * whole,
         "said": f"{100 * share:.2f} %, {days(share * whole)}",
         "label": f"{part}: {100 * share:.2f} %, {days(share * whole)}"}
        for i, (part, share) in enumerate(shares.items())
    ]  # fmt: skip


def standing_rows(outcomes: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Exposed terms of the step of every cluster [s], from the facts of a comparison; what own runs take off lies
    left of 0."""
    rows = []
    for outcome in outcomes:
        time = outcome.get("time") or {}
        grouped: dict[str, float] = {}
        for name, amount in time.items():
            grouped[_kind(name)] = grouped.get(_kind(name), 0.0) + amount
        for kind, amount in grouped.items():
            if amount:
                said = precise_time(amount)
                rows.append({"cluster": _place(outcome), "kind": kind, "amount": amount,
                             "order": KIND_ORDER.index(kind), "said": said,
                             "label": f"{_place(outcome)}, {kind}: {said}"})  # fmt: skip
    return rows


def _place(outcome: Mapping[str, Any]) -> str:
    return f"{outcome['cluster']}, {outcome['gpus']:,} {_noun(outcome)}s"


def _noun(outcome: Mapping[str, Any]) -> str:
    return noun_of([outcome.get("accelerator", "")])


def trade_rows(outcomes: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Days and money of every cluster."""
    rows = []
    for outcome in outcomes:
        cost = (outcome.get("run") or {}).get("cost")
        if outcome.get("days") and cost is not None:
            said = f"{days(outcome['days'])}, ${count(cost)}"
            rows.append({"cluster": _place(outcome), "days": outcome["days"], "cost": cost, "said": said,
                         "label": f"{_place(outcome)}: {said}"})  # fmt: skip
    return rows


def curve_rows(
    points: Sequence[Mapping[str, Any]], marks: Mapping[int, str], beside: int | None = None
) -> list[Row]:
    """Days and money over the number of devices; `marks`: devices -> what is special about them.

    `beside`: a size that is no doubling, which the curve passes by.
    """
    rows = []
    for point in points:
        run = point.get("run") or {}
        whole, cost = point.get("days"), run.get("cost")
        if whole is None:
            continue
        said = f"{point['gpus']:,} {_noun(point)}s: {days(whole)}" + (
            f", ${count(cost)}" if cost is not None else ""
        )
        rows.append({"gpus": point["gpus"], "days": whole, "cost": cost, "mark": marks.get(point["gpus"], ""),
                     "on_curve": point["gpus"] != beside, "said": said, "label": said})  # fmt: skip
    return rows
