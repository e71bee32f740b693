"""Details of a model that launch files need: rotation in both spellings, and a decision on every family."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from planner.ask.question import Question
from planner.cli.check import check_files
from planner.errors import InputError, UnsupportedError
from planner.frameworks import framework
from planner.frameworks.details import Details, left_out, read_details, unwritten_rotation
from planner.frameworks.megatron.architecture import model_options, written_rotations
from planner.spec.config import ContextKind, ParallelConfig
from planner.spec.hf.families import families, family
from planner.spec.load_model import load_model
from tests.frameworks.launches import STACKS, golden_launch, launch, problem

# dimensions and details say all that these compute, so launchers may be told no more
STATED = {
    *(
        "arcee",
        "aria_text",
        "cwm",
        "dbrx",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "dots1",
        "exaone",
        "glm4_moe",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "gpt2",
    ),
    *(
        "gpt_bigcode",
        "gpt_neox",
        "gpt_oss",
        "kimi_k2",
        "llama",
        "minimax_m3",
        "minimax_m3_vl_text",
        "ministral",
        "mistral",
        "mixtral",
        "nemotron",
    ),
    *("olmoe", "opt", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss"),
    *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
    *("solar_open", "stablelm", "starcoder2"),
    *("bailing_moe", "bailing_moe_v2", "deepseek", "hy_v3", "internlm2", "internlm3", "iquestcoder", "jais2"),
    *("mamba2", "mimo", "nemotron_h", "youtu"),
    *("Yi", "gpt-sw3", "internlm", "qwen", "xverse"),
    *("sarvam_mla", "sarvam_moe"),
}


def test_every_family_is_decided_on() -> None:
    peculiar = {name for name in families() if family(name).traits}
    assert peculiar | STATED == {*families()}
    assert not peculiar & STATED


@pytest.mark.parametrize("name", ["deepspeed", "accelerate"])
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "sarvam_moe", "num_hidden_layers": 4}, "no model of the family sarvam_moe"),
        ({"model_type": "bailing_hybrid", "num_hidden_layers": 6, "q_lora_rank": 768}, "no q_lora_rank"),
        ({"model_type": "bailing_hybrid", "num_hidden_layers": 6}, ""),
    ],
)
def test_programs_say_which_release_they_need(
    tmp_path: Path, name: str, fields: dict[str, Any], said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields))
    path = str(tmp_path / "config.json")
    config = ParallelConfig(dp=128, micro_batch=1, num_microbatches=2, zero=3)
    files = framework(name).render(
        launch(path, config, problem(path, STACKS[name])), framework(name).default_version
    )
    told = [line for line in files["README.md"].splitlines() if "transformers 5.24 or later" in line]
    assert len(told) == bool(said)
    assert all(said in line for line in told)


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


def test_a_wrapper_states_them_of_its_text_model(tmp_path: Path) -> None:
    text = {"model_type": "qwen3_vl_text", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 100, "intermediate_size": 128, "rope_theta": 5e6}  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "qwen3_vl", "vision_config": {}, "text_config": text}))
    details = read_details(load_model(str(file)))
    assert details.rope_theta == 5e6
    assert details.raw is not None
    assert (details.raw["model_type"], "vision_config" in details.raw) == ("qwen3", False)


@pytest.mark.parametrize(
    ("outside", "inside", "states"),
    [
        ({"model_type": "qwen3_vl", "tie_word_embeddings": True}, {}, {"tie_word_embeddings": True}),
        ({"model_type": "hunyuan_vl"}, {}, {"tie_word_embeddings": True}),
        ({"model_type": "mistral3"}, {"head_dim": 16}, {"tie_word_embeddings": False, "head_dim": 16}),
        ({"model_type": "glm4v"}, {}, {"head_dim": None}),
    ],
)
def test_what_a_text_model_takes_from_its_wrapper_is_stated(
    tmp_path: Path, outside: dict[str, Any], inside: dict[str, Any], states: dict[str, Any]
) -> None:
    text = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "vocab_size": 100, "intermediate_size": 128}  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**outside, "text_config": {**text, **inside}}))
    model = load_model(str(file))
    raw = read_details(model).raw
    assert raw is not None
    assert {name: raw[name] for name in states} == states
    file.write_text(json.dumps(dict(raw)))  # by itself it describes the same model
    again = load_model(str(file))
    assert (again.layers, again.tied_embeddings) == (model.layers, model.tied_embeddings)


def test_the_routers_of_ling_and_hunyuan(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "vocab_size": 100, "intermediate_size": 128, "moe_intermediate_size": 8, "num_experts": 4,
             "num_experts_per_tok": 2}  # fmt: skip
    file = tmp_path / "config.json"
    found = []
    for more in (
        {"model_type": "bailing_moe"},
        {"model_type": "bailing_moe", "score_function": "sigmoid", "routed_scaling_factor": 2.5},
        {"model_type": "hy_v3", "router_scaling_factor": 2.8},
    ):
        file.write_text(json.dumps({**sizes, **more}))
        details = read_details(load_model(str(file)))
        found.append((details.router_sigmoid, details.routed_scaling))
    assert found == [(False, None), (True, 2.5), (True, 2.8)]


def test_catalog_configurations_state_the_rotation_of_the_published_models() -> None:
    """Exports write them; the transformers library's defaults, 10,000 and 1e-5 or 1e-6, would train another model."""
    stated = {
        "qwen3-8b": (1e6, 1e-6),
        "mixtral-8x7b": (1e6, 1e-5),
        "llama-3.2-3b": (5e5, 1e-5),
        "phi-4-14b": (25e4, 1e-5),
    }
    for name, (base, epsilon) in stated.items():
        details = read_details(load_model(name))
        assert (details.rope_theta, details.norm_eps) == (base, epsilon), name
    factors = {"llama-3.1-405b": 8, "llama-3.2-1b": 32, "deepseek-v3": 40, "kimi-k2": 32, "gpt-oss-20b": 32}
    for name, factor in factors.items():
        scaling = read_details(load_model(name)).rope_scaling
        assert scaling is not None, name
        assert scaling["factor"] == factor, name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama-3.1-8b", []),
        ("qwen3-8b", []),
        ("deepseek-v3", []),
        ("kimi-k2", ["rope_scaling of kind yarn: no option takes beta_fast 1.0 instead of 32"]),
        ("llama-4-scout", ["rope_scaling of kind llama3: no option takes high_freq_factor 1.0 instead of 4"]),
        ("gpt-oss-20b", ["rope_scaling of kind yarn: positions are rotated without it"]),
    ],
)
def test_a_rotation_that_megatron_is_not_told_is_said(name: str, said: list[str]) -> None:
    model = load_model(name)
    details = read_details(model)
    assert unwritten_rotation(details, written_rotations(model, details, "0.18.2")) == said


