"""Launch scripts as people write them: variables, arrays, conditions, batch systems; read as bash would run them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.source_fields import nanotron_options
from planner.ask.question import Question
from planner.cli import app
from planner.cli.files import problem_of
from planner.frameworks import framework
from planner.frameworks.shell.branches import arithmetic, truth
from planner.frameworks.shell.script import Script, options_of, program_options, slurm_devices
from planner.spec.config import Recompute, Schedule
from planner.spec.job import Optimizer
from planner.spec.precision import Precision

runner = CliRunner()

SLURM = r"""#!/bin/bash
#SBATCH --job-name=llama
#SBATCH -N 4
#SBATCH --gpus-per-node=8
# settings
TP=${TP:-2}
PP=$((TP * 2))
MODEL_SIZE=8b
case $MODEL_SIZE in
    70b)
        LAYERS=80; HIDDEN=8192
        ;;
    7b|8b)
        LAYERS=32; HIDDEN=4096 ;;
esac
usage() {
    echo "usage: --tensor-model-parallel-size N --bogus"
}
if [[ "$USE_FSDP" == "1" ]]; then
    EXTRA="--use-megatron-fsdp"
elif [ $TP -gt 1 ]; then
    EXTRA="--sequence-parallel"
else
    EXTRA=""
fi
MODEL_ARGS=(
    --num-layers $LAYERS   # depth
    --hidden-size ${HIDDEN}
    --ffn-hidden-size $((HIDDEN*7/2))
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192
    --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope
    --untie-embeddings-and-output-weights
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B
)
MODEL_ARGS+=(--bf16 --use-distributed-optimizer)
PARALLEL_ARGS="--tensor-model-parallel-size $TP \
    --pipeline-model-parallel-size ${PP} \
    $EXTRA"
srun --container-image=/images/train.sqsh --container-mounts "/data:/data" bash -c "
  torchrun --nproc_per_node 8 --nnodes \$SLURM_NNODES pretrain_gpt.py \
    ${MODEL_ARGS[*]} ${PARALLEL_ARGS} --micro-batch-size 1 --global-batch-size=$((16 * TP)) --train-iters 100"
"""

PLAIN = r"""
python -m torch.distributed.run --nproc-per-node=8 pretrain_gpt.py \
  --tensor-model-parallel-size=4 --sequence-parallel --num-layers 32 --hidden-size 4096 \
  --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
  --seq-length 4096 --max-position-embeddings 4096 --vocab-size 128256 --swiglu --disable-bias-linear \
  --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights \
  --micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer 2>&1 | tee log.txt
"""


def checked(tmp_path: Path, text: str, name: str, *options: str) -> dict[str, object]:
    file = tmp_path / name
    file.write_text(text)
    done = runner.invoke(app, ["check", str(file), "--cluster", "dgx-h100", "--json", *options])
    assert done.exit_code in (0, 1), done.output
    facts: dict[str, object] = json.loads(done.stdout)
    return facts


def test_a_batch_script(tmp_path: Path) -> None:
    facts = checked(tmp_path, SLURM, "train.sbatch")
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert {axis: axes[axis] for axis in ("tp", "pp", "dp", "sp", "zero")} == {
        "tp": 2, "pp": 4, "dp": 4, "sp": 1, "zero": 1,
    }  # fmt: skip
    assert axes["num_microbatches"] == 8
    assert facts["devices"] == 32
    assert facts["unknown_options"] == []
    assert facts["legal"] is True


def test_bash_reads_the_same_words(tmp_path: Path) -> None:
    """What planner takes for the program's options is what bash hands to it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("srun", "torchrun"):
        body = 'shift 3; exec "$@"' if name == "srun" else 'printf "%s\\n" "$@" > "$WORDS"'
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    script = tmp_path / "train.sh"
    script.write_text(SLURM)
    words = tmp_path / "words"
    subprocess.run(
        ["bash", str(script)], check=True, env={"PATH": f"{folder}:/usr/bin:/bin", "WORDS": str(words)}
    )
    said = words.read_text().split()
    said = said[said.index("pretrain_gpt.py") + 1 :]
    mine = program_options(SLURM, ("--num-layers",))
    flat = [word for option in mine for word in option]
    assert flat == [part for word in said for part in word.split("=")]


def test_a_plain_command(tmp_path: Path) -> None:
    facts = checked(tmp_path, PLAIN, "run.sh", "--gpus", "8")
    assert facts["unknown_options"] == []
    assert facts["legal"] is True
    assert facts["axes"]["tp"] == 4  # type: ignore[index]


def test_a_better_configuration_is_told_by_its_options(tmp_path: Path) -> None:
    """And not by the arrays that the exported script gathers them in."""
    facts = checked(
        tmp_path, PLAIN.replace("--bf16", "--bf16 --recompute-activations"), "run.sh", "--gpus", "8"
    )
    title, *lines = facts["better"]["diff"]  # type: ignore[index]
    assert title == "change in the launch script:"
    assert "  - --tensor-model-parallel-size 4" in lines
    assert all(line.split()[1].startswith("--") for line in lines), lines


def test_a_better_configuration_takes_out_what_the_script_has(tmp_path: Path) -> None:
    """Not the exporter's words for the same split; a program that only names the data is not what trains."""
    split = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"
    data = "DATA=$(python3 tools/create_data_config.py -p $D)\n"
    facts = checked(tmp_path, data + PLAIN.replace("--bf16", f"--bf16 {split}"), "run.sh", "--gpus", "16")
    lines = facts["better"]["diff"]  # type: ignore[index]
    out = {line.split()[1] for line in lines if line.startswith("  - ")}
    assert "--num-layers-per-virtual-pipeline-stage" in out
    assert "--num-virtual-stages-per-pipeline-rank" not in out


def test_the_vocabulary_is_asked_for_or_named(tmp_path: Path) -> None:
    without = PLAIN.replace("--vocab-size 128256", "--tokenizer-type SentencePieceTokenizer")
    file = tmp_path / "run.sh"
    file.write_text(without)
    done = runner.invoke(app, ["check", str(file), "--cluster", "dgx-h100", "--gpus", "8"])
    assert done.exit_code == 2
    assert "--vocab-size" in done.output
    named = checked(tmp_path, without, "run.sh", "--gpus", "8", "--model", "llama-3.1-8b")
    assert named["legal"] is True
    known = checked(tmp_path, without.replace("SentencePiece", "Llama2"), "run.sh", "--gpus", "8")
    assert any("32,000" in str(note) for note in known["notes"])  # type: ignore[attr-defined]


