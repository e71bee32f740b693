"""What is written is read back as the same configuration, for random legal ones of every framework."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cli.files import config_of
from planner.errors import PlannerError, UnsupportedError
from planner.frameworks import framework, framework_names
from planner.frameworks.known import same_architecture
from planner.frameworks.layout import chunk_layers
from planner.spec.config import ParallelConfig, Recompute
from planner.spec.load_model import catalog_models, load_model
from planner.spec.precision import Precision
from tests.frameworks.launches import STACKS, golden_launch, launch, problem, random_launches

LAYERS_IN_A_FILE = ("llama-3.1-nemotron-ultra-253b", "llama-3.3-nemotron-super-49b")
UNREAD = ("README.md", "kubernetes.yaml", "launch.sbatch", "train.py", "config.json")
# (framework, model): what the framework cannot state at all
IMPOSSIBLE = {("nanotron", "qwen3-30b-a3b"), ("nanotron", "deepseek-v3")}


def parsed(name: str, files: dict[str, str]):  # type: ignore[no-untyped-def]
    return framework(name).parse({file: text for file, text in files.items() if file not in UNREAD})


@pytest.mark.parametrize("name", framework_names())
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_random_legal_configurations(name: str, model: str) -> None:
    found = framework(name)
    for case in random_launches(found, model, 12):
        for version in found.versions:
            if (name, model) in IMPOSSIBLE:
                with pytest.raises(UnsupportedError):
                    found.render(case, version)
                continue
            back = parsed(name, found.render(case, version))
            wrong = {a: v for a, v in back.axes.items() if getattr(case.config, a) != v}
            assert not wrong, (version, case.config.describe())
            assert not back.unknown
            assert back.devices in (case.devices, None)
            assert (back.seq_len, back.global_batch) == (4096, 256)
            if back.layers:
                assert back.layers == case.chunks


@pytest.mark.parametrize("model", catalog_models())
def test_megatron_states_the_architecture(model: str) -> None:
    spec = load_model(model)
    given = problem("llama-3.1-8b", "megatron-2026")
    case = replace(golden_launch("megatron"), model=spec)
    chunks = chunk_layers(spec.num_layers, 4, 2)
    job = replace(given.job, seq_len=min(4096, spec.position_rows or 4096))
    try:
        files = framework("megatron").render(replace(case, chunks=chunks, job=job), "0.18.2")
    except UnsupportedError:
        return
    if model in LAYERS_IN_A_FILE:  # read from a config.json beside the script alone
        found = parsed("megatron", files)
        assert found.model is None
        assert "--heterogeneous-layers-config-path" in found.missing
        return
    back = parsed("megatron", files).model
    assert back is not None
    assert same_architecture(back, spec)


# sparse attention, heads of two widths
NEWER = {"deepseek-v3.2", "glm-5", "glm-5.1", "glm-5.2", "gemma-4-26b-a4b", "gemma-4-31b"}


# norms behind layers, attention beside the MLP, ALiBi, fewer learned positions than 4,096, and what only one model has
NOT_STATED = (
    "bloom", "command-r", "dbrx", "deepseek-v4", "falcon", "gemma", "gpt-3", "gpt-neox", "gpt2", "llama-4", "mimo-v2",
    "minimax", "mt-nlg", "olmo", "opt", "phi-3.5-moe", "pythia", "step-3",
)  # fmt: skip


def test_most_models_can_be_stated() -> None:
    refused: set[str] = set()
    for model in catalog_models():
        case = replace(golden_launch("megatron"), model=load_model(model))
        if case.model.state_spaces:  # of another release: test_hybrids.py
            continue
        try:
            framework("megatron").render(case, "0.18.2")
        except PlannerError:
            refused.add(model)
    assert refused >= NEWER
    assert {model for model in refused - NEWER if not model.startswith(NOT_STATED)} == set()


@pytest.mark.parametrize("precision", list(Precision))
def test_precision(precision: Precision) -> None:
    case = golden_launch("megatron")
    files = framework("megatron").render(replace(case, job=replace(case.job, precision=precision)), "0.18.2")
    assert parsed("megatron", files).precision is precision


def test_mtp_and_uneven_split_need_a_layout() -> None:
    spec = load_model("deepseek-v3", with_mtp=True)
    config = ParallelConfig(tp=1, pp=16, dp=8, ep=8, micro_batch=1, num_microbatches=32, zero=1)
    case = launch("deepseek-v3", config, replace(problem("deepseek-v3", "megatron-2026"), model=spec))
    text = framework("megatron").render(case, "0.18.2")["launch.sh"]
    assert "--pipeline-model-parallel-layout" in text
    assert "mL" in text
    assert "--mtp-num-layers 1" in text
    assert "([0]*3+[1]*58)" in text


def test_first_and_last_counts_where_they_suffice() -> None:
    config = ParallelConfig(tp=4, pp=4, dp=8, micro_batch=1, num_microbatches=32, sp=1, zero=1)
    given = problem("llama-3.1-8b", "megatron-2026")
    text = framework("megatron").render(launch("", config, given, (7, 9, 9, 7)), "0.18.2")["launch.sh"]
    assert "--decoder-first-pipeline-num-layers 7" in text
    assert "--pipeline-model-parallel-layout" not in text


def test_torchtitan_uneven_split_is_python() -> None:
    config = ParallelConfig(tp=2, pp=4, dp=16, micro_batch=2, num_microbatches=8, sp=1, zero=3)
    given = problem("llama-3.1-8b", STACKS["torchtitan"])
    case = launch("", config, given, (5, 10, 6, 11))
    files = framework("torchtitan").render(case, "0.3.0")
    assert '"layers.4"]' in files["planned_config.py"]
    compile(files["planned_config.py"], "planned_config.py", "exec")
    assert parsed("torchtitan", files).layers == (5, 10, 6, 11)
    assert "module_fqns_per_model_part" in framework("torchtitan").render(case, "0.2.2")["config.toml"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("nanotron", {"ep": 2}),
        ("deepspeed", {"vpp": 2}),
        ("accelerate", {"pp": 2}),
        ("torchtitan", {"zero": 1}),
        ("megatron", {"schedule": 8}),
        ("megatron", {"offload": 1, "zero": 0}),
        ("megatron", {"offload": 3}),
        ("megatron", {"offload": 4, "pp": 1, "recompute": int(Recompute.FULL), "recompute_layers": 32}),
        ("deepspeed", {"offload": 4}),
        ("torchtitan", {"offload": 1}),
        ("accelerate", {"offload": 1}),
        ("nanotron", {"recompute": int(Recompute.SELECTIVE)}),
    ],
)
def test_refuses_what_it_cannot_express(name: str, change: dict[str, int]) -> None:
    case = golden_launch(name)
    found = framework(name)
    other = replace(case, config=replace(case.config, **change))
    with pytest.raises(UnsupportedError):
        found.render(other, found.default_version)


@pytest.mark.parametrize(
    ("name", "offload", "word"),
    [
        ("megatron", 1, "--optimizer-cpu-offload"),
        ("megatron", 4, "--cpu-offloading-num-layers"),
        ("deepspeed", 1, "offload_optimizer"),
        ("deepspeed", 3, "offload_param"),
        ("torchtitan", 3, "enable_cpu_offload"),
        ("accelerate", 3, "fsdp_offload_params: true"),
    ],
)
def test_what_lies_on_the_host_is_written_and_read_back(name: str, offload: int, word: str) -> None:
    found, zero = framework(name), 1 if name == "megatron" else 3
    config = ParallelConfig(dp=64, micro_batch=1, num_microbatches=4, zero=zero, offload=offload)
    case = launch("", config, problem("llama-3.1-8b", STACKS[name]), (32,))
    for version in found.versions:
        files = found.render(case, version)
        assert any(word in text for text in files.values())
        back = parsed(name, files)
        assert back.axes["offload"] == offload
        assert not back.unknown


def test_torchtitan_takes_one_layer_of_so_many_in_a_toml_file_alone() -> None:
    """selective_ac_option of 0.2.2; 0.3.0 recomputes all layers or none."""
    found = framework("torchtitan")
    one = golden_launch("torchtitan")
    deep = -(-one.model.num_layers // one.config.pp)
    config = replace(
        one.config, recompute=int(Recompute.FULL), recompute_layers=deep // 2, recompute_modules=0
    )
    files = found.render(replace(one, config=config), "0.2.2")
    assert 'selective_ac_option = "2"' in files["config.toml"]
    own = config_of(found.parse(files), problem(one.model.name, "torchtitan-2024"))
    assert (own.recompute, own.recompute_layers) == (Recompute.FULL, deep // 2)
    with pytest.raises(UnsupportedError, match=r"0\.3\.0"):
        found.render(replace(one, config=config), "0.3.0")
