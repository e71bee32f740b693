"""What is assumed about whole runs, and on what grounds? Plain data, and a document for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding

from planner.cost.offload import HOST_ASSUMPTIONS
from planner.report.outcome import Facts
from planner.report.text import labelled, prose, section
from planner.spec.assumptions import Assumption, Assumptions


def assumptions_facts(held: Assumptions) -> Facts:
    """Every assumption as plain data."""
    return {
        "assumptions": {
            record.key: {
                "value": record.text,
                "kind": record.kind,
                "meaning": record.meaning,
                "source": record.source,
                "unverified": record.unverified,
                "given": record.given,
            }
            for record in held.records
        },
        "host": {
            record.key: {
                "value": record.text,
                "kind": record.kind,
                "meaning": record.meaning,
                "source": record.source,
                "unverified": record.unverified,
            }
            for record in HOST_ASSUMPTIONS
        },
        "list_prices": {
            name: {"price_per_device_hour": price, "source": source}
            for name, (price, source) in held.list_prices.items()
        },
        "purchase_prices": {
            name: {"price_per_device": price, "source": source}
            for name, (price, source) in held.purchase_prices.items()
        },
    }


def assumptions_document(held: Assumptions) -> RenderableType:
    """Every assumption with its meaning and source."""
    blocks: list[RenderableType] = [
        prose("What is assumed about a whole run; --assume KEY=VALUE changes it", "bold")
    ]
    for record in held.records:
        blocks += [prose(""), *_lines(record)]
    title = "What is assumed about CPU offload (copies to CPU memory and updates there); not set by --assume"
    blocks += [prose(""), prose(title, "bold")]
    for record in HOST_ASSUMPTIONS:
        blocks += [prose(""), *_lines(record)]
    rows = [(name, f"${price:.2f}", source) for name, (price, source) in held.list_prices.items()]
    blocks.append(section("Prices for clusters that state none, per GPU-hour", labelled(rows)))
    rows = [(name, f"${price:,.0f}", source) for name, (price, source) in held.purchase_prices.items()]
    blocks.append(section("Purchase prices, per GPU with its share of node and network", labelled(rows)))
    return Group(*blocks)


def _lines(record: Assumption) -> list[RenderableType]:
    mark = " (unverified, no source)" if record.unverified else ""
    value = f"{record.key} = {record.text}"
    return [
        prose(value, "bold yellow" if record.given else "bold"),
        Padding(prose(record.meaning), (0, 0, 0, 2)),
        Padding(prose(f"source{mark}: {record.source}", "dim"), (0, 0, 0, 2)),
    ]
