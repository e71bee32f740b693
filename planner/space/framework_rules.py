"""Which rules hold for a stack? The generic ones, with its framework's own beside or in place of them.

Left out: what the rules say (`space/rules.py`, `frameworks/`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from planner.frameworks import framework_of_stack
from planner.frameworks.transformers import RULES as TRANSFORMERS
from planner.space.axes import RESTRICTABLE
from planner.space.rules import RULES
from planner.spec.rule import Rule
from planner.spec.stack import Stack

# Columns that the space varies; the others have one value, and rules about them speak of named configurations only.
_VARIED: Final = frozenset((*RESTRICTABLE, "num_microbatches"))
# of frameworks that have no launch files of their own
_WITHOUT_FILES: Final = {"transformers": TRANSFORMERS}


def rules_for(stack: Stack) -> tuple[Rule, ...]:
    """Rules of the search on this stack; a framework's rule replaces the generic one with its id."""
    return tuple(rule for rule in all_rules_for(stack.framework) if _VARIED.issuperset(rule.needs))


@lru_cache(maxsize=64)
def all_rules_for(stack_framework: str) -> tuple[Rule, ...]:
    """The same with the rules about columns that the search does not vary: for one named configuration."""
    found = framework_of_stack(stack_framework)
    rules = _WITHOUT_FILES.get(stack_framework, ()) if found is None else found.rules
    own = {rule.id: rule for rule in rules}
    generic = tuple(own.pop(rule.id, rule) for rule in RULES)
    return (*generic, *own.values())
