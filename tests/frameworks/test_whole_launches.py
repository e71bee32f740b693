"""Launches of several files: scripts that call scripts, loops, recipes behind overrides, and launchers not read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.bridge_recipes import functions_of, settings_of
from planner.cli import app
from planner.errors import InputError
from planner.frameworks import framework
from planner.frameworks.megatron_bridge.precision import NAMED
from planner.frameworks.megatron_bridge.recipes import BENCHMARKS, MORE_RECIPES, RECIPES, recipe_of
from planner.frameworks.not_read import launcher_of, launchers
from planner.frameworks.shell.script import Script, slurm_variables
from planner.frameworks.shell.script_calls import with_arguments
from planner.spec.load_model import load_model
from planner.spec.stack.kinds import Dispatcher

runner = CliRunner()

CALLED = r"""
SIZE=$1
BATCH=${2:-1}
TP=${10}
if [ $SIZE = 8B ]; then LAYERS=32; HIDDEN=4096; else LAYERS=80; HIDDEN=8192; fi
torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size $HIDDEN \
  --num-attention-heads 32 --vocab-size 32000 --seq-length 2048 --max-position-embeddings 2048 --bf16 \
  --micro-batch-size $BATCH --global-batch-size 64 --tensor-model-parallel-size $TP "$@"
"""
CALL = "cd examples\nsh train.sh 8B 2 c d e f g h i 4 | tee log\n"
BRIDGE = r"""#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
CONFIGS=("4,2,4,1,True" "2,4,4,2,True")
for CONFIG in "${CONFIGS[@]}"; do
    IFS=',' read -r TP PP EP CP SP <<< "$CONFIG"
    OVERRIDES="model.tensor_model_parallel_size=$TP model.pipeline_model_parallel_size=$PP \
        model.expert_model_parallel_size=$EP model.sequence_parallel=$SP"
    CMD="python scripts/training/run_recipe.py --recipe gpt_oss_20b_pretrain_config $OVERRIDES"
    srun bash -c "$CMD"
