"""Which findings are there, and in which units are their values? The rows of `finding_codes.json`.

A code never changes its meaning; a value that not every finding of a code has may be absent. Units are planner's inner
ones: "1" counts or is a share, "name" is a word of planner's own, "configuration" a line such as "tp8 pp4 dp16", "said"
a sentence of a rule, an option or an error. Left out: words (`planner.report.words`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

TEXT: Final = "text"  # a sentence of an older file


@cache
def finding_codes() -> Mapping[str, Mapping[str, str]]:
    """The values of every code, with their units."""
    text = Path(__file__).with_name("finding_codes.json").read_text(encoding="utf-8")
    parts: dict[str, dict[str, dict[str, str]]] = json.loads(text)
    return {code: values for part in parts.values() for code, values in part.items()}
