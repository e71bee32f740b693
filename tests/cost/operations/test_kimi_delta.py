"""Kimi Delta Attention: parameters, work, memory and time by hand, and who runs it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.operations.delta_net import (
    backward_traffic,
    forward_traffic,
    kept_parts,
    products,
    rule_traffic,
    seconds,
    working_bytes,
)
from planner.cost.operations.lists import layer_gemms
from planner.cost.operations.operation import gemm_flops
from planner.cost.operations.state_space import cut_of, reached_bandwidth
from planner.cost.params import layer_parameters, model_parameters
from planner.errors import InputError, UnsupportedError
from planner.report.words import text_of
from planner.solve.relax import legal_changes
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.hf import read_hf_config
from planner.spec.layer import Layer
from planner.spec.load_model import load_model
from planner.spec.mixers import DeltaNet
from tests.cost.operations.test_delta_rule import matrix
from tests.problems import costs, delta_model, problem

SMALL = DeltaNet(8, 16, 32, 2, channel_decay=True, gate_rank=24)  # values 128, keys 64, of all heads 256
KIMI = DeltaNet(32, 128, 128, 32, channel_decay=True, gate_rank=128)
MODEL = "kimi-linear-48b-a3b"
LING_TINY: dict[str, object] = {
    "architectures": ["BailingMoeV3ForCausalLM"], "model_type": "bailing_hybrid", "hidden_size": 1536,
    "intermediate_size": 4608, "num_hidden_layers": 24, "num_attention_heads": 16, "head_dim": 128,
    "vocab_size": 157184, "layer_group_size": 4, "short_conv_kernel_size": 4, "no_kda_lora": True,
    "q_lora_rank": 256, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "gated_attention_proj_granularity_type": "head_wise", "num_experts": 128, "num_shared_experts": 1,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "moe_intermediate_size": 512,
    "first_k_dense_replace": 1, "tie_word_embeddings": False,
}  # fmt: skip


def cut(net: DeltaNet = KIMI, tokens: float = 1.0):
    return cut_of(net, tokens, 1.0, 1.0)


class TestCounts:
    def test_parameters_of_a_small_net(self) -> None:
        # in 64 x (q 64, k 64, v 128, strength 8), down 64 x 24 twice, up 24 x (decays 256, gate 128), out 128 x 64,
        # convolution 256 x 4, A 8 and dt bias 256; one norm of 16 that heads share, and the hidden norm of 64
        found = layer_parameters(Layer(None, None, None, 1, state_space=SMALL), 64)
        assert found.column_row == 64 * 264 + 24 * 384 + 128 * 64 + 256 * 4 + 8 + 256
        assert found.replicated == 2 * 64 * 24 + 16 + 64
        work = sum(gemm_flops(g, 1) for g in layer_gemms(Layer(None, None, None, 1, state_space=SMALL), 64))
        assert work == 2 * (64 * 264 + 2 * 64 * 24 + 24 * 384 + 128 * 64)

    def test_projections_straight_from_the_hidden_state(self) -> None:
        straight = DeltaNet(8, 16, 32, 2, channel_decay=True)
        found = layer_parameters(Layer(None, None, None, 1, state_space=straight), 64)
        assert found.column_row == 64 * (264 + 384) + 128 * 64 + 256 * 4 + 8 + 256
        assert found.replicated == 16 + 64

    def test_published_size(self) -> None:
        found = model_parameters(load_model(MODEL))
        net = 2304 * (3 * 4096 + 32 + 256) + 128 * 8192 + 4096 * 2304 + 3 * 4096 * 4 + 32 + 4096 + 128
        assert found.by_kind["delta_net"] == 20 * net
        ends = found.by_kind["embedding"] + found.by_kind["head"]
        assert (found.total - ends) / 1e9 == pytest.approx(48.4, abs=0.05)
        assert (found.active - ends) / 1e9 == pytest.approx(2.73, abs=0.01)  # "3B"

    def test_a_gate_of_every_head_on_latent_attention(self) -> None:
        whole = next(layer for layer in load_model(MODEL).layers if layer.attention)
        assert whole.attention is not None
        gated = replace(whole, attention=replace(whole.attention, head_gate=True))
        found = [layer_parameters(layer, 2304).column_row for layer in (whole, gated)]
        assert found[1] - found[0] == 2304 * 32
        work = [sum(gemm_flops(g, 1) for g in layer_gemms(layer, 2304)) for layer in (whole, gated)]
        assert work[1] - work[0] == 2 * 2304 * 32
        kept = []
        for layer in (whole, gated):
            given = problem(replace(load_model(MODEL), layers=(layer,)), "1x1 h100")
            cost = costs(given).layers.layer(given.model.layer_kinds[0], ConfigTable.of([ParallelConfig()]))
            kept.append(float(cost.kept[0]))
        assert kept[1] - kept[0] == 4096 * 2 * (32 + 32 * 128)  # the gate, and the output before it

    def test_work_backward_counted_product_by_product(self) -> None:
        q, k, v = 64, 128, 96
        net = DeltaNet(1, v, k, 1, channel_decay=True)
        chunk = matrix(
            (q, q, k), (q, q, v), (q, k, v), (k, q, v),  # w, u and the states again
            (q, v, q), (q, q, v),  # of Q K^T and of new values
            (k, q, v), (k, q, v), (q, k, v),  # of states, and of new values from them
            (q, v, k), (q, v, k), (q, v, k),  # of q, k and w
            (q, v, q), (q, q, v), (q, k, q), (q, q, k), (q, q, q), (q, q, q),  # through the inverse
            (q, q, k), (q, q, k), (q, q, k), (q, q, k),  # inside chunks
        )  # fmt: skip
        assert products(net, cut(net, float(q)))[1] == chunk


class TestMemory:
    def test_what_is_kept_tensor_by_tensor(self) -> None:
        """Kimi Linear's net, a token: 32 heads of 128, an operation at a time or fused."""
        wide = (
            3 * 4096 + 2 * 4096 + 4096 + 4096 + 4096 + 4096
        )  # qkv projected, q and k normed, v, gate, o, its norm
        half = (
            wide + 2 * 128 + 2 * 32 + 2 * 32 * 64
        )  # ranks, strengths before and after the sigmoid, two triangles
        statistics = 32 + 32 + 2 * 32
        parts = kept_parts(KIMI, cut(), 2.0, 2.0)
        assert parts["state_space"] == 2 * half + 4 * statistics + 2 * 4096
        eager = kept_parts(KIMI, cut(), 2.0, 2.0, fused=False)
        assert eager["state_space"] - parts["state_space"] == (5 * 4 + 1 - 2) * 4096

    def test_more_is_alive_backward_than_of_a_decay_of_heads(self) -> None:
        plain = DeltaNet(32, 128, 128, 32)
        assert working_bytes(KIMI, cut(), 2.0) > 1.5 * working_bytes(plain, cut(plain), 2.0)


