"""Where in a wrapper's `config.json` does its text model stand, of which family is it, and has its head own weights?

A wrapper holds encoders of images or sound beside a text model. transformers 5 ties the head by the wrapper's
`tie_word_embeddings`, transformers 4 by the text model's; of a file that states one of the two, that one is taken.
Where both are silent the text family's default is: transformers 5 asks for tying in some wrappers then, but keeps a
head that the weights hold, as those of Mistral Small 3.1 do (transformers issue 42313 and pull request 43429, vLLM
issue 51063). Left out: the encoders, whose parameters and time are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.spec.hf.fields import ConfigFields

# of which family a wrapper's text model is, where it does not state it
TEXT_TOWERS = {
    "apertus1p5": "apertus1p5_text",
    "aria": "aria_text",
    "audioflamingo3": "qwen2",
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "deepseek_vl": "llama",
    "deepseek_vl_hybrid": "llama",
    "deepseek_vl_v2": "deepseek_v2",
    "dots3_note": "dots3_note_text",
    "exaone4_5": "exaone4",
    "fast_vlm": "qwen2",
    "fuyu": "persimmon",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm46v": "glm4",
    "glm4v": "glm4",
    "glm4v_moe": "glm4_moe",
    "glm_ocr": "glm4",
    "glmasr": "llama",
    "glmga": "glm4",
    "got_ocr2": "qwen2",
    "granite4_vision": "granite",
    "granite_docling": "llama",
    "granite_speech": "granite",
    "granite_speech_plus": "granite",
    "hunyuan_vl": "hunyuan_v1_dense",
    "hy_v4_vl": "hy_v4_vl_text",
    "hyperclovax_vision_v2": "hyperclovax",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "internvl_chat": "qwen2",
    "janus": "llama",
    "kimi_k25": "deepseek_v3",
    "kimi_k3": "kimi_k3",
    "kimi_vl": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "lfm3_vl": "lfm3",
    "lighton_ocr": "qwen3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_llama": "llama",
    "llava_mistral": "mistral",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "llava_qwen": "qwen2",
    "minicpm_ocr": "qwen3_5_text",
    "minicpmv4_6": "qwen3_5_text",
    "minicpmv4_7": "qwen3_5_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
    "mistral_large4": "mistral_large4_text",
    "multi_modality": "llama",
    "muse_glimmer": "muse_glimmer_text",
    "musicflamingo": "qwen2",
    "nemotron_h_omni": "nemotron_h",
    "omniasr": "llama",
    "ovis2": "qwen2",
    "paddleocr_vl": "ernie4_5",
    "paligemma": "gemma",
    "perception_lm": "llama",
    "phi3_v": "phi3",
    "phi4_multimodal": "phi3",
    "phi4mm": "phi3",
    "qianfan_ocr": "qwen3",
    "qwen2_5_omni": "qwen2",
    "qwen2_5_omni_thinker": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_asr": "qwen3",
    "qwen3_omni_moe": "qwen3_moe",
    "qwen3_omni_moe_thinker": "qwen3_moe",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "smolvlm": "llama",
    "step3p7": "step3p5",
    "vibevoice_asr": "qwen2",
    "video_llama_3": "qwen2",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}

# names of the text model's section: the library's, InternVL's own (configuration_internvl_chat.py), DeepSeek-VL2's and
# Janus's own, VILA's; the model that answers in Qwen's Omni models stands in a section of theirs
_SECTIONS = ("text_config", "llm_config", "language_config", "llm_cfg")
_OUTER_SECTION = "thinker_config"
# LLaVA's own classes, whose files hold the text fields beside the rest and all call themselves llava
_LLAVA = {
    "LlavaLlamaForCausalLM": "llama",
    "LlavaMistralForCausalLM": "mistral",
    "LlavaQwenForCausalLM": "qwen2",
}
# what the text model of a wrapper takes where its family alone takes another value
_TOWER_DEFAULTS: dict[str, dict[str, Any]] = {
    "glm4v": {"head_dim": None},
    "glm4v_moe": {"attention_bias": True},
    "glm_ocr": {"attention_bias": False, "head_dim": None, "num_key_value_heads": 8},
    "granite_docling": {"tie_word_embeddings": True},
    "hunyuan_vl": {"tie_word_embeddings": True},
    "paddleocr_vl": {"tie_word_embeddings": True},
}
# hidden, MLP, layers, heads and vocabulary of a family that a section names: transformers 4 wrote there what differs
# from these alone (LLaVA 1.5, Idefics 2 and Pixtral are published so)
_DIMENSIONS = {
    "cohere2": (8192, 22528, 40, 64, 256000),
    "gemma": (3072, 24576, 28, 16, 256000),
    "gemma2": (2304, 9216, 26, 8, 256000),
    "granite": (4096, 11008, 32, 32, 32000),
    "llama": (4096, 11008, 32, 32, 32000),
    "ministral3": (4096, 14336, 34, 32, 131072),
    "mistral": (4096, 14336, 32, 32, 32000),
    "phi3": (3072, 8192, 32, 32, 32064),
    "qwen2": (4096, 22016, 32, 32, 151936),
    "qwen3": (4096, 22016, 32, 32, 151936),
}
_DIMENSION_NAMES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)

# wrappers that tie where the text model says so, too; those that leave it to the text model; those that never do
_TIED_BY_EITHER = {
    *(
        "fast_vlm",
        "glm4v",
        "glm4v_moe",
        "glm_ocr",
        "hunyuan_vl",
        "llava",
        "llava_next_video",
        "llava_onevision",
    ),
    *("minimax_m3_vl", "paddleocr_vl", "qwen2_5_vl", "qwen2_vl", "video_llama_3"),
}
_TIED_BY_TEXT = {"deepseek_vl_v2", "internvl_chat", "llama4", "multi_modality"}
_NEVER_TIED = {
    "audioflamingo3",
    "musicflamingo",
    "nemotron_h_omni",
    "omniasr",
    "qwen2_audio",
    "vibevoice_asr",
    "voxtral",
}
# wrappers for which transformers 5 asks for tying where nothing is said, though the text family's default is none
_SILENTLY_TIED = {
    *("deepseek_vl", "deepseek_vl_hybrid", "glmasr", "got_ocr2", "granite_speech", "granite_speech_plus"),
    *(
        "hyperclovax_vision_v2",
        "internvl",
        "janus",
        "kimi_k25",
        "lighton_ocr",
        "minicpm_ocr",
        "mistral3",
        "ovis2",
    ),
    "qwen3_asr",
}


def text_section(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the sections, outermost first, in which a wrapper's file holds its text model; none: beside the rest."""
    outer = (_OUTER_SECTION,) if isinstance(config.get(_OUTER_SECTION), dict) else ()
    around = config[_OUTER_SECTION] if outer else config
    found = next((name for name in _SECTIONS if around.get(name) is not None), None)
    if found is None and around.get("hidden_size") is None:  # older files hold the text fields themselves
        found = _SECTIONS[0]
    return (*outer, found) if found else outer


