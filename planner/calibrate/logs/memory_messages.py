"""What does a line about memory say? Allocator reports of frameworks, and messages of a device or host without memory.

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
    allocated: float | None = None
    reserved: float | None = None
    device: float | None = None


@dataclass(frozen=True)
class OutOfMemory:
    """A message of a device without memory left [bytes]. `in_use`: by this process, allocator or not; `unallocated`:
    reserved by the allocator and unused; `private`: pools of CUDA graphs; `program`: what a program needs in all that
    XLA did not compile for want of memory; `others`: in use by all other processes."""

    rank: int | None
    tried: float
    total: float | None = None
    free: float | None = None
    in_use: float | None = None
    allocated: float | None = None
    reserved: float | None = None
    unallocated: float | None = None
    private: float | None = None
    others: float | None = None
    program: float | None = None


def _bytes(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit[0].lower()]  # PyTorch's "GB" were GiB as well


def _all(pattern: str, text: str) -> list[float]:
    found = re.findall(pattern.replace("SIZE", _SIZE), text, re.IGNORECASE)
    return [_bytes(number, unit) for number, unit in found if len(number) <= 20]


def _find(text: str, *patterns: str) -> float | None:
    """The size of the first pattern that has one."""
    return next((size for pattern in patterns for size in _all(pattern, text)[:1]), None)


_ROUNDED: Final = 0.005  # relative: sizes with two decimals
_MEGATRON_RANK: Final = re.compile(r"\[Rank (\d+)\]")


def _whole(pattern: str) -> re.Pattern[str]:
    """A pattern in which DECIMAL is a number that no digit follows: ranks may write over one another."""
    return re.compile(pattern.replace("DECIMAL", r"\d{1,12}(?:\.\d{1,17})?(?![\d.])"))


_MEGATRON: Final = (
    r"memory \(MB\) \| allocated: [\d.]+ \| max allocated: (?P<allocated>DECIMAL) \| (?:reserved|cached): [\d.]+ \| "
    r"max (?:reserved|cached): (?P<reserved>DECIMAL)(?: \| total device memory used: (?P<device>DECIMAL))?"
)
# bytes of the unit that each line counts in, and its peaks by the field of `MemoryLine`
_LINES: Final = (
    (MIB, _whole(_MEGATRON)),
    (
        MIB,
        _whole(
            r"Peak allocated:? (?P<allocated>DECIMAL)\s?Mi?B\.? Peak reserved: (?P<reserved>DECIMAL)\s?Mi?B"
        ),
    ),
    (GIB, _whole(r"Max_MA (?P<allocated>DECIMAL) GB\s+CA [\d.]+ GB\s+Max_CA (?P<reserved>DECIMAL) GB")),
    (GIB, _whole(r"MaxMemAllocated=(?P<allocated>DECIMAL)GB")),
    (GIB, _whole(r"\bmemory:\s*(?P<reserved>DECIMAL)\s*GiB\s*\(\s*[\d.]+%\)")),
    # files and commits beside the steps of the same frameworks, in formats.py
    *(
        (unit, _whole(pattern))
        for unit, pattern in (
            # axolotl, of two generations; ms-swift; torchtune; OLMo-core
            (
                GIB,
                r"memory/max_(?:mem_)?allocated ?\((?i:gib)\)': '?(?P<allocated>DECIMAL).{0,20}"
                r"memory/device_(?:mem_)?reserved ?\((?i:gib)\)': '?(?P<reserved>DECIMAL)",
            ),
            (GIB, r"\bmemory\(GiB\)['\"]: *['\"]?(?P<reserved>DECIMAL)"),
            (
                GIB,
                r"peak_memory_alloc\"?: ?(?P<allocated>DECIMAL),? \"?peak_memory_reserved\"?: ?(?P<reserved>DECIMAL)",
            ),
            (GIB, r"gpu_memory/GPU reserved mem \(GiB\)=(?P<reserved>DECIMAL)"),
            # verl, whose gb are of 2^30; LLaMA-Factory with RECORD_VRAM; Automodel, on a console and as JSON
            (
                GIB,
                r"perf/max_memory_allocated_gb:(?P<allocated>DECIMAL)"
                r"(?: - perf/max_memory_reserved_gb:(?P<reserved>DECIMAL))?",
            ),
            (GIB, r"\"vram_allocated\": (?P<allocated>DECIMAL), \"vram_reserved\": (?P<reserved>DECIMAL)"),
            (GIB, r"\| mem (?P<allocated>DECIMAL) GiB \|"),
            (GIB, r"\"mem\": ?(?P<allocated>DECIMAL), ?\"tps\""),
            # nanochat; fms-fsdp
            (MIB, r"Peak memory usage: (?P<allocated>DECIMAL)MiB"),
            (1.0, r"^reserved memory: (?P<reserved>DECIMAL)$"),
            (1.0, r"^allocated memory: (?P<allocated>DECIMAL)$"),
        )
    ),
)
_HINTS: Final = ("memory", "Peak allocated", "MaxMemAllocated", "Max_MA", "vram_", "mem ", '"mem"')


def memory_line(text: str, rank: int | None = None) -> MemoryLine | None:
    """The allocator's report in a plain line; None where there is none."""
    if not any(hint in text for hint in _HINTS):
        return None
    for unit, line in _LINES:
        if match := line.search(text):
            named = _MEGATRON_RANK.search(text) if "max allocated" in line.pattern else None
            sizes = {name: float(size) * unit for name, size in match.groupdict().items() if size}
            return MemoryLine(int(named[1][:9]) if named else rank, **sizes)
    return None


