"""Scripts, manifests and folders: shells accept them, hostile names stay names, nothing is half written."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.errors import FileInputError
from planner.frameworks import framework, framework_names
from planner.frameworks.scripts import readme
from planner.frameworks.shell.script import options_of
from planner.frameworks.write import write_files
from tests.frameworks.launches import golden_launch
from tests.frameworks.rank_groups import rank_groups

CASES = [(name, version) for name in framework_names() for version in framework(name).versions]
HOSTILE = "x'; touch /tmp/owned; $(id) `id` \"\n- a: {b: [\\"


def _bash(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(["bash", *arguments], input=script, capture_output=True, text=True, env=variables)


@pytest.mark.parametrize(("name", "version"), CASES)
def test_scripts_are_shell(name: str, version: str, tmp_path: Path) -> None:
    files = framework(name).render(golden_launch(name), version)
    for file in ("launch.sh", "launch.sbatch"):
        assert _bash(files[file], "-n").returncode == 0
        if shutil.which("shellcheck"):
            path = tmp_path / f"{file}.sh"
            path.write_text(files[file])
            done = subprocess.run(["shellcheck", "-S", "warning", str(path)], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", framework_names())
def test_a_batch_schedule_is_said_to_be_left_out(name: str) -> None:
    found, given = framework(name), golden_launch(name)
    job = replace(given.job, global_batch=16, tokens=1e12, batch_schedule=((4, 1e11), (8, 2e11)))
    for tokens in (1e12, None):
        text = readme(replace(given, job=replace(job, tokens=tokens)), found.title, "1", "a table", [], [])
        assert ("4 sequences up to 1e+11 tokens, 8 sequences" in text) is (tokens is not None)


@pytest.mark.parametrize(("name", "version"), CASES)
def test_documents_load(name: str, version: str) -> None:
    files = framework(name).render(golden_launch(name), version)
    for file, text in files.items():
        if file.endswith(".json"):
            json.loads(text)
        elif file.endswith(".toml"):
            tomllib.loads(text)
        elif file.endswith(".yaml"):
            assert list(yaml.safe_load_all(text))
        elif file.endswith(".py"):
            compile(text, file, "exec")
    config_map, job = yaml.safe_load_all(files["kubernetes.yaml"])
    replicas = job["spec"]["pytorchReplicaSpecs"]
    pods = sum(part["replicas"] for part in replicas.values())
    limits = replicas["Master"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert pods * limits["nvidia.com/gpu"] == 128
    assert config_map["data"]["launch.sh"] == files["launch.sh"]
    assert "#SBATCH --nodes=16\n" in files["launch.sbatch"]


@pytest.mark.parametrize("name", ["megatron", "nanotron", "deepspeed", "accelerate", "maxtext"])
def test_hostile_names(name: str, tmp_path: Path) -> None:
    case = golden_launch(name)
    found = framework(name)
    hostile = replace(case, model=replace(case.model, name=HOSTILE), accelerator=HOSTILE)
    files = found.render(hostile, found.default_version)
    for file, text in files.items():
        assert "touch /tmp/owned;" not in text, file
        assert "$(id)" not in text, file
    assert _bash(files["launch.sh"], "-n").returncode == 0
    list(yaml.safe_load_all(files["kubernetes.yaml"]))


def test_launch_script_hands_over_every_word(tmp_path: Path) -> None:
    stub = tmp_path / "torchrun"
    stub.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    stub.chmod(0o755)
    text = framework("megatron").render(golden_launch("megatron"), "0.18.2")["launch.sh"]
    done = _bash(text, PATH=f"{tmp_path}:{os.environ['PATH']}", NODE_RANK="3")
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert words[words.index("--nnodes") + 1] == "16"
    assert words[words.index("--node-rank") + 1] == "3"
    assert words[words.index("--tensor-model-parallel-size") + 1] == "4"
    assert "--num-layers" in words


def test_environment_that_megatron_asserts() -> None:
    """One hardware queue on Hopper, several under FSDP and on Blackwell (validate_args)."""
    case = golden_launch("megatron")
    render = framework("megatron").render
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1\n" in render(case, "0.18.2")["launch.sh"]
    blackwell = render(replace(case, accelerator="b200"), "0.18.2")["launch.sh"]
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1\n" not in blackwell
    sharded = replace(case, config=replace(case.config, zero=3, vpp=1, schedule=0), chunks=(8, 8, 8, 8))
    text = render(sharded, "0.18.2")["launch.sh"]
    assert "CUDA_DEVICE_MAX_CONNECTIONS=8\n" in text
    assert "--data-parallel-sharding-strategy optim_grads_params" in text


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    write_files({"a.sh": "#!/bin/sh\n", "b": "1"}, folder)
    assert stat.S_IMODE((folder / "a.sh").stat().st_mode) == 0o755
    with pytest.raises(FileInputError, match="--force"):
        write_files({"b": "2", "c": "3"}, folder)
    assert (folder / "b").read_text() == "1"
    assert not (folder / "c").exists()
    write_files({"b": "2"}, folder, force=True)
    assert (folder / "b").read_text() == "2"
    assert (folder / "a.sh").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["launch"]
    with pytest.raises(FileInputError):
        write_files({"b": "2"}, folder / "b")


def test_user_scripts() -> None:
    script = """
    TP=8; NODES=${NODES:-4}   # a comment with --option
    MODEL="--num-layers 32 --hidden-size 4096"
    ARGS=(--bf16 --lr=1e-4)
    ARGS+=(--name "two words")
    torchrun --nnodes $NODES train.py $MODEL --tensor-model-parallel-size $TP \\
        "${ARGS[@]}" --unknown ${MISSING}
    """
    options, variables = options_of(script)
    assert {name: tuple(words) for name, *words in options} == {
        "--nnodes": ("4", "train.py"),
        "--num-layers": ("32",),
        "--hidden-size": ("4096",),
        "--tensor-model-parallel-size": ("8",),
        "--bf16": (),
        "--lr": ("1e-4",),
        "--name": ("two words",),
        "--unknown": ("${MISSING}",),
    }
    assert variables["TP"] == "8"


def test_rank_groups_of_the_worked_example() -> None:
    """World 16, tp2 cp2 pp2, ep4 etp1 (megatron/core/parallel_state.py)."""
    megatron = framework("megatron")
    dense = {"tp": 2, "cp": 2, "dp": 2, "pp": 2}
    expert = {"etp": 1, "ep": 4, "edp": 2, "pp": 2}
    first = {axis: rank_groups(megatron.dense_order, dense, [axis])[0] for axis in dense}
    assert first == {"tp": [0, 1], "cp": [0, 2], "dp": [0, 4], "pp": [0, 8]}
    assert rank_groups(megatron.expert_order, expert, ["ep"])[0] == [0, 1, 2, 3]
    assert rank_groups(megatron.dense_order, dense, ["dp", "cp"])[0] == [0, 2, 4, 6]
