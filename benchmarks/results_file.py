"""Where does what was measured stand? Between the markers of its name, in benchmarks/RESULTS.md and README.md."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).with_name("RESULTS.md")


def section_of(text: str, name: str) -> str:
    """What stands between the markers of `name`. Raises `ValueError` where there are none."""
    return _split(text, name)[1]


def with_section(text: str, name: str, inside: str) -> str:
    """The text with what stands between the markers of `name` replaced. Raises `ValueError` where there are none."""
    before, _, after = _split(text, name)
    return f"{before}\n{inside}\n{after}"


def write_section(name: str, inside: str) -> None:
    """Replace what stands between the markers of `name` in RESULTS.md."""
    RESULTS.write_text(with_section(RESULTS.read_text(encoding="utf-8"), name, inside), encoding="utf-8")


def judging(module: str, about: str | None, *paths: str) -> argparse.ArgumentParser:
    """The options of a benchmark that judges the rows of tables."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=about)
    for path in paths:
        parser.add_argument(path, type=Path)
    parser.add_argument("--json", type=Path, help="every row as told and as measured")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser


def tell(given: argparse.Namespace, name: str, inside: str, rows: Sequence[Any]) -> None:
    """Print what stands in the section `name`, and write what `judging` was asked to write of `rows` (dataclasses)."""
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    print(inside)
    if given.write:
        write_section(name, inside)


def without_folders(text: str) -> str:
    """A command with the names of files alone, whichever folder they are in."""
    return re.sub(r"(?<=\s)/\S*/", "", text)


def _split(text: str, name: str) -> tuple[str, str, str]:
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    found = re.fullmatch(rf"(.*?{begin})\n(?:(.*?)\n)?({end}.*)", text, re.DOTALL)
    if found is None:
        raise ValueError(f"the text must hold the lines {begin} and {end}")
    return found[1], found[2] or "", found[3]