class TestTime:
    @pytest.mark.parametrize(
        ("bandwidth", "batch", "seq", "heads", "milliseconds"),
        [
            (3.35e12, 1, 8192, 96, 3.668), (3.35e12, 1, 32768, 48, 7.505), (3.35e12, 8, 4096, 12, 1.876),
            (4.8e12, 1, 8192, 96, 3.102), (4.8e12, 1, 32768, 24, 3.937),
            (8.0e12, 1, 8192, 48, 1.406), (8.0e12, 1, 32768, 96, 9.790), (8.0e12, 8, 4096, 24, 2.464),
        ],
    )  # fmt: skip
    def test_published_timings_of_the_forward_rule(
        self, bandwidth: float, batch: int, seq: int, heads: int, milliseconds: float
    ) -> None:
        """H100, H200 and B200 (ai-dynamo/aiconfigurator@095f58a, sglang 0.5.16, chunk_kda); the timed call norms
        queries and keys, too. Nothing was fitted to them, and every one takes longer than its bytes."""
        net = DeltaNet(heads, 128, 128, heads, channel_decay=True)
        here = cut(net, float(batch * seq))
        moved = rule_traffic(net, here, 2.0) + here.tokens * 2.0 * 4.0 * here.shared
        one, two = (seconds(net, here, 2.0, 0.0, n * float(seq), bandwidth, 989e12)[0] for n in (1, 2))
        expected = moved / reached_bandwidth(bandwidth) + two - one
        assert 0.75 * milliseconds < expected * 1e3 < milliseconds

    def test_decays_one_operation_at_a_time_are_most_of_the_traffic_they_cost(self) -> None:
        here = cut(tokens=4096.0)
        for traffic, more in ((forward_traffic, 66.0), (backward_traffic, 66.0)):
            apart = traffic(KIMI, here, 2.0, 0.0, False) - traffic(KIMI, here, 2.0, 0.0, True)
            assert apart == 4096 * more * 4096
        fused, eager = (seconds(KIMI, here, 2.0, 0.0, 4096.0, 3.35e12, 989e12, f) for f in (True, False))
        assert eager[0] > 1.3 * fused[0]

    def test_a_decay_of_heads_is_costed_as_before(self) -> None:
        net = DeltaNet(32, 128, 128, 16)
        for fused in (True, False):
            assert rule_traffic(net, cut(net), 2.0, fused) == 2 * (6 + 7 + 2 * 2 + 3 * 0.5) * 4096


