"""Is there what a dry run drives? Told before any work is done, without loading it.

Left out: packages that one kind of run needs alone, as PEFT; loading, which `question.py` does.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from planner.errors import InputError, install_hint

NEEDED: Final = ("torch", "transformers")


def require_extra() -> None:
    """Raise `InputError` where a dry run has nothing to drive."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        must = "a dry run needs PyTorch and transformers"
        raise InputError(must, f"no {' and no '.join(missing)} here", install_hint("dryrun"))
