"""How does a file become lines of a log? Unpacked, decoded, without colours and what launchers put before a line.

Left out: what the lines say (`lines.py`, `nccl_tests.py`, `arguments.py`).
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from planner.errors import FileInputError

LONGEST_LINE: Final = 20_000  # characters; the rest of a line holds no figure
LARGEST_LOG: Final = 2_000_000_000  # bytes, packed or not
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[@-Z\\-_]")
# What stands before a line, with the rank where it is named, by who puts it there
_LAUNCHERS: Final = (
    r"\[(?:rank|default)\s?(\d+)\]:?\s*",  # torchrun --tee, PyTorch's own messages
    r"\[(?:[\w.@-]{1,80}@)?\d+,(?:rank )?(\d+)\](?:\[[^\]]{0,80}\])?<std(?:out|err|diag)>: ?",  # mpirun --tag-output
    r"\[(\d{1,6})\] ",  # MPICH, Hydra -prepend-rank
    r"(\d{1,6}): ",  # srun -l
    r"\(\w{1,60} pid=\d+(?:, ip=[\d.]+)?\) ",  # Ray
    r"\[pod/[^\]]{1,200}\] ",  # kubectl logs --prefix
    r"[a-z][\w.-]{0,60}-\d+(?:-[a-z0-9]{5})? [a-z][\w-]{0,40} (?=[\[#|(]|\s{3}|\d{4}-)",  # stern
    r"[a-z][\w.-]{0,60}\d\s+\| ",  # docker compose
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) ",  # kubectl, docker --timestamps
    r"[A-Za-z][\w.-]{0,60}\d: ",  # pdsh, clush
)
_PREFIX: Final = re.compile(rf"^\s*(?:{'|'.join(f'(?:{one})' for one in _LAUNCHERS)})", re.IGNORECASE)
_MOST_PREFIXES: Final = 6  # of launchers inside one another


def plain(line: str) -> tuple[str, int | None]:
    """A line without colours and what launchers put before it, and the rank where they name it."""
    text = _ANSI.sub("", line[:LONGEST_LINE]).rstrip("\r\n")
    rank = None
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(text)
        if match is None:
            break
        text = text[match.end() :]
        rank = next((int(one) for one in match.groups() if one), rank)
    return text, rank


# first bytes of a packed file, how it is opened, or what unpacks it
_PACKED: Final = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open))
_REFUSED: Final = (
    (b"\x28\xb5\x2f\xfd", "a file packed by zstd", "unpack it: zstd -d"),
    (b"PK\x03\x04", "a zip archive", "unpack it: unzip"),
    (b"\x89HDF", "an HDF5 file", "name the text that the run printed"),
)
_UTF16: Final = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def check_log(path: Path) -> tuple[int, int]:
    """Size [bytes] and time of change of a log that can be read. Raises `FileInputError`."""
    try:
        if path.is_dir():
            raise FileInputError(str(path), "a log must be a file", "a folder", "name the log in it")
        status = path.stat()
        if not path.is_file():  # read more than once
            raise FileInputError(
                str(path), "a log must be a regular file", "a pipe or device", "save it first"
            )
        if status.st_size > LARGEST_LOG:
            raise _too_large(path, f"{status.st_size / 1e9:.1f} GB")
    except FileNotFoundError:
        hint = "check the path, or give a step time above 0 or a throughput: '7.9 s', '9300 tokens/s/GPU'"
        raise FileInputError(str(path), "the log must exist", hint=hint) from None
    except (OSError, RuntimeError, ValueError) as error:  # loops of links, a NUL in the path
        raise _unreadable(path, error) from None
    return status.st_size, status.st_mtime_ns


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a checked log, never more than `LONGEST_LINE` characters at once; of a longer line in pieces.
    Raises `FileInputError`."""
    try:
        with path.open("rb") as file:
            head = file.read(8192)
        for start, given, hint in _REFUSED:
            if head.startswith(start):
                raise FileInputError(str(path), "a log must be text", given, hint)
        unpack = next((opens for start, opens in _PACKED if head.startswith(start)), None)
        if unpack is not None:
            with unpack(path) as file:
                head = file.read(8192)
        encoding = next((name for start, name in _UTF16 if head.startswith(start)), "utf-8-sig")
        if encoding == "utf-8-sig" and b"\0" in head:
            raise FileInputError(
                str(path), "a log must be text", "bytes of zero in it", "name the text that the run printed"
            )
        with unpack(path) if unpack is not None else path.open("rb") as file:
            yield from _pieces(path, file, encoding)
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise _unreadable(path, error) from None


def _pieces(path: Path, file: Any, encoding: str) -> Iterator[str]:
    read = 0
    with io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="\n") as text:
        while line := text.readline(LONGEST_LINE):
            read += len(line)
            if read > LARGEST_LOG:
                raise _too_large(path, "more, unpacked")
            yield line


def _too_large(path: Path, given: str) -> FileInputError:
    hint = f"cut it: tail -n 200000 {path.name} > short.log"
    return FileInputError(str(path), "a log must be smaller than 2 GB", given, hint)


def _unreadable(path: Path, error: Exception) -> FileInputError:
    said = getattr(error, "strerror", None) or error
    return FileInputError(str(path), "the log must be readable", str(said))
