"""A plan says whether its own framework can be launched with it, as `planner export` then finds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from planner.answer.estimate import make_estimate
from planner.answer.launchable import with_launch_note
from planner.answer.plan import make_plan
from planner.ask.planned import planned_model
from planner.ask.request import Request
from planner.catalog.load_stacks import load_stack
from planner.cli.export import render_plan
from planner.errors import InputError, UnsupportedError
from planner.report.facts import headline_lines
from planner.report.proof import assumed
from planner.report.words import text_of
from planner.spec.load_plan import load_plan, save_plan
from planner.spec.planfile import Plan

FEW = {"tp": (1,), "pp": (16,), "cp": (1,), "ep": (1,), "micro_batch": (1,), "recompute": (2,)}
NOTES = ("no_launch_files", "launched_otherwise")


def request(model: str, stack: str, **job: str) -> Request:
    return Request(
        model=model, cluster="8x8 h100 400G-ib", seq_len=2048, global_batch="64", stack=stack,
        precision=job.get("precision"), optimizer=job.get("optimizer", "adamw"), top=1, front=False,
    )  # fmt: skip


def notes(plan: Plan) -> list[str]:
    return [text_of(one) for one in (*plan.headline, *plan.assumptions) if one.code in NOTES]


@pytest.mark.parametrize(
    ("model", "stack", "job", "to", "said"),
    [
        ("mixtral-8x7b", "nanotron-2024", {}, "nanotron", "experts"),
        ("llama-3.1-8b", "nanotron-2024", {"precision": "fp8"}, "nanotron", "precision, given fp8"),
        ("mistral-7b", "torchtitan-2026", {}, "torchtitan", "one that planner writes for torchtitan"),
        ("llama-3.1-8b", "torchtitan-2026", {"optimizer": "muon"}, "torchtitan", "optimizer, given muon"),
        ("llama-3.1-8b", "nanotron-2024", {}, "nanotron", ""),
        ("llama-3.1-8b", "megatron-2026", {}, "megatron", ""),
    ],
)
def test_what_export_refuses_is_said_by_the_plan(
    model: str, stack: str, job: dict[str, str], to: str, said: str, tmp_path: Path
) -> None:
    plan = make_estimate(request(model, stack, **job))
    save_plan(plan, tmp_path / "plan.json")
    if not said:
        assert not notes(plan)
        assert render_plan(tmp_path / "plan.json", to, 0, None)
        return
    (note,) = notes(plan)
    assert said in note
    assert note.startswith("planner export cannot write launch files for this plan")
    assert note in headline_lines(plan)
    assert note not in assumed(plan)
    with pytest.raises(UnsupportedError):
        render_plan(tmp_path / "plan.json", to, 0, None)


def test_a_search_says_so_too() -> None:
    plan = make_plan(Request(**{**vars(request("mixtral-8x7b", "nanotron-2024")), "set": FEW}))
    assert plan.found
    assert "experts" in notes(plan)[0]


def test_another_release_is_named_where_it_alone_can() -> None:
    asked = request("llama-3.1-8b", "torchtitan-2026+enable-fsdp-float8-all-gather", precision="fp8_cs")
    (note,) = notes(make_estimate(Request(**{**vars(asked), "set": {"zero": (3,)}})))
    assert "torchtitan 0.2.2" in note
    assert "not 0.3.0" in note


def test_nothing_is_said_where_there_is_nothing_to_launch() -> None:
    """A framework whose files planner does not write, and an illegal configuration."""
    for stack, degrees in (("hai-llm-2024", {}), ("nanotron-2024", {"tp": (3,)})):
        asked = Request(**{**vars(request("llama-3.1-8b", stack)), "set": degrees})
        assert not notes(make_estimate(asked))


def test_a_note_leaves_the_rest_as_it_was() -> None:
    from planner.spec.load_model import load_model

    plan = make_estimate(request("llama-3.1-8b", "megatron-2026"))
    assert with_launch_note(plan, load_model("llama-3.1-8b"), load_stack("megatron-2026")) is plan


def edited(
    plan: Plan, file: Path, choice: Mapping[str, object] | None = None, stack: str | None = None
) -> Path:
    """The file of a plan whose best configuration or stack was changed by hand."""
    document = json.loads(plan.model_dump_json())
    named = stack or plan.subject.stack.name
    document["choices"][0] |= {"stack": named, **(choice or {})}
    document["subject"]["stack"]["name"] = named
    file.write_text(json.dumps(document))
    return file


def test_a_stack_that_is_not_known_is_not_left_out(tmp_path: Path) -> None:
    """Its kernels and states would be those of no stack. A user's own is named by its file."""
    plan = make_estimate(request("llama-3.1-8b", "megatron-2026"))
    file = edited(plan, tmp_path / "plan.json", stack="mine")
    with pytest.raises(InputError, match=r"--stack FILE\.yaml"):
        render_plan(file, "megatron", 0, None)
    own = tmp_path / "mine.yaml"
    facts = "description: ours\nreleased: '2026-08'\nsource: measured\n"
    own.write_text(f"extends: megatron-2026\nname: mine\n{facts}")
    with_file = render_plan(file, "megatron", 0, None, stack=str(own))
    shipped = render_plan(edited(plan, tmp_path / "same.json"), "megatron", 0, None)
    assert with_file["launch.sh"] == shipped["launch.sh"]
    with pytest.raises(InputError, match="must be the stack of the plan, mine"):
        render_plan(file, "megatron", 0, None, stack="megatron-2025")


@pytest.mark.parametrize(
    "change", [{"layout": "Et*17|t*15L"}, {"layout": "Et*17|t*15L", "layers_per_stage": [17, 15]}]
)
def test_a_layout_changed_by_hand_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    """Some verbs would follow it and others the split."""
    asked = Request(**{**vars(request("llama-3.1-8b", "megatron-2026")), "set": {"pp": (2,)}})
    plan = make_estimate(replace(asked, set={"pp": (2,), "layout": "Et*15|t*17L"}))
    assert render_plan(edited(plan, tmp_path / "plan.json"), "megatron", 0, None)
    with pytest.raises(InputError, match="layout, layers_per_stage and split of a plan must say the same"):
        planned_model(load_plan(edited(plan, tmp_path / "plan.json", choice=change)))
