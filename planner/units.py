"""Which number does "400 Gbit/s" stand for, and how is 5e10 shown? The only place that converts units.

Inside planner: seconds, bytes, FLOP, bytes/s per direction per device, dense FLOP/s, watts, joules, US dollars.
GiB = 2^30 bytes is for capacity, GB = 1e9 bytes for bandwidth and file sizes. Left out: anything that is
not needed to read a specification or to show a result.
"""

from __future__ import annotations

import math
import re
from typing import Final

from planner.errors import UnitError

_DECIMAL: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_TIME: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "yr": 365.25 * 86400.0,
}
_KWH: Final = 3.6e6  # joules
_NUMBER: Final = re.compile(r"^\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")

_LONGEST: Final = 9  # digits

GIB: Final = 2.0**30
GB: Final = 1e9
LONG: Final = 2 * 3600.0  # seconds; more are told in hours and days


def _bytes_units() -> dict[str, float]:
    return {f"{p}B": f for p, f in {**_DECIMAL, **_BINARY}.items()}


def _bandwidth_units() -> dict[str, float]:
    units = {f"{p}B/s": f for p, f in {**_DECIMAL, **_BINARY}.items()}
    for prefix, factor in _DECIMAL.items():
        for bit in (f"{prefix}bit/s", f"{prefix}bps", f"{prefix}b/s"):
            units[bit] = factor / 8
    return units


def _flops_units() -> dict[str, float]:
    return {f"{p}{name}": f for p, f in _DECIMAL.items() for name in ("FLOP/s", "FLOPS", "OP/s")}


_KINDS: Final[dict[str, tuple[dict[str, float], str]]] = {
    "capacity": (_bytes_units(), "80 GiB"),
    "bandwidth": (_bandwidth_units(), "400 Gbit/s or 450 GB/s"),
    "compute": (_flops_units(), "989 TFLOP/s"),
    "time": (_TIME, "5 us"),
    "power": ({"W": 1.0, "kW": 1e3, "MW": 1e6}, "700 W"),
    "frequency": ({"MHz": 1e6, "GHz": 1e9}, "1830 MHz"),
    "price": ({"$/h": 1.0, "USD/h": 1.0}, "2.50 $/h"),
    "money": ({"$": 1.0, "USD": 1.0, "k$": 1e3, "M$": 1e6}, "250000 $"),
    "fraction": ({"%": 0.01}, "75 %"),
    "rate": ({"/h": 1 / 3600, "/d": 1 / 86400, "/day": 1 / 86400, "/yr": 1 / _TIME["yr"]}, "0.003 /day"),
    "energy price": ({"$/kWh": 1 / _KWH, "$/MWh": 1e-3 / _KWH}, "0.08 $/kWh"),
    "carbon intensity": ({"kg/kWh": 1 / _KWH, "g/kWh": 1e-3 / _KWH}, "390 g/kWh"),
}


def parse_quantity(text: str, kind: str) -> float:
    """Read `text` as a quantity of `kind`, in planner's inner unit.

    `kind` is one of capacity, bandwidth, compute, time, power, frequency, price, money, fraction, rate,
    energy price, carbon intensity. A bare number is refused, because a bandwidth in bits is eight times
    one in bytes. Raises `UnitError`.
    """
    units, example = _KINDS[kind]
    match = _NUMBER.match(text) if isinstance(text, str) else None
    if match is None:
        raise UnitError(f"a {kind} must be a number with a unit", repr(text), f"write it like {example!r}")
    number, unit = float(match.group(1).replace("_", "")), match.group(2)
    if unit not in units:
        what = f"{text!r} has no unit" if not unit else f"unit {unit!r} in {text!r}"
        raise UnitError(f"a {kind} must have a unit of {kind}", what, f"write it like {example!r}")
    if not math.isfinite(number) or number < 0:
        raise UnitError(
            f"a {kind} must be a finite number, 0 or more", repr(text), f"write it like {example!r}"
        )
    return number * units[unit]


def parse_count(text: str, what: str, most: float = math.inf, example: str = "15.6T") -> float:
    """Read a count of at most `most`, such as 2048, "16M" or "15.6T" (decimal prefixes). Raises `UnitError`."""
    hint = f"write it like {example}"
    match = _NUMBER.match(str(text))
    prefix = {**_DECIMAL, "B": 1e9, "m": 1e6, "b": 1e9, "t": 1e12, "g": 1e9}
    if match is None or match.group(2) not in prefix:
        raise UnitError(f"{what} must be a number, with k, M, B or T if wanted", repr(text), hint)
    count = float(match.group(1).replace("_", "")) * prefix[match.group(2)]
    if not math.isfinite(count) or count <= 0:
        raise UnitError(f"{what} must be a finite number above 0", repr(text), hint)
    if count > most:
        raise UnitError(f"{what} must be at most {most:g}", repr(text), hint)
    return count


def parse_length(text: str, what: str) -> int:
    """Read the length of a sequence, such as 4096, "8k" or "1M", with binary prefixes: 8,192 and 1,048,576 tokens.

    Raises `UnitError`."""
    match = re.match(r"^\s*(\d[\d_]*)\s*(|[kKmM]i?)\s*$", text, re.ASCII)
    if match is None or len(match.group(1)) > _LONGEST:
        raise UnitError(
            f"{what} must be a whole number, with k if wanted", repr(text), "write it like 4096 or 8k"
        )
    return int(match.group(1)) * {"": 1, "k": 2**10, "m": 2**20}[match.group(2)[:1].lower()]


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    factor, unit = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    scaled = value / factor
    return f"{scaled:.3g} {unit}" if abs(scaled) < 999.5 else f"{scaled:,.0f} {unit}"  # never 1.02e+03


def format_capacity(value: float) -> str:
    """Bytes as GiB (or TiB, MiB, KiB)."""
    return _scaled(
        value, ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
    )


def format_bandwidth(value: float) -> str:
    """Bytes/s as decimal GB/s (or TB/s, MB/s)."""
    return _scaled(value, ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1.0, "B/s")))


def format_compute(value: float) -> str:
    """FLOP/s as TFLOP/s (or PFLOP/s)."""
    return _scaled(
        value, ((1e18, "EFLOP/s"), (1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1.0, "FLOP/s"))
    )


def format_time(value: float) -> str:
    """Seconds, from µs to days."""
    if value >= 2 * 86400:
        return f"{value / 86400:.1f} d"
    if value >= LONG:
        return f"{value / 3600:.1f} h"
    return _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))


def format_energy(value: float) -> str:
    """Joules as kWh (or MWh, GWh)."""
    return _scaled(value / _KWH, ((1e6, "GWh"), (1e3, "MWh"), (1.0, "kWh")))


def format_count(value: float) -> str:
    """A count with k, M, B or T."""
    return _scaled(value, ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, ""))).strip()


def format_small(share: float, space: str = " ") -> str:
    """A share that is more than nothing in percent, one that would be printed as nothing too: "0.3 %",
    "less than 0.1 %"."""
    return f"{100 * share:.1f}{space}%" if share >= 5e-4 else f"less than 0.1{space}%"
