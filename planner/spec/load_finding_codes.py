"""Which findings are there, and in which units are their values? `finding_codes.json` says it of each.

A code never changes its meaning; a value that not every finding of a code has may be absent. Units are planner's inner
ones: "1" counts or is a share, "name" is a word of planner's own, "configuration" a line such as "tp8 pp4 dp16", "said"
a sentence of a rule, an option or an error. Left out: words (`planner.report.words`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter

TEXT: Final = "text"  # a sentence of an older file
Unit = Literal[
    "1", "s", "1/s", "bytes", "bytes/s", "tokens", "tokens/s", "FLOP/s", "sequences", "days", "$", "$/J", "kg/J",
    "name", "configuration", "said",
]  # fmt: skip


def _declared() -> dict[str, dict[str, Unit]]:
    text = Path(__file__).with_name("finding_codes.json").read_bytes()
    sections = TypeAdapter(dict[str, dict[str, dict[str, Unit]]]).validate_json(text)
    return {code: units for section in sections.values() for code, units in section.items()}


CODES: Final[Mapping[str, Mapping[str, Unit]]] = _declared()
