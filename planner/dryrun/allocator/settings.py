"""How is PyTorch's caching allocator set? PYTORCH_ALLOC_CONF (once PYTORCH_CUDA_ALLOC_CONF) as people write it.

Options, defaults and limits are those of PyTorch 2.13 (c10/core/AllocatorConfig.cpp, c10/cuda/CUDAAllocatorConfig.cpp),
a few of which older versions do not know. Options of pinned host memory and of locks change nothing on the device. Left
out, and refused: other backends than the native one, and numbers that PyTorch reads by the digits they begin with
("128MB" as 128).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from planner.errors import InputError, UnknownNameError, nearest_names

MIB: Final = 2**20
_INTERVALS: Final = 16  # of sizes, by powers of two: below 2 MiB, 2 to 4 MiB, ..., 32 GiB and above
_LEAST_LARGE: Final = 10 * MIB  # a request this large gets a segment of its own size
_UNLIMITED: Final = 2**63 - 1


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings of the caching allocator; the defaults are PyTorch's."""

    expandable_segments: bool = False
    """One growing segment per pool and stream instead of one cudaMalloc per segment."""
    max_split_size: int = _UNLIMITED
    """Requests and blocks this large are kept whole [bytes]."""
    max_non_split_rounding: int = 20 * MIB
    """A whole block larger than a request by this much is not taken for it [bytes]."""
    large_segment: int = 20 * MIB
    """Segment for requests above 1 and below 10 MiB, page of large expandable segments [bytes]."""
    roundup_divisions: tuple[int, ...] = (1,) * _INTERVALS
    """Parts of a power of two that sizes are rounded up to, by size from 1 MiB to 32 GiB; 0 and 1: to 512 bytes."""
    garbage_collection_threshold: float = 0.0
    """Share of the allowed memory above which cached segments are freed by age; 0, and at a fraction of 1: never."""
    memory_fraction: float = 1.0
    """Share of the device that the process may take."""

    def allowed(self, limit: int, device: int) -> int:
        """What the allocator can have of a device's memory where `limit` is left to it [bytes]."""
        return min(limit, int(self.memory_fraction * device))

    @property
    def collects_nothing(self) -> bool:
        """Is a threshold given which PyTorch passes over, as nothing is known of which it would be a share?"""
        return self.garbage_collection_threshold > 0 and self.memory_fraction == 1


def read_alloc_conf(text: str) -> AllocatorSettings:
    """The settings that `text` states, such as "expandable_segments:True,max_split_size_mb:128", also as a shell sets
    the variable.

    Where a name stands twice the last one holds. Raises `InputError`, `UnknownNameError`.
    """
    bare = _unquoted(_VARIABLE.sub("", _unquoted(text), count=1))
    written = dict(_pairs("".join(bare.split())))
    large = _mebibytes(written, "large_segment_size_mb", 20 * MIB, _LEAST_LARGE + MIB)
    for name, value in written.items():
        _check_other(name, value)
    return AllocatorSettings(
        expandable_segments=_truth("expandable_segments", written.get("expandable_segments", "False")),
        max_split_size=_mebibytes(written, "max_split_size_mb", _UNLIMITED, large),
        max_non_split_rounding=_mebibytes(written, "max_non_split_rounding_mb", large, large),
        large_segment=large,
        roundup_divisions=_divisions(written.get("roundup_power2_divisions", "1")),
        garbage_collection_threshold=_threshold(written.get("garbage_collection_threshold")),
        memory_fraction=_fraction(written.get("per_process_memory_fraction", "1")),
    )


_READ: Final = (
    "expandable_segments", "max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb",
    "roundup_power2_divisions", "garbage_collection_threshold", "per_process_memory_fraction",
)  # fmt: skip
_NATIVE_ONLY: Final = {  # the values under which an option leaves the device's memory as it is
    "backend": ("native",),
    "throw_on_cudamalloc_oom": ("False",),
}
_TRUTHS: Final = (
    "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "graph_capture_record_stream_reuse",
    "pinned_use_cuda_host_register", "pinned_use_hip_host_register", "pinned_use_background_threads",
    "pinned_free_catch_all",
)  # fmt: skip
_NUMBERS: Final = (
    "pinned_num_register_threads", "pinned_reserve_segment_size_mb", "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
)  # fmt: skip
_FEW: Final = 3  # names that are suggested
_KNOWN: Final = (*_READ, *_NATIVE_ONLY, *_TRUTHS, *_NUMBERS)


