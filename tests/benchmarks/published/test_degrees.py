"""Degrees that follow from others, and those of a plan where nothing tells them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.published.predict import predict_runs
from benchmarks.published.runs import Run, RunReader
from planner.errors import UnsupportedError
from planner.spec.config import Recompute
from planner.spec.verdict import MemoryVerdict
from tests.benchmarks.rows import MODELS, ROW

LARGE: dict[str, Any] = {
    "layers": 96, "hidden": 12288, "ffn": 49152, "heads": 96, "kv_heads": 96, "head_dim": 128, "vocab": 51200,
    "tied_embeddings": True, "gated_mlp": False, "attention": "mha",
}  # fmt: skip
MIXTURE: dict[str, Any] = {
    **MODELS["small"], "vocab": 32000, "ffn": None,
    "moe": {"experts": 8, "top_k": 2, "expert_ffn": 14336, "shared_ffn": 0, "first_dense_layers": 0, "moe_every": 1},
}  # fmt: skip
EMPTY = dict.fromkeys(("tp", "cp", "pp", "dp", "vpp", "schedule", "sequence_parallel", "micro_batch"), "")
GPT3 = {
    **EMPTY,
    "model": "large",
    "gpus": "1024",
    "gpu": "a100_sxm_80g",
    "seq_len": "2048",
    "global_batch": "1536",
}


def read(**changed: str) -> Run:
    return RunReader({**MODELS, "large": LARGE, "mixture": MIXTURE}).read({**ROW, **changed})


def degrees(run: Run) -> tuple[int, int, int, int]:
    return run.config.tp, run.config.cp, run.config.pp, run.config.dp


@pytest.mark.parametrize("axis", ["tp", "cp", "pp"])
@pytest.mark.parametrize("known", [(4, 1, 2, 8), (2, 2, 2, 8), (8, 1, 1, 8), (1, 4, 16, 1)])
def test_one_empty_degree_follows_from_the_others(axis: str, known: tuple[int, int, int, int]) -> None:
    cells = dict(zip(("tp", "cp", "pp", "dp"), map(str, known), strict=True))
    run = read(**{**cells, axis: ""})
    assert degrees(run) == known
    assert any(said.startswith(f"{axis} not stated: {cells[axis]}") for said in run.assumed)


def test_what_does_not_multiply_up_is_said() -> None:
    run = read(tp="", dp="100", sequence_parallel="", seq_len="1024")
    assert degrees(run) == (1, 1, 2, 32)
    assert "dp 100 contradicts 64 devices: 32" in run.assumed
    run = read(tp="", dp="100", sequence_parallel="True")
    assert run.config.tp > 1
    assert f"dp 100 contradicts 64 devices: {run.config.dp}" in run.assumed
    with pytest.raises(UnsupportedError, match="must divide the device count"):
        read(tp="3", pp="", dp="")


def test_several_empty_degrees_are_one_where_that_fits() -> None:
    run = read(
        tp="", cp="", pp="", dp="", schedule="", vpp="", sequence_parallel="", seq_len="1024", micro_batch="1"
    )
    assert degrees(run) == (1, 1, 1, 64)
    assert {"tp not stated: 1", "cp not stated: 1", "pp not stated: 1"} <= set(run.assumed)


@pytest.mark.parametrize(
    ("changed", "axis"),
    [({"schedule": "1f1b"}, "pp"), ({"vpp": "2"}, "pp"), ({"sequence_parallel": "True"}, "tp")],
)
def test_the_rest_of_a_row_names_axes(changed: dict[str, str], axis: str) -> None:
    run = read(**{**EMPTY, "dp": "16", "micro_batch": "1", "seq_len": "1024", **changed})
    assert getattr(run.config, axis) > 1
    assert run.config.dp == 16
    assert any("not stated: those of a plan" in said for said in run.assumed)


@pytest.mark.parametrize("changed", [{}, {"tp": "8"}, {"recompute": "full"}, {"recompute": ""}, {"pp": "8"}])
def test_a_model_that_fits_on_no_device_is_divided_as_in_a_plan(changed: dict[str, str]) -> None:
    run = read(**GPT3 | changed)
    config = run.config
    assert config.tp * config.pp > 1
    assert config.tp * config.cp * config.pp * config.dp == 1024
    assert 1536 % config.dp == 0
    for axis, value in changed.items():
        assert axis == "recompute" or getattr(config, axis) == int(value)
    assert (config.recompute is Recompute.FULL) is (changed.get("recompute") == "full")
    found = predict_runs([run])[0]
    assert found is not None
    assert found.verdict is MemoryVerdict.FITS
    said = [what for what in run.assumed if "those of a plan" in what]
    assert len(said) == 1
    assert f"dp{config.dp}" in said[0]


def test_a_plan_is_the_fastest_of_what_fits() -> None:
    planned = read(**GPT3)
    others = [
        read(
            **GPT3
            | {"tp": str(tp), "cp": "1", "pp": str(pp), "dp": str(1024 // tp // pp), "micro_batch": "1"}
        )
        for tp, pp in ((8, 16), (8, 4), (4, 8), (8, 8))
    ]
    first, *rest = predict_runs([planned, *others])
    assert first is not None
    assert first.step_time is not None
    for other in rest:
        assert other is not None
        if other.verdict is MemoryVerdict.FITS and other.step_time is not None:
            assert first.step_time <= 1.01 * other.step_time  # pipelines are not simulated to choose


def test_experts_of_a_large_mixture_are_divided_where_they_do_not_fit() -> None:
    row = {
        **EMPTY,
        "model": "mixture",
        "tp": "2",
        "pp": "2",
        "dp": "16",
        "vpp": "1",
        "ep": "",
        "seq_len": "4096",
        "gpu": "a100_sxm_40g",
    }
    run = read(**row)
    assert run.config.ep > 1
    assert any(said.startswith("ep not stated: those of a plan") for said in run.assumed)
    assert read(**row | {"ep": "1"}).config.ep == 1
    small = read(model="moe", ep="")
    assert small.config.ep == 1  # it fits
    assert "ep not stated: 1" in small.assumed


def test_a_plan_deals_the_experts_that_a_row_divides() -> None:
    """Over four ranks: of 48 devices in 16 stages, three to each, no four are left."""
    row = {
        **EMPTY,
        "model": "mixture",
        "gpus": "48",
        "gpu": "gb200",
        "gpus_per_node": "4",
        "nvlink_domain": "4",
    }
    row |= {"ep": "4", "global_batch": "48", "cp": "1", "framework": "llm.c"}
    config = read(**row | {"schedule": "gpipe"}).config
    assert config.ep == 4
    assert config.pp > 1
    assert config.tp * config.cp * config.dp % (config.ep * config.etp) == 0
    assert read(**row | {"tp": "1", "pp": "16"}).config.ep == 4  # as it says


def test_what_no_plan_fits_stays_too_large() -> None:
    run = read(**GPT3 | {"gpus": "8", "global_batch": "8"})
    found = predict_runs([run])[0]
    assert found is not None
    assert found.verdict is MemoryVerdict.DOES_NOT_FIT
    assert not any("those of a plan" in said for said in run.assumed)


def test_long_sequences_may_be_divided() -> None:
    run = read(**EMPTY, gpus="64", seq_len="1048576", global_batch="8", recompute="full")
    assert run.config.cp > 1
    assert run.config.dp <= 8