def text_fields(fields: ConfigFields, wrapper: str) -> ConfigFields:
    """The fields of a wrapper's text model, with what it takes from the wrapper. Raises `FileInputError`."""
    around = inner = fields
    for name in text_section(fields.values):
        around, inner = inner, inner.section(name)
    if around is not fields and "tie_word_embeddings" not in around.values:
        around = fields
    stated = str(inner.values.get("model_type"))
    defaults = dict(_TOWER_DEFAULTS.get(stated.removesuffix("_text"), _TOWER_DEFAULTS.get(wrapper, {})))
    if inner is not fields and stated in _DIMENSIONS:
        defaults |= dict(zip(_DIMENSION_NAMES, _DIMENSIONS[stated], strict=True))
    for name, value in defaults.items():
        if name not in inner.values:
            inner.assume(name, value)
    inner.values = {**defaults, **inner.values}
    if (tied := _ties(around, inner, wrapper)) is not None:
        inner.values["tie_word_embeddings"] = tied
    inner.assume("vision tower", "ignored", "text model only")
    return inner


def _ties(around: ConfigFields, inner: ConfigFields, wrapper: str) -> Any:
    """Whether the text model's head is tied; None where its family's default holds."""
    name = "tie_word_embeddings"
    outside, inside = around.values.get(name), inner.values.get(name)
    if wrapper in _NEVER_TIED:
        return False
    if inside is None and outside is None and wrapper in _SILENTLY_TIED:
        why = f"neither {wrapper} nor its text model states it; weights may tell"
        inner.assume(name, "the text family's", why)
    if wrapper in _TIED_BY_TEXT or outside is None:
        return inside
    return True if wrapper in _TIED_BY_EITHER and inside is True else outside


def default_family(config: Mapping[str, Any], wrapper: str) -> str:
    """Of which family a wrapper's text model is that does not state it."""
    named = config.get("architectures")
    own = [_LLAVA[name] for name in named if name in _LLAVA] if isinstance(named, list) else []
    return own[0] if own else TEXT_TOWERS[wrapper]
