"""Are dry runs as far from steps measured on a GPU as the docs say? Needs PyTorch, transformers and peft."""

from __future__ import annotations

import csv
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.dry_runs import Judged, errors, judged, section, time_errors
from benchmarks.published_data import beside, published

FEW = ("0", "43", "53", "57", "94")  # plain, autocast, experts, adapters; one that ran out of memory


@pytest.mark.slow
def test_measured_steps_are_met(tmp_path: Path) -> None:
    for name in ("torch", "transformers", "peft"):
        pytest.importorskip(name)
    with published("device/transformers_one_gpu.csv").open(newline="", encoding="utf-8") as lines:
        configs = beside("device/configs")
        found = [judged(row, configs, tmp_path) for row in csv.DictReader(lines) if row["id"] in FEW]
    assert abs(errors(found, "allocated")).max() < 0.001
    assert abs(errors(found, "reserved")).max() < 0.01
    assert [one.verdict for one in found] == ["fits"] * 4 + ["does_not_fit"]
    off = dict(zip(FEW, time_errors(found, "step"), strict=False))
    assert abs(off["0"]) < 0.06
    # transformers 5.24 leaves out 24 fills of its experts, a fifteenth of the step; 5.17 was measured
    as_measured = version("transformers").startswith("5.17.")
    assert abs(off["53"]) < (0.03 if as_measured else 0.1)
    # the host issues these two, and was faster one day than on another
    assert max(abs(off["43"]), abs(off["57"])) < 0.2


def test_a_section_counts_verdicts_and_tells_what_was_not_run() -> None:
    ran = Judged("1", "small", False, "fits", 10.0, 11.0, 10.0, 10.0, 1.0)
    failed = Judged("2", "large", True, "borderline", 90.0, 95.0, None, None, 1.0)
    unrun = Judged("3", "compiled", False, "", None, None, 5.0, 6.0, 0.0, "torch.compile")
    timed = replace(ran, times={"step": 0.11, "forward": 0.04, "backward": 0.06, "optimizer": 0.01})
    measured = {"step": 0.1, "forward": 0.04, "backward": 0.05, "optimizer": 0.01}
    text = section([replace(timed, measured_times=measured), failed, unrun])
    assert "| step time | 1 | 10.0% | 10.0% | 10.0% |" in text
    assert "| small | 110 / 100 (+10%) | 40 / 40 (+0%) | 60 / 50 (+20%) | 10 / 10 (+0%) |" in text
    assert text.startswith(
        "2 of 3 runs can be run dry: 0 of 1 recorded failures are called a fit, 0 of 1 that ran no"
    )
    assert "| small | fits | 10.00 / 10.00 (+0.00%) | 11.00 / 10.00 (+10.00%) |" in text
    assert "| large | borderline | 90.00 / out of memory | 95.00 / out of memory |" in text
    assert "| compiled | not run: torch.compile | | |" in text
