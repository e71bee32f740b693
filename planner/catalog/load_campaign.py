"""What is assumed about a whole run? Reads `catalog/campaign.yaml`.

Left out: what the numbers are used for (`campaign/`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ConfigDict

from planner.spec.assumptions import (
    Assumption,
    Assumptions,
    MarketPrice,
    assumptions_from,
    read_ends,
)
from planner.spec.batch_fit import BatchFit
from planner.units import parse_quantity

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
OF_A_STEP: Final = ("checkpoint_writing",)  # settings that matter where no run was asked for
CAMPAIGN_FILE: Final = Path(__file__).with_name("campaign.yaml")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Entry(_Part):
    value: str
    kind: str
    meaning: str
    source: str
    unverified: bool = False
    range: tuple[str, str] | None = None
    named: str = ""


class _Prices(_Part):
    source: str
    prices: Mapping[str, str]


class _Market(_Part):
    date: str
    source: str
    prices: Mapping[str, tuple[str, str]]


class _File(_Part):
    assumptions: Mapping[str, _Entry]
    list_prices: _Prices
    market_prices: _Market
    purchase_prices: _Prices
    batch_fits: tuple[BatchFit, ...]


def load_assumptions(settings: Sequence[str] = ()) -> Assumptions:
    """The shipped assumptions with "key=value" settings applied. Raises `InputError`."""
    return _shipped().overridden(settings)


def run_settings(settings: Sequence[str]) -> tuple[str, ...]:
    """Of "key=value" settings the keys that say nothing without the length of a run."""
    keys = (setting.partition("=")[0].strip() for setting in settings)
    return tuple(dict.fromkeys(key for key in keys if key not in OF_A_STEP))


@lru_cache(maxsize=1)
def _shipped() -> Assumptions:
    document = _File.model_validate(yaml.load(CAMPAIGN_FILE.read_text(encoding="utf-8"), _SafeLoader))
    records = [
        Assumption(key, e.value, e.kind, e.meaning, e.source, e.unverified, ends=e.range, named=e.named)
        for key, e in document.assumptions.items()
    ]
    rents, market = _priced(document.list_prices, "price"), document.market_prices
    asked = {
        name: MarketPrice(*read_ends(*ends, "price"), market.date, market.source)
        for name, ends in market.prices.items()
    }
    bought = _priced(document.purchase_prices, "money")
    return assumptions_from(records, rents, asked, bought, document.batch_fits)


def _priced(listed: _Prices, kind: str) -> dict[str, tuple[float, str]]:
    return {name: (parse_quantity(text, kind), listed.source) for name, text in listed.prices.items()}
