"""Is every name read that can be left out of a search?"""

from __future__ import annotations

from planner.space.without import known_names, names_left_out


def test_every_name_that_can_be_left_out_is_read() -> None:
    """Also one that is faster in one framework, and a fact in another."""
    assert names_left_out(known_names()) == known_names()
