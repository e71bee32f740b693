"""Traces for tests of the allocator: a step written as words, and traces and settings by chance."""

from __future__ import annotations

from hypothesis import strategies as st

from planner.dryrun.allocator.settings import MIB, AllocatorSettings
from planner.dryrun.allocator.trace import Trace

KIB = 2**10
SIZES = (
    1,
    512,
    4000,
    512 * KIB,
    MIB,
    MIB + 1,
    3 * MIB,
    9 * MIB,
    10 * MIB,
    15 * MIB,
    19 * MIB,
    25 * MIB,
    70 * MIB,
)


def trace_of(*steps: int | str) -> Trace:
    """A number allocates that many bytes on stream 0; "free 2" frees the third block; "empty" and "reset" do that."""
    trace = Trace()
    for step in steps:
        if isinstance(step, int):
            trace.allocate(step)
        elif step == "empty":
            trace.empty_cache()
        elif step == "reset":
            trace.reset_peaks()
        else:
            trace.free(int(step.removeprefix("free ")))
    return trace


@st.composite
def traces(draw: st.DrawFn, streams: int = 3, most: int = 80, ending: bool = False) -> Trace:
    """Any order of events on up to `streams` streams; `ending`: everything is freed and given back at the end."""
    trace, live = Trace(), []
    stream = st.integers(0, draw(st.integers(1, streams)) - 1)
    size = st.one_of(st.sampled_from(SIZES), st.sampled_from(SIZES), st.integers(0, 90 * MIB))
    for kind in draw(st.lists(st.sampled_from("aaaaaaaaffffffuuccer"), max_size=most)):
        if kind == "a":
            live.append(trace.allocate(draw(size), draw(stream)))
        elif kind == "f" and live:
            trace.free(live.pop(draw(st.integers(0, len(live) - 1))))
        elif kind == "u" and live:
            trace.use_on(draw(st.sampled_from(live)), draw(stream))
        elif kind == "c":
            trace.catch_up(draw(stream))
        elif kind == "e":
            trace.empty_cache()
        elif kind == "r":
            trace.reset_peaks()
    if ending:
        for block in live:
            trace.free(block)
        trace.empty_cache()
    return trace


@st.composite
def settings(draw: st.DrawFn, expandable: bool | None = None) -> AllocatorSettings:
    """Any settings that PyTorch takes."""
    large = draw(st.sampled_from((20, 20, 20, 12, 40))) * MIB
    divisions = st.lists(st.sampled_from((0, 1, 2, 4, 8)), min_size=16, max_size=16)
    return AllocatorSettings(
        expandable_segments=draw(st.booleans()) if expandable is None else expandable,
        max_split_size=draw(st.sampled_from((2**63 - 1, large, 64 * MIB))),
        max_non_split_rounding=max(large, draw(st.sampled_from((20, 30))) * MIB),
        large_segment=large,
        roundup_divisions=tuple(draw(divisions)) if draw(st.booleans()) else (1,) * 16,
        garbage_collection_threshold=draw(st.sampled_from((0.0, 0.3, 0.8))),
        memory_fraction=draw(st.sampled_from((1.0, 1.0, 0.9, 0.5))),
    )
