"""How is a kernel of a package that runs on a device alone called, where tensors are fake? By one that stands for it.

It is named in the list of operations, has the operands and results of the kernel, and never runs. Left out: which
kernels there are, which the modules of their packages say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

_LIBRARY: Final = torch.library.Library("planner", "FRAGMENT")


def stand_in(schema: str, results: Callable[..., Any] = lambda *operands: None) -> Any:
    """The operation of a `schema`, as `torch.library` writes it; `results`: empty ones, of its operands.

    Its tag says that its results have no values, whatever its operands have.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.nondeterministic_seeded,))
    torch.library.register_fake(f"planner::{name}", results, lib=_LIBRARY)
    return getattr(torch.ops.planner, name).default
