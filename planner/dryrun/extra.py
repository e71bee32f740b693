"""Is a dry run asked for, and is there what it drives? Told before any work is done, without loading it.

Left out: packages that one kind of run needs alone, as PEFT; loading, which `question.py` does.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from planner.ask.question import Question
from planner.dialect import option
from planner.dryrun.allocator.settings import read_alloc_conf
from planner.errors import InputError, install_hint

if TYPE_CHECKING:
    from planner.dryrun.question import DryRun

Run = Callable[[Question], "DryRun"]
NEEDED: Final = ("torch", "transformers")


def require_extra() -> None:
    """Raise `InputError` where a dry run has nothing to drive."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        must = "a dry run needs PyTorch and transformers"
        raise InputError(must, f"no {' and no '.join(missing)} here", install_hint("dryrun"))


def runner_for(dryrun: bool, alloc_conf: str) -> Run | None:
    """What runs dry under these settings of the allocator, where that is asked for. Raises `InputError` for settings
    of no run, for those that PyTorch does not know, and where there is nothing to drive."""
    settings = read_alloc_conf(alloc_conf)
    if not dryrun:
        if alloc_conf:
            must = f"{option('alloc_conf')} belongs to {option('dryrun')}"
            raise InputError(must, alloc_conf, f"add {option('dryrun')}, or leave it out")
        return None
    require_extra()

    def run(asked: Question) -> DryRun:
        from planner.dryrun.question import make_dryrun

        return make_dryrun(asked, settings)

    return run
