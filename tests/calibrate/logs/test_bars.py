"""Is a progress bar taken for the training's only where what stands around it says so?"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.published_data import small_input
from planner.calibrate.logs.lines import read_lines, read_log
from planner.errors import FileInputError

LOSS = "{'loss': 0.9, 'grad_norm': 0.4, 'learning_rate': 1e-05, 'epoch': 0.1}"
EVALUATED = "{'eval_loss': 1.0, 'eval_runtime': 240.0, 'epoch': 0.1}"
OTHERS = (
    "Loading checkpoint shards",
    "Loading weights",
    "Map (num_proc=8)",
    "Tokenizing train dataset",
    "Generating",
)


def bar(label: str, step: int, total: int, seconds: float) -> str:
    share = 100 * step // total
    named = f"{label}: " if label else ""
    return f"{named}{share:3d}%|{'#' * (share // 10):10s}| {step}/{total} [00:10<30:00, {seconds:.2f}s/it]"


def run_of(rng: random.Random) -> tuple[list[str], float, int]:
    """A training between bars of other work, its step time, and its steps in all."""
    total, seconds, every = rng.randint(20, 400), rng.uniform(0.3, 60.0), rng.randint(2, 9)
    label = rng.choice(["", "", "Training", "Epoch 1", "train"])
    lines = [
        bar(name, n, 290, rng.uniform(0.001, 0.2))
        for name in rng.sample(OTHERS, rng.randint(0, 3))
        for n in range(1, 291, 7)
    ]
    evaluates = rng.random() < 0.7
    for step in range(1, total + 1):
        lines.append(bar(label, step, total, seconds * rng.uniform(0.98, 1.02)))
        if step % every == 0:
            lines.append(LOSS)
        if evaluates and step % 17 == 0:
            inner = rng.randint(2, 500)
            lines += [
                bar(rng.choice(["", "Evaluating"]), n, inner, seconds / 3) for n in range(1, inner + 1, 3)
            ]
            lines.append(EVALUATED)
    return lines, seconds, total


@pytest.mark.parametrize("seed", range(40))
def test_of_random_bars_the_training_s_counts(seed: int) -> None:
    lines, seconds, total = run_of(random.Random(seed))
    facts = read_lines(["\r".join(lines[:-1]), lines[-1]] if seed % 2 else lines, "log")
    assert len(facts.steps) == total
    times = sorted(step.seconds or 0.0 for step in facts.steps)
    assert times[len(times) // 2] == pytest.approx(seconds, rel=0.03)


def test_without_a_loss_the_bar_counts_that_another_ran_inside_of() -> None:
    lines = [bar("", n, 400, 6.2) for n in range(1, 11)]
    lines += [bar("", n, 100, 2.4) for n in range(1, 101)] + [EVALUATED]
    lines += [bar("", n, 400, 6.2) for n in range(11, 21)]
    facts = read_lines(lines, "log")
    assert {step.seconds for step in facts.steps} == {6.2}


def test_bars_that_nothing_decides_between_are_none() -> None:
    lines = [bar("", n, 100, 2.4) for n in range(1, 101)] + [bar("", n, 400, 6.2) for n in range(1, 11)]
    facts = read_lines(lines, "log")
    assert not facts.steps
    assert [one.code for one in facts.findings] == ["bars_undecided"]


def test_loading_alone_is_no_step(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("\n".join(bar("Loading weights", n, 290, 0.04) for n in range(1, 290)))
    with pytest.raises(FileInputError, match="Loading weights"):
        read_log(tmp_path / "x.log")


@pytest.mark.parametrize(
    ("file", "seconds", "steps"),
    [
        ("trainer_with_evaluation.log", 6.2, 40),
        ("trainer_v5_loading_bar.log", 6.2, 40),
        ("trainer_v5_end.log", 6.45, 1),
        ("rl_total_step.log", 29.8, 20),
    ],
)
def test_logs_that_people_have(file: str, seconds: float, steps: int) -> None:
    facts = read_log(small_input(file))
    times = sorted(step.seconds or 0.0 for step in facts.steps)
    assert len(times) == steps
    assert times[steps // 2] == pytest.approx(seconds, rel=0.02)
