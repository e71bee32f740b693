"""How fast is a trace replayed? `python -m benchmarks.allocator [--results]`

Events per second of processor time, beside the allocator with an object per block (`plain_allocator`), on the steps of
a decoder and on sizes and orders by chance: with segments, with expandable ones, and with segments on a device that has
so little that cached memory must be given back. The least of five runs, of the plain version one. `--results` writes
the table to RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import time
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.plain_allocator import replay_plainly
from benchmarks.results_file import write_section
from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.allocator.trace import Trace

RUNS: Final = 5
LAYERS, MICRO_BATCHES = 40, 3
HIDDEN, FFN, HEADS, TOKENS, VOCAB = 5120, 13824, 40, 4096, 32000


def decoder_steps(steps: int) -> Trace:
    """Steps of a decoder of 40 layers in bf16 with three micro-batches, AdamW, states made in the first step."""
    trace = Trace()
    weights = [size for _ in range(LAYERS) for size in _weights()] + [2 * VOCAB * HIDDEN, 2 * VOCAB * HIDDEN]
    for size in weights:
        trace.allocate(size)
    states: list[int] = []
    for step in range(steps):
        gradients: dict[int, int] = {}
        for _ in range(MICRO_BATCHES):
            _micro_batch(trace, weights, gradients)
        norms = [trace.allocate(4) for _ in gradients]
        if not states:
            states = [trace.allocate(size) for size in weights for _ in range(2)]
        for block in [*norms, *gradients.values()]:
            trace.free(block)
        if step == 0:
            trace.reset_peaks()
    return trace


def _weights() -> tuple[int, ...]:
    attention = (2 * HIDDEN * HIDDEN,) * 4
    return (2 * HIDDEN, *attention, 2 * HIDDEN, *(2 * HIDDEN * FFN,) * 3)


def _micro_batch(trace: Trace, weights: list[int], gradients: dict[int, int]) -> None:
    """Forward: each layer keeps its inputs and makes temporaries; backward: frees them in turn, gradients added up."""
    wide, ffn, heads = 2 * TOKENS * HIDDEN, 2 * TOKENS * FFN, 4 * TOKENS * HEADS
    kept: list[list[int]] = []
    for _ in range(LAYERS):
        saved = []
        for size in (
            wide,
            4 * TOKENS,
            wide,
            wide,
            wide,
            wide,
            heads,
            wide,
            wide,
            4 * TOKENS,
            ffn,
            ffn,
            ffn,
            wide,
        ):
            temporary = trace.allocate(2 * size)
            saved.append(trace.allocate(size))
            trace.free(temporary)
        kept.append(saved)
    logits = [trace.allocate(size * TOKENS * VOCAB) for size in (2, 4, 4)]
    for block in logits:
        trace.free(block)
    for layer in reversed(range(LAYERS)):
        for k, block in enumerate(reversed(kept[layer])):
            back = [trace.allocate(wide), trace.allocate((ffn, wide, 512)[k % 3])]
            trace.free(block)
            for other in back:
                trace.free(other)
        for k in range(9):
            weight = 9 * layer + k
            fresh = trace.allocate(weights[weight])
            if weight in gradients:
                trace.free(fresh)
            else:
                gradients[weight] = fresh


def random_trace(events: int, live: int, seed: int = 0, streams: int = 1) -> Trace:
    """Sizes from bytes to 200 MiB by chance; about `live` blocks live at a time, freed in any order."""
    draw, trace = random.Random(seed), Trace()
    held: list[int] = []
    for _ in range(events):
        if held and draw.random() < len(held) / (2 * live):
            at = draw.randrange(len(held))
            held[at], held[-1] = held[-1], held[at]
            trace.free(held.pop())
        else:
            size = int(2 ** draw.uniform(5, 27.6))
            held.append(trace.allocate(size, draw.randrange(streams)))
    return trace


def rows() -> Iterator[str]:
    """A line of the table for each trace and way of allocating."""
    traces = {
        "10 steps of a decoder, 3 micro-batches": decoder_steps(10),
        "random, about 300 live": random_trace(200_000, 300),
        "random, about 3,000 live": random_trace(200_000, 3000),
        "random, about 300 live, 4 streams": random_trace(200_000, 300, streams=4),
    }
    for name, trace in traces.items():
        for how, settings, capacity in (
            ("segments", AllocatorSettings(), None),
            ("expandable", AllocatorSettings(expandable_segments=True), None),
            ("segments, little memory", AllocatorSettings(), least(trace)),
        ):
            yield f"| {name} | {how} | {_timed(trace, settings, capacity)} |"


def least(trace: Trace) -> int:
    """The least memory, in hundredths of what would be reserved, with which nothing fails [bytes]."""
    peak = replay(trace).peaks.reserved
    enough = (peak * part // 100 for part in range(70, 101))
    return next(capacity for capacity in enough if replay(trace, capacity=capacity).out_of_memory is None)


def _timed(trace: Trace, settings: AllocatorSettings, capacity: int | None) -> str:
    retries = replay(trace, settings, capacity).retries
    fast = len(trace) / min(_seconds(lambda: replay(trace, settings, capacity)) for _ in range(RUNS))
    plain = len(trace) / _seconds(lambda: replay_plainly(trace, settings, capacity))
    return f"{len(trace):,} | {retries:,} | {fast / 1e6:.2f} M | {plain / 1e6:.2f} M | {fast / plain:.1f}"


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.allocator", description=__doc__)
    parser.add_argument("--results", action="store_true", help="update benchmarks/RESULTS.md")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    lines = [
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} at the start. Events replayed "
        "per second of processor time (`python -m benchmarks.allocator`),",
        "beside an allocator with an object per block (`benchmarks/plain_allocator.py`), which gives the same bytes",
        "after every event. Retries: times that all cached memory was given back. Little memory: the least hundredth",
        "of the reserved peak with which nothing fails.",
        "",
        "| trace | allocator | events | retries | events/s | plain, events/s | ratio |",
        "|---|---|---:|---:|---:|---:|---:|",
        *rows(),
    ]
    print("\n".join(lines))
    if given.results:
        write_section("allocator", "\n".join(lines))


if __name__ == "__main__":
    main()
