"""Sizes of messages, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.messages.sizes import whole_qkv_bytes
from planner.cost.network.collectives import all_gather_time, reduce_scatter_time
from planner.cost.network.traffic import group_links
from planner.solve.step_messages import step_messages
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.stack.kinds import KeyValueHeads
from tests.problems import costs, dense_model, problem


@pytest.mark.parametrize(("tp", "gathered"), [(8, False), (16, True)])
def test_megatron_gathers_whole_queries_keys_and_values_beyond_the_key_value_heads(
    tp: int, gathered: bool
) -> None:
    """32 heads and 8 pairs of 64: 2,048 + 2 x 512 outputs of 4,096 tokens in bf16, gathered ahead, scattered back."""
    spec = dense_model(4, heads=32, kv_heads=8)
    subject = problem(spec, load_cluster("gb200-nvl72", 16), stack="megatron-2026", global_batch=16)
    other = subject.stack.communication.model_copy(update={"key_value_heads": KeyValueHeads.COPIED})
    copies = replace(subject, stack=subject.stack.model_copy(update={"communication": other}))
    config = ParallelConfig(tp=tp, sp=1, dp=16 // tp, micro_batch=1, num_microbatches=tp, zero=1)
    size = float(whole_qkv_bytes(subject, spec.layers[0], 4096.0, float(tp), 2.0))
    assert size == gathered * 4096 * (2048 + 1024) * 2
    assert whole_qkv_bytes(copies, spec.layers[0], 4096.0, float(tp), 2.0) == 0
    group, links = group_links(1.0, float(tp), subject.cluster), costs(subject).links
    seconds = gathered * (all_gather_time(size, group, links) + reduce_scatter_time(size, group, links))
    steps = []
    for given in (subject, copies):
        detail = costs(given).evaluate(ConfigTable.of([config]), keep_terms=True).detail
        assert detail is not None
        steps.append(float(detail.time["tp_comm"][0]))
    assert steps[0] - steps[1] == pytest.approx(config.num_microbatches * 4 * seconds)
    sent = [e.sent_per_step for e in step_messages(costs(subject), config, 0) if "queries" in e.what]
    assert sent == 2 * gathered * [config.num_microbatches * 4 * size * (tp - 1) / tp]


@pytest.mark.parametrize("tp", [8, 16])
def test_whole_gradients_of_queries_keys_and_values_lie_twice_before_they_are_scattered(tp: int) -> None:
    """Beside the stream, whole and a rank's share; more than what the MLP needs there, fc2's input and fc1's output."""
    spec = dense_model(4, heads=32, kv_heads=8)
    subject = problem(spec, load_cluster("gb200-nvl72", 16), stack="megatron-2026", global_batch=16)
    table = ConfigTable.of([ParallelConfig(tp=tp, sp=1, dp=16 // tp, num_microbatches=tp, zero=1)])
    working = float(costs(subject).layers.layer(spec.layers[0], table).working[0])
    stream = 4096 * 2048 * 2 * (1 + 1 / tp)
    mlp = 4096 * 7168 * (3 * 2 - 2) / tp
    assert working == pytest.approx(stream + (mlp if tp == 8 else 2 * 4096 * (2048 + 1024) * 2))
