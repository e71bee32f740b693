"""How many tensors does the host handle for an update?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import planner
from planner.catalog.load_stacks import load_stack
from planner.cost.device.updates import buckets_of, layer_tensors, pieces, trained_tensors
from planner.spec.load_model import load_model
from tests.problems import problem


def test_tensors_of_llama_and_deepseek() -> None:
    # norm, qkv, out, norm, fc1, fc2 of 32 layers; embedding, last norm, head
    assert trained_tensors(problem(load_model("llama-3.1-8b"))) == (0, 32 * 6 + 3)
    layer = load_model("deepseek-v3").layers[-1]
    # two norms, 7 of MLA, router, two of the shared expert; two of each of 256 experts
    assert layer_tensors(layer, 7168) == (512, 12)


def test_adapters_have_two_tensors_a_linear_layer() -> None:
    for name, linear in (("llama-3.1-8b", 32 * 4), ("olmoe-1b-7b", 16 * 2)):
        subject = problem(load_model(name))
        assert trained_tensors(replace(subject, job=replace(subject.job, lora_rank=16))) == (0, linear * 2)


@pytest.mark.parametrize(
    ("tensors", "ranks", "buckets", "held"),
    [(75, 1, 1, 75), (75, 4, 1, 19.5), (75, 4, 75, 75), (75, 4, 1000, 75), (200, 8, 16, 39)],
    ids=["alone", "one bucket", "a bucket each", "more buckets than tensors", "between"],
)
def test_pieces(tensors: int, ranks: int, buckets: int, held: float) -> None:
    assert pieces(np.array([tensors]), np.array([ranks]), np.array([buckets])) == pytest.approx(held)


def test_only_the_first_chunk_is_cut_and_only_where_reductions_overlap() -> None:
    size, dp, chunks = (np.array([number]) for number in (8e9, 8.0, 4.0))
    assert buckets_of(size, dp, chunks, overlapped=True) == 2e9 / 40e6 + 3
    assert buckets_of(size, 50 * dp, chunks, overlapped=True) == 2e9 / 400e6 + 3
    assert buckets_of(size, dp, chunks, overlapped=False) == 4


def test_a_step_takes_the_hosts_time_for_every_tensor() -> None:
    def overhead(zero: int) -> float:
        fits = planner.estimate(
            "llama-3.1-8b",
            "1x8 b200",
            seq_len=4096,
            global_batch=8,
            stack="megatron-2026",
            set={"zero": zero},
        )
        return fits.choices[0].time["step_overhead"]

    host = load_stack("megatron-2026").host
    assert overhead(0) == pytest.approx(host.step_overhead + 195 * host.tensor_update)
    # more buckets of 40 million parameters than tensors: a rank has a part of each
    assert overhead(1) == pytest.approx(overhead(0))
