"""Are terms shown in the field's words, and their keys left as files hold them?"""

from __future__ import annotations

import pytest

from planner.spec.terms import term_name


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("memory_bound", "memory-bound ops"),
        ("host_bound", "CPU launch overhead"),
        ("host_transfer", "CPU offload"),
        ("narrow_weight_copies", "low-precision weight copies"),
        ("outside_allocator", "outside PyTorch allocator"),
        ("repeated_work", "recomputed work"),
        ("dp_comm", "dp comm"),
    ],
)
def test_terms_are_named(key: str, words: str) -> None:
    assert term_name(key) == words