def test_fully_sharded_is_the_frameworks_to_allow(tmp_path: Path) -> None:
    """The newest stack was measured with ZeRO 0 and 1; Megatron-FSDP has one of its own."""
    fsdp = PLAIN.replace("--bf16", "--bf16 --use-megatron-fsdp --ckpt-format fsdp_dtensor")
    facts = checked(tmp_path, fsdp, "run.sh", "--gpus", "8")
    assert facts["axes"]["zero"] == 3  # type: ignore[index]
    assert facts["violations"] == []
    assert "stack megatron-fsdp-2026+hidden-dropout=0.1" in facts["notes"]  # type: ignore[operator]
    kept = checked(tmp_path, fsdp, "run.sh", "--gpus", "8", "--stack", "megatron-2026")
    assert any("ZeRO 3 was not measured" in str(note) for note in kept["notes"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "value"),
    [("8*4", 32), ("(2+1)/2", 1), ("-3+5", 2), ("7 % 4", 3), ("1/0", None), ("a+1", None), ("9**99", None)],
)
def test_arithmetic(text: str, value: int | None) -> None:
    assert arithmetic(text) == value


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ('[ "2" -gt 1 ]', True),
        ('[ "" = "1" ]', False),
        ('[[ -z "" ]]', True),
        ("[[ ! -n x ]]", False),
        ("[[ abc == a* ]]", True),
        ("[ 1 -eq 2 ] || [ 3 -le 3 ]", True),
        ("[ 1 -eq 2 ] && [ $X = 1 ]", False),
        ("! [ 1 -eq 2 ]", True),
        ("((4 > 3))", True),
        ("[ -f config.yaml ]", True),
        ("command -v nvidia-smi", None),
        ('[ "$X" = 1 ]', None),
        ('[ "unbalanced ]', None),
    ],
)
def test_truth(condition: str, holds: bool | None) -> None:
    assert truth(condition) is holds


def test_branches_that_cannot_be_known_all_run() -> None:
    script = "if command -v x; then A=--one; fi\nif [ 1 = 2 ]; then A=--two; fi\npython t.py $A --last 1\n"
    assert options_of(script)[0] == [("--one",), ("--last", "1")]


@pytest.mark.parametrize(
    ("lines", "devices"),
    [
        ("#SBATCH --nodes=16\n#SBATCH --gpus-per-node=h100:8", 128),
        ("#SBATCH -N 2\n#SBATCH --gres=gpu:4", 8),
        ("#SBATCH --nodes 3\n#SBATCH --ntasks-per-node=8", 24),
        ("#SBATCH --gpus=64", 64),
        ("#SBATCH --time=1:00", None),
        ("#SBATCH --nodes=2-4\n#SBATCH --gpus-per-node=8", 16),
    ],
)
def test_slurm_devices(lines: str, devices: int | None) -> None:
    assert slurm_devices(lines) == devices


DS_AUTO = {
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto", "total_num_steps": "auto"}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "offload_optimizer": {"device": "cpu"}},
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}


def test_automatic_values_are_the_programs(tmp_path: Path) -> None:
    words = ("--model", "llama-3.1-8b", "--gpus", "16", "--seq-len", "4096", "--global-batch", "64")
    facts = checked(tmp_path, json.dumps(DS_AUTO), "ds_config.json", *words)
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert (axes["dp"], axes["zero"], axes["num_microbatches"], "optimizer" in axes["offload"]) == (
        16,
        3,
        4,
        True,
    )
    assert facts["unknown_options"] == []
    assert any("left to the program" in str(note) for note in facts["notes"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("strategy", "zero", "hsdp"),
    [("FULL_SHARD", 3, 0), ("SHARD_GRAD_OP", 2, 0), ("1", 3, 0), ("HYBRID_SHARD", 3, 8)],
)
def test_strategies_of_fsdp_1(tmp_path: Path, strategy: str, zero: int, hsdp: int) -> None:
    text = (
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\n"
        f"fsdp_config:\n  fsdp_sharding_strategy: {strategy}\n"
    )
    facts = checked(tmp_path, text, "accelerate.yaml", "--model", "llama-3.2-1b", "--seq-len", "2048")
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert (axes["zero"], axes["hsdp"]) == (zero, hsdp)


def test_the_deepspeed_file_that_accelerate_names(tmp_path: Path) -> None:
    text = (
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
        "deepspeed_config:\n  deepspeed_config_file: conf/ds_config.json\n"
    )
    words = ("--model", "llama-3.2-1b", "--seq-len", "2048")
    alone = checked(tmp_path, text, "accelerate.yaml", *words)
    assert any("ds_config.json was not given" in str(note) for note in alone["notes"])  # type: ignore[attr-defined]
    (tmp_path / "ds_config.json").write_text(json.dumps(DS_AUTO))
    both = checked(tmp_path, text, "accelerate.yaml", str(tmp_path / "ds_config.json"), *words)
    assert (alone["axes"]["zero"], both["axes"]["zero"]) == (2, 3)  # type: ignore[index]


def test_torchtitan_shards_over_what_is_left(tmp_path: Path) -> None:
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 4096\n'
        "[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 2\n"
    )
    facts = checked(tmp_path, text, "train.toml", "--gpus", "32")
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert (axes["dp"], axes["tp"], axes["micro_batch"], axes["num_microbatches"]) == (16, 2, 2, 1)
    script = (
        'NGPU=${NGPU:-"8"}\nPYTORCH_ALLOC_CONF=x \\\ntorchrun --nproc_per_node=${NGPU} --local-ranks-filter 0 '
        "-m torchtitan.train --module llama3 --config llama3_8b --parallelism.tensor_parallel_degree 2\n"
    )
    assert checked(tmp_path, script, "run.sh")["devices"] == 8


