"""Which here-documents does a shell script hold, and what is the script without them?

A document's place in the script is kept by a mark, so that who follows the script knows whether it is written, and
with which values. Left out: documents of other forms (`<<<`), and several that start on one line.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

_START: Final = re.compile(r"(?<!<)<<(?!<)(-?)[ \t]*([\"'\\]?)([A-Za-z_]\w*)[\"']?")
_MARK: Final = re.compile("\x00([0-9]+)\x00")
_TARGET: Final = re.compile(r"(?:^|\s)>{1,2}\s*(\S+)|\btee\s+(?:-a\s+)?([^\s|>-]\S*)")
_SHELLS: Final = frozenset(("bash", "sh", "zsh", "sbatch", "srun", "qsub", "ssh"))
_SCRIPTS: Final = (".sh", ".bash", ".sbatch", ".slurm", ".job", ".run")


@dataclass(frozen=True)
class HereDocument:
    """Lines that a script hands to a command. `literal`: are variables in them left as they are?"""

    body: str
    literal: bool


def without_documents(text: str) -> tuple[str, list[HereDocument]]:
    """The script with a mark in place of every here-document, and the documents in the order of their marks."""
    kept: list[str] = []
    documents: list[HereDocument] = []
    lines = text.replace("\x00", "").split("\n")
    ends: dict[str, list[int]] = {}
    for i, line in enumerate(lines):
        for row in {line.rstrip(), line.strip()}:
            ends.setdefault(row, []).append(i)
    at = 0
    while at < len(lines):
        line, at = lines[at], at + 1
        start = None if line.lstrip().startswith("#") else _START.search(line)
        end = None if start is None else _end(lines, ends.get(start[3], []), at, bool(start[1]))
        if start is None or end is None:
            kept.append(line)
            continue
        body = "\n".join(row.lstrip("\t") if start[1] else row for row in lines[at:end]) + "\n"
        kept.append(f"{line[: start.start()]} \x00{len(documents)}\x00 {line[start.end() :]}")
        documents.append(HereDocument(body, bool(start[2])))
        at = end + 1
    return "\n".join(kept), documents


def _end(lines: list[str], ends: list[int], first: int, tabs: bool) -> int | None:
    """The line from `first` on that ends a document, among `ends`; None where there is none, as after the << of
    arithmetic."""
    for i in ends[bisect_left(ends, first) :]:
        line = lines[i].lstrip("\t") if tabs else lines[i]
        if not line[:1].isspace():
            return i
    return None


def document_of(statement: str) -> int | None:
    """Which document a statement takes, None for none."""
    mark = _MARK.search(statement)
    return None if mark is None else int(mark[1])


def written_to(statement: str) -> str:
    """The file that the statement writes its document to, "" where it writes none."""
    target = _TARGET.search(_MARK.sub(" ", statement))
    return "" if target is None else (target[1] or target[2]).strip("\"'")


def is_run(statement: str) -> bool:
    """Does a shell run the document: at once, or as the script it is written to?"""
    words = [word.split("/")[-1] for word in _MARK.sub(" ", statement).split()]
    shell = not _SHELLS.isdisjoint(words) and not any(word.startswith("python") for word in words)
    return shell or written_to(statement).endswith(_SCRIPTS)
