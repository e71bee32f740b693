"""What the readers make of configuration files: patterns per layer, defaults, and refusals by field."""

from __future__ import annotations

import contextlib
import json
from inspect import signature
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.params import model_parameters
from planner.errors import FileInputError, PlannerError, UnsupportedError
from planner.report.words import texts
from planner.spec.attention import AttentionKind, QkNorm
from planner.spec.hf import known_model_types, read_hf_config, reader
from planner.spec.hf.families import families, family, refused
from planner.spec.hf.wrappers import default_family, wrappers
from planner.spec.layer import NormKind
from planner.spec.model import ModelSpec

DENSE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "vocab_size": 100,
    "intermediate_size": 96,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
}


def read(model_type: str, *, with_mtp: bool = False, **fields: Any) -> ModelSpec:
    return read_hf_config({"model_type": model_type, **DENSE, **fields}, "config.json", "m", with_mtp)


def sparse(spec: ModelSpec) -> list[bool]:
    return [layer.moe is not None for layer in spec.layers]


def windows(spec: ModelSpec) -> list[int | None]:
    return [layer.attention.window for layer in spec.layers]


class TestPatterns:
    def test_qwen_sparse_step_counts_from_one(self) -> None:
        assert sparse(read("qwen3_moe", **EXPERTS, decoder_sparse_step=2)) == [False, True] * 3

    def test_qwen_mlp_only_layers_stay_dense(self) -> None:
        spec = read("qwen2_moe", **EXPERTS, num_key_value_heads=8, mlp_only_layers=[0, 5])
        assert sparse(spec) == [False, True, True, True, True, False]

    def test_dense_width_is_not_needed_without_dense_layers(self) -> None:
        assert all(sparse(read("qwen3_moe", **EXPERTS, intermediate_size=None)))

    def test_llama4_interleaves_and_chunks_all_but_every_fourth_layer(self) -> None:
        spec = read("llama4_text", num_local_experts=4, interleave_moe_layer_step=2, attention_chunk_size=16)
        assert sparse(spec) == [False, True] * 3
        assert windows(spec) == [16, 16, 16, None, 16, 16]
        assert spec.layers[0].attention.chunked
        assert spec.layers[0].mlp is not None
        assert spec.layers[0].mlp.ffn == 16384  # intermediate_size is the experts' width in this family

    def test_gemma2_starts_with_a_sliding_layer(self) -> None:
        assert windows(read("gemma2", sliding_window=16)) == [16, None] * 3

    def test_logits_are_capped_where_the_library_caps_them(self) -> None:
        none = {"final_logit_softcapping": None}
        assert [read("gemma2", **more).capped_logits for more in ({}, none)] == [True, False]
        assert [read("gemma3_text", **more).capped_logits for more in ({}, {"final_logit_softcapping": 30.0})] == [
            False, True,
        ]  # fmt: skip
        assert not read("llama", final_logit_softcapping=30.0).capped_logits

    def test_gemma3_has_one_full_layer_in_six(self) -> None:
        assert windows(read("gemma3_text", sliding_window=16)) == [16] * 5 + [None]
        assert windows(read("gemma3_text", sliding_window=16, sliding_window_pattern=3)) == [16, 16, None] * 2

    def test_layer_types_overrule_the_pattern(self) -> None:
        types = ["full_attention"] * 5 + ["sliding_attention"]
        assert windows(read("gpt_oss", layer_types=types)) == [None] * 5 + [128]

    def test_gpt_oss_alternates(self) -> None:
        spec = read("gpt_oss")
        assert windows(spec) == [128, None] * 3
        assert spec.layers[0].attention.sinks

    def test_qwen2_slides_only_if_told_and_only_from_max_window_layers_on(self) -> None:
        fields = {"num_key_value_heads": 8, "sliding_window": 16, "max_window_layers": 4}
        assert windows(read("qwen2", **fields)) == [None] * 6
        spec = read("qwen2", **fields, use_sliding_window=True)
        assert windows(spec) == [None] * 4 + [16] * 2

    def test_mistral_null_window_is_full_and_missing_is_4096(self) -> None:
        assert windows(read("mistral", sliding_window=None)) == [None] * 6
        assert windows(read("mistral")) == [4096] * 6

    def test_deepseek_leads_with_dense_layers(self) -> None:
        spec = read("deepseek_v3", **LATENT, n_group=1, first_k_dense_replace=2)
        assert sparse(spec) == [False, False, True, True, True, True]
        assert spec.layers[0].attention.kind is AttentionKind.MLA
        assert spec.layers[0].attention.head_dim == 128 + 64

    def test_mtp_is_an_option(self) -> None:
        fields = {**LATENT, "n_group": 1, "num_nextn_predict_layers": 2}
        assert read("deepseek_v3", **fields).mtp_layers == 0
        assert read("deepseek_v3", with_mtp=True, **fields).mtp_layers == 2
        assert read("llama", with_mtp=True).mtp_layers == 0

    def test_falcon_generations(self) -> None:
        new = read("falcon", new_decoder_architecture=True, num_kv_heads=2)
        single, old = read("falcon"), read("falcon", multi_query=False, parallel_attn=False)
        assert [m.layers[0].norms for m in (new, single, old)] == [2, 1, 2]
        assert [m.layers[0].attention.kv_heads for m in (new, single, old)] == [2, 1, 8]
        assert [m.layers[0].parallel for m in (new, single, old)] == [True, True, False]

    @pytest.mark.parametrize(
        ("outer", "inner"), [("gemma3", "gemma3_text"), ("llama4", "llama4_text"), ("mistral3", "mistral")]
    )
    def test_text_towers(self, outer: str, inner: str) -> None:
        spec = read_hf_config({"model_type": outer, "text_config": DENSE}, "config.json", "m")
        assert spec.family == inner
        assert any("vision" in note for note in texts(spec.assumed))
        assert spec.layers == read(inner).layers

    @pytest.mark.parametrize(("outer", "inner"), [("qwen2_5_vl", "qwen2"), ("qwen3_vl", "qwen3")])
    @pytest.mark.parametrize("tied", [False, True])
    def test_text_towers_of_qwen(self, outer: str, inner: str, tied: bool) -> None:
        fields = {**DENSE, "num_key_value_heads": 2}
        text = {"model_type": f"{outer}_text", **fields}
        nested = {"model_type": outer, "text_config": text, "tie_word_embeddings": tied}
        older = {**fields, "model_type": outer, "vision_config": {}, "tie_word_embeddings": tied}
        for config in (nested, older):
            spec = read_hf_config(config, "config.json", "m")
            assert spec.tied_embeddings == tied
            assert spec.layers == read(inner, num_key_value_heads=2).layers

    @pytest.mark.parametrize(
        ("outer", "inner"), [("internvl", "qwen3"), ("llava", "mistral"), ("exaone4_5", None)]
    )
    def test_towers_of_any_family(self, outer: str, inner: str | None) -> None:
        text = {**DENSE, "num_key_value_heads": 2, "model_type": inner or f"{outer}_text"}
        spec = read_hf_config({"model_type": outer, "text_config": text}, "config.json", "m")
        assert spec.family == (inner or "exaone4")
        for other in ("rwkv", "new_family"):  # never read as the wrapper's usual one
            with pytest.raises(PlannerError, match=other):
                read_hf_config(
                    {"model_type": outer, "text_config": {**text, "model_type": other}}, "config.json", "m"
                )

    def test_glm_of_experts_has_biases_behind_images(self) -> None:
        text = {
            **DENSE,
            **EXPERTS,
            "n_routed_experts": 4,
            "num_key_value_heads": 2,
            "first_k_dense_replace": 0,
        }
        for inner, wrapper in (
            ("glm4v_moe_text", "glm46v"),
            ("glm4v_moe_text", "glm4v_moe"),
            (None, "glm4v_moe"),
        ):
            config = {
                "model_type": wrapper,
                "text_config": {**text, **({"model_type": inner} if inner else {})},
            }
            spec = read_hf_config(config, "config.json", "m")
            assert spec.family == "glm4_moe"
            assert [a.qkv_bias for a in spec.attentions] == [True]

    @pytest.mark.parametrize(
        ("outer", "inside", "outside", "tied"),
        [
            ("mistral3", None, None, False),  # as Mistral Small 3.1 is published
            ("mistral3", True, None, True),  # Ministral 3 3B
            ("mistral3", False, None, False),
            ("kimi_k25", None, False, False),
            ("qwen3_vl", True, False, False),
            ("llava_onevision", True, False, True),  # the 0.5B one
            ("llama4", False, True, False),
            ("gemma3", None, None, True),
            ("voxtral", True, True, False),
        ],
    )
    def test_heads_behind_images(
        self, outer: str, inside: bool | None, outside: bool | None, tied: bool
    ) -> None:
        stated = {} if inside is None else {"tie_word_embeddings": inside}
        text = {
            **DENSE,
            **EXPERTS,
            **LATENT,
            "n_group": 1,
            "topk_group": 1,
            "num_key_value_heads": 8,
            **stated,
        }
        around = {} if outside is None else {"tie_word_embeddings": outside}
        spec = read_hf_config({"model_type": outer, "text_config": text, **around}, "config.json", "m")
        assert spec.tied_embeddings == tied
        said = any("weights may tell" in note for note in texts(spec.assumed))
        assert said == (outer == "mistral3" and inside is outside is None)

    @pytest.mark.parametrize(
        ("outer", "section", "inner", "family"),
        [
            ("internvl_chat", "llm_config", "internlm2", "internlm2"),
            ("multi_modality", "language_config", "llama", "llama"),
            ("qwen2_5_omni_thinker", "text_config", "qwen2_5_omni_text", "qwen2"),
        ],
    )
    def test_sections_that_hold_the_text_model(
        self, outer: str, section: str, inner: str, family: str
    ) -> None:
        text = {**DENSE, "num_key_value_heads": 2, "model_type": inner}
        assert read_hf_config({"model_type": outer, section: text}, "config.json", "m").family == family

    def test_glm_behind_images_has_heads_as_wide_as_its_hidden_size_allows(self) -> None:
        wrapped = {"model_type": "glm4v", "text_config": {**DENSE, "num_key_value_heads": 2}}
        assert read_hf_config(wrapped, "config.json", "m").layers[0].attention.head_dim == 8
        assert read("glm4").layers[0].attention.head_dim == 128

    @pytest.mark.parametrize(
        ("model_type", "architecture", "family"),
        [
            ("llava", "LlavaQwenForCausalLM", "qwen2"),
            ("llava", "LlavaLlamaForCausalLM", "llama"),
            ("llava_mistral", "LlavaMistralForCausalLM", "mistral"),
            ("phi3_v", "Phi3VForCausalLM", "phi3"),
            ("phi4mm", "Phi4MMForCausalLM", "phi3"),
        ],
    )
    def test_files_that_hold_the_text_fields_beside_the_rest(
        self, model_type: str, architecture: str, family: str
    ) -> None:
        fields = {**DENSE, "num_key_value_heads": 2, "architectures": [architecture], "mm_hidden_size": 1152}
        spec = read_hf_config({**fields, "model_type": model_type}, "config.json", "m")
        assert spec.family == family
        assert spec.layers == read(family, num_key_value_heads=2).layers

    def test_sections_that_state_what_differs_from_their_family_alone(self) -> None:
        llava = {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064}  # LLaVA 1.5 7B
        spec = read_hf_config({"model_type": "llava", "text_config": llava}, "config.json", "m")
        assert model_parameters(spec).total == 6_738_415_616 + 2 * 64 * 4096  # Llama 2 7B and rows for images
        assert any("hidden_size = 4096" in note for note in texts(spec.assumed))
        for section in ({}, {"model_type": "other"}, {"vocab_size": 32064}):
            with pytest.raises(PlannerError):
                read_hf_config({"model_type": "llava", "text_config": section}, "config.json", "m")
        with pytest.raises(FileInputError, match="hidden_size"):
            read_hf_config(llava, "config.json", "m")

    def test_the_model_that_answers_stands_two_sections_deep(self) -> None:
        text = {**DENSE, "num_key_value_heads": 2, "model_type": "qwen2_5_omni_text"}
        config = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": text}, "talker_config": {}}
        spec = read_hf_config(config, "config.json", "m")
        assert spec.layers == read("qwen2", num_key_value_heads=2).layers
        del text["vocab_size"]
        with pytest.raises(FileInputError, match=r"thinker_config\.text_config\.vocab_size"):
            read_hf_config(config, "config.json", "m")

    def test_a_text_model_of_an_unknown_family_is_not_read_as_the_usual_one(self) -> None:
        text = {**DENSE, "num_key_value_heads": 2, "model_type": "glm5_next_text"}
        with pytest.raises(UnsupportedError, match="glm5_next_text"):
            read_hf_config({"model_type": "mistral3", "text_config": text}, "config.json", "m")

    def test_gemma3_vision_file_leaves_out_heads_and_vocabulary(self) -> None:
        inner = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
        spec = read_hf_config({"model_type": "gemma3", "text_config": inner}, "config.json", "m")
        assert (spec.vocab, spec.layers[0].attention.heads, spec.layers[0].attention.head_dim) == (
            262208,
            8,
            256,
        )