_VARIABLE: Final = re.compile(r"(export\s+)?PYTORCH_((CUDA|HIP)_)?ALLOC_CONF\s*=\s*")


def _unquoted(text: str) -> str:
    """The text without spaces and a pair of quotes around it."""
    text = text.strip()
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1].strip() if quoted else text


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Names with their values; commas inside brackets belong to a value."""
    if text.count("[") != text.count("]"):
        hint = "write it like roundup_power2_divisions:[256:1,512:2,>:4]"
        raise InputError("a list of allocator options must begin with [ and end with ]", text, hint)
    for part in re.split(r",(?![^\[]*\])", text.removesuffix(",")) if text else ():
        name, colon, value = part.partition(":")
        if not colon or not name or not value:
            raise InputError(
                "allocator options must be written name:value, commas between them",
                repr(part),
                "write them like expandable_segments:True,max_split_size_mb:128",
            )
        yield name, value


def _check_other(name: str, value: str) -> None:
    """Refuse what is not known, and what would put another allocator in place of the one modelled."""
    if name not in _KNOWN:
        raise UnknownNameError("allocator option", name, nearest_names(name, _KNOWN, _FEW))
    if name in _NATIVE_ONLY and value not in _NATIVE_ONLY[name]:
        raise InputError(
            f"{name} must be {' or '.join(_NATIVE_ONLY[name])}",
            value,
            "the native allocator is modelled, which frees what it has cached when cudaMalloc fails",
        )
    if name in _TRUTHS:
        _truth(name, value)
    if name in _NUMBERS:
        _whole(name, value)


_WORDS: Final = ("True", "False")


def _truth(name: str, value: str) -> bool:
    if value not in _WORDS:
        truth = value.capitalize()
        raise InputError(
            f"{name} must be True or False", value, f"write {name}:{truth if truth in _WORDS else 'True'}"
        )
    return value == "True"


def _whole(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}", value):
        raise InputError(f"{name} must be a whole number", value, "write it without a unit")
    return int(value)


def _mebibytes(written: dict[str, str], name: str, default: int, least: int) -> int:
    """A size [bytes] of at least `least`."""
    if name not in written:
        return default
    size = _whole(name, written[name]) * MIB
    if size < least:
        raise InputError(f"{name} must be at least {least // MIB}", written[name], "PyTorch refuses less")
    return size


def _number(name: str, value: str) -> float:
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", value):
        raise InputError(f"{name} must be a number", value, "write it like 0.8")
    return float(value)


def _threshold(value: str | None) -> float:
    if value is None:
        return 0.0
    threshold = _number("garbage_collection_threshold", value)
    if not 0 < threshold < 1:
        raise InputError("garbage_collection_threshold must lie between 0 and 1", value, "write it like 0.8")
    return threshold


def _fraction(value: str) -> float:
    fraction = _number("per_process_memory_fraction", value)
    if fraction > 1:
        raise InputError("per_process_memory_fraction must be at most 1", value, "write it like 0.9")
    return fraction


def _divisions(value: str) -> tuple[int, ...]:
    """Divisions of each interval: one number for all, or a list like [256:1,512:2,>:4] of sizes [MiB].

    The first size of a list also holds below itself; ">" holds above the last; an interval that no size names has none.
    """
    if not value.startswith("["):
        return (_power(value, value, "divisions", least=1),) * _INTERVALS
    divisions, last = [0] * _INTERVALS, -1
    for part in value.removeprefix("[").removesuffix("]").split(","):
        size, _, given = part.partition(":")
        count = _power(given, value, "divisions", least=0)
        if size == ">":
            divisions[last + 1 :] = [count] * (_INTERVALS - last - 1)
            continue
        index = min(_power(size, value, "sizes", least=1).bit_length() - 1, _INTERVALS - 1)
        if last < 0:
            divisions[:index] = [count] * index
        divisions[index], last = count, index
    return tuple(divisions)


def _power(text: str, value: str, what: str, least: int) -> int:
    """A number of a `value`."""
    number = int(text) if re.fullmatch(r"[0-9]{1,12}", text) else -1
    if number < least or number & (number - 1):
        raise InputError(
            f"{what} of roundup_power2_divisions must be powers of two",
            value,
            "write roundup_power2_divisions:4 or roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        )
    return number
