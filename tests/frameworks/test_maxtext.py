"""MaxText's files: plans for TPUs and GPUs written and read back, rules of its mesh, and what users' own files say.

Golden files of TPUs are written anew with PLANNER_WRITE_GOLDEN=1; read the difference before committing it.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from planner.ask.question import Question
from planner.ask.request import Request, resolve
from planner.catalog.stack_options import PURE_BF16
from planner.cli import app
from planner.cli.files import config_of, problem_of
from planner.errors import InputError, UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import ParsedConfig
from planner.frameworks.known import same_architecture
from planner.frameworks.maxtext.mesh import Mesh, sizes_of
from planner.frameworks.maxtext.names import CATALOG, KEPT, MODELS, VOCABULARY, Repeated
from planner.frameworks.maxtext.rules import RULES
from planner.frameworks.maxtext.settings import per_device
from planner.frameworks.maxtext.slices import split_on
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import all_rules_for, rules_for
from planner.space.legality import explain_config
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ParallelConfig, Recompute, Schedule
from planner.spec.job import Optimizer
from planner.spec.load_model import load_model
from planner.spec.machine.load_cluster import load_accelerator
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from planner.spec.stack.losses import Chunked
from tests.frameworks.launches import golden_launch, launch

GOLDEN = Path(__file__).parent / "golden_tpu"
MAXTEXT = framework("maxtext")
FULL, SELECTIVE = int(Recompute.FULL), int(Recompute.SELECTIVE)
runner = CliRunner()


def bits(*names: str) -> int:
    return sum(1 << RECOMPUTE_MODULES.index(name) for name in names)


def posed(model: str, cluster: str, gpus: int | None = None, batch: int = 512, **more: object) -> Problem:
    asked = {"seq_len": 4096, "stack": "maxtext-2024", **more}
    return resolve(Request(model, cluster, gpus=gpus, global_batch=str(batch), **asked))[0]  # type: ignore[arg-type]


def settings(files: dict[str, str]) -> dict[str, object]:
    document: dict[str, object] = yaml.safe_load(files["config.yml"])
    return document


def written(config: ParallelConfig, given: Problem) -> dict[str, str]:
    return MAXTEXT.render(launch("", config, given), MAXTEXT.default_version)


def read(text: str, name: str = "config.yml") -> ParsedConfig:
    return MAXTEXT.parse({name: text})


# (model, cluster, devices, sequence length): what `planner plan` finds for them is written to the folder
PLANNED = {
    "llama-3.1-70b-v5p": ("llama-3.1-70b", "64x4 tpu-v5p", 256, 8192),
    "mixtral-8x7b-v6e": ("mixtral-8x7b", "tpu-v6e", 256, 8192),
}


@pytest.mark.parametrize("name", PLANNED)
def test_plans_for_tpus_are_written_and_checked_at_their_cost(name: str, tmp_path: Path) -> None:
    model, cluster, devices, length = PLANNED[name]
    plan, out = tmp_path / "plan.json", tmp_path / "launch"
    words = ["plan", model, cluster, "--gpus", str(devices), "--seq-len", str(length)]
    assert runner.invoke(app, [*words, "--stack", "maxtext-2024", "-o", str(plan)]).exit_code == 0
    assert runner.invoke(app, ["export", str(plan), "-o", str(out)]).exit_code == 0
    best = json.loads(plan.read_text())["choices"][0]
    done = runner.invoke(app, ["check", str(out), "--cluster", cluster, "--gpus", str(devices), "--json"])
    answer = json.loads(done.stdout)
    assert answer["framework"] == "maxtext"
    assert answer["legal"]
    assert answer["config"] == best["config"]["text"]
    assert answer["step_time_s"] == pytest.approx(best["step_time"], rel=1e-12)
    assert answer["peak_memory_bytes"] == pytest.approx(best["memory"]["peak"], rel=1e-12)
    assert answer["better"] is None
    folder = GOLDEN / name
    if os.environ.get("PLANNER_WRITE_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for path in out.iterdir():
            (folder / path.name).write_text(path.read_text())
    assert {path.name for path in folder.iterdir()} == {"config.yml", "launch.sh", "README.md"}
    for path in folder.iterdir():
        assert (out / path.name).read_text() == path.read_text(), path.name


@pytest.mark.parametrize(
    ("model", "cluster", "gpus", "more"),
    [
        ("llama-3.1-8b", "tpu-v6e", 512, {}),  # two slices
        ("qwen3-30b-a3b", "tpu-v5e", 1024, {}),  # four
        ("deepseek-v3", "tpu-v5p", 1024, {}),
        ("yi-34b", "tpu-v4", 128, {}),
        ("mixtral-8x22b", "tpu-v5p", 768, {"batch": 768}),
        ("llama-3.1-8b", "8x8 h100 400G-ib", None, {"precision": "fp8"}),
        ("qwen2.5-72b", "16x8 b200 400G-ib", None, {"precision": "fp8_mx"}),
        ("llama-3.1-8b", "8x8 h100 400G-ib", None, {"stack": f"maxtext-2024+{PURE_BF16}"}),
    ],
)
def test_legal_configurations_are_read_back(
    model: str, cluster: str, gpus: int | None, more: dict[str, object]
) -> None:
    given = posed(model, cluster, gpus, **more)  # type: ignore[arg-type]
    table = enumerate_configs(given, rules_for(given.stack)).table()
    for row in random.Random(5).sample(range(len(table)), 8):
        config = table.row(row)
        files = written(config, given)
        back = MAXTEXT.parse({name: files[name] for name in ("config.yml", "launch.sh")})
        assert not back.unknown
        assert back.model is not None
        assert same_architecture(back.model, given.model)
        again, _ = problem_of(back, MAXTEXT, Question("", cluster, gpus))
        assert config_of(back, again) == config
        assert replace(again.job, expert_imbalance=given.job.expert_imbalance) == given.job
        assert again.stack == given.stack
        refused, notes = MAXTEXT.starts_on(back, config, again)
        assert not refused
        assert not notes, "a split is allowed where it is needed alone"
        axes = settings(files)
        sizes = [axes[f"{net}_{axis}_parallelism"] for net in ("ici", "dcn") for axis in sizes_of(config)]
        assert np.prod(sizes[:6]) == min(given.cluster.scale_up_domain, given.cluster.num_devices)
        assert np.prod(sizes) == given.cluster.num_devices


def test_axes_fill_slices_tensor_first() -> None:
    """Two slices of 256: pipelines lie across them, then copies, then shards."""
    config = ParallelConfig(tp=4, cp=2, pp=2, dp=32, zero=3)
    mesh = Mesh.of(config, 256)
    assert mesh is not None
    assert (mesh.dcn["pipeline"], mesh.ici["fsdp"], mesh.ici["tensor"]) == (2, 32, 4)
    copied = Mesh.of(replace(config, pp=1, dp=64, hsdp=64), 256)
    assert copied is not None
    assert (copied.ici["fsdp"], copied.dcn["data"], copied.dcn["fsdp"]) == (32, 2, 1)
    whole = Mesh.of(replace(config, pp=1, dp=64), 256)
    assert whole is not None
    assert (whole.ici["fsdp"], whole.dcn["fsdp"]) == (32, 2)
    assert Mesh.of(ParallelConfig(tp=3, dp=8, zero=3), 8) is None


@pytest.mark.parametrize("devices", [1, 7, 24, 96, 384, 768, 1000])
def test_the_number_per_device_makes_the_sequences(devices: int) -> None:
    for sequences in range(1, 300):
        assert int(devices * per_device(sequences, devices)) == sequences


BASE = ParallelConfig(dp=64, zero=3, micro_batch=1, num_microbatches=8, recompute=FULL, recompute_layers=32)
EXPERTS = replace(BASE, recompute_layers=48)


@pytest.mark.parametrize(
    ("model", "config", "rule"),
    [
        ("llama-3.1-8b", replace(BASE, tp=16, dp=4, sp=1), "kv-heads-tp"),
        ("llama-3.1-8b", replace(BASE, tp=2, dp=32, sp=0), "tensor-axes"),
        ("llama-3.1-8b", replace(BASE, zero=2), "zero-expressible"),
        ("llama-3.1-8b", replace(BASE, zero=1, cp=2, dp=32), "sharded-weights"),
        ("qwen3-30b-a3b", replace(EXPERTS, zero=0, ep=8), "sharded-weights"),
        ("qwen3-30b-a3b", replace(EXPERTS, hsdp=8, ep=16), "shard-groups"),
        ("qwen3-30b-a3b", replace(EXPERTS, tp=2, dp=32, sp=1), "experts-mesh"),
        ("qwen3-30b-a3b", replace(EXPERTS, cp=2, dp=32, ep=64), "experts-mesh"),
        ("llama-3.1-8b", replace(BASE, pp=2, dp=32, recompute_layers=16), "schedule-supported"),
        ("llama-3.1-8b", replace(BASE, pp=2, vpp=3, dp=32, schedule=2, recompute_layers=16), "even-stages"),
        (
            "llama-3.1-8b",
            replace(BASE, pp=4, dp=16, schedule=2, num_microbatches=2, recompute_layers=8),
            "microbatches-pp",
        ),
        ("llama-3.1-8b", replace(BASE, recompute_layers=8), "recompute-partial"),
        ("llama-3.1-8b", replace(BASE, recompute=0, recompute_layers=0), "recompute-lists"),
        (
            "llama-3.1-8b",
            replace(BASE, recompute=SELECTIVE, recompute_layers=0, recompute_modules=bits("core_attn")),
            "recompute-lists",
        ),
    ],
)
def test_rules_and_the_export_refuse_alike(model: str, config: ParallelConfig, rule: str) -> None:
    given = posed(model, "8x8 h100 400G-ib")
    broken = [one.rule for one in explain_config(config, given, all_rules_for("maxtext"))]
    assert rule in broken
    with pytest.raises(UnsupportedError):
        written(config, given)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        (replace(BASE, dp=8192, num_microbatches=1), "width-shards"),  # over a width of 4,096
        (replace(BASE, cp=64, dp=4), "sequence-cp"),  # blocks of 64 positions
    ],
)
def test_rules_of_sizes(config: ParallelConfig, rule: str) -> None:
    devices = config.dp * config.cp
    given = posed("llama-3.1-8b", "tpu-v5p" if devices <= 8192 else "tpu-v6e", devices, 8192)
    assert rule in [one.rule for one in explain_config(config, given, all_rules_for("maxtext"))]


def test_delayed_scaling_accumulates_nothing() -> None:
    given = posed("llama-3.1-8b", "8x8 h100 400G-ib", precision="fp8")
    rule = next(rule for rule in RULES if rule.id == "fp8-accumulation")
    table = ConfigTable.of([BASE, replace(BASE, micro_batch=8, num_microbatches=1)])
    assert rule.legal(table.columns, given).tolist() == [False, True]
    assert settings(written(table.row(1), given))["quantization"] == "fp8"
    with pytest.raises(UnsupportedError, match="delayed scaling"):
        written(BASE, given)


def test_where_another_program_runs_the_rules_say_nothing() -> None:
    """On Trainium the stack stands in for others, which copy key/value heads."""
    given = posed("llama-3.1-70b", "trainium2", 64, 64)
    config = ParallelConfig(tp=16, dp=4, sp=1, zero=1, num_microbatches=16)
    assert not explain_config(config, given, all_rules_for("maxtext"))
    with pytest.raises(UnsupportedError, match="TPUs and GPUs"):
        written(config, given)


@pytest.mark.parametrize("policy", ["full", "minimal", "minimal_with_context", "save_dot_except_mlp"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"])
def test_policies_are_the_lists(policy: str, model: str) -> None:
    repeated = Repeated.of(load_model(model))
    kind, modules = repeated.without(KEPT[policy])
    assert repeated.policy(kind, modules) == policy


@pytest.mark.parametrize("name", [*MODELS.values(), "llama3.3-70b", "llama3.1-8b-Instruct"])
def test_its_models_are_the_catalogs(name: str) -> None:
    groups = "" if "deepseek3" not in name else "n_routing_groups: 8\ntopk_routing_group: 4\n"
    groups = groups if "deepseek2-236b" not in name else "n_routing_groups: 8\ntopk_routing_group: 3\n"
    back = read(f"model_name: {name}\nici_fsdp_parallelism: 8\ndcn_data_parallelism: 1\n{groups}")
    assert back.model is not None
    catalogs = load_model(CATALOG[name.removesuffix("-Instruct")])
    assert same_architecture(back.model, replace(catalogs, vocab=VOCABULARY.get(name, catalogs.vocab)))


@pytest.mark.parametrize(("name", "vocabulary"), [("mistral-7b", 32_000), ("mixtral-8x22b", 32_768)])
def test_its_models_that_are_nearly_the_catalogs(name: str, vocabulary: int) -> None:
    """configs/models/{mistral-7b,mixtral-8x22b}.yml: no windows; rows for the tokenizer of version 3."""
    back = read(f"model_name: {name}\nici_fsdp_parallelism: 8\ndcn_data_parallelism: 1\n").model
    assert back is not None
    assert (back.vocab, [a.window for a in back.attentions if a.window]) == (vocabulary, [])
    assert (back.hidden, back.num_layers) == (load_model(name).hidden, load_model(name).num_layers)


@pytest.mark.parametrize(
    "model", ["yi-34b", "mixtral-8x22b", "qwen2.5-72b", "llama-3.2-3b", "qwen3-4b", "smollm2-1.7b"]
)
def test_other_models_are_written_by_their_dimensions(model: str) -> None:
    given = posed(model, "8x8 h100 400G-ib")
    config = replace(BASE, recompute_layers=given.model.num_layers)
    files = written(config, given)
    back = read(files["config.yml"])
    assert back.model is not None
    assert same_architecture(back.model, given.model)
    assert ("base_emb_dim" in settings(files)) == (model not in MODELS)


@pytest.mark.parametrize(
    "model", ["gemma-2-9b", "gpt-oss-20b", "llama-4-scout", "qwen3-next-80b-a3b", "gpt-3-175b"]
)
def test_models_whose_blocks_differ_are_refused(model: str) -> None:
    given = golden_launch("maxtext")
    spec = load_model(model)
    config = ParallelConfig(
        dp=128, zero=3, num_microbatches=2, recompute=FULL, recompute_layers=spec.num_layers
    )
    with pytest.raises(UnsupportedError):
        MAXTEXT.render(replace(given, model=spec, config=config), MAXTEXT.default_version)


@pytest.mark.parametrize("model", ["gemma-3-4b", "gemma-3-27b"])
def test_gemma_3_is_written_by_its_name(model: str) -> None:
    given = posed(model, "tpu-v6e", 256, 512)
    table = enumerate_configs(given, rules_for(given.stack)).table()
    for row in random.Random(3).sample(range(len(table)), 6):
        config = table.row(row)
        files = written(config, given)
        axes = settings(files)
        assert (axes["model_name"], axes["scan_layers"]) == (MODELS[model], False)
        assert "vocab_size" not in axes  # which the name decides
        assert "a vocabulary of 262,208" in files["README.md"]
        back = read(files["config.yml"])
        assert not back.unknown
        assert not back.notes
        assert back.model is not None
        assert back.model.vocab == 262_144
        again, _ = problem_of(back, MAXTEXT, Question("", "tpu-v6e", 256))
        assert config_of(back, again) == config
        assert written(config, again)["config.yml"] == files["config.yml"]
    noted = read(f"model_name: {MODELS[model]}\nici_fsdp_parallelism: 256\ndcn_data_parallelism: 1\n")
    assert any("scan_layers" in note for note in noted.notes)


@pytest.mark.parametrize(
    ("model", "taken"), [("gemma-3-4b", True), ("llama-3.1-8b", True), ("mixtral-8x7b", False)]
)
def test_muon_runs_on_some_blocks(model: str, taken: bool) -> None:
    given = posed(model, "tpu-v5p", 64, optimizer="muon")
    config = replace(BASE, recompute_layers=given.model.num_layers)
    if taken:
        assert settings(written(config, given))["opt_type"] == "muon"
        return
    with pytest.raises(UnsupportedError, match="Muon on this decoder block"):
        written(config, given)


OWN = """
base_config: base.yml
decoder_block: llama2
base_emb_dim: 8192
base_num_query_heads: 64
base_num_kv_heads: 8
base_mlp_dim: 28672
base_num_decoder_layers: 80
head_dim: 128
vocab_size: 128256
ici_tensor_parallelism: 4
per_device_batch_size: 0.5
gradient_accumulation_steps: 2
max_target_length: 8192
remat_policy: minimal
"""


def checked(text: str, folder: Path, cluster: str, *words: str) -> dict[str, object]:
    (folder / "run.yml").write_text(text)
    done = runner.invoke(app, ["check", str(folder / "run.yml"), "--cluster", cluster, *words, "--json"])
    assert done.stdout, done.output
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_axes_left_to_the_rest_are_filled_from_the_cluster(tmp_path: Path) -> None:
    """ici_fsdp and dcn_data are -1 unless stated: shards in a slice, copies between slices."""
    one = checked(OWN, tmp_path, "64x4 tpu-v5p")
    assert one["config"] == "tp4 pp1 dp64 mbs2 zero3 sp recompute:core_attn+layernorm"
    two = checked(OWN, tmp_path, "tpu-v6e", "--gpus", "512")
    assert two["config"] == "tp4 pp1 dp128 mbs2 zero3 hsdp64 sp recompute:core_attn+layernorm"
    nodes = checked(OWN + "hardware: gpu\n", tmp_path, "16x8 h100 400G-ib")
    assert nodes["config"] == "tp4 pp1 dp32 mbs2 zero3 hsdp2 sp recompute:core_attn+layernorm"
    model = load_model("llama-3.1-70b")
    assert MAXTEXT.parse({"run.yml": OWN}).model is not None
    assert same_architecture(MAXTEXT.parse({"run.yml": OWN}).model or model, model)


def test_a_command_line_goes_before_the_file_and_variables() -> None:
    script = """
    export M_MAX_TARGET_LENGTH=2048
    export EXECUTABLE=train
    python3 -m MaxText.$EXECUTABLE MaxText/configs/base.yml model_name=llama2-7b remat_policy=full \\
        per_device_batch_size=4 ici_fsdp_parallelism=8 dcn_data_parallelism=4 run_name=$RUN base_output_directory=$OUT
    """
    back = MAXTEXT.parse({"run.sh": script})
    assert back.model is not None
    assert back.model.name == "llama-2-7b"
    assert (back.seq_len, back.global_batch, back.devices) == (2048, 128, 32)
    assert (back.axes["hsdp"], back.axes["micro_batch"], back.axes["zero"]) == (8, 4, 3)
    own = MAXTEXT.parse({"run.sh": script.replace("MaxText/configs/base.yml", "run.yml"), "run.yml": OWN})
    assert (own.seq_len, own.axes["tp"]) == (2048, 4)
    with pytest.raises(InputError, match="must be given too"):
        MAXTEXT.parse({"run.sh": script.replace("base.yml", "other.yml")})


def test_a_file_over_another() -> None:
    small = "base_config: run.yml\nmax_target_length: 1024\n"
    assert MAXTEXT.parse({"small.yml": small, "run.yml": OWN}).seq_len == 1024
    with pytest.raises(InputError, match="base_config"):
        MAXTEXT.parse({"small.yml": small.replace("run.yml", "absent.yml")})


PIPE = (
    OWN
    + "ici_pipeline_parallelism: 4\nici_fsdp_parallelism: 16\ndcn_data_parallelism: 1\nremat_policy: full\n"
)
PIPE = PIPE.replace("remat_policy: minimal\n", "").replace("batch_size: 0.5", "batch_size: 0.25")


def test_pipelines() -> None:
    text = PIPE.replace("gradient_accumulation_steps: 2\n", "") + "num_layers_per_pipeline_stage: 5\n"
    back = read(text)
    assert back.devices == 256
    assert (back.axes["pp"], back.axes["vpp"], back.axes["schedule"]) == (4, 4, Schedule.GPIPE)
    assert (back.axes["num_microbatches"], back.axes["micro_batch"]) == (4, 1)
    twice = read(text + "gradient_accumulation_steps: 2\n")
    assert twice.axes["num_microbatches"] == 8
    assert any("runs the pipeline 2 times" in note for note in twice.notes)
    with pytest.raises(InputError, match="must divide the layers"):
        read(text.replace("per_pipeline_stage: 5", "per_pipeline_stage: 3"))
    with pytest.raises(InputError, match="multiple of"):
        read(text + "num_pipeline_microbatches: 48\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("context_parallel_strategy: ring\nici_context_parallelism: 2", "all_gather"),
        ("ici_sequence_parallelism: 2", "must be 1"),
        ("ici_autoregressive_parallelism: 4", "must be 1"),
        ("enable_diloco: true", "DiLoCo"),
        ("lora: {enable_lora: true}", "lora-rank"),
        ("use_indexer: true", "indexer"),
        ("mtp_num_layers: 1", "multi-token"),
        ("quantization: int8", "one that planner models"),
        ("custom_mesh_and_rule: pipeline-large-moe", "base.yml"),
        ("mesh_axes: [fsdp]", "base.yml"),
        ("opt_type: lion", "one of adamw"),
        ("remat_policy: most", "one that planner models"),
        ("quantization: fp8", "does not accumulate"),
        ("ici_fsdp_parallelism: -1\nici_data_parallelism: -1", "one axis alone"),
        ("hardware: gpu\nattention: cudnn_flash_te", "packing"),
        ("per_device_batch_size: 0.3", "multiple of"),
        ("pipeline_parallel_layers: 40", "all layers"),
    ],
)
def test_what_is_not_modelled_or_refused_at_the_start_is_refused(line: str, said: str) -> None:
    names = {part.split(":")[0] for part in line.splitlines()}
    kept = [part for part in OWN.splitlines() if part.split(":")[0] not in names]
    text = "\n".join([*kept, line, "dcn_data_parallelism: 1", ""])
    text += "" if "ici_fsdp" in line else "ici_fsdp_parallelism: 16\n"
    with pytest.raises(InputError, match=said):
        read(text)


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("mu_dtype: bfloat16", "first moment is modelled in fp32"),
        ("grad_dtype: bfloat16", "gradients are modelled in fp32"),
        ("dropout_rate: 0.1", "dropout"),
        ("remat_policy: save_qkv_proj", "recomputing core_attn, layernorm, mlp"),
        ("remat_policy: save_out_proj", "recomputing all of every layer"),
        ("remat_policy: minimal_offloaded", "on the host"),
        ("remat_policy: none", "without a policy"),
        (
            "remat_policy: custom\nquery_proj: device\nkey_proj: device\nvalue_proj: device\nout_proj: offload",
            "host",
        ),
        ("remat_policy: custom\ndecoder_layer_input: offload\nout_proj: device", "modelled on the host"),
        ("logical_axis_rules: [[embed, [fsdp]]]", "not read"),
        ("pipeline_fsdp_ag_once: true", "gathered for every micro-batch"),
    ],
)
def test_what_is_read_but_not_modelled_is_said(line: str, note: str) -> None:
    kept = OWN if "remat" not in line else OWN.replace("remat_policy: minimal\n", "")
    back = read(f"{kept}{line}\nici_fsdp_parallelism: 16\ndcn_data_parallelism: 1\n")
    assert any(note in one for one in back.notes), back.notes


def test_numbers_of_the_stack(tmp_path: Path) -> None:
    shipped = files("planner.catalog") / "stacks" / "maxtext-2024.yaml"
    own_stack = tmp_path / "own.yaml"
    text = shipped.read_text(encoding="utf-8").replace("kind: remade", "kind: chunked, number: 2")
    own_stack.write_text(text.replace("name: maxtext-2024", "name: own"))
    filled = f"{OWN}ici_fsdp_parallelism: 16\ndcn_data_parallelism: 1\n"
    back = read(filled + "num_vocab_tiling: 4\nweight_dtype: bfloat16\nopt_type: sgd\n")
    assert back.loss == Chunked(number=4, makes_again=True)
    for parts in (1, 4, 64):  # of a stack whose own loss has 2
        asked = read(f"{filled}num_vocab_tiling: {parts}\n")
        given, said = problem_of(asked, MAXTEXT, Question("", "tpu-v6e", 256, stack=str(own_stack)))
        assert given.stack.kernels.loss == Chunked(number=max(parts, 2), makes_again=parts > 1)
        assert any(f"in {parts} parts" in one for one in said) is (parts > 1)
    assert back.stack_options == (PURE_BF16,)
    assert back.optimizer is Optimizer.SGD
    assert read(filled + "quantization: te_mxfp8\n").precision is Precision.FP8_MX
    mixtral = "model_name: mixtral-8x7b\nici_fsdp_parallelism: 16\ndcn_data_parallelism: 1\n"
    drops = read(mixtral + "sparse_matmul: false\ncapacity_factor: 1.25\nnum_experts: 8\n")
    assert [(one.field, one.value) for one in drops.stack_settings] == [("expert_padding", 1.25)]
    assert not read(mixtral + "capacity_factor: 1.25\n").stack_settings, "which the sparse path does not read"


@pytest.mark.parametrize(
    ("accelerator", "devices", "sizes", "axis"),
    [
        ("tpu-v5p", 256, {"fsdp": 128, "tensor": 2}, "tensor"),  # 4 x 8 x 8
        ("tpu-v5p", 256, {"fsdp": 64, "tensor": 4}, None),
        ("tpu-v5p", 256, {"fsdp": 8, "tensor": 32}, None),  # 4 x 8, and 8
        ("tpu-v5p", 1024, {"data": 2, "context": 2, "expert": 256}, "expert"),  # 8 x 8 x 16
        ("tpu-v6e", 256, {"fsdp": 16, "context": 4, "expert": 4}, "expert"),
        ("tpu-v6e", 256, {"fsdp": 16, "tensor": 16}, None),
        ("tpu-v6e", 256, {"fsdp": 256}, None),
        ("tpu-v6e", 8, {"fsdp": 4, "tensor": 2}, None),  # 2 x 4
        ("tpu-v6e", 8, {"fsdp": 2, "context": 2, "tensor": 2}, None),  # a ring, whatever the axes
        ("tpu-v4", 8, {"fsdp": 4, "tensor": 2}, None),  # 2 x 2 x 2
        ("tpu-v4", 16, {"fsdp": 2, "tensor": 2, "expert": 4}, "tensor"),  # of 2 x 2 x 4 experts took 2 x 2
    ],
)
def test_axes_are_whole_axes_of_the_torus_as_jax_assigns_them(
    accelerator: str, devices: int, sizes: dict[str, int], axis: str | None
) -> None:
    """What jax 0.10.2 mesh_utils.create_device_mesh does with mock devices."""
    torus = load_accelerator(accelerator).torus
    assert torus is not None
    part = torus.holding(devices)
    assert part is not None
    assert split_on(sizes, accelerator, part) == axis


def test_files_allow_a_split_where_one_is_needed() -> None:
    given = posed("llama-3.1-70b", "64x4 tpu-v5p")
    config = ParallelConfig(
        dp=64, tp=4, sp=1, zero=3, num_microbatches=8, recompute=FULL, recompute_layers=80
    )
    assert "allow_split_physical_axes" not in settings(written(config, given))
    halved = settings(written(replace(config, dp=128, tp=2, num_microbatches=4), given))
    assert halved["allow_split_physical_axes"] is True
    nodes = posed("llama-3.1-70b", "32x8 h100 400G-ib")
    assert "allow_split_physical_axes" not in settings(
        written(replace(config, dp=128, tp=2, num_microbatches=4), nodes)
    )


LONG = """
name: long
accelerator: tpu-v5p
nodes: 128
node:
  accelerators: 4
  nics: 1
  nic_bandwidth: 200 Gbit/s
  scale_up:
    kind: ici
    domain: 256
    torus: {shape: [4, 4, 16], links: [90 GB/s, 90 GB/s, 90 GB/s], ring: 4, cubes: true}
