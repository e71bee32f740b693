"""Figures and sentences computed from a plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner.dialect import in_words
from planner.report import facts, proof
from planner.spec.config import ParallelConfig, Schedule
from planner.spec.planfile import Choice, Plan, Run, StageMemory
from planner.spec.verdict import MemoryVerdict


def test_key_figures_name_band_formula_and_margin(example_plan: Plan) -> None:
    figures = {figure.label: figure for figure in facts.key_figures(example_plan.choices[0], "GPU")}
    assert figures["step time"].value == "5.000 s"
    assert figures["step time"].note == "80% interval 4.500 to 5.500 s"
    assert "causal half" in figures["MFU"].note
    assert "989 TFLOP/s" in figures["MFU"].note
    assert "14.0 GiB free of 76.0 GiB" in figures["peak memory"].note
    assert figures["whole run"].value == "53.8 days"
    assert "21.2M GPU-hours" in figures["whole run"].note


@pytest.mark.parametrize(
    ("kilograms", "said"), [(2558.8, "2.56 t"), (1.797e6, "1,797 t"), (81.0, "81 kg"), (412.6, "413 kg")]
)
def test_small_masses_keep_their_digits(kilograms: float, said: str) -> None:
    assert facts.tonnes(kilograms) == said


def test_days_of_short_runs_stay_apart() -> None:
    assert [facts.days_cell(n) for n in (0.014, 0.1875, 0.23, 1.94, 33.08, 7345.8)] == [
        "0.014", "0.19", "0.23", "1.94", "33.1", "7,345.8",
    ]  # fmt: skip


def test_too_much_memory_says_by_how_much(example_plan: Plan) -> None:
    memory = example_plan.choices[0].memory.model_copy(
        update={"limit": 60 * 2.0**30, "verdict": MemoryVerdict.DOES_NOT_FIT}
    )
    assert facts.memory_sentence(memory).startswith("does not fit: 2.0 GiB over the ")


def test_grid_tells_offload_apart(example_plan: Plan) -> None:
    first = example_plan.choices[0]
    moved = first.model_copy(update={"config": first.config.model_copy(update={"offload": ("optimizer",)})})
    grid = facts.configuration_grid([first, moved])
    assert grid.axes == ("offload",)
    assert grid.rows == (("none",), ("optimizer",))


def test_grid_shows_only_what_differs(example_plan: Plan) -> None:
    grid = facts.configuration_grid(example_plan.choices)
    assert grid.axes == ("pp", "dp", "vpp")
    assert grid.rows == (("16", "128", "8"), ("8", "256", "1"))
    assert grid.common == "tp 8, mbs 1, zero 1, sp 1"


def test_those_faster_than_the_first_have_a_sign(example_plan: Plan) -> None:
    first = example_plan.choices[0]
    times = [
        first.model_copy(update={"step_time": first.step_time * share}) for share in (1.0, 1.013, 0.9999)
    ]
    assert facts.against_first(times) == ("slower", ("", "1.3 %", "0.0 %"))
    times.append(first.model_copy(update={"step_time": first.step_time / 4}))
    assert facts.against_first(times) == ("vs #1", ("", "+1.3 %", "+0.0 %", "-75.0 %"))


def test_parts_are_ordered_and_complete() -> None:
    parts = facts.parts({"small": 0.0019, "b": 1.0, "a": 1.0, "tiny": 0.0019})
    assert [part.name for part in parts] == ["a", "b", "the rest"]
    assert sum(part.share for part in parts) == pytest.approx(1.0)
    assert [part.name for part in facts.parts({"a": 1.0, "nothing": 0.0, "dust": 1e-5})] == ["a"]
    assert facts.parts({}) == ()
    assert facts.parts({"a": 0.0}) == ()


def test_comparison_names_axes_and_terms(choice_of: Callable[..., Choice]) -> None:
    best = choice_of(ParallelConfig(tp=8, pp=4))
    other = choice_of(ParallelConfig(tp=8, pp=8), scale=1.2)
    first, *terms = facts.comparison(best, other, 2)
    assert "pp 4 -> 8" in first
    assert "0.700 s longer" in first
    assert terms == ["compute layers +0.700 s"]


@pytest.mark.parametrize(
    ("mean", "packed", "said"),
    [
        (None, False, "1,024 sequences of 8,192 tokens per step ("),
        (8192.0, True, "1,024 sequences of 8,192 tokens per step ("),
        (1000.0, False, "1,024 sequences of at most 8,192 tokens (1,000 on average) per step ("),
        (1000.0, True, "1,024 sequences of 8,192 tokens (packed, documents of 1,000 on average) per step ("),
    ],
)
def test_lengths_are_said_as_they_are(
    example_plan: Plan, mean: float | None, packed: bool, said: str
) -> None:
    """64,000 tokens in 64 sequences are none of 8,192."""
    asked = {"seq_len": 8192, "global_batch": 1024, "mean_length": mean, "packed": packed}
    job = example_plan.subject.job.model_copy(update=asked)
    subject = example_plan.subject.model_copy(update={"job": job})
    assert any(
        said in line for line in facts.subject_lines(example_plan.model_copy(update={"subject": subject}))
    )


def test_space_account_closes(example_plan: Plan) -> None:
    account = proof.space_account(example_plan.search)
    running = 0
    for line in account:
        if line.taken_away:
            running -= line.candidates
        else:
            assert line.label == "candidates" or running == line.candidates
            running = line.candidates


def test_cautions(example_plan: Plan, choice_of: Callable[..., Choice]) -> None:
    assert proof.cautions(example_plan) == ()
    tight = choice_of(ParallelConfig(), verdict=MemoryVerdict.BORDERLINE)
    (caution,) = proof.cautions(example_plan.model_copy(update={"choices": (tight,)}))
    assert "borderline" in caution


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5.0, "5.000 s"),
        (12.3456, "12.35 s"),
        (7000.0, "7,000 s"),
        (12345.0, "3.43 h"),
        (49260.3, "13.68 h"),
        (2e5, "2.31 d"),
        (0.0123, "12.30 ms"),
        (0.75, "750.0 ms"),
    ],
)
def test_precise_time(seconds: float, text: str) -> None:
    assert facts.precise_time(seconds) == text


def test_layers_are_counted_in_runs(example_plan: Plan) -> None:
    choice = example_plan.choices[0]
    assert facts.layers_sentence(choice) == "layers by pipeline rank: 7, 8 on 15 ranks"
    both = choice.model_copy(
        update={"config": choice.config.model_copy(update={"schedule": Schedule.DUALPIPE.label})}
    )
    assert facts.layers_sentence(both).endswith("; every layer on two ranks, one for either direction")
    assert facts.layers_sentence(choice.model_copy(update={"layers_per_stage": (32,)})) == ""


def test_only_the_largest_stages_are_listed(example_plan: Plan) -> None:
    memory = example_plan.choices[0].memory
    stages = tuple(
        StageMemory(stages=str(i), layers=1, peak=(i * 7 % 20) * 2.0**30, phase="forward") for i in range(20)
    )
    shown, note = facts.largest_stages(memory.model_copy(update={"per_stage": stages}))
    assert note == "12 more groups of pipeline ranks need less"
    assert min(stage.peak for stage in shown) == 12 * 2.0**30
    assert [int(stage.stages) for stage in shown] == sorted(int(stage.stages) for stage in shown)


def test_whole_run_with_stops_money_and_energy(choice_of: Callable[..., Choice]) -> None:
    run = Run(
        steps=1000, days=10.0, gpu_hours=1e6, price_per_device_hour=2.0, price_source="as given", cost=2.5e6,
        goodput=0.8, lost={"restarts": 0.15, "repeated_work": 0.05}, effective_days=12.5, held_gpu_hours=1.25e6,
        time_between_stops=7200.0, checkpoint_interval=600.0, checkpoint_stall=5.0, checkpoint_size=2.0**40,
        storage=2.0**43, power_per_device=1000.0, power_source="as given", energy=3.6e12, emissions=4e5,
        owned_price_per_device_hour=1.0, break_even=90 * 86400.0,
    )  # fmt: skip
    choice = choice_of(ParallelConfig(tp=8)).model_copy(update={"run": run})
    figures = {figure.label: figure for figure in facts.key_figures(choice, "GPU")}
    assert figures["whole run"].value == "12.5 days"
    assert figures["whole run"].note.startswith("80% interval 11.2 to 13.8 days")
    assert figures["goodput"].value == "80.0 %"
    lost = "time lost: restarts 15.0%, recomputed work 5.0%"
    assert figures["goodput"].note == f"interrupted every 2.0 h on average; {lost}"
    assert figures["checkpoints"].value == "every 10.0 min"
    assert "owned hardware $1.00 per GPU-hour, breaks even after 90.0 days of use" in figures["cost"].note
    assert (figures["energy"].value, figures["energy"].note[:9]) == ("1 GWh", "400 t CO2")
    unpriced = run.model_copy(update={"cost": None, "price_per_device_hour": None})
    figures = {f.label: f for f in facts.key_figures(choice.model_copy(update={"run": unpriced}), "GPU")}
    assert "--assume" in in_words(figures["cost"].note)


def test_long_times_of_a_column_have_the_unit_of_the_longest() -> None:
    assert facts.aligned_time(49260.319, 49260.319) == "13.68 h"
    assert facts.aligned_time(1800.0, 49260.319) == "0.50 h"
    assert facts.aligned_time(1800.0, 1800.0) == "1,800.000 s"
