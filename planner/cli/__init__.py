"""The command line: one module a verb, and what verbs share. `app` has all of them."""

from typing import Any

from planner.cli.program import command_line, main

__all__ = ["command_line", "main"]


def __getattr__(name: str) -> Any:
    if name == "app":  # a process needs one verb alone
        return command_line()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
