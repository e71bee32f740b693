"""Which files does a question read? Those that its options name, so that no answer is written over one of them.

Left out: files that a calibration or a description names in turn: there are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from planner.ask.option import Asked, options_of

IN_FOLDER: Final = "config.json"  # what is read of a model's folder


def files_named(asked: Asked) -> tuple[Path, ...]:
    """The files that there are by the values of a question's options that may name one; of a folder, what is read of
    it."""
    options = options_of(type(asked))
    values = (getattr(asked, name) for name, one in options.items() if one.reader.may_be_file)
    return tuple(path for value in values for text in _texts(value) for path in files_at(text))


def files_at(text: Path | str | None) -> tuple[Path, ...]:
    """The file of this name; of a folder, what is read of it; nothing where there is neither."""
    try:
        path = Path(text or "").expanduser()
        within = path / IN_FOLDER if text and path.is_dir() else path
        return (within,) if within.is_file() else ()
    except (OSError, ValueError, RuntimeError):  # a model's name, say, that is no path
        return ()


def _texts(value: Any) -> Iterator[str]:
    """A value's names: one, several, or several in one text."""
    for text in (value,) if isinstance(value, str) else value or ():
        yield from dict.fromkeys((text, *text.split(",")))
