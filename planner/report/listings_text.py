"""How do models, clusters and stacks look in a terminal? Draws the facts of `report.listings`.

Left out: the facts themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from rich.console import Group, RenderableType
from rich.padding import Padding

from planner.catalog.load_options import OptionKind
from planner.dialect import option
from planner.report.facts import count
from planner.report.listings import Facts, flattened
from planner.report.text import bullets, labelled, listing, prose, section
from planner.spec.config import offload_text
from planner.spec.machine.load_cluster import noun_of
from planner.spec.stack import Stack
from planner.spec.stack.section import Bytes, Seconds
from planner.units import (
    format_bandwidth,
    format_capacity,
    format_compute,
    format_time,
)

_BY_UNIT = (
    (get_args(Seconds)[1], format_time),
    (get_args(Bytes)[1], format_capacity),
)  # by a field's validator
_HEADS = {"kin": "closest measured stack", "fitted_on": "fitted on"}
_ABSENT = ("flops_forward_scan", "flops_forward_indexer")  # told where a model has them


def model_document(facts: Facts) -> RenderableType:
    """One model: parameters by kind and the FLOPs of a step."""
    total = facts["params_total"]
    rows = [
        (kind.replace("_", " "), f"{number:,}", f"{100 * number / total:.1f} %")
        for kind, number in facts["params_by_kind"].items()
    ]
    rows.append(("total", f"{total:,}", ""))
    if facts["params_active"] != total:
        rows.append(("active per token", f"{facts['params_active']:,}", ""))
    flops = [
        (key.removeprefix("flops_").replace("_", " "), f"{facts[key] / 1e12:,.3f} TFLOP")
        for key in facts
        if key.startswith("flops_") and (facts[key] or key not in _ABSENT)
    ]
    work = f"One step of {facts['batch']:,} x {facts['seq_len']:,} tokens, without recomputation"
    shape = f"{facts['layers']} layers, hidden {facts['hidden']:,}, vocabulary {facts['vocab']:,}"
    blocks: list[RenderableType] = [
        prose(f"{facts['name']} ({facts['family']})", "bold"),
        prose(shape + (f", context {facts['context']:,}" if facts["context"] else "")),
        prose(f"source: {facts['source']}", "dim"),
        section("Parameters", listing(("kind", "parameters", "share"), rows)),
        section(
            work,
            listing(("part", "FLOPs"), flops),
            prose(_counted(bool(facts["flops_forward_indexer"])), "dim"),
        ),
    ]
    if facts["assumed"]:
        blocks.append(section("Assumed", bullets(facts["assumed"])))
    return Group(*blocks)


def _counted(chooses: bool) -> str:
    """How attention is counted."""
    ignored = "windows, masks and what an indexer chooses" if chooses else "windows and masks"
    return f"attention is counted in full, {ignored} ignored"


def catalog_document(models: Sequence[Facts]) -> RenderableType:
    """The catalog of models."""
    rows = [
        (
            facts["name"] + (" *" if facts["unverified"] else ""),
            facts["family"],
            str(facts["layers"]),
            f"{facts['context']:,}" if facts["context"] else "",
            count(facts["params_total"]),
            count(facts["params_active"]) if facts["params_active"] != facts["params_total"] else "",
        )
        for facts in models
    ]
    table = listing(("model", "family", "layers", "context", "parameters", "active"), rows, left=2)
    notes = []
    if any(facts["unverified"] for facts in models):
        notes.append(prose("* unverified dimensions (no source), confirmed by no published total", "dim"))
    return Group(
        table,
        *notes,
        prose("Listed Hugging Face IDs and any local config.json work too; nothing is downloaded.", "dim"),
    )


def cluster_document(facts: Facts) -> RenderableType:
    """One cluster: its device, its tiers of links, price and power, sources."""
    size = "as many as asked for; shown: " if facts["any_size"] else ""
    peak = ", ".join(f"{dtype} {format_compute(rate)}" for dtype, rate in facts["peak_flops"].items())
    rows = [
        ("devices", f"{size}{facts['devices']:,} {facts['accelerator']}, {facts['devices_per_node']} per node"),
        ("memory", f"{format_capacity(facts['memory_per_device'])} at {format_bandwidth(facts['memory_bandwidth'])}"),
        ("dense peak", peak),
    ]  # fmt: skip
    for key, label, unit in (
        ("host_memory", "host memory", "per node"),
        ("price_per_device_hour", "price", f"per {noun_of([facts['accelerator']])}-hour"),
        ("power_per_device", "power", "per device"),
    ):
        if facts[key] is not None:
            rows.append((label, f"{_shown(key, facts[key])} {unit}"))
    if "slice" in facts:
        rows.append(
            ("slice", " x ".join(map(str, facts["slice"])) + ", each device linked to its neighbours")
        )
    if facts["rails"] is not None:
        rows.append(("rails", f"{facts['rails']} between nodes; informational, not used by the model"))
    tiers = [
        (
            tier["name"],
            tier["kind"],
            f"{tier['devices']:,}",
            format_bandwidth(tier["bandwidth"]),
            format_bandwidth(tier["bandwidth_alone"]),
            format_time(tier["latency"]),
        )
        for tier in facts["tiers"]
    ]
    heads = ("tier", "links", "devices", "all devices", "one device", "per hop")
    blocks: list[RenderableType] = [
        prose(facts["name"], "bold"),
        labelled_wrapped(rows),
        section("Links, per device and direction", listing(heads, tiers, left=2)),
        section("Sources", bullets(_sources(facts))),
    ]
    for title, key in (("Assumed", "assumed"), ("Unverified (no source)", "unverified")):
        if facts[key]:
            blocks.append(section(title, bullets(facts[key])))
    return Group(*blocks)


def _sources(facts: Facts) -> list[str]:
    return [source for source in (facts["source"], facts["accelerator_source"]) if source]


def _shown(key: str, value: float) -> str:
    if key == "host_memory":
        return format_capacity(value)
    return f"${value:.2f}" if key.startswith("price") else f"{value:,.0f} W"


def labelled_wrapped(rows: Sequence[tuple[str, str]]) -> RenderableType:
    """Rows of label and a value that may need several lines."""
    return labelled((label, "", value) for label, value in rows)


def clusters_document(clusters: Sequence[Facts], devices: Sequence[str]) -> RenderableType:
    """The shipped clusters, and the devices of which nodes of the usual size are clusters, too."""
    rows = []
    for facts in clusters:
        tiers = facts["tiers"]
        outer: dict[str, Any] | None = tiers[1] if len(tiers) > 1 else None
        rows.append(
            (
                facts["name"],
                facts["accelerator"] if facts["accelerator"] != facts["name"] else "same",
                "any" if facts["any_size"] else f"{facts['devices']:,}",
                f"{tiers[0]['devices']:,}",
                _gigabytes(tiers[0]["bandwidth"]),
                f"{outer['kind']} {_gigabytes(outer['bandwidth'])}" if outer else "",
            )
        )
    heads = ("cluster", "accelerator", "size", "domain", "GB/s", "between, GB/s")
    return Group(
        listing(heads, rows, left=2),
        prose("size and domain in devices; same: named as the accelerator", "dim"),
        prose("GB/s per device and direction, inside the domain and between domains", "dim"),
        prose(
            f"Any device is a cluster, in nodes of its usual size, and so is `8x DEVICE`: {', '.join(devices)}"
        ),
        prose(
            "`planner clusters NAME` gives every source, and says which numbers are unverified (no source)",
            "dim",
        ),
    )


def _gigabytes(rate: float) -> str:
    return f"{rate / 1e9:,.4g}"


_OPTION_KINDS: Final[Mapping[str, str]] = {
    OptionKind.SPEED: "they change speed, a search tries them",
    OptionKind.NUMERICS: "they change numerics, a search names their gain",
    OptionKind.FACT: "what a release, a script or the data are like",
}


def stack_document(facts: Facts) -> RenderableType:
    """One stack with all its numbers."""
    head = ("name", "framework", "released", "description", "source", "fitted", "fitted_on", "kin")
    rest = {key: value for key, value in facts.items() if key not in (*head, "options")}
    lines = [
        prose(f"{_HEADS.get(key, key)}: {_said(facts[key])}", "" if key != "source" else "dim")
        for key in head[1:]
        if facts[key]
    ]
    blocks: list[RenderableType] = [
        prose(facts["name"], "bold"),
        *lines,
        section("Numbers", labelled_wrapped([(key, _stack_value(key, v)) for key, v in flattened(rest)])),
    ]
    if facts["options"]:
        for kind, does in _OPTION_KINDS.items():
            rows = [(name, _meaning(one)) for name, one in facts["options"].items() if one["kind"] == kind]
            if rows:
                named = option("stack", f"{facts['name']}+{rows[0][0]}")
                title = f"Options, as in {named}: {does}"
                blocks.append(section(title, labelled_wrapped(rows)))
    return Group(*blocks)


def _said(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _meaning(one: Facts) -> str:
    return f"{one['meaning']} (needs {one['needs']})" if one["needs"] else str(one["meaning"])


def rules_document(name: str, rules: Facts) -> RenderableType:
    """The rules of a search on a stack, each with what must hold and its source."""
    rows: list[RenderableType] = []
    for rule, facts in rules.items():
        rows += [prose(rule, "bold"), Padding(prose(f"{facts['must']} ({facts['source']})"), (0, 0, 0, 4))]
    return Group(prose(f"{len(rules)} rules of a search on {name}", "bold"), *rows)


def _stack_value(key: str, value: str) -> str:
    """A stack's number with its unit, which its field states; shares and factors have none."""
    *sections, last = key.split(".")
    fields = Stack.model_fields
    for section_name in sections:
        fields = getattr(fields[section_name].annotation, "model_fields", {})
    for reader, shown in _BY_UNIT:
        if last in fields and reader in fields[last].metadata:
            return shown(float(value))
    if key == "limits.offload":
        return ", ".join(offload_text(int(mask)) for mask in value.split(", "))
    return value or "not set"


def stacks_document(stacks: Sequence[Facts]) -> RenderableType:
    """The shipped stacks, what each is on a line of its own."""
    lines: list[RenderableType] = []
    for f in stacks:
        head = prose(f["name"], "bold")
        head.append(f"  {f['framework']}, {f['released']}, +-{100 * f['band']:.0f} %", "not bold")
        lines += [head, Padding(prose(f["description"], "dim"), (0, 0, 0, 4))]
    return Group(*lines, prose("+-: 80% interval of the step time", "dim"))
