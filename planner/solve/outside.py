"""What of a space was not looked at, by choice, and how fast may it be?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outside:
    """Configurations of which no layout but the stack's own was looked at, for want of effort: how many, and the step
    time that none of their layouts beats [s]."""

    configurations: int
    bound: float

    def beside(self, other: Outside) -> Outside:
        """Both together."""
        return Outside(self.configurations + other.configurations, min(self.bound, other.bound))
