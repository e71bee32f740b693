"""What stands at the head of an answer, in words: the best configuration, what to take instead, and a proof's gap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.dialect import option
from planner.report.words.memory import host_lack, host_of
from planner.report.words.template import Words, amount
from planner.spec.findings import Finding
from planner.spec.planfile import CLOSED_GAP, Concern, Ending
from planner.spec.verdict import MemoryVerdict
from planner.units import GIB, format_capacity, format_small, format_time

LITTLE: Final = 0.1 * GIB  # memory not worth a word
_ENDED_BY: Final[Mapping[str, str]] = {
    Ending.TIME_LIMIT: "the time limit", Ending.INTERRUPTED: "an interrupt",
}  # fmt: skip
# what the recommended one has less of
_NEARER: Final[Mapping[str, str]] = {
    Concern.KINDS: "fewer kinds of parallelism",
    Concern.WIDE_TENSOR: "tensor parallelism within the fast links",
    Concern.SHORT_CONTEXT: "no context parallelism of short sequences",
    Concern.ODD_DEGREE: "degrees that are powers of two",
    Concern.UNEVEN_LAYERS: "stages of equal depth",
    Concern.SCHEDULE: "1F1B",
    Concern.OFFLOAD: "nothing in host memory",
    Concern.GRAPHS: "CUDA graphs left as the framework has them",
}


def ended_by(ending: str) -> str:
    """What ended a search before its proof; empty where nothing did."""
    return _ENDED_BY.get(ending, "")


def gap_said(values: Mapping[str, object]) -> str:
    """That something faster may exist, and how much; empty where a gap is too small to matter."""
    gap, ended = values.get("gap"), ended_by(str(values.get("ending", "")))
    if gap is None:
        return f"not proven: ended by {ended}" if ended else ""
    return f"not proven: up to {gap:.1%} faster may exist" + (f" (ended by {ended})" if ended else "")


def _room(found: Finding) -> str:
    """Does it fit, and by how much."""
    values = found.values
    free, where = amount(found, "free", float), f"on pipeline rank {values['rank']}"
    if values["verdict"] == MemoryVerdict.BORDERLINE and free < 0:
        over = f"{format_capacity(-free)} over the {format_capacity(amount(found, 'limit', float))} limit"
        return f"borderline: predicted {over} {where}, within the memory model's error"
    back = format_capacity(amount(found, "kept_back", float)) if "kept_back" in values and free >= 0 else ""
    room = f"{format_capacity(abs(free))} {'free' if free >= 0 else 'over the limit'} {where}"
    room += f" beside {back} kept back" if back else ""
    if "host_over" in values:
        short, limit = amount(found, "host_over", float), amount(found, "host_limit", float)
        room = f"{host_lack(short, limit, host_of(found))}, {room}"
    return f"{str(values['verdict']).replace('_', ' ')}, {room}"


def _best(found: Finding) -> str:
    values = found.values
    time, low, high = (
        format_time(amount(found, n, float)) for n in ("step_time", "step_time_low", "step_time_high")
    )
    adapters = ""
    if "lora_rank" in values:
        adapters = f", LoRA of rank {values['lora_rank']} on {values['frozen_bits']}-bit weights"
    days = f", {values['days']:.1f} days" if "days" in values else ""
    gap = gap_said(values)
    return (
        f"{values['configuration']}: {time} a step ({low} to {high}), {values['tokens_per_second_per_device']:,.0f} "
        f"tokens/s per device, {values['mfu']:.0%} MFU, {_room(found)}{adapters}{days}" + (f", {gap}" if gap else "")
    )  # fmt: skip


def _pinned(found: Finding) -> str:
    """The axes that the request pins."""
    pins = zip(amount(found, "axes", list), amount(found, "pinned", list), strict=True)
    said = ", ".join(f"{axis} {' or '.join(held.split(','))}" for axis, held in pins)
    return f" with {said}" if said else ""


def _none_legal(found: Finding) -> str:
    own = f" under the stack's own split of layers (estimate {option('set', 'layout=')} takes others)"
    told = own if found.values["other_chunks"] else ""
    return f"none of {found.values['candidates']:,} configurations{_pinned(found)} is legal{told}"


def trade_said(found: Finding) -> str:
    """What a trade costs and brings."""
    slower, more = amount(found, "slower", float), amount(found, "more_free", float)
    parts = ["as fast" if slower <= CLOSED_GAP else f"{format_small(slower, '')} slower"]
    if abs(more) >= LITTLE:
        parts.append(f"{format_capacity(abs(more))} {'more' if more > 0 else 'less'} free")
    if "nearer" not in found.values:
        return ", ".join(parts)
    nearer = [_NEARER[concern] for concern in amount(found, "nearer", list)]
    return ", ".join(parts) + (f"; as others run it: {', '.join(nearer)}" if nearer else "")


WORDS: Final[Mapping[str, Words]] = {
    "best": _best,
    "none_legal": _none_legal,
    "none_fits": lambda found: (
        f"none of {found.values['candidates']:,} legal configurations{_pinned(found)} fits"
    ),
    "recommended": lambda found: (
        f"recommended: #{found.values['place']} {found.values['configuration']}, {trade_said(found)}"
    ),
    "recommended_by_dryrun": lambda found: (
        f"recommended: #{found.values['place']} {found.values['configuration']}, the first listed that a dry run "
        f"confirms, {trade_said(found)}"
    ),
}