@pytest.mark.parametrize(("stated", "batch"), [("", 128), ("global_batch_size = 256\n", 256)])
def test_torchtitan_pipelines_shard_over_what_is_left(tmp_path: Path, stated: str, batch: int) -> None:
    """A rank's own batch is that of its pipeline, whatever the devices; the step's is stated or follows."""
    text = (
        '[model]\nname = "llama3"\nflavor = "70B"\n[training]\nlocal_batch_size = 16\nseq_len = 8192\n'
        f"{stated}[parallelism]\ntensor_parallel_degree = 8\npipeline_parallel_degree = 4\n"
        'pipeline_parallel_schedule = "1F1B"\n'
    )
    facts = checked(tmp_path, text, "train.toml", "--gpus", "256")
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert (axes["dp"], axes["micro_batch"], axes["num_microbatches"]) == (8, 1, batch // 8)
    replicated = text + "data_parallel_replicate_degree = 2\n"
    (tmp_path / "replicas.toml").write_text(replicated)
    words = ["check", str(tmp_path / "replicas.toml"), "--cluster", "dgx-h100", "--gpus", "256"]
    done = runner.invoke(app, words)
    assert done.exit_code == 2
    assert "data_parallel_shard_degree" in done.output


@pytest.mark.parametrize(
    ("said", "stack"),
    [
        ("expert_parallel_degree = 4", "torchtitan-2026-eager"),
        ("expert_parallel_degree = 1", "torchtitan-2024+no-compile"),
    ],
)
def test_torchtitan_files_of_experts_are_not_those_of_a_release_without(said: str, stack: str) -> None:
    """models/deepseek_v3/train_configs/deepseek_v3_16b.toml of 0.2, say: 0.2.2 has what 0.1 did not run."""
    text = f'[model]\nname = "deepseek_v3"\nflavor = "16B"\n[parallelism]\n{said}\n'
    parsed = framework("torchtitan").parse({"train.toml": text})
    assert (
        problem_of(parsed, framework("torchtitan"), Question("", "1x8 h100 400G-ib", 8))[0].stack.name
        == stack
    )


def test_context_parallelism_that_no_run_measured_is_legal(tmp_path: Path) -> None:
    """As examples/torch_native_parallelism/configs/cp.yaml of Accelerate."""
    text = (
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
        "parallelism_config:\n  parallelism_config_cp_size: 8\n"
    )
    facts = checked(
        tmp_path, text, "cp.yaml", "--model", "llama-3.2-1b", "--seq-len", "8192", "--global-batch", "1"
    )
    assert facts["legal"]
    assert any("context parallelism was not measured" in str(note) for note in facts["notes"])  # type: ignore[attr-defined]


def test_an_order_of_ranks_that_is_not_costed_is_said() -> None:
    words = "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 4 --hidden-size 64 --seq-length 64"
    assert not any("numbered" in note for note in framework("megatron").parse({"a.sh": words}).notes)
    said = framework("megatron").parse({"a.sh": f"{words} --use-tp-pp-dp-mapping"}).notes
    assert any("numbered tp, cp, dp, pp" in note for note in said)


def followed(text: str) -> Script:
    return Script().follow(text)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("N=$(( ${A} * $B ))", "32"),
        ("N=$(( A * (B + 1) ))", "40"),
        ('N="$((A*B/2))"', "16"),
        ("N=$(( $1 * 8 ))", "$(( $1 * 8 ))"),
        ("N=$(scontrol show hostnames $X | head -n 1)", "$(scontrol show hostnames $X | head -n 1)"),
        ("N=`hostname --ip-address`", "`hostname --ip-address`"),
    ],
)
def test_a_computed_value_is_one_assignment(line: str, value: str) -> None:
    """Spaces within $((...)) and $(...) end no word, so that nothing after them is taken for a command."""
    script = followed(f"A=8\nB=4\n{line}\npython t.py --batch $N\n")
    assert script.variables["N"] == value
    assert "--ip-address" not in script.words
    assert script.words[:4] == [";", "python", "t.py", "--batch"]


def test_documents_that_a_shell_runs_are_followed() -> None:
    for head, close in (
        ("sbatch <<EOF", "EOF"), ("cat > job.sbatch <<-'EOF'", "\tEOF"), ("bash << \\EOF", "EOF"),
    ):  # fmt: skip
        text = f"TP=4\n{head}\n#SBATCH --nodes=2\n\ttorchrun pretrain_gpt.py --tp $TP --user \\$USER\n{close}\nN=1\n"
        script = followed(text)
        assert [w for w in script.words if w != ";"] == [
            "torchrun", "pretrain_gpt.py", "--tp", "4", "--user", "$USER",
        ]  # fmt: skip
        assert script.variables["N"] == "1"


def test_documents_of_other_programs_are_not_commands() -> None:
    """Their quotes end nothing of the script; those of branches that are not taken are not written."""
    text = """CONF=ds.json
python - <<EOF
print("it's --num-layers 3")
EOF
if [ "$CONF" = other.json ]; then
cat > $CONF <<EOF
{"zero_optimization": {"stage": 1}}
EOF
else
cat << END > "$CONF"
{"zero_optimization": {"stage": $((1 + 2))}}
END
fi
SIZE=$((1<<END))
run --last 1
"""
    script = followed(text)
    assert script.words == [";", "run", "--last", "1"]
    assert script.files == {"ds.json": '{"zero_optimization": {"stage": 3}}\n'}


def refused(tmp_path: Path, text: str, name: str, *options: str) -> str:
    """What check says, in one line, of a file that it does not read."""
    file = tmp_path / name
    file.write_text(text)
    done = runner.invoke(app, ["check", str(file), "--cluster", "dgx-h100", *options])
    assert done.exit_code == 2, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return " ".join(done.output.split())


@pytest.mark.parametrize(
    ("program", "more", "said"),
    [
        ("pretrain_bert.py", "", "pretrain_bert.py"),
        ("$REPO/pretrain_t5.py", "", "pretrain_t5.py"),
        ("pretrain_mamba.py", "", "GPT"),
        ("pretrain_gpt.py", "--hybrid-layer-pattern M*G", "gated delta nets"),
        ("pretrain_hybrid.py", "--hybrid-attention-ratio 0.1", "--hybrid-layer-pattern"),
        ("pretrain_gpt.py", "--experimental-attention-variant dsa", "must come with latent attention"),
        ("pretrain_gpt.py", "--deepspeed --zero-stage 2", "--deepspeed, --zero-stage"),
    ],
)
def test_another_program_is_refused(tmp_path: Path, program: str, more: str, said: str) -> None:
    text = PLAIN.replace("pretrain_gpt.py", program).replace("--bf16", f"--bf16 {more}")
    assert said in refused(tmp_path, text, "run.sh", "--gpus", "8")


