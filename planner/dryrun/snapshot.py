"""What did a run of one's own allocate? Read from a memory snapshot of PyTorch (`torch.cuda.memory._dump_snapshot`).

A snapshot holds what is reserved when it is taken, and the last events of each device: the ring of
`torch.cuda.memory._record_memory_history(max_entries=...)` may have lost the first ones. So levels are counted back
from the end. Memory counts as allocated until `free_requested`, as in `memory_allocated`. An event has the bytes that
were asked for; a block that is in use at the end has its own size, any other is rounded up to 512 bytes, which leaves
out what the allocator does not split off (less than 1 MiB a block). The file is a pickle, of which only plain values
are read: whatever names a class or a function is refused. Source: docstring of torch.cuda.memory._snapshot, and
record_trace in c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.1 to 2.13.

Left out: private pools of CUDA graphs, which count like any other; what differs from a dry run (`beside_snapshot.py`).
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NoReturn

import numpy as np

from planner.dryrun.allocator.rounding import UNIT, Column
from planner.dryrun.timeline import POINTS
from planner.errors import FileInputError, sort_of

_WRITE_ONE: Final = "write one with: torch.cuda.memory._dump_snapshot('snapshot.pickle')"
_HELD: Final = "active_allocated"  # the state of a block that a tensor uses
_RESERVES: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_PARTS: Final = ("segments", "device_traces")
_OTHERS: Final = ("free_completed", "snapshot", "oom")


@dataclass(frozen=True)
class Blocks:
    """Blocks of one size [bytes], asked for in one place."""

    size: int
    where: str
    """File, line and function of the run; empty where the snapshot has no frames."""
    number: int


@dataclass(frozen=True)
class OwnRun:
    """What a snapshot says of one device [bytes]."""

    device: int
    events: int
    """Of its history."""
    allocated_peak: int
    """Over the history, as `reserved_peak`."""
    reserved_peak: int
    allocated_at_start: int
    """When the history begins: 0 where it is all of the run."""
    allocated_at_end: int
    out_of_memory: int | None
    """What the first allocation that failed asked for."""
    alive: tuple[Blocks, ...]
    """At the allocated peak, the largest first."""
    timeline: tuple[tuple[int, int], ...]
    """In parts of equal length of the history, the most that is allocated, and reserved."""


class _NotPlainError(Exception):
    """What a pickle would look up, and could run."""


class _ContradictionError(Exception):
    """What of a snapshot cannot be."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, text and containers of them; runs nothing."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Whatever has to be looked up by name could be run."""
        raise _NotPlainError(f"{module}.{name}"[:100])


def read_snapshot(file: BinaryIO, name: str) -> OwnRun:
    """What the snapshot in a file called `name` says of the device that reserved most. Raises `FileInputError`."""
    try:
        held = _PlainUnpickler(file).load()
    except _NotPlainError as error:
        raise FileInputError(name, "must be a pickle of plain values", str(error), _WRITE_ONE) from None
    except Exception:  # whatever a broken pickle ends with
        given = "another kind of file, or a part of one"
        raise FileInputError(name, "must be a pickle", given, _WRITE_ONE) from None
    try:
        return max(_devices(held), key=lambda run: run.reserved_peak)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, _ContradictionError) as error:
        given = _wrong(held, error)[:200]
        must = "must be a snapshot as PyTorch 2.1 or newer writes it: segments and device_traces"
        raise FileInputError(name, must, given, _WRITE_ONE) from None


def _wrong(held: object, error: Exception) -> str:
    """What of the values of a pickle is not a snapshot's."""
    if not isinstance(held, Mapping):
        return sort_of(held)
    if isinstance(error, KeyError):
        return f"an entry without {error.args[0]!r}" if error.args[0] not in _PARTS else f"no {error.args[0]}"
    return str(error) if isinstance(error, _ContradictionError) else "an entry of another kind of value"


def _devices(held: Mapping[str, Any]) -> Iterator[OwnRun]:
    """Each device that has a history or reserves memory. Raises `_ContradictionError` where none does."""
    segments: dict[int, list[Mapping[str, Any]]] = {}
    for segment in held["segments"]:
        segments.setdefault(int(segment.get("device", 0)), []).append(segment)
    traces = held["device_traces"]
    used = sorted({*segments, *(device for device, trace in enumerate(traces) if trace)})
    if not used:
        raise _ContradictionError("no device has a history or reserves memory")
    for device in used:
        yield _run_of(device, segments.get(device, ()), traces[device] if device < len(traces) else ())


