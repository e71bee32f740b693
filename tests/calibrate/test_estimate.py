"""Do calibrations move with evidence alone, recover what was changed, and refuse what contradicts itself?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from planner.ask.request import Request
from planner.calibrate.correction.estimate import (
    Observation,
    calibrate,
    corrected,
    predict_steps,
    sensitivities,
)
from planner.calibrate.correction.parts import PARTS, prior_of
from planner.calibrate.correction.shrinkage import Rows, shrink
from planner.calibrate.own_runs import measured_seconds, observe, parse_run
from planner.catalog.cluster_rates import rates_of
from planner.catalog.load_overlay import load_overlay
from planner.cli import app
from planner.cost.any_split import least_of_any_layout
from planner.cost.model import CostModel
from planner.errors import InputError, PlannerError
from planner.solve.splits.split import solve_split
from planner.spec.config import ConfigTable
from planner.spec.overlay import Overlay
from planner.spec.own_run import OwnRun
from planner.spec.stack import Calibration
from tests.calibrate import logs

BASE = Request(model="llama-3-8b", cluster="dgx-h100", gpus=16, seq_len=8192, global_batch="128")
CONFIGS = ("tp=2", "tp=4", "tp=2,micro_batch=2", "tp=1,pp=2", "tp=8", "tp=4,pp=2", "tp=2,pp=2", "tp=1,pp=4")


Array = NDArray[np.float64]


def runs_on(multiply: dict[str, float], count: int) -> list[Observation]:
    """Runs of a machine whose stack differs from the shipped one by `multiply`."""
    shipped = [observe(BASE, f"1 s:{config}")[0] for config in CONFIGS[:count]]
    theirs = Overlay(name="t", date="2026", level="L3", made_from=("t",), multiply=multiply)
    steps = predict_steps(corrected(shipped, theirs))
    return [replace(seen, seconds=float(step)) for seen, step in zip(shipped, steps, strict=True)]


def worst(seconds: tuple[float, ...], runs: list[Observation]) -> float:
    return max(abs(s / seen.seconds - 1) for s, seen in zip(seconds, runs, strict=True))


def test_runs_as_predicted_move_nothing() -> None:
    found = calibrate(runs_on({}, 3), "x", "2026")
    assert not found.overlay.multiply
    assert found.before == found.after


def test_slow_compute_is_recovered_by_several_runs() -> None:
    runs = runs_on({"compute.gemm": 1.3, "compute.attention": 1.3, "compute.memory_bound": 1.3}, 8)
    found = calibrate(runs, "x", "2026")
    assert worst(found.before, runs) > 0.15
    assert worst(found.after, runs) < 0.06
    assert found.overlay.multiply["compute.gemm"] == pytest.approx(1.3, rel=0.1)
    overhead = [part.name for part in PARTS].index("overhead")
    assert np.all(np.abs(sensitivities(runs)[:, overhead] * found.shrunk.mean[overhead]) < 0.02)


def test_one_odd_run_moves_little_and_several_move_more() -> None:
    slow = {"compute.gemm": 1.3, "compute.attention": 1.3, "compute.memory_bound": 1.3}
    factors = [
        calibrate(runs_on(slow, count), "x", "2026").overlay.multiply.get("compute.gemm", 1.0)
        for count in (1, 2, 4, 8)
    ]
    assert factors[0] < 1.1
    assert factors == sorted(factors)
    assert factors[-1] > 1.2


def test_runs_as_far_off_as_the_band_hardly_move_anything() -> None:
    runs = runs_on({}, 2)
    off = 1 + runs[0].problem.stack.band
    found = calibrate([replace(seen, seconds=off * seen.seconds) for seen in runs], "x", "2026")
    own = [after / before for before, after in zip(found.before, found.after, strict=True)]
    assert all(1.02 < factor < off for factor in own)
    assert found.shrunk.moved < 0.25
    other = observe(BASE, "1 s:tp=8")[0]
    moved = predict_steps(corrected([other], found.overlay))[0] / predict_steps([other])[0]
    assert 1 < moved < 1.02


def test_one_odd_run_among_many_is_set_aside() -> None:
    runs = runs_on({}, 7)
    runs[3] = replace(runs[3], seconds=2 * runs[3].seconds)
    found = calibrate(runs, "x", "2026")
    assert found.odd == (runs[3].name,)
    assert worst(found.after, runs_on({}, 7)) < 0.03


def rows_of(residuals: Array, told: Array, width: float) -> Rows:
    count = len(residuals)
    return Rows(residuals, told, np.full(count, width), np.eye(count), np.zeros(count))


def test_more_noise_less_movement() -> None:
    told = np.array([[0.8, 0.0, 0.0, 0.0, 0.1, 0.0, 0.05, 0.02]] * 3)
    gap = np.full(3, 0.2)
    sure, unsure = (shrink(rows_of(gap, told, width), prior_of()) for width in (0.03, 0.3))
    assert told[0] @ sure.mean > 0.15
    assert sure.moved > 0.95
    assert 0 <= told[0] @ unsure.mean < 0.05
    assert sure.band < unsure.band


def test_rows_that_agree_narrow_the_band_and_rows_that_scatter_widen_it() -> None:
    told = np.array([[0.8, 0.0, 0.0, 0.0, 0.1, 0.0, 0.05, 0.02]] * 6)
    near, far = (
        np.array([0.01, -0.01, 0.0, 0.01, -0.01, 0.0]),
        np.array([0.15, -0.15, 0.1, -0.12, 0.14, -0.1]),
    )
    close, apart = (shrink(rows_of(gaps, told, 0.05), prior_of()) for gaps in (near, far))
    assert close.band < 1.28 * 0.05 < apart.band


def test_runs_of_one_configuration_speak_for_it_with_other_replicas_and_for_no_other() -> None:
    texts = (f"1 s:gpus={gpus},global_batch={8 * gpus},tp=2,pp=2" for gpus in (8, 16, 32, 64))
    *measured, asked = (observe(BASE, text)[0] for text in texts)
    steps = 0.94 * predict_steps(measured)
    runs = [replace(seen, seconds=float(step)) for seen, step in zip(measured, steps, strict=True)]
    found = calibrate(runs, "x", "2026")
    assert len(found.overlay.runs) == 1
    other = observe(BASE, "1 s:gpus=64,global_batch=512,tp=4,pp=2")[0]
    moved = predict_steps(corrected([asked, other], found.overlay)) / predict_steps([asked, other])
    assert moved[0] == pytest.approx(0.95, abs=0.012)
    assert moved[1] > 0.98


def test_no_split_of_a_measured_configuration_is_faster_than_its_bounds() -> None:
    shipped = [observe(BASE, f"1 s:{text}")[0] for text in ("tp=2,pp=2", "tp=1,pp=4", "tp=4")]
    for factor in (0.7, 1.4):
        measured = OwnRun.of(shipped[0].problem.model, shipped[0].problem.job, shipped[0].config, factor)
        calibration = Calibration(said="own", level="L2", runs=(measured,))
        own_stack = shipped[0].problem.stack.model_copy(update={"calibration": calibration})
        problem = replace(shipped[0].problem, stack=own_stack)
        table = ConfigTable.of([seen.config for seen in shipped])
        plain, own = (CostModel(of, *rates_of(of.cluster)) for of in (shipped[0].problem, problem))
        before, cost = plain.evaluate(table), own.evaluate(table, keep_terms=True)
        assert cost.step_time / before.step_time == pytest.approx([factor, 1, 1])
        assert cost.detail is not None
        assert sum(cost.detail.time.values()) == pytest.approx(cost.step_time)
        assert np.all(own.lower_bound(table) <= cost.step_time)
        bound = least_of_any_layout(own, table, float(cost.step_time.max()))
        assert np.all((0.8 * cost.step_time < bound) & (bound <= cost.step_time))
        solved = solve_split(own, shipped[0].config, np.inf)
        assert bound[0] <= solved.bound <= solved.step_time <= cost.step_time[0]
        assert solved.proven


def test_a_run_in_its_stacks_slow_mode_moves_nothing() -> None:
    base = replace(BASE, stack="nanotron-2024")
    seen = observe(base, "1 s:tp=2,pp=4")[0]
    slow = replace(seen, seconds=2.9 * float(predict_steps([seen])[0]))
    found = calibrate([slow], "x", "2026")
    assert found.slow == (slow.name,)
    assert found.after[0] / found.before[0] < 1.02


def test_sensitivities_are_what_a_step_depends_on() -> None:
    runs = [observe(BASE, f"1 s:{config}")[0] for config in ("tp=1,pp=2", "tp=8")]
    told = sensitivities(runs)
    assert np.all(told >= 0)
    assert np.all(told.sum(axis=1) < 1.05)
    wire = [part.name for part in PARTS].index("layer_collectives")
    assert told[1, wire] > 0.05 > told[0, wire]


def test_repeated_runs_that_disagree_are_refused() -> None:
    one = runs_on({}, 1)[0]
    with pytest.raises(InputError, match="agree within"):
        calibrate([one, replace(one, name="again", seconds=1.4 * one.seconds)], "x", "2026")


def test_runs_that_contradict_each_other_are_refused() -> None:
    runs = runs_on({}, 4)
    signs = (2.5, 0.4, 2.5, 0.4)
    odd = [replace(seen, seconds=seen.seconds * sign) for seen, sign in zip(runs, signs, strict=True)]
    with pytest.raises(InputError, match="contradict"):
        calibrate(odd, "x", "2026")


def test_absurd_steps_and_mixed_machines_are_refused() -> None:
    one = runs_on({}, 1)[0]
    with pytest.raises(InputError, match="within 4 times"):
        calibrate([replace(one, seconds=9 * one.seconds)], "x", "2026")
    other = observe(replace(BASE, stack="nanotron-2024"), "8 s:tp=2")[0]
    with pytest.raises(InputError, match="one stack"):
        calibrate([one, other], "x", "2026")
    with pytest.raises(InputError, match="at least one"):
        calibrate([], "x", "2026")


def test_words_of_runs() -> None:
    assert parse_run("a:b.log:tp=8,micro-batch=2") == ("a:b.log", {"tp": "8", "micro_batch": "2"})
    assert parse_run("4.3 s") == ("4.3 s", {})
    assert parse_run("4.3 s: tp=2, pp=4") == ("4.3 s", {"tp": "2", "pp": "4"})
    problem = observe(BASE, "1 s:tp=2")[0].problem
    words = ("4096 ms", "16,000 tokens/s/GPU", "256k tok/s")
    assert [measured_seconds(text, problem) for text in words] == pytest.approx([4.096] * 3)
    for bad in ("", ":tp=2", "x.log:tp=2,tp=4", "7.9 s:tp2"):
        with pytest.raises(InputError):
            parse_run(bad)
    for bad in ("8 s:tpp=2", "8 s:gpus=x", "8 s:gpus=7,tp=2", "none.log:tp=2", "0 s:tp=2", "0 tokens/s:tp=2"):
        with pytest.raises(PlannerError):
            observe(BASE, bad)


def test_a_log_gives_step_time_and_stack(tmp_path: Path) -> None:
    lines = [logs.MEGATRON_2026.format(step=s, ms=9000 if s < 3 else 8000 + s) for s in range(1, 31)]
    (tmp_path / "a.log").write_text("\n".join(lines).replace("size:   512", "size:   128"))
    seen, said = observe(BASE, f"{tmp_path / 'a.log'}:tp=2")
    assert seen.seconds == pytest.approx(8.0185, abs=0.01)
    assert any("24 of 30 steps" in line for line in said)
    (tmp_path / "b.log").write_text(logs.NANOTRON_2024.format(step=12, k=8.1))
    assert observe(BASE, f"{tmp_path / 'b.log'}:tp=2")[0].problem.stack.name == "nanotron-2024"
    (tmp_path / "t.log").write_text(logs.TITAN_2026.format(step=12, tps=8192))
    assert observe(BASE, f"{tmp_path / 't.log'}:tp=2")[0].seconds == pytest.approx(8.0)
    (tmp_path / "d.log").write_text(logs.DEEPSPEED_2024.format(step=12, rate=16.0))
    assert observe(BASE, f"{tmp_path / 'd.log'}:tp=1")[0].seconds == pytest.approx(8.0)


def test_a_log_of_another_batch_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(logs.MEGATRON_2026.format(step=1, ms=8000))
    with pytest.raises(InputError, match="512"):
        observe(BASE, f"{tmp_path / 'a.log'}:tp=2")


def test_the_verb_writes_what_the_others_take(tmp_path: Path) -> None:
    runner, out = CliRunner(), tmp_path / "ours.yaml"
    job = ["llama-3-8b", "dgx-h100", "--gpus", "16", "--seq-len", "8192", "--global-batch", "128"]
    steps = [seen.seconds * 1.3 for seen in runs_on({}, 4)]
    texts = [f"{seconds:.4f} s:{config}" for seconds, config in zip(steps, CONFIGS, strict=False)]
    asked = [part for text in texts for part in ("--run", text)]
    told = runner.invoke(app, ["calibrate", *job, *asked, "-o", str(out), "--json"])
    assert told.exit_code == 0, told.output
    facts = json.loads(told.stdout)
    assert facts["calibration"]["level"] == "L3"
    load_overlay.cache_clear()
    before, after = (
        json.loads(runner.invoke(app, ["estimate", *job, "--set", "tp=2", "--json", *more]).stdout)
        for more in ([], ["--calibration", str(out)])
    )
    ratio = after["choices"][0]["step_time"] / before["choices"][0]["step_time"]
    assert 1.1 < ratio < 1.32
    assert after["confidence"]["level"] == "L3"
    shown = runner.invoke(app, ["calibrate", *job, *asked])
    assert "What moved" in shown.output


@pytest.mark.parametrize(
    "arguments",
    [[], ["--run", "x.log"], ["--nccl", "none.txt"], ["--nodes", "a[3-1]"], ["--profile", "none"]],
)
def test_bad_input_is_a_message(arguments: list[str]) -> None:
    told = CliRunner().invoke(app, ["calibrate", "llama-3-8b", "dgx-h100", "--gpus", "16", *arguments])
    assert told.exit_code == 2
    assert "Traceback" not in told.output
