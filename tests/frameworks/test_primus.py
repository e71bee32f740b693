"""Files of Primus for Megatron-LM: presets under overrides, its own settings, and what it and planner refuse.

Sizes of the models are those that their authors published.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app
from planner.cost.params import model_parameters
from planner.errors import PlannerError
from planner.frameworks import framework
from planner.frameworks.adapters import Adapters
from planner.frameworks.framework import ParsedConfig
from planner.frameworks.not_read import launcher_of
from planner.spec.config import Recompute
from planner.spec.job import AdapterTargets, Optimizer
from planner.spec.load_model import load_model
from planner.spec.precision import Precision


def written(overrides: str, model: str = "llama3.1_8B.yaml", config: str = "pre_trainer.yaml") -> str:
    """A file with one override a line."""
    lines = "".join(f"      {line}\n" for line in overrides.splitlines())
    return (
        "work_group: ${TEAM:us}\nmodules:\n  pre_trainer:\n    framework: megatron  # not torchtitan\n"
        f"    config: {config}\n    model: {model}\n    overrides:\n{lines}"
    )


def read(
    overrides: str = "train_iters: 5", model: str = "llama3.1_8B.yaml", config: str = "pre_trainer.yaml"
) -> ParsedConfig:
    text = written(overrides, model, config)
    assert framework("megatron").recognizes("a.yaml", text)
    assert launcher_of("a.yaml", text) is None
    return framework("megatron").parse({"a.yaml": text})


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        ("llama3.1_8B", "llama-3.1-8b"), ("llama2_7B", "llama-2-7b"), ("llama3_70B", "llama-3-70b"),
        ("mixtral_8x7B_v0.1", "mixtral-8x7b"), ("qwen3_30B_A3B", "qwen3-30b-a3b"), ("deepseek_v3", "deepseek-v3"),
        ("deepseek_v2_lite", "deepseek-v2-lite"), ("qwen3_5_35B_A3B", "qwen3.5-35b-a3b"),
    ],
)  # fmt: skip
def test_presets_are_the_published_models(preset: str, name: str) -> None:
    """Within what their conventions differ by: norms, biases of the router, a bias of queries."""
    model = read("mtp_num_layers: 0", preset).model
    assert model is not None
    assert model_parameters(model).total == pytest.approx(model_parameters(load_model(name)).total, rel=2e-4)


def test_overrides_go_before_the_trainer_and_that_before_the_model() -> None:
    plain = read()
    assert (plain.seq_len, plain.global_batch, plain.axes["micro_batch"]) == (1024, 16, 2)
    assert (plain.precision, plain.axes["zero"], plain.axes["recompute"]) == (Precision.BF16, 1, 0)
    sft = read(config="sft_trainer.yaml")
    assert (sft.seq_len, sft.global_batch, sft.axes["micro_batch"]) == (2048, 128, 1)
    own = read(
        "seq_length: 8192\nglobal_batch_size: 64\nmicro_batch_size: 4\ntensor_model_parallel_size: 2\n"
        "pipeline_model_parallel_size: 4\nnum_virtual_stages_per_pipeline_rank: 2\nfp8: hybrid\nfp8_recipe: mxfp8\n"
        "recompute_granularity: full\nrecompute_method: block\nrecompute_num_layers: 3\n"
        "use_distributed_optimizer: false"
    )
    assert (own.seq_len, own.global_batch, own.precision) == (8192, 64, Precision.FP8_MX)
    wanted = {"tp": 2, "pp": 4, "vpp": 2, "sp": 1, "micro_batch": 4, "zero": 0}
    assert {axis: own.axes[axis] for axis in wanted} == wanted
    assert (own.axes["recompute"], own.axes["recompute_layers"]) == (Recompute.FULL, 6)
    assert not own.unknown


def test_a_preset_states_degrees_and_architecture_that_overrides_change() -> None:
    latent, plain = (read(f"multi_latent_attention: {on}", "deepseek_v2_lite") for on in ("true", "false"))
    assert latent.axes["ep"] == 8
    assert latent.model is not None
    assert plain.model is not None
    assert latent.model.has_latent_attention
    assert not plain.model.has_latent_attention
    small = read("num_layers: 4", "llama3.1_8B").model
    assert small is not None
    assert small.num_layers == 4


def test_variables_of_the_environment() -> None:
    text = "tensor_model_parallel_size: ${TP:2}\nmicro_batch_size: ${MBS:1}"
    taken = read(text, "${MODEL:llama2_7B}.yaml")
    assert (taken.axes["tp"], taken.axes["micro_batch"]) == (2, 1)
    assert any("MODEL=llama2_7B, TP=2, MBS=1" in note for note in taken.notes)
    files = {"env.sh": "export TP=4\n", "a.yaml": written(text)}
    assert framework("megatron").parse(files).axes["tp"] == 4
    with pytest.raises(PlannerError, match="the environment must set WIDTH"):
        read("hidden_size: ${WIDTH}")


@pytest.mark.parametrize(
    ("overrides", "layers"),
    [
        ("recompute_granularity: full\nrecompute_method: block\nrecompute_num_layers: 0", 0),
        ("recompute_granularity: full\nrecompute_layer_ids: 0,3,5", 3),
        ("recompute_granularity: full\nrecompute_layer_ids: [1, 2]", 2),
        ("recompute_granularity: full\nrecompute_method: uniform\nrecompute_num_layers: 1", 32),
    ],
)
def test_layers_recomputed(overrides: str, layers: int) -> None:
    assert read(overrides).axes["recompute_layers"] == layers


def test_settings_of_its_own() -> None:
    split = read("pipeline_model_parallel_size: 4\ndecoder_pipeline_manual_split_list: [7, 9, 9, 7]")
    assert split.layers == (7, 9, 9, 7)
    sinks = read("enable_primus_turbo: true\nuse_turbo_attention: true\nuse_sink_attention: true").model
    assert sinks is not None
    assert all(attention.sinks for attention in sinks.attentions)
    narrow = read("use_precision_aware_optimizer: true\nexp_avg_dtype: bf16")
    assert narrow.optimizer is Optimizer.ADAMW_BF16
    exchanged = read(
        "enable_primus_turbo: true\nuse_turbo_deepep: true\nmoe_shared_expert_overlap: false\nmoe_router_dtype: fp32",
        "deepseek_v2_lite",
    )
    assert exchanged.dispatcher is None
    assert any("all-to-all" in note for note in exchanged.notes)


def test_adapters_of_fine_tuning() -> None:
    stated = "lora:\n        enabled: true\n        dim: 8\n        target_modules: [linear_qkv, linear_proj]"
    own = read(stated, config="sft_trainer.yaml").adapters
    assert own == Adapters(8, AdapterTargets.ATTENTION)
    assert read("lora:\n        enabled: true", config="sft_trainer.yaml").adapters == Adapters(32)
    assert read(config="sft_trainer.yaml").adapters is None
    with pytest.raises(PlannerError, match=r"lora.dim must be"):
        read("lora:\n        enabled: true\n        dim: big", config="sft_trainer.yaml")


@pytest.mark.parametrize(
    ("overrides", "must"),
    [
        ("turbo_sync_free_moe_stage: 1", "needs enable_primus_turbo"),
        ("enable_primus_turbo: true\nuse_turbo_deepep: true", "does not support moe_shared_expert_overlap"),
        ("fp4: e2m1\nfp4_recipe: mxfp4", "fp4_recipe must be one that planner models"),
        ("pipeline_model_parallel_size: 3\npatch_zero_bubble: true", "the pipeline schedule must be one"),
        ("pipeline_model_parallel_size: 3\npatch_primus_pipeline: true\npp_algorithm: v-half", "v-half"),
        ("pipeline_model_parallel_size: 3\nrecompute_granularity: full\nrecompute_layer_ids: 1,2", "without a pipe"),
        ("recompute_granularity: full\nrecompute_layer_ids: some", "must hold numbers of layers"),
        ("pipeline_model_parallel_size: 3\ndecoder_pipeline_manual_split_list: all", "a whole number of layers"),
        ("tensor_model_parallel_size: many", "must be a whole number"),
    ],
)  # fmt: skip
def test_what_is_refused(overrides: str, must: str) -> None:
    with pytest.raises(PlannerError, match=must):
        read(overrides, "deepseek_v2_lite")


@pytest.mark.parametrize(
    ("old", "new", "must"),
    [
        ("llama3.1_8B.yaml", "llama3.1_9B.yaml", "must be a preset that Primus ships"),
        ("pre_trainer.yaml", "my_trainer.yaml", "must be a preset that Primus ships"),
        ("      train_iters: 5\n", "      - 5\n", "must hold settings by name"),
    ],
)
def test_files_that_are_wrong(old: str, new: str, must: str) -> None:
    with pytest.raises(PlannerError, match=must):
        framework("megatron").parse({"a.yaml": written("train_iters: 5").replace(old, new)})


def test_misspelt_overrides_are_said() -> None:
    notes = read("tensor_model_paralel_size: 2").notes
    assert any("tensor_model_paralel_size (nearest: tensor_model_parallel_size)" in note for note in notes)


def test_what_is_better_is_said_as_overrides(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        written(
            "seq_length: 4096\nglobal_batch_size: 64\nmicro_batch_size: 1\ntensor_model_parallel_size: 8\n"
            "recompute_granularity: full\nrecompute_method: uniform\nrecompute_num_layers: 1"
        )
    )
    words = ["check", str(file), "--cluster", "1x8 mi300x", "--json"]
    better = json.loads(CliRunner().invoke(app, words).stdout)["better"]
    changes = [line.strip() for line in better["diff"]]
    assert "- recompute_granularity: full" in changes
    assert any(line.startswith("+ tensor_model_parallel_size: ") for line in changes)
    assert not any("--" in line for line in changes)


def test_models_beyond_gpt_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        written("seq_length: 2048\nglobal_batch_size: 8\nmicro_batch_size: 1", "lfm2_8B_A1B.yaml")
    )
    words = ["check", str(file), "--cluster", "1x8 mi300x"]
    asked = CliRunner().invoke(app, words)
    assert asked.exit_code == 2
    assert "--model" in asked.output
    taken = CliRunner().invoke(app, [*words, "--model", "lfm2-1.2b", "--json"])
    facts = json.loads(taken.stdout)
    assert (facts["framework"], facts["axes"]["dp"]) == ("megatron", 8)