def test_megatron_main_is_told_yarn_field_by_field() -> None:
    """gpt-oss under main of 2026-08 alone; an attention factor of its own has no option."""
    model = load_model("gpt-oss-20b")
    details = read_details(model)

    def options(fields: Details, version: str) -> dict[str, list[str]]:
        return {name: words for name, *words in map(list, model_options(model, fields, 4096, 128, version))}

    main, release = options(details, "main-2026-08"), options(details, "0.18.2")
    told = {
        "--position-embedding-type": ["yarn"], "--rotary-base": ["150000"], "--rotary-scaling-factor": ["32.0"],
        "--yarn-original-max-position-embeddings": ["4096"], "--yarn-beta-fast": ["32.0"],
        "--yarn-beta-slow": ["1.0"], "--no-yarn-correction-range-round-to-int": [],
    }  # fmt: skip
    assert {name: main[name] for name in told} == told
    assert unwritten_rotation(details, written_rotations(model, details, "main-2026-08")) == []
    assert release["--position-embedding-type"] == ["rope"]
    assert not [name for name in release if "yarn" in name]
    own = replace(details, rope_scaling={**(details.rope_scaling or {}), "attention_factor": 2.0})
    assert options(own, "main-2026-08")["--position-embedding-type"] == ["rope"]
    assert unwritten_rotation(own, written_rotations(model, own, "main-2026-08"))


