"""How is what no dry run runs refused? By name, each with what to do about it.

Left out: what is refused (`recipe.py` of each framework).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.catalog.stack_options import SEPARATOR
from planner.dialect import option
from planner.errors import UnsupportedError
from planner.spec.job import Job, Optimizer
from planner.spec.precision import Precision


@dataclass(frozen=True)
class Refused:
    """What may be asked and is not run: by name, whether it is asked, and what to do about it."""

    what: str
    there: bool
    instead: str


def other_optimizer(job: Job, run: Optimizer = Optimizer.ADAMW) -> Refused:
    """Any but the one that is run."""
    return Refused(f"the optimizer {job.optimizer}", job.optimizer is not run, option("optimizer", run))


def other_precision(job: Job, *run: Precision) -> Refused:
    """Any but those that are run; the first of them is what to take."""
    return Refused(f"the precision {job.precision}", job.precision not in run, option("precision", run[0]))


def uneven_texts(job: Job) -> Refused:
    """Texts of several lengths in a batch."""
    there = job.mean_length is not None or job.packed
    return Refused("padded or packed batches", there, leave_out("mean_len"))


def refuse(must: str, refused: Iterable[Refused]) -> None:
    """Raise `UnsupportedError` where any of these is asked for."""
    named = [one for one in refused if one.there]
    if named:
        hints = dict.fromkeys(one.instead for one in named)
        raise UnsupportedError(must, "; ".join(one.what for one in named), "; ".join(hints))


def stack_without(name: str, options: Iterable[str]) -> str:
    """A stack of this name without these options, as a question has it."""
    first, *others = name.split(SEPARATOR)
    left = [one for one in others if one not in set(options)]
    return option("stack", SEPARATOR.join((first, *left)))


def leave_out(name: str) -> str:
    """What to do about an option of a question that is not run."""
    return f"leave {option(name)} out"
