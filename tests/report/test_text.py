"""The terminal report: what it says for each verdict, how wide it is, and that files cannot steer it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console

from planner.report.text import plan_document, readable, render
from planner.spec.config import AXES, ParallelConfig
from planner.spec.planfile import BrokenRule, Choice, Plan, PlannedConfig, Verdict
from planner.spec.verdict import MemoryVerdict


def drawn(plan: Plan, width: int = 80) -> str:
    return render(plan_document(plan), Console(width=width, markup=False, emoji=False, highlight=False))


def test_a_found_plan_tells_everything(example_plan: Plan) -> None:
    text = drawn(example_plan, 160)
    for words in (
        example_plan.headline,
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
        "+-10 %",
    ):
        assert words in text, words


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
            "smallest_change": "twice the GPUs",
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
