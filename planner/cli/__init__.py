"""The command line: one module a verb, and what verbs share."""

from planner.cli.program import app, main

__all__ = ["app", "main"]
