"""`planner export` and `planner check` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app

runner = CliRunner()
CLUSTER = "4x8 h100 400G-ib"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    words = ["plan", "llama-3.1-8b", CLUSTER, "--seq-len", "4096", "--global-batch", "256", "-o", str(path)]
    assert runner.invoke(app, words).exit_code == 0
    return path


def test_export_then_check(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "launch"
    done = runner.invoke(app, ["export", str(plan), "--to", "megatron", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "step time" in (out / "README.md").read_text()
    words = ["check", str(out), "--cluster", CLUSTER, "--json"]
    checked = runner.invoke(app, words)
    assert checked.exit_code == 0, checked.output
    answer = json.loads(checked.stdout)
    best = json.loads(plan.read_text())["choices"][0]
    assert answer["legal"]
    assert answer["devices"] == 32
    assert answer["config"] == best["config"]["text"]
    assert answer["step_time_s"] == pytest.approx(best["step_time"], rel=1e-6)
    assert answer["better"] is None
    again = runner.invoke(app, ["export", str(plan), "--to", "megatron", "-o", str(out)])
    assert again.exit_code == 2
    assert (
        runner.invoke(app, ["export", str(plan), "--to", "megatron", "-o", str(out), "--force"]).exit_code
        == 0
    )


def test_what_a_plan_recommends_is_exported_by_that_name(plan: Path, tmp_path: Path) -> None:
    held = json.loads(plan.read_text())
    held |= {"recommended": 1, "trade": {"slower": 0.01, "more_free": 1e9}}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(held))
    for name, index in (("recommended", 1), ("0", 0)):
        words = ["export", str(other), "--to", "megatron", "-o", str(tmp_path / name), "--choice", name]
        done = runner.invoke(app, words)
        assert done.exit_code == 0, done.output
        assert ("recommends #2 instead: --choice recommended" in done.output) is (index == 0)
        assert held["choices"][index]["config"]["text"] in (tmp_path / name / "README.md").read_text()
    unknown = ["export", str(other), "--to", "megatron", "-o", str(tmp_path / "no"), "--choice", "best"]
    assert runner.invoke(app, unknown).exit_code == 2


def test_files_of_a_packed_job_are_checked_as_full_texts_and_say_so(tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "launch"
    words = [
        "estimate",
        "llama-3.1-8b",
        "1x8 h100",
        "--set",
        "tp=2",
        "--seq-len",
        "8192",
        "--global-batch",
        "64",
    ]
    assert runner.invoke(app, [*words, "--packed", "--mean-len", "512", "-o", str(plan)]).exit_code == 0
    assert runner.invoke(app, ["export", str(plan), "--to", "megatron", "-o", str(out)]).exit_code == 0
    answer = json.loads(runner.invoke(app, ["check", str(out), "--cluster", "1x8 h100", "--json"]).stdout)
    assert answer["step_time_s"] > 1.05 * json.loads(plan.read_text())["choices"][0]["step_time"]
    said = [note for note in answer["notes"] if "one document of 8,192 tokens" in note]
    assert len(said) == 1
    assert "--mean-len" in said[0]


def test_the_launcher_is_that_of_the_stack_unless_another_is_named(plan: Path, tmp_path: Path) -> None:
    done = runner.invoke(app, ["export", str(plan), "-o", str(tmp_path / "own")])
    named = runner.invoke(app, ["export", str(plan), "--to", "megatron", "-o", str(tmp_path / "named")])
    assert (done.exit_code, named.exit_code) == (0, 0), done.output
    for file in (tmp_path / "named").iterdir():
        assert (tmp_path / "own" / file.name).read_bytes() == file.read_bytes()
    other = tmp_path / "hai-llm.json"
    words = [
        "plan",
        "llama-3.1-8b",
        CLUSTER,
        "--seq-len",
        "4096",
        "--global-batch",
        "256",
        "--stack",
        "hai-llm-2024",
    ]
    assert runner.invoke(app, [*words, "-o", str(other)]).exit_code == 0
    refused = runner.invoke(app, ["export", str(other), "-o", str(tmp_path / "none")])
    assert refused.exit_code == 2
    assert "--to must name a launcher" in refused.output
    assert not (tmp_path / "none").exists()


def test_files_of_another_export_are_named(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "launch"
    words = ["export", str(plan), "--to", "megatron", "-o", str(out), "--force"]
    assert "also holds" not in runner.invoke(app, words).stderr
    (out / "ds_config.json").write_text("{}")
    said = runner.invoke(app, words).stderr
    assert f"{out} also holds ds_config.json, not of this export" in said
    assert (out / "ds_config.json").read_text() == "{}"


@pytest.mark.parametrize(("pp", "vpp"), [(8, 1), (4, 2)])
def test_an_uneven_split_is_costed_as_it_is_written(pp: int, vpp: int, tmp_path: Path) -> None:
    words = ["plan", "llama-3.2-3b", CLUSTER, "--seq-len", "4096", "--global-batch", "256"]
    words += ["--set", f"pp={pp}", "--set", f"vpp={vpp}", "-o", str(tmp_path / "plan.json")]
    assert runner.invoke(app, words).exit_code == 0
    best = json.loads((tmp_path / "plan.json").read_text())["choices"][0]
    assert best["layout"], "28 layers and a large head"
    out = tmp_path / "launch"
    assert (
        runner.invoke(
            app, ["export", str(tmp_path / "plan.json"), "--to", "megatron", "-o", str(out)]
        ).exit_code
        == 0
    )
    answer = json.loads(runner.invoke(app, ["check", str(out), "--cluster", CLUSTER, "--json"]).stdout)
    assert answer["config"] == best["config"]["text"]
    assert answer["step_time_s"] == pytest.approx(best["step_time"], rel=1e-9)
    assert answer["peak_memory_bytes"] == pytest.approx(best["memory"]["peak"], rel=1e-9)


def megatron_words(layers: int, more: str) -> str:
    return (
        f"pretrain_gpt.py --num-layers {layers} --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 "
        "--vocab-size 128256 --micro-batch-size 1 --global-batch-size 256 --bf16 --swiglu --disable-bias-linear "
        "--max-position-embeddings 4096 --position-embedding-type rope --use-distributed-optimizer "
        f"--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 {more}"
    )


def test_a_bad_split_is_slower_and_larger(tmp_path: Path) -> None:
    found = {}
    for name, more in (
        ("even", ""),
        ("stated", "--pipeline-model-parallel-layout 'Et*8|t*8|t*8|t*8L'"),
        ("heavy", "--pipeline-model-parallel-layout 'Et*17|t*5|t*5|t*5L'"),
        ("first", "--decoder-first-pipeline-num-layers 17"),
        ("ends", "--account-for-embedding-in-pipeline-split"),
    ):
        path = tmp_path / f"{name}.sh"
        path.write_text(megatron_words(35 if name == "ends" else 32, more))
        done = runner.invoke(app, ["check", str(path), "--cluster", CLUSTER, "--gpus", "32", "--json"])
        found[name] = json.loads(done.stdout)
        assert found[name]["legal"], name
    assert found["even"]["step_time_s"] == found["stated"]["step_time_s"]
    assert found["heavy"]["step_time_s"] == found["first"]["step_time_s"]
    assert found["heavy"]["step_time_s"] > 1.4 * found["even"]["step_time_s"]
    assert found["heavy"]["peak_memory_bytes"] > found["even"]["peak_memory_bytes"]


def test_the_loss_that_the_files_ask_for(tmp_path: Path) -> None:
    answers = []
    for more in (
        "",
        "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te",
        "--cross-entropy-loss-fusion",
    ):
        path = tmp_path / "launch.sh"
        path.write_text(megatron_words(32, more))
        done = runner.invoke(app, ["check", str(path), "--cluster", CLUSTER, "--gpus", "32", "--json"])
        answers.append(json.loads(done.stdout))
    plain, fused, compiled = answers
    assert fused["step_time_s"] < plain["step_time_s"]
    assert any("loss compiled" in note for note in compiled["notes"])
    assert any("loss in-place" in note for note in fused["notes"])
    assert not any("loss" in note for note in plain["notes"])


def test_splits_that_do_not_hold_the_model(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(megatron_words(32, "--pipeline-model-parallel-layout 'Et*8|t*8|t*8|t*7L'"))
    words = ["check", str(path), "--cluster", CLUSTER, "--gpus", "32"]
    done = runner.invoke(app, words)
    assert done.exit_code == 1
    assert "31 layers" in done.stdout
    path.write_text(megatron_words(30, ""))  # Megatron-LM#1304
    done = runner.invoke(app, words)
    assert done.exit_code == 1
    assert "not legal (layers-dealt)" in done.stdout
    assert "divisible" in done.stdout


def test_check_holds_what_may_not_fit_against_nothing(tmp_path: Path) -> None:
    """The fastest that surely fits is the best that `planner plan` names: here a borderline one is 1.6 % faster."""
    path, out = tmp_path / "plan.json", tmp_path / "launch"
    words = ["plan", "phi-4-14b", "dgx-a100", "--gpus", "16", "--seq-len", "2048", "--global-batch", "256"]
    words += ["--stack", "fsdp1-2023", "--without", "all", "-o", str(path)]
    assert runner.invoke(app, words).exit_code == 0
    assert runner.invoke(app, ["export", str(path), "-o", str(out)]).exit_code == 0
    answer = json.loads(runner.invoke(app, ["check", str(out), "--cluster", "dgx-a100", "--json"]).stdout)
    assert answer["verdict"] == "fits"
    assert answer["better"] is None
    pareto = json.loads(path.read_text())["pareto"]
    assert pareto[0]["step_time_s"] < 0.99 * answer["step_time_s"]
    bold = runner.invoke(app, [*words[:-2], "--borderline"])
    assert "1.6 % faster, but its memory is borderline: too little" in " ".join(bold.stdout.split())


def test_check_finds_something_better(tmp_path: Path) -> None:
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 8,
        "train_batch_size": 256,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "reduce_bucket_sise": 1},
    }
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(settings))
    words = ["check", str(path), "--cluster", CLUSTER, "--gpus", "32", "--model", "llama-3.1-8b", "--json"]
    done = runner.invoke(app, words)
    answer = json.loads(done.stdout)
    assert done.exit_code == 1, "an option that DeepSpeed does not have"
    assert "reduce_bucket_size" in answer["unknown_options"][0]
    assert answer["axes"]["zero"] == 2


def test_check_of_an_illegal_configuration(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(
        "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 "
        "--vocab-size 32000 --micro-batch-size 1 --global-batch-size 250 --tensor-model-parallel-size 8 --bf16 "
        "--max-position-embeddings 4096 --position-embedding-type rope --swiglu --disable-bias-linear"
    )
    done = runner.invoke(app, ["check", str(path), "--cluster", CLUSTER, "--gpus", "32"])
    assert done.exit_code == 1
    assert "batch" in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "--num-layers x --tensor-model-parallel-size 2",
        "[parallelism\n",
        "{",
        "distributed_type: [",
    ],
)
def test_check_of_nonsense(text: str, tmp_path: Path) -> None:
    for name in ("a.sh", "a.toml", "a.yaml", "ds_config.json"):
        path = tmp_path / name
        path.write_text(text)
        done = runner.invoke(app, ["check", str(path), "--cluster", CLUSTER])
        assert done.exit_code == 2, (name, done.output)
        assert "Traceback" not in done.output


def test_check_names_files_that_it_does_not_read(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("how to launch\n")
    done = runner.invoke(app, ["check", str(readme), "--cluster", CLUSTER])
    assert done.exit_code == 2
    assert f"given: {readme}" in done.output


def test_export_refuses(plan: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "x")
    for words in (
        ["--to", "megatrn"],
        ["--to", "megatron", "--choice", "99"],
        ["--to", "megatron", "--choice", "-1"],
        ["--to", "megatron", "--framework-version", "9"],
    ):
        assert runner.invoke(app, ["export", str(plan), "-o", out, *words]).exit_code == 2
    assert not Path(out).exists()


@pytest.mark.parametrize(
    "option",
    [
        "--micro-batch-size",
        "--global-batch-size",
        "--seq-length",
        "--tensor-model-parallel-size",
        "--num-layers",
    ],
)
@pytest.mark.parametrize("number", ["99999999999999999999", "9" * 5000])
def test_numbers_that_nothing_holds(option: str, number: str, tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(megatron_words(32, f"{option} {number}"))
    done = runner.invoke(app, ["check", str(path), "--cluster", CLUSTER])
    assert done.exit_code == 2, done.output
    assert option in done.output


def test_a_product_that_nothing_holds(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(
        json.dumps({"train_micro_batch_size_per_gpu": 10**9, "gradient_accumulation_steps": 10**9})
    )
    (tmp_path / "hostfile").write_text("node-1 slots=8\n")
    words = ["check", str(tmp_path), "--cluster", "1x8 h100", "--model", "llama-3.1-8b"]
    done = runner.invoke(app, words)
    assert done.exit_code == 2, done.output
    assert "global_batch of the files must be at most" in done.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--fp16", "exclude each other"),
        ("--recompute-granularity full", "--recompute-method must be"),
        ("--recompute-granularity full --recompute-method uniform", "--recompute-num-layers must be"),
        ("--recompute-granularity selective --recompute-method block", "not supported for"),
        ("--overlap-param-gather", "--overlap-grad-reduce"),
        ("--context-parallel-size", "must have a value"),
    ],
)
def test_what_megatron_refuses_at_its_start(more: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(megatron_words(32, more))
    done = runner.invoke(app, ["check", str(path), "--cluster", CLUSTER])
    assert done.exit_code == 2
    assert said in done.output


def test_param_gather_needs_the_distributed_optimizer(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(
        megatron_words(32, "--overlap-param-gather").replace(
            "--use-distributed-optimizer", "--overlap-grad-reduce"
        )
    )
    done = runner.invoke(app, ["check", str(path), "--cluster", CLUSTER])
    assert done.exit_code == 2
    assert "needs the distributed optimizer" in done.output


def test_export_to_another_framework_keeps_its_rules(tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "launch"
    words = ["estimate", "llama-3.1-8b", "1x8 h100", "--stack", "deepspeed-2025", "--seq-len", "8192"]
    words += ["--set", "tp=2", "--set", "zero=2", "--global-batch", "8", "-o", str(plan)]
    runner.invoke(app, words)
    refused = runner.invoke(app, ["export", str(plan), "--to", "accelerate", "-o", str(out)])
    assert refused.exit_code == 2
    assert "tp-modelled" in refused.output
    assert not out.exists()
    assert runner.invoke(app, ["export", str(plan), "--to", "deepspeed", "-o", str(out)]).exit_code == 0
    assert "deepspeed-2025" in (out / "README.md").read_text()
    for files in ([str(out)], [str(path) for path in sorted(out.iterdir())]):  # config.json is the model
        done = runner.invoke(app, ["check", *files, "--cluster", "1x8 h100", "--json"])
        assert json.loads(done.stdout)["axes"]["tp"] == 2, done.output


SCRIPT = """torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --bf16 --swiglu
    --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192
    --max-position-embeddings 8192 --vocab-size 128256 --micro-batch-size 1 --global-batch-size 256
    --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --use-distributed-optimizer
    --untie-embeddings-and-output-weights""".replace("\n", " ")


@pytest.mark.parametrize(
    ("more", "rules", "said"),
    [
        (
            "--tensor-model-parallel-size 3 --pipeline-model-parallel-size 3",
            {"world-size", "heads-tp", "layers-dealt"},
            "32 layers on 3 stages",
        ),
        (
            "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3",
            {"layers-dealt"},
            "32 layers, pp 4, 3 per virtual stage",
        ),
        (
            "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 3",
            {"layers-dealt"},
            "[8, 8, 8, 8] layers, 3 virtual stages",
        ),
        (
            "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et*16|t*16L",
            {"layers-dealt"},
            "2 stages, pp 4",
        ),
    ],
)
def test_layers_that_no_pipeline_is_dealt_are_illegal_among_the_rest(
    more: str, rules: set[str], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(f"{SCRIPT} {more}".replace("Et*16|t*16L", "'Et*16|t*16L'"))
    done = runner.invoke(app, ["check", str(path), "--cluster", "aws-p5", "--gpus", "64", "--json"])
    assert done.exit_code == 1, done.output
    answer = json.loads(done.stdout)
    assert not answer["legal"]
    assert answer["verdict"] == "not_costed"
    found = {broken["rule"]: broken["reason"] for broken in answer["violations"]}
    assert rules <= found.keys()
    assert said in found["layers-dealt"]
    assert answer["better"] is not None


def test_an_unknown_option_beside_the_best_configuration(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "launch"
    assert runner.invoke(app, ["export", str(plan), "--to", "megatron", "-o", str(out)]).exit_code == 0
    script = out / "launch.sh"
    script.write_text(script.read_text().replace("--bf16", "--bf16 --frobnicate 3", 1))
    done = runner.invoke(app, ["check", str(out), "--cluster", CLUSTER])
    assert done.exit_code == 1
    assert "unknown option: --frobnicate" in done.stdout
    assert "its degrees being legal; fits" in done.stdout
    assert "nothing better was found" in done.stdout
    assert "no configuration of this job was found" not in done.stdout


def test_data_beside_a_script_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text(SCRIPT)
    alone = runner.invoke(app, ["check", str(tmp_path), "--cluster", "aws-p5", "--gpus", "64"])
    data, large = tmp_path / "data.bin", tmp_path / "weights.bin"
    data.write_bytes(b"abc\x8c\xff")
    large.write_bytes(bytes(3_000_000))
    words = ["check", str(tmp_path), "--cluster", "aws-p5", "--gpus", "64", "--json"]
    done = runner.invoke(app, words)
    assert done.exit_code == alone.exit_code, done.output
    notes = json.loads(done.stdout)["notes"]
    assert [f"{file} is no text and is not read" for file in (data, large)] == notes[:2]
    named = runner.invoke(app, ["check", str(data), "--cluster", "aws-p5"])
    (tmp_path / "launch.sh").unlink()
    for refused in (named, runner.invoke(app, words)):
        assert refused.exit_code == 2
        assert f"{data}: must be a readable UTF-8 text file" in refused.stderr
        assert "0x8c" in refused.stderr


def test_a_launch_file_that_is_not_there_is_told_what_is_looked_for(tmp_path: Path) -> None:
    told = runner.invoke(app, ["check", str(tmp_path / "pretrain.sh"), "--cluster", CLUSTER])
    assert told.exit_code == 2
    assert "give the script or settings file that is launched" in " ".join(told.stderr.split())


def test_adapters_are_planned_for_what_trains_them_and_plans_for_transformers_need_no_launcher(
    tmp_path: Path,
) -> None:
    job = ["estimate", "qwen3-0.6b", "1x8 h100", "--gpus", "8", "--seq-len", "1024", "--global-batch", "64"]
    for words, stack in (
        (["--lora-rank", "8"], "transformers-2026"),
        (["--lora-rank", "8", "--set", "pp=2"], "megatron-2026"),
        ([], "megatron-2026"),
    ):
        done = runner.invoke(app, [*job, *words, "--json"])
        assert json.loads(done.stdout)["choices"][0]["stack"] == stack, done.output
    planned, asked = tmp_path / "plan.json", ["--stack", "transformers-2026+amp", "--set", "zero=3"]
    assert runner.invoke(app, ["plan", *job[1:], *asked, "-o", str(planned)]).exit_code == 0
    done = runner.invoke(app, ["export", str(planned), "-o", str(tmp_path / "files")])
    named = runner.invoke(app, ["export", str(planned), "--to", "accelerate", "-o", str(tmp_path / "named")])
    assert done.exit_code == named.exit_code == 0, done.output
