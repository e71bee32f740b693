"""Which progress bar is the training's? A bar counts steps only where what stands around it says so.

A bar is one description and one total. The training's is the one that lines of its loss interrupt, or that another bar
ran inside of; bars that say they load, map, evaluate or generate are none. Left out: other lines (`formats.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from planner.calibrate.logs.formats import LoggedStep, figure

_BAR: Final = re.compile(
    r"\b(?P<step>\d{1,12})/(?P<total>\d{1,12}) \[[\d:]{4,12}<?[^,\]]{0,20}, *"
    r"(?:(?P<seconds>\d{1,12}(?:\.\d{1,9})?)s/(?P<each>[a-z]*)|(?P<rate>\d{1,12}(?:\.\d{1,9})?)(?P<unit>[a-z]*)/s)(?P<rest>[^\]]{0,2000})",
    re.IGNORECASE,
)
_DRAWN: Final = re.compile(r"\s*\b\d{1,3}%\|[^|]{0,400}\|\s*$")
_STEPS: Final = ("it", "step", "steps", "batch", "batches", "iter", "iters", "")
_TRAINS: Final = re.compile(r"train|epoch|\bsteps?\b|\biter|loss", re.IGNORECASE)
# what bars of libraries and trainers say that are not the training's
_DOES_NOT: Final = re.compile(
    r"load|token|\bmap\b|mapping|eval|valid|\bval\b|test|predict|generat|sampl|roll|saving|download|fetch|filter|pack|"
    r"cast|convert|process|dataset|quanti|merg|captur|sanity|prompt|template|truncat|group|unpack|copy|upload|compil|"
    r"shard|collect|scor|embed|warm",
    re.IGNORECASE,
)
_LOSS: Final = re.compile(r"""^\s*\{.{0,400}?['"](?:train_|train/)?loss['"]: ?""")
_EVALUATED: Final = re.compile(r"""['"](?:eval|test|predict)_\w+['"]: ?""")
MOST_BARS: Final = 1000  # of a log


@dataclass(frozen=True)
class Bar:
    """One line of a progress bar. `label`: what stands before it; `seconds` [s]: of a step, as it says."""

    label: str
    total: int
    step: int
    seconds: float
    loss: bool


@dataclass
class _Seen:
    """All lines of one bar. `losses`: lines of a loss between them; `around`: other bars that ran between them."""

    steps: dict[tuple[str, int], LoggedStep] = field(default_factory=dict)
    losses: int = 0
    around: int = 0
    loss: bool = False

    def stands_for(self, label: str) -> int:
        """How much speaks for its being the training's; below 0: it is another's."""
        if self.losses or self.loss:
            return 4
        says, denies = bool(_TRAINS.search(label)), bool(_DOES_NOT.search(label))
        if denies:
            return -1
        return 3 if self.around and not says else 2 + self.around if says else 1


def bar_of(text: str) -> Bar | None:
    """The progress bar of steps in a plain line; None where there is none."""
    if "/s" not in text and "s/" not in text:
        return None
    match = _BAR.search(text)
    if match is None or (match["each"] or match["unit"] or "").lower() not in _STEPS:
        return None
    seconds, rate = (figure(match[name]) if match[name] else None for name in ("seconds", "rate"))
    if seconds is None and rate is None:
        return None
    label = _DRAWN.sub("", text[: match.start()][-500:]).strip(" :|")
    loss = "loss" in (match["rest"] or "").lower() or "loss" in label.lower()
    return Bar(label, int(match["total"]), int(match["step"]), seconds or 1 / (rate or 1.0), loss)


class Bars:
    """The bars of a log, in order."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._last: tuple[str, int] | None = None
        self._between: set[tuple[str, int]] = set()

    def take(self, text: str) -> bool:
        """Look at one more line: is it a bar's?"""
        bar = bar_of(text)
        if bar is None:
            if self._last is not None and "{" in text:
                if _EVALUATED.search(text):
                    self._last = None
                elif _LOSS.search(text):
                    self._seen[self._last].losses += 1
            return False
        key = (re.sub(r"[\d.|:]+", "#", bar.label)[:80], bar.total)
        if key not in self._seen and len(self._seen) >= MOST_BARS:
            return True
        seen = self._seen.setdefault(key, _Seen())
        if key in self._between and self._last != key:
            seen.around += 1
        if self._last != key:
            self._between.add(key)
        self._last = key
        seen.loss |= bar.loss
        if bar.step:
            seen.steps[bar.label, bar.step] = LoggedStep("transformers", bar.step, bar.seconds)
        return True

    def chosen(self) -> tuple[list[LoggedStep], tuple[str, ...], tuple[str, ...]]:
        """The steps of the training's bar; what other bars there were; bars among which nothing decides, in words."""
        worth = {key: seen.stands_for(key[0]) for key, seen in self._seen.items()}
        best = max(worth.values(), default=-1)
        if best < 0:
            return [], tuple(map(_named, self._seen)), ()
        first = [key for key, value in worth.items() if value == best]
        if best == 1 and len(first) > 1:
            return [], (), tuple(map(_named, first))
        key = max(first, key=lambda one: _lasted(self._seen[one].steps))
        alike = [one for one in first if one[0] == key[0] and best > 1]  # epochs of several lengths
        steps = [step for one in (alike or [key]) for step in self._seen[one].steps.values()]
        others = tuple(_named(one) for one in self._seen if one not in (alike or [key]))
        return steps, others, ()


def _lasted(steps: Mapping[tuple[str, int], LoggedStep]) -> float:
    return sum(step.seconds or 0.0 for step in steps.values())


def _named(key: tuple[str, int]) -> str:
    label, total = key
    return f"{label.strip(' #:') or 'a bar'} of {total:,}"
