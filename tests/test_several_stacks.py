"""Are several stacks compared, and is every choice of a plan read under its own?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.ask.request import Request, resolve
from planner.catalog.load_stacks import load_stack, stacks_to_plan
from planner.catalog.several_stacks import CURRENT_MONTHS, current_stacks, stacks_asked
from planner.cli import app
from planner.errors import InputError, UnknownNameError
from planner.frameworks import written_stacks
from planner.report import options_text, proof
from planner.report.facts import configuration_grid
from planner.report.words import line_of
from planner.space.without import ALL
from planner.spec.load_plan import load_plan, save_plan
from planner.spec.machine.load_cluster import load_accelerator
from planner.spec.planfile import Plan
from planner.spec.rows import plan_rows

runner = CliRunner()
ASKED = Request(
    "llama-3.1-8b", "1x8 h100 400G-ib", seq_len=4096, global_batch="64", top=30,
    stack="megatron-2026,torchtitan-2026",
    set={"tp": (1, 2), "pp": (2, 4), "cp": (1,), "vpp": (1, 2)}, front=False,
)  # fmt: skip
SEARCHED = replace(ASKED, without=(ALL,))  # whose list holds both


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(SEARCHED)


@pytest.fixture(scope="module")
def plan_file(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("several") / "plan.json"
    save_plan(plan, path)
    return path


def first_of(plan: Plan, stack: str) -> int:
    return next(i for i, choice in enumerate(plan.choices) if choice.stack.startswith(stack))


def test_the_fastest_stack_wins_and_the_list_is_of_both(plan: Plan) -> None:
    alone = {name: make_plan(replace(SEARCHED, stack=name)) for name in ("megatron-2026", "torchtitan-2026")}
    best = {name: one.choices[0].step_time for name, one in alone.items()}
    winner, loser = sorted(best, key=best.__getitem__)
    assert [one.name for one in plan.search.stacks] == [winner, loser]
    assert [one.step_time for one in plan.search.stacks] == [best[winner], best[loser]]
    assert plan.choices[0].step_time == best[winner]
    assert plan.subject.stack.name == plan.choices[0].stack
    times = sorted(choice.step_time for one in alone.values() for choice in one.choices)
    assert [choice.step_time for choice in plan.choices] == times[: len(plan.choices)]
    assert plan.search.legal == sum(one.search.legal for one in alone.values())
    assert plan.search.certificate is not None
    assert plan.search.certificate.gap is not None
    assert {one.stack for one in plan.search.certificate.held} == {"", loser}


@pytest.mark.parametrize(
    ("stack", "said"), [("megatron-2026", "--tensor-model"), ("torchtitan-2026", "--parallelism.")]
)
def test_every_verb_reads_a_choice_under_its_own_stack(
    plan: Plan, plan_file: Path, tmp_path: Path, stack: str, said: str
) -> None:
    index = first_of(plan, stack)
    choice, which = plan.choices[index], ("--choice", str(index))
    done = runner.invoke(app, ["export", str(plan_file), "-o", str(tmp_path / "launch"), *which])
    assert done.exit_code == 0, done.output
    assert said in (tmp_path / "launch" / "launch.sh").read_text()
    assert f"the plan's stack, {choice.stack};" in (tmp_path / "launch" / "README.md").read_text()
    again = runner.invoke(app, ["estimate", str(plan_file), *which, "--json"])
    estimated = json.loads(again.stdout)
    assert estimated["choices"][0]["step_time"] == choice.step_time
    assert estimated["subject"]["stack"]["name"] == choice.stack
    drawn = runner.invoke(app, ["trace", str(plan_file), *which, "-o", "-"])
    assert json.loads(drawn.stdout)["otherData"]["stack"] == choice.stack
    why = runner.invoke(app, ["explain", str(plan_file), *which])
    assert why.exit_code == 0, why.output
    assert plan.framework_of(choice) == load_stack(choice.stack).framework
    assert plan_rows(plan)[index]["stack"] == choice.stack


def test_the_answer_says_which_wins_by_how_much(plan: Plan) -> None:
    first, second = plan.search.stacks
    assert first.step_time is not None
    assert second.step_time is not None
    lead = 100 * (second.step_time / first.step_time - 1)
    assert options_text.lead_sentence(plan.search.stacks) == (
        f"{first.name} wins: {second.name}, the next, takes {lead:.1f} % longer"
    )
    grid = configuration_grid(plan.choices)
    assert "stack" in grid.axes
    letters = {
        row[grid.axes.index("stack")]: choice.stack
        for row, choice in zip(grid.rows, plan.choices, strict=True)
    }
    assert list(grid.legend) == [f"{letter}: {stack}" for letter, stack in letters.items()]
    assert plan.search.certificate is not None
    assert f"{second.name}: precision" in proof.proof_sentence(plan.search.certificate)


def test_a_file_without_stacks_of_choices_means_the_subjects(tmp_path: Path) -> None:
    asked = replace(ASKED, stack="torchtitan-2026", set={"tp": (2,)})
    document = json.loads(make_estimate(asked).model_dump_json())
    del document["choices"][0]["stack"]
    (tmp_path / "old.json").write_text(json.dumps(document))
    assert load_plan(tmp_path / "old.json").choices[0].stack == "torchtitan-2026"


def test_a_stack_that_cannot_answer_is_told_in_its_row() -> None:
    found = make_plan(replace(ASKED, stack="megatron-2022,megatron-2026", precision="fp8"))
    assert found.found
    (last,) = (one for one in found.search.stacks if one.name == "megatron-2022")
    assert last.step_time is None
    assert "fp8" in line_of(last.reason)


def test_names_of_several_stacks() -> None:
    h100, tpu = load_accelerator("h100-sxm-80g"), load_accelerator("tpu-v5p")
    assert stacks_asked("megatron-2026, deepspeed-2025,megatron-2026", h100, ()) == (
        "megatron-2026",
        "deepspeed-2025",
    )
    with pytest.raises(UnknownNameError, match="megatron-2026"):
        stacks_asked("megatron-2026,megatron-2062", h100, ())
    with pytest.raises(InputError, match="between commas"):
        stacks_asked("megatron-2026,", h100, ())
    with pytest.raises(InputError, match="one stack must be named"):
        resolve(ASKED)
    with pytest.raises(InputError, match="one stack must be named"):
        make_estimate(ASKED)
    assert current_stacks(tpu, written_stacks()) == ("maxtext-2024",)
    assert stacks_asked("any", tpu, written_stacks()) == ("maxtext-2024",)


def test_any_is_the_newest_of_every_family() -> None:
    found = [load_stack(name) for name in current_stacks(load_accelerator("h100-sxm-80g"), written_stacks())]
    families = [(stack.framework, stack.engine.kind) for stack in found]
    assert len(set(families)) == len(families)
    months = {
        s.name: 12 * int(s.released[:4]) + int(s.released[5:7]) for s in map(load_stack, stacks_to_plan())
    }
    newest = max(months.values())
    for stack in map(load_stack, stacks_to_plan()):
        family = (stack.framework, stack.engine.kind)
        if stack.framework in written_stacks() and newest - months[stack.name] <= CURRENT_MONTHS:
            own = next(one for one in found if (one.framework, one.engine.kind) == family)
            assert months[own.name] >= months[stack.name]
    assert all(newest - months[stack.name] <= CURRENT_MONTHS for stack in found)


def test_names_to_leave_out_are_taken_everywhere(tmp_path: Path) -> None:
    from planner.api import plan as plan_in_python
    from planner.ask.load_sweep import load_sweep
    from planner.cli.serve import asked

    job = (
        "llama-3.1-8b",
        "1x8 h100 400G-ib",
        "--seq-len",
        "4096",
        "--global-batch",
        "64",
        "--set",
        "pp=1",
        "--json",
    )
    on = json.loads(runner.invoke(app, ["plan", *job]).stdout)["subject"]["stack"]["name"]
    assert on == "megatron-2026+optimizer-cuda-graph"
    off = json.loads(runner.invoke(app, ["plan", *job, "--without", "optimizer-cuda-graph"]).stdout)
    assert off["subject"]["stack"]["name"] == "megatron-2026"
    assert off["search"]["without"] == ["optimizer-cuda-graph"]
    wrong = runner.invoke(app, ["plan", *job, "--without", "optimiser-cuda-graph"])
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "did you mean: optimizer-cuda-graph" in wrong.stderr
    same = plan_in_python(
        job[0], job[1], seq_len=4096, global_batch=64, set={"pp": 1}, without=["optimizer-cuda-graph"]
    )
    assert same.choices[0].stack == "megatron-2026"
    with pytest.raises(InputError, match="without must be"):
        plan_in_python(job[0], job[1], without=3)  # type: ignore[arg-type]
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        "model: llama-3.1-8b\ncluster: dgx-h100\ngpus: 8\nwithout: [deepep, offload]\nstack: any\n"
    )
    (point,) = load_sweep(sweep).requests()
    assert (point.without, point.stack) == (("deepep", "offload"), "any")
    page = asked(
        {
            "model": "llama-3.1-8b",
            "cluster": "dgx-h100",
            "gpus": "8",
            "without": "deepep offload",
            "stack": "any",
        }
    )
    assert (page.without, page.stack) == (("deepep", "offload"), "any")
    with pytest.raises(UnknownNameError):
        asked({"model": "llama-3.1-8b", "cluster": "dgx-h100", "stack": "megatron-2026,./mine.yaml"})
