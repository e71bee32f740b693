"""Which software runs a dry run of a framework, and what does it make of a question?

A framework is a line here and a package beside it: `recipe.py` says what is run of a question and refuses the rest by
name, `step.py` runs it. Left out: the frameworks themselves, which are loaded for a run only.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from planner.dryrun.asked import AnyRecipe, Asked
from planner.dryrun.deepspeed.recipe import deepspeed_recipe
from planner.dryrun.megatron.recipe import RELEASE, megatron_recipe
from planner.dryrun.recording import Recording
from planner.dryrun.torchtitan.recipe import titan_recipe
from planner.dryrun.transformers.asked import transformers_recipe
from planner.errors import InputError, install_hint
from planner.spec.findings import Finding, finding

Record = Callable[[Any, tuple[int, int]], Recording]
TRANSFORMERS: Final = "transformers"  # as stacks name it


@contextmanager
def quiet() -> Iterator[None]:
    """What packages say while they are loaded and run, of each other and to those who write them, is not said."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(sys.stderr):
            yield
    finally:
        logging.disable(before)


@dataclass(frozen=True)
class Software:
    """What runs a step.

    `recipe`: what it makes of a question, which raises `UnsupportedError` for what is not run. `module`: where
    `record_step` is. `extra`: what brings its `packages`. `assumptions`: what holds of all its answers. `timed`: are
    its operations and messages written down one by one, and all on the device?
    """

    recipe: Callable[[Asked], AnyRecipe]
    module: str
    packages: tuple[str, ...]
    extra: str = "dryrun"
    assumptions: tuple[Finding, ...] = ()
    timed: bool = False

    def recorder(self) -> Record:
        """What records a rank's step on devices of a compute capability. Raises `InputError` where a package is
        missing."""
        try:
            with quiet():
                found: Record = import_module(f"planner.dryrun.{self.module}").record_step
        except ImportError as error:
            must = f"a dry run needs PyTorch and {self.packages[1]}"
            raise InputError(must, str(error), install_hint(self.extra)) from error
        return found

    def versions(self) -> dict[str, str]:
        """Of its packages that are there."""
        found = {}
        for name in self.packages:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
        return found


SOFTWARE: Final[Mapping[str, Software]] = {  # by the name that stacks have for the framework
    TRANSFORMERS: Software(transformers_recipe, "transformers.step", ("torch", "transformers", "peft"), timed=True),
    "deepspeed": Software(deepspeed_recipe, "deepspeed.step", ("torch", "transformers", "deepspeed"), timed=True),
    "megatron": Software(
        megatron_recipe, "megatron.step", ("torch", "megatron-core"),
        assumptions=(finding("megatron_core_layers", release=RELEASE),),
    ),
    "torchtitan": Software(titan_recipe, "torchtitan.step", ("torch", "torchtitan"), "frameworks", timed=True),
}  # fmt: skip
