"""Attention residuals and what else Kimi K3 adds: parameters against the published weights, memory and time by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.cost.operations.lists import layer_gemms
from planner.cost.operations.operation import gemm_flops
from planner.cost.params import layer_parameters, model_parameters
from planner.errors import InputError, UnsupportedError
from planner.frameworks.details import Details
from planner.frameworks.megatron.architecture import check_release, model_options
from planner.frameworks.programs import check_program
from planner.solve.step_messages import step_messages
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.hf import read_hf_config
from planner.spec.load_model import load_model
from planner.spec.mixers import DeltaNet
from planner.spec.model import ModelSpec
from planner.spec.precision import RECIPES, Precision
from planner.spec.residual import AttentionResiduals
from tests.problems import costs, layer_activations, problem

K3 = load_model("kimi-k3")
SMALL: dict[str, Any] = {
    "model_type": "kimi_k3", "vocab_size": 1280, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6,
    "num_attention_heads": 8, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "num_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 128,
    "mla_use_output_gate": True, "routed_expert_hidden_size": 192, "latent_moe_use_norm": True,
    "attn_res_block_size": 2, "hidden_act": "situ",
    "linear_attn_config": {
        "num_heads": 8, "head_dim": 32, "short_conv_kernel_size": 4, "use_full_rank_gate": True,
        "full_attn_layers": [4], "kda_layers": [1, 2, 3, 5, 6],
    },
}  # fmt: skip


def read(**fields: Any) -> ModelSpec:
    return read_hf_config({**SMALL, **fields}, "config.json", "small")


class TestParameters:
    def test_bytes_of_the_published_weights(self) -> None:
        """1,560,860,324,864, as model.safetensors.index.json sums them up: routed experts in 4 bits with a scale of 8
        bits for 32, decays and convolutions, norms of delta nets and correction biases in fp32, A padded to 128, the
        rest and the vision tower (torchtitan 92a5efa models/kimi_k3/__init__.py) in 16 bits."""
        routed = 92 * 896 * 3 * 3584 * 3072
        rest = model_parameters(K3).total - routed
        wide = 69 * (3 * 12288 * 4 + 12288 + 128 + 96)
        padding, biases = 69 * 32, 92 * 896
        block = 4 * 1536 * 1024 + 2 * 4096 * 1024 + 2 * 1024
        tower = 3 * 14**2 * 1024 + 64**2 * 1024 + 27 * block + 1024
        projector = 4096**2 + 4096 * 7168 + 7168
        narrow = 2 * (rest - wide + tower + projector)
        assert routed * 17 // 32 + narrow + 4 * (wide + padding + biases) == 1_560_860_324_864

    def test_totals(self) -> None:
        counted = model_parameters(K3)
        assert counted.total == 2_779_484_393_568
        assert counted.by_kind["attention_residuals"] == (4 * 93 + 2) * 7168

    def test_products_hold_every_matrix(self) -> None:
        for layer in read().layers:
            weights = sum(
                g.in_features * (g.out_features + g.kv_out_features) * g.groups
                for g in layer_gemms(layer, 256)
            )
            small = 2 * 256 + 4 * 256 + (192 if layer.moe else 0)
            small += 3 * 256 * 4 + 8 + 256 + 32 if layer.state_space else 64 + 32
            assert weights + small == layer_parameters(layer, 256).total

    def test_the_gate_of_latent_attention_is_as_wide_as_its_output(self) -> None:
        layer = read().layers[3]
        gate = next(g for g in layer_gemms(layer, 256) if g.name == "head_gate")
        assert gemm_flops(gate, 1) == 2 * 256 * 8 * 32

    def test_kimi_linear_is_itself_without_them(self) -> None:
        plain = {"attn_res_block_size": None, "mla_use_output_gate": None, "routed_expert_hidden_size": None}
        net = SMALL["linear_attn_config"] | {"use_full_rank_gate": None}
        model = read(model_type="kimi_linear", **plain, linear_attn_config=net)
        assert model.family == "kimi_linear"
        assert not model.attends_to_residuals
        assert read(model_type="kimi_linear").family == "kimi_k3"


class TestSums:
    def test_what_each_branch_attends_to(self) -> None:
        """The first branch of a layer that starts a stretch does not see the sum that it hands on, the second does."""
        found = [y.residual for y in read().layers if isinstance(y.residual, AttentionResiduals)]
        assert [r.earlier for r in found] == [(0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3)]
        assert K3.layers[-1].residual == AttentionResiduals((8, 8))
        assert [r.starts_stretch for r in found] == [1, 0, 2, 0, 3, 0]

    def test_every_branch_needs_a_number(self) -> None:
        with pytest.raises(InputError, match="earlier"):
            replace(read().layers[0], residual=AttentionResiduals((1,)))

    def test_kept_by_hand(self) -> None:
        """8 bytes of every value of every sum; of a layer that starts a stretch all sums so far, recomputed or not."""
        subject = problem(read(), stack="megatron-2026")
        model, kernels, recipe = subject.model, subject.stack.kernels, RECIPES[Precision.BF16]
        x = costs(subject).layers.shape(ConfigTable.of([ParallelConfig(dp=16)]), model.layers[2])
        layer = model.layers[2]
        plain = layer_activations(replace(layer, residual=None), model, x, kernels, recipe)
        with_sums = layer_activations(layer, model, x, kernels, recipe)
        stream = x.tokens * 256
        assert with_sums["residual"] - plain["residual"] == pytest.approx(8 * stream * (2 + 3))
        assert with_sums["input"] - plain["input"] == pytest.approx(2 * stream * 2)

    def test_a_longer_stretch_moves_fewer_bytes(self) -> None:
        rows = [
            costs(problem(read(attn_res_block_size=n), stack="megatron-2026")).evaluate(
                ConfigTable.of([ParallelConfig(dp=16, ep=8, zero=1, num_microbatches=4)])
            )
            for n in (1, 6)
        ]
        assert rows[0].step_time[0] > rows[1].step_time[0]
        assert rows[0].peak_memory[0] > rows[1].peak_memory[0]

    def test_stages_pass_the_mean_of_all_layers(self) -> None:
        assert read().passed_streams == 1 + np.mean([0, 1, 1, 2, 2, 3])
        config = ParallelConfig(dp=8, pp=2)
        six, two = (
            next(e.size for e in step_messages(costs(problem(model, stack="megatron-2026")), config, 0)
                 if e.axis == "pp")
            for model in (read(attn_res_block_size=6), read())
        )  # fmt: skip
        assert two / six == pytest.approx(read().passed_streams / read(attn_res_block_size=6).passed_streams)


class TestWhoRunsIt:
    def broken(self, config: ParallelConfig, stack: str = "megatron-2026") -> set[str]:
        subject = problem(read(), "1x8 h100", stack=stack)
        return {b.rule for b in explain_config(config, subject, rules_for(subject.stack))}

    def test_megatron_bridge_does_without_interleaving(self) -> None:
        assert not self.broken(ParallelConfig(dp=4, pp=2, ep=4, zero=1, num_microbatches=16))
        assert "attention-residuals-vpp" in self.broken(
            ParallelConfig(dp=4, pp=2, vpp=3, num_microbatches=16)
        )

    def test_torchtitan_has_none(self) -> None:
        assert "state-space-layers" in self.broken(ParallelConfig(dp=8, zero=3), "torchtitan-2026")

    @pytest.mark.parametrize("version", ["0.18.2", "main-2026-08"])
    def test_no_file_can_launch_it(self, version: str) -> None:
        check_release(K3, version)  # what is said is not that another release would do
        with pytest.raises(UnsupportedError, match="attention residuals"):
            model_options(K3, Details(), 4096, 128, version)
        with pytest.raises(UnsupportedError, match="kimi_k3"):
            check_program(K3)

    def test_a_net_with_its_gate_whole(self) -> None:
        """Decays alone come through the low rank."""
        net = read().delta_nets[0]
        assert isinstance(net, DeltaNet)
        assert (net.ranks, net.ranked_width) == (32, 256)
        assert (replace(net, whole_gate=False).ranks, replace(net, whole_gate=False).ranked_width) == (
            64,
            512,
        )