done
"""


def check(*files: Path, gpus: int = 16) -> tuple[int, str]:
    done = runner.invoke(
        app, ["check", *map(str, files), "--cluster", "dgx-h100", "--gpus", str(gpus), "--json"]
    )
    return done.exit_code, done.output


def test_a_script_takes_the_arguments_of_its_call(tmp_path: Path) -> None:
    called, call = tmp_path / "train.sh", tmp_path / "call.sh"
    called.write_text(CALLED)
    call.write_text(CALL)
    code, out = check(called)
    assert code == 2
    assert "an argument of the script" in " ".join(out.split())
    for files in ((call, called), (called, call)):
        code, out = check(*files)
        assert code in (0, 1), out
        axes = json.loads(out)["axes"]
        assert (axes["tp"], axes["micro_batch"], axes["dp"]) == (4, 2, 4)


def test_only_calls_bind_arguments() -> None:
    files = {
        "a.sh": "echo train.sh 1\ncp train.sh 2\nMODE=x bash ./train.sh one 'two three' > log\n",
        "train.sh": "x",
    }
    assert with_arguments(files)["train.sh"] == "MODE=x\nset -- one 'two three'\nx"
    assert with_arguments({"a.sh": "bash train.sh 1"}) == {"a.sh": "bash train.sh 1"}
    assert with_arguments({"a.sh": "bash train.sh", "train.sh": "x"})["train.sh"] == "x"


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("set -- a b\nX=$2$10", "X", "ba0"),
        ("set -- a b\nX=${2}", "X", "b"),
        ("set -- a b\nX=$#", "X", "2"),
        ("L='1:2:3'\nIFS=: read -r A B <<< \"$L\"", "B", "2:3"),
        ("read -r A B <<< '7 8'", "A", "7"),
        ("IFS=',' read -ra A <<< '7,8'", "A", "7 8"),
        ("for i in 4 8; do\nX=$i\ndone", "X", "4"),
        ("Y='3 5'\nfor i in $Y; do X=$i; done", "X", "3"),
        ("X=1\nfor i in $(seq 3); do\nX=$i\ndone", "X", "$i"),
        ("#SBATCH -N 4\n#SBATCH --gres=gpu:a100:2\nX=$((SLURM_NNODES*SLURM_GPUS_ON_NODE))", "X", "8"),
    ],
)  # fmt: skip
def test_values(text: str, name: str, value: str) -> None:
    assert Script().follow(text).variables[name] == value


def test_eval_takes_words_apart_again() -> None:
    text = 'A=(--freq "\'([1]*4)\'")\ncmd="run.py ${A[@]}"\neval $cmd'
    assert Script().follow(text).words == [";", "run.py", "--freq", "([1]*4)"]


def test_slurm_variables() -> None:
    assert slurm_variables("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n") == {
        "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "8", "SLURM_NTASKS": "16",
        "SLURM_NPROCS": "16",
    }  # fmt: skip
    assert slurm_variables("no header") == {}


def test_a_recipe_stands_behind_its_overrides() -> None:
    parsed = framework("megatron-bridge").parse({"run.sh": BRIDGE})
    assert parsed.model is not None
    assert parsed.model.name == "gpt-oss-20b"
    said = {axis: parsed.axes[axis] for axis in ("tp", "pp", "ep", "cp", "sp", "zero", "micro_batch")}
    assert said == {"tp": 4, "pp": 2, "ep": 4, "cp": 1, "sp": 1, "zero": 1, "micro_batch": 1}
    assert (parsed.devices, parsed.global_batch, parsed.seq_len) == (32, 512, 4096)
    assert any("first round" in note and "4,2,4,1,True" in note for note in parsed.notes)
    own = framework("megatron-bridge").parse(
        {"run.sh": "python run_recipe.py --model gpt_oss_20b --mode pretrain"}
    )
    assert (own.axes["tp"], own.axes["pp"], own.axes["ep"]) == (2, 4, 4)
    other = framework("megatron-bridge").parse({"run.sh": BRIDGE.replace("gpt_oss_20b", "nemotron_9t")})
    assert other.model is None
    assert any("nemotron_9t_pretrain_config" in note for note in other.notes)


def test_a_kind_of_exchange_that_is_not_modelled() -> None:
    text = "run_recipe.py --recipe x model.context_parallel_size=2 model.cp_comm_type=ring"
    with pytest.raises(InputError, match="must be one that planner models"):
        framework("megatron-bridge").parse({"run.sh": text})


@pytest.mark.parametrize("model", RECIPES)
def test_recipes_are_whole(model: str) -> None:
    recipe = recipe_of(RECIPES[model])
    settings = recipe.settings
    assert (recipe.model, recipe.known) == (model, True)
    assert settings["ddp.use_distributed_optimizer"] is True
    assert settings["mixed_precision"] in NAMED
    degrees = [
        settings[f"model.{axis}_parallel_size"] for axis in ("tensor_model", "pipeline_model", "context")
    ]
    assert all(isinstance(degree, int) for degree in degrees)
    assert settings["train.global_batch_size"] % settings["train.micro_batch_size"] == 0
    assert load_model(model).num_layers >= degrees[1]


def test_recipes_are_read_from_source(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "LONG: int = 65536\n"
        "from b import one as other\n"
        "def base():\n    cfg = ConfigContainer(train=TrainingConfig(global_batch_size=8, lr=1), mixed_precision='x')\n"
        "def one():\n    cfg = base()\n    cfg.model.tensor_model_parallel_size = 4\n    cfg.model.seq_length = LONG\n"
        "    cfg.model.pipeline_model_parallel_layout = layout(4)\n    cfg.model.recompute_modules = ['mlp', 'moe']\n"
        "    cfg.mixed_precision = bf16_with_mxfp8_mixed()\n    cfg.unread = 3\n"
        "def two():\n    cfg = one()\n    cfg.model = Provider(seq_length=8, tensor_model_parallel_size=2)\n"
        "    cfg.mixed_precision = 'bf16_mixed'\n"
        "    cfg.mixed_precision = get_mixed_precision_config(cfg.mixed_precision)\n"
        "    cfg.mixed_precision.grad_reduce_in_fp32 = False\n    set_cuda_graph_modules(cfg.model, ['attn'])\n"
        "    cfg.optimizer.optimizer_offload_fraction = 0.5\n    return cfg\n"
        "def three():\n    return two()\n"
    )
    functions, names, constants = functions_of(tmp_path)
    assert names == {"other": "one"}
    found = settings_of("one", functions, constants)
    assert found == {
        "train.global_batch_size": 8, "mixed_precision": "bf16_with_mxfp8_mixed",
        "mixed_precision.grad_reduce_in_fp32": True, "model.tensor_model_parallel_size": 4, "model.seq_length": 65536,
        "model.pipeline_model_parallel_layout": "computed", "model.recompute_modules": "[mlp,moe]",
    }  # fmt: skip
    assert settings_of("three", functions, constants) == found | {
        "mixed_precision": "bf16_mixed", "mixed_precision.grad_reduce_in_fp32": False, "model.seq_length": 8,
        "model.tensor_model_parallel_size": 2, "model.cuda_graph_modules": "[attn]",
        "optimizer.optimizer_offload_fraction": 0.5,
    }  # fmt: skip


def test_names_of_two_recipes_are_the_benchmarks() -> None:
    """run_recipe.py takes the benchmark of that name; the other one is written and read by its shorter name."""
    for name, model in BENCHMARKS.items():
        assert not recipe_of(name).known
        assert recipe_of(name).model == model
        assert name not in RECIPES.values()
        text = f"run_recipe.py --recipe {name}"
        assert any(
            "two recipes are called" in note
            for note in framework("megatron-bridge").parse({"a.sh": text}).notes
        )
    for name, model in MORE_RECIPES.items():
        assert (recipe_of(name).model, recipe_of(name).known) == (model, True)


FOUNDRY = "max_seq_len: 2048\nglobal_train_batch_size: 256\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n"
AXOLOTL = "base_model: some/model\nsequence_len: 4096\n"
FOREIGN = {
    "LLM Foundry (Composer)": ("a.yaml", FOUNDRY),
    "Axolotl": ("a.yml", AXOLOTL),
    "LLaMA-Factory or TRL": ("a.yaml", "model_name_or_path: some/model\nstage: sft\n"),
    "Primus (of another framework than Megatron-LM)": (
        "a.yaml",
        "modules:\n  pre_trainer:\n    framework: torchtitan\n    model: llama3.1_8B.yaml\n    overrides:\n"
        "      training:\n        seq_len: 8192\n",
    ),
    "Primus": ("a.sh", "primus-cli slurm srun -N 4 -- train pretrain --config a.yaml\n"),
    "torchtune": ("a.yaml", "model:\n  _component_: torchtune.models.llama3.llama3_8b\n"),
    "NeMo 1 (Hydra)": ("a.sh", "python megatron_gpt_pretraining.py model.tensor_model_parallel_size=2"),
    "verl": (
        "a.sh",
        "python -m verl.trainer.main_ppo actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
    ),
    "GPT-NeoX": ("20B.yml", '{\n  "pipe_parallel_size": 4,\n  "num_layers": 44,\n}\n'),
    "Megatron-Bridge's performance scripts": (
        "a.sh",
        "python scripts/performance/setup_experiment.py -m llama3 -ng 64\n",
    ),
    "slime": (
        "a.sh",
        "ray job submit -- python3 train.py --actor-num-nodes 1 --num-layers 2 --rollout-batch-size 32\n",
    ),
    "Megatron-Bridge, a recipe in Python": (
        "a.py",
        "from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\ncfg = llama3_8b_pretrain_config()\n"
        "cfg.model.tensor_model_parallel_size = 2\n",
    ),
    "NeMo 2, a recipe in Python": (
        "a.py",
        "import nemo_run as run\nfrom nemo.collections import llm\nrecipe = llm.llama3_70b.pretrain_recipe(name='x')\n",
    ),
    "ms-swift": ("a.sh", "megatron sft --tensor_model_parallel_size 2"),
}


@pytest.mark.parametrize("title", dict.fromkeys(launcher.title for launcher in launchers()))
def test_launchers_that_are_not_read_are_named(tmp_path: Path, title: str) -> None:
    name, text = FOREIGN[title]
    file = tmp_path / name
    file.write_text(text)
    code, out = check(file)
    assert code == 2
    assert f"a file of {title}" in " ".join(out.split())


@pytest.mark.parametrize("title", [title for title in FOREIGN if "Python" in title])
def test_python_is_not_run_and_what_to_give_instead_is_said(tmp_path: Path, title: str) -> None:
    file, script = tmp_path / "a.py", tmp_path / "run.sh"
    file.write_text(FOREIGN[title][1])
    said = " ".join(check(file)[1].split())
    assert "Python is not run" in said
    assert "run_recipe.py" in said
    script.write_text(
        "python run_recipe.py --recipe llama31_8b_pretrain_config model.tensor_model_parallel_size=2"
    )
    words = ["--cluster", "dgx-h100", "--gpus", "8", "--json"]
    facts = json.loads(runner.invoke(app, ["check", str(script), str(file), *words]).stdout)
    assert facts["axes"]["tp"] == 2
    assert any(title in note for note in facts["notes"])


def test_what_a_foreign_file_names_is_read(tmp_path: Path) -> None:
    settings, foreign = tmp_path / "zero3.json", tmp_path / "a.yml"
    settings.write_text('{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 2}')
    foreign.write_text(AXOLOTL)
    words = ["--cluster", "dgx-h100", "--gpus", "8", "--model", "llama-3.1-8b", "--json"]
    facts = json.loads(runner.invoke(app, ["check", str(foreign), str(settings), *words]).stdout)
    assert (facts["framework"], facts["axes"]["zero"]) == ("deepspeed", 3)
    assert any("Axolotl" in note for note in facts["notes"])


def test_own_files_are_no_one_elses() -> None:
    accelerate = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
    assert launcher_of("a.yaml", accelerate) is None
    assert launcher_of("run.sh", BRIDGE) is None
    assert launcher_of("ds.json", '{"train_loader": 1}') is None


def test_a_python_project_is_no_launch_file(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\nname = "x"\n')
    assert "must be those of a framework" in " ".join(check(file)[1].split())


@pytest.mark.parametrize(
    "program",
    [
        "python tasks/main.py --task WIKITEXT103",
        "torchrun ../../tools/run_hybrid_text_generation_server.py --port 5000",
        "torchrun --nproc-per-node 8 -m examples.inference.offline_inference --bf16",
        "python -m examples.inference.gpt.gpt_dynamic_inference",
        "python examples/export/ptq_and_trtllm_export/text_generation_ptq.py --export-quant-cfg fp8",
        "torchrun examples/post_training/modelopt/quantize.py",
    ],
)
def test_programs_that_train_nothing(tmp_path: Path, program: str) -> None:
    """As Megatron-LM's own examples start them, with the arguments of a model."""
    file = tmp_path / "eval.sh"
    file.write_text(f"{program} --num-layers 24 --micro-batch-size 4 --tensor-model-parallel-size 2\n")
    assert "trains nothing" in " ".join(check(file)[1].split())


