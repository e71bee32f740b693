"""The terminal report: what it says for each verdict, how wide it is, and that files cannot steer it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console

from planner.answer.headline import recommended
from planner.answer.recommend import Pick
from planner.report.text import plan_document, readable, render
from planner.report.words import text_of, texts
from planner.spec.config import AXES, ParallelConfig
from planner.spec.findings import Finding
from planner.spec.planfile import BrokenRule, Choice, NearestRun, Plan, Trade, Verdict
from planner.spec.planned_config import PlannedConfig
from planner.spec.verdict import MemoryVerdict


def drawn(plan: Plan, width: int = 80) -> str:
    return render(plan_document(plan), Console(width=width, markup=False, emoji=False, highlight=False))


def test_a_found_plan_tells_everything(example_plan: Plan) -> None:
    text = drawn(example_plan, 160)
    for words in (
        text_of(example_plan.headline[0]),
        "5.000 s",
        "410 tokens/s/GPU",
        "53.8 days",
        "pipeline bubble",
        "activations",
        "pipeline rank 0",
        "compute layers +0.350 s",
        "tp stays inside the node",
        "1,000,000",
        "900,000",
        "40,000",
        "restricted to tp=8",
        "micro-batches are equal",
        "failures",
        "L1",
        "-9 to +10 %",
    ):
        assert words in text, words


@pytest.fixture
def recommending(example_plan: Plan) -> Plan:
    """A plan that recommends its second choice, with a published run near to it."""
    near = NearestRun(
        model="llama3.1_405b", same_model=True, accelerator="h100-sxm-80g", devices=8192, seq_len=8192,
        global_batch=2048, precision="bf16", software="NeMo", config=example_plan.choices[1].config, step_time=10.0,
        tokens_per_second_per_device=205.0, predicted_step_time=9.5, predicted_tokens_per_second_per_device=215.8,
        link="https://github.com/NVIDIA/NeMo",
    )  # fmt: skip
    trade = Trade(slower=0.008, more_free=12e9)
    told = recommended(example_plan, Pick(example_plan.choices, 1, trade))
    return told.model_copy(update={"nearest_run": near})


def test_what_is_recommended_is_said_at_the_head_and_marked(recommending: Plan) -> None:
    text = drawn(recommending, 160)
    first, second, *_ = text.splitlines()
    assert [first, second] == list(texts(recommending.headline))
    assert second.startswith("recommended: #2 ")
    assert re.search(r"(?m)^ +\*2 ", text)
    assert "* recommended" in text
    plain = drawn(recommending.model_copy(update={"recommended": 0}), 160)
    assert "* recommended" not in plain


def test_the_nearest_published_run_stands_beside_the_plan(recommending: Plan) -> None:
    section = drawn(recommending, 160).split("Nearest published run")[1].split("\n\n")[0]
    for words in (
        "llama3.1_405b on 8,192 h100-sxm-80g, NeMo: 2,048 sequences of 8,192 tokens, bf16, tp8 pp8",
        "measured   205 tokens/s/GPU",
        "9.500 s, 5.0% faster than measured",
        "this plan  410 tokens/s/GPU  of another number of devices",
        "https://github.com/NVIDIA/NeMo",
    ):
        assert words in section, words


def test_a_page_says_the_same(recommending: Plan) -> None:
    pytest.importorskip("altair")
    from planner.report.page import plan_page

    page = plan_page(recommending)
    sections = {section.name: section for section in page.sections}
    head = sections["answer"].blocks[0]
    assert head.lines == (text_of(recommending.headline[1]),)
    (table,) = (block for block in sections["top"].blocks if block.kind == "table")
    assert [row[-1] for row in table.rows] == ["fits", "fits, recommended"]
    assert sections["published"].blocks[1].figures[0].value == "205 tokens/s/GPU"


def test_what_own_runs_take_off_has_no_bar(example_plan: Plan) -> None:
    best, *others = example_plan.choices
    time = {**best.time, "own_runs": -0.5}
    faster = best.model_copy(update={"time": time, "step_time": best.step_time - 0.5})
    text = drawn(example_plan.model_copy(update={"choices": (faster, *others)}), 160)
    (line,) = (line for line in text.splitlines() if "own runs" in line and " %" in line)
    assert "█" not in line
    assert "▏" not in line


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal(
    example_plan: Plan, choice_of: Callable[..., Choice], width: int
) -> None:
    big = dict.fromkeys(AXES, 1) | {"dp": 2048, "recompute": 2, "recompute_layers": 12, "sp": 0}
    other = big | {"tp": 16, "cp": 32, "pp": 24, "dp": 4096, "vpp": 12, "ep": 128, "etp": 2, "sp": 1}
    other |= {"micro_batch": 16, "zero": 3, "recompute": 1}
    choices = (choice_of(ParallelConfig(**big)), choice_of(ParallelConfig(**other), 30.0))
    text = drawn(example_plan.model_copy(update={"choices": choices}), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    if width >= 100:
        assert "selective" in text
        assert "16" in text
    assert "…" not in text


def test_an_illegal_configuration_says_rule_reason_hint_and_nearest(example_plan: Plan) -> None:
    plan = example_plan.model_copy(
        update={
            "verdict": Verdict.ILLEGAL,
            "choices": (),
            "violations": (BrokenRule(rule="heads-tp", reason="tp must divide 128; tp=7", hint="tp=8"),),
            "nearest_config": PlannedConfig.of(ParallelConfig(tp=8)),
        }
    )
    text = drawn(plan)
    for words in ("heads-tp", "tp must divide 128; tp=7", "hint: tp=8", "Nearest legal", "tp8 pp1"):
        assert words in text


def test_nothing_fits_says_what_would_help(example_plan: Plan, choice_of: Callable[..., Choice]) -> None:
    plan = example_plan.model_copy(
        update={
            "verdict": Verdict.NOTHING_FITS,
            "choices": (),
            "nearest": choice_of(ParallelConfig(tp=8), verdict=MemoryVerdict.DOES_NOT_FIT),
            "smallest_change": (Finding(code="text", text="twice the GPUs"),),
        }
    )
    text = drawn(plan)
    assert "Needs least memory" in text
    assert "twice the GPUs" in text
    assert "does not fit" in text


def test_markup_and_control_characters_of_files_are_shown_as_text(example_plan: Plan) -> None:
    model = example_plan.subject.model.model_copy(update={"name": "[red]x[/red] \x1b[2J :smile: \x07"})
    subject = example_plan.subject.model_copy(update={"model": model})
    text = drawn(example_plan.model_copy(update={"subject": subject}))
    assert "[red]x[/red] \\x1b[2J :smile: \\x07" in text
    assert "\x1b[2J" not in text
    assert readable("a\nb") == "a\nb"


def test_no_colour_codes_where_colour_is_off(example_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(width=80, force_terminal=True, markup=False)
    text = render(plan_document(example_plan), console)
    assert "\x1b[3" not in text


def test_the_report_is_the_same_every_time(example_plan: Plan) -> None:
    assert drawn(example_plan) == drawn(example_plan)
