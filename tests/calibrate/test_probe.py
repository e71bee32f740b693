"""Is a profile complete, valid by its schema and resumable, and does it change the plan where it should?"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from planner.calibrate.profile import (
    Measurement,
    Profile,
    expected,
    link_tests,
    not_used,
    overlay_of,
    read_profile,
)
from planner.catalog.load_overlay import load_overlay
from planner.catalog.loader import load_kernel_rates
from planner.cli import app
from planner.cli.probe import _document
from planner.errors import FileInputError, InputError
from planner.spec.machine.load_cluster import load_cluster

H100 = load_cluster("dgx-h100", 8).accelerator
SHAPES = (
    ("gemm", {"m": 8192, "n": 28672, "k": 4096}),
    ("gemm", {"m": 8192, "n": 8192, "k": 8192}),
    ("attention", {"batch": 1, "seq_q": 8192, "seq_kv": 8192, "heads": 32, "kv_heads": 8, "d_qk": 128, "d_v": 128}),
    ("attention_backward",
     {"batch": 1, "seq_q": 8192, "seq_kv": 8192, "heads": 32, "kv_heads": 8, "d_qk": 128, "d_v": 128}),
    ("memory_bound", {"bytes": 1 << 30}),
)  # fmt: skip


def profile(times: dict[str, float], device: str = "NVIDIA H100 80GB HBM3") -> Profile:
    """A profile whose operations take `times` as long as planner predicts."""
    rates = load_kernel_rates(H100.name)
    rows = []
    for kind, shape in SHAPES * 4:
        empty = Measurement(kind=kind, name="x", dtype="bf16", shape=shape)  # type: ignore[arg-type]
        usual = expected(empty, H100, rates)
        assert usual is not None
        rows.append(empty.model_copy(update={"seconds": usual * times.get(kind, 1.0)}))
    fields = {"kind": "cuda", "name": device, "memory": 8.5e10}
    return Profile.model_validate(
        {"date": "2026-11-21", "device": fields, "versions": {"torch": "2.13"}, "measurements": rows}
    )


def test_a_device_as_expected_changes_nothing() -> None:
    assert set(overlay_of(profile({}), H100, "x", "2026").multiply.values()) == {1.0}


def test_slow_attention_is_found_alone() -> None:
    found = overlay_of(profile({"attention": 1.5, "attention_backward": 1.5}), H100, "x", "2026").multiply
    assert 1.3 < found["compute.attention"] < 1.5
    assert found["compute.gemm.bf16"] == found["compute.memory_bound"] == 1.0


def test_experts_count_beside_all_products() -> None:
    shape = {"rows": 65536, "n": 4096, "k": 7168, "groups": 64}
    empty = Measurement(kind="grouped_gemm", name="experts", dtype="bf16", shape=shape)
    usual = expected(empty, H100, load_kernel_rates(H100.name))
    assert usual is not None
    whole = profile({"gemm": 1.2})
    slow = empty.model_copy(update={"seconds": 2 * usual})
    rows = (*whole.measurements, *[slow] * 30)
    found = overlay_of(whole.model_copy(update={"measurements": rows}), H100, "x", "2026").multiply
    assert found["compute.gemm.bf16"] * found["compute.grouped_gemm"] == pytest.approx(2.0, rel=0.06)


def test_what_is_not_used_is_said_with_its_reason() -> None:
    layer = {
        "batch": 1,
        "tokens": 4096,
        "hidden": 4096,
        "ffn": 14336,
        "heads": 32,
        "kv_heads": 8,
        "recompute": 0,
    }
    common = {"name": "x", "dtype": "bf16"}
    rows = (
        Measurement(kind="launch", shape={"elements": 16}, seconds=5e-6, **common),
        Measurement(kind="layer", shape=layer, seconds=0.012, **common),
        Measurement(
            kind="gemm", name="scaled matmul", dtype="fp8", shape={"m": 1}, skipped="RuntimeError: none"
        ),
    )
    said = not_used(profile({}).model_copy(update={"measurements": rows}), H100)
    assert "5.0 us" in said[0]
    share = float(said[1].split("take ")[1].split("%")[0])
    assert 50 < share < 100
    assert "fp8 was not measured: RuntimeError" in said[2]


def test_a_profile_changes_the_plan_where_it_should(tmp_path: Path) -> None:
    runner = CliRunner()
    (tmp_path / "p.json").write_text(profile({"attention": 2.0, "attention_backward": 2.0}).model_dump_json())
    told = runner.invoke(
        app, ["calibrate", "-", "dgx-h100", "--gpus", "16", "--profile", str(tmp_path / "p.json"),
              "-o", str(tmp_path / "ours.yaml")],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    load_overlay.cache_clear()
    ask = [
        "estimate",
        "llama-3-8b",
        "dgx-h100",
        "--gpus",
        "16",
        "--seq-len",
        "8192",
        "--set",
        "tp=2",
        "--json",
    ]
    before, after = (
        json.loads(runner.invoke(app, [*ask, *more]).stdout)["choices"][0]["time"]
        for more in ([], ["--calibration", str(tmp_path / "ours.yaml")])
    )
    assert after["attention"] > 1.5 * before["attention"]
    assert after["gemm"] == pytest.approx(before["gemm"])


def test_profiles_of_other_devices_are_refused() -> None:
    with pytest.raises(InputError, match="of the cluster's device"):
        overlay_of(profile({}, "NVIDIA A100-SXM4-80GB"), H100, "x", "2026")
    cpu = profile({})
    cpu = cpu.model_copy(update={"device": cpu.device.model_copy(update={"kind": "cpu"})})
    with pytest.raises(InputError, match="CPU"):
        overlay_of(cpu, H100, "x", "2026")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"date": 1}', '{"schema_version": 9}', "[" * 10**5, "NaN"])
def test_files_that_are_no_profile(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(FileInputError):
        read_profile(tmp_path / "p.json")


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    told = CliRunner().invoke(app, ["probe", "-o", str(tmp_path / "p.json")])
    assert told.exit_code == 2
    assert "PyTorch" in told.output
    assert not (tmp_path / "p.json").exists()


def test_times_that_spread_are_pointed_out() -> None:
    def told(spread: float) -> str:
        whole = profile({})
        rows = [m.model_copy(update={"spread": spread}) for m in whole.measurements[:3]]
        console = Console(width=200, file=io.StringIO())
        console.print(_document(whole.model_copy(update={"measurements": (*rows, *whole.measurements[3:])})))
        return str(console.file.getvalue())  # type: ignore[attr-defined]

    assert "3 of 20 operations spread by more than 20%" in told(2.17)
    assert "spread by more" not in told(0.05)
    assert "middle half" in told(0.05)


@pytest.mark.slow
def test_on_a_processor_twice_and_with_collectives(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "p.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "planner", "probe", "--device", "cpu", "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=120, env=environment)
    first = read_profile(out)
    kinds = {measured.kind for measured in first.measurements}
    assert kinds >= {
        "gemm",
        "grouped_gemm",
        "attention",
        "attention_backward",
        "memory_bound",
        "launch",
        "layer",
    }
    assert all(measured.seconds for measured in first.measurements)
    cut = first.model_copy(update={"measurements": first.measurements[:4]})
    out.write_text(cut.model_dump_json())  # as if it had been stopped
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *command[1:]]
    subprocess.run(launch, check=True, capture_output=True, timeout=180, env=environment)
    second = read_profile(out)
    assert second.measurements[:4] == first.measurements[:4]
    assert second.hosts == (2,)
    timed = {measured.name for measured in second.measurements if measured.kind == "collective"}
    assert timed == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"}
    assert {test.kind for test in link_tests(second, "p")} >= {"all_reduce", "all_gather"}
