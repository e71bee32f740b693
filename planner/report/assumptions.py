"""What is assumed about whole runs, and on what grounds? Plain data, and a document for the terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding

from planner.cost.offload import (
    BOTH_WAYS_SHARE,
    CHIP_LINK_SHARE,
    FASTEST_HOST_UPDATE,
    HOST_UPDATE,
    PINNED_SHARE,
    SLOWEST_HOST_UPDATE,
)
from planner.dialect import option
from planner.report.facts import count as format_tokens
from planner.report.outcome import Facts
from planner.report.text import labelled, prose, section
from planner.spec.assumptions import Assumption, Assumptions
from planner.spec.batch_fit import BatchFit, FitInput

HOST_ASSUMPTIONS: Final = (
    Assumption(
        "pinned_copy_share", f"{PINNED_SHARE:.0%}", "fraction",
        "of the rate of PCIe that copies from and to pinned memory of the host reach",
        f"NVIDIA/nvbandwidth README.md: 26.0 GB/s of 31; {BOTH_WAYS_SHARE:.0%} with both directions busy and all "
        "of it are the ends of the range. Of NVLink-C2C (GB200, GB300) "
        f"{CHIP_LINK_SHARE:.0%}, as nvbandwidth shows on 4 x GB300 (NVIDIA/Megatron-LM#6491)",
    ),
    Assumption(
        "host_update_rate", f"{HOST_UPDATE / 1e9:.0f} GB/s", "bandwidth",
        "host memory that a node's optimizer step moves, 28 bytes a parameter with AdamW, on hosts of A100; elsewhere "
        "as the bandwidth of their memory",
        "a step of DeepSpeed's CPU-Adam on nodes of A100, about 10 s of it (deepspeedai/DeepSpeed#6834). From "
        f"{SLOWEST_HOST_UPDATE / 1e9:.0f} GB/s (a whole step in deepspeedai/DeepSpeed#7474) to "
        f"{FASTEST_HOST_UPDATE / 1e9:.0f} (two sockets of DDR4)",
        unverified=True,
    ),
)  # fmt: skip


def assumptions_facts(held: Assumptions) -> Facts:
    """Every assumption as plain data."""
    return {
        "assumptions": {record.key: {**_facts(record), "given": record.given} for record in held.records},
        "host": {record.key: _facts(record) for record in HOST_ASSUMPTIONS},
        "list_prices": {
            name: {"price_per_device_hour": price, "source": source}
            for name, (price, source) in held.list_prices.items()
        },
        "market_prices": {
            name: {
                "least_per_device_hour": one.low,
                "most_per_device_hour": one.high,
                "date": one.date,
                "source": one.source,
            }
            for name, one in held.market_prices.items()
        },
        "batch_fits": [asdict(fit) for fit in held.batch_fits],
        "purchase_prices": {
            name: {"price_per_device": price, "source": source}
            for name, (price, source) in held.purchase_prices.items()
        },
    }


def _facts(record: Assumption) -> Facts:
    told = {name: getattr(record, name) for name in ("kind", "meaning", "source", "unverified")}
    return {"value": record.text, **told, **({"range": list(record.ends)} if record.ends else {})}


def assumptions_document(held: Assumptions) -> RenderableType:
    """Every assumption with its meaning and source."""
    blocks: list[RenderableType] = [
        prose(f"What is assumed about a whole run; {option('assume', 'KEY=VALUE')} changes it", "bold")
    ]
    for record in held.records:
        blocks += [prose(""), *_lines(record)]
    where = "CPU offload (copies to CPU memory and updates there)"
    title = f"What is assumed about {where}; not set by {option('assume')}"
    blocks += [prose(""), prose(title, "bold")]
    for record in HOST_ASSUMPTIONS:
        blocks += [prose(""), *_lines(record)]
    rows = [(name, f"${price:.2f}", source) for name, (price, source) in held.list_prices.items()]
    blocks.append(section("List prices, for clusters that state none, per GPU-hour", labelled(rows)))
    market = [
        (name, f"${one.low:.2f} to ${one.high:.2f}", f"{one.date}: {one.source}")
        for name, one in held.market_prices.items()
    ]
    blocks.append(section("What others ask on demand, per GPU-hour", labelled(market)))
    rows = [(name, f"${price:,.0f}", source) for name, (price, source) in held.purchase_prices.items()]
    blocks.append(section("Purchase prices, per GPU with its share of node and network", labelled(rows)))
    fits = [(fit.name, fit_law(fit), _fit_source(fit)) for fit in held.batch_fits]
    blocks.append(section("Critical and best batches of a run, in tokens", labelled(fits)))
    return Group(*blocks)


def fit_law(fit: BatchFit) -> str:
    """A fit of batches as a formula, or by its points."""
    if fit.points:
        return ", ".join(f"{format_tokens(batch)} at {format_tokens(at)}" for at, batch in fit.points)
    of = {FitInput.TOKENS: "tokens", FitInput.LOSS: "loss", FitInput.COMPUTE: "FLOP"}[fit.input]
    return f"{fit.coefficient:.4g} {of}^{fit.exponent:.4g}"


def _fit_source(fit: BatchFit) -> str:
    """Which batch it is of, of which runs, and its source."""
    least, most = (format_tokens(end) for end in fit.tokens)
    what = f"{fit.of} batch" if fit.overhead == 1 else f"takes {fit.overhead:.0%} more tokens"
    mark = "; from memory" if fit.unverified else ""
    return f"{what} of runs of {least} to {most} tokens{mark}: {fit.source}"


def _lines(record: Assumption) -> list[RenderableType]:
    mark = " (unverified, no source)" if record.unverified else ""
    value = f"{record.key} = {record.text}" + (
        f" ({record.ends[0]} to {record.ends[1]})" if record.ends else ""
    )
    return [
        prose(value, "bold yellow" if record.given else "bold"),
        Padding(prose(record.meaning), (0, 0, 0, 2)),
        Padding(prose(f"source{mark}: {record.source}", "dim"), (0, 0, 0, 2)),
    ]
