"""Mistral Large 4: scaled queries, latent keys that layers share, layers without positions, who runs it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.cost.device.updates import trained_tensors
from planner.cost.messages.sizes import key_value_bytes
from planner.cost.operations.lists import layer_gemms
from planner.cost.params import layer_parameters, model_parameters
from planner.errors import InputError, UnsupportedError
from planner.frameworks.details import Details
from planner.frameworks.megatron.architecture import check_release, model_options
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.hf import read_hf_config
from planner.spec.model import ModelSpec
from planner.spec.precision import RECIPES, Precision
from tests.problems import costs, layer_activations, problem

SMALL: dict[str, Any] = {
    "model_type": "mistral_large4_text", "vocab_size": 1280, "hidden_size": 256, "num_hidden_layers": 4,
    "intermediate_size": 512, "num_attention_heads": 64, "moe_intermediate_size": 128, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "index_n_heads": 8, "index_topk": 64,
}  # fmt: skip
SHARES = {"kv_source_layers": [0, 0, 2, 2]}


def read(**fields: Any) -> ModelSpec:
    return read_hf_config({**SMALL, **fields}, "config.json", "small")


class TestReading:
    def test_default_total_of_transformers(self) -> None:
        """5.24's text model and head of MistralLarge4Config() on its meta device, with 32 factors of frequencies."""
        text = {"model_type": "mistral_large4", "text_config": {}}
        found = model_parameters(read_hf_config(text, "config.json", "m"))
        assert (found.total, found.by_kind["position"]) == (1_050_118_202_912, 32)

    def test_one_layer_in_four_rotates_nothing(self) -> None:
        assert [y.attention.qk_rope_dim for y in read().layers if y.attention] == [64, 64, 64, 0]
        assert [y.attention.latent_dim for y in read().layers if y.attention] == [576, 576, 576, 512]

    def test_one_set_of_trained_frequencies_whatever_layers_rotate(self) -> None:
        assert read().rotary_scales == read(no_rope_layers=[0] * 4).rotary_scales == 32
        assert read(qk_rope_head_dim=16).rotary_scales == 8

    def test_a_lent_latent_is_another_layers_own(self) -> None:
        found = [(y.attention.borrows_kv, y.attention.lends_kv) for y in read(**SHARES).layers if y.attention]
        assert found == [(False, True), (True, False)] * 2

    @pytest.mark.parametrize("sources", [[0, 0, 1, 3], [0, 2, 2, 3], [0, 1]])
    def test_what_it_does_not_understand(self, sources: list[int]) -> None:
        with pytest.raises(InputError, match="kv_source_layers"):
            read(kv_source_layers=sources)


class TestTrainedFrequencies:
    def without(self) -> ModelSpec:
        return replace(read(), rotary_scales=0)

    def test_every_rank_of_tp_holds_them_and_their_states(self) -> None:
        def held(model: ModelSpec, tp: int) -> dict[str, float]:
            subject = problem(model, f"1x{tp} h100", global_batch=4)
            rows = ConfigTable.of([ParallelConfig(tp=tp, sp=int(tp > 1), num_microbatches=4)])
            detail = costs(subject).evaluate(rows, keep_terms=True).detail
            assert detail is not None
            parts = detail.memory["optimizer"]
            return {name: float(parts[name][0, 0]) for name in ("weights", "optimizer")}

        for tp in (1, 4):  # weights of 2 bytes, masters and two moments of 12
            more, less = held(read(), tp), held(self.without(), tp)
            assert {name: more[name] - less[name] for name in more} == {"weights": 64, "optimizer": 384}

    def test_they_are_one_more_trained_tensor(self) -> None:
        more, less = (trained_tensors(problem(model)) for model in (read(), self.without()))
        assert more[1] == less[1] + 1


class TestWork:
    @pytest.mark.parametrize("fields", [{}, SHARES])
    def test_products_hold_every_matrix(self, fields: dict[str, Any]) -> None:
        """The rest: two hidden norms, those of latents, of the indexer's inputs and key; two numbers a head."""
        for layer in read(**fields).layers:
            a = layer.attention
            assert a is not None
            weights = sum(g.in_features * g.out_features * g.groups for g in layer_gemms(layer, 256))
            small = 2 * 256 + 512 * (not a.borrows_kv) + 2 * 64 + 2 * (256 + 8 + 128)
            assert weights + small == layer_parameters(layer, 256).total

    def test_a_borrowing_layer_makes_and_keeps_no_latents(self) -> None:
        subject = problem(read(**SHARES), stack="megatron-2026")
        model, kernels, recipe = subject.model, subject.stack.kernels, RECIPES[Precision.BF16]
        lends, borrows = model.layers[:2]
        x = costs(subject).layers.shape(ConfigTable.of([ParallelConfig(dp=16)]), lends)
        kept = [layer_activations(y, model, x, kernels, recipe) for y in (lends, borrows)]
        assert kept[1]["mla_streams"] == 0
        assert (
            kept[0]["mla_streams"] == 2 * x.tokens * 512
        )  # those before the norm; the others outlast recomputation
        assert kept[0]["input"] - kept[1]["input"] == 2 * x.tokens * 576
        assert borrows.attention is not None
        assert key_value_bytes(borrows.attention, 1.0, 1.0, 1.0, 2.0) == 2 * 128  # the indexer's key

    def test_scaled_queries_are_kept_before_and_after(self) -> None:
        subject = problem(read(), stack="megatron-2026")
        layer = subject.model.layers[0]
        assert layer.attention is not None
        plain = replace(layer, attention=replace(layer.attention, scaled=False))
        x = costs(subject).layers.shape(ConfigTable.of([ParallelConfig(dp=16)]), layer)
        more, less = (
            layer_activations(y, subject.model, x, subject.stack.kernels, RECIPES[Precision.BF16])[
                "mla_up_proj"
            ]
            for y in (layer, plain)
        )
        assert more - less == pytest.approx(2 * x.tokens * 64 * 128)


class TestWhoRunsIt:
    def broken(self, config: ParallelConfig, **fields: Any) -> set[str]:
        subject = problem(read(**fields), "1x8 h100", stack="megatron-2026")
        return {b.rule for b in explain_config(config, subject, rules_for(subject.stack))}

    def test_kernels_take_both_kinds_of_layers(self) -> None:
        assert not self.broken(ParallelConfig(dp=8, ep=8, zero=1))

    def test_what_layers_share_stays_in_a_stage(self) -> None:
        staged = ParallelConfig(dp=4, pp=2, ep=4, zero=1, num_microbatches=16)
        assert not self.broken(staged)
        assert "shared-between-layers-pp" in self.broken(staged, **SHARES)
        assert "indexer-stages" in self.broken(staged, indexer_types=["full", "shared", "full", "full"])

    def test_no_file_can_launch_it(self) -> None:
        check_release(read(), "0.18.2")  # what is said is not that another release would do
        with pytest.raises(UnsupportedError, match="latent keys that layers share"):
            model_options(read(), Details(), 4096, 128, "main-2026-08")
