"""Time of one layer against figures worked by hand, and how its parts divide over ranks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog.load_stacks import load_stack
from planner.cost.device.kernels import memory_bound_time
from planner.cost.edges import padded_vocabulary
from planner.cost.host import RELAUNCHED
from planner.cost.layer_cost import LayerCost
from planner.cost.network.collectives import all_gather_time, reduce_scatter_time
from planner.cost.network.overlap import soft_maximum
from planner.cost.network.traffic import GroupLinks, group_links
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ContextKind, ParallelConfig
from planner.spec.machine.accelerator import HostProcessor
from planner.spec.machine.load_cluster import accelerator_names, load_accelerator
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from planner.spec.stack.engines import FlatShards, Megatron2022, Profiled
from planner.spec.stack.kinds import Dispatcher
from planner.spec.stack.losses import AnyLoss, Eager, VocabParallel
from tests.problems import costs, dense_model, layer_of, moe_model, problem

BITS = {name: 1 << bit for bit, name in enumerate(RECOMPUTE_MODULES)}


@given(st.floats(0, 10), st.floats(0, 10), st.floats(1, 50))
def test_the_soft_maximum_lies_between_the_longer_and_the_sum(a: float, b: float, softness: float) -> None:
    soft = float(soft_maximum(np.array([a]), b, softness)[0])
    assert max(a, b) <= soft <= (a + b) * (1 + 1e-12)


def test_the_soft_maximum_of_equals() -> None:
    assert float(soft_maximum(np.array([2.0]), 2.0, 2.0)[0]) == pytest.approx(2 * 2**0.5)


def test_a_large_layer_runs_near_the_measured_plateau() -> None:
    # Llama-70B-like: 2 x 3 x FLOPs over H100's 989 TFLOP/s, at 55 to 85 % of it
    subject = problem(dense_model(8, 8192, 64, 8, 28672), "1x8 h100", seq_len=8192)
    cost = layer_of(subject, ParallelConfig(dp=8))
    linear = 8192 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    seconds = float(cost.forward["gemm"][0] + cost.backward["gemm"][0])
    factor = subject.stack.compute.gemm_factor(costs(subject).layers.recipe.gemm)
    assert 0.55 < 6 * linear / 989e12 / seconds * factor < 0.85


def test_launches_slow_the_weight_gradient_down_as_much_as_the_rest() -> None:
    """ZB-H1 moves a weight gradient with its launches: of short sequences, which the host binds, twice as slow a host
    takes twice as long for it."""
    quick = problem(dense_model(8, 1024, 8, 8, 2048), "1x8 h100", seq_len=512)
    host = quick.stack.host
    slow = host.model_copy(update={"layer_floor": 20 * host.layer_floor})
    slower = host.model_copy(update={"layer_floor": 40 * host.layer_floor})
    one, two = (
        layer_of(replace(quick, stack=quick.stack.model_copy(update={"host": each})), ParallelConfig(dp=8))
        for each in (slow, slower)
    )
    assert float(two.weight_gradient[0] / one.weight_gradient[0]) == pytest.approx(2, rel=0.01)
    device = {name: seconds[0] for name, seconds in one.backward.items()}
    share = float(one.weight_gradient[0] / (one.time - one.forward_time)[0])
    assert 0.2 < share < 0.5 * device["gemm"] / sum(device.values()) + 0.1
    free = layer_of(
        problem(dense_model(8, 8192, 64, 8, 28672), "1x8 h100", seq_len=8192), ParallelConfig(dp=8)
    )
    assert float(free.weight_gradient[0]) == pytest.approx(float(free.backward["gemm"][0]) / 2, rel=0.05)


def test_a_stack_slower_on_an_accelerator_computes_slower_there_alone() -> None:
    subject = problem(dense_model(8, 4096, 32, 8, 14336), "1x8 h100", seq_len=8192)
    compute = subject.stack.compute.model_copy(update={"accelerator": {}})
    plain = replace(subject, stack=subject.stack.model_copy(update={"compute": compute}))
    there = compute.model_copy(update={"accelerator": {"h100-sxm-80g": 1.1, "gb200": 2.0}})
    slower = replace(subject, stack=subject.stack.model_copy(update={"compute": there}))
    before, after = (layer_of(s, ParallelConfig(dp=8)) for s in (plain, slower))
    ratio = {
        term: float(after.backward[term][0] / before.backward[term][0]) for term in ("gemm", "attention")
    }
    assert ratio == pytest.approx({"gemm": 1.1, "attention": 1.1})
    assert after.forward["memory_bound"] == before.forward["memory_bound"]


@pytest.mark.parametrize("term", ["gemm", "attention"])
def test_tensor_parallelism_divides_work_but_not_beyond_its_share(term: str) -> None:
    subject = problem(dense_model(8, 4096, 32, 8, 14336), "1x8 h100", seq_len=8192)
    one, eight = layer_of(subject, ParallelConfig(dp=8), ParallelConfig(tp=8, sp=1)).forward[term]
    assert one / 8 * (1 - 1e-9) <= eight < one / 3


def test_matrix_products_hide_no_more_communication_than_they_take() -> None:
    subject = problem(dense_model(8, 4096, 32, 8, 14336), "1x8 l40s", seq_len=4096)

    def tensor(share: float) -> tuple[float, float, float, float]:
        communication = subject.stack.communication.model_copy(update={"tp_exposed": share})
        stack = subject.stack.model_copy(update={"communication": communication})
        cost = layer_of(replace(subject, stack=stack), ParallelConfig(tp=8, sp=1))
        both = (cost.forward, cost.backward)
        return *(float(c["tp_comm"][0]) for c in both), *(float(c["gemm"][0]) for c in both)  # type: ignore[return-value]

    whole, hidden = tensor(1.0), tensor(0.0)
    assert whole[0] == pytest.approx(whole[1])
    assert hidden[0] == pytest.approx(whole[0] - whole[2])  # PCIe is slower than the products
    assert hidden[1] == pytest.approx(max(whole[1] - whole[3], 0.0))


def test_sequence_parallelism_divides_norms_and_residuals() -> None:
    subject = problem(dense_model(8, 4096, 32, 8, 14336), "1x8 h100", seq_len=8192)
    plain, split = layer_of(subject, ParallelConfig(tp=8), ParallelConfig(tp=8, sp=1)).forward["memory_bound"]
    assert split < plain


def test_context_parallelism_divides_attention_evenly() -> None:
    subject = problem(dense_model(8, 4096, 32, 8, 14336), "1x8 h100", seq_len=32768)
    one, four = layer_of(subject, ParallelConfig(), ParallelConfig(cp=4)).forward["attention"]
    assert one / 4 * 0.99 <= four <= one / 4 * 1.3


@pytest.mark.parametrize("model", [dense_model(), moe_model()], ids=lambda model: model.name)
def test_recomputing_everything_repeats_the_forward_pass(model: ModelSpec) -> None:
    cost = layer_of(problem(model), ParallelConfig(tp=2, sp=1, ep=1))
    assert float(cost.again_full[0]) == pytest.approx(float(sum(v[0] for v in cost.forward.values())))
    assert float(cost.time_full[0]) > float(cost.time[0])
    assert float(cost.kept_full[0]) == pytest.approx(2 * 4096 * 2048 / 2)


@pytest.mark.parametrize("name", RECOMPUTE_MODULES)
def test_what_a_module_frees_it_works_in_again(name: str) -> None:
    plain = ParallelConfig(tp=2, sp=1)
    cost = layer_of(problem(moe_model()), plain, replace(plain, recompute_modules=BITS[name]))
    freed = float(cost.kept[0] - cost.kept[1])
    assert freed >= 0
    assert float(cost.working[1] - cost.working[0]) == pytest.approx(freed)
    assert float(cost.again[1]) >= float(cost.again[0]) == 0.0
    assert (freed > 0) == (name not in ("mla_up_proj", "mlp"))


def test_every_module_has_a_share_of_launches() -> None:
    assert set(RELAUNCHED) == set(RECOMPUTE_MODULES)
    assert all(0 < share < 1 for share in RELAUNCHED.values())


def test_plain_all_to_all_carries_top_k_copies_of_every_token() -> None:
    # twice the experts per token is twice the bytes; dispatch and combine in both directions
    slow = problem(
        moe_model(top_k=2, shared_ffn=0, experts=64), "8x8 h100 400G-ib", global_batch=64, seq_len=32768
    )
    fast = replace(slow, model=moe_model(top_k=4, shared_ffn=0, experts=64))
    row = ParallelConfig(dp=64, ep=64)
    two, four = (float(layer_of(p, row).forward["ep_comm"][0]) for p in (slow, fast))
    assert two < four <= 2 * two * (1 + 1e-9)


@pytest.mark.parametrize(("tp", "padded"), [(1, 32128), (2, 32256), (8, 32768)])
def test_padded_vocabulary(tp: int, padded: int) -> None:
    subject = problem(dense_model(vocab=32001))
    assert float(padded_vocabulary(subject, np.array([float(tp)]))[0]) == padded


@pytest.mark.parametrize(("loss", "ranks"), [(VocabParallel(), 1.0), (Eager(), 4.0 * 28 / 24)])
def test_an_eager_loss_passes_over_whole_logits_on_every_tensor_rank(loss: AnyLoss, ranks: float) -> None:
    """24 bytes a logit, and 4 to lay the gathered ones together."""
    stack = load_stack("megatron-2026")
    kernels = stack.kernels.model_copy(update={"loss": loss})
    host = stack.host.model_copy(update={"layer_floor": 0.0, "layer_floor_tp": 0.0})
    subject = problem(
        dense_model(vocab=128_000), stack=stack.model_copy(update={"kernels": kernels, "host": host})
    )
    table = ConfigTable.of([ParallelConfig(dp=8), ParallelConfig(tp=4, dp=2)])
    ends = costs(subject).layers.edges(table)
    alone, split = ends.head - ends.head_gemm
    assert float(split) == pytest.approx(float(alone) * ranks / 4.0, rel=0.02)


def test_only_an_uneven_vocabulary_slows_the_head() -> None:
    stack = problem().stack
    unpadded = stack.model_copy(update={"engine": FlatShards()})
    table = ConfigTable.of([ParallelConfig()])
    even, odd, padded = (
        float(costs(replace(problem(dense_model(vocab=vocab)), stack=s)).layers.edges(table).head_gemm[0])
        for vocab, s in ((32000, unpadded), (32001, unpadded), (32001, stack))
    )
    assert odd / even == pytest.approx(3.0, rel=0.01)
    assert padded / even == pytest.approx(1.0, rel=0.01)


def test_a_compiler_that_pads_inside_meets_no_uneven_rows() -> None:
    table, stack = ConfigTable.of([ParallelConfig()]), load_stack("maxtext-2024")
    even, odd = (
        float(costs(problem(dense_model(vocab=v), stack=stack)).layers.edges(table).head_gemm[0])
        for v in (32000, 32001)
    )
    assert odd / even == pytest.approx(1.0, rel=0.01)


def fused_softmax_layer(**changed: object) -> tuple[LayerCost, LayerCost]:
    """A layer of 12 heads on tp 4 and micro-batches of 1 and of 4: 3 and 12 heads, of which 12 suit the kernel."""
    stack = load_stack("megatron-2022").model_copy(update=changed)
    subject = replace(problem(dense_model(8, 1536, 12, 12, 6144), "1x8 a100"), stack=stack)
    one, four = (layer_of(subject, ParallelConfig(tp=4, dp=2, micro_batch=b)) for b in (1, 4))
    return one, four


def test_a_softmax_kernel_takes_heads_by_fours() -> None:
    one, four = fused_softmax_layer()
    # 12 + 2 passes over the scores instead of 4 + 2 for a quarter of them, and 5 launches more on 16
    assert 4 * float(one.forward["attention"][0]) > 1.3 * float(four.forward["attention"][0])
    assert float(one.host[0]) == pytest.approx(float(four.host[0]) * 21 / 16)


@pytest.mark.parametrize(
    ("stack", "least", "most"), [("megatron-2022", 1.15, 1.4), ("megatron-2024", 0.9, 1.1)]
)
def test_products_of_unfused_attention_meet_rows_of_a_head(stack: str, least: float, most: float) -> None:
    """108 elements of a head are no multiple of 8, 104 are; a fused kernel pads them itself."""
    whole, uneven = (
        layer_of(problem(dense_model(8, 16 * d, 16, 16, 4096), "1x8 a100", stack=stack), ParallelConfig(dp=8))
        for d in (104, 108)
    )
    assert least < float(uneven.forward["attention"][0] / whole.forward["attention"][0]) < most


def test_an_eager_softmax_launches_no_more_kernels_of_experts() -> None:
    stack = load_stack("megatron-2022")
    launches = stack.host.model_copy(update={"moe_layer_floor": 4e-3, "expert_launch": 1e-4})
    subject = replace(problem(moe_model(4), "1x8 a100"), stack=stack.model_copy(update={"host": launches}))
    heads = subject.model.layer_kinds[-1].attention.heads
    eager, fused = (layer_of(subject, ParallelConfig(tp=heads // 2, micro_batch=b)).host[0] for b in (1, 2))
    dense = replace(problem(dense_model(), "1x8 a100"), stack=subject.stack)
    floor = layer_of(dense, ParallelConfig(tp=4, micro_batch=4)).host[0]
    assert float(eager - fused) == pytest.approx(5 / 16 * float(floor))


def test_in_a_step_put_together_collectives_follow_the_host_and_nothing_is_recomputed() -> None:
    slow = load_stack("megatron-2022").host.model_copy(update={"layer_floor_tp": 0.05})
    plain, composed = (fused_softmax_layer(engine=kind(), host=slow)[0] for kind in (Megatron2022, Profiled))
    assert float(composed.time[0]) > float(plain.time[0])
    comm = float(composed.forward["tp_comm"][0] + composed.backward["tp_comm"][0])
    host = float(composed.host[0])
    assert float(plain.time[0]) == pytest.approx(host, rel=1e-3)  # bound by launches
    assert float(composed.time[0]) == pytest.approx(comm + host, rel=1e-3)
    assert float(composed.time_full[0]) == float(composed.time[0]) < float(plain.time_full[0])
    assert float(composed.again_full[0]) == 0.0


def test_a_ring_of_short_blocks_costs_more_attention_than_one_kernel() -> None:
    # the same pairs of tokens, cut into c blocks of s/c by s/2c whose outputs are merged; hidden by nothing
    subject = problem(dense_model(8, 8192, 64, 8, 28672), "1x8 h100", seq_len=8192)
    kinds = [ParallelConfig(dp=8 // c, cp=c, cp_kind=kind) for c in (2, 4, 8) for kind in ContextKind]
    attention = layer_of(subject, *kinds).forward["attention"].reshape(3, len(ContextKind))
    ring, whole = attention[:, ContextKind.P2P], attention[:, ContextKind.A2A]
    assert np.all(ring > whole)
    assert np.all(np.diff(ring / whole) > 0), "the shorter the blocks the worse"
    long = problem(dense_model(8, 8192, 64, 8, 28672), "1x8 h100", seq_len=131072)
    attention = layer_of(long, *kinds).forward["attention"].reshape(3, len(ContextKind))
    assert np.all(attention[:, ContextKind.P2P] < 1.25 * attention[:, ContextKind.A2A]), (
        "long blocks run as fast"
    )


def test_a_ring_launches_attention_again_but_not_experts() -> None:
    # the host takes 12 ms for a layer, 50 for its routing; a step more is 6 launches ahead and 7 behind
    host = {"layer_floor": 12e-3, "moe_layer_floor": 50e-3, "expert_launch": 0.0}
    plain = problem(moe_model(4), "1x8 h100", seq_len=8192)
    bound = replace(
        plain, stack=plain.stack.model_copy(update={"host": plain.stack.host.model_copy(update=host)})
    )
    kinds = (ContextKind.A2A, ContextKind.P2P)
    times = layer_of(bound, *(ParallelConfig(dp=2, cp=4, cp_kind=kind) for kind in kinds)).time
    assert float(times[1] - times[0]) == pytest.approx(3 * (6 + 7) * 13.9e-6, rel=0.01)


def with_dispatcher(subject: Problem, kind: Dispatcher) -> Problem:
    comm = subject.stack.communication.model_copy(update={"dispatcher": kind, "ep_exposed": 1.0})
    return replace(subject, stack=subject.stack.model_copy(update={"communication": comm}))


def test_hybridep_takes_as_long_as_its_authors_measured() -> None:
    """DeepEP@94a9f8f docs/README_Hybrid-EP.md: 4,096 tokens of 7,168 to 8 of 64 experts on 8 B200, 16-bit dispatch and
    combine of 5.25 copies at 536 and 531 GB/s with the host's calls."""
    model = moe_model(hidden=7168, heads=56, experts=64, top_k=8, shared_ffn=0)
    subject = with_dispatcher(problem(model, "1x8 b200"), Dispatcher.HYBRIDEP)
    both = float(layer_of(subject, ParallelConfig(dp=8, ep=8)).forward["ep_comm"][0])
    missed = math.comb(56, 8) / math.comb(64, 8)
    received = 4096 * 7168 * 2 * 8 * (1 - missed)
    assert both == pytest.approx(received / 536e9 + received / 531e9, rel=0.1)