def test_what_is_not_costed_is_said(tmp_path: Path) -> None:
    text = "source conf/common.sh\nsource venv/bin/activate\n" + PLAIN.replace(
        "--bf16", "--bf16 --rampup-batch-size 16 16 1000 --main-params-dtype fp16"
    )
    notes = str(checked(tmp_path, text, "run.sh", "--gpus", "8")["notes"])
    for wanted in ("--rampup-batch-size", "--main-params-dtype", "nothing they set counts: common.sh"):
        assert wanted in notes, wanted
    assert "activate" not in notes
    assert not any(word in str(checked(tmp_path, PLAIN, "run.sh")["notes"]) for word in ("counted", "counts"))


def test_optimizer_instances_are_shard_groups(tmp_path: Path) -> None:
    text = PLAIN.replace("--bf16", "--bf16 --num-distributed-optimizer-instances 2").replace(
        "--nproc-per-node=8", "--nproc-per-node=8 --nnodes=4"
    )
    axes = checked(tmp_path, text, "run.sh")["axes"]
    assert isinstance(axes, dict)
    assert (axes["dp"], axes["hsdp"]) == (8, 4)
    unknown = text.replace("--nproc-per-node=8 --nnodes=4", "--nproc-per-node=$GPUS")
    facts = checked(tmp_path, unknown, "run.sh", "--gpus", "32")
    assert facts["axes"]["hsdp"] == 4  # type: ignore[index]


@pytest.mark.parametrize("value", ["$(cat tp.txt)", "`cat tp.txt`"])
def test_a_value_that_a_command_prints(tmp_path: Path, value: str) -> None:
    direct = PLAIN.replace("--tensor-model-parallel-size=4", f"--tensor-model-parallel-size {value}")
    by_name = f"TP={value}\n" + PLAIN.replace(
        "--tensor-model-parallel-size=4", "--tensor-model-parallel-size $TP"
    )
    for text in (direct, by_name):
        said = " ".join(refused(tmp_path, text, "run.sh").split())
        assert "what a command prints is not known, since none is run" in said


def test_a_value_that_no_file_sets(tmp_path: Path) -> None:
    text = PLAIN.replace("--tensor-model-parallel-size=4", "--tensor-model-parallel-size $TP")
    assert "no file given sets it" in refused(tmp_path, text, "run.sh")
    settings = tmp_path / "sizes.sh"
    settings.write_text("TP=4\n")
    done = runner.invoke(
        app, ["check", str(settings), str(tmp_path / "run.sh"), "--cluster", "dgx-h100", "--json"]
    )
    assert json.loads(done.stdout)["axes"]["tp"] == 4, done.output


FSDP_ONLY = (
    "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
)
LLAMA = ("--model", "llama-3.2-1b", "--seq-len", "2048")


def test_the_words_of_accelerate_launch_count(tmp_path: Path) -> None:
    """They go before the YAML's; what follows the program is the program's."""
    script = tmp_path / "job.slurm"
    script.write_text(
        "NODES=4\nexport LAUNCH=\"accelerate launch --config_file conf/fsdp.yaml --num_processes $((NODES * 8)) \\\n"
        "  --num_machines $NODES --fsdp_sharding_strategy HYBRID_SHARD --main_process_ip $(hostname -i) \"\n"
        "srun $LAUNCH train.py --num_processes 3\n"
    )  # fmt: skip
    facts = checked(tmp_path, FSDP_ONLY, "fsdp.yaml", str(script), *LLAMA)
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert (facts["devices"], axes["dp"], axes["zero"], axes["hsdp"]) == (32, 32, 3, 8)
    alone = runner.invoke(app, ["check", str(script), "--cluster", "dgx-h100", *LLAMA])
    assert alone.exit_code == 2
    assert "conf/fsdp.yaml" in alone.output


def test_an_accelerate_file_without_a_number_of_processes(tmp_path: Path) -> None:
    facts = checked(tmp_path, FSDP_ONLY, "fsdp.yaml", "--gpus", "16", *LLAMA)
    assert facts["axes"]["dp"] == 16  # type: ignore[index]
    assert not any("files start" in str(note) for note in facts["notes"])  # type: ignore[attr-defined]
    hybrid = FSDP_ONLY.replace("FULL_SHARD", "HYBRID_SHARD")
    assert "num_processes" in refused(tmp_path, hybrid, "fsdp.yaml", "--gpus", "16", *LLAMA)
    other = FSDP_ONLY.replace("FSDP\n", "MEGATRON_LM\n", 1)
    assert "MEGATRON_LM" in refused(tmp_path, other, "fsdp.yaml", "--gpus", "16", *LLAMA)


def test_names_without_their_prefix(tmp_path: Path) -> None:
    """A YAML may leave out fsdp_ and fp8_, as the launcher adds it."""
    text = (
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\n"
        "fsdp_config:\n  sharding_strategy: HYBRID_SHARD\n  activation_checkpointing: true\n"
        "fp8_config:\n  backend: TE\n  fp8_margin: 0\n"
    )
    facts = checked(tmp_path, text, "fsdp.yaml", *LLAMA)
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert (axes["zero"], axes["hsdp"], axes["recompute"]) == (3, 8, "full")
    assert facts["unknown_options"] == []


def test_names_of_older_torchtitan_are_read_as_they_meant(tmp_path: Path) -> None:
    """As llama3_8b_n64.toml of eminorhan/frontier-torchtitan, whose degrees and batch were passed over."""
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nbatch_size = 4\nseq_len = 8192\ncompile = true\n'
        "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 8\ntensor_parallel_degree = 4\n"
        "[experimental]\npipeline_parallel_degree = 1\n[float8]\nenable_float8_linear = {}\n"
    )
    facts = checked(tmp_path, text.format("false"), "train.toml", "--gpus", "64")
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert [axes[name] for name in ("tp", "pp", "dp", "hsdp", "micro_batch")] == [4, 1, 16, 8, 4]
    assert (facts["legal"], facts["unknown_options"]) == (True, [])
    assert "releases before 0.2.2" in str(facts["notes"])
    assert "no-compile" not in str(facts["notes"])
    narrow = framework("torchtitan").parse({"train.toml": text.format("true")})
    assert narrow.precision is Precision.FP8_CS
    newer = text.format("false").replace("batch_size", "local_batch_size = 2\nbatch_size")
    assert framework("torchtitan").parse({"train.toml": newer}).axes["micro_batch"] == 2


