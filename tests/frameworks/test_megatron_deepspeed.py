"""Megatron-DeepSpeed runs tensor parallelism inside a pipeline, plain DeepSpeed does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app

BLOOM = ["bloom-176b", "jean-zay-a100", "--gpus", "384", "--seq-len", "2048", "--global-batch", "2048"]
PINS = {"tp": 4, "pp": 12, "zero": 1, "micro_batch": 2, "recompute": "full"}


def pinned(**changes: object) -> list[str]:
    return [
        *BLOOM,
        *(word for pin in {**PINS, **changes}.items() for word in ("--set", "{}={}".format(*pin))),
    ]


def said(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    code, text = said("estimate", *pinned(), "--stack", "megatron-deepspeed-2022", "-o", str(path))
    assert code == 0, text
    return path


def test_bloom_is_legal_as_it_was_trained(plan_file: Path) -> None:
    code, text = said("estimate", str(plan_file))
    assert (code, "tp4 pp12 dp8 mbs2 zero1 recompute:6 layers" in text) == (0, True)


def test_plain_deepspeed_refuses_it(plan_file: Path, tmp_path: Path) -> None:
    code, text = said("estimate", *pinned(), "--stack", "deepspeed-2025")
    assert (code, "pipeline-flat" in text) == (1, True)
    code, text = said("export", str(plan_file), "--to", "deepspeed", "-o", str(tmp_path / "launch"))
    assert (code, "pipeline-flat" in text) == (2, True)
    assert "Megatron-DeepSpeed runs both" in text
    assert not (tmp_path / "launch").exists()


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"recompute": "selective"}, "recompute-selective"),
        ({"recompute_layers": 3}, "recompute-partial"),
        ({"zero": 2}, "zero-supported"),
        ({"cp": 2}, "cp-supported"),
        ({"vpp": 2}, "vpp-supported"),
    ],
)
def test_what_megatron_deepspeed_lacks(changes: dict[str, object], rule: str) -> None:
    code, text = said("estimate", *pinned(**changes), "--stack", "megatron-deepspeed-2022")
    assert (code, rule in text) == (1, True), text
