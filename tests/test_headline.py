"""Does the head of an answer say a gap of its proof, and what a trade costs and brings?"""

from __future__ import annotations

import pytest

from planner.answer.headline import gap_said, recommended, trade_said, with_gap
from planner.answer.recommend import Pick
from planner.spec.planfile import Concern, Ending, Plan, Reason, Trade
from tests.report.test_proof_sentences import certificate


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gap": 0.039}, "not proven: up to 3.9% faster may exist"),
        ({"gap": 0.0011}, "not proven: up to 0.1% faster may exist"),
        ({"gap": 0.0009}, ""),
        ({"gap": 0.0}, ""),
        (
            {"gap": 0.02, "ending": Ending.TIME_LIMIT},
            "not proven: up to 2.0% faster may exist (ended by the time limit)",
        ),
        ({"gap": None, "ending": Ending.INTERRUPTED}, "not proven: ended by an interrupt"),
        ({"gap": None}, ""),
        ({"gap": None, "best": None}, ""),
    ],
)  # fmt: skip
def test_a_gap(changes: dict[str, object], said: str) -> None:
    assert gap_said(certificate(**changes)) == said


def test_one_named_configuration_has_no_gap() -> None:
    assert gap_said(None) == ""


def test_a_gap_stands_in_the_headline(example_plan: Plan) -> None:
    search = example_plan.search.model_copy(update={"certificate": certificate(gap=0.039)})
    picked = recommended(example_plan.model_copy(update={"search": search}), Pick(example_plan.choices, 0))
    told = with_gap(picked.model_copy(update={"headline": f"{picked.headline}\nrecommended: #2"}))
    said = f"{example_plan.headline}, not proven: up to 3.9% faster may exist"
    assert told.headline.split("\n") == [said, "recommended: #2"]
    assert told.recommended == 0


def test_a_trade() -> None:
    reasons = (
        Reason(concern=Concern.KINDS, fastest=3, recommended=2),
        Reason(concern=Concern.UNEVEN_LAYERS, fastest=1, recommended=0),
    )
    assert trade_said(Trade(slower=0.008, more_free=12 * 2.0**30)) == "0.8% slower, 12 GiB more free"
    assert trade_said(Trade(slower=0.008, more_free=-(2.0**30), reasons=reasons)) == (
        "0.8% slower, 1 GiB less free; as others run it: fewer kinds of parallelism, stages of equal depth"
    )


@pytest.mark.parametrize("concern", Concern)
def test_every_concern_has_words(concern: Concern) -> None:
    reason = Reason(concern=concern, fastest=1, recommended=0)
    assert "; as others run it: " in trade_said(Trade(slower=0.0, more_free=0.0, reasons=(reason,)))
