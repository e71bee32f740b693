"""Does each stack's own context parallelism cost what its framework does?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.device.kernels import memory_bound_time
from planner.cost.network.collectives import CollectiveKind, all_gather_time, p2p_time, reduce_scatter_time
from planner.cost.network.context import context_kinds, merged_bytes
from planner.cost.network.traffic import group_links
from planner.solve.step_messages import step_messages
from planner.spec.config import ConfigTable, ContextKind, ParallelConfig
from tests.problems import attention, costs, dense_model, layer_of, problem

MODEL = dense_model(8, 4096, 32, 8, 14336)
RING = ParallelConfig(cp=4, dp=2)


def subject(stack: str, seq_len: int = 32768):  # type: ignore[no-untyped-def]
    return problem(MODEL, "1x8 h100", seq_len=seq_len, stack=stack)


def test_what_merging_moves() -> None:
    """10 tokens, 2 heads of 4 on a rank, 3 steps: 12 and 2 x 10 bytes an output; 10 and 3 x 10 a gradient; keys and
    values, as many as queries, laid together in either pass."""
    ahead, back = merged_bytes(attention(4, 2, 4), np.array([10.0]), np.array([2.0]), np.array([3.0]))
    own, pairs = 10 * 2 * 4, 10 * 2 * 8
    assert float(ahead[0]) == (12 + 2 * 10) * own + 4 * pairs
    assert float(back[0]) == (10 + 3 * 10) * (own + pairs) + 4 * pairs


@pytest.mark.parametrize(
    ("stack", "kinds"),
    [
        ("megatron-2026", (0, 1, 2)), ("torchtitan-2024", (0, 1, 2)), ("torchtitan-2026", (1, 1, 2)),
        ("maxtext-2024", (1, 1, 2)), ("deepspeed-2025", (2, 1, 2)),
    ],
)  # fmt: skip
def test_p2p_is_what_the_stack_has(stack: str, kinds: tuple[int, ...]) -> None:
    assert tuple(context_kinds(subject(stack), np.arange(3, dtype=np.int32))) == kinds
    asked = [ParallelConfig(cp=4, dp=2, cp_kind=kind) for kind in ContextKind]
    cost = layer_of(subject(stack), *asked)
    for term in ("attention", "cp_comm"):
        for times in (cost.forward[term], cost.backward[term]):
            assert times[0] == times[kinds[0]]


def test_windows_are_gathered_and_sinks_dealt_by_heads() -> None:
    """Transformer Engine's ring takes neither. 8 keys and values of 128 of 8,192 tokens over 4 ranks, in 16 bits:
    gathered in either pass, their gradients scattered, nothing hidden; as many again of 32 heads in the all-to-all."""
    layer = MODEL.blocks[0]
    assert layer.attention is not None
    windowed, sunk = (
        replace(
            MODEL, layers=(replace(layer, attention=replace(layer.attention, **change)), *MODEL.layers[1:])
        )
        for change in ({"window": 4096}, {"window": 4096, "sinks": True})
    )
    kinds = [model.context_kinds for model in (MODEL, windowed, sunk)]
    assert kinds == [tuple(ContextKind), (ContextKind.ALL_GATHER, ContextKind.A2A), (ContextKind.A2A,)]
    assert sunk.context_kind(ContextKind.ALL_GATHER) is ContextKind.A2A
    assert windowed.context_kind(ContextKind.A2A) is ContextKind.A2A  # as asked
    given = problem(windowed, "1x8 h100", seq_len=32768)
    links = costs(given).links
    group = group_links(np.array([1.0]), np.array([4.0]), given.cluster)
    whole = np.array([32768 * 8 * 2 * 128 * 2.0])
    gather, scatter = (float(time(whole, group, links)[0]) for time in (all_gather_time, reduce_scatter_time))
    for kind in given.model.layer_kinds:  # one --cp-comm-type for all layers
        cost = costs(given).layers.layer(kind, ConfigTable.of([RING]))
        assert float(cost.forward["cp_comm"][0]) == pytest.approx(gather)
        assert float(cost.backward["cp_comm"][0]) == pytest.approx(gather + scatter)
    sent = {e.kind: e.sent for e in step_messages(costs(given), RING, 0) if e.axis == "cp"}
    assert sent == dict.fromkeys((CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER), whole[0] * 3 / 4)
    dealt = step_messages(costs(problem(sunk, "1x8 h100", seq_len=32768)), RING, 0)
    found = {e.what: e.sent for e in dealt if e.axis == "cp"}
    own = whole[0] / 4
    assert found == {"keys_and_values": own * 3 / 4, "queries_and_outputs": 4 * own * 3 / 4}


def test_ulysses_deals_heads() -> None:
    """DeepSpeed's: 8,192 tokens of 32 heads of queries and as many of outputs, and of 8 of keys and values, of 128 in
    16 bits, 3/4 of which go to the 3 other ranks; no ring, whose steps attention would hide."""
    given = subject("deepspeed-2025")
    dealt = [e for e in step_messages(costs(given), replace(RING, zero=3), 0) if e.axis == "cp"]
    assert {e.kind for e in dealt} == {CollectiveKind.ALL_TO_ALL}
    own = 8192 * 2 * 8 * 128 * 2.0
    assert {e.what: e.sent for e in dealt} == {
        "keys_and_values": own * 3 / 4,
        "queries_and_outputs": 4 * own * 3 / 4,
    }
    assert float(layer_of(given, RING).forward["cp_comm"][0]) > 0


def test_nothing_hides_what_torchs_ring_gathers() -> None:
    """Keys and values of 32 heads over 4 ranks, in 16 bits; backward again, and their gradients 4 times in 32."""
    given = subject("torchtitan-2024")
    links, cluster = costs(given).links, given.cluster
    group = group_links(np.array([1.0]), np.array([4.0]), cluster)
    nvlink, pairs = cluster.tiers[0].bandwidth, 32768 / 4 * 32 * 2 * 128
    gather = all_gather_time(np.array([4 * 2.0 * pairs]), group, links)
    passed = p2p_time(np.array([4.0 * pairs]), np.array([False]), nvlink, group.message, links)
    cost = layer_of(given, RING)
    assert float(cost.forward["cp_comm"][0]) == pytest.approx(float(gather[0]))
    assert float(cost.backward["cp_comm"][0]) == pytest.approx(float(gather[0] + 4 * passed[0]))
    found = {(e.kind, e.what): e for e in step_messages(costs(given), RING, 0) if e.axis == "cp"}
    whole = found[CollectiveKind.ALL_GATHER, "keys_and_values"]
    back = found[CollectiveKind.P2P, "keys_and_values_gradients"]
    assert (whole.size, whole.calls) == (4 * 2 * pairs, 2 * 8 * RING.num_microbatches)
    assert (back.sent, back.calls) == (4 * pairs, 4 * 8 * RING.num_microbatches)


def test_torchs_ring_works_on_the_blocks_of_any_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside them merging takes its bytes at the memory's rate, however slow the attention kernel."""
    given = subject("torchtitan-2024", 131072)
    rates = costs(given).layers.rates
    whole = layer_of(given, RING)
    moved = merged_bytes(MODEL.attentions[0], np.array([131072 / 4]), np.array([1.0]), np.array([4.0]))
    monkeypatch.setattr("planner.cost.device.mixing.merged_bytes", lambda *_: (np.zeros(1), np.zeros(1)))
    blocks = layer_of(given, RING)
    ring = given.stack.communication.model_copy(update={"cp_exchange": "ring"})
    other = given.stack.model_copy(update={"communication": ring})
    plain = layer_of(problem(MODEL, "1x8 h100", seq_len=131072, stack=other), RING)
    for one, alone, any_ring, each in zip(
        (whole.forward, whole.backward), (blocks.forward, blocks.backward), (plain.forward, plain.backward), moved,
        strict=True,
    ):  # fmt: skip
        seconds = memory_bound_time(each, rates.bandwidth, rates.kernels)
        assert one["attention"] - alone["attention"] == pytest.approx(seconds, rel=1e-6)
        assert alone["attention"] <= any_ring["attention"] < 1.03 * alone["attention"]
