"""What do the files of facts beside the readers hold? `families.json` and `wrappers.json`.

Left out: what their rows mean, which the modules of these names know.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def load_tables(name: str) -> dict[str, Any]:
    """The tables of one of the files."""
    tables: dict[str, Any] = json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))
    return tables