class TestDefaults:
    def test_what_is_left_out_is_noted(self) -> None:
        spec = read("llama")
        assert spec.layers[0].attention.kv_heads == 8
        assert any(note.startswith("num_key_value_heads = 8") for note in texts(spec.assumed))
        assert not any("hidden_size" in note for note in texts(spec.assumed))

    def test_null_is_not_the_default(self) -> None:
        assert read("mixtral").layers[0].attention.kv_heads == 8
        spec = read("mixtral", num_attention_heads=16, num_key_value_heads=None)
        assert spec.layers[0].attention.kv_heads == 16

    def test_head_dim_of_the_families(self) -> None:
        assert read("llama").layers[0].attention.head_dim == 8
        assert read("qwen3", num_key_value_heads=8).layers[0].attention.head_dim == 128
        assert read("qwen3_moe", **EXPERTS).layers[0].attention.head_dim == 8
        assert read("gpt_oss").layers[0].attention.head_dim == 64

    def test_norms_of_the_families(self) -> None:
        assert read("qwen3", num_key_value_heads=8).layers[0].attention.qk_norm is QkNorm.HEAD
        assert read("olmo2").layers[0].attention.qk_norm is QkNorm.FULL
        assert read("cohere").layers[0].norms == 1
        assert read("cohere").norm_kind is NormKind.LAYER
        assert read("gemma2").layers[0].norms == 4

    def test_opt_350m_projects_its_embedding_and_has_no_final_norm(self) -> None:
        spec = read("opt", ffn_dim=96, word_embed_proj_dim=16, do_layer_norm_before=False)
        assert (spec.embedding_width, spec.final_norm, spec.position_rows) == (16, False, 2050)


