"""Which part of a step did not run? An error of other software, told as that of the part that it ended.

Left out: what planner itself refuses, which names it already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from planner.errors import PlannerError, UnsupportedError, in_short


@contextmanager
def needed(what: str, hint: str = "") -> Iterator[None]:
    """Something that a dry run needs happens while it is entered. Raises `UnsupportedError` where it does not."""
    try:
        yield
    except PlannerError:
        raise
    except Exception as error:  # whatever the library's own code, or an operation without shapes, ends with
        raise UnsupportedError(f"a dry run needs {what}", in_short(error), hint) from error
