"""Does every verb say the same of one configuration's memory?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.answer.compare import compare_clusters
from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.ask.question import Question
from planner.ask.request import Request, resolve
from planner.cli import check
from planner.cli.explain import explain_plan
from planner.cli.export import render_plan
from planner.cli.memory import explain_memory
from planner.report.facts import MEMORY_WORDS, memory_sentence
from planner.report.outcome import outcome_facts
from planner.space.restriction import parse_restriction
from planner.spec.load_plan import save_plan
from planner.spec.planfile import Verdict
from planner.spec.verdict import MemoryVerdict

CLUSTER = "1x8 h100"
NAMED = [
    "tp=2", "cp=1", "pp=1", "micro_batch=1", "zero=1", "sp=1", "recompute=none", "offload=none",
    "cuda_graph_impl=none",
]  # fmt: skip
ASKED = Request(
    "llama-3.2-1b", CLUSTER, seq_len=4096, global_batch="32", set=parse_restriction(NAMED), front=False,
    seek_batch=False,
)  # fmt: skip
# of the peak: what may be used of the device
USABLE = {MemoryVerdict.FITS: 1.05, MemoryVerdict.BORDERLINE: 0.98, MemoryVerdict.DOES_NOT_FIT: 0.8}


@pytest.fixture(params=list(USABLE), ids=str)
def asked(request: pytest.FixtureRequest) -> tuple[MemoryVerdict, Request]:
    """A verdict, and a question whose headroom makes it that of its one configuration."""
    memory = make_estimate(ASKED).choices[0].memory
    assert memory.capacity is not None
    return request.param, replace(ASKED, headroom=1 - USABLE[request.param] * memory.peak / memory.capacity)


def test_verbs_agree(
    asked: tuple[MemoryVerdict, Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict, question = asked
    named = make_estimate(question)
    memory = named.choices[0].memory
    assert memory.verdict is verdict
    assert memory_sentence(memory).startswith(MEMORY_WORDS[verdict])
    assert named.found is (verdict is not MemoryVerdict.DOES_NOT_FIT)
    assert (named.nearest is None) is (verdict is MemoryVerdict.FITS)

    plan = make_plan(question)
    planned = plan.choices[0] if plan.choices else plan.nearest
    assert planned is not None
    assert planned.config.text == named.choices[0].config.text
    assert planned.memory.verdict is verdict
    assert plan.verdict is (Verdict.NOTHING_FITS if verdict is MemoryVerdict.DOES_NOT_FIT else Verdict.FOUND)

    problem, assumed = resolve(question)
    assert explain_memory(problem, assumed, named, None).facts["verdict"] == verdict
    compared = compare_clusters(question, [CLUSTER], (8,)).standings[0]
    assert compared.plan is not None
    if plan.found:
        assert outcome_facts(compared.plan)["memory_verdict"] == verdict
        changes = explain_plan(plan, why_not="micro_batch=1").facts["why_not"]["as_planned"]
        assert changes["memory_verdict"] == verdict

    save_plan(named, tmp_path / "plan.json")
    files = render_plan(tmp_path / "plan.json", "megatron", 0, None)
    texts = {name: text for name, text in files.items() if name.endswith(".sh")}
    read = check.check_files(
        texts, Question("", CLUSTER, seq_len=4096, global_batch=32, headroom=question.headroom)
    )
    assert read["verdict"] == verdict
