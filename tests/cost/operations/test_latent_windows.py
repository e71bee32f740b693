"""dots 3: latent attention to a window beside chosen keys, heads and ranks by layer, a norm of the rotated key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.cost.device.updates import layer_tensors
from planner.cost.operations.lists import layer_gemms
from planner.cost.params import layer_parameters, model_parameters
from planner.errors import FileInputError, UnsupportedError
from planner.frameworks.details import Details
from planner.frameworks.megatron.architecture import check_release, model_options
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.attention import Attention
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.hf import read_hf_config
from planner.spec.model import ModelSpec
from planner.spec.precision import RECIPES, Precision
from tests.problems import costs, layer_activations, problem, work_of_attention

SMALL: dict[str, Any] = {
    "model_type": "dots3_note", "vocab_size": 1280, "hidden_size": 256, "num_hidden_layers": 8,
    "intermediate_size": 512, "moe_intermediate_size": 128, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "q_lora_rank": 64, "swa_num_attention_heads": 32, "swa_q_lora_rank": 32, "index_n_heads": 8, "index_topk": 64,
    "sliding_window": 128,
}  # fmt: skip
OWN = {"num_attention_heads": 16, "q_lora_rank": 32, "kv_lora_rank": 48, "qk_rope_head_dim": 16}


def read(**fields: Any) -> ModelSpec:
    return read_hf_config({**SMALL, **fields}, "config.json", "small")


def attentions(model: ModelSpec) -> list[Attention]:
    return [layer.attention for layer in model.layers if layer.attention is not None]


def kinds(model: ModelSpec) -> str:
    """A letter for every layer: chooses, slides or attends to everything."""
    return "".join("c" if a.indexer else "s" if a.window else "a" for a in attentions(model))


class TestReading:
    def test_default_total_of_transformers(self) -> None:
        """5.23's Dots3NoteForCausalLM of Dots3NoteTextConfig() on its meta device."""
        for nested in ({}, {"text_config": {"model_type": "dots3_note_text"}}):
            counted = model_parameters(
                read_hf_config({"model_type": "dots3_note", **nested}, "config.json", "m")
            )
            assert counted.total == 279_551_718_016

    def test_layers_with_a_window_have_heads_and_ranks_of_their_own(self) -> None:
        chooses, slides = attentions(read())[1:3]
        assert (chooses.heads, chooses.kv_lora_rank, chooses.head_dim, chooses.window) == (
            128,
            512,
            192,
            None,
        )
        assert (slides.heads, slides.kv_lora_rank, slides.head_dim, slides.window) == (32, 1024, 256, 128)
        assert (slides.q_lora_rank, slides.qk_rope_dim, slides.indexer) == (32, 64, None)
        assert all(a.head_gate and a.rotated_norm for a in attentions(read()))

    @pytest.mark.parametrize(
        ("fields", "found"),
        [
            ({}, "ccssscss"),
            ({"use_dsa": False}, "aasssass"),
            ({"use_sliding_window": False}, "c" * 8),
            ({"layer_types": ["full_attention", "sliding_attention"] * 4}, "cs" * 4),
            ({"layer_types": ["full_attention", "sliding_attention"] * 4, "per_layer_config": {}}, "as" * 4),
        ],
    )
    def test_which_layers_choose(self, fields: dict[str, Any], found: str) -> None:
        assert kinds(read(**fields)) == found

    def test_a_shared_expert_has_a_width_of_its_own(self) -> None:
        def width(**fields: Any) -> list[int]:
            return [y.moe.shared_ffn for y in read(**fields).layers if y.moe][:1]

        own = {"shared_experts_intermediate_size": 24}
        assert width() == [1536]
        assert width(**own, n_shared_experts=2) == [48]
        assert width(**own, moe_shared_expert_intermediate_size=40) == [40]

    def test_a_layers_own_fields_stand_before_those_of_windows(self) -> None:
        found = attentions(read(per_layer_config={"02": OWN}))
        assert (found[2].heads, found[2].kv_lora_rank, found[2].head_dim) == (16, 48, 144)
        assert (found[3].heads, found[3].kv_lora_rank) == (128, 512)

    @pytest.mark.parametrize(
        ("fields", "named"),
        [
            ({"per_layer_config": {"2": {"hidden_size": 9}}}, "hidden_size"),
            ({"per_layer_config": {"2": {"q_lora_rank": None}}}, "q_lora_rank"),
            ({"q_lora_rank": None}, "q_lora_rank"),
            ({"moe_layer_freq": [1, 1]}, "moe_layer_freq"),
            ({"n_shared_experts": 0}, "n_shared_experts"),
        ],
    )
    def test_what_it_does_not_understand(self, fields: dict[str, Any], named: str) -> None:
        with pytest.raises(FileInputError, match=named):
            read(**fields)