def test_what_accelerates_launcher_refuses_and_what_it_passes_over(tmp_path: Path) -> None:
    """accelerate 1.15.0 commands/config/config_args.py load_config refuses keys of the first level alone; of sections
    commands/launch.py _validate_launch_command copies all, as of TRL's alst_ulysses_4gpu.yaml."""
    text = (
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n"
        "deepspeed_config:\n  zero_stage: 3\n  seq_parallel_communication_data_type: bf16\n"
    )
    facts = checked(tmp_path, text, "ulysses.yaml", *LLAMA)
    assert (facts["legal"], facts["unknown_options"]) == (True, [])
    assert "passes over what it does not know: deepspeed_config.seq_parallel" in str(facts["notes"])
    strange = checked(tmp_path, f"{text}num_gpus: 8\n", "strange.yaml", *LLAMA)
    assert strange["legal"] is False
    assert [str(option).split()[0] for option in strange["unknown_options"]] == ["num_gpus"]  # type: ignore[attr-defined]


def test_settings_of_deepspeed_that_change_nothing_here_are_known(tmp_path: Path) -> None:
    settings = {
        "fp16": {"enabled": True, "loss_scale_window": 100, "hysteresis": 2, "min_loss_scale": 1},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "super_offload": True}},
        "curriculum_learning": {"enabled": False, "schedule_type": "fixed_linear"},
        "checkpoint": {"parallel_write": {"pipeline_stage": True}},
        "train_micro_batch_size_per_gpu": 1, "seq_parallel_communication_data_type": "bf16",
        "flops_profiler": {"enabled": True}, "gradient_clip": 1.0,
    }  # fmt: skip
    facts = checked(tmp_path, json.dumps(settings), "ds_config.json", "--gpus", "8", *LLAMA)
    assert facts["unknown_options"] == []
    passed = [note for note in facts["notes"] if "passes over" in note]  # type: ignore[attr-defined]
    assert [note.split(": ")[1].split()[0] for note in passed] == ["gradient_clip"]


def test_what_accelerate_puts_on_the_host(tmp_path: Path) -> None:
    fsdp = FSDP_ONLY + "  fsdp_offload_params: true\n"
    ds = (
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n"
        "  offload_optimizer_device: cpu\n  offload_param_device: none\n  gradient_accumulation_steps: 4\n"
    )
    both = checked(tmp_path, fsdp, "fsdp.yaml", "--gpus", "8", *LLAMA)["axes"]
    states = checked(tmp_path, ds, "ds.yaml", *LLAMA)["axes"]
    assert isinstance(both, dict)
    assert isinstance(states, dict)
    assert (both["offload"], states["offload"]) == ("optimizer+params", "optimizer")
    assert states["num_microbatches"] == 4


def test_a_deepspeed_file_that_the_script_writes(tmp_path: Path) -> None:
    text = """MICRO=2
CONF=/tmp/ds_${MICRO}.json
cat <<EOT > $CONF
{"train_micro_batch_size_per_gpu": $MICRO, "gradient_accumulation_steps": 8, "bf16": {"enabled": true},
 "zero_optimization": {"stage": 2}}
EOT
deepspeed --num_nodes 2 --num_gpus=8 finetune.py --deepspeed_config=$CONF --note "it's ours"
"""
    facts = checked(tmp_path, text, "finetune.sh", *LLAMA)
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert (facts["devices"], axes["dp"], axes["zero"], axes["micro_batch"], axes["num_microbatches"]) == (
        16, 16, 2, 2, 8,
    )  # fmt: skip


def test_a_deepspeed_file_alone_keeps_its_accumulation(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 8,
            "zero_optimization": {"stage": 1},
        }
    )
    axes = checked(tmp_path, text, "ds_config.json", "--gpus", "16", *LLAMA)["axes"]
    assert isinstance(axes, dict)
    assert (axes["dp"], axes["num_microbatches"]) == (16, 8)


@pytest.mark.parametrize(
    ("settings", "micro", "accumulated"),
    [
        ({"train_batch_size": 64}, 4, 1),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, 2, 2),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1}, 1, 4),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, 2, 3),
    ],
)
def test_deepspeed_deals_a_batch_as_it_does_itself(
    tmp_path: Path, settings: dict[str, int], micro: int, accumulated: int
) -> None:
    """runtime/config.py _set_batch_related_parameters: what is not stated follows from the devices."""
    zero = {"stage": 2, "cpu_offload": True}
    text = json.dumps({**settings, "zero_optimization": zero})
    axes = checked(tmp_path, text, "ds_config.json", "--gpus", "16", *LLAMA)["axes"]
    assert isinstance(axes, dict)
    assert (axes["dp"], axes["micro_batch"], axes["num_microbatches"], axes["offload"]) == (
        16,
        micro,
        accumulated,
        "optimizer",
    )


TOML = (
    '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 4096\n'
    "[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 2\n"
    'pipeline_parallel_schedule = "Interleaved1F1B"\n'
)


def test_a_schedule_without_a_pipeline_does_not_run(tmp_path: Path) -> None:
    facts = checked(tmp_path, TOML, "train.toml", "--gpus", "32")
    assert facts["legal"] is True
    assert facts["axes"]["schedule"] == "1f1b"  # type: ignore[index]


@pytest.mark.parametrize(
    ("said", "kind", "layers"),
    [
        ('mode = "selective"\nselective_ac_option = "op"', Recompute.SELECTIVE, 0),
        ('mode = "selective"\nselective_ac_option = "3"', Recompute.FULL, 10),
        ('mode = "selective"\nselective_ac_option = "33"', Recompute.NONE, 0),
        ("", Recompute.FULL, 16),
        ('mode = "full"', Recompute.FULL, 32),
        ('mode = "none"', Recompute.NONE, 0),
    ],
)
def test_torchtitan_checkpoints_one_layer_of_so_many(
    tmp_path: Path, said: str, kind: Recompute, layers: int
) -> None:
    """0.2.2 distributed/activation_checkpoint.py: of every second layer unless selective_ac_option says otherwise."""
    facts = checked(tmp_path, f"{TOML}[activation_checkpoint]\n{said}\n", "train.toml", "--gpus", "32")
    assert facts["legal"] is True
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert (axes["recompute"], axes["recompute_layers"]) == (kind.name.lower(), layers)


