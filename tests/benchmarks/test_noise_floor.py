"""What noise alone would cost a perfect model."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.noise_floor import PAIRED, lost, noise_of
from benchmarks.published.validate import answer_of
from planner.calibrate.measured import Measurement
from planner.calibrate.statistics import Answer
from tests.benchmarks.rows import ROW


def _answer(seconds: float, **settings: str) -> Answer:
    output = {"step_time_s": seconds, "verdict": "fits"}
    return answer_of(ROW | settings, output, Measurement(seconds, None))


def test_noise_is_the_scatter_of_runs_with_the_same_settings() -> None:
    runs = [
        _answer(10.0), _answer(10.2, source_ref="another line"),
        _answer(20.0, tp="1.0"), _answer(20.4, tp="1.0", sequence_parallel="False"),
        _answer(30.0, sequence_parallel="False"), _answer(99.0, micro_batch="2.0"),
    ]  # fmt: skip
    noise, pairs = noise_of(runs)
    assert pairs == 2  # sequence parallelism is a setting at tp 4, and none at tp 1
    assert noise == pytest.approx(np.log(1.02) / PAIRED)


def test_a_pick_loses_what_a_draw_takes_from_the_one_behind_it() -> None:
    runs = [_answer(10.0 + rank, micro_batch=str(rank)) for rank in range(6)]
    faster = np.array([1.0, 0.8, 1.0, 1.0, 1.0, 0.5])  # 10, 8.8, 12, 13, 14, 7.5 s
    nothing = lost(runs, lambda rng: np.ones(6), draws=2)[ROW["source"]]
    something = lost(runs, lambda rng: faster, draws=2)[ROW["source"]]
    assert nothing.tolist() == [[0.0, 0.0, 0.0]] * 2
    assert something[0] == pytest.approx([10 / 7.5 - 1, 10 / 7.5 - 1, 8.8 / 7.5 - 1], abs=1e-4)