def test_a_dispatch_by_all_gather_sends_every_token_to_all_ranks() -> None:
    """Hidden states, a probability and a flag an expert there, hidden states back; how many experts a token chooses
    does not count, which plain all-to-all sends a copy for (Megatron-LM MoEAllGatherTokenDispatcher)."""
    config, tokens = ParallelConfig(dp=8, ep=8), 4096

    def seconds(kind: Dispatcher, top_k: int) -> float:
        model = moe_model(hidden=4096, experts=64, top_k=top_k, shared_ffn=0)
        subject = with_dispatcher(problem(model, "1x8 h100", seq_len=tokens), kind)
        return float(layer_of(subject, config).forward["ep_comm"][0])

    one, eight = (seconds(Dispatcher.ALL_GATHER, k) for k in (1, 8))
    assert one == pytest.approx(eight)
    # eight copies, an eighth of which stay: as much as seven other ranks get
    assert eight == pytest.approx(seconds(Dispatcher.ALL_TO_ALL, 8), rel=0.35)
    assert one > 5 * seconds(Dispatcher.ALL_TO_ALL, 1)
    usual = problem(moe_model(hidden=4096, experts=64, shared_ffn=0), "1x8 h100", seq_len=tokens)
    whole, links = with_dispatcher(usual, Dispatcher.ALL_GATHER), costs(usual).links
    group = group_links(np.array([1.0]), np.array([8.0]), usual.cluster)
    sent, back = 8 * tokens * (2 * 4096 + 64 * (2 + 1)), 8 * tokens * 2 * 4096
    by_hand = all_gather_time(np.array([sent]), group, links) + reduce_scatter_time(
        np.array([back]), group, links
    )
    assert one == pytest.approx(float(by_hand[0]))
    held, least = (layer_of(subject, config).working[0] for subject in (whole, usual))
    assert held - least == pytest.approx(2 * 2 * 4096 * 8 * tokens)


