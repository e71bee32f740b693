"""Details of a model that launch files need: rotation in both spellings, and a decision on every family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.frameworks.details import TRAITS, read_details
from planner.spec.hf import MTP_READERS, READERS
from planner.spec.load_model import load_model

# dimensions and details say all that these compute, so launchers may be told no more
STATED = {
    *("arcee", "cwm", "dbrx", "deepseek_v2", "deepseek_v3", "dots1", "glm4_moe", "glm4_moe_lite", "gpt2"),
    *(
        "gpt_bigcode",
        "gpt_neox",
        "gpt_oss",
        "kimi_k2",
        "llama",
        "ministral",
        "mistral",
        "mixtral",
        "nemotron",
    ),
    *("olmoe", "opt", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss"),
    *("solar_open", "stablelm", "starcoder2"),
}


def test_every_family_is_decided_on() -> None:
    assert {*TRAITS} | STATED == {*READERS, *MTP_READERS}
    assert not {*TRAITS} & STATED


@pytest.mark.parametrize(
    "rotation",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0}},
    ],
)
def test_both_spellings_of_the_rotation(tmp_path: Path, rotation: dict[str, object]) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**config, "vocab_size": 100, "intermediate_size": 128, **rotation}))
    details = read_details(load_model(str(file)))
    assert details.rope_theta == 5e5
    assert details.rope_scaling is not None
    assert details.rope_scaling["factor"] == 8.0