class TestRefusals:
    @pytest.mark.parametrize(
        ("model_type", "change", "field"),
        [
            ("llama", {"hidden_size": None}, "hidden_size"),
            ("llama", {"vocab_size": "100"}, "vocab_size"),
            ("llama", {"hidden_size": 64.0}, "hidden_size"),
            ("llama", {"hidden_size": True}, "hidden_size"),
            ("llama", {"hidden_size": -64}, "hidden_size"),
            ("llama", {"hidden_size": 10**30}, "hidden_size"),
            ("llama", {"num_hidden_layers": 1001}, "num_hidden_layers"),
            ("gpt2", {"n_embd": 64, "n_head": 8, "n_layer": 10**9}, "n_layer"),
            ("llama", {"hidden_size": 65}, "hidden_size"),
            ("llama", {"num_attention_heads": 12}, r"head_dim: must be given"),  # GLM-4.5 has 96 of 5120
            ("llama", {"num_attention_heads": 0}, "num_attention_heads"),
            ("llama", {"num_key_value_heads": 3}, "num_attention_heads"),
            ("llama", {"num_key_value_heads": 16}, "num_attention_heads"),
            ("qwen2", {}, "num_key_value_heads"),
            ("llama", {"num_hidden_layers": [2]}, "num_hidden_layers"),
            ("llama", {"attention_bias": 1}, "attention_bias"),
            ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
            ("llama", {"hidden_act": "wiggle"}, "hidden_act"),
            ("llama", {"intermediate_size": None}, "intermediate_size"),
            ("mixtral", {"num_local_experts": 1}, "num_experts_per_tok"),
            ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
            ("qwen3_moe", {**EXPERTS, "moe_intermediate_size": None}, "moe_intermediate_size"),
            ("qwen3_moe", {**EXPERTS, "mlp_only_layers": ["0"]}, "mlp_only_layers"),
            ("qwen3_moe", {**EXPERTS, "decoder_sparse_step": 0}, "decoder_sparse_step"),
            ("gpt_oss", {"layer_types": ["full_attention"]}, "layer_types"),
            ("gpt_oss", {"layer_types": ["linear_attention"] * 6}, "layer_types"),
            ("deepseek_v3", {**LATENT, "n_group": 3}, "n_group"),
            ("deepseek_v3", {**LATENT, "n_group": 4, "topk_group": 5}, "topk_group"),
            ("deepseek_v2", {**LATENT, "num_experts_per_tok": None}, "num_experts_per_tok"),
            ("qwen3_moe", {**EXPERTS, "num_experts": 4, "num_local_experts": 8}, "num_local_experts"),
            ("helium", {"num_key_value_heads": 8, "head_dim": 16}, "head_dim"),
            (
                "gpt2",
                {"n_embd": 64, "n_head": 8, "n_layer": 2, "add_cross_attention": True},
                "add_cross_attention",
            ),
            ("qwen2_vl", {"text_config": {"model_type": []}}, "text_config.model_type"),
            ("dbrx", {"d_model": 64, "n_heads": 8, "n_layers": 2, "attn_config": []}, "attn_config"),
            ("gpt2", {"n_embd": 64, "n_head": 7, "n_layer": 2}, "n_head|hidden"),
        ],
    )
    def test_a_wrong_field_is_named(self, model_type: str, change: dict[str, Any], field: str) -> None:
        with pytest.raises(FileInputError, match=field) as caught:
            read(model_type, **change)
        assert "config.json" in str(caught.value)
        assert caught.value.hint

    def test_an_unknown_type_lists_the_nearest(self) -> None:
        with pytest.raises(FileInputError, match=r"did you mean: .*llama"):
            read("lama")

    @pytest.mark.parametrize(
        "model_type",
        [
            "rwkv",
            "t5",
            "qwen4_exp",
            "bert",
            "mllama",
            "whisper",
            "step3_text",
        ],
    )
    def test_other_kinds_of_model_are_unsupported_with_a_reason(self, model_type: str) -> None:
        with pytest.raises(UnsupportedError, match="not modelled") as caught:
            read(model_type)
        assert "nearest" not in caught.value.hint  # a name spelled alike is another architecture

    def test_a_field_read_twice_is_assumed_once(self) -> None:
        assumed = texts(
            read("qwen3_moe", **EXPERTS, num_key_value_heads=8, mlp_only_layers=[0]).assumed
        )  # dense and expert layers share hidden_act
        assert len(assumed) == len(set(assumed))
        assert any("hidden_act" in line for line in assumed)

    def test_a_quantised_configuration_says_that_training_is_not(self) -> None:
        assert not any("quantization" in line for line in texts(read("llama").assumed))
        said = texts(read("llama", quantization_config={"quant_method": "awq", "bits": 4}).assumed)
        assert any("quantization_config = ignored" in line for line in said)

    @pytest.mark.parametrize(
        ("quantisation", "bits"),
        [
            ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4),
            ({"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}, 8),
            ({"quant_method": "gptq", "bits": 4}, 4),
            ({"quant_method": "gptq", "bits": 3}, None),
            ({"quant_method": "fp8"}, None),
        ],
    )
    def test_adapters_beside_a_quantised_configuration(
        self, quantisation: dict[str, Any], bits: int | None
    ) -> None:
        said = " ".join(texts(read("llama", quantization_config=quantisation).assumed))
        assert (f"with --lora-rank, --frozen-bits {bits} holds them as the config does" in said) == bool(bits)
        assert ("--frozen-bits" in said) == bool(bits)

    def test_a_pattern_of_blocks_and_their_number_must_agree(self) -> None:
        fields = {"num_hidden_layers": 3, "hybrid_override_pattern": "M-M*"}
        with pytest.raises(FileInputError, match="must be as many as the blocks named, 4"):
            read_hf_config({"model_type": "nemotron_h", **fields}, "config.json", "m")
        same = read_hf_config(
            {"model_type": "nemotron_h", **fields, "num_hidden_layers": 4}, "config.json", "m"
        )
        assert same.num_layers == 4

    def test_no_type_is_both_known_and_refused(self) -> None:
        assert not set(known_model_types()) & set(refused())

    def test_every_type_has_a_reader_of_its_own_arguments(self) -> None:
        for name in families():
            own = family(name)
            assert len(signature(reader(name)).parameters) == (3 if own.mtp else 2), name
            assert (own.reader == "dense.read_plain") <= (own.layers is not None), name

    def test_every_wrapper_holds_a_family_that_is_read(self) -> None:
        for name in wrappers():
            text = default_family({}, name)
            assert text in families() or text in wrappers(), name

    def test_bidirectional_gemma_is_unsupported(self) -> None:
        with pytest.raises(UnsupportedError, match="bidirectional"):
            read("gemma3_text", use_bidirectional_attention=True)


FIELD_NAMES = st.sampled_from([*DENSE, *EXPERTS, *LATENT, "head_dim", "num_key_value_heads", "layer_types"])
JSON_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 300), st.floats(), st.text(max_size=3), st.just([]), st.just({})
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(known_model_types()), st.dictionaries(FIELD_NAMES, JSON_VALUES, max_size=4))
def test_any_field_values_give_a_model_or_an_error_of_ours(model_type: str, change: dict[str, Any]) -> None:
    base = {"ffn_dim": 96, "n_embd": 64, "n_head": 8, "n_layer": 2, **EXPERTS, **LATENT, **DENSE, **change}
    with contextlib.suppress(PlannerError):
        spec = read_hf_config({"model_type": model_type, **base, "text_config": base}, "config.json", "m")
        assert spec.num_layers >= 1
        assert json.dumps(texts(spec.assumed))


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("dots1", "layer_types", []), ("dots1", "layer_types", ["full_attention"] * 3),
        ("hunyuan_v1_moe", "num_experts", []), ("hunyuan_v1_moe", "moe_topk", [[]]),
    ],
)  # fmt: skip
def test_lists_per_layer_that_are_none(family: str, field: str, value: list[object]) -> None:
    config = {
        "model_type": family, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16,
        "num_hidden_layers": 2, "vocab_size": 64, "intermediate_size": 32, "moe_intermediate_size": 16,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "num_experts": 4, "moe_topk": 2,
    }  # fmt: skip
    with pytest.raises(FileInputError, match=field):
        read_hf_config(config | {field: value}, "config.json", "m")