def test_rows_are_sorted_by_expert_around_a_plain_all_to_all_only() -> None:
    plain = problem(moe_model(experts=16), "2x8 h100 400G-ib")
    fused = with_dispatcher(plain, Dispatcher.DEEPEP)
    several, one = ParallelConfig(dp=16, ep=8), ParallelConfig(dp=16, ep=16)
    sorts, none = layer_of(plain, several, one).forward["memory_bound"]
    assert sorts > none
    assert layer_of(fused, several, one).forward["memory_bound"] == pytest.approx(none)


def test_every_expert_of_a_rank_is_launched_and_block_scales_take_more_launches() -> None:
    few, many = ParallelConfig(dp=16, ep=16), ParallelConfig(dp=16, ep=4)
    for precision, launches in ((Precision.BF16, 6), (Precision.FP8_CS, 10), (Precision.FP8_MX, 22)):
        subject = problem(moe_model(experts=16), "2x8 b200 400G-ib", precision=precision)
        host = layer_of(subject, few, many).host
        assert host[1] - host[0] == pytest.approx(3 * launches * subject.stack.host.expert_launch)


def test_fused_experts_neither_activate_nor_quantise_apart() -> None:
    """Forward no pass of the gated activation (3 of a row's width) and no quantising of what it writes (2, and 1 + 1/32
    byte along rows and along columns); backward 2 passes of 6, and as much less of quantising."""

    def times(model: ModelSpec, machine: str, precision: Precision, fused: bool) -> LayerCost:
        subject = problem(model, machine, precision=precision)
        kernels = subject.stack.kernels.model_copy(update={"fused_experts": fused})
        stack = subject.stack.model_copy(update={"kernels": kernels})
        return layer_of(replace(subject, stack=stack), ParallelConfig(dp=8, ep=8))

    subject = problem(moe_model(16), "1x8 b200", precision=Precision.FP8_MX)
    moe = costs(subject).kinds[-1].moe
    assert moe is not None
    own = costs(subject).layers
    values = own.shape(ConfigTable.of([ParallelConfig(dp=8, ep=8)]), costs(subject).kinds[-1]).routed_tokens
    values = float(values[0]) * moe.top_k * moe.expert_ffn

    def seconds(per_value: float) -> float:
        return float(memory_bound_time(np.array([per_value * values]), own.bandwidth, own.kernels)[0])

    apart, fused = (times(moe_model(16), "1x8 b200", Precision.FP8_MX, on) for on in (False, True))
    factor, narrow = subject.stack.compute.memory_bound, 2 + 2 * (1 + 1 / 32)

    def saved(term: str) -> tuple[float, float]:
        ahead, back = apart.forward[term] - fused.forward[term], apart.backward[term] - fused.backward[term]
        return float(ahead[0]), float(back[0])

    assert saved("memory_bound") == pytest.approx((factor * seconds(6), factor * seconds(8)))
    assert saved("gemm") == pytest.approx((seconds(narrow), seconds(2 * narrow)))
    for machine, precision in (("1x8 h100", Precision.FP8_MX), ("1x8 b200", Precision.FP8_CS)):
        assert times(moe_model(16), machine, precision, True) == times(
            moe_model(16), machine, precision, False
        )


