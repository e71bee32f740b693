"""Do calibration files change what they name, keep bounds, and refuse what they cannot mean?"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from planner.answer.estimate import make_estimate
from planner.ask.request import Request
from planner.catalog.load_overlay import load_overlay, save_overlay
from planner.catalog.load_stacks import load_stack
from planner.errors import FileInputError, InputError
from planner.report.words import texts
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.overlay import LinkSection, Overlay

REQUEST = Request(
    model="llama-3-8b", cluster="dgx-h100", gpus=32, seq_len=8192, global_batch="64", set={"tp": (2,)}
)


def overlay(**changes: object) -> Overlay:
    fields = {"name": "ours", "date": "2026-11-21", "level": "L3", "made_from": ["one run"]}
    return Overlay.model_validate(fields | changes)


def estimate(tmp_path: Path, calibration: Overlay | None, request: Request = REQUEST) -> float:
    if calibration is None:
        return make_estimate(request).choices[0].step_time
    save_overlay(calibration, tmp_path / "c.yaml")
    load_overlay.cache_clear()
    return make_estimate(replace(request, calibration=str(tmp_path / "c.yaml"))).choices[0].step_time


def test_empty_overlay_changes_no_prediction(tmp_path: Path) -> None:
    assert estimate(tmp_path, overlay()) == estimate(tmp_path, None)


def test_slower_compute_and_links_are_slower(tmp_path: Path) -> None:
    before = estimate(tmp_path, None)
    slower = estimate(tmp_path, overlay(multiply={"compute.gemm": 1.2}))
    assert 1.05 < slower / before < 1.2
    half = estimate(tmp_path, overlay(links={"scale_up_bandwidth": 0.5, "fabric_bandwidth": 0.5}))
    assert half > before * 1.01


def test_values_take_units_and_keep_bounds() -> None:
    stack = overlay(
        values={"host.step_overhead": "250 ms"}, multiply={"communication.dp_overlap": 3}
    ).of_stack(load_stack("megatron-2026"))
    assert stack.host.step_overhead == 0.25
    assert stack.communication.dp_overlap == 1.0
    assert stack.calibration is not None
    assert stack.calibration.level == "L3"


def test_level_and_band_reach_the_answer(tmp_path: Path) -> None:
    save_overlay(overlay(band=0.05), tmp_path / "c.yaml")
    plan = make_estimate(replace(REQUEST, calibration=str(tmp_path / "c.yaml")))
    assert (plan.confidence.level, plan.confidence.band) == ("L3", 0.05)
    assert "one run" in " ".join(texts(plan.confidence.explanation))


def test_round_trip(tmp_path: Path) -> None:
    given = overlay(multiply={"compute.gemm.fp8": 1.07}, links=LinkSection(fabric_latency=2.0), band=0.1)
    save_overlay(given, tmp_path / "c.yaml")
    load_overlay.cache_clear()
    assert load_overlay(str(tmp_path / "c.yaml")) == given


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stack": "nanotron-2024"}, "holds for the stack nanotron-2024"),
        ({"multiply": {"compute.gem": 2}}, "section.field"),
        ({"multiply": {"kernels.dropout": 2}}, "section.field"),
        ({"values": {"host.step_overhead": "-3 ms"}}, "step_overhead"),
        ({"values": {"host.step_overhead": 3}}, "unit"),
    ],
)
def test_what_an_overlay_cannot_mean(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        overlay(**changes).of_stack(load_stack("megatron-2026"))


def test_another_accelerator() -> None:
    with pytest.raises(InputError, match="holds for h100-sxm"):
        overlay(accelerator="h100-sxm").of_cluster(load_cluster("dgx-b200", 8))


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "a: b: c", "name: x", "\x00", "name: x\ndate: y\nlevel: L9\nmade_from: [z]", "&a [*a]"],
)
def test_files_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    load_overlay.cache_clear()
    with pytest.raises(FileInputError):
        load_overlay(str(tmp_path / "bad.yaml"))


def test_factors_are_finite() -> None:
    for factor in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="multiply"):
            overlay(multiply={"compute.gemm": factor})
