"""How is a file of the user's read? Whole, once, and only where it is a regular file of a size that it may have.

A device has no end and a pipe no size, a loop of links no name, an archive no text: each is refused in words, by every
verb alike. Left out: what a file holds (`load_yaml.py`, `load_plan.py` and their kin), and logs, which are streams
(`calibrate/logs/text.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from planner.errors import FileInputError

_UNITS: Final = ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"), (1, "bytes"))


def sized(size: int) -> str:
    """A number of bytes in words."""
    unit, name = next((unit, name) for unit, name in _UNITS if size >= unit or unit == 1)
    return f"{size / unit:.3g} {name}"


def check_file(path: Path | str, most: int, *, missing: str = "check the path", large: str = "") -> Path:
    """The path of a regular file of at most `most` bytes. `missing`: what to do where there is none; `large`: where it
    is larger. Raises `FileInputError`."""
    path, name = Path(path), str(path)
    try:
        if path.is_dir():
            raise FileInputError(name, "must be a file", "a folder", "name the file in it")
        size = path.stat().st_size
        if not path.is_file():
            raise FileInputError(
                name, "must be a regular file", "a device, pipe or socket", "save it to a file first"
            )
    except FileNotFoundError:
        raise FileInputError(name, "the file must exist", hint=missing) from None
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the path, a loop of links
        raise unreadable(name, error) from None
    if size > most:
        raise FileInputError(name, f"must be smaller than {sized(most)}", sized(size), large)
    return path


def read_bytes(path: Path | str, most: int, *, missing: str = "check the path", large: str = "") -> bytes:
    """What a file of at most `most` bytes holds. Raises `FileInputError`."""
    path = check_file(path, most, missing=missing, large=large)
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise unreadable(str(path), error) from None
    if len(content) > most:  # it grew
        raise FileInputError(str(path), f"must be smaller than {sized(most)}", "more", large)
    return content


def read_text(path: Path | str, most: int, *, missing: str = "check the path", large: str = "") -> str:
    """The text in a file of UTF-8, with or without its mark, or of UTF-16 with it; of at most `most` bytes. Raises
    `FileInputError`."""
    return decoded(read_bytes(path, most, missing=missing, large=large), str(path))


def decoded(content: bytes, name: str) -> str:
    """The text in bytes that came from `name`. Raises `FileInputError`."""
    utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = content.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileInputError(name, "must be a readable UTF-8 text file", str(error)) from None
    if "\0" in text:
        given = f"a zero byte at {text.index(chr(0))}"
        raise FileInputError(
            name, "must be a readable UTF-8 text file", given, "name the text, not what packs it"
        )
    return text.replace("\r\n", "\n")


def unreadable(name: str, error: Exception) -> FileInputError:
    """Why a file cannot be read."""
    return FileInputError(name, "must be a readable file", str(getattr(error, "strerror", None) or error))
