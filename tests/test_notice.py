"""Does NOTICE name every repository whose figures the package ships?"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINNED = re.compile(r"\b([A-Za-z0-9-]+/[A-Za-z0-9_.-]+)@[0-9a-f]{7,40}\b")


def test_every_pinned_repository_is_named() -> None:
    files = [*ROOT.glob("cluster_specs/*.yaml"), *(ROOT / "planner").rglob("*.yaml")]
    files += (ROOT / "planner" / "catalog" / "kernels").glob("*.json")
    cited = {name for file in files for name in PINNED.findall(file.read_text(encoding="utf-8"))}
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert len(cited) > 5
    assert {name for name in cited if name not in notice} == set()
