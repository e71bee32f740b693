"""Answers call the devices of a cluster what they are: chips of TPUs, HPUs, GPUs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app
from planner.report import chart_data
from planner.spec.load_plan import load_plan

runner = CliRunner()
# sentences that do speak of GPUs
OF_GPUS = re.compile(
    r"what\s+runs\s+on\s+GPUs|as\s+on\s+a\s+GPU|model\s+x\s+GPU\s+x\s+devices|TPUs\s+and\s+GPUs|gpus"
)
JOB = ["llama-3.2-1b", "tpu-v5e"]


def said(*words: str, code: int = 0) -> str:
    done = runner.invoke(app, list(words))
    assert done.exit_code == code, done.output
    return OF_GPUS.sub("", " ".join(done.output.split()))


def test_a_plan_for_tpus_speaks_of_chips() -> None:
    text = said("plan", *JOB, "--gpus", "16", "--tokens", "100B", "--assume", "price=1.2 $/h")
    assert "GPU" not in text
    for words in ("tokens/s/chip", "chip-hours", "$1.20 per chip-hour"):
        assert words in text


def test_several_hosts_of_a_slice() -> None:
    assert "16 tpu-v5e (2 x 8, 16 in a slice)" in said("estimate", *JOB, "--gpus", "16", "--seq-len", "2048")
    assert "72 in a scale-up domain" in said("estimate", "llama-3.1-8b", "gb200-nvl72", "--gpus", "72")


def test_a_size_is_a_number_of_chips() -> None:
    text = said("size", *JOB, "--tokens", "100B", "--days", "20", "--max-gpus", "64")
    assert "GPU" not in text
    for words in ("chips (", "Time and cost over size chips", "fewest that fit: ", "64 chips"):
        assert words in text
    few = said(
        "size", "llama-3.1-70b", "tpu-v5e", "--tokens", "1T", "--days", "20", "--max-gpus", "8", code=1
    )
    assert "nothing runs on up to 8 chips" in few


def test_devices_of_two_kinds_side_by_side() -> None:
    words = ["compare", "llama-3.2-1b", "--gpus", "16"]
    both = said(*words, "--clusters", "tpu-v5e,dgx-h100")
    for part in (
        "cluster devices",
        "tok/s/device",
        "tpu-v5e, 16 chips",
        "dgx-h100, 16 GPUs",
    ):
        assert part in both
    assert "the number of devices" in said(*words, "--tokens", "1T", "--clusters", "tpu-v5e,dgx-h100")
    alike = said(*words, "--clusters", "tpu-v5e,tpu-v6e")
    assert "cluster chips" in alike
    assert "GPU" not in alike
    refused = said("compare", "llama-3.2-1b", "--gpus", "12,16", "--clusters", "tpu-v5e,tpu-v5p")
    assert "tpu-v5e, 12 chips: no plan" in refused


def test_errors_and_the_head_of_a_cluster() -> None:
    assert "the number of chips must be given" in said("plan", *JOB, code=2)
    assert "must be a whole number from 1" in said("plan", *JOB, "--gpus", "0", code=2)
    priced = said("clusters", "dgx-h100", "--gpus", "8")
    assert "chip" not in priced


@pytest.mark.parametrize(("cluster", "noun"), [("gaudi3", "HPU"), ("trainium2", "chip"), ("mi300x", "GPU")])
def test_other_vendors(cluster: str, noun: str) -> None:
    text = said("plan", "llama-3.2-1b", cluster, "--gpus", "16", "--tokens", "100B")
    assert f"tokens/s/{noun}" in text
    assert f"{noun}-hours" in text
    assert ("GPU" in text) == (noun == "GPU")


def test_pages(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    plan, page = tmp_path / "plan.json", tmp_path / "page.html"
    said("plan", *JOB, "--gpus", "16", "--tokens", "100B", "-o", str(plan))
    said("report", str(plan), "-o", str(page))
    body = page.read_text()
    body = body[body.index("<main") :] if "<main" in body else body
    assert "tokens/s/chip" in body
    assert "A cell is one chip." in body
    assert "GPU" not in OF_GPUS.sub("", re.sub(r"(?s)<script.*?</script>", "", body))
    plan_read = load_plan(plan)
    spans = chart_data.axis_spans(plan_read, plan_read.choices[0])
    assert chart_data.map_rows(spans, plan_read.subject.cluster)[0]["cell"] == "chip 0"


@pytest.mark.parametrize("verb", ["size", "compare"])
def test_pages_of_several_answers(verb: str, tmp_path: Path) -> None:
    pytest.importorskip("altair")
    result, page = tmp_path / "result.json", tmp_path / "page.html"
    words = ["--gpus", "16", "--clusters", "tpu-v5e,tpu-v6e", "--assume", "price=2 $/h"]
    if verb == "size":
        words = ["tpu-v5e", "--days", "20", "--max-gpus", "64"]
    done = runner.invoke(app, [verb, "llama-3.2-1b", "--tokens", "100B", *words, "--json"])
    result.write_text(done.stdout)
    assert "gpus" in json.dumps(json.loads(done.stdout))  # keys stay
    said("report", str(result), "-o", str(page))
    body = re.sub(r"(?s)<script(?! type=\"application/json).*?</script>", "", page.read_text())
    assert "chips" in body
    assert not re.search(r"\bGPUs?\b", OF_GPUS.sub("", body))
    if verb == "size":
        assert "How many chips should it take?" in body


@pytest.mark.parametrize(
    ("cluster", "has", "lacks"),
    [
        ("tpu-v6e", ("tpu-info",), ("context", "nvidia", "cuda")),
        ("mi300x", ("rocm-smi", "hip context"), ("nvidia", "cuda context")),
        ("dgx-h100", ("nvidia-smi", "cuda context"), ("rocm",)),
    ],
)
def test_the_memory_is_told_in_the_vendors_words(
    cluster: str, has: tuple[str, ...], lacks: tuple[str, ...]
) -> None:
    words = ["estimate", "llama-3.2-1b", cluster, "--gpus", "16", "--seq-len", "2048", "--memory"]
    text = said(*words).partition(" Assumed ")[0]
    assert all(word in text for word in has)
    assert not [word for word in lacks if word in text]


@pytest.mark.parametrize(
    ("cluster", "library"), [("mi300x", "RCCL"), ("gaudi3", "HCCL"), ("dgx-h100", "NCCL")]
)
def test_buffers_are_of_the_vendors_library(cluster: str, library: str) -> None:
    assert f"buffers registered with {library}," in said("estimate", "llama-3.2-1b", cluster, "--gpus", "8")