@pytest.mark.parametrize(
    ("words", "dispatcher"),
    [("", Dispatcher.HYBRIDEP), ("model.moe_flex_dispatcher_backend=deepep", Dispatcher.DEEPEP),
     ("model.moe_token_dispatcher_type=alltoall", None)],
)  # fmt: skip
def test_the_dispatcher_of_a_recipe(words: str, dispatcher: Dispatcher | None) -> None:
    text = f"run_recipe.py --recipe qwen3_30b_a3b_pretrain_config {words}"
    assert framework("megatron-bridge").parse({"run.sh": text}).dispatcher is dispatcher


@pytest.mark.parametrize(
    ("words", "dispatcher"),
    [("flex", Dispatcher.DEEPEP), ("flex --moe-flex-dispatcher-backend hybridep", Dispatcher.HYBRIDEP),
     ("alltoall", None)],
)  # fmt: skip
def test_the_dispatcher_of_arguments(words: str, dispatcher: Dispatcher | None) -> None:
    text = "pretrain_gpt.py --num-layers 32 --micro-batch-size 1 --bf16 --moe-token-dispatcher-type " + words
    assert framework("megatron").parse({"run.sh": text}).dispatcher is dispatcher


GRID = """cat > args.sh <<EOF
TP=4
EOF
source args.sh
for MBS in 1 2; do
  torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
    --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size $MBS --global-batch-size 256 \\
    --tensor-model-parallel-size $TP --bf16 --swiglu --vocab-size 32000
done
"""


