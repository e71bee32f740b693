"""`hsdp` as an axis: which stacks shard within groups of ranks, how files say it, that nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.ask.request import cost_model
from planner.cli import app
from planner.frameworks import framework
from planner.solve.place import place
from planner.solve.step_messages import step_messages
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import rules_for
from planner.spec.config import ConfigTable, ParallelConfig
from tests.problems import problem

JOB = ["llama-3.1-8b", "4x8 h100 400G-ib", "--seq-len", "4096", "--global-batch", "64"]


def answered(verb: str, *words: str) -> dict[str, object]:
    result = CliRunner().invoke(app, [verb, *words, "--json"])
    assert result.exit_code in (0, 1), result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def broken(stack: str, *pins: str) -> set[str]:
    sets = [word for pin in ("micro_batch=1", *pins) for word in ("--set", pin)]
    found = answered("estimate", *JOB, "--stack", stack, *sets)
    return {violation["rule"] for violation in found["violations"]}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("stack", "pins", "rules"),
    [
        ("torchtitan-2026", ["zero=3", "hsdp=8"], set()),
        ("torchtitan-2026", ["zero=2", "hsdp=32"], set()),
        ("torchtitan-2026", ["zero=3", "hsdp=12"], {"hsdp-groups"}),
        ("torchtitan-2026", ["zero=3", "hsdp=64"], {"hsdp-groups"}),
        ("torchtitan-2026", ["zero=3", "cp=2", "hsdp=1"], {"hsdp-groups"}),
        ("fsdp1-2023", ["zero=3", "hsdp=8"], set()),
        ("megatron-2026", ["zero=1", "hsdp=8"], set()),
        ("megatron-2026", ["zero=0", "hsdp=8"], {"hsdp-supported"}),
        ("megatron-fsdp-2026", ["zero=3", "hsdp=8"], set()),
        ("megatron-2024", ["zero=1", "hsdp=8"], {"hsdp-supported"}),
        ("nanotron-2024", ["zero=1", "hsdp=8"], {"hsdp-supported"}),
        ("deepspeed-2025", ["zero=3", "hsdp=8"], {"hsdp-supported"}),
    ],
)
def test_which_stacks_shard_within_groups(stack: str, pins: list[str], rules: set[str]) -> None:
    assert broken(stack, *pins) == rules


def test_a_space_without_the_axis_is_as_large_as_before() -> None:
    subject = problem()
    rules = rules_for(subject.stack)
    pins = {"tp": (1,), "pp": (1,), "cp": (1,)}
    plain = enumerate_configs(subject, rules, pins)
    assert not plain.stems["hsdp"].any()
    asked = enumerate_configs(subject, rules, {**pins, "hsdp": (0, 4, 5)})
    assert asked.total == 3 * plain.total
    assert set(asked.stems["hsdp"].tolist()) == {0, 4}
    assert set(asked.stems["zero"][asked.stems["hsdp"] == 4].tolist()) == {1}
    assert len(enumerate_configs(subject, rules, {**pins, "hsdp": (0,)})) == len(plain)


def test_a_plan_takes_the_best_of_the_groups() -> None:
    words = [
        *JOB,
        "--stack",
        "torchtitan-2026",
        "--set",
        "tp=1",
        "--set",
        "pp=1",
        "--set",
        "cp=1",
        "--set",
        "zero=3",
    ]
    free = answered("plan", *words, "--set", "hsdp=0,4,8,16")["choices"]
    alone = [answered("plan", *words, "--set", f"hsdp={n}")["choices"][0] for n in (0, 4, 8, 16)]  # type: ignore[index]
    assert free[0]["step_time"] == min(choice["step_time"] for choice in alone)  # type: ignore[index]


@pytest.mark.parametrize(
    ("stack", "to", "stage", "words"),
    [
        ("torchtitan-2026", "torchtitan", 3, ["replicate_degree 4", "shard_degree 8"]),
        ("megatron-2026", "megatron", 1, ["--num-distributed-optimizer-instances 4"]),
        (
            "megatron-fsdp-2026",
            "megatron",
            3,
            ["--num-distributed-optimizer-instances 4", "--use-megatron-fsdp"],
        ),
    ],
)
def test_files_say_it_and_are_read_back(
    tmp_path: Path, stack: str, to: str, stage: int, words: list[str]
) -> None:
    plan, launch = str(tmp_path / "plan.json"), tmp_path / "launch"
    pins = ["--set", f"zero={stage}", "--set", "hsdp=8", "--stack", stack, "-o", plan]
    assert "hsdp8" in str(answered("estimate", *JOB, *pins)["headline"])
    result = CliRunner().invoke(app, ["export", plan, "--to", to, "-o", str(launch), "--unfit"])
    assert result.exit_code == 0, result.output
    texts = {path.name: path.read_text() for path in launch.iterdir() if path.name != "README.md"}
    assert all(word in "".join(texts.values()) for word in words)
    checked = answered("check", str(launch), "--cluster", JOB[1], "--model", JOB[0], "--stack", stack)
    assert checked["violations"] == []
    assert checked["axes"]["hsdp"] == 8  # type: ignore[index]


@pytest.mark.parametrize(("cp", "group", "written"), [(1, 32, ""), (2, 32, ""), (2, 8, " hsdp8")])
def test_a_group_of_all_ranks_is_no_group(tmp_path: Path, cp: int, group: int, written: str) -> None:
    """Asked for, planned, exported, checked: the same words for the same shards."""
    plan, launch = str(tmp_path / "plan.json"), tmp_path / "launch"
    pins = [
        "--set",
        "zero=1",
        "--set",
        f"hsdp={group}",
        "--set",
        f"cp={cp}",
        "--set",
        "tp=1",
        "--set",
        "pp=1",
    ]
    planned = answered("plan", *JOB, *pins, "--top", "1", "-o", plan)["choices"][0]["config"]  # type: ignore[index]
    assert (" hsdp" in planned["text"]) == bool(written)
    assert written in answered("estimate", *JOB, *pins)["choices"][0]["config"]["text"]  # type: ignore[index]
    assert CliRunner().invoke(app, ["export", plan, "-o", str(launch)]).exit_code == 0
    checked = answered("check", str(launch), "--cluster", JOB[1])
    assert checked["config"] == planned["text"]
    assert checked["axes"]["hsdp"] == planned["hsdp"]  # type: ignore[index]


def test_groups_asked_for_twice_are_tried_once() -> None:
    subject, pins = problem(), {"tp": (1,), "pp": (1,), "cp": (1,)}
    rules, ranks = rules_for(subject.stack), subject.cluster.num_devices
    asked = enumerate_configs(subject, rules, {**pins, "hsdp": (0, ranks)})
    assert asked.total == enumerate_configs(subject, rules, pins).total
    assert not asked.stems["hsdp"].any()


def test_devices_that_the_user_names_count(tmp_path: Path) -> None:
    """Copies in files that state no devices: --gpus says how many share one."""
    script = tmp_path / "run.sh"
    script.write_text(
        "python pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 --seq-length 2048 "
        "--max-position-embeddings 2048 --vocab-size 32000 --bf16 --micro-batch-size 1 --global-batch-size 64 "
        "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer "
        "--num-distributed-optimizer-instances 4"
    )
    checked = answered("check", str(script), "--cluster", JOB[1], "--gpus", "32")
    assert checked["axes"]["hsdp"] == 4  # type: ignore[index]
    uneven = script.read_text().replace("instances 4", "instances 3")
    script.write_text(uneven)
    broken = answered("check", str(script), "--cluster", JOB[1], "--gpus", "32")["violations"]
    assert {violation["rule"] for violation in broken} == {"hsdp-groups"}  # type: ignore[attr-defined]


def test_a_second_copy_of_weights_is_no_shard_group() -> None:
    """ZeRO++ shards states over all ranks all the same (DeepSpeed runtime/zero/config.py zero_hpz_partition_size)."""
    zero = {"stage": 3, "zero_hpz_partition_size": 8}
    text = json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero})
    parsed = framework("deepspeed").parse({"ds_config.json": text})
    assert parsed.axes.get("hsdp", 0) == 0
    assert any("is not modelled" in said for said in parsed.notes)


def test_a_framework_without_it_is_not_told(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    answered("estimate", *JOB, "--stack", "torchtitan-2026", "--set", "zero=3", "--set", "hsdp=8", "-o", plan)
    result = CliRunner().invoke(app, ["export", plan, "--to", "deepspeed", "-o", str(tmp_path / "launch")])
    assert (result.exit_code, "states sharded within groups" in result.output) == (2, True)


@pytest.mark.parametrize("group", [0, 4])
def test_links_are_as_busy_as_the_cost_has_them(group: int) -> None:
    model = cost_model(problem())
    config = ParallelConfig(dp=16, micro_batch=1, num_microbatches=4, zero=1, hsdp=group)
    shards = model.prepare(ConfigTable.of([config])).shards
    busy = sum(axis.busy for axis in place(model, config).axes if axis.axis == "dp")
    assert busy == pytest.approx(float(shards.scatter[0] + shards.gather[0]), rel=0.01)
    sent = {message.what for message in step_messages(model, config, 0) if message.axis == "dp"}
    assert ("gradients_across_hsdp_replicas" in sent) == (group > 0)
