"""Which pipeline schedule, of how many virtual stages, does a published row name?

Texts are searched for words, in any order; what is more than a name is said to be read so. Left out: which schedules a
stack has.
"""

from __future__ import annotations

import re
from typing import Final

from benchmarks.published.cells import Row, affirmed, count_in, number_in, same_words, spaced, stated
from planner.spec.config import Schedule

# words of a schedule, the first found; "1f1b-i" is the zero-bubble paper's name of the interleaved one (Qi 2024, arXiv
# 2401.10241), and 1p and 2p its limits of memory
_WORDS: Final = (
    (r"dual ?pipe ?v\b", Schedule.DUALPIPE_V),
    (r"dual ?pipe", Schedule.DUALPIPE),
    (r"v ?half", Schedule.V_HALF),
    (r"v ?min\b", Schedule.V_MIN),
    (r"zb ?v|\bv ?zb|zero ?bubble ?v\b", Schedule.ZB_V),
    (r"(?:zb|zero ?bubble) ?(?:h ?2|2 ?p|auto)|sail zb", Schedule.ZB_H2),
    (r"\bzb|zero ?bubble", Schedule.ZB_H1),
    (r"g ?pipe|\bafab\b|all ?f\w* ?all ?b|looped ?bfs|breadth ?first|\bbfs\b", Schedule.GPIPE),
    (r"interleav|virtual|\bvpp?\b|\b1 ?f ?1 ?b ?i\b", Schedule.INTERLEAVED),
    (r"1 ?f ?1 ?b|pipe ?dream", Schedule.ONE_F_ONE_B),
)
_LOOPED: Final = r"interleav|looped|bfs|breadth"
_SYNONYMS: Final = {"interleaved1f1b": Schedule.INTERLEAVED, "afab": Schedule.GPIPE, "zb": Schedule.ZB_H1}
_VPP_IN_TEXT: Final = re.compile(
    r"(?:vpp?|virtual[ _a-z]*?|interleav\w*)\s*[ =:(]\s*(\d+)\b|\bv\s*=\s*(\d+)\b|\b(\d+) virtual",
    re.IGNORECASE,
)
_ENDS: Final = (0, 2, 1)  # of embedding and loss, how many may take a layer's place in their chunk


def schedule_in(cells: Row, layers: int, pp: int, assumed: list[str]) -> tuple[Schedule, int]:
    """Schedule and virtual stages; the one follows from the other where only one is stated."""
    if pp == 1:
        return Schedule.ONE_F_ONE_B, 1
    text, vpp = cells["schedule"].lower(), stated_chunks(cells)
    text = "" if stated(text) in ("", "none") else text
    words = spaced(affirmed(text.split(" or ")[0]))
    known = next((schedule for pattern, schedule in _WORDS if re.search(pattern, words)), None)
    plain = known is not None and (
        same_words(text, known.label) or _SYNONYMS.get(words.replace(" ", "")) is known
    )
    if known not in (None, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED):
        chunks = _chunks_of(known, vpp, re.search(_LOOPED, words) is not None, layers, pp, assumed)
        if not plain:
            assumed.append(f"schedule {text!r}: {known.label}")
        return known, chunks
    if text and not plain:
        interleaved = (vpp or 1) > 1 or known is Schedule.INTERLEAVED
        assumed.append(f"schedule {text!r}: {'interleaved' if interleaved else '1f1b'}")
    if known is Schedule.INTERLEAVED and (vpp is None or vpp == 1):
        told = vpp
        vpp = dealt_chunks(layers, pp)
        assumed.append(
            f"virtual stages {'not stated' if told is None else '1 of an interleaved schedule'}: {vpp}"
        )
    elif vpp is None:
        vpp = 1
        assumed.append("virtual stages not stated: 1")
    return (Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B), vpp


def names_pipeline(cells: Row) -> bool:
    """Does a row name a schedule, or several virtual stages?"""
    return stated(cells["schedule"]) not in ("", "none") or (stated_chunks(cells) or 1) > 1


def stated_chunks(cells: Row) -> int | None:
    """Virtual stages of a rank, from their column or the texts; 0 is none, so 1."""
    if number_in(cells, "vpp") == 0:
        return 1
    vpp = count_in(cells, "vpp")
    if vpp is None and (match := _VPP_IN_TEXT.search(f"{cells['schedule']} {cells['extras']}")):
        vpp = int(next(group for group in match.groups() if group)) or None
    return vpp


def dealt_chunks(layers: int, pp: int) -> int:
    """The fewest virtual stages above 1 that hold equally many layers, embedding and loss counted as such where that
    deals them; 1 where there are fewer layers than stages."""
    for ends in _ENDS:
        for v in range(2, (layers + ends) // pp + 1):
            if (layers + ends) % (pp * v) == 0:
                return v
    return 2 if layers >= 2 * pp else 1


def _chunks_of(
    known: Schedule, vpp: int | None, looped: bool, layers: int, pp: int, assumed: list[str]
) -> int:
    """Chunks that a rank of one of the rarer schedules holds."""
    if vpp is not None and known.runs_chunks(vpp):
        return vpp
    if vpp is None and looped and known.runs_chunks(2):
        return dealt_chunks(layers, pp)
    own = 1 if known.runs_chunks(1) else 2
    if vpp is not None:
        assumed.append(f"vpp {vpp} contradicts {known.label}: {own}")
    return own
