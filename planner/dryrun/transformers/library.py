"""PyTorch and transformers as they are on a GPU, while a step runs on fake tensors of a CPU."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import transformers

from planner.dryrun.autocast import cuda_policies
from planner.dryrun.on_cuda import cuda_branches
from planner.dryrun.transformers.flash_attention import flash_attention

_TRACED: Final = "is_tracing"


@contextmanager
def on_device(capability: tuple[int, int]) -> Iterator[ExitStack]:
    """PyTorch and transformers as they are on a GPU of this compute capability, and silent; with what undoes other
    changes too."""
    level = transformers.logging.get_verbosity()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(transformers.logging.set_verbosity, level)
        transformers.logging.set_verbosity_error()
        stack.enter_context(cuda_policies())
        stack.enter_context(cuda_branches(capability))
        stack.enter_context(flash_attention())
        yield stack


@contextmanager
def not_traced() -> Iterator[None]:
    """transformers takes fake tensors for a trace, and makes masks then that it leaves out otherwise.

    To be entered when the model's own modules are loaded.
    """
    modules = [
        one for name, one in sys.modules.items() if name.startswith("transformers.") and _TRACED in vars(one)
    ]
    before = [vars(module)[_TRACED] for module in modules]
    try:
        for module in modules:
            setattr(module, _TRACED, lambda tensor=None: False)
        yield
    finally:
        for module, own in zip(modules, before, strict=True):
            setattr(module, _TRACED, own)