def test_rounds_of_a_loop_and_a_file_the_script_writes(tmp_path: Path) -> None:
    script = tmp_path / "grid.sh"
    script.write_text(GRID)
    said = CliRunner().invoke(app, ["check", str(script), "--cluster", "dgx-h100", "--gpus", "8", "--json"])
    answer = json.loads(said.stdout)
    assert (answer["axes"]["tp"], answer["axes"]["micro_batch"]) == (4, 1)
    assert "of a loop only its first round is read, MBS=1" in answer["notes"]
    assert not [note for note in answer["notes"] if "args.sh" in note]


PART = "MODEL_ARGS=(\n  --num-layers 32\n  --hidden-size 4096\n  --num-attention-heads 32\n  --vocab-size 32000\n)\n"


@pytest.mark.parametrize("main", ["", "python3 train_async.py --rollout-batch-size 1 --actor-num-nodes 1"])
def test_a_part_of_a_launch_gives_no_verdict(tmp_path: Path, main: str) -> None:
    """slime scripts/run-qwen3-4B-base-sft.sh takes in scripts/models/qwen3-4B.sh."""
    part, script = tmp_path / "model.sh", tmp_path / "run.sh"
    part.write_text(PART)
    script.write_text(main)
    words = ["check", str(part), *([str(script)] if main else []), "--cluster", "dgx-h100"]
    done = runner.invoke(app, words)
    assert done.exit_code == 2
    assert "model.sh" in done.output
    assert "only set variables" in done.output or "runs nothing by itself" in done.output
