"""What does one rank of many ask of its device, under DDP and FSDP2? Needs PyTorch, transformers and accelerate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalog.cluster_rates import rates_of
from planner.catalog.load_host import load_host_rates
from planner.cost.captured.kernels import Device
from planner.cost.captured.operation import Phase
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.outcome import memory_of
from planner.dryrun.recording import Holds, Recording
from planner.dryrun.timing.messages import Wires
from planner.dryrun.timing.step import time_of
from planner.dryrun.transformers.recipe import Adapters, Sharding, Update, Weights
from planner.errors import UnsupportedError
from planner.spec.machine.links import LinkFactors
from planner.spec.machine.load_cluster import load_cluster
from tests.dryrun.steps import LIMIT, PARAMETERS, PLAIN, TINY, held, memory, recorded

pytestmark = pytest.mark.slow
NEEDS = ("torch", "transformers", "accelerate")
RANKS = 8
SHARDED = replace(PLAIN, sharding=Sharding.WEIGHTS, shards=RANKS)
EMBEDDING = 1000 * 256
LAYER = (PARAMETERS - 2 * EMBEDDING - 256) // 2
BF16 = 2


def counted(recording: Recording, name: str) -> int:
    """How often an operation runs in the second step."""
    return sum(one.name == name and one.first > recording.second_step for one in recording.operations)


def test_a_rank_holds_its_share_of_the_states() -> None:
    found = memory(SHARDED)
    assert held(found, Holds.OPTIMIZER_STATES) == pytest.approx(2 * BF16 * PARAMETERS / RANKS, rel=0.01)
    # and the rotary embedding's frequencies, which are whole
    assert held(found, Holds.WEIGHTS) == pytest.approx(BF16 * PARAMETERS / RANKS, rel=0.01)


def test_weights_are_gathered_for_each_layer_or_for_the_step() -> None:
    """At the loss the head and the norm before it are whole; without resharding all that has run is."""
    tail = BF16 * (EMBEDDING + 256)
    assert held(memory(SHARDED), Holds.GATHERED) == tail
    kept = memory(replace(SHARDED, sharding=Sharding.GRADIENTS))
    assert held(kept, Holds.GATHERED) == BF16 * PARAMETERS


def test_units_are_gathered_twice_and_summed_once() -> None:
    """Embedding, two layers, and norm and head, which alone stay between the passes."""
    twice = recorded(SHARDED)
    assert counted(twice, "c10d._allgather_base_.default") == 4 + 3
    assert counted(twice, "c10d._reduce_scatter_base_.default") == 4
    once = recorded(replace(SHARDED, sharding=Sharding.GRADIENTS))
    assert counted(once, "c10d._allgather_base_.default") == 4


def test_gathering_has_streams_of_its_own() -> None:
    streams = {one.stream for one in recorded(SHARDED).operations if one.name.startswith("c10d.")}
    assert len(streams) == 2
    assert 0 not in streams


def test_replicas_of_shards_sum_what_shards_hold() -> None:
    hybrid = recorded(replace(SHARDED, shards=4, replicas=2))
    assert counted(hybrid, "c10d.allreduce_.default") >= 4
    found = memory_of(hybrid, AllocatorSettings(), LIMIT)
    assert held(found, Holds.OPTIMIZER_STATES) == pytest.approx(2 * BF16 * PARAMETERS / 4, rel=0.01)


def test_replicas_hold_all_gradients_in_buckets() -> None:
    """At the loss, where those of parameters are not there yet."""
    assert held(memory(PLAIN), Holds.GRADIENTS) == 0
    assert held(memory(replace(PLAIN, replicas=RANKS)), Holds.GRADIENTS) == BF16 * PARAMETERS


def test_replicas_accumulate_before_they_sum() -> None:
    every = replace(PLAIN, replicas=RANKS)
    assert counted(recorded(replace(every, num_microbatches=4)), "c10d.allreduce_.default") == counted(
        recorded(every), "c10d.allreduce_.default"
    )


def test_whole_gradients_are_held_where_the_last_micro_batch_sums_them() -> None:
    each = replace(SHARDED, num_microbatches=4)
    whole = replace(each, accumulates_whole=True)
    more = memory(whole).allocated_peak - memory(each).allocated_peak
    # of those summed every time the rank's part is there
    assert more == pytest.approx(BF16 * PARAMETERS * (1 - 1 / RANKS), rel=0.1)


def test_shards_under_autocast_are_fp32_and_gathered_narrow() -> None:
    found = memory(replace(SHARDED, weights=Weights.AMP_BF16))
    assert held(found, Holds.WEIGHTS) == pytest.approx(4 * PARAMETERS / RANKS, rel=0.01)
    assert held(found, Holds.GATHERED) == BF16 * (EMBEDDING + 256)


def test_layers_are_divided_over_ranks() -> None:
    """By transformers' own plan: products and their weights, not norms, embedding and what lies between."""
    whole, divided = recorded(SHARDED), recorded(replace(SHARDED, tensor=2))
    # behind attention and MLP, and their gradients before them
    assert counted(divided, "_c10d_functional.all_reduce.default") >= 4 * 2
    assert counted(whole, "_c10d_functional.all_reduce.default") <= 2  # of the norm of gradients
    products = [
        one for one in divided.operations if (one.name, one.phase) == ("aten.mm.default", Phase.FORWARD)
    ]
    widths = {one.given[0][0][-1] for one in products if one.module.endswith("up_proj")}
    assert widths == {TINY["intermediate_size"] // 2}


def test_divided_layers_must_be_sharded() -> None:
    with pytest.raises(UnsupportedError, match="must be sharded too"):
        recorded(replace(PLAIN, tensor=2))


@pytest.mark.parametrize("update", [Update.ADAMW_8BIT, Update.ADEMAMIX, Update.ADAFACTOR])
def test_optimizers_that_take_no_shards_are_refused_by_name(update: Update) -> None:
    """They end on a device as well, with plain tensors beside sharded ones; under DDP they run."""
    for sharding in (Sharding.GRADIENTS, Sharding.WEIGHTS):
        with pytest.raises(UnsupportedError, match="cannot update what FSDP2 shards") as refused:
            recorded(replace(SHARDED, sharding=sharding, update=update))
        assert str(update) in str(refused.value)
    assert held(memory(replace(PLAIN, replicas=RANKS, update=update)), Holds.OPTIMIZER_STATES) > 0


def test_muon_runs_on_replicas_and_shards() -> None:
    """One moment of matrices of layers; two of all else."""
    matrices = 2 * (LAYER - 2 * 256)
    states = BF16 * (matrices + 2 * (PARAMETERS - matrices))
    for recipe, share in ((replace(PLAIN, replicas=RANKS), 1), (SHARDED, RANKS)):
        found = memory(replace(recipe, update=Update.MUON))
        assert held(found, Holds.OPTIMIZER_STATES) == pytest.approx(states / share, rel=0.01)


def test_adapters_on_divided_layers_are_refused_by_name() -> None:
    pytest.importorskip("peft")
    with pytest.raises(UnsupportedError, match="adapters on whole layers"):
        recorded(replace(SHARDED, tensor=2, adapters=Adapters(8)))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("planner.dryrun.transformers.model.loaded", "can build of tiny's configuration"),
        (
            "planner.dryrun.transformers.data_parallel.spread",
            "tiny to be such that FSDP2 can spread it over 8",
        ),
        ("planner.dryrun.transformers.step.optimizer_of", "an optimizer that updates .* AdamW, fused"),
        ("planner.dryrun.transformers.data_parallel.clip", "an optimizer that updates .* spread by FSDP2"),
        ("torch.nn.Embedding.forward", "forward pass runs on tokens without data, here tiny's under FSDP2"),
        ("torch.Tensor.backward", "backward pass runs on tokens without data, here tiny's under FSDP2"),
    ],
)
def test_what_ends_a_step_is_told_by_its_part(
    monkeypatch: pytest.MonkeyPatch, place: str, words: str
) -> None:
    def ended(*_: object, **__: object) -> None:
        raise RuntimeError("it ended")

    with monkeypatch.context() as patched:
        patched.setattr(place, ended)
        with pytest.raises(UnsupportedError, match=words) as refused:
            recorded(SHARDED)
    assert "RuntimeError: it ended" in str(refused.value)


