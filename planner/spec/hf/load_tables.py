"""What does `families.json` hold, the file of facts beside the readers?

Left out: what its rows mean, which `families.py` and `wrappers.py` know.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def load_tables() -> dict[str, Any]:
    """Its tables: families, wrappers and dimensions of their text models, refused types."""
    tables: dict[str, Any] = json.loads(Path(__file__).with_name("families.json").read_text(encoding="utf-8"))
    return tables
