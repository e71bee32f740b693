"""`planner estimate` of a stated layout and of a plan file: the numbers of the plan."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from planner.cli import app
from planner.cli.estimate import of_run
from planner.frameworks.layout import stated_layout
from planner.spec.load_plan import load_plan

JOB = ["llama-3.1-8b", "2x8 h100 400G-ib", "--global-batch", "64"]
PINS = ["tp=2", "pp=4", "vpp=1", "micro_batch=1", "sp=1", "zero=1", "recompute=none"]


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    pins = [word for pin in PINS for word in ("--set", pin)]
    assert (
        CliRunner()
        .invoke(app, ["plan", *JOB, *pins, "--without", "all", "-o", str(path), "--json"])
        .exit_code
        == 0
    )
    return path


def estimate(*words: str) -> dict[str, object]:
    result = CliRunner().invoke(app, ["estimate", *words, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)["choices"][0]
    return found


def test_a_layout_and_a_plan_file_give_the_numbers_of_the_plan(plan_file: Path) -> None:
    planned = load_plan(plan_file).choices[0]
    assert planned.split is not None
    counts = planned.split.layers_per_chunk
    assert len(set(counts)) > 1
    pins = [word for pin in PINS for word in ("--set", pin)]
    letters = "E" + "|".join(f"t*{count}" for count in counts) + "L"
    texts = (",".join(map(str, counts)), letters, planned.layout)
    stack = ("--stack", planned.stack)
    found = [estimate(*JOB, *stack, *pins, "--set", f"layout={text}") for text in texts]
    for choice in (*found, estimate(str(plan_file))):
        assert choice["step_time"] == planned.step_time
        assert choice["memory"] == json.loads(planned.memory.model_dump_json())
        assert choice["layout"] == planned.layout


def test_memory_of_a_plan_file_is_that_of_its_split(plan_file: Path) -> None:
    result = CliRunner().invoke(app, ["estimate", str(plan_file), "--memory", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["peak"] == load_plan(plan_file).choices[0].memory.peak


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*JOB, "--set", "pp=2", "--set", "layout=16,15"], "add up to"),
        ([*JOB, "--set", "pp=2", "--set", "layout=16,8,8"], "multiple of that"),
        ([*JOB, "--set", "pp=1", "--set", "layout=16,16"], "pipeline ranks, 1 given"),
        ([*JOB, "--set", "pp=2", "--set", "layout=Et*16|t*16"], "end with L"),
        ([*JOB, "--set", "pp=2", "--set", "layout=Et*16|t*16mL"], "0 m before"),
        ([*JOB, "--set", "pp=2", "--set", "vpp=2", "--set", "layout=16,16"], "4 parts"),
        (
            [*JOB, "--stack", "nanotron-2024", "--set", "pp=2", "--set", "layout=16,16"],
            "assigns layers itself",
        ),
        ([*JOB, "--choice", "1"], "belongs to a plan file"),
        (["llama-3.1-8b"], "MODEL and CLUSTER"),
        (["no-such-plan.json"], "the file must exist"),
    ],
)
def test_what_is_no_layout_is_refused(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["estimate", *words])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_layout_names_the_pipeline_where_nothing_else_does() -> None:
    for words, degrees in (((), (4, 1)), (("--set", "vpp=2"), (2, 2))):
        config = estimate(*JOB, *words, "--set", "layout=8,8,8,8")["config"]
        assert isinstance(config, dict)
        assert (config["pp"], config["vpp"]) == degrees


def test_a_split_of_the_stack_that_does_not_fit_is_no_rival(plan_file: Path) -> None:
    """Its step may be shorter: what cannot run is not set against what can."""
    pins = [word for pin in PINS for word in ("--set", pin)]
    for headroom, fits in (("0%", True), ("90%", False)):
        words = ["estimate", *JOB, *pins, "--set", "layout=9,8,8,7", "--headroom", headroom, "--json"]
        split = json.loads(CliRunner().invoke(app, words).stdout)["choices"][0]["split"]
        assert (split.get("own_step_time") is not None) is fits


def test_an_illegal_configuration_with_a_layout_has_a_nearest() -> None:
    """24 devices leave dp = 3, which does not divide the batch: the nearest legal one has another pipeline."""
    pins = [word for pin in PINS for word in ("--set", pin)]
    words = ["llama-3.1-8b", "dgx-b200", "--gpus", "24", "--global-batch", "64", *pins]
    result = CliRunner().invoke(app, ["estimate", *words, "--set", "layout=9,8,8,7", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["nearest_config"]["pp"] != 4


def test_a_plan_file_takes_no_other_job(plan_file: Path) -> None:
    result = CliRunner().invoke(app, ["estimate", str(plan_file), "--set", "tp=4"])
    assert result.exit_code == 2
    assert "given: --set" in " ".join(result.stderr.split())
    assert CliRunner().invoke(app, ["estimate", str(plan_file), "--choice", "99"]).exit_code == 2
    assert CliRunner().invoke(app, ["plan", *JOB, "--set", "layout=16,16"]).exit_code == 2


def test_a_plan_file_takes_other_memory(plan_file: Path) -> None:
    """However much is kept back is said, it counts; the page lists what may be said."""
    usual: Any = estimate(str(plan_file))["memory"]
    capacity = usual["capacity"]
    for words, limit in (
        (("--headroom", "50%"), 0.5 * capacity),
        (("--min-free", "30GiB"), capacity - 30 * 2**30),
    ):
        memory: Any = estimate(str(plan_file), *words)["memory"]
        assert memory["limit"] == pytest.approx(limit)
    page = (Path(__file__).parents[2] / "docs/options.md").read_text(encoding="utf-8")
    told = page[page.index("A plan file is asked again") :]
    assert re.findall(r"`--([a-z-]+)`", told) == [name.replace("_", "-") for name in of_run()]


def test_a_plan_file_is_asked_again_as_it_was(tmp_path: Path) -> None:
    """Its assumptions and its headroom count, but for what is said otherwise."""
    job = [
        "llama-3.2-1b",
        "1x8 h100",
        "--global-batch",
        "64",
        "--set",
        "tp=1",
        "--set",
        "pp=1",
        "--without",
        "all",
    ]
    kept = ["--headroom", "20%", "--tokens", "1T", "--assume", "price=3 $/h"]
    path = str(tmp_path / "plan.json")
    assert CliRunner().invoke(app, ["plan", *job, *kept, "-o", path]).exit_code == 0
    made = load_plan(path)
    assert made.asked["set"] == {"tp": ["1"], "pp": ["1"]}

    def again(*words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            CliRunner().invoke(app, ["estimate", path, *words, "--json"]).stdout
        )
        return found

    own, other = again(), again("--headroom", "10%", "--assume", "price=6 $/h")
    assert own["choices"][0]["run"]["cost"] == pytest.approx(
        made.choices[0].run.cost if made.choices[0].run else 0
    )
    assert (own["headroom"], other["headroom"]) == (0.2, 0.1)
    assert other["choices"][0]["run"]["cost"] == pytest.approx(2 * own["choices"][0]["run"]["cost"])
    assert other["asked"] == made.asked | {"headroom": "10%", "assume": ["price=6 $/h"]} | {}


def test_layouts_of_more_chunks_than_ranks() -> None:
    assert stated_layout("Ett|(tt|)*2tL", 7, 2) == (2, 2, 2, 1)
    assert stated_layout("E|t*3|t*3|mL", 6, 4, 1) == (0, 3, 3, 0)


def test_a_plan_file_on_another_cluster(plan_file: Path) -> None:
    """The launch of the plan as it is: the figures are those of the same configuration planned there."""
    planned = load_plan(plan_file).choices[0]
    assert planned.split is not None
    found = estimate(str(plan_file), "--cluster", "dgx-b200")
    pins = [word for pin in PINS for word in ("--set", pin)]
    layout = ",".join(map(str, planned.split.layers_per_chunk))
    there = ["llama-3.1-8b", "dgx-b200", "--gpus", "16", "--global-batch", "64", "--stack", planned.stack]
    same = estimate(*there, *pins, "--set", f"layout={layout}")
    assert (found["step_time"], found["memory"]) == (same["step_time"], same["memory"])
    assert found["config"] == json.loads(planned.config.model_dump_json())
    assert found["step_time"] < planned.step_time


def test_a_plan_file_on_more_devices_keeps_its_batch(plan_file: Path) -> None:
    planned = load_plan(plan_file).choices[0].config
    result = CliRunner().invoke(
        app, ["estimate", str(plan_file), "--cluster", "dgx-b200", "--gpus", "32", "--json"]
    )
    answer = json.loads(result.stdout)
    config = answer["choices"][0]["config"]
    assert (config["dp"], config["num_microbatches"]) == (2 * planned.dp, planned.num_microbatches // 2)
    assert [one for one in answer["assumptions"] if "planned for 16 h100-sxm-80g" in one["text"]]
    assert [
        one for one in answer["assumptions"] if f"dp: {2 * planned.dp} instead of {planned.dp}" in one["text"]
    ]


def test_tokens_of_a_plan_file_add_the_days(plan_file: Path) -> None:
    assert estimate(str(plan_file))["run"] is None
    run = estimate(str(plan_file), "--tokens", "1T")["run"]
    assert isinstance(run, dict)
    assert run["days"] > 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["PLAN", "--gpus", "32"], 2, "has 16 devices"),
        (["PLAN", "--gpus", "4"], 2, "multiple of the configuration's tp x cp x pp, 8"),
        (["PLAN", "--cluster", "nowhere"], 2, "unknown cluster"),
        (["PLAN", "--cluster", "dgx-b200", "--gpus", "24"], 1, "dp must divide the global batch"),
        (["PLAN", "--cluster", "dgx-b200", "--set", "tp=4"], 2, "leave all but"),
        ([*JOB, "--cluster", "dgx-b200"], 2, "belongs to a plan file"),
        (["llama-3.1-8b", "--cluster", "dgx-b200"], 2, "MODEL and CLUSTER"),
    ],
)
def test_what_cannot_be_moved_says_why(plan_file: Path, words: list[str], code: int, said: str) -> None:
    named = [str(plan_file) if word == "PLAN" else word for word in words]
    result = CliRunner().invoke(app, ["estimate", *named])
    assert result.exit_code == code
    assert said in " ".join(result.output.split())


def test_formats_are_not_taken_on_trust(tmp_path: Path) -> None:
    """fp8 on devices without it."""
    narrow = tmp_path / "narrow.json"
    pins = [word for pin in PINS for word in ("--set", pin)]
    made = ["plan", "llama-3.1-8b", "2x8 h100 400G-ib", "--precision", "fp8", "--global-batch", "64", *pins]
    assert CliRunner().invoke(app, [*made, "--top", "1", "-o", str(narrow)]).exit_code == 0
    result = CliRunner().invoke(app, ["estimate", str(narrow), "--cluster", "dgx-a100"])
    assert result.exit_code == 2
    assert "fp8" in result.stderr


def test_what_is_not_named_is_what_the_framework_has() -> None:
    """DeepSpeed's tensor parallelism knows no sequence parallelism, which is a default elsewhere."""
    deepspeed = estimate("llama-3.1-8b", "1x8 h100 400G-ib", "--stack", "deepspeed-2025", "--set", "tp=2")
    megatron = estimate("llama-3.1-8b", "1x8 h100 400G-ib", "--set", "tp=2")
    assert [found["config"]["sp"] for found in (deepspeed, megatron)] == [0, 1]  # type: ignore[index]


def test_what_does_not_fit_is_exported_where_it_is_asked_for_alone(tmp_path: Path) -> None:
    big, folder, runner = tmp_path / "big.json", tmp_path / "launch", CliRunner()
    job = ["llama-3.1-70b", "dgx-h100", "--gpus", "8", "--set", "tp=8", "-o", str(big)]
    assert runner.invoke(app, ["estimate", *job]).exit_code == 1
    refused = runner.invoke(app, ["export", str(big), "-o", str(folder)])
    assert (refused.exit_code, folder.exists()) == (1, False)
    assert "--unfit" in refused.stderr
    assert runner.invoke(app, ["export", str(big), "-o", str(folder), "--unfit"]).exit_code == 0
    assert "does not fit" in (folder / "README.md").read_text()