def test_messages_take_their_time_where_nothing_hides_them() -> None:
    """Gathers run ahead of the layer that needs them, and buckets of gradients while others are computed."""
    cluster = load_cluster("dgx-h100", RANKS)
    kernels, links = rates_of(cluster)
    device, host = Device(cluster.accelerator, kernels), load_host_rates().slower(0.0)
    slower = Wires(cluster, links.scaled(LinkFactors(scale_up_bandwidth=0.01)))
    for recipe in (SHARDED, replace(PLAIN, replicas=RANKS)):
        found = recorded(recipe)
        told = time_of(found, device, host, 1, Wires(cluster, links))
        late = time_of(found, device, host, 1, slower)
        assert 0 < told.exposed < told.messages
        assert told.busy + told.exposed == pytest.approx(told.step, rel=0.05)
        assert told.busy == late.busy
        assert late.messages > told.messages
        assert late.exposed - told.exposed <= late.messages - told.messages


def test_a_queue_waits_for_what_it_was_told_to() -> None:
    """The first layer's weights are there before it is computed, and gathered before they are copied out."""
    found = recorded(SHARDED)
    gathers = [
        i for i, one in enumerate(found.operations) if one.message and one.message.kind == "all_gather"
    ]
    awaited = {one.end for one in found.waits if one.stream == 0}
    assert set(gathers) <= awaited
    sent = found.operations[gathers[0]].message
    assert (sent.size, sent.ranks, sent.stride) == (BF16 * EMBEDDING, RANKS, 1)
