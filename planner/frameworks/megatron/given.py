"""What do Megatron-LM's arguments say, one by one? Typed access that names the option when it is wrong.

Left out: what the options mean (`parse.py`, `parse_model.py`).
"""

from __future__ import annotations

import math

from planner.errors import InputError
from planner.frameworks.shell.unset import how_to_set
from planner.spec.planned_config import MOST

Option = tuple[str, ...]  # its name, then its words


class Arguments:
    """Options by name, the last of each counting, as argparse has it."""

    def __init__(self, options: list[Option]) -> None:
        self.values = {name: words for name, *words in options}

    def has(self, name: str) -> bool:
        return name in self.values

    def word(self, name: str, default: str) -> str:
        words = self.values.get(name)
        return words[0] if words else default

    def count(self, name: str, default: int) -> int:
        """A whole number. Raises `InputError` naming the option."""
        if self.values.get(name) == []:
            raise InputError(f"{name} must have a value", "none: expected one argument", "write the number")
        text = self.word(name, str(default))
        try:
            value = int(text)
        except ValueError:
            how = how_to_set(text) if set("$`") & set(text) else "write the number itself"
            raise InputError(f"{name} must be a whole number", text[:80], how) from None
        if abs(value) > MOST:
            raise InputError(f"{name} must be at most {MOST:,}", text[:80], "correct the value")
        return value

    def number(self, name: str, default: float) -> float:
        """A number, with decimals or without. Raises `InputError` naming the option."""
        text = self.word(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            how = how_to_set(text) if set("$`") & set(text) else "write the number itself"
            raise InputError(f"{name} must be a number", text[:80], how)
        return value

    def positive(self, name: str, default: int, most: int = MOST) -> int:
        value = self.count(name, default)
        if not 1 <= value <= most:
            raise InputError(f"{name} must be from 1 to {most:,}", str(value))
        return value
