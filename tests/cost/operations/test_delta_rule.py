"""Gated delta nets and gated attention: parameters, work, memory and time by hand, and how they divide over ranks."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.device.graphs import capture_of
from planner.cost.flops import model_flops
from planner.cost.mfu import causal_half_flops_per_token
from planner.cost.operations.delta_net import (
    backward_traffic,
    delta_flops,
    forward_traffic,
    kept_parts,
    products,
    rule_traffic,
    seconds,
    working_bytes,
)
from planner.cost.operations.delta_net import flops as scan_flops
from planner.cost.operations.lists import layer_gemms, model_operations
from planner.cost.operations.operation import gemm_flops
from planner.cost.operations.state_space import cut_of, exchanged_bytes, reached_bandwidth
from planner.cost.params import layer_parameters, model_parameters
from planner.space.legality import explain_config
from planner.space.rules import RULES
from planner.spec.config import CUDA_GRAPH_MODULES, RECOMPUTE_MODULES, ConfigTable, CudaGraphs, ParallelConfig
from planner.spec.layer import Activation, Layer, Mlp
from planner.spec.load_model import load_model
from planner.spec.mixers import DeltaNet
from planner.spec.model import ModelSpec
from planner.spec.precision import RECIPES, Precision
from tests.problems import (
    attention,
    costs,
    delta_model,
    launches,
    layer_activations,
    layer_of,
    moe_model,
    problem,
)

SMALL = DeltaNet(heads=8, head_dim=16, state=32, groups=2)  # values 128, keys 64, repeated keys 256
NEXT = DeltaNet(heads=32, head_dim=128, state=128, groups=16)  # of Qwen3-Next
NONE = np.zeros(1)


def next_cut(t: float = 1.0, c: float = 1.0, tokens: float = 8192.0):
    return cut_of(NEXT, np.array([tokens / c]), np.array([t]), np.array([c]))


def matrix(*shapes: tuple[int, int, int]) -> int:
    """FLOPs of products of m x k with k x n."""
    return sum(2 * m * k * n for m, k, n in shapes)


class TestCounts:
    def test_parameters_of_a_small_net(self) -> None:
        # in 64 x (q 64, k 64, v 128, gate 128, decay 8, strength 8), out 128 x 64, convolution 256 x 4 without a bias,
        # A and dt bias 2 x 8; one norm of 16 that heads share, and the hidden norm of 64
        found = layer_parameters(Layer(None, None, None, 1, state_space=SMALL), 64)
        assert found.column_row == 64 * 400 + 128 * 64 + 256 * 4 + 16
        assert (found.replicated, found.expert, found.kv) == (16 + 64, 0, 0)

    def test_totals_of_published_models(self) -> None:
        given = model_parameters(load_model("qwen3-next-80b-a3b"))
        assert given.by_kind["delta_net"] == 36 * (2048 * 12352 + 4096 * 2048 + 8192 * 4 + 64 + 128)
        assert given.by_kind["attention"] == 12 * 2048 * 256 * (16 + 16 + 2 + 2 + 16)
        with_mtp = model_parameters(load_model("qwen3-next-80b-a3b", with_mtp=True))
        assert with_mtp.total == 81_324_862_720  # tensors of the published checkpoint
        assert given.active / 1e9 == pytest.approx(3.9, abs=0.05)  # "3B" without embeddings and head
        assert given.active - 2 * 151936 * 2048 == pytest.approx(3.25e9, rel=0.01)
        assert model_parameters(load_model("qwen3.5-397b-a17b")).total / 1e9 == pytest.approx(397, abs=1)

    def test_work_of_the_rule_counted_product_by_product(self) -> None:
        """A chunk of one head: q tokens, keys K, values V wide."""
        q, k, v = 64, 128, 96
        chunk = matrix(
            (q, k, q),  # K K^T
            (q, q, k), (q, q, v),  # w and u
            (q, k, v), (k, q, v),  # of the state, and to it
            (q, k, v), (q, k, q), (q, q, v),  # output
        ) + 2 * sum(sum(range(i)) for i in range(1, q))  # row i of the inverse: i (i - 1) / 2 twice  # fmt: skip
        assert delta_flops(1, k, v, q) * q == chunk
        assert scan_flops(NEXT, 1) == 2 * 4 * 8192 + delta_flops(32, 128, 128, 64)

    def test_work_backward_counted_product_by_product(self) -> None:
        q, k, v = 64, 128, 96
        net = DeltaNet(heads=1, head_dim=v, state=k, groups=1)
        chunk = matrix(
            (q, q, k), (q, q, v), (q, k, v), (k, q, v),  # w, u and the states again
            (q, k, q), (q, q, v),  # of new values, inside
            (q, k, v), (k, q, v), (k, q, v),  # and from states; of states
            (q, v, q), (q, v, k), (q, v, k), (q, v, k), (q, k, q), (q, q, k), (q, q, k),  # q, k, w
            (q, k, q), (q, q, k), (q, v, q), (q, q, v), (q, q, q), (q, q, q), (q, k, q), (q, q, k), (q, q, k),
        )  # fmt: skip
        cut = cut_of(net, float(q), 1.0, 1.0)
        assert products(net, cut)[1] == chunk
        assert products(net, cut)[0] == delta_flops(1, k, v, q) * q

    @pytest.mark.slow
    @pytest.mark.skipif(
        importlib.util.find_spec("torch") is None and not os.environ.get("CI"),
        reason="torch is not installed",
    )
    def test_work_as_torch_counts_transformers_own(self) -> None:
        """Without w, u and the inverse, which it solves triangles for."""
        import torch
        from torch.utils.flop_counter import FlopCounterMode
        from transformers.models.qwen3_next import modeling_qwen3_next

        rule = modeling_qwen3_next.torch_chunk_gated_delta_rule
        q = torch.zeros(1, 128, 2, 32)
        with FlopCounterMode(display=False) as counter:
            rule(q, q, torch.zeros(1, 128, 4, 16), torch.zeros(1, 128, 4), torch.zeros(1, 128, 4))
        apart = 4 * (64 * 2 * (32 + 16) + 63 * 62 // 3)
        assert counter.get_total_flops() == 128 * (delta_flops(4, 32, 16, 64) - apart)

    def test_megatrons_own_count(self) -> None:
        # transformer_flops: a gated delta net h (2 qk + 2 v + 2 heads) + 4 (2 qk + v) + 4 heads v^2 + h v
        # multiply-adds a token
        spec, s = delta_model(2, 2), 4096
        net = 2 * (2048 * 12352 + 4 * 8192 + 4 * 32 * 128**2 + 2048 * 4096)
        attends = 2 * 2048 * (2 * 2048 + 2 * 512 + 2048) + 2 * s * 2048
        dense = 2 * 2 * 3 * 2048 * 8192
        expected = 3 * (net + attends + dense + 2 * 2048 * 32000)
        assert causal_half_flops_per_token(spec, s) == expected

    def test_the_rule_is_in_no_linear_work(self) -> None:
        spec = delta_model(4, 4)
        flops = model_flops(spec, 1, 4096)
        assert flops.forward_scan == 3 * scan_flops(NEXT, 4096)
        assert isinstance(flops.forward_scan, int)


class TestGate:
    def test_a_gate_widens_the_query(self) -> None:
        plain = attention(16, 4, 128)
        gated = replace(plain, output_gate=True)
        layers = [Layer(a, Mlp(512, True, False, Activation.SILU), None) for a in (plain, gated)]
        one, other = (layer_parameters(layer, 2048) for layer in layers)
        assert other.column_row - one.column_row == 2048 * 2048
        work = [sum(gemm_flops(g, 1) for g in layer_gemms(layer, 2048)) for layer in layers]
        assert work[1] - work[0] == 2 * 2048 * 2048

    def test_gate_and_ungated_output_are_kept(self) -> None:
        spec = delta_model(4, 4)
        subject = problem(spec)
        model = costs(subject)
        keys = ConfigTable.of([ParallelConfig(dp=16), ParallelConfig(tp=2, dp=8)])
        whole = spec.layers[3]
        assert whole.attention is not None
        plain = replace(whole, attention=replace(whole.attention, output_gate=False))
        x, kernels, recipe = model.layers.shape(keys, whole), subject.stack.kernels, RECIPES[Precision.BF16]
        found = layer_activations(whole, spec, x, kernels, recipe)
        bare = layer_activations(plain, spec, x, kernels, recipe)
        width = np.array([4096 * 2 * 2048, 4096 * 2 * 1024])
        assert found["qkv"] - bare["qkv"] == pytest.approx(width)
        assert found["attention_out"] - bare["attention_out"] == pytest.approx(width)


class TestSharding:
    def test_tensor_and_context_parallelism_deal_heads(self) -> None:
        whole = next_cut()
        for other, share in ((next_cut(t=2), 2), (next_cut(c=4), 4), (next_cut(t=2, c=4), 8)):
            assert float(other.tokens[0]) == 8192
            for of in (forward_traffic, backward_traffic):
                assert of(NEXT, other, 2.0, NONE) == pytest.approx(of(NEXT, whole, 2.0, NONE) / share)
            assert working_bytes(NEXT, other, 2.0) == pytest.approx(working_bytes(NEXT, whole, 2.0) / share)

    def test_exchanges_of_context_parallelism(self) -> None:
        into, out = exchanged_bytes(NEXT, next_cut(c=4), 2.0)
        assert float(into[0]) == 2048 * 2 * 12352  # all that the projection makes
        assert float(out[0]) == 2048 * 2 * 4096

    @pytest.mark.parametrize(
        ("config", "rule"),
        [(ParallelConfig(tp=1, cp=2, dp=8), None), (ParallelConfig(tp=4, cp=4, dp=1), None),
         (ParallelConfig(tp=2, cp=16, dp=1), "state-space-cp"), (ParallelConfig(tp=32, dp=1), "state-space-tp")],
    )  # fmt: skip
    def test_heads_of_keys_bound_the_degrees(self, config: ParallelConfig, rule: str | None) -> None:
        subject = problem(
            delta_model(4, 4), "4x8 h100 400G-ib" if config.tp * config.cp > 16 else "2x8 h100 400G-ib"
        )
        broken = {b.rule: b for b in explain_config(config, subject, RULES)}
        assert {name for name in broken if name.startswith("state-space")} == ({rule} if rule else set())
        if rule:
            assert "16 heads of keys" in broken[rule].reason
            assert "gated delta nets" in broken[rule].reason


class TestMemory:
    def test_what_is_kept_tensor_by_tensor(self) -> None:
        """Qwen3-Next's net, a token: 16 heads of keys, 32 of values, all 128 wide."""
        projected = 2 * 2048 + 2 * 4096 + 2 * 32
        normed, repeated = 2 * 2048, 2 * 4096
        values, gate, output, norm = 4096, 4096, 4096, 4096
        strength, triangle = 32, 32 * 64
        half = projected + normed + repeated + values + gate + output + norm + strength + triangle
        full = 32 + 32 + 2 * 16  # decays; statistics of norms over values and over q and k
        parts = kept_parts(NEXT, next_cut(tokens=1.0), 2.0, 2.0)
        assert float(parts["state_space"][0]) == 2 * half + 4 * full
        assert float(parts["state_out"][0]) == 2 * 4096
        eight = kept_parts(NEXT, next_cut(tokens=1.0), 2.0, 1.0)
        assert float(eight["state_out"][0]) == 4096

    def test_full_recomputation_leaves_the_input_alone(self) -> None:
        cost = layer_of(problem(delta_model(4, 4)), ParallelConfig(dp=16), kind=0)
        assert float(cost.kept_full[0]) == pytest.approx(4096 * 2 * 2048)
        assert float(cost.kept[0]) > 4096 * 80_000

    def test_recomputed_norms_leave_the_norm_before_the_net(self) -> None:
        subject = problem(delta_model(4, 4))
        modules = 1 << RECOMPUTE_MODULES.index("layernorm")
        net, whole = (
            layer_of(subject, ParallelConfig(dp=16, recompute=1, recompute_modules=modules), kind=kind)
            for kind in (0, 1)
        )
        plain = [layer_of(subject, ParallelConfig(dp=16), kind=kind) for kind in (0, 1)]
        freed = [float(p.kept[0] - c.kept[0]) for p, c in zip(plain, (net, whole), strict=True)]
        assert freed[1] == pytest.approx(2 * freed[0])


