"""planner: the fastest way to train a model on a cluster, with proof, reasons and error bars.

`planner.plan`, `planner.estimate`, `planner.compare` and `planner.size` answer as the command line does; see
`planner.api`.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from planner.api import compare, estimate, plan, size
    from planner.errors import InputError, PlannerError

__all__ = ["InputError", "PlannerError", "__version__", "compare", "estimate", "plan", "size"]

_MODULES = ("compare", "estimate", "plan", "size")  # modules of the same name as the question they answer
_ERRORS = ("InputError", "PlannerError")


class _Question(ModuleType):
    """A module that can be called as the question it answers: planner.plan(...) beside planner.plan.make_plan."""

    @property
    def _answers(self) -> Any:
        from planner import api

        return getattr(api, self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._answers(*args, **options)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """What it takes, for help()."""
        import inspect  # many programs ask for no help

        from planner import api

        signature = inspect.signature(self._answers)
        keywords = "\n".join(f"    {name}: {kind}" for name, kind in api.Question.__annotations__.items())
        name = self.__name__.rpartition(".")[2]
        return (
            f"{name}{signature}\n\n{self._answers.__doc__}\n\n{api.Question.__doc__}\nKeywords:\n{keywords}"
        )


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        if name in _MODULES and type(value) is ModuleType:
            value.__class__ = _Question
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"planner.{name}")
        if name in _ERRORS:
            return getattr(importlib.import_module("planner.errors"), name)
        raise AttributeError(f"module 'planner' has no attribute {name!r}")


sys.modules[__name__].__class__ = _Package
