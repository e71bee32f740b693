"""Does the head of an answer say a gap of its proof, and what a trade costs and brings?"""

from __future__ import annotations

import pytest

from planner.answer.headline import gap_values, headline, recommended, with_gap
from planner.answer.recommend import Pick
from planner.report.words import text_of, texts
from planner.report.words.headline import gap_said
from planner.spec.planfile import Concern, Ending, Plan, Reason, Trade, Verdict
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
    assert gap_said(gap_values(certificate(**changes))) == said


def test_one_named_configuration_has_no_gap() -> None:
    assert gap_said(gap_values(None)) == ""


def test_a_gap_stands_in_the_headline(example_plan: Plan) -> None:
    search = example_plan.search.model_copy(update={"certificate": certificate(gap=0.039)})
    best = headline(
        Verdict.FOUND, search, example_plan.subject.job.job(), example_plan.choices[0], "", other_chunks=False
    )  # fmt: skip
    plan = example_plan.model_copy(update={"search": search, "headline": (best,)})
    told = with_gap(recommended(plan, Pick(plan.choices, 0)))
    assert texts(told.headline) == (f"{text_of(best)}, not proven: up to 3.9% faster may exist",)
    assert told.recommended == 0


def traded(plan: Plan, trade: Trade) -> str:
    """What is said of a trade."""
    said = text_of(recommended(plan, Pick(plan.choices, 0, trade)).headline[-1])
    head, config = "recommended: #1 ", plan.choices[0].config.text
    assert said.startswith(f"{head}{config}, ")
    return said.removeprefix(f"{head}{config}, ")


def test_a_trade(example_plan: Plan) -> None:
    reasons = (
        Reason(concern=Concern.KINDS, fastest=3, recommended=2),
        Reason(concern=Concern.UNEVEN_LAYERS, fastest=1, recommended=0),
        Reason(concern=Concern.OFFLOAD, fastest=0, recommended=1),
    )
    roomy = Trade(slower=0.008, more_free=12 * 2.0**30)
    assert traded(example_plan, roomy) == "0.8% slower, 12 GiB more free"
    assert traded(example_plan, Trade(slower=0.008, more_free=-(2.0**30), reasons=reasons)) == (
        "0.8% slower, 1 GiB less free; as others run it: fewer kinds of parallelism, stages of equal depth"
    )


@pytest.mark.parametrize("concern", Concern)
def test_every_concern_has_words(concern: Concern, example_plan: Plan) -> None:
    reason = Reason(concern=concern, fastest=1, recommended=0)
    trade = Trade(slower=0.0, more_free=0.0, reasons=(reason,))
    assert traded(example_plan, trade).startswith("as fast; as others run it: ")