def test_one_layer_of_so_many_is_counted_where_the_model_is_named_apart(tmp_path: Path) -> None:
    text = TOML.replace('flavor = "8B"', 'flavor = "mine"')
    facts = checked(tmp_path, text, "train.toml", "--gpus", "32", "--model", "llama-3.1-8b")
    assert facts["axes"]["recompute_layers"] == 16  # type: ignore[index]


def test_one_layer_of_so_many_is_counted_through_the_chunks_of_a_rank(tmp_path: Path) -> None:
    """Ten layers of a rank in two chunks: 0.2.2 _apply_layer_sac counts on from one to the next, 5 recomputed."""
    text = TOML.replace("8B", "70B").replace("[parallelism]", "[parallelism]\npipeline_parallel_degree = 8")
    text = text.replace("_batch_size = 2", "_batch_size = 16").replace(
        "shard_degree = -1", "shard_degree = 2"
    )
    facts = checked(tmp_path, text, "train.toml", "--gpus", "32")
    assert (facts["legal"], facts["violations"]) == (True, [])
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert (axes["vpp"], axes["recompute_layers"]) == (2, 5)
    assert "of 5 layers that a rank recomputes 4 are modelled" in str(facts["notes"])


def test_torchtitan_without_loss_parallel_holds_whole_logits(tmp_path: Path) -> None:
    split, whole = (
        checked(
            tmp_path, TOML.replace("[parallelism]\n", f"[parallelism]\n{said}"), "train.toml", "--gpus", "32"
        )
        for said in ("", "disable_loss_parallel = true\n")
    )
    logits = 2 * 4096 * 128_256 / 2  # of one of two tensor-parallel ranks
    peaks = [float(facts["peak_memory_bytes"]) for facts in (split, whole)]  # type: ignore[arg-type]
    assert peaks[1] - peaks[0] > 4 * logits
    assert whole["step_time_s"] > split["step_time_s"]  # type: ignore[operator]
    assert "loss eager" in str(whole["notes"])


@pytest.mark.parametrize(("batch", "runs"), [("", 0), ("global_batch_size = 64\n", 2)])
def test_a_batch_beyond_the_ranks_own_runs_torchtitans_pipeline_again(
    tmp_path: Path, batch: str, runs: int
) -> None:
    """0.2.2 train.py: gradients accumulate around forward and backward of all stages."""
    text = TOML.replace("8B", "70B").replace(
        "[parallelism]", f"{batch}[parallelism]\npipeline_parallel_degree = 8"
    )
    text = text.replace("_batch_size = 2", "_batch_size = 16").replace(
        "shard_degree = -1", "shard_degree = 2"
    )
    facts = checked(tmp_path, text, "train.toml", "--gpus", "32")
    assert facts["legal"] is True
    assert facts["axes"]["num_microbatches"] == 16 * max(runs, 1)  # type: ignore[index]
    assert ("runs the pipeline 2 times, each with 16" in str(facts["notes"])) == bool(runs)


@pytest.mark.parametrize(
    "said", ['mode = "memory_budget"', 'selective_ac_option = "ops"', 'selective_ac_option = "-1"']
)
def test_torchtitan_checkpointing_that_is_not_modelled_is_refused(tmp_path: Path, said: str) -> None:
    file = tmp_path / "train.toml"
    file.write_text(f"{TOML}[activation_checkpoint]\n{said}\n")
    done = runner.invoke(app, ["check", str(file), "--cluster", "dgx-h100", "--gpus", "32"])
    assert done.exit_code == 2
    assert "activation_checkpoint." in done.output


def test_options_go_before_the_toml_file(tmp_path: Path) -> None:
    script = tmp_path / "run_train.sh"
    script.write_text(
        'CONFIG_FILE=${CONFIG_FILE:-"conf/train.toml"}\n'
        "torchrun --nnodes 2 --nproc_per_node=8 -m torchtitan.train --job.config_file ${CONFIG_FILE} \\\n"
        "  --parallelism.tensor-parallel-degree 4 --training.local_batch_size=1 --training.seqlen 2048\n"
    )
    facts = checked(tmp_path, TOML, "train.toml", str(script))
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert (axes["tp"], axes["dp"], axes["micro_batch"], facts["devices"]) == (4, 4, 1, 16)
    assert [str(name).split()[0] for name in facts["unknown_options"]] == ["training.seqlen"]  # type: ignore[attr-defined]
    alone = runner.invoke(app, ["check", str(script), "--cluster", "dgx-h100"])
    assert alone.exit_code == 2
    assert "conf/train.toml" in alone.output


def test_experts_of_an_older_nanotron_are_not_a_dense_model(tmp_path: Path) -> None:
    text = (
        "parallelism: {dp: 2, pp: 1, tp: 2, pp_engine: 1f1b}\ntokens: {micro_batch_size: 1, sequence_length: 1024}\n"
        "model:\n  model_config: {hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2,\n"
        "    intermediate_size: 8, vocab_size: 128, max_position_embeddings: 1024, moe_num_experts: 4}\n"
    )
    assert "the model must be known" in refused(tmp_path, text, "config.yaml")
    more = "lighteval: {batch_size: 4, tasks: {max_samples: 8}}\nlightval: 1\n"
    dense = text.replace(", moe_num_experts: 4", "") + more
    unknown = checked(tmp_path, dense, "config.yaml")["unknown_options"]
    assert [str(name).split()[0] for name in unknown] == ["lightval"]  # type: ignore[attr-defined]


