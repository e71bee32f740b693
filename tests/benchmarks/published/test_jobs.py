"""Batches of a row as it states them, and as they are where it does not."""

from __future__ import annotations

import pytest

from benchmarks.published.predict import predict_runs
from benchmarks.published.runs import Run, RunReader
from planner.spec.verdict import MemoryVerdict
from tests.benchmarks.rows import MODELS, ROW

SHARDED = {
    "tp": "1", "pp": "1", "dp": "64", "micro_batch": "", "seq_len": "4096", "dp_sharding": "zero3",
    "framework": "PyTorch FSDP", "sequence_parallel": "", "vpp": "", "recompute": "full",
}  # fmt: skip


def read(**changed: str) -> Run:
    return RunReader(MODELS).read({**ROW, **SHARDED, **changed})


@pytest.mark.parametrize(
    ("changed", "micro", "number"),
    [
        ({}, 2, 1),
        ({"global_batch": "64"}, 1, 1),
        ({"global_batch": "256"}, 4, 1),
        ({"global_batch": "100"}, 2, 1),
        ({"global_batch": "16384", "seq_len": "65536"}, 1, 256),
        ({"extras": "grad_accum=2"}, 1, 2),
        ({"micro_batch": "1"}, 1, 2),
        ({"tp": "4", "pp": "2", "dp": "8", "framework": "Megatron-LM"}, 1, 16),
        ({"dp_sharding": "zero1", "framework": "Megatron-LM", "seq_len": "1024"}, 2, 1),
    ],
)
def test_a_micro_batch_without_a_pipeline_is_what_fits_of_the_ranks_share(
    changed: dict[str, str], micro: int, number: int
) -> None:
    config = read(**changed).config
    assert (config.micro_batch, config.num_microbatches) == (micro, number)


def test_the_choice_is_said() -> None:
    for batch, length, said in (
        ("64", "4096", "micro_batch not stated: 1"),
        ("128", "4096", "micro_batch not stated: 2, a rank's whole share"),
        ("16384", "65536", "micro_batch not stated: 1, of a rank's 256 no larger divisor fits"),
    ):
        assert said in read(global_batch=batch, seq_len=length).assumed, batch


def test_of_a_share_that_is_too_large_the_largest_divisor_that_fits() -> None:
    run = read(global_batch="6400")
    micro, number = run.config.micro_batch, run.config.num_microbatches
    assert 1 < micro < 100
    assert micro * number == 100
    larger = min(size for size in range(micro + 1, 101) if 100 % size == 0)
    taken, beyond = predict_runs([run, read(global_batch="6400", micro_batch=str(larger))])
    assert taken is not None
    assert beyond is not None
    assert taken.verdict is MemoryVerdict.FITS
    assert beyond.verdict is not MemoryVerdict.FITS
    assert f"micro_batch not stated: {micro}, of a rank's 100 the largest divisor that fits" in run.assumed
