"""Files that are taken for a model's configuration, and configurations of what is no model by itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from planner.errors import FileInputError, PlannerError, UnsupportedError
from planner.report.words import texts
from planner.spec.hf import read_hf_config
from planner.spec.load_model import load_model_file

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2,
    "intermediate_size": 96, "vocab_size": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"metadata": {"total_size": 1}, "weight_map": {"lm_head.weight": "1.safetensors"}}, "index"),
        ({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>"}, "tokenizer"),
        ({"version": "1.0", "added_tokens": [], "model": {"type": "BPE"}}, "tokenizer"),
        ({"image_processor_type": "CLIPImageProcessor"}, "image processor"),
        ({"_from_model_config": True, "bos_token_id": 1}, "generation"),
        ({"__version__": {"sentence_transformers": "2.2.2"}}, "sentence-transformers"),
        ({"zero_optimization": {"stage": 3}}, "DeepSpeed"),
        ({"general.architecture": "llama", "llama.block_count": 32}, "GGUF"),
        ({"medusa_num_heads": 5, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}, "lmsys/vicuna-7b-v1.3"),
        ({"peft_type": "LORA"}, "does not name"),
        ({"architectures": ["LlamaForCausalLM"]}, "add that of .*LlamaForCausalLM"),
        ({"args": {"num_layers": 32}}, "give a model's config.json"),
        ({"model_type": "newvl", "text_config": LLAMA}, "text_config holds a llama"),
        ({"model_type": "newvl", "text_config": {**LLAMA, "model_type": "other"}}, "did you mean"),
    ],
)
def test_a_file_that_is_no_configuration_says_what_it_is(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(FileInputError, match="model_type") as caught:
        read_hf_config(fields, "config.json", "m")
    assert re.search(said, caught.value.hint)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("adapter_config.json", "base model"), ("params.json", "Hugging Face's form"),
        ("tokenizer.json", "tokenizer"), ("model_index.json", "diffusion"), ("model.gguf", "weights alone"),
        ("notes.txt", "the file itself"),
    ],
)  # fmt: skip
def test_a_folder_without_a_configuration_says_what_it_holds(tmp_path: Path, file: str, said: str) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(FileInputError, match=r"config\.json") as caught:
        load_model_file(tmp_path)
    assert said in caught.value.hint


@pytest.mark.parametrize("name", ["model.safetensors", "m.GGUF", "pytorch_model.bin"])
def test_weights_are_no_configuration(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(json.dumps(LLAMA))
    with pytest.raises(FileInputError, match="weights"):
        load_model_file(tmp_path / name)


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}, {"draft_vocab_size": 32},
        {"architectures": ["DeepseekV3ForCausalLMNextN"]},
    ],
)  # fmt: skip
def test_draft_models_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="draft model"):
        read_hf_config({**LLAMA, **change}, "config.json", "m")


@pytest.mark.parametrize(
    ("architecture", "noted"),
    [("LlamaForCausalLM", False), ("LlamaModel", True), ("LlamaForTokenClassification", True),
     ("GPT2LMHeadModel", False), ("ChatGLMModel", False)],
)  # fmt: skip
def test_a_head_that_is_not_there_is_noted(architecture: str, noted: bool) -> None:
    spec = read_hf_config({**LLAMA, "architectures": [architecture]}, "config.json", "m")
    assert any(note.startswith("architectures = ") for note in texts(spec.assumed)) == noted


@pytest.mark.parametrize("model_type", ["mpnet", "nomic_bert", "led", "marian"])
def test_encoders_are_refused_by_what_they_are(model_type: str) -> None:
    with pytest.raises(UnsupportedError, match="encoder"):
        read_hf_config({**LLAMA, "model_type": model_type}, "config.json", "m")


def test_odd_architectures_give_no_traceback() -> None:
    for odd in ([], [3], "LlamaForCausalLM", {"a": 1}, None):
        try:
            read_hf_config({**LLAMA, "architectures": odd}, "config.json", "m")
        except PlannerError:
            pytest.fail(f"refused for {odd}")