def test_what_a_nanotron_file_leaves_out(tmp_path: Path) -> None:
    text = (
        "parallelism: {dp: 2, pp: 2, tp: 2}\ntokens: {micro_batch_size: 1, batch_accumulation_per_replica: 4}\n"
        "optimizer: {optimizer_factory: {name: sgd}}\n"
        "model:\n  model_config: {hidden_size: 2048, rope_scaling: {factor: 2.0}, is_llama_config: true}\n"
    )
    parsed = framework("nanotron").parse({"config.yaml": text})
    assert Schedule(parsed.axes["schedule"]) is Schedule.GPIPE  # engine afab
    assert parsed.optimizer is Optimizer.SGD
    assert parsed.unknown == ()
    model = parsed.model
    assert model is not None
    sizes = (model.hidden, model.num_layers, model.layers[0].attention.heads, model.vocab, model.max_position)
    assert sizes == (2048, 32, 32, 32000, 2048)
    assert "must be one of 1f1b, afab" in refused(
        tmp_path, text.replace("tp: 2}", "tp: 2, pp_engine: zb}"), "config.yaml"
    )
    starcoder = text.replace("is_llama_config", "is_starcoder2_config")
    assert "the model must be known" in refused(tmp_path, starcoder, "config.yaml")


def test_settings_of_a_source_tree(tmp_path: Path) -> None:
    folder = tmp_path / "src/nanotron/config"
    folder.mkdir(parents=True)
    (folder / "config.py").write_text(
        "@dataclass\nclass A:\n    size: Optional[List[int]] = None\n    _hidden: bool = True\n    style: str = 'x'\n"
        "class Plain:\n    gone: int\n"
        "@dataclass\nclass B:\n    rate: float\n"
        "@dataclass\nclass Config:\n    a: Optional[A]\n    either: Union[A, B]\n    plain: Plain\n    data_stages: C\n"
    )
    assert nanotron_options(str(tmp_path)) == {
        "a": "str", "a.size": "int*", "a._hidden": "bool", "a.style": "str",
        "either.size": "int*", "either._hidden": "bool", "either.style": "str", "either.rate": "float",
        "plain": "str", "data_stages": "str*",
    }  # fmt: skip


def words_of_bash(tmp_path: Path, script: str) -> list[str]:
    """What bash hands to `torchrun` of a script."""
    (tmp_path / "torchrun").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (tmp_path / "torchrun").chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    return subprocess.run(
        ["bash", "-c", script], check=True, env=path, capture_output=True, text=True
    ).stdout.split()


@pytest.mark.parametrize(
    "script",
    [
        ': "${LAYERS:=32}"\n: ${TP:=2} ${PP:=4}\nTP=8\n: "${TP:=1}"\n: "${GBS:=$((TP * 16))}"\n'
        "torchrun x.py --num-layers $LAYERS --tp $TP --pp $PP --gbs $GBS",
        'declare -a ARGS=(\n  --num-layers 32  # depth\n)\nARGS+=(--tp 2)\ntorchrun x.py "${ARGS[@]}"',
        'readonly TP=4\ndeclare -i PP=2\nlocal_batch=8\ntorchrun x.py --num-layers 2 --tp $TP --pp $PP',
        '#   --old-flag \\\nCMD=" \\\n  --num-layers 32 \\\n  --tp 2 \\\n  "\ntorchrun x.py $CMD',
        "ARGS=(\n  --num-layers 32\n  # --old 1 \\\n  --tp 2\n)\ntorchrun x.py ${ARGS[@]}",
    ],
    ids=["defaults", "declared array", "declared", "comment that ends in a backslash", "comment in an array"],
)  # fmt: skip
def test_read_as_bash_reads(tmp_path: Path, script: str) -> None:
    said = words_of_bash(tmp_path, script)
    mine = [word for option in program_options(script, ("--num-layers",)) for word in option]
    assert mine == said[said.index("x.py") + 1 :]


def test_merges_are_those_of_gpt2(tmp_path: Path) -> None:
    """pretrain_gpt.py takes GPT-2's tokenizer where none is named."""
    text = PLAIN.replace("--vocab-size 128256", "--vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt")
    facts = checked(tmp_path, text, "run.sh", "--gpus", "8")
    assert any("50,257, that of GPT2BPETokenizer" in str(note) for note in facts["notes"])  # type: ignore[attr-defined]


def test_a_condition_that_is_not_known_is_said(tmp_path: Path) -> None:
    """A script whose degrees follow from its nodes, which the queue sets; what only adds or stops is not told."""
    chosen = "if [ $NODES -le 4 ]; then\n  TP=2\nelif [ $NODES -ge 8 ]; then\n  TP=8\nfi\n"
    beside = "if [ $DEBUG ]; then\n  set -x\nfi\n"
    text = (
        chosen + beside + PLAIN.replace("--tensor-model-parallel-size=4", "--tensor-model-parallel-size=$TP")
    )
    notes = str(checked(tmp_path, text, "run.sh", "--gpus", "8")["notes"])
    assert "[ $NODES -le 4 ]" in notes
    assert "DEBUG" not in notes
    assert "NODES" not in str(checked(tmp_path, "NODES=2\n" + text, "run.sh", "--gpus", "8")["notes"])


CALLED = r"""
if [ -z ${TP} ]; then TP=1; fi
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --seq-length 4096 --max-position-embeddings 4096 --vocab-size 128256 --micro-batch-size 1 --bf16 \
  --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP:-1} ${EXTRA}
"""


@pytest.mark.parametrize(
    "call",
    [
        'TP=4 PP=2 EXTRA="--global-batch-size 32 --sequence-parallel" bash train.sh',
        "env TP=4 PP=2 EXTRA='--global-batch-size 32 --sequence-parallel' ./train.sh",
        "sbatch --export=ALL,TP=4,PP=2,EXTRA=--sequence-parallel train.sh",
        'export TP=4 PP=2 EXTRA="--global-batch-size 32 --sequence-parallel"\nbash train.sh',
        'TP=4 PP=2\nEXTRA="--global-batch-size 32 --sequence-parallel"\n. ./train.sh',
    ],
)
def test_variables_that_a_call_sets_count_in_the_script_that_is_called(tmp_path: Path, call: str) -> None:
    (tmp_path / "train.sh").write_text(CALLED)
    facts = checked(tmp_path, f"#!/bin/bash\n{call}\n", "call.sh", str(tmp_path / "train.sh"))
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert (axes["tp"], axes["pp"], axes["sp"]) == (4, 2, 1)
    assert axes["num_microbatches"] == (32 if "32" in call else 1)


