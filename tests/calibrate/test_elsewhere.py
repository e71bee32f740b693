"""Runs on devices that nobody measured: their logs, what calibrates on them, and what may be wrong with them."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.ask.request import Request
from planner.calibrate.correction.estimate import Observation, calibrate
from planner.calibrate.correction.parts import COMMON, NORMAL_80, prior_of
from planner.calibrate.coverage import unmeasured_band
from planner.calibrate.diagnosis.causes import CAUSES, causes_on
from planner.calibrate.diagnosis.diagnose import diagnose
from planner.calibrate.diagnosis.hypotheses import Evidence
from planner.calibrate.own_runs import observe
from planner.calibrate.predict import predicted_cost
from planner.cli import app
from planner.report.words.causes import cause_words
from planner.spec.machine.architecture import Architecture

OF_NVIDIA = re.compile(r"nvidia-smi|nccl-tests|cuda|torch\.|megatron|--overlap|--moe|NCCL_", re.IGNORECASE)


def seen(times: float, cluster: str = "tpu-v5p", axes: str = "tp=4,zero=3", gpus: int = 256) -> Observation:
    """A run that takes so many times as long as predicted."""
    request = Request("llama-3.1-70b", cluster, gpus=gpus, seq_len=4096, global_batch="1024")
    usual = observe(request, f"10 s:{axes}")[0]
    seconds = predicted_cost(usual.problem, usual.config).seconds * times
    return observe(request, f"{seconds} s:{axes}")[0]


def test_architectures_have_the_causes_they_can_have() -> None:
    for architecture in Architecture:
        causes = causes_on(architecture)
        names = {cause.name for cause in causes}
        assert names <= {cause.name for cause in CAUSES}
        assert ("host" in names) == (not architecture.is_compiled_for)
        if architecture.is_nvidia:
            assert causes == CAUSES
    for cause in causes_on(Architecture.TPU):
        assert not OF_NVIDIA.search(" ".join(cause_words(cause.name, Architecture.TPU))), cause.name
    links = {cause.name: " ".join(cause_words(cause.name, Architecture.CDNA3)) for cause in CAUSES}
    assert "rccl-tests" in links["fabric"]
    assert "rocm-smi" in links["nvlink"]


def test_hosts_of_one_slice_have_no_network_between_them() -> None:
    fabric = next(cause for cause in causes_on(Architecture.TPU) if cause.name == "fabric")
    assert not fabric.needs(seen(1.0))
    assert fabric.needs(seen(1.0, "tpu-v5e", "zero=3", 1024))
    usual = next(cause for cause in CAUSES if cause.name == "fabric")
    assert usual.needs(seen(1.0))


@pytest.mark.parametrize("times", [1.0, 1.3])
def test_what_lies_within_the_band_needs_no_cause(times: float) -> None:
    found = diagnose([Evidence(seen(times))])
    assert found.findings[0].cause is None
    measured = diagnose([Evidence(seen(1.6, "dgx-h100", "tp=8", 128))])
    assert measured.findings[0].cause is not None


@pytest.mark.parametrize("times", [0.7, 1.4, 2.0])
def test_one_run_is_believed_where_nothing_was_measured(times: float) -> None:
    run = seen(times)
    made = calibrate([run], "ours", "2026-01-01")
    assert made.after[0] == pytest.approx(run.seconds, rel=0.03)
    assert made.overlay.multiply["compute.gemm"] == pytest.approx(times, rel=0.06)
    gpus = calibrate([seen(1.4, "dgx-h100", "tp=8", 128)], "ours", "2026-01-01")
    assert gpus.overlay.multiply.get("compute.gemm", 1.0) < 1.2  # published runs speak against it


def test_the_prior_is_as_wide_as_the_answers_band() -> None:
    """No product was timed on a v5p: 1.5 times the least of devices that were not measured."""
    band = unmeasured_band(seen(1.0).problem)
    assert band == pytest.approx(1.5 * 0.42)
    assert unmeasured_band(seen(1.0, "dgx-h100", "tp=8", 128).problem) is None
    assert prior_of()[0, 1] == COMMON**2
    assert prior_of(band)[0, 1] == pytest.approx((math.log1p(1.5 * 0.42) / NORMAL_80) ** 2)


def test_a_program_larger_than_the_device(tmp_path: Path) -> None:
    log = tmp_path / "oom.log"
    log.write_text(
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 63.80G of "
        "31.25G hbm. Exceeded hbm capacity by 32.55G.\n"
    )
    words = ["diagnose", "llama-3.1-8b", "tpu-v6e", "--gpus", "64", "--run", f"{log}:micro_batch=1"]
    done = CliRunner().invoke(app, words)
    text = " ".join(done.output.split())
    assert "needed by the program 63.8 GiB" in text
    assert "the program needs 63.8 GiB" in text
    assert "PyTorch" not in text


@pytest.mark.parametrize("unit", ["chip", "GPU", "device", "tpu", "HPU"])
def test_a_rate_of_a_device_is_read_whatever_it_is_called(unit: str) -> None:
    request = Request("llama-3.1-8b", "tpu-v6e", gpus=64, seq_len=4096, global_batch="512")
    run = observe(request, f"8000 tokens/s/{unit}:zero=3")[0]
    assert run.seconds == pytest.approx(512 * 4096 / 8000 / 64)


def test_runs_of_the_stack_on_a_device_measure_it() -> None:
    """Nobody timed kernels of the H100 with 96 GB and 500 W, but torchtitan-2024 is fitted to runs on it."""
    node = "16x8 h100-sxm-96g-hbm2e-500w 400G-roce"
    request = Request(
        "llama-3.1-8b", node, gpus=128, seq_len=8192, global_batch="256", stack="torchtitan-2024"
    )
    known = observe(request, "5 s:zero=3")[0].problem
    other = observe(replace(request, stack="torchtitan-2026"), "5 s:zero=3")[0].problem
    assert unmeasured_band(known) is None
    assert unmeasured_band(other) is not None