@dataclass
class _Life:
    """A block [bytes]: `born`, `died`: the events that allocate and free it; -1, and the number of events, where these
    are none of the history."""

    asked: int
    size: int
    born: int
    died: int
    where: str = ""


def _run_of(device: int, segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]]) -> OwnRun:
    lives = _lives(segments, trace)
    allocated_at_end = sum(life.size for life in lives if life.died == len(trace))
    reserved_at_end = sum(int(segment["total_size"]) for segment in segments)
    allocates, reserves = np.zeros((2, len(trace)), np.int64)
    for life in lives:
        if life.born >= 0:
            allocates[life.born] += life.size
        if life.died < len(trace):
            allocates[life.died] -= life.size
    for index, event in enumerate(trace):
        reserves[index] = _RESERVES.get(event["action"], 0) * int(event["size"])
    allocated, reserved = _levels(allocated_at_end, allocates), _levels(reserved_at_end, reserves)
    peak = int(np.argmax(allocated)) - 1  # the event after which it is reached; -1: before all
    alive = Counter((life.asked, life.where) for life in lives if life.born <= peak < life.died)
    failed = (int(event["size"]) for event in trace if event["action"] == "oom")
    return OwnRun(
        device=device,
        events=len(trace),
        allocated_peak=int(allocated.max()),
        reserved_peak=int(reserved.max()),
        allocated_at_start=int(allocated[0]),
        allocated_at_end=allocated_at_end,
        out_of_memory=next(failed, None),
        alive=tuple(
            sorted(
                (Blocks(size, where, number) for (size, where), number in alive.items()),
                key=lambda one: (-one.size * one.number, one.where),
            )
        ),
        timeline=_timeline(allocated, reserved),
    )


def _lives(segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]]) -> list[_Life]:
    """Every block that is in use at some time of the history. Raises `_ContradictionError` for an unknown event."""
    found: list[_Life] = []
    live: dict[int, _Life] = {}
    for index, event in enumerate(trace):
        action = event["action"]
        if action == "alloc":
            asked, address = int(event["size"]), int(event["addr"])
            if address in live:
                raise _ContradictionError(f"two blocks at {address:#x} at once, event {index}")
            life = _Life(
                asked, -(-asked // UNIT) * UNIT, index, len(trace), _where(event.get("frames") or ())
            )
            live[address] = life
            found.append(life)
        elif action == "free_requested":
            asked = int(event["size"])
            known = live.pop(int(event["addr"]), None)
            if known is None:  # allocated before the history begins
                known = _Life(asked, -(-asked // UNIT) * UNIT, -1, index)
                found.append(known)
            known.died = index
        elif action not in _RESERVES and action not in _OTHERS:
            raise _ContradictionError(f"an event {action!r}")
    return [*found, *_left(segments, live, len(trace))]


def _left(segments: Sequence[Mapping[str, Any]], live: Mapping[int, _Life], end: int) -> Iterator[_Life]:
    """Blocks in use at the end that were allocated before the history begins; those of the history get the size that
    they have. Raises `_ContradictionError` where history and blocks contradict each other."""
    held = set()
    for segment in segments:
        at = int(segment["address"])
        for block in segment["blocks"]:
            size, address = int(block["size"]), int(block.get("address", at))
            at += size
            if block["state"] != _HELD:
                continue
            held.add(address)
            if address in live:
                live[address].size = size
            else:
                asked = int(block.get("requested_size", size))
                yield _Life(asked, size, -1, end, _where(block.get("frames") or ()))
    if lost := live.keys() - held:
        raise _ContradictionError(
            f"{len(lost)} blocks of the history are in use at its end and in no segment"
        )


def _where(frames: Sequence[Mapping[str, Any]]) -> str:
    """The innermost line of Python outside PyTorch, else the innermost of all."""
    python = [frame for frame in frames if str(frame["filename"]).endswith(".py")]
    own = [frame for frame in python if "/torch/" not in str(frame["filename"])]
    for frame in (*own, *python):
        file = "/".join(str(frame["filename"]).split("/")[-2:])
        return f"{file}:{int(frame['line'])} {frame['name']}"
    return ""


def _levels(end: int, changes: Column) -> Column:
    """Before the first event and after each, from what is there after the last [bytes]."""
    levels: Column = end - int(changes.sum()) + np.concatenate(([0], np.cumsum(changes)))
    return levels


def _timeline(allocated: Column, reserved: Column) -> tuple[tuple[int, int], ...]:
    number = min(POINTS, len(allocated))
    parts = zip(np.array_split(allocated, number), np.array_split(reserved, number), strict=True)
    return tuple((int(one.max()), int(other.max())) for one, other in parts)