def test_options_that_a_condition_prints() -> None:
    words = program_options(
        'SP=1\ntorchrun pretrain_gpt.py --num-layers 2 $([ "$MODE" = det ] && echo --deterministic-mode) '
        '$([[ $SP == 1 ]] && echo "--sequence-parallel --bf16" || echo --fp16) --micro-batch-size 1',
        ("--num-layers",),
    )
    assert words == [
        ("--num-layers", "2"), ("--sequence-parallel",), ("--bf16",), ("--micro-batch-size", "1"),
    ]  # fmt: skip


@pytest.mark.parametrize("sign", ["==", "!="])
@pytest.mark.parametrize(
    "test",
    [
        "[[ $A {} 1 ]]",
        "[ $A {} 1 ]",
        "[[ $B {} 1 && -v A ]]",
        "[[ -v C || ! -v B ]]",
        "[[ $B {} 1 || $A {} 1 ]]",
    ],
)
def test_conditions_hold_as_bash_says(sign: str, test: str) -> None:
    condition = test.replace("{}", sign)
    text = f"B=1\nif {condition}; then X=yes; else X=no; fi\n"
    said = subprocess.run(["bash", "-c", text + "echo $X"], capture_output=True, text=True, check=True)
    script = Script().follow(text)
    assert script.variables["X"] == said.stdout.strip()
    assert not script.conditions


def test_arguments_of_model_optimizer_are_megatrons_own(tmp_path: Path) -> None:
    """pretrain_gpt.py takes them where nvidia-modelopt is installed."""
    more = "--export-te-mcore-model --enable-gpt-oss --finetune-hf-dataset a/b --export-kd-teacher-load /t"
    facts = checked(tmp_path, PLAIN.replace("--bf16", f"--bf16 {more}"), "run.sh")
    assert (facts["legal"], facts["unknown_options"]) == (True, [])
    assert "the teacher's weights and passes are not counted" in str(facts["notes"])


@pytest.mark.parametrize(("more", "captured"), [("", "none"), ("--rl-training-cuda-graphs", "local")])
def test_graphs_of_reinforcement_learning_are_those_of_what_generates(
    tmp_path: Path, more: str, captured: str
) -> None:
    text = PLAIN.replace("--bf16", f"--bf16 --perform-rl-step --cuda-graph-impl=local {more}")
    facts = checked(tmp_path, text, "run.sh")
    assert facts["axes"]["cuda_graph_impl"] == captured  # type: ignore[index]
    assert "the training step alone is modelled" in str(facts["notes"])


def test_groups_of_micro_batches_other_than_the_pipeline_are_not_modelled(tmp_path: Path) -> None:
    """5 micro-batches in groups of 5 are legal on 4 stages, whose own groups they do not fill."""
    split = "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2"
    group = "--microbatch-group-size-per-virtual-pipeline-stage"
    text = PLAIN.replace("--bf16", f"--bf16 {split}").replace("-size 64", "-size 5")
    said = refused(tmp_path, text.replace("--bf16", f"--bf16 {group} 5"), "run.sh", "--gpus", "16")
    assert f"{group} must be the pipeline size" in said
    same = text.replace("--bf16", f"--bf16 {group} 4").replace("-size 5", "-size 8")
    assert checked(tmp_path, same, "run.sh", "--gpus", "16")["legal"] is True


def test_adapters_of_megatron_bridge_are_said(tmp_path: Path) -> None:
    text = "python run_recipe.py --recipe gpt_oss_20b_peft_config model.tensor_model_parallel_size=2\n"
    facts = checked(tmp_path, text, "run.sh", "--gpus", "8", "--model", "gpt-oss-20b")
    assert "all weights are counted as trained" in str(facts["notes"])


def test_a_length_that_nothing_states_is_not_one_token(tmp_path: Path) -> None:
    text = PLAIN.replace("--seq-length 4096 --max-position-embeddings 4096", "")
    assert "assumed 8,192" in str(checked(tmp_path, text, "run.sh")["notes"])


def test_options_of_a_program_of_ones_own_are_no_faults(tmp_path: Path) -> None:
    """Forks add arguments (extra_args_provider); pretrain_gpt.py, and a plain list, have Megatron-LM's alone."""
    text = PLAIN.replace("--bf16", "--bf16 --patch-tokenizer-type LlamaTokenizer")
    assert checked(tmp_path, text, "run.sh")["legal"] is False
    facts = checked(tmp_path, text.replace("pretrain_gpt.py", "tools/pretrain_llama.py"), "run.sh")
    assert (facts["legal"], facts["unknown_options"]) == (True, [])
    assert "not Megatron-LM's, taken for pretrain_llama.py's own: --patch-tokenizer-type" in facts["notes"]  # type: ignore[operator]


FLAME = (
    "torchrun --nproc_per_node 8 -m flame.train --model.config configs/gla_340M.json --training.batch_size 32 "
    "--training.seq_len 2048 --training.gradient_accumulation_steps 2 --training.skip_nan_inf --training.compile "
    "--training.tensor_parallel_degree 2 {}\n"
)


def test_a_command_line_of_older_torchtitan(tmp_path: Path) -> None:
    """As fla-org/flame's, which no TOML file need be given with: it was read as 0.3.0's, its batch and degrees passed
    over; what the trainer has of its own is no error."""
    model = ("--model", "llama-3.2-1b")
    facts = checked(tmp_path, FLAME.format(""), "run.sh", *model)
    axes = facts["axes"]
    assert isinstance(axes, dict)
    assert [axes[name] for name in ("tp", "dp", "micro_batch", "num_microbatches")] == [2, 4, 32, 2]
    assert (facts["version"], facts["unknown_options"]) == ("0.2.2", [])
    assert "passed over: model.config, training.skip_nan_inf" in str(facts["notes"])
    toml = "[training]\nbatch_size = 32\nseq_len = 2048\ngradient_accumulation_steps = 2\nvarlen = true\n"
    axes = checked(tmp_path, toml, "fla.toml", *model, "--gpus", "8")["axes"]
    assert isinstance(axes, dict)
    assert [axes[name] for name in ("dp", "micro_batch", "num_microbatches")] == [8, 32, 2]
    facts = checked(tmp_path, FLAME.format("--module llama3 --config llama3_8b"), "run.sh")
    assert facts["version"] == "0.3.0"
    assert facts["unknown_options"]
