"""Single cells: numbers and switches."""

from __future__ import annotations

import pytest

from benchmarks.published.cells import affirmed, quantity, stated
from benchmarks.published.measured import measurement_of
from benchmarks.published.runs import RunReader
from planner.errors import UnsupportedError
from tests.benchmarks.rows import MODELS, ROW


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096), ("4096.0", 4096), ("4,096", 4096), ("4_096", 4096), ("4k", 4096), ("128K", 131072),
        ("1e3", 1000), ("4,5", None), ("~8", None), ("16x8", None), ("1e999", None), ("nan", None), ("", None),
    ],
)  # fmt: skip
def test_quantities(text: str, number: float | None) -> None:
    assert quantity(text) == number


def test_what_is_not_known_is_not_stated_and_what_is_denied_not_said() -> None:
    assert [stated(text) for text in ("", "N/A", "-", "Unknown", "not stated", "none")] == [""] * 5 + ["none"]
    assert affirmed("bf16 (no fp8), without torch.compile").split() == ["bf16", "(", "),", ".compile"]


def test_a_length_in_thousands_is_read_and_said() -> None:
    run = RunReader(MODELS).read({**ROW, "seq_len": "4k"})
    assert run.problem.job.seq_len == 4096
    assert "seq_len '4k': 4096" in run.assumed
    assert "gpus '1k': 1024" in RunReader(MODELS).read({**ROW, "gpus": "1k", "dp": "128"}).assumed
    with pytest.raises(UnsupportedError, match="seq_len"):
        RunReader(MODELS).read({**ROW, "seq_len": "4,5"})


def test_a_rate_is_compared_on_the_length_that_was_read() -> None:
    row = {"gpus": "8", "seq_len": "4k", "global_batch": "16", "tokens_per_s_per_gpu": "1,024"}
    assert measurement_of(row).step_time == 8.0


@pytest.mark.parametrize(("text", "domain"), [("0", 1), ("no", 1), ("1", 1), ("8", 8), ("", 8), ("none", 8)])
def test_scale_up_domains(text: str, domain: int) -> None:
    run = RunReader(MODELS).read({**ROW, "nvlink_domain": text})
    assert run.problem.cluster.scale_up_domain == domain
