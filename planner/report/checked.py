"""How does the verdict on launch files look in a terminal? Legality, memory and speed, then what would be better.

Left out: what is judged (`cli.check`) and the lines that change (`cli.changes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from planner.report.facts import speedup
from planner.report.text import prose, readable
from planner.units import format_capacity, format_time


def checked_document(answer: Mapping[str, Any]) -> RenderableType:
    """The answer of `planner check`, as its JSON has it."""
    releases = answer["releases"]
    version = releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"
    on = f"{answer['config']} on {answer['devices']:,} devices"
    lines: list[RenderableType] = [prose(f"{answer['framework']} {version}: {on}")]
    lines += [prose(f"unknown option: {name}") for name in answer["unknown_options"]]
    costed = "step_time_s" in answer
    # a configuration that breaks a rule is not costed: what is left is refused at the start
    kind = "does not start" if costed else "not legal"
    lines += [
        prose(f"{kind} ({broken['rule']}): {broken['reason']}; {broken['hint']}")
        for broken in answer["violations"]
    ]
    if costed:
        lines += [prose(line) for line in _figures(answer)]
    lines += _better(answer)
    lines += [prose(f"note: {note}") for note in answer["notes"]]
    return Group(*lines)


def _figures(answer: Mapping[str, Any]) -> list[str]:
    fits = str(answer["verdict"]).replace("_", " ")
    legal = "legal" if answer["legal"] else "costed as if it were accepted, its degrees being legal"
    peak, room = format_capacity(answer["peak_memory_bytes"]), format_capacity(answer["memory_limit_bytes"])
    lines = [f"{legal}; {fits}: peak {peak} of {room}"]
    if answer["host_memory_short_bytes"]:
        short, room = (format_capacity(answer[f"host_memory_{part}_bytes"]) for part in ("short", "limit"))
        lines.append(f"a node's host needs {short} more than its {room}")
    if "dryrun" in answer:
        lines.append(str(answer["dryrun"]["text"]))
    rate = f"{answer['tokens_per_s_per_gpu']:,.0f} tokens/s per device"
    lines.append(f"step time {format_time(answer['step_time_s'])}, {rate}, {answer['mfu']:.0%} MFU")
    lines += [str(found["text"]) for found in answer["routing"]]
    if "days" in answer:
        price = "" if answer["cost_usd"] is None else f", ${answer['cost_usd']:,.0f}"
        lines.append(f"the whole run: {answer['days']:,.1f} days{price}")
    return lines


def _better(answer: Mapping[str, Any]) -> list[RenderableType]:
    better = answer["better"]
    # legal, if perhaps with an unknown option
    if better is None and answer["verdict"] in ("fits", "borderline"):
        return [prose("nothing better was found for this job")]
    if better is None:
        return [prose("no configuration of this job was found that is legal and fits")]
    gain, said = better["faster"], ""
    if gain is not None:
        said = f", {speedup(1 + gain)}" if gain >= 0 else f", {1 / (1 + gain) - 1:.1%} slower, but it fits"
    lines: list[RenderableType] = [
        prose(f"better: {better['config']} ({format_time(better['step_time_s'])} a step{said})")
    ]
    # lines to be copied stay whole
    return [
        *lines,
        *(Text(f"  {readable(line)}", no_wrap=True, overflow="ignore") for line in better["diff"]),
    ]
