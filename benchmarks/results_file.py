"""Where do measured tables go? Between the markers of their name in benchmarks/RESULTS.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

RESULTS: Final = Path(__file__).with_name("RESULTS.md")


def write_section(name: str, text: str, path: Path = RESULTS) -> None:
    """Replace what stands between the markers of `name`, or append it with them."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    section = f"{begin}\n{text}\n{end}\n"
    old = path.read_text(encoding="utf-8") if path.exists() else "# Results\n"
    if begin in old and end in old:
        before, rest = old.split(begin, 1)
        new = before + section + rest.split(end, 1)[1].removeprefix("\n")
    else:
        new = old.rstrip("\n") + "\n\n" + section
    path.write_text(new, encoding="utf-8")
