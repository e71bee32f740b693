"""Checkpointing by operations: what torchtitan's policy keeps of a layer, and what it does again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from planner.cost.cut import LayerShape
from planner.cost.layer_memory import layer_parts
from planner.cost.network.collectives import CollectiveKind
from planner.cost.operations.lists import layer_gemms
from planner.cost.selective import kept_bytes, kept_shares
from planner.solve.step_messages import step_messages
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ParallelConfig, Recompute
from planner.spec.layer import Layer
from planner.spec.load_model import load_model
from planner.spec.precision import RECIPES, Precision
from planner.spec.rule import Problem
from tests.cost.memory.test_activations import TOKENS, shape
from tests.problems import costs, dense_model, operations, problem

OP = 1 << RECOMPUTE_MODULES.index("op")


def shares(model: str, stack: str, precision: Precision = Precision.BF16) -> dict[str, float]:
    subject = problem(load_model(model), stack=stack, precision=precision)
    layer = subject.model.layers[-1]
    return kept_shares(subject, RECIPES[precision], layer_gemms(layer, subject.model.hidden), layer.wide)


def held(subject: Problem, layer: Layer, x: LayerShape) -> NDArray[np.float64]:
    run, ops = operations(subject, layer)
    return kept_bytes(subject, run, layer, ops, x, layer_parts(subject, run, ops, x))


def test_every_second_product_is_kept() -> None:
    """0.1: q, not k, v; not the output's; gate, not up; down. 0.3 multiplies by q, k and v at once."""
    found = shares("llama-3-8b", "torchtitan-2024")
    assert found == {"qkv": pytest.approx(5 / 6), "attention_out": 0, "mlp_fc1": 0.5, "mlp_fc2": 1}
    assert shares("llama-3-8b", "torchtitan-2026") == {**found, "qkv": 1}


@pytest.mark.parametrize("precision", [Precision.FP8_CS, Precision.FP8_MX])
def test_products_in_8_bits_are_kept_as_those_in_16(precision: Precision) -> None:
    """torchao's tensors dispatch `mm`: Llama 3 8B peaks at 33.7, 33.9 and 33.4 GB in bf16, MXFP8 and float8 (torchtitan
    b5bcd76 torchtitan/components/quantization/mxfp8.md)."""
    for stack in ("torchtitan-2024", "torchtitan-2026"):
        assert shares("llama-3-8b", stack, precision) == shares("llama-3-8b", stack)


def test_products_of_nvfp4_are_done_again() -> None:
    """No `mm`: 111 GiB where bf16 takes 174 (torchtitan torchtitan/components/quantization/nvfp4.md)."""
    assert set(shares("llama-3-8b", "torchtitan-2026", Precision.NVFP4).values()) == {0.0}


def test_routers_and_experts_are_done_again_and_not_counted() -> None:
    found = shares("deepseek-v2-lite", "torchtitan-2026")
    assert found == {
        "q": 1, "kv_a": 0, "kv_b": 1, "attention_out": 0, "router": 0, "shared_fc1": 0.5, "shared_fc2": 1,
        "expert_fc1": 0, "expert_fc2": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stack", "width"), [("torchtitan-2024", 13.4), ("torchtitan-2024+no-compile", 15.4)]
)
def test_bytes_of_a_token_of_7b(stack: str, width: float) -> None:
    """pytorch/torchtitan pull request 165: 26.8 GiB more than full recomputation, which keeps 2 h, of 32 layers and
    16,384 tokens, eager: 13.4 h a token."""
    subject = problem(load_model("llama-2-7b"), stack=stack)
    x, layer = shape(kv_heads=32), subject.model.layers[0]
    kept = held(subject, layer, x)
    assert float(kept[0]) / (TOKENS * 4096) == pytest.approx(width, abs=0.05)


def test_an_adapters_output_is_kept_with_that_of_its_layer() -> None:
    """Of torchtitan's products W x, A x and B A x, the first and the third: of q and v, and of the gate."""
    subject = problem(load_model("llama-2-7b"), stack="torchtitan-2024")
    x, layer = shape(kv_heads=32), subject.model.layers[0]
    adapted = replace(subject, job=replace(subject.job, lora_rank=16))
    found = [held(s, layer, x) for s in (subject, adapted)]
    more = float((found[1] - found[0])[0]) / (2 * TOKENS * 4096)
    assert more == pytest.approx(2 + 11008 / 4096)


def test_tensor_parallel_ranks_keep_what_they_hold() -> None:
    """A t-th of columns; the whole of the last product's partial sums, eager, and reduced shards."""
    subject = problem(load_model("llama-2-7b"), stack="torchtitan-2024+no-compile")
    x, layer = shape(t=8, sp=True, kv_heads=32), subject.model.layers[0]
    kept = held(subject, layer, x)
    whole = 2 * TOKENS * 4096
    split = (
        4 + 11008 / 4096
    ) * whole / 8 + 4 * 32 / 8 * TOKENS  # input, q, v, attention's output; gate; statistics
    assert float(kept[0]) == pytest.approx(split + whole + 2 * whole / 8, rel=1e-6)


def test_time_and_memory_lie_between_none_and_full() -> None:
    model = costs(problem(dense_model(16, 4096, 32, 8, 14336), "1x8 h100", stack="torchtitan-2024"))
    base = {"dp": 8, "num_microbatches": 2, "zero": 3}
    rows = [
        ParallelConfig(**base),
        ParallelConfig(**base, recompute=int(Recompute.SELECTIVE), recompute_modules=OP),
        ParallelConfig(**base, recompute=int(Recompute.FULL), recompute_layers=16),
    ]
    found = model.evaluate(ConfigTable.of(rows))
    assert (np.diff(found.step_time) > 0).all()
    assert (np.diff(found.device_memory) < 0).all()


def test_gathers_of_the_stream_are_repeated_and_reductions_are_not() -> None:
    subject = problem(dense_model(8), "1x8 h100", stack="torchtitan-2024")
    config = ParallelConfig(tp=4, sp=1, dp=2, num_microbatches=4, zero=3)
    operations = replace(config, recompute=int(Recompute.SELECTIVE), recompute_modules=OP)
    calls = [
        {
            e.kind: e.calls
            for e in step_messages(costs(subject), each, 0)
            if e.axis == "tp" and e.what == "hidden_states"
        }
        for each in (config, operations)
    ]
    gather, reduce = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    assert calls[1][gather] == 1.5 * calls[0][gather]
    assert calls[1][reduce] == calls[0][reduce]