def test_grace_launches_slower_than_x86_and_computes_as_fast() -> None:
    """Every launch: of a dense layer, of routing, of experts, of stages across nodes, of the embedding and the head."""
    stack = load_stack("megatron-2025")
    seen = {"grace": 2.5, "layer_floor": 0.05, "layer_floor_tp": 0.05, "pipeline_tp_floor": 1e-3}
    slow = stack.model_copy(update={"host": stack.host.model_copy(update=seen)})
    even = slow.model_copy(update={"host": slow.host.model_copy(update={"grace": 1.0})})
    for model in (dense_model(), moe_model(16)):
        config = ParallelConfig(tp=2, pp=2, dp=2, ep=2 if model.is_moe else 1)
        for machine, times in (("2x4 gb200", 2.5), ("2x4 b200 400G-ib", 1.0)):
            one, other = (problem(model, machine, stack=s) for s in (slow, even))
            there, here = layer_of(one, config), layer_of(other, config)
            assert float(there.host[0]) == pytest.approx(times * float(here.host[0]))
            assert there.forward == here.forward
            ends, same = (costs(s).layers.edges(ConfigTable.of([config])) for s in (one, other))
            assert float(ends.embedding[0]) == pytest.approx(times * float(same.embedding[0]), rel=1e-3)


