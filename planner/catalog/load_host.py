"""How long does a host take to issue operations? Reads `catalog/host.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ConfigDict

from planner.spec.machine.host import HostRates
from planner.units import parse_quantity

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
HOST_FILE: Final = Path(__file__).with_name("host.yaml")


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    value: str
    source: str


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    rates: Mapping[str, _Entry]


@lru_cache(maxsize=1)
def load_host_rates() -> HostRates:
    """The shipped rates [s]."""
    document = _File.model_validate(yaml.load(HOST_FILE.read_text(encoding="utf-8"), _SafeLoader))
    return HostRates(**{name: parse_quantity(entry.value, "time") for name, entry in document.rates.items()})
