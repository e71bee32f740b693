"""Where does a plan's parallelism live, and why is it not another? Plain data, and a document for the terminal.

Left out: how a configuration is placed and costed (`solve/place.py`, `solve/alternatives.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.text import Text

from planner.report.facts import MEMORY_WORDS, aligned_time, precise_time
from planner.report.tables import Fitting, WordTable
from planner.report.text import bullets, prose, section
from planner.report.words import dumped, text_of, texts
from planner.solve.alternatives import WORTH_SAYING, Alternative, WhyNot
from planner.solve.place import AxisPlace, Placement
from planner.spec.config import value_text
from planner.spec.findings import Finding
from planner.spec.machine.cluster import Cluster
from planner.spec.planfile import Choice
from planner.spec.terms import term_name
from planner.spec.verdict import MemoryRoom, MemoryVerdict
from planner.units import GIB, format_capacity

_KINDS: Final = {
    "nvlink": "NVLink", "xgmi": "xGMI", "pcie": "PCIe", "ici": "ICI", "neuronlink": "NeuronLink", "upi": "UPI",
    "infiniband": "InfiniBand", "roce": "RoCE", "efa": "EFA", "ethernet": "Ethernet", "omnipath": "Omni-Path",
    "slingshot": "Slingshot",
}  # fmt: skip
_MOST_RULES: Final = 2
_MOST_TERMS: Final = 4


@dataclass(frozen=True)
class Explanation:
    """Everything said of one configuration. `room`: what memory is judged by; `rank`: whose groups are shown;
    `routing`: what its experts' loads are taken to be, and what the busiest rank costs."""

    choice: Choice
    placement: Placement
    rank: int
    planned: Alternative
    room: MemoryRoom
    walls: tuple[Alternative, ...]
    changes: tuple[Alternative, ...]
    why_not: WhyNot | None
    routing: tuple[Finding, ...]


def explanation_facts(found: Explanation) -> dict[str, Any]:
    """The explanation as plain data, in planner's inner units."""
    placement = found.placement
    groups = placement.groups_of(found.rank)
    return {
        "config": found.choice.config.model_dump(),
        "step_time": found.choice.step_time,
        "memory": found.choice.memory.peak,
        "memory_limit": found.room.limit,
        "routing": dumped(found.routing),
        "placement": placement_facts(placement),
        "rank": {
            "rank": found.rank,
            "node": found.rank // placement.cluster.devices_per_node,
            "place": placement.layout.place_of(found.rank),
            "groups": groups,
            "links": {
                axis: _tier_facts(placement.cluster, crossed(ranks, placement.cluster))
                for axis, ranks in groups.items()
            },
        },
        "stopped": [_alternative_facts(a, found) for a in found.walls],
        "what_if": [_alternative_facts(a, found) for a in found.changes],
        "why_not": None if found.why_not is None else _why_not_facts(found.why_not, found),
    }


def placement_facts(placement: Placement) -> dict[str, Any]:
    """Where every axis lives: order of the axes, links, bytes and seconds a step."""
    layout = placement.layout
    return {
        "framework": placement.framework,
        "order": list(layout.dense_order),
        "expert_order": list(layout.expert_order),
        "sizes": dict(layout.sizes),
        "stage": placement.stage,
        "tiers": [_tier_facts(placement.cluster, k) for k in range(len(placement.cluster.tiers))],
        "axes": [
            {
                "axis": a.axis,
                "size": a.size,
                "groups": a.count,
                "stride": a.stride,
                "tier": a.tier,
                "inside": list(a.inside),
                "same_rail": a.same_rail,
                "bandwidth": _bandwidth(a),
                "sent_per_step": a.sent,
                "busy": a.busy,
                "exposed": a.exposed,
                "exchanges": [
                    {
                        "kind": str(e.kind),
                        "what": e.what,
                        "size": e.size,
                        "calls": e.calls,
                        "sent": e.sent,
                        "hidden_by": str(e.hidden_by),
                    }
                    for e in a.exchanges
                ],
            }
            for a in placement.axes
        ],
    }


def _tier_facts(cluster: Cluster, index: int) -> dict[str, Any]:
    tier = cluster.tiers[index]
    return {"tier": index, "name": tier.name, "kind": str(tier.kind), "devices": tier.size}


def _bandwidth(place: AxisPlace) -> float:
    """What the narrowest link of the axis gives a device [bytes/s]."""
    return float(place.links.scale_up if place.tier == 0 else place.links.fabric)


