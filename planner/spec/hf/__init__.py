"""Which model does a Hugging Face `config.json` describe? One reader per model_type.

Defaults are those of the transformers library; parameters and windows are checked against 5.24, and 5.23, on its meta
device. Where 4.57 differs 5 is followed: 4.57 gives DeepSeek-V2's routed experts biases under `mlp_bias`,
ignores Llama 4's `attention_bias`, and slides every layer of Qwen 2 MoE. Left out: what changes no cost, and
every model_type not in `READERS`, which is refused rather than read as a Llama.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from planner.dialect import option
from planner.errors import FileInputError, InputError, UnsupportedError, nearest_names
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.mistaken import check_head, check_kind_of_file, nested_hint
from planner.spec.hf.refused import REFUSED
from planner.spec.hf.wrappers import TEXT_TOWERS, default_family, text_fields
from planner.spec.model import ModelSpec

# families whose layers `per_layer_config` of transformers 5 may set apart
_READS_PER_LAYER = ("dots3_note_text", "gemma4_text", "gemma4_unified_text", "step3p5")

# module and function of every reader; that of the family asked for is loaded
READERS: dict[str, str] = {
    "Yi": "dense.read_llama",
    "afmoe": "experts_and_dense.read_afmoe",
    "apertus": "dense.read_apertus",
    "apertus1p5_text": "dense.read_apertus1p5",
    "arcee": "dense.read_arcee",
    "aria_text": "experts.read_aria",
    "axk1": "latent.read_axk1",
    "baichuan": "own_code.read_baichuan",
    "bailing_hybrid": "delta.read_bailing_hybrid",
    "bailing_moe": "experts_and_dense.read_bailing_moe",
    "bailing_moe_v2": "experts_and_dense.read_bailing_moe",
    "bamba": "hybrid.read_bamba",
    "bloom": "gpt.read_bloom",
    "chatglm": "own_code.read_chatglm",
    "codegen": "gpt.read_gptj",
    "cohere": "dense.read_cohere",
    "cohere2": "windowed.read_cohere2",
    "cohere2_moe": "experts_and_dense.read_cohere2_moe",
    "cwm": "windowed.read_cwm",
    "dbrx": "experts.read_dbrx",
    "deepseek": "experts_and_dense.read_deepseek_moe",
    "deepseek_v2": "latent.read_deepseek_v2",
    "dots1": "experts_and_dense.read_dots1",
    "dots3_note_text": "sparse.read_dots3",
    "ernie4_5": "dense.read_ernie",
    "ernie4_5_moe": "experts_and_dense.read_ernie_moe",
    "exaone": "dense.read_exaone",
    "exaone4": "windowed.read_exaone4",
    "exaone_moe": "experts_and_dense.read_exaone_moe",
    "falcon": "gpt.read_falcon",
    "falcon_h1": "hybrid.read_falcon_h1",
    "flex_olmo": "experts.read_flex_olmo",
    "flint": "experts_and_dense.read_flint",
    "gemma": "dense.read_gemma",
    "gemma2": "windowed.read_gemma2",
    "gemma3_text": "windowed.read_gemma3",
    "gemma4_text": "mixed_heads.read_gemma4",
    "gemma4_unified_text": "mixed_heads.read_gemma4",
    "glm": "dense.read_glm",
    "glm4": "dense.read_glm4",
    "glm4_moe_lite": "latent.read_glm4_moe_lite",
    "gpt2": "gpt.read_gpt2",
    "gpt_bigcode": "gpt.read_gpt_bigcode",
    "gpt_neo": "gpt.read_gpt_neo",
    "gpt_neox": "gpt.read_gpt_neox",
    "gpt_oss": "experts.read_gpt_oss",
    "gptj": "gpt.read_gptj",
    "granite": "dense.read_llama",
    "granite_swa": "windowed.read_granite_swa",
    "granitemoe": "experts.read_granitemoe",
    "granitemoe_swa": "windowed.read_granitemoe_swa",
    "granitemoehybrid": "hybrid.read_granitemoehybrid",
    "granitemoeshared": "experts.read_granitemoeshared",
    "helium": "dense.read_helium",
    "hunyuan": "experts_and_dense.read_hunyuan",
    "hunyuan_v1_dense": "dense.read_hunyuan_dense",
    "hunyuan_v1_moe": "experts.read_hunyuan_moe",
    "hy_v4": "sparse.read_hy_v4",
    "hy_v4_vl_text": "sparse.read_hy_v4_vl",
    "hy_v3": "experts_and_dense.read_hy_v3",
    "hyperclovax": "dense.read_hyperclovax",
    "internlm": "dense.read_internlm2",
    "internlm2": "dense.read_internlm2",
    "internlm3": "dense.read_internlm3",
    "iquestcoder": "dense.read_iquestcoder",
    "jais2": "dense.read_jais2",
    "k2_horizon": "own_code.read_k2_horizon",
    "kimi_k3": "delta.read_kimi_linear",
    "kimi_linear": "delta.read_kimi_linear",
    "kolibri1": "experts.read_kolibri1",
    "laguna": "mixed_heads.read_laguna",
    "lara_mini": "delta.read_lara_mini",
    "llama": "dense.read_llama",
    "longcat_flash": "latent.read_longcat_flash",
    "lfm2": "linear.read_lfm2",
    "lfm2_moe": "linear.read_lfm2_moe",
    "lfm3": "linear.read_lfm3",
    "llama4_text": "experts_and_dense.read_llama4",
    "mamba2": "hybrid.read_mamba2",
    "mellum": "experts_and_dense.read_mellum",
    "mimo": "dense.read_qwen2",
    "mimo_v2": "mixed_heads.read_mimo_v2",
    "mimo_v2_flash": "mixed_heads.read_mimo_v2_flash",
    "minicpm": "own_code.read_minicpm",
    "minicpm3": "latent.read_minicpm3",
    "minimax": "linear.read_minimax",
    "minimax_m1": "linear.read_minimax",
    "minimax_text_01": "linear.read_minimax",
    "minimax_m2": "experts.read_minimax_m2",
    "minimax_m3": "sparse.read_minimax_m3",
    "minimax_m3_vl_text": "sparse.read_minimax_m3",
    "ministral": "windowed.read_ministral",
    "ministral3": "dense.read_ministral3",
    "mistral": "dense.read_mistral",
    "mistral4": "latent.read_mistral4",
    "mistral_large4_text": "sparse.read_mistral_large4",
    "mixtral": "experts.read_mixtral",
    "mpt": "gpt.read_mpt",
    "muse_glimmer_text": "windowed.read_muse_glimmer",
    "nanochat": "dense.read_nanochat",
    "nemotron": "dense.read_nemotron",
    "nemotron-nas": "nas.read_nemotron_nas",
    "olmo": "dense.read_olmo",
    "olmo2": "dense.read_olmo2",
    "olmo3": "windowed.read_olmo3",
    "olmo_hybrid": "delta.read_olmo_hybrid",
    "olmoe": "experts.read_olmoe",
    "opt": "gpt.read_opt",
    "persimmon": "dense.read_persimmon",
    "phi": "dense.read_phi",
    "phi3": "dense.read_phi3",
    "phimoe": "experts.read_phimoe",
    "qwen": "own_code.read_qwen",
    "qwen2": "dense.read_qwen2",
    "qwen2_moe": "experts_and_dense.read_qwen2_moe",
    "qwen3": "dense.read_qwen3",
    "qwen3_moe": "experts_and_dense.read_qwen3_moe",
    "sarvam_mla": "latent.read_sarvam_mla",
    "sarvam_moe": "experts_and_dense.read_sarvam_moe",
    "seed_oss": "dense.read_seed_oss",
    "smollm3": "windowed.read_smollm3",
    "solar_open": "experts.read_solar_open",
    "stablelm": "dense.read_stablelm",
    "starcoder2": "dense.read_starcoder2",
    "step3p5": "mixed_heads.read_step3p5",
    "vaultgemma": "windowed.read_vaultgemma",
    "xverse": "own_code.read_xverse",
    "youtu": "latent.read_youtu",
}

# readers that can also count multi-token-prediction modules
MTP_READERS: dict[str, str] = {
    "deepseek_v3": "latent.read_deepseek_v3",
    "deepseek_v32": "sparse.read_deepseek_v32",
    "deepseek_v4": "compressed.read_deepseek_v4",
    "glm4_moe": "experts_and_dense.read_glm4_moe",
    "glm_moe_dsa": "sparse.read_glm_moe_dsa",
    "kimi_k2": "latent.read_deepseek_v3",
    "nemotron_h": "hybrid.read_nemotron_h",
    "qwen3_5_moe_text": "delta.read_qwen3_5_moe",
    "qwen3_5_text": "delta.read_qwen3_5",
    "qwen3_next": "delta.read_qwen3_next",
}


def reader(place: str) -> Callable[..., ModelSpec]:
    """What a table of readers names."""
    module, function = place.split(".")
    found: Callable[..., ModelSpec] = getattr(import_module(f"planner.spec.hf.{module}"), function)
    return found


def known_model_types() -> list[str]:
    return sorted({*READERS, *MTP_READERS, *TEXT_TOWERS})


def quantised_bits(quantisation: object) -> int:
    """Bits of a quantised weight that adapters can be trained beside, 4 or 8; 0 where the config names none.

    `load_in_4bit` and `load_in_8bit` are those of bitsandbytes, `bits` that of GPTQ and AWQ (transformers
    utils/quantization_config.py).
    """
    if not isinstance(quantisation, dict):
        return 0
    for bits in (4, 8):
        if quantisation.get(f"load_in_{bits}bit") is True or quantisation.get("bits") == bits:
            return bits
    return 0


def read_hf_config(config: dict[str, Any], file: str, name: str, with_mtp: bool = False) -> ModelSpec:
    """The model that the parsed `config.json` describes; `file` is named in errors, `name` in answers.

    Raises `FileInputError` for a field that is missing, of the wrong type or contradictory, and
    `UnsupportedError` for architectures outside the cost model.
    """
    fields = ConfigFields(config, file)
    check_kind_of_file(fields)
    model_type = _model_type(fields)
    for flag in ("is_encoder_decoder", "add_cross_attention"):
        if config.get(flag):
            must = "must be false: attention to an encoder is not modelled"
            raise fields.error(flag, must, config[flag], "plan the decoder-only model")
    if (quantised := config.get("quantization_config")) is not None:
        bits = quantised_bits(quantised)
        frozen = (
            f"; with {option('lora_rank')}, {option('frozen_bits', bits)} holds them as the config does"
            if bits
            else ""
        )
        fields.assume(
            "quantization_config", "ignored", f"training holds weights in the job's precision{frozen}"
        )
    check_head(fields)
    if model_type in TEXT_TOWERS:
        fields = text_fields(fields, model_type)
        model_type = _tower_type(fields, model_type)
        fields.values = {**fields.values, "model_type": model_type}
    if fields.given("per_layer_config") and model_type not in _READS_PER_LAYER:
        must = "must be left out: layers of this family that differ in their dimensions are not modelled"
        raise fields.error(
            "per_layer_config", must, fields.values["per_layer_config"], "describe the model by hand"
        )
    try:
        if model_type in MTP_READERS:
            return reader(MTP_READERS[model_type])(fields, name, with_mtp)
        return reader(READERS[model_type])(fields, name)
    except FileInputError:
        raise
    except InputError as error:
        raise FileInputError(file, error.must, error.given, error.hint) from error


def _tower_type(fields: ConfigFields, around: str) -> str:
    """The family of a wrapper's text model: what it states, or the wrapper's own. Raises as `_model_type`."""
    stated = fields.values.get("model_type")
    if stated is not None and not isinstance(stated, str):
        return _model_type(fields)
    if stated in READERS or stated in MTP_READERS:
        return str(stated)
    inner = around if stated is None else stated.removesuffix("_text")
    return default_family(fields.values, inner) if inner in TEXT_TOWERS else _model_type(fields)


def _model_type(fields: ConfigFields) -> str:
    """The model_type, if there is a reader for it."""
    value = fields.values.get("model_type")
    known = known_model_types()
    if not isinstance(value, str):
        stated = fields.values.get("architectures")
        hint = f"add that of {stated} in the transformers library" if stated else "give a model's config.json"
        raise fields.error("model_type", "must be given as text", value, hint)
    if value in REFUSED:
        raise UnsupportedError(
            f"{fields.file}: model_type must be a decoder-only transformer that planner models",
            f"{value!r}: {REFUSED[value]}",
            "plan a model without it; planner model lists those that come with planner",
        )
    if value not in known:
        near = f"did you mean: {', '.join(nearest_names(value, known))}?"
        hint = f"{nested_hint(fields.values, known) or near}; or describe the architecture by hand in the YAML form"
        raise fields.error("model_type", "must be a model type that planner can read", value, hint)
    return value