def test_grace_drives_the_devices_that_are_named_after_it() -> None:
    driven = {name for name in accelerator_names() if load_accelerator(name).host is HostProcessor.GRACE}
    assert driven == {"gb200", "gb300", "gh200"}


def test_narrow_products_quantise_a_shard_before_it_is_gathered() -> None:
    """Llama-like layer on Hopper, tp 4, current scaling: what sequence parallelism saves of the input of q, k, v and of
    the MLP, 6 - (5 / 4 + 2) bytes a value."""
    shards, whole = ParallelConfig(tp=4, dp=2, sp=1), ParallelConfig(tp=4, dp=2, sp=0)
    wide = layer_of(problem(dense_model(), "1x8 h100"), shards, whole).forward["gemm"]
    assert wide[0] == wide[1]
    subject = problem(dense_model(), "1x8 h100", precision=Precision.FP8_CS)
    narrow = layer_of(subject, shards, whole).forward["gemm"]
    values = 2 * subject.model.hidden * subject.job.seq_len
    assert narrow[1] - narrow[0] == pytest.approx(2.75 * values / (0.85 * 3350e9))


def tensor_parallel_seconds(
    precision: Precision, stack: str, model: ModelSpec | None = None
) -> tuple[float, float]:
    """Exposed seconds of a layer's tensor parallelism over 8 ranks, forward and backward, with the stack's own factor
    left out."""
    spec = load_stack(stack)
    comm = spec.communication.model_copy(update={"tp_exposed": 1.0})
    subject = problem(
        model, "1x8 h100", precision=precision, stack=spec.model_copy(update={"communication": comm})
    )
    cost = layer_of(subject, ParallelConfig(tp=8, sp=1, etp=8))
    return float(cost.forward["tp_comm"][0]), float(cost.backward["tp_comm"][0])