def test_a_catalog_model_is_not_vouched_for_where_it_is_silent(tmp_path: Path) -> None:
    assert left_out(load_model("deepseek-v2"))[0].startswith("rope_scaling and the rotary base:")
    for name in ("llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "kimi-k2"):
        assert left_out(load_model(name)) == [], name
    own = tmp_path / "config.json"
    own.write_text((files("planner.catalog") / "models" / "llama-3.1-8b" / "config.json").read_text())
    assert left_out(load_model(str(own))) == []


@pytest.mark.parametrize("name", ["deepspeed", "accelerate"])
def test_a_family_that_the_library_has_not_gets_no_program(name: str) -> None:
    launch = golden_launch(name)
    unknown = replace(launch, model=replace(launch.model, family="internlm2"))
    with pytest.raises(UnsupportedError, match="internlm2"):
        framework(name).render(unknown, framework(name).versions[-1])


@pytest.mark.parametrize(
    ("name", "kind"), [("llama-3.1-8b", "p2p"), ("mistral-7b", "all_gather"), ("gpt-oss-20b", "a2a")]
)
def test_megatron_is_told_context_parallelism_that_takes_windows_and_sinks(name: str, kind: str) -> None:
    """Transformer Engine asserts that its ring, the default, sees neither, and takes gathering by the name all_gather
    alone (attn_forward_func_with_cp): a file that asks for another kind, or for none, is not legal."""
    config = ParallelConfig(cp=2, dp=64, num_microbatches=4, zero=1)
    given = launch(name, config, problem(name, STACKS["megatron"]))
    files = framework("megatron").render(given, "main-2026-08")
    option = f"--cp-comm-type {kind}"
    assert option in files["launch.sh"]

    def broken(words: str) -> list[tuple[str, str]]:
        own = {"launch.sh": files["launch.sh"].replace(option, words)}
        facts = check_files(own, Question(name, "16x8 h100 400G-ib"))
        return [(each["rule"], each["hint"]) for each in facts["violations"]]

    assert broken(option) == []
    wrong = [] if kind == "p2p" else [("cp-kind", f"set the exchange to {kind}")]
    assert broken("--cp-comm-type p2p") == broken("") == wrong
    other = [("cp-kind-supported", "choose one of these")]
    assert broken("--cp-comm-type all_gather") == (other if kind == "a2a" else [])
    with pytest.raises(InputError, match="all_gather"):
        broken("--cp-comm-type allgather")


@pytest.mark.parametrize(
    ("name", "own", "kind"), [("mistral-7b", "", "A2A"), ("mistral-7b", "all_gather", "ALL_GATHER"),
                              ("mistral-nemo-12b", "", "P2P"), ("llama-3.1-8b", "", "P2P")],
)  # fmt: skip
def test_bridge_has_an_exchange_of_its_own_for_mistrals_windows(name: str, own: str, kind: str) -> None:
    """models/mistral/mistral_bridge.py sets a2a where the model has a window; a script goes before it."""
    said = f" model.cp_comm_type={own}" * bool(own)
    script = (
        f"torchrun run_recipe.py model.tensor_model_parallel_size=1 model.context_parallel_size=4{said}\n"
    )
    facts = check_files({"run.sh": script}, Question(name, "2x8 h100 400G-ib"))
    assert facts["legal"], facts["violations"]
    exchange = f"cp:{ContextKind[kind].label}"
    assert (exchange in facts["config"]) == (kind != "P2P")
    assert ("cp:" in facts["config"]) == (kind != "P2P")
