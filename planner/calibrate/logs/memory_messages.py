"""What does a line about memory say? Allocator reports of frameworks, and messages of a device without memory left.

Sizes become bytes. Left out: what they mean for a configuration (`diagnosis/explain_memory.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from planner.units import GIB

MIB: Final = 2.0**20
_SIZE: Final = r"(\d+(?:\.\d+)?)\s*(bytes|[KMGT]i?B)"
_UNITS: Final = {"b": 1.0, "k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}


@dataclass(frozen=True)
class MemoryLine:
    """What one rank reported [bytes]; None where it did not. Peaks where the line has them."""

    rank: int | None
    allocated: float | None
    reserved: float | None
    device: float | None = None


@dataclass(frozen=True)
class OutOfMemory:
    """A message of a device without memory left [bytes]. `in_use`: by this process, allocator or not; `unallocated`:
    reserved by the allocator and unused; `private`: pools of CUDA graphs; `program`: what a program needs in all that
    XLA did not compile for want of memory; `others`: in use by all other processes."""

    rank: int | None
    tried: float
    total: float | None
    free: float | None
    in_use: float | None
    allocated: float | None
    reserved: float | None
    unallocated: float | None
    private: float | None = None
    others: float | None = None
    program: float | None = None


def _bytes(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit[0].lower()]  # PyTorch's "GB" were GiB as well


def _find(pattern: str, text: str) -> float | None:
    match = re.search(pattern.replace("SIZE", _SIZE), text, re.IGNORECASE)
    if match is None or len(match[1]) > 20:
        return None
    return _bytes(match[1], match[2])


def _all(pattern: str, text: str) -> list[float]:
    found = re.findall(pattern.replace("SIZE", _SIZE), text, re.IGNORECASE)
    return [_bytes(number, unit) for number, unit in found if len(number) <= 20]


_ROUNDED: Final = 0.005  # relative: sizes with two decimals
_MEGATRON: Final = re.compile(
    r"memory \(MB\) \| allocated: ([\d.]+) \| max allocated: ([\d.]+) \| (?:reserved|cached): ([\d.]+) \| "
    r"max (?:reserved|cached): ([\d.]+)(?: \| total device memory used: ([\d.]+))?"
)
_MEGATRON_RANK: Final = re.compile(r"\[Rank (\d+)\]")
_NANOTRON: Final = re.compile(r"Peak allocated:? ([\d.]+)\s?Mi?B\.? Peak reserved: ([\d.]+)\s?Mi?B")
_TITAN: Final = re.compile(r"\bmemory:\s*([\d.]+)\s*GiB\s*\(\s*[\d.]+%\)")
_DEEPSPEED: Final = re.compile(r"MaxMemAllocated=([\d.]+)GB")
_SEE_MEMORY: Final = re.compile(r"Max_MA ([\d.]+) GB\s+CA [\d.]+ GB\s+Max_CA ([\d.]+) GB")
_HINTS: Final = ("memory (MB)", "Peak allocated", "memory:", "MaxMemAllocated", "Max_MA")


def memory_line(text: str, rank: int | None = None) -> MemoryLine | None:
    """The allocator's report in a plain line; None where there is none."""
    if not any(hint in text for hint in _HINTS):
        return None
    if match := _MEGATRON.search(text):
        of = _MEGATRON_RANK.search(text)
        device = float(match[5]) * MIB if match[5] else None
        named = int(of[1][:9]) if of else rank
        return MemoryLine(named, float(match[2]) * MIB, float(match[4]) * MIB, device)
    if match := _NANOTRON.search(text):
        return MemoryLine(rank, float(match[1]) * MIB, float(match[2]) * MIB)
    if match := _SEE_MEMORY.search(text):
        return MemoryLine(rank, float(match[1]) * GIB, float(match[2]) * GIB)
    if match := _DEEPSPEED.search(text):
        return MemoryLine(rank, float(match[1]) * GIB, None)
    if match := _TITAN.search(text):
        return MemoryLine(rank, None, float(match[1]) * GIB)
    return None


# XLA counts in G = 2^30; memory of other spaces (vmem) is of a kernel, not of the job
_XLA: Final = re.compile(r"memory space hbm\. Used (\d+(?:\.\d+)?)([KMGT]) of (\d+(?:\.\d+)?)([KMGT]) hbm")


def _of_xla(text: str, rank: int | None) -> OutOfMemory | None:
    """XLA's message of a program that is larger than the device."""
    match = _XLA.search(text)
    if match is None or len(match[1]) > 20 or len(match[3]) > 20:
        return None
    program, room = _bytes(match[1], match[2]), _bytes(match[3], match[4])
    return OutOfMemory(
        rank=rank,
        tried=max(program - room, 0.0),
        total=room,
        free=None,
        in_use=None,
        allocated=None,
        reserved=None,
        unallocated=None,
        program=program,
    )


def out_of_memory(message: str, rank: int | None = None) -> OutOfMemory | None:
    """A message of PyTorch on CUDA or ROCm, old or new, or of XLA, its lines joined by spaces; None if it is none."""
    text = " ".join(message.split())[:8000]
    if (of_xla := _of_xla(text, rank)) is not None:
        return of_xla
    tried = _find(r"(?:(?:tried|trying) to allocate|out of memory allocating) SIZE", text)
    if tried is None:
        return None
    allocated = _find(r"(?:Of the allocated memory )SIZE is allocated by PyTorch", text)
    if allocated is None:
        allocated = _find(r"SIZE already allocated", text)
    unallocated = _find(r"SIZE is reserved by PyTorch but unallocated", text)
    reserved = _find(r"SIZE reserved in total by PyTorch", text)
    if reserved is None and allocated is not None and unallocated is not None:
        reserved = allocated + unallocated
    if unallocated is None and reserved is not None and allocated is not None:
        unallocated = max(reserved - allocated, 0.0)
    total = _find(r"total capacity of SIZE", text) or _find(r"SIZE total capacity", text)
    free = _find(r"of which SIZE is free", text)
    in_use = _find(r"this process has SIZE memory in use", text)
    others = _all(r"(?<!this )Process \d+ has SIZE memory in use", text)
    if free is None:
        free = _find(r"SIZE free", text)
    if in_use is None:
        own = _own_of(others, total, free, reserved)
        in_use = None if own is None else others.pop(own)
    return OutOfMemory(
        rank=rank,
        tried=tried,
        total=total,
        free=free,
        in_use=in_use,
        allocated=allocated,
        reserved=reserved,
        unallocated=unallocated,
        private=_find(r"with SIZE allocated in private pools", text),
        others=sum(others) if others else None,
    )


def _own_of(
    processes: Sequence[float], total: float | None, free: float | None, reserved: float | None
) -> int | None:
    """Which of the processes that a message names is the run's own; None where all may be others.

    In a container the driver knows the process by another number than it does itself, so that none is "this process".
    It is among those named if they and what PyTorch reserved were more than is in use on the device, and then it is the
    smallest that holds what is reserved.
    """
    if total is None or reserved is None:
        return None
    holding = [i for i, size in enumerate(processes) if size >= reserved * (1 - _ROUNDED)]
    if not holding or sum(processes) + reserved <= (total - (free or 0.0)) * (1 + _ROUNDED):
        return None
    return min(holding, key=lambda i: processes[i])