def test_float8_inputs_and_gradients_are_gathered_in_one_byte() -> None:
    """Two gathers a pass of 4096 x 2048 values: 8 MiB, not 16, in either pass; what is scattered stays in 16 bits."""
    wide, narrow = (tensor_parallel_seconds(p, "torchtitan-2024") for p in (Precision.BF16, Precision.FP8_CS))
    links, cluster = (
        costs(problem(machine="1x8 h100")).links,
        problem(machine="1x8 h100").cluster,
    )
    one, eight = np.array([1.0]), np.array([8.0])
    where = (GroupLinks(eight, eight, cluster.tiers[0].bandwidth, one, one), links)
    more, less = (float(all_gather_time(np.array([w * 4096.0 * 2048.0]), *where)[0]) for w in (2.0, 1.0))
    assert wide[0] - narrow[0] == pytest.approx(2 * (more - less), rel=1e-6)
    assert wide[1] - narrow[1] == pytest.approx(2 * (more - less), rel=1e-6)


@pytest.mark.parametrize(
    ("precision", "stack", "experts"),
    [
        (Precision.FP8_BLOCKWISE, "torchtitan-2024", False),
        (Precision.FP8_CS, "torchtitan-2026", False),
        (Precision.FP8, "megatron-2026", False),
        (Precision.FP8_CS, "torchtitan-2024", True),
    ],
)
def test_other_recipes_stacks_and_experts_gather_in_16_bits(
    precision: Precision, stack: str, experts: bool
) -> None:
    model = moe_model() if experts else None
    assert tensor_parallel_seconds(precision, stack, model) == tensor_parallel_seconds(
        Precision.BF16, stack, model
    )


def test_experts_without_a_compiler_keep_outputs_in_fp32_and_the_activation() -> None:
    """torchtitan 0.3.0: combine weighs routed_output.to(float32), silu and its product are two operations."""
    compiled, eager = (
        problem(moe_model(2, 0, shared_ffn=0), "1x8 b200", seq_len=8192, stack=f"torchtitan-2026{x}")
        for x in ("", "-eager")
    )
    config = ParallelConfig(dp=8, zero=3)
    moe = compiled.model.layer_kinds[0].moe
    assert moe is not None
    rows = 8192 * moe.top_k
    kept = [float(layer_of(each, config).kept[0]) for each in (compiled, eager)]
    own = rows * (2 * moe.width(compiled.model.hidden) + 2 * moe.expert_ffn)
    assert kept[1] - kept[0] == pytest.approx(own, rel=0.02)
    # 10 passes of 2 bytes over outputs and 2 over activations, forward, twice that backward, at 8 TB/s at most
    moved = [float(layer_of(each, config).forward["memory_bound"][0]) for each in (compiled, eager)]
    assert moved[1] - moved[0] > 2 * rows * (10 * compiled.model.hidden + 2 * moe.expert_ffn) / 8e12
