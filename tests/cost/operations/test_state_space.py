"""Mamba-2 layers: parameters, work, memory and time by hand, and how they divide over ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.flops import model_flops
from planner.cost.layer_memory import layer_parts
from planner.cost.messages.sizes import tensor_parallel_regions
from planner.cost.mfu import causal_half_flops_per_token
from planner.cost.operations.lists import layer_gemms
from planner.cost.operations.state_space import (
    SCAN_SLOWDOWN,
    backward_traffic,
    cut_of,
    exchanged_bytes,
    forward_traffic,
    kept_parts,
    seconds,
    working_bytes,
)
from planner.cost.operations.state_space import (
    flops as scan_flops,
)
from planner.cost.params import layer_parameters, model_parameters
from planner.errors import UnsupportedError
from planner.frameworks.megatron.hybrid import check_hybrid
from planner.solve.step_messages import step_messages
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.config import CUDA_GRAPH_MODULES, RECOMPUTE_MODULES, ConfigTable, CudaGraphs, ParallelConfig
from planner.spec.hf import read_hf_config
from planner.spec.job import AdapterTargets
from planner.spec.layer import Layer
from planner.spec.load_model import load_model
from planner.spec.mixers import StateSpace
from planner.spec.model import ModelSpec
from planner.spec.precision import RECIPES, Precision
from planner.spec.rule import Problem
from tests.problems import (
    costs,
    hybrid_model,
    launches,
    layer_activations,
    layer_of,
    moe_model,
    operations,
    problem,
)

SMALL = StateSpace(16, 8, 32, 2, conv=4, chunk=64)  # x 128, B and C 64 each
NANO = StateSpace(64, 64, 128, 8, chunk=128)  # of Nemotron 3 Nano: x 4096, B and C 1024 each
NONE = np.zeros(1)


def nano_cut(t: float = 1.0, c: float = 1.0, tokens: float = 8192.0):
    return cut_of(NANO, np.array([tokens / c]), np.array([t]), np.array([c]))


class TestCounts:
    def test_parameters_of_a_small_mixer(self) -> None:
        # in 64 x (128 + 256 + 16), out 128 x 64, convolution 256 x (4 + 1), A, D, dt bias 3 x 16, norms 128 and 64
        found = layer_parameters(Layer(None, None, None, 1, state_space=SMALL), 64)
        assert found.column_row == 64 * 400 + 128 * 64 + 256 * 5 + 48 + 128
        assert (found.replicated, found.expert, found.kv) == (64, 0, 0)

    def test_biases_and_a_convolution_without_one(self) -> None:
        biased = replace(SMALL, bias=True, conv_bias=False)
        found = layer_parameters(Layer(None, None, None, 1, state_space=biased), 64)
        plain = layer_parameters(Layer(None, None, None, 1, state_space=SMALL), 64)
        assert found.column_row - plain.column_row == 400 - 256
        assert found.replicated - plain.replicated == 64

    def test_totals_of_published_models(self) -> None:
        nano = model_parameters(load_model("nemotron-3-nano-30b-a3b"))
        assert nano.total == 31_577_937_344
        assert nano.by_kind["state_space"] == 23 * (2688 * 10304 + 4096 * 2688 + 6144 * 5 + 192 + 4096)
        assert nano.active / 1e9 == pytest.approx(3.6, abs=0.05)  # NVIDIA: 3.5B with, 3.2B without embeddings
        assert model_parameters(load_model("nemotron-h-56b")).total / 1e9 == pytest.approx(56, abs=0.5)

    def test_experts_in_a_latent_space(self) -> None:
        """Nemotron 3 Super, 120.6B of which 12B are active, and Ultra, 550B of which 55B."""
        spec = load_model("nemotron-3-super-120b-a12b")
        found = model_parameters(spec)
        assert found.by_kind["experts"] == 40 * (512 * 2 * 1024 * 2688 + 2 * 4096 * 1024)
        assert found.total == 120_668_687_360
        assert found.active / 1e9 == pytest.approx(12.8, abs=0.05)
        assert model_parameters(load_model("nemotron-3-ultra-550b-a55b")).total / 1e9 == pytest.approx(
            549.3, abs=0.1
        )

    def test_prediction_modules_of_several_layers(self) -> None:
        """One of attention and experts: their parameters, a projection 2 h -> h, three norms, and the head again."""
        plain, more = (load_model("nemotron-3-super-120b-a12b", mtp) for mtp in (False, True))
        block = sum(layer_parameters(layer, 4096).total for layer in more.mtp_block)
        assert [layer.moe is None for layer in more.mtp_block] == [True, False]
        added = model_parameters(more).total - model_parameters(plain).total
        assert added == block + 2 * 4096**2 + 3 * 4096
        assert sum(more.last_stage_layers) == 2
        # published with its speed: 84.4 GFLOP a token (831 TFLOP/s at 9,856 tokens/s on GB300), its module run twice
        twice = replace(more, mtp_layers=2)
        assert causal_half_flops_per_token(twice, 8192.0) == pytest.approx(84.3e9, rel=0.01)

    def test_work_of_a_scan(self) -> None:
        # convolution 2 x 4 x 6144; C B^T 2 x 128 x 1024; its product with x 2 x 128 x 4096; states 2 x (2 x 128 x 4096)
        assert scan_flops(NANO, 1) == 49_152 + 262_144 + 1_048_576 + 2_097_152

    def test_the_scan_is_in_no_linear_work(self) -> None:
        spec = hybrid_model("MM")
        flops = model_flops(spec, 1, 4096)
        state = spec.state_spaces[0]
        projections = 2 * 4096 * 2 * 2048 * (state.in_width + state.inner)
        assert flops.forward_linear == projections + 2 * 4096 * 2048 * 32000
        assert flops.forward_scan == 2 * scan_flops(state, 4096)
        assert flops.backward == 2 * (flops.forward_linear + flops.forward_scan)
        assert flops.forward_attention == 0

    def test_megatrons_own_count(self) -> None:
        # hybrid_flops: a Mamba layer 2 h (2 d + 2 g n + heads) + 7 d n + 2 d h a token, attention half the square
        spec, s = hybrid_model("M*"), 4096
        mixer = 2 * 2048 * (2 * 4096 + 2 * 8 * 128 + 64) + 7 * 4096 * 128 + 2 * 4096 * 2048
        attends = 2 * 2048 * (2048 + 2 * 1024 + 2048) + 2 * s * 2048
        assert causal_half_flops_per_token(spec, s) == 3 * (mixer + attends + 2 * 2048 * 32000)


class TestSharding:
    def test_tensor_parallelism_divides_heads_and_groups(self) -> None:
        whole, half = nano_cut(), nano_cut(t=2)
        assert (float(half.heads[0]), float(half.groups[0])) == (32, 4)
        for half_part, part in zip(
            forward_traffic(NANO, half, 2.0, NONE), forward_traffic(NANO, whole, 2.0, NONE), strict=True
        ):
            assert half_part == pytest.approx(part / 2)
        assert working_bytes(NANO, half, 2.0) == pytest.approx(working_bytes(NANO, whole, 2.0) / 2)

    def test_context_parallelism_deals_heads_of_whole_sequences(self) -> None:
        whole, dealt = nano_cut(), nano_cut(c=4)
        assert float(dealt.tokens[0]) == 8192
        for of in (forward_traffic, backward_traffic):
            for share, part in zip(of(NANO, dealt, 2.0, NONE), of(NANO, whole, 2.0, NONE), strict=True):
                assert share == pytest.approx(part / 4)

    def test_groups_fewer_than_ranks_are_copied(self) -> None:
        cut = nano_cut(t=2, c=8)
        assert (float(cut.groups[0]), float(cut.shared[0])) == (1, 128)
        into, out = exchanged_bytes(NANO, cut, 2.0)
        assert float(into[0]) == 8192 * 2 * (2 * 256 + 2 * 128 + 4)  # 2048 and 512 values over 8, B and C not
        assert float(out[0]) == 8192 * 2 * 256

    def test_a_layer_alone_has_one_region_and_routed_experts_none(self) -> None:
        spec = hybrid_model("M*-")
        assert [tensor_parallel_regions(layer) for layer in spec.layers] == [1.0, 1.0, 1.0]
        routed = moe_model(shared_ffn=0).layers[-1]
        assert tensor_parallel_regions(routed) == 1.0
        assert tensor_parallel_regions(replace(routed, attention=None, norms=1)) == 0.0

    def test_parameters_on_a_rank(self) -> None:
        model = costs(problem(hybrid_model("MM")))
        one, two = np.ones(1), np.full(1, 2.0)
        dense = (
            model.shards.parameters_by_kind(one, one, one)[0],
            model.shards.parameters_by_kind(two, one, one)[0],
        )
        count = layer_parameters(model.kinds[0], 2048)
        assert dense[0][0, 0] - dense[1][0, 0] == count.column_row / 2


class TestMemory:
    def test_what_a_mixer_keeps(self) -> None:
        # 2 x 10304 of the projection, 2 x 4096 before and after the gate, statistics of 8 groups, the last input
        parts = kept_parts(NANO, nano_cut(tokens=1.0), 2.0, 2.0)
        assert float(parts["state_space"][0]) == 2 * (10304 + 2 * 4096) + 4 * 8
        assert float(parts["state_out"][0]) == 2 * 4096

    def test_a_layer_keeps_its_input_and_one_normed_copy(self) -> None:
        subject = problem(hybrid_model("MM"))
        model, keys = costs(subject), ConfigTable.of([ParallelConfig(dp=16)])
        x = model.layers.shape(keys, model.kinds[0])
        recipe = RECIPES[Precision.BF16]
        parts = layer_activations(model.kinds[0], subject.model, x, subject.stack.kernels, recipe)
        stream = 2.0 * 4096 * 2048
        assert float(parts["input"][0]) == stream
        assert float(parts["state_in"][0]) == stream
        assert float(parts["layernorm"][0]) == 0.0
        assert "qkv" not in parts

    def test_recomputed_norms_are_not_those_before_a_mixer(self) -> None:
        bit = 1 << RECOMPUTE_MODULES.index("layernorm")
        plain = ParallelConfig(dp=16)
        some = replace(plain, recompute=1, recompute_modules=bit)
        mixer, attends = (layer_of(problem(hybrid_model("M*")), plain, some, kind=kind) for kind in (0, 1))
        assert mixer.kept[0] == mixer.kept[1]
        assert attends.kept[0] > attends.kept[1]

    def test_frozen_weights_take_from_no_part_more_than_it_has(self) -> None:
        given = problem(hybrid_model("M*-E"))
        given = replace(given, job=replace(given.job, lora_rank=8, lora_targets=AdapterTargets.QKV))
        model, keys = costs(given), ConfigTable.of([ParallelConfig(dp=16)])
        for kind in model.kinds:
            parts = layer_parts(given, *operations(given, kind), model.layers.shape(keys, kind))
            assert all((part >= 0).all() for part in parts.values()), parts

    def test_full_recomputation_leaves_the_input(self) -> None:
        cost = layer_of(problem(hybrid_model("M*")), ParallelConfig(dp=16), kind=0)
        assert float(cost.kept_full[0]) == pytest.approx(2.0 * 4096 * 2048)
        assert float(cost.working_full[0]) > float(cost.working[0])


class TestLatentExperts:
    """Routed experts in a width of their own, 512 of 2,048; the shared expert and the router see the hidden state."""

    @staticmethod
    def subjects() -> tuple[Problem, Problem]:
        wide = hybrid_model("ME")
        moe = wide.layers[1].moe
        assert moe is not None
        inner = replace(wide.layers[1], moe=replace(moe, latent=512))
        return problem(wide), problem(replace(wide, layers=(wide.layers[0], inner)))

    def test_a_quarter_is_sent_to_experts(self) -> None:
        config = ParallelConfig(dp=16, ep=8)
        sent = [
            [e.size for e in step_messages(costs(given), config, 0) if e.axis == "ep"]
            for given in self.subjects()
        ]
        assert len(sent[0]) > 0
        assert sent[1] == [size / 4 for size in sent[0]]

    def test_what_a_layer_keeps_by_hand(self) -> None:
        # 4 copies of 4,096 tokens: permuted rows, 2,048 - 512 values fewer in 16 bits; 512 more behind the experts
        rows, kernels = 4 * 4096, load_stack("megatron-2026").kernels
        outputs = 0 if kernels.probs_in_activation else 1
        keys, kept = ConfigTable.of([ParallelConfig(dp=16, ep=8)]), []
        for given in self.subjects():
            model = costs(given)
            shape = model.layers.shape(keys, model.kinds[1])
            kept.append(layer_parts(given, *operations(given, model.kinds[1]), shape)["moe"])
        wide, narrow = kept
        assert float(wide[0] - narrow[0]) == pytest.approx(2 * rows * 1536 * (1 + outputs) - 2 * 4096 * 512)

    def test_its_products(self) -> None:
        names = {
            g.name: (g.in_features, g.out_features)
            for g in layer_gemms(self.subjects()[1].model.layers[1], 2048)
        }
        assert names["latent_down"] == (2048, 512)
        assert names["latent_up"] == (512, 2048)
        assert names["expert_fc1"] == (512, 1024)
        assert names["shared_fc1"] == (2048, 1024)


class TestTime:
    def test_traffic_of_a_scan_by_hand(self) -> None:
        # 10 i + 8 n in 16 bits, states of i x 128 / 128 twelve bytes, 8 g q of C B^T, 26 a head
        expected = 2 * (10 * 4096 + 8 * 1024) + 12 * 4096 + 8 * 1024 + 26 * 64
        plain, scan = forward_traffic(NANO, nano_cut(tokens=1.0), 2.0, NONE)
        assert float(plain[0] + scan[0]) == expected
        assert float(plain[0]) == 2 * 4 * (4096 + 1024)  # convolution 2 (i + 2 n), norm 2 i

    def test_traffic_binds_and_bandwidth_helps(self) -> None:
        slow, fast = (
            seconds(NANO, nano_cut(), 2.0, NONE, NONE, bandwidth, 989e12) for bandwidth in (3.35e12, 4.8e12)
        )
        moved = 40_960 + SCAN_SLOWDOWN * (157_312 - 40_960)
        assert float(slow[0][0]) == pytest.approx(8192 * moved / (3.35e12 * 0.74))
        assert slow[0] > fast[0]
        assert slow[1] > 2 * slow[0]  # recomputation and two gradients

    def test_a_weak_device_is_bound_by_products(self) -> None:
        bound = seconds(NANO, nano_cut(), 2.0, NONE, NONE, 3.35e12, 20e12)
        assert bound[0] > seconds(NANO, nano_cut(), 2.0, NONE, NONE, 3.35e12, 989e12)[0]

    def test_terms_of_a_mixer(self) -> None:
        cost = layer_of(
            problem(hybrid_model("M*")), ParallelConfig(dp=16), ParallelConfig(cp=4, dp=4), kind=0
        )
        assert (cost.forward["attention"] == 0).all()
        assert cost.forward["memory_bound"][0] > 0
        assert cost.forward["cp_comm"][0] == 0
        assert cost.forward["cp_comm"][1] > 0

    def test_launches_of_blocks_of_one_part(self) -> None:
        spec = hybrid_model("M*-E")
        assert [12 * launches(layer, 4096, False) for layer in spec.layers] == pytest.approx([17, 7, 5, 5])
        for single in (False, True):
            assert launches(moe_model().layers[0], 4096, single) == 1.0

    def test_a_captured_mixer_is_not_launched(self) -> None:
        subject = problem(hybrid_model("M*"))
        graphs = {"cuda_graph_impl": int(CudaGraphs.TRANSFORMER_ENGINE)}
        mask = 1 << CUDA_GRAPH_MODULES.index("mamba")
        plain = ParallelConfig(dp=16)
        some = replace(plain, **graphs, cuda_graph_modules=mask)
        mixer, attends = (layer_of(subject, plain, some, kind=kind) for kind in (0, 1))
        assert mixer.host[1] < 0.2 * mixer.host[0]
        assert attends.host[0] == attends.host[1]


def test_a_state_space_must_divide_into_groups() -> None:
    from planner.errors import InputError

    with pytest.raises(InputError, match="groups must divide"):
        StateSpace(10, 8, 16, 4)
    with pytest.raises(InputError, match="something to compute"):
        Layer(None, None, None)


class TestBesideAttention:
    """Falcon-H1: attention and Mamba-2 read the same normed input (arXiv 2507.22448, section 2.1)."""

    LARGE: ClassVar = {
        "model_type": "falcon_h1", "hidden_size": 5120, "intermediate_size": 21504, "num_hidden_layers": 72,
        "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 261120, "mamba_d_ssm": 4096,
        "mamba_n_heads": 32, "mamba_n_groups": 2, "mamba_rms_norm": True,
    }  # fmt: skip

    def read(self, **fields: object) -> ModelSpec:
        return read_hf_config({**self.LARGE, **fields}, "config.json", "falcon-h1")

    def test_parameters_of_the_largest(self) -> None:
        """33.6B: of a layer 5120 x (3584 + 2560) of attention, 5120 x (9248 + 4096) and less of Mamba-2."""
        spec = self.read()
        found = model_parameters(spec)
        assert found.by_kind["attention"] == 72 * 5120 * (3584 + 2560)
        assert found.by_kind["state_space"] == 72 * (5120 * (9248 + 4096) + 5120 * 5 + 96 + 4096)
        assert found.total == 33_642_516_224
        assert found.total - model_parameters(self.read(mamba_rms_norm=False)).total == 72 * 4096
        assert model_flops(spec, 1, 8192).forward_scan == 72 * 8192 * scan_flops(spec.state_spaces[0], 1)

    def test_a_layer_does_the_work_of_both(self) -> None:
        layer = self.read().layers[0]
        assert layer.attention is not None
        gemms = [g.name for g in layer_gemms(layer, 5120)]
        assert gemms == ["state_in", "state_out", "qkv", "attention_out", "mlp_fc1", "mlp_fc2"]
        assert tensor_parallel_regions(layer) == 3
        # of 12 launches 7 are attention's and 5 the MLP's; 16 of Mamba-2 without the norm that both read
        assert launches(layer, 8192, False) == pytest.approx((12 + 16) / 12)
        assert launches(layer, 8192, True) == pytest.approx((38 + 16 + 8) / 38)
        subject = problem(replace(hybrid_model(), layers=(layer,) * 2, hidden=5120), stack="deepspeed-2025")
        plain = (
            replace(layer, attention=None),
            replace(layer, state_space=None),
            replace(layer, multiplied=False),
        )
        keys = ConfigTable.of([ParallelConfig(dp=16)])
        both, *parts, single = (costs(subject).layers.layer(kind, keys) for kind in (layer, *plain))
        for term in ("attention", "gemm"):
            assert both.forward[term][0] >= max(part.forward[term][0] for part in parts)
        assert (
            single.forward["memory_bound"][0]
            < both.forward["memory_bound"][0]
            < 1.5 * single.forward["memory_bound"][0]
        )

    def test_what_pytorch_keeps_of_a_layer(self) -> None:
        """Saved tensors of transformers 5.23's layer, the scan's function keeping what it reads and makes."""
        small = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 2,
                 "head_dim": 64, "mamba_d_ssm": 384, "mamba_n_heads": 8, "mamba_n_groups": 1, "mamba_d_state": 64,
                 "mamba_rms_norm": False}  # fmt: skip
        subject = problem(self.read(**small), seq_len=1024, stack="deepspeed-2025")
        x = costs(subject).layers.shape(ConfigTable.of([ParallelConfig(dp=16)]), subject.model.layers[0])
        kernels = subject.stack.kernels
        kept = layer_activations(subject.model.layers[0], subject.model, x, kernels, RECIPES[Precision.BF16])
        assert float(sum(part[0] for part in kept.values())) / (1024 * 512) == pytest.approx(52.11, abs=0.005)

    def test_who_runs_it(self) -> None:
        for stack, legal in (("torchtitan-2026", False), ("nanotron-2024", False), ("deepspeed-2025", True)):
            subject = problem(self.read(), stack=load_stack(stack))
            broken = explain_config(ParallelConfig(dp=16), subject, rules_for(subject.stack))
            assert ("state-space-layers" in {b.rule for b in broken}) is not legal
        with pytest.raises(UnsupportedError, match="side by side"):
            check_hybrid(self.read())
        with pytest.raises(UnsupportedError, match="projectors_bias"):
            self.read(mamba_proj_bias=True)


def test_one_layer_of_two_parts_costs_as_two_of_one() -> None:
    """A state space and an MLP as one layer or as two: the same work, parameters, kept bytes."""
    apart = hybrid_model("M-" * 4)
    mixer, mlp = apart.layers[:2]
    joined = replace(mixer, mlp=mlp.mlp, norms=2)
    together = ModelSpec("joined", "bamba", 2048, 32000, (joined,) * 4, False, max_position=131072)
    assert model_parameters(together).total == model_parameters(apart).total
    assert model_flops(together, 1, 4096) == model_flops(apart, 1, 4096)
    config = ParallelConfig(tp=2, dp=8, sp=1)
    kept = [sum(float(layer_of(problem(s), config, kind=kind).kept[0]) for kind in range(len(s.layer_kinds)))
            for s in (together, apart)]  # fmt: skip
    assert kept[0] == pytest.approx(kept[1])
