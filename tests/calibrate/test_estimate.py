"""Do calibrations move with evidence alone, recover what was changed, and refuse what contradicts itself?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from planner.calibrate.estimate import Observation, calibrate, corrected, predict_steps, sensitivities
from planner.calibrate.own_runs import measured_time, observe, parse_run
from planner.calibrate.parts import PARTS, prior_of
from planner.calibrate.shrinkage import shrink
from planner.catalog.load_overlay import load_overlay
from planner.cli import app
from planner.errors import InputError, PlannerError
from planner.request import Request
from planner.spec.overlay import Overlay
from tests.calibrate import logs

BASE = Request(model="llama-3-8b", cluster="dgx-h100", gpus=16, seq_len=8192, global_batch="128")
CONFIGS = ("tp=2", "tp=4", "tp=2,micro_batch=2", "tp=1,pp=2", "tp=8", "tp=4,pp=2", "tp=2,pp=2", "tp=1,pp=4")


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
    moved = [after / before for before, after in zip(found.before, found.after, strict=True)]
    assert all(1 < factor < 1.02 for factor in moved)
    assert found.shrunk.moved < 0.25


def test_one_odd_run_among_many_is_set_aside() -> None:
    runs = runs_on({}, 7)
    runs[3] = replace(runs[3], seconds=2 * runs[3].seconds)
    found = calibrate(runs, "x", "2026")
    assert found.odd == (runs[3].name,)
    assert worst(found.after, runs_on({}, 7)) < 0.03


def test_more_noise_less_movement() -> None:
    told = np.array([[0.8, 0.0, 0.0, 0.0, 0.1, 0.0, 0.05, 0.02]] * 3)
    gap = np.full(3, 0.2)
    sure = shrink(gap, told, np.full(3, 0.03), prior_of())
    unsure = shrink(gap, told, np.full(3, 0.3), prior_of())
    assert told[0] @ sure.mean > 0.15
    assert sure.moved > 0.95
    assert 0 <= told[0] @ unsure.mean < 0.05
    assert sure.band < unsure.band


def test_rows_that_agree_narrow_the_band_and_rows_that_scatter_widen_it() -> None:
    told = np.array([[0.8, 0.0, 0.0, 0.0, 0.1, 0.0, 0.05, 0.02]] * 6)
    width = np.full(6, 0.05)
    close = shrink(np.array([0.01, -0.01, 0.0, 0.01, -0.01, 0.0]), told, width, prior_of())
    apart = shrink(np.array([0.15, -0.15, 0.1, -0.12, 0.14, -0.1]), told, width, prior_of())
    assert close.band < 1.28 * 0.05 < apart.band


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
    assert measured_time("4300 ms") == 4.3
    for bad in ("", ":tp=2", "x.log:tp=2,tp=4"):
        with pytest.raises(InputError):
            parse_run(bad)
    for bad in ("8 s:tpp=2", "8 s:gpus=x", "8 s:gpus=7,tp=2", "none.log:tp=2", "0 s:tp=2"):
        with pytest.raises(PlannerError):
            observe(BASE, bad)


def test_a_log_gives_step_time_and_stack(tmp_path: Path) -> None:
    lines = [logs.MEGATRON_2026.format(step=s, ms=9000 if s < 3 else 8000 + s) for s in range(1, 31)]
    (tmp_path / "a.log").write_text("\n".join(lines).replace("size:   512", "size:   128"))
    seen, said = observe(BASE, f"{tmp_path / 'a.log'}:tp=2")
    assert seen.seconds == pytest.approx(8.0185, abs=0.01)
    assert any("24 of 30 steps" in line for line in said)
    (tmp_path / "b.log").write_text(logs.NANOTRON_2024.format(step=1, k=8.1))
    assert observe(BASE, f"{tmp_path / 'b.log'}:tp=2")[0].problem.stack.name == "nanotron-2024"
    (tmp_path / "t.log").write_text(logs.TITAN_2026.format(step=1, tps=8192))
    assert observe(BASE, f"{tmp_path / 't.log'}:tp=2")[0].seconds == pytest.approx(8.0)
    (tmp_path / "d.log").write_text(logs.DEEPSPEED_2024.format(step=1, rate=16.0))
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
