"""Is a file the configuration of a language model at all? Files that lie beside a `config.json` are taken for it.

Left out: which architecture a configuration describes (`hf/__init__.py`).
"""

from __future__ import annotations

from typing import Any

from planner.errors import UnsupportedError
from planner.spec.hf.fields import ConfigFields

# a field that only such a file has, and what the file is
_OTHER_FILES = {
    "planner_version": "an answer of planner, which holds its cluster: planner estimate PLAN.json, planner explain "
    "PLAN.json; on another cluster planner estimate PLAN.json --cluster NAME",
    "peft_type": "an adapter's: give the config.json of its base model, {base}",
    "medusa_num_heads": "of decoding heads beside a model: give the config.json of its base model, {base}",
    "_class_name": "a diffusion pipeline's: planner plans language models",
    "weight_map": "the index of a model's weights: give the config.json beside it",
    "added_tokens": "a tokenizer's: give the config.json beside it",
    "tokenizer_class": "a tokenizer's: give the config.json beside it",
    "image_processor_type": "an image processor's: give the config.json beside it",
    "feature_extractor_type": "a feature extractor's: give the config.json beside it",
    "_from_model_config": "a model's settings for generation: give the config.json beside it",
    "__version__": "of sentence-transformers: embedding models are not planned",
    "zero_optimization": "a configuration of DeepSpeed: planner check reads it beside a model",
    "general.architecture": "in the form of GGUF: give the config.json of the model that it was made from",
    "dim": "in the form that Meta and Mistral publish beside their weights (params.json): give the config.json of "
    "the same model in Hugging Face's form",
}
# files in a folder without a `config.json`, and what to give instead of the folder
_OTHER_FOLDERS = {
    "adapter_config.json": "it holds an adapter: give the folder of its base model",
    "params.json": "it holds weights in Meta's or Mistral's form: give the same model in Hugging Face's form",
    "model_index.json": "it holds a diffusion pipeline: planner plans language models",
    "tokenizer_config.json": "it holds a tokenizer: give the folder of the model",
    "tokenizer.json": "it holds a tokenizer: give the folder of the model",
}
_WEIGHTS = (".bin", ".gguf", ".pt", ".pth", ".safetensors")
# architectures that share their base's model_type, and are not it
_DRAFTS = ("Eagle", "Medusa", "MTP", "NextN", "Speculator")


def weights_in(name: str) -> bool:
    """Does a file of this name hold weights?"""
    return name.lower().endswith(_WEIGHTS)


def folder_hint(names: set[str]) -> str:
    """What to give in place of a folder with these files and no `config.json`."""
    found = next((what for file, what in _OTHER_FOLDERS.items() if file in names), None)
    if found is None and any(weights_in(name) for name in names):
        found = "it holds weights alone: add the config.json that they were published with"
    return found or "give the folder of a model, or the file itself"


def check_kind_of_file(fields: ConfigFields) -> None:
    """Raise `FileInputError` for the files beside a `config.json` that are taken for it."""
    if fields.given("model_type"):
        return
    for name, what in _OTHER_FILES.items():
        if fields.given(name):
            base = fields.values.get("base_model_name_or_path") or "which it does not name"
            raise fields.error("model_type", "must be given", None, f"the file is {what.format(base=base)}")


def check_head(fields: ConfigFields) -> None:
    """Note a head that is counted and the file's architecture has not. Raises `UnsupportedError` for a draft model."""
    named = _architecture(fields.values)
    if fields.given("draft_vocab_size") or any(word in named for word in _DRAFTS):
        raise UnsupportedError(
            f"{fields.file}: architectures must be a model that predicts by itself",
            f"{named or 'draft_vocab_size'}: a draft model, which guesses for a larger one, is not modelled",
            "plan the larger model",
        )
    if "Classification" in named:
        fields.assume(
            "architectures", "a causal language model", "its head is counted in place of a classifier's"
        )
    elif named.endswith("Model") and not named.endswith(("LMHeadModel", "ChatModel", "ChatGLMModel")):
        fields.assume(
            "architectures", "a causal language model", f"its head is counted, which {named} has not"
        )


def nested_hint(config: dict[str, Any], known: list[str]) -> str | None:
    """Which section of a file of unknown type holds a model that planner reads, if one does."""
    for name, section in config.items():
        if isinstance(section, dict) and section.get("model_type") in known and section.get("hidden_size"):
            return f"{name} holds a {section['model_type']}, which planner reads: write that object to a file"
    return None


def _architecture(values: dict[str, Any]) -> str:
    named = values.get("architectures")
    first = named[0] if isinstance(named, list) and named else named
    return first if isinstance(first, str) else ""
