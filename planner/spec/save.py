"""How is a file written so that nobody ever reads half of it?

Left out: what is in it, and whole folders (`frameworks/write.py`).
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from planner.errors import FileInputError

_PREFIX, _SUFFIX = ".planner-", ".part"  # of the name of a file that is being written
_ABANDONED: Final = 3600  # seconds: one that has not changed for so long, nobody writes any more


def check_target(path: Path | str, *others: Path | str | None) -> None:
    """Raise `FileInputError` unless a file can be written there; called before the work is done.

    `others`: what the same command reads or writes; what names no file is passed over.
    """
    try:
        target = resolved(path)
        if target.is_dir():
            raise FileInputError(str(path), "must be a file to write", "a folder", "add a file name")
        if target.exists() and not target.is_file():
            raise FileInputError(
                str(path), "must be a regular file", "a device, pipe or socket", "name a file"
            )
        if target.exists() and not os.access(target, os.W_OK):
            raise FileInputError(str(path), "must be writable", "a read-only file", "choose another file")
        for other in others:
            if other and _same_file(target, other):
                must = "must be another file than those that the same command reads or writes"
                raise FileInputError(str(path), must, f"{other} too", "choose another file")
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=_PREFIX, suffix=_SUFFIX):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileInputError(
            str(path), "must be in a folder that can be written to", reason, "choose another file"
        ) from None


def resolved(path: Path | str) -> Path:
    """The file that a path names behind all links. Raises OSError for a loop of them, as Python 3.13 does."""
    try:
        return Path(path).resolve()
    except RuntimeError as error:
        raise OSError(str(error)) from None


def _same_file(target: Path, other: Path | str) -> bool:
    """Are they one file, if under two names (a link)?"""
    try:
        return resolved(other) == target or (target.exists() and target.samefile(other))
    except (OSError, ValueError):  # a model's name, say, that is no path
        return False


def save_text(text: str, path: Path | str) -> None:
    """Write a text file as `save_bytes` does. Raises `FileInputError`."""
    save_bytes(text.encode("utf-8", "replace"), path)  # half a surrogate pair is no UTF-8


def save_bytes(content: bytes, path: Path | str) -> None:
    """Write a file, replacing the old one at once: a reader sees the old one or the new one, whole.

    Raises `FileInputError` where that is not possible.
    """
    check_target(path)
    target = resolved(path)  # a symbolic link keeps pointing to the file it names
    _remove_abandoned(target.parent)
    partial = None
    try:
        handle, partial = tempfile.mkstemp(dir=target.parent, prefix=_PREFIX, suffix=_SUFFIX)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, _usual_mode(target))
        os.replace(partial, target)
    except OSError as error:
        raise FileInputError(str(path), "must be writable", error.strerror or str(error)) from None
    finally:
        if partial is not None and os.path.exists(partial):
            os.unlink(partial)


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes that were killed while they wrote have left in a folder."""
    before = time.time() - _ABANDONED
    with suppress(OSError):  # of another user, or removed at the same time
        for partial in folder.glob(f"{_PREFIX}????????{_SUFFIX}"):
            if partial.stat().st_mtime < before:
                partial.unlink()


def _usual_mode(target: Path) -> int:
    """The mode of the file that is replaced, or what a new file gets here (mkstemp's own is private)."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
