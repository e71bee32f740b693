"""What is a cause of a slow step called, how is it looked for, and what cures it? In the words of a device's users.

`causes.json` has them, those of every device first. Left out: which causes a device can have
(`calibrate/diagnosis/causes.py`).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from planner.spec.machine.architecture import Architecture


class CauseWords(NamedTuple):
    """Of a cause: its title, the words of a severity, the next measurement, and what to change; empty: the usual."""

    title: str = ""
    severity: str = ""
    test: str = ""
    cure: str = ""


class _OfDevices(NamedTuple):
    """What users of some architectures say."""

    architectures: tuple[Architecture, ...]
    causes: dict[str, CauseWords]


@cache
def _declared() -> tuple[_OfDevices, ...]:
    text = Path(__file__).with_name("causes.json").read_bytes()
    return TypeAdapter(tuple[_OfDevices, ...]).validate_json(text)


def cause_words(name: str, architecture: Architecture) -> CauseWords:
    """Of a cause on a device."""
    usual, *others = _declared()
    own = next((some.causes[name] for some in others
                if architecture in some.architectures and name in some.causes), CauseWords())  # fmt: skip
    return CauseWords(*(new or old for new, old in zip(own, usual.causes[name], strict=True)))
