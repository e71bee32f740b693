"""Does a plan say what is proven, how sure it is, and by how much memory is missed, in so many words?"""

from __future__ import annotations

from typing import Any

import pytest

from planner.dialect import in_words
from planner.report import facts, proof
from planner.spec.findings import Finding
from planner.spec.planfile import CalibrationLevel, Certificate, Ending, Memory, Objective, Plan
from planner.spec.verdict import MemoryVerdict

GIB = 2.0**30


def certificate(**changes: Any) -> Certificate:
    """A proof of step time, with `changes`."""
    held: dict[str, Any] = {
        "objective": Objective.STEP_TIME, "compared": "step times of all candidates", "candidates": 3000, "by_rule": 0,
        "by_memory": 0, "by_bound": 0, "costed": 2057, "solved": 20, "best": 1.0, "bound": 1.0, "gap": 0.0,
        "seconds": 1.0,
    }  # fmt: skip
    return Certificate(**{**held, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "proven optimal under the cost model (gap 0.00%; 2,057 evaluated, 20 simulated): step times of all"),
        ({"objective": Objective.HEADROOM}, "proven most headroom under the cost model (gap 0.00%"),
        ({"gap": 0.02}, "not proven: up to 2.00% faster may exist (2,057 evaluated, 20 simulated); compared: step"),
        ({"gap": 0.02, "ending": Ending.TIME_LIMIT}, "not proven: up to 2.00% faster may exist (ended by the time"),
        ({"gap": None, "ending": Ending.INTERRUPTED}, "not proven (ended by an interrupt; 2,057 evaluated"),
        ({"best": None, "bound": None, "gap": None}, ""),
        (
            {"best": None, "bound": None, "gap": None, "outside": 3},
            "not looked at: layouts of 3 configurations other than the stack's own (more with --effort), whose memory",
        ),
    ],
)  # fmt: skip
def test_what_is_proven(changes: dict[str, Any], said: str) -> None:
    assert in_words(proof.proof_sentence(certificate(**changes))).startswith(said)


@pytest.mark.parametrize("level", CalibrationLevel)
def test_every_level_is_explained(example_plan: Plan, level: CalibrationLevel) -> None:
    trust = example_plan.confidence.model_copy(
        update={"level": level, "explanation": (Finding(code="text", text="so"),)}
    )
    said = proof.confidence_sentence(example_plan.model_copy(update={"confidence": trust}))
    head, _, rest = said.partition(f" ({level}: ")
    assert head == "80% interval: -9 to +10 %"
    assert len(rest.removesuffix("); so")) > 10
    assert said.endswith("); so")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "fits: 1.0 GiB free of 76.0 GiB usable; peak on pipeline rank 0 (of 0-3), backward"),
        (
            {"capacity": 80 * GIB, "error": 0.04},
            "fits: 1.0 GiB free of 76.0 GiB usable (4.0 of 80.0 GiB kept back for the memory model's error, ±4%: "
            "--headroom 5%); peak on pipeline rank 0",
        ),
        (
            {"capacity": 80 * GIB, "error": 0.0, "limit": 79 * GIB},
            "fits: 4.0 GiB free of 79.0 GiB usable (1.0 of 80.0 GiB kept back: --headroom 1.25%); peak",
        ),
        ({"capacity": 76 * GIB, "error": 0.0}, "fits: 1.0 GiB free of 76.0 GiB usable; peak"),
        ({"stages": 1}, "fits: 1.0 GiB free of 76.0 GiB usable; peak in the backward phase"),
        (
            {"verdict": MemoryVerdict.BORDERLINE, "limit": 70 * GIB},
            "borderline: predicted 5.0 GiB over the 70.0 GiB limit, within the memory model's error; peak on",
        ),
        (
            {"verdict": MemoryVerdict.BORDERLINE},
            "borderline: 1.0 GiB free of 76.0 GiB usable, within the memory model's error; peak on",
        ),
        (
            {"verdict": MemoryVerdict.DOES_NOT_FIT, "host": {"states": 9 * GIB}, "host_limit": 8 * GIB},
            "does not fit: host memory of a node 1 GiB over its limit of 8 GiB (states 9 GiB); 1.0 GiB free",
        ),
    ],
)
def test_memory(changes: dict[str, Any], said: str) -> None:
    held = Memory(
        peak=75 * GIB, stage=0, stages=4, phase="backward", limit=76 * GIB, verdict=MemoryVerdict.FITS, logged=0.0,
        terms={"weights": 75 * GIB},
    )  # fmt: skip
    assert in_words(facts.memory_sentence(held.model_copy(update=changes))).startswith(said)


def test_an_interval_says_a_shared_unit_once() -> None:
    assert facts.interval("5.091 s", "7.205 s") == "80% interval 5.091 to 7.205 s"
    assert facts.interval("952 ms", "1.205 s") == "80% interval 952 ms to 1.205 s"
