"""Hunyuan 4: residual streams that are not mixed, sinks and a gate of sparse latent attention, who runs it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.cost.device.updates import layer_tensors
from planner.cost.operations.lists import layer_gemms
from planner.cost.params import layer_parameters, model_parameters
from planner.errors import InputError, UnsupportedError
from planner.frameworks.details import Details
from planner.frameworks.megatron.architecture import check_release, model_options
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.config import ConfigTable, ParallelConfig, Recompute
from planner.spec.hf import read_hf_config
from planner.spec.layer import Layer
from planner.spec.model import ModelSpec
from planner.spec.precision import RECIPES, Precision
from tests.problems import costs, layer_activations, problem

SMALL: dict[str, Any] = {
    "model_type": "hy_v4", "vocab_size": 1280, "hidden_size": 256, "num_hidden_layers": 7, "intermediate_size": 512,
    "num_attention_heads": 64, "moe_intermediate_size": 128, "q_lora_rank": 64, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "index_n_heads": 8, "index_topk": 64,
}  # fmt: skip
ALL_CHOOSE = {"indexer_types": ["full"] * 7}


def read(**fields: Any) -> ModelSpec:
    return read_hf_config({**SMALL, **fields}, "config.json", "small")


def kept(layer: Layer) -> dict[str, Any]:
    subject = problem(read(), stack="megatron-2026")
    x = costs(subject).layers.shape(ConfigTable.of([ParallelConfig(dp=16)]), layer)
    parts = layer_activations(layer, subject.model, x, subject.stack.kernels, RECIPES[Precision.BF16])
    return {name: part / x.tokens for name, part in parts.items()}


class TestReading:
    def test_default_total_of_transformers(self) -> None:
        """5.23's HYV4ForCausalLM of HYV4Config() on its meta device."""
        counted = model_parameters(read_hf_config({"model_type": "hy_v4"}, "config.json", "m"))
        assert counted.total == 58_278_193_133

    def test_the_first_layer_and_one_in_four_from_the_second_choose(self) -> None:
        found = [y.attention.indexer for y in read().layers if y.attention]
        assert [x is not None and x.shared for x in found] == [False, False, True, True, True, False, True]

    def test_one_stream_is_refused(self) -> None:
        with pytest.raises(InputError, match="hc_mult"):
            read(hc_mult=1)


class TestWork:
    def test_products_hold_every_matrix(self) -> None:
        """The rest: two hidden norms, of latents and of the indexer's key, sinks, biases and scales of streams."""
        for layer in read().layers:
            a = layer.attention
            assert a is not None
            assert a.indexer is not None
            weights = sum(g.in_features * g.out_features * g.groups for g in layer_gemms(layer, 256))
            small = 2 * 256 + 64 + 512 + 2 * 128 * (not a.indexer.shared) + 64 + 2 * (8 + 2)
            assert weights + small == layer_parameters(layer, 256).total

    def test_a_branch_weighs_its_input_and_its_output_alone(self) -> None:
        layer = read().layers[0]
        mixed = replace(layer, residual=replace(layer.residual, mixed=True))
        weigh = [[g.out_features for g in layer_gemms(y, 256) if g.name == "streams"] for y in (layer, mixed)]
        assert weigh == [[8, 8], [24, 24]]
        assert layer_tensors(mixed, 256)[1] - layer_tensors(layer, 256)[1] == 2  # a scale of each branch

    def test_a_gate_and_sinks_are_tensors(self) -> None:
        layer = read().layers[0]
        assert layer.attention is not None
        plain = replace(layer, attention=replace(layer.attention, output_gate=False, sinks=False))
        assert layer_tensors(layer, 256)[1] - layer_tensors(plain, 256)[1] == 2

    def test_sparse_attention_keeps_its_gate_and_what_it_multiplies(self) -> None:
        """Bytes a token of 64 heads of 256 values, 2 each: the gate, and the output before it."""
        layer = read().layers[0]
        assert layer.attention is not None
        plain = replace(layer, attention=replace(layer.attention, output_gate=False))
        more, less = kept(layer), kept(plain)
        assert more["mla_streams"] - less["mla_streams"] == pytest.approx(2 * 64 * 256)
        assert more["attention_out"] - less["attention_out"] == pytest.approx(2 * 64 * 256)

    def test_streams_are_kept_whole_at_both_branches(self) -> None:
        """4 streams of 256 values at each branch; what it reads of them and returns; statistics of two norms."""
        found = kept(read().layers[0])
        assert found["input"] + found["residual"] == pytest.approx(2 * 256 * (2 * 4 + 4) + 2 * 4)


class TestWhoRunsIt:
    def broken(self, config: ParallelConfig, stack: str = "megatron-2026", **fields: Any) -> set[str]:
        subject = problem(read(**fields), "1x8 h100", stack=stack)
        return {b.rule for b in explain_config(config, subject, rules_for(subject.stack))}

    def test_kernels_take_it_divided_by_heads_and_tokens(self) -> None:
        assert not self.broken(ParallelConfig(dp=8, ep=8, zero=1))
        assert not self.broken(ParallelConfig(dp=2, tp=2, cp=2, sp=1, ep=2, zero=1))

    def test_choices_stay_in_a_stage(self) -> None:
        staged = ParallelConfig(dp=8, pp=1, ep=8, zero=1)
        assert "indexer-stages" in self.broken(replace(staged, dp=1, ep=1, pp=7, num_microbatches=16))
        assert "indexer-stages" not in self.broken(
            replace(staged, dp=1, ep=1, pp=7, num_microbatches=16), **ALL_CHOOSE
        )

    def test_no_whole_layers_are_recomputed_and_others_have_no_kernels(self) -> None:
        full = ParallelConfig(dp=8, recompute=int(Recompute.FULL), recompute_layers=7)
        assert "streams-recompute" in self.broken(full)
        assert "indexer-kernels" in self.broken(ParallelConfig(dp=8), "deepspeed-2025")

    def test_no_file_can_launch_it(self) -> None:
        check_release(read(), "0.18.2")  # what is said is not that another release would do
        with pytest.raises(UnsupportedError, match="residual streams that are not mixed"):
            model_options(read(), Details(), 4096, 128, "main-2026-08")
