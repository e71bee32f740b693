"""Where do the published measurements lie, and what happens where they are absent?

They lie beside the repository, which a clone alone has not. Left out: what they say, which their readers know.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final
from unittest import SkipTest

DATA: Final = Path(__file__).parents[2] / "shared" / "data"


class DataAbsentError(FileNotFoundError, SkipTest):
    """Nothing lies beside the repository; pytest skips the test that meets this."""


def beside(name: str) -> Path:
    """The file or folder of that name in ../shared, which must be there if any of the data are."""
    if not DATA.is_dir():
        raise DataAbsentError(f"{name} must lie in ../shared beside the repository; it is absent")
    return DATA.parent / name


def published(name: str) -> Path:
    """The same among the data."""
    return beside(f"data/{name}")


def small_input(name: str) -> Path:
    """The small input of that name, made by hand, that planner once misread."""
    return beside(f"inputs/logs_and_files/{name}")


def published_cases(name: str) -> list[dict[str, str]]:
    """The rows of a table to make tests of, whose collection must not fail: none where the data are absent."""
    if not DATA.is_dir():
        return []
    with published(name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
