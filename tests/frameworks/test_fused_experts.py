"""Experts fused with their products: an option of the stack, written, read back, and refused where none can be."""

from __future__ import annotations

from math import inf

import pytest

from planner.ask.request import Request, cost_model, resolve
from planner.catalog.stack_options import FUSED_EXPERTS, idle_options
from planner.errors import InputError, UnsupportedError
from planner.frameworks import framework
from planner.frameworks.fused_experts import VARIABLE
from planner.report.words import texts
from planner.solve.unasked import Answer, findings_of, option_gains
from planner.space.framework_rules import rules_for
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.load_model import load_model
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from tests.frameworks.launches import launch, problem
from tests.problems import costs

MODEL, STACK = "qwen3-30b-a3b", f"megatron-2026+{FUSED_EXPERTS}"
LARGE = "qwen3-235b-a22b"
CONFIG = ParallelConfig(dp=64, ep=8, micro_batch=1, num_microbatches=4, zero=1)


def on_blackwell(stack: str = STACK, model: str = MODEL) -> Problem:
    return problem(model, stack, gpus=64, precision="fp8_mx", cluster="gb200-nvl72")


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge"])
def test_written_and_read_as_costed(name: str) -> None:
    meant = framework(name)
    for stack, asked in ((STACK, True), ("megatron-2026", False)):
        files = meant.render(launch(MODEL, CONFIG, on_blackwell(stack)), meant.default_version)
        read = meant.parse({"launch.sh": files["launch.sh"]})
        assert (FUSED_EXPERTS in read.stack_options) is asked
        assert (f"export {VARIABLE}=1" in files["launch.sh"]) is asked


def test_saves_time() -> None:
    table = ConfigTable.of([CONFIG])
    fused, plain = (
        costs(on_blackwell(stack)).evaluate(table).step_time[0] for stack in (STACK, "megatron-2026")
    )
    assert 0.9 * plain < fused < plain


def test_a_release_without_it_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"0\.18"):
        framework("megatron").render(launch(MODEL, CONFIG, on_blackwell()), "0.16.1")


def test_experts_are_whole() -> None:
    table = ConfigTable.of([ParallelConfig(dp=64, tp=1, ep=8, etp=etp) for etp in (1, 2)])
    for stack, legal in ((STACK, [True, False]), ("megatron-2026", [True, True])):
        subject = on_blackwell(stack)
        (rule,) = (rule for rule in rules_for(subject.stack) if rule.id == "fused-experts-etp")
        assert rule.legal(table.columns, subject).tolist() == legal


@pytest.mark.parametrize(("model", "said"), [("llama-3.1-8b", "dense"), ("nemotron-3-nano-30b-a3b", "gated")])
def test_models_of_which_it_changes_nothing(model: str, said: str) -> None:
    stack = on_blackwell().stack
    (found,) = texts(idle_options(stack, Precision.FP8_MX, load_model(model)))
    assert said in found


def test_other_recipes_are_refused() -> None:
    with pytest.raises(InputError, match="fp8_mx"):
        resolve(Request(MODEL, "2x8 h100 400G-ib", seq_len=4096, stack=STACK, precision="bf16"))


def test_what_it_would_save_is_said_where_it_is_not_asked_for() -> None:
    config = ParallelConfig(
        dp=64, ep=8, micro_batch=4, num_microbatches=1, zero=1
    )  # enough for a busy device

    def said(subject: Problem) -> bool:
        answer = Answer(subject, ConfigTable.of([config]), inf, cost_model)
        lines = texts(findings_of(option_gains(answer), answer, subject.stack.name))
        return any("fused with their GEMMs" in line for line in lines)

    assert said(on_blackwell("megatron-2026", LARGE))
    assert not said(on_blackwell(STACK, LARGE))
    assert not said(problem(LARGE, "megatron-2026", gpus=64, precision="fp8_cs", cluster="gb200-nvl72"))
