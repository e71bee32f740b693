"""The machine of a source that timed its products apart."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.kernel_checks import compare_gemms
from benchmarks.published.machines import timed_products
from benchmarks.published.predict import predict_runs
from benchmarks.published.runs import RunReader
from benchmarks.published_data import published
from planner.catalog.cluster_rates import rates_of
from planner.spec.precision import Dtype
from tests.benchmarks.rows import MODELS, ROW

OWN = {**ROW, "source": "simumax_b200", "gpu": "b200", "gpus": "8", "tp": "1", "pp": "1", "dp": "8"}
OTHERS = {**OWN, "source": "bench_26.04"}


@pytest.mark.parametrize(
    ("source", "device", "rate"),
    [("simumax_b200", "b200", 0.835), ("SimuMax", "h200-sxm", 1.0), ("bench", "b200", 1.0)],
)
def test_only_the_machine_that_was_timed_multiplies_at_its_own_rate(
    source: str, device: str, rate: float
) -> None:
    assert timed_products(source, device) == rate


def test_its_products_run_slower_and_its_attention_does_not() -> None:
    reader = RunReader(MODELS)
    own, others = reader.read(OWN), reader.read(OTHERS)
    assert any("0.835 of the catalog's rate" in said for said in own.assumed)
    assert not any("catalog's rate" in said for said in others.assumed)
    slow, usual = (rates_of(run.problem.cluster)[0] for run in (own, others))
    ratio = slow.gemm[Dtype.BF16].efficiency / usual.gemm[Dtype.BF16].efficiency
    assert ratio == pytest.approx(0.835)
    assert (slow.attention.efficiency == usual.attention.efficiency).all()
    first, second = predict_runs([own, others])
    assert first is not None
    assert second is not None
    assert 1.05 < first.step_time / second.step_time < 1 / 0.835


def test_its_rate_is_the_median_of_what_it_timed() -> None:
    timed = compare_gemms(published("hardware/matmul_efficiency.csv.gz"))["b200", "SimuMax fwd"]
    assert len(timed) == 136
    assert timed_products("simumax_b200", "b200") == pytest.approx(median(timed), abs=0.001)
