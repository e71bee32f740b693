"""Does the recorder count of real FSDP2 and tensor-parallel steps what PyTorch's own tracker counts? Needs PyTorch.

The cases of memory_vectors.csv, in every kind of sharding, splitting and checkpointing that they have.
"""

from __future__ import annotations

import pytest

from benchmarks.published_data import published_cases

pytestmark = pytest.mark.slow
CASES = [case for case in published_cases("oracles/memory_vectors.csv") if "--layers 32" not in case["case"]]


@pytest.mark.parametrize("case", CASES, ids=[case["case"].replace("--", "") for case in CASES])
def test_counts_are_those_of_the_tracker(case: dict[str, str]) -> None:
    pytest.importorskip("torch")
    from benchmarks.memory_vectors import compared

    found = compared(case)
    assert abs(found.error) < 1e-4
    for told, known in found.activations:
        if "--sp" in case["case"]:  # the tracker counts norms' statistics of all tokens on every rank
            assert told == pytest.approx(known, rel=3e-4)
        else:
            assert told == known
