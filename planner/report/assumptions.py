"""What is assumed about whole runs, and on what grounds? Plain data, and a document for the terminal."""

from __future__ import annotations

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
from planner.report.outcome import Facts
from planner.report.text import labelled, prose, section
from planner.spec.assumptions import Assumption, Assumptions

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
            name: {"least_per_device_hour": least, "most_per_device_hour": most, "source": source}
            for name, (least, most, source) in held.market_prices.items()
        },
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
        (n, f"${low:.2f} to ${high:.2f}", source) for n, (low, high, source) in held.market_prices.items()
    ]
    blocks.append(section("What others ask on demand, per GPU-hour", labelled(market)))
    rows = [(name, f"${price:,.0f}", source) for name, (price, source) in held.purchase_prices.items()]
    blocks.append(section("Purchase prices, per GPU with its share of node and network", labelled(rows)))
    return Group(*blocks)


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
