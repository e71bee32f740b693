"""How large is a stack? Its fields may become fewer, never more."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from planner.catalog.load_options import OPTIONS
from planner.catalog.load_stacks import load_stack, stack_names
from planner.spec.stack.engines import ENGINES, DeepSpeed, States
from planner.spec.stack.section import Section

STACKS = [load_stack(name) for name in stack_names()]
MOST_FIELDS = 79  # of one stack, its engine's among them
MOST_OF_KERNELS = 20  # of them its kernels'
MOST_OF_ALL = 106  # of any stack, without those that name a kind
MOST_OF_ONE = 23  # that one shipped stack alone sets away from its default, in sections that all have
MOST_FITTED = 20
OF_A_KIND = ":"
# kinds themselves, and what the files of published runs set (benchmarks/published)
UNSTATED = {"kind", "deferred_bytes", "fused_weight_gradient", "owners", "step_tensors"}


def fields(section: Section, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Name, value and default of every field; of a section of one of several kinds under the class that states it."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        kinds = reversed(type(section).mro())
        states = next(kind for kind in kinds if name in inspect.get_annotations(kind))
        of = f"{path}{states.__name__}{OF_A_KIND}" if hasattr(section, "kind") else path
        if isinstance(value, Section):
            yield from fields(value, f"{of}{name}.")
        else:
            yield f"{of}{name}", value, field.get_default(call_default_factory=True)


def test_a_stack_has_no_more_fields_than_it_had() -> None:
    each = [{name for name, _, _ in fields(stack)} for stack in STACKS]
    assert max(len(of) for of in each) <= MOST_FIELDS
    assert len({name for name in set().union(*each) if not name.endswith("kind")}) <= MOST_OF_ALL
    assert max(sum(name.startswith("kernels.") for name in of) for of in each) <= MOST_OF_KERNELS


def test_few_fields_of_all_stacks_are_one_stack_s_alone() -> None:
    """Those of an engine or a loss, a kind of its own, may be."""
    set_by: dict[str, set[str]] = {}
    for stack in STACKS:
        for name, value, default in fields(stack):
            own = {stack.name} if value != default else set()
            set_by[name] = set_by.get(name, set()) | own
    of_one = [name for name, stacks in set_by.items() if len(stacks) <= 1 and OF_A_KIND not in name]
    assert len(of_one) <= MOST_OF_ONE


def test_every_field_of_an_engine_is_set_by_a_stack_or_an_option() -> None:
    """Or by the files of a framework, as DeepSpeed's sizes are."""
    by_files = {name for name in DeepSpeed.model_fields if name not in States.model_fields}
    options = {name for option in OPTIONS for name in option.fields.get("engine", {})}
    for kind in ENGINES:
        stacks = [stack for stack in STACKS if isinstance(stack.engine, kind)]
        assert stacks, kind
        for name, field in kind.model_fields.items():
            stated = any(getattr(stack.engine, name) != field.default for stack in stacks)
            known = name in States.model_fields or name in options or (kind is DeepSpeed and name in by_files)
            assert stated or known or name in UNSTATED, (kind, name)


def test_few_numbers_of_a_stack_are_fitted() -> None:
    assert max(len(stack.fitted) for stack in STACKS) <= MOST_FITTED
