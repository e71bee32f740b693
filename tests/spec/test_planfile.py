"""The plan file: what it accepts, how it is written, and that nothing is lost on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from planner.errors import FileInputError, InputError
from planner.space.restriction import parse_restriction
from planner.spec.config import AXES, CODED, ParallelConfig
from planner.spec.job import AdapterTargets, Job, Optimizer
from planner.spec.load_plan import load_plan, parse_plan, plan_json, save_plan
from planner.spec.planfile import Plan, Run
from planner.spec.planned_config import PlannedConfig
from planner.spec.precision import Precision
from planner.spec.save import check_target, save_text
from planner.spec.subject import JobFacts

CODES = {
    "sp": 1, "recompute": 2, "recompute_modules": 255, "cp_kind": 2, "schedule": 9, "offload": 7, "cuda_graph_impl": 3,
    "cuda_graph_modules": 63,
}  # fmt: skip


def written(folder: Path, plan: Plan, **changes: Any) -> Path:
    document = json.loads(plan_json(plan)) | changes
    path = folder / "plan.json"
    path.write_text(json.dumps(document))
    return path


def test_round_trip(tmp_path: Path, example_plan: Plan) -> None:
    save_plan(example_plan, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json")
    assert again == example_plan
    assert plan_json(again) == plan_json(example_plan)


def test_configuration_round_trip() -> None:
    config = ParallelConfig(
        **dict.fromkeys(AXES, 1) | {"tp": 8, "dp": 2, "recompute": 2, "recompute_layers": 3}
    )
    record = PlannedConfig.of(config)
    assert record.parallel() == config
    assert record.text == config.describe()


@pytest.mark.parametrize("axis", ["tp", "pp", "dp", "micro_batch"])
def test_no_axis_is_larger_than_a_column_holds(axis: str) -> None:
    record = PlannedConfig.of(ParallelConfig(**dict.fromkeys(AXES, 1))).model_dump()
    with pytest.raises(ValidationError, match=axis):
        PlannedConfig.model_validate(record | {axis: 10**29})


@given(st.builds(ParallelConfig, **{axis: st.integers(0, most) for axis, most in CODES.items()}))
def test_every_configuration_is_written_by_names(config: ParallelConfig) -> None:
    record = PlannedConfig.of(config)
    again = PlannedConfig.model_validate_json(record.model_dump_json(), strict=True)
    assert again == record
    assert again.parallel() == config
    for axis in CODED:  # as --set reads it; no modules are the value of what recomputes none
        if axis != "recompute_modules" or config.recompute_modules:
            assert parse_restriction([f"{axis}={again.by_axis()[axis]}"])[axis] == (getattr(config, axis),)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("schedule", "2f1b"), ("cp_kind", "ring"), ("offload", ["nothing"]), ("recompute", {"kind": "some"}),
        ("recompute", {"kind": "selective", "modules": ["mlps"]}), ("cuda_graphs", {"by": "magic"}),
        ("cuda_graphs", {"by": "local", "modules": ["mlps"]}), ("schedule", 0), ("recompute", 1),
    ],
)  # fmt: skip
def test_a_name_has_a_meaning(part: str, value: object) -> None:
    record = PlannedConfig.of(ParallelConfig(**dict.fromkeys(AXES, 1))).model_dump()
    with pytest.raises(ValidationError, match=part):
        PlannedConfig.model_validate(record | {part: value})


def test_a_choice_uses_every_device(tmp_path: Path, example_plan: Plan) -> None:
    document = json.loads(plan_json(example_plan))
    document["choices"][0]["config"]["dp"] = 7
    with pytest.raises(FileInputError, match="devices of the cluster") as refused:
        load_plan(written(tmp_path, example_plan, choices=document["choices"]))
    assert "Value error" not in str(refused.value)


@pytest.mark.parametrize(
    ("axis", "value"), [("vpp", 10**9), ("micro_batch", 10**9), ("num_microbatches", 10**7)]
)
def test_axes_that_no_job_has_are_refused(tmp_path: Path, example_plan: Plan, axis: str, value: int) -> None:
    document = json.loads(plan_json(example_plan))
    document["choices"][0]["config"][axis] = value
    with pytest.raises(FileInputError, match="must not exceed"):
        load_plan(written(tmp_path, example_plan, choices=document["choices"]))


@pytest.mark.parametrize(
    "change",
    [{"layers_per_stage": [1] * 99}, {"split": {"layers_per_chunk": [1] * 99, "bound": 0.0, "gap": 0.0}}],
)
def test_every_stage_has_its_layers(tmp_path: Path, example_plan: Plan, change: dict[str, Any]) -> None:
    document = json.loads(plan_json(example_plan))
    document["choices"][0] |= change
    with pytest.raises(FileInputError, match="parts, not 99"):
        load_plan(written(tmp_path, example_plan, choices=document["choices"]))


def test_every_number_says_its_unit() -> None:
    schema = Plan.model_json_schema()
    for name, record in schema["$defs"].items():
        for key, field in record.get("properties", {}).items():
            kinds = {field.get("type")} | {option.get("type") for option in field.get("anyOf", ())}
            if kinds & {"number", "integer"}:
                assert "description" in field, f"{name}.{key}"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"colour": "red"}, "colour"),
        ({"verdict": "maybe"}, "verdict"),
        ({"headroom": "5%"}, "headroom"),
        ({"headroom": 1.5}, "headroom"),
        ({"schema_version": 3}, "schema_version"),
        ({"schema_version": True}, "schema_version"),
        ({"schema_version": "2"}, "schema_version"),
        ({"search": {}}, "search.candidates"),
        ({"choices": []}, "choice"),
    ],
)
def test_bad_content_names_the_key(
    tmp_path: Path, example_plan: Plan, change: dict[str, Any], key: str
) -> None:
    path = written(tmp_path, example_plan, **change)
    with pytest.raises(FileInputError, match=key) as raised:
        load_plan(path)
    assert str(path) in str(raised.value)


def test_a_missing_key_is_named(tmp_path: Path, example_plan: Plan) -> None:
    document = json.loads(plan_json(example_plan))
    del document["choices"][0]["memory"]["limit"]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    with pytest.raises(FileInputError, match=r"choices\.0\.memory\.limit"):
        load_plan(path)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"schema_version": NaN}', '{"a": 1, "a": 2}', "[" * 100_000, "\x00", "{}"],
)
def test_broken_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(FileInputError):
        load_plan(path)


def test_unreadable_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xff"}')
    for path in (tmp_path, tmp_path / "none.json", tmp_path / "latin.json", "a\0b", "x" * 5000):
        with pytest.raises(FileInputError):
            load_plan(path)


def test_terms_must_add_up(example_plan: Plan) -> None:
    document = json.loads(plan_json(example_plan))
    document["choices"][0]["time"]["tp_exposed"] += 0.1
    with pytest.raises(ValidationError, match="time must add up to step_time"):
        Plan.model_validate(document)
    document = json.loads(plan_json(example_plan))
    document["choices"][0]["memory"]["terms"]["weights"] *= 2
    with pytest.raises(ValidationError, match=r"memory\.terms must add up"):
        Plan.model_validate(document)


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, example_plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("planner.spec.save.os.fsync", full)
    with pytest.raises(FileInputError, match="No space left"):
        save_plan(example_plan, path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_what_a_killed_process_left_half_written_is_removed_later(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\nfrom planner.spec import save\n"
        "save.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\nsave.save_text('half', sys.argv[1])"
    )
    target, other = tmp_path / "plan.json", tmp_path / ".planner-notes.part"
    subprocess.run([sys.executable, "-c", program, str(target)], check=False, timeout=60)
    (left,) = tmp_path.iterdir()
    other.write_text("of somebody")
    save_text("whole", target)
    assert left.exists()  # as it is new, it could be another process's that writes now
    for old in (left, other):
        os.utime(old, (0, 0))
    save_text("whole", target)
    assert sorted(tmp_path.iterdir()) == [other, target]


def test_writing_follows_a_link_and_keeps_the_mode(tmp_path: Path, example_plan: Plan) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    save_plan(example_plan, link)
    assert link.is_symlink()
    assert load_plan(target) == example_plan
    assert target.stat().st_mode & 0o777 == 0o640


def test_targets_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "plan.json", "/dev/null", "a\0b"):
        with pytest.raises(FileInputError):
            check_target(path)
    check_target(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_targets_that_are_read_are_refused(tmp_path: Path) -> None:
    read, link = tmp_path / "plan.json", tmp_path / "link.json"
    read.write_text("{}")
    os.link(read, link)
    for other in (read, str(read), link, tmp_path / "x" / ".." / "plan.json"):
        with pytest.raises(FileInputError, match="another file"):
            check_target(read, None, other)
    check_target(read, None, "", "llama-3.1-8b", tmp_path / "other.json", "64x8 h100 400G-ib", "a\0b")


@pytest.mark.parametrize(
    ("part", "key"),
    [("job", "global_batch"), ("job", "seq_len"), ("job", "lora_rank"), ("cluster", "devices")],
)
def test_counts_beyond_any_machine_are_refused(example_plan: Plan, part: str, key: str) -> None:
    document = json.loads(plan_json(example_plan))
    document["subject"][part][key] = 10**30
    with pytest.raises(FileInputError, match=f"subject.{part}.{key}"):
        parse_plan(json.dumps(document), "x.json")


@pytest.mark.parametrize(
    ("axis", "value", "must"),
    [
        ("ep", 7, "divide tp x cp x dp"),
        ("ep", 10**8, "divide tp x cp x dp"),
        ("schedule", "v-min", "its schedule runs"),
    ],
)
def test_axes_that_contradict_each_other_are_refused(
    example_plan: Plan, axis: str, value: int | str, must: str
) -> None:
    document = json.loads(plan_json(example_plan))
    document["choices"][0]["config"][axis] = value
    with pytest.raises(FileInputError, match=must):
        parse_plan(json.dumps(document), "x.json")


@pytest.mark.parametrize("kind", ["comparison", "sizing"])
def test_other_results_are_told_from_plans(kind: str) -> None:
    with pytest.raises(FileInputError, match=f"must be a plan\n  given: a {kind}"):
        parse_plan(json.dumps({"kind": kind}), "x.json")


def test_goodput_and_what_is_lost_make_one() -> None:
    old = Run(steps=10, days=1.0, gpu_hours=24.0)
    assert old.goodput is None
    shares = {"goodput": 0.9, "lost": {"restarts": 0.08, "repeated_work": 0.02}}
    assert Run.model_validate(old.model_dump() | shares).lost["restarts"] == 0.08
    with pytest.raises(ValidationError, match="must add up"):
        Run.model_validate(old.model_dump() | shares | {"goodput": 0.95})


# a value of every field of a job that is not its default; a new field has to be added here
UNUSUAL: dict[str, Any] = {
    "seq_len": 2048, "global_batch": 7, "precision": Precision.FP8_CS, "optimizer": Optimizer.MUON, "tokens": 1e9,
    "lora_rank": 8, "frozen_bits": 4, "expert_imbalance": ((2, 1.25), (4, 1.5)), "expert_replicas": 96,
    "lora_targets": AdapterTargets.QKV, "mean_length": 700.5, "packed": True, "bf16_layers": (1, 2),
    "checkpoint_staged": False, "critical_batch": 8e6, "batch_schedule": ((2, 1e8), (4, 2e8)),
}  # fmt: skip


def test_a_plan_file_holds_every_field_of_a_job(tmp_path: Path, example_plan: Plan) -> None:
    for field in fields(Job):
        assert UNUSUAL[field.name] != field.default, field.name
    for job in (
        Job(**UNUSUAL),
        Job(2048, 7),
        Job(2048, 7, expert_imbalance=1.5),
        Job(2048, 7, expert_imbalance=()),
    ):
        facts = json.loads(JobFacts.of(job).model_dump_json())
        assert {field.name for field in fields(Job)} <= facts.keys()
        subject = json.loads(plan_json(example_plan))["subject"] | {"job": facts}
        path = written(
            tmp_path, example_plan.model_copy(update={"choices": ()}), subject=subject, verdict="illegal"
        )
        assert load_plan(path).subject.job.job() == job


def test_a_file_without_the_newer_fields_reads_as_their_defaults(tmp_path: Path, example_plan: Plan) -> None:
    subject = json.loads(plan_json(example_plan))["subject"]
    old = ("seq_len", "global_batch", "precision", "optimizer", "tokens", "tokens_per_step")
    subject["job"] = {name: subject["job"][name] for name in old}
    job = load_plan(written(tmp_path, example_plan, subject=subject)).subject.job.job()
    assert job == Job(8192, 2048, tokens=15.6e12)


def test_an_unknown_name_in_a_job_is_refused() -> None:
    facts = JobFacts.of(Job(2048, 8)).model_copy(update={"lora_targets": "everything"})
    with pytest.raises(InputError, match="unknown lora targets"):
        facts.job()
