"""What is assumed about a whole run: failures, checkpoints, power, prices, and where each number comes from?

`Assumptions` holds the values that equations take, `Assumption` the record behind one of them. Left out: the
numbers themselves, which are in `catalog/campaign.yaml`, and everything that changes the step time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planner.errors import InputError, UnknownNameError
from planner.spec.batch_fit import BatchFit
from planner.units import parse_quantity


class CheckpointWriting(StrEnum):
    """How a checkpoint reaches storage: while training waits, or behind it once copied to the host."""

    ASYNCHRONOUS = "asynchronous"
    BLOCKING = "blocking"


class Pricing(StrEnum):
    """How devices are paid for."""

    ON_DEMAND = "on-demand"
    RESERVED = "reserved"
    SPOT = "spot"
    OWN = "own"


WORDS: Mapping[str, type[StrEnum]] = {"checkpoint_writing": CheckpointWriting, "pricing": Pricing}


@dataclass(frozen=True)
class Assumption:
    """One stated number: `text` as written with its unit, `given` where the user set it. `ends`: the least and the
    largest that sources give; None where one alone does. `named`: its sources by their names, where an answer says
    them."""

    key: str
    text: str
    kind: str
    meaning: str
    source: str
    unverified: bool = False
    given: bool = False
    ends: tuple[str, str] | None = None
    named: str = ""


@dataclass(frozen=True)
class MarketPrice:
    """What an hour of a device is rented for on demand, from the least to the most [$/h], when, and who says so."""

    low: float
    high: float
    date: str
    source: str


@dataclass(frozen=True)
class Assumptions:
    """The values, in planner's inner units; None: follows from the cluster or is chosen as the optimum.

    Meanings and sources are those of `records`, which come from `catalog/campaign.yaml`. `list_prices`: accelerator ->
    ($/h, source), for clusters that state none; `market_prices`: accelerator -> what others ask for the same;
    `purchase_prices`: accelerator -> ($, source). `batch_fits`: of critical and best batches.
    """

    hardware_failures: float
    software_stops: float
    detection_time: float
    restart_time: float
    repair_time: float
    spare_nodes: float | None
    checkpoint_writing: CheckpointWriting
    checkpoint_interval: float | None
    checkpoint_bandwidth_per_node: float
    checkpoint_bandwidth_limit: float
    checkpoint_overhead_time: float
    host_copy_efficiency: float
    full_checkpoints_kept: float
    weight_checkpoint_interval: float
    power: float | None
    node_power_ratio: float
    load: float
    pue: float
    grid_carbon: float
    electricity_price: float
    pricing: Pricing
    price: float | None
    reserved_price_fraction: float
    spot_price_fraction: float
    spot_preemptions: float
    spot_wait: float
    purchase_price: float | None
    depreciation_time: float
    fleet_utilisation: float
    staff_cost: float
    maintenance_fraction: float
    records: tuple[Assumption, ...]
    list_prices: Mapping[str, tuple[float, str]]
    market_prices: Mapping[str, MarketPrice]
    purchase_prices: Mapping[str, tuple[float, str]]
    batch_fits: tuple[BatchFit, ...]

    def ends(self, key: str) -> tuple[float, float]:
        """The least and the largest value of a key that sources give, in inner units; twice its own where that is given
        or one source alone gives it."""
        record = self.record(key)
        own = getattr(self, key)
        return (own, own) if record.ends is None else read_ends(*record.ends, record.kind)

    def record(self, key: str) -> Assumption:
        """The record of a key."""
        return next(record for record in self.records if record.key == key)

    def overridden(self, settings: Sequence[str]) -> Assumptions:
        """The same with "key=value" settings applied; the last of a key holds. Raises `InputError`."""
        values: dict[str, Any] = {}
        records = {record.key: record for record in self.records}
        for setting in settings:
            key, equals, text = setting.partition("=")
            key, text = key.strip().replace("-", "_"), text.strip()
            if not equals or not text:
                raise InputError("an assumption must be KEY=VALUE", repr(setting), "write pue=1.2, say")
            if key not in records:
                raise UnknownNameError("assumption", key, records)
            values[key] = read_value(records[key], text)
            records[key] = dataclasses.replace(
                records[key],
                text=text,
                source="given by the user",
                unverified=False,
                given=True,
                ends=None,
                named="",
            )
        return dataclasses.replace(self, **values, records=tuple(records.values()))

    @property
    def stages_checkpoints(self) -> bool:
        """Does a checkpoint wait in host memory on its way to storage?"""
        return self.checkpoint_writing is CheckpointWriting.ASYNCHRONOUS

    @property
    def given(self) -> tuple[str, ...]:
        """What the user set, as sentences."""
        return tuple(f"{record.key} {record.text}" for record in self.records if record.given)


# key -> smallest and largest value that means something, in inner units; all others: 0 or more
_RANGES: Mapping[str, tuple[float, float]] = {
    "checkpoint_bandwidth_per_node": (1e3, 1e15),
    "checkpoint_bandwidth_limit": (1e3, 1e18),
    "host_copy_efficiency": (0.01, 1.0),
    "full_checkpoints_kept": (1.0, 1e6),
    "checkpoint_interval": (1.0, 1e9),
    "spare_nodes": (0.0, 1e6),
    "weight_checkpoint_interval": (60.0, 1e9),
    "power": (1.0, 1e5),
    "node_power_ratio": (1.0, 10.0),
    "load": (0.01, 1.0),
    "pue": (1.0, 5.0),
    "reserved_price_fraction": (0.0, 1.0),
    "spot_price_fraction": (0.0, 1.0),
    "depreciation_time": (86400.0, 1e10),
    "fleet_utilisation": (0.01, 1.0),
}
# keys whose value may be left to planner, and the word for that
OPTIONAL: Mapping[str, str] = {
    "checkpoint_interval": "optimal", "power": "cluster", "price": "cluster", "spare_nodes": "enough",
    "purchase_price": "catalog",
}  # fmt: skip


def read_value(record: Assumption, text: str) -> Any:
    """The value that `text` stands for under that key, in inner units. Raises `InputError`."""
    key = record.key
    if key in WORDS:
        word = text.lower().replace("_", "-")
        known = [str(kind) for kind in WORDS[key]]
        if word not in known:
            raise InputError(f"{key} must be a known word", repr(text), "one of: " + ", ".join(known))
        return WORDS[key](word)
    if OPTIONAL.get(key) == text.lower():
        return None
    value = _number(key, text) if record.kind == "number" else parse_quantity(text, record.kind)
    low, high = _RANGES.get(key, (0.0, 1e15))
    if not low <= value <= high:
        bounds = (
            f"{100 * low:g} % to {100 * high:g} %" if record.kind == "fraction" else f"{low:g} to {high:g}"
        )
        given = text if record.kind == "number" else f"{text} ({value:g})"
        raise InputError(f"{key} must be from {bounds}", given, f"default: {record.text}")
    return value


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{key} must be a number without a unit", repr(text)) from None


def read_ends(low: str, high: str, kind: str) -> tuple[float, float]:
    """The least and the largest value, in inner units. Raises `InputError`."""
    ends = parse_quantity(low, kind), parse_quantity(high, kind)
    if ends[0] > ends[1]:
        raise InputError("a range must end above its start", f"{low}, {high}")
    return ends


def assumptions_from(
    records: Iterable[Assumption],
    list_prices: Mapping[str, tuple[float, str]],
    market_prices: Mapping[str, MarketPrice],
    purchase_prices: Mapping[str, tuple[float, str]],
    batch_fits: Iterable[BatchFit],
) -> Assumptions:
    """The defaults that these records state. Raises `InputError`."""
    kept = tuple(records)
    values = {record.key: read_value(record, record.text) for record in kept}
    return Assumptions(
        **values, records=kept, list_prices=dict(list_prices), market_prices=dict(market_prices),
        purchase_prices=dict(purchase_prices), batch_fits=tuple(batch_fits),
    )  # fmt: skip