fabric: {kind: ethernet}
"""


def exported(cluster: Path, folder: Path, *words: str) -> dict[str, str]:
    """The files of a configuration planned for the cluster of a file, which is gone when they are written."""
    asked = ["estimate", "llama-3.1-70b", str(cluster), "--stack", "maxtext-2024", "--set", "zero=3", *words]
    assert runner.invoke(app, [*asked, "-o", str(folder / "plan.json")]).exit_code == 0
    away = cluster.rename(cluster.with_suffix(".away"))
    done = runner.invoke(app, ["export", str(folder / "plan.json"), "-o", str(folder / "launch"), "--force"])
    away.rename(cluster)
    assert done.exit_code == 0, done.output
    return {path.name: path.read_text() for path in (folder / "launch").iterdir()}


@pytest.mark.parametrize(
    ("axis", "size", "split"),
    [
        ("tp", 8, True),
        ("tp", 4, False),
        ("cp", 16, False),
        ("cp", 8, True),
    ],  # of the usual 4 x 8 x 8 only cp 16
)
def test_a_torus_of_a_users_own_is_the_exports(axis: str, size: int, split: bool, tmp_path: Path) -> None:
    cluster = tmp_path / "long.yaml"
    cluster.write_text(LONG)
    files = exported(
        cluster, tmp_path, "--set", f"{axis}={size}", "--set", f"hsdp={256 // (size if axis == 'tp' else 1)}"
    )
    axes = settings(files)
    assert axes.get("allow_split_physical_axes", False) == split
    order = ("tensor", "context", "fsdp", "data")
    assert np.prod([axes[f"ici_{name}_parallelism"] for name in order]) == 256
    assert [axes[f"dcn_{name}_parallelism"] for name in order] == [1, 1, 1, 2]
    done = runner.invoke(app, ["check", str(tmp_path / "launch"), "--cluster", str(cluster), "--json"])
    answer = json.loads(done.stdout)
    assert answer["legal"], answer["violations"]
    assert "changes nothing" not in notes_of(answer)
    assert "--num-slices 2 --device-type v5p-4x4x16" in files["README.md"]
    assert "compile_topology" not in files["README.md"]


def test_a_plan_from_before_it_held_its_cluster_needs_the_file_again(tmp_path: Path) -> None:
    cluster, plan, out = tmp_path / "long.yaml", tmp_path / "plan.json", tmp_path / "again"
    cluster.write_text(LONG)
    files = exported(cluster, tmp_path, "--set", "tp=8")
    document = json.loads(plan.read_text())
    document["subject"]["cluster"]["described"] = {}
    plan.write_text(json.dumps(document))
    refused = runner.invoke(app, ["export", str(plan), "-o", str(out)])
    assert refused.exit_code == 2
    assert "--cluster FILE.yaml" in refused.output
    done = runner.invoke(app, ["export", str(plan), "-o", str(out), "--cluster", str(cluster)])
    assert done.exit_code == 0, done.output
    assert (out / "config.yml").read_text() == files["config.yml"]


@pytest.mark.parametrize(
    ("cluster", "gpus", "xpk", "compiled"),
    [
        ("tpu-v5e", 512, "--num-slices 2 --device-type v5litepod-256", "compile_topology=v5e-256"),
        ("tpu-v6e", 256, "--num-slices 1 --device-type v6e-256", "compile_topology=v6e-256"),
        ("tpu-v5p", 320, "--num-slices 1 --device-type v5p-640", "compile_topology=v5p-640"),
    ],
)
def test_slices_have_the_names_of_xpk_and_maxtext(cluster: str, gpus: int, xpk: str, compiled: str) -> None:
    given = posed("llama-3.1-8b", cluster, gpus, batch=2 * gpus)
    config = ParallelConfig(dp=gpus, zero=3, num_microbatches=2, recompute=FULL, recompute_layers=32)
    files = written(config, given)
    assert xpk in files["README.md"]
    assert compiled in files["README.md"]


def test_a_plan_for_tpus_is_not_written_for_programs_of_gpus(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    words = [
        "estimate",
        "llama-3.1-8b",
        "tpu-v5p",
        "--gpus",
        "64",
        "--stack",
        "maxtext-2024",
        "--set",
        "zero=3",
    ]
    assert runner.invoke(app, [*words, "-o", str(plan)]).exit_code == 0
    done = runner.invoke(app, ["export", str(plan), "--to", "megatron", "-o", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "must run on the plan's devices" in done.output
    assert not (tmp_path / "out").exists()


def rules_broken(answer: dict[str, object]) -> dict[str, str]:
    found: list[dict[str, str]] = answer["violations"]  # type: ignore[assignment]
    return {one["rule"]: f"{one['reason']}; {one['hint']}" for one in found}


def notes_of(answer: dict[str, object]) -> str:
    return "\n".join(answer["notes"])  # type: ignore[arg-type]


TWO = OWN.replace("ici_tensor_parallelism: 4", "ici_tensor_parallelism: 2")


def test_a_split_that_is_not_allowed_is_a_violation(tmp_path: Path) -> None:
    one = checked(TWO, tmp_path, "64x4 tpu-v5p")
    assert not one["legal"]
    said = rules_broken(one)["whole-torus-axes"]
    for part in ("ici_tensor_parallelism", "it is 2", "4 x 8 x 8", "set allow_split_physical_axes: true"):
        assert part in said
    assert checked(f"{TWO}allow_split_physical_axes: true\n", tmp_path, "64x4 tpu-v5p")["legal"]
    idle = checked(f"{OWN}allow_split_physical_axes: true\n", tmp_path, "64x4 tpu-v5p")
    assert idle["legal"]
    assert "changes nothing" in notes_of(idle)


def test_both_axes_of_tensor_parallelism_are_laid_alone(tmp_path: Path) -> None:
    """16 = 4 x 4 of a v5p slice of 4 x 4 x 4 is whole; tensor 2 x tensor_sequence 8 of it is not."""
    sixteen = OWN.replace("base_num_kv_heads: 8", "base_num_kv_heads: 64")
    whole = sixteen.replace("ici_tensor_parallelism: 4", "ici_tensor_parallelism: 16")
    assert "whole-torus-axes" not in rules_broken(checked(whole, tmp_path, "16x4 tpu-v5p"))
    two = sixteen.replace(
        "ici_tensor_parallelism: 4", "ici_tensor_parallelism: 2\nici_tensor_sequence_parallelism: 8"
    )
    assert "tensor_sequence" in rules_broken(checked(two, tmp_path, "16x4 tpu-v5p"))["whole-torus-axes"]


def test_a_mesh_of_another_size_than_the_slice_is_a_violation(tmp_path: Path) -> None:
    half = f"{OWN}ici_fsdp_parallelism: 32\n"  # 128 of 256
    said = rules_broken(checked(half, tmp_path, "tpu-v5p", "--gpus", "256"))["slice-size"]
    assert "256" in said
    assert "128" in said
    double = f"{OWN}ici_fsdp_parallelism: 128\ndcn_data_parallelism: 1\nper_device_batch_size: 1\n"
    double = double.replace("per_device_batch_size: 0.5\n", "")
    assert "slice-size" in rules_broken(
        checked(double, tmp_path, "tpu-v6e", "--gpus", "512")
    )  # slices of 256
    stated = checked(f"{half}dcn_data_parallelism: 2\n", tmp_path, "tpu-v5p", "--gpus", "256")
    assert stated["legal"]
    assert "2 slices of 128" in notes_of(stated)
    really = checked(f"{OWN}ici_fsdp_parallelism: 64\n", tmp_path, "tpu-v6e", "--gpus", "512")
    assert "slice-size" not in rules_broken(really)


def test_files_of_other_devices_are_said(tmp_path: Path) -> None:
    nodes = checked(OWN, tmp_path, "16x8 h100 400G-ib")
    assert "JAX_COORDINATOR_IP" in notes_of(nodes)
    alone = checked(f"{OWN}enable_checkpointing: false\n", tmp_path, "16x8 h100 400G-ib")
    assert "hosts never meet" in rules_broken(alone)["hardware"]
    right = checked(f"{OWN}hardware: gpu\n", tmp_path, "16x8 h100 400G-ib")
    assert "hardware must be" not in notes_of(right)
    several = checked(f"{OWN}hardware: gpu_multiprocess\n", tmp_path, "16x8 h100 400G-ib")
    assert "hardware must be" not in notes_of(several)
    tpus = checked(f"{OWN}hardware: gpu\n", tmp_path, "64x4 tpu-v5p")
    assert "hardware must be tpu on tpu-v5p" in notes_of(tpus)
    assert "hardware must be" not in notes_of(checked(OWN, tmp_path, "64x4 tpu-v5p"))


@pytest.mark.parametrize(
    "line",
    [
        "attention: bananas", "dataset_type: nonsense", "hardware: abacus", "profiler: eyes", "quantization: fp7",
        "decoder_block: llama9", "model_name: llama9-1b", "custom_mesh_and_rule: knot",
    ],
)  # fmt: skip
def test_words_that_a_setting_does_not_take_are_refused(line: str) -> None:
    name = line.split(":")[0]
    kept = "\n".join(part for part in OWN.splitlines() if not part.startswith(f"{name}:"))
    with pytest.raises(InputError, match="must be one of") as error:
        read(f"{kept}\n{line}\n")
    assert name in str(error.value)


@pytest.mark.parametrize(
    "line", ['quantization: ""', 'profiler: ""', "attention: flash", "dataset_type: null"]
)
def test_words_that_a_setting_takes_are_read(line: str) -> None:
    assert not read(f"{OWN}{line}\n").unknown


def test_axes_that_do_not_fit_slices_are_refused_in_words_that_say_what_must_hold() -> None:
    given = posed("llama-3.1-8b", "8x8 h100 400G-ib")
    with pytest.raises(UnsupportedError, match="must lie in a slice, of 8 devices, or fill whole slices"):
        written(replace(BASE, dp=12), given)


def test_an_option_of_no_release_is_unknown() -> None:
    back = read(OWN + "ici_fsdp_paralellism: 4\nici_fsdp_parallelism: 16\ndcn_data_parallelism: 1\n")
    assert "ici_fsdp_parallelism" in back.unknown[0]


def test_states_sharded_over_copies_alone_are_zero_1() -> None:
    text = f"{OWN}ici_data_parallelism: 16\nici_fsdp_parallelism: 1\ndcn_data_parallelism: 1\n"
    assert read(text).axes["zero"] == 0
    assert read(text + "shard_optimizer_over_data: true\n").axes["zero"] == 1


def test_post_training_is_not_read() -> None:
    script = "python3 -m maxtext.trainers.post_train.sft.train_sft base.yml ici_fsdp_parallelism=8"
    with pytest.raises(InputError, match="pre-training"):
        MAXTEXT.parse({"run.sh": script})


def test_files_of_others_are_not_maxtexts() -> None:
    assert not MAXTEXT.recognizes("a.yaml", "parallelism:\n  dp: 2\n  pp_engine: 1f1b\n")
    assert not MAXTEXT.recognizes("a.sh", "torchrun pretrain_gpt.py --num-layers 32")
    assert MAXTEXT.recognizes("a.sh", "python3 -m MaxText.train base.yml per_device_batch_size=2")
    assert MAXTEXT.recognizes("a.yml", "base_config: base.yml\nremat_policy: full\n")


def test_an_estimate_takes_what_the_framework_has() -> None:
    """GPipe, shards beside context parallelism, experts divided by tp, the least recomputation there is."""
    words = ["estimate", "mixtral-8x7b", "tpu-v6e", "--gpus", "64", "--stack", "maxtext-2024", "--json"]
    done = runner.invoke(app, [*words, "--set", "tp=2", "--set", "cp=2", "--seq-len", "4096"])
    config = json.loads(done.stdout)["choices"][0]["config"]
    assert (config["zero"], config["etp"]) == (3, 2)
    assert set(config["recompute"]["modules"]) == {"layernorm", "moe_act"}
    done = runner.invoke(app, [*words, "--set", "pp=4", "--seq-len", "4096"])
    assert json.loads(done.stdout)["choices"][0]["config"]["schedule"] == Schedule.GPIPE.label