@dataclass(frozen=True)
class LostMemory:
    """A message of memory that ran out outside the allocator. `of`: the library that asked on a device; "host" where
    the system ended a process for want of the host's memory; "signal" where no more is known than that signal 9 did.
    `size` [bytes]: what the process held, or asked for."""

    rank: int | None
    of: str
    size: float | None = None


# NVIDIA/nccl 0456df20 src/include/checks.h; torch 2.13 distributed/elastic/multiprocessing/; deepspeed 0.19.8
# launcher/launch.py; Linux mm/oom_kill.c; PyTorch's CPU allocator, Slurm and Kubernetes as public reports quote them
_LOST: Final = tuple(
    (of, re.compile(pattern, re.IGNORECASE))
    for of, pattern in (
        ("NCCL", r"\bCuda failure(?: \d+)? '?out of memory|NCCL WARN Failed to CUDA (?:m|c)?alloc"),
        ("RCCL", r"\bHIP failure(?: \d+)? '?out of memory"),
        ("cuBLAS", r"\bCUBLAS_STATUS_ALLOC_FAILED\b"),
        ("hipBLAS", r"\b(?:HIPBLAS|ROCBLAS)_STATUS_ALLOC_FAILED\b"),
        ("cuDNN", r"\bCUDNN_STATUS_ALLOC_FAILED\b"),
        ("the CUDA driver", r"\bCUDA error: out of memory\b|\bCUDA_ERROR_OUT_OF_MEMORY\b"),
        ("the HIP driver", r"\bHIP error: out of memory\b|\bhipErrorOutOfMemory\b"),
        (
            "host",
            r"\bout of memory: Killed process \d+(?:.{0,200}?anon-rss:(?P<size>\d+kB))?|"
            r"\boom[-_]kill(?::| event)|\bOOMKilled\b|\bcgroup out-of-memory handler\b|"
            r"DefaultCPUAllocator: .{0,60}?tried to allocate (?P<asked>\d+ bytes)",
        ),
        (
            "signal",
            r"\bexitcode\s*: -9\b|\breturn code = -9\b|\bSignal 9 \(SIGKILL\)|"
            r"<Signals\.SIGKILL: 9>|\bexit(?:ed with)? code:? 137\b",
        ),
    )
)
LOST_HINTS: Final = (
    "out of memory", "alloc_failed", "outofmemory", "out_of_memory", "out-of-memory", "oom", "killed", "failed to cuda",
    "defaultcpualloc", ": -9", "= -9", "sigkill", "137",
)  # fmt: skip


def lost_memory(text: str, rank: int | None = None) -> LostMemory | None:
    """What a plain line says of memory that ran out outside the allocator; None where it says nothing."""
    lower = text.lower()
    if not any(hint in lower for hint in LOST_HINTS):
        return None
    for of, pattern in _LOST:
        if match := pattern.search(text):
            said = next((size for size in match.groupdict().values() if size), None)
            return LostMemory(rank, of, None if said is None else _all("SIZE", said)[0])
    return None


# XLA counts in G = 2^30; memory of other spaces (vmem) is of a kernel, not of the job
_XLA: Final = re.compile(r"memory space hbm\. Used (\d+(?:\.\d+)?)([KMGT]) of (\d+(?:\.\d+)?)([KMGT]) hbm")


def _of_xla(text: str, rank: int | None) -> OutOfMemory | None:
    """XLA's message of a program that is larger than the device."""
    match = _XLA.search(text)
    if match is None or len(match[1]) > 20 or len(match[3]) > 20:
        return None
    program, room = _bytes(match[1], match[2]), _bytes(match[3], match[4])
    return OutOfMemory(rank, max(program - room, 0.0), room, program=program)


def out_of_memory(message: str, rank: int | None = None) -> OutOfMemory | None:
    """A message of PyTorch on CUDA or ROCm, old or new, or of XLA, its lines joined by spaces; None if it is none."""
    text = " ".join(message.split())[:8000]
    if (of_xla := _of_xla(text, rank)) is not None:
        return of_xla
    tried = _find(text, r"(?:(?:tried|trying) to allocate|out of memory allocating) SIZE")
    if tried is None:
        return None
    allocated = _find(text, "Of the allocated memory SIZE is allocated by PyTorch", "SIZE already allocated")
    unallocated = _find(text, "SIZE is reserved by PyTorch but unallocated")
    reserved = _find(text, "SIZE reserved in total by PyTorch")
    if reserved is None and allocated is not None and unallocated is not None:
        reserved = allocated + unallocated
    if unallocated is None and reserved is not None and allocated is not None:
        unallocated = max(reserved - allocated, 0.0)
    total = _find(text, "total capacity of SIZE", "SIZE total capacity")
    free = _find(text, "of which SIZE is free", "SIZE free")
    in_use = _find(text, "this process has SIZE memory in use")
    others = _all(r"(?<!this )Process \d+ has SIZE memory in use", text)
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
        private=_find(text, "with SIZE allocated in private pools"),
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
