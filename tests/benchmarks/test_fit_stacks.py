"""The fit finds numbers that made the measurements, and changes nothing else in a stack's file."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cross_validate import Error, StackErrors, publisher_spread, widening_of
from benchmarks.fit_stacks import Fit, Sample, fit_stack, publisher_of, retimed, write_fit
from benchmarks.published.predict import predict_runs
from benchmarks.published.runs import RunReader
from benchmarks.stack_parameters import Parameter
from planner.catalog.load_stacks import STACKS_FOLDER, load_stack, read_stack
from planner.spec.precision import Dtype
from tests.benchmarks.rows import MODELS, ROW

PARAMETERS = (
    Parameter("gemm", "bf16", 0.6, 1.8),
    Parameter("communication", "tp_exposed", 0.2, 2.5),
)
NAME = "megatron-2024"


def test_the_fit_recovers_what_made_the_measurements() -> None:
    reader, shipped = RunReader(MODELS), load_stack(NAME)
    # of a host that no layer waits for, else products and collectives that it hides could be anything
    host = shipped.host.model_copy(update={"layer_floor": 0.5e-3, "layer_floor_tp": 0.5e-3})
    stack = shipped.model_copy(update={"host": host})
    changed = [
        {"seq_len": s, "tp": t, "dp": d} for s in ("4096", "8192") for t, d in (("2", "16"), ("8", "4"))
    ]
    runs = [reader.read({**ROW, **change}) for change in changed]
    compute = stack.compute.model_copy(update={"gemm": {**stack.compute.gemm, Dtype.BF16: 1.3}})
    communication = stack.communication.model_copy(update={"tp_exposed": 1.2})
    truth = stack.model_copy(update={"compute": compute, "communication": communication})
    made = predict_runs([replace(run, problem=replace(run.problem, stack=truth)) for run in runs])
    samples = [
        Sample(run, "", prediction.step_time or 0.0, (str(i),), (str(i),), "made")
        for i, (run, prediction) in enumerate(zip(runs, made, strict=True))
        if prediction is not None
    ]
    fit = fit_stack(stack, PARAMETERS, samples)
    assert fit.after.max() < 0.03
    assert fit.after.max() < 0.3 * fit.before.max()
    assert abs(fit.values["gemm.bf16"] - 1.3) < 0.1


def test_a_fit_keeps_what_a_row_fixes_of_its_communication() -> None:
    stack = load_stack("megatron-2026")
    own = stack.model_copy(
        update={"communication": stack.communication.model_copy(update={"ep_overlap": 0.8})}
    )
    numbers = stack.model_copy(
        update={"communication": stack.communication.model_copy(update={"tp_exposed": 1.7})}
    )
    made = retimed(own, numbers, PARAMETERS).communication
    assert (made.ep_overlap, made.tp_exposed) == (0.8, 1.7)


def test_releases_of_a_publisher_are_one() -> None:
    assert publisher_of("megatron_bridge_26.08") == publisher_of("dgxc_benchmarking_24.11") == "nvidia"
    assert publisher_of("vtrain_single") == publisher_of("vtrain_multi") != publisher_of("simumax_b200")


def test_numbers_do_not_see_the_group_they_are_judged_on() -> None:
    """Three machines that agree and one twice as slow: the odd one is predicted like the others when left out."""
    reader = RunReader(MODELS)
    runs = [
        reader.read({**ROW, "tp": t, "dp": d}) for t, d in (("1", "32"), ("2", "16"), ("4", "8"), ("8", "4"))
    ]
    made = [p.step_time or 0.0 for p in predict_runs(runs) if p]
    rows = [
        Sample(run, "", time * (1.5 if fold == 3 else 1.0), (str(fold), str(i)), (str(fold),), "made", i)
        for fold in range(4)
        for i, (run, time) in enumerate(zip(runs, made, strict=True))
    ]
    model = StackErrors(NAME, rows)
    unseen = np.expm1(model.unseen())
    odd = np.array([sample.fold == ("3",) for sample in rows])
    assert np.abs(unseen[odd] + 1 / 3).max() < 0.08
    assert np.abs(model.hidden(lambda sample: sample.publisher == "made", {NAME: model})[odd]).min() > 0.2


def test_writing_keeps_every_other_line(tmp_path: Path) -> None:
    file = tmp_path / f"{NAME}.yaml"
    shutil.copy(STACKS_FOLDER / file.name, file)
    before = file.read_text().splitlines()
    errors = np.array([0.05, 0.10])
    values = {"gemm.bf16": 1.234, "communication.tp_exposed": 0.5, "accelerator.gb200": 0.9}
    chips = tuple(Parameter("accelerator", name, 0.75, 1.33) for name in ("gb200", "b200"))
    write_fit(file, Fit(load_stack(NAME), values, 2, 2, errors, errors), (*PARAMETERS, chips[0]))
    values |= {"accelerator.b200": 1.02, "accelerator.gb200": 0.98}
    write_fit(file, Fit(load_stack(NAME), values, 2, 2, errors, errors), (*PARAMETERS, *chips))
    stack, after = read_stack(file), file.read_text().splitlines()
    assert stack.compute.gemm_factor(Dtype.BF16) == 1.234
    assert stack.communication.tp_exposed == 0.5
    assert stack.band == load_stack(NAME).band
    assert stack.fitted == tuple(values)
    assert stack.fitted_on.startswith("2 published step times")
    assert stack.compute.accelerator == {"b200": 1.02, "gb200": 0.98}
    gone = [line for line in before if line not in after]
    assert all(line.strip().split(":")[0] in ("gemm", "tp_exposed", "fitted", "fitted_on") for line in gone)


def test_bands_widen_only_where_errors_do() -> None:
    def errors(power: float) -> list[Error]:
        sizes = np.abs(np.random.default_rng(0).normal(0.0, 0.05, 200))
        devices = [8.0 * 2 ** (i % 6) for i in range(200)]
        return [
            Error("a", "s", False, ("f",), True, float(np.log1p(e * (n / 64) ** power)), n)
            for e, n in zip(sizes, devices, strict=True)
        ]

    assert widening_of(errors(0.0)) == 0
    assert widening_of(errors(0.6)) == pytest.approx(0.6, abs=0.15)
    assert widening_of(errors(0.6)[:20]) == 0
    assert widening_of([e for e in errors(0.6) if e.devices <= 64]) == 0  # too short a span


def test_the_spread_between_publishers_counts_each_once() -> None:
    def errors(source: str, stack: str, *logs: float, judged: bool = True) -> list[Error]:
        return [Error(stack, source, False, (source, stack), judged, log) for log in logs]

    # of one publisher: 0.05 in the mean square
    one = errors("dgxc_1", "a", 0.3, 0.3, 5.0) + errors("nemo_2", "b", -0.1)
    two = errors("other", "a", *[0.1] * 50) + errors("other", "c", 9.0, judged=False)
    # Student's t of two: 1.886
    assert publisher_spread(one + two) == pytest.approx(np.expm1(1.886 * ((0.05 + 0.01) / 2) ** 0.5))
