"""Does the free text of a published row ask for a thing, deny it, or not name it?

Texts are settings ("use_flash_attn=False", "DeepEP: off") and words ("no LoRA", "EP overlap off", "without CUDA graphs
or FlashAttention"). A thing denied once is denied, whatever else names it. Left out: what the things are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_FILLERS: Final = r"(?:(?:use|used|using|enable|enabled|any|the|of|te|nccl)[\s_-]+)*"
_DENIALS: Final = (
    r"(?:no|not|non|without|w/o|w\.o\.|never|disabl(?:e|es|ed|ing)|(?:turn|switch)(?:ed|ing)? off|instead of|rather "
    r"than)"
)
# "no X", "w/o using X", "no-X", "disable_X"; and Y of "without X and Y", "no X or Y", "no X/Y"
_BEFORE: Final = re.compile(
    r"(?:(?<![a-z0-9])(?:without|w/o)\s+(?:[\w.+-]+\s+){1,3}and\s+$)|"
    rf"(?<![a-z0-9]){_DENIALS}(?:[\s_-]+{_FILLERS}|[\s_-]+(?:[\w.+-]+\s+){{1,3}}n?or\s+|[\s_-]+[\w.+-]+/)$"
)
_OFF: Final = r"(?:false|off|none|no|disabled|unused|n|0(?:\.0)?)(?![\w.%-])"
# what is left of the word and up to two names of what it is, then "=False", ": off", " off", " (disabled)", " not used"
_AFTER: Final = re.compile(
    rf"[\w.-]*(?:\s+(?:attention|attn|kernels?|graphs?|overlap|dispatcher|capture)){{0,2}}"
    rf"(?:\s*[:=]\s*[\"']?{_OFF}|\s+\(?(?:(?:is|are|was|were)\s+)?(?:off|false|disabled|unused|not\s+\w*used|not\s+enabled)(?![\w-]|/on))"
)
_SHORT: Final = 60  # characters of text before a word in which its denial stands


@dataclass(frozen=True)
class Word:
    """A thing that texts name: `pattern` finds it in lower case, from its first letter on."""

    pattern: str

    def asked(self, text: str) -> bool | None:
        """True where `text` asks for it, False where it denies it, None where it does not name it."""
        lower = text.lower()
        found = list(re.finditer(self.pattern, lower))
        return not any(_denied(lower, match) for match in found) if found else None

    def search(self, text: str) -> re.Match[str] | None:
        """Where a text that asks for it first names it; None where it is denied, or not named."""
        return re.search(self.pattern, text.lower()) if self.asked(text) else None

    def denied(self, text: str) -> bool:
        """Whether `text` says that it was not there."""
        return self.asked(text) is False


def _denied(lower: str, match: re.Match[str]) -> bool:
    """Is this mention one of a thing left out? The token that it stands in begins before it: "use_flash_attn"."""
    start = match.start()
    while start and (lower[start - 1].isalnum() or lower[start - 1] in "_-."):
        start -= 1
    before = lower[max(0, start - _SHORT) : start]
    inside = lower[start : match.start()]
    return bool(_BEFORE.search(before + inside) or _BEFORE.search(before) or _AFTER.match(lower, match.end()))
