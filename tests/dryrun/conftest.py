"""Tests that run a framework's own code are skipped where a package of it is missing: those that a module's NEEDS
names. What those packages warn of among themselves is theirs, whichever test happens to import them first. A run leaves
PyTorch as it was, or the next one of the process would be of something else."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    for package in getattr(item.getparent(pytest.Module).obj, "NEEDS", ()):  # type: ignore[union-attr]
        item.add_marker(pytest.mark.filterwarnings(rf"ignore:::{package}(\.|$)"))


@pytest.fixture(autouse=True)
def _needs(request: pytest.FixtureRequest) -> Iterator[None]:
    needed = getattr(request.module, "NEEDS", ())
    for package in needed:
        pytest.importorskip(package)
    if "torch" not in needed:
        yield
        return
    before = _functions()
    yield
    assert [name for name, found in _functions().items() if before.get(name, found) is not found] == []
    _freeze(needed)


@cache
def _freeze(packages: tuple[str, ...]) -> None:
    """What packages hold once a test has run them is not looked through for garbage again: every step collects, which
    took a third of its time."""
    gc.collect()
    gc.freeze()


def _functions() -> dict[str, object]:
    import torch

    places = {"nn.functional.": torch.nn.functional, "Tensor.": torch.Tensor}
    return {
        prefix + name: found
        for prefix, place in places.items()
        for name, found in vars(place).items()
        if callable(found)
    }
