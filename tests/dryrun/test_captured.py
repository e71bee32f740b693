"""Are lists of operations what software does at other sizes than those at which they were captured?"""

from __future__ import annotations

import pytest

from planner.catalog.load_operations import Tables
from planner.spec.listed import layer_form

NEEDS = ("torch", "transformers", "peft")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("adapters", "again"), [(False, False), (False, True), (True, False)])
def test_a_third_run_finds_every_shape_and_byte(adapters: bool, again: bool) -> None:
    from benchmarks.capture.forms import LENGTHS, forms_of, read_model
    from benchmarks.capture_operations import captured

    one = next(iter(forms_of("qwen3").values()))
    lists = captured(one, ((), adapters, again), Tables())
    layer = read_model(one.config).layers[0]
    both = lists.layers[layer_form(layer, LENGTHS[0])]
    left = [sum(change.sign for change in each.changes) for each in (both.forward, both.backward)]
    assert left[0] > 0 > left[1]  # a layer's forward pass keeps what its backward pass gives back


def test_a_list_of_other_software_is_found_out() -> None:
    from benchmarks.capture.checking import check
    from benchmarks.capture.forms import forms_of, short
    from benchmarks.capture.naming import NotListedError
    from benchmarks.capture_operations import captured, run_of

    qwen, other = (next(iter(forms_of(family).values())) for family in ("qwen3", "qwen2"))
    lists = captured(qwen, ((), False, False), Tables())
    with pytest.raises((NotListedError, KeyError)):
        check(lists, run_of(short(other.config, other.layers, other.beyond), 0, ((), False, False)))
