"""planner: the fastest way to train a model on a cluster, with proof, reasons and error bars.

`planner.plan`, `planner.estimate`, `planner.dry_run`, `planner.compare` and `planner.size` answer as the command line
does; see `planner.api`. They are loaded when they are asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import compare, dry_run, estimate, plan, size
    from planner.errors import InputError, PlannerError

__version__ = "0.1.0"
__all__ = ["InputError", "PlannerError", "__version__", "compare", "dry_run", "estimate", "plan", "size"]


def __getattr__(name: str) -> Any:
    from importlib import import_module  # not a name of the package

    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    found = getattr(import_module("planner.errors" if name[0].isupper() else "planner.api"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