class TestTime:
    @pytest.mark.parametrize(
        ("bandwidth", "batch", "seq", "heads", "milliseconds"),
        [
            (3.35e12, 1, 8192, 32, 0.666), (3.35e12, 1, 32768, 16, 1.647), (3.35e12, 2, 4096, 64, 0.945),
            (8.0e12, 1, 8192, 32, 0.535), (8.0e12, 1, 32768, 48, 3.043), (8.0e12, 2, 32768, 64, 6.377),
        ],
    )  # fmt: skip
    def test_published_timings_of_the_forward_rule(
        self, bandwidth: float, batch: int, seq: int, heads: int, milliseconds: float
    ) -> None:
        """H100 and B200 (ai-dynamo/aiconfigurator@095f58a, trtllm 1.3.0rc20, chunk_gated_delta_rule), 16 heads of keys;
        the timed call norms queries and keys, too."""
        net = DeltaNet(heads=heads, head_dim=128, state=128, groups=16)
        cut = cut_of(net, float(batch * seq), 1.0, 1.0)
        moved = rule_traffic(net, cut, 2.0) + cut.tokens * 2.0 * 4.0 * cut.shared
        after = seconds(net, cut, 2.0, 0.0, 2.0 * seq, bandwidth, 989e12)[0]
        steps = after - seconds(net, cut, 2.0, 0.0, float(seq), bandwidth, 989e12)[0]
        expected = moved / reached_bandwidth(bandwidth) + steps
        assert expected * 1e3 == pytest.approx(milliseconds, rel=0.22)

    def test_few_heads_leave_the_steps_from_chunk_to_chunk(self) -> None:
        one = seconds(NEXT, next_cut(), 2.0, NONE, np.array([8192.0]), 3.35e12, 989e12)
        many = seconds(NEXT, next_cut(t=16), 2.0, NONE, np.array([8192.0]), 3.35e12, 989e12)
        steps = 1.1e-6 * 128
        assert many[0] - steps == pytest.approx((one[0] - steps) / 16)
        assert many[1] - 2 * steps == pytest.approx((one[1] - 2 * steps) / 16)

    def test_texts_side_by_side_take_fewer_steps(self) -> None:
        subject = problem(delta_model(4, 4), seq_len=8192)
        packed = replace(subject, job=replace(subject.job, packed=True, mean_length=512.0))
        config = ParallelConfig(dp=16)
        apart, together = (layer_of(s, config, kind=0).forward["memory_bound"] for s in (packed, subject))
        assert float(apart[0]) < float(together[0])

    def test_graphs_hold_it_as_attention(self) -> None:
        layer = delta_model(4, 4).layers[0]
        assert launches(layer, 4096, False) == pytest.approx((21 + 5) / 12)
        assert launches(layer, 4096, True) == pytest.approx((28 + 14) / 38)
        mask = 1 << CUDA_GRAPH_MODULES.index("attn")
        keys = ConfigTable.of(
            [ParallelConfig(dp=16, cuda_graph_impl=CudaGraphs.TRANSFORMER_ENGINE, cuda_graph_modules=mask)]
        )
        capture = capture_of(model_operations(layer, 2048), keys)
        assert capture is not None
        assert float(capture.module["attn"][0]) == 1.0
        assert float(capture.module["mamba"][0]) == 0.0

    def test_a_net_is_faster_than_attention_over_long_sequences(self) -> None:
        subject = problem(delta_model(4, 4), seq_len=131072, global_batch=16)
        net, whole = (layer_of(subject, ParallelConfig(dp=16), kind=kind) for kind in (0, 1))
        assert float(net.time[0]) < float(whole.time[0])


def test_experts_beside_delta_nets_cost_what_they_cost_elsewhere() -> None:
    spec = moe_model()
    routed = next(layer for layer in spec.layers if layer.moe)
    mixed = replace(spec, layers=(replace(routed, attention=None, state_space=NEXT), routed))
    assert isinstance(mixed, ModelSpec)
    net, whole = (layer_of(problem(mixed), ParallelConfig(dp=16, ep=8), kind=kind) for kind in (0, 1))
    assert float(net.forward["ep_comm"][0]) == pytest.approx(float(whole.forward["ep_comm"][0]), rel=0.5)
    assert float(net.forward["attention"][0]) == 0.0
