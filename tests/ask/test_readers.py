"""Is what is given for an option read alike from text and from values, and what is read read as it is?"""

from __future__ import annotations

import datetime
import math
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.ask.option import Reader, options_of
from planner.ask.question import ComparisonQuestion, Request, SizeQuestion
from planner.ask.readers import (
    ASSUMED,
    BATCH,
    BATCH_STAGES,
    CAPACITY,
    COUNTS,
    DAYS,
    DOLLARS,
    LEFT_OUT,
    LENGTH,
    MEAN_LENGTH,
    NAME,
    NAMES,
    PAIR,
    SETTINGS,
    SHARE,
    STEP_TOKENS,
    SWITCH,
    TEXT,
    TOKENS,
    Settings,
    number,
    whole,
)
from planner.errors import PlannerError

KINDS = (Request, ComparisonQuestion, SizeQuestion)
TP_PP = Settings({"tp": (8,), "pp": (4, 8)})
READ: tuple[tuple[Reader[Any], Any, tuple[Any, ...]], ...] = (  # reader, value, and what it is read from
    (whole(), 2048, (2048, "2048", " 2_048 ", "2,048")),
    (number(), 512.0, (512, 512.0, "512", "5.12e2")),
    (LENGTH, 8192, (8192, "8192", "8k", "8K", "8,192")),
    (MEAN_LENGTH, 2048.0, (2048, 2048.0, "2048", "2k", "2,048", " 2.048e3 ")),
    (MEAN_LENGTH, 617.3, (617.3, "617.3")),
    (BATCH, "512", (512, "512")),
    (BATCH, "1024", (1024, "1024", "1,024", " 1024 ")),
    (SHARE, 0.05, (0.05, "0.05", "5%", " 5% ")),
    (CAPACITY, 4 * 2.0**30, (4 * 2.0**30, "4GiB", "4 GiB", "4096 MiB")),
    (TOKENS, 15e12, (15e12, "15T", "15000B")),
    (STEP_TOKENS, 8e6, (8e6, "8Mtok", "8M", "8000000", "8e6tok", "8mtok")),
    (BATCH_STAGES, (("4Mtok", 2.52e8), ("1024", 2.87e12)), (
        "4Mtok:252M, 1024:2.87T", ["4Mtok:252M", "1024:2.87T"], [["4Mtok", 2.52e8], [1024, "2.87T"]])),
    (SWITCH, True, (True, "yes", "true", "1", "On")),
    (SWITCH, False, (False, "no", "off")),
    (TEXT, "fp8", ("fp8",)),
    (NAME, "a/b", ("a/b", Path("a/b"))),
    (NAMES, ("a", "b"), (("a", "b"), ["a,b"], "a, b", [Path("a"), "b"])),
    (COUNTS, (8, 16), ((8, 16), "8, 16", ["8", 16])),
    (COUNTS, (8,), (8, "8")),
    (PAIR, (1, 2), ((1, 2), [1, 2], "1,2", "1, 2")),
    (LEFT_OUT, ("deepep", "offload"), (["deepep", "offload"], "deepep,offload", "deepep offload")),
    (SETTINGS, TP_PP, (TP_PP, {"tp": 8, "pp": [4, 8]}, "tp=8,pp=4,8", "tp=8 pp=4,8", ["tp=8", "pp=4,8"])),
    (SETTINGS, Settings({"schedule": (0,)}, "8,8"),
     ({"schedule": "1f1b", "layout": [8, 8]}, "schedule=1f1b layout=8,8", {"schedule": 0, "layout": "8,8"})),
    (ASSUMED, ("pue=1.2", "price=2 $/h"), ({"pue": 1.2, "price": "2 $/h"}, ["pue=1.2", "price=2 $/h"],
                                           "pue=1.2; price=2 $/h")),
    (DAYS, 0.5, (0.5, "0.5", "12 h")),
    (DAYS, 30.0, (30, "30", "30 d")),
    (DOLLARS, 2.5e6, (2.5e6, "$2.5M", "2500k", "2500000 $")),
)  # fmt: skip


@pytest.mark.parametrize(("reader", "value", "given"), READ, ids=lambda one: str(one)[:30])
def test_all_ways_of_saying_a_value_are_one(reader: Reader[Any], value: Any, given: tuple[Any, ...]) -> None:
    for one in (*given, value, reader.write(value)):
        assert reader.read(one, "it") == value, one


@pytest.mark.parametrize(
    ("reader", "given"),
    [
        *((whole(), given) for given in (True, 8.5, "8.5", "many", "٣", "1,2", 0, -8, 10**10, None)),
        *((number(), given) for given in (True, "x", "nan", 0, -1, [1])),
        *((LENGTH, given) for given in ("8kk", "8G", 0, "-4096", True)),
        *((MEAN_LENGTH, given) for given in ("2kk", "0", -1, "long", True)),
        *((SHARE, given) for given in (1, "100%", "some", -0.1, True, "nan%")),
        *((CAPACITY, given) for given in ("4", "4 GB/s", 4, 4.0, -1e9, True, [4])),
        *((TOKENS, given) for given in (0, -1, "lots", True, [1], 1e300, "1e300")),
        *((STEP_TOKENS, given) for given in (0, -8e6, "8Xtok", "512", 1e12, True, [8e6])),
        *((BATCH_STAGES, given) for given in ("4Mtok", "4Mtok:", ":252M", "4Mtok:-1", 4, [["4Mtok"]], [4.5])),
        *((SWITCH, given) for given in (1, "perhaps", None)),
        *((TEXT, given) for given in (2026, None, ["a"])),
        *((NAMES, given) for given in (8, None, "a,,b")),
        *((SETTINGS, given) for given in (2, "tq=8", {"recompute": 9}, "tp", {"tp": {}})),
        (PAIR, "1"), (BATCH, 1.5), (BATCH, True), (COUNTS, "8,0"), (NAME, 8), (ASSUMED, 3), (DAYS, "0"), (LEFT_OUT, 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Reader) else str(value),
)  # fmt: skip
def test_what_is_none_is_refused_in_words(reader: Reader[Any], given: object) -> None:
    with pytest.raises(PlannerError) as refused:
        reader.read(given, "it")
    assert refused.value.exit_code == 2
    assert refused.value.must


NEVER = (  # a value of any option: of Python, YAML or JSON, alone or within what holds values
    object(), b"8", 3 + 4j, math.inf, -math.inf, 10**400, -(10**400), "9" * 400, "1e400", {8: 8}, {None: 1}, {1, 2},
    range(3), [object()], [None], [[1]], [b"8"], {"tp": {"a": 1}}, {"pue": object()}, np.float64("nan"),
    np.array([[1, 2]]), datetime.date(2026, 1, 1), Decimal("0.5"), "\0", "",
)  # fmt: skip
READERS = {one.words: one.reader for kind in KINDS for one in options_of(kind).values()}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_no_reader_fails_in_another_way_than_it_refuses(reader: Reader[Any]) -> None:
    """Whatever is given, alone, in a list or under a key: read, or refused in words."""
    for given in (*NEVER, *([one] for one in NEVER), *({"tp": one} for one in NEVER)):
        with suppress(PlannerError):
            reader.read(given, "it")
