"""How is CP-SAT reached without loading pandas, of which its Python interface only names the types?

`ortools.sat.python.cp_model` (9.10 to 9.15) imports pandas for methods on series of variables, which planner does not
call; that takes six times as long as the rest of it. So planner loads a copy of its own, to which `import pandas` gives
a stand-in: types by name while the module is loaded, then pandas itself. Nothing else in the process sees the
stand-in: `sys.modules` and the module under its usual name stay as they are.
"""

from __future__ import annotations

import builtins
import importlib
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["cp_model"]


class _Spared(ModuleType):
    """Stands for a module: each of its names is a type of that name until `loaded`, and then what the module has."""

    loaded = False

    def __getattr__(self, name: str) -> Any:
        if self.loaded:
            return getattr(importlib.import_module(self.__name__), name)
        return type(name, (), {"__module__": self.__name__})


def loaded_without(name: str, spared: str) -> ModuleType:
    """A copy of the module `name`, in which the module `spared` is loaded when something of it is asked for; the
    module as others have it where more than types of `spared` are needed to load it."""
    stand_in, found = _Spared(spared), find_spec(name)
    if found is None or found.loader is None:
        return importlib.import_module(name)  # and say that there is none

    def import_(wanted: str, *where: Any, **more: Any) -> ModuleType:
        return stand_in if wanted == spared else builtins.__import__(wanted, *where, **more)

    module = module_from_spec(found)
    vars(module)["__builtins__"] = vars(builtins) | {"__import__": import_}
    try:
        found.loader.exec_module(module)
    except (AttributeError, TypeError):
        return importlib.import_module(name)
    stand_in.loaded = True
    return module


if TYPE_CHECKING:
    from ortools.sat.python import cp_model
else:
    cp_model = loaded_without("ortools.sat.python.cp_model", "pandas")
