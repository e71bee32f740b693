"""Are exchanges of tokens under another micro-batch costed, written, read, and held to Megatron's conditions?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest

from planner.ask.request import cost_model
from planner.catalog.stack_options import EXPERTS_OVERLAPPED
from planner.frameworks import framework
from planner.report.words import texts
from planner.solve.unasked import Answer, findings_of, option_gains
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ParallelConfig, Recompute
from planner.spec.rule import Problem
from tests.frameworks.launches import launch, problem
from tests.problems import costs

MODEL = "qwen3-30b-a3b"
STACK = f"megatron-2026+{EXPERTS_OVERLAPPED}"
CONFIG = ParallelConfig(dp=64, ep=16, micro_batch=2, num_microbatches=4, zero=1)


def on_hopper(stack: str = STACK) -> Problem:
    return problem(MODEL, stack, gpus=64, cluster="dgx-h100")


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge"])
def test_written_and_read_as_costed(name: str) -> None:
    meant = framework(name)
    for stack, asked in ((STACK, True), ("megatron-2026", False)):
        files = meant.render(launch(MODEL, CONFIG, on_hopper(stack)), meant.default_version)
        read = meant.parse({"launch.sh": files["launch.sh"]})
        assert (EXPERTS_OVERLAPPED in read.stack_options) is asked


def test_hides_no_more_than_the_exchanges() -> None:
    table = ConfigTable.of([CONFIG])
    plain, hidden = (
        costs(on_hopper(stack)).evaluate(table, keep_terms=True) for stack in ("megatron-2026", STACK)
    )
    saved = float(plain.step_time[0] - hidden.step_time[0])
    assert plain.detail is not None
    assert 0.5 * plain.detail.time["ep_comm"][0] < saved < 1.1 * plain.detail.time["ep_comm"][0]


def test_what_megatron_refuses_is_illegal() -> None:
    experts = 1 << RECOMPUTE_MODULES.index("moe")
    cases = {
        CONFIG: True,
        replace(CONFIG, pp=2, dp=32): False,  # no virtual stages
        replace(CONFIG, pp=2, dp=32, vpp=2, schedule=1): True,
        replace(CONFIG, recompute=int(Recompute.FULL), recompute_layers=48): False,
        replace(CONFIG, recompute=int(Recompute.SELECTIVE), recompute_modules=experts): False,
        replace(CONFIG, recompute=int(Recompute.SELECTIVE), recompute_modules=1): True,
        replace(CONFIG, ep=1, pp=2, dp=32): True,  # nothing to exchange
    }
    (rule,) = (rule for rule in rules_for(on_hopper().stack) if rule.id == "ep-overlap")
    for stack in (STACK, "megatron-2026"):
        subject = on_hopper(stack)
        legal = rule.legal(ConfigTable.of([*cases]).columns, subject).tolist()
        assert legal == ([*cases.values()] if stack == STACK else [True] * len(cases))


def _said(subject: Problem, configs: Sequence[ParallelConfig], limit: float) -> tuple[str, ...]:
    answer = Answer(subject, ConfigTable.of(configs), limit, cost_model)
    return texts(findings_of(option_gains(answer), answer, subject.stack.name))


def test_what_it_would_save_is_said_of_any_listed_configuration() -> None:
    subject, alone = on_hopper("megatron-2026"), replace(CONFIG, pp=2, dp=32, num_microbatches=8)

    def said(*configs: ParallelConfig) -> list[str]:
        lines = _said(subject, configs, inf)
        return [line for line in lines if EXPERTS_OVERLAPPED in line]

    assert not explain_config(alone, subject, rules_for(subject.stack))
    assert not said(alone)  # illegal there
    (line,) = said(CONFIG)
    assert f"--stack {STACK}" in line
    before = costs(subject).evaluate(ConfigTable.of([CONFIG])).step_time[0]
    after = costs(on_hopper()).evaluate(ConfigTable.of([CONFIG])).step_time[0]
    assert f"cut the step time by {1 - after / before:.0%}" in line
    (other,) = said(replace(alone, micro_batch=1, num_microbatches=16), CONFIG)
    assert CONFIG.describe() in other
    assert not _said(on_hopper(), [CONFIG], 0.0)


def test_efa_starts_no_messages_for_kernels() -> None:
    """Fused dispatch is no way between nodes there, is costed as NCCL's where a run had it, and is advised inside."""
    row = ConfigTable.of([CONFIG])
    for cluster, legal in (("dgx-h100", True), ("aws-p5", False)):
        subject, fused = (
            problem(MODEL, stack, gpus=64, cluster=cluster)
            for stack in ("megatron-2026", "megatron-2026+deepep")
        )
        assert (not explain_config(CONFIG, fused, rules_for(fused.stack))) is legal
        plain, through = (cost_model(each).evaluate(row, keep_terms=True) for each in (subject, fused))
        assert plain.detail is not None
        assert through.detail is not None
        shorter = through.detail.time["ep_comm"][0] < 0.99 * plain.detail.time["ep_comm"][0]
        assert bool(shorter) is legal
        said = [
            any("dispatched by" in line for line in _said(subject, [each], inf))
            for each in (CONFIG, replace(CONFIG, ep=8))
        ]
        assert said == [legal, True]