class TestWhoRunsIt:
    @pytest.mark.parametrize(
        ("stack", "broken"),
        [("megatron-2026", True), ("torchtitan-2026", True), ("nanotron-2024", True), ("deepspeed-2025", False),
         ("fsdp1-2023", False)],
    )  # fmt: skip
    def test_stacks_without_it_refuse(self, stack: str, broken: bool) -> None:
        subject = problem(load_model(MODEL), stack=load_stack(stack))
        found = {b.rule: b for b in explain_config(ParallelConfig(dp=16), subject, rules_for(subject.stack))}
        assert ("state-space-layers" in found) is broken
        if broken:
            assert "Kimi Delta Attention" in found["state-space-layers"].reason

    def test_what_would_help_is_another_stack(self) -> None:
        subject = problem(load_model(MODEL))
        (said,) = legal_changes(subject, rules_for(subject.stack), {})
        assert "no language model with Kimi Delta Attention" in text_of(said)
        assert "choose a stack of DeepSpeed or FSDP" in text_of(said)

    def test_gated_delta_nets_stay_with_megatron(self) -> None:
        subject = problem(delta_model(4, 4), stack=load_stack("megatron-2026"))
        found = explain_config(ParallelConfig(dp=16), subject, rules_for(subject.stack))
        assert "state-space-layers" not in {b.rule for b in found}


class TestReader:
    def test_which_layers_attend(self) -> None:
        attends = [i + 1 for i, layer in enumerate(load_model(MODEL).layers) if layer.attention]
        assert attends == [4, 8, 12, 16, 20, 24, 27]

    def test_layers_of_ling(self) -> None:
        spec = read_hf_config(
            {"model_type": "bailing_hybrid", "num_hidden_layers": 12}, "config.json", "ling"
        )
        assert [i for i, layer in enumerate(spec.layers) if layer.attention] == [5, 11]
        assert [i for i, layer in enumerate(spec.layers) if layer.mlp] == [0, 1]
        net = spec.delta_nets[0]
        assert (net.heads, net.head_dim, net.gate_rank, net.channel_decay) == (32, 128, 0, True)
        assert all(a.head_gate for a in spec.attentions)
        assert spec.is_moe

    def test_ling_as_the_library_saves_it(self) -> None:
        saved = {"head_dim": 64, "linear_head_dim": 128, "num_expert_group": 4, "topk_group": 2}
        spec = read_hf_config(
            {"model_type": "bailing_hybrid", "num_hidden_layers": 12, **saved}, "config.json", "ling"
        )
        assert spec.delta_nets[0].head_dim == 128
        assert {layer.moe.groups for layer in spec.layers if layer.moe} == {4}

    def test_published_weights_of_ling_3_tiny(self) -> None:
        """Shapes of the tensors of inclusionAI/Ling-3.0-tiny@a2ee06c, but for the biases of experts' choice."""
        hidden = 1536
        latent = 256 * hidden + 256 + 3072 * 256 + 576 * hidden + 512 + 4096 * 512 + (16 + 2048) * hidden
        delta = (3 * 2048 + 2048 + 16 + 2048 + 2048) * hidden + 3 * 2048 * 4 + 16 + 2048 + 128
        experts = 128 * hidden + (128 + 1) * 3 * 512 * hidden
        outside = 2 * 157184 * hidden + hidden + 24 * 2 * hidden + 3 * 4608 * hidden
        spec = read_hf_config(LING_TINY, "config.json", "ling")
        assert (
            model_parameters(spec).total == outside + 6 * latent + 18 * delta + 23 * experts == 7_893_389_856
        )
        assert {a.q_lora_rank for a in spec.attentions} == {256}

    @pytest.mark.parametrize(
        "other",
        [
            {"architectures": ["BailingMoeV2_5ForCausalLM"]},
            {"short_conv_kernel_size": None, "group_norm_size": 8},
        ],
    )
    def test_generations_before_ling_3_are_refused(self, other: dict[str, object]) -> None:
        with pytest.raises(UnsupportedError, match=r"reads Ling 3; linear attention with norms"):
            read_hf_config(LING_TINY | other, "config.json", "ling")
        read_hf_config(LING_TINY | {"group_norm_size": 1}, "config.json", "ling")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("gated_attention_proj_granularity_type", "element_wise"),
            ("no_kda_lora", False),
            ("use_kda_lora", True),
            ("pregate_enabled", True),
        ],
    )
    def test_what_ling_3_is_not_published_with(self, field: str, value: object) -> None:
        with pytest.raises(InputError, match=field):
            read_hf_config(LING_TINY | {field: value}, "config.json", "ling")

    def test_lists_that_miss_a_layer(self) -> None:
        fields = {"model_type": "kimi_linear", "num_hidden_layers": 3}
        linear = {"full_attn_layers": [3], "kda_layers": [1, 3]}
        with pytest.raises(InputError, match=r"every layer from 1 to 3 once"):
            read_hf_config(fields | {"linear_attn_config": linear}, "config.json", "small")
