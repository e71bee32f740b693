"""Are quantities written as people read them?"""

from __future__ import annotations

import pytest

from planner.errors import UnitError
from planner.units import format_bandwidth, format_capacity, format_small, parse_length


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1020 * 2**20, "1,020 MiB"),
        (1023.9 * 2**20, "1,024 MiB"),
        (999.4 * 2**20, "999 MiB"),
        (2**30, "1 GiB"),
        (4321 * 2**40, "4,321 TiB"),
        (0, "0 B"),
    ],
)
def test_no_capacity_is_a_power_of_ten(size: float, text: str) -> None:
    assert format_capacity(size) == text


def test_bandwidth_keeps_three_figures() -> None:
    assert format_bandwidth(3.35e12) == "3.35 TB/s"
    assert format_bandwidth(999.7e9) == "1,000 GB/s"


def test_a_small_share_is_not_nothing() -> None:
    assert format_small(0.0031) == "0.3 %"
    assert format_small(0.0005, "") == "0.1%"
    assert format_small(0.00046) == "less than 0.1 %"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("4096", 4096),
        ("8k", 8192),
        ("8K", 8192),
        ("8Ki", 8192),
        (" 128 k ", 131_072),
        ("1M", 1_048_576),
        ("1_000", 1000),
    ],
)
def test_a_length_is_read_as_people_write_it(text: str, tokens: int) -> None:
    assert parse_length(text, "a length") == tokens


@pytest.mark.parametrize("text", ["", "k", "8.5", "8.5k", "-1", "8G", "8kk", "²", "٣", "9" * 10, "8 tokens"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="write it like 4096 or 8k"):
        parse_length(text, "a length")
