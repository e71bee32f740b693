"""Which layers does every pipeline chunk hold, and how is that written for a launcher?

A chunk layout is a tuple of layer counts in pipeline order; chunk i lies on rank i mod pp. Three ways to write
one: nothing (even), first and last counts, or Megatron-LM's layout string (E embedding, t layer, m multi-token
prediction, L loss, | between chunks). Left out: which split is best, which the plan says.
"""

from __future__ import annotations

import re

from planner.dialect import option
from planner.errors import InputError
from planner.spec.rule import Violation

ChunkLayers = tuple[int, ...]
Dealt = tuple[ChunkLayers, tuple[Violation, ...]]  # or why there are none

_LAYOUT = re.compile(r"E[EtmL|()*,0-9\s]*L")
_REPEATED_GROUP = re.compile(r"\(([^()]*)\)\*(\d+)")
_REPEATED = re.compile(r"([Etm])\*(\d+)")
_LONGEST = 200_000  # characters of an expanded layout; the largest models have some hundred layers


def chunk_layers(
    num_layers: int, pp: int, vpp: int, per_rank: tuple[int, ...] = (), layout: str = ""
) -> ChunkLayers:
    """Layers of every chunk: from a layout string, else from each rank's total, else even.

    A rank's layers are dealt to its chunks evenly, earlier chunks first. Raises `InputError` where the counts
    do not add up to the model.
    """
    chunks = pp * vpp
    if _LAYOUT.fullmatch(layout.strip()):
        counts = tuple(stage.count("t") for stage in parse_layout(layout))
    elif per_rank:
        _require(len(per_rank) == pp, f"layers must be given for each of {pp} pipeline ranks", per_rank)
        counts = tuple(per_rank[i % pp] // vpp + (i // pp < per_rank[i % pp] % vpp) for i in range(chunks))
    else:
        counts = tuple(num_layers // chunks + (i < num_layers % chunks) for i in range(chunks))
    _require(len(counts) == chunks, f"the layout must have pp x vpp = {chunks} chunks", counts)
    _require(sum(counts) == num_layers, f"layers of the chunks must add up to {num_layers}", counts)
    return counts


def recomputed_note(option: str, each: int, chunks: ChunkLayers, pp: int) -> tuple[str, ...]:
    """What is said where the first `each` layers of every chunk are recomputed, as many on a rank as a configuration
    means all by, and some chunk holds more."""
    deepest, whole = max(chunks, default=0), -(-sum(chunks) // pp)
    if deepest <= each or each * (len(chunks) // pp) < whole:
        return ()
    return (
        f"{option} {each} recomputes {each} of the {deepest} layers of the deepest stage; planner counts all of them, "
        "which is slower and needs less memory",
    )


def stated_layout(text: str, num_layers: int, pp: int | None, mtp: int = 0) -> ChunkLayers:
    """Layers of every chunk as a user states them: Megatron-LM's layout string, or numbers with commas between.

    As many chunks as ranks, or of several ranks a multiple; any number where `pp` is None. Raises `InputError`.
    """
    words = [word.strip() for word in text.split(",")]
    if all(word.isascii() and word.isdigit() and len(word) < 7 for word in words):
        counts = tuple(int(word) for word in words)
    else:
        stages = parse_layout(text)
        counts = tuple(stage.count("t") for stage in stages)
        order = "".join(stages)
        hint = (
            f"write it like {write_layout(((num_layers + 1) // 2, num_layers // 2), mtp)}, or numbers: 4,4,3"
        )
        if not re.fullmatch(f"Et*m{{{mtp}}}L", order):
            must = f"a layout must begin with E, end with L, and have {mtp} m before it"
            raise InputError(must, text, hint)
    must = f"the layers of a layout must add up to the model's, {num_layers}"
    _require(sum(counts) == num_layers, must, f"{text}: {sum(counts)}", "change the numbers")
    if pp is None:
        return counts
    must = f"a layout must have as many parts as pipeline ranks, {pp}" + ", or a multiple of that" * (pp > 1)
    _require(
        len(counts) == pp or (pp > 1 and len(counts) % pp == 0),
        must,
        f"{text}: {len(counts)}",
        f"name {option('set', 'pp=')} and {option('set', 'vpp=')} to match",
    )
    return counts


def _require(holds: bool, must: str, given: object, hint: str = "make the plan again") -> None:
    if not holds:
        raise InputError(must, str(given), hint)


def ends_stated(
    layers: int, pp: int, vpp: int, ends: tuple[int | None, int | None], counted: tuple[int, int] = (0, 0)
) -> Dealt:
    """Layers of every chunk as Megatron-LM deals them without a layout, or why it deals none: `ends` of the first and
    the last rank are given or dealt like the rest, `counted` says whether embedding and loss take a layer's place.

    Source: megatron/core/transformer/transformer_block.py get_num_layers_to_build.
    """
    given = [end for end in ends if end is not None]
    middle, left = pp - len(given), layers - sum(given) + sum(counted)
    if left < 0 or (middle and left % middle) or (not middle and left):
        must = "the layers of stages whose number is not given must be divisible by these stages"
        hint = "give the layers of the first or last stage, or a layout"
        return not_dealt(must, f"{left} layers on {middle} stages", hint)
    each = left // middle if middle else 0
    total = [each if end is None else end for end in (ends[0], *[None] * (pp - 2), ends[1])][:pp]
    if any(count % vpp for count in total):
        must = "the layers of every pipeline rank must be divisible by its virtual stages"
        return not_dealt(must, f"{total} layers, {vpp} virtual stages", "use a layout, or other degrees")
    chunks = [count // vpp for _ in range(vpp) for count in total]
    chunks[0] -= counted[0]
    chunks[-1] -= counted[1]
    return tuple(chunks), ()


def not_dealt(must: str, given: str, hint: str) -> Dealt:
    """No chunks, and the rule on them that files break."""
    return (), (Violation("layers-dealt", f"{must}; {given}", hint),)


def is_even(chunks: ChunkLayers) -> bool:
    """Do all chunks hold the same number of layers?"""
    return len(set(chunks)) == 1


def first_and_last(chunks: ChunkLayers, pp: int) -> tuple[int | None, int | None] | None:
    """(first, last) counts of ranks where only those differ from the rest; None where that cannot say it.

    Every rank's chunks must be equal, as Megatron-LM deals a rank's layers to its chunks evenly.
    """
    ranks = [chunks[rank::pp] for rank in range(pp)]
    if pp < 2 or any(len(set(counts)) > 1 for counts in ranks):
        return None
    totals = [sum(counts) for counts in ranks]
    if min(totals) < 1 or len(set(totals[1:-1])) > 1:
        return None
    if pp == 2:
        return (totals[0], None)
    middle = totals[1]
    first = totals[0] if totals[0] != middle else None
    last = totals[-1] if totals[-1] != middle else None
    return (first, last)


def write_layout(chunks: ChunkLayers, mtp: int = 0) -> str:
    """Megatron-LM's layout string of chunks; multi-token-prediction modules go before the loss."""
    stages = [f"t*{count}" if count > 1 else "t" * count for count in chunks]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp + "L"
    parts: list[str] = []
    start = 0
    while start < len(stages):
        stop = start
        while stop < len(stages) and stages[stop] == stages[start]:
            stop += 1
        repeats = stop - start
        unit = stages[start]
        if repeats > 2 and start > 0:
            parts.append(f"({unit}|)*{repeats}" if stop < len(stages) else f"({unit}|)*{repeats - 1}{unit}")
        else:
            parts.append("|".join([unit] * repeats) + ("|" if stop < len(stages) else ""))
        start = stop
    return "".join(parts)


def parse_layout(text: str) -> list[str]:
    """The chunks of a layout string as letters, such as ["Ett", "tt", "tL"]. Raises `InputError`."""
    flat = re.sub(r"[\s,]", "", text)
    for pattern in (_REPEATED_GROUP, _REPEATED, _REPEATED_GROUP):
        flat = pattern.sub(lambda match: _repeat(match[1], int(match[2])), flat)
    if not re.fullmatch(r"[EtmL|]+", flat) or len(flat) > _LONGEST:
        must = "a pipeline layout must be made of E, t, m, L, |, (...)*n and x*n"
        raise InputError(must, text, "write it like Et*3|(tt|)*14tL")
    return flat.split("|")


def _repeat(unit: str, count: int) -> str:
    if count * max(len(unit), 1) > _LONGEST:
        raise InputError("a pipeline layout must be of a reasonable length", f"({unit})*{count}")
    return unit * count