def _alternative_facts(a: Alternative, found: Explanation) -> dict[str, Any]:
    return {
        "change": a.change.model_dump(),
        "config": a.config.describe(),
        "step_time": a.step_time,
        "throughput_change": _gain(a, found.planned),
        "memory": a.memory,
        "over": None if a.memory is None else a.memory - found.room.limit,
        "fits": a.fits,
        "memory_verdict": None if a.memory is None else str(found.room.verdict(a.memory)),
        "broken": [{"rule": b.rule, "reason": b.reason, "hint": b.hint} for b in a.broken],
        "time": a.terms,
    }


def _why_not_facts(answer: WhyNot, found: Explanation) -> dict[str, Any]:
    return {
        "named": {axis: list(values) for axis, values in answer.named.items()},
        "as_planned": _alternative_facts(answer.as_planned, found),
        "best": None if answer.best is None else _alternative_facts(answer.best, found),
        "smallest": None if answer.smallest is None else _alternative_facts(answer.smallest, found),
        "removed": answer.removed,
        "sentence": why_not_sentence(answer, found),
    }


def crossed(ranks: Sequence[int], cluster: Cluster) -> int:
    """The outermost tier between ranks of a group."""
    for k, tier in enumerate(cluster.tiers):
        if len({rank // tier.size for rank in ranks}) == 1:
            return k
    return len(cluster.tiers) - 1


def _gain(a: Alternative, planned: Alternative) -> float | None:
    """Throughput over the planned one's, less 1 [1]."""
    return None if a.rate is None or planned.rate is None else a.rate / planned.rate - 1


def explanation_document(found: Explanation) -> RenderableType:
    """The explanation as sections, the placement first."""
    choice, placement = found.choice, found.placement
    head = (
        f"{choice.config.text}: {precise_time(choice.step_time)} a step, {choice.memory.peak / GIB:.1f} of "
        f"{found.room.limit / GIB:.1f} GiB"
    )
    place = placement.layout.place_of(found.rank)
    where = ", ".join(
        f"{term_name(axis)} {place[axis]}" for axis in place if placement.layout.sizes[axis] > 1
    )
    node = f"node {found.rank // placement.cluster.devices_per_node}"
    blocks: list[RenderableType] = [prose(head, "bold")]
    if found.routing:
        blocks.append(section("Experts", bullets(texts(found.routing))))
    if placement.axes:
        blocks += [
            section("Rank layout", *_order_lines(placement), Text(""), _axes_table(placement)),
            section(f"Messages of a rank on pipeline rank {placement.stage}, in a step", _messages_table(placement)),
            section(f"Groups of rank {found.rank} ({', '.join(p for p in (where, node) if p)})", _groups_table(found)),
        ]  # fmt: skip
    else:
        blocks.append(section("Rank layout", prose("one device: there is nothing to place")))
    if found.why_not is not None:
        named = ", ".join(
            f"{axis}={','.join(value_text(axis, v) for v in values)}"
            for axis, values in found.why_not.named.items()
        )
        blocks.append(section(f"Why not {named}", *_why_not_blocks(found.why_not, found)))
    nothing = [prose("nothing: none would be")]
    stopped = [_walls_table(found), *_rules_said(found.walls)] if found.walls else nothing
    blocks.append(section("What stopped configurations that would be faster", *stopped))
    said = {b.rule for a in found.walls for b in a.broken[:_MOST_RULES]}
    alike = []
    if choice.split is not None:  # other configurations have none solved: like is compared with like
        alike.append(prose("all rows, the plan included, use the stack's default layer split", "dim"))
    blocks.append(section("What if", _changes_table(found), *alike, *_rules_said(found.changes, said)))
    return Group(*blocks)


def _order_lines(placement: Placement) -> list[RenderableType]:
    """How ranks are numbered, as sums over the axes that have more than one value."""
    layout = placement.layout
    lines: list[str] = []
    for order in (layout.dense_order, layout.expert_order):
        apart = 1
        parts: list[str] = []
        for axis in order:
            if layout.sizes[axis] > 1:
                parts.append(term_name(axis) if apart == 1 else f"{apart:,} {term_name(axis)}")
            apart *= layout.sizes[axis]
        if parts:
            lines.append(f"rank = {' + '.join(parts)}")
    tiers = " > ".join(
        f"{_link(placement.cluster, k)} of {tier.size:,}" for k, tier in enumerate(placement.cluster.tiers)
    )
    first = f"{lines[0]} ({placement.framework})" if lines else placement.framework
    experts = [prose(f"{lines[1]} for experts")] if len(lines) > 1 else []
    return [prose(first), *experts, prose(f"links, inner to outer: {tiers}", "dim")]


def _link(cluster: Cluster, tier: int) -> str:
    found = cluster.tiers[tier]
    kind = _KINDS.get(str(found.kind), str(found.kind))
    return kind if tier == 0 else f"{kind} {found.name}"


def _lives(place: AxisPlace, cluster: Cluster) -> str:
    """The link an axis crosses, and what of a group stays within the fast links."""
    text = _link(cluster, place.tier)
    if place.tier and place.inside[0] > 1:
        text += f", {place.inside[0]} by {_link(cluster, 0)}"
    if place.tier and not place.same_rail:
        text += ", across rails"
    return text


def _axes_table(placement: Placement) -> RenderableType:
    cluster, longest = placement.cluster, max((a.busy for a in placement.axes), default=0.0)
    rows = []
    for a in placement.axes:
        rows.append(
            (
                term_name(a.axis), f"{a.size:,}", f"{a.stride:,}", f"{a.count:,}", _lives(a, cluster),
                f"{_bandwidth(a) / 1e9:.0f}", format_capacity(a.sent) if a.sent else "",
                aligned_time(a.busy, longest) if a.sent else "",
                aligned_time(a.exposed, longest) if a.exposed is not None else "",
            )
        )  # fmt: skip
    heads = ("axis", "size", "stride", "groups", "over", "GB/s", "sent/step", "busy", "exposed")
    return _fitting(
        heads, rows, ((0, 1, 2, 3, 4, 5, 6, 7, 8), (0, 1, 2, 4, 6, 7, 8), (0, 1, 4, 6, 7, 8)), {4}
    )


def _messages_table(placement: Placement) -> RenderableType:
    rows = [
        (
            term_name(a.axis), str(e.kind).replace("_", "-"), term_name(e.what), format_capacity(e.size),
            f"{e.calls:,.0f}", format_capacity(e.sent_per_step),
        )
        for a in placement.axes
        for e in a.exchanges
    ]  # fmt: skip
    heads = ("axis", "message", "of", "each", "times", "sent")
    return _fitting(heads, rows, ((0, 1, 2, 3, 4, 5),), {1, 2})


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks of a group, shortened: 0-7, or 0, 8 .. 504 (64 ranks, 8 apart), or the first and last."""
    steps = {b - a for a, b in pairwise(ranks)}
    if len(ranks) < 5 and steps != {1}:
        return ", ".join(map(str, ranks))
    if steps == {1}:
        return f"{ranks[0]}-{ranks[-1]}"
    if len(steps) == 1:
        return f"{ranks[0]}, {ranks[1]} .. {ranks[-1]}"
    return f"{ranks[0]}, {ranks[1]}, {ranks[2]} .. {ranks[-1]}"


def _groups_table(found: Explanation) -> RenderableType:
    cluster = found.placement.cluster
    rows = []
    for axis, ranks in found.placement.groups_of(found.rank).items():
        nodes = len({rank // cluster.devices_per_node for rank in ranks})
        over = _link(cluster, crossed(ranks, cluster))
        rows.append((term_name(axis), ranks_text(ranks), f"{len(ranks):,}", f"{nodes:,}", over))
    return _fitting(("axis", "ranks", "size", "nodes", "over"), rows, ((0, 1, 2, 3, 4),), {1, 4})


def _walls_table(found: Explanation) -> RenderableType:
    rows = []
    for a in found.walls:
        gain = _gain(a, found.planned)
        rows.append(
            (text_of(a.change), f"{gain:+.1%}" if gain is not None else "", _stopped_by(a, found.room))
        )
    return _wrapping(("change", "tok/s", "stopped by"), rows)


def _rules_said(rows: Sequence[Alternative], before: Set[str] = frozenset()) -> list[RenderableType]:
    """Each rule that rows of a table name, said once under it without a row's values; `before`: said already."""
    broken = [b for a in reversed(rows) for b in a.broken[:_MOST_RULES] if b.rule not in before]
    rules = {b.rule: b.must or b.reason for b in broken}
    return [bullets([f"{rule}: {must}" for rule, must in sorted(rules.items())])] if rules else []


def _stopped_by(a: Alternative, room: MemoryRoom, full: bool = False) -> str:
    """The rules by name, or with their reasons where `full`, and the memory."""
    reasons = [f"{b.rule}: {b.reason}" if full else b.rule for b in a.broken[:_MOST_RULES]]
    more = len(a.broken) - _MOST_RULES
    if more > 0:
        reasons.append(f"and {more} more rule{'s' if more > 1 else ''}")
    if a.memory is not None and not a.fits:
        reasons.append(f"memory: {_memory_said(a.memory, room)}")
    return "; ".join(reasons)


def _memory_said(peak: float, room: MemoryRoom) -> str:
    """Why a peak is too large [bytes]."""
    verdict = room.verdict(peak)
    if verdict is MemoryVerdict.FITS:
        return "too much of the host's"
    over = f"{(peak - room.limit) / GIB:,.1f} over the limit"
    return (
        f"{peak / GIB:,.1f} GiB, {over if verdict is MemoryVerdict.DOES_NOT_FIT else MEMORY_WORDS[verdict]}"
    )


def _changes_table(found: Explanation) -> RenderableType:
    rows = []
    for a in found.changes:
        gain = _gain(a, found.planned)
        memory = "" if a.memory is None else f"{a.memory / GIB:,.1f}"
        fits = a.memory is not None and a.fits and not a.broken
        verdict = MEMORY_WORDS[found.room.verdict(a.memory or 0.0)] if fits else _stopped_by(a, found.room)
        rows.append((text_of(a.change), f"{gain:+.1%}" if gain is not None else "", memory, verdict))
    return _wrapping(("change", "tok/s", "GiB", ""), rows)


def why_not_sentence(answer: WhyNot, found: Explanation) -> str:
    """The answer in one sentence."""
    if answer.best is not None:
        step_time, planned = answer.best.step_time, found.planned.step_time
        assert step_time is not None, "the best was costed"
        assert planned is not None, "the planned one was costed"
        longer = step_time / planned - 1
        best = f"best configuration with this setting: {answer.best.config.describe()}"
        if abs(longer) < WORTH_SAYING:
            return f"{best}, as fast within {WORTH_SAYING:.1%}"
        return f"{best}, its step takes {abs(longer):.1%} {'longer' if longer > 0 else 'less'}"
    if answer.smallest is not None:
        assert answer.smallest.memory is not None, "the smallest was costed"
        least = f"the one that needs least memory, {answer.smallest.config.describe()}"
        return (
            f"none with this setting fits: {least}, needs {_memory_said(answer.smallest.memory, found.room)}"
        )
    return "no configuration with this setting is legal"


def _why_not_blocks(answer: WhyNot, found: Explanation) -> list[RenderableType]:
    lines = [why_not_sentence(answer, found)]
    if answer.best is not None:
        lines += difference_of_terms(found.planned, answer.best)
    as_planned = answer.as_planned
    if answer.best is None or as_planned.config != answer.best.config:
        gain = _gain(as_planned, found.planned)
        stop = _stopped_by(as_planned, found.room, full=True) or "it fits"
        speed = ""
        if gain is not None and not as_planned.broken:
            speed = f", {abs(gain):.1%} {'fewer' if gain < 0 else 'more'} tokens a second"
        lines.append(f"changing only this: {as_planned.config.describe()}: {stop}{speed}")
    if answer.best is None and answer.smallest is None and answer.removed:
        removed = [f"{rule} {count:,}" for rule, count in list(answer.removed.items())[:_MOST_RULES]]
        lines.append("candidates with this setting that each rule removed: " + ", ".join(removed))
    return [prose(lines[0], "bold"), bullets(lines[1:])] if lines[1:] else [prose(lines[0], "bold")]


def difference_of_terms(planned: Alternative, other: Alternative) -> list[str]:
    """The terms of the step that differ most, largest first."""
    assert planned.step_time is not None, "the planned one was costed"
    apart = {name: other.terms.get(name, 0.0) - planned.terms.get(name, 0.0) for name in planned.terms}
    kept = sorted(apart, key=lambda name: -abs(apart[name]))[:_MOST_TERMS]
    return [
        f"{term_name(name)} {'+' if apart[name] > 0 else '-'}{precise_time(abs(apart[name]))}"
        for name in kept
        if abs(apart[name]) > WORTH_SAYING * planned.step_time
    ]


def _fitting(
    heads: Sequence[str], rows: Iterable[Sequence[str]], widths: Iterable[Sequence[int]], left: set[int]
) -> RenderableType:
    """The table with the most columns that the terminal is wide enough for."""
    rows = list(rows)
    tables: list[RenderableType] = []
    for kept in widths:
        table = WordTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
        for i in kept:
            table.add_column(heads[i], justify="left" if i == 0 or i in left else "right")
        for row in rows:
            table.add_row(*(prose(row[i]) for i in kept))
        tables.append(table)
    return Fitting(tables)


def _wrapping(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> RenderableType:
    """A table whose last column is prose."""
    table = WordTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for index, head in enumerate(heads):
        middle = 0 < index < len(heads) - 1
        ratio = {0: 2, len(heads) - 1: 3}.get(index)
        table.add_column(head, justify="right" if middle else "left", no_wrap=middle, ratio=ratio)
    for row in rows:
        *front, last = row
        style = "green" if last == "fits" else ""
        table.add_row(*(prose(cell) for cell in front), prose(last, style))
    return table