class TestWork:
    def test_products_hold_every_matrix(self) -> None:
        """The rest: two hidden norms, those of latents, of the rotated key and of the indexer's."""
        for layer in read().layers:
            a = layer.attention
            assert a is not None
            weights = sum(g.in_features * g.out_features * g.groups for g in layer_gemms(layer, 256))
            small = 2 * 256 + a.q_lora_rank + a.kv_lora_rank + 64 + 2 * 128 * (a.indexer is not None)
            assert weights + small == layer_parameters(layer, 256).total

    def test_a_window_bounds_the_pairs_of_its_layers(self) -> None:
        """Five of eight layers: 32 heads of 256 and 128 values see 128 keys, at length."""
        found = [work_of_attention(read(use_dsa=False), s) for s in (4096, 4097)]
        square = 2 * 128 * (192 + 128) * 4097 * 3
        assert found[1] - found[0] == 2 * 32 * (256 + 128) * 128 * 5 + square

    def test_the_rotated_key_is_kept_before_and_after_its_norm(self) -> None:
        subject = problem(read(), stack="megatron-2026")
        for layer in subject.model.layers[1:3]:
            a = layer.attention
            assert a is not None
            plain = replace(layer, attention=replace(a, rotated_norm=False))
            x = costs(subject).layers.shape(ConfigTable.of([ParallelConfig(dp=16)]), layer)
            more, less = (
                layer_activations(y, subject.model, x, subject.stack.kernels, RECIPES[Precision.BF16])
                for y in (layer, plain)
            )
            assert more["mla_streams"] - less["mla_streams"] == pytest.approx(2 * x.tokens * 64)
            assert layer_tensors(layer, 256)[1] - layer_tensors(plain, 256)[1] == 1


class TestWhoRunsIt:
    def broken(self, config: ParallelConfig, stack: str = "megatron-2026", **fields: Any) -> set[str]:
        subject = problem(read(**fields), "1x8 h100", stack=stack)
        return {b.rule for b in explain_config(config, subject, rules_for(subject.stack))}

    def test_heads_of_every_kind_are_divided(self) -> None:
        assert not self.broken(ParallelConfig(dp=2, tp=4, sp=1, ep=2, zero=1))
        assert not self.broken(ParallelConfig(dp=2, pp=2, tp=2, sp=1, ep=2, zero=1, num_microbatches=8))
        assert "heads-tp" in self.broken(ParallelConfig(tp=8, sp=1), swa_num_attention_heads=20)

    def test_others_have_no_kernels_of_chosen_keys(self) -> None:
        assert "indexer-kernels" in self.broken(ParallelConfig(dp=8), "deepspeed-2025")
        assert "indexer-kernels" not in self.broken(ParallelConfig(dp=8), "deepspeed-2025", use_dsa=False)

    def test_no_file_can_launch_it(self) -> None:
        check_release(read(), "0.18.2")  # what is said is not that another release would do
        with pytest.raises(UnsupportedError, match="latent attention to a window"):
            model_options(read(), Details(), 4096, 128, "main-2026-08")
